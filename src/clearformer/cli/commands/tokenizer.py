"""`clearformer tokenizer`: train a tokenizer, show how one tokenizes a text, and compare several."""

import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearformer.cli import standard_input
from clearformer.cli.commands_to_type import to_type
from clearformer.cli.options import AsJson, check_not_empty, check_utf8, named_as_options
from clearformer.cli.views.tokens import description, print_comparison, print_tokens, tokens_as_data
from clearformer.errors import (
    DataError,
    TokenizerError,
    UserError,
    did_you_mean,
    shortened,
    shown,
    worded_for,
)
from clearformer.files import runs_folder, user_path

if TYPE_CHECKING:  # these take time to import, and `--help` needs none of them
    from clearformer.data.text.source import Source
    from clearformer.text import BPETokenizer, Tokenizer

NAMED = ("char", "byte", "gpt2")
MADE_ELSEWHERE = ("gpt2", "file")  # kinds that only read a vocabulary
DEFAULT_KIND = "bpe"
DEFAULT_KINDS = "bpe,wordpiece,unigram"
DEFAULT_SIZES = "4000"
HELD_OUT = 0.1  # the share held out of every text, taken from its end
EXAMPLE_WORDS = (5, 25)
MOST_EXAMPLE_CHARS = 200  # Chinese, for one, writes whole paragraphs without a space
EXAMPLES_TRIED = 100
OPTIONS_OF_SETTINGS = {"data.path=": "", "data.val_path=": "--held-out ", "data.field=": "--field "}
OPTIONS_OF_KINDS = {"tokenizer.kind=": "--kind ", "kind=": "--kind ", "vocab_size=": "--vocab-size "}
OPTIONS_OF_COMPARED_KINDS = OPTIONS_OF_KINDS | {"tokenizer.kind=": "--kinds ", "kind=": "--kinds "}

app = typer.Typer(
    help="Train a tokenizer, show the tokens of a text, or compare several.",
    add_completion=False,
)


class Family(StrEnum):
    """The families of Transformers, each of which needs special tokens of its own."""

    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_DECODER = "encoder-decoder"


class Normalization(StrEnum):
    """The Unicode normalisation that unigram applies to a text."""

    NONE = "none"
    NFKC = "nfkc"


Field = Annotated[str, typer.Option(metavar="NAME", help="Field of JSONL files that holds the text.")]


@app.command()
@worded_for(OPTIONS_OF_SETTINGS | OPTIONS_OF_KINDS)
def train(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH",
            help="Texts to train on: files or folders (none for byte). All share one vocabulary, as two languages of "
            "a translation do.",
        ),
    ] = None,
    field: Field = "text",
    kind: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="char, byte, or learned parts of words: bpe, wordpiece or unigram; or a kind of your own.",
        ),
    ] = DEFAULT_KIND,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Vocabulary size of bpe, wordpiece and unigram, special tokens included.",
            show_default="1024",
        ),
    ] = None,
    lowercase: Annotated[
        bool | None,
        typer.Option(
            "--lowercase/--cased",
            help="Lower-case the text, or keep its case (bpe, wordpiece and unigram).",
            show_default="lowercase for wordpiece, else cased",
        ),
    ] = None,
    normalize: Annotated[
        Normalization | None,
        typer.Option(
            metavar="FORM", help="Unicode normalization of unigram: none or nfkc.", show_default="none"
        ),
    ] = None,
    family: Annotated[
        Family,
        typer.Option(
            metavar="FAMILY",
            help="Add the special tokens of a model family: decoder, encoder or encoder-decoder.",
        ),
    ] = Family.DECODER,
    bos: Annotated[bool, typer.Option("--bos", help="Add <bos>, the start of a document.")] = False,
    eos: Annotated[bool, typer.Option("--eos", help="Add <eos>, the end of a document.")] = False,
    unk: Annotated[bool, typer.Option("--unk", help="Add <unk>, for characters unknown to char.")] = False,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write.")] = Path("tokenizer.json"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Train a tokenizer and write tokenizer.json."""
    from clearformer.data.text.sources import check_field_is_read, reads_json_lines
    from clearformer.text import located, specials_of
    from clearformer.text.kinds.imported import config_path, named_roles

    check_not_empty("PATH", paths or [])
    check_not_empty("--field", [field])
    out = user_path(out)
    if not out.name or out.is_dir():
        raise UserError(f"--out: {out} is a folder; name a file, such as {out / 'tokenizer.json'}")
    if out.exists() and not force:
        raise UserError(f"{out} exists: choose another --out, or add --force to replace it")
    try:
        names_special_tokens = named_roles(out) is not None
    except TokenizerError as error:
        raise located(error, str(out)) from None
    if names_special_tokens:
        raise UserError(
            f"{config_path(out)} exists and names the special tokens of {out.name}, those of another tokenizer: choose "
            "another --out, or move it away"
        )
    spec_type = _spec_types([kind], "--kind takes one")[0]
    specials = {"bos": bos, "eos": eos, "unk": unk}
    options: dict[str, Any] = {name: True for name, wanted in specials.items() if wanted}
    settings = {"vocab_size": vocab_size, "lowercase": lowercase, "normalize": normalize and normalize.value}
    options |= {name: value for name, value in settings.items() if value is not None}
    with named_as_options(("vocab_size",)):
        spec = _spec(spec_type, options)
    if spec.needs_corpus and not paths:
        raise UserError(f"--kind {kind} is trained on text: name at least one text file")
    if paths and not spec.needs_corpus:
        typer.echo(f"--kind {kind} needs no training: the files are not read", err=True)
    sources = [_source(path, field) for path in paths or []] if spec.needs_corpus else []
    check_field_is_read(field, sources)
    tokenizer = spec.train(_texts(sources), specials_of(family))
    tokenizer.save(out)
    typer.echo(f"{out}: {description(tokenizer)}", err=True)
    if "vocab_size" in type(spec).model_fields and tokenizer.vocab_size < spec.vocab_size:
        typer.echo(
            f"fewer tokens than the {spec.vocab_size:,} requested: the text repeats nothing else that could be a token",
            err=True,
        )
    shown = shlex.join(["tokenizer", "show", "some text", "--tokenizer", str(out)])
    field_of_first = field if reads_json_lines(sources[:1]) else "text"
    used = shlex.join(_training(family, out, (paths or ["FILE"])[0], field_of_first))
    typer.echo(f"next: {to_type(shown)}\n      {to_type(used)}", err=True)


def _training(family: str, out: Path, path: Any, field: str) -> list[str]:
    """Return the words of a command that trains a model of a family with the tokenizer."""
    preset = {Family.ENCODER: ["masked"], Family.ENCODER_DECODER: ["translate"]}.get(Family(family), [])
    data = [f"data.path={path}", *([] if field == "text" else [f"data.field={field}"])]
    if family == Family.ENCODER_DECODER:  # a translation's data are pairs, which one text is not
        data = ["data.source=FILE", "data.target=FILE"]
    return ["train", *preset, "tokenizer=file", f"tokenizer.path={out}", *data]


@app.command()
def show(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Text to tokenize; - reads standard input.")],
    tokenizer: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="A tokenizer.json, a run's name or folder, char (the text's own characters), byte or gpt2.",
        ),
    ] = "byte",
    merges: Annotated[
        bool, typer.Option("--merges", help="Show the merges of BPE step by step, for each word.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the tokens of a text with their ids and bytes.

    For BPE, --merges shows the merges that made them. A text that begins with - goes after --: clearformer tokenizer
    show -- "-x".
    """
    check_not_empty("--tokenizer", [tokenizer])
    if text == "-":
        text = standard_input.read_text()
    check_utf8("TEXT", text)
    chosen = _find_tokenizer(tokenizer, text)
    bpe = _require_merges(chosen) if merges else None
    if as_json:
        typer.echo(json.dumps(tokens_as_data(text, chosen, bpe)))
    else:
        print_tokens(text, chosen, bpe)


@app.command()
@worded_for(OPTIONS_OF_SETTINGS | OPTIONS_OF_COMPARED_KINDS)
def compare(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Texts: files or folders, combined."),
    ],
    field: Field = "text",
    kinds: Annotated[
        str | None,
        typer.Option(
            metavar="KIND,...",
            help="Kinds to train: char, byte, bpe, wordpiece, unigram, or kinds of your own.",
            show_default=f"{DEFAULT_KINDS}, or none with --tokenizer",
        ),
    ] = None,
    vocab_size: Annotated[
        str | None,
        typer.Option(
            metavar="N,...",
            help="Vocabulary sizes of bpe, wordpiece and unigram.",
            show_default=DEFAULT_SIZES,
        ),
    ] = None,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Train and compare on lower-case text.")
    ] = False,
    held_out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Text to measure on.",
            show_default="the last tenth of every FILE",
        ),
    ] = None,
    tokenizer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Compare an existing tokenizer too: a tokenizer.json, a run, byte or gpt2 (repeatable).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare how many tokens tokenizers need for a held-out text."""
    check_not_empty("FILE", paths)
    check_not_empty("--held-out", [held_out])
    check_not_empty("--tokenizer", tokenizer or [])
    check_not_empty("--field", [field])
    made = {name: _find_tokenizer(name) for name in tokenizer or []}
    if kinds is None and not tokenizer:
        kinds = DEFAULT_KINDS
    chosen = [] if kinds is None else _listed_spec_types(kinds)
    with named_as_options(("vocab_size",)):
        specs = list(_specs(chosen, _sizes(vocab_size, chosen), lowercase))
    parts = _Parts(paths, held_out, field, lowercase, is_trained_on=bool(chosen))
    example = _example(parts)
    tokenizers = [(spec.kind, _trained(spec, parts)) for spec in specs] + list(made.items())
    compared = [_compared(name, each, parts, example) for name, each in tokenizers]
    if as_json:
        trained_on = parts.trained_on if chosen else None
        about = {"trained_on": trained_on, "measured_on": parts.measured_on, "example": example}
        typer.echo(json.dumps(about | {"tokenizers": compared}))
    else:
        trained = f"trained on {parts.trained_on}, " if chosen else ""
        print_comparison(compared, f"{trained}measured on {parts.measured_on}")


def _spec_types(kinds: Iterable[str], expected: str) -> list[type[Any]]:
    """Return the settings of kinds that can be trained.

    Args:
        kinds: Their names.
        expected: What the option takes, for the message about one that is unknown: "--kind takes one".
    """
    from pydantic.fields import FieldInfo

    from clearformer.config import slot_variants
    from clearformer.parts import load_installed_parts
    from clearformer.text import TokenizerConfig

    built_in: Any = TokenizerConfig
    known = slot_variants(FieldInfo.from_annotation(built_in))
    # The user's own are kinds of a run's settings, which take time to import.
    if not known.keys() >= set(kinds):
        from clearformer.training.config import RunConfig

        load_installed_parts()
        known = slot_variants(RunConfig.model_fields["tokenizer"])
    names = [name for name in known if name not in MADE_ELSEWHERE]
    for kind in kinds:
        if kind not in names:
            raise UserError(f"{expected} of {', '.join(names)}; got {shown(kind)}{did_you_mean(kind, names)}")
    return [known[kind] for kind in kinds]


def _spec(spec_type: type[Any], options: dict[str, Any]) -> Any:
    from clearformer.config import resolve

    if foreign := [name for name in options if name not in spec_type.model_fields]:
        option = "--" + foreign[0].replace("_", "-")
        if foreign[0] == "lowercase" and not options["lowercase"]:
            option = "--cased"
        kind = spec_type.model_fields["kind"].default
        raise UserError(f"{option} does not apply to --kind {kind}: omit it, or choose another kind")
    return resolve(spec_type, options)


def _source(path: str, field: str, held_out: str | None = None) -> "Source":
    """Open a text, without the files of it that are held out."""
    from clearformer.config import resolve
    from clearformer.data import TextData, open_source

    settings = {"path": path, "field": field} | ({} if held_out is None else {"val_path": held_out})
    source = open_source(resolve(TextData, settings))
    return source if held_out is None else source.by_split()["train"]


def _texts(sources: "Iterable[Source]") -> Iterator[str]:
    from clearformer.data.text.splitting import split_into_pieces

    for source in sources:
        yield from (piece.text for piece in split_into_pieces(source.documents(), {"all": sys.maxsize}))


class _Parts:
    """The text to train on and the text to measure on, read from the files at every call."""

    def __init__(
        self, paths: list[str], held_out: str | None, field: str, lowercase: bool, is_trained_on: bool
    ) -> None:
        from clearformer.data.text.sources import check_field_is_read

        self._sources = [_source(path, field, held_out if is_trained_on else None) for path in paths]
        self._held_out = None if held_out is None else _source(held_out, field)
        check_field_is_read(
            field, self._sources if self._held_out is None else [*self._sources, self._held_out]
        )
        self._lowercase = lowercase
        names = ", ".join(map(str, paths))
        case = " in lower case" if lowercase else ""
        share = "" if held_out is not None else f"the first {1 - HELD_OUT:.0%} of "
        self.trained_on = f"{share}{names}{case}"
        self.measured_on = (held_out or f"the last {HELD_OUT:.0%} of {names}") + case
        self._lengths = (
            [sum(map(len, _texts([source]))) for source in self._sources] if held_out is None else []
        )
        for path, n_chars in zip(paths, self._lengths, strict=False):
            if n_chars < 1 / HELD_OUT:
                raise DataError(
                    f"{path}: too short to hold out a part of it; use a longer text, or --held-out"
                )

    def training_texts(self) -> Iterator[str]:
        return self._cased(self._split("train") if self._held_out is None else _texts(self._sources))

    def measured_lines(self) -> Iterator[str]:
        """Yield lines without their line ends; a long text is read in pieces, which may cut a line in two."""
        texts = self._split("val") if self._held_out is None else _texts([self._held_out])
        return (line.removesuffix("\r") for text in self._cased(texts) for line in text.split("\n"))

    def _cased(self, texts: Iterator[str]) -> Iterator[str]:
        return (text.lower() if self._lowercase else text for text in texts)

    def _split(self, name: str) -> Iterator[str]:
        from clearformer.data import TextData
        from clearformer.data.text.splitting import split_into_pieces, split_stops

        fractions = TextData(val_fraction=HELD_OUT)
        for source, n_chars in zip(self._sources, self._lengths, strict=True):
            pieces = split_into_pieces(source.documents(), split_stops({"train": n_chars}, fractions))
            yield from (piece.text for piece in pieces if piece.split == name)


def _listed_spec_types(names: str) -> list[type[Any]]:
    """Return the settings of the kinds that `--kinds` lists, each once."""
    return _spec_types(dict.fromkeys(name.strip() for name in names.split(",")), "--kinds takes a list")


def _sizes(numbers: str | None, spec_types: list[type[Any]]) -> list[int]:
    if numbers is not None and not any("vocab_size" in each.model_fields for each in spec_types):
        raise UserError(
            "--vocab-size: no tokenizer of a chosen size is trained; omit it, or add bpe, wordpiece or unigram to "
            "--kinds"
        )
    numbers = DEFAULT_SIZES if numbers is None else numbers
    try:
        return [int(number) for number in dict.fromkeys(numbers.split(","))]
    except ValueError:
        raise UserError(
            f"--vocab-size takes whole numbers separated by commas, such as 1000,4000; got {numbers!r}"
        ) from None


def _specs(spec_types: list[type[Any]], sizes: list[int], lowercase: bool) -> Iterator[Any]:
    """Yield the settings with which `compare` trains: each kind whose vocabulary has a chosen size in every size."""
    for spec_type in spec_types:
        fields = spec_type.model_fields
        # The text to measure on may have characters that the text to train on has not.
        same = {name: value for name, value in (("lowercase", lowercase), ("unk", True)) if name in fields}
        for size in sizes if "vocab_size" in fields else [None]:
            yield _spec(spec_type, same if size is None else same | {"vocab_size": size})


def _trained(spec: Any, parts: _Parts) -> "Tokenizer":
    typer.echo(f"training {spec.kind} {getattr(spec, 'vocab_size', '')}".rstrip(), err=True)
    return spec.train(parts.training_texts())


def _example(parts: _Parts) -> str:
    """Return the first line of a suitable length among the first non-blank ones, or else the start of the first."""
    lines = list(islice((line for line in parts.measured_lines() if line.strip()), EXAMPLES_TRIED))
    if not lines:
        raise DataError(f"{parts.measured_on}: no text to measure on; use a longer text, or --held-out")
    fitting = (line for line in lines if EXAMPLE_WORDS[0] <= len(line.split()) <= EXAMPLE_WORDS[1])
    return next(fitting, " ".join(lines[0].split(" ")[: EXAMPLE_WORDS[1]]))[:MOST_EXAMPLE_CHARS]


def _compared(name: str, tokenizer: "Tokenizer", parts: _Parts, example: str) -> dict[str, Any]:
    from clearformer.text import UnknownCharacterError, cut_of

    try:
        cut = cut_of(tokenizer, parts.measured_lines())
    except UnknownCharacterError as error:  # its place is one in a single line of the text
        raise error.at(f"--tokenizer {name}, {parts.measured_on}") from None
    return {
        "name": name,
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "lossless": tokenizer.lossless,
        **cut.to_json(),
        "example": [tokenizer.token_label(token) for token in tokenizer.encode(example).tolist()],
    }


def _find_tokenizer(name: str, text: str | None = None) -> "Tokenizer":
    """Find a tokenizer by the name of a file, a run or a kind; `char` takes its characters from `text`."""
    from clearformer.text import ByteTokenizerSpec, CharTokenizerSpec, GPT2TokenizerSpec, load_tokenizer

    if name == "char":
        if text is None:
            raise UserError("--tokenizer char has no text to take its characters from; use --kinds char")
        return CharTokenizerSpec().train([text])
    if name == "byte":
        return ByteTokenizerSpec().train()
    if name == "gpt2":
        return GPT2TokenizerSpec().train()
    runs = runs_folder()
    folders = []
    for candidate in (user_path(name), runs / name):
        if os.path.isdir(candidate):  # noqa: PTH112 (False, and no error, where no file can have the name)
            folders.append(candidate)
        elif os.path.exists(candidate):  # noqa: PTH110
            return load_tokenizer(candidate)
    if folders:
        has_one = (folder for folder in folders if (folder / "tokenizer.json").is_file())
        return load_tokenizer(next(has_one, folders[0]) / "tokenizer.json")
    raise UserError(
        f"--tokenizer {shortened(name)}: neither a file, nor a run in {runs}/, nor one of {', '.join(NAMED)}"
        f"{did_you_mean(name, NAMED)}"
    )


def _require_merges(tokenizer: "Tokenizer") -> "BPETokenizer":
    from clearformer.text import BPETokenizer

    if not isinstance(tokenizer, BPETokenizer):
        raise UserError(
            f"--merges needs BPE, and this is a {tokenizer.kind} tokenizer: omit --merges, or choose --tokenizer gpt2 "
            "or a BPE's tokenizer.json"
        )
    return tokenizer
