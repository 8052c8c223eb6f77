"""Checks of a foreign `tokenizer.json` before the `tokenizers` library reads it.

The library is written in Rust. Unexpected content leads to an error, to a panic (in Python a `BaseException`, raised
after a message on standard error), or to tables of whatever size the file asks for. Content that is known to cause a
panic or fill the memory is refused here.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tokenizers

from clearformer.errors import TokenizerError, shortened, shown
from clearformer.text.tokenizer import MOST_TOKENS

LONGEST_PIECE = 4096  # characters; of a piece of 200,000 the library's recursion ends the process
SEQUENCES = ("decoders", "pretokenizers", "normalizers", "processors")

NO_MERGES = "damaged: its merges are not pairs of tokens"
CANNOT_READ = "the tokenizers library cannot read it ({why}); download it again"

Document = Mapping[str, Any]


@contextmanager
def library_errors(message: str) -> Iterator[None]:
    """Turn errors and panics of the library into one line: `message`, with the library's own words for `{why}`.

    Raises:
        TokenizerError: the library raised an error or panicked.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except (
        BaseException
    ) as error:  # the library raises plain Exception for errors, and panics are no Exception
        raise TokenizerError(message.format(why=shortened(str(error)))) from None


def open_backend(document: Document) -> tokenizers.Tokenizer:
    """Return the library's tokenizer of a document, without truncation and padding.

    Raises:
        TokenizerError: the library cannot read it, or could panic or fill the memory.
    """
    check_is_tokenizer(document)
    model = document["model"]
    if model.get("dropout"):
        raise TokenizerError(
            "its model sets dropout, which splits the same text differently each time: set it to null"
        )
    _check_merges(model)
    check_pieces(model.get("vocab"))
    with library_errors(CANNOT_READ):
        backend = tokenizers.Tokenizer.from_str(json.dumps(document))
        backend.no_truncation()
        backend.no_padding()
    if isinstance(model["vocab"], Mapping):
        ids_of(model["vocab"])
    added_tokens(document)
    for section in ("normalizer", "pre_tokenizer", "decoder"):
        list(parts_of(document.get(section)))
    for part in parts_of(document.get("post_processor")):
        _check_known_marks(part)
    return backend


def check_is_tokenizer(document: Any) -> None:
    """Check that JSON is an object with a model.

    Raises:
        TokenizerError: it is something else.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("model"), Mapping):
        raise TokenizerError("JSON, but not a tokenizer; give a tokenizer.json")


def check_pieces(vocab: Any) -> None:
    """Check that no piece of a Unigram vocabulary, a list of pieces and scores, is too long for the library.

    Raises:
        TokenizerError: one is.
    """
    pieces = [each[0] for each in vocab if isinstance(each, list) and each] if isinstance(vocab, list) else []
    longest = max((len(piece) for piece in pieces if isinstance(piece, str)), default=0)
    if longest > LONGEST_PIECE:
        raise TokenizerError(
            f"damaged: a token has {longest:,} characters, but a vocabulary's have at most {LONGEST_PIECE:,}"
        )


def ids_of(vocab: Any) -> Mapping[str, int]:
    """Return a `vocab` after checking that it maps tokens to ids.

    Raises:
        TokenizerError: it does not; or an id is negative, very large, or given to two tokens.
    """
    if not isinstance(vocab, Mapping) or not all(type(token_id) is int for token_id in vocab.values()):
        raise TokenizerError("damaged: its vocab does not map tokens to ids")
    if len(set(vocab.values())) < len(vocab) or min(vocab.values(), default=0) < 0:
        raise TokenizerError("damaged: its vocab has a negative id, or one id for two tokens")
    _check_size(max(vocab.values(), default=0))
    return vocab


def added_tokens(document: Document) -> list[Document]:
    """Return a document's `added_tokens` after checking that each is an object with a content and an id.

    Raises:
        TokenizerError: they are not.
    """
    added = document.get("added_tokens") or []
    try:
        well_formed = all(type(token["id"]) is int and isinstance(token["content"], str) for token in added)
    except (TypeError, KeyError):
        well_formed = False
    if not well_formed or not isinstance(added, list):
        raise TokenizerError("damaged: its added_tokens are not tokens with an id and a content")
    _check_size(max((token["id"] for token in added), default=0))
    return added


def parts_of(part: Any) -> Iterator[Document]:
    """Yield a part of a document or, if it is a sequence, the parts in it; each is an object with a type.

    Raises:
        TokenizerError: a part is something else.
    """
    if part is None:
        return
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise TokenizerError(
            f"damaged: {shown(part)} is not a part of a tokenizer: a part is an object with a type"
        )
    inside = next((part[key] for key in SEQUENCES if key in part), None)
    if inside is None:
        yield part
    for each in inside or ():
        yield from parts_of(each)


def merges_of(model: Document) -> list[tuple[str, str]]:
    """Return a BPE model's merges, which older files spell with a space between the two tokens.

    Raises:
        TokenizerError: they are not pairs of tokens.
    """
    merges = model.get("merges") or []
    if not isinstance(merges, list):
        raise TokenizerError(NO_MERGES)
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    if not all(_is_pair(pair) for pair in pairs):
        raise TokenizerError(NO_MERGES)
    return [(left, right) for left, right in pairs]


def _is_pair(merge: Any) -> bool:
    return isinstance(merge, list) and len(merge) == 2 and all(isinstance(token, str) for token in merge)


def _check_merges(model: Document) -> None:
    prefix, vocab = model.get("continuing_subword_prefix") or "", model.get("vocab")
    if not isinstance(prefix, str) or not isinstance(vocab, Mapping):
        return  # the library refuses these itself
    for left, right in merges_of(model):
        joined = f"{left}{right.removeprefix(prefix)}"
        if not right.startswith(prefix) or not {left, right, joined} <= vocab.keys():
            why = f"its vocabulary has no token for its merge of {shown(left)} and {shown(right)}"
            raise TokenizerError(CANNOT_READ.format(why=why))


def _check_size(token: int) -> None:
    if token >= MOST_TOKENS:
        raise TokenizerError(
            f"damaged: a token has the id {token}, but a vocabulary may have at most {MOST_TOKENS:,} tokens"
        )


def _check_known_marks(part: Document) -> None:
    """Check that a template defines every special token that it puts around a text."""
    if part["type"] != "TemplateProcessing":
        return
    sides = [part.get(side) for side in ("single", "pair")]
    if not all(isinstance(side, list) for side in sides) or not isinstance(
        part.get("special_tokens"), Mapping
    ):
        raise TokenizerError(
            "damaged: its template is not a list of a text and special tokens; download it again"
        )
    for piece in (piece for side in sides for piece in side or ()):
        special = piece.get("SpecialToken") if isinstance(piece, Mapping) else None
        name = special.get("id") if isinstance(special, Mapping) else None
        if name is not None and name not in part["special_tokens"]:
            raise TokenizerError(
                f"damaged: its template has {shown(name)}, but does not say which token that is"
            )
