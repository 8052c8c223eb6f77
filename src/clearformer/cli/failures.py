"""One line for every error: those that the user can fix, and defects of clearformer."""

import errno

from clearformer.errors import ClearformerError, UserError, shortened

LONGEST_LINE = 2000  # characters of a message; a longer one holds somebody's data
REPORT = "please report it with the output of the same command with --debug"
NO_MEMORY = ("can't allocate memory", "not enough memory", "Storage size calculation overflowed")
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
NO_TEMPORARY_FOLDER = "No usable temporary directory"
NO_MEMORY_FOR_LIBRARY = ("failed to map segment", "cannot allocate memory")


class UsageMistake(UserError):
    """A mistake in a command's options or arguments; the message begins with the command."""


def describe_error(error: BaseException) -> tuple[str, int]:
    """Return the line to print for an error, and the exit status."""
    if isinstance(error, UsageMistake):
        return one_line(str(error)), error.exit_status
    status = error.exit_status if isinstance(error, ClearformerError) else 1
    return f"clearformer: {one_line(reason(error))}", status


def reason(error: BaseException) -> str:
    """Return the message of a clearformer error, or make one from any other error."""
    if isinstance(error, ClearformerError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{shortened(str(error.filename), 300)}: {error.strerror}"
    about = shortened(str(error), 300)
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return f"{about}; free some space"
    if isinstance(error, OSError) and NO_TEMPORARY_FOLDER in about:
        return f"{about}; free some space there, or set TMPDIR to a folder that may be written"
    if is_out_of_memory(error):
        because = f" ({about})" if about else ""
        return (
            f"not enough memory{because}; use a smaller model, shorter texts or a smaller batch; clearformer plan "
            "estimates the memory"
        )
    what = f"{type(error).__name__}: {about}".removesuffix(": ")
    return f"this is a bug in clearformer: {what}; {REPORT}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, NumPy or torch failed to allocate memory."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, ImportError):
        return any(words in str(error).lower() for words in NO_MEMORY_FOR_LIBRARY)
    return isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)


def one_line(text: str) -> str:
    """Put a message on one line, with control characters escaped for the terminal's sake."""
    line = " ".join(part.strip() for part in text.splitlines())
    safe = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
    return shortened(safe, LONGEST_LINE)
