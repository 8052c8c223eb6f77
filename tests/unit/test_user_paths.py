"""Paths as users write them (`clearformer.files`); what they name is tested where it is read."""

from pathlib import Path
from typing import Any

import pytest

from clearformer.errors import UserError
from clearformer.files import data_folder, is_file, short_path, user_path, whole_path


def test_home_is_meant_by_its_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/a") == tmp_path / "a"
    assert user_path("~nobody-of-this-name/a") == Path("~nobody-of-this-name/a")
    assert user_path("a/~") == Path("a/~")


@pytest.mark.parametrize("given", [None, 5, b"a", ""])
def test_what_is_no_path_is_told(given: Any) -> None:
    with pytest.raises(UserError, match=r"^expected a path"):
        user_path(given)


def test_a_path_is_shown_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert short_path(here / "runs" / "a") == Path("runs/a")
    assert short_path(Path("runs/a")) == Path("runs/a")
    for elsewhere in (tmp_path / "other", here):
        assert short_path(elsewhere) == elsewhere

    def gone() -> Path:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "cwd", gone)
    assert short_path(here / "a") == here / "a"


def test_a_whole_path_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "there")
    (tmp_path / "circle").symlink_to("circle")
    assert whole_path("link/a") == tmp_path.resolve() / "there" / "a"
    (tmp_path / "a.jsonl").symlink_to(
        tmp_path / "blob"
    )  # as in a cache of Hugging Face, where the name tells the kind
    assert whole_path("a.jsonl") == tmp_path.resolve() / "a.jsonl"
    (tmp_path / "there").mkdir()
    assert whole_path("link/..") == whole_path(".") == tmp_path.resolve()
    assert whole_path("circle").name == "circle"


@pytest.mark.parametrize(("value", "folder"), [(None, None), ("", None), ("~/data", "data")])
def test_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None, folder: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if value is None:
        monkeypatch.delenv("CLEARFORMER_DATA", raising=False)
    else:
        monkeypatch.setenv("CLEARFORMER_DATA", value)
    assert data_folder() == (None if folder is None else tmp_path / folder)


def test_the_data_folder_at_home_is_found_for_every_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clearformer.data.labelled.sources import TREC
    from clearformer.data.pairs.sources import multi30k_places
    from clearformer.data.text.sources import shakespeare_places
    from clearformer.text.kinds.gpt2 import GPT2TokenizerSpec

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLEARFORMER_DATA", "~/data")
    for name in ("trec/train.txt", "trec/test.txt", "gpt2-bpe/encoder.json", "gpt2-bpe/vocab.bpe"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert shakespeare_places()[0] == tmp_path / "data" / "shakespeare" / "input.txt"
    assert multi30k_places()[0] == tmp_path / "data" / "multi30k"
    assert TREC.where() == str(tmp_path / "data" / "trec")
    assert GPT2TokenizerSpec()._folder() == tmp_path / "data" / "gpt2-bpe"


def test_a_name_that_no_file_can_have_is_none(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert is_file(tmp_path / "a")
    assert not is_file(tmp_path / ("a" * 300))
    assert not is_file(tmp_path)
