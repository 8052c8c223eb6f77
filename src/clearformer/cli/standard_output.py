"""Standard output that takes every character, in every locale."""

import codecs
import sys
from io import TextIOWrapper


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
