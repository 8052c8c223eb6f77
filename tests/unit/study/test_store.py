"""The folder of studies: records, failures, results that came without their data."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from clearformer.cli.commands.study import listed
from clearformer.errors import DataError, DiskError
from clearformer.study import Measure, Store, Study
from clearformer.study.measures.held_out import per_character
from clearformer.study.measures.samples import sample
from clearformer.study.store import Record, studies_folder
from clearformer.study.trials import trials

from .parts import TEXT, tiny_study


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))


def record_of(key: str, **measured: dict[str, float]) -> Record:
    return Record(
        key, {"config": {}}, 1, measured or {"losses": {"val_loss": 2.0}}, 1.5, {"created": "today"}
    )


def test_what_was_measured_comes_back(tmp_path: Path) -> None:
    store, trial = Store(tmp_path / "studies"), trials(tiny_study(tmp_path))[0]
    assert store.find(trial) is None
    assert not store.is_done(trial)
    store.write(record_of(trial.key))
    found = store.find(trial)
    assert found == record_of(trial.key)
    assert found is not None
    assert found.values == {"val_loss": 2.0}
    assert store.is_done(trial)
    assert store.by_settings() == {trial.settings_key: [found]}


def test_of_another_measure_nothing_is_taken(tmp_path: Path) -> None:
    """Two studies may measure the same run, and call their numbers alike."""
    store, trial = Store(tmp_path / "studies"), trials(tiny_study(tmp_path))[0]
    store.write(record_of(trial.key, other={"val_loss": 9.0}))
    assert not store.is_done(trial)
    assert listed(tiny_study(tmp_path), store, store.by_settings())["done"] == 0
    store.write(record_of(trial.key, other={"val_loss": 9.0}, losses={"val_loss": 2.0}))
    found = store.find(trial)
    assert found is not None
    assert found.of(trial).values == {"val_loss": 2.0}
    assert listed(tiny_study(tmp_path), store, store.by_settings())["done"] == 1


def test_a_result_on_built_in_data_counts_where_they_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = tiny_study(tmp_path)
    settings = {name: value for name, value in study.settings.items() if name != "data"}
    study = replace(study, settings={**settings, "data.name": "shakespeare"})
    store, trial = Store(tmp_path / "studies"), trials(study)[0]
    store.write(record_of(f"{trial.settings_key}-0123456789abcdef"))

    def offline(*_: object, **__: object) -> None:
        raise DataError("data.name=shakespeare: not on this machine")

    monkeypatch.setattr("clearformer.study.trials.prepare_data", offline)
    assert (trial.place, trial.identity) == ({}, trial.settings_key)
    assert store.is_done(trial)


def test_a_result_is_found_without_its_data_as_long_as_it_is_the_only_one(tmp_path: Path) -> None:
    """As on a machine to which the measured folder alone was copied."""
    store, trial = Store(tmp_path / "studies"), trials(tiny_study(tmp_path))[0]
    store.write(record_of(trial.key))
    (tmp_path / "text.txt").unlink()
    there = trials(tiny_study_without_text(tmp_path))[0]
    assert store.find(there, or_without_its_file=True) == store.find(trial)
    assert not store.is_done(there)  # the result may be another file's
    store.write(record_of(f"{trial.settings_key}-another"))
    with pytest.raises(DataError, match="are results on different data; cannot tell which to use"):
        store.find(there, or_without_its_file=True)


def tiny_study_without_text(tmp_path: Path) -> Study:
    study = tiny_study(tmp_path)
    (tmp_path / "text.txt").unlink()
    return study


def test_other_data_are_another_run(tmp_path: Path) -> None:
    store, trial = Store(tmp_path / "studies"), trials(tiny_study(tmp_path))[0]
    store.write(record_of(trial.key))
    (tmp_path / "text.txt").write_text(TEXT + "more")
    assert not store.is_done(trials(tiny_study(tmp_path))[0])


WHOLE = {"key": "k", "settings": {}, "seed": 1, "measured": {"losses": {"loss": 1.0}}, "seconds": 2.0}


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"key": "k"}', '{"keys": 1}']
    + [
        json.dumps(WHOLE | wrong)
        for wrong in (
            {"measured": []},
            {"measured": {"losses": 1.0}},
            {"seconds": "2"},
            {"about": None},
            {"more": 1},
        )
    ],
)
def test_a_damaged_record_is_named_with_the_way_out(tmp_path: Path, content: str) -> None:
    store, trial = Store(tmp_path / "studies"), trials(tiny_study(tmp_path))[0]
    store.write(record_of(trial.key))
    file = store.measured / f"{trial.key}.json"
    file.write_text(content)
    with pytest.raises(DataError, match=r"damaged.*delete it to compute its run again") as caught:
        store.find(trial)
    assert str(file) in str(caught.value)
    assert "Record" not in str(caught.value)


def test_a_failure_is_kept_until_it_is_forgotten(tmp_path: Path) -> None:
    store, trial = Store(tmp_path / "studies"), trials(tiny_study(tmp_path))[0]
    assert store.failure(trial) is None
    store.write_failure(trial, "no room", "Traceback")
    assert store.failure(trial) == "no room"
    store.forget_failure(trial)
    store.forget_failure(trial)
    assert store.failure(trial) is None


def test_a_measure_that_fails_is_no_failure_of_a_study_without_it(tmp_path: Path) -> None:
    store, trial = Store(tmp_path / "studies"), trials(tiny_study(tmp_path))[0]
    store.write(replace(record_of(trial.key), measured={key: {} for key in trial.values}))
    with_a_faulty_one = trial.with_measures([Measure(per_character)])
    store.write_failure(with_a_faulty_one, "division by zero")
    assert store.failure(with_a_faulty_one) == "division by zero"
    with_another = trial.with_measures([Measure(sample)])
    assert not store.is_done(with_another)
    assert store.failure(with_another) is None


def test_a_run_that_is_only_trained_can_fail_too(tmp_path: Path) -> None:
    """Else its workers would try it again for ever."""
    store, trial = Store(tmp_path / "studies"), trials(tiny_study(tmp_path, measures=()))[0]
    assert not trial.values
    store.write_failure(trial, "no room")
    assert store.failure(trial) == "no room"


def test_a_folder_that_cannot_be_written_is_an_error_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    trial = trials(tiny_study(tmp_path))[0]
    with pytest.raises(DiskError, match="file"):
        Store(tmp_path / "file").write(record_of(trial.key))


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLEARFORMER_STUDIES", raising=False)
    assert studies_folder() == Path("studies")
    monkeypatch.setenv("CLEARFORMER_STUDIES", str(tmp_path))
    assert Store().folder == tmp_path
