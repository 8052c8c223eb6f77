"""Byte pair encoding on bytes (lecture 000, section 7; lecture 001, "Tokenisation"; lecture 004, section 4.1).

A text is cut into *pre-tokens* (a word with the space before it, a number, a run of signs), each pre-token into
its bytes, and the bytes are joined by the learned merges, the earliest learned first. The pieces of a pre-token
that no merge joins any more are its tokens. Sennrich et al. 2016; on bytes: Radford et al. 2019 (GPT-2).
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, ClassVar, Literal, Self

import numpy as np
import tokenizers
from pydantic import model_validator

from clearformer.config import Spec
from clearformer.errors import TokenizerError
from clearformer.text.byte import BYTE_BY_SPELLING, BYTE_SPELLINGS, ByteTokenizer, spelled_bytes
from clearformer.text.tokenizer import Merge, Tokenizer, require_unicode, wanted_specials

N_BYTES = 256
CHUNK_CHARS = 1 << 14
CHUNKS_AT_ONCE = 64
MIN_PAIR_COUNT = 2  # joining a pair that occurs once would shorten nothing but that one place

_UP_TO_LAST_SAFE_CUT = re.compile(r".*\S(?=[ \n])", re.DOTALL)


class BPETokenizer(Tokenizer):
    """Byte-level BPE with GPT-2's pre-tokens; the `tokenizers` library does the work.

    Tokens and merges are spelled as in GPT-2's files, one visible character a byte ("Ġthe" is " the").

    Raises:
        TokenizerError: one of the 256 bytes is not a token, or a token or merge is not made of them.
    """

    kind: ClassVar[str] = "bpe"
    pre_tokenizer: ClassVar[dict[str, Any] | None] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    decoder: ClassVar[dict[str, Any]] = ByteTokenizer.decoder

    def __init__(self, tokens: Sequence[str], merges: Sequence[Merge], specials: Sequence[str] = ()) -> None:
        _check_vocabulary(tokens, merges)
        super().__init__(tokens, specials, merges)
        # The special tokens stay out of it: it would look for them in the text.
        self._backend = _untrained(
            tokenizers.models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=list(merges))
        )

    @staticmethod
    def _bytes_of(spelling: str) -> bytes:
        return spelled_bytes(spelling)

    def _encode(self, text: str) -> np.ndarray:
        # Many pieces at once use every core, and a batch's results are small numbers before the next is made;
        # the whole text in one call takes one core and about two hundred bytes a token.
        pieces = recut(_chunks(text))
        ids = [np.empty(0, dtype=np.int32)]
        while batch := list(islice(pieces, CHUNKS_AT_ONCE)):
            encodings = self._backend.encode_batch_fast(batch, add_special_tokens=False)
            ids += [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]
        return np.concatenate(ids)

    def pre_tokens(self, text: str) -> list[str]:
        """The pieces that merges never cross, spelled as tokens are: "the cat" gives "the", "Ġcat"."""
        require_unicode(text)
        pre_tokenizer = self._backend.pre_tokenizer
        return [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)] if text else []


class BPETokenizerSpec(Spec):
    """Byte-level BPE whose merges are learned from the corpus.

    `vocab_size` counts the 256 bytes, the merges and the special tokens. A small corpus gives fewer: learning
    stops where no pair of tokens occurs twice any more (see the tokeniser's own `vocab_size`).
    """

    needs_corpus: ClassVar[bool] = True

    kind: Literal["bpe"] = "bpe"
    vocab_size: int = 1024
    bos: bool = False
    eos: bool = False

    @model_validator(mode="after")
    def _room_for_bytes_and_specials(self) -> Self:
        smallest = N_BYTES + len(wanted_specials(self.bos, self.eos))
        if self.vocab_size < smallest:
            raise ValueError(
                f"vocab_size={self.vocab_size} is too small: the 256 bytes and the special tokens alone need "
                f"{smallest}; choose more, or kind=byte"
            )
        return self

    def train(self, texts: Iterable[str]) -> BPETokenizer:
        """Learns the merges: again and again, the most frequent pair of neighbours becomes a token.

        The same texts give the same tokeniser. Each text is read once; what is kept is the count of every
        distinct pre-token.

        Raises:
            TokenizerError: the texts hold no character, or half of a surrogate pair.
        """
        specials = wanted_specials(self.bos, self.eos)
        backend = _untrained(tokenizers.models.BPE())
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=self.vocab_size - len(specials),
            min_frequency=MIN_PAIR_COUNT,
            initial_alphabet=BYTE_SPELLINGS,
            show_progress=False,
        )
        backend.train_from_iterator(_training_pieces(texts), trainer)
        model = json.loads(backend.to_str())["model"]
        tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
        return BPETokenizer(tokens, [(left, right) for left, right in model["merges"]], specials)


def merge_steps(tokenizer: BPETokenizer, text: str) -> Iterator[list[tuple[int, ...]]]:
    """How each pre-token of a text becomes tokens, one merge after the other.

    Yields, for each pre-token, the rows of ids it goes through: first one id a byte, last the ids that
    `tokenizer.encode` gives. Between two rows stands one merge: the earliest learned that applies, and the
    leftmost of its places.
    """
    rank = {pair: i for i, pair in enumerate(tokenizer.merges)}
    token_id = {spelling: i for i, spelling in enumerate(tokenizer.spellings)}
    for pre_token in tokenizer.pre_tokens(text):
        steps = _merge_one_by_one(list(pre_token), rank)
        yield [tuple(token_id[piece] for piece in pieces) for pieces in steps]


def _merge_one_by_one(pieces: list[str], rank: dict[Merge, int]) -> Iterator[list[str]]:
    yield pieces
    while ranked := [(rank[pair], at) for at, pair in enumerate(pairwise(pieces)) if pair in rank]:
        _, at = min(ranked)
        pieces = [*pieces[:at], pieces[at] + pieces[at + 1], *pieces[at + 2 :]]
        yield pieces


def recut(chunks: Iterable[str]) -> Iterator[str]:
    """The chunks of one text, cut anew where a cut changes no token, so that each can be encoded by itself.

    A safe cut stands before a space or newline that follows something visible. No pre-token of GPT-2's goes on
    past that place or looks back over it, so both sides come apart as they would together. Text without such
    a place is kept together, however long.
    """
    pending: list[str] = []
    for chunk in chunks:
        if found := _UP_TO_LAST_SAFE_CUT.match(chunk):
            yield "".join((*pending, chunk[: found.end()]))
            pending = [chunk[found.end() :]]
        else:
            pending.append(chunk)
    if rest := "".join(pending):
        yield rest


def _chunks(text: str) -> Iterator[str]:
    return (text[start : start + CHUNK_CHARS] for start in range(0, len(text), CHUNK_CHARS))


def _training_pieces(texts: Iterable[str]) -> Iterator[str]:
    empty = True
    for text in texts:
        require_unicode(text)
        empty = empty and not text
        yield from recut(_chunks(text))
    if empty:
        raise TokenizerError("there is no text to learn merges from: give a corpus that is not empty")


def _untrained(model: Any) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return backend


def _check_vocabulary(tokens: Sequence[str], merges: Sequence[Merge]) -> None:
    known = set(tokens)
    if missing := [byte for spelling, byte in BYTE_BY_SPELLING.items() if spelling not in known]:
        raise TokenizerError(f"the byte 0x{missing[0]:02X} is not a token: not every text could be encoded")
    alphabet = set(BYTE_SPELLINGS)
    if foreign := [token for token in tokens if not token or not alphabet.issuperset(token)]:
        raise TokenizerError(f"the token {foreign[0]!r} is not spelled in GPT-2's characters for bytes")
    if broken := [pair for pair in merges if not known.issuperset((*pair, "".join(pair)))]:
        raise TokenizerError(
            f"the merge {' '.join(broken[0])!r} joins or gives something that is not a token"
        )
