"""`clearformer data`: list the built-in data, prepare data as tokens, and inspect prepared data."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from clearformer.cli.options import AsJson, show_log
from clearformer.cli.progress import progress_bar
from clearformer.errors import ClearformerError

if TYPE_CHECKING:
    from clearformer.cli.views.datasets import DatasetView

app = typer.Typer(
    help="List the built-in data; tokenize data, and inspect the result.",
    add_completion=False,
)

TITLES = {
    "text": "Texts, for language models",
    "pairs": "Pairs of lines in two languages, for translation",
    "labelled": "Labelled texts, for classification",
}
ABSENT = {
    "text": "downloaded on first use",
    "pairs": "not on this machine; clearformer data prepare says where to get it",
    "labelled": "not on this machine; clearformer data prepare says where to get it",
}
YOUR_OWN = """\
Choose one with data.name=NAME. For your own files, plain or gzip:
  data.path=FILE                     a text: a file, a folder, or JSONL (data.field=NAME holds the text)
                                     with held-out text of its own: data.val_path=FILE data.test_path=FILE
  data.source=FILE data.target=FILE  pairs in two files: line n of one translates line n of the other
  data.kind=pairs data.path=FILE     pairs in one file: source<TAB>target
  data.kind=labelled data.path=FILE  labelled texts: TSV, CSV or JSONL (data.text_field=NAME, data.label_field=NAME)"""

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Settings, such as data.path=book.txt tokenizer.kind=bpe tokenizer.vocab_size=512.",
    ),
]


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """List the built-in data, and where they are on this machine."""
    from clearformer.data import BUILT_IN_BY_KIND

    if as_json:
        listed = {
            kind: [
                {"name": name, "about": known.about, "size": known.size, "place": known.where()}
                for name, known in built_in.items()
            ]
            for kind, built_in in BUILT_IN_BY_KIND.items()
        }
        typer.echo(json.dumps(listed))
        return
    for kind, built_in in BUILT_IN_BY_KIND.items():
        typer.echo(TITLES[kind])
        for name, known in built_in.items():
            place = known.where()
            typer.echo(f"  {typer.style(f'{name:12}', bold=True)} {known.about}")
            typer.echo(f"  {'':12} {known.size}; {f'available: {place}' if place else ABSENT[kind]}")
        typer.echo()
    typer.echo(YOUR_OWN)


@app.command("prepare")
def prepare_command(overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Tokenize data into the cache, or check the cached data."""
    view = _prepared(overrides, check=True)
    if as_json:
        typer.echo(json.dumps(view.summary()))
    else:
        view.print_summary()


@app.command("inspect")
def inspect_command(overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Show splits and examples with their tokens; verify checksums."""
    view = _prepared(overrides, check=False)
    try:
        n_checked = view.check()
    except ClearformerError as error:
        error.args = (f"{error}; run clearformer data prepare with the same settings to rebuild it",)
        raise
    if as_json:
        typer.echo(json.dumps(view.summary() | view.details() | {f"n_{view.files}_checked": n_checked}))
        return
    view.print_summary()
    view.print_details()
    typer.echo(f"\n{n_checked} {view.files} checked, all SHA-256 sums match")


def _prepared(overrides: list[str] | None, check: bool) -> "DatasetView":
    from clearformer.cli.views.datasets import prepare_view
    from clearformer.config import parse_override
    from clearformer.resolving import resolve_data

    show_log()
    config = resolve_data([parse_override(override) for override in overrides or []])
    with progress_bar() as progress:
        return prepare_view(config.data, config.tokenizer, check=check, progress=progress)
