"""One token per character (lecture 000, section 2.1; lecture 001, "Tokenisation")."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from clearformer.config import Spec
from clearformer.errors import TokenizerError
from clearformer.text.tokenizer import (
    OwnTokenizer,
    UnknownCharacterError,
    code_points,
    require_unicode,
    wanted_specials,
)

N_CODE_POINTS = 0x110000
OF_A_NEW_TOKENIZER = (
    "train with tokenizer.unk=true to read it as <unk>, or with tokenizer.kind=byte or bpe, "
    "which cover every text"
)
"""The advice about an unknown character where the tokenizer can be another one."""


class CharTokenizer(OwnTokenizer):
    """One token for each character of a given set, in the order given.

    In the `tokenizers` library it is BPE on characters without merges.

    Raises:
        TokenizerError: there are no characters, one occurs twice, or an element is not one character.
    """

    kind: ClassVar[str] = "char"
    pre_tokenizer: dict[str, Any] | None = None
    decoder: ClassVar[dict[str, Any]] = {"type": "Fuse"}

    def __init__(self, characters: Sequence[str], specials: Sequence[str] = ()) -> None:
        if not characters or len(set(characters)) < len(characters) or any(len(c) != 1 for c in characters):
            raise TokenizerError("a character vocabulary needs at least one character, each only once")
        require_unicode("".join(characters))
        super().__init__(characters, specials)
        known = code_points("".join(characters))
        unknown = -1 if self.unk_id is None else self.unk_id
        # A last entry stands for every code point above the highest character.
        self._id_by_code_point = np.full(int(known.max()) + 2, unknown, dtype=np.int32)
        self._id_by_code_point[known] = np.arange(len(characters), dtype=np.int32)

    def _bytes_of(self, spelling: str) -> bytes:
        return spelling.encode("utf-8")

    def _encode(self, text: str) -> np.ndarray:
        last = len(self._id_by_code_point) - 1
        ids = self._id_by_code_point[np.minimum(code_points(text), last)]
        if ids.size and ids.min() < 0:
            raise self._unknown_character(text, int(np.argmin(ids)))
        return ids

    def _unknown_character(self, text: str, index: int) -> UnknownCharacterError:
        n_known = self.vocab_size - len(self.specials)
        return UnknownCharacterError(
            text,
            index,
            f"is not among this tokenizer's {n_known:,} characters: {OF_A_NEW_TOKENIZER}",
        )


class CharTokenizerSpec(Spec):
    """Every distinct character of the corpus, sorted by code point: 65 for Tiny Shakespeare.

    With `unk`, characters that the corpus lacks become <unk>, which a model never sees in training.
    """

    needs_corpus: ClassVar[bool] = True

    kind: Literal["char"] = "char"
    bos: bool = False
    eos: bool = False
    unk: bool = False

    def train(self, texts: Iterable[str], specials: Sequence[str] = ()) -> CharTokenizer:
        """Collect the characters of all texts, reading each once and keeping none.

        Raises:
            TokenizerError: the texts are empty, or have half of a surrogate pair.
        """
        seen = np.zeros(N_CODE_POINTS, dtype=bool)
        for text in texts:
            require_unicode(text)
            seen[code_points(text)] = True
        if not seen.any():
            raise TokenizerError(
                "there is no text to take the characters from: give a corpus that is not empty"
            )
        characters = [chr(code_point) for code_point in np.flatnonzero(seen)]
        return CharTokenizer(characters, wanted_specials(specials, bos=self.bos, eos=self.eos, unk=self.unk))
