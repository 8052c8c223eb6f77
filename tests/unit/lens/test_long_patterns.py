"""Attention of long texts: small pictures of all heads, and the weights of one around a place."""

from typing import Any

import numpy as np
import pytest

from clearformer import lens
from clearformer.errors import UserError
from clearformer.model.attention import Last
from clearformer.model.positions import NoPositions

from .test_embeddings import FAMILIES, TEXT, run_of

WRITTEN = "the river"


@pytest.fixture(scope="module", params=FAMILIES)
def texts(request: pytest.FixtureRequest) -> tuple[Any, ...]:
    """A run, its text, and what it writes."""
    run = run_of(request.param)
    return (run, TEXT, WRITTEN) if request.param == "encoder-decoder" else (run, TEXT)


def test_a_small_pattern_has_the_largest_weights_of_its_groups(texts: tuple[Any, ...]) -> None:
    whole, found = lens.attention(*texts), lens.attention_overview(*texts, most=5)
    assert found.patterns.keys() == whole.patterns.keys()
    for name, pattern in whole.patterns.items():
        small, (rows, columns) = found.patterns[name], found.steps[name]
        assert max(small.shape[1:]) <= 5
        for head in whole.heads:
            for r, c in np.ndindex(small.shape[1:]):
                group = pattern[head, r * rows : (r + 1) * rows, c * columns : (c + 1) * columns]
                np.testing.assert_allclose(small[head, r, c], group.max(), atol=1e-7)
    assert found.table().rows == whole.table().rows
    assert "largest weight" in found.notes()[0]


def test_a_short_texts_overview_is_its_patterns(texts: tuple[Any, ...]) -> None:
    whole, found = lens.attention(*texts), lens.attention_overview(*texts)
    for name, pattern in whole.patterns.items():
        np.testing.assert_allclose(found.patterns[name], pattern, atol=1e-7)
    assert found.notes() == []
    assert found.tokens == whole.tokens
    assert found.source == whole.source


def test_the_overview_and_a_head_have_the_same_numbers(texts: tuple[Any, ...]) -> None:
    overview, part = lens.attention_overview(*texts), "cross_attn" if len(texts) == 3 else "attn"
    for layer in (0, 2):
        found = lens.head_pattern(*texts, layer=layer, head=1, part=part)
        np.testing.assert_array_equal(found.weights, overview.patterns[found.name][1])


@pytest.mark.parametrize("part", ["attn", "cross_attn", "encoder"])
def test_a_heads_pattern_is_that_of_its_layer(part: str) -> None:
    run = run_of("encoder-decoder")
    stack = "encoder" if part == "encoder" else "decoder"
    name = f"{stack}_blocks.1.{'cross_attn' if part == 'cross_attn' else 'attn'}.hook_pattern"
    _, cache = lens.run_with_cache(run, TEXT, WRITTEN, names=name)
    found = lens.head_pattern(run, TEXT, WRITTEN, layer=1, head=1, part=part, position=2, key=1)
    np.testing.assert_array_equal(found.weights, cache[name][0, 1])
    np.testing.assert_array_equal(found.reads, found.weights[2])
    assert found.name == name
    assert found.is_whole
    assert found.notes() == []
    assert (len(found.tokens), len(found.read)) == found.weights.shape
    assert found.table().rows[2][:2] == ["2", found.tokens[2].replace(" ", "␣")]


def test_of_a_long_text_the_weights_around_a_place_are_given() -> None:
    run = run_of("decoder")
    whole = lens.head_pattern(run, TEXT, layer=2).weights
    n = len(whole)
    for position, key in ((n - 1, 0), (n // 2, 3), (0, 0), (-1, n - 2)):
        found = lens.head_pattern(run, TEXT, layer=2, position=position, key=key, most=7)
        top, left = found.first_row, found.first_column
        assert found.weights.shape == (7, 7)
        np.testing.assert_array_equal(found.weights, whole[top : top + 7, left : left + 7])
        np.testing.assert_array_equal(found.reads, whole[position])
        assert top <= found.position < top + 7
        assert left <= found.key < left + 7
        assert not found.is_whole
        assert f"of {n}" in found.notes()[0]
        assert found.table().rows[0][0] == str(top)


def test_a_key_behind_the_last_is_the_last() -> None:
    found = lens.head_pattern(run_of("decoder"), "the bank", key=90)
    assert found.key == len(found.read) - 1


@pytest.mark.parametrize("function", [lens.attention_overview, lens.head_pattern])
def test_what_cannot_be_shown_is_said(function: Any) -> None:
    run = run_of("decoder")
    with pytest.raises(UserError, match="most: 1 or more"):
        function(run, TEXT, most=0)
    bigram = run_of("decoder", attention=Last(), position=NoPositions())
    with pytest.raises(UserError, match="attention"):
        function(bigram, TEXT)


@pytest.mark.parametrize(
    "given", [{"layer": 3}, {"head": 2}, {"part": "cross_attn"}, {"position": 400}, {"key": "first"}]
)
def test_a_place_that_is_not_there_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(given))):
        lens.head_pattern(run_of("decoder"), TEXT, **given)


def test_both_draw_themselves(tmp_path: Any) -> None:
    run = run_of("decoder")
    for i, found in enumerate(
        (lens.attention_overview(run, TEXT, most=4), lens.head_pattern(run, TEXT, most=5))
    ):
        assert found.figure(tmp_path / f"{i}.png").stat().st_size > 1000
