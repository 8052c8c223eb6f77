"""The studies of lecture 000 at a tiny size, and their measures against what is counted by hand."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from clearformer.run import Run, replay
from clearformer.study.lectures.embedding import LAST, QK, QKV, STUDIES, UNSCALED
from clearformer.study.measures.ngrams import counted_next, learned_next, next_distributions, training_tokens
from clearformer.study.measures.patterns import pattern_of, self_weight, with_first_weights
from clearformer.study.measures.samples import temperatures
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
        replace(arm, settings={**dict(getattr(arm, "settings", {})), **settings}) for arm in study.arms
    )
    return replace(study, arms=arms, seeds=1)


def run_of(arm: Training, text: str, store: Store) -> Run:
    (trial,) = trials(tiny(Study("one", "?", "000", (arm,), "never"), text))
    return trained(trial, store, Reporter())


def computable(found: list[Trial]) -> list[Trial]:
    """Those that need no vocabulary of 50,257 tokens."""
    return [trial for trial in found if trial.config is not None and trial.config.tokenizer.kind != "gpt2"]


@pytest.mark.parametrize("study", STUDIES, ids=[study.name for study in STUDIES])
def test_a_study_runs_and_measures_all_that_it_names(study: Study, text: str, store: Store) -> None:
    small = tiny(study, text)
    found = computable(trials(small))
    for trial in found:
        compute(trial, store)

    result = outcome(small, store)

    assert result.n_done == len(found) > 0
    measured = {trial.arm.label for trial in found}
    for name in small.shown:
        assert all(result.estimate(label, name) is not None for label in measured), name
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
