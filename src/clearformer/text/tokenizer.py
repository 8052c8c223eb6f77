"""What every tokeniser does: text to ids and back, special tokens, and one file that holds it all.

Lecture 000, section 2 (vocabularies, <bos> and <eos>), lecture 001, "Tokenisation" (encode and decode) and
lecture 004, section 4.1.
"""

import hashlib
import json
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from clearformer.errors import TokenizerError
from clearformer.files import write_file

BOS = "<bos>"
EOS = "<eos>"
UNK = "<unk>"
END_OF_TEXT = "<|endoftext|>"  # GPT-2's one special token: the end of a document and the start of the next

Merge = tuple[str, str]


class Tokenizer(ABC):
    """A fixed vocabulary of tokens, each with an id, the bytes it stands for, and a spelling in `tokenizer.json`.

    The ids of the special tokens come after all others, so that asking for <bos> moves no other id. Special
    tokens are never found in a text: one that contains the characters "<bos>" is encoded as those characters.
    """

    kind: ClassVar[str]
    pre_tokenizer: ClassVar[dict[str, Any] | None]
    """How `tokenizers` cuts a text before looking up tokens, in the words of `tokenizer.json`."""
    decoder: ClassVar[dict[str, Any]]
    """How `tokenizers` puts the tokens' spellings together again, in the words of `tokenizer.json`."""

    def __init__(self, plain: Sequence[str], specials: Sequence[str], merges: Sequence[Merge] = ()) -> None:
        if unfit := [name for name in specials if not name or not name.isprintable()]:
            raise TokenizerError(f"a special token cannot be called {unfit[0]!r}: its name must be printable")
        self.specials = tuple(specials)
        self.spellings = (*plain, *specials)
        self._special_ids = {name: len(plain) + i for i, name in enumerate(specials)}
        self._bytes = [self._bytes_of(spelling) for spelling in plain] + [b""] * len(specials)
        self._ids = {raw: i for i, raw in enumerate(self._bytes[: len(plain)])}
        self.merges = tuple(merges)

    @staticmethod
    @abstractmethod
    def _bytes_of(spelling: str) -> bytes:
        """The bytes that a plain token stands for."""

    @abstractmethod
    def _encode(self, text: str) -> np.ndarray:
        """The ids of a text that is known to be valid Unicode, as int32."""

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special ones included: ids run from 0 to one less."""
        return len(self.spellings)

    @property
    def bos_id(self) -> int | None:
        """The id of the token that starts a document, if there is one."""
        return self._special_ids.get(BOS, self._special_ids.get(END_OF_TEXT))

    @property
    def eos_id(self) -> int | None:
        """The id of the token that ends a document, if there is one."""
        return self._special_ids.get(EOS, self._special_ids.get(END_OF_TEXT))

    @property
    def unk_id(self) -> int | None:
        """The id that stands for what the vocabulary lacks, if there is one."""
        return self._special_ids.get(UNK)

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, int32 [T]; neither <bos> nor <eos> is added (see `wrap`).

        Raises:
            TokenizerError: a character lies outside the vocabulary, or the text holds half of a surrogate pair.
        """
        require_unicode(text)
        return self._encode(text)

    def decode(self, ids: ArrayLike) -> str:
        """The text of some ids; special tokens stand for nothing.

        Bytes that are no valid UTF-8 (a character cut in two, or never finished) become U+FFFD.

        Raises:
            TokenizerError: an id lies outside the vocabulary.
        """
        tokens = self._checked(ids).tolist()
        return b"".join([self._bytes[token] for token in tokens]).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes that one id stands for; none for a special token."""
        return self._bytes[self._checked([token])[0]]

    def token_label(self, token: int) -> str:
        """One token as a person can read it on one line: " the", "\\n" for a newline, "<bos>".

        Bytes that are not a whole character show as "\\xe2"; a combining mark stands on a dotted circle.
        """
        if token in self._special_ids.values():
            return self.spellings[token]
        text = self.token_bytes(token).decode("utf-8", errors="backslashreplace")
        visible = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        return f"◌{visible}" if unicodedata.category(visible[0]).startswith("M") else visible

    def id_of(self, token_text: str) -> int | None:
        """The id of the token that is exactly this text, or of the special token of this name; None if none is."""
        if token_text in self._special_ids:
            return self._special_ids[token_text]
        return self._ids.get(token_text.encode("utf-8", errors="surrogatepass"))

    def wrap(self, ids: ArrayLike) -> np.ndarray:
        """The ids of one document with <bos> before and <eos> behind, where the tokeniser has them.

        Where one token is both (GPT-2's <|endoftext|>) it goes behind only, so that it stands once between two
        documents, as GPT-2 was trained.
        """
        before = [self.bos_id] if self.bos_id is not None and self.bos_id != self.eos_id else []
        behind = [self.eos_id] if self.eos_id is not None else []
        parts = (before, self._checked(ids), behind)
        return np.concatenate([np.asarray(part, dtype=np.int32) for part in parts])

    def to_json(self) -> str:
        """The whole tokeniser in the `tokenizer.json` layout of the `tokenizers` library.

        `tokenizers.Tokenizer.from_file` reads it and gives the same ids and texts. It finds special tokens in
        texts unless told not to by its `encode_special_tokens = True`; ours never does.
        """
        return json.dumps(self._document(), ensure_ascii=False, indent=2) + "\n"

    def fingerprint(self) -> str:
        """The SHA-256 of `to_json`, which is that of the saved file too, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Writes `to_json` to a file, making its folder; what stood there is replaced whole or not at all.

        Raises:
            DiskError: the file cannot be written.
        """
        write_file(path, self.to_json().encode())

    def __repr__(self) -> str:
        specials = f" with {', '.join(self.specials)}" if self.specials else ""
        return f"{type(self).__name__}({self.vocab_size:,} tokens{specials})"

    def _checked(self, ids: ArrayLike) -> np.ndarray:
        tokens = np.asarray(ids)
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            raise TypeError(
                f"ids are one row of whole numbers; got {tokens.dtype} of shape {list(tokens.shape)}"
            )
        outside = (tokens < 0) | (tokens >= self.vocab_size)
        if outside.any():
            raise TokenizerError(
                f"id {tokens[outside][0]} is outside this tokenizer's vocabulary of {self.vocab_size:,}: "
                f"use the tokenizer.json of the run that the ids come from"
            )
        return tokens.astype(np.int64)

    def _document(self) -> dict[str, Any]:
        added = [
            {
                "id": token,
                "content": name,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for name, token in self._special_ids.items()
        ]
        model = {
            "type": "BPE",
            "dropout": None,
            "unk_token": UNK if self.unk_id is not None else None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {spelling: token for token, spelling in enumerate(self.spellings)},
            "merges": [list(pair) for pair in self.merges],
        }
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": self.pre_tokenizer,
            "post_processor": None,
            "decoder": self.decoder,
            "model": model,
        }


def require_unicode(text: str) -> None:
    """Refuses what no UTF-8 file can hold: half of a surrogate pair.

    Raises:
        TokenizerError: with the half's code point, line and column.
        TypeError: `text` is no string.
    """
    if not isinstance(text, str):
        raise TypeError(f"a tokenizer takes a str; got {type(text).__name__}: decode bytes as UTF-8 first")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"U+{ord(text[error.start]):04X} at {place(text, error.start)} is half of a surrogate pair, "
            f"which is no character: read the text as UTF-8"
        ) from None


def place(text: str, index: int) -> str:
    """Where a character of a text stands, as an editor counts: "line 3, column 7"."""
    line_start = text.rfind("\n", 0, index) + 1
    return f"line {text.count(chr(10), 0, index) + 1}, column {index - line_start + 1}"


def code_points(text: str) -> np.ndarray:
    """The code point of every character of a text that is valid Unicode, uint32 [T]."""
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def wanted_specials(bos: bool = False, eos: bool = False, unk: bool = False) -> list[str]:
    """The names of the special tokens that were asked for, in the order of their ids."""
    return [name for name, wanted in ((BOS, bos), (EOS, eos), (UNK, unk)) if wanted]
