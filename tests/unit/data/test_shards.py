import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clearformer.data import ShardError, shards
from clearformer.data.cache import found
from clearformer.data.shards import (
    MANIFEST,
    ShardWriter,
    Split,
    check_contents,
    open_splits,
    read_manifest,
    token_dtype,
    write_manifest,
)
from clearformer.errors import DataError

N_TOKENS = 101


def made(folder: Path, shard_tokens: int, vocab_size: int = 1000) -> tuple[np.ndarray, dict[str, Any]]:
    """A prepared folder of random tokens, written in uneven portions; the tokens and the manifest."""
    folder.mkdir(exist_ok=True)
    tokens = np.random.default_rng(0).integers(vocab_size, size=N_TOKENS)
    dtype = token_dtype(vocab_size)
    with ShardWriter(folder, "train", dtype, shard_tokens) as writer:
        for portion in np.split(tokens, [2, 2, 31, 37, 90]):
            writer.add(portion.astype(np.int32))
    entry = {"n_tokens": writer.n_tokens, "n_chars": 7, "n_bytes": 11, "shards": writer.shards}
    manifest = {"version": 1, "dtype": dtype.str, "splits": {"train": entry}}
    write_manifest(folder, manifest)
    return tokens, manifest


def change_manifest(folder: Path, **changes: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | changes))


@pytest.mark.parametrize("buffered", [1, 5, 1 << 20])
@pytest.mark.parametrize("shard_tokens", [1, 2, 13, 50, 101, 1000])
@pytest.mark.parametrize("mapped_bytes", [0, 1 << 20])
def test_several_shards_read_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped_bytes: int, shard_tokens: int, buffered: int
) -> None:
    monkeypatch.setattr(shards, "BUFFERED_TOKENS", buffered)
    monkeypatch.setattr(shards, "MAPPED_BYTES", mapped_bytes)
    tokens, _ = made(tmp_path, shard_tokens)
    split = open_splits(tmp_path, read_manifest(tmp_path))["train"]
    assert len(list(tmp_path.glob("train-*.bin"))) == -(-N_TOKENS // shard_tokens)
    assert len(split) == split.n_tokens == N_TOKENS
    assert (split.n_chars, split.n_bytes) == (7, 11)
    starts = np.array([0, 1, 12, 13, 49, 50, 90])
    windows = split.windows(starts, 11)
    assert windows.dtype == np.int64
    assert windows.tolist() == [tokens[start : start + 11].tolist() for start in starts]
    assert split.read(3, N_TOKENS).tolist() == tokens[3:].tolist()
    assert split.read(5, 5).shape == (0,)


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(65, "<u2"), (65_536, "<u2"), (65_537, "<u4"), (200_000, "<u4")]
)
def test_the_dtype_is_the_smallest_that_holds_every_token(
    tmp_path: Path, vocab_size: int, dtype: str
) -> None:
    tokens, manifest = made(tmp_path, 1000, vocab_size)
    assert manifest["dtype"] == dtype
    assert np.fromfile(tmp_path / "train-00000.bin", dtype).tolist() == tokens.tolist()
    assert open_splits(tmp_path, manifest)["train"].read(0, N_TOKENS).tolist() == tokens.tolist()


def test_the_manifest_tells_each_shards_size_and_checksum(tmp_path: Path) -> None:
    _, manifest = made(tmp_path, 60)
    for shard, n_tokens in zip(manifest["splits"]["train"]["shards"], (60, 41), strict=True):
        content = (tmp_path / shard["file"]).read_bytes()
        assert shard["n_tokens"] == n_tokens == len(content) / 2
        assert shard["sha256"] == hashlib.sha256(content).hexdigest()
    assert check_contents(tmp_path, manifest) == 2


@pytest.mark.parametrize(("start", "stop"), [(-1, 4), (90, 102), (101, 102), (7, 3)])
def test_tokens_that_do_not_exist_are_refused(start: int, stop: int) -> None:
    split = Split("val", [np.zeros(50, np.uint16), np.zeros(51, np.uint16)], 1, 1)
    with pytest.raises(IndexError, match="the val split has 101 tokens"):
        split.read(start, stop)


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="this system does not tell what is resident"
)
def test_a_large_text_does_not_become_resident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_tokens = 20_000_000
    (tmp_path / "train-00000.bin").write_bytes(np.zeros(n_tokens, "<u2").tobytes())
    shard = {"file": "train-00000.bin", "n_tokens": n_tokens}
    entry = {"n_tokens": n_tokens, "n_chars": 1, "n_bytes": 1, "shards": [shard]}
    manifest = {"dtype": "<u2", "splits": {"train": entry}}

    def resident_file_bytes_after_reading() -> int:
        split = open_splits(tmp_path, manifest)["train"]
        split.windows(np.arange(0, n_tokens - 10, 1000), 10)
        [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if "RssFile" in line]
        return int(line.split()[1]) * 1024

    monkeypatch.setattr(shards, "MAPPED_BYTES", 1)
    by_position = resident_file_bytes_after_reading()
    monkeypatch.setattr(shards, "MAPPED_BYTES", 1 << 30)
    assert resident_file_bytes_after_reading() - by_position > 30_000_000


def test_a_shard_that_shrinks_while_it_is_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "MAPPED_BYTES", 0)
    _, manifest = made(tmp_path, 60)
    split = open_splits(tmp_path, manifest)["train"]
    with (tmp_path / "train-00001.bin").open("r+b") as file:
        file.truncate(10)
    with pytest.raises(ShardError, match=r"train-00001.bin: became shorter"):
        split.read(50, 70)


def test_a_shard_of_the_wrong_size_is_named(tmp_path: Path) -> None:
    made(tmp_path, 60)
    shard = tmp_path / "train-00001.bin"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ShardError, match=r"train-00001.bin: damaged: 81 bytes instead of 82"):
        read_manifest(tmp_path)
    shard.unlink()
    with pytest.raises(ShardError, match=r"train-00001.bin: missing"):
        read_manifest(tmp_path)


def test_a_changed_shard_is_named_by_its_checksum(tmp_path: Path) -> None:
    _, manifest = made(tmp_path, 60)
    shard = tmp_path / "train-00001.bin"
    content = bytearray(shard.read_bytes())
    content[3] ^= 1
    shard.write_bytes(content)
    assert read_manifest(tmp_path) == manifest
    with pytest.raises(ShardError, match=r"train-00001.bin: damaged: its SHA-256"):
        check_contents(tmp_path, manifest)


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", "\udcff", '{"version": 1, "dtype": "<u2", "splits": []}'),
        '{"version": 1, "dtype": "<u2", "splits": {"train": {}}}',
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ShardError, match=r"manifest.json: not a manifest"):
        read_manifest(tmp_path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    made(tmp_path, 60)
    change_manifest(tmp_path, version=2)
    with pytest.raises(ShardError, match="format version 2; this"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["../train-00000.bin", "/etc/passwd"])
def test_a_shard_outside_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    made(tmp_path / "made", 60)
    entry = {
        "n_tokens": 1,
        "n_chars": 1,
        "n_bytes": 1,
        "shards": [{"file": name, "n_tokens": 1, "sha256": ""}],
    }
    change_manifest(tmp_path / "made", splits={"train": entry})
    with pytest.raises(ShardError, match="lies outside the folder"):
        read_manifest(tmp_path / "made")


def test_what_cannot_be_read_just_now_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whole data, which took hours to prepare, would be deleted."""
    (tmp_path / MANIFEST).write_text("{}")

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(DataError, match=r"manifest.json: cannot be read: Permission denied$"):
        found(tmp_path, lambda: read_manifest(tmp_path), "prepared again")
    monkeypatch.undo()
    assert found(tmp_path, lambda: read_manifest(tmp_path), "prepared again") is None
    assert not tmp_path.exists()
