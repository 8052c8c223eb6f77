"""A word's vectors across texts: the plane against torch's own principal components."""

from typing import Any

import pytest
import torch

from clearformer import lens
from clearformer.errors import NonFiniteError, UserError
from clearformer.lens.meanings import MOST_CONTEXTS

from .test_embeddings import FAMILIES, TEXT, run_of

CONTEXTS = [
    "I sat on the bank of the river.",
    "The bank lends money, and the bank takes it.",
    "the river takes the bank",
    "money of the bank",
]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_plane_is_that_of_the_two_principal_components(family: str) -> None:
    run: Any = run_of(family)
    found = lens.meanings(run, TEXT, word="bank", contexts=CONTEXTS, layer=1)
    read = lens.embed(run, CONTEXTS)
    vectors = [each.word("bank", n)[2] for each in read for n in range(each.read_text.count("bank"))]
    stacked = torch.stack(vectors).double()
    assert [place.context for place in found.places] == [0, 1, 1, 2, 3]
    centred = stacked - stacked.mean(0)
    sizes, directions = torch.linalg.eigh(centred.T @ centred)
    wanted = centred @ directions[:, [-1, -2]]
    points = torch.as_tensor(found.points)
    torch.testing.assert_close(points @ points.T, wanted @ wanted.T, atol=1e-5, rtol=1e-4)
    assert found.shares == pytest.approx((sizes[[-1, -2]] / sizes.sum()).tolist(), rel=1e-5)
    assert 0 < sum(found.shares) < 1
    assert found.sees_before_alone == (family == "decoder")
    assert f"{sum(found.shares):.1%} of the variance" in found.caption()


def test_without_a_word_and_contexts_it_is_the_texts_most_frequent() -> None:
    run: Any = run_of("encoder")
    found = lens.meanings(run, TEXT)
    assert (found.word, len(found.places)) == ("bank", 2)
    assert found.places[0].label.startswith("The bank lends")
    assert found.shares == pytest.approx([1, 0])  # of two points
    assert "all variance of 2 points" in found.notes()[0]
    assert lens.meanings(run, "river").points.tolist() == [[0, 0]]


def test_lines_are_contexts() -> None:
    run: Any = run_of("decoder")
    lines = lens.meanings(run, TEXT, word="bank", contexts="\n".join([*CONTEXTS, "", " "]))
    assert lines == lens.meanings(run, TEXT, word="bank", contexts=CONTEXTS)
    assert lines.table().rows[0][1] == "I sat on the bank of the river."


def test_vectors_that_are_no_numbers_are_one_line() -> None:
    run = run_of("decoder")
    with torch.no_grad():
        run.model.embed.weight.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="the model's vectors are not finite numbers; use an earlier"):
        lens.meanings(run, TEXT, word="bank")


def test_what_cannot_be_shown_is_refused() -> None:
    run: Any = run_of("decoder")
    with pytest.raises(UserError, match="'bank' does not occur in 'the river'"):
        lens.meanings(run, TEXT, word="bank", contexts=["the bank", "the river"])
    with pytest.raises(UserError, match="contexts: at most"):
        lens.meanings(run, TEXT, contexts=["the bank"] * (MOST_CONTEXTS + 1))
    with pytest.raises(UserError, match="word: the text contains no word"):
        lens.meanings(run, "...")
    with pytest.raises(UserError, match="layer 3"):
        lens.meanings(run, TEXT, layer=3)
    wrong: Any = 5
    with pytest.raises(UserError, match="text: expected text; got 5"):
        lens.meanings(run, wrong)
    with pytest.raises(UserError, match="word: expected text; got 5"):
        lens.meanings(run, TEXT, word=wrong)
    with pytest.raises(UserError, match=r"contexts: a list of texts, such as \['the bank'\]; got 5"):
        lens.meanings(run, TEXT, contexts=wrong)
    with pytest.raises(UserError, match="contexts: each is a text; got 5"):
        lens.meanings(run, TEXT, contexts=[wrong])
