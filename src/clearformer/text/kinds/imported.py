"""Imported tokenizers: any `tokenizer.json` that defines how its tokens become text, kept unchanged.

No code in such a file is run: the `tokenizers` library reads it as data.
"""

import hashlib
import json
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tokenizers

from clearformer.errors import TokenizerError, shown
from clearformer.files import parse_json, user_path, write_file
from clearformer.text.backend import encode_batches
from clearformer.text.documents import (
    Document,
    added_tokens,
    library_errors,
    merges_of,
    open_backend,
    parts_of,
)
from clearformer.text.kinds.byte import BYTE_BY_SPELLING, spelled_bytes
from clearformer.text.tokenizer import BYTE_PIECE, ROLES, Tokenizer, require_unicode

CONFIG_KEYS = {  # of tokenizer_config.json; the first one found wins
    "pad": ("pad_token",),
    "bos": ("bos_token", "cls_token"),
    "eos": ("eos_token", "sep_token"),
    "unk": ("unk_token",),
    "mask": ("mask_token",),
}
USUAL_NAMES = {  # used if no file names the special tokens' roles
    "pad": ("<pad>", "[PAD]", "<|padding|>", "<|pad|>"),
    "bos": ("<bos>", "[CLS]", "<s>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("<eos>", "[SEP]", "</s>", "<|end_of_text|>", "<|endoftext|>"),
    "unk": ("<unk>", "[UNK]"),
    "mask": ("<mask>", "[MASK]"),
}

TARGET_SCORES = "target_scores"
"""In the model of a Unigram document, its scores for what an encoder-decoder writes; the library passes over them."""
PROBE = "a"  # a text that has tokens in nearly every vocabulary

# Put around names that must not match in a text: a noncharacter, and what nobody can know who writes a text.
_NO_TEXT = f"\U0010ffff{os.urandom(8).hex()}"

# Normalisers and pre-tokenizers that lose nothing of a text.
_KEEPS_TEXT = {
    "ByteLevel",
    "Metaspace",
    "Split",
    "Digits",
    "Punctuation",
    "Prepend",
    "NFC",
    "Sequence",
}


class ImportedTokenizer(Tokenizer):
    """A published tokenizer of the `tokenizers` library.

    Its file is kept to the byte, and its ids are the library's; special tokens may have any ids. The name of a special
    token in a text is encoded as characters, in every model, unless it is a single character or byte; a token with a
    role is special, whether the file says so or not. `decode` joins the tokens' text without cleaning it up (the
    library's decoder for BERT removes the space before a full stop; this does not).

    Args:
        document: The content of a `tokenizer.json`: its text, which is kept to the byte, or the parsed object.
        roles: The ids or names of the tokens that are "pad", "bos", "eos", "unk" and "mask".

    Raises:
        TokenizerError: the library cannot read it, a role's token is missing, or it does not define how its tokens
            become text.
    """

    kind: ClassVar[str] = "imported"
    encoding_version: ClassVar[int] = 2

    def __init__(self, document: str | Document, roles: Mapping[str, int | str | None] | None = None) -> None:
        self._json = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
        parsed: dict[str, Any] = json.loads(self._json)
        backend = open_backend(parsed)
        ids = backend.get_vocab(with_added_tokens=True)
        if len(set(ids.values())) < len(ids):
            raise TokenizerError("damaged: two of its tokens have the same id")
        spellings = [""] * (max(ids.values(), default=-1) + 1)
        for spelling, token in ids.items():
            spellings[token] = spelling
        self._decoding = _Decoding(parsed)
        self.opens_with_space = self._decoding.opens_with_space
        added = (token["content"] for token in added_tokens(parsed) if token.get("special"))
        marked = {name for name in added if name in ids}  # the library leaves out one without a name
        known = {
            role: _id_of_role(role, token, ids) for role, token in (roles or {}).items() if token is not None
        }
        special = sorted({ids[name] for name in marked} | set(known.values()))
        special_ids = {spellings[token]: token for token in special}
        self._backend = _without_specials(parsed, special_ids)
        self.lossless = _keeps_all(parsed, ids, special_ids) and not _read_from_texts(parsed, special_ids)
        super().__init__(spellings, special_ids, known)
        before, behind = marks_around(backend)
        self._before_pair = tuple(before) if self.eos_id in behind else ()

    @property
    def for_targets(self) -> Tokenizer:
        return self._for_targets

    @cached_property
    def _for_targets(self) -> Tokenizer:
        document = json.loads(self._json)
        scores = document["model"].pop(TARGET_SCORES, None)
        if scores is None:
            return self
        vocab = document["model"]["vocab"]
        if not isinstance(scores, list) or not isinstance(vocab, list) or len(scores) != len(vocab):
            raise TokenizerError(f"damaged: its {TARGET_SCORES} are not one for each token; import it again")
        document["model"]["vocab"] = [[name, score] for (name, _), score in zip(vocab, scores, strict=True)]
        return ImportedTokenizer(document, self._roles)

    @property
    def before_pair(self) -> tuple[int, ...]:
        return self._before_pair

    def _bytes_of(self, spelling: str) -> bytes:
        return self._decoding.bytes_of(spelling)

    def _encode(self, text: str) -> np.ndarray:
        return self.encode_each([text])[0]

    def encode_each(self, texts: Sequence[str]) -> list[np.ndarray]:
        for text in texts:
            require_unicode(text)  # else the library's own message would be shown
        with library_errors("this tokenizer has no tokens for some of the text ({why})"):
            return list(encode_batches(self._backend, texts))

    def normalized(self, text: str) -> str:
        return self.decode(self.encode(text))

    def to_json(self) -> str:
        """Return the content of the original file."""
        return self._json

    def fingerprint(self) -> str:
        """Return the SHA-256 of `to_json` and of the roles, in hexadecimal."""
        return hashlib.sha256((self._json + json.dumps(self._roles, sort_keys=True)).encode()).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write `to_json` to a file, and the roles of the special tokens to `tokenizer_config.json` next to it.

        (For another name than tokenizer.json, "_config" is added to that name.)

        Raises:
            DiskError: a file cannot be written.
        """
        names = {CONFIG_KEYS[role][0]: self.spellings[token] for role, token in sorted(self._roles.items())}
        path = user_path(path)
        write_file(config_path(path), (json.dumps(names, ensure_ascii=False, indent=2) + "\n").encode())
        super().save(path)


def load_imported(text: str, path: Path) -> ImportedTokenizer:
    """Return a file's tokenizer, with roles from the `tokenizer_config.json` next to it, or else the usual ones.

    Raises:
        TokenizerError: as for `ImportedTokenizer`, or `tokenizer_config.json` is damaged.
    """
    names = named_roles(path)
    if names is not None:
        return ImportedTokenizer(text, names)
    special = {token["content"] for token in added_tokens(json.loads(text)) if token.get("special")}
    usual = {role: next((n for n in names if n in special), None) for role, names in USUAL_NAMES.items()}
    return ImportedTokenizer(text, usual)


def config_path(path: Path) -> Path:
    """Return the path of the file with the roles of a tokenizer's special tokens."""
    return path.with_name(f"{path.stem}_config.json")


def named_roles(path: Path) -> dict[str, str] | None:
    """Return the token of each role from the `tokenizer_config.json` next to a file.

    Return None if there is no such file, or one with other settings alone, as that of the first BERTs.

    Raises:
        TokenizerError: it cannot be read, or is not an object.
    """
    beside = config_path(path)
    try:
        content = parse_json(beside.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise TokenizerError(f"{beside.name} beside it cannot be read: {error.strerror}") from None
    except ValueError:
        raise TokenizerError(
            f"{beside.name} beside it is damaged; download it again, or move it away"
        ) from None
    if not isinstance(content, Mapping):
        raise TokenizerError(
            f"{beside.name} beside it is not a JSON object; download it again, or move it away"
        )
    if content and content.keys().isdisjoint(key for keys in CONFIG_KEYS.values() for key in keys):
        return None
    found = {role: [_name_in(content.get(key)) for key in keys] for role, keys in CONFIG_KEYS.items()}
    return {role: name for role, names in found.items() for name in names[::-1] if name is not None}


def _name_in(value: Any) -> str | None:
    name = value.get("content") if isinstance(value, Mapping) else value
    return name if isinstance(name, str) else None


def _id_of_role(role: str, token: int | str, ids: Mapping[str, int]) -> int:
    if role not in ROLES:
        raise TokenizerError(f"a special token's role is one of {', '.join(ROLES)}; got {shown(role)}")
    found = ids.get(token) if isinstance(token, str) else token
    if found is None or found not in ids.values():
        raise TokenizerError(f"its {role} token is set to {shown(token)}, which is not in its vocabulary")
    return found


def marks_around(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """Return the ids that a tokenizer puts before and behind a text, such as those of BART's <s> and </s>.

    Raises:
        TokenizerError: an id has no token, or the library fails.
    """
    with library_errors("which tokens it puts around a text cannot be determined ({why}); download it again"):
        marked = backend.encode(PROBE)
    ids, of_text = marked.ids, [at for at, is_mark in enumerate(marked.special_tokens_mask) if not is_mark]
    before, behind = (ids[: of_text[0]], ids[of_text[-1] + 1 :]) if of_text else (ids, [])
    known = backend.get_vocab(with_added_tokens=True).values()
    if unknown := {*before, *behind}.difference(known):
        raise TokenizerError(
            f"damaged: it puts the token {min(unknown)} around a text, but has no such token"
        )
    return before, behind


def _without_specials(document: Document, special_ids: Mapping[str, int]) -> tokenizers.Tokenizer:
    """Return the tokenizer with its special tokens renamed to strings that no text contains.

    Otherwise some models would match them in a text: Unigram's vocabulary has "</s>" among its words.
    """
    model, needed = dict(document["model"]), _read_from_texts(document, special_ids)
    hidden = {n: f"{_NO_TEXT}{i}{_NO_TEXT}" for n, i in special_ids.items() if n not in needed}
    if isinstance(vocab := model["vocab"], Mapping):
        model["vocab"] = {hidden.get(name, name): token for name, token in vocab.items()}
    else:
        model["vocab"] = [[hidden.get(name, name), score] for name, score in vocab]
    if isinstance(unknown := model.get("unk_token"), str):
        model["unk_token"] = hidden.get(unknown, unknown)
    if pairs := merges_of(model):
        # Merges to and from a special token; without them no text comes to it, and its characters remain.
        prefix = model.get("continuing_subword_prefix") or ""
        model["merges"] = [
            [left, right]
            for left, right in pairs
            if hidden.keys().isdisjoint((left, right, left + right.removeprefix(prefix)))
        ]
    added = [
        {
            **token,
            "content": hidden.get(token["content"], token["content"]),
            "special": token.get("special") or token["content"] in special_ids,
        }
        for token in added_tokens(document)
    ]
    nothing = dict.fromkeys(("post_processor", "truncation", "padding"))
    backend = open_backend({**document, **nothing, "model": model, "added_tokens": added})
    backend.encode_special_tokens = True
    return backend


def _read_from_texts(document: Document, specials: Iterable[str]) -> set[str]:
    """Return the special tokens that texts cannot do without, though they are left out of what comes back.

    They are single characters, such as a padding "!", and single bytes.
    """
    by_bytes = bool(document["model"].get("byte_fallback"))
    return {name for name in specials if len(name) == 1 or (by_bytes and BYTE_PIECE.fullmatch(name))}


def _keeps_all(document: Document, ids: Mapping[str, int], specials: Container[str]) -> bool:
    """Whether the tokens preserve every text.

    Exceptions are a space at its start, canonical equivalence (NFC), and the sign that stands for a space.
    """
    before = [*parts_of(document.get("normalizer")), *parts_of(document.get("pre_tokenizer"))]
    decoders = {part["type"] for part in parts_of(document.get("decoder"))}
    every_byte = False
    if "ByteLevel" in decoders:  # the library leaves out a byte that the vocabulary lacks
        spelt = any(part["type"] == "ByteLevel" for part in before)
        every_byte = spelt and ids.keys() >= BYTE_BY_SPELLING.keys()
    elif "ByteFallback" in decoders and document["model"].get("byte_fallback"):
        every_byte = all(f"<0x{byte:02X}>" in ids for byte in range(256))
    removes = any(part.get("behavior") == "Removed" for part in before)
    prefixed = any(part["type"] == "ByteLevel" and part.get("add_prefix_space") for part in before)
    pre_tokenizers = list(parts_of(document.get("pre_tokenizer")))
    spaced = any(  # a space before each piece of a text that was cut before
        part["type"] == "Metaspace" and part.get("prepend_scheme", "always") == "always"
        for part in pre_tokenizers[1:]
    )
    # An added token takes the spaces beside it too; special ones are never read from a text.
    plain = [
        token
        for token in added_tokens(document)
        if not token.get("special") and token["content"] not in specials
    ]
    strips = any(token.get("lstrip") or token.get("rstrip") for token in plain)
    # By these a character at the end of a word, or inside one, is another token, which the vocabulary may lack.
    marks = any(document["model"].get(mark) for mark in ("end_of_word_suffix", "continuing_subword_prefix"))
    return (
        every_byte
        and not (removes or prefixed or spaced or strips or marks)
        and all(map(_keeps_text, before))
    )


def _keeps_text(part: Document) -> bool:
    """Whether a normaliser or pre-tokenizer loses nothing; one that replaces may do so with single spaces only."""
    if part["type"] == "Replace":
        return part.get("pattern") == {"String": " "} and bool(part.get("content"))
    return part["type"] in _KEEPS_TEXT


class _Decoding:
    """The conversion of tokens' spellings to bytes, from a document's decoder.

    Raises:
        TokenizerError: the decoder treats a token by its context, other than dropping a first space, or is unknown.
    """

    def __init__(self, document: Document) -> None:
        self.opens_with_space = False
        self._added = {token["content"] for token in added_tokens(document)}
        self._respell: list[Callable[[str], str]] = []
        self._as_bytes: list[Callable[[str], bytes | None]] = []
        parts = list(parts_of(document.get("decoder")))
        if not parts:  # without a decoder, the library puts a space between two tokens
            self._add_words(prefix=None)
        for part in parts:
            self._add(part)

    def bytes_of(self, spelling: str) -> bytes:
        for respell in self._respell:
            spelling = respell(spelling)
        for as_bytes in self._as_bytes:
            if (raw := as_bytes(spelling)) is not None:
                return raw
        return spelling.encode()

    def _add(self, part: Document) -> None:
        match part:
            case {"type": "ByteLevel"}:
                self._as_bytes.append(self._byte_level)
            case {"type": "ByteFallback"}:
                self._as_bytes.append(_byte_piece)
            case {"type": "Metaspace", "replacement": str(sign)}:
                self._respell.append(lambda spelling: spelling.replace(sign, " "))
                self.opens_with_space |= part.get("prepend_scheme", "always") != "never"
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                self._respell.append(lambda spelling: spelling.replace(old, new))
            case {"type": "WordPiece", "prefix": str(prefix)}:
                self._add_words(prefix)
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
                self.opens_with_space = True
            case {"type": "Fuse"}:
                pass
            case _:
                raise TokenizerError(
                    f"its tokens cannot be turned into text: unknown decoder {shown(part['type'])}"
                )

    def _byte_level(self, spelling: str) -> bytes | None:
        if spelling in self._added or not BYTE_BY_SPELLING.keys() >= set(spelling):
            return None  # found in a text as it is spelled
        return spelled_bytes(spelling)

    def _add_words(self, prefix: str | None) -> None:
        def spaced(spelling: str) -> str:
            return spelling.removeprefix(prefix) if prefix and spelling.startswith(prefix) else f" {spelling}"

        self._respell.append(spaced)
        self.opens_with_space = True


def _byte_piece(spelling: str) -> bytes | None:
    found = BYTE_PIECE.fullmatch(spelling)
    return bytes([int(found[1], 16)]) if found else None
