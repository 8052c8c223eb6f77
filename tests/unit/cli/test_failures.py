"""What is said of an error: one line, whose fault it is, and the way out."""

import errno
import tempfile

import numpy as np
import pytest
import torch

from clearformer.cli.failures import UsageMistake, describe_error
from clearformer.errors import CheckpointError, ConfigError, Interrupted

REPORT = "please report it with the output of the same command with --debug"


def test_an_error_of_the_user_s_is_as_it_was_written() -> None:
    assert describe_error(ConfigError("train.lr takes a number")) == (
        "clearformer: train.lr takes a number",
        2,
    )
    assert describe_error(CheckpointError("damaged")) == ("clearformer: damaged", 1)
    assert describe_error(Interrupted("interrupted", 15))[1] == 143
    assert describe_error(UsageMistake("clearformer train: no option --foo")) == (
        "clearformer train: no option --foo",
        2,
    )


class PanicException(BaseException):
    """As pyo3's, which is no Exception."""


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        (KeyError(), "KeyError"),
        (RecursionError("too deep"), "RecursionError: too deep"),
        (PanicException("range end"), "PanicException: range end"),
        (AssertionError("a\n  b\tc"), "AssertionError: a b c"),
    ],
)
def test_any_other_error_is_a_defect_of_ours(error: BaseException, what: str) -> None:
    assert describe_error(error) == (f"clearformer: this is a bug in clearformer: {what}; {REPORT}", 1)


def test_too_little_memory_is_nobody_s_fault() -> None:
    with pytest.raises(MemoryError) as of_numpy:
        np.zeros(2**62, np.uint8)
    with pytest.raises(RuntimeError) as of_torch:
        torch.empty(2**55)
    of_a_library = ImportError("libtorch_cpu.so: failed to map segment from shared object")
    for error in (MemoryError(), of_numpy.value, of_torch.value, of_a_library):
        line, status = describe_error(error)
        assert line.startswith("clearformer: not enough memory")
        assert "clearformer plan" in line
        assert status == 1


def test_a_file_that_cannot_be_used_is_named() -> None:
    with pytest.raises(OSError) as error:
        open("/dev/null/x")  # noqa: PTH123, SIM115
    assert describe_error(error.value) == ("clearformer: /dev/null/x: Not a directory", 1)


def test_a_full_disk_is_nobody_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert describe_error(full) == ("clearformer: [Errno 28] No space left on device; free some space", 1)

    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/dev/null/x"])
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(FileNotFoundError) as error:
        tempfile.gettempdir()
    line, status = describe_error(error.value)
    assert "temporary directory found in ['/dev/null/x']; free some space there, or set TMPDIR to" in line
    assert status == 1


def test_a_line_is_one_line_that_a_terminal_obeys_not() -> None:
    line, _ = describe_error(ConfigError("first\n  second\r\x1b[31mred\x07 caf\udce9"))
    assert line == r"clearformer: first second \x1b[31mred\x07 caf\udce9"
    assert len(describe_error(ConfigError("x" * 100_000))[0]) < 3000
