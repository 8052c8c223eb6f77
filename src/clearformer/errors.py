"""Errors that a user can cause: each message is one line that names the cause and the way out.

The command line prints the line and exits with `exit_status`: 2 if the user's input is at fault, 1 if something else
failed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

NEAR = 0.65
"""The least similarity, from 0 to 1 (difflib's ratio), at which one name is taken for another."""


class ClearformerError(Exception):
    """An error that the user should see as one line, without a traceback.

    All of them can be pickled, as another process's errors are, and copied, whatever their constructors take.
    """

    exit_status = 1

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (type(self), self.args), self.__dict__


def _made_again(kind: type[ClearformerError], args: tuple[Any, ...]) -> ClearformerError:
    """Return an error without calling its constructor, whose arguments are not kept; its attributes follow."""
    return kind.__new__(kind, *args)


class UserError(ClearformerError):
    """The user's input is at fault: a key, an argument or a file."""

    exit_status = 2


class ConfigError(UserError):
    """A configuration key is unknown, ill-typed, or does not fit the others."""


class SettingError(ConfigError):
    """A setting's value is ill-typed or out of its range."""


class DataError(UserError):
    """A text, or a file of texts, cannot be used as it is."""


class TokenizerError(UserError):
    """A tokenizer cannot be built or read, or its vocabulary lacks a part of a text."""


class RunError(UserError):
    """A run's name or folder cannot be used for this."""


class MissingPackageError(UserError):
    """A package of an extra is not installed."""


class CheckpointError(ClearformerError):
    """A checkpoint is damaged or incomplete."""


class DiskError(ClearformerError):
    """The disk is full or may not be written; earlier files are intact."""


class DeviceError(ClearformerError):
    """A device cannot do what was asked, such as hold so much in its memory."""


class RunInUseError(ClearformerError):
    """Another process trains the run; its files are left alone."""


class RunLostError(RunInUseError):
    """A run's folder was moved away, or taken over by another process, while the run was trained."""


class NonFiniteError(ClearformerError):
    """A loss or a gradient is not finite; the last good state is kept.

    Attributes:
        step: The step of training that found it, counted from 1; None where no training did.
    """

    def __init__(self, message: str, step: int | None = None) -> None:
        super().__init__(message)
        self.step = step


class Interrupted(ClearformerError):
    """A signal ended the work; everything so far is kept. The exit status is 128 plus the signal's number."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.exit_status = 128 + signal_number


@contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """Name the extra to install if an import in the `with` block fails.

    Args:
        extra: One of pyproject.toml's optional dependencies.
        purpose: Which package is needed and for what, such as "a figure needs matplotlib".

    Raises:
        MissingPackageError: a package is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(
            f"{purpose}, which is not installed: pip install 'clearformer[{extra}]'"
        ) from error


def shown(value: object) -> str:
    """Return the `repr` of a value of unknown origin for a message: on one line, and cut where it is long."""
    try:
        return shortened(repr(value))
    except ValueError:  # Python refuses to print so many digits
        return "a number with thousands of digits"


def shortened(text: str, most: int = 80) -> str:
    """Return text of unknown origin for a message: on one line, and cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


STEERING = re.compile(r"\x1b(?!\[[\d;]*m)|\r(?!\n|\Z)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
"""Characters that steer a terminal; not new lines, tabs and colours."""


def harmless(text: str) -> str:
    """Escape what would steer a terminal: a text of a model or a file may hold any character."""
    return STEERING.sub(lambda found: ascii(found[0])[1:-1], text)


def columns_of(text: str) -> int:
    """Return the columns of a terminal that a text takes; a Chinese character takes two."""
    from rich.cells import cell_len  # imported here because most commands need no table

    return cell_len(text)


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number and its noun: `1 token`, `2 tokens`, `1,000 tokens`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that `name` was most likely meant to be, or None if none is close.

    A path is compared by its last part, with candidates in the same folder.
    """
    folder, slash, last = name.rpartition("/")
    by_last = {
        _plain(each.rpartition("/")[2]): each
        for each in candidates
        if each.rpartition("/")[:2] == (folder, slash)
    }
    wanted = _plain(last)
    if matches := get_close_matches(wanted, by_last, n=1, cutoff=NEAR):
        return by_last[matches[0]]
    with_the_word = [
        each for plain, each in by_last.items() if len(wanted) > 2 and wanted in plain.split("-")
    ]
    return with_the_word[0] if len(with_the_word) == 1 else None


def _plain(name: str) -> str:
    return name.strip("-").replace("_", "-").lower()


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return `; did you mean X?` with the nearest candidate, or an empty string."""
    match = nearest(name, candidates)
    return f"; did you mean {match!r}?" if match else ""


@contextmanager
def worded_for(words: Mapping[str, str]) -> Iterator[None]:
    """Replace words of errors in the `with` block by those that fit a caller: `--field ` for `data.field=`."""
    try:
        yield
    except UserError as error:
        message = str(error)
        for usual, fitting in words.items():
            message = message.replace(usual, fitting)
        error.args = (message,)
        raise


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message: that of a compiler goes on with all that it printed."""
    return next(iter(str(error).splitlines()), type(error).__name__)
