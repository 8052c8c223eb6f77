"""The standard streams, so that none of them ends a command in a traceback.

A stream that is closed is the null device. Standard error is for messages: what it cannot take is dropped, and the work
goes on. Standard output is for results: one that cannot be written is an error, unless its reader has gone.
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

from clearformer.errors import ClearformerError


class OutputError(ClearformerError):
    """Standard output cannot be written."""


class ReaderGone(ClearformerError):
    """Nobody reads standard output any longer, as after `| head`."""

    exit_status = 0


class Messages:
    """Standard error, which takes what it can."""

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
    """Standard output.

    Raises:
        OutputError, ReaderGone: it cannot be written; at every call from then on, should one go unheard.
    """

    _failure: ClearformerError | None = None

    def write(self, text: str) -> int:
        self._stop()
        return super().write(text)

    def flush(self) -> None:
        self._stop()
        super().flush()

    def _fail(self, error: OSError) -> None:
        super()._fail(error)
        if error.errno in (errno.EPIPE, errno.ECONNRESET):
            self._failure = ReaderGone("nobody reads standard output any longer")
        else:
            self._failure = OutputError(f"standard output cannot be written: {error.strerror}")
        self._stop()

    def _stop(self) -> None:
        if self._failure is not None:
            raise self._failure


@contextmanager
def standard_streams() -> Iterator[None]:
    """Streams that can be used inside the `with` block; what is left in them is written before its end."""
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
            Messages(stream).flush()  # or the interpreter finds what cannot be written at its exit


def take_every_character() -> None:
    """Let standard output write what its encoding lacks.

    ASCII says that no locale was set: UTF-8 takes its place, as all files are in. Another encoding was chosen, such
    as that of a terminal: it stays, and what it lacks is written as `\\u1234`.
    """
    stream = sys.stdout
    if not isinstance(stream, TextIOWrapper):
        return
    encoding = codecs.lookup(stream.encoding).name
    if encoding == "ascii":
        stream.reconfigure(encoding="utf-8", errors=stream.errors)
    elif not encoding.startswith("utf"):
        stream.reconfigure(errors="backslashreplace")


@contextmanager
def names_of_files(stream: TextIO) -> Iterator[None]:
    """Let a stream take the names of files that are no UTF-8, as the bytes that they are."""
    if not isinstance(stream, TextIOWrapper) or stream.errors != "strict":
        yield
        return
    stream.reconfigure(errors="surrogateescape")
    try:
        yield
    finally:
        with suppress(OSError):
            stream.reconfigure(errors="strict")


def open_closed() -> None:
    """Open the null device in place of streams that the caller closed, before a file of ours gets their number."""
    if sys.stdin is None:  # the commands that read it say that it is closed
        os.open(os.devnull, os.O_RDONLY)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (until the end)


def discard(stream: TextIO) -> None:
    """Let the null device take what is left in a stream, and all that follows."""
    with suppress(OSError, ValueError):  # in memory, it has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, stream.fileno())
            stream.flush()
        finally:
            os.close(null)
