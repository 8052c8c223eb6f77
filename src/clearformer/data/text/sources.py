"""Sources of texts: a file, a folder of files, or one of the built-in texts."""

import hashlib
import http.client
import importlib.util
import os
import platform
import urllib.request
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NoReturn

from clearformer.data.cache import cache_folder
from clearformer.data.identity import PARTS, identity_of_files
from clearformer.data.locating.places import Origin
from clearformer.data.reading import (
    JSONL_SUFFIXES,
    Chunk,
    check_writable_name,
    extents_of_documents,
    is_jsonl,
    nearest_beside,
    place_of,
    place_of_character,
    read_documents,
)
from clearformer.data.text.config import TextData
from clearformer.data.text.generated import GeneratedSource
from clearformer.data.text.markov import MarkovChain
from clearformer.data.text.source import Source
from clearformer.errors import DataError, did_you_mean
from clearformer.files import data_folder, whole_path, write_file
from clearformer.parts import is_known

# The suffixes of files that are read in a folder; a file that the user names is read whatever its suffix.
FOLDER_SUFFIXES = (".txt", ".text", ".md", ".rst", ".tex", *JSONL_SUFFIXES)

OF_A_RUN = {"config.toml", "env.json"}  # files of a run's folder, in which nothing is text

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SHAKESPEARE_BYTES = 1_115_394
DOWNLOAD_TIMEOUT_SECONDS = 20

MARKOV = "markov-"  # the prefix of a chain's name; its order follows
MARKOV_ORDERS = range(4)
MARKOV_SYMBOLS = 8
MARKOV_CHARACTERS = 1_000_000
MARKOV_SEED = 1

# If this share of a topic's characters occurs in one other topic, it is a section of that topic.
SECTION_SHARE = 0.95
# The same gap as between the sections inside a topic.
TOPIC_GAP = "\n\n"


@dataclass(frozen=True)
class FileSource(Source):
    """One file, or the files of a folder in the order of their names; the folders of runs in it are left out."""

    root: Path
    field: str
    title: str = ""
    setting: str = "path"
    without: frozenset[Hashable] = frozenset()
    """The places of files of other splits (see `place_of`)."""

    @property
    def description(self) -> str:
        if not self.root.is_dir():
            return f"{self.title}, {self.root}" if self.title else str(self.root)
        left_out = f", {self.n_left_out} of other kinds left out" if self.n_left_out else ""
        return f"{self.root} (files: {len(self.files)}{left_out})"

    @cached_property
    def files(self) -> list[Path]:
        """The files to read, in order."""
        texts = (
            [path for path in self._visible_files if _is_text_name(path)]
            if self.root.is_dir()
            else [self.root]
        )
        found: dict[Hashable, Path] = {}
        for path in texts:
            found.setdefault(place_of(path), path)  # of a file and a link to it, the first
        return [path for place, path in found.items() if place not in self.without]

    @cached_property
    def n_left_out(self) -> int:
        """The number of files in the folder that are not read because of their suffixes."""
        return sum(not _is_text_name(path) for path in self._visible_files) if self.root.is_dir() else 0

    @cached_property
    def _visible_files(self) -> list[Path]:
        names: list[Path] = []
        seen: set[str] = set()  # folders, which links may lead to again
        for folder, subfolders, files in os.walk(self.root, onerror=_raise, followlinks=True):
            place = os.path.realpath(folder)
            if place in seen:
                subfolders.clear()
                continue
            seen.add(place)
            if Path(folder) != self.root and set(files) >= OF_A_RUN:
                subfolders.clear()
                continue
            subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
            visible = (Path(folder, name) for name in files if not name.startswith("."))
            names += [path.relative_to(self.root) for path in visible if path.is_file()]
        return [
            self.root / path for path in sorted(names, key=lambda path: path.parts)
        ]  # everywhere in one order

    def check(self) -> None:
        """Refuse a path that cannot be a text, before any file is read.

        Raises:
            DataError: there is nothing at the path, or nothing to read in it, or a folder in it cannot be read.
        """
        try:
            self._check()
        except OSError as error:
            what = "" if error.filename in (None, str(self.root)) else f"{error.filename} in it "
            fix = "; a folder is read as a whole: make that readable, or move it away" if what else ""
            raise DataError(f"{self._given}: {what}cannot be read: {error.strerror or error}{fix}") from None

    def _check(self) -> None:
        check_writable_name(self.setting, self.root)
        if not self.root.exists():
            raise DataError(f"{self._given}: there is no such file or folder{nearest_beside(self.root)}")
        if not self.root.is_dir():
            if not self.root.is_file():
                raise DataError(f"{self._given} is not a regular file: copy the text into one")
            if self.root.stat().st_size == 0:
                raise DataError(f"{self._given} is empty: give a file with text")
            if not self.files:
                raise DataError(f"{self._given} is also held out: give other files to train on")
        elif not self.files:
            if any(map(_is_text_name, self._visible_files)):
                raise DataError(f"{self._given}: all of its texts are held out: give other ones to train on")
            kinds = ", ".join(FOLDER_SUFFIXES)
            has = (
                f"it has {self._visible_files[0].name}: rename it, or give the file itself"
                if self._visible_files
                else "it has no files"
            )
            raise DataError(
                f"{self._given} holds no text: of a folder, {kinds} are read, also with .gz; {has}"
            )

    @property
    def _given(self) -> str:
        return f"data.{self.setting}={self.root}"

    def identity(self) -> dict[str, Any]:
        names = {path.relative_to(self.root).as_posix(): path for path in self.files}
        return {"path": str(self.root), "field": self.field} | identity_of_files(names)

    def documents(self) -> Iterator[Chunk]:
        for path in self.files:
            yield from read_documents(path, self.field)

    def origins(self) -> Iterator[Origin]:
        for path in self.files:
            for start, stop, n_bytes in extents_of_documents(path, self.field):
                yield Origin(str(path), start, stop, n_bytes)

    def place(self, index: int) -> str:
        return place_of_character(self.files, self.field, index)


@dataclass(frozen=True)
class SeparateSource(Source):
    """A training text, and held-out ones in files of their own, one after the other."""

    sources: Mapping[str, FileSource]

    @property
    def description(self) -> str:
        train, *held_out = (source.description for source in self.sources.values())
        names = list(self.sources)[1:]
        return f"{train}, {', '.join(f'{name} {its}' for name, its in zip(names, held_out, strict=True))}"

    def by_split(self) -> Mapping[str, Source]:
        return self.sources

    def identity(self) -> dict[str, Any]:
        return {PARTS: {name: source.identity() for name, source in self.sources.items()}}

    def documents(self) -> Iterator[Chunk]:
        for source in self.sources.values():
            yield from source.documents()

    def origins(self) -> Iterator[Origin]:
        for source in self.sources.values():
            yield from source.origins()

    def place(self, index: int) -> str:
        for source in self.sources.values():
            n_chars = sum(len(chunk.text) for chunk in source.documents())
            if index < n_chars:
                return source.place(index)
            index -= n_chars
        raise IndexError(index)


class PydocSource(Source):
    """Python's own language reference, as the standard library carries it for `help()`.

    Each topic is a document. Topics are ordered by a hash of their names, so that the end of the text, which is held
    out, resembles the rest (in alphabetical order, tables gather there). A topic that is a section of another one
    (`try` in `compound`) is left out: otherwise a good part of the held-out text would also be in the training text.
    The text differs a little from one version of Python to the next.
    """

    @property
    def description(self) -> str:
        return f"pydoc, the language reference of Python {platform.python_version()}"

    @cached_property
    def _topics(self) -> dict[str, str]:
        try:
            return importlib.import_module("pydoc_data.topics").topics
        except ImportError:
            raise DataError(
                "data.name=pydoc: this Python lacks pydoc_data.topics, the text of its language reference: "
                "install the whole standard library, or give a text with data.path="
            ) from None

    def identity(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for name, text in sorted(self._topics.items()):
            digest.update(f"{name}\0{text}\0".encode())
        return {
            "name": "pydoc",
            "order": "sha256 of names",
            "python": platform.python_version(),
            "topics_sha256": digest.hexdigest(),
        }

    def documents(self) -> Iterator[Chunk]:
        for _, text in self._texts():
            yield Chunk(text, ends_document=True)

    def origins(self) -> Iterator[Origin]:
        for name, text in self._texts():
            yield Origin.of_text(f"{self.description}, topic {name!r}", text)

    def place(self, index: int) -> str:
        for name, text in self._texts():
            if index < len(text):
                return f"{self.description}, topic {name!r}, line {text.count(chr(10), 0, index) + 1}"
            index -= len(text)
        raise IndexError(index)

    def _texts(self) -> Iterator[tuple[str, str]]:
        """Yield each topic's name and text, in order."""
        names = topics_that_stand_alone(self._topics)
        for name in sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest()):
            yield name, self._topics[name] + TOPIC_GAP


def topics_that_stand_alone(topics: dict[str, str]) -> list[str]:
    """Return the names of the topics that are not a section of a longer one; of two equal topics, the first.

    A section differs from its copy in the longer topic in the underlines of headings and the numbers of footnotes, so
    lines are compared instead of whole texts.
    """
    lines = {name: _prose_lines(text) for name, text in topics.items()}
    distinct = {name: frozenset(own) for name, own in lines.items()}
    kept: list[str] = []
    for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
        total = sum(map(len, lines[name]))
        held = (sum(len(line) for line in lines[name] if line in distinct[longer]) for longer in kept)
        if all(share < SECTION_SHARE * total for share in held):
            kept.append(name)
    return sorted(kept)


def _prose_lines(text: str) -> list[str]:
    stripped = (line.strip() for line in text.split("\n"))
    return [line for line in stripped if line.strip('*=-~^"')]


def shakespeare_places() -> list[Path]:
    """Return the paths where Tiny Shakespeare is looked for, in order; a download goes to the last."""
    folders = [data_folder(), cache_folder() / "data"]
    return [folder / "shakespeare" / "input.txt" for folder in folders if folder is not None]


def find_shakespeare() -> Path | None:
    """Return Tiny Shakespeare's file on this machine, or None."""
    return next((place for place in shakespeare_places() if place.is_file()), None)


def _open_shakespeare() -> Source:
    path = find_shakespeare() or download_shakespeare(shakespeare_places()[-1])
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHAKESPEARE_SHA256:
        raise DataError(
            f"{path} is not Tiny Shakespeare (its SHA-256 differs from {SHAKESPEARE_SHA256[:12]}...): "
            f"delete it to have it fetched again, or use it as it is with data.path={path}"
        )
    return FileSource(path, "text", title="Tiny Shakespeare")


def download_shakespeare(place: Path) -> Path:
    """Download Tiny Shakespeare to `place`, which is written only if the SHA-256 is right.

    Raises:
        DataError: the download failed, or had other content; the message names two remedies.
    """
    ways_out = (
        f"save {SHAKESPEARE_URL} as {place}, or set CLEARFORMER_DATA to a folder with shakespeare/input.txt"
    )
    try:
        with urllib.request.urlopen(SHAKESPEARE_URL, timeout=DOWNLOAD_TIMEOUT_SECONDS) as answer:
            content = answer.read(SHAKESPEARE_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"data.name=shakespeare: not on this machine, and the download failed ({reason}): {ways_out}"
        ) from None
    if hashlib.sha256(content).hexdigest() != SHAKESPEARE_SHA256:
        raise DataError(
            f"data.name=shakespeare: the download is not Tiny Shakespeare (wrong SHA-256) and was discarded: {ways_out}"
        )
    write_file(place, content)
    return place


@cache
def markov_chain(order: int) -> MarkovChain:
    """Count the chain of an order in Tiny Shakespeare, over its most frequent characters.

    Raises:
        DataError: Tiny Shakespeare is not on this machine and cannot be downloaded.
    """
    text = "".join(chunk.text for chunk in _open_shakespeare().documents())
    return MarkovChain.of(text, order, MARKOV_SYMBOLS)


@cache
def markov_text(order: int) -> tuple[str]:
    """Return the only document of a built-in text, drawn from that chain."""
    return (markov_chain(order).sample(MARKOV_CHARACTERS, MARKOV_SEED),)


def _open_markov(order: int) -> Source:
    name = f"{MARKOV}{order}"
    return GeneratedSource(name, BUILT_IN[name].about, partial(markov_text, order))


@dataclass(frozen=True)
class BuiltIn:
    """A text that is known by name."""

    about: str
    size: str
    where: Callable[[], str | None]
    """Returns where it is on this machine, or None if it must be downloaded."""
    open: Callable[[], Source]
    """Returns the source."""


def _pydoc_place() -> str | None:
    try:
        is_there = importlib.util.find_spec("pydoc_data.topics") is not None
    except ImportError:  # without the whole package
        is_there = False
    return "Python's standard library" if is_there else None


def _shakespeare_place() -> str | None:
    place = find_shakespeare()
    return str(place) if place else None


BUILT_IN = {
    "pydoc": BuiltIn(
        about="Python's language reference, from the standard library; the default",
        size="about 0.4 MB",
        where=_pydoc_place,
        open=PydocSource,
    ),
    "shakespeare": BuiltIn(
        about="Tiny Shakespeare: 40,000 lines of the plays",
        size="1.1 MB",
        where=_shakespeare_place,
        open=_open_shakespeare,
    ),
} | {
    f"{MARKOV}{order}": BuiltIn(
        about=f"a Markov chain of order {order} fitted to Tiny Shakespeare, with known entropy",
        size="1.0 MB",
        where=_shakespeare_place,
        open=partial(_open_markov, order),
    )
    for order in MARKOV_ORDERS
}


def open_source(config: TextData) -> Source:
    """Open the text that `config` names.

    Raises:
        DataError: there is no such name or file, or it holds no text.
    """
    if config.makes_its_own:
        return GeneratedSource(config.kind, config.about(), config.made)
    if config.path is not None:
        held_out: dict[str, FileSource] = {
            split: FileSource(
                whole_path(getattr(config, f"{split}_path")), config.field, setting=f"{split}_path"
            )
            for split in config.paths_of_held_out
        }
        for source in held_out.values():
            source.check()
        places = {
            split: {place_of(file): file for file in source.files} for split, source in held_out.items()
        }
        if both := set.intersection(*map(set, places.values())) if len(places) > 1 else None:
            raise DataError(
                f"data.val_path and data.test_path: {places['test'][both.pop()]} is in both; a file that chooses a "
                "checkpoint cannot test it"
            )
        theirs = frozenset(place for files in places.values() for place in files)
        train = FileSource(whole_path(config.path), config.field, without=theirs)
        train.check()
        return SeparateSource({"train": train, **held_out}) if held_out else train
    name = config.name or config.default_name
    if not is_known(name, BUILT_IN):
        hint = did_you_mean(name, BUILT_IN) or f"; choose from {', '.join(BUILT_IN)}"
        raise DataError(f"data.name={name}: no such built-in text{hint} (for your own text: data.path=FILE)")
    return BUILT_IN[name].open()


def check_field_is_read(field: str, sources: Iterable[Source]) -> None:
    """Check that a field of JSON lines that is named has an effect on one of some texts that are read together.

    Raises:
        DataError: none has a file of JSON lines.
    """
    if field != TextData.model_fields["field"].default and not reads_json_lines(sources):
        raise DataError(f"data.field={field} has no effect: no file of JSON lines is read; remove it")


def reads_json_lines(sources: Iterable[Source]) -> bool:
    """Whether one of some texts has a file of JSON lines."""
    parts = [each for source in sources for each in source.by_split().values()]
    files = [file for each in parts if isinstance(each, FileSource) for file in each.files]
    return any(map(is_jsonl, files))


def _is_text_name(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(FOLDER_SUFFIXES)


def _raise(error: OSError) -> NoReturn:
    raise error
