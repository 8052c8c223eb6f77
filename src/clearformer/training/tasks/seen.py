"""How much of evaluated data stands in training too: there a score says what was learnt by heart.

Pairs and labelled texts are compared whole, running texts in stretches (`data/text/overlap.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from clearformer.data import PairSplit, Split
from clearformer.data.holding_out import also_in
from clearformer.data.labelled.preparing import LabelledSplit
from clearformer.data.text.overlap import overlap, usual_width
from clearformer.errors import DataError, RunError, count
from clearformer.training.tasks.reports import Figure
from clearformer.training.tasks.task import EvaluationData

NAME = "also in training"
COMPARING = "comparing with the training data"


class Seen(NamedTuple):
    """How much of a text stands in training too: a line for people, and values for JSON."""

    figures: tuple[Figure, ...]
    values: dict[str, Any]


@dataclass(frozen=True)
class ChosenRows:
    """The rows of a split that are evaluated.

    Attributes:
        indices: Their indices in the split, [N] int64.
        description: How much of the data they are, in words.
        figures: A line for people about those that share a text with a row in training.
        values: For JSON, how many these are, and how many of them were left out.
    """

    indices: np.ndarray
    description: str
    figures: tuple[Figure, ...]
    values: dict[str, Any]


def seen_text(data: EvaluationData, text: Split) -> Seen:
    """Find how much of a text stands in the training text; null where that is this text itself, or not at hand."""
    train = _other_training_split(data)
    if train is None:
        return Seen((), {"also_in_train": None})
    data.progress(COMPARING, 0, None)
    found = overlap(text, train, usual_width(text))
    share = f"{found.share:.1%}, in stretches of {count(found.width, 'token')} or more"
    return Seen((Figure(NAME, share),), {"also_in_train": found._asdict()})


def choose_rows(data: EvaluationData, rows: PairSplit | LabelledSplit, *, unseen: bool) -> ChosenRows:
    """Choose the rows to evaluate: all, or only those that share no text with a row in training, up to white space.

    Raises:
        DataError: with `unseen`, none is left, or the training data cannot be read.
        RunError: with `unseen`, the run has no training data.
    """
    noun = "pair" if isinstance(rows, PairSplit) else "text"
    train: Any = data.training_data().splits["train"] if unseen else _other_training_split(data)
    everything = np.arange(len(rows))
    if train is None:
        return ChosenRows(everything, data.description, (), {"n_also_in_train": None, "n_left_out": 0})
    data.progress(COMPARING, 0, None)
    seen = np.array(list(also_in(_sides(rows), _sides(train))), bool)
    n = int(seen.sum())
    if not unseen:
        figure = Figure(NAME, f"{n:,} of {count(len(rows), noun)}")
        return ChosenRows(everything, data.description, (figure,), {"n_also_in_train": n, "n_left_out": 0})
    if n == len(rows):
        raise DataError(f"{data.description}: every {noun} is also in training, so there is none to evaluate")
    description = f"{data.description}, without those also in training ({n:,})"
    return ChosenRows(everything[~seen], description, (), {"n_also_in_train": 0, "n_left_out": n})


def _other_training_split(data: EvaluationData) -> Any | None:
    """Return the split that the run was trained on; None if it cannot be read, or is the one that is evaluated."""
    try:
        train = data.training_data().splits["train"]
    except (DataError, RunError):
        return None
    return None if train is data.prepared.splits[data.split] else train


def _sides(rows: PairSplit | LabelledSplit) -> Iterable[tuple[str, ...]]:
    if isinstance(rows, PairSplit):
        return zip(rows.source_texts, rows.target_texts, strict=True)
    return ((text,) for text in rows.texts)
