"""Loading a tokenizer from its `tokenizer.json`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clearformer.errors import TokenizerError, shortened, shown
from clearformer.files import parse_json, user_path
from clearformer.text.backend import LOWERCASE
from clearformer.text.documents import added_tokens, check_is_tokenizer, check_pieces, ids_of
from clearformer.text.kinds.bpe import BPETokenizer, Digits
from clearformer.text.kinds.byte import BYTE_SPELLINGS, ByteTokenizer
from clearformer.text.kinds.char import CharTokenizer
from clearformer.text.kinds.imported import load_imported, named_roles
from clearformer.text.kinds.unigram import BYTE_PIECES, NORMALIZERS, UnigramTokenizer, unigram_normalizer
from clearformer.text.kinds.vocabulary import is_own_kind, read_own_kind
from clearformer.text.kinds.wordpiece import WordPieceTokenizer, bert_normalizer
from clearformer.text.tokenizer import ROLES, OwnTokenizer, Tokenizer

OF_BPE: tuple[type[OwnTokenizer], ...] = (CharTokenizer, ByteTokenizer, BPETokenizer)


class NotOursError(Exception):
    """Raised for a tokenizer of none of our kinds; the message says why."""


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a `tokenizer.json`; its content determines the kind.

    A tokenizer of another kind than ours is imported. Its special tokens get the roles that a `tokenizer_config.json`
    in the same folder names, or else those that fit their names.

    Raises:
        TokenizerError: the file is missing, is not JSON, has no tokenizer, or has one that cannot be used.
    """
    path = user_path(path)
    text, document = _read(path)
    try:
        return _from_document(document, text, path)
    except TokenizerError as error:
        raise TokenizerError(f"{path}: {error}") from None


def _read(path: Path) -> tuple[str, Any]:
    try:
        text = path.read_bytes().decode("utf-8")  # with its own line ends
        return text, parse_json(text)
    except FileNotFoundError:
        raise TokenizerError(f"{path}: there is no such file; {_way_to_get(path)}") from None
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}; give a tokenizer.json") from None
    except UnicodeDecodeError:
        raise _no_document(path, "not JSON") from None
    except ValueError as error:
        raise _no_document(path, str(error)) from None


def _no_document(path: Path, why: str) -> TokenizerError:
    if path.name != "tokenizer.json":
        return TokenizerError(f"{path}: {why}; give a tokenizer.json")
    return TokenizerError(f"{path}: damaged: {why}; {_way_to_get(path)}")


def _way_to_get(path: Path) -> str:
    if (path.parent / "config.toml").is_file():
        return "restore the one of this run, as with another its model would read other tokens"
    return "`clearformer tokenizer train` makes one"


def own_tokenizer(document: Mapping[str, Any]) -> Tokenizer | None:
    """Return the tokenizer of a file that clearformer made; None of any other file.

    Raises:
        TokenizerError: the file is damaged.
    """
    check_is_tokenizer(document)
    try:
        return _ours(document)
    except NotOursError:
        return None


def _from_document(document: Any, text: str, path: Path) -> Tokenizer:
    if is_own_kind(document):
        return read_own_kind(document)
    check_is_tokenizer(document)
    try:
        ours = _ours(document)
    except NotOursError as why:
        return _imported(text, path, str(why))
    roles = named_roles(path)
    if roles is None or roles == _names_by_role(ours):
        return ours
    return load_imported(text, path)


def _imported(text: str, path: Path, why: str) -> Tokenizer:
    try:
        return load_imported(text, path)
    except TokenizerError as error:
        raise TokenizerError(
            f"not a kind that clearformer makes ({why}), and cannot be imported: {error}"
        ) from None


def _names_by_role(tokenizer: Tokenizer) -> dict[str, str]:
    ids = {role: getattr(tokenizer, f"{role}_id") for role in ROLES}
    return {role: tokenizer.spellings[token] for role, token in ids.items() if token is not None}


def _ours(document: Mapping[str, Any]) -> OwnTokenizer:
    specials = _special_tokens(document)
    match document["model"].get("type"):
        case "WordPiece":
            return _same_document(_wordpiece(document, specials), document)
        case "Unigram":
            return _same_document(_unigram(document, specials), document)
        case "BPE":
            return _of_bpe(document, specials)
        case other:
            if isinstance(vocab := document["model"].get("vocab"), Mapping) or not vocab:
                _tokens_by_id(vocab)
            raise NotOursError(f"its model is {shown(other)}")


def _same_document(tokenizer: OwnTokenizer, document: Mapping[str, Any]) -> OwnTokenizer:
    written = tokenizer.document()
    if different := [part for part, value in written.items() if document.get(part) != value]:
        raise NotOursError(f"its {different[0]} differs from clearformer's")
    return tokenizer


def _wordpiece(document: Mapping[str, Any], specials: list[str]) -> OwnTokenizer:
    plain = _plain_tokens(document["model"], specials)
    lowercase = document.get("normalizer") == bert_normalizer(True)
    try:
        return WordPieceTokenizer(plain, specials, lowercase)
    except TokenizerError as error:
        raise NotOursError(str(error)) from None


def _unigram(document: Mapping[str, Any], specials: list[str]) -> OwnTokenizer:
    normalizers = {
        (normalize, lowercase): unigram_normalizer(normalize, lowercase)
        for normalize in NORMALIZERS
        for lowercase in (False, True)
    }
    fitting = [way for way, normalizer in normalizers.items() if normalizer == document.get("normalizer")]
    if not fitting:
        raise NotOursError("its normalizer is not one of clearformer's")
    check_pieces(document["model"].get("vocab"))
    try:
        pieces = [(str(piece), float(score)) for piece, score in document["model"].get("vocab")]
    except (TypeError, ValueError):
        raise TokenizerError("damaged: its vocab is not a list of tokens and scores") from None
    try:
        return UnigramTokenizer(pieces[len(BYTE_PIECES) :], specials, *fitting[0])
    except TokenizerError as error:
        raise NotOursError(str(error)) from None


def _of_bpe(document: Mapping[str, Any], specials: list[str]) -> OwnTokenizer:
    model = document["model"]
    plain = _plain_tokens(model, specials)
    kind = _kind_of(document)
    merges = _merges(model.get("merges"))
    unknown = next((name for name in ROLES["unk"] if name in specials), None)
    if kind is CharTokenizer and not merges and model.get("unk_token") == unknown:
        return CharTokenizer(plain, specials)
    if kind is ByteTokenizer and not merges and plain == BYTE_SPELLINGS:
        return ByteTokenizer(specials)
    if kind is BPETokenizer and model.get("unk_token") == unknown:
        try:
            lowercase, digits = document.get("normalizer") is not None, _digits_of(document)
            return BPETokenizer(plain, merges, specials, lowercase, digits)
        except TokenizerError as error:
            raise NotOursError(str(error)) from None
    raise NotOursError("its vocabulary does not fit its kind")


def _kind_of(document: Mapping[str, Any]) -> type[OwnTokenizer]:
    plain_parts = {"type", "unk_token", "vocab", "merges"}
    if changed := [name for name, value in document["model"].items() if value and name not in plain_parts]:
        raise NotOursError(f"its model sets {shortened(changed[0])}")
    for part in ("post_processor", "truncation", "padding"):
        if document.get(part):
            raise NotOursError(f"it has a {part}")
    for kind in OF_BPE:
        is_bpe = kind is BPETokenizer
        ways = list(BPETokenizer.pre_tokenizers.values()) if is_bpe else [kind.pre_tokenizer]
        if document.get("pre_tokenizer") in ways and document.get("decoder") == kind.decoder:
            if document.get("normalizer") in ((None, LOWERCASE) if is_bpe else (None,)):
                return kind
            raise NotOursError("its normalizer is not one of clearformer's")
    raise NotOursError("its pre_tokenizer and decoder are not clearformer's")


def _digits_of(document: Mapping[str, Any]) -> Digits:
    """Return how a document of kind bpe treats digits."""
    return next(
        digits for digits, way in BPETokenizer.pre_tokenizers.items() if way == document.get("pre_tokenizer")
    )


def _special_tokens(document: Mapping[str, Any]) -> list[str]:
    in_order = sorted(added_tokens(document), key=lambda token: token["id"])
    if not all(token.get("special") for token in in_order):
        raise NotOursError("it has added tokens that are not special")
    return [token["content"] for token in in_order]


def _plain_tokens(model: Mapping[str, Any], specials: list[str]) -> list[str]:
    tokens = _tokens_by_id(model.get("vocab"))
    plain = tokens[: len(tokens) - len(specials)]
    if tokens[len(plain) :] != specials:
        raise NotOursError("its special tokens are not the last of its vocabulary")
    return plain


def _tokens_by_id(vocab: Any) -> list[str]:
    ids = ids_of(vocab)
    tokens = sorted(ids, key=ids.__getitem__)
    if [ids[token] for token in tokens] != list(range(len(ids))):
        raise NotOursError("the ids of its vocab do not run from 0 without a gap")
    return tokens


def _merges(merges: Any) -> list[tuple[str, str]]:
    try:
        return [(str(left), str(right)) for left, right in merges]
    except (TypeError, ValueError):
        raise NotOursError("its merges are not pairs of tokens") from None
