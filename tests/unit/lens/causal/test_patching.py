"""Patching everywhere, and along paths: what is measured, what it is called, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from clearformer import lens
from clearformer.errors import UserError
from clearformer.lens.causal import interventions
from clearformer.lens.causal.interventions import activations, output_with
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.feedforward import NoFeedForward
from clearformer.model.init import Gaussian
from clearformer.model.norms import RMSNorm

from ..own_attention import OwnAttention

TEXT, DONOR = [1, 2, 3, 4, 5, 6, 7], [1, 2, 9, 4, 5, 6, 7]
SOURCE, OTHER_SOURCE = [3, 1, 4], [3, 9, 4]


def made(**changes: Any) -> Any:
    torch.manual_seed(1)
    small: dict[str, Any] = {
        "vocab_size": 13,
        "d_model": 22,
        "n_layers": 2,
        "max_seq_len": 17,
        "init": Gaussian(),
    }
    return build(ModelConfig(**(small | {"attention": MultiHead(n_heads=3, d_head=4)} | changes))).double()


@pytest.fixture(scope="module")
def model() -> Any:
    return made()


def test_only_positions_from_the_changed_token_on_have_an_effect(model: Any) -> None:
    found = lens.patch_every(model, TEXT, DONOR, "layers", target=3, foil=5)
    assert found.sites == [lens.Site("blocks.0.hook_resid_pre"), lens.Site("blocks.1.hook_resid_pre")]
    assert found.labels == [f"#{token}" for token in TEXT]
    none = pytest.approx(0, abs=1e-12)  # a text in a batch is rounded otherwise on some processors
    assert (
        found.effects[0, [0, 1, 3, 4, 5, 6]].tolist() == [none] * 6
    )  # before the first block only the token differs
    assert found.recovered[0, 2].item() == pytest.approx(1.0)
    assert found.effects[1, :2].tolist() == [none] * 2
    assert (found.effects[1, 2:].abs() > 1e-9).all()
    assert found.own == pytest.approx(output_difference(model, TEXT))
    assert found.donor == pytest.approx(output_difference(model, DONOR))


def output_difference(model: Any, tokens: list[int]) -> float:
    logits = model.eval()(torch.tensor([tokens]))[0, -1]
    return (logits[3] - logits[5]).item()


def test_batches_of_any_size_give_the_same(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = lens.patch_every(model, TEXT, DONOR, "heads", target=3)
    for name in ("TOKENS_AT_ONCE", "LOGITS_AT_ONCE"):
        with monkeypatch.context() as patched:
            patched.setattr(interventions, name, 15)
            found = lens.patch_every(model, TEXT, DONOR, "heads", target=3)
        torch.testing.assert_close(found.effects, whole.effects)


def test_the_largest_estimates_are_confirmed(model: Any) -> None:
    exact = lens.patch_every(model, TEXT, DONOR, ["blocks.*.attn.hook_z", "*mlp_out"], target=3)
    found = lens.patch_every(
        model, TEXT, DONOR, ["blocks.*.attn.hook_z", "*mlp_out"], target=3, estimate=True, confirm=4
    )
    assert found.is_estimate
    assert not exact.is_estimate
    assert len(found.confirmed) == 4
    assert [each.estimate for each in found.confirmed] == [each.effect for each in found.largest(4)]
    for each in found.confirmed:
        row = found.sites.index(lens.Site(each.site.name, each.site.head))
        assert each.effect == pytest.approx(exact.effects[row, each.site.position].item(), abs=1e-12)
        assert each.estimate != each.effect
    sizes = [abs(each.estimate or 0) for each in found.confirmed]
    assert sizes == sorted(sizes, reverse=True)


def test_an_encoder_decoders_sites_have_the_positions_of_their_text(tmp_path: Path) -> None:
    model = made(family="encoder-decoder", n_layers=1)
    text = lens.read(model, SOURCE, TEXT)
    donor = lens.read(model, OTHER_SOURCE, TEXT)
    where = [
        "*blocks.0.hook_resid_pre",
        "decoder_blocks.0.cross_attn.hook_v",
        "decoder_blocks.0.cross_attn.hook_z",
    ]
    found = lens.patch_every(model, text, donor, where, target=3)
    n_positions = [int((~row.isnan()).sum()) for row in found.effects]
    by_name = dict(zip([site.name for site in found.sites], n_positions, strict=True))
    assert by_name == {
        "encoder_blocks.0.hook_resid_pre": 3,
        "decoder_blocks.0.hook_resid_pre": 7,
        "decoder_blocks.0.cross_attn.hook_v": 3,
        "decoder_blocks.0.cross_attn.hook_z": 7,
    }
    assert found.source_labels == ["#3", "#1", "#4"]
    assert found.recovered[0, 1].item() == pytest.approx(1.0)
    assert found.effects[1].abs().max() < 1e-12  # the decoder's own text is the same
    assert json.loads(json.dumps(found.to_dict()))["effects"][0][3] is None
    assert "encoder_blocks.0.hook_resid_pre" in found._repr_html_()
    assert found.figure(tmp_path / "effects.svg").stat().st_size > 0


def test_normed_keys_of_a_source_have_its_positions() -> None:
    attention = MultiHead(n_heads=3, d_head=4, qk_norm=RMSNorm())
    model = made(family="encoder-decoder", n_layers=1, attention=attention)
    text, donor = (lens.read(model, source, TEXT) for source in (SOURCE, OTHER_SOURCE))
    found = lens.patch_every(
        model, text, donor, "decoder_blocks.0.cross_attn.k_norm.hook_normalized", target=3
    )
    assert int((~found.effects.isnan()).sum()) == len(SOURCE)
    assert found.table().rows


def test_an_encoder_decoder_writes_the_same_of_both_texts() -> None:
    model = made(family="encoder-decoder", n_layers=1)
    text, donor = (lens.read(model, each, TEXT) for each in (SOURCE, OTHER_SOURCE))
    found = lens.patch_every(model, SOURCE, OTHER_SOURCE, "heads", target=3, output=TEXT)
    assert torch.equal(
        found.effects.nan_to_num(),
        lens.patch_every(model, text, donor, "heads", target=3).effects.nan_to_num(),
    )


def test_classes_are_measured_too() -> None:
    model = made(family="encoder", n_classes=3)
    found = lens.patch_every(model, TEXT, DONOR, "networks", target=2, foil=0)
    assert found.effects.shape == (2, 7)
    assert found.effects.any()
    with pytest.raises(UserError, match="hook_pooled has no positions to patch one by one"):
        lens.patch_every(model, TEXT, DONOR, "hook_pooled")


def test_what_cannot_be_patched_is_said(model: Any) -> None:
    with pytest.raises(
        UserError,
        match="donor: 5 tokens, but the text has 7: each position is patched from the same position",
    ):
        lens.patch_every(model, TEXT, DONOR[:5])
    with pytest.raises(UserError, match=r"this model has no networks \(model.ffn.kind=none\)"):
        lens.patch_every(made(ffn=NoFeedForward()), TEXT, DONOR, "networks")
    with pytest.raises(
        UserError, match="a place is the name of a hook point, a Site, or a list of these; got 5"
    ):
        lens.patch_every(model, TEXT, DONOR, 5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"no hook point 'blocks.0.hook_resid_pr'; did you mean"):
        lens.patch_every(model, TEXT, DONOR, "blocks.0.hook_resid_pr")
    with pytest.raises(UserError, match="where: give at least one site, or heads, networks or layers"):
        lens.patch_every(model, TEXT, DONOR, [])
    at_2 = lens.Site("blocks.1.hook_resid_pre", position=2)
    for estimate in (False, True):
        with pytest.raises(
            UserError, match=r"\(position 2\): each site is patched at every position; omit its"
        ):
            lens.patch_every(model, TEXT, DONOR, at_2, estimate=estimate)
    with pytest.raises(UserError, match="confirm: 0 or more; got -1"):
        lens.patch_every(model, TEXT, DONOR, "layers", estimate=True, confirm=-1)


# --- paths ----------------------------------------------------------------------------------------------------


def test_a_path_to_the_output_is_what_the_sender_writes_directly(model: Any) -> None:
    """By hand: the last residual stream with the head's own vector exchanged, through the final norm and the head."""
    own, donor = (activations(model, lens.read(model, each).arguments) for each in (TEXT, DONOR))
    head, name = 1, "blocks.0.attn.hook_z"
    matrix = model.blocks[0].attn.W_O.weight.unflatten(1, (3, -1))[:, head]
    moved = (donor[name] - own[name])[:, :, head] @ matrix.T
    with torch.no_grad():
        logits = model.unembed(model.ln_final(own["blocks.1.hook_resid_post"] + moved))[0, -1]
    found = lens.patch_paths(model, TEXT, DONOR, lens.Site(name, head), target=3, foil=5)
    assert found.after == pytest.approx((logits[3] - logits[5]).item(), abs=1e-10)
    assert found.effect != 0
    whole = lens.intervene(model, TEXT, lens.patch(lens.Site(name, head), donor), target=3, foil=5)
    assert found.after != pytest.approx(whole.after, abs=1e-6)  # which also goes by what lies between


@pytest.mark.parametrize("has_heads", [True, False])
def test_what_an_attention_of_ones_own_writes_is_held_too(has_heads: bool) -> None:
    """From an embedding at position 2 there is no direct path to the last position's logit."""
    own = made()
    own.blocks[0].attn = OwnAttention(22, has_heads).double()
    found = lens.patch_paths(own, TEXT, DONOR, "hook_embed", target=3)
    assert found.effect == pytest.approx(0, abs=1e-12)
    assert found.donor != pytest.approx(found.own)


def test_a_path_to_a_heads_keys_changes_only_these(model: Any, tmp_path: Path) -> None:
    own, donor = (activations(model, lens.read(model, each).arguments) for each in (TEXT, DONOR))
    sender, receiver = lens.Site("blocks.0.hook_mlp_out"), lens.Site("blocks.1.attn.hook_k", head=2)
    moved = own["blocks.0.hook_resid_post"] + donor[sender.name] - own[sender.name]
    with torch.no_grad():
        block = model.blocks[1]
        _, keys, _ = block.attn.queries_keys_values(block.ln1(moved))
    wanted = output_with(model, (torch.tensor([TEXT]),), [lens.replace(receiver, keys[:, :, 2:3])])[
        0, -1, 3
    ].item()
    found = lens.patch_paths(model, TEXT, DONOR, sender, receiver, target=3)
    assert found.after == pytest.approx(wanted, abs=1e-10)
    assert found.receivers == [receiver]
    assert "hook_mlp_out to blocks.1.attn.hook_k (head 2)" in found.caption()
    assert found.figure(tmp_path / "paths.svg").stat().st_size > 0


def test_a_path_to_what_writes_itself_is_what_it_makes_of_the_senders(model: Any) -> None:
    own, donor = (activations(model, lens.read(model, each).arguments) for each in (TEXT, DONOR))
    sender, block = "blocks.0.hook_mlp_out", model.blocks[1]
    moved = own["blocks.1.hook_resid_mid"] + donor[sender] - own[sender]
    with torch.no_grad():
        written = block.mlp(block.ln2(moved))
    found = lens.patch_paths(model, TEXT, DONOR, sender, "blocks.1.hook_mlp_out", target=3)
    edit = lens.replace("blocks.1.hook_mlp_out", written)
    assert found.after == pytest.approx(lens.intervene(model, TEXT, edit, target=3).after, abs=1e-10)
    assert abs(found.effect) > 1e-6


def test_no_receiver_is_not_the_output(model: Any) -> None:
    with pytest.raises(UserError, match="receivers: give at least one hook point, or 'output'"):
        lens.patch_paths(model, TEXT, DONOR, "blocks.0.hook_mlp_out", [])


def test_a_sender_writes_to_the_residual_stream(model: Any) -> None:
    with pytest.raises(
        UserError, match=r"blocks.0.attn.hook_q does not write to the residual stream; a sender is one of"
    ):
        lens.patch_paths(model, TEXT, DONOR, "blocks.0.attn.hook_q")
