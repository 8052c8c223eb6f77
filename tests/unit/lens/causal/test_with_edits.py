"""Edits by name: they are the edits of `intervene`, and none of them changes nothing."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clearformer as cf
from clearformer import lens
from clearformer.errors import UserError
from clearformer.lens.causal.named_edits import parse_edit
from clearformer.model import ModelConfig, build

from ..sampling.test_sampling import Run, run_of

TEXT, DONOR = "the bank", "the mone"
FAMILIES = ("decoder", "encoder", "encoder-decoder")


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    return {family: run_of(family, max_seq_len=61) for family in FAMILIES}


def sites(run: Run, ending: str) -> list[str]:
    found = lens.with_edits(run, TEXT, max_new_tokens=0)
    return [each for each in (*found.heads, *found.networks) if ending in each]


def ids_of(continued: Any) -> list[int]:
    return [each.id for each in continued.tokens]


# --- no edit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_no_edit_changes_no_bit(family: str, runs: dict[str, Run]) -> None:
    run = runs[family]
    for edits in ([], [f"scale {site} 1" for site in sites(run, "")]):
        found = lens.with_edits(run, TEXT, edits, seed=2)
        assert found.before == found.after
        assert found.kl == 0
        np.testing.assert_array_equal(found.losses_before, found.losses_after)
        assert all(each.logit_before == each.logit_after for each in found.predicted)
        if not edits:
            assert found.continued_before == found.continued_after
    assert (found.continued_before is None) == (family == "encoder")


def test_what_is_shown_before_is_what_other_lenses_say(runs: dict[str, Run]) -> None:
    run = runs["decoder"]
    found = lens.with_edits(run, TEXT, ["zero blocks.0.attn.hook_z:1"], position=4, seed=3, temperature=0.8)
    table = lens.tokens(run, TEXT)
    np.testing.assert_allclose(found.losses_before, table.losses, atol=1e-5)
    assert found.targets == table.predicted
    np.testing.assert_array_equal(found.loss_changes, found.losses_after - found.losses_before)
    assert found.loss_after == pytest.approx(np.nanmean(found.losses_after))
    likeliest = lens.next_tokens(run, TEXT, position=4, temperatures=[1.0], top=10)
    before = sorted(found.predicted, key=lambda each: -each.before)[:10]
    assert [each.id for each in before] == likeliest.ids
    np.testing.assert_allclose([each.before for each in before], likeliest.probabilities[0], atol=1e-5)
    n = 5 - (run.tokenizer.bos_id is not None)
    [sample] = cf.generate(run, TEXT[:n], max_new_tokens=24, seed=3, temperature=0.8)
    assert ids_of(found.continued_before) == sample.tokens


# --- edits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_that_is_switched_off_is_zero_ablated(family: str, runs: dict[str, Run]) -> None:
    run = runs[family]
    output = TEXT if family == "encoder-decoder" else None
    for label in sites(run, "hook_z"):
        name, _, head = label.partition(":")
        found = lens.with_edits(run, TEXT, [f"zero {label}"], output, position=3, max_new_tokens=0)
        wanted = lens.intervene(
            run, TEXT, lens.zero(lens.Site(name, int(head))), output=output, position=3, target=None
        )
        assert (found.before, found.after, found.metric) == (wanted.before, wanted.after, wanted.metric)
        assert found.kl == pytest.approx(wanted.kl[3], abs=1e-5)
        assert found.before != found.after
        for each in found.predicted:
            assert each.logit_after == pytest.approx(float(wanted.output[3, each.id]))


def test_every_verb_is_its_intervention(runs: dict[str, Run]) -> None:
    run = runs["decoder"]
    _, own = lens.run_with_cache(run, TEXT)
    _, donor = lens.run_with_cache(run, DONOR)
    z, mlp, residual = "blocks.0.attn.hook_z", "blocks.0.hook_mlp_out", "blocks.1.hook_resid_pre"
    pairs: list[tuple[str, lens.Edit]] = [
        (f"scale {z}:1@4 -0.5", lens.change(lens.Site(z, 1, 4), lambda x: -0.5 * x)),
        (f"zero {mlp}@2", lens.zero(lens.Site(mlp, position=2))),
        (f"mean {z}:0", lens.mean(lens.Site(z, 0), [own])),
        (f"patch {residual}@5", lens.patch(lens.Site(residual, position=5), donor)),
        (f"patch {mlp}", lens.patch(mlp, donor)),
    ]
    for line, edit in pairs:
        found = lens.with_edits(run, TEXT, [line], donor=DONOR, max_new_tokens=2)
        wanted = lens.intervene(run, TEXT, edit)
        assert found.after == pytest.approx(wanted.after, abs=1e-5), line
        assert found.after != found.before
    lines, edits = [line for line, _ in pairs], [edit for _, edit in pairs]
    together = lens.with_edits(run, TEXT, lines, donor=DONOR, max_new_tokens=0)
    assert together.after == pytest.approx(lens.intervene(run, TEXT, edits).after, abs=1e-5)


def test_a_target_and_a_foil_are_measured(runs: dict[str, Run]) -> None:
    found = lens.with_edits(runs["decoder"], TEXT, ["zero blocks.0.hook_mlp_out"], target="a", foil="e")
    wanted = lens.intervene(runs["decoder"], TEXT, lens.zero("blocks.0.hook_mlp_out"), target="a", foil="e")
    assert found.effect == wanted.effect


# --- continuations with edits -----------------------------------------------------------------------------


def by_hand(run: Run, edits: Sequence[lens.Edit], n: int) -> list[int]:
    """Greedy continuation, the whole text read with the edits for every token."""
    tokens = lens.read(run, TEXT).tokens[0].tolist()
    for _ in range(n):
        found = lens.intervene(run, tokens, edits)
        tokens.append(int(found.output[-1].argmax()))
    return tokens[-n:]


@pytest.mark.parametrize(
    ("line", "edit"),
    [
        ("zero blocks.0.attn.hook_z:0", lens.zero(lens.Site("blocks.0.attn.hook_z", 0))),
        ("zero blocks.0.hook_mlp_out@3", lens.zero(lens.Site("blocks.0.hook_mlp_out", position=3))),
    ],
)
def test_the_continuation_is_of_the_model_with_the_edits(
    line: str, edit: lens.Edit, runs: dict[str, Run]
) -> None:
    run = runs["decoder"]
    found = lens.with_edits(run, TEXT, [line], max_new_tokens=9, temperature=0)
    assert ids_of(found.continued_after) == by_hand(run, [edit], 9)


def test_a_patch_stays_where_the_donors_text_ends(runs: dict[str, Run]) -> None:
    """All of the first residual stream patched: the model goes on as from the donor's text."""
    run = runs["decoder"]
    found = lens.with_edits(
        run, TEXT, ["patch blocks.0.hook_resid_pre"], donor=DONOR, max_new_tokens=8, temperature=0
    )
    [wanted] = cf.generate(run, DONOR, max_new_tokens=8, temperature=0)
    assert ids_of(found.continued_after) == wanted.tokens


def test_edits_behind_the_position_are_no_part_of_its_continuation(runs: dict[str, Run]) -> None:
    found = lens.with_edits(runs["decoder"], TEXT, ["zero blocks.0.hook_mlp_out@6"], position=3)
    assert found.continued_before == found.continued_after
    assert found.before == found.after
    assert (found.losses_before != found.losses_after)[6]


def test_an_encoder_decoders_three_kinds_of_heads(runs: dict[str, Run]) -> None:
    run = runs["encoder-decoder"]
    heads = sites(run, "hook_z")
    assert {each.rpartition(".attn")[0].split(".")[0] for each in heads if ".attn" in each} == {
        "encoder_blocks",
        "decoder_blocks",
    }
    for label in (heads[0], next(each for each in heads if "cross_attn" in each)):
        found = lens.with_edits(run, TEXT, [f"zero {label}@0", f"scale {label} 0.1"], seed=4)
        assert found.before != found.after
        assert (
            found.continued_before
            == lens.continuations(run, TEXT, max_new_tokens=24, seed=4).continuations[0]
        )
        assert found.continued_after != found.continued_before


# --- held-out data ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text("the bank lends money, and the river takes it.\n" * 60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLEARFORMER_RUNS", str(folder / "runs"))
        patch.setenv("CLEARFORMER_CACHE", str(folder / "cache"))
        config = {
            "data.path": str(folder / "text.txt"),
            "data.val_fraction": 0.3,
            "tokenizer.kind": "char",
            "model.d_model": 16,
            "model.n_layers": 2,
            "model.attention.n_heads": 2,
            "model.max_seq_len": 24,
            "train.batch_size": 4,
            "train.max_steps": 3,
            "train.eval_every": 3,
            "train.checkpoint_every": 3,
            "train.device": "cpu",
        }
        yield cf.train("quick", **config)


def test_the_held_out_loss_is_that_of_the_runs_own_data(trained: Any) -> None:
    found = lens.with_edits(trained, TEXT, held_out=10**6, max_new_tokens=0)
    assert found.held_out_note == ""
    whole = trained.evaluate()
    assert found.held_out_before == pytest.approx(whole.loss, abs=1e-4)
    assert found.held_out_after == found.held_out_before
    some = [lens.with_edits(trained, TEXT, ["zero blocks.0.hook_mlp_out"], held_out=2) for _ in range(2)]
    assert some[0].held_out_before == some[1].held_out_before
    without = lens.edited_copy(
        trained.model,
        {n: torch.zeros_like for n, _ in trained.model.named_parameters() if n.startswith("blocks.0.mlp.")},
    )
    copy = cf.Run(without, trained.tokenizer, trained.config, folder=trained.folder)
    assert some[0].held_out_after == pytest.approx(
        lens.with_edits(copy, TEXT, held_out=2).held_out_before, abs=1e-5
    )


def test_why_there_is_no_held_out_loss_is_said(trained: Any, runs: dict[str, Run]) -> None:
    found = lens.with_edits(trained, TEXT, ["zero blocks.0.hook_mlp_out@2"])
    assert found.held_out_before is None
    assert "applies to this text alone" in found.held_out_note
    assert "no held-out loss" in lens.with_edits(runs["decoder"], TEXT).held_out_note
    assert lens.with_edits(runs["decoder"], TEXT, held_out=0).held_out_note == ""


# --- what goes wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("zeroo blocks.0.attn.hook_z", "did you mean 'zero'|zero"),
        ("zero", "must be zero SITE"),
        ("scale blocks.0.attn.hook_z:1", "must be scale SITE FACTOR"),
        ("scale blocks.0.attn.hook_z:1 much", "must end with a factor"),
        ("scale blocks.0.attn.hook_z:1 nan", "must end with a factor"),
        ("zero blocks.*.attn.hook_z", "a site is a hook point"),
        ("zero blocks.0.attn.hook_zz", "no hook point"),
        ("zero blocks.0.attn.hook_z:7", "no head 7"),
        ("zero blocks.0.attn.hook_z:1@99", "no position 99"),
        ("zero blocks.0.hook_mlp_out:1", "has no heads"),
        ("mean blocks.0.attn.hook_pattern:1", "hook_z"),
        ("patch blocks.0.hook_mlp_out", "donor"),
    ],
)
def test_an_edit_that_is_none_is_named(line: str, why: str, runs: dict[str, Run]) -> None:
    with pytest.raises(UserError, match=why) as caught:
        lens.with_edits(runs["decoder"], TEXT, ["zero blocks.1.attn.hook_z:0", line])
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_arguments_that_do_not_fit(runs: dict[str, Run]) -> None:
    run = runs["decoder"]
    with pytest.raises(UserError, match="a list of lines"):
        lens.with_edits(run, TEXT, "zero blocks.0.hook_mlp_out")
    with pytest.raises(UserError, match=r"edits: a list of lines, such as .*; got 5"):
        lens.with_edits(run, TEXT, 5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="donor: 4 tokens"):
        lens.with_edits(run, TEXT, ["patch blocks.0.hook_mlp_out"], donor="bank")
    with pytest.raises(UserError, match="held_out"):
        lens.with_edits(run, TEXT, held_out=-1)
    with pytest.raises(UserError, match="each is a line"):
        parse_edit({"verb": "zero"})


# --- showing ----------------------------------------------------------------------------------------------


def test_a_classifier_is_edited_too(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    model = build(ModelConfig(family="encoder", vocab_size=13, d_model=12, n_layers=2, n_classes=3))
    found = lens.with_edits(model, [1, 2, 3], ["zero blocks.0.attn.hook_z:0"], target=2)
    assert found.effect != 0
    assert {each.token for each in found.predicted} == {"0", "1", "2"}
    assert np.isnan(found.losses_before).all()
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.figure(tmp_path / "classes.png").stat().st_size > 1000
    assert len(found.table().rows) == 3
    assert "KL" in found.notes()[0]
    assert "blocks.0.attn.hook_z:0" in found.caption()


def test_all_is_told_while_the_continuations_are_written(runs: dict[str, Run]) -> None:
    run = runs["decoder"]
    edits = [f"zero {sites(run, 'hook_z')[0]}"]
    parts: list[lens.WithEdits] = []
    whole = lens.with_edits(run, TEXT, edits, max_new_tokens=3, seed=4, on_part=parts.append)
    assert [(len(ids_of(each.continued_before)), len(ids_of(each.continued_after))) for each in parts] == [
        (1, 0),
        (2, 0),
        (3, 0),
        (3, 1),
        (3, 2),
        (3, 3),
    ]
    assert parts[-1].to_dict() == whole.to_dict()
    for part in parts:
        assert (part.before, part.after, part.kl) == (whole.before, whole.after, whole.kl)
    alike: list[lens.WithEdits] = []
    lens.with_edits(run, TEXT, max_new_tokens=2, on_part=alike.append)
    assert [each.continued_before == each.continued_after for each in alike] == [True, True]


def test_an_edit_at_a_position_ends_the_continuation_where_its_text_would_move(runs: dict[str, Run]) -> None:
    run, text = runs["decoder"], "the bank the bank the bank the bank "
    n = len(lens.tokens(run, text).tokens)
    assert n < 61
    here, everywhere = (
        lens.with_edits(run, text, [edit], max_new_tokens=40)
        for edit in ("zero blocks.0.hook_mlp_out@5", "zero blocks.0.hook_mlp_out")
    )
    for each in (here.continued_before, here.continued_after):
        assert each is not None
        assert len(each.tokens) == 61 - n + 1
    assert everywhere.continued_after is not None
    assert len(everywhere.continued_after.tokens) == 40
