"""`clearformer data` as a user types it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clearformer.cli.data import app
from clearformer.data import ShardError
from clearformer.errors import ClearformerError, ConfigError, DataError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CLEARFORMER_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("A book.\n\nIt has lines, and more lines, and an end\n" * 40)
    return path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, ClearformerError):
        raise result.exception
    return result


def printed_json(*arguments: str) -> dict:
    result = run(*arguments, "--json")
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_list_shows_every_built_in_text_and_where_it_is(cache: Path) -> None:
    output = run("list").stdout
    assert "pydoc" in output
    assert "Python's standard library" in output
    assert "fetched when first used" in output
    place = cache / "data" / "shakespeare" / "input.txt"
    place.parent.mkdir(parents=True)
    place.touch()
    assert str(place) in run("list").stdout
    texts = {text["name"]: text["place"] for text in printed_json("list")["texts"]}
    assert texts == {"pydoc": "Python's standard library", "shakespeare": str(place)}


def test_prepare_shows_the_splits(book: Path) -> None:
    output = run("prepare", f"data.path={book}", "tokenizer=byte", "data.test_fraction=0.2").stdout
    for expected in ("1 document, 2,000 characters", "byte, 256 tokens", "1,400", "train", "val", "test"):
        assert expected in output


def test_prepare_prints_the_manifest(book: Path) -> None:
    printed = printed_json("prepare", f"data.path={book}", "tokenizer.kind=bpe", "tokenizer.vocab_size=270")
    manifest = json.loads((Path(printed.pop("folder")) / "manifest.json").read_text())
    assert printed == manifest
    assert manifest["tokenizer"]["vocab_size"] == 270
    assert manifest["splits"]["val"]["n_chars"] == 200


def test_inspect_shows_how_the_splits_start_and_what_is_frequent(book: Path) -> None:
    output = run("inspect", f"data.path={book}").stdout
    assert "train starts:\n  A book.\n\n  It has lines" in output
    assert "most frequent: ' ' 18.0%" in output
    assert r"'\n' 6.0%" in output
    assert "2 shards, each with the SHA-256 it was written with" in output


def test_inspect_prints_json(book: Path) -> None:
    printed = printed_json("inspect", f"data.path={book}", "data.val_fraction=0.05")
    text = book.read_text()
    assert printed["n_shards_checked"] == 2
    assert printed["first_text"] == {"train": text[:160].rstrip() + " ...", "val": text[-100:]}
    most = printed["most_frequent"]["train"][0]
    assert (most["token"], most["count"]) == (" ", text[:1900].count(" "))
    assert most["share"] == pytest.approx(most["count"] / 1900)


def test_a_damaged_shard_is_found_and_made_again(book: Path) -> None:
    shard = Path(printed_json("prepare", f"data.path={book}")["folder"]) / "val-00000.bin"
    whole = shard.read_bytes()
    shard.write_bytes(whole[::-1])
    error = run("inspect", f"data.path={book}").exception
    assert isinstance(error, ShardError)
    assert error.exit_status == 1
    assert str(shard) in str(error)
    assert "`clearformer data prepare` with the same settings makes it again" in str(error)
    assert run("prepare", f"data.path={book}").exit_code == 0
    assert shard.read_bytes() == whole


@pytest.mark.parametrize(
    ("setting", "kind", "expected"),
    [
        ("data.pth=x", ConfigError, "did you mean 'path'?"),
        ("data.path", ConfigError, "key=value"),
        ("tokenizer.kind=bp", ConfigError, "did you mean 'bpe'?"),
        ("tokenizer.vocab_size=9", ConfigError, "tokenizer.vocab_size"),
        ("train.lr=1", ConfigError, "unknown key 'train'"),
        ("data.name=pydocs", DataError, "did you mean 'pydoc'?"),
        ("data.path=/nowhere/at/all", DataError, "no such file"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    setting: str, kind: type[ClearformerError], expected: str
) -> None:
    error = run("prepare", setting).exception
    assert isinstance(error, kind)
    assert error.exit_status == 2
    assert expected in str(error)
    assert "\n" not in str(error)
