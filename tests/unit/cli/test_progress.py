"""The bar that shows how far a command is, and the messages beside it."""

import logging
import sys
from collections.abc import Iterator
from io import StringIO

import pytest

from clearformer.cli.options import show_log
from clearformer.cli.progress import progress_bar


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """A logger whose messages reach the handlers of `show_log` alone."""
    root = logging.getLogger()
    others, level = root.handlers[:], root.level
    root.handlers.clear()
    show_log()
    yield logging.getLogger("clearformer")
    root.handlers[:] = others
    root.setLevel(level)


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    return terminal


def test_a_message_stands_above_the_bar_on_a_line_of_its_own(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = on_terminal(monkeypatch)
    with progress_bar() as progress:
        progress("evaluating", 1, 4)
        log.info("7 pairs are in training too")
    [line] = [line for line in terminal.getvalue().splitlines() if "7 pairs" in line]
    assert line.endswith("7 pairs are in training too")
    assert "━" not in line


def test_each_part_has_a_bar_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with progress_bar() as progress:
        progress("evaluating", 4, 4)
        progress("translating", 1, 4)
    last = terminal.getvalue().rpartition("translating")[2]
    assert "25%" in last
    assert "-:--:--" in last  # one report says nothing of the time left


def test_no_bar_is_shown_elsewhere_than_on_a_terminal(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", elsewhere := StringIO())
    with progress_bar() as progress:
        progress("evaluating", 1, 4)
        log.info("7 pairs are in training too")
    assert elsewhere.getvalue() == "7 pairs are in training too\n"
