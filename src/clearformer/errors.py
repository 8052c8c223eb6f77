"""What a user can cause: each error is one clear line that names what is at fault and the way out.

The command line prints the line and exits with `exit_status`: 2 where the user's input is at fault,
1 where something failed that was not asked for wrongly.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class ClearformerError(Exception):
    """Something the user should read as one line, without a traceback."""

    exit_status = 1


class UserError(ClearformerError):
    """The user's input is at fault: a key, an argument, a file they named."""

    exit_status = 2


class ConfigError(UserError):
    """A configuration key is unknown, ill-typed, or does not fit the others."""


class DataError(UserError):
    """A text, or a file of texts, cannot be used as it is."""


class TokenizerError(UserError):
    """A tokeniser cannot be built or read, or a text lies outside its vocabulary."""


class RunError(UserError):
    """A run's name or folder is not what the command needs."""


class CheckpointError(ClearformerError):
    """A checkpoint is damaged or incomplete."""


class DiskError(ClearformerError):
    """The disk is full or may not be written; what was there before is whole."""


class RunInUseError(ClearformerError):
    """Another process trains the run; what it makes is left alone."""


class NonFiniteError(ClearformerError):
    """A loss or a gradient is not finite; the last good state is kept."""


class Interrupted(ClearformerError):
    """A signal ended the work; everything so far is kept. The exit status is 128 and the signal's number."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.exit_status = 128 + signal_number


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` was most likely meant to be, or None where none is close."""
    matches = get_close_matches(name, list(candidates), n=1, cutoff=0.5)
    return matches[0] if matches else None


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """`; did you mean X?` with the nearest candidate, or nothing."""
    match = nearest(name, candidates)
    return f"; did you mean {match!r}?" if match else ""
