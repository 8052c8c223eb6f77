"""When something happened in a run's training: against torch, plain counting, and lines made by hand."""

import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clearformer as cf
from clearformer import lens
from clearformer.errors import UserError
from clearformer.lens.history.bigram import pairs_of
from clearformer.lens.history.events import InductionAt, when_formed, when_reached
from clearformer.runs.own_data import read_own_data

from ..trainings import EVERY, SETTINGS, STEPS, home_with_data, trained


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with home_with_data(tmp_path_factory.mktemp("history")):
        yield {kind: trained(kind) for kind in SETTINGS}


# --- the bigram model -------------------------------------------------------------------------------------


def rows_by_hand(run: Any, split: str) -> list[list[int]]:
    """The sequences of a split."""
    found: Any = read_own_data(run).prepared.splits[split]
    if run.model.config.family == "decoder":
        return [found.read(0, len(found)).tolist()]
    bos, eos = run.tokenizer.bos_id, run.tokenizer.eos_id
    return [[bos, *found.target(i).tolist(), eos] for i in range(len(found))]


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_a_bigram_models_loss_is_that_of_plain_counting(runs: dict[str, Any], kind: str) -> None:
    run = runs[kind]
    found = lens.bigram(run)
    size, weight = run.model.config.vocab_size, found.weight
    train = [pair for row in rows_by_hand(run, "train") for pair in itertools.pairwise(row)]
    pairs, before = Counter(train), Counter(a for a, _ in train)
    tokens = Counter(b for _, b in train)

    def p(a: int, b: int, less: int = 0) -> float:
        unigram = (tokens[b] + 1) / (len(train) + size)
        return (pairs[a, b] - less + weight * unigram) / (before[a] - less + weight)

    held_out = [pair for row in rows_by_hand(run, "val") for pair in itertools.pairwise(row)]
    assert found.loss == pytest.approx(-np.mean([math.log(p(*pair)) for pair in held_out]))
    assert found.left_out_loss == pytest.approx(-np.mean([math.log(p(*pair, 1)) for pair in train]))
    assert (found.n_pairs, found.n_counted, found.n_predicted) == (len(pairs), len(train), len(held_out))
    a, b = train[3]
    every = found.probabilities(np.full(size, a), np.arange(size))
    assert every.sum() == pytest.approx(1)
    assert every[b] == pytest.approx(p(a, b))
    assert found.loss < found.unigram_loss


def test_what_stands_before_every_target_is_counted_too(
    runs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs["encoder-decoder"]
    prepared: Any = read_own_data(run).prepared
    monkeypatch.setattr(type(run.tokenizer), "before_pair", (2,))
    [(before, tokens)] = pairs_of(prepared, run, "val")
    row = [run.tokenizer.bos_id, 2, *prepared.splits["val"].target(0).tolist(), run.tokenizer.eos_id]
    assert before[: len(row) - 1].tolist() == row[:-1]
    assert tokens[: len(row) - 1].tolist() == row[1:]


def test_the_weight_is_the_one_under_which_left_out_pairs_are_likeliest(runs: dict[str, Any]) -> None:
    assert lens.beside(lens.bigram, runs["decoder"], runs["decoder"]).changes.loss == 0
    found = lens.bigram(runs["decoder"])
    losses = {2.0**power: found.counts.left_out_loss(2.0**power) for power in range(15)}
    assert min(losses, key=lambda weight: losses[weight]) == found.weight
    assert len(set(losses.values())) == 15


def test_counts_do_not_hang_on_how_much_is_read_at_once(
    runs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = lens.bigram(runs["decoder"])
    monkeypatch.setattr(sys.modules["clearformer.lens.history.bigram"], "READ_AT_ONCE", 97)
    parts = lens.bigram(runs["decoder"])
    assert np.array_equal(parts.counts.keys, whole.counts.keys)
    assert np.array_equal(parts.counts.pairs, whole.counts.pairs)
    assert parts.loss == pytest.approx(whole.loss)


def test_an_encoder_has_no_bigram_model(runs: dict[str, Any]) -> None:
    for kind in ("encoder", "classes"):
        with pytest.raises(UserError, match="an encoder does not"):
            lens.bigram(runs[kind])


# --- events -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_the_best_induction_score_is_that_of_the_head_scores(runs: dict[str, Any], kind: str) -> None:
    run = runs[kind]
    found = lens.events(run)
    assert [each.step for each in found.induction] == run.kept_steps()
    assert {0, EVERY, STEPS} <= {each.step for each in found.induction}
    for each in found.induction[::3]:
        scores = lens.head_scores(cf.load(kind, each.step)).largest("induction", 99)
        own = [score for score in scores if not score.name.startswith("encoder_blocks")]
        assert each.score == pytest.approx(own[0].induction, abs=1e-6)
        assert each.head == own[0].label
    assert found.bigram_loss == lens.bigram(run).loss


def test_a_threshold_that_is_crossed_is_an_event_between_two_kept_steps(runs: dict[str, Any]) -> None:
    scores = lens.events(runs["decoder"]).induction
    threshold = max(each.score for each in scores[1:]) - 1e-7
    event = lens.events(runs["decoder"], threshold=threshold).events[0]
    at = next(i for i, each in enumerate(scores) if each.score >= threshold)
    assert event.step == scores[at].step
    assert event.value == scores[at].score
    assert (event.before, event.value_before) == (
        (scores[at - 1].step, scores[at - 1].score) if at else (None, None)
    )
    assert event.threshold == threshold


def test_induction_forms_at_the_first_step_that_reaches_the_threshold() -> None:
    scores = [
        InductionAt(step, score, "blocks.1.attn:0")
        for step, score in ((0, 0.1), (8, 0.2), (16, 0.5), (32, 0.4))
    ]
    event = when_formed(scores, 0.3)
    assert (event.before, event.step, event.value_before, event.value) == (8, 16, 0.2, 0.5)
    assert event.words == "between step 8 and step 16"
    assert when_formed(scores, 0.05).words == "by step 0"
    never = when_formed(scores, 0.6)
    assert (never.step, never.value, never.words) == (None, 0.4, "not yet")


def test_the_bigrams_loss_is_reached_at_the_first_logged_step_at_or_below_it() -> None:
    lines = [
        {"step": 1, "loss": 0.1},
        {"step": 4, "val_loss": 3.0},
        {"step": 8, "val_loss": 2.0},
        {"step": 9, "val_loss": 2.5},
    ]
    event = when_reached(lines, 2.0)
    assert (event.before, event.step, event.value_before, event.value) == (4, 8, 3.0, 2.0)
    assert when_reached(lines, 1.9).words == "not yet"
    assert when_reached(lines, 3.5).before is None
    assert "no held-out loss" in when_reached(lines[:1], 2.0).reason


def test_what_a_family_cannot_have_is_left_out_with_a_word(runs: dict[str, Any]) -> None:
    for kind in ("encoder", "classes"):
        found = lens.events(runs[kind])
        assert found.induction == []
        assert found.bigram_loss is None
        assert [event.name for event in found.events] == ["induction", "bigram"]
        assert all("encoder" in event.reason for event in found.events)
        json.dumps(found.to_dict())


def test_damaged_weights_are_named_and_the_others_read(runs: dict[str, Any]) -> None:
    folder = runs["decoder"].folder
    weights = folder.snapshots / "step-00000004" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-7])
    found = lens.events(runs["decoder"])
    weights.write_bytes(content)
    assert [each.step for each in found.induction] == [s for s in runs["decoder"].kept_steps() if s != 4]
    [line] = found.damaged
    assert line.startswith("step 4: ")
    assert any("step 4" in note for note in found.notes())


def test_it_shows_itself_and_says_how_far_it_is(runs: dict[str, Any], tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    found = lens.events(runs["decoder"], on_step=lambda *each: told.append(each))
    n = len(found.induction)
    assert told == [(i, n) for i in range(n + 1)]
    assert [row[0] for row in found.table().rows] == ["induction heads formed", "bigram loss reached"]
    assert found.figure(tmp_path / "events.svg").read_text().count("<path") > 5
    assert lens.bigram(runs["decoder"]).figure(tmp_path / "bigram.png").stat().st_size > 1000
    with pytest.raises(UserError, match="threshold: above 0"):
        lens.events(runs["decoder"], threshold=0)


# --- the loss between two steps ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_ledger_between_two_kept_steps_sums_to_the_change(runs: dict[str, Any], kind: str) -> None:
    run = runs[kind]
    text, output = ("le numéro 3", "number 3") if kind == "encoder-decoder" else ("the bank", None)
    target = "odd" if kind == "classes" else None
    told: list[tuple[int, int]] = []
    found = lens.loss_changes_since(
        run, text, 4, EVERY, output=output, target=target, pieces=2, on_step=lambda *each: told.append(each)
    )
    for step, loss in ((4, found.before), (EVERY, found.after)):
        at: Any = cf.load(kind, step)
        if target:
            with lens.quiet(at.model):
                [logits] = at.model(*lens.read(at, text).arguments)
            own = -logits.log_softmax(-1)[at.config.data.labels.index(target)].item()
        else:
            losses = np.array(lens.tokens(at, text, output).losses)
            own = float(np.nanmean(losses))
        assert loss == pytest.approx(own, abs=1e-5)
    assert found.sum + found.residue == pytest.approx(found.after - found.before, abs=1e-7)
    assert told == [(i, 5) for i in range(1, 6)]


def test_a_target_is_for_models_of_classes_alone(runs: dict[str, Any]) -> None:
    words = "target: only a classifier takes one; here the change is that of the text's loss"
    with pytest.raises(UserError, match=words):
        lens.loss_changes_since(runs["decoder"], "the bank", 4, EVERY, target="e")


def test_gradient_norms_by_layer_are_in_the_picture(runs: dict[str, Any], tmp_path: Path) -> None:
    found = lens.metrics(runs["decoder"])
    assert list(found.layers) == ["embed", "blocks.0", "blocks.1", "head"]
    norms = np.stack(list(found.layers.values()))
    np.testing.assert_allclose(np.sqrt((norms**2).sum(0)), found.columns["grad_norm"], rtol=1e-4)
    assert "gradient norm" in found.figure(tmp_path / "metrics.svg").read_text()
