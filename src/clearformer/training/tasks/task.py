"""The interface between the training loop and what a run learns: its data, loss, evaluation and reports."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from clearformer.data import Prepared, Progress
from clearformer.data.locating.places import Example
from clearformer.decoding.arguments import OnStep
from clearformer.errors import ConfigError, UserError
from clearformer.model.config import ModelConfig
from clearformer.text import Tokenizer
from clearformer.training.config import RunConfig, TrainConfig
from clearformer.training.objectives import ObjectiveSpec
from clearformer.training.tasks.reports import EvaluationReport, Section

USUAL_BEAMS = 5
SAMPLE_CHARACTERS = 100  # of a text that is shown with what a model makes of it


@runtime_checkable
class EvaluationResult(Protocol):
    """The result of an evaluation on held-out data."""

    @property
    def loss(self) -> float: ...


@dataclass(frozen=True)
class TrainedModel:
    """A model and its tokenizer: all that generating, translating and classifying need."""

    model: Any
    tokenizer: Tokenizer


@dataclass(frozen=True)
class EvaluationData:
    """The data that a trained model is evaluated on.

    Attributes:
        config: The run's configuration, with these data in it.
        prepared: The data in the run's tokens.
        split: The name of the split to evaluate on.
        name: The name of the data in messages.
        description: How much of them is read, in words.
        training_data: Reads the data that the run was trained on.
        progress: Called with the progress of the evaluation.
    """

    config: RunConfig
    prepared: Any
    split: str
    name: str
    description: str
    training_data: Callable[[], Prepared]
    progress: Progress = lambda *_: None

    def on_step(self, doing: str) -> OnStep:
        """Return the function that reports the progress of one part of the evaluation."""
        return partial(self.progress, doing)


@dataclass(frozen=True)
class EvaluationOptions:
    """How a trained model is evaluated.

    Attributes:
        context: Tokens in each window of a text.
        stride: Tokens from the start of one window to the next.
        beams: Beams of the search that translates; see `n_beams`.
        dtype: The type of the matrix products.
        unseen: Whether to leave out labelled texts, or pairs, that are in the training split too.
    """

    dtype: torch.dtype
    context: int | None = None
    stride: int | None = None
    beams: int | None = None
    unseen: bool = False

    @property
    def n_beams(self) -> int:
        """The number of beams: as given, or the usual one."""
        return USUAL_BEAMS if self.beams is None else self.beams

    @property
    def given(self) -> list[str]:
        """The given options among those that only some objectives have."""
        given = [name for name in ("context", "stride", "beams") if getattr(self, name) is not None]
        return [*given, "unseen"] if self.unseen else given


@dataclass(frozen=True)
class FullBatch:
    """A part of a batch whose rows all have the model's maximum length, for measuring memory.

    Attributes:
        tensors: As `Task.full_batch` makes them; their values do not matter.
        train: The settings of the run.
        on_gpu: Whether the memory is a GPU's.
    """

    tensors: tuple[Tensor, ...]
    train: TrainConfig
    on_gpu: bool


class Task(ABC):
    """The data, loss, evaluation and reports of a run; one class for each objective.

    A row is a window of a text, a pair, or a labelled text.

    A batch is a pure function of its step. It is read in parts: `train.grad_accum_steps` of them in each process. The
    *mean* of the parts' losses is the loss of the batch.
    """

    objective_type: ClassVar[type[ObjectiveSpec]]
    """The settings of this task in a configuration."""

    shapes_vary: ClassVar[bool] = False
    """Whether rows differ in length from batch to batch, so that a compiled step must accept any length."""

    def __init__(self, config: RunConfig, dataset: Any) -> None:
        self.config, self.dataset = config, dataset
        self.tokenizer: Tokenizer = dataset.tokenizer

    # --- data -----------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def prepare(cls, config: RunConfig, tokenizer: Tokenizer | None, progress: Progress) -> Any:
        """Prepare the data, with the given tokenizer or with one made for them."""

    @classmethod
    def fit(cls, config: RunConfig, dataset: Any) -> RunConfig:
        """Return the configuration with the settings that depend on the data: vocabulary size, labels, classes.

        Raises:
            ConfigError: the configuration sets another size.
        """
        size, whose = dataset.tokenizer.vocab_size, "the tokenizer's {} tokens"
        has_rows_of_its_own = config.train.pretrained is not None  # which may be more than there are tokens
        model = with_size(config.model, "vocab_size", size, whose, may_be_larger=has_rows_of_its_own)
        return config.replace(model=model)

    @property
    def data_sha256(self) -> str:
        """The SHA-256 of the training data; a run can only be resumed on the same data."""
        return self.dataset.manifest["source"]["sha256"]

    @property
    def n_train_tokens(self) -> int | None:
        """The tokens of a text's training split, which depend on where its documents end; None for other data."""
        return self.dataset.manifest.get("splits", {}).get("train", {}).get("n_tokens")

    @abstractmethod
    def batch(self, step: int, part: int, n_parts: int) -> tuple[Tensor, ...]:
        """Return one of the `n_parts` parts of a step's batch, as tensors on the CPU."""

    @abstractmethod
    def n_tokens(self, step: int) -> int:
        """Return the number of tokens in a step's batch, over all parts, as the run counts them."""

    @property
    @abstractmethod
    def rows_per_step(self) -> float:
        """The number of rows in a step's batch, over all parts; the mean where batches differ."""

    @property
    def n_held_out(self) -> int:
        """The number of rows in the held-out split; 0 where there is none."""
        return len(self.dataset.splits.get("val", ()))

    def check_divides(self, n_parts: int) -> None:
        """Raise ConfigError if a batch cannot be divided into so many parts; by default any can."""
        return

    # --- examples: where the rows of a batch come from --------------------------------------------------------

    targets_at: ClassVar[int | None] = None
    """The place in a batch of the targets' tensor, [B] or [B T], with `IGNORED` where none counts; None if unknown."""

    def example_ids(self, step: int) -> Int64[np.ndarray, " B"]:
        """Return the training example in each row of a step's whole batch.

        The id of a window is the position of its first token, that of a pair or a text its number.

        Raises:
            UserError: the task does not implement this.
        """
        raise UserError(
            f"train.objective.kind={self.config.train.objective.kind}: this objective's task does not say which "
            f"example is in each batch row ({type(self).__name__}.example_ids, find_examples and targets_at)"
        )

    def find_examples(self, examples: Sequence[int]) -> list[Example]:
        """Return the text of some examples, and its place in the source's files.

        Raises:
            DataError: the source has changed.
        """
        raise NotImplementedError

    @classmethod
    def rows_of_part(cls, n_rows: int, part: int, n_parts: int) -> slice:
        """Return the rows of a whole batch that are in one of its parts; by default every `n_parts`-th."""
        return slice(part, n_rows, n_parts)

    def check_measurable(self) -> None:
        """Raise DataError if there is a held-out split that no model can be evaluated on.

        Errors that an evaluation could meet in the data are found here or when the task is made, and not hours into a
        run.
        """
        return

    # --- loss -----------------------------------------------------------------------------------------------

    @abstractmethod
    def loss(self, model: Any, *batch: Tensor) -> Float[Tensor, ""]:
        """Return the loss of one part, in nats."""

    @classmethod
    def full_batch(cls, n_texts: int, seq_len: int) -> tuple[Tensor, ...]:
        """Return the tensors of a `FullBatch` [n_texts seq_len]: the tokens, and where they are real."""
        tokens = torch.zeros(n_texts, seq_len, dtype=torch.long)
        return tokens, torch.ones(n_texts, seq_len, dtype=torch.bool)

    @classmethod
    @abstractmethod
    def full_loss(cls, model: Any, batch: FullBatch) -> Tensor:
        """Return the loss of a `FullBatch`, computed with as much memory as `loss` takes.

        The tensors hold no values: the code may ask how many targets count, but not which.
        """

    # --- evaluation -----------------------------------------------------------------------------------------

    @abstractmethod
    def evaluate(self, model: Any, dtype: torch.dtype, n_rows: int | None = None) -> EvaluationResult | None:
        """Evaluate a model on the whole held-out split, or on `n_rows` of its rows.

        Return None if there is no such split, or nothing to predict in those rows. The rows are evenly spaced and the
        same every time. Training's random numbers are not touched.
        """

    def evaluate_whole_and_part(
        self, model: Any, dtype: torch.dtype, n_rows: int
    ) -> tuple[EvaluationResult | None, EvaluationResult | None]:
        """Evaluate a model on the whole held-out split, and also on `n_rows` of its rows; see `evaluate`."""
        return self.evaluate(model, dtype), self.evaluate(model, dtype, n_rows)

    def rows_of_whole_and_part(self, n_rows: int) -> int:
        """Return how many rows `evaluate_whole_and_part` reads."""
        return self.n_held_out + n_rows

    def metrics(self, result: Any) -> Mapping[str, float]:
        """Return the values of an evaluation that metrics.jsonl records in addition to the loss, if they are finite."""
        return {}

    @classmethod
    @abstractmethod
    def evaluate_on(
        cls, trained: TrainedModel, data: EvaluationData, options: EvaluationOptions
    ) -> EvaluationReport:
        """Evaluate a trained model on a whole split of its own data or of others.

        Raises:
            DataError: the data cannot be used by this model, or hold nothing to predict.
            UserError: an option is out of range.
        """

    # --- reports --------------------------------------------------------------------------------------------

    def sample(self, model: Any) -> str:
        """Return a sample of the model's output during training, as text; the same for the same weights."""
        return ""

    def final_sample(self, model: Any) -> str:
        """Return a sample of the trained model's output, longer than during training."""
        return self.sample(model)

    def fit_final_sample(self, model: Any, seconds: float) -> float:
        """Shorten `final_sample` to about so many seconds, and return those it is expected to take; 0: hardly any."""
        return 0.0

    @abstractmethod
    def figures(self, result: Any) -> tuple[Section, ...]:
        """Return the figures of the evaluation that ends a run."""

    def prepare_report(self) -> None:  # noqa: B027  (for most there is nothing to do)
        """Compute what `figures` needs but does not depend on the weights, so that the run's end need not wait."""

    def split_to_evaluate(self) -> str:
        """Return the option of `eval` without which it would look for held-out data that there are none of."""
        return "" if self.n_held_out else " --split train"

    @abstractmethod
    def next_commands(self, run: str, preset: str | None) -> tuple[str, ...]:
        """Return commands to try with the trained run, without the program's name.

        Args:
            run: The run's name, as typed in a shell.
            preset: The preset that the run began with; None where that is not known.
        """


def with_size(
    model: ModelConfig, key: str, size: int, whose: str, may_be_larger: bool = False
) -> ModelConfig:
    """Return a model's configuration with a size that the data decide.

    Raises:
        ConfigError: the configuration sets another size; a larger one is kept if it `may_be_larger`.
    """
    current = getattr(model, key)
    if may_be_larger and current is not None and current > size:
        return model
    if current is not None and current != size:
        raise ConfigError(
            f"model.{key}: {current} does not match {whose.format(size)}; remove it, or set it to "
            "none, to use that number"
        )
    return model.replace(**{key: size})


def contiguous_rows(batch_size: int, part: int, n_parts: int) -> slice:
    """Return the adjacent rows that are one part of a batch that divides evenly."""
    size = batch_size // n_parts
    return slice(part * size, (part + 1) * size)


def check_rows_divide(batch_size: int, n_parts: int) -> None:
    """Raise ConfigError if a batch's rows cannot be divided evenly into so many parts."""
    if batch_size % n_parts:
        raise ConfigError(
            f"train.batch_size: {batch_size} rows do not divide into {n_parts} parts (processes times "
            f"train.grad_accum_steps); choose a multiple of {n_parts}"
        )


def to_tensors(*arrays: Any) -> tuple[Tensor, ...]:
    """Return NumPy arrays as tensors that share their memory."""
    return tuple(torch.from_numpy(array) for array in arrays)
