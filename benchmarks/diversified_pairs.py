"""Multi30k's training pairs with translations of them added, and a part of them held out.

    python benchmarks/diversified_pairs.py texts FOLDER         # train.en, train.de, val.en and val.de
    clearformer translate DE FOLDER/train.en --average 10 > FOLDER/train.de1   # by a run from English to German
    clearformer translate EN FOLDER/train.de --average 10 > FOLDER/train.en1   # by one from German to English
    python benchmarks/diversified_pairs.py pairs FOLDER         # more.en, more.de, held_out.en and held_out.de

Data diversification (Nguyen et al. 2020): three pairs of each training pair, itself, its English with a model's
German, and a model's English with its German. About a twenty-ninth is held out by the English text's SHA-256, with
the pairs of the same German: by these a length penalty can be chosen beside the validation pairs
(`multi30k.py --held-out`). CLEARFORMER_DATA names the folder with `multi30k`.
"""

import argparse
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from clearformer.data import PairsData
from clearformer.data.pairs.sources import open_pairs
from clearformer.data.reading import read_lines

ONE_IN = 29  # of 29,000 pairs about 1,000 are held out, as many as the validation pairs


class Translated(NamedTuple):
    """A training pair with a model's translation of each side."""

    en: str
    de: str
    de1: str
    en1: str

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs to learn from, English first."""
        return [(self.en, self.de), (self.en, self.de1), (self.en1, self.de)]


def write_texts(folder: Path) -> None:
    """Write the training and the validation pairs, a language a file."""
    splits = open_pairs(PairsData(name="multi30k", languages="en-de")).read().splits
    for split in ("train", "val"):
        write(folder, split, [(pair.source, pair.target) for pair in splits[split]])


def write_pairs(folder: Path) -> None:
    """Write the pairs to learn from, and those that are held out."""
    columns = [list(read_lines(folder / f"train.{name}")) for name in Translated._fields]
    lengths = [len(column) for column in columns]
    if len(set(lengths)) != 1:
        raise SystemExit(
            f"{folder}: train.{', train.'.join(Translated._fields)} have {lengths} lines, not as many"
        )
    kept, held_out = divided([Translated(*each) for each in zip(*columns, strict=True)])
    kinds = zip(*(each.pairs for each in kept), strict=True)
    write(folder, "more", [pair for kind in kinds for pair in kind])
    write(folder, "held_out", [(each.en, each.de) for each in held_out])
    print(f"{len(kept):,} pairs with their translations to learn from, {len(held_out):,} held out")


def divided(pairs: Sequence[Translated]) -> tuple[list[Translated], list[Translated]]:
    """The pairs to learn from and those that are held out, which share no text of either language."""
    held_out = [pair for pair in pairs if is_held_out(pair.en)]
    german = {pair.de.strip() for pair in held_out}
    return [pair for pair in pairs if not is_held_out(pair.en) and pair.de.strip() not in german], held_out


def is_held_out(text: str) -> bool:
    return int(hashlib.sha256(text.strip().encode()).hexdigest(), 16) % ONE_IN == 0


def write(folder: Path, name: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Write pairs as two files, a line a pair."""
    for language, texts in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
        (folder / f"{name}.{language}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("texts", "pairs"))
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    (write_texts if arguments.what == "texts" else write_pairs)(arguments.folder)


if __name__ == "__main__":
    main()
