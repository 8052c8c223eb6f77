"""The interface of every tokenizer: text to ids and back, special tokens, and saving to one file.

Lecture 000, section 2 (vocabularies, <bos> and <eos>), lecture 001, "Tokenisation" (encode and decode) and
lecture 004, section 4.1.
"""

import hashlib
import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from clearformer.errors import TokenizerError, did_you_mean
from clearformer.files import user_path, write_file

BOS = "<bos>"
EOS = "<eos>"
UNK = "<unk>"
PAD = "<pad>"
# SentencePiece's spelling of a byte, for what has no other token.
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
END_OF_TEXT = "<|endoftext|>"  # GPT-2's one special token: the end of a document and the start of the next

# An encoder's special tokens, named as in BERT; a text is wrapped in [CLS] and [SEP].
BERT_PAD = "[PAD]"
BERT_CLS = "[CLS]"
BERT_SEP = "[SEP]"
BERT_MASK = "[MASK]"
BERT_UNK = "[UNK]"

SPECIALS_BY_FAMILY = {
    "decoder": (),
    "encoder": (BERT_PAD, BERT_CLS, BERT_SEP, BERT_MASK),
    "encoder-decoder": (PAD, BOS, EOS),
}

# The roles of special tokens, and the usual names of each; the first name found wins.
ROLES = {
    "pad": (PAD, BERT_PAD),
    "bos": (BOS, BERT_CLS, END_OF_TEXT),
    "eos": (EOS, BERT_SEP, END_OF_TEXT),
    "unk": (UNK, BERT_UNK),
    "mask": (BERT_MASK,),
}

# Classes of the characters at a token's edges. Neighbours of one class may belong to one word; part of a character
# (PARTIAL) joins any class, and white space and special tokens (ALONE) join none.
WORD, PUNCTUATION, PARTIAL, ALONE = range(4)
REPLACEMENT = "\ufffd"  # the decoding of bytes that are no whole character

MOST_TOKENS = (
    1 << 22
)  # several times the largest known vocabulary; the library allocates memory for as many as a file asks for
SPECIALS_NAMED = 7  # in a tokenizer's description; some have hundreds

Merge = tuple[str, str]


def specials_of(family: str) -> tuple[str, ...]:
    """Return the special tokens that a family of models needs, in the order of their ids.

    A decoder needs none; the tokenizer's settings may ask for some. The unknown token is not included: a kind of
    tokenizer that needs it adds it.

    Raises:
        TokenizerError: there is no such family.
    """
    if family not in SPECIALS_BY_FAMILY:
        hint = did_you_mean(family, SPECIALS_BY_FAMILY)
        raise TokenizerError(f"a family is one of {', '.join(SPECIALS_BY_FAMILY)}; got {family!r}{hint}")
    return SPECIALS_BY_FAMILY[family]


class UnknownCharacterError(TokenizerError):
    """Raised for a character that the vocabulary lacks.

    Attributes:
        index: Its index in the text that was to be encoded.
    """

    def __init__(self, text: str, index: int, why: str) -> None:
        self.index = index
        self._character, self._why = f"{text[index]!r} (U+{ord(text[index]):04X})", why
        super().__init__(f"{self._character} at {place(text, index)} {why}")

    def at(self, where: str) -> TokenizerError:
        """Return the same error with `where`, the character's place in the file that the text is from."""
        return TokenizerError(f"{where}: {self._character} {self._why}")

    def within(self, where: str) -> TokenizerError:
        """Return the same error with `where`, the place of the whole text, such as a line of a file."""
        return TokenizerError(f"{where}: {self._character}, character {self.index + 1:,} of it, {self._why}")


def located(error: TokenizerError, where: str) -> TokenizerError:
    """Return the error prefixed with the place of its text, such as a line of a file."""
    if isinstance(error, UnknownCharacterError):
        return error.within(where)
    return TokenizerError(f"{where}: {error}")


def encode_located(
    tokenizer: "Tokenizer", texts: Sequence[str], where: Callable[[int], str]
) -> list[np.ndarray]:
    """Return the ids of each text; `where` returns the place of the n-th, for error messages.

    Raises:
        TokenizerError: as for `Tokenizer.encode`, prefixed with the place of the first such text.
    """
    try:
        return tokenizer.encode_each(texts)
    except TokenizerError:
        for number, text in enumerate(texts):
            try:
                tokenizer.encode(text)
            except TokenizerError as error:
                raise located(error, where(number)) from None
        raise


class Tokenizer(ABC):
    """A fixed vocabulary of tokens, each with an id, its bytes, and its spelling in `tokenizer.json`.

    Special tokens are never recognised in a text: the characters "<bos>" are encoded as characters.
    """

    kind: ClassVar[str]
    encoding_version: ClassVar[int] = 1
    """Raised where the same file begins to give other tokens, so that kept ones are made again."""
    lossless: bool = True
    """Whether `decode` restores every text that the vocabulary covers exactly."""
    opens_with_space: bool = False
    """Whether a text's first token may begin with a space that the text does not have; `decode` drops it."""
    merges: tuple[Merge, ...] = ()

    def __init__(
        self, spellings: Sequence[str], special_ids: Mapping[str, int], roles: Mapping[str, int]
    ) -> None:
        """Take all spellings by id, the ids of special tokens by name, and the ids of the `ROLES` that are filled."""
        self.spellings = tuple(spellings)
        self.specials = tuple(special_ids)
        self._special_ids = dict(special_ids)
        self._specials_by_id = {token: name for name, token in special_ids.items()}
        self._roles = dict(roles)
        self._bytes = [
            b"" if token in self._specials_by_id else self._bytes_of(spelling)
            for token, spelling in enumerate(spellings)
        ]

    @abstractmethod
    def _bytes_of(self, spelling: str) -> bytes:
        """Return the bytes of a token that is not special."""

    @abstractmethod
    def _encode(self, text: str) -> np.ndarray:
        """Return the ids of a text that is valid Unicode, as int32."""

    @abstractmethod
    def to_json(self) -> str:
        """Return the whole tokenizer in the `tokenizer.json` format of the `tokenizers` library.

        `tokenizers.Tokenizer.from_file` reads it and gives the same ids, if its `encode_special_tokens` is set to
        True; by default it recognises special tokens in texts, which ours never does.
        """

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special ones included."""
        return len(self.spellings)

    @property
    def pad_id(self) -> int | None:
        """The id of the padding token, if there is one."""
        return self._roles.get("pad")

    @property
    def bos_id(self) -> int | None:
        """The id of the token that starts a document, if there is one; [CLS] in an encoder's vocabulary."""
        return self._roles.get("bos")

    @property
    def before_pair(self) -> tuple[int, ...]:
        """The ids before both texts of an encoder-decoder, after <bos>: none, but in imported ones such as BART's."""
        return ()

    @property
    def eos_id(self) -> int | None:
        """The id of the token that ends a document, if there is one; [SEP] in an encoder's vocabulary."""
        return self._roles.get("eos")

    @property
    def unk_id(self) -> int | None:
        """The id of the unknown token, if there is one."""
        return self._roles.get("unk")

    @property
    def mask_id(self) -> int | None:
        """The id of the mask token, which hides a token from a masked language model, if there is one."""
        return self._roles.get("mask")

    def normalized(self, text: str) -> str:
        """Return the text that `decode` makes of an encoded text; if `lossless`, the same text.

        Raises:
            TokenizerError: the text has half of a surrogate pair.
        """
        require_unicode(text)
        return text

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text, int32 [T]; neither <bos> nor <eos> is added (see `wrap`).

        Raises:
            TokenizerError: the vocabulary lacks a character, or the text has half of a surrogate pair.
        """
        require_unicode(text)
        return self._encode(text)

    def encode_each(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, as `encode` does, but faster for many short ones.

        Raises:
            TokenizerError: as for `encode`, for one of the texts.
        """
        return [self.encode(text) for text in texts]

    @property
    def for_targets(self) -> "Tokenizer":
        """The tokenizer of what an encoder-decoder writes: the same, but for some imported ones (Marian's)."""
        return self

    def decode(self, ids: ArrayLike) -> str:
        """Return the text of some ids; special tokens are left out.

        Bytes that are not valid UTF-8 (part of a character) become U+FFFD.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        tokens = self._checked(ids).tolist()
        text = b"".join([self._bytes[token] for token in tokens]).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self.opens_with_space else text

    def token_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes of one token; none for a special token."""
        return self._bytes[self._checked([token])[0]]

    def token_label(self, token: int) -> str:
        """Return one token in readable form on one line: " the", "\\n" for a newline, "<bos>".

        Bytes that are not a whole character appear as "\\xe2", a backslash as two, so that a label names one token; a
        combining mark gets a dotted circle.
        """
        if token in self._specials_by_id:
            return readable(self._specials_by_id[token])
        raw = self.token_bytes(token).replace(b"\\", b"\\\\")
        return readable(raw.decode("utf-8", errors="backslashreplace"))

    def id_of(self, token_text: str) -> int | None:
        """Return the id of the token with exactly this text or of the special token with this name, or None.

        If several tokens have the text, it is the lowest id of those that are more than a byte in SentencePiece's
        spelling, in which no text is encoded that has another token.
        """
        if token_text in self._special_ids:
            return self._special_ids[token_text]
        return self._ids.get(token_text.encode("utf-8", errors="surrogatepass")) if token_text else None

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        plain = [token for token in range(self.vocab_size) if token not in self._specials_by_id]
        last_wins = sorted(plain, key=lambda token: (not BYTE_PIECE.fullmatch(self.spellings[token]), -token))
        return {self._bytes[token]: token for token in last_wins}

    def starts_word(self, ids: ArrayLike) -> np.ndarray:
        """Return for each id of one text whether a word begins with it, bool [T].

        A word begins at white space and after it; a run of punctuation is a word of its own, and so is a special
        token. A token that starts with part of a character continues the word before it.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        tokens = self._checked(ids)
        first, last = self._edges
        begins = np.ones(len(tokens), dtype=bool)
        before, now = last[tokens[:-1]], first[tokens[1:]]
        same = (before == now) | (before == PARTIAL) | (now == PARTIAL)
        begins[1:] = ~same | (before >= ALONE) | (now >= ALONE)
        return begins

    @cached_property
    def _edges(self) -> tuple[np.ndarray, np.ndarray]:
        """The classes of every token's first and last character, int8 [V] each."""
        edges = np.full((2, self.vocab_size), ALONE, dtype=np.int8)
        for token, raw in enumerate(self._bytes):
            if token not in self._specials_by_id:
                edges[:, token] = edge_sorts(raw)
        return edges[0], edges[1]

    @cached_property
    def is_plain(self) -> np.ndarray:
        """Which tokens are not special, bool [V]."""
        return np.array([token not in self._specials_by_id for token in range(self.vocab_size)])

    @cached_property
    def marks(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids that `wrap` puts before and after a document, int32: <bos> and <eos> if the tokenizer has them.

        If one token is both (GPT-2's <|endoftext|>), it is put after the document only, so that it occurs once between
        two documents, as in GPT-2's training.
        """
        before = [self.bos_id] if self.bos_id is not None and self.bos_id != self.eos_id else []
        behind = [self.eos_id] if self.eos_id is not None else []
        return np.asarray(before, dtype=np.int32), np.asarray(behind, dtype=np.int32)

    def wrap(self, ids: ArrayLike) -> np.ndarray:
        """Return the ids of one document between its `marks`: <bos> ... <eos>, or an encoder's [CLS] ... [SEP]."""
        before, behind = self.marks
        return np.concatenate([before, self._checked(ids).astype(np.int32), behind])

    def fingerprint(self) -> str:
        """Return the SHA-256 of `to_json`, and so of the saved file, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write `to_json` to a file atomically, creating its folder.

        Raises:
            DiskError: the file cannot be written.
        """
        write_file(user_path(path), self.to_json().encode())

    def __repr__(self) -> str:
        specials = f" with {self.named_specials(', ')}" if self.specials else ""
        return f"{type(self).__name__}({self.vocab_size:,} tokens{specials})"

    def named_specials(self, separator: str = " ") -> str:
        """Return the names of the special tokens, cut short if there are many."""
        first, n_more = self.specials[:SPECIALS_NAMED], len(self.specials) - SPECIALS_NAMED
        return separator.join(first) + (f" and {n_more:,} more" if n_more > 0 else "")

    def _checked(self, ids: ArrayLike) -> np.ndarray:
        tokens = np.asarray(ids)
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            raise TypeError(
                f"ids must be one row of whole numbers; got {tokens.dtype} of shape {list(tokens.shape)}"
            )
        outside = (tokens < 0) | (tokens >= self.vocab_size)
        if outside.any():
            raise TokenizerError(
                f"id {tokens[outside][0]} is outside this tokenizer's vocabulary of {self.vocab_size:,}: "
                f"use the tokenizer.json of the run that the ids come from"
            )
        return tokens.astype(np.int64)


class OwnTokenizer(Tokenizer):
    """A tokenizer made by clearformer, which writes its `tokenizer.json`.

    The ids of the special tokens come after all others, so that asking for <bos> changes no other id.
    """

    pre_tokenizer: dict[str, Any] | None
    """The `pre_tokenizer` of `tokenizer.json`, which cuts a text before tokens are looked up."""
    decoder: ClassVar[dict[str, Any]]
    """The `decoder` of `tokenizer.json`, which joins the tokens' spellings."""
    normalizer: dict[str, Any] | None = None
    """The `normalizer` of `tokenizer.json`."""

    def __init__(self, plain: Sequence[str], specials: Sequence[str], merges: Sequence[Merge] = ()) -> None:
        check_specials(plain, specials)
        self.merges = tuple(merges)
        special_ids = {name: len(plain) + i for i, name in enumerate(specials)}
        super().__init__((*plain, *specials), special_ids, roles_of(special_ids))

    def to_json(self) -> str:
        return json.dumps(self.document(), ensure_ascii=False, indent=2) + "\n"

    def document(self) -> dict[str, Any]:
        """Return the object that `to_json` writes."""
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [added_token(name, token) for name, token in self._special_ids.items()],
            "normalizer": self.normalizer,
            "pre_tokenizer": self.pre_tokenizer,
            "post_processor": None,
            "decoder": self.decoder,
            "model": self._model(),
        }

    def _model(self) -> dict[str, Any]:
        return {
            "type": "BPE",
            "dropout": None,
            "unk_token": None if self.unk_id is None else self.spellings[self.unk_id],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {spelling: token for token, spelling in enumerate(self.spellings)},
            "merges": [list(pair) for pair in self.merges],
        }


def added_token(name: str, token: int) -> dict[str, Any]:
    """Return a special token's entry in `tokenizer.json`."""
    return {
        "id": token,
        "content": name,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def check_specials(plain: Sequence[str], specials: Sequence[str]) -> None:
    """Raise TokenizerError unless the names of the special tokens are printable and unique."""
    if unfit := [name for name in specials if not name or not name.isprintable()]:
        raise TokenizerError(f"a special token cannot be called {unfit[0]!r}: its name must be printable")
    if twice := [name for name in specials if specials.count(name) > 1] or set(plain) & set(specials):
        raise TokenizerError(
            f"{min(twice)!r} is the name of a special token and of another token: rename the special token"
        )


def roles_of(special_ids: Mapping[str, int]) -> dict[str, int]:
    """Return the ids of `ROLES`, found by the names of special tokens."""
    found = {
        role: [special_ids[name] for name in names if name in special_ids] for role, names in ROLES.items()
    }
    return {role: ids[0] for role, ids in found.items() if ids}


def readable(text: str) -> str:
    """Return a token's text on one line, with invisible characters escaped."""
    visible = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return f"◌{visible}" if unicodedata.category(visible[:1] or " ").startswith("M") else visible


def edge_sorts(raw: bytes) -> tuple[int, int]:
    """Return the classes of the first and last character of a token's bytes."""
    text = raw.decode("utf-8", errors="replace")
    return (_sort_of(text[0]), _sort_of(text[-1])) if text else (PARTIAL, PARTIAL)


def _sort_of(character: str) -> int:
    if character.isspace():
        return ALONE
    if character == REPLACEMENT:
        return PARTIAL
    return PUNCTUATION if unicodedata.category(character)[0] in "PS" else WORD


def require_unicode(text: str) -> None:
    """Check that a text can be encoded as UTF-8.

    Raises:
        TokenizerError: it has half of a surrogate pair; the message gives code point, line and column.
        TypeError: `text` is not a string.
    """
    if not isinstance(text, str):
        raise TypeError(f"a tokenizer takes a str; got {type(text).__name__}: decode bytes as UTF-8 first")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"U+{ord(text[error.start]):04X} at {place(text, error.start)} is half of a surrogate pair, "
            f"which is not a character: read the text as UTF-8"
        ) from None


def place(text: str, index: int) -> str:
    """Return the place of a character, counted as in an editor: "line 3, column 7"."""
    line_start = text.rfind("\n", 0, index) + 1
    return f"line {text.count(chr(10), 0, index) + 1}, column {index - line_start + 1}"


def code_points(text: str) -> np.ndarray:
    """Return the code points of a text that is valid Unicode, uint32 [T]."""
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def wanted_specials(
    specials: Sequence[str] = (), *, bos: bool = False, eos: bool = False, unk: bool = False
) -> list[str]:
    """Return the names of the special tokens that are asked for, without duplicates, in the order of their ids.

    `specials` are the names that a family of models needs; the flags add roles, under names that match the others
    (an encoder's <unk> is [UNK]).
    """
    asked = ((BOS, bos), (EOS, eos), (name_of_unknown(specials), unk))
    return list(dict.fromkeys([*specials, *(name for name, wanted in asked if wanted)]))


def name_of_unknown(specials: Sequence[str]) -> str:
    """Return the name of the unknown token that matches these special tokens."""
    return BERT_UNK if BERT_CLS in specials else UNK
