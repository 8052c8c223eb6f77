"""Standard input as text: UTF-8 in every locale, as in files."""

import sys
from typing import BinaryIO

from clearformer.errors import UserError

NAME = "standard input"


def read_text() -> str:
    """All of it, to the byte.

    Raises:
        DataError: it is no UTF-8; the line is named.
        UserError: it is closed.
    """
    from clearformer.data.reading import decoded_text

    return decoded_text(NAME, _stream().read())


def read_lines() -> list[str]:
    """Its lines, without what ends them.

    Raises:
        DataError: a line is no UTF-8 text.
        UserError: it is closed.
    """
    from clearformer.data.reading import decoded_lines

    return list(decoded_lines(NAME, _stream()))


def _stream() -> BinaryIO:
    if sys.stdin is None:
        raise UserError(f"{NAME} is closed; name a file, or send the text through a pipe")
    return sys.stdin.buffer
