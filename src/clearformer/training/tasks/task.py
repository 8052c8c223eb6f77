"""The seam between the loop, which only steps, and what a run learns."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from clearformer.data import Prepared
from clearformer.data.locating.places import Example
from clearformer.errors import ConfigError, UserError
from clearformer.model.config import ModelConfig
from clearformer.text import Tokenizer
from clearformer.training.config import RunConfig, TrainConfig
from clearformer.training.objectives import ObjectiveSpec
from clearformer.training.tasks.reports import EvaluationReport, Section

Progress = Callable[[str, int, int | None], None]
"""Receives what is being prepared, how much is done, and how much there is in all where known."""


USUAL_BEAMS = 5


@runtime_checkable
class EvaluationResult(Protocol):
    """The result of an evaluation on held-out data."""

    @property
    def loss(self) -> float: ...


@dataclass(frozen=True)
class TrainedModel:
    """A model and the tokeniser of its data: what generates, translates and classifies."""

    model: Any
    tokenizer: Tokenizer


@dataclass(frozen=True)
class EvaluationData:
    """The data that a trained model is evaluated on.

    Attributes:
        config: The run's configuration, with these data in it.
        prepared: The data in the run's tokens.
        split: The name of the split that is read.
        name: What a message calls the data.
        description: How much of them is read, in words.
        training_data: Reads what the run was trained on.
    """

    config: RunConfig
    prepared: Any
    split: str
    name: str
    description: str
    training_data: Callable[[], Prepared]


@dataclass(frozen=True)
class EvaluationOptions:
    """How a trained model is evaluated.

    Attributes:
        context: Tokens of a text read at once.
        stride: Tokens from one reading to the next.
        beams: Of the beam search that translates; see `n_beams`.
        dtype: The type of the matrix products.
        unseen: Whether labelled texts that stand in training too are left out.
    """

    dtype: torch.dtype
    context: int | None = None
    stride: int | None = None
    beams: int | None = None
    unseen: bool = False

    @property
    def n_beams(self) -> int:
        """How many beams: those given, or the usual number."""
        return USUAL_BEAMS if self.beams is None else self.beams

    @property
    def given(self) -> list[str]:
        """The options that were given, of those that are for some objectives alone."""
        given = [name for name in ("context", "stride", "beams") if getattr(self, name) is not None]
        return [*given, "unseen"] if self.unseen else given


@dataclass(frozen=True)
class FullBatch:
    """A part of a batch in which all texts are as long as the model reads, for measuring memory.

    Attributes:
        tensors: As `Task.full_batch` makes them; their values do not count.
        train: The settings of the run.
        on_gpu: Whether the memory is a GPU's.
    """

    tensors: tuple[Tensor, ...]
    train: TrainConfig
    on_gpu: bool


class Task(ABC):
    """The data of a run, its loss, its evaluation and what a report shows of it; one class for each objective.

    A row is a window of a text, a pair, or a labelled text.

    A batch is a pure function of its step. It is read in parts, several of one process (`train.grad_accum_steps`), or
    one or more in each of several; the *mean* of the parts' losses is the loss of the batch.
    """

    objective_type: ClassVar[type[ObjectiveSpec]]
    """The settings of this task in a configuration."""

    shapes_vary: ClassVar[bool] = False
    """Whether batches have different lengths, so that a compiled step must take any."""

    def __init__(self, config: RunConfig, dataset: Any) -> None:
        self.config, self.dataset = config, dataset
        self.tokenizer: Tokenizer = dataset.tokenizer

    # --- data -----------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def prepare(cls, config: RunConfig, tokenizer: Tokenizer | None, progress: Progress) -> Any:
        """Prepare the data; a tokeniser that is given is used, otherwise one is made."""

    @classmethod
    def fit(cls, config: RunConfig, dataset: Any) -> RunConfig:
        """The configuration with what only the data know: the vocabulary's size, the labels and their number.

        Raises:
            ConfigError: the model was given another number.
        """
        size = dataset.tokenizer.vocab_size
        return config.replace(model=with_size(config.model, "vocab_size", size, "the tokenizer's {} tokens"))

    @property
    def data_sha256(self) -> str:
        """The SHA-256 of the data that the run is trained on: a run is resumed on no other."""
        return self.dataset.manifest["source"]["sha256"]

    @abstractmethod
    def batch(self, step: int, part: int, n_parts: int) -> tuple[Tensor, ...]:
        """One of the `n_parts` parts of a step's batch, as tensors on the CPU."""

    @abstractmethod
    def n_tokens(self, step: int) -> int:
        """The tokens of a step's batch, all parts together, as the run counts them."""

    @property
    @abstractmethod
    def rows_per_step(self) -> float:
        """The rows of a step's batch, all parts together; their mean where batches differ."""

    @property
    def n_held_out(self) -> int:
        """The rows of the held-out split; 0 where there is none."""
        return len(self.dataset.splits.get("val", ()))

    def check_divides(self, n_parts: int) -> None:
        """Raise ConfigError where a batch cannot be divided into so many parts; most can."""
        return

    # --- examples: what a row is made of ----------------------------------------------------------------------

    targets_at: ClassVar[int | None] = None
    """Which tensor of a batch holds the targets, [B] or [B T], `IGNORED` where none counts; None: it is not told."""

    def example_ids(self, step: int) -> Int64[np.ndarray, " B"]:
        """Which example of the training split each row of a step's whole batch is.

        Of a running text the window's first token, else the number of the pair or text.

        Raises:
            UserError: the task does not tell.
        """
        raise UserError(
            f"train.objective.kind={self.config.train.objective.kind}: this objective's task does not tell which "
            f"example a row of a batch is ({type(self).__name__}.example_ids, find_examples and targets_at)"
        )

    def find_examples(self, examples: Sequence[int]) -> list[Example]:
        """The text of some examples, and where it stands in the source's files.

        Raises:
            DataError: the source has changed.
        """
        raise NotImplementedError

    @classmethod
    def rows_of_part(cls, n_rows: int, part: int, n_parts: int) -> slice:
        """The rows of a whole batch that are in one of its parts."""
        return slice(part, n_rows, n_parts)

    def check_measurable(self) -> None:
        """Raise DataError where there is a held-out split that no model can be measured on.

        Whatever an evaluation could find wrong with the data is found here, or when the task is opened: no run must
        end by it after hours.
        """
        return

    # --- loss -----------------------------------------------------------------------------------------------

    @abstractmethod
    def loss(self, model: Any, *batch: Tensor) -> Float[Tensor, ""]:
        """The loss of one part, in nats."""

    @classmethod
    def full_batch(cls, n_texts: int, seq_len: int) -> tuple[Tensor, ...]:
        """The tensors of a `FullBatch` of so many texts of so many tokens: the tokens, and where they are real."""
        tokens = torch.zeros(n_texts, seq_len, dtype=torch.long)
        return tokens, torch.ones(n_texts, seq_len, dtype=torch.bool)

    @classmethod
    @abstractmethod
    def full_loss(cls, model: Any, batch: FullBatch) -> Tensor:
        """The loss of such a part, which takes the memory of `loss`.

        The tensors are given no memory: how many targets count may be asked, and which do may not.
        """

    # --- evaluation -----------------------------------------------------------------------------------------

    @abstractmethod
    def evaluate(self, model: Any, dtype: torch.dtype, n_rows: int | None = None) -> EvaluationResult | None:
        """Evaluate a model on the whole held-out split, or on so many of its rows.

        None where there is no such split, or nothing in those rows to measure it by. The rows are evenly spaced over
        the split, the same ones every time. No random stream of training is drawn from.
        """

    def evaluate_whole_and_part(
        self, model: Any, dtype: torch.dtype, n_rows: int
    ) -> tuple[EvaluationResult | None, EvaluationResult | None]:
        """Evaluate a model on the whole held-out split and on so many of its rows, as `evaluate` does each."""
        return self.evaluate(model, dtype), self.evaluate(model, dtype, n_rows)

    def metrics(self, result: Any) -> Mapping[str, float]:
        """Values of an evaluation that a line of metrics.jsonl has besides its loss."""
        return {}

    @classmethod
    @abstractmethod
    def evaluate_on(
        cls, trained: TrainedModel, data: EvaluationData, options: EvaluationOptions
    ) -> EvaluationReport:
        """Evaluate a trained model on a whole split of its own data or of others.

        Raises:
            DataError: the data cannot be used by this model, or hold nothing to measure it by.
            UserError: an option is out of range.
        """

    # --- reports --------------------------------------------------------------------------------------------

    def sample(self, model: Any) -> str:
        """Something by the model so far, for people; the same for the same state."""
        return ""

    def final_sample(self, model: Any) -> str:
        """Something by the trained model; more than on the way."""
        return self.sample(model)

    @abstractmethod
    def figures(self, result: Any) -> tuple[Section, ...]:
        """The figures of the evaluation that ends a run."""

    def prepare_report(self) -> None:  # noqa: B027  (for most there is nothing to do)
        """Compute what `figures` tells and does not follow from the weights, so that the run's end need not wait."""

    @abstractmethod
    def next_commands(self, run: str, preset: str | None) -> tuple[str, ...]:
        """Commands that go on from a run, without the program's name.

        Args:
            run: The run's name, as one types it in a shell.
            preset: The preset by which it began; None where that is not known.
        """


def with_size(model: ModelConfig, key: str, size: int, whose: str) -> ModelConfig:
    """A model's configuration with a size that the data decide.

    Raises:
        ConfigError: it was given another one.
    """
    current = getattr(model, key)
    if current is not None and current != size:
        raise ConfigError(
            f"model.{key}: {current} does not fit {whose.format(size)}; leave it out, and it is taken from there"
        )
    return model.replace(**{key: size})


def rows_of_part(batch_size: int, part: int, n_parts: int) -> slice:
    """The rows of one part of a batch that divides evenly."""
    size = batch_size // n_parts
    return slice(part * size, (part + 1) * size)


def check_rows_divide(batch_size: int, n_parts: int) -> None:
    """Raise ConfigError where a batch's rows cannot be divided into so many parts."""
    if batch_size % n_parts:
        raise ConfigError(
            f"train.batch_size: {batch_size} rows do not divide into {n_parts} parts (processes times "
            f"train.grad_accum_steps); choose a multiple of {n_parts}"
        )


def shortened(text: str, most: int = 100) -> str:
    """A text on one line, its end left out where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3].rstrip()}..."


def to_tensors(*arrays: Any) -> tuple[Tensor, ...]:
    """NumPy arrays as tensors that share their memory."""
    return tuple(torch.from_numpy(array) for array in arrays)
