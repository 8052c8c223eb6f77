"""Sources of pairs of lines: two aligned files, a TSV, or one of the built-in sets of pairs.

Both sides of a pair must hold text. A file with an empty line is refused, and the message names the line: only someone
who knows the file can decide whether to drop the pair or realign the lines.
"""

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any

from clearformer.data.cache import cache_folder
from clearformer.data.holding_out import HeldOutPairs, hold_out_pairs
from clearformer.data.identity import identity_of_files
from clearformer.data.pairs.config import DATES, DEFAULT_LANGUAGES, DEFAULT_SIZE, MULTI30K, PairsData
from clearformer.data.pairs.generated import GeneratedPairs
from clearformer.data.pairs.source import Pair, PairSource
from clearformer.data.reading import check_no_file_twice, existing_file, read_lines
from clearformer.errors import DataError, count, did_you_mean, needs_extra
from clearformer.files import data_folder

PACKAGES_OF_DATES = ("babel", "num2words")
MULTI30K_ADDRESS = "https://github.com/multi30k/dataset"
MULTI30K_LANGUAGES = ("en", "de", "fr")
MULTI30K_SPLITS = {"train": "train", "val": "val", "test": "test_2016_flickr"}


class PairFiles(ABC):
    """The files that hold the pairs of one split or of all."""

    paths: Sequence[Path]

    @abstractmethod
    def pairs(self) -> Iterator[Pair]:
        """Yield the pairs in the order of their lines."""

    def place(self, line: int) -> str:
        """Return where a pair is, for a message."""
        return f"{' and '.join(map(str, self.paths))}, line {line}"

    def identity(self) -> dict[str, Any]:
        """Return values for JSON that identify the files."""
        return {"paths": list(map(str, self.paths))} | identity_of_files(
            {str(path): path for path in self.paths}
        )


@dataclass(frozen=True)
class Aligned(PairFiles):
    """Two files where line n of one translates line n of the other."""

    source: Path
    target: Path

    @property
    def paths(self) -> tuple[Path, Path]:  # type: ignore[override]
        return self.source, self.target

    def pairs(self) -> Iterator[Pair]:
        counts = [0, 0]
        empty: tuple[list[int], list[int]] = ([], [])
        for number, texts in enumerate(zip_longest(*map(read_lines, self.paths)), start=1):
            for side, text in enumerate(texts):
                counts[side] += text is not None
                if text is not None and not text.strip():
                    empty[side].append(number)
            source, target = texts
            if source and target:
                yield Pair(source, target, number)
        self._check_both_sides(counts, empty)
        self._check_equal_lengths(counts)
        self._check_no_empty_lines(empty)

    def _check_both_sides(self, counts: Sequence[int], empty: Sequence[Sequence[int]]) -> None:
        for path, n_lines, lines in zip(self.paths, counts, empty, strict=True):
            if n_lines == len(lines):
                raise DataError(f"{path}: there is no text in it, and a pair needs both sides")

    def _check_equal_lengths(self, counts: Sequence[int]) -> None:
        n_source, n_target = counts
        if n_source != n_target:
            raise DataError(
                f"{self.source} has {count(n_source, 'line')} and {self.target} has {n_target:,}: "
                "line n of one must translate line n of the other"
            )

    def _check_no_empty_lines(self, empty: Sequence[Sequence[int]]) -> None:
        for path, lines in zip(self.paths, empty, strict=True):
            if lines:
                raise DataError(
                    f"{path}, line {lines[0]}: an empty line{_and_others(lines)}, and a pair needs both sides: "
                    "remove the line from both files, or fill it in"
                )


@dataclass(frozen=True)
class TabSeparated(PairFiles):
    """One file of `source<TAB>target` lines."""

    path: Path

    @property
    def paths(self) -> tuple[Path]:  # type: ignore[override]
        return (self.path,)

    def pairs(self) -> Iterator[Pair]:
        for number, line in enumerate(read_lines(self.path), start=1):
            source, *rest = line.split("\t")
            if len(rest) != 1:
                fix = f"; cut -f1,2 {self.path.name} keeps the first two columns" if rest else ""
                if "\r" in line:
                    fix = ", and carriage returns for line ends: make them newlines, as tr '\\r' '\\n' does"
                raise DataError(
                    f"{self.path}, line {number}: a line must be source<TAB>target, with one tab; "
                    f"this one has {len(rest) or 'none'}{fix}"
                )
            if not source.strip() or not rest[0].strip():
                side = "target" if source.strip() else "source"
                raise DataError(
                    f"{self.path}, line {number}: the {side} is empty, and a pair needs both sides: "
                    "remove the line, or fill it in"
                )
            yield Pair(source, rest[0], number)


def _and_others(lines: Sequence[int]) -> str:
    return f" (and {len(lines) - 1:,} more)" if len(lines) > 1 else ""


@dataclass(frozen=True)
class FilePairs(PairSource):
    """Pairs from files: those of training, and of any other split with files of its own."""

    files: dict[str, PairFiles]
    config: PairsData
    title: str = ""

    @property
    def description(self) -> str:
        paths = " and ".join(map(str, self.files["train"].paths))
        return f"{self.title}, {paths}" if self.title else paths

    def identity(self) -> dict[str, Any]:
        return {
            "files": {split: files.identity() for split, files in self.files.items()},
            "held_out": {split: str(share) for split, share in self.config.held_out().items()},
        }

    def read(self) -> HeldOutPairs[Pair]:
        read = {split: list(files.pairs()) for split, files in self.files.items()}
        for split, pairs in read.items():
            if not pairs:
                raise DataError(
                    f"{' and '.join(map(str, self.files[split].paths))}: there are no pairs in it"
                )
        drawn = hold_out_pairs(read.pop("train"), self.config.held_out())
        return drawn._replace(splits=drawn.splits | read)

    def place(self, split: str, line: int) -> str:
        return self.files.get(split, self.files["train"]).place(line)


@dataclass(frozen=True)
class Dates(PairSource):
    """Dates, times, numbers and amounts of money in two languages (see `data/builtin/dates.py`)."""

    config: PairsData

    @cached_property
    def languages(self) -> tuple[str, str]:
        """The two languages, each known to Babel and to num2words.

        Raises:
            DataError: one of them is unknown, or they are the same.
        """
        from clearformer.data.builtin.dates import language_codes

        known = language_codes()
        source, target = self.config.language_pair or ("", "")
        for language in (source, target):
            if language not in known:
                raise DataError(
                    f"data.languages={source}-{target}: 'dates' has no language {language!r}; "
                    f"choose from {', '.join(known)}"
                )
        if source == target:
            raise DataError(f"data.languages={source}-{target}: give two languages, such as fr-en")
        return source, target

    @property
    def description(self) -> str:
        source, target = self.languages
        return (
            f"dates, times, numbers and amounts of money, {source} to {target}, made by Babel and num2words"
        )

    def identity(self) -> dict[str, Any]:
        from clearformer.data.builtin.dates import RECIPE, SEED

        return {
            "name": DATES,
            "languages": list(self.languages),
            "size": self.config.size or DEFAULT_SIZE,
            "seed": SEED,
            "recipe": RECIPE,
            "babel": version("babel"),
            "num2words": version("num2words"),
            "held_out": {split: str(share) for split, share in self.config.held_out().items()},
        }

    def read(self) -> HeldOutPairs[Pair]:
        from clearformer.data.builtin.dates import make_pairs

        made = make_pairs(*self.languages, self.config.size or DEFAULT_SIZE)
        pairs = [
            Pair(each.source, each.target, number, each.values) for number, each in enumerate(made, start=1)
        ]
        return hold_out_pairs(pairs, self.config.held_out())


def _open_dates(config: PairsData) -> PairSource:
    with needs_extra("data", f"data.name={DATES} is made by Babel and num2words"):
        for package in PACKAGES_OF_DATES:
            importlib.import_module(package)
    return Dates(config)


def multi30k_places() -> list[Path]:
    """Return the folders in which Multi30k is looked for, in order."""
    folders = [data_folder(), cache_folder() / "data"]
    return [folder / MULTI30K for folder in folders if folder is not None]


def find_multi30k() -> Path | None:
    """Return Multi30k's folder on this machine, or None."""
    return next((place for place in multi30k_places() if place.is_dir()), None)


def _open_multi30k(config: PairsData) -> PairSource:
    languages = config.language_pair or ("", "")
    if len(set(languages)) < 2 or not set(languages) <= set(MULTI30K_LANGUAGES):
        raise DataError(
            f"data.languages={'-'.join(languages)}: multi30k has {', '.join(MULTI30K_LANGUAGES)}; "
            f"give two of them, such as {DEFAULT_LANGUAGES[MULTI30K]}"
        )
    folder = find_multi30k()
    if folder is None:
        raise DataError(
            f"data.name=multi30k: not on this machine: save train, val and test_2016_flickr of each language "
            f"(data/task1/raw at {MULTI30K_ADDRESS}) in {multi30k_places()[-1]}, or set CLEARFORMER_DATA "
            "to a folder with multi30k in it"
        )
    files: dict[str, PairFiles] = {
        split: Aligned(*(_multi30k_file(folder, stem, language) for language in languages))
        for split, stem in MULTI30K_SPLITS.items()
    }
    return FilePairs(files, config, title="Multi30k")


def _multi30k_file(folder: Path, stem: str, language: str) -> Path:
    plain, packed = folder / f"{stem}.{language}", folder / f"{stem}.{language}.gz"
    for path in (packed, plain):
        if path.is_file():
            return path
    raise DataError(f"data.name=multi30k: {packed} is missing; it is in data/task1/raw at {MULTI30K_ADDRESS}")


@dataclass(frozen=True)
class BuiltInPairs:
    """A set of pairs that is known by name."""

    about: str
    size: str
    where: Callable[[], str | None]
    """Returns where it is on this machine, or None if it is not there."""
    open: Callable[[PairsData], PairSource]


def _dates_place() -> str | None:
    packages = all(importlib.util.find_spec(name) for name in PACKAGES_OF_DATES)
    return "generated on first use by Babel and num2words" if packages else None


BUILT_IN_PAIRS = {
    DATES: BuiltInPairs(
        about="dates, times, numbers and amounts of money in two languages, French to English by default",
        size="any number of pairs, 50,000 by default",
        where=_dates_place,
        open=_open_dates,
    ),
    MULTI30K: BuiltInPairs(
        about="Multi30k: image captions in English, German and French (test: test_2016_flickr)",
        size="29,000 pairs, 1,014 for validation, 1,000 for testing",
        where=lambda: str(place) if (place := find_multi30k()) else None,
        open=_open_multi30k,
    ),
}


def open_pairs(config: PairsData) -> PairSource:
    """Open the pairs that `config` names.

    Raises:
        DataError: there is no such name or file.
    """
    if config.makes_its_own:
        return GeneratedPairs(config)
    if name := config.built_in:
        if name not in BUILT_IN_PAIRS:
            hint = did_you_mean(name, BUILT_IN_PAIRS) or f"; choose from {', '.join(BUILT_IN_PAIRS)}"
            raise DataError(
                f"data.name={name}: no such built-in pairs{hint} (for your own pairs: data.path=FILE.tsv)"
            )
        return BUILT_IN_PAIRS[name].open(config)
    files = {"train": _files_of(config, "")}
    if config.val_path or config.val_source:
        files["val"] = _files_of(config, "val_")
        for setting in ("path", "source", "target"):  # a source may be its own target
            keys = [key for key in (setting, f"val_{setting}") if getattr(config, key)]
            check_no_file_twice({key: existing_file(key, getattr(config, key)) for key in keys})
    return FilePairs(files, config)


def _files_of(config: PairsData, prefix: str) -> PairFiles:
    if path := getattr(config, f"{prefix}path"):
        return TabSeparated(existing_file(f"{prefix}path", path))
    return Aligned(
        *(existing_file(key, getattr(config, key)) for key in (f"{prefix}source", f"{prefix}target"))
    )
