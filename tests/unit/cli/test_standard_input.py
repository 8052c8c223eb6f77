"""Standard input as text, in whatever locale."""

import io
import os
import sys
from pathlib import Path

import pytest

from clearformer.cli import standard_input
from clearformer.errors import DataError, UserError


def given(content: bytes, monkeypatch: pytest.MonkeyPatch, encoding: str = "ascii") -> None:
    """As it is opened where the locale is C and UTF-8 mode is off."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding=encoding))


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_the_locale_changes_nothing(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    content = "h\xe9\r\n\u6570\x0b\n\n".encode()
    given(content, monkeypatch, encoding)
    assert standard_input.read_text() == "h\xe9\r\n\u6570\x0b\n\n"
    given(content, monkeypatch, encoding)
    assert standard_input.read_lines() == ["h\xe9", "\u6570\x0b", ""]


def test_the_mark_that_begins_a_windows_file_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    for read, text in ((standard_input.read_text, "a\n"), (standard_input.read_lines, ["a"])):
        given(b"\xef\xbb\xbfa\n", monkeypatch)
        assert read() == text


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"\xff", 1), (b"a\nb\nc\xe9\n", 3), (b"a\n\n\n\xed\xa0\x80", 4), (b"cut off\n\xc3", 2)],
)
def test_the_line_of_the_first_bad_byte_is_named(
    monkeypatch: pytest.MonkeyPatch, content: bytes, line: int
) -> None:
    for read in (standard_input.read_text, standard_input.read_lines):
        given(content, monkeypatch)
        with pytest.raises(
            DataError, match=rf"^standard input, line {line}: not UTF-8 \(byte 0x\w\w.*iconv"
        ) as caught:
            read()
        assert "\n" not in str(caught.value)


def test_nothing_is_an_empty_text(monkeypatch: pytest.MonkeyPatch) -> None:
    given(b"", monkeypatch)
    assert standard_input.read_text() == ""
    assert standard_input.read_lines() == []


def test_one_that_is_closed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    for read in (standard_input.read_text, standard_input.read_lines):
        with pytest.raises(UserError, match="standard input is closed"):
            read()


def test_one_that_is_open_for_writing_alone_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As nohup leaves it."""
    with (tmp_path / "file").open("wb") as file:
        unreadable = io.TextIOWrapper(io.BufferedReader(io.FileIO(os.dup(file.fileno()), "rb")))
    with unreadable:
        monkeypatch.setattr(sys, "stdin", unreadable)
        for read in (standard_input.read_text, standard_input.read_lines):
            with pytest.raises(
                UserError, match=r"standard input cannot be read \(Bad file descriptor\); name a"
            ):
                read()
