"""Saving and restoring the state of a run, in one process and in several."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from clearformer.errors import CheckpointError, DiskError
from clearformer.training.config import RunConfig
from clearformer.training.processes.distributed import Processes
from clearformer.training.store import checkpoint_store
from clearformer.training.store.checkpoint import (
    MODEL,
    Progress,
    list_checkpoints,
    load_checkpoint,
    step_of,
)
from clearformer.training.store.checkpoint_store import CheckpointStore
from clearformer.training.store.folder import RunFolder
from clearformer.training.store.state import TrainState

CPU = torch.device("cpu")


class OneOfTwo(Processes):
    """A process of two; does something where it would wait for the other."""

    def __init__(self, rank: int, at_the_meeting: Callable[[], object] = lambda: None) -> None:
        super().__init__(rank, count=2)
        self.at_the_meeting = at_the_meeting
        self.meetings = 0

    def wait_for_all(self) -> None:
        self.meetings += 1
        self.at_the_meeting()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "runs" / "a")
    folder.checkpoints.mkdir(parents=True)
    return folder


@pytest.fixture
def state(configure: Callable[..., RunConfig]) -> TrainState:
    config = configure("train.ema=0.5", "train.optimizer=adamw")
    return TrainState.build(config.replace(model=config.model.replace(vocab_size=11)), CPU)


def test_what_a_killed_process_left_undone_after_a_checkpoint_is_done_later(
    folder: RunFolder, state: TrainState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it was the last one of the run, so that no other checkpoint follows."""
    store = CheckpointStore(folder, 1, Processes())
    with monkeypatch.context() as killed, store:
        killed.setattr(store, "tidy", lambda _: None)
        for step in (1, 2, 3):
            store.save(state, Progress(step=step, best_step=1))
    (folder.checkpoints / ".unfinished-0").mkdir()

    store.tidy(Progress(step=3, best_step=1))

    left = {path.name: path.is_symlink() and path.readlink().name for path in folder.checkpoints.iterdir()}
    whole = {"step-00000001": False, "step-00000003": False}
    assert left == whole | {"latest": "step-00000003", "best": "step-00000001"}


def change(state: TrainState, value: float) -> None:
    with torch.no_grad():
        for model in (state.model, state.average):
            assert model is not None
            for parameter in model.parameters():
                parameter.fill_(value)


def test_every_process_waits_until_the_state_is_copied(
    folder: RunFolder, state: TrainState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What any of them does to the weights after the meeting is not in the checkpoint."""
    may_write = threading.Event()
    save = checkpoint_store.save_checkpoint

    def held(*arguments: object) -> Path:
        assert may_write.wait(60)
        return save(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint_store, "save_checkpoint", held)
    change(state, 1.0)
    main = OneOfTwo(0, lambda: change(state, 2.0))
    other = OneOfTwo(1)

    with CheckpointStore(folder, 2, other) as store:
        store.save(state, Progress(step=3))
    assert not list_checkpoints(folder.checkpoints)
    with CheckpointStore(folder, 2, main) as store:
        store.save(state, Progress(step=3))
        may_write.set()

    assert (main.meetings, other.meetings) == (1, 1)
    [path] = list_checkpoints(folder.checkpoints)
    kept = load_checkpoint(path)
    assert all(bool((weight == 1.0).all()) for weight in kept.model.values())
    assert all(bool((t == 1.0).all()) for name, t in kept.optimizer.items() if name.endswith(".weight_now"))


def test_a_process_that_fails_alone_saves_without_the_others(folder: RunFolder, state: TrainState) -> None:
    main = OneOfTwo(0)

    with CheckpointStore(folder, 2, main) as store:
        store.save_alone(state, Progress(step=3))

    assert main.meetings == 0
    assert [step_of(path) for path in list_checkpoints(folder.checkpoints)] == [3]


def test_what_is_restored_is_what_was_saved(
    folder: RunFolder, state: TrainState, configure: Callable[..., RunConfig]
) -> None:
    change(state, 3.0)
    progress = Progress(step=5, seconds=1.5, tokens=7, best_step=5, best_val_loss=2.0, best_n_rows=4)
    with CheckpointStore(folder, 2, Processes()) as store:
        assert store.newest_step() is None
        assert store.restore(state) is None
        store.save(state, progress)
        assert store.newest_step() == 5  # once it is written
        change(state, 4.0)

        assert store.restore(state) == progress

    for model in (state.model, state.average):
        assert model is not None
        assert all(bool((parameter == 3.0).all()) for parameter in model.parameters())
    assert {path.name for path in folder.checkpoints.iterdir()} == {"step-00000005", "latest", "best"}


def test_where_all_are_damaged_none_need_be_lost_to_start_over(folder: RunFolder, state: TrainState) -> None:
    with CheckpointStore(folder, 1, Processes()) as store:
        store.save(state, Progress(step=5))
        store.wait()
        (folder.checkpoints / "step-00000005" / MODEL).unlink()

        with pytest.raises(CheckpointError, match=r"is intact: move .*/checkpoints away to start over$"):
            store.restore(state)


def test_a_damaged_one_does_not_count_once_the_run_goes_on(folder: RunFolder, state: TrainState) -> None:
    with CheckpointStore(folder, 2, Processes()) as store:
        for step in (10, 14):
            store.save(state, Progress(step=step))
        store.wait()
        (folder.checkpoints / "step-00000014" / MODEL).write_bytes(b"rubbish")
        restored = store.restore(state)
        assert restored is not None
        assert restored.step == 10
        store.save(state, Progress(step=20))
    assert [step_of(path) for path in list_checkpoints(folder.checkpoints)] == [20, 10]


@pytest.mark.parametrize("error", [KeyError, IndexError, ValueError, RuntimeError])
def test_a_state_that_does_not_fit_is_one_line(
    folder: RunFolder, state: TrainState, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """As that of an optimizer of one's own which has fewer groups than it had."""

    def refused(*_: object) -> None:
        raise error("1")

    with CheckpointStore(folder, 2, Processes()) as store:
        store.save(state, Progress(step=5))
        store.wait()
        monkeypatch.setattr(TrainState, "load", refused)
        with pytest.raises(CheckpointError, match=r"the checkpoint of step 5 does not fit config\.toml"):
            store.restore(state)


def test_only_the_wanted_checkpoints_stay(folder: RunFolder, state: TrainState) -> None:
    with CheckpointStore(folder, 1, Processes()) as store:
        for step in (1, 2, 3):
            store.save(state, Progress(step=step, best_step=1))

    assert [step_of(path) for path in list_checkpoints(folder.checkpoints)] == [3, 1]


def test_a_checkpoint_of_another_model_is_refused(
    folder: RunFolder, state: TrainState, configure: Callable[..., RunConfig]
) -> None:
    config = configure("train.ema=0.5")
    other = TrainState.build(config.replace(model=config.model.replace(vocab_size=12)), CPU)
    with CheckpointStore(folder, 2, Processes()) as store:
        store.save(state, Progress(step=5))
        store.wait()

        with pytest.raises(CheckpointError, match=r"the checkpoint of step 5 does not fit config\.toml"):
            store.restore(other)


@pytest.mark.parametrize("other", ["muon", "adamw"])
def test_the_state_of_another_optimizer_is_refused(
    folder: RunFolder, configure: Callable[..., RunConfig], other: str
) -> None:
    names = ("adamw", "muon") if other == "muon" else ("muon", "adamw")
    configs = [configure(f"train.optimizer={name}") for name in names]
    first, second = (
        TrainState.build(config.replace(model=config.model.replace(vocab_size=11)), CPU) for config in configs
    )
    take_a_step(first)
    with CheckpointStore(folder, 2, Processes()) as store:
        store.save(first, Progress(step=5))
        store.wait()

        with pytest.raises(CheckpointError, match=r"config\.toml: train\.optimizer keeps .*momentum"):
            store.restore(second)


def take_a_step(state: TrainState) -> None:
    for parameter in state.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for optimizer in state.optimizers:
        optimizer.step()


def test_an_error_of_writing_is_raised_where_training_sees_it(
    folder: RunFolder, state: TrainState, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> Path:
        raise DiskError("no space")

    monkeypatch.setattr(checkpoint_store, "save_checkpoint", full)
    store = CheckpointStore(folder, 2, Processes())
    store.save(state, Progress(step=5))

    with pytest.raises(DiskError, match="no space"):
        store.save(state, replace(Progress(), step=6))
