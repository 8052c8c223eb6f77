import gzip
from collections import Counter
from pathlib import Path

import pytest

from clearformer.data.labelled.config import LabelledData
from clearformer.data.labelled.reading import LabelledText
from clearformer.data.labelled.sources import LABELLED_BUILT_IN, LabelledTexts, open_labelled
from clearformer.errors import DataError


def write(path: Path, *pairs: tuple[str, str]) -> str:
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in pairs))
    return str(path)


def refusal(config: LabelledData) -> str:
    with pytest.raises(DataError) as caught:
        open_labelled(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def lines_of(texts: LabelledTexts) -> dict[str, set[int]]:
    return {name: {each.line for each in own} for name, own in texts.splits.items()}


def test_about_the_share_is_held_out_and_every_text_is_on_one_side(tmp_path: Path) -> None:
    rows = [(f"text {i}", "abc"[i % 3]) for i in range(1000)]
    splits = open_labelled(LabelledData(path=write(tmp_path / "a.tsv", *rows))).splits
    assert 70 < len(splits["val"]) < 130
    assert sorted(each.line for own in splits.values() for each in own) == list(range(2, 1002))
    for own in splits.values():
        assert [each.line for each in own] == sorted(each.line for each in own)


def test_a_text_that_is_added_moves_no_other_and_neither_does_the_order(tmp_path: Path) -> None:
    rows = [(f"text {i}", "ab"[i % 2]) for i in range(300)]
    config = LabelledData(path=write(tmp_path / "a.tsv", *rows))
    val = {each.text for each in open_labelled(config).splits["val"]}
    write(tmp_path / "a.tsv", ("one more", "a"), *rows[::-1])
    assert {each.text for each in open_labelled(config).splits["val"]} - {"one more"} == val


def test_what_differs_in_white_space_or_label_alone_is_on_one_side(tmp_path: Path) -> None:
    rows = [
        row
        for i in range(100)
        for row in ((f"text {i}", "a"), (f" text\u00a0 {i}  ", "a"), (f"text {i}", "b"))
    ]
    of_lines = lines_of(open_labelled(LabelledData(path=write(tmp_path / "a.tsv", *rows), val_fraction=0.5)))
    assert 90 < len(of_lines["val"]) < 210
    for first in range(2, 302, 3):
        assert len({first, first + 1, first + 2} & of_lines["val"]) in (0, 3)


def test_a_held_out_label_that_is_not_in_training_is_left_out_and_told(tmp_path: Path) -> None:
    rows = [(f"text {i}", "ab"[i % 2]) for i in range(60)]
    held_out = open_labelled(LabelledData(path=write(tmp_path / "a.tsv", *rows))).splits["val"][0].text
    path = write(tmp_path / "b.tsv", *((text, "rare" if text == held_out else label) for text, label in rows))
    texts = open_labelled(LabelledData(path=path))
    assert texts.labels == ("a", "b")
    assert texts.unlearnt == {"rare": 1}
    assert held_out not in {each.text for own in texts.splits.values() for each in own}
    given = open_labelled(LabelledData(path=path, labels=("a", "b", "rare")))
    assert (given.unlearnt, len(given.splits["val"])) == ({}, len(texts.splits["val"]) + 1)


def test_own_files(tmp_path: Path) -> None:
    path = write(tmp_path / "train.tsv", ("one", "b"), ("two", "a"), ("two", "a"))
    val = write(tmp_path / "val.tsv", ("three", "a"))
    test = write(tmp_path / "test.tsv", ("four", "b"), ("five", "a"))
    texts = open_labelled(LabelledData(path=path, val_path=val, test_path=test))
    assert {name: len(split) for name, split in texts.splits.items()} == {"train": 3, "val": 1, "test": 2}
    assert texts.labels == ("a", "b")
    assert texts.where("test", 3) == f"{test}, line 3"


def test_one_file_is_no_two_splits(tmp_path: Path) -> None:
    path, other = (write(tmp_path / name, ("one", "a"), ("two", "b")) for name in ("a.tsv", "b.tsv"))
    (tmp_path / "link.tsv").symlink_to(path)
    message = refusal(LabelledData(path=path, val_path=str(tmp_path / "link.tsv")))
    assert message.startswith(f"data.path and data.val_path are both {tmp_path / 'link.tsv'}: ")
    assert refusal(LabelledData(path=path, val_path=other, test_path=other)).startswith(
        "data.val_path and data.test_path are both"
    )


def test_val_comes_from_the_training_file_and_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", *((f"text {i}", "ab"[i % 2]) for i in range(20)))
    texts = open_labelled(LabelledData(path=path))
    assert list(texts.splits) == ["train", "val"]
    assert sum(map(len, texts.splits.values())) == 20
    assert texts.where("val", 7) == f"{path}, line 7"
    assert list(open_labelled(LabelledData(path=path, val_fraction=0)).splits) == ["train"]


def test_a_label_unseen_in_training_is_named_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "train.tsv", ("one", "b"), ("two", "a"))
    test = write(tmp_path / "test.tsv", ("four", "b"), ("five", "c"))
    assert refusal(LabelledData(path=path, val_fraction=0, test_path=test)) == (
        f"{test}, line 3: the label 'c' is not in training, which has 'a', 'b': correct it, or add training texts "
        "with it"
    )


def test_of_many_labels_some_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "train.tsv", *((f"text {i}", f"{i:02}") for i in range(20)))
    test = write(tmp_path / "test.tsv", ("five", "c"))
    assert "'10', '11' and 8 more: correct it" in refusal(
        LabelledData(path=path, val_fraction=0, test_path=test)
    )


def test_given_labels_keep_their_order_and_are_all_there_are(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tsv", ("one", "b"), ("two", "b"))
    given = LabelledData(path=path, val_fraction=0, labels=("c", "b", "a"))
    assert open_labelled(given).labels == ("c", "b", "a")
    line = refusal(given.replace(labels=("a", "c")))
    assert f"{path}, line 2: the label 'b' is not among the classes, which are 'a', 'c'" in line


def test_a_label_is_not_compared_with_every_class() -> None:
    class Counted(str):
        __slots__ = ()
        n_compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.n_compared += 1
            return super().__eq__(other)

        __hash__ = str.__hash__

    labels = tuple(Counted(f"label {i}") for i in range(200))
    texts = [LabelledText(f"text {i}", label, i) for i, label in enumerate(labels)]
    LabelledTexts("", {"train": texts, "val": texts}, {}, labels).check_known_labels()
    assert Counted.n_compared < 1000


def test_one_label_is_no_classification(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", ("one", "a"), ("two", "a"))
    assert "every training text has the label 'a'" in refusal(LabelledData(path=path))


def test_labels_and_texts_the_wrong_way_round_are_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", *(("ab"[i % 2], f"text {i}") for i in range(40)))
    with_labels_for_texts = (LabelledData(path=path, val_fraction=share) for share in (0.1, 0.5, 0.9))
    messages = [refusal(config) for config in with_labels_for_texts]
    assert all("split would be empty" in message or "data.label_field" in message for message in messages)
    path = write(tmp_path / "b.tsv", *((f"text {i}", f"label {i}") for i in range(40)))
    message = refusal(LabelledData(path=path))
    assert "no label has both training and held-out texts" in message
    assert "data.label_field" in message
    assert "change data.val_fraction=0.1 (0 holds none out)" in message


def test_a_missing_file_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "train.tsv", ("one", "b"), ("two", "a"))
    assert refusal(LabelledData(path=f"{tmp_path}/trian.tsv")) == (
        f"data.path={tmp_path}/trian.tsv: there is no such file; did you mean 'train.tsv'?"
    )
    assert refusal(LabelledData(path=path, val_path=f"{tmp_path}/none/a.tsv")).startswith("data.val_path=")
    assert "is a folder" in refusal(LabelledData(path=str(tmp_path)))


def test_a_file_without_texts_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "train.tsv", ("one", "b"), ("two", "a"))
    empty = write(tmp_path / "val.tsv")
    assert refusal(LabelledData(path=path, val_path=empty)) == f"{empty}: there are no texts in it"


def test_the_sha256_changes_with_texts_labels_and_splits(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    pairs = [(f"text {i}", "ab"[i % 2]) for i in range(20)]
    seen = [open_labelled(LabelledData(path=write(path, *pairs))).sha256]
    assert open_labelled(LabelledData(path=write(path, *pairs))).sha256 == seen[0]
    seen.append(open_labelled(LabelledData(path=str(path), val_fraction=0.2)).sha256)
    seen.append(open_labelled(LabelledData(path=write(path, *pairs[1:], ("text 0", "b")))).sha256)
    seen.append(open_labelled(LabelledData(path=write(path, *pairs, ("more", "b")))).sha256)
    assert len(set(seen)) == 4


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    assert "did you mean 'languages'?" in refusal(LabelledData(name="language"))
    assert "choose from languages, sst2, agnews, trec" in refusal(LabelledData(name="imdb"))


def test_names_in_languages_have_one_right_answer() -> None:
    pytest.importorskip("babel")
    texts = open_labelled(LabelledData())
    assert texts == open_labelled(LabelledData(name="languages"))
    assert len(texts.labels) == 26
    every = [each for split in texts.splits.values() for each in split]
    assert len(every) > 15_000
    assert len({each.text.casefold() for each in every}) == len(every)
    of = {each.text: each.label for each in every}
    assert of["Deutschland"] == "German"
    assert of["Alemanha"] == "Portuguese"
    assert of["Польща"] == "Ukrainian"
    assert not {"Peru", "Alemania"} & of.keys()  # the second is Spanish and Basque
    assert min(Counter(each.label for each in texts.splits["train"]).values()) > 300
    assert Counter(each.label for each in texts.splits["val"]).keys() == set(texts.labels)


@pytest.mark.parametrize(
    ("name", "sizes", "labels"),
    [
        ("sst2", {"train": 67_349, "val": 872}, ("negative", "positive")),
        (
            "agnews",
            {"train": 8_968, "val": 1_033, "test": 7_600},
            ("Business", "Sci/Tech", "Sports", "World"),
        ),
        (
            "trec",
            {"train": 4_925, "val": 527, "test": 500},
            ("abbreviation", "description", "entity", "human", "location", "number"),
        ),
    ],
)
def test_the_known_sets(data_dir: Path, name: str, sizes: dict[str, int], labels: tuple[str, ...]) -> None:
    assert LABELLED_BUILT_IN[name].where() == str(data_dir / name)
    texts = open_labelled(LabelledData(name=name))
    assert {split: len(own) for split, own in texts.splits.items()} == sizes
    assert texts.labels == labels


def test_labels_that_are_numbers_get_their_names(data_dir: Path) -> None:
    first = {name: open_labelled(LabelledData(name=name)).splits["train"][:2] for name in ("sst2", "trec")}
    assert first["sst2"][0] == LabelledText("hide new secretions from the parental units", "negative", 2)
    assert first["trec"][1] == LabelledText("What films featured the character Popeye Doyle ?", "entity", 2)


def test_trec_is_read_from_gzip_too(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = open_labelled(LabelledData(name="trec"))
    (tmp_path / "trec").mkdir()
    for name in ("train.txt", "test.txt"):
        content = (data_dir / "trec" / name).read_bytes()
        (tmp_path / "trec" / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
    monkeypatch.setenv("CLEARFORMER_DATA", str(tmp_path))
    assert open_labelled(LabelledData(name="trec")).splits == plain.splits


def test_a_set_that_is_not_here_says_where_to_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (None, tmp_path):
        if folder is None:
            monkeypatch.delenv("CLEARFORMER_DATA", raising=False)
        else:
            monkeypatch.setenv("CLEARFORMER_DATA", str(folder))
        assert LABELLED_BUILT_IN["trec"].where() is None
        assert refusal(LabelledData(name="trec")).startswith(
            "data.name=trec: not on this machine: set CLEARFORMER_DATA to a folder that has trec/train.txt and "
            "trec/test.txt"
        )


def test_a_fraction_of_a_set_with_its_own_validation_texts_is_refused(data_dir: Path) -> None:
    assert "sst2 has validation texts of its own" in refusal(LabelledData(name="sst2", val_fraction=0.1))
