"""The results in docs/studies: the keys that runs have today, of settings and of data, find each of them again."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import clearformer
from clearformer.study.lectures import studies
from clearformer.study.trials import Trial, digest, trials
from clearformer.text.kinds.byte import ByteTokenizerSpec

RESULTS = Path(clearformer.__file__).parents[2] / "docs" / "studies"
pytestmark = pytest.mark.skipif(not RESULTS.is_dir(), reason="the documents are not installed")


@cache
def results_by_settings() -> Mapping[str, list[Path]]:
    found = defaultdict[str, list[Path]](list)
    for file in (RESULTS / "measured").glob("*.json"):
        found[file.stem.rpartition("-")[0]].append(file)
    return found


def results_of(trial: Trial) -> list[Path]:
    """The files of results of a trial's settings, on whatever data."""
    return results_by_settings().get(trial.settings_key, [])


trials_of = cache(lambda name: trials(studies()[name]))


@pytest.mark.parametrize("name", studies())
def test_a_study_has_as_many_results_as_its_report_counted(name: str) -> None:
    """Else a change of a key would lose hours of training in silence."""
    reported = json.loads((RESULTS / name / "result.json").read_text())["runs"]["done"]
    assert sum(bool(results_of(trial)) for trial in trials_of(name)) == reported


@pytest.mark.usefixtures("data_dir")
def test_the_data_of_results_have_the_same_hash_still() -> None:
    of_data = {
        digest(trial.settings["config"]["data"]): trial
        for name in studies()
        for trial in trials_of(name)
        if trial.config is not None and results_of(trial)
    }
    assert len(of_data) > 5
    for trial in of_data.values():
        (kept,) = results_of(trial)
        assert trial.config is not None
        room = trial.config.model.replace(max_seq_len=1024)
        in_bytes = trial.config.replace(model=room, tokenizer=ByteTokenizerSpec())  # quick to prepare
        assert kept.stem == f"{trial.settings_key}-{replace(trial, config=in_bytes).data_key}"
