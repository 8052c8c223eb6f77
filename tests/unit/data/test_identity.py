import json
import os
from pathlib import Path

import pytest

from clearformer.data import identity
from clearformer.data.identity import assumption, identity_of_files
from clearformer.errors import DataError


def written(folder: Path, name: str, content: str, time: int = 1) -> Path:
    path = folder / name
    path.write_text(content)
    os.utime(path, ns=(time, time))
    return path


def test_contents_tell_small_files_and_times_do_not(tmp_path: Path) -> None:
    first = identity_of_files({"a": written(tmp_path, "a.txt", "one")})
    assert identity_of_files({"a": written(tmp_path, "a.txt", "one", time=2)}) == first
    assert identity_of_files({"a": written(tmp_path, "a.txt", "two")}) != first
    assert identity_of_files({"b": tmp_path / "a.txt"}) != first
    assert (first["n_files"], first["size"]) == (1, 3)
    assert assumption(first) == ""
    json.dumps(first)


def test_where_one_file_ends_counts(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("a", "b")}
    seen = []
    for contents in (("on", "e"), ("o", "ne")):
        for (name, _), content in zip(files.items(), contents, strict=True):
            written(tmp_path, name, content)
        seen.append(identity_of_files(files))
    assert seen[0] != seen[1]


def test_large_files_are_told_by_size_and_time_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "COMPARED_BYTES", 5)
    files = {"a": written(tmp_path, "a", "one"), "b": written(tmp_path, "b", "two")}
    first = identity_of_files(files)
    written(tmp_path, "b", "six")
    assert identity_of_files(files) == first
    assert "contents are not compared" in assumption(first)
    written(tmp_path, "b", "six", time=2)
    assert identity_of_files(files) != first
    assert assumption(identity_of_files({"a": files["a"]})) == ""


def test_a_file_that_went_away_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.txt: cannot be read: No such file"):
        identity_of_files({"gone.txt": tmp_path / "gone.txt"})
