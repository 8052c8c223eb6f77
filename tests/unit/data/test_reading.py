import gzip
import json
import os
from pathlib import Path
from threading import Thread

import pytest

from clearformer.data import reading
from clearformer.data.reading import (
    existing_file,
    extents_of_documents,
    json_object,
    place_of_character,
    read_documents,
    read_lines,
)
from clearformer.errors import DataError

TEXT = "naïve 漢字\r\n\ttabs, 🙂 and\rold newlines\n\n"


def documents(path: Path, field: str = "text") -> list[str]:
    """Every document whole."""
    whole, parts = [], []
    for text, ends_document in read_documents(path, field):
        parts.append(text)
        if ends_document:
            whole.append("".join(parts))
            parts = []
    assert not parts, "the last document did not end"
    return whole


def written(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(path: Path, field: str = "text") -> str:
    with pytest.raises(DataError) as caught:
        documents(path, field)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_a_text_is_taken_as_it_is(tmp_path: Path) -> None:
    text = TEXT + "\ufeff"
    assert documents(written(tmp_path, "a.txt", text)) == [text]


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 5, 1 << 20])
def test_a_byte_order_mark_is_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", block_bytes)
    path = written(tmp_path, "a.txt", "\ufeff\ufeff" + TEXT)
    assert documents(path) == ["\ufeff" + TEXT]
    assert place_of_character([path], "text", 1) == f"{path}, line 1, column 2"
    size = len(TEXT.encode())
    assert list(extents_of_documents(path, "text")) == [(3, size + 6, size + 3)]
    empty = written(tmp_path, "b.txt", "\ufeff")
    assert documents(empty) == list(extents_of_documents(empty, "text")) == []
    assert "line 1: not UTF-8 (byte 0xff at offset 4" in refusal(
        written(tmp_path, "c.txt", b"\xef\xbb\xbfa\xff")
    )


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 5, 7])
def test_characters_may_lie_across_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", block_bytes)
    assert documents(written(tmp_path, "a.txt", TEXT)) == [TEXT]


def test_a_huge_line_comes_in_blocks(tmp_path: Path) -> None:
    line = "0123456789 " * 300_000
    path = written(tmp_path, "line.txt", line)
    sizes = [len(chunk.text) for chunk in read_documents(path, "text")]
    assert sum(sizes) == len(line)
    assert max(sizes) <= reading.BLOCK_BYTES


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_gzip_holds_the_same_documents_whatever_its_name(tmp_path: Path, name: str) -> None:
    content = json.dumps({"text": TEXT}) if name.endswith("jsonl") else TEXT
    plain = documents(written(tmp_path, name, content))
    assert plain == [TEXT]
    assert documents(written(tmp_path, f"{name}.gz", gzip.compress(content.encode()))) == plain
    assert documents(written(tmp_path, f"unnamed-{name}", gzip.compress(content.encode()))) == plain


def test_several_gzip_members_are_one_text(tmp_path: Path) -> None:
    content = gzip.compress(b"one ") + gzip.compress(b"two")
    assert documents(written(tmp_path, "a.gz", content)) == ["one two"]


def test_a_damaged_gzip_file_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(TEXT.encode() * 100)
    flipped = bytes([*whole[:-8], whole[-8] ^ 1, *whole[-7:]])
    for content in (whole[:-20], flipped, whole[:10] + b"\xff" * 20):
        assert "damaged gzip file" in refusal(written(tmp_path, "a.txt.gz", content))


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 1 << 20])
@pytest.mark.parametrize(
    ("content", "line", "offset"),
    [
        (b"one\ntwo\nth\xffree\n", 3, 10),
        ("one\nzw\u00e9\u6f22".encode() + b"\xe6\xbc\n.", 2, 11),  # a character cut short by a newline
        (b"one\ntwo \xf0\x9f\x99", 2, 8),  # and by the end
    ],
)
def test_what_is_not_utf8_is_found_by_line_and_byte(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    block_bytes: int,
    content: bytes,
    line: int,
    offset: int,
) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", block_bytes)
    message = refusal(written(tmp_path, "a.txt", content))
    assert f"line {line}: not UTF-8" in message
    assert f"byte 0x{content[offset]:02x} at offset {offset}" in message


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_binary_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", 4)
    content = b'{"text": "x"}\n' if name.endswith("jsonl") else b"text, then\n"
    message = refusal(written(tmp_path, name, content + b"ab\0cd"))
    assert f"looks binary (a NUL byte at offset {len(content) + 2})" in message


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-32"])
def test_another_encoding_is_told_how_to_become_utf8(tmp_path: Path, encoding: str) -> None:
    assert f"iconv -f {encoding} -t UTF-8" in refusal(written(tmp_path, "a.txt", "text".encode(encoding)))


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "gone.txt")


def test_jsonl_has_a_document_a_line(tmp_path: Path) -> None:
    texts = ["one", TEXT, "", "zw\u00e9i"]
    lines = [json.dumps({"id": i, "text": text}) for i, text in enumerate(texts)]
    content = "\ufeff" + lines[0] + "\n\n" + "\r\n".join(lines[1:])
    assert documents(written(tmp_path, "a.jsonl", content)) == [text for text in texts if text]
    assert documents(written(tmp_path, "A.NDJSON", content), "text") == [text for text in texts if text]


def test_a_jsonl_line_of_any_white_space_is_blank_to_readers_and_places(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", '\ufeff\n{"text": "one"}\n\u00a0\u3000\r\n{"text": "two"}')
    assert documents(path) == ["one", "two"]
    assert list(extents_of_documents(path, "text")) == [(4, 19, 3), (27, 42, 3)]


def test_a_long_jsonl_document_comes_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", 3)
    path = written(tmp_path, "a.jsonl", '{"text": "abcdef"}\n{"text": "abcdefg"}')
    assert [chunk.text for chunk in read_documents(path, "text")] == ["abc", "def", "abc", "def", "g"]
    assert documents(path) == ["abcdef", "abcdefg"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"text": "cut', "not JSON (Unterminated string starting at, column 10)"),
        ('["text"]', "not a JSON object"),
        ('{"body": "x", "texts": "y"}', "no field 'text'; did you mean 'texts'?"),
        ('{"body": "x"}', "no field 'text'; it has 'body' (choose the text field with data.field=NAME)"),
        ("{}", "no field 'text'; it has none"),
        ('{"text": 12}', "field 'text' is not text but 12"),
        ('{"text": null}', "field 'text' is not text but null"),
        ('{"text": "a\\ud83d"}', "half of a surrogate pair ('\\ud83d')"),
        ("[" * 100_000, "unreadable JSON"),
        ('{"text": ' + "9" * 5_000 + "}", "field 'text' is not text but Infinity"),
    ],
)
def test_a_bad_jsonl_line_is_named(tmp_path: Path, line: str, expected: str) -> None:
    path = written(tmp_path, "a.jsonl", f'{{"text": "fine"}}\n\n{line}\n')
    message = refusal(path)
    assert f"{path}, line 3: " in message
    assert expected in message


def test_a_jsonl_line_that_is_not_utf8_is_found(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", b'{"text": "fine"}\n{"text": "\xff"}\n')
    assert "line 2: not UTF-8 (byte 0xff at offset 27" in refusal(path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_lines_end_with_a_newline_and_nothing_else(tmp_path: Path, pack) -> None:
    content = "\ufeffone\r\n\n two\rstill two\u2028\x0c\x85 \nthe last"
    path = tmp_path / "lines"
    path.write_bytes(pack(content.encode()))
    assert list(read_lines(path)) == ["one", "", " two\rstill two\u2028\x0c\x85 ", "the last"]


def test_a_file_of_nothing_has_no_lines(tmp_path: Path) -> None:
    assert list(read_lines(written(tmp_path, "none", ""))) == []
    assert list(read_lines(written(tmp_path, "one", "\n"))) == [""]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"fine\nn\xe4chste\n", r"line 2: not UTF-8 \(byte 0xe4 at offset 6"),
        (b"fine\ncut \xc3", r"line 2: not UTF-8 \(byte 0xc3 at offset 9"),
        (b"fine\na\0b\n", r"looks binary \(a NUL byte at offset 6\)"),
        ("lines\n".encode("utf-16"), "UTF-16"),
        (gzip.compress(b"cut" * 99, mtime=0)[:-9], "damaged gzip file"),
    ],
)
def test_lines_that_are_no_text_are_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        list(read_lines(written(tmp_path, "lines", content)))


def test_a_file_that_there_is_not_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = written(tmp_path, "train.tsv", "")
    assert existing_file("path", str(path)) == path.resolve()
    with pytest.raises(
        DataError, match=r"data.val_path=.*trian.tsv: there is no such file; did you mean 'train.tsv'"
    ):
        existing_file("val_path", str(tmp_path / "trian.tsv"))
    with pytest.raises(DataError, match=r"data.path=/no/where: there is no such file$"):
        existing_file("path", "/no/where")
    with pytest.raises(DataError, match="is a folder: give a file in it"):
        existing_file("path", str(tmp_path))


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 1 << 20])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_character_s_place_is_the_same_in_whatever_blocks_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int, ending: str
) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", block_bytes)
    text = "one\n\ntwo é 漢\nthree\n"
    content = gzip.compress(text.encode()) if ending else text
    paths = [written(tmp_path, name, content) for name in (f"a.txt{ending}", f"b.txt{ending}")]
    for index in range(2 * len(text)):
        before = text[: index % len(text)]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        path = paths[index // len(text)]
        assert place_of_character(paths, "text", index) == f"{path}, line {line}, column {column}"
    with pytest.raises(DataError, match="became shorter"):
        place_of_character(paths, "text", 2 * len(text))


@pytest.mark.parametrize("name", ["a" * 300, "~nobody-of-this-name/a.tsv"])
def test_a_name_that_no_file_has_is_one_line(name: str) -> None:
    with pytest.raises(
        DataError, match=r"data\.val_path=.*: (cannot be read: File name|there is no such file)"
    ):
        existing_file("val_path", name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_no_file_of_pairs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tsv")
    with pytest.raises(DataError, match="is not a regular file"):
        existing_file("path", str(tmp_path / "pipe.tsv"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("packed", [False, True])
def test_lines_are_read_from_a_pipe(tmp_path: Path, packed: bool) -> None:
    """As `translate RUN <(command)` gives one."""
    os.mkfifo(tmp_path / "pipe")
    content = b"a\nb\n"
    writer = Thread(
        target=(tmp_path / "pipe").write_bytes, args=(gzip.compress(content) if packed else content,)
    )
    writer.start()
    assert list(read_lines(tmp_path / "pipe")) == ["a", "b"]
    writer.join()


def test_the_place_of_a_bad_byte_counts_the_mark_before_it(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_bytes(b"\xef\xbb\xbfa\xff\n")
    with pytest.raises(DataError, match="offset 4"):
        list(read_lines(file))


def test_a_number_of_any_length_in_a_field_that_nobody_reads_is_no_matter() -> None:
    assert json_object("here", '{"text": "ok", "n": ' + "1" * 5000 + ', "m": 12}')["m"] == 12
