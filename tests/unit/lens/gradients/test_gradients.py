"""Attributions, weight gradients and the loss-change ledger: what they say of texts, and how they show themselves."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import functional_call
from torch.testing import assert_close

from clearformer import lens
from clearformer.errors import UserError
from clearformer.lens.gradients import loss_change
from clearformer.lens.gradients.loss_change import simpson
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead, Shared
from clearformer.model.init import Gaussian
from clearformer.text import CharTokenizerSpec

from ..test_embeddings import run_of

TEXT, SOURCE = [1, 2, 3, 4, 5, 6, 7], [3, 1, 4]


def made(**changes: Any) -> Any:
    torch.manual_seed(1)
    small: dict[str, Any] = {
        "vocab_size": 13,
        "d_model": 22,
        "n_layers": 2,
        "max_seq_len": 17,
        "init": Gaussian(),
    }
    return build(
        ModelConfig(**(small | {"attention": MultiHead(n_heads=6, n_kv_heads=3, d_head=4)} | changes))
    ).double()


@pytest.fixture(scope="module")
def model() -> Any:
    return made()


@pytest.fixture(scope="module")
def translator() -> Any:
    return made(family="encoder-decoder", n_layers=1)


def test_integrated_gradients_sum_to_the_difference_ever_closer(model: Any, translator: Any) -> None:
    for each, text in ((model, lens.read(model, TEXT)), (translator, lens.read(translator, SOURCE, TEXT))):
        errors = []
        for steps in (1, 4, 16, 64):
            found = lens.integrated_gradients(each, text, target=3, foil=5, steps=steps)
            assert found.baseline is not None
            total = found.values.sum().item() + found.source_values.sum().item()
            assert found.error == pytest.approx(total - (found.measure - found.baseline), abs=1e-12)
            errors.append(abs(found.error or 0))
        assert all(finer < coarser / 2 or finer < 1e-9 for coarser, finer in pairwise(errors))
        assert errors[-1] < 1e-6 < errors[0]
    assert len(found.source_values) == 3


def test_a_token_that_stands_in_the_baseline_itself_contributes_nothing(model: Any) -> None:
    found = lens.integrated_gradients(model, TEXT, target=3, baseline=4)
    assert found.values[3] == 0
    assert (found.values[[0, 1, 2, 4, 5, 6]] != 0).all()


def test_of_a_linear_model_one_gradient_tells_everything() -> None:
    """Without blocks' norms or networks, and attention that averages, the logit is linear in the embeddings."""
    linear = {slot: {"kind": "none"} for slot in ("ffn", "norm", "position")}
    model = made(attention={"kind": "mean"}, **linear)
    gradient = lens.gradient_x_input(model, TEXT, target=3)
    assert gradient.values.sum().item() == pytest.approx(gradient.measure)
    integrated = lens.integrated_gradients(model, TEXT, target=3, steps=1)
    assert integrated.error == pytest.approx(0.0, abs=1e-10)
    slope = lens.gradients_at(model, (torch.tensor([TEXT]),), lens.LogitDifference(3), "hook_embed")[
        "hook_embed"
    ]
    from_mean = slope.value - model.embed.weight.detach().mean(0)
    torch.testing.assert_close(integrated.values, (slope.gradient * from_mean).sum(-1)[0])


def test_a_rough_sum_is_said(model: Any) -> None:
    fine, rough = (lens.integrated_gradients(model, TEXT, target=3, steps=steps) for steps in (64, 1))
    assert [note.endswith("take more steps") for found in (fine, rough) for note in found.notes()] == [
        False,
        True,
    ]


def test_a_translation_has_its_source_attributed(translator: Any) -> None:
    text = lens.read(translator, SOURCE, TEXT)
    for attribute in (lens.gradient_x_input, lens.integrated_gradients, lens.occlusion):
        found = attribute(translator, text, target=3, position=1)
        assert found.source_labels == ["#3", "#1", "#4"]
        assert (found.source_values != 0).all()
        assert found.values[2:].abs().max() < 1e-12  # what comes later is not read


def test_classes_are_attributed_to_all_tokens() -> None:
    model = made(family="encoder", n_classes=3, pooling="mean")
    for attribute in (lens.gradient_x_input, lens.occlusion):
        found = attribute(model, TEXT, target=1)
        assert not found.values.isnan().any()
        assert (found.values != 0).all()
    assert lens.occlusion(model, TEXT, target=1, by=12).values.any()
    with pytest.raises(UserError, match="position: this model predicts a class of the whole text; omit the"):
        lens.gradient_x_input(model, TEXT, position=2)


def test_a_mean_loss_without_a_token_is_that_of_the_text_without_it(model: Any) -> None:
    """With no positions to move back, a text without a token is one that never had it."""
    whole = made(position={"kind": "none"})
    metric = lens.next_token_loss(torch.tensor([TEXT]))
    found = lens.occlusion(whole, TEXT, metric=metric)
    for i in range(len(TEXT)):
        rest = torch.tensor([TEXT[:i] + TEXT[i + 1 :]])
        loss = lens.next_token_loss(rest)(whole.eval()(rest)).item()
        assert found.values[i].item() == pytest.approx(found.measure - loss, abs=1e-10)
    two = lens.occlusion(model, TEXT[:2], metric=lens.next_token_loss(torch.tensor([TEXT[:2]])))
    assert two.values.isnan().all()


def test_what_cannot_be_attributed_is_said(model: Any) -> None:
    with pytest.raises(UserError, match=r"steps: a whole number; got 2\.5"):
        lens.integrated_gradients(model, TEXT, steps=2.5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="steps: from 1 to 1,000 points on the path; got 0"):
        lens.integrated_gradients(model, TEXT, steps=0)
    with pytest.raises(UserError, match="a text of one token is empty without it; give by=TOKEN"):
        lens.occlusion(model, [1])
    with pytest.raises(UserError, match="by: the id 13 is outside the vocabulary of 13"):
        lens.occlusion(model, TEXT, by=13)


# --- weights --------------------------------------------------------------------------------------------------


def test_a_matrix_gradient_is_outer_products_by_hand(model: Any) -> None:
    name = "blocks.1.mlp.W_in.weight"
    found = lens.weight_gradients(model, TEXT, name)[name]
    at = lens.gradients_at(
        model,
        (torch.tensor([TEXT]),),
        lens.next_token_loss(torch.tensor([TEXT])),
        ["blocks.1.mlp.hook_pre", "blocks.1.ln2.hook_normalized"],
    )
    delta, x = at["blocks.1.mlp.hook_pre"].gradient[0], at["blocks.1.ln2.hook_normalized"].value[0]
    each = torch.einsum("no,ni->noi", delta, x)
    torch.testing.assert_close(found.matrix, each.sum(0))
    torch.testing.assert_close(
        torch.tensor([term.size for term in found.terms]).double(), each.norm(dim=(1, 2))
    )
    whole = each.sum(0)
    shares = (each * whole).sum((1, 2)) / whole.square().sum()
    torch.testing.assert_close(torch.tensor([term.share for term in found.terms]).double(), shares)
    torch.testing.assert_close(found.entry(3, 7), each[:, 3, 7])
    assert abs(found.largest(1)[0].share) == max(abs(term.share) for term in found.terms)


def test_shares_of_a_model_of_16_bits_sum_to_one() -> None:
    """Squares of gradients of 1e-4 are 0 in float16."""
    model = made().half()
    found = lens.weight_gradients(model, TEXT, ["embed.weight", "*.mlp.*"], metric=lambda x: x[:, -1, 3] / 64)
    for each in found.matrices:
        assert each.matrix.dtype == torch.float32
        assert sum(term.share for term in each.terms) == pytest.approx(1, abs=1e-4)


def test_tied_embeddings_are_looked_up_and_multiplied(model: Any, translator: Any) -> None:
    found = lens.weight_gradients(model, TEXT, "embed.weight")["embed.weight"]
    assert [term.use for term in found.terms] == ["lookup"] * 7 + ["product"] * 7
    assert not any(term.of_source for term in found.terms)
    both = lens.weight_gradients(
        translator, lens.read(translator, SOURCE, TEXT), ["embed.weight", "*cross_attn.W_V*"]
    )
    assert [(t.use, t.of_source) for t in both["embed.weight"].terms] == (
        [("lookup", True)] * 3 + [("lookup", False)] * 7 + [("product", False)] * 7
    )
    values = both["decoder_blocks.0.cross_attn.W_V.weight"]
    assert [(term.label, term.of_source) for term in values.terms] == [
        ("#3", True),
        ("#1", True),
        ("#4", True),
    ]


def test_shared_attention_reads_the_source_with_the_matrix_of_its_queries() -> None:
    shared = made(family="encoder-decoder", n_layers=1, attention=Shared())
    name = "decoder_blocks.0.cross_attn.W.weight"
    found = lens.weight_gradients(shared, lens.read(shared, SOURCE, TEXT), name)[name]
    of_queries, of_keys = found.terms[:7], found.terms[7:]
    assert [(term.label, term.of_source) for term in of_queries] == [(f"#{token}", False) for token in TEXT]
    assert {(term.label, term.of_source) for term in of_keys} == {(f"#{token}", True) for token in SOURCE}


def test_frozen_weights_have_gradients_too_and_none_is_left_behind(model: Any) -> None:
    wanted = lens.weight_gradients(model, TEXT)
    frozen = lens.edited_copy(model, {}).requires_grad_(False)
    found = lens.weight_gradients(frozen, TEXT)
    assert len(found.matrices) == 13
    for one, other in zip(found.matrices, wanted.matrices, strict=True):
        assert torch.equal(one.matrix, other.matrix)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_foil_or_position_without_a_target_is_refused(model: Any) -> None:
    wrong: list[dict[str, Any]] = [{"foil": 3}, {"position": 2}]
    for given in wrong:
        with pytest.raises(UserError, match=f"{next(iter(given))}: belongs to a target, and none is given"):
            lens.weight_gradients(model, TEXT, **given)


def test_a_wrong_matrix_is_named(model: Any) -> None:
    with pytest.raises(
        UserError,
        match=r"no linear layer or embedding 'blocks.0.attn.W_q.weight'; did you mean 'blocks.0.attn.W_Q.weight'",
    ):
        lens.weight_gradients(model, TEXT, "blocks.0.attn.W_q.weight")
    found = lens.weight_gradients(model, TEXT, "*W_Q*", target=3)
    with pytest.raises(UserError, match=r"is \[24 22\]; it has no entry 24, 0"):
        found.matrices[0].entry(24, 0)
    with pytest.raises(UserError, match=r"no gradient of a matrix 'embed.weight' was taken"):
        found["embed.weight"]
    for wrong in (5, [5]):
        with pytest.raises(UserError, match="names: must be names or patterns"):
            lens.weight_gradients(model, TEXT, wrong)  # type: ignore[arg-type]


# --- the fall of the loss -------------------------------------------------------------------------------------


def test_the_residue_falls_as_the_way_is_cut_finer(model: Any, translator: Any) -> None:
    for each, text in ((model, lens.read(model, TEXT)), (translator, lens.read(translator, SOURCE, TEXT))):
        later = lens.edited_copy(
            each, {name: lambda w: w + 0.03 * torch.randn_like(w) for name, _ in each.named_parameters()}
        )
        residues = []
        for pieces in (1, 2, 4):
            found = lens.loss_changes(each, later, text, pieces=pieces)
            assert found.sum == pytest.approx(sum(part.value for part in found.parts))
            assert found.residue == pytest.approx(found.after - found.before - found.sum, abs=1e-12)
            residues.append(abs(found.residue))
        assert residues == sorted(residues, reverse=True)
        assert residues[-1] < 0.05 * residues[0]  # of fourth order in the pieces: about 1 / 256


def test_what_did_not_change_paid_nothing_and_what_did_paid_all(model: Any) -> None:
    """One head's output rows alone are changed, by a step against the gradient."""
    name, columns = "blocks.1.attn.W_O.weight", slice(8, 12)  # head 2
    gradient = lens.weight_gradients(model, TEXT, name)[name].matrix
    step = torch.zeros_like(gradient)
    step[:, columns] = -0.1 * gradient[:, columns]
    found = lens.loss_changes(model, lens.edited_copy(model, {name: lambda w: w + step}), TEXT)
    assert found.after < found.before
    [paid] = [part for part in found.parts if part.value != 0]
    assert paid.label == "blocks.1.attn:2"
    assert paid.value == pytest.approx(found.after - found.before, rel=1e-6)
    labels = [part.label for part in found.parts]
    assert len(labels) == len(set(labels))
    assert {
        "embed",
        "position",
        "ln_final",
        "blocks.0.mlp",
        "blocks.0.ln1",
        "blocks.0.attn, keys and values 2",
    } <= {*labels}


def test_another_thread_may_read_the_model_meanwhile(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the page does: its views take the same model while the ledger is made."""
    seen: list[bool] = []

    def watched(copy: Any, *arguments: Any) -> Any:
        seen.append(copy is model)
        return functional_call(copy, *arguments)

    monkeypatch.setattr(loss_change, "functional_call", watched)
    lens.loss_changes(model, made(d_model=22), lens.read(model, TEXT), pieces=1)
    assert set(seen) == {False}


def test_simpsons_rule_is_exact_for_cubic_functions() -> None:
    for pieces in (1, 3):
        points = list(simpson(pieces))
        assert len(points) == 2 * pieces + 1
        assert sum(weight for _, weight in points) == pytest.approx(1.0)
        assert sum(weight * at**3 for at, weight in points) == pytest.approx(0.25)


def test_a_runs_earlier_checkpoint_is_where_the_ledger_begins(tmp_path: Path) -> None:
    import clearformer as cf
    from clearformer.training.store.checkpoint import Checkpoint, Progress, save_checkpoint
    from clearformer.training.store.state import weights_of

    tokenizer = CharTokenizerSpec().train(["abcdefghijklm"])
    first, last = made().float(), made().float()
    with torch.no_grad():
        last.embed.weight.mul_(1.1)
    folder = cf.Run(first, tokenizer, step=3).save(tmp_path / "run").folder
    save_checkpoint(folder.checkpoints, Checkpoint(Progress(step=7), weights_of(last), {}))
    run = cf.load(tmp_path / "run", device="cpu")
    found = lens.loss_changes_since(run, "abcabc")
    assert (found.before, found.after) == pytest.approx([loss(first), loss(last)])
    assert [part.label for part in found.parts if part.value] == ["embed"]
    assert lens.loss_changes_since(run, "abcabc", since=3) == found
    assert lens.loss_changes_since(run, "abcabc", since=7).sum == 0
    assert lens.loss_changes_since(run, "abcabc", until=3).sum == 0  # no weights are kept from before it
    save_checkpoint(folder.snapshots, Checkpoint(Progress(step=2), weights_of(last), {}))
    assert lens.loss_changes_since(run, "abcabc") == found  # a checkpoint, if there is an earlier one
    assert lens.loss_changes_since(run, "abcabc", until=3) == lens.loss_changes_since(run, "abcabc", 2, 3)
    assert lens.loss_changes_since(run, "abcabc", until=3).sum != 0
    with pytest.raises(UserError, match=r"so it has no loss; give a longer text$"):  # no metric can be given
        lens.loss_changes_since(run, "a")
    with pytest.raises(UserError, match="has no checkpoint '5'; there are latest, best and steps 3, 7"):
        lens.loss_changes_since(run, "abcabc", since=5)
    with pytest.raises(UserError, match=r"until: .* has taken 7 steps so far; got 8"):
        lens.loss_changes_since(run, "abcabc", until=8)


def loss(model: Any) -> float:
    tokens = torch.tensor([[0, 1, 2, 0, 1, 2]])
    return lens.next_token_loss(tokens)(model.eval()(tokens)).item()


def test_models_that_do_not_match_are_refused(model: Any) -> None:
    with pytest.raises(
        UserError, match=r"the two models differ in position.weight \(\[17, 22\] and \[5, 22\]\); give two"
    ):
        lens.loss_changes(model, made(max_seq_len=5), TEXT[:4])
    other = made(placement="post")
    with pytest.raises(
        UserError, match=r"the two models differ in model\.placement \(pre and post\); give two"
    ):
        lens.loss_changes(model, other, TEXT)
    lens.loss_changes(model, made(dropout=0.5), TEXT, pieces=1)  # which no evaluation uses
    with pytest.raises(UserError, match=r"pieces: a whole number; got 2\.5"):
        lens.loss_changes(model, model, TEXT, pieces=2.5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="pieces: 1 or more; got 0"):
        lens.loss_changes(model, model, TEXT, pieces=0)
    with pytest.raises(UserError, match="so it has no loss"):
        lens.loss_changes(model, model, [1])


def test_results_show_themselves(model: Any, tmp_path: Path) -> None:
    results = [
        lens.gradient_x_input(model, TEXT, target=3),
        lens.integrated_gradients(model, TEXT, target=3),
        lens.weight_gradients(model, TEXT),
        lens.weight_gradients(model, TEXT).matrices[0],
        lens.loss_changes(model, made(init=Gaussian(), norm={"kind": "layernorm"}), TEXT, pieces=1),
    ]
    for i, found in enumerate(results):
        json.dumps(found.to_dict())
        assert "<td" in found._repr_html_()
        assert found.caption()
        assert found.figure(tmp_path / f"{i}.svg").stat().st_size > 0
        assert len(repr(found)) < 400


OF_GRADIENTS = {
    "gradient_x_input": lambda model: lens.gradient_x_input(model, TEXT).values,
    "integrated_gradients": lambda model: lens.integrated_gradients(model, TEXT, steps=3).values,
    "sources": lambda model: [part.value for part in lens.sources(model, TEXT, target=3).parts],
    "loss_changes": lambda model: [
        part.value for part in lens.loss_changes(model, made(init=Gaussian(zero_outputs=True)), TEXT).parts
    ],
    "weight_gradients": lambda model: (
        lens.weight_gradients(model, TEXT, "embed.weight")["embed.weight"].matrix
    ),
    "patch_every": lambda model: lens.patch_every(model, TEXT, TEXT[::-1], estimate=True, confirm=2).effects,
}


@pytest.mark.parametrize("of_gradients", OF_GRADIENTS.values(), ids=OF_GRADIENTS)
def test_gradients_are_had_where_a_caller_does_without_them(model: Any, of_gradients: Any) -> None:
    found = of_gradients(model)
    with torch.inference_mode():
        assert_close(of_gradients(model), found, rtol=0, atol=0)
    with torch.no_grad():
        assert_close(of_gradients(model), found, rtol=0, atol=0)


def test_a_space_in_a_table_is_the_token_s_own() -> None:
    run = run_of("encoder-decoder", "bpe")
    found = lens.gradient_x_input(run, "the river bank", "money lends")
    names = [str(row[0]) for row in found.table().rows]
    labels = [each.replace(" ", "␣") for each in found.source_labels]
    assert names[: len(labels)] == [f"source: {label}" for label in labels]
    assert any("␣" in label for label in labels)
