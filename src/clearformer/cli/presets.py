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
    from clearformer.presets import DEFAULT, PRESETS, preset

    if name is not None:
        typer.echo(to_toml(preset(name)), nl=False)
        return
    for key, make in PRESETS.items():
        about = (make.__doc__ or "").partition("\n")[0]
        typer.echo(
            f"{typer.style(f'{key:16}', bold=True)}{about}{' (the default)' if key == DEFAULT else ''}"
        )
    typer.echo("\nclearformer presets NAME shows one whole; clearformer train NAME key=value ... trains it.")
