"""What commands have in common: what a user gave, and what was left to its default; and showing the log."""

import logging

import typer


def was_given(context: typer.Context, name: str) -> bool:
    """Whether an option was given, be it with its default's value.

    Compared by name, because newer versions of typer bring a copy of click, whose members are not those of click.
    """
    source = context.get_parameter_source(name)
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")


def show_log() -> None:
    """Show on standard error what the library tells on the way, such as what it takes for granted."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
