"""`clearformer presets`: the named configurations to start from."""

from typing import Annotated

import typer

from clearformer.cli.importing import importing

app = typer.Typer(add_completion=False)


@app.command()
def presets(
    name: Annotated[str | None, typer.Argument(metavar="PRESET", help="Preset to show as TOML.")] = None,
) -> None:
    """List the presets, or show one as the TOML that train --config takes."""
    with importing():
        from clearformer.cli.tables import definitions, paragraph
        from clearformer.config import to_toml
        from clearformer.presets import DEFAULTS, PRESETS, preset

    if name is not None:
        typer.echo(to_toml(preset(name)), nl=False)
        return
    default_for = {name: f" The default for data.kind={kind}." for kind, name in DEFAULTS.items()}
    about = {key: (make.__doc__ or "").partition("\n")[0] for key, make in PRESETS.items()}
    typer.echo(definitions([(key, text + default_for.get(key, "")) for key, text in about.items()]))
    typer.echo(
        "\n"
        + paragraph(
            "clearformer presets PRESET shows a preset's settings; clearformer train PRESET key=value... trains it."
        )
    )
