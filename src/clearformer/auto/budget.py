"""The budget on which `auto` decides: the size of the data, the time, and the machine's rate and memory."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from clearformer.auto.rate import usual_rate
from clearformer.auto.vocabulary import LEAST_FOR_WORDS, Trial, try_words
from clearformer.data import Data, LabelledData, PairsData, TextData, open_pairs
from clearformer.data.labelled.sources import open_labelled
from clearformer.data.reading import estimated_text_bytes
from clearformer.data.text.sources import FileSource, open_source
from clearformer.device import resolve_device, resolve_dtype
from clearformer.errors import DataError
from clearformer.resources import memory_here
from clearformer.text import TokenizerConfig
from clearformer.training.config import RunConfig
from clearformer.training.objectives import TranslationObjective
from clearformer.training.planning.duration import COMPILE_SECONDS, pays_within
from clearformer.training.planning.run_plan import vocabulary_of
from clearformer.training.processes.distributed import Place

# Beside the data, the tokenizer and the model's size, the settings that `measure` reads: others cannot change a budget.
MEASURED_BY = {
    f"train.{name}"
    for name in ("max_seconds", "max_wall_seconds", "device", "dtype", "compile", "pretrained")
}

SECONDS = 300.0  # if no time is given, or only a number of steps
RATE_SECONDS, RATE_SHARE = 1.0, 0.02  # at most so long, and so much of the time, for the machine's rate
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


def measure(
    wanted: RunConfig,
    said: Mapping[str, Any] | None = None,
    most_tokens: float = math.inf,
    place: Place | None = None,
) -> Budget:
    """Measure the size of the data, and the machine's rate and memory, in about a second or less if the time is short.

    Args:
        wanted: The data, time and device; and the tokenizer and the model, if they are those of an earlier run, or the
            requested tokenizer.
        said: The settings that the user gave, by their keys.
        most_tokens: The longest context of the rules, in tokens, unless another is given; of longer texts only the
            beginning counts, and longer pairs do not.
        place: The process's place among those that train together, all of which measure at the same time.

    Raises:
        DataError: there are no such data.
    """
    said, place = said or {}, place or Place()
    given = given_size(wanted, said)
    size = size_of(wanted.data, (given.max_seq_len or most_tokens) * MOST_BYTES_PER_TOKEN)
    device = resolve_device(wanted.train.device)
    dtype = resolve_dtype(wanted.train.dtype, device)
    of_earlier = wanted.train.pretrained is not None
    has_tokenizer = of_earlier or any(key.partition(".")[0] == "tokenizer" for key in said)
    has_vocabulary = of_earlier or "tokenizer.vocab_size" in said
    seconds = min(filter(None, (wanted.train.max_wall_seconds, wanted.train.max_seconds)), default=SECONDS)
    asks_for_words = not has_vocabulary and wanted.tokenizer.kind == "bpe"
    trial = trial_of(wanted.data, size.n_bytes) if asks_for_words or not has_tokenizer else None
    return Budget(
        n_bytes=size.n_bytes,
        seconds=seconds,
        rate=place.count * usual_rate(dtype, device, seconds=min(RATE_SECONDS, RATE_SHARE * seconds)),
        memory=memory_of(device) / 2 / sharing(device, place.n_here),
        compile=None if wanted.train.compile == "auto" else wanted.train.compile,
        tokenizer=wanted.tokenizer if has_tokenizer else None,
        has_vocabulary=has_vocabulary,
        given=given,
        is_pretrained=of_earlier,
        n_texts=size.n_texts,
        longest=size.longest,
        n_labels=size.n_labels,
        has_held_out=isinstance(wanted.data, TextData) and wanted.data.val_path is not None,
        **(trial._asdict() if trial else {}),
    )


def given_size(wanted: RunConfig, said: Mapping[str, Any]) -> ModelSize:
    """Return the size of an earlier run's model, if there is one, and what the settings say of it.

    Values that are no sizes are left out; the run's configuration is refused for them.
    """
    earlier = wanted.model if wanted.train.pretrained is not None else ANY_SIZE
    sizes = {name: said.get(f"model.{name}", getattr(earlier, name)) for name in ModelSize._fields}
    return ModelSize(
        **{name: size if isinstance(size, int) and size > 0 else None for name, size in sizes.items()}
    )


def trial_of(data: Data, n_bytes: int) -> Trial | None:
    """Try BPE on a running text; None for a small one, and for other data."""
    if not isinstance(data, TextData) or n_bytes < LEAST_FOR_WORDS:
        return None
    return try_words(open_source(data).by_split()["train"])


class Size(NamedTuple):
    """The size of data; the fields are those of `Budget`."""

    n_bytes: int
    n_texts: int = 1
    longest: int = 0
    n_labels: int = 0


def size_of(data: Data, most_bytes: float = math.inf) -> Size:
    """Measure the size of a text, of pairs or of labelled texts.

    No more than `most_bytes` of a labelled text count; pairs with a longer side do not, unless there are no others.
    """
    if isinstance(data, PairsData):
        pairs = open_pairs(data).read().splits
        sides = {
            name: [(len(p.source.encode()), len(p.target.encode())) for p in pairs[name]] for name in pairs
        }
        sides = {
            name: [pair for pair in split if max(pair) <= most_bytes] or split
            for name, split in sides.items()
        }
        longest = max(max(pair) for split in sides.values() for pair in split)
        return Size(sum(map(sum, sides["train"])), len(sides["train"]), longest)
    if isinstance(data, LabelledData):
        texts = open_labelled(data).splits
        sizes = {
            name: [int(min(len(each.text.encode()), most_bytes)) for each in texts[name]] for name in texts
        }
        longest = max(size for split in sizes.values() for size in split)
        n_labels = len({each.label for each in texts["train"]})
        return Size(sum(sizes["train"]), len(sizes["train"]), longest, n_labels)
    return Size(text_bytes(data))


def text_bytes(data: TextData) -> int:
    """Return the size of a text in bytes; for large gzip and JSON lines files an estimate.

    Raises:
        DataError: there is no such text, or it is empty.
    """
    source = open_source(data).by_split()["train"]
    if not isinstance(source, FileSource):
        return sum(len(chunk.text.encode()) for chunk in source.documents())
    n_bytes = sum(estimated_text_bytes(path, source.field) for path in source.files)
    if not n_bytes:
        raise DataError(f"{source.description}: there is no text in it")
    return n_bytes


def memory_of(device: torch.device) -> float:
    """Return a device's memory in bytes; for a CPU no more than this process may use."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return memory_here()


def for_processes(run: RunConfig, count: int) -> RunConfig:
    """Return a run for so many processes: they share the parts of a batch, whose rows become a multiple of both.

    More rows make fewer steps, where the number of steps is limited.
    """
    if count == 1:
        return run
    train = run.train
    parts = math.ceil(train.grad_accum_steps / count)
    if isinstance(train.objective, TranslationObjective):  # its batches are sized in tokens
        return run.replace(train=train.replace(grad_accum_steps=parts))
    rows = math.ceil(train.batch_size / (count * parts)) * count * parts
    changed: dict[str, Any] = {"batch_size": rows, "grad_accum_steps": parts}
    if train.max_steps is not None:
        steps = max(1, round(train.max_steps * train.batch_size / rows))
        changed |= {"max_steps": steps, "warmup_steps": min(train.warmup_steps, steps // 2)}
    return run.replace(train=train.replace(**changed))


def sharing(device: torch.device, n_here: int) -> int:
    """Return how many of a machine's processes share the memory of a device."""
    return math.ceil(n_here / torch.cuda.device_count()) if device.type == "cuda" else n_here


# --- consequences of a budget -----------------------------------------------------------------------------


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
        return f"time for {by_time / 1e6:.1f}M, limited by {limits}"
    return "scaled with the square root of the FLOPs"


def reason_to_end(run: RunConfig, passes: float, most_passes: int) -> list[str]:
    """State that more passes would gain nothing, if the run reaches the most passes."""
    if passes < most_passes:
        return []
    return [f"{most_passes} passes are enough: the run ends after {run.train.max_steps} steps"]
