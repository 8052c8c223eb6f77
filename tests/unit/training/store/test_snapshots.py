"""Snapshots: which are kept, how they are written, and what a run does where they cannot be."""

import logging
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from clearformer.errors import DiskError, Interrupted
from clearformer.run import load
from clearformer.training.config import RunConfig
from clearformer.training.loop import TrainResult
from clearformer.training.processes.distributed import Processes
from clearformer.training.reporting.report import Reporter
from clearformer.training.store import checkpoint, checkpoint_store, snapshots
from clearformer.training.store.checkpoint import (
    MODEL,
    Progress,
    list_checkpoints,
    read_progress,
    step_of,
    verify,
)
from clearformer.training.store.folder import RunFolder
from clearformer.training.store.snapshots import (
    FEWEST,
    MOST,
    SnapshotSteps,
    SnapshotStore,
    snapshot_bytes,
    steps_within,
)
from clearformer.training.store.state import TrainState, weights_of

CPU = torch.device("cpu")
Trained = Callable[..., TrainResult]
Folders = Callable[[str], RunFolder]


def kept(folder: RunFolder) -> list[int]:
    return sorted(map(step_of, list_checkpoints(folder.snapshots)))


# --- which are kept ---------------------------------------------------------------------------------------


def test_the_first_are_powers_of_two_and_the_rest_are_even() -> None:
    steps = SnapshotSteps(20)
    assert steps.after(0) == [0]
    assert steps.after(70) == [0, 1, 2, 4, 8, 16, 32, 64]
    assert steps.after(300) == [0, 1, 2, 4, 8, 16, 32, 64, 128, 192, 256]
    assert steps.spacing(831) == 64
    assert steps.spacing(896) == 128  # 0, seven powers of two and 13 even ones would be 21
    assert steps.after(896) == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 640, 768, 896]


@pytest.mark.parametrize("most", [FEWEST, FEWEST + 1, 13, 20, 61, MOST])
def test_a_longer_run_keeps_some_of_the_same_and_never_too_many(most: int) -> None:
    steps = SnapshotSteps(most)
    before: list[int] = []
    for n in [*range(2000), *range(2**16 - 2, 2**16 + 600)]:
        now = steps.after(n)
        assert now == sorted(set(now))
        assert len(now) <= most
        assert steps.includes(n) == (n in now)
        if n != 2**16 - 2:
            assert set(now) <= {*before, n}
        before = now
        assert n - now[-1] < steps.spacing(n)
    assert len(steps.after(2**40)) <= most
    assert len(steps.after(2**40)) > most // 2  # where it gets longer the room is used


def test_as_many_as_fit_into_the_bytes(configure: Callable[..., RunConfig]) -> None:
    model = model_of(configure).model
    each = snapshot_bytes(model.state_dict())
    assert steps_within(model, None) is None
    assert steps_within(model, (FEWEST - 0.5) * each / 1e6) is None
    assert steps_within(model, (FEWEST + 0.5) * each / 1e6) == SnapshotSteps(FEWEST)
    assert steps_within(model, 1e300) == steps_within(model, float("inf")) == SnapshotSteps(MOST)


def model_of(configure: Callable[..., RunConfig]) -> TrainState:
    config = configure("train.ema=0.5")
    return TrainState.build(config.replace(model=config.model.replace(vocab_size=11)), CPU)


# --- a run's ----------------------------------------------------------------------------------------------


def test_a_run_keeps_its_weights_along_the_way(trained: Trained, run_folder: Folders) -> None:
    """Those to use, each as a checkpoint of that step has them; with none of what a checkpoint has besides."""
    trained("a", "train.ema=0.9", "train.checkpoint_every=1", "train.keep_last=99")
    folder = run_folder("a")

    assert kept(folder) == [0, 1, 2, 4, 8]
    for path in list_checkpoints(folder.snapshots):
        assert sorted(file.name for file in path.iterdir()) == [
            "manifest.json",
            "model.safetensors",
            "state.json",
        ]
        assert read_progress(path).step == step_of(path)
        if step_of(path):
            assert (path / MODEL).read_bytes() == (folder.checkpoints / path.name / MODEL).read_bytes()
    first = model_of_run(folder)
    assert all(torch.equal(value, first[name]) for name, value in load("a", 0).model.state_dict().items())


def model_of_run(folder: RunFolder) -> dict[str, torch.Tensor]:
    return weights_of(TrainState.build(folder.read_config(), CPU).model)


def test_they_stay_within_the_bytes(
    trained: Trained, run_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "FIRST_SPACING", 4)
    trained("all", "train.max_steps=40")
    budget = 8.9 * snapshot_bytes(load("all", device="cpu").model.state_dict()) / 1e6

    trained("some", "train.max_steps=40", f"train.snapshot_megabytes={budget}")

    assert kept(run_folder("all")) == [0, 1, 2, *range(4, 41, 4)]
    assert kept(run_folder("some")) == SnapshotSteps(8).after(32) == [0, 1, 2, 4, 8, 16, 24, 32]
    files = [path for path in run_folder("some").snapshots.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= budget * 1e6


def test_none_are_kept_where_none_are_wanted_or_only_few_would_fit(
    trained: Trained, run_folder: Folders
) -> None:
    said: list[str] = []
    reporter = Reporter()
    reporter.say = said.append  # type: ignore[method-assign]
    trained("none", "train.snapshot_megabytes=none", reporter=reporter)
    assert not any("snapshots" in line for line in said)
    trained("few", "train.snapshot_megabytes=0.001", reporter=reporter)

    assert not run_folder("none").snapshots.exists()
    assert not run_folder("few").snapshots.exists()
    [line] = [line for line in said if "snapshots" in line]
    assert line.startswith(
        "keeping no snapshots: fewer than 8 of 0.0 MB each fit in train.snapshot_megabytes=0.001"
    )


def test_only_the_first_process_keeps_them(tmp_path: Path, configure: Callable[..., RunConfig]) -> None:
    state = model_of(configure)
    for rank in (0, 1):
        folder = RunFolder(tmp_path / str(rank))
        folder.path.mkdir()
        with SnapshotStore(folder, SnapshotSteps(MOST), Processes(rank, 2)) as store:
            store.save(state, Progress(step=4))
    assert kept(RunFolder(tmp_path / "0")) == [4]
    assert kept(RunFolder(tmp_path / "1")) == []


def test_one_that_cannot_be_written_is_the_last_to_be_tried(
    tmp_path: Path, configure: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the next one is due before that is known."""
    state, folder, may_fail = model_of(configure), RunFolder(tmp_path), threading.Event()
    tried: list[int] = []

    def full(place: Path, progress: Progress, weights: dict[str, torch.Tensor]) -> Path:
        tried.append(progress.step)
        may_fail.wait()
        raise DiskError("step-00000001: cannot be written: No space left on device")

    monkeypatch.setattr(snapshots, "save_snapshot", full)
    with SnapshotStore(folder, SnapshotSteps(MOST), Processes()) as store:
        store.save(state, Progress(step=1))
        wait = store.writer.wait

        def fail_and_wait() -> None:
            may_fail.set()
            wait()

        monkeypatch.setattr(store.writer, "wait", fail_and_wait)
        store.save(state, Progress(step=2))
    assert tried == [1]


def test_spoilt_weights_are_not_kept(tmp_path: Path, configure: Callable[..., RunConfig]) -> None:
    state, folder = model_of(configure), RunFolder(tmp_path)
    with torch.no_grad():
        next(state.weights_to_use.parameters()).fill_(torch.nan)
    with SnapshotStore(folder, SnapshotSteps(MOST), Processes()) as store:
        store.save(state, Progress(step=4))
    assert kept(folder) == []


# --- resuming ---------------------------------------------------------------------------------------------


class InterruptAt(Reporter):
    """Interrupts a run as Ctrl-C would, at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, progress: Progress, metrics: object) -> None:
        if progress.step == self.step:
            signal.raise_signal(signal.SIGINT)


def test_a_resumed_run_makes_later_ones_anew(
    trained: Trained, resumed: Callable[..., TrainResult], run_folder: Folders
) -> None:
    """What a killed life left beyond its checkpoint is gone, half-written or whole: the clock may go another way."""
    trained("whole")
    with pytest.raises(Interrupted):
        trained("a", reporter=InterruptAt(3))
    folder = run_folder("a")
    for step in (8, 11):
        checkpoint.save_snapshot(folder.snapshots, Progress(step=step), model_of_run(folder))
    half = folder.snapshots / ".unfinished-0123"
    half.mkdir()

    resumed("a")

    assert not half.exists()
    assert kept(folder) == kept(run_folder("whole")) == [0, 1, 2, 4, 8]
    for path in list_checkpoints(folder.snapshots):
        theirs = run_folder("whole").snapshots / path.name / MODEL
        assert (path / MODEL).read_bytes() == theirs.read_bytes()


def test_also_where_it_keeps_none_from_then_on(
    trained: Trained, resumed: Callable[..., TrainResult], run_folder: Folders
) -> None:
    with pytest.raises(Interrupted):
        trained("a", reporter=InterruptAt(3))
    folder = run_folder("a")
    checkpoint.save_snapshot(folder.snapshots, Progress(step=4), model_of_run(folder))

    resumed("a", snapshot_megabytes=None)

    assert kept(folder) == [0, 1, 2]


# --- writing ----------------------------------------------------------------------------------------------


def test_no_checkpoint_is_ahead_of_its_snapshots_and_training_waits_for_neither(
    trained: Trained, run_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshot 4 is held until step 7 is done; the checkpoint of step 5 is written after it, and not before."""
    let_go, order = threading.Event(), []
    save_snapshot, save_checkpoint = snapshots.save_snapshot, checkpoint_store.save_checkpoint

    def held(place: Path, progress: Progress, weights: dict[str, torch.Tensor]) -> Path:
        if progress.step == 4:
            assert let_go.wait(60)
        path = save_snapshot(place, progress, weights)
        order.append(("snapshot", progress.step))
        return path

    def noted(place: Path, each: checkpoint.Checkpoint) -> Path:
        order.append(("checkpoint", each.progress.step))
        return save_checkpoint(place, each)

    class LetGo(Reporter):
        def stepped(self, progress: Progress, metrics: object) -> None:
            if progress.step == 7:
                assert order[-1] == ("snapshot", 2)
                let_go.set()

    monkeypatch.setattr(snapshots, "save_snapshot", held)
    monkeypatch.setattr(checkpoint_store, "save_checkpoint", noted)

    trained("a", "train.checkpoint_every=5", reporter=LetGo())

    assert order.index(("snapshot", 4)) < order.index(("checkpoint", 5))
    assert order[-1] == ("checkpoint", 13)


def test_where_a_snapshot_cannot_be_written_the_run_goes_on_without(
    trained: Trained,
    resumed: Callable[..., TrainResult],
    run_folder: Folders,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It says so once; the run's result is what it would have been."""
    whole = trained("whole")
    save = snapshots.save_snapshot

    def full(place: Path, progress: Progress, weights: dict[str, torch.Tensor]) -> Path:
        if progress.step == 2:
            raise DiskError("step-00000002: cannot be written: No space left on device")
        return save(place, progress, weights)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(snapshots, "save_snapshot", full)
        result = trained("a")

    assert kept(run_folder("a")) == [0, 1]
    [message] = [record.getMessage() for record in caplog.records]
    assert message.endswith("No space left on device; continuing without snapshots")
    for name, value in result.model.state_dict().items():
        assert torch.equal(value, whole.model.state_dict()[name])
    resumed("a", max_steps=17)
    assert kept(run_folder("a")) == [0, 1, 16]


def test_they_leave_room_for_checkpoints(
    trained: Trained, run_folder: Folders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is nearly full has room for checkpoints alone."""

    class Usage:
        free = 8 * 4 * 10_000

    monkeypatch.setattr(snapshots.shutil, "disk_usage", lambda path: Usage)
    trained("b", "model.n_layers=2", "model.d_model=12", "model.ffn.d_ff=170")
    assert kept(run_folder("b")) == []
    assert list_checkpoints(run_folder("b").checkpoints)
    [message] = [record.getMessage() for record in caplog.records]
    assert message.endswith(": 0.3 MB are free, and checkpoints need them; continuing without snapshots")
    trained("a")
    assert kept(run_folder("a")) == [0, 1, 2, 4, 8]


def test_a_snapshot_is_whole_or_damage_is_found(trained: Trained, run_folder: Folders) -> None:
    trained("a")
    path = run_folder("a").snapshots / "step-00000004"
    verify(path, MODEL, "state.json")
    raw = bytearray((path / MODEL).read_bytes())
    raw[-1] ^= 1
    (path / MODEL).write_bytes(raw)
    with pytest.raises(checkpoint.CheckpointError, match=r"step-00000004/model\.safetensors: damaged"):
        load("a", 4)
    load("a", 8)
