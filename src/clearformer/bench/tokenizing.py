"""Speed of byte-level BPE in encoding, decoding and training, compared with tokenizers and tiktoken."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from clearformer.bench.peers import absence, asked_for, with_version
from clearformer.bench.rounds import OURS, Absent, Comparison, Contender, interleave
from clearformer.text import BPETokenizer, BPETokenizerSpec

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
VOCAB_SIZE = 8000


class Library(Protocol):
    """A tokenizer as a side of the comparison; those that can train a vocabulary also have `learn`."""

    name: str

    def encode(self, text: str) -> Sequence[int]: ...

    def decode(self, ids: Sequence[int]) -> object: ...


class _Ours:
    name = OURS

    def __init__(self, tokenizer: BPETokenizer) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str) -> Sequence[int]:
        return self.tokenizer.encode(text)  # type: ignore[return-value]

    def decode(self, ids: Sequence[int]) -> object:
        return self.tokenizer.decode(ids)

    def learn(self, text: str) -> object:
        return BPETokenizerSpec(vocab_size=VOCAB_SIZE).train([text])


class _Tokenizers:
    name = "tokenizers"

    def __init__(self, tokenizer: BPETokenizer) -> None:
        import tokenizers

        self.theirs = tokenizers.Tokenizer.from_str(tokenizer.to_json())

    def encode(self, text: str) -> Sequence[int]:
        return self.theirs.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> object:
        return self.theirs.decode(ids)

    def learn(self, text: str) -> object:
        import tokenizers

        theirs = tokenizers.ByteLevelBPETokenizer()
        theirs.train_from_iterator([text], vocab_size=VOCAB_SIZE, min_frequency=2, show_progress=False)
        return theirs


class _Tiktoken:
    name = "tiktoken"

    def __init__(self, tokenizer: BPETokenizer) -> None:
        import tiktoken  # type: ignore[import-not-found]

        ranks = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
        self.theirs: Any = tiktoken.Encoding(
            "bench", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={}
        )

    def encode(self, text: str) -> Sequence[int]:
        return self.theirs.encode_ordinary(text)

    def decode(self, ids: Sequence[int]) -> object:
        return self.theirs.decode(ids)


LIBRARIES: dict[str, Callable[[BPETokenizer], Library]] = {"tokenizers": _Tokenizers, "tiktoken": _Tiktoken}
PEERS = tuple(LIBRARIES)


def bench_tokenizing(
    text: str,
    against: list[str],
    rounds: int,
    on_figure: Callable[[str, float], None] = lambda *_: None,
) -> list[Comparison]:
    """Compare encoding a text, decoding it and training its vocabulary, in megabytes of UTF-8 per second.

    Raises:
        UserError: a peer is unknown.
    """
    asked = asked_for(against, PEERS)
    absent = [found for name in asked if (found := absence(name))]
    tokenizer = BPETokenizerSpec(vocab_size=VOCAB_SIZE).train([text])
    here = [name for name in asked if name not in [side.name for side in absent]]
    libraries: list[Library] = [_Ours(tokenizer), *(LIBRARIES[name](tokenizer) for name in here)]
    encoded = {library.name: list(library.encode(text)) for library in libraries}
    ids = encoded[OURS]
    learning = [library for library in libraries if hasattr(library, "learn")]
    unable = [
        Absent(library.name, "it does not train a vocabulary")
        for library in libraries
        if library not in learning
    ]
    n_bytes = len(text.encode())

    def compare(
        what: str,
        sides: list[Library],
        work: Callable[[Any], object],
        missing: list[Absent],
        **facts: Any,
    ) -> Comparison:
        rates = [
            Contender(_title(side), lambda side=side: _rate(lambda: work(side), n_bytes), _note(side))
            for side in sides
        ]
        size = f"{n_bytes / 1e6:.1f} MB of text, {tokenizer.vocab_size:,} tokens of BPE"
        return Comparison(
            f"{what}, {size}", "MB/s", True, interleave(rates, rounds, on_figure), missing, facts
        )

    same = all(found == ids for found in encoded.values())
    return [
        compare("encoding", libraries, lambda library: library.encode(text), absent, same_ids=same),
        compare("decoding", libraries, lambda library: library.decode(ids), absent),
        compare("learning a vocabulary", learning, lambda library: library.learn(text), [*absent, *unable]),
    ]


def _title(library: Library) -> str:
    return library.name if library.name == OURS else with_version(library.name)


def _note(library: Library) -> str:
    return "" if library.name == OURS else "one call on the whole text, which takes one core"


def _rate(work: Callable[[], object], n_bytes: int) -> float:
    start = time.perf_counter()
    work()
    return n_bytes / 1e6 / (time.perf_counter() - start)
