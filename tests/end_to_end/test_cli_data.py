"""`clearformer data` as a user types it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clearformer.cli import main
from clearformer.cli.commands.data import app
from clearformer.data import ShardError, prepare_data
from clearformer.errors import ClearformerError, ConfigError, DataError
from clearformer.resolving import resolve_run


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
    assert "downloaded on first use" in output
    place = cache / "data" / "shakespeare" / "input.txt"
    place.parent.mkdir(parents=True)
    place.touch()
    assert str(place) in run("list").stdout
    texts = {text["name"]: text["place"] for text in printed_json("list")["text"]}
    markov = {f"markov-{order}": str(place) for order in range(4)}  # counted in it
    assert texts == {"pydoc": "Python's standard library", "shakespeare": str(place)} | markov


def test_list_shows_the_data_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = printed_json("list")
    names = {kind: [known["name"] for known in built_in] for kind, built_in in listed.items()}
    assert names == {
        "text": ["pydoc", "shakespeare", "markov-0", "markov-1", "markov-2", "markov-3"],
        "pairs": ["dates", "multi30k"],
        "labelled": ["languages", "sst2", "agnews", "trec"],
    }
    places = {known["name"]: known["place"] for built_in in listed.values() for known in built_in}
    assert places["multi30k"] is places["sst2"] is None
    assert places["dates"] == "generated on first use by Babel and num2words"
    output = run("list").stdout
    assert all(name in output for name in places)
    assert "not on this machine; clearformer data prepare says where to get it" in output
    (tmp_path / "multi30k").mkdir()
    monkeypatch.setenv("CLEARFORMER_DATA", str(tmp_path))
    assert f"available: {tmp_path / 'multi30k'}" in run("list").stdout


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
    assert "2 shards checked, all SHA-256 sums match" in output


def test_inspect_says_how_much_of_the_held_out_text_is_in_training(tmp_path: Path) -> None:
    lines = [f"{i} bottles of beer on the wall, {i} bottles of beer.\n" for i in range(1000)]
    licence = (
        "Permission is hereby granted, free of charge, to any person who has a copy of this, to copy it.\n"
    )
    (tmp_path / "text.txt").write_text("".join([*lines, licence]))
    (tmp_path / "val.txt").write_text(
        licence + "And something that is said in no other place than this one, here.\n"
    )
    given = (f"data.path={tmp_path / 'text.txt'}", f"data.val_path={tmp_path / 'val.txt'}")
    assert "of val is also in train, in stretches of 64 tokens or more" in run("inspect", *given).stdout
    found = printed_json("inspect", *given)["also_in_train"]["val"]
    assert found["share"] == pytest.approx(len(licence) / len((tmp_path / "val.txt").read_text()))


def test_inspect_shows_a_short_text_whole_whose_characters_are_several_tokens(tmp_path: Path) -> None:
    (tmp_path / "zh.txt").write_text("天地玄黄" * 16, encoding="utf-8")
    given = (f"data.path={tmp_path / 'zh.txt'}", "tokenizer.kind=byte", "data.val_fraction=0")
    assert printed_json("inspect", *given)["first_text"] == {"train": "天地玄黄" * 16}


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
    assert "run clearformer data prepare with the same settings to rebuild it" in str(error)
    assert run("prepare", f"data.path={book}").exit_code == 0
    assert shard.read_bytes() == whole


def test_prepare_shows_pairs_and_what_was_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    output = run("prepare", "data.name=dates", "data.size=200", "data.max_length=30", "tokenizer=char").stdout
    for expected in ("200 pairs, fr to en", "Babel and num2words", "char", "train", "val"):
        assert expected in output
    assert (output + caplog.text).count("pairs left out, longer than data.max_length=30") == 1


def test_prepare_prints_the_manifest_of_pairs(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one cat\ntwo cats\n")
    (tmp_path / "a.fr").write_text("un chat\ndeux chats\n")
    files = (f"data.source={tmp_path / 'a.en'}", f"data.target={tmp_path / 'a.fr'}", "data.val_fraction=0")
    printed = printed_json("prepare", *files, "data.languages=en-fr")
    manifest = json.loads((Path(printed.pop("folder")) / "manifest.json").read_text())
    assert printed == manifest
    assert manifest["source"]["languages"] == ["en", "fr"]
    assert manifest["splits"]["train"]["n_pairs"] == 2


def test_inspect_shows_pairs_with_their_tokens(tmp_path: Path) -> None:
    path = tmp_path / "p.tsv"
    path.write_text("".join(f"{n} cats\t{n} chats\n" for n in range(100, 150)))
    given = ("data.kind=pairs", f"data.path={path}", "tokenizer=char")
    output = run("inspect", *given).stdout
    assert "  source  100 cats\n          1 | 0 | 0 |   | c | a | t | s\n  target  100 chats\n" in output
    assert "14 files checked, all SHA-256 sums match" in output
    printed = printed_json("inspect", *given)
    assert printed["n_files_checked"] == 14
    assert [example["target"] for example in printed["examples"]["train"]] == [
        "100 chats",
        "101 chats",
        "102 chats",
    ]
    assert printed["examples"]["train"][0]["source_tokens"] == list("100 cats")
    assert [example["source"] for example in printed["examples"]["val"]] == [
        "131 cats",
        "147 cats",
        "149 cats",
    ]


def test_inspect_shows_labelled_texts_with_their_tokens(tmp_path: Path) -> None:
    path = tmp_path / "l.tsv"
    path.write_text("text\tlabel\n" + "".join(f"good {n}\tup\nbad {n}\tdown\n" for n in range(10)))
    given = ("data=labelled", f"data.path={path}", "tokenizer=char")
    output = run("inspect", *given).stdout
    assert "20 texts" in output
    assert "2 labels" in output
    assert "labels: down 6, up 9" in output
    assert "  up  good 0\n    [CLS] | g | o | o | d |   | 0 | [SEP]" in output
    printed = printed_json("inspect", *given)
    assert printed["examples"]["train"][0]["label"] == "up"
    assert printed["n_shards_checked"] == 2


def test_data_are_prepared_as_they_are_trained_on(tmp_path: Path) -> None:
    """A table of pairs is pairs without saying so, in the tokens of the preset that trains on them."""
    path = tmp_path / "p.tsv"
    path.write_text("".join(f"{n} cats and {n} dogs\t{n} chats et {n} chiens\n" for n in range(100, 400)))
    settings = [f"data.path={path}", "tokenizer.vocab_size=300"]
    manifest = printed_json("prepare", *settings)
    config = resolve_run(settings, None)
    assert (config.data.kind, config.tokenizer.kind) == ("pairs", "bpe")
    assert (
        manifest["tokenizer"]["fingerprint"]
        == prepare_data(config.data, config.tokenizer).tokenizer.fingerprint()
    )
    assert set(manifest["splits"]) == {"train", "val"}


def test_damaged_pairs_are_found_and_made_again() -> None:
    given = ("data.name=dates", "data.size=100")
    damaged = Path(printed_json("prepare", *given)["folder"]) / "val-target.txt"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[::-1])
    error = run("inspect", *given).exception
    assert isinstance(error, ShardError)
    assert str(damaged) in str(error)
    assert "run clearformer data prepare with the same settings to rebuild it" in str(error)
    assert run("prepare", *given).exit_code == 0
    assert damaged.read_bytes() == whole


def test_damaged_labelled_texts_are_found_and_made_again(tmp_path: Path) -> None:
    path = tmp_path / "l.tsv"
    path.write_text("text\tlabel\n" + "".join(f"good {n}\tup\nbad {n}\tdown\n" for n in range(10)))
    given = ("data=labelled", f"data.path={path}", "tokenizer=byte")
    damaged = Path(printed_json("prepare", *given)["folder"]) / "train-00000.bin"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole.replace(b"g", b"f"))
    error = run("inspect", *given).exception
    assert isinstance(error, ShardError)
    assert str(damaged) in str(error)
    assert "run clearformer data prepare with the same settings to rebuild it" in str(error)
    assert run("prepare", *given).exit_code == 0
    assert damaged.read_bytes() == whole


@pytest.mark.parametrize(
    ("setting", "kind", "expected"),
    [
        ("data.pth=x", ConfigError, "did you mean 'path'?"),
        ("data.path", ConfigError, "key=value"),
        ("tokenizer.kind=bp", ConfigError, "did you mean 'bpe'?"),
        ("tokenizer.vocab_size=9", ConfigError, "tokenizer.vocab_size"),
        ("train.lr=1", ConfigError, "unknown key 'train'"),
        ("data.name=pydocs", ConfigError, "did you mean 'pydoc'?"),
        ("data.path=/nowhere/at/all", DataError, "no such file"),
        ("data.kind=pair", ConfigError, "did you mean 'pairs'?"),
        ("data.source=a.en", ConfigError, "source='a.en' needs target too"),
        ("data.size=5", ConfigError, "data.size"),
        ("data.languages=fr-xx", DataError, "no language 'xx'"),
        ("data.name=multi30k", DataError, "not on this machine: save train, val and test_2016_flickr"),
        ("data.name=sst2", DataError, "not on this machine"),
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


@pytest.mark.parametrize(
    "settings",
    [
        ("data.path=",),
        ("data.kind=pairs", "data.path="),
        ("data.kind=pairs", "data.source=", "data.target="),
        ("data.kind=labelled", "data.path="),
        ("data.name=",),
    ],
)
def test_an_unset_variable_is_no_data(settings: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "prepare", *settings]) == 2
    [line] = capsys.readouterr().err.splitlines()
    key = settings[-1].partition("=")[0].replace("target", "source")
    assert line.startswith(f"clearformer: {key}: empty (is a shell variable unset?)")


@pytest.mark.parametrize("kind", ["text", "pairs", "labelled"])
def test_a_name_that_is_too_long_is_one_line(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "prepare", f"data.kind={kind}", f"data.path={'a' * 300}.tsv"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "cannot be read: File name too long" in line


@pytest.mark.parametrize("value", ["5", "[1]"])
def test_a_section_that_is_no_section_is_one_line(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "prepare", f"data={value}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line == f"clearformer: data takes one of text, pairs, labelled; got {value}"
