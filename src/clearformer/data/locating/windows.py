"""Locating windows of a prepared text in the files that it was read from.

A prepared text is a sequence of tokens without places, but the places follow from the tokens. With a lossless
tokenizer, the bytes before a token are those of the tokens before it. Otherwise (it lowers case, lacks a character,
adds a space), the text is cut and encoded again in the same way, and a window is located to whole words.

Bytes are first counted in the running text, all documents concatenated, and then in each document's file.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from clearformer.data.locating.places import Example, Span
from clearformer.data.shards import Split
from clearformer.data.text.config import TextData
from clearformer.data.text.preparing import Dataset
from clearformer.data.text.source import Source
from clearformer.data.text.sources import open_source
from clearformer.data.text.splitting import split_into_pieces
from clearformer.errors import DataError
from clearformer.text import Tokenizer

READ_AT_ONCE = 1 << 20  # tokens
TRAIN = "train"


def find_windows(
    config: TextData, dataset: Dataset, windows: Sequence[tuple[int, int]], split_name: str = TRAIN
) -> list[Example]:
    """Return the text and the place of some windows of a split.

    Args:
        config: The source of the text.
        dataset: The text as tokens.
        windows: For each window, its first token in the split and the one after its last.
        split_name: The split.

    Raises:
        DataError: the text has changed since it was prepared, or cannot be read.
    """
    split, source = dataset.splits[split_name], open_source(config)
    bounds = bytes_by_tokens(split, dataset.tokenizer, windows)
    if bounds is None:
        entries = dataset.manifest["splits"].items()
        stops = {name: entry["first_char"] + entry["n_chars"] for name, entry in entries}
        bounds = bytes_by_words(source, stops, split_name, split, dataset.tokenizer, windows)
    before = bytes_before(dataset, split_name)
    bounds = [(before + start, before + stop) for start, stop in bounds]
    texts = [dataset.tokenizer.decode(split.read(*window)) for window in windows]
    return [Example(text, spans) for text, spans in zip(texts, spans_of(source, bounds), strict=True)]


def bytes_before(dataset: Dataset, split_name: str) -> int:
    """Return the bytes of the text before a split: those of the splits before it."""
    names = list(dataset.splits)
    return sum(dataset.splits[name].n_bytes for name in names[: names.index(split_name)])


# --- tokens to bytes of a split's text --------------------------------------------------------------------


def bytes_by_tokens(
    split: Split, tokenizer: Tokenizer, windows: Sequence[tuple[int, int]]
) -> list[tuple[int, int]] | None:
    """Locate windows by the number of bytes that each token stands for.

    Return None if the tokens do not hold all of the text, so that the count would be wrong.
    """
    if not tokenizer.lossless:
        return None
    sizes = np.array([len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)])
    places = np.unique(np.array(windows, np.int64))
    found, n_bytes = np.zeros(len(places), np.int64), 0
    for first in range(0, len(split), READ_AT_ONCE):
        last = min(first + READ_AT_ONCE, len(split))
        ends = n_bytes + np.cumsum(sizes[split.read(first, last)])
        here = (places > first) & (places <= last)
        found[here] = ends[places[here] - first - 1]
        n_bytes = int(ends[-1])
    if n_bytes != split.n_bytes:
        return None
    at = dict(zip(places.tolist(), found.tolist(), strict=True))
    return [(at[start], at[stop]) for start, stop in windows]


def bytes_by_words(
    source: Source,
    stops: Mapping[str, int],
    split_name: str,
    split: Split,
    tokenizer: Tokenizer,
    windows: Sequence[tuple[int, int]],
) -> list[tuple[int, int]]:
    """Locate windows to whole words, by encoding the text again in the same pieces.

    Args:
        source: The text.
        stops: For each split, the position in the text before which it ends, in characters.
        split_name: The name of the split.
        split: Its tokens.
        tokenizer: The tokenizer of the tokens.
        windows: The windows, in tokens of the split.

    Raises:
        DataError: the text has another length than that of the tokens.
    """
    wanted = np.unique([token for start, stop in windows for token in (start, stop - 1)])
    found: dict[int, tuple[int, int]] = {}
    before, behind = map(len, tokenizer.marks)
    token = byte = 0
    for piece in split_into_pieces(source.documents(), stops):
        if piece.split != split_name:
            continue
        ids, size = tokenizer.encode(piece.text), len(piece.text.encode())
        marks = before * piece.starts_document, behind * piece.ends_document
        n_tokens = len(ids) + sum(marks)
        here = wanted[(wanted >= token) & (wanted < token + n_tokens)]
        if len(here):
            inside = bytes_of_tokens(tokenizer, piece.text, ids)
            ranges = [(0, 0)] * marks[0] + inside + [(size, size)] * marks[1]
            for place in here.tolist():
                start, stop = ranges[place - token]
                found[place] = (byte + start, byte + stop)
        token, byte = token + n_tokens, byte + size
    if (token, byte) != (len(split), split.n_bytes):
        raise DataError(f"{source.description}: the text has changed since it was prepared")
    return [(found[start][0], found[stop - 1][1]) for start, stop in windows]


def bytes_of_tokens(tokenizer: Tokenizer, text: str, ids: np.ndarray) -> list[tuple[int, int]]:
    """For each token of a text, return its bytes in the text, or those of its whole word if they are unknown."""
    content = text.encode()
    parts = [tokenizer.token_bytes(token) for token in ids.tolist()]
    added = 1 if tokenizer.opens_with_space and b"".join(parts) == b" " + content else 0
    if b"".join(parts)[added:] == content:
        ends = [max(0, end - added) for end in accumulate(map(len, parts), initial=0)]
        return list(pairwise(ends))
    ranges: list[tuple[int, int]] = []
    encoded: list[np.ndarray] = []
    start = 0
    for word in words_of(text):
        stop = start + len(word.encode())
        encoded.append(tokenizer.encode(word))
        ranges += [(start, stop)] * len(encoded[-1])
        start = stop
    if not np.array_equal(np.concatenate(encoded), ids):  # words depend on each other in this tokenizer
        return [(0, len(content))] * len(ids)
    return ranges


def words_of(text: str) -> list[str]:
    """Cut a text before white space that follows other characters: no word-based token crosses such a place."""
    return re.findall(r"\s*\S+|\s+", text)


# --- bytes of the running text to files -------------------------------------------------------------------


def spans_of(source: Source, bounds: Sequence[tuple[int, int]]) -> list[list[Span]]:
    """Locate stretches of bytes of a running text in its sources, document by document.

    Raises:
        DataError: the text is shorter than it was.
    """
    found: list[list[Span]] = [[] for _ in bounds]
    ahead = sorted(range(len(bounds)), key=lambda i: bounds[i])
    furthest = max((stop for _, stop in bounds), default=0)
    byte = 0
    for origin in source.origins():
        end = byte + origin.n_bytes
        for i in ahead:
            start, stop = bounds[i]
            if start >= end:
                break
            if stop > byte and stop > start:
                found[i].append(origin.span(max(start, byte) - byte, min(stop, end) - byte))
        ahead = [i for i in ahead if bounds[i][1] > end]
        byte = end
        if byte >= furthest:
            return found
    raise DataError(f"{source.description}: shorter than when it was prepared; restore the original")
