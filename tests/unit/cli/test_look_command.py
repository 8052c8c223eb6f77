"""`clearformer look` while its page is open: a signal ends it from the moment its address can be read."""

import signal
from typing import Any

import pytest
import typer

from clearformer.cli.commands import look


class Open:
    """A page that is open until it is closed, which is asked for at the latest after `patience` waits."""

    address = "http://127.0.0.1:1/?token=t"

    def __init__(self, patience: int = 3) -> None:
        self.is_open, self.patience = True, patience

    def wait(self, seconds: float) -> None:
        self.patience -= 1
        self.is_open = self.patience > 0

    def close(self) -> None:
        self.is_open = False


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_comes_with_the_address_closes_the_page(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, status: int
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(typer, "echo", lambda line: (shown.append(line), signal.raise_signal(number)))
    page: Any = Open()

    assert look.shown_until_closed(page) == status
    assert shown == [Open.address]
    assert not page.is_open


def test_a_page_that_is_closed_ends_the_command_without_a_signal(capsys: pytest.CaptureFixture[str]) -> None:
    page: Any = Open()
    assert look.shown_until_closed(page) == 0
    assert capsys.readouterr().out == f"{Open.address}\n"
