"""The weights of a run: found by step, averaged, and read while others are deleted."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from clearformer.errors import CheckpointError, RunError
from clearformer.model import Transformer
from clearformer.runs import kept_weights
from clearformer.runs.folders import read_run, run_config
from clearformer.runs.kept_weights import last_checkpoints, mean_weights
from clearformer.training.store.checkpoint import MODEL, Checkpoint, Progress, save_checkpoint, step_of
from clearformer.training.store.folder import RunFolder


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


def folder_of(place: Path, model: Transformer, every: int | None, *steps: int) -> RunFolder:
    """A run that writes a checkpoint every so many steps, with checkpoints of these."""
    folder, config = RunFolder(place), run_config(model.config)
    folder.write_config(config.replace(train=config.train.replace(checkpoint_every=every)))
    for step in steps:
        saved(folder.checkpoints, step, {"a": torch.ones(1)})
    return folder


def steps_of_mean(folder: RunFolder, step: int, n: int) -> list[int]:
    return [step_of(path) for path in last_checkpoints(folder, step, n)]


@pytest.mark.parametrize("every", [5, None])
def test_the_last_checkpoints_are_those_up_to_a_step_the_newest_first(
    tmp_path: Path, model: Transformer, every: int | None
) -> None:
    folder = folder_of(tmp_path, model, every, 5, 10, 15, 20)

    assert steps_of_mean(folder, 15, 3) == [15, 10, 5]
    assert steps_of_mean(folder, 15, 1) == [15]
    with pytest.raises(RunError, match="3 checkpoints up to step 15, but 4 are needed"):
        last_checkpoints(folder, 15, 4)


def test_checkpoints_between_two_due_ones_count_where_there_are_too_few_others(
    tmp_path: Path, model: Transformer
) -> None:
    folder = folder_of(tmp_path, model, 10, 10, 20, 23, 27, 30, 34)

    assert steps_of_mean(folder, 34, 3) == [34, 30, 20]
    assert steps_of_mean(folder, 30, 3) == [30, 20, 10]
    assert steps_of_mean(folder, 27, 2) == [27, 20]
    assert steps_of_mean(folder, 30, 4) == [30, 27, 23, 20]


@pytest.mark.parametrize("average", [True, 2.0, "2", None])
def test_a_number_of_checkpoints_is_whole(written: Callable[..., RunFolder], average: object) -> None:
    written("a")

    with pytest.raises(RunError, match="average: takes a whole number of checkpoints; got"):
        read_run("a", device="cpu", average=average)  # type: ignore[arg-type]
    assert read_run("a", device="cpu", average=np.int64(1)).step == read_run("a", device="cpu").step  # type: ignore[arg-type]


def test_weights_that_are_deleted_while_they_are_read_are_looked_for_again(
    written: Callable[..., RunFolder], model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training deletes its old checkpoints: between the check of one and its reading, too."""
    folder = written("a", step=3)
    save_checkpoint(folder.checkpoints, Checkpoint(Progress(step=5), model.state_dict(), {}))
    read = kept_weights.load_file

    def after_it_is_gone(path: Path) -> dict[str, Tensor]:
        if path.parent.name == "step-00000005":
            shutil.rmtree(path.parent)
        return read(path)

    monkeypatch.setattr(kept_weights, "load_file", after_it_is_gone)
    place, weights = kept_weights.find_weights(folder, "latest", 1)
    assert (step_of(place), weights.keys()) == (3, model.state_dict().keys())


def test_the_best_is_looked_for_again_where_the_newest_which_tells_it_is_deleted(
    written: Callable[..., RunFolder], model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written("a", step=3)
    best = Progress(step=4, best_step=3, best_val_loss=1.0)
    save_checkpoint(folder.checkpoints, Checkpoint(best, model.state_dict(), {}))
    newest = save_checkpoint(folder.checkpoints, Checkpoint(replace(best, step=5), model.state_dict(), {}))
    find = kept_weights.best_step

    def after_it_is_gone(checkpoints: Path) -> int | None:
        if newest.exists():
            shutil.rmtree(newest)
            raise CheckpointError(f"{newest}: damaged: manifest.json is missing or invalid")
        return find(checkpoints)

    monkeypatch.setattr(kept_weights, "best_step", after_it_is_gone)
    place, _ = kept_weights.find_weights(folder, "best", 1)
    assert step_of(place) == 3


@pytest.mark.parametrize(("asked", "may_be_replayed"), [("2", True), ("7", False), ("never", False)])
def test_a_step_is_said_to_be_replayed_only_if_it_was_taken(
    written: Callable[..., RunFolder], asked: str, may_be_replayed: bool
) -> None:
    folder = written("a", step=5)
    with pytest.raises(RunError, match="there are latest, best and step 5") as caught:
        kept_weights.find_checkpoint(folder, asked)
    assert ("cf.replay(run, STEP)" in str(caught.value)) == may_be_replayed
