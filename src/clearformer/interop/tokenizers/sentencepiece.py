"""Reading the pieces of a SentencePiece model from its file, without the sentencepiece package.

The file is a protocol buffer: fields, each a number and a wire type in one varint, then the value (a varint, 8 or 4
bytes, or a length and that many bytes). In ModelProto, field 1 is a piece (1: text, 2: score, 3: type) and field 3
describes normalisation (2: a table of replacements, 3: whether a space is put before a text, 4: whether spaces are
removed, 5: whether spaces become a sign). Field 2 says how it was trained (3: the kind, 35: whether unknown characters
become bytes).
"""

import base64
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clearformer.errors import TokenizerError

PIECES, TRAINER, NORMALIZER = 1, 2, 3
UNIGRAM = 1  # value of TrainerSpec.model_type, field 3, and its default
LONGEST_VARINT = 10  # bytes, for 64 bits
Value = int | bytes


@dataclass(frozen=True)
class Pieces:
    """A Unigram model of SentencePiece.

    Attributes:
        logprobs: The log-probability of every piece.
        replacements: The table by which a text's characters are replaced first, in base64; None for no replacement.
        spaces_kept: Whether repeated, leading and trailing spaces stay; otherwise one space stays between words.
    """

    logprobs: dict[str, float]
    replacements: str | None
    spaces_kept: bool


def read_pieces(path: Path) -> Pieces:
    """Read the pieces of a model's file.

    Raises:
        TokenizerError: the file is not a Unigram model of SentencePiece, or cuts texts in a way that clearformer lacks.
    """
    try:
        parts = list(fields_of(path.read_bytes()))
        pieces = dict(
            _piece(value) for number, value in parts if number == PIECES and isinstance(value, bytes)
        )
        trainer, normalizer = (_only(parts, number) for number in (TRAINER, NORMALIZER))
        if trainer.get(3, UNIGRAM) != UNIGRAM or not pieces:
            raise ValueError("it has no Unigram pieces")
    except (OSError, ValueError, IndexError, KeyError, struct.error) as error:
        raise TokenizerError(
            f"{path}: not a SentencePiece Unigram model ({error}); download it again"
        ) from None
    others = {
        "add_dummy_prefix=false": normalizer.get(3, 1) == 0,
        "escape_whitespaces=false": normalizer.get(5, 1) == 0,
        "byte_fallback=true": trainer.get(35, 0) != 0,
    }
    if unread := [setting for setting, found in others.items() if found]:
        raise TokenizerError(
            f"{path}: {unread[0]}, which clearformer lacks; save this tokenizer as tokenizer.json with transformers"
        )
    table = normalizer.get(2)
    replacements = base64.b64encode(table).decode() if isinstance(table, bytes) and table else None
    return Pieces(pieces, replacements, spaces_kept=normalizer.get(4, 1) == 0)


def _only(parts: list[tuple[int, Value]], number: int) -> dict[int, Value]:
    found = [value for field, value in parts if field == number]
    return dict(fields_of(found[0])) if found and isinstance(found[0], bytes) else {}


def _piece(message: bytes) -> tuple[str, float]:
    values = dict(fields_of(message))
    text, score = values[1], values.get(2, b"\0\0\0\0")
    if not isinstance(text, bytes) or not isinstance(score, bytes):
        raise ValueError("a piece is not a text and a number")
    return text.decode("utf-8"), struct.unpack("<f", score)[0]


def fields_of(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the numbers and values of the fields in a protocol buffer's message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire_type == 2:
            size, at = _varint(message, at)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        else:
            raise ValueError(f"unknown wire type {wire_type}")
        if at + size > len(message):
            raise ValueError("it is truncated")
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Decode a number of seven bits per byte, lowest bits first; return it and the position after it."""
    value = 0
    for shift in range(0, 7 * LONGEST_VARINT, 7):
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError("a number has no end")
