"""Standard streams that never end a command in a traceback.

A closed stream is replaced by the null device. Standard error carries messages: those that cannot be written are
dropped, and the work goes on. Standard output carries results: a failed write is an error, unless the reader has left.
"""

import codecs
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO, cast

from clearformer.errors import ClearformerError, harmless


class OutputError(ClearformerError):
    """Writing to standard output failed."""


class ReaderGone(ClearformerError):
    """The reader of standard output has closed it, as `| head` does."""

    exit_status = 0


class Messages:
    """Standard error, wrapped to drop what cannot be written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._fail(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        discard(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Results(Messages):
    """Standard output, wrapped to report a failed write as an error of ours, and to leave terminals unsteered.

    Raises:
        OutputError, ReaderGone: it cannot be written; raised again at every later call, in case one is swallowed.
    """

    _failure: ClearformerError | None = None

    def write(self, text: str) -> int:
        self._stop()
        super().write(harmless(text) if self._stream.isatty() else text)
        return len(text)

    def flush(self) -> None:
        self._stop()
        super().flush()

    def _fail(self, error: OSError) -> None:
        super()._fail(error)
        if error.errno in (errno.EPIPE, errno.ECONNRESET):
            self._failure = ReaderGone("the reader of standard output has gone")
        else:
            self._failure = OutputError(f"standard output cannot be written: {error.strerror}")
        self._stop()

    def _stop(self) -> None:
        if self._failure is not None:
            raise self._failure


@contextmanager
def standard_streams() -> Iterator[None]:
    """Make the standard streams safe to use inside the `with` block, and flush them at its end."""
    open_closed()
    take_every_character()
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast(TextIO, Results(out)), cast(TextIO, Messages(err))
    try:
        with names_of_files(out):
            yield
    finally:
        sys.stdout, sys.stderr = out, err
        for stream in (out, err):
            Messages(stream).flush()  # otherwise the interpreter reports the failed write at exit


def take_every_character() -> None:
    """Make standard output accept every character.

    ASCII means that no locale was set, and on Windows a file or a pipe has the system's old encoding by default: UTF-8,
    the encoding of all files, takes their place. Any other encoding was set on purpose, such as a terminal's: it stays,
    and characters that it lacks are written as `\\u1234`.
    """
    stream = sys.stdout
    if not isinstance(stream, TextIOWrapper):
        return
    encoding = codecs.lookup(stream.encoding).name
    by_default = os.name == "nt" and not stream.isatty() and "PYTHONIOENCODING" not in os.environ
    if encoding == "ascii" or by_default:
        stream.reconfigure(encoding="utf-8", errors=stream.errors)
    elif not encoding.startswith("utf"):
        stream.reconfigure(errors="backslashreplace")


@contextmanager
def names_of_files(stream: TextIO) -> Iterator[None]:
    """Let a stream write file names that are not valid UTF-8 as their raw bytes."""
    if not isinstance(stream, TextIOWrapper) or stream.errors != "strict":
        yield
        return
    stream.reconfigure(errors="surrogateescape")
    try:
        yield
    finally:
        with suppress(OSError):
            stream.reconfigure(errors="strict")


def write_text(text: str) -> None:
    """Write a model's text to standard output, whole and at once; typer.echo would remove the colour codes in it."""
    sys.stdout.write(text)
    sys.stdout.flush()


class TextInPieces:
    """Writes a model's text as it arrives.

    A carriage return waits for what follows it: at the end of a line it is harmless, elsewhere a terminal would write
    over the line, so that it has to be escaped.
    """

    def __init__(self) -> None:
        self._held = ""

    def write(self, piece: str) -> None:
        """Write the next piece."""
        text = self._held + piece
        self._held = "\r" * text.endswith("\r")
        write_text(text.removesuffix("\r"))

    def end(self) -> None:
        """Write what waits, and a new line."""
        write_text(self._held + "\n")


def open_closed() -> None:
    """Open the null device for streams that the caller closed, so that no file of ours gets their descriptor."""
    if sys.stdin is None:  # commands that read standard input report that it is closed
        os.open(os.devnull, os.O_RDONLY)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (until the end)


def discard(stream: TextIO) -> None:
    """Redirect a stream, with its buffered content, to the null device."""
    with suppress(OSError, ValueError):  # a stream in memory has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, stream.fileno())
            stream.flush()
        finally:
            os.close(null)
