import csv
import gzip
import json
from pathlib import Path

import pytest

from clearformer.data.labelled.reading import LabelledText, read_labelled
from clearformer.errors import DataError


def read(path: Path, content: str | bytes, **fields) -> list[LabelledText]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    given = {"text_field": "text", "label_field": "label"} | fields
    return list(read_labelled(path, **given))


def refusal(path: Path, content: str | bytes, **fields) -> str:
    with pytest.raises(DataError) as caught:
        read(path, content, **fields)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message.removeprefix(str(path)).lstrip(":, ")


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_tsv_is_read_by_the_names_of_its_columns(tmp_path: Path, ending: str) -> None:
    content = 'label\tid\ttext\r\nno\t1\tbad, "bad\r\n\nyes\t2\t good  \n'.encode("utf-8-sig")
    found = read(tmp_path / f"a.tsv{ending}", gzip.compress(content, mtime=0) if ending else content)
    assert found == [LabelledText('bad, "bad', "no", 2), LabelledText("good", "yes", 4)]


def test_without_a_header_the_columns_are_named(tmp_path: Path) -> None:
    found = read(tmp_path / "a.tsv", "one\ta\ntwo\tb\n", columns=("text", "label"))
    assert found == [LabelledText("one", "a", 1), LabelledText("two", "b", 2)]


def test_a_csv_may_hold_commas_quotes_and_newlines(tmp_path: Path) -> None:
    content = 'text,label\n"one, ""two""\nthree",a\n\nfour,b\n'
    found = read(tmp_path / "a.csv", content)
    assert found == [LabelledText('one, "two"\nthree', "a", 2, 3), LabelledText("four", "b", 5)]


def test_jsonl_labels_are_text_numbers_or_switches(tmp_path: Path) -> None:
    records = [{"text": "a", "label": label} for label in ("x", 3, True)]
    content = "\n\n".join(json.dumps(record) for record in records)
    assert [(each.label, each.line) for each in read(tmp_path / "a.jsonl", content)] == [
        ("x", 1),
        ("3", 3),
        ("true", 5),
    ]


def test_other_names_of_columns(tmp_path: Path) -> None:
    fields = {"text_field": "review", "label_field": "stars"}
    assert read(tmp_path / "a.csv", "stars,review\n5,good\n", **fields) == [LabelledText("good", "5", 2)]
    content = '{"stars": 5, "review": "good"}'
    assert read(tmp_path / "a.ndjson", content, **fields) == [LabelledText("good", "5", 1)]


def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    assert refusal(tmp_path / "a.tsv", "texts\tlabel\na\tb\n").startswith(
        "no column 'text'; did you mean 'texts'?; the first line has 'texts', 'label' "
        "(choose fields with data.text_field=NAME"
    )
    message = refusal(tmp_path / "a.csv", f"{'long ' * 20},1\n")
    assert "'long long long long long long long lo...', '1'" in message
    assert "data.columns=text,label" in message
    message = refusal(tmp_path / "a.csv", "text;label\na;b\n")
    assert "the first line has 'text;label', one column, where columns are separated by commas (" in message
    assert refusal(tmp_path / "a.tsv", "text\tlabel\ttext\na\tb\tc\n").startswith(
        "2 columns are called 'text'"
    )
    assert refusal(tmp_path / "a.jsonl", '{"text": "a", "labels": "b"}').startswith(
        "line 1: no field 'label'; did you mean 'labels'?"
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.tsv",
            "text\tlabel\na\tb\nc\n",
            "line 3: 1 column instead of 2 (text, label); columns are separated by tabs",
        ),
        ("a.tsv", "text\tlabel\na\tb\tc\n", "line 2: 3 columns instead of 2"),
        (
            "a.csv",
            'text,label\n"a\nb",c\nd,e,f\n',
            "line 4: 3 columns instead of 2 (text, label); columns are separated by commas",
        ),
        (
            "a.csv",
            'text,label\na,b\n"a,b\nc,d\n',
            "line 3: not valid CSV: a quotation mark opens here and is never closed",
        ),
        ("a.tsv", b"text\tlabel\na\tb\n\xe9\tb\n", "line 3: not UTF-8 (byte 0xe9 at offset 15"),
        ("a.tsv", "text\tlabel\na\tb\n  \tb\n", "line 3: 'text' is empty: fill it in, or remove the line"),
        ("a.tsv", "text\tlabel\na\t\n", "line 2: 'label' is empty"),
        ("a.csv", "", "there are no texts in it"),
        (
            "a.jsonl",
            '{"text": "a", "label": "b"}\n{"text": ',
            "line 2: not JSON (Expecting value, column 10)",
        ),
        ("a.jsonl", '["a", "b"]', "line 1: not a JSON object"),
        ("a.jsonl", '{"text": ["a"], "label": "b"}', "line 1: field 'text' is not text but [\"a\"]"),
        ("a.jsonl", '{"text": "a", "label": 0.5}', "line 1: field 'label' is not a label but 0.5"),
        ("a.jsonl", '{"text": "a", "label": null}', "line 1: field 'label' is not a label but null"),
        (
            "a.jsonl",
            '{"text": "a\\ud800", "label": "b"}',
            "line 1: field 'text' has half of a surrogate pair",
        ),
        ("a.txt", "text\tlabel\n", "labelled texts are read from .tsv, .csv, .jsonl, .ndjson, also with .gz"),
        ("a.tsv.gz", b"\x1f\x8bno gzip", "damaged gzip file"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    assert refusal(tmp_path / name, content).startswith(message)


def test_a_csv_that_is_none_says_why(tmp_path: Path) -> None:
    message = refusal(tmp_path / "a.csv", 'text,label\n"a\nb",c\n"he said "no"",d\n')
    assert message.startswith("line 4: not valid CSV: text follows a closing quotation mark")
    message = refusal(tmp_path / "b.csv", "text,label\ra,b\rc,d\r")
    assert message.startswith("line 1: not valid CSV: a carriage return (\\r) without a newline")


def test_a_header_beside_given_columns_is_no_text(tmp_path: Path) -> None:
    message = refusal(tmp_path / "a.tsv", "text\tlabel\na\tb\n", columns=("text", "label"))
    assert message == "line 1: a header that names the columns of data.columns: remove data.columns"
    assert len(read(tmp_path / "b.tsv", "a\tb\ntext\tlabel\n", columns=("text", "label"))) == 2


def test_columns_say_nothing_about_jsonl(tmp_path: Path) -> None:
    message = refusal(tmp_path / "a.jsonl", "", columns=("text", "label"))
    assert message.startswith("data.columns has no effect on JSONL")


def test_a_csv_may_hold_a_text_of_any_length(tmp_path: Path) -> None:
    allowed = csv.field_size_limit()
    long = "word " * 40_000
    assert len(long) > allowed
    found = read(tmp_path / "a.csv", f'text,label\n"{long}",a\nb,c\n')
    assert [(len(each.text), each.label, each.line) for each in found] == [
        (len(long) - 1, "a", 2),
        (1, "c", 3),
    ]
    assert csv.field_size_limit() == allowed  # that of whoever else reads CSV in this program
