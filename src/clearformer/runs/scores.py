"""`evaluate`, which returns a run's scores: the Python interface of `evaluate_run`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, Protocol

import torch

from clearformer.data import Progress
from clearformer.decoding.arguments import check_function, check_run, matrix_dtype
from clearformer.errors import UserError, shown
from clearformer.results import Result, plain
from clearformer.runs.evaluation import DataChoice, evaluate_run
from clearformer.runs.folders import RunLike
from clearformer.training.tasks.task import EvaluationOptions

Files = str | PathLike[str] | Sequence[str | PathLike[str]]


class EvaluatedRun(RunLike, Protocol):
    """A run that can be evaluated."""

    @property
    def dtype(self) -> torch.dtype: ...


@dataclass(frozen=True, repr=False, eq=False)
class Scores(Result, Mapping[str, Any]):
    """The scores of a run: the figures that `clearformer eval --json` prints, as a mapping from their names.

        scores["perplexity"], scores.loss, dict(scores)

    Attributes:
        loss: The mean of -log p, in nats: over tokens, or over the classes of texts.
        figures: All of them.
    """

    loss: float
    figures: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.figures)

    def __len__(self) -> int:
        return len(self.figures)

    def _values(self) -> dict[str, Any]:
        return {name: value for name, value in self.items() if isinstance(value, float)}

    def to_dict(self) -> dict[str, Any]:
        return plain(dict(self))


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
    progress: Progress = lambda *_: None,
) -> Scores:
    """Evaluate a run on the task that it was trained for, on a whole split of its data or on files.

    Language models: loss, perplexity, bits per token, character and byte. Translators: loss, perplexity and accuracy of
    the tokens of given translations; BLEU, chrF and exact match of the model's own. Masked models: loss, perplexity and
    accuracy of masked tokens. Classifiers: loss, accuracy and macro-F1.

    Args:
        run: A run that was trained here or opened.
        data: A file to read whole, or two, source and target. By default the run's own data.
        split: The split of the run's own data; by default `val`.
        context: Language models: tokens in a window (by default the model's maximum length).
        stride: Language models: tokens from the start of one window to the next (by default half the context).
        beams: Translators: beams of the search that translates (by default 5); 1 is greedy.
        unseen: Classifiers and translators: whether to leave out texts, and pairs with a source or translation, that
            are in the training split too.
        dtype: The type of the matrix products (autocast), also by name (`bfloat16`). By default as in training.
        allow_changed: Whether to read the run's own data even if they have changed since training.
        progress: Called with what is being done (such as `evaluating`), how much of it is done, and the total (None
            where it is not known).

    Raises:
        RunError: the run has no such split, or no data of its own.
        DataError, TokenizerError: the data cannot be read, or not by this run; or they have changed.
        UserError: an option is out of range or is for other runs, or the number of files is wrong.
        NonFiniteError: the loss is not finite.
    """
    check_run(run, "config", "dtype")
    choice = DataChoice(split, _names(data), allow_changed)
    its_dtype = run.dtype if dtype is None else matrix_dtype(dtype)
    check_function("progress", progress)
    options = EvaluationOptions(its_dtype, context, stride, beams, unseen)
    report = evaluate_run(run, choice, options, progress=progress)
    return Scores(report.values["loss"], report.values)


def _names(data: Files | None) -> list[str]:
    """Return the names of the given files as a list; empty if none are given.

    Raises:
        UserError: it is an empty list, or not file names.
    """
    if data is None:
        return []
    files = [data] if isinstance(data, str | PathLike) else data
    if not isinstance(files, Sequence) or not all(isinstance(file, str | PathLike) for file in files):
        raise UserError(f"data: takes a file name or a list of two; got {shown(data)}")
    if not files:
        raise UserError("data: the list is empty; name a file, or omit data to read the run's own")
    return [fspath(file) for file in files]
