"""Base of user-defined tokenizers: a list of tokens, and a method that cuts a text into them."""

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from clearformer.errors import TokenizerError, shown
from clearformer.parts import is_known
from clearformer.text.tokenizer import Tokenizer, UnknownCharacterError, check_specials, roles_of

OWN_KIND = "clearformer_kind"
"""The key of a `tokenizer.json` that names a user-defined kind; the library `tokenizers` reads no such file."""

TOKENIZERS: dict[str, type["VocabularyTokenizer"]] = {}
"""The classes of user-defined kinds; `registry.register("tokenizer")` adds one."""


class VocabularyTokenizer(Tokenizer):
    """A tokenizer whose subclass cuts a text into pieces, which are looked up in a vocabulary.

    Args:
        tokens: The vocabulary, by id, without special tokens.
        specials: The names of the special tokens, whose ids follow.
    """

    def __init__(self, tokens: Sequence[str], specials: Sequence[str] = ()) -> None:
        check_specials(tokens, specials)
        special_ids = {name: len(tokens) + i for i, name in enumerate(specials)}
        super().__init__((*tokens, *specials), special_ids, roles_of(special_ids))

    @abstractmethod
    def pieces(self, text: str) -> Iterable[str]:
        """Cut a text into pieces, which joined are the text."""

    def _bytes_of(self, spelling: str) -> bytes:
        return spelling.encode("utf-8")

    @cached_property
    def _by_piece(self) -> dict[str, int]:
        return {
            spelling: token for token, spelling in enumerate(self.spellings) if spelling not in self.specials
        }

    def _encode(self, text: str) -> np.ndarray:
        tokens, at = [], 0
        for piece in filter(None, self.pieces(text)):  # re.split has empty pieces at the ends
            token = self._by_piece.get(piece, self.unk_id)
            if token is None:
                raise UnknownCharacterError(text, at, f"begins {shown(piece)}, which the vocabulary lacks")
            tokens.append(token)
            at += len(piece)
        if at != len(text):
            raise TokenizerError(
                f"the pieces of a tokenizer of kind {self.kind} have {at} characters, but the text has {len(text)}: "
                "pieces() must return all of it"
            )
        return np.asarray(tokens, dtype=np.int32)

    def to_json(self) -> str:
        document = {OWN_KIND: self.kind, "tokens": self.spellings[: -len(self.specials) or None]}
        return json.dumps(document | {"specials": self.specials}, ensure_ascii=False, indent=2) + "\n"


def is_own_kind(document: Any) -> bool:
    """Whether a `tokenizer.json` is of a user-defined kind."""
    return isinstance(document, Mapping) and OWN_KIND in document


def read_own_kind(document: Mapping[str, Any]) -> VocabularyTokenizer:
    """Return the tokenizer of a document of a user-defined kind.

    Raises:
        TokenizerError: the kind is not registered, or the document is damaged.
    """
    kind = document[OWN_KIND]
    tokens, specials = (_strings(document.get(part)) for part in ("tokens", "specials"))
    if not is_known(kind, TOKENIZERS):
        raise TokenizerError(
            f"there is no tokenizer of kind {shown(kind)}; to use a kind of your own, pass --import FILE.py; "
            "in Python, import it"
        )
    return TOKENIZERS[kind](tokens, specials)


def _strings(part: Any) -> list[str]:
    if not isinstance(part, list) or not all(isinstance(each, str) for each in part):
        raise TokenizerError("damaged: its tokens and specials are not lists of strings")
    return part
