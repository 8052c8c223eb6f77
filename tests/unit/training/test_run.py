import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from clearformer.errors import CheckpointError, ConfigError, RunError
from clearformer.run import load
from clearformer.runs.folders import find_run, free_name, list_runs, name_of, new_run, runs_folder
from clearformer.runs.kept_weights import find_checkpoint, find_weights
from clearformer.training.loop import TrainResult
from clearformer.training.store.checkpoint import MODEL, OPTIMIZER, STATE, newest_whole, step_of
from clearformer.training.store.folder import RunFolder

Trained = Callable[..., TrainResult]
THREE = ("train.checkpoint_every=5", "train.keep_last=3", "train.max_steps=15")


def test_runs_are_kept_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs_folder() == tmp_path / "runs"
    monkeypatch.setenv("CLEARFORMER_RUNS", "")
    assert runs_folder() == Path("runs")


def test_runs_are_listed_by_name_and_half_made_ones_are_not(trained: Trained, tmp_path: Path) -> None:
    assert list_runs() == []
    for name in ("b", "a"):
        trained(name, "train.max_steps=1")
    (tmp_path / "runs" / "c").mkdir()

    assert [folder.path.name for folder in list_runs()] == ["a", "b"]


def test_a_runs_folder_that_may_not_be_read_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()

    def refused(path: Path) -> None:  # root may read everything
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(RunError, match=r"/runs: cannot be read: Permission denied; \$CLEARFORMER_RUNS names"):
        find_run("a")


# --- finding ----------------------------------------------------------------------------------------------


def test_a_run_is_found_by_its_name_and_by_its_path(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained("mine", "train.max_steps=1")
    place = tmp_path / "runs" / "mine"

    assert find_run("mine").path == place
    assert find_run(place).path == place
    monkeypatch.chdir(tmp_path)
    assert find_run("runs/mine").path.resolve() == place
    monkeypatch.setenv("CLEARFORMER_RUNS", "elsewhere")
    assert find_run("runs/mine").path.resolve() == place


def test_a_path_is_another_run_than_the_one_of_its_last_name(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a run was copied from another machine into the present folder."""
    trained("mine", "train.max_steps=1")
    shutil.copytree(tmp_path / "runs" / "mine", tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert find_run("mine").path == tmp_path / "runs" / "mine"
    for path in ("./mine", Path("mine"), tmp_path / "mine"):
        assert find_run(path).path.resolve() == tmp_path / "mine"
    for place in (tmp_path / "mine", tmp_path / "runs" / "mine"):
        assert find_run(name_of(RunFolder(place))).path.resolve() == place
    assert name_of(RunFolder(tmp_path / "mine")) == "./mine"
    shutil.copytree(tmp_path / "mine", tmp_path / "runs" / "many" / "one")  # as a sweep's
    assert find_run("many/one").path == tmp_path / "runs" / "many" / "one"


def test_a_run_that_is_not_there_is_named_with_the_nearest(trained: Trained) -> None:
    trained("shakespeare", "train.max_steps=1")

    with pytest.raises(RunError, match=r"no run 'shakespear'.*did you mean 'shakespeare'"):
        find_run("shakespear")
    with pytest.raises(RunError, match=r"no run 'xyz'.*there are shakespeare"):
        find_run("xyz")


def test_an_empty_name_is_no_run(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained("a", "train.max_steps=1")
    monkeypatch.chdir(tmp_path / "runs" / "a")  # where "" would be this folder

    with pytest.raises(RunError, match="no run ''"):
        find_run("")


# --- naming -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "a/b",
        "",
        ".",
        "..",
        ".hidden",
        "-x",
        "a b",
        "a\n",
        "/abs",
        "x" * 101,
        "\u6a21" * 67,
        "\u0301e",
        "a\u2028b",
        "\ud800",
    ],
)
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(RunError, match=r"--run: .* is not a valid run name; use letters"):
        new_run(name)


@pytest.mark.parametrize(
    "name", ["a", "quick-2", "v1.5_final", "x" * 100, "na\u00efve", "\u6a21\u578b", "\u0939\u093f"]
)
def test_a_plain_name_is_a_folder_in_the_runs_folder(name: str, tmp_path: Path) -> None:
    assert new_run(name).path == tmp_path / "runs" / name
    assert not (tmp_path / "runs").exists()  # it is only made when the run begins


def test_a_taken_name_is_refused_with_the_ways_out(trained: Trained, tmp_path: Path) -> None:
    trained("a", "train.max_steps=1")
    (tmp_path / "runs" / "half-made").mkdir()
    (tmp_path / "runs" / "half-made" / "notes.txt").touch()

    with pytest.raises(RunError, match=r"--run: .*/a exists; .*--resume.*another name"):
        new_run("a")
    with pytest.raises(RunError, match=r"--run: .*/half-made exists but is not a run; choose another name"):
        new_run("half-made")


def test_a_free_name_is_the_first_that_is_free(tmp_path: Path) -> None:
    assert free_name("quick-text") == "quick-text"
    for name in ("quick-text", "quick-text-2"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert free_name("quick-text") == "quick-text-3"


@pytest.mark.parametrize(
    "stem",
    ["quick-my text", "quick-é", "quick-" + "x" * 300, "quick-" + "\U00020000" * 300, "quick-", "quick-a/b"],
)
def test_a_free_name_is_always_a_name(stem: str) -> None:
    name = free_name(stem)

    assert name.startswith("quick")
    new_run(name)


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("my model (v1.5)", "my-model-v1.5"),
        (".hidden", "hidden"),
        ("-rf", "rf"),
        ("_private", "private"),
        ("x" * 300, "x" * 80),
        ("\u6a21\u578b", "\u6a21\u578b"),
        ("quick-na\u00efve", "quick-na\u00efve"),
        ("quick-nai\u0308ve", "quick-na\u00efve"),
        ("\u0939\u093f\u0928\u094d\u0926\u0940", "\u0939\u093f\u0928\u094d\u0926\u0940"),
        ("\u0301\ud800 \u2028?", "run"),
        ("", "run"),
        ("..", "run"),
    ],
)
def test_a_free_name_is_a_name_whatever_it_is_made_of(stem: str, name: str) -> None:
    assert free_name(stem) == name
    new_run(name)


# --- loading ----------------------------------------------------------------------------------------------


def test_a_loaded_run_is_the_trained_one(trained: Trained, tmp_path: Path) -> None:
    outcome = trained("a")

    run = load("a", device="cpu")

    assert run.step == 13
    assert run.config.model == outcome.model.config
    assert run.tokenizer.to_json() == outcome.task.tokenizer.to_json()
    assert not run.model.training
    for p, q in zip(run.model.parameters(), outcome.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_checkpoints_are_chosen_by_step_or_as_latest_or_best(
    trained: Trained, run_folder: Callable[[str], RunFolder]
) -> None:
    outcome = trained("a", *THREE, "train.lr=0.02")
    folder = run_folder("a")

    assert {which: step_of(find_checkpoint(folder, which)) for which in ("latest", "5", "10", "15")} == {
        "latest": 15,
        "5": 5,
        "10": 10,
        "15": 15,
    }
    assert step_of(find_checkpoint(folder, "best")) == outcome.progress.best_step
    assert load("a", "5", device="cpu").step == 5


def test_the_best_is_found_without_links(trained: Trained, run_folder: Callable[[str], RunFolder]) -> None:
    """Some file systems have none; and one could be made to point anywhere."""
    outcome = trained("a", *THREE, "train.lr=20", "train.schedule=constant", "train.warmup_steps=15")
    checkpoints = run_folder("a").checkpoints
    (checkpoints / "best").unlink()
    (checkpoints / "best").symlink_to("/")

    assert step_of(find_checkpoint(run_folder("a"), "best")) == outcome.progress.best_step
    assert outcome.progress.best_step != 15  # with such a rate it becomes worse


def test_without_an_evaluation_there_is_no_best(trained: Trained) -> None:
    trained("a", "data.val_fraction=0.0")

    with pytest.raises(RunError, match=r"^checkpoint: no checkpoint of .*/a was evaluated; use latest"):
        load("a", "best")


def test_a_checkpoint_that_is_not_there_is_named_with_those_that_are(trained: Trained) -> None:
    trained("a", *THREE)

    for which in ("11", "Best", "-5", "5.0", "../step-00000005", "step-00000005", "", "1e1", "9" * 50):
        with pytest.raises(RunError, match=r"no checkpoint '.*'; there are latest, best and steps 5, 10, 15"):
            load("a", which)
    with pytest.raises(RunError, match="no checkpoint '999"):  # of more digits than a number has
        load("a", "9" * 5000)


def test_a_run_without_checkpoints_says_how_to_get_one(
    trained: Trained, run_folder: Callable[[str], RunFolder]
) -> None:
    trained("a")
    shutil.rmtree(run_folder("a").checkpoints)

    with pytest.raises(RunError, match="no checkpoint yet; train it with --resume"):
        load("a")


@pytest.mark.parametrize("which", ["latest", "best"])
@pytest.mark.parametrize("name", [MODEL, STATE])
def test_a_damaged_checkpoint_is_named(
    trained: Trained, run_folder: Callable[[str], RunFolder], name: str, which: str
) -> None:
    trained("a")
    file = run_folder("a").checkpoints / "step-00000013" / name
    file.write_bytes(file.read_bytes()[:-1])

    with pytest.raises(CheckpointError, match=rf"step-00000013/{name}: damaged") as caught:
        load("a", which, device="cpu")
    assert caught.value.exit_status == 1


def test_a_damaged_state_of_the_optimizer_keeps_nobody_from_the_model(
    trained: Trained, run_folder: Callable[[str], RunFolder]
) -> None:
    """Who only opens the model does not read it, let alone work out its checksum; who goes on training does."""
    trained("a")
    folder = run_folder("a").checkpoints
    (folder / "step-00000013" / OPTIMIZER).write_bytes(b"rubbish")

    assert load("a").step == 13
    with pytest.raises(CheckpointError, match=rf"step-00000013/{OPTIMIZER}: damaged"):
        newest_whole(folder)


def test_weights_of_another_model_are_named(trained: Trained, run_folder: Callable[[str], RunFolder]) -> None:
    trained("a")
    folder = run_folder("a")
    config = folder.read_config()
    folder.write_config(config.replace(model=config.model.replace(n_layers=3)))

    with pytest.raises(CheckpointError, match=r"model\.safetensors does not fit .*config\.toml"):
        load("a", device="cpu")


def test_a_device_that_is_not_here_is_named(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    trained("a", "train.max_steps=1")

    with pytest.raises(ConfigError, match="no cuda"):
        load("a", device="cuda")


# --- the mean of checkpoints --------------------------------------------------------------------------------


def test_the_mean_of_the_last_checkpoints_is_their_mean(
    trained: Trained, run_folder: Callable[[str], RunFolder]
) -> None:
    trained("a", *THREE, "train.lr=0.02")
    weights = {step: load("a", str(step), device="cpu").model.state_dict() for step in (5, 10, 15)}

    for checkpoint, average, steps in (("latest", 3, (5, 10, 15)), ("10", 2, (5, 10)), ("10", 1, (10,))):
        run = load("a", checkpoint, device="cpu", average=average)

        assert run.step == max(steps)
        for name, mean in run.model.state_dict().items():
            expected = sum(weights[step][name].double() for step in steps) / len(steps)
            assert mean.dtype == weights[15][name].dtype
            assert torch.equal(mean, torch.as_tensor(expected).to(mean.dtype))
    assert not torch.equal(weights[5]["embed.weight"], weights[15]["embed.weight"])


def test_a_mean_of_more_checkpoints_than_there_are_says_how_many_there_are(trained: Trained) -> None:
    trained("a", *THREE)

    with pytest.raises(
        RunError, match=r"^average: .*/a has 3 checkpoints up to step 15, but 4 are.*train\.keep_last"
    ):
        load("a", average=4)
    with pytest.raises(RunError, match=r"has 1 checkpoint up to step 5, but 2 are"):
        load("a", "5", average=2)
    with pytest.raises(RunError, match=r"at least 1 checkpoint; got 0"):
        load("a", average=0)


def test_a_mean_is_not_taken_of_what_is_damaged(
    trained: Trained, run_folder: Callable[[str], RunFolder]
) -> None:
    trained("a", *THREE)
    path = find_checkpoint(run_folder("a"), "5") / MODEL
    path.write_bytes(path.read_bytes()[:-1])

    load("a", average=2)
    with pytest.raises(CheckpointError, match=r"step-00000005/model\.safetensors: damaged"):
        load("a", average=3)


@pytest.mark.parametrize(
    ("trained_in", "has_units", "dtype"),
    [
        ("float32", True, torch.float32),
        ("bfloat16", True, torch.bfloat16),
        ("bfloat16", False, torch.float32),
    ],
)
def test_a_run_says_the_type_of_its_products_and_takes_float32_where_a_processor_lacks_bfloat16(
    trained: Trained,
    trained_in: str,
    has_units: bool,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    trained("a", "train.max_steps=1", f"train.dtype={trained_in}")
    monkeypatch.setattr("clearformer.run.lacks_bfloat16", lambda device: not has_units)

    with caplog.at_level("INFO"):
        assert load("a").dtype == dtype
    assert ("this processor has no native support for bfloat16" in caplog.text) == (
        dtype.itemsize == 4 and not has_units
    )


def test_a_checkpoint_that_training_deletes_meanwhile_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    class Passing:
        def is_dir(self) -> bool:
            return len(tried) > 2  # the third one listed stays

    def weights(paths: list[Any]) -> dict[str, Any]:
        tried.append("read")
        if len(tried) < 3:
            raise CheckpointError("its manifest is missing")
        return {}

    monkeypatch.setattr("clearformer.runs.kept_weights.find_checkpoint", lambda folder, which: Passing())
    monkeypatch.setattr("clearformer.runs.kept_weights.mean_weights", weights)
    find_weights(RunFolder(Path("a")), "latest", 1)
    assert len(tried) == 3
