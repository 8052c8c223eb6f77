"""What is handed to the functions of a run is looked at first."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clearformer.decoding.arguments import check_run, check_whole
from clearformer.errors import UserError
from clearformer.model import ModelConfig, build


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (None, r"give a run, such as cf\.load\('NAME'\); got None$"),
        ("mine", r"give a run, such as cf\.load\('mine'\); got an object of type str$"),
        (3, r"got an object of type int$"),
    ],
)
def test_what_is_no_run_is_named_with_the_way_to_one(run: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_run(run)


def test_a_model_alone_becomes_a_run_with_its_tokenizer() -> None:
    model = build(ModelConfig(vocab_size=5, d_model=4, n_layers=1))
    with pytest.raises(UserError, match=r"got a model alone; cf\.Run\(model, tokenizer\) makes a run of it$"):
        check_run(model)


def test_a_run_has_all_that_is_asked_of_it() -> None:
    run = SimpleNamespace(model=1, tokenizer=2)
    check_run(run)
    with pytest.raises(UserError, match="an object of type SimpleNamespace"):
        check_run(run, "config")


@pytest.mark.parametrize("value", [3, 0, -1, np.int64(3)])
def test_whole_numbers_are_whole(value: Any) -> None:
    check_whole("num", value)


@pytest.mark.parametrize("value", [3.0, "3", None, True, float("nan")])
def test_other_values_are_not(value: Any) -> None:
    with pytest.raises(UserError, match="num: a whole number; got"):
        check_whole("num", value)


def test_a_whole_number_may_have_a_least_value() -> None:
    check_whole("num", 1, least=1)
    with pytest.raises(UserError, match=r"^num: 1 or more; got 0$"):
        check_whole("num", 0, least=1)
