"""A mean over nothing is no number: an empty split is refused in one line."""

from types import SimpleNamespace
from typing import Any

import pytest

from clearformer.errors import DataError
from clearformer.evaluation.classes.scores import evaluate_classes
from clearformer.evaluation.teacher_forcing import evaluate_pairs


class Empty(tuple):
    """A split with nothing in it."""

    name = "val"


def test_no_pairs() -> None:
    nothing: Any = Empty()
    with pytest.raises(DataError, match="the val split has no pairs to evaluate a model on"):
        evaluate_pairs(nothing, nothing, nothing)


def test_no_labelled_texts() -> None:
    model: Any = SimpleNamespace(config=SimpleNamespace(n_classes=2))
    dataset: Any = SimpleNamespace(labels=("a", "b"), splits={"val": Empty()})
    with pytest.raises(DataError, match="the val split has no texts to evaluate a model on"):
        evaluate_classes(model, dataset)
