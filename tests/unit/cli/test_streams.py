"""Standard streams that are full or closed, that nobody reads any longer, or whose encoding lacks characters."""

import errno
import io
import os
import sys
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clearformer.cli.commands.generate import show_as_made
from clearformer.cli.streams import (
    OutputError,
    ReaderGone,
    open_closed,
    standard_streams,
    take_every_character,
    write_text,
)

needs_dev_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")


class Broken(io.StringIO):
    """A stream that takes nothing, for a reason."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def write(self, text: str) -> int:
        raise OSError(self.number, os.strerror(self.number))


class BrokenAtLast(Broken):
    """Likewise, but only when what was buffered is to be written."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("stream", [Broken, BrokenAtLast])
@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, OutputError), (errno.EIO, OutputError), (errno.EPIPE, ReaderGone)]
)
def test_output_that_cannot_be_written_is_told(
    monkeypatch: pytest.MonkeyPatch, stream: type[Broken], number: int, error: type[Exception]
) -> None:
    monkeypatch.setattr(sys, "stdout", stream(number))
    with standard_streams(), pytest.raises(error):
        print("a result", flush=True)


def test_a_failure_that_somebody_swallows_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As click does, which tries what a stream can do."""
    monkeypatch.setattr(sys, "stdout", Broken(errno.ENOSPC))
    with standard_streams():
        for _ in range(2):
            with pytest.raises(OutputError, match="No space left on device"):
                sys.stdout.write("")
        with pytest.raises(OutputError):
            sys.stdout.flush()


@pytest.mark.parametrize("stream", [Broken, BrokenAtLast])
def test_messages_that_cannot_be_written_end_nothing(
    monkeypatch: pytest.MonkeyPatch, stream: type[Broken]
) -> None:
    monkeypatch.setattr(sys, "stderr", stream(errno.ENOSPC))
    with standard_streams():
        assert print("a message", file=sys.stderr, flush=True) is None


def test_the_streams_are_those_from_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with standard_streams():
        print("a result")
        print("a message", file=sys.stderr)
    assert (sys.stdout, sys.stderr) == (out, err)
    assert (out.getvalue(), err.getvalue()) == ("a result\n", "a message\n")


@needs_dev_full
def test_what_a_full_device_did_not_take_is_not_found_at_the_interpreter_s_exit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with standard_streams(), pytest.raises(OutputError):
            print("a result", flush=True)
        full.flush()  # goes to the null device now


def test_closed_streams_are_the_null_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    open_closed()
    opened = [sys.stdout, sys.stderr]
    assert [stream.name for stream in opened] == [os.devnull, os.devnull]
    for stream in opened:
        stream.write("é")
        stream.close()


def test_names_of_files_that_are_no_utf8_come_out_as_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="utf-8", errors="strict")
    monkeypatch.setattr(sys, "stdout", stream)
    with standard_streams():
        print("caf\udce9", end="", flush=True)
    assert written.getvalue() == b"caf\xe9"
    assert stream.errors == "strict"


# --- characters that an encoding lacks ----------------------------------------------------------------------


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


def test_a_file_on_windows_is_written_as_all_files_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.name", "nt")
    for asked, expected in ((None, "h\xe9 \u6570".encode()), ("cp1252", b"h\xe9 \\u6570")):
        written = io.BytesIO()
        stream = io.TextIOWrapper(written, encoding="cp1252")
        with monkeypatch.context() as here:
            here.delenv("PYTHONIOENCODING", raising=False)
            if asked:
                here.setenv("PYTHONIOENCODING", asked)
            here.setattr(sys, "stdout", stream)
            take_every_character()
            print("h\xe9 \u6570", end="", flush=True)
        assert written.getvalue() == expected


def test_one_that_is_closed_or_in_memory_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (None, io.StringIO()):
        monkeypatch.setattr(sys, "stdout", stream)
        take_every_character()
        assert sys.stdout is stream


class Terminal(io.StringIO):
    """A terminal, which obeys what is written to it."""

    def isatty(self) -> bool:
        return True


STEERS = "a\x1b[2J\x1bc\x9b5A\b\x00\rb"


def test_a_terminal_gets_nothing_that_steers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    with standard_streams():
        write_text(STEERS)
        write_text("\tc\r\n\x1b[1;31md\x1b[0m é\n")
    assert terminal.getvalue() == ("a\\x1b[2J\\x1bc\\x9b5A\\x08\\x00\\rb\tc\r\n\x1b[1;31md\x1b[0m é\n")


@pytest.mark.parametrize(
    ("stream", "shown"),
    [(Terminal(), "a\\rb\r\n\\r\r\nc\r\n"), (io.StringIO(), "a\rb\r\n\r\r\nc\r\n")],
    ids=["terminal", "file"],
)
def test_a_text_that_is_generated_overwrites_no_line_of_a_terminal(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, shown: str
) -> None:
    """Each piece is a token, and a carriage return may be one by itself."""

    def pieces(*_: Any, **__: Any) -> Generator[str, None, Any]:
        yield from ("\r", "b", "\r", "\n", "\r", "\r\n", "c", "\r")
        return SimpleNamespace(truncated=False)

    monkeypatch.setattr("clearformer.decoding.stream", pieces)
    monkeypatch.setattr(sys, "stdout", stream)
    with standard_streams():
        show_as_made(None, "a", {})  # type: ignore[arg-type]
    assert stream.getvalue() == shown


def test_a_file_gets_a_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", file := io.StringIO())
    with standard_streams():
        write_text(STEERS + "\x1b[31mred\x1b[0m")
    assert file.getvalue() == STEERS + "\x1b[31mred\x1b[0m"
