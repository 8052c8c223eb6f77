"""Runs as folders: made of a model, found again by name, and read with the data they were trained on."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from clearformer.config import resolve
from clearformer.data import LabelledData, PairsData, TextData
from clearformer.errors import CheckpointError, RunError, RunInUseError
from clearformer.files import UNFINISHED
from clearformer.model import ModelConfig, Transformer
from clearformer.run import Run
from clearformer.runs.folders import (
    check_empty_folder,
    find_run,
    folder_of,
    free_name,
    is_run,
    name_for,
    name_of,
    new_run,
    read_run,
    run_config,
    write_run,
)
from clearformer.text import BPETokenizerSpec, ByteTokenizer, ByteTokenizerSpec, Tokenizer
from clearformer.training.config import RunConfig
from clearformer.training.objectives import ClassificationObjective, MaskedObjective, TranslationObjective
from clearformer.training.store.folder import RunFolder
from clearformer.training.store.lock import one_writer

# --- made and read again ------------------------------------------------------------------------------------


def test_a_run_made_of_a_model_is_that_model(
    written: Callable[..., RunFolder], model: Transformer, tokenizer: Tokenizer
) -> None:
    folder = written("a", step=3)
    loaded = read_run("a", device="cpu")

    assert loaded.folder.path == folder.path
    assert loaded.step == 3
    assert loaded.config == folder.read_config()
    assert loaded.tokenizer.to_json() == tokenizer.to_json()
    assert not loaded.model.training
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], weight)
    assert (folder.checkpoints / "latest").readlink() == Path("step-00000003")
    with torch.inference_mode():
        loaded = read_run("a", device="cpu")
    assert not any(weight.is_inference() for weight in loaded.model.state_dict().values())


def test_a_run_of_weights_that_do_not_fit_is_not_there(
    model: Transformer, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    other = model.config.replace(n_layers=2)
    with pytest.raises(CheckpointError, match="does not fit"):
        write_run(tmp_path / "runs" / "a", run_config(other), tokenizer, model.state_dict())
    assert not (tmp_path / "runs" / "a").exists()


@pytest.mark.parametrize(
    ("settings", "data", "objective"),
    [
        ({"family": "encoder"}, TextData, MaskedObjective),
        ({"family": "encoder", "n_classes": 3}, LabelledData, ClassificationObjective),
        ({"family": "encoder-decoder"}, PairsData, TranslationObjective),
    ],
)
def test_the_data_and_the_objective_of_a_model_alone_are_those_of_its_kind(
    settings: dict[str, object], data: type, objective: type
) -> None:
    labels = ("a", "b", "c") if "n_classes" in settings else None
    config = run_config(resolve(ModelConfig, settings), labels)

    assert isinstance(config.data, data)
    assert isinstance(config.train.objective, objective)
    assert getattr(config.data, "labels", None) == labels


def test_the_tokenizer_s_kind_and_size_are_set_where_settings_name_the_kind() -> None:
    pieces = BPETokenizerSpec(vocab_size=258).train(["abab cdcd"])
    unknown = type("OfAnotherKind", (ByteTokenizer,), {"kind": "unheard of"})()

    assert run_config(ModelConfig(), tokenizer=ByteTokenizer()).tokenizer == ByteTokenizerSpec()
    assert run_config(ModelConfig(), tokenizer=pieces).tokenizer == BPETokenizerSpec(vocab_size=258)
    assert run_config(ModelConfig(), tokenizer=unknown).tokenizer == RunConfig().tokenizer


# --- names --------------------------------------------------------------------------------------------------


def test_a_run_is_one_where_its_folder_holds_a_configuration(
    written: Callable[..., RunFolder], tmp_path: Path
) -> None:
    folder = written("a")
    (tmp_path / "runs" / "b").mkdir()

    assert is_run("a") is True
    assert is_run(str(folder.path)) is True
    assert is_run("b") is False


def test_a_run_is_called_by_its_name_or_where_it_lies_elsewhere_by_its_path(
    written: Callable[..., RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written("a")
    assert name_of(folder) == "a"

    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "elsewhere"))
    assert find_run(name_of(folder)).path.resolve() == folder.path


def test_a_run_that_is_kept_nowhere_has_no_folder(
    written: Callable[..., RunFolder], model: Transformer, tokenizer: Tokenizer
) -> None:
    written("a")
    loaded = read_run("a", device="cpu")

    assert folder_of(loaded) == loaded.folder
    assert folder_of(Run(model, tokenizer)) is None


@pytest.mark.parametrize("run", [3, None, ["a"]])
def test_what_is_neither_name_nor_path_is_no_run(run: object) -> None:
    with pytest.raises(RunError, match="expected the name or folder of a run; got"):
        find_run(run)  # type: ignore[arg-type]


def test_a_name_that_a_file_has_is_taken(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a").write_text("mine")

    with pytest.raises(RunError, match="a exists but is not a run"):
        new_run("a")


def test_what_a_run_left_over_may_be_begun_in_again(tmp_path: Path) -> None:
    left_over = RunFolder(tmp_path / "runs" / "a")
    left_over.checkpoints.mkdir(parents=True)

    assert new_run("a").path == left_over.path


def test_a_label_that_begins_with_the_preset_names_it_once(text_file: Path) -> None:
    config = RunConfig(data=TextData(path=str(text_file)))
    label = config.data.label

    assert name_for("quick", config) == free_name(f"quick-{label}")
    assert name_for(label, config) == free_name(label)


# --- what killed processes leave ------------------------------------------------------------------------------


def test_an_import_takes_the_folder_of_a_training_that_never_began(
    written: Callable[..., RunFolder], tmp_path: Path
) -> None:
    left = RunFolder(tmp_path / "runs" / "a")
    left.checkpoints.mkdir(parents=True)
    left.tokenizer_file.write_text("half")
    assert written("a").config_file.exists()
    assert find_run("a").read_tokenizer().vocab_size


def test_an_import_leaves_a_training_alone_that_is_about_to_begin(
    written: Callable[..., RunFolder], tmp_path: Path
) -> None:
    left = RunFolder(tmp_path / "runs" / "a")
    left.checkpoints.mkdir(parents=True)
    with one_writer(left.path), pytest.raises(RunInUseError):
        written("a")
    assert left.checkpoints.is_dir()


def test_an_export_that_was_killed_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / f"{UNFINISHED}killed").mkdir()
    check_empty_folder(tmp_path / "hf")
    (tmp_path / "hf" / "config.json").touch()
    with pytest.raises(RunError, match="is not an empty folder"):
        check_empty_folder(tmp_path / "hf")
