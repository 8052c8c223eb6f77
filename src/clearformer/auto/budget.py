"""The budget on which `auto` decides, and what all of its rules derive from it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clearformer.model.positions import Learned, RoPE
from clearformer.text import TokenizerConfig
from clearformer.training.config import RunConfig
from clearformer.training.planning.duration import COMPILE_SECONDS, pays_within
from clearformer.training.planning.run_plan import vocabulary_of

SECONDS = 300.0  # if no time is given, or only a number of steps
SECONDS_BESIDE_STEPS = 6.0  # of a command, for its start, measuring, the last evaluation and a sample
# What training keeps for an element of the residual stream in each layer (about forty numbers), and, with dropout, for
# an attention weight (itself, its factor, their product).
STREAM_BYTES, PATTERN_BYTES = 40 * 2, 4 * 3
MOST_BYTES_PER_TOKEN = 4.0
MORE_TOKENS = 2  # so many times the estimated tokens are in some texts, such as codes and numbers
SHORTEST_CONTEXT = 64
CHARACTERS_PER_SECOND = 60e6  # bytes of text that are tokenized per second
WORDS_PER_SECOND = 5e6  # the same by BPE, where it was not measured
OF_SHORT_TEXTS_PER_SECOND = 1e6  # the same for many short texts, mostly spent on training the tokenizer


class ModelSize(NamedTuple):
    """The size of a model as far as it is given: None is left to the rules."""

    d_model: int | None = None
    n_layers: int | None = None
    max_seq_len: int | None = None


ANY_SIZE = ModelSize()


@dataclass(frozen=True)
class Budget:
    """The measurements of data and machine on which the rules decide.

    Attributes:
        n_bytes: The size of a running text, with the end that is held out of it; for pairs (both sides together) and
            labelled texts, the size of the training split, without what no context of the rules holds.
        seconds: The wall-clock time of the whole command.
        rate: FLOP/s of large matrix products, in the dtype of training, by all of torchrun's processes together.
        memory: Bytes that training may take in one process.
        compile: Whether the step is compiled; None: if that pays.
        tokenizer: The requested tokenizer; None: the rules choose one.
        n_texts: The number of training pairs or labelled texts; 1 for a running text.
        longest: Bytes of the longest text, or longest side of a pair, in all splits, as far as a context may hold it;
            0 for a running text.
        bits_saved: The bits per character that 1,024 BPE tokens save over 512 (`auto.vocabulary`); None: not measured.
        words_per_second: The bytes of a running text that BPE tokenizes in a second, measured likewise.
        has_held_out: Whether a running text's held-out part is given, as a file of its own.
        n_labels: The number of labels; 0 for texts without.
        has_vocabulary: Whether the size of the requested tokenizer's vocabulary is requested too; otherwise the rules
            choose it.
        given: The size of the model, as far as it is requested or that of an earlier run.
        is_pretrained: Whether the run begins with an earlier one's weights.
    """

    n_bytes: int
    seconds: float
    rate: float
    memory: float
    compile: bool | None = None
    tokenizer: TokenizerConfig | None = None
    n_texts: int = 1
    longest: int = 0
    bits_saved: float | None = None
    words_per_second: float = WORDS_PER_SECOND
    has_held_out: bool = False
    n_labels: int = 0
    has_vocabulary: bool = True
    given: ModelSize = ANY_SIZE
    is_pretrained: bool = False

    @property
    def is_compiled(self) -> bool:
        """Whether the run's step will be compiled."""
        return pays_within(self.seconds) if self.compile is None else self.compile


@dataclass(frozen=True)
class Recommendation:
    """A run, and the reasons for it, one line for each decision."""

    run: RunConfig
    reasons: list[str]


def seconds_to_prepare(budget: Budget, tokenizer: TokenizerConfig) -> float:
    """Estimate the seconds in which the data are tokenized."""
    of_a_text = CHARACTERS_PER_SECOND if is_of_characters(tokenizer) else budget.words_per_second
    return budget.n_bytes / (of_a_text if budget.n_texts == 1 else OF_SHORT_TEXTS_PER_SECOND)


def seconds_of_steps(budget: Budget, tokenizer: TokenizerConfig) -> float:
    """Estimate the seconds left for steps after start, preparation and compiling, and at least half of all."""
    compiling = COMPILE_SECONDS if budget.is_compiled else 0.0
    return seconds_but_for(budget, SECONDS_BESIDE_STEPS + compiling + seconds_to_prepare(budget, tokenizer))


def seconds_but_for(budget: Budget, beside: float) -> float:
    """Return the seconds that are left after so many, and at least half of all."""
    return max(budget.seconds / 2, budget.seconds - beside)


def parts_for(batch_tokens: int, row_tokens: int, bytes_per_token: float, memory: float) -> int:
    """Return the parts of a batch, a power of two: each fits into half of the memory or has one row."""
    most_tokens = memory / 2 / bytes_per_token
    parts = 1
    while batch_tokens / parts > max(most_tokens, row_tokens):
        parts *= 2
    return parts


def block_parameters(d_model: int, n_layers: int) -> int:
    """Count the parameters of attention (four matrices of D x D) and feed-forward network (as many as eight)."""
    return 12 * n_layers * d_model**2


def largest_shape(
    shapes: Sequence[tuple[int, int]],
    parameters: Callable[[int, int], int],
    most: float,
    given: ModelSize = ANY_SIZE,
) -> tuple[int, int]:
    """Return the largest width and depth with no more than `most` parameters in the blocks, or the smallest.

    Args:
        shapes: Widths and depths, the smallest first.
        parameters: Counts the parameters of a shape.
        most: The most parameters.
        given: A width or a depth that takes the place of that of the shapes. The depths for a width are those of shapes
            up to the next width.
    """
    widest = min(
        (d_model for d_model, _ in shapes if d_model >= (given.d_model or math.inf)), default=math.inf
    )
    fitting = {
        (given.d_model or d_model, given.n_layers or n_layers)
        for d_model, n_layers in shapes
        if d_model <= widest
    }
    by_size = sorted(fitting, key=lambda shape: parameters(*shape))
    return next((shape for shape in reversed(by_size) if parameters(*shape) <= most), by_size[0])


def heads_for(d_model: int, d_head: int) -> int:
    """Return the most heads of at least `d_head` dimensions, an even number each, that a width divides into, or one."""
    return next((heads for heads in range(d_model // d_head, 1, -1) if d_model % (2 * heads) == 0), 1)


def rotary_or_learned(d_model: int) -> RoPE | Learned:
    """Return RoPE, which rotates pairs of dimensions, or learned positions for an odd width, which has one head."""
    return RoPE() if d_model % 2 == 0 else Learned()


def is_of_characters(tokenizer: TokenizerConfig) -> bool:
    """Whether tokens are characters or bytes."""
    return tokenizer.kind in ("char", "byte")


def bytes_per_token(tokenizer: TokenizerConfig) -> float:
    """Estimate the bytes per token; for parts of words, 0.4 more for each doubling of the vocabulary."""
    if is_of_characters(tokenizer):
        return 1.0
    return max(1.0, min(0.4 * math.log2(vocabulary_of(tokenizer)) - 1.6, MOST_BYTES_PER_TOKEN))


def requested_tokenizer(budget: Budget, vocab_size: int) -> TokenizerConfig | None:
    """Return the requested tokenizer, with `vocab_size` tokens if only others of its settings are requested."""
    tokenizer = budget.tokenizer
    if tokenizer is None or budget.has_vocabulary or not hasattr(tokenizer, "vocab_size"):
        return tokenizer
    return tokenizer.replace(vocab_size=vocab_size)


def context_for(longest: int, tokenizer: TokenizerConfig, most: int) -> int:
    """Return a power of two that holds the longest text, even if it has twice as many tokens as estimated.

    Args:
        longest: Its bytes.
        tokenizer: Its tokenizer; no token has less than a byte.
        most: The most that is returned, whatever the longest text.
    """
    n_tokens = longest / max(1.0, bytes_per_token(tokenizer) / MORE_TOKENS) + 2  # and two special ones
    return min(most, max(SHORTEST_CONTEXT, 2 ** math.ceil(math.log2(n_tokens))))


def words_for(tokenizer: TokenizerConfig) -> str:
    """Describe a tokenizer: `char`, or `bpe with a vocabulary of 1,024`."""
    size = getattr(tokenizer, "vocab_size", None)
    return tokenizer.kind if size is None else f"{tokenizer.kind} with a vocabulary of {size:,}"


def abbreviated(n_parameters: float) -> str:
    """Write a number of parameters: `1.2M`, or `49k` where those would be 0.0 million."""
    return f"{n_parameters / 1e6:.1f}M" if n_parameters >= 1e5 else f"{n_parameters / 1e3:.0f}k"


def reason_of_time(budget: Budget, seconds: float, utilisation: float) -> str:
    """State the FLOPs of the budget, and how they are made up."""
    return (
        f"{budget.seconds:g} s of wall-clock time, {seconds:.0f} s of it for steps, "
        f"at {utilisation:g} of {budget.rate / 1e9:,.0f} GFLOP/s: {seconds * budget.rate * utilisation:.1e} FLOPs"
    )


def reason_of_size(
    given: ModelSize, wanted: float, by_time: float, limits: str, largest: float = math.inf
) -> str:
    """State what decides a model's parameters: what is given of its size, the time, or what allows fewer.

    Args:
        given: The width and the depth, as far as they are given.
        wanted: The parameters by time and limits.
        by_time: Those by time alone.
        limits: The limits, such as "the memory".
        largest: Those of the rules' largest shape.
    """
    if names := [name for name in ("d_model", "n_layers") if getattr(given, name) is not None]:
        return f"{' and '.join(names)} as given"
    if wanted >= largest:
        return "these rules know no larger model"
    if wanted < by_time:
        return f"time for {abbreviated(by_time)}, limited by {limits}"
    return "scaled with the square root of the FLOPs"


def reason_to_end(run: RunConfig, passes: float, most_passes: int) -> list[str]:
    """State that more passes would gain nothing, if the run reaches the most passes."""
    if passes < most_passes:
        return []
    return [f"{most_passes} passes are enough: the run ends after {run.train.max_steps} steps"]
