"""The scores of a run as a value: `evaluate`, the form of `evaluate_run` for Python."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Protocol

import torch

from clearformer.errors import RunError, UserError
from clearformer.results import Result, plain, short
from clearformer.runs.evaluation import DataChoice, evaluate_run
from clearformer.runs.folders import RunLike
from clearformer.training.tasks.task import EvaluationOptions

Files = str | PathLike[str] | Sequence[str | PathLike[str]]


class EvaluatedRun(RunLike, Protocol):
    """A run that can be measured."""

    @property
    def dtype(self) -> torch.dtype: ...


@dataclass(frozen=True, repr=False)
class Scores(Result):
    """The scores of a run: the figures that `clearformer eval --json` prints, by their names.

        scores["perplexity"], scores.loss

    Attributes:
        loss: The mean of -log p, in nats: of each token, or of each text's class.
        values: All figures.
    """

    loss: float
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __repr__(self) -> str:
        numbers = {name: value for name, value in self.values.items() if isinstance(value, float)}
        return f"Scores({', '.join(f'{name}={short(value)}' for name, value in numbers.items())})"

    def to_dict(self) -> dict[str, Any]:
        return plain(dict(self.values))


def evaluate(
    run: EvaluatedRun,
    data: Files | None = None,
    *,
    split: str = "val",
    context: int | None = None,
    stride: int | None = None,
    beams: int = 5,
    dtype: torch.dtype | None = None,
    allow_changed: bool = False,
) -> Scores:
    """Measure a run by what it was trained for, on a whole split of its data or on files.

    Of a text: loss, perplexity, bits per token, character and byte. Of pairs: loss, perplexity and accuracy of the
    tokens of given translations; BLEU, chrF and exact match of the model's own. Of masked tokens: loss, perplexity and
    accuracy. Of labelled texts: loss, accuracy and macro-F1.

    Args:
        run: A run that was trained here or opened.
        data: A file that is read whole, or two, source and target; the run's own data, where not given.
        split: Of the run's own data.
        context: Of a text: tokens read at once (the model's length).
        stride: Of a text: tokens between readings (half the context).
        beams: Of pairs: of the search that translates; 1 is greedy.
        dtype: The type of the matrix products (autocast); as in training, where not given.
        allow_changed: Whether the run's own data are read though they have changed since.

    Raises:
        RunError: the run has no such split, or no data of its own.
        DataError, TokenizerError: the data cannot be read, or not by this run; or they have changed.
        UserError: the context or the stride is out of range, or the number of files is wrong.
    """
    files = [data] if isinstance(data, str | PathLike) else data or []
    choice = DataChoice(split, [str(file) for file in files], allow_changed)
    options = EvaluationOptions(run.dtype if dtype is None else dtype, context, stride, beams)
    try:
        report = evaluate_run(run, choice, options)
    except (RunError, UserError) as error:  # messages name options of the command line
        raise type(error)(str(error).removeprefix("--")) from None
    return Scores(report.values["loss"], report.values)
