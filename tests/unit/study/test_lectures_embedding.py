"""The studies of lecture 000 at a tiny size, and their measures against what is counted by hand."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from clearformer import lens
from clearformer.hooks import Hook
from clearformer.lens import quiet
from clearformer.run import Run, replay
from clearformer.study.lectures.embedding import BY_DEPTH, LAST, QK, QKV, STUDIES, UNSCALED
from clearformer.study.measures.attention import causal_mask
from clearformer.study.measures.attention_maps import (
    effects_without_each,
    last_weights,
    weights_against_effects,
)
from clearformer.study.measures.held_out import per_character, text_split
from clearformer.study.measures.ngrams import (
    after_pairs,
    counted_next,
    learned_next,
    next_distributions,
    training_tokens,
)
from clearformer.study.measures.patterns import pattern_of, self_weight, with_first_weights
from clearformer.study.measures.samples import known_words, temperatures
from clearformer.study.measures.stream import windows_of
from clearformer.study.outcomes import NOT_RUN, outcome
from clearformer.study.running import compute, trained
from clearformer.study.store import Store
from clearformer.study.study import Study, Training
from clearformer.study.trials import Trial, trials
from clearformer.training.reporting.report import Reporter

TEXT = (
    "the ship she shows the thin man; that man then shot the other sheep.\nFirst Citizen, KING RICHARD II:\n"
    * 12
)
TINY = {
    "model.d_model": 16,
    "model.max_seq_len": 24,
    "train.batch_size": 4,
    "train.max_steps": 6,
    "train.log_every": 1,
    "train.device": "cpu",
    "train.compile": False,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("studies")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLEARFORMER_CACHE", str(folder / "cache"))
        yield Store(folder)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text(TEXT)
    return str(file)


def tiny(study: Study, text: str) -> Study:
    """The study on a small text, with small models of few steps."""
    settings = TINY | {"data": {"path": text}}
    arms = tuple(
        replace(arm, settings={**arm.settings, **settings}) if isinstance(arm, Training) else arm
        for arm in study.arms
    )
    return replace(study, arms=arms, seeds=1)


def run_of(arm: Training, text: str, store: Store) -> Run:
    (trial,) = trials(tiny(Study("one", "?", "000", (arm,), "never"), text))
    return trained(trial, store, Reporter())


def computable(found: list[Trial]) -> list[Trial]:
    """Those that need no vocabulary of 50,257 tokens."""
    return [trial for trial in found if trial.config is None or trial.config.tokenizer.kind != "gpt2"]


@pytest.mark.parametrize("study", STUDIES, ids=[study.name for study in STUDIES])
def test_a_study_runs_and_measures_all_that_it_names(
    study: Study, text: str, store: Store, request: pytest.FixtureRequest
) -> None:
    if study.name == "temperature":  # one of its probes counts in Tiny Shakespeare itself
        request.getfixturevalue("data_dir")
    small = tiny(study, text)
    found = computable(trials(small))
    for trial in found:
        compute(trial, store)

    result = outcome(small, store)

    assert result.n_done == len(found) > 0
    measured = {trial.arm.label for trial in found}
    trained = measured & {arm.label for arm in small.arms if isinstance(arm, Training)}
    for name in small.shown:
        assert all(result.estimate(label, name) is not None for label in trained), name
    for verdict in result.published():
        assert (verdict.verdict == NOT_RUN) == (verdict.arm not in measured)
    for claim in result.claims():
        assert (claim.difference is None) == (not {claim.lower, claim.higher} <= measured)


def test_the_studies_share_their_runs() -> None:
    found = [trial for study in STUDIES for trial in trials(study)]
    assert len({trial.settings_key for trial in found}) < 0.6 * len(found)


def test_counted_distributions_are_those_of_the_text() -> None:
    tokens = np.array([0, 1, 2, 0, 1, 1, 0, 1, 2, 0])
    assert counted_next(tokens, np.array([0, 1]), 3).tolist() == [0, 1 / 3, 2 / 3]
    assert counted_next(tokens, np.array([2]), 3).tolist() == [1, 0, 0]


def test_a_bigram_model_has_one_prediction_for_contexts_that_end_alike(text: str, store: Store) -> None:
    run = run_of(LAST, text, store)
    one, other = (learned_next(run, np.array(run.tokenizer.encode(context))) for context in ("th", "sh"))
    assert np.array_equal(one, other)
    tokens = training_tokens(run)
    counted = [counted_next(tokens, np.array(run.tokenizer.encode(each)), 99) for each in ("th", "sh")]
    assert np.abs(counted[0] - counted[1]).sum() > 0.1
    found = next_distributions(run, ["t"])
    after_t = np.array(run.tokenizer.encode("t"))
    assert found["counted"]["t"][0] == ["h", pytest.approx(counted_next(tokens, after_t, 99).max())]
    h = run.tokenizer.encode("h")[0]
    assert dict(found["learned"]["t"])["h"] == pytest.approx(learned_next(run, after_t)[h])


def test_pairs_of_letters_are_counted_beside_what_is_learned(text: str, store: Store) -> None:
    run = run_of(LAST, text, store)
    found = after_pairs(run, ["th", "sh"])
    assert found["learned_after"].keys() == found["counted_after"].keys() == {"th", "sh"}
    learned = [dict(found["learned_after"][pair]) for pair in ("th", "sh")]
    shared = learned[0].keys() & learned[1].keys()
    assert {letter: learned[0][letter] for letter in shared} == {
        letter: learned[1][letter] for letter in shared
    }
    likeliest, p = found["counted_after"]["th"][0]
    assert TEXT.count("th" + likeliest) / TEXT.count("th") == pytest.approx(
        p, abs=0.02
    )  # the last tenth is held out
    assert found["first_after_th"] == p


def test_known_words_are_those_of_the_training_text() -> None:
    """The first and the last may be cut; case and apostrophes do not matter, digits and lines are no words."""
    assert known_words("cu The king's zzz 12\nThe las", "the KING'S men") == pytest.approx(3 / 4)
    assert known_words("a b", "a b") == 0


def test_the_causal_mask_is_a_triangle() -> None:
    found = causal_mask(1, n_tokens=4)
    assert found["readable"] == [[s <= t for s in range(4)] for t in range(4)]
    assert found["above_diagonal"] == 0


def test_effects_of_removal_are_those_of_the_other_weights_scaled_up(text: str, store: Store) -> None:
    """By another way: the weight is set to 0 after the softmax, and the row divided by what is left of it."""
    run = run_of(BY_DEPTH[1], text, store)
    tokens = torch.from_numpy(training_tokens(run)[:9].astype(np.int64))

    def without_third(pattern: torch.Tensor, _: Hook) -> torch.Tensor:
        pattern = pattern.clone()
        pattern[:, :, -1, 3] = 0
        pattern[:, :, -1] /= pattern[:, :, -1].sum(-1, keepdim=True)
        return pattern

    with torch.no_grad(), quiet(run.model):
        found = effects_without_each(run.model, tokens, [1])
        whole = run.model(tokens[None])[0, -1].softmax(-1)
        with run.model.hooked({"blocks.1.attn.hook_pattern": without_third}):
            without = run.model(tokens[None])[0, -1].softmax(-1)
    assert found.shape == (8,)
    assert found[3] == pytest.approx((without - whole).abs().sum().item() / 2, rel=1e-4, abs=1e-7)


def test_weights_are_ranked_against_effects(text: str, store: Store) -> None:
    run = run_of(BY_DEPTH[1], text, store)
    tokens = training_tokens(run)[:7]
    with torch.no_grad():
        weights = last_weights(run.model, torch.from_numpy(tokens.astype(np.int64)))
    patterns = lens.attention(run, tokens.tolist()).patterns  # by layer, [H T T]
    assert weights == pytest.approx(
        np.stack([np.asarray(each)[:, -1, :-1].mean(0) for each in patterns.values()])
    )

    found = weights_against_effects(run, n_windows=1, n_tokens=7)
    window = windows_of(text_split(run), 1, 7)[0]
    with torch.no_grad(), quiet(run.model):
        most_read = last_weights(run.model, window).mean(0).argmax()
        matters_most = effects_without_each(run.model, window, [0, 1]).argmax()
    assert (found["same"], found["other"]) == ((1, 0) if most_read == matters_most else (0, 1))
    assert [row[0] for row in found["by_layer"]] == [0, 1]
    assert all(-1 <= row[1] <= 1 for row in found["by_layer"])


def test_a_token_reads_itself_until_queries_and_keys_have_matrices_of_their_own(
    text: str, store: Store
) -> None:
    alone = self_weight(run_of(UNSCALED, text, store))
    apart = self_weight(run_of(QK, text, store))
    assert alone["self_weight_first"] > 0.6  # a letter that came before has an equal share
    assert apart["self_weight_first"] == pytest.approx(apart["equal_self_weight"], abs=0.1)
    assert apart["equal_self_weight"] == pytest.approx(np.mean([1 / t for t in range(1, 25)]))


def test_first_weights_are_those_of_the_training(text: str, store: Store) -> None:
    run = run_of(QK, text, store)
    first, again = (each.model.state_dict() for each in (with_first_weights(run), replay(run, 0)))
    assert all(torch.equal(first[name], again[name]) for name in again)
    assert not torch.equal(first["embed.weight"], run.model.state_dict()["embed.weight"])


def test_a_pattern_is_causal_and_its_rows_sum_to_one(text: str, store: Store) -> None:
    found = pattern_of(run_of(QKV, text, store), "the ship she")
    assert np.shape(found["pattern"]) == (12, 12)
    assert found["above_diagonal"] == 0
    assert found["row_sum_error"] < 1e-6


def test_a_lower_temperature_sharpens(text: str, store: Store) -> None:
    run = run_of(QKV, text, store)
    found = temperatures(run, "the ", [0.1, 1.0], tokens=5, top=3)
    cold, plain = (dict(rows) for rows in found["next_tokens"].values())
    assert max(cold.values()) > max(plain.values())
    with torch.no_grad():
        logits = run.model(torch.from_numpy(np.array(run.tokenizer.encode("the ")))[None])[0, -1].double()
    likeliest = next(iter(plain))
    assert plain[likeliest] == pytest.approx(logits.softmax(-1).max().item(), abs=1e-6)
    assert cold[likeliest] == pytest.approx((logits / 0.1).softmax(-1).max().item(), abs=1e-6)
    assert [len(text) for text in found["samples"].values()] == [5, 5]


def test_of_tokens_that_lose_text_no_characters_are_counted() -> None:
    scores = {"bits_per_char": None, "bits_per_byte": None, "loss": 1.5, "n_chars": None, "n_tokens": 7}
    run: Any = SimpleNamespace(evaluate=lambda: scores)
    assert per_character(run) == {
        "bits_per_char": None,
        "bits_per_byte": None,
        "loss_per_token": 1.5,
        "characters_per_token": None,
    }
