"""Writing beside: one thing at a time, and what fails is told where training sees it."""

import logging
import threading
import time
from collections.abc import Callable

import pytest

from clearformer.errors import DiskError
from clearformer.training.store.async_checkpoint import CheckpointWriter

PATIENCE_SECONDS = 60


class Held:
    """Something to write that waits until it is let go."""

    def __init__(self, done: list[str], name: str = "held", error: Exception | None = None) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self._done, self._name, self._error = done, name, error

    def __call__(self) -> None:
        self.begun.set()
        assert self.may_end.wait(PATIENCE_SECONDS)
        if self._error:
            raise self._error
        self._done.append(self._name)

    def let_go_soon(self) -> None:
        """Once the thread that calls this is likely to wait."""
        threading.Timer(0.05, self.may_end.set).start()


def failing(message: str) -> Callable[[], None]:
    def write() -> None:
        raise DiskError(message)

    return write


def wait_until_written(writer: CheckpointWriter) -> None:
    """Without asking how it went."""
    assert writer._thread is not None
    writer._thread.join(PATIENCE_SECONDS)


def test_what_is_submitted_is_written_beside() -> None:
    done: list[str] = []
    held = Held(done)

    with CheckpointWriter() as writer:
        writer.submit(held)
        assert held.begun.wait(PATIENCE_SECONDS)
        writer.check()  # does not wait
        assert done == []
        held.let_go_soon()
        writer.wait()
        assert done == ["held"]


def test_the_next_waits_for_the_one_before() -> None:
    done: list[str] = []
    held = Held(done)

    with CheckpointWriter() as writer:
        writer.submit(held)
        held.let_go_soon()
        writer.submit(lambda: done.append("next"))
        assert done[0] == "held"
    assert done == ["held", "next"]


@pytest.mark.parametrize("how", ["block", "wait"])
def test_its_end_waits(how: str) -> None:
    done: list[str] = []
    held = Held(done)

    with CheckpointWriter() as writer:
        writer.submit(held)
        held.let_go_soon()
        if how == "wait":
            writer.wait()
            assert done == ["held"]
    assert done == ["held"]


@pytest.mark.parametrize("how", ["check", "submit", "wait", "block"])
def test_an_error_is_raised_once_where_training_sees_it(how: str) -> None:
    done: list[str] = []
    with CheckpointWriter() as writer:
        writer.submit(failing("no space"))
        wait_until_written(writer)
        if how == "block":
            with pytest.raises(DiskError, match="no space"), writer:
                pass
        else:
            call = {
                "check": writer.check,
                "submit": lambda: writer.submit(lambda: done.append("next")),
                "wait": writer.wait,
            }[how]
            with pytest.raises(DiskError, match="no space"):
                call()
        writer.check()
        writer.wait()
    assert done == []  # what came after the failure is not written


def fail_while_writing(held: Held) -> None:
    with CheckpointWriter() as writer:
        writer.submit(held)
        held.let_go_soon()
        raise KeyError


def test_an_error_in_the_block_waits_for_what_is_being_written() -> None:
    done: list[str] = []

    with pytest.raises(KeyError):
        fail_while_writing(Held(done))
    assert done == ["held"]


def test_an_error_in_the_block_is_the_one_that_is_raised_and_the_writers_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(KeyError):
        fail_while_writing(Held([], error=DiskError("no space")))
    assert caplog.messages == ["no space"]


def test_the_time_of_the_latest_write_is_kept() -> None:
    with CheckpointWriter() as writer:
        assert writer.seconds == 0
        writer.submit(lambda: time.sleep(0.05))
        writer.wait()
        assert writer.seconds >= 0.05
        writer.submit(lambda: None)
        writer.wait()
        assert writer.seconds < 0.05
