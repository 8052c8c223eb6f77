"""What is written is complete or is not there, and is on the disk when that is said."""

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clearformer import files
from clearformer.errors import DiskError
from clearformer.files import (
    discard,
    file_made_whole,
    folder_made_whole,
    is_free,
    make_folders,
    remove_abandoned,
    write_file,
)

LAST = "manifest"
Synced = Callable[[Path], bool]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Synced:
    """Tells whether all entries that a folder has now were there when it was last synced."""
    entries: dict[int, set[str]] = {}

    def recording(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            entries[status.st_ino] = set(os.listdir(descriptor))

    monkeypatch.setattr(files, "sync", recording)
    return lambda folder: entries.get(folder.stat().st_ino) == {path.name for path in folder.iterdir()}


def tree(folder: Path) -> dict[str, str | None]:
    """Everything below a folder by its path: the contents of files, None for folders."""
    return {
        path.relative_to(folder).as_posix(): None if path.is_dir() else path.read_text()
        for path in folder.rglob("*")
    }


def fill(folder: Path, content: str = "ours") -> None:
    (folder / "inner" / "deep").mkdir(parents=True)
    (folder / "inner" / "deep" / "file").write_text(content)
    (folder / "zebra").write_text(content)
    (folder / LAST).write_text(content)


WHOLE = {"inner": None, "inner/deep": None, "inner/deep/file": "ours", "zebra": "ours", LAST: "ours"}


def refuse_at(place: Path, error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system says to a folder that is to take the place of a mount point."""
    rename = Path.rename

    def refusing(self: Path, target: Path) -> Path:
        if Path(target) == place:
            raise OSError(error, os.strerror(error))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refusing)


# --- one file ---------------------------------------------------------------------------------------------


def test_every_folder_above_a_file_is_synced(tmp_path: Path, synced: Synced) -> None:
    write_file(tmp_path / "a" / "b" / "file", b"1")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"1"
    assert synced(tmp_path)
    assert synced(tmp_path / "a")
    assert synced(tmp_path / "a" / "b")


def test_a_file_is_synced_before_it_takes_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    seen: list[tuple[str, bytes]] = []

    def recording(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        seen.append(("folder" if is_folder else "file", path.read_bytes()))

    monkeypatch.setattr(files, "sync", recording)
    write_file(path, b"new")
    assert seen == [("file", b"old"), ("folder", b"new")]


def test_a_file_that_is_not_finished_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write_half() -> None:
        with file_made_whole(path) as new:
            new.write_text("half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(DiskError, match=r"file: cannot be written: No space left .*; free some space, or "):
        write_half()
    assert tree(tmp_path) == {"file": "old"}


@pytest.mark.skipif(os.name != "posix", reason="has no named pipes")
def test_what_is_no_regular_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    """As of /dev/null, written to with the rights to do so."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DiskError, match="is not a regular file; choose another name"):
        write_file(tmp_path / "pipe", b"new")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("there", [True, False], ids=["of a file", "of none yet"])
def test_a_file_behind_a_link_gets_the_content(tmp_path: Path, there: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    place, link = tmp_path / "elsewhere" / "a", tmp_path / "link"
    if there:
        place.write_bytes(b"before")
    link.symlink_to(place)
    write_file(link, b"after")
    assert link.is_symlink()
    assert place.read_bytes() == b"after"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "elsewhere", "link"]


def test_folders_that_are_there_are_not_synced(tmp_path: Path, synced: Synced) -> None:
    make_folders(tmp_path)
    assert not synced(tmp_path)


def test_a_file_where_a_folder_should_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file")
    with pytest.raises(DiskError, match="cannot be written"):
        write_file(tmp_path / "a" / "b" / "file", b"1")


def test_space_is_advised_only_where_it_may_help(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(DiskError, match=r"file: cannot be written: Is a directory; choose another place$"):
        write_file(tmp_path / "file", b"1")


# --- a folder ---------------------------------------------------------------------------------------------


def test_a_new_folder_and_all_around_it_are_synced(tmp_path: Path, synced: Synced) -> None:
    final = tmp_path / "new" / "final"
    with folder_made_whole(final, LAST) as folder:
        assert not final.exists()
        fill(folder)
    assert tree(final) == WHOLE
    for each in (tmp_path, final.parent, final, final / "inner", final / "inner" / "deep"):
        assert synced(each), each


@pytest.mark.parametrize("there", [True, False], ids=["an empty folder", "nothing"])
def test_contents_are_synced_before_their_folder_and_all_before_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    final = tmp_path / "final"
    if there:
        final.mkdir()
    synced: list[int] = []

    def recording(descriptor: int) -> None:
        if not (final / LAST).exists():
            synced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(files, "sync", recording)
    with folder_made_whole(final, LAST) as folder:
        fill(folder)
        (folder / "link").symlink_to("not there")
    for path in (each for each in final.rglob("*") if not each.is_symlink()):
        assert synced.index(path.stat().st_ino) < synced.index(path.parent.stat().st_ino), path


def test_an_empty_folder_stays_the_folder_that_it_is(tmp_path: Path, synced: Synced) -> None:
    final = tmp_path / "final"
    final.mkdir(mode=0o750)
    before = final.stat()
    with folder_made_whole(final, LAST) as folder:
        fill(folder)
    assert tree(tmp_path) == {"final": None} | {f"final/{name}": what for name, what in WHOLE.items()}
    assert (final.stat().st_ino, final.stat().st_mode) == (before.st_ino, before.st_mode)
    for each in (final, final / "inner", final / "inner" / "deep"):
        assert synced(each), each


@pytest.mark.parametrize("error", [errno.EBUSY, errno.EXDEV, errno.ENOTEMPTY])
def test_a_folder_that_cannot_be_replaced_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    final = tmp_path / "mounted"
    final.mkdir()
    refuse_at(final, error, monkeypatch)
    with folder_made_whole(final, LAST) as folder:
        fill(folder)
    assert tree(final) == WHOLE


def test_a_folder_beside_which_nothing_may_be_made_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final = tmp_path / "mine"
    final.mkdir()
    mkdir = Path.mkdir

    def not_beside(self: Path, *arguments: object, **options: object) -> None:
        if self.parent == tmp_path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        mkdir(self, *arguments, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Path, "mkdir", not_beside)
    with folder_made_whole(final, LAST) as folder:
        fill(folder)
    assert tree(final) == WHOLE


@pytest.mark.parametrize("there", [True, False], ids=["an empty folder", "nothing"])
def test_a_link_is_followed(tmp_path: Path, there: bool) -> None:
    place, link = tmp_path / "elsewhere", tmp_path / "link"
    if there:
        place.mkdir()
    link.symlink_to("elsewhere")
    with folder_made_whole(link, LAST) as folder:
        fill(folder)
    assert link.is_symlink()
    assert tree(place) == WHOLE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "link"]


def test_the_file_that_says_all_is_there_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final = tmp_path / "final"
    final.mkdir()
    rename, order = Path.rename, []

    def recording(self: Path, target: Path) -> Path:
        order.append(Path(target).name)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", recording)
    with folder_made_whole(final, LAST) as folder:
        fill(folder)
    assert order == ["inner", "zebra", LAST]


@pytest.mark.parametrize("there", [True, False], ids=["an empty folder", "nothing"])
def test_what_is_not_finished_leaves_nothing(tmp_path: Path, there: bool) -> None:
    final = tmp_path / "final"
    if there:
        final.mkdir()

    def interrupted() -> None:
        with folder_made_whole(final, LAST) as folder:
            fill(folder)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert tree(tmp_path) == ({"final": None} if there else {})


@pytest.mark.parametrize("stopped_at", ["inner", "zebra", LAST])
def test_contents_that_cannot_all_be_moved_are_all_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_at: str
) -> None:
    final = tmp_path / "final"
    final.mkdir()
    refuse_at(final / stopped_at, errno.EIO, monkeypatch)
    with (
        pytest.raises(DiskError, match=r"final: cannot be written: "),
        folder_made_whole(final, LAST) as folder,
    ):
        fill(folder)
    assert tree(tmp_path) == {"final": None}


# --- somebody else writes there too -----------------------------------------------------------------------


def test_of_two_that_make_the_same_the_first_stays(tmp_path: Path) -> None:
    final = tmp_path / "final"
    with folder_made_whole(final, LAST, shared=True) as folder:
        fill(folder)
        with folder_made_whole(final, LAST, shared=True) as first:
            fill(first, "theirs")
    assert set(tree(final).values()) == {None, "theirs"}
    assert list(tmp_path.iterdir()) == [final]


def fill_while_another_writes(final: Path, file: str, shared: bool) -> None:
    with folder_made_whole(final, LAST, shared=shared) as folder:
        fill(folder)
        final.mkdir(exist_ok=True)
        (final / file).write_text("theirs")


@pytest.mark.parametrize("there", [True, False], ids=["an empty folder", "nothing"])
def test_what_another_has_written_stays_and_ours_is_not_said_to_be_there(tmp_path: Path, there: bool) -> None:
    final = tmp_path / "final"
    if there:
        final.mkdir()
    with pytest.raises(DiskError, match=r"final: something else was written there meanwhile"):
        fill_while_another_writes(final, LAST, shared=False)
    assert tree(tmp_path) == {"final": None, f"final/{LAST}": "theirs"}


def test_what_another_left_half_made_is_not_taken_for_ours(tmp_path: Path) -> None:
    final = tmp_path / "final"
    with pytest.raises(DiskError, match=r"final: something else was written there meanwhile"):
        fill_while_another_writes(final, "zebra", shared=True)
    assert tree(tmp_path) == {"final": None, "final/zebra": "theirs"}


# --- clearing away ----------------------------------------------------------------------------------------


def test_what_is_discarded_is_gone_and_that_is_synced(tmp_path: Path, synced: Synced) -> None:
    (tmp_path / "kept").mkdir()
    fill(tmp_path / "old")
    discard(tmp_path / "old")
    assert tree(tmp_path) == {"kept": None}
    assert synced(tmp_path)
    discard(tmp_path / "old")
    assert tree(tmp_path) == {"kept": None}


def test_what_cannot_be_discarded_is_told_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "old")
    rename = Path.rename

    def busy(self: Path, target: Path) -> Path:
        if self.name == "old":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", busy)
    with pytest.raises(OSError, match="busy"):
        discard(tmp_path / "old")
    assert tree(tmp_path / "old") == WHOLE
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_only_what_was_left_long_ago_is_removed(tmp_path: Path) -> None:
    old, new, file = (tmp_path / f"{files.UNFINISHED}{name}" for name in ("old", "new", "file"))
    fill(old)
    fill(new)
    file.write_text("half")
    a_week_ago = time.time() - 7 * 24 * 3600
    for path in (old, file):
        os.utime(path, (a_week_ago, a_week_ago))
    remove_abandoned(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [new.name]


def test_what_another_user_left_is_let_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / f"{files.UNFINISHED}theirs"
    theirs.write_text("half")
    os.utime(theirs, (0, 0))

    def refused(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "unlink", refused)
    with folder_made_whole(tmp_path / "final", LAST) as folder:
        fill(folder)
    assert tree(tmp_path / "final") == WHOLE


def test_an_unfinished_file_does_not_fill_an_empty_folder(tmp_path: Path) -> None:
    """A process that was killed while it filled the folder has left one; the same command works again."""
    final = tmp_path / "final"
    final.mkdir()
    (final / f"{files.UNFINISHED}killed").mkdir()
    assert is_free(final)
    with folder_made_whole(final, LAST) as folder:
        fill(folder)
    assert (final / LAST).exists()
    assert not is_free(final)


def test_unfinished_files_of_long_ago_go_when_a_file_is_written_beside(tmp_path: Path) -> None:
    old = tmp_path / f"{files.UNFINISHED}old"
    old.write_text("half")
    os.utime(old, (0, 0))
    write_file(tmp_path / "file", b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_file_system_that_syncs_no_folders_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Some on a network answer so; an error of the disk is another thing."""

    def files_alone(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "sync", files_alone)
    if number == errno.EIO:
        with pytest.raises(DiskError, match="Input/output error"):
            write_file(tmp_path / "file", b"whole")
    else:
        write_file(tmp_path / "file", b"whole")
        assert (tmp_path / "file").read_bytes() == b"whole"


def test_windows_waits_for_who_has_a_file_open_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PATIENCE", (0.0, 0.0, 0.0))
    tries: list[Path] = []

    def moved_at_the(attempt: int) -> Callable[[Path], Path]:
        def move(target: Path) -> Path:
            tries.append(target)
            if len(tries) < attempt:
                raise PermissionError(errno.EACCES, "used by another process")
            return target

        return move

    target = tmp_path / "target"
    for system, attempt, refused in (("nt", 3, False), ("nt", 5, True), ("posix", 2, True)):
        tries.clear()
        monkeypatch.setattr(os, "name", system)
        try:
            files._moving(moved_at_the(attempt), target)
            failed = False
        except PermissionError:
            failed = True
        monkeypatch.setattr(os, "name", "posix")
        assert (failed, len(tries)) == (refused, {3: 3, 5: 4, 2: 1}[attempt])
