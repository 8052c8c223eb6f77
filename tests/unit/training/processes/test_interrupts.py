import os
import signal
import threading
import time
from contextlib import suppress

import pytest

from clearformer.training.processes import interrupts
from clearformer.training.processes.interrupts import ENDING, Interrupts, StoppedError


def send(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0)  # lets Python call the handler


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_is_noted_and_nothing_else(number: int) -> None:
    with Interrupts() as interrupts:
        assert interrupts.received is None
        send(number)
        assert interrupts.received == number


@pytest.mark.parametrize("number", ENDING)
def test_what_can_be_done_again_is_ended_at_once(number: int) -> None:
    with Interrupts() as interrupts:
        with pytest.raises(StoppedError), interrupts.at_once():
            send(number)  # and does not go on
        assert interrupts.received == number
        with pytest.raises(StoppedError), interrupts.at_once():
            pytest.fail("it was begun after the signal")


def test_code_that_handles_failures_does_not_take_a_signal_for_one() -> None:
    with Interrupts() as interrupts, pytest.raises(StoppedError), interrupts.at_once(), suppress(Exception):
        send(signal.SIGTERM)


def test_after_what_can_be_done_again_a_signal_is_noted_and_nothing_else() -> None:
    with Interrupts() as interrupts:
        with interrupts.at_once():
            pass
        send(signal.SIGTERM)
        assert interrupts.received == signal.SIGTERM


def test_a_second_interrupt_ends_at_once() -> None:
    with Interrupts():
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_a_second_interrupt_ends_a_process_that_was_begun_in_the_background() -> None:
    """A shell starts those with SIGINT ignored; who sends one all the same means it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts():
            send(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                send(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_second_termination_has_its_usual_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    monkeypatch.setattr(interrupts, "ONE_TERMINATION", 0.0)
    with Interrupts():
        send(signal.SIGTERM)
        assert not raised
        time.sleep(0.01)
        send(signal.SIGTERM)
        assert raised == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_one_termination_may_come_from_several_senders() -> None:
    """A queue signals each process of a job, and torchrun hands the same signal on to its own."""
    with Interrupts() as received:
        for _ in range(3):
            send(signal.SIGTERM)
        assert received.received == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN)


@pytest.mark.parametrize("first", ENDING)
def test_a_second_signal_of_another_number_is_none_that_ends_at_once(first: int) -> None:
    """torchrun, a logout and a queue that ends a job send several, one after another."""
    with Interrupts() as interrupts:
        for number in sorted(ENDING, key=lambda number: number != first):
            send(number)
            assert interrupts.received == first


def test_a_terminal_may_hang_up_more_than_once() -> None:
    with Interrupts() as interrupts:
        for _ in range(3):
            send(signal.SIGHUP)
        assert interrupts.received == signal.SIGHUP


def test_under_nohup_a_terminal_that_is_closed_ends_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            send(signal.SIGHUP)
            assert interrupts.received is None
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_handlers_before_come_back() -> None:
    before = [signal.getsignal(number) for number in ENDING]

    with Interrupts():
        assert signal.getsignal(signal.SIGINT) != before[0]

    assert [signal.getsignal(number) for number in ENDING] == before


def test_they_come_back_after_an_error_too() -> None:
    before = signal.getsignal(signal.SIGINT)

    with pytest.raises(RuntimeError), Interrupts():
        raise RuntimeError

    assert signal.getsignal(signal.SIGINT) == before


def test_a_handler_from_outside_python_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that embeds Python may have installed one, of which Python knows nothing."""
    installed = signal.signal
    monkeypatch.setattr(signal, "signal", lambda number, handler: installed(number, handler) and None)
    try:
        with Interrupts():
            pass
    finally:
        monkeypatch.undo()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in set(ENDING) - {signal.SIGINT}:
            signal.signal(number, signal.SIG_DFL)


def test_in_another_thread_signals_are_left_alone() -> None:
    """Only the main thread may set handlers; training in another one must not fail for that."""
    before, inside = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with Interrupts() as interrupts:
            inside.append((signal.getsignal(signal.SIGINT), interrupts.received))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert inside == [(before, None)]
