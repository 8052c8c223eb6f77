"""Scores of classifications: accuracy, macro-F1, precision and recall of each class, and the confusion matrix."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from clearformer.errors import columns_of, shortened

MOST_COLUMNS = 30  # the most classes for which the whole matrix is printed
MOST_CONFUSIONS = 10  # kinds of mistakes that are named
LONGEST_NAME = 24
WIDEST_CELL = 7  # a column's heading is its class's name if it fits, else its number


@dataclass(frozen=True)
class ClassScores:
    """One class: precision = right / predicted, recall = right / labelled, and F1, their harmonic mean.

    Each is 0 where it would be 0 / 0.
    """

    name: str
    precision: float
    recall: float
    f1: float
    support: int
    """The number of texts with this label."""


@dataclass(frozen=True)
class ClassificationReport:
    """A comparison of labels with predictions.

    Attributes:
        names: The names of the C classes.
        confusion: [C C] counts; row: the label, column: the prediction.
        loss: The mean of -log p(label) in nats, if probabilities are known.
    """

    names: tuple[str, ...]
    confusion: np.ndarray
    loss: float | None = None

    @property
    def n(self) -> int:
        """The number of texts."""
        return int(self.confusion.sum())

    @property
    def n_right(self) -> int:
        """The number of right predictions."""
        return int(self.confusion.trace())

    @property
    def accuracy(self) -> float:
        """The share of right predictions."""
        return self.n_right / self.n

    @cached_property
    def classes(self) -> tuple[ClassScores, ...]:
        """The scores of each class, in the order of `names`."""
        right = self.confusion.diagonal()
        labelled, predicted = self.confusion.sum(1), self.confusion.sum(0)
        precision, recall = _ratio(right, predicted), _ratio(right, labelled)
        f1 = _ratio(2 * right, labelled + predicted)
        columns = (precision.tolist(), recall.tolist(), f1.tolist(), labelled.tolist())
        return tuple(map(ClassScores, self.names, *columns))

    @property
    def macro_f1(self) -> float:
        """The unweighted mean of F1 over all classes that occur as a label or a prediction."""
        occurs = self.confusion.sum(0) + self.confusion.sum(1) > 0
        return float(np.mean([each.f1 for each, counts in zip(self.classes, occurs, strict=True) if counts]))

    @property
    def majority(self) -> float:
        """The accuracy of always predicting the most frequent label."""
        return int(self.confusion.sum(1).max()) / self.n

    def confusions(self) -> list[tuple[str, str, int]]:
        """Return the most frequent mistakes: label, prediction, count."""
        wrong = self.confusion.copy()
        np.fill_diagonal(wrong, 0)
        order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_CONFUSIONS]
        pairs = [divmod(int(place), len(self.names)) for place in order]
        return [(self.names[i], self.names[j], int(wrong[i, j])) for i, j in pairs if wrong[i, j]]

    def summary(self) -> str:
        """Return accuracy, macro-F1 and loss in one line."""
        loss = "" if self.loss is None else f", loss {self.loss:.3f}"
        return f"accuracy {self.accuracy:.2%} ({self.n_right:,} of {self.n:,}), macro-F1 {self.macro_f1:.4f}{loss}"

    def to_json(self) -> dict[str, Any]:
        """Return all values, for `json.dumps`."""
        return {
            "n": self.n,
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "majority": self.majority,
            "loss": self.loss,
            "classes": [vars(each) for each in self.classes],
            "confusion": self.confusion.tolist(),
        }

    def table(self) -> str:
        """Return a table of every class's scores, as text."""
        width = max(len("label"), *map(columns_of, self._short_names))
        lines = [f"{'label':{width}}  precision  recall     F1  texts"]
        for name, each in zip(self._short_names, self.classes, strict=True):
            scores = f"{each.precision:9.3f}  {each.recall:6.3f}  {each.f1:5.3f}"
            lines.append(f"{_padded(name, width)}  {scores}  {each.support:5,}")
        return "\n".join(lines)

    def confusion_table(self) -> str:
        """Return the confusion matrix as text; with more than 30 classes, the most frequent mistakes."""
        if len(self.names) > MOST_COLUMNS:
            return self._confusion_list()
        names = self._short_names
        if max(map(columns_of, names)) <= WIDEST_CELL:
            rows, columns = names, names
        else:
            rows = [f"{number:2} {name}" for number, name in enumerate(names, start=1)]
            columns = [str(number) for number in range(1, len(names) + 1)]
        cells = [[f"{count}" if count else "." for count in row] for row in self.confusion.tolist()]
        widths = [max(map(columns_of, column)) for column in zip(columns, *cells, strict=True)]
        first = max(len("label"), *map(columns_of, rows))

        def line(start: str, row: Sequence[str]) -> str:
            return f"{_padded(start, first)}  " + " ".join(
                f"{' ' * (w - columns_of(cell))}{cell}" for cell, w in zip(row, widths, strict=True)
            )

        head = ["rows: the label; columns: the prediction", line("", columns)]
        return "\n".join((*head, *(line(start, row) for start, row in zip(rows, cells, strict=True))))

    def _confusion_list(self) -> str:
        mistakes = [
            (shortened(label, LONGEST_NAME), shortened(predicted, LONGEST_NAME), n)
            for label, predicted, n in self.confusions()
        ]
        if not mistakes:
            return "no mistakes"
        width = max(columns_of(label) for label, _, _ in mistakes)
        lines = [
            f"{_padded(label, width)}  predicted as {predicted}: {n:,}" for label, predicted, n in mistakes
        ]
        return "\n".join(("the most frequent mistakes:", *lines))

    @cached_property
    def _short_names(self) -> list[str]:
        return [shortened(name, LONGEST_NAME) for name in self.names]

    def __str__(self) -> str:
        return "\n\n".join((self.summary(), self.table(), self.confusion_table()))


def classification_report(
    labels: ArrayLike, predictions: ArrayLike, names: Sequence[str], logprobs: ArrayLike | None = None
) -> ClassificationReport:
    """Return the scores of a classifier on N texts.

    Args:
        labels: [N], the index of each text's label in `names`.
        predictions: [N], likewise.
        names: The names of the C classes.
        logprobs: [N C] in nats, if they are known.

    Raises:
        ValueError: there are no texts, or the arrays do not fit each other or `names`.
    """
    # Products of 8 bits would overflow.
    true, predicted = (np.asarray(each, np.int64) for each in (labels, predictions))
    if true.shape != predicted.shape or true.ndim != 1 or not true.size:
        raise ValueError(
            f"labels and predictions must be two rows of the same length; got {true.shape}, {predicted.shape}"
        )
    n_classes = len(names)
    if min(true.min(), predicted.min()) < 0 or max(true.max(), predicted.max()) >= n_classes:
        raise ValueError(f"a label or prediction lies outside 0 to {n_classes - 1}")
    confusion = np.bincount(true * n_classes + predicted, minlength=n_classes**2)
    loss = None
    if logprobs is not None:
        logp = np.asarray(logprobs, np.float64)
        if logp.shape != (len(true), n_classes):
            raise ValueError(f"logprobs must be [{len(true)} {n_classes}]; got {list(logp.shape)}")
        loss = 0.0 - float(logp[np.arange(len(true)), true].mean())  # 0.0, never -0.0
    return ClassificationReport(tuple(names), confusion.reshape(n_classes, n_classes), loss)


def _padded(name: str, width: int) -> str:
    """Return a name with spaces after it, up to `width` columns."""
    return name + " " * (width - columns_of(name))


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
