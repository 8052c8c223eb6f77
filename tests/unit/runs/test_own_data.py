"""The data that a run was trained on: the same as then, changed, or unknown."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from clearformer.errors import DataError, RunError
from clearformer.model import Transformer
from clearformer.run import Run
from clearformer.runs.folders import (
    read_run,
)
from clearformer.runs.own_data import read_own_data
from clearformer.text import Tokenizer
from clearformer.training.store.folder import RunFolder


def test_own_data_are_those_that_the_run_was_trained_on(written: Callable[..., RunFolder]) -> None:
    written("a")

    own = read_own_data(read_run("a", device="cpu"))

    assert own.changed is False
    assert set(own.prepared.splits) == {"train", "val"}


def test_own_data_that_have_changed_are_refused_unless_they_are_taken_as_they_are(
    written: Callable[..., RunFolder], text_file: Path
) -> None:
    written("a")
    text_file.write_text(text_file.read_text().replace("line 7 ", "line 8 "))
    run = read_run("a", device="cpu")

    with pytest.raises(DataError, match=r"the data have changed since this run started.*--changed-data"):
        read_own_data(run, can_choose=True)
    assert read_own_data(run, allow_changed=True).changed is True


def test_an_imported_run_has_no_own_data(written: Callable[..., RunFolder]) -> None:
    folder = written("a", sha256="")

    with pytest.raises(RunError, match="its training data are unknown"):
        read_own_data(read_run("a", device="cpu"))
    assert json.loads(folder.env_file.read_text())["text_sha256"] == ""


def test_errors_about_own_data_advise_only_what_their_caller_takes(
    written: Callable[..., RunFolder], text_file: Path
) -> None:
    """`lens` and `generate` have no `--data`; an evaluation has."""
    written("a")
    text_file.write_text(text_file.read_text() + "line of a text\n")
    with pytest.raises(DataError, match=r"restore the data$"):
        read_own_data(read_run("a", device="cpu"))
    with pytest.raises(DataError, match=r"restore the data, give others .*, or accept .*--changed-data\)$"):
        read_own_data(read_run("a", device="cpu"), can_choose=True)
    text_file.unlink()
    with pytest.raises(DataError, match=r"the run was trained on these: restore them$"):
        read_own_data(read_run("a", device="cpu"))


def test_a_model_of_one_s_own_has_no_data_and_saving_it_would_not_help(
    model: Transformer, tokenizer: Tokenizer
) -> None:
    run = Run(model, tokenizer)
    with pytest.raises(RunError, match=r"training data are unknown.*evaluate it on your own \(data=FILE"):
        run.evaluate()
    with pytest.raises(RunError, match=r"training data are unknown.*this needs a run that was trained here"):
        read_own_data(run)
