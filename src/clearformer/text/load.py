"""A tokeniser from its `tokenizer.json` alone."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clearformer.errors import TokenizerError
from clearformer.text.bpe import BPETokenizer
from clearformer.text.byte import BYTE_SPELLINGS, ByteTokenizer
from clearformer.text.char import CharTokenizer
from clearformer.text.tokenizer import UNK, Tokenizer

KINDS: tuple[type[Tokenizer], ...] = (CharTokenizer, ByteTokenizer, BPETokenizer)


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokeniser that a `tokenizer.json` holds; its kind is told by what the file says `tokenizers` should do.

    Raises:
        TokenizerError: the file is absent, is not JSON, holds no tokeniser, or one of a kind that is not ours.
    """
    document = _read(path)
    try:
        return _from_document(document)
    except TokenizerError as error:
        raise TokenizerError(f"{path}: {error}") from None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TokenizerError(
            f"{path}: there is no such file; `clearformer tokenizer train` makes one"
        ) from None
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}; give a tokenizer.json") from None
    except (ValueError, RecursionError):
        raise TokenizerError(f"{path}: not JSON; give a tokenizer.json") from None


def _from_document(document: Any) -> Tokenizer:
    if not isinstance(document, Mapping) or not isinstance(document.get("model"), Mapping):
        raise TokenizerError("JSON, but not a tokenizer; give a tokenizer.json")
    model = document["model"]
    specials = _special_tokens(document.get("added_tokens"))
    tokens = _tokens_by_id(model.get("vocab"))
    plain = tokens[: len(tokens) - len(specials)]
    if tokens[len(plain) :] != specials:
        raise _not_ours("its special tokens are not the last of its vocabulary")
    kind = _kind_of(document)
    merges = _merges(model.get("merges"))
    unk = UNK if UNK in specials else None
    if kind is CharTokenizer and not merges and model.get("unk_token") == unk:
        return CharTokenizer(plain, specials)
    if kind is ByteTokenizer and not merges and plain == BYTE_SPELLINGS:
        return ByteTokenizer(specials)
    if kind is BPETokenizer:
        return BPETokenizer(plain, merges, specials)
    raise _not_ours("its vocabulary is not that of its kind")


def _kind_of(document: Mapping[str, Any]) -> type[Tokenizer]:
    model = document["model"]
    if model.get("type") != "BPE":
        raise _not_ours(f"its model is {model.get('type')!r}")
    plain_parts = {"type", "unk_token", "vocab", "merges"}
    if changed := [name for name, value in model.items() if value and name not in plain_parts]:
        raise _not_ours(f"its model sets {changed[0]}")
    for part in ("normalizer", "post_processor", "truncation", "padding"):
        if document.get(part):
            raise _not_ours(f"it has a {part}")
    for kind in KINDS:
        if (document.get("pre_tokenizer"), document.get("decoder")) == (kind.pre_tokenizer, kind.decoder):
            return kind
    raise _not_ours("its pre_tokenizer and decoder are none of ours")


def _special_tokens(added: Any) -> list[str]:
    if not added:
        return []
    try:
        in_order = sorted(added, key=lambda token: token["id"])
        names = [token["content"] for token in in_order]
    except (TypeError, KeyError):
        raise TokenizerError("damaged: its added_tokens are not tokens with an id and a content") from None
    if not all(token.get("special") for token in in_order):
        raise _not_ours("it has added tokens that are not special")
    return names


def _tokens_by_id(vocab: Any) -> list[str]:
    if not isinstance(vocab, Mapping) or not all(type(token_id) is int for token_id in vocab.values()):
        raise TokenizerError("damaged: its vocab is not an object of tokens and ids")
    tokens = sorted(vocab, key=vocab.__getitem__)
    if [vocab[token] for token in tokens] != list(range(len(tokens))):
        raise TokenizerError("damaged: the ids of its vocab do not run from 0 without a gap")
    return tokens


def _merges(merges: Any) -> list[tuple[str, str]]:
    try:
        return [(str(left), str(right)) for left, right in merges]
    except (TypeError, ValueError):
        raise TokenizerError("damaged: its merges are not pairs of tokens") from None


def _not_ours(why: str) -> TokenizerError:
    return TokenizerError(
        f"a tokenizer of a kind that clearformer does not have ({why}): "
        f"it reads char, byte and byte-level BPE, as `clearformer tokenizer train` writes them"
    )
