import gzip
from pathlib import Path

import pytest

from clearformer.config import resolve
from clearformer.data import PairsData
from clearformer.data.holding_out import place_of
from clearformer.data.pairs.sources import MULTI30K_LANGUAGES, Pair, open_pairs
from clearformer.errors import DataError


def write(path: Path, content: str | bytes) -> Path:
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def pairs_of(**settings: object) -> dict[str, list[Pair]]:
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in settings.items()}
    return open_pairs(resolve(PairsData, settings)).read().splits


def own(folder: Path, source: str | bytes, target: str | bytes, **settings: object) -> dict[str, list[Pair]]:
    """The splits of two files, with none held out unless it is asked for."""
    a, b = write(folder / "a.en", source), write(folder / "b.fr", target)
    return pairs_of(source=a, target=b, **({"val_fraction": 0} | settings))


def test_line_n_of_the_one_file_goes_with_line_n_of_the_other(tmp_path: Path) -> None:
    assert own(tmp_path, "one\ntwo\n", "un\r\ndeux") == {
        "train": [Pair("one", "un", 1), Pair("two", "deux", 2)]
    }


def test_one_file_may_be_both_sides(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\ntwo\n")
    assert pairs_of(source=path, target=path, val_fraction=0)["train"] == [
        Pair("one", "one", 1),
        Pair("two", "two", 2),
    ]
    write(path, "one\n \n")
    with pytest.raises(DataError, match=r"a.txt, line 2: an empty line, and"):
        pairs_of(source=path, target=path)


def test_lines_end_with_a_newline_and_with_nothing_else(tmp_path: Path) -> None:
    splits = own(tmp_path, "a\u2028b\x0cc\n d \n", "\ufeffx\u0085y\nz\ty\n")
    assert splits["train"] == [Pair("a\u2028b\x0cc", "x\u0085y", 1), Pair(" d ", "z\ty", 2)]


@pytest.mark.parametrize("name", ["p.tsv", "p.tsv.gz"])
def test_a_tsv_plain_or_packed(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "one\tun\ntwo\tdeux\n")
    assert pairs_of(path=path, val_fraction=0) == {"train": [Pair("one", "un", 1), Pair("two", "deux", 2)]}


def test_held_out_pairs_may_have_files_of_their_own(tmp_path: Path) -> None:
    path, val = write(tmp_path / "p.tsv", "one\tun\n"), write(tmp_path / "v.tsv", "two\tdeux\n")
    assert pairs_of(path=path, val_path=val) == {
        "train": [Pair("one", "un", 1)],
        "val": [Pair("two", "deux", 1)],
    }
    source, target = write(tmp_path / "v.en", "2\n3\n"), write(tmp_path / "v.fr.gz", "II\nIII\n")
    assert pairs_of(path=path, val_source=source, val_target=target)["val"] == [
        Pair("2", "II", 1),
        Pair("3", "III", 2),
    ]


def test_a_share_is_held_out_where_there_is_no_such_file(tmp_path: Path) -> None:
    lines = "".join(f"s{i}\tt{i}\n" for i in range(500))
    path = write(tmp_path / "p.tsv", lines)
    splits = pairs_of(path=path, test_fraction=0.1)
    assert list(splits) == ["train", "val", "test"]
    assert sum(map(len, splits.values())) == 500
    assert 3 < len(splits["val"]) < 20
    assert 30 < len(splits["test"]) < 70
    write(path, f"new\tneu\n{lines}")
    for name, more in pairs_of(path=path, test_fraction=0.1).items():
        assert {pair.source for pair in more} - {"new"} == {pair.source for pair in splits[name]}


def test_pairs_that_share_a_translation_are_not_on_both_sides(tmp_path: Path) -> None:
    path = write(tmp_path / "p.tsv", "".join(f"s{i}\tt{i // 2}\n" for i in range(400)))
    read = open_pairs(PairsData(path=str(path), val_fraction=0.1)).read()
    train, val = ({pair.target for pair in read.splits[name]} for name in ("train", "val"))
    assert not train & val
    assert read.n_left_out == 400 - sum(map(len, read.splits.values())) > 20


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("1\n2\n3\n", "I\nII\n", r"a.en has 3 lines and .*b.fr has 2: line n of one must translate"),
        ("1\n", "I\nII\n", r"a.en has 1 line and .*b.fr has 2"),
        ("1\n2\n", "", r"b.fr: there is no text in it, and a pair needs both sides"),
        ("\n \n", "I\nII\n", r"a.en: there is no text in it, and a pair needs both sides"),
        (
            "1\n2\n3\n",
            "I\n\n\t\n",
            r"b.fr, line 2: an empty line \(and 1 more\), and a pair needs both sides",
        ),
        ("1\n \n", "I\nII\n", r"a.en, line 2: an empty line, and"),
        (b"1\n2\xff\n", "I\nII\n", r"a.en, line 2: not UTF-8 \(byte 0xff at offset 3"),
        ("1\n", b"\x1f\x8b oh", r"b.fr: damaged gzip file"),
        ("1\n", "I\0\n", r"b.fr: looks binary"),
    ],
)
def test_files_that_make_no_pairs_are_refused(
    tmp_path: Path, source: str | bytes, target: str | bytes, expected: str
) -> None:
    with pytest.raises(DataError, match=expected) as caught:
        own(tmp_path, source, target)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a\tb\nc\n", r"p.tsv, line 2: a line must be source<TAB>target, with one tab; this one has none"),
        ("a\tb\tCC-BY\n", r"p.tsv, line 1: .*; this one has 2; cut -f1,2 p.tsv keeps the first two columns"),
        (
            "a\tb\rc\td\r",
            r"p.tsv, line 1: .*; this one has 2, and carriage returns for line ends: .* tr '\\r' '\\n'",
        ),
        ("a\tb\nc\t \n", r"p.tsv, line 2: the target is empty"),
        ("\tb\n", r"p.tsv, line 1: the source is empty"),
        ("a\tb\n\n", r"p.tsv, line 2: .*none"),
        ("", r"p.tsv: there are no pairs in it"),
    ],
)
def test_a_tsv_that_makes_no_pairs_is_refused(tmp_path: Path, content: str, expected: str) -> None:
    path = write(tmp_path / "p.tsv", content)
    with pytest.raises(DataError, match=expected):
        pairs_of(path=path, val_fraction=0)


def test_a_file_that_is_not_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "train.en", "1\n")
    with pytest.raises(
        DataError, match=r"data.source=.*train.ne: there is no such file; did you mean 'train.en'\?"
    ):
        pairs_of(source=tmp_path / "train.ne", target=tmp_path / "train.en")
    with pytest.raises(DataError, match=r"data.val_path=.* is a folder: give a file in it"):
        pairs_of(path=tmp_path / "train.en", val_path=tmp_path)


def test_one_file_is_no_two_splits(tmp_path: Path) -> None:
    path, other = write(tmp_path / "p.tsv", "a\tb\n"), write(tmp_path / "o.txt", "a\n")
    for files in (
        {"path": path, "val_path": path},
        {"source": path, "target": other, "val_source": path, "val_target": path},
    ):
        with pytest.raises(DataError, match=r"^data.(path|source) and data.val_(path|source) are both "):
            pairs_of(**files)
    pairs_of(source=path, target=path, val_source=other, val_target=other)  # a model that copies


def test_a_place_names_the_file_of_the_split_and_the_line(tmp_path: Path) -> None:
    path, val = write(tmp_path / "p.tsv", "a\tb\n"), write(tmp_path / "v.tsv", "c\td\n")
    source = open_pairs(PairsData(path=str(path), val_path=str(val)))
    assert source.place("val", 7) == f"{val}, line 7"
    held_out = open_pairs(PairsData(path=str(path)))
    assert held_out.place("val", 7) == f"{path}, line 7"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"name": "multi31k"}, "no such built-in pairs; did you mean 'multi30k'"),
        (
            {"languages": "fr-em"},
            "data.languages=fr-em: 'dates' has no language 'em'; choose from am, ar, .*uk, vi",
        ),
        ({"languages": "fr-fr"}, "give two languages"),
        ({"name": "multi30k", "languages": "en-es"}, "multi30k has en, de, fr"),
        ({"name": "multi30k", "languages": "en-en"}, "multi30k has en, de, fr"),
    ],
)
def test_a_name_or_language_that_there_is_not_is_refused(settings: dict, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        pairs_of(**settings)


def test_dates_are_split_with_no_sentence_on_both_sides() -> None:
    splits = pairs_of(size=2003, val_fraction=0.1, languages="en-de")
    assert 140 < len(splits["val"]) < 320
    for side in ("source", "target"):
        train, val = ({getattr(pair, side) for pair in pairs} for pairs in splits.values())
        assert not train & val


def test_no_held_out_value_of_dates_is_in_training_in_any_form() -> None:
    """A date that is held out is held out in every way of writing it, also as a part of a longer text."""
    splits = pairs_of(size=20_000, val_fraction=0.05, test_fraction=0.05)
    values = {name: {value for pair in pairs for value in pair.values} for name, pairs in splits.items()}
    own = {name: {pair.values for pair in pairs} for name, pairs in splits.items()}
    assert all(len(each) > 500 for each in own.values())
    for name, low, high in (("val", 0, 0.05), ("test", 0.95, 1)):
        held_out = {value for value in values[name] if low <= place_of(value) / 2**64 < high}
        assert len(held_out) > 500
        assert not held_out & values["train"]
        assert all(held_out & set(pair.values) for pair in splits[name])
        assert not own[name] & own["train"]
        # Many have several forms: the split is one of values and not of texts.
        assert len(own[name]) < 0.97 * len(splits[name])


def test_multi30k_is_looked_for_where_it_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_DATA", str(tmp_path))
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="not on this machine: save train, val and test_2016_flickr"):
        pairs_of(name="multi30k")
    folder = tmp_path / "multi30k"
    folder.mkdir()
    for stem in ("train", "val", "test_2016_flickr"):
        write(folder / f"{stem}.de", f"{stem}!\n")
        write(folder / f"{stem}.fr.gz", f"le {stem}\n")
    assert pairs_of(name="multi30k", languages="fr-de")["test"] == [
        Pair("le test_2016_flickr", "test_2016_flickr!", 1)
    ]
    with pytest.raises(DataError, match=r"train.en.gz is missing; it is in data/task1/raw at https"):
        pairs_of(name="multi30k")


def test_multi30ks_splits_are_its_own(data_dir: Path) -> None:
    assert MULTI30K_LANGUAGES == ("en", "de", "fr")
    splits = pairs_of(name="multi30k", languages="de-fr")
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 29000, "val": 1014, "test": 1000}
    assert splits["test"][0].source == "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt."
