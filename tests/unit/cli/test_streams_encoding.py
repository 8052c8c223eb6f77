"""Standard output takes every character, in whatever locale."""

import io
import sys

import pytest

from clearformer.cli.streams import take_every_character


@pytest.mark.parametrize(
    ("encoding", "errors", "expected"),
    [
        ("ascii", "strict", "h\xe9 \u6570".encode()),
        ("ascii", "surrogateescape", "h\xe9 \u6570".encode()),
        ("ANSI_X3.4-1968", "strict", "h\xe9 \u6570".encode()),  # as the C library calls ASCII
        ("latin-1", "strict", b"h\xe9 \\u6570"),
        ("cp437", "strict", b"h\x82 \\u6570"),
        ("utf-8", "strict", "h\xe9 \u6570".encode()),
        ("utf-16-le", "strict", "h\xe9 \u6570".encode("utf-16-le")),
    ],
)
def test_what_the_encoding_lacks(
    monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str, expected: bytes
) -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding=encoding, errors=errors)
    monkeypatch.setattr(sys, "stdout", stream)
    take_every_character()
    print("h\xe9 \u6570", end="", flush=True)
    assert written.getvalue() == expected
    assert encoding == "latin-1" or encoding == "cp437" or stream.errors == errors


def test_one_that_is_closed_or_in_memory_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (None, io.StringIO()):
        monkeypatch.setattr(sys, "stdout", stream)
        take_every_character()
        assert sys.stdout is stream
