import errno
import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from clearformer import files
from clearformer.errors import CheckpointError, DiskError
from clearformer.training.store import checkpoint as module
from clearformer.training.store.checkpoint import (
    MANIFEST,
    MODEL,
    OPTIMIZER,
    STATE,
    Checkpoint,
    Progress,
    amend_progress,
    best_step,
    link,
    list_checkpoints,
    load_checkpoint,
    newest_whole,
    prune,
    save_checkpoint,
    step_folder,
    step_of,
    verify,
)

from ....forks import ForkServer


def checkpoint_of(step: int) -> Checkpoint:
    model = {"a": torch.full((3, 5), float(step)), "b": torch.arange(7.0)}
    optimizer = {"a.exp_avg": torch.full((3, 5), step / 7), "a.step": torch.tensor(float(step))}
    progress = Progress(step, step / 3, 11 * step, val_loss=2.5, best_step=step, best_val_loss=2.5)
    return Checkpoint(progress, model, optimizer)


def same(a: Checkpoint, b: Checkpoint) -> bool:
    pairs = ((a.model, b.model), (a.optimizer, b.optimizer))
    return a.progress == b.progress and all(
        x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x) for x, y in pairs
    )


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)


def delete(file: Path) -> None:
    file.unlink()


# --- one checkpoint ---------------------------------------------------------------------------------------


def test_what_is_saved_is_loaded_to_the_bit(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, checkpoint_of(20))

    assert folder == tmp_path / "step-00000020"
    assert sorted(path.name for path in folder.iterdir()) == sorted([MODEL, OPTIMIZER, STATE, MANIFEST])
    assert same(load_checkpoint(folder), checkpoint_of(20))


def test_the_state_before_the_first_step_is_a_checkpoint_too(tmp_path: Path) -> None:
    fresh = Checkpoint(Progress(), {"a": torch.zeros(3)}, {})

    assert same(load_checkpoint(save_checkpoint(tmp_path, fresh)), fresh)


def test_its_files_have_the_users_usual_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        folder = save_checkpoint(tmp_path, checkpoint_of(20))
    finally:
        os.umask(before)

    assert folder.stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o640}


@pytest.mark.parametrize("damage", [truncate, flip_a_byte, delete])
@pytest.mark.parametrize("name", [MODEL, OPTIMIZER, STATE, MANIFEST])
def test_damage_is_found_and_the_file_named(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    folder = save_checkpoint(tmp_path, checkpoint_of(20))
    verify(folder)

    damage(folder / name)

    # A changed manifest may also accuse a file that is right.
    accused = r"step-00000020.*damaged" if name == MANIFEST else f"step-00000020/{name}: damaged"
    with pytest.raises(CheckpointError, match=accused) as caught:
        load_checkpoint(folder)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 1


@pytest.mark.parametrize("manifest", ["[]", "3", '{"state.json": 1}', "{}", "null"])
def test_json_that_is_no_manifest_is_damage(tmp_path: Path, manifest: str) -> None:
    folder = save_checkpoint(tmp_path, checkpoint_of(20))
    (folder / MANIFEST).write_text(manifest)

    with pytest.raises(CheckpointError, match=MANIFEST):
        verify(folder)


def test_a_state_that_a_matching_manifest_covers_must_still_be_one(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, checkpoint_of(20))
    (folder / STATE).write_text('{"steps": 3}')
    manifest = json.loads((folder / MANIFEST).read_text()) | {STATE: module.describe(folder / STATE)}
    (folder / MANIFEST).write_text(json.dumps(manifest))

    with pytest.raises(CheckpointError, match=STATE):
        load_checkpoint(folder)


# --- saving again -----------------------------------------------------------------------------------------


def test_a_whole_one_of_the_same_step_stays(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, checkpoint_of(20))
    inode = folder.stat().st_ino

    assert save_checkpoint(tmp_path, checkpoint_of(20)) == folder

    assert folder.stat().st_ino == inode


def test_a_damaged_one_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    flip_a_byte(save_checkpoint(tmp_path, checkpoint_of(20)) / MODEL)

    folder = save_checkpoint(tmp_path, checkpoint_of(20))

    assert same(load_checkpoint(folder), checkpoint_of(20))
    assert list(tmp_path.iterdir()) == [folder]


def test_a_runs_folder_that_was_moved_away_is_not_made_again(tmp_path: Path) -> None:
    """The writer in the background may come to it before training sees that it was moved."""
    with pytest.raises(DiskError, match="No such file or directory"):
        save_checkpoint(tmp_path / "moved" / "checkpoints", checkpoint_of(20))

    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_half_written_is_cleared_away(tmp_path: Path) -> None:
    half = tmp_path / ".unfinished-0123"
    half.mkdir()
    (half / MODEL).write_bytes(b"half")

    folder = save_checkpoint(tmp_path, checkpoint_of(20))

    assert list(tmp_path.iterdir()) == [folder]


def test_a_checkpoint_whose_progress_is_amended_is_whole_at_every_instant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_checkpoint(tmp_path, checkpoint_of(20))
    before = load_checkpoint(folder).progress
    weights = (folder / MODEL).read_bytes()
    after = replace(before, val_loss=1.5, best_step=20, best_val_loss=1.5)

    def killed_at(name: str) -> Callable[..., None]:
        def write(path: Path, content: bytes) -> None:
            if path.name == name:
                raise KeyboardInterrupt
            files.write_file(path, content)

        return write

    for name in (MANIFEST, STATE):
        with monkeypatch.context() as patch:
            patch.setattr(module, "write_file", killed_at(name))
            with pytest.raises(KeyboardInterrupt):
                amend_progress(tmp_path, after)
        assert load_checkpoint(folder).progress == before
    for progress in (after, replace(after, n_worse=1)):
        amend_progress(tmp_path, progress)
        assert load_checkpoint(folder).progress == progress
    assert (folder / MODEL).read_bytes() == weights
    (folder / STATE).write_text("{}")
    with pytest.raises(CheckpointError, match="damaged"):
        amend_progress(tmp_path, after)


# --- failing to save --------------------------------------------------------------------------------------


def test_a_full_disk_is_one_line_at_whichever_write_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the writes of a checkpoint fails in turn; none leaves a trace."""
    save_checkpoint(tmp_path, checkpoint_of(10))
    writes = 0

    def fails_at(number: int, write: Callable[..., object], error: Exception) -> Callable[..., object]:
        def failing(*arguments: object, **options: object) -> object:
            nonlocal writes
            writes += 1
            if writes == number:
                raise error
            return write(*arguments, **options)

        return failing

    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for number in range(1, 12):
        writes = 0
        with monkeypatch.context() as patch:
            rust = SafetensorError(
                "Error while serializing: I/O error: No space left on device (os error 28)"
            )
            patch.setattr(module, "save_file", fails_at(number, module.save_file, rust))
            patch.setattr(files, "sync", fails_at(number, files.sync, full))
            patch.setattr(Path, "write_text", fails_at(number, Path.write_text, full))
            patch.setattr(Path, "mkdir", fails_at(number, Path.mkdir, full))
            patch.setattr(Path, "rename", fails_at(number, Path.rename, full))
            with pytest.raises(
                DiskError, match=r"step-00000020: cannot be written: .*No space left"
            ) as caught:
                save_checkpoint(tmp_path, checkpoint_of(20))
        assert "\n" not in str(caught.value)
        assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]
        assert same(load_checkpoint(tmp_path / "step-00000010"), checkpoint_of(10))


CRASH_AT_EVERY_PLACE = """
import os, sys
from pathlib import Path
from typing import Any
import torch
from clearformer.training.store import checkpoint as module
from clearformer.training.store.checkpoint import *

folder = Path(sys.argv[1])

def checkpoint_of(step):
    tensors = {"a": torch.full((3, 5), float(step))}
    return Checkpoint(Progress(step, best_step=10), tensors, tensors)

def save_all(step):
    save_checkpoint(folder, checkpoint_of(step))
    link(folder, {"latest": step, "best": 10})
    prune(folder, 1, Progress(step, best_step=10))

WRITING = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "shutil.rmtree")

def crash_at(number):
    place = 0

    def here(event, arguments):
        nonlocal place
        if event in WRITING or (event == "open" and arguments[1] and set(arguments[1]) & set("wxa+")):
            place += 1
            if place == number:
                os._exit(9)

    def save_half_then_all(tensors, path, metadata):
        save_file(tensors, path, metadata)
        content = path.read_bytes()
        path.write_bytes(content[:9])
        path.write_bytes(content)

    save_file = module.save_file
    module.save_file = save_half_then_all
    sys.addaudithook(here)

save_all(10)
save_all(20)
number, step = 0, 20
while True:
    number += 1
    child = os.fork()
    if child == 0:
        crash_at(number)
        save_all(step + 5)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    whole = []
    for found in list_checkpoints(folder):
        verify(found)  # a crash leaves no half checkpoint
        whole.append(step_of(found))
    newest = newest_whole(folder)
    assert newest.progress.step in (step, step + 5), (number, whole)
    assert newest.model["a"].eq(newest.progress.step).all()
    assert 10 in whole, (number, whole)
    if status == 0:
        break
    assert status == 9
    step += 10
    save_all(step)  # and the next save puts all in order
    assert sorted(path.name for path in folder.iterdir()) == [
        "best", "latest", "step-00000010", step_folder(folder, step).name
    ], number
print(number)
"""


def test_a_crash_between_any_two_writes_leaves_only_whole_checkpoints(
    tmp_path: Path, forks: ForkServer
) -> None:
    """A process ends without notice before each single change that it makes to the disk, one after the other."""
    answer = forks.run(str(tmp_path), script=CRASH_AT_EVERY_PLACE)

    assert answer.returncode == 0, answer.stderr
    assert int(answer.stdout) > 15  # places where it crashed


# --- many checkpoints -------------------------------------------------------------------------------------


def test_the_newest_comes_first_by_number(tmp_path: Path) -> None:
    for step in (9, 100_000_000, 99_999_999):
        step_folder(tmp_path, step).mkdir()
    (tmp_path / "step-of-mine").mkdir()

    assert [step_of(folder) for folder in list_checkpoints(tmp_path)] == [100_000_000, 99_999_999, 9]


def test_the_newest_whole_one_is_used_and_damaged_ones_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (10, 20, 30):
        save_checkpoint(tmp_path, checkpoint_of(step))
    flip_a_byte(tmp_path / "step-00000030" / MODEL)
    delete(tmp_path / "step-00000020" / STATE)

    with caplog.at_level(logging.WARNING):
        found = newest_whole(tmp_path)

    assert found is not None
    assert same(found, checkpoint_of(10))
    assert [("step-00000030" in line, "step-00000020" in line) for line in caplog.messages] == [
        (True, False),
        (False, True),
    ]


def test_where_there_is_none_there_is_none(tmp_path: Path) -> None:
    assert newest_whole(tmp_path) is None
    assert newest_whole(tmp_path / "nowhere") is None


def test_when_all_are_damaged_the_newest_is_named(tmp_path: Path) -> None:
    for step in (10, 20):
        truncate(save_checkpoint(tmp_path, checkpoint_of(step)) / OPTIMIZER)

    with pytest.raises(
        CheckpointError, match=r"step-00000020.optimizer\.safetensors.*no checkpoint is intact$"
    ) as e:
        newest_whole(tmp_path)
    assert e.value.exit_status == 1


@pytest.mark.parametrize("name", [MANIFEST, MODEL])
def test_one_that_may_not_be_read_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for step in (10, 20):
        save_checkpoint(tmp_path, checkpoint_of(step))
    opened = Path.open

    def refused(path: Path, *args: Any, **kwargs: Any) -> Any:  # root may read everything
        if path.name == name and path.parent.name == "step-00000020":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(DiskError, match=rf"step-00000020.{name}: cannot be read: Permission denied; make"):
        newest_whole(tmp_path)


def steps_after_pruning(folder: Path, keep: int, progress: Progress) -> list[int]:
    prune(folder, keep, progress)
    return [step_of(path) for path in list_checkpoints(folder)]


def test_the_last_few_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40, 50):
        save_checkpoint(tmp_path, checkpoint_of(step))

    assert steps_after_pruning(tmp_path, 2, Progress(50, best_step=20)) == [50, 40, 20]
    assert steps_after_pruning(tmp_path, 2, Progress(50, best_step=40)) == [50, 40]
    assert steps_after_pruning(tmp_path, 1, Progress(50)) == [50]


def test_a_damaged_later_one_does_not_take_the_place_of_a_whole_one(tmp_path: Path) -> None:
    """After a fall back to an earlier checkpoint the damaged later ones are still there."""
    for step in (20, 25):
        save_checkpoint(tmp_path, checkpoint_of(step))
    truncate(save_checkpoint(tmp_path, checkpoint_of(30)) / MODEL)

    assert steps_after_pruning(tmp_path, 1, Progress(25)) == [30, 25]


def test_a_damaged_one_that_the_run_has_passed_does_not_take_the_place_of_a_whole_one(tmp_path: Path) -> None:
    for step in (10, 14, 20):
        save_checkpoint(tmp_path, checkpoint_of(step))
    prune(tmp_path, 2, Progress(20), damaged={14})
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == [20, 10]


def test_those_between_two_due_ones_take_no_place_of_these(tmp_path: Path) -> None:
    """Signals left 23 and 27; 5 and 15 are of an earlier `train.checkpoint_every`."""
    for step in (5, 10, 15, 20, 23, 27, 30):
        save_checkpoint(tmp_path, checkpoint_of(step))

    prune(tmp_path, 2, Progress(30), every=10)
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == [30, 27, 20]
    save_checkpoint(tmp_path, checkpoint_of(40))
    prune(tmp_path, 2, Progress(40), every=10)
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == [40, 30]
    prune(tmp_path, 1, Progress(40), every=None)
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == [40]


def test_a_folder_that_may_not_be_written_is_one_line_when_pruning_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20):
        save_checkpoint(tmp_path, checkpoint_of(step))

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refused)

    with pytest.raises(DiskError, match="Read-only"):
        prune(tmp_path, 1, Progress(20))


def test_links_point_at_the_latest_and_the_best(tmp_path: Path) -> None:
    for step in (10, 20):
        save_checkpoint(tmp_path, checkpoint_of(step))

    link(tmp_path, {"latest": 10, "best": None})
    link(tmp_path, {"latest": 20, "best": 10})

    assert (tmp_path / "latest").readlink() == Path("step-00000020")  # relative: the folder can be moved
    assert load_file(tmp_path / "best" / MODEL)["a"][0, 0] == 10
    assert {path.name for path in tmp_path.iterdir()} == {"latest", "best", "step-00000010", "step-00000020"}


def test_without_a_best_there_is_no_link_and_no_step(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, replace(checkpoint_of(10), progress=Progress(10)))
    link(tmp_path, {"latest": 10, "best": None})

    assert not (tmp_path / "best").exists()
    assert best_step(tmp_path) is None


def test_where_links_cannot_be_made_all_else_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "links need a privilege here")

    monkeypatch.setattr(Path, "symlink_to", refused)
    save_checkpoint(tmp_path, checkpoint_of(10))

    link(tmp_path, {"latest": 10, "best": 10})

    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]
    assert best_step(tmp_path) == 10  # which does not need them


def test_the_best_is_what_the_newest_says(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, checkpoint_of(10))
    save_checkpoint(tmp_path, replace(checkpoint_of(20), progress=Progress(20, best_step=10)))

    assert best_step(tmp_path) == 10

    shutil.rmtree(tmp_path / "step-00000020")
    flip_a_byte(tmp_path / "step-00000010" / STATE)
    with pytest.raises(CheckpointError, match=STATE):
        best_step(tmp_path)
