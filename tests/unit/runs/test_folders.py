"""Runs as folders: made of a model, found again by name, and read with the data they were trained on."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from clearformer.config import resolve
from clearformer.data import LabelledData, PairsData, TextData, prepare_data
from clearformer.errors import CheckpointError, DataError, RunError, RunInUseError
from clearformer.files import UNFINISHED
from clearformer.model import ModelConfig, Transformer, build
from clearformer.run import Run
from clearformer.runs import folders
from clearformer.runs.folders import (
    check_empty_folder,
    find_run,
    folder_of,
    free_name,
    is_run,
    last_checkpoints,
    mean_weights,
    name_for,
    name_of,
    new_run,
    read_own_data,
    read_run,
    run_config,
    write_run,
)
from clearformer.text import BPETokenizerSpec, ByteTokenizer, ByteTokenizerSpec, CharTokenizerSpec, Tokenizer
from clearformer.training.config import RunConfig
from clearformer.training.objectives import ClassificationObjective, MaskedObjective, TranslationObjective
from clearformer.training.store.checkpoint import MODEL, Checkpoint, Progress, save_checkpoint, step_of
from clearformer.training.store.folder import RunFolder
from clearformer.training.store.lock import one_writer

TEXT = "".join(f"line {number} of a text\n" for number in range(100))


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    return file


@pytest.fixture
def tokenizer() -> Tokenizer:
    return CharTokenizerSpec().train([TEXT])


@pytest.fixture
def model(tokenizer: Tokenizer) -> Transformer:
    return build(
        resolve(
            ModelConfig,
            {"vocab_size": tokenizer.vocab_size, "d_model": 8, "n_layers": 1, "max_seq_len": 7},
        )
    )


@pytest.fixture
def written(
    model: Transformer, tokenizer: Tokenizer, text_file: Path, tmp_path: Path
) -> Callable[..., RunFolder]:
    """The folder of a run of that text: `written("a", step=3)`."""

    def written(name: str, step: int = 0, sha256: str | None = None) -> RunFolder:
        data = TextData(path=str(text_file))
        prepared = prepare_data(data, tokenizer, max_tokens=7)
        config = run_config(model.config).replace(data=data)
        of_the_text = prepared.manifest["source"]["sha256"] if sha256 is None else sha256
        return write_run(tmp_path / "runs" / name, config, tokenizer, model.state_dict(), step, of_the_text)

    return written


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


# --- checkpoints --------------------------------------------------------------------------------------------


def saved(folder: Path, step: int, weights: dict[str, Tensor]) -> Path:
    return save_checkpoint(folder, Checkpoint(Progress(step=step), weights, {}))


def test_a_mean_is_of_one_model_s_weights(tmp_path: Path) -> None:
    one = saved(tmp_path, 1, {"a": torch.tensor([1.0, 2.0])})
    two = saved(tmp_path, 2, {"a": torch.tensor([4.0, 2.0])})
    other = saved(tmp_path, 3, {"a": torch.tensor([4.0])})

    assert torch.equal(mean_weights([one, two])["a"], torch.tensor([2.5, 2.0]))
    assert torch.equal(mean_weights([two])["a"], torch.tensor([4.0, 2.0]))
    with pytest.raises(CheckpointError, match=rf"step-00000003/{MODEL}: its weights are not those of"):
        mean_weights([one, other])


def test_the_last_checkpoints_are_those_up_to_a_step_the_newest_first(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (5, 10, 15, 20):
        saved(folder.checkpoints, step, {"a": torch.ones(1)})

    assert [step_of(path) for path in last_checkpoints(folder, 15, 3)] == [15, 10, 5]
    assert [step_of(path) for path in last_checkpoints(folder, 15, 1)] == [15]
    with pytest.raises(RunError, match="3 checkpoints up to step 15, but 4 are needed"):
        last_checkpoints(folder, 15, 4)


@pytest.mark.parametrize("average", [True, 2.0, "2", None])
def test_a_number_of_checkpoints_is_whole(written: Callable[..., RunFolder], average: object) -> None:
    written("a")

    with pytest.raises(RunError, match="average: takes a whole number of checkpoints; got"):
        read_run("a", device="cpu", average=average)  # type: ignore[arg-type]
    assert read_run("a", device="cpu", average=np.int64(1)).step == read_run("a", device="cpu").step  # type: ignore[arg-type]


# --- own data -----------------------------------------------------------------------------------------------


def test_own_data_are_those_that_the_run_was_trained_on(written: Callable[..., RunFolder]) -> None:
    written("a")

    own = read_own_data(read_run("a", device="cpu"))

    assert own.changed is False
    assert set(own.prepared.splits) == {"train", "val"}


def test_own_data_that_have_changed_are_refused_unless_they_are_taken_as_they_are(
    written: Callable[..., RunFolder], text_file: Path
) -> None:
    written("a")
    text_file.write_text(TEXT.replace("line 7 ", "line 8 "))
    run = read_run("a", device="cpu")

    with pytest.raises(DataError, match=r"the data have changed since this run started.*--changed-data"):
        read_own_data(run, can_choose=True)
    assert read_own_data(run, allow_changed=True).changed is True


def test_an_imported_run_has_no_own_data(written: Callable[..., RunFolder]) -> None:
    folder = written("a", sha256="")

    with pytest.raises(RunError, match="its training data are unknown"):
        read_own_data(read_run("a", device="cpu"))
    assert json.loads(folder.env_file.read_text())["text_sha256"] == ""


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


def test_weights_that_are_deleted_while_they_are_read_are_looked_for_again(
    written: Callable[..., RunFolder], model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training deletes its old checkpoints: between the check of one and its reading, too."""
    folder = written("a", step=3)
    save_checkpoint(folder.checkpoints, Checkpoint(Progress(step=5), model.state_dict(), {}))
    read = folders.load_file

    def after_it_is_gone(path: Path) -> dict[str, Tensor]:
        if path.parent.name == "step-00000005":
            shutil.rmtree(path.parent)
        return read(path)

    monkeypatch.setattr(folders, "load_file", after_it_is_gone)
    place, weights = folders.find_weights(folder, "latest", 1)
    assert (step_of(place), weights.keys()) == (3, model.state_dict().keys())


def test_an_export_that_was_killed_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / f"{UNFINISHED}killed").mkdir()
    check_empty_folder(tmp_path / "hf")
    (tmp_path / "hf" / "config.json").touch()
    with pytest.raises(RunError, match="is not an empty folder"):
        check_empty_folder(tmp_path / "hf")


# --- advice that can be followed ------------------------------------------------------------------------------


def test_errors_about_own_data_advise_only_what_their_caller_takes(
    written: Callable[..., RunFolder], text_file: Path
) -> None:
    """`lens` and `generate` have no `--data`; an evaluation has."""
    written("a")
    text_file.write_text(TEXT + "line of a text\n")
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


@pytest.mark.parametrize(("asked", "may_be_replayed"), [("2", True), ("7", False), ("never", False)])
def test_a_step_is_said_to_be_replayed_only_if_it_was_taken(
    written: Callable[..., RunFolder], asked: str, may_be_replayed: bool
) -> None:
    folder = written("a", step=5)
    with pytest.raises(RunError, match="there are latest, best and step 5") as caught:
        folders.find_checkpoint(folder, asked)
    assert ("cf.replay(run, STEP)" in str(caught.value)) == may_be_replayed
