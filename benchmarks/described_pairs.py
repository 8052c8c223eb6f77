"""Multi30k's training pairs with further descriptions of the same images and their translations by models.

    python benchmarks/diversified_pairs.py texts FOLDER            # train.en, train.de, val.en and val.de
    python benchmarks/described_pairs.py texts FOLDER TASK2        # described.en and described.de
    clearformer translate EN FOLDER/described.de > FOLDER/described.en1  # by a run from German to English
    clearformer translate DE FOLDER/described.en > FOLDER/described.de1  # by one from English to German
    clearformer translate EN FOLDER/train.de > FOLDER/train.en1
    clearformer translate DE FOLDER/train.en > FOLDER/train.de1
    clearformer translate DE2 FOLDER/train.en > FOLDER/train.de2   # by another one
    python benchmarks/described_pairs.py pairs FOLDER              # more.en and more.de

TASK2 is the folder `data/task2/raw` of Multi30k's repository (github.com/multi30k/dataset): of each training image
five descriptions in English and five in German, which are no translations of each other. A model's translation makes
pairs of them: German with a model's English (back-translation, Sennrich et al. 2016), marked so that a model can tell
it from English that a person wrote (Caswell et al. 2019), and English with a model's German. Descriptions with the
words of a training text are left out, and those with the words of a validation or a test text. CLEARFORMER_DATA names
the folder with `multi30k`.
"""

import argparse
import gzip
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from diversified_pairs import write

from clearformer.data import PairsData
from clearformer.data.pairs.sources import open_pairs
from clearformer.data.reading import read_lines

LANGUAGES = ("en", "de")
DESCRIPTIONS = 5  # of each image and language
TIMES = 5  # that a training pair stands among the pairs, so that a fifth to a third of them is no model's
MARK = "§"  # begins a model's English; no text has it


def write_descriptions(folder: Path, task2: Path) -> None:
    """Write the descriptions that training has not, a language a file."""
    splits = open_pairs(PairsData(name="multi30k", languages="en-de")).read().splits
    for side, language in zip(("source", "target"), LANGUAGES, strict=True):
        known = {words(getattr(pair, side)) for split in splits.values() for pair in split}
        texts = list(unknown(descriptions(task2, language), known))
        (folder / f"described.{language}").write_text("".join(f"{t}\n" for t in texts), encoding="utf-8")
        print(f"{len(texts):,} further descriptions in {language}")


def descriptions(task2: Path, language: str) -> Iterator[str]:
    """All descriptions of the training images in one language."""
    for i in range(1, DESCRIPTIONS + 1):
        with gzip.open(task2 / f"train.{i}.{language}.gz", "rt", encoding="utf-8") as file:
            yield from file


def unknown(texts: Iterable[str], known: set[str]) -> Iterator[str]:
    """Each text whose words are neither among the known ones nor those of an earlier text; none without words."""
    seen = known | {""}
    for text in texts:
        if words(text) not in seen:
            seen.add(words(text))
            yield " ".join(text.split())


def words(text: str) -> str:
    """A text's words without signs and capitals."""
    return " ".join(re.findall(r"\w+", text.lower()))


def write_pairs(folder: Path) -> None:
    """Write the pairs to learn from."""
    train = Columns(folder, "train", ("en", "de", "de1", "de2", "en1"))
    described_en = Columns(folder, "described", ("en", "de1"))
    described_de = Columns(folder, "described", ("en1", "de"))
    pairs = [
        *train.pairs("en", "de") * TIMES,
        *train.pairs("en", "de1"),
        *train.pairs("en", "de2"),
        *train.pairs("en1", "de"),
        *described_en.pairs("en", "de1"),
        *((f"{MARK} {en}", de) for en, de in described_de.pairs("en1", "de") if en),
    ]
    write(folder, "more", pairs)
    print(f"{len(pairs):,} pairs to learn from")


class Columns:
    """The lines of files that belong together, one for each name.

    Raises:
        SystemExit: the files have not as many lines.
    """

    def __init__(self, folder: Path, stem: str, names: tuple[str, ...]) -> None:
        self.texts = {name: list(read_lines(folder / f"{stem}.{name}")) for name in names}
        lengths = [len(texts) for texts in self.texts.values()]
        if len(set(lengths)) != 1:
            raise SystemExit(f"{folder}: {stem}.{f', {stem}.'.join(names)} have {lengths} lines, not as many")

    def pairs(self, source: str, target: str) -> list[tuple[str, str]]:
        """The lines of two of the files, a line a pair."""
        return list(zip(self.texts[source], self.texts[target], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="what", required=True)
    texts, pairs = parts.add_parser("texts"), parts.add_parser("pairs")
    for part in (texts, pairs):
        part.add_argument("folder", type=Path)
    texts.add_argument("task2", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "texts":
        write_descriptions(arguments.folder, arguments.task2)
    else:
        write_pairs(arguments.folder)


if __name__ == "__main__":
    main()
