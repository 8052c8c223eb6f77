"""Tokenizers that the `tokenizers` library runs, and cutting long texts for it."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tokenizers

from clearformer.errors import TokenizerError
from clearformer.text.tokenizer import Merge, OwnTokenizer, require_unicode

CHUNK_CHARS = 1 << 14
CHUNKS_AT_ONCE = 64
LONGEST_LEARNED = 1024  # characters of one pre-token: a trainer's time grows with their square

LOWERCASE = {"type": "Lowercase"}

_TOO_LONG_TO_LEARN = re.compile(rf"\S{{{LONGEST_LEARNED}}}|\s{{{LONGEST_LEARNED}}}")
_UP_TO_LAST_SAFE_CUT = re.compile(r".*\S(?=[ \n])", re.DOTALL)


class BackendTokenizer(OwnTokenizer):
    """A tokenizer that the `tokenizers` library runs from its document.

    Special tokens are left out of the document, because the library would recognise them in a text.
    """

    def __init__(self, plain: Sequence[str], specials: Sequence[str], merges: Sequence[Merge] = ()) -> None:
        super().__init__(plain, specials, merges)
        self._backend = tokenizers.Tokenizer.from_str(json.dumps(self.document() | {"added_tokens": []}))

    def normalized(self, text: str) -> str:
        require_unicode(text)
        return text if self._backend.normalizer is None else self._backend.normalizer.normalize_str(text)

    def pre_tokens(self, text: str) -> list[str]:
        """Return the pieces that no token crosses, spelled like tokens: "the cat" gives BPE's "the", "Ġcat"."""
        require_unicode(text)
        return pre_tokens_of(self._backend, text)

    def _encode(self, text: str) -> np.ndarray:
        pieces = encode_batches(self._backend, recut(chunks(text)))
        return np.concatenate([np.empty(0, dtype=np.int32), *pieces])

    def encode_each(self, texts: Sequence[str]) -> list[np.ndarray]:
        if any(len(text) > CHUNK_CHARS for text in texts):
            return super().encode_each(texts)
        for text in texts:
            require_unicode(text)
        return list(encode_batches(self._backend, texts))


def encode_batches(backend: tokenizers.Tokenizer, texts: Iterable[str]) -> Iterator[np.ndarray]:
    """Yield the ids of each text, in few calls of the library.

    A call for many texts uses every core, but has an overhead greater than a short text. Results are converted to
    small integers after each batch: in one call for all they would take about two hundred bytes per token.
    """
    texts = iter(texts)
    while batch := list(_next_batch(texts)):
        for encoding in backend.encode_batch_fast(batch, add_special_tokens=False):
            yield np.array(encoding.ids, dtype=np.int32)


def _next_batch(texts: Iterator[str]) -> Iterator[str]:
    """Yield texts until their total length reaches that of one batch."""
    n_chars = 0
    while n_chars < CHUNKS_AT_ONCE * CHUNK_CHARS and (text := next(texts, None)) is not None:
        yield text
        n_chars += len(text)


def pre_tokens_of(backend: tokenizers.Tokenizer, text: str) -> list[str]:
    """Return the pieces into which a backend cuts a text before it looks up tokens."""
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    return [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if text else []


def untrained(
    pre_tokenizer: dict[str, Any] | None, model: Any, normalizer: dict[str, Any] | None
) -> tokenizers.Tokenizer:
    """Return a tokenizer of the `tokenizers` library with a model that is not trained yet."""
    document = json.loads(tokenizers.Tokenizer(model).to_str())
    document |= {"pre_tokenizer": pre_tokenizer, "normalizer": normalizer}
    return tokenizers.Tokenizer.from_str(json.dumps(document))


def count_pre_tokens(backend: tokenizers.Tokenizer, texts: Iterable[str]) -> Counter[str]:
    """Count each pre-token of the texts; each text is read once, and only the counts are kept.

    Raises:
        TokenizerError: the texts are empty, or have half of a surrogate pair.
    """
    counts: Counter[str] = Counter()
    for piece in training_pieces(texts):
        counts.update(pre_tokens_of(backend, piece))
    return counts


def training_pieces(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts in small pieces whose tokens do not depend on their surroundings.

    The exceptions are pieces of more than two chunks without a safe cut, such as DNA or a picture as text: their long
    runs are cut every `LONGEST_LEARNED` characters.

    Raises:
        TokenizerError: the texts are empty, or have half of a surrogate pair.
    """
    empty = True
    for text in texts:
        require_unicode(text)
        empty = empty and not text
        for piece in recut(chunks(text)):
            yield from _learnable(piece) if len(piece) > 2 * CHUNK_CHARS else (piece,)
    if empty:
        raise TokenizerError("there is no text to learn tokens from: give a corpus that is not empty")


def _learnable(piece: str) -> Iterator[str]:
    """Cut a piece so that none of its pre-tokens is too long to learn from."""
    start = 0
    for found in _TOO_LONG_TO_LEARN.finditer(piece):
        yield piece[start : found.end()]
        start = found.end()
    yield piece[start:]


def recut(chunks: Iterable[str]) -> Iterator[str]:
    """Cut the chunks of one text again where a cut changes no token, so that each can be encoded by itself.

    A safe cut is before a space or newline that follows a visible character. None of our pre-tokens extends or looks
    back across such a place, so both sides give the same tokens as together. Text without such a place is kept
    together, however long.
    """
    pending: list[str] = []
    for chunk in chunks:
        if found := _UP_TO_LAST_SAFE_CUT.match(chunk):
            yield "".join((*pending, chunk[: found.end()]))
            pending = [chunk[found.end() :]]
        else:
            pending.append(chunk)
    if rest := "".join(pending):
        yield rest


def chunks(text: str) -> Iterator[str]:
    """Cut a text every `CHUNK_CHARS` characters."""
    return (text[start : start + CHUNK_CHARS] for start in range(0, len(text), CHUNK_CHARS))
