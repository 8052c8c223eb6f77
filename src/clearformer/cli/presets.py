"""`clearformer presets`: the runs to begin from."""

from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def presets(
    name: Annotated[
        str | None, typer.Argument(help="Show this preset's whole configuration as TOML.")
    ] = None,
) -> None:
    """List the presets, or show one as the TOML that `train --config` takes."""
    from clearformer.config import to_toml
    from clearformer.presets import DEFAULTS, PRESETS, preset

    if name is not None:
        typer.echo(to_toml(preset(name)), nl=False)
        return
    default_for = {name: f" (the default for data of kind {kind})" for kind, name in DEFAULTS.items()}
    for key, make in PRESETS.items():
        about = (make.__doc__ or "").partition("\n")[0]
        typer.echo(f"{typer.style(f'{key:17}', bold=True)}{about}{default_for.get(key, '')}")
    typer.echo("\nclearformer presets NAME shows one whole; clearformer train NAME key=value ... trains it.")
