"""The garbage collector rests while a command is imported, and is back after it."""

import gc
import sys
from collections.abc import Iterator

import pytest

from clearformer.cli.importing import importing


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that has not imported torch yet; what the test keeps from the collector is given back."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("without_torch")
def test_the_collector_rests_during_an_import_and_passes_over_what_came() -> None:
    before = gc.get_freeze_count()
    with importing():
        assert not gc.isenabled()
        came = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() - before > len(came)


@pytest.mark.usefixtures("without_torch")
def test_the_collector_is_back_after_an_import_that_fails() -> None:
    with pytest.raises(ImportError), importing():
        raise ImportError
    assert gc.isenabled()


def test_nothing_changes_where_torch_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", sys)
    before = gc.get_freeze_count()
    with importing():
        assert gc.isenabled()
    assert gc.get_freeze_count() == before


@pytest.mark.usefixtures("without_torch")
def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with importing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
