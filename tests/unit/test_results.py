"""Results are compared by their values, are short to look at, and whole as `to_dict()`."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import clearformer as cf
from clearformer.results import LONGEST_TEXT, Result, short
from clearformer.runs.scores import Scores
from clearformer.text import ByteTokenizerSpec


@dataclass(frozen=True, repr=False, eq=False)
class Found(Result):
    name: str
    numbers: Any
    maker: Any = field(default=None, repr=False)


@pytest.mark.parametrize("of", [np.array, torch.tensor, list, lambda numbers: {"a": np.array(numbers)}])
def test_results_of_equal_values_are_equal(of: Any) -> None:
    one = Found("a", of([1, 2]))
    assert one == Found("a", of([1, 2]), maker=7)
    assert hash(one) == hash(Found("a", of([1, 2])))
    assert one != Found("b", of([1, 2]))
    assert one != Found("a", of([1, 3]))
    assert one != Found("a", of([1, 2, 3]))
    assert one != "a"


@pytest.mark.parametrize("of", [np.array, torch.tensor, list, lambda numbers: numbers[0]])
def test_a_missing_value_equals_a_missing_value(of: Any) -> None:
    one, other = Found("a", of([float("nan"), 1.0])), Found("a", of([float("nan"), 1.0]))
    assert one == other
    assert hash(one) == hash(other)
    assert one != Found("a", of([0.0, 1.0]))


def test_a_notebook_shows_a_row_for_each_value_and_texts_in_full() -> None:
    text = "<b> & " + "x" * LONGEST_TEXT
    html = Found(text, [1.23456, 2], maker=7)._repr_html_()
    assert html.count("<tr>") == 2
    assert "&lt;b&gt; &amp; " + "x" * LONGEST_TEXT in html
    assert "[1.235, 2]" in html
    assert "maker" not in html


def test_a_notebook_shows_the_values_of_a_plan_and_of_scores() -> None:
    plan = cf.plan("quick")
    assert f"{plan.parameters.total}" in plan._repr_html_()
    scores = Scores(0.5, {"loss": 0.5, "perplexity": 1.6487, "dtype": "float32"})
    assert repr(scores) == "Scores(loss=0.5, perplexity=1.649)"
    assert scores._repr_html_().count("<tr>") == 2


def every_kind_of(base: type) -> Iterator[type]:
    for kind in base.__subclasses__():
        yield kind
        yield from every_kind_of(kind)


def test_every_result_is_compared_so() -> None:
    from clearformer.lens import Embedded
    from clearformer.training.planning.plan import Plan

    kinds = set(every_kind_of(Result))
    assert {Embedded, Plan} <= kinds
    assert [kind.__name__ for kind in kinds if kind.__eq__ is not Result.__eq__] == []


def test_tokens_and_vectors_of_one_text_are_equal() -> None:
    assert cf.tokenize("abc") == cf.tokenize("abc")
    assert cf.tokenize("abc") != cf.tokenize("abd")
    model = cf.build(cf.ModelConfig(vocab_size=256, d_model=8, n_layers=1, attention={"n_heads": 2}))  # type: ignore[arg-type]
    run = cf.Run(model, ByteTokenizerSpec().train([]))
    assert cf.lens.embed(run, "ab") == cf.lens.embed(run, "ab")
    assert cf.lens.embed(run, "ab") != cf.lens.embed(run, "ac")


@pytest.mark.parametrize("text", ["  ", " a\tb\n", "x" * LONGEST_TEXT])
def test_white_space_is_shown_as_it_is(text: str) -> None:
    assert short(text) == repr(text)
    assert repr(Found(text, [])) == f"Found(name={text!r}, numbers=[])"


def test_a_long_text_is_cut() -> None:
    assert short(" " * 1000) == repr(" " * (LONGEST_TEXT - 3) + "...")


def test_a_plan_is_whole_as_a_dictionary_and_short_to_look_at() -> None:
    planned = cf.plan("quick", model={"n_layers": 1}, device="l4")
    assert planned.to_dict() == asdict(planned)
    assert json.loads(json.dumps(planned.to_dict()))["parameters"]["total"] == planned.parameters.total
    assert repr(planned).startswith(f"Plan(parameters={planned.parameters.total}, flops_per_token=")
    assert len(repr(planned)) < 150
