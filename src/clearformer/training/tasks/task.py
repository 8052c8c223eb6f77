"""What a run learns, whatever that is: the seam between the loop, which only steps, and the four kinds of task."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from clearformer.data import Data
from clearformer.errors import ConfigError
from clearformer.model.config import ModelConfig
from clearformer.text import Tokenizer

Progress = Callable[[str, int, int | None], None]
"""Told what is being prepared, how much is done, and how much there is in all where known."""


@runtime_checkable
class Measured(Protocol):
    """What an evaluation of held-out data found."""

    @property
    def loss(self) -> float: ...


class Task(ABC):
    """Where a run's batches come from, what it makes small, and how it is measured.

    A row is a window of a text, a pair, or a labelled text.

    A batch is a pure function of its step. It is read in parts, several of one process (`train.grad_accum_steps`), or
    one or more in each of several; the *mean* of the parts' losses is the loss of the batch.
    """

    shapes_vary: ClassVar[bool] = False
    """Whether batches have different lengths, so that a compiled step must take any."""

    tokenizer: Tokenizer

    @property
    @abstractmethod
    def data_sha256(self) -> str:
        """The SHA-256 of the data that the run is trained on: a resumed run goes on with no other."""

    @abstractmethod
    def batch(self, step: int, part: int, n_parts: int) -> tuple[Tensor, ...]:
        """One of the `n_parts` parts of a step's batch, as tensors on the CPU."""

    @abstractmethod
    def n_tokens(self, step: int) -> int:
        """The tokens of a step's batch, all parts together, as the run counts them."""

    @abstractmethod
    def loss(self, model: Any, *batch: Tensor) -> Float[Tensor, ""]:
        """What training makes small, of one part, in nats."""

    @property
    @abstractmethod
    def rows_per_step(self) -> float:
        """The rows of a step's batch, all parts together; their mean where batches differ."""

    @property
    @abstractmethod
    def n_held_out(self) -> int:
        """The rows of the held-out split; 0 where there is none."""

    @abstractmethod
    def evaluate(self, model: Any, dtype: torch.dtype, n_rows: int | None = None) -> Measured | None:
        """Measure a model on the whole held-out split, or on so many of its rows.

        None where there is no such split, or nothing in those rows to measure it by. The rows are evenly spaced over
        the split, the same ones every time. No random stream of training is drawn from.
        """

    def metrics(self, measured: Any) -> dict[str, float]:
        """What a line of metrics.jsonl says of an evaluation besides its loss."""
        return {}

    def sample(self, model: Any) -> str:
        """Something by the model so far, for people; the same for the same state."""
        return ""

    def fit(self, model: ModelConfig) -> ModelConfig:
        """The model with what only the data know: the vocabulary's size, the number of classes.

        Raises:
            ConfigError: the model was given another number.
        """
        return with_size(model, "vocab_size", self.tokenizer.vocab_size, "the tokenizer's {} tokens")

    def fit_data(self, data: Data) -> Data:
        """The data's settings with what only the data themselves know: the labels."""
        return data

    def check_divides(self, n_parts: int) -> None:
        """Raise ConfigError where a batch cannot be divided into so many parts; most can."""
        return

    def check_measurable(self) -> None:
        """Raise DataError where there is a held-out split that no model can be measured on.

        Whatever an evaluation could find wrong with the data is found here, or when the task is opened: no run must
        end by it after hours.
        """
        return


def with_size(model: ModelConfig, key: str, size: int, whose: str) -> ModelConfig:
    """A model's configuration with a size that the data decide.

    Raises:
        ConfigError: it was given another one.
    """
    given = getattr(model, key)
    if given is not None and given != size:
        raise ConfigError(
            f"model.{key}: {given} does not fit {whose.format(size)}; leave it out, and it is taken from there"
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
