"""Cutting documents into pieces: at exact characters between splits, and small enough to encode one at a time."""

from collections.abc import Iterable, Iterator, Mapping
from math import floor
from typing import NamedTuple

from clearformer.data.reading import Chunk
from clearformer.data.text.config import TextData
from clearformer.errors import DataError, count

# While a tokenizer encodes, its working memory is many times the size of the text.
PIECE_CHARS = 1 << 20


class Piece(NamedTuple):
    """A stretch of one document in one split; its tokens do not depend on the text around it."""

    split: str
    text: str
    starts_document: bool
    ends_document: bool


def split_stops(lengths: Mapping[str, int], config: TextData) -> dict[str, int]:
    """Return, for each split in order, the position in the text before which it ends.

    Of the text in `path`, training text ends at floor(n (1 - val - test)), validation text at floor(n (1 - test)), test
    text at n, with the fractions as exact decimals. Splits with files of their own follow. A split with neither does
    not exist.

    Args:
        lengths: The characters of the text in `path` ("train"), and of the splits that have files of their own.
        config: The splits.

    Raises:
        DataError: a split would be empty.
    """
    n_chars, shares = lengths["train"], config.shares_held_out
    stops = {
        "train": floor(n_chars * (1 - shares["val"] - shares["test"])),
        "val": floor(n_chars * (1 - shares["test"])),
        "test": n_chars,
    }
    for name, path in config.paths_of_held_out.items():
        if not lengths[name]:
            raise DataError(f"data.{name}_path={path}: there is no text in it")
    absent = [name for name, share in shares.items() if not share]
    start = 0
    for name, stop in stops.items():
        if stop == start and name not in absent:
            raise DataError(
                f"the {name} split would be empty: the text has {count(n_chars, 'character')}, with "
                f"data.val_fraction={config.val_fraction} and data.test_fraction={config.test_fraction}; "
                "give a longer text or other fractions (0 for no such split)"
            )
        start = stop
    stops = {name: stop for name, stop in stops.items() if name not in absent}
    for name in config.paths_of_held_out:
        n_chars += lengths[name]
        stops[name] = n_chars
    return stops


def split_into_pieces(
    chunks: Iterable[Chunk], stops: Mapping[str, int], piece_chars: int = PIECE_CHARS
) -> Iterator[Piece]:
    """Cut the text into pieces of at most `piece_chars`; text beyond the last stop is left out.

    A document is cut where a split ends, and otherwise before a space or a newline. No token of a word-based tokenizer
    crosses such a place, so the tokens are those of the uncut text. Only a stretch of `piece_chars` without a space or
    newline is cut elsewhere.
    """
    waiting, waiting_split, starts_document = "", "", True
    for split, text, ends_document in _cut_at(stops, chunks):
        if waiting and split != waiting_split:
            yield Piece(waiting_split, waiting, starts_document, ends_document=False)
            waiting, starts_document = "", False
        waiting, waiting_split = waiting + text, split
        while len(waiting) > piece_chars:
            cut = _before_a_space(waiting, piece_chars)
            yield Piece(split, waiting[:cut], starts_document, ends_document=False)
            waiting, starts_document = waiting[cut:], False
        if ends_document:
            yield Piece(split, waiting, starts_document, ends_document=True)
            waiting, starts_document = "", True
    if waiting:
        yield Piece(waiting_split, waiting, starts_document, ends_document=False)


def _cut_at(stops: Mapping[str, int], chunks: Iterable[Chunk]) -> Iterator[tuple[str, str, bool]]:
    """Yield each chunk with its split, cut where a split ends; a document ends with its last character's part."""
    remaining_stops = iter(stops.items())
    split, stop = next(remaining_stops)
    at = 0
    for text, ends_document in chunks:
        rest = text
        while len(rest) > stop - at:
            now, rest = rest[: stop - at], rest[stop - at :]
            if now:
                yield split, now, False
            at = stop
            following = next(remaining_stops, None)
            if following is None:
                return
            split, stop = following
        at += len(rest)
        yield split, rest, ends_document


def _before_a_space(text: str, limit: int) -> int:
    """Return where the white space around the last space or newline within `limit` begins, or else `limit`."""
    cut = max(text.rfind(" ", 0, limit), text.rfind("\n", 0, limit))
    while cut > 0 and text[cut - 1].isspace():
        cut -= 1
    return cut if cut > 0 else limit
