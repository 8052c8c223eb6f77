"""Reading standard input, or a file named in its place, as UTF-8 in every locale."""

import sys
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from clearformer.errors import UserError
from clearformer.files import user_path

NAME = "standard input"


def read_text() -> str:
    """Return all of standard input, with line ends and blanks unchanged, without the mark that begins a Windows file.

    Raises:
        DataError: it is not UTF-8; the message names the line.
        UserError: it is closed, or cannot be read.
    """
    from clearformer.data.reading import decoded_text

    with _reading():
        content = _stream().read()
    return decoded_text(NAME, content.removeprefix(BOM_UTF8))


def read_lines() -> list[str]:
    """Return the lines of standard input, without their line ends.

    Raises:
        DataError: a line is not UTF-8 text.
        UserError: it is closed, or cannot be read.
    """
    from clearformer.data.reading import decoded_lines

    with _reading():
        return list(decoded_lines(NAME, _stream()))


def lines_of(file: str) -> list[str]:
    """Return the lines of a file, plain or gzip, or of standard input if `file` is "-".

    Raises:
        DataError: it cannot be read, or a line is not UTF-8.
    """
    from clearformer.data.reading import read_lines as lines_of_path

    return read_lines() if file == "-" else list(lines_of_path(user_path(file)))


def name_of(file: str) -> str:
    """Return the input's name for messages."""
    return NAME if file == "-" else file


def _stream() -> BinaryIO:
    if sys.stdin is None:
        raise UserError(f"{NAME} is closed; name a file, or send the text through a pipe")
    return sys.stdin.buffer


@contextmanager
def _reading() -> Iterator[None]:
    """Raise UserError if standard input cannot be read, such as one that is open for writing alone (nohup)."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{NAME} cannot be read ({error.strerror}); name a file, or send the text through a pipe"
        ) from None
