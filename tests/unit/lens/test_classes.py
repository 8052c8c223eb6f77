"""A classifier's classes: their probabilities, and what each token contributes to one, beside torch's own."""

from typing import Any

import pytest
import torch

from clearformer import lens
from clearformer.errors import UserError
from clearformer.model import ModelConfig, build

from .test_embeddings import run_of

IDS = [1, 2, 3, 4, 5]


@pytest.fixture
def model() -> Any:
    return build(ModelConfig(family="encoder", vocab_size=13, d_model=12, n_layers=2, n_classes=3)).double()


def test_the_probabilities_are_the_softmax_of_the_models_outputs(model: Any) -> None:
    found = lens.classes(model, IDS)
    with lens.quiet(model):
        wanted = model(torch.tensor([IDS]))[0].softmax(-1)
    assert {each.name: each.probability for each in found.classes} == pytest.approx(
        {str(i): float(p) for i, p in enumerate(wanted)}
    )
    assert [each.probability for each in found.classes] == sorted(wanted.tolist(), reverse=True)
    assert found.target == str(int(wanted.argmax()))


def test_integrated_gradients_sum_to_the_logit_less_that_of_the_baseline(model: Any) -> None:
    found = lens.classes(model, IDS, target=2, foil=0)
    with lens.quiet(model):
        logits = model(torch.tensor([IDS]))[0]
        mean = model.token_vectors(torch.arange(13)[None]).mean(1, keepdim=True)
        own = model.token_vectors(torch.tensor([IDS]))
        with model.hooked({"hook_embed": lambda x, _: x + mean - own}):
            before = model(torch.tensor([IDS]))[0]
    assert found.logit == pytest.approx(float(logits[2] - logits[0]))
    rise = float((logits[2] - logits[0]) - (before[2] - before[0]))
    assert found.missed is not None
    assert found.sum == pytest.approx(rise + found.missed)
    assert abs(found.missed) < 1e-3 * abs(rise)
    assert any("misses the difference" in note for note in found.notes())


@pytest.mark.parametrize("method", ["gradient x input", "occlusion"])
def test_the_other_methods_are_those_functions_and_promise_no_sum(method: str, model: Any) -> None:
    found = lens.classes(model, IDS, target=1, method=method)
    own = getattr(lens, method.replace(" ", "_"))(model, IDS, target=1)
    torch.testing.assert_close(found.attribution.values, own.values)
    assert found.missed is None
    assert "need not be equal" in found.notes()[0]
    assert [row[0] for row in found.table().rows] == ["class"] * 3 + ["token"] * len(IDS)


@pytest.mark.parametrize("method", ["integrated gradients", "gradient x input", "occlusion"])
def test_classes_are_told_in_inference_mode_too(method: str, model: Any) -> None:
    with torch.inference_mode():
        found = lens.classes(model, IDS, method=method)
        torch.manual_seed(1)
        made_there = build(model.config)
    assert found == lens.classes(model, IDS, method=method)
    assert not any(weight.is_inference() for weight in made_there.state_dict().values())


def test_a_text_that_another_model_read_is_classified_by_this_one(model: Any) -> None:
    torch.manual_seed(1)
    other = build(model.config).double()
    assert lens.classes(model, lens.read(other, IDS)) == lens.classes(model, IDS)


def test_what_cannot_be_told_is_refused(model: Any) -> None:
    with pytest.raises(UserError, match=r"method: .*did you mean 'occlusion'"):
        lens.classes(model, IDS, method="oclusion")
    for wrong in (None, ["occlusion"]):
        with pytest.raises(UserError, match="method: "):
            lens.classes(model, IDS, method=wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="this model predicts tokens"):
        lens.classes(run_of("decoder"), "the bank")


def test_a_token_table_says_what_is_masked() -> None:
    run: Any = run_of("encoder", "wordpiece")
    found = lens.tokens(run, "the bank", masked=[1])
    assert (found.mask, found.masked, found.tokens[1]) == ("[MASK]", [1], "[MASK]")
    assert found.predicted[1] == lens.tokens(run, "the bank").tokens[1]
    assert lens.tokens(run_of("decoder"), "the bank").mask == ""


@pytest.mark.parametrize(("pooling", "where"), [("mean", "of the text"), ("first", "at '#1' (position 0)")])
def test_a_class_is_predicted_by_the_text_or_by_its_first_token(pooling: Any, where: str) -> None:
    config = ModelConfig(
        family="encoder", vocab_size=13, d_model=12, n_layers=2, n_classes=3, pooling=pooling
    )
    model = build(config)
    for function in (lens.ledger, lens.sources, lens.logit_lens, lens.next_tokens):
        found = function(model, IDS)
        assert where in found.caption()
        assert (found.token == "") == (pooling == "mean")
    assert ("of the text" in lens.next_draw(model, IDS).caption()) == (pooling == "mean")
    assert lens.logit_lens(model, IDS).columns == (["the text"] if pooling == "mean" else ["#1"])


def test_a_class_by_all_positions_and_one_by_the_first_are_compared() -> None:
    run, other = (run_of("encoder", n_classes=3, pooling=pooling) for pooling in ("mean", "first"))
    found = lens.beside(lens.logit_lens, run, other, "the bank", target="1")
    assert found.changes.token == ""
    last = [each.layers[-1].probability for each in (found.first, found.second, found.changes)]
    assert last[2] == pytest.approx(last[1] - last[0])
    with pytest.raises(UserError, match="parts: only one of the two has 'pooler"):
        lens.beside(lens.ledger, run, other, "the bank", target="1")


def test_a_text_without_a_loss_names_what_its_function_takes(model: Any) -> None:
    with pytest.raises(UserError, match=r"so the text has no loss; give a metric$"):
        lens.loss_changes(model, model, IDS)
