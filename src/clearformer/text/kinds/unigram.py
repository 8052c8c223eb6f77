"""Unigram (Kudo 2018; the default of SentencePiece, Kudo and Richardson 2018): the likeliest way to cut a text.

Every token has a probability. Of all ways to cut a word into tokens, the one with the largest product of probabilities
is chosen. A space belongs to the word after it and is spelled "▁", so that the tokens preserve it.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, Self

import tokenizers
from pydantic import Field, model_validator

from clearformer.config import Spec
from clearformer.errors import TokenizerError
from clearformer.text.backend import LOWERCASE, BackendTokenizer, count_pre_tokens, untrained
from clearformer.text.kinds.unigram_training import learn_pieces
from clearformer.text.tokenizer import MOST_TOKENS, readable, wanted_specials

SPACE = "▁"
NORMALIZERS: dict[str, dict[str, Any] | None] = {"none": None, "nfkc": {"type": "NFKC"}}
BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in range(256))

_HEX = "0123456789abcdefABCDEF"
READ_AS_BYTES = frozenset(f"<0x{one}{other}>" for one in _HEX + "+" for other in _HEX)
"""The pieces that the library `tokenizers` decodes as bytes, which no text teaches."""

# Without these characters as tokens, the text "<0x41>" would be encoded as the byte 0x41.
SPELL_BYTE_PIECES = tuple("0123456789<>ABCDEFx")

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")  # in capitals alone, as our own files have them
SCORE_DIGITS = 6

Piece = tuple[str, float]

WORDS_WITH_SPACE: dict[str, Any] = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Split", "pattern": {"String": "\n"}, "behavior": "Isolated", "invert": False},
        {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "never", "split": True},
    ],
}


class UnigramTokenizer(BackendTokenizer):
    """Unigram on characters, and on bytes where a character has no token, run by the `tokenizers` library.

    Decoding restores any text, except that the sign "▁" (U+2581) itself becomes a space, and for what `normalize`
    ("none", "nfkc") and `lowercase` change before the text is cut.

    Args:
        pieces: The tokens and their log-probabilities; the ids of the 256 bytes come before them.
    """

    kind: ClassVar[str] = "unigram"
    pre_tokenizer = WORDS_WITH_SPACE
    decoder: ClassVar[dict[str, Any]] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ],
    }

    def __init__(
        self,
        pieces: Sequence[Piece],
        specials: Sequence[str] = (),
        normalize: str = "none",
        lowercase: bool = False,
    ) -> None:
        known = {piece for piece, _ in pieces}
        if missing := [character for character in SPELL_BYTE_PIECES if character not in known]:
            raise TokenizerError(
                f"{missing[0]!r} is not a token, but is needed to tell a text from its bytes"
            )
        if unfit := [piece for piece, score in pieces if not piece or not math.isfinite(score)]:
            raise TokenizerError(f"the token {unfit[0]!r} is empty, or its probability is not a number")
        if len(known.union(BYTE_PIECES)) < len(pieces) + len(BYTE_PIECES):
            raise TokenizerError("a token is in the vocabulary twice")
        # So low that the characters of "<0x41>" one by one are likelier than the token.
        byte_score = len(BYTE_PIECES[0]) * min(score for _, score in pieces) - 1
        self.scores = (*[round(byte_score, SCORE_DIGITS)] * len(BYTE_PIECES), *(score for _, score in pieces))
        self.normalizer = unigram_normalizer(normalize, lowercase)
        self.lossless = self.normalizer is None
        super().__init__([*BYTE_PIECES, *(piece for piece, _ in pieces)], specials)

    def normalized(self, text: str) -> str:
        return super().normalized(text).replace(SPACE, " ")

    def _bytes_of(self, spelling: str) -> bytes:
        return piece_bytes(spelling)

    def token_label(self, token: int) -> str:
        """Return the label as for every tokenizer, but the spelling for a byte's token: "<0xE2>"."""
        label = super().token_label(token)
        return readable(self.spellings[token]) if token < len(BYTE_PIECES) else label

    def _model(self) -> dict[str, Any]:
        return {
            "type": "Unigram",
            "unk_id": 0,  # the library requires one; as every byte is a token, it is never used
            "vocab": [list(piece) for piece in zip(self.spellings, self.scores, strict=False)],
            "byte_fallback": True,
        }


class UnigramTokenizerSpec(Spec):
    """Unigram whose tokens and probabilities are learned from the corpus.

    `vocab_size` counts the 256 bytes, the characters, the learned tokens and the special tokens; a small corpus gives
    fewer. `normalize=nfkc` unifies characters that Unicode considers equivalent (ﬁ and fi, ² and 2); `lowercase`
    removes capitals. Decoding restores neither.
    """

    needs_corpus: ClassVar[bool] = True

    kind: Literal["unigram"] = "unigram"
    vocab_size: int = Field(default=1024, le=MOST_TOKENS)
    normalize: Literal["none", "nfkc"] = "none"
    lowercase: bool = False
    bos: bool = False
    eos: bool = False

    @model_validator(mode="after")
    def _room_for_bytes_and_specials(self) -> Self:
        if self.vocab_size < (smallest := self._smallest(wanted_specials(bos=self.bos, eos=self.eos))):
            raise ValueError(self._too_small(smallest))
        return self

    @staticmethod
    def _smallest(specials: Sequence[str]) -> int:
        return len(BYTE_PIECES) + len(SPELL_BYTE_PIECES) + 1 + len(specials)  # 1: the space

    def _too_small(self, smallest: int) -> str:
        return (
            f"vocab_size={self.vocab_size} is too small: the 256 bytes, the {len(SPELL_BYTE_PIECES)} characters that "
            f"name them, a space and the special tokens alone need {smallest}; choose more, or kind=byte"
        )

    def train(self, texts: Iterable[str], specials: Sequence[str] = ()) -> UnigramTokenizer:
        """Learn tokens and their probabilities (see `unigram_training`).

        The same texts give the same tokenizer. Each text is read once; only the counts of the distinct pre-tokens are
        kept.

        Raises:
            TokenizerError: the texts are empty, or have half of a surrogate pair; or `vocab_size` leaves no room for
                the special tokens.
        """
        specials = wanted_specials(specials, bos=self.bos, eos=self.eos)
        if self.vocab_size < (smallest := self._smallest(specials)):
            raise TokenizerError(self._too_small(smallest))
        normalizer = unigram_normalizer(self.normalize, self.lowercase)
        words = count_pre_tokens(untrained(WORDS_WITH_SPACE, tokenizers.models.BPE(), normalizer), texts)
        pieces = learn_pieces(
            words,
            n_pieces=self.vocab_size - len(BYTE_PIECES) - len(specials),
            required=(*SPELL_BYTE_PIECES, SPACE),
            forbidden={*READ_AS_BYTES, *specials},
        )
        rounded = [(piece, round(score, SCORE_DIGITS)) for piece, score in pieces]
        return UnigramTokenizer(rounded, specials, self.normalize, self.lowercase)


def unigram_normalizer(normalize: str, lowercase: bool) -> dict[str, Any] | None:
    """Return the `normalizer` of `tokenizer.json`, or None."""
    steps = [step for step in (NORMALIZERS[normalize], LOWERCASE if lowercase else None) if step]
    return {"type": "Sequence", "normalizers": steps} if len(steps) > 1 else next(iter(steps), None)


def piece_bytes(spelling: str) -> bytes:
    """Return the bytes of a token in SentencePiece's spelling: "▁the" is " the", "<0x41>" the byte 0x41."""
    if byte := _BYTE_PIECE.fullmatch(spelling):
        return bytes([int(byte[1], 16)])
    return spelling.replace(SPACE, " ").encode()
