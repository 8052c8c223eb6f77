"""The scores of a run as a value: `evaluate`, the form of `evaluate_run` for Python."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Protocol

import torch

from clearformer.decoding.arguments import check_run
from clearformer.errors import UserError, did_you_mean, shown
from clearformer.results import Result, plain, short
from clearformer.runs.evaluation import DataChoice, evaluate_run
from clearformer.runs.folders import RunLike
from clearformer.training.tasks.task import EvaluationOptions

MATRIX_DTYPES = ("float32", "bfloat16", "float16")
Files = str | PathLike[str] | Sequence[str | PathLike[str]]


class EvaluatedRun(RunLike, Protocol):
    """A run that can be measured."""

    @property
    def dtype(self) -> torch.dtype: ...


@dataclass(frozen=True, repr=False, eq=False)
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
    split: str | None = None,
    context: int | None = None,
    stride: int | None = None,
    beams: int | None = None,
    unseen: bool = False,
    dtype: torch.dtype | str | None = None,
    allow_changed: bool = False,
) -> Scores:
    """Measure a run by what it was trained for, on a whole split of its data or on files.

    Of a text: loss, perplexity, bits per token, character and byte. Of pairs: loss, perplexity and accuracy of the
    tokens of given translations; BLEU, chrF and exact match of the model's own. Of masked tokens: loss, perplexity and
    accuracy. Of labelled texts: loss, accuracy and macro-F1.

    Args:
        run: A run that was trained here or opened.
        data: A file that is read whole, or two, source and target; the run's own data, where not given.
        split: Of the run's own data: `val`, where not given.
        context: Of a text: tokens read at once (the model's length).
        stride: Of a text: tokens between readings (half the context).
        beams: Of pairs: of the search that translates (5); 1 is greedy.
        unseen: Of labelled texts: whether those that stand in training too are left out.
        dtype: The type of the matrix products (autocast), also by name (`bfloat16`); as in training, where
            not given.
        allow_changed: Whether the run's own data are read though they have changed since.

    Raises:
        RunError: the run has no such split, or no data of its own.
        DataError, TokenizerError: the data cannot be read, or not by this run; or they have changed.
        UserError: an option is out of range or is for other runs, or the number of files is wrong.
        NonFiniteError: the loss is no finite number.
    """
    check_run(run, "config", "dtype")
    choice = DataChoice(split, _names(data), allow_changed)
    its_dtype = run.dtype if dtype is None else _matrix_dtype(dtype)
    options = EvaluationOptions(its_dtype, context, stride, beams, unseen)
    report = evaluate_run(run, choice, options)
    return Scores(report.values["loss"], report.values)


def _names(data: Files | None) -> list[str]:
    """The names of some files; none, where none are given.

    Raises:
        UserError: it is an empty list, or no names of files.
    """
    if data is None:
        return []
    files = [data] if isinstance(data, str | PathLike) else data
    if not isinstance(files, Sequence) or not all(isinstance(file, str | PathLike) for file in files):
        raise UserError(f"data: the name of a file, or a list of two; got {shown(data)}")
    if not files:
        raise UserError("data: the list is empty; name a file, or leave out data to read the run's own")
    return [str(file) for file in files]


def _matrix_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """A type of the matrix products, also by its name.

    Raises:
        UserError: matrix products are not formed in it.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in MATRIX_DTYPES:
        raise UserError(
            f"dtype: {' or '.join(MATRIX_DTYPES)}; got {shown(name)}{did_you_mean(name, MATRIX_DTYPES)}"
        )
    return getattr(torch, name)
