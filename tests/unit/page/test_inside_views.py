"""Views of what is inside a prediction: the selection reaches the lens, and what comes is what the Python gives."""

from typing import Any

import numpy as np
import pytest

import clearformer as cf
from clearformer import lens
from clearformer.errors import UserError
from clearformer.model import build
from clearformer.model.attention import MultiHead
from clearformer.page.beginning import first_selection
from clearformer.page.selection import Selection, read_selection
from clearformer.page.standalone.export import BESIDE
from clearformer.page.views import VIEWS, views_of
from clearformer.page.wire import decode, encode

from .test_desks import FAMILIES, of_python, run_of

TEXT = "the bank"
CONTEXTS = "the bank lends money\nthe river takes the bank"
INSIDE = ("sources", "score", "classes", "meanings", "pieces")


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    return {kind: run_of(kind) for kind in FAMILIES}


@pytest.mark.parametrize("kind", FAMILIES)
def test_each_is_what_its_python_gives(kind: str, runs: dict[str, Any]) -> None:
    run = runs[kind]
    chosen = {
        "text": TEXT,
        "position": 1,
        "key": 1,
        "layer": 1,
        "head": 1,
        "word": "bank",
        "contexts": CONTEXTS,
    }
    pair = {"part": "cross_attn", "output": "river"} if kind == "encoder-decoder" else {}
    for selection in (Selection(text=TEXT, output="river"), read_selection(chosen | pair)):
        for name in INSIDE:
            if name in views_of(run):
                found = VIEWS[name].call(run, selection)
                assert encode(found) == encode(of_python(run, VIEWS[name].as_python(run, selection)))
    assert ("classes" in views_of(run)) == (kind == "classes")


def test_a_score_is_of_the_selected_cell_in_a_classifier_too(runs: dict[str, Any]) -> None:
    selection = Selection(text=TEXT, layer=1, head=1, position=1, key=2)
    for kind in ("encoder", "classes"):
        found = decode(encode(VIEWS["score"].call(runs[kind], selection)))
        assert (found["query_position"], found["key_position"], found["head"]) == (1, 2, 1)
        assert found["error"] < 1e-5
        pattern: Any = VIEWS["pattern"].call(runs[kind], selection)
        assert pattern.position == 1
        assert found["weight"] == pytest.approx(float(pattern.reads[2]), abs=1e-6)
        assert sum(part["value"] for part in found["queries"]) == pytest.approx(found["score"], abs=1e-5)


def test_a_score_that_is_not_there_is_one_line(runs: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="may not read it, because it comes later"):
        VIEWS["score"].call(runs["decoder"], Selection(text=TEXT, position=1, key=3))


def test_the_words_texts_and_the_method_reach_the_lens(runs: dict[str, Any]) -> None:
    found: Any = VIEWS["meanings"].call(
        runs["encoder"], Selection(text=TEXT, word="bank", contexts=CONTEXTS, layer=1)
    )
    own = lens.meanings(runs["encoder"], TEXT, word="bank", contexts=CONTEXTS.splitlines(), layer=1)
    np.testing.assert_array_equal(found.points, own.points)
    classes: Any = VIEWS["classes"].call(
        runs["classes"], Selection(text=TEXT, method="occlusion", target="2")
    )
    assert (classes.target, classes.attribution.method) == ("2", "occlusion")


def test_an_exported_page_takes_each_token_of_a_short_text_apart(runs: dict[str, Any]) -> None:
    run, selection = runs["decoder"], Selection(text=TEXT, position=2)
    tokens = VIEWS["tokens"].call(run, selection)
    held = [each.position for each in BESIDE["pieces"]({"tokens": tokens}, selection)]
    assert held == list(range(len(TEXT)))
    long = lens.tokens(run, TEXT * 4)
    object.__setattr__(long, "tokens", ["a"] * 1000)
    assert [each.position for each in BESIDE["pieces"]({"tokens": long}, selection)] == [2]


def test_the_first_score_of_a_windowed_model_is_one_that_may_be_read() -> None:
    plain = run_of("decoder")
    windowed = plain.model.config.replace(attention=MultiHead(n_heads=2, window=3))
    run = cf.Run(build(windowed), plain.tokenizer)
    selection = first_selection(run, TEXT)
    found: Any = VIEWS["score"].call(run, selection)
    assert found.key_position == found.query_position > 3
    assert first_selection(plain, TEXT).key == 0
