"""Activations and weights replaced, and what comes of it."""

import json
import math
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import pytest
import torch

from clearformer import lens
from clearformer.data.text.batches import IGNORED
from clearformer.errors import UserError
from clearformer.hooks import hook_points
from clearformer.lens.causal.interventions import activations, output_with
from clearformer.lens.causal.metrics import LogitDifference, MeanLoss, loss_of
from clearformer.lens.causal.sites import embeddings_of, sites_of
from clearformer.lens.divergence import divergence
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.init import Gaussian

V, T, H, L = 13, 7, 3, 2
TEXT, OTHER = [1, 2, 3, 4, 5, 6, 7], [7, 1, 9, 2, 11, 5, 3]
Z, RESIDUAL, PATTERN = "blocks.1.attn.hook_z", "blocks.1.hook_resid_pre", "blocks.0.attn.hook_pattern"


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(1)
    attention = MultiHead(n_heads=H, d_head=4, output_bias=True)
    config = ModelConfig(
        vocab_size=V,
        d_model=22,
        n_layers=L,
        max_seq_len=17,
        dropout=0.5,
        attention=attention,
        init=Gaussian(),
    )
    return build(config).double()


@pytest.fixture(scope="module")
def text(model: Any) -> lens.Inputs:
    return lens.read(model, TEXT)


@pytest.fixture(scope="module")
def other(model: Any) -> Any:
    return activations(model, lens.read(model, OTHER).arguments)


def test_tokens_without_a_chance_add_nothing_to_a_divergence() -> None:
    one, other = torch.tensor([0.0, 0.0, -torch.inf]), torch.tensor([1.0, 0.0, -torch.inf])
    among_two = divergence(one[:2], other[:2])
    assert torch.equal(divergence(one, other), among_two)
    assert among_two > 0
    assert divergence(torch.zeros(3), other) == torch.inf  # what `other` rules out and `one` does not


def kept(model: Any, text: lens.Inputs, edits: list[lens.Edit], name: str) -> torch.Tensor:
    """What stands at a hook point with edits made."""
    seen: dict[str, torch.Tensor] = {}
    look = lens.change(name, lambda x: seen.setdefault(name, x.clone()))
    output_with(model, text.arguments, [*edits, look])
    return seen[name]


def test_patching_any_one_point_with_oneself_changes_no_bit(model: Any, text: lens.Inputs) -> None:
    own, wanted = activations(model, text.arguments), output_with(model, text.arguments)
    for name in hook_points(model):
        assert torch.equal(output_with(model, text.arguments, [lens.patch(name, own)]), wanted), name
    torch.testing.assert_close(wanted, model.eval()(*text.arguments), atol=1e-12, rtol=0)


def test_zero_is_of_one_head_at_one_position(model: Any, text: lens.Inputs) -> None:
    own = activations(model, text.arguments)[Z]
    found = kept(model, text, [lens.zero(lens.Site(Z, head=2, position=-3))], Z)
    wanted = own.clone()
    wanted[:, T - 3, 2] = 0
    assert torch.equal(found, wanted)


def test_a_pattern_is_of_heads_and_queries(model: Any, text: lens.Inputs) -> None:
    own = activations(model, text.arguments)[PATTERN]
    found = kept(model, text, [lens.zero(lens.Site(PATTERN, head=1, position=5))], PATTERN)
    wanted = own.clone()
    wanted[:, 1, 5] = 0
    assert torch.equal(found, wanted)


def test_scores_that_are_replaced_stay_masked(model: Any, text: lens.Inputs) -> None:
    scores = "blocks.0.attn.hook_attn_scores"
    for edit in (lens.zero(scores), lens.change(scores, lambda x: x / 1e30), lens.replace(scores, 5.0)):
        pattern = kept(model, text, [edit], PATTERN)
        assert torch.equal(pattern, pattern.tril())
        torch.testing.assert_close(pattern[0, 0, -1], torch.full((T,), 1 / T, dtype=pattern.dtype))


def test_the_mean_is_over_texts_and_positions(model: Any, text: lens.Inputs, other: Any) -> None:
    own = activations(model, text.arguments)
    found = kept(model, text, [lens.mean(lens.Site(Z, head=1), [own, other])], Z)
    wanted = torch.cat([own[Z][0, :, 1], other[Z][0, :, 1]]).mean(0)
    torch.testing.assert_close(found[0, :, 1], wanted.expand(T, -1))
    assert torch.equal(found[0, :, [0, 2]], own[Z][0, :, [0, 2]])


def test_a_resample_takes_whole_vectors_of_the_texts_and_the_seed_decides_which(
    model: Any, text: lens.Inputs, other: Any
) -> None:
    site = lens.Site(Z, head=0)
    found = kept(model, text, [lens.resample(site, [other], seed=3)], Z)[0, :, 0]
    pool = other[Z][0, :, 0]
    places = [next(i for i, row in enumerate(pool) if torch.equal(row, each)) for each in found]
    assert len(set(places)) > 1
    again = kept(model, text, [lens.resample(site, [other], seed=3)], Z)[0, :, 0]
    assert torch.equal(again, found)
    assert not torch.equal(kept(model, text, [lens.resample(site, [other], seed=4)], Z)[0, :, 0], found)


def test_edits_of_one_point_are_made_in_their_order(model: Any, text: lens.Inputs) -> None:
    steered = [lens.replace(RESIDUAL, 2.0), lens.add(lens.Site(RESIDUAL, position=1), torch.arange(22.0))]
    found = kept(model, text, steered, RESIDUAL)
    assert torch.equal(found[0, 1], 2 + torch.arange(22.0, dtype=torch.float64))
    assert (found[0, [0, *range(2, T)]] == 2).all()


def test_the_order_holds_where_a_name_and_a_pattern_meet(model: Any, text: lens.Inputs) -> None:
    edits = [lens.zero(Z), lens.add("blocks.*.attn.hook_z", 1.0), lens.change(Z, lambda z: 3 * z)]
    found: dict[str, torch.Tensor] = {}
    looked = {name: lambda z, hook: found.update({hook.name: z}) for name in (Z, "blocks.0.attn.hook_z")}
    with model.hooked(lens.hooks_of(edits)), model.hooked(looked):
        model(*text.arguments)
    assert (found[Z] == 3).all()
    assert (found["blocks.0.attn.hook_z"] != 3).any()


def test_a_vector_that_is_added_gets_its_gradient_from_0_on(model: Any, text: lens.Inputs) -> None:
    vector = torch.zeros(22, dtype=torch.float64, requires_grad=True)
    with lens.quiet(model, grad=True), model.hooked(lens.hooks_of([lens.add(RESIDUAL, vector)])):
        model(*text.arguments)[0, -1, 3].backward()
    assert vector.grad is not None
    wanted = lens.gradients_at(model, text.arguments, LogitDifference(3), RESIDUAL)[RESIDUAL].gradient
    torch.testing.assert_close(vector.grad, wanted.sum((0, 1)))


def test_an_intervention_is_compared_with_the_text_as_it_is(
    model: Any, text: lens.Inputs, other: Any
) -> None:
    found = lens.intervene(model, text, lens.patch(RESIDUAL, other), target=3, foil=5)
    own, donor = (model.eval()(torch.tensor([each])) for each in (TEXT, OTHER))
    assert found.before == pytest.approx((own[0, -1, 3] - own[0, -1, 5]).item())
    assert found.after == pytest.approx((donor[0, -1, 3] - donor[0, -1, 5]).item())
    assert found.effect == pytest.approx(found.after - found.before)
    p = own.softmax(-1)
    kl = (p * (p.log() - donor.log_softmax(-1))).sum(-1)[0]
    assert found.kl == pytest.approx(kl.tolist())
    none = lens.intervene(model, text, [], target=3)
    assert none.effect == 0
    assert none.kl == pytest.approx([0.0] * T)


def test_the_models_mode_and_hooks_are_left_as_they_were(model: Any, text: lens.Inputs) -> None:
    model.train()
    lens.intervene(model, text, lens.zero(Z))
    with pytest.raises(UserError, match=f"^{Z} has 3 heads, 0 to 2; there is no head 3$"):
        lens.intervene(model, text, lens.zero(lens.Site(Z, head=H)))
    assert model.training
    assert all(point.n_open == 0 for point in hook_points(model).values())


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lens.zero("blocks.1.attn.hook_x"),
            "this model has no hook point 'blocks.1.attn.hook_x'; did you mean",
        ),
        (lens.zero(lens.Site(RESIDUAL, head=0)), f"{RESIDUAL} has no heads; omit head=0"),
        (
            lens.zero(lens.Site(RESIDUAL, position=T)),
            f"{RESIDUAL} has 7 positions, 0 to 6; there is no position 7",
        ),
        (
            lens.replace(RESIDUAL, torch.ones(3)),
            "shape is [1, 7, 22] in this text, and the new values are [3]",
        ),
        (lens.add(RESIDUAL, torch.ones(3)), "shape is [1, 7, 22] in this text, and the new values are [3]"),
        (
            lens.change(RESIDUAL, lambda _: None),  # type: ignore[arg-type, return-value]
            f"{RESIDUAL}: its new values are a tensor or a number; got None",
        ),
        (lens.zero(lens.Site(Z, head="0")), "head: a whole number; got '0'"),  # type: ignore[arg-type]
        ("zero", "edits: each is made by a function such as lens.zero(...); got 'zero'"),
        (None, "edits: each is made by a function such as lens.zero(...); got None"),
        (lens.patch(RESIDUAL, {}), f"{RESIDUAL} is not among the given activations"),
        (lens.mean(RESIDUAL, []), "give the activations of at least one text"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    model: Any, text: lens.Inputs, edit: lens.Edit, message: str
) -> None:
    with pytest.raises(UserError) as raised:
        lens.intervene(model, text, edit)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_pattern_has_no_mean(other: Any) -> None:
    for edit in (lambda: lens.mean(PATTERN, [other]), lambda: lens.resample(PATTERN, [other], 1)):
        with pytest.raises(UserError, match="rows of scores and patterns belong to their own text"):
            edit()


def test_a_donor_of_another_length_is_refused(model: Any, text: lens.Inputs) -> None:
    shorter = activations(model, lens.read(model, TEXT[:5]).arguments)
    with pytest.raises(UserError, match="patch between texts with the same number of tokens"):
        lens.intervene(model, text, lens.patch(RESIDUAL, shorter))


def test_what_is_no_model_is_said() -> None:
    run: Any = object()
    for call in (
        lambda: lens.heads_of(run),
        lambda: lens.networks_of(run),
        lambda: lens.edited_copy(run, {}),
        lambda: lens.copy_without_heads(run, []),
    ):
        with pytest.raises(
            UserError, match=r"^give a model, such as run\.model; got an object of type object$"
        ):
            call()


def test_sites_are_written_out(model: Any) -> None:
    assert sites_of(model, [lens.Site("blocks.*.attn.hook_z", 1), RESIDUAL]) == [
        lens.Site("blocks.0.attn.hook_z", 1),
        lens.Site(Z, 1),
        lens.Site(RESIDUAL),
    ]
    assert [str(site) for site in lens.heads_of(model)][:2] == [
        "blocks.0.attn.hook_z (head 0)",
        "blocks.0.attn.hook_z (head 1)",
    ]
    assert len(lens.heads_of(model)) == L * H
    assert embeddings_of(model) == [lens.Site("hook_embed"), lens.Site("hook_pos_embed")]


# --- weights --------------------------------------------------------------------------------------------------


def test_a_copy_is_edited_and_the_model_stays_to_the_bit(model: Any, text: lens.Inputs) -> None:
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    name = "blocks.0.mlp.W_out.weight"
    copy = lens.edited_copy(model, {name: torch.zeros_like, "blocks.0.mlp.W_out.bias": torch.zeros(22)})
    assert all(torch.equal(weight, before[key]) for key, weight in model.state_dict().items())
    assert not dict(copy.named_parameters())[name].any()
    wanted = output_with(model, text.arguments, [lens.zero("blocks.0.hook_mlp_out")])
    torch.testing.assert_close(output_with(copy, text.arguments), wanted, atol=1e-12, rtol=0)


def test_heads_taken_from_the_weights_are_heads_switched_off(model: Any, text: lens.Inputs) -> None:
    heads = [lens.Site("blocks.0.attn.hook_z", 1), lens.Site(Z, 2)]
    wanted = output_with(model, text.arguments, [lens.zero(site) for site in heads])
    found = output_with(lens.copy_without_heads(model, heads), text.arguments)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


def test_a_wrong_weight_is_named(model: Any) -> None:
    with pytest.raises(
        UserError, match=r"no parameter 'blocks.0.mlp.W_ou.weight'; did you mean 'blocks.0.mlp.W_out"
    ):
        lens.edited_copy(model, {"blocks.0.mlp.W_ou.weight": torch.zeros_like})
    with pytest.raises(UserError, match=r"ln_final.weight is \[22\], and its new values are \[3\]"):
        lens.edited_copy(model, {"ln_final.weight": torch.ones(3)})
    with pytest.raises(UserError, match="is not a head of this model"):
        lens.copy_without_heads(model, [lens.Site(Z, H)])
    bare = build(model.config.replace(attention=MultiHead(n_heads=2, output=False)))
    with pytest.raises(UserError, match="has no output matrix"):
        lens.copy_without_heads(bare, [lens.Site(Z, 0)])


# --- measures -------------------------------------------------------------------------------------------------


def test_a_classifier_predicts_no_token_of_the_text() -> None:
    classifier = build(ModelConfig(family="encoder", vocab_size=V, d_model=8, n_layers=1, n_classes=3))
    with pytest.raises(
        UserError, match="a classifier predicts no token of the text, so the text has no loss"
    ):
        loss_of(lens.read(classifier, TEXT))


def test_the_loss_is_of_the_targets_that_count(model: Any, text: lens.Inputs) -> None:
    logits = model.eval()(*text.arguments)
    losses = -logits[0, :-1].log_softmax(-1)[range(T - 1), TEXT[1:]]
    assert loss_of(text)(logits).item() == pytest.approx(losses.mean().item())
    assert lens.next_token_loss(text.tokens)(logits).item() == pytest.approx(losses.mean().item())
    some = torch.tensor([[IGNORED, TEXT[2], IGNORED, TEXT[4], *[IGNORED] * 3]])
    wanted = losses[[1, 3]].mean().item()
    assert MeanLoss(some)(logits.repeat(2, 1, 1)).tolist() == pytest.approx([wanted] * 2)
    with pytest.raises(UserError, match="so it has no loss; give a target"):
        loss_of(replaced(text, predicted=[None] * T))


def test_what_is_no_model_or_function_is_said_in_one_line(model: Any, text: lens.Inputs) -> None:
    with pytest.raises(UserError, match=r"^give a model, such as run\.model; got an object of type Inputs$"):
        lens.gradients_at(text, text.arguments, LogitDifference(1))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^function: a function; got 5$"):
        lens.change(lens.Site("blocks.0.attn.hook_z"), 5)  # type: ignore[arg-type]


def test_one_token_alone_has_no_loss() -> None:
    with pytest.raises(
        UserError, match=r"^the text has no token to predict, so it has no loss; give a longer"
    ):
        lens.next_token_loss(torch.tensor([[1], [2]]))


@pytest.mark.parametrize(
    ("metric", "line"),
    [
        (LogitDifference(V), r"^target: 13 is out of range: the output has 0 to 12$"),
        (LogitDifference(1, foil=-V - 1), r"^foil: -14 is out of range"),
        (LogitDifference(1, position=T), r"^position: 7 is out of range: the output has 0 to 6$"),
        (
            lens.next_token_loss(torch.ones(1, T - 1).long()),
            r"^targets: .* output \[1, 7, 13\]; got \[1, 6\]$",
        ),
        (lens.next_token_loss(torch.ones(2, T).long()), r"^targets: .* got \[2, 7\]$"),
        (
            lens.next_token_loss(torch.full((1, T), V)),
            r"^target 13 is out of range: the model knows 0 to 12$",
        ),
        (lens.MeanLoss(torch.full((1, T), IGNORED)), r"^targets: none counts in row 0, so it has no mean"),
    ],
)
def test_what_an_output_does_not_have_is_named(metric: Any, line: str) -> None:
    with pytest.raises(UserError, match=line):
        metric(torch.zeros(1, T, V))


READERS = {
    "intervene": lambda model, **given: lens.intervene(model, TEXT, [], **given),
    "patch_every": lambda model, **given: lens.patch_every(model, TEXT, OTHER, "layers", **given),
    "patch_paths": lambda model, **given: lens.patch_paths(model, TEXT, OTHER, [], **given),
    "gradient_x_input": lambda model, **given: lens.gradient_x_input(model, TEXT, **given),
    "integrated_gradients": lambda model, **given: lens.integrated_gradients(model, TEXT, **given),
    "occlusion": lambda model, **given: lens.occlusion(model, TEXT, **given),
    "weight_gradients": lambda model, **given: lens.weight_gradients(model, TEXT, "embed.weight", **given),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("given", [{"target": "no such"}, {"foil": V}, {"position": T}])
def test_a_metric_replaces_target_foil_and_position(reader: str, given: dict[str, Any], model: Any) -> None:
    with pytest.raises(UserError, match=r"^metric: replaces target, foil and position; omit them$"):
        READERS[reader](model, metric=LogitDifference(3), **given)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("metric", "got"),
    [
        ("x", "; got 'x'"),
        (lambda _output: 1.0, r"; it returned 1.0 for \[\d+, 7, 13\]"),
        (lambda output: output, r"; it returned shape (\[\d+, 7, 13\]) for \1"),
    ],
    ids=["no function", "a float", "logits"],
)
def test_what_is_no_metric_is_refused(reader: str, metric: Any, got: str, model: Any) -> None:
    wanted = r"^metric: a function of the output, \[B T V\] or \[B C\], that returns a tensor \[B\]"
    with pytest.raises(UserError, match=f"{wanted}{got}$"):
        READERS[reader](model, metric=metric)


def test_a_metric_may_be_any_function_of_the_output(model: Any, text: lens.Inputs) -> None:
    found = lens.intervene(model, text, [], metric=lambda output: output[:, -1, 3])
    assert found.before == lens.intervene(model, text, [], target=3).before
    not_one: list[Any] = ["x", lambda _output: 1.0]
    for metric in not_one:
        with pytest.raises(UserError, match=r"^metric: a function of the output"):
            lens.gradients_at(model, text.arguments, metric, RESIDUAL)
        with pytest.raises(UserError, match=r"^metric: a function of the output"):
            lens.loss_changes(model, model, TEXT, metric=metric)


def test_a_result_shows_itself(model: Any, text: lens.Inputs, tmp_path: Path) -> None:
    found = lens.intervene(model, text, lens.zero(Z), target=3)
    assert json.loads(json.dumps(found.to_dict()))["effect"] == pytest.approx(found.effect)
    assert repr(found).startswith("Intervention(sites=['blocks.1.attn.hook_z'], before=")
    assert "<td" in found._repr_html_()
    assert found.figure(tmp_path / "kl.svg").stat().st_size > 0


def test_a_text_that_was_read_by_another_model_is_read_by_this_one(model: Any, text: lens.Inputs) -> None:
    other = lens.edited_copy(model, {"embed.weight": torch.neg})
    assert lens.intervene(other, text, [], target=3) == lens.intervene(other, TEXT, [], target=3)
    assert (
        lens.intervene(other, text, [], target=3).before != lens.intervene(model, text, [], target=3).before
    )
    with pytest.raises(UserError, match="give a run"):
        lens.intervene("quick", text, [])  # type: ignore[arg-type]


def test_patterns_of_names_have_no_mean_of_scores_either() -> None:
    model = build(ModelConfig(vocab_size=7, d_model=8, attention=MultiHead(n_heads=2)))
    ids = [1, 2, 3]
    _, own = model.run_with_cache(torch.tensor([ids]))
    for edit in (lens.mean("blocks.0.attn.*", [own]), lens.resample("*.attn.hook_*", [own], seed=1)):
        with pytest.raises(UserError, match="rows of scores and patterns belong to their own text's tokens"):
            lens.intervene(model, ids, edit, target=1)


def test_no_edit_lets_linear_attention_read_ahead() -> None:
    model = build(ModelConfig(vocab_size=7, d_model=8, attention={"kind": "linear", "n_heads": 2})).double()  # type: ignore[arg-type]
    edit = lens.replace("blocks.0.attn.hook_attn_scores", 1.0)
    one, other = (lens.intervene(model, ids, edit, target=1).output for ids in ([1, 2, 3], [1, 2, 4]))
    assert torch.equal(one[:2], other[:2])
    assert not torch.equal(one[2], other[2])


def test_numbers_that_are_none_are_null_in_json() -> None:
    model = build(ModelConfig(vocab_size=7, d_model=8, attention=MultiHead(n_heads=2)))
    found = lens.intervene(model, [1, 2], lens.replace("blocks.0.hook_resid_pre", math.nan), target=1)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["effect"] is None
