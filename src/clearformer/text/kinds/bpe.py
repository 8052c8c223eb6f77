"""Byte pair encoding on bytes (lecture 000, section 7; lecture 001, "Tokenisation"; lecture 004, section 4.1).

A text is cut into *pre-tokens* (a word with the space before it, a number, a run of signs) and each pre-token into its
bytes. The learned merges join the bytes, the earliest learned first, and the pieces that no merge joins any more are
the tokens. Sennrich et al. 2016; on bytes: Radford et al. 2019 (GPT-2).
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

import tokenizers
from pydantic import Field, model_validator

from clearformer.config import Spec
from clearformer.errors import TokenizerError
from clearformer.text.backend import LOWERCASE, BackendTokenizer, training_pieces, untrained
from clearformer.text.kinds.byte import BYTE_BY_SPELLING, BYTE_SPELLINGS, ByteTokenizer, spelled_bytes
from clearformer.text.tokenizer import MOST_TOKENS, Merge, wanted_specials

N_BYTES = 256
Digits = Literal["joined", "single"]
MIN_PAIR_COUNT = 2  # joining a pair that occurs once would shorten the corpus by one token
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


class BPETokenizer(BackendTokenizer):
    """Byte-level BPE with GPT-2's pre-tokens, run by the `tokenizers` library.

    Tokens and merges are spelled as in GPT-2's files, one visible character per byte ("Ġthe" is " the"). With
    `lowercase`, every text is first put in lower case, and decoded so. With digits "single", each digit is a pre-token
    of its own, without the space before it, so that every number is spelled digit by digit.

    Raises:
        TokenizerError: one of the 256 bytes is not a token, or a token or merge is not made of them.
    """

    kind: ClassVar[str] = "bpe"
    pre_tokenizers: ClassVar[dict[Digits, dict[str, Any]]] = {
        "joined": BYTE_LEVEL,
        "single": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL],
        },
    }
    decoder: ClassVar[dict[str, Any]] = ByteTokenizer.decoder

    def __init__(
        self,
        tokens: Sequence[str],
        merges: Sequence[Merge],
        specials: Sequence[str] = (),
        lowercase: bool = False,
        digits: Digits = "joined",
    ) -> None:
        _check_vocabulary(tokens, merges)
        self.pre_tokenizer = self.pre_tokenizers[digits]
        self.normalizer = LOWERCASE if lowercase else None
        self.lossless = not lowercase
        super().__init__(tokens, specials, merges)

    def _bytes_of(self, spelling: str) -> bytes:
        return spelled_bytes(spelling)


class BPETokenizerSpec(Spec):
    """Byte-level BPE whose merges are learned from the corpus.

    `vocab_size` counts the 256 bytes, the merges and the special tokens. A small corpus gives fewer: learning stops
    when no pair of tokens occurs twice any more (see the tokenizer's own `vocab_size`). `digits="single"` makes every
    digit a token, which suits data that models learn by copying and counting: numbers, dates, amounts.
    """

    needs_corpus: ClassVar[bool] = True

    kind: Literal["bpe"] = "bpe"
    vocab_size: int = Field(default=1024, le=MOST_TOKENS)
    lowercase: bool = False
    digits: Digits = "joined"
    bos: bool = False
    eos: bool = False

    @model_validator(mode="after")
    def _room_for_bytes_and_specials(self) -> Self:
        if self.vocab_size < (smallest := N_BYTES + len(wanted_specials(bos=self.bos, eos=self.eos))):
            raise ValueError(self._too_small(smallest))
        return self

    def _too_small(self, smallest: int) -> str:
        return (
            f"vocab_size={self.vocab_size} is too small: the 256 bytes and the special tokens alone need "
            f"{smallest}; choose more, or kind=byte"
        )

    def train(self, texts: Iterable[str], specials: Sequence[str] = ()) -> BPETokenizer:
        """Learn the merges: again and again, the most frequent pair of neighbours becomes a token.

        The same texts give the same tokenizer. Each text is read once; only the counts of the distinct pre-tokens are
        kept.

        Raises:
            TokenizerError: the texts are empty, or have half of a surrogate pair; or `vocab_size` leaves no room for
                the special tokens.
        """
        specials = wanted_specials(specials, bos=self.bos, eos=self.eos)
        if self.vocab_size < N_BYTES + len(specials):
            raise TokenizerError(self._too_small(N_BYTES + len(specials)))
        backend = untrained(
            BPETokenizer.pre_tokenizers[self.digits],
            tokenizers.models.BPE(),
            LOWERCASE if self.lowercase else None,
        )
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=self.vocab_size - len(specials),
            min_frequency=MIN_PAIR_COUNT,
            initial_alphabet=BYTE_SPELLINGS,
            show_progress=False,
        )
        backend.train_from_iterator(training_pieces(texts), trainer)
        model = json.loads(backend.to_str())["model"]
        tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
        merges = [(left, right) for left, right in model["merges"]]
        return BPETokenizer(tokens, merges, specials, self.lowercase, self.digits)


def merge_steps(tokenizer: BPETokenizer, text: str) -> Iterator[list[tuple[int, ...]]]:
    """Show how each pre-token of a text becomes tokens, merge by merge.

    Yields for each pre-token a list of rows of ids: the first has one id per byte, and the last is the result of
    `tokenizer.encode`. Each row differs from the one before it by one merge: the earliest learned that applies, at the
    leftmost of its places.
    """
    rank = {pair: i for i, pair in enumerate(tokenizer.merges)}
    token_id = {spelling: i for i, spelling in enumerate(tokenizer.spellings)}
    for pre_token in tokenizer.pre_tokens(text):
        steps = _merge_one_by_one(list(pre_token), rank)
        yield [tuple(token_id[piece] for piece in pieces) for pieces in steps]


def merges_to(tokenizer: BPETokenizer, token: int) -> Iterator[tuple[int | None, tuple[int, ...]]]:
    """Yield the merges that form a token from its bytes: each merge's rank, and the ids after it.

    First come the bytes, with None for the merge.
    """
    rank = {pair: i for i, pair in enumerate(tokenizer.merges)}
    token_id = {spelling: i for i, spelling in enumerate(tokenizer.spellings)}
    before: list[str] = []
    for pieces in _merge_one_by_one(list(tokenizer.spellings[token]), rank):
        merged = next((pair for i, pair in enumerate(pairwise(before)) if "".join(pair) == pieces[i]), None)
        yield None if merged is None else rank[merged], tuple(token_id[piece] for piece in pieces)
        before = pieces


def _merge_one_by_one(pieces: list[str], rank: dict[Merge, int]) -> Iterator[list[str]]:
    yield pieces
    while ranked := [(rank[pair], at) for at, pair in enumerate(pairwise(pieces)) if pair in rank]:
        _, at = min(ranked)
        pieces = [*pieces[:at], pieces[at] + pieces[at + 1], *pieces[at + 2 :]]
        yield pieces


def _check_vocabulary(tokens: Sequence[str], merges: Sequence[Merge]) -> None:
    known = set(tokens)
    if missing := [byte for spelling, byte in BYTE_BY_SPELLING.items() if spelling not in known]:
        raise TokenizerError(f"the byte 0x{missing[0]:02X} is not a token: some texts could not be encoded")
    alphabet = set(BYTE_SPELLINGS)
    if foreign := [token for token in tokens if not token or not alphabet.issuperset(token)]:
        raise TokenizerError(f"the token {foreign[0]!r} is not spelled in GPT-2's characters for bytes")
    if broken := [pair for pair in merges if not known.issuperset((*pair, "".join(pair)))]:
        raise TokenizerError(
            f"the merge {' '.join(broken[0])!r} joins or makes something that is not a token"
        )
