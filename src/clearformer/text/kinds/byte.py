"""One token per byte of UTF-8, and GPT-2's spelling of bytes as printable characters."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from clearformer.config import Spec
from clearformer.text.tokenizer import OwnTokenizer, wanted_specials


def _byte_spellings() -> list[str]:
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


BYTE_SPELLINGS = _byte_spellings()
"""A visible character for each byte, as in GPT-2's files: itself if it is printable, "Ġ" for a space."""

BYTE_BY_SPELLING = {spelling: byte for byte, spelling in enumerate(BYTE_SPELLINGS)}


def spelled_bytes(spelling: str) -> bytes:
    """Return the bytes of a token spelled with `BYTE_SPELLINGS`."""
    return bytes([BYTE_BY_SPELLING[character] for character in spelling])


BYTES_ALONE: dict[str, Any] = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": False,
}


class ByteTokenizer(OwnTokenizer):
    """One token for each of the 256 bytes, whose id is its value; covers any text and needs no training.

    In the `tokenizers` library it is byte-level BPE without merges.
    """

    kind: ClassVar[str] = "byte"
    pre_tokenizer = BYTES_ALONE
    decoder: ClassVar[dict[str, Any]] = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    }

    def __init__(self, specials: Sequence[str] = ()) -> None:
        super().__init__(BYTE_SPELLINGS, specials)

    def _bytes_of(self, spelling: str) -> bytes:
        return spelled_bytes(spelling)

    def _encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int32)


class ByteTokenizerSpec(Spec):
    """The 256 bytes of UTF-8."""

    needs_corpus: ClassVar[bool] = False

    kind: Literal["byte"] = "byte"
    bos: bool = False
    eos: bool = False

    def train(self, texts: Iterable[str] = (), specials: Sequence[str] = ()) -> ByteTokenizer:
        """Return the tokenizer; no text is read."""
        return ByteTokenizer(wanted_specials(specials, bos=self.bos, eos=self.eos))
