"""Commands as processes whose output nobody reads any longer (`| head`), or goes to a disk that is full."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..forks import ForkServer

COMMANDS = (
    ("--help",),
    ("presets",),
    ("data", "list", "--json"),
    ("tokenizer", "show", "the cat sat on the mat"),
)


Ended = Callable[[tuple[str, ...], int], tuple[int, str]]


@pytest.fixture
def ended(forks: ForkServer, tmp_path: Path) -> Ended:
    """Gives the exit status of a command that writes into an open file, and what standard error took.

    `--help` and `presets` are processes as a user starts them, the others forks.
    """

    def ended(arguments: tuple[str, ...], stdout: int) -> tuple[int, str]:
        if arguments not in COMMANDS[:2]:
            with (tmp_path / "err").open("w+") as err:
                status = forks.start(*arguments, stdout=stdout, stderr=err).wait(100)
                err.seek(0)
                return status, err.read()
        process = subprocess.run(
            [sys.executable, "-m", "clearformer", *arguments],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=100,
        )
        return process.returncode, process.stderr

    return ended


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_reader_that_has_gone_ends_a_command_well_and_in_silence(
    arguments: tuple[str, ...], ended: Ended
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert ended(arguments, writer) == (0, "")
    finally:
        os.close(writer)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_output_that_a_full_disk_does_not_take_is_an_error_in_one_line(
    arguments: tuple[str, ...], ended: Ended
) -> None:
    with Path("/dev/full").open("w") as full:
        status, messages = ended(arguments, full.fileno())
    assert (status, messages) == (
        1,
        "clearformer: standard output cannot be written: No space left on device\n",
    )


def test_a_reader_of_the_first_line_gets_it() -> None:
    """As `| head -1` does, of more than a pipe holds."""
    text = "a" * 100_000
    with subprocess.Popen(
        [sys.executable, "-m", "clearformer", "tokenizer", "show", text, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(9) == b'{"kind": '
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(100) == 0
