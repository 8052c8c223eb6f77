"""The budget that `auto` decides by: the size of the data, the time, and the machine's rate and memory."""

import math
import os
from dataclasses import dataclass
from typing import NamedTuple

import torch

from clearformer.cost.rates import measured_rate
from clearformer.data import Data, LabelledData, PairsData, TextData, open_pairs
from clearformer.data.labelled.sources import open_labelled
from clearformer.data.text.sources import FileSource, open_source
from clearformer.device import resolve_device, resolve_dtype
from clearformer.text import TokenizerConfig
from clearformer.training.config import RunConfig
from clearformer.training.planning.duration import COMPILE_SECONDS, pays_within
from clearformer.training.planning.run_plan import vocabulary_of

SECONDS = 300.0  # where nothing says how long, or steps alone do
SECONDS_BESIDE_STEPS = 6.0  # of a command: its start, measuring, the last evaluation, a sample
FAST = 0.1  # of the times of products, the part that is faster than what counts
GZIP_RATIO = 3  # of a text's size to that of its .gz
MOST_BYTES_PER_TOKEN = 4.0
CHARACTERS_PER_SECOND, WORDS_PER_SECOND = 60e6, 5e6  # bytes of text that become tokens
OF_SHORT_TEXTS_PER_SECOND = 1e6  # the same of many short texts, which mostly goes by for learning the tokens


@dataclass(frozen=True)
class Budget:
    """The measurements of data and machine that the rules decide by.

    Attributes:
        n_bytes: Of the text, its held-out part included; of pairs or labelled texts, of those of training alone, both
            sides of pairs together.
        seconds: Of the whole command, by the clock.
        rate: FLOP/s of large matrix products, in the type that training takes.
        memory: Bytes that training may take.
        compile: Whether the step is compiled; None: where that pays.
        tokenizer: That somebody asks for; None: by the data and the time.
        n_texts: How many pairs or labelled texts there are for training; of a text that is read as one, 1.
        longest: Bytes of the longest of all, of pairs of either side; 0 of a text that is read as one.
    """

    n_bytes: int
    seconds: float
    rate: float
    memory: float
    compile: bool | None = None
    tokenizer: TokenizerConfig | None = None
    n_texts: int = 1
    longest: int = 0

    @property
    def is_compiled(self) -> bool:
        """Whether the run's step will be compiled."""
        return pays_within(self.seconds) if self.compile is None else self.compile


@dataclass(frozen=True)
class Recommendation:
    """A run, and why it is as it is, one line for each decision."""

    run: RunConfig
    reasons: list[str]


def measure(wanted: RunConfig, tokenizer: TokenizerConfig) -> Budget:
    """The size of the data, and the machine's rate and memory; about a second.

    The rate is that of the machine's fast moments: where others slow it down for a while, a model too large for that
    loses less than one too small for what comes after (1.498 against 1.525 nats after 60 s, one run each). A spell that
    outlasts the measurement passes for the machine's own rate.

    Args:
        wanted: The data, time and device.
        tokenizer: That which nobody asked for.

    Raises:
        DataError: there are no such data.
    """
    size = size_of(wanted.data)
    device = resolve_device(wanted.train.device)
    dtype = resolve_dtype(wanted.train.dtype, device)
    return Budget(
        n_bytes=size.n_bytes,
        seconds=min(wanted.train.max_wall_seconds or SECONDS, wanted.train.max_seconds or math.inf),
        rate=measured_rate(dtype, device, quantile=FAST).flops_per_second,
        memory=memory_of(device) / 2,
        compile=None if wanted.train.compile == "auto" else wanted.train.compile,
        tokenizer=None if wanted.tokenizer == tokenizer else wanted.tokenizer,
        n_texts=size.n_texts,
        longest=size.longest,
    )


class Size(NamedTuple):
    """The size of data; the fields are those of `Budget`."""

    n_bytes: int
    n_texts: int = 1
    longest: int = 0


def size_of(data: Data) -> Size:
    """The size of a text, of pairs or of labelled texts, by reading them."""
    if isinstance(data, PairsData):
        pairs = open_pairs(data).read().splits
        sides = {
            name: [(len(p.source.encode()), len(p.target.encode())) for p in pairs[name]] for name in pairs
        }
        longest = max(max(pair) for split in sides.values() for pair in split)
        return Size(sum(map(sum, sides["train"])), len(sides["train"]), longest)
    if isinstance(data, LabelledData):
        texts = open_labelled(data).splits
        sizes = {name: [len(each.text.encode()) for each in texts[name]] for name in texts}
        longest = max(size for split in sizes.values() for size in split)
        return Size(sum(sizes["train"]), len(sizes["train"]), longest)
    return Size(text_bytes(data))


def text_bytes(data: TextData) -> int:
    """The size of a text in bytes; of packed files an estimate."""
    source = open_source(data)
    if not isinstance(source, FileSource):
        return sum(len(chunk.text.encode()) for chunk in source.documents())
    source.check()
    sizes = ((path.stat().st_size, path.suffix == ".gz") for path in source.files)
    return sum(size * (GZIP_RATIO if packed else 1) for size, packed in sizes)


def memory_of(device: torch.device) -> float:
    """A device's memory in bytes."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


# --- what follows from it ---------------------------------------------------------------------------------


def seconds_to_prepare(budget: Budget, tokenizer: TokenizerConfig) -> float:
    """The seconds in which the data become tokens, about."""
    of_a_text = CHARACTERS_PER_SECOND if is_of_characters(tokenizer) else WORDS_PER_SECOND
    return budget.n_bytes / (of_a_text if budget.n_texts == 1 else OF_SHORT_TEXTS_PER_SECOND)


def seconds_of_steps(budget: Budget, tokenizer: TokenizerConfig) -> float:
    """The seconds that are left for steps: without what stands beside them, preparing and compiling."""
    compiling = COMPILE_SECONDS if budget.is_compiled else 0.0
    beside = SECONDS_BESIDE_STEPS + compiling + seconds_to_prepare(budget, tokenizer)
    return max(budget.seconds / 2, budget.seconds - beside)


def is_of_characters(tokenizer: TokenizerConfig) -> bool:
    """Whether tokens are characters or bytes."""
    return tokenizer.kind in ("char", "byte")


def bytes_per_token(tokenizer: TokenizerConfig) -> float:
    """The bytes of a token, about: of parts of words 0.4 more for each doubling of the vocabulary."""
    if is_of_characters(tokenizer):
        return 1.0
    return max(1.0, min(0.4 * math.log2(vocabulary_of(tokenizer)) - 1.6, MOST_BYTES_PER_TOKEN))


def words_for(tokenizer: TokenizerConfig) -> str:
    """A tokeniser in words: `chars`, or `1,024 by bpe`."""
    size = getattr(tokenizer, "vocab_size", None)
    return f"{tokenizer.kind}s" if size is None else f"{size:,} by {tokenizer.kind}"


def reason_of_time(budget: Budget, seconds: float, utilisation: float) -> str:
    """How many FLOPs there are, and why."""
    return (
        f"{budget.seconds:g} s by the clock, {seconds:.0f} of them for steps, "
        f"at {utilisation:g} of {budget.rate / 1e9:,.0f} GFLOP/s: {seconds * budget.rate * utilisation:.1e} FLOPs"
    )


def reason_to_end(run: RunConfig, passes: float, most_passes: int) -> list[str]:
    """That more passes would gain nothing, where it comes to so many."""
    if passes < most_passes:
        return []
    return [f"{most_passes} passes are enough: {run.train.max_steps} steps, and then it ends"]
