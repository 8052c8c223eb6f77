"""The machine's usual rate: a slow moment does not decide, and a slow machine does."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from clearformer.auto import rate
from clearformer.auto.rate import usual_rate
from clearformer.cost.rates import Rate
from clearformer.data.cache import cache_folder

CPU = torch.device("cpu")
Measured = Callable[[float], float]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Returns the usual rate after one more measurement, of the given rate."""

    def usual_after(now: float) -> float:
        monkeypatch.setattr(rate, "measured_rate", lambda *_, **__: Rate("", "", now, "measured", 0.6))
        return usual_rate("float32", CPU, seconds=1.0)

    return usual_after


def test_a_slow_moment_does_not_decide(measured: Measured, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert [measured(each) for each in (300e9, 310e9, 140e9, 305e9)] == [300e9, 310e9, 300e9, 305e9]
    assert caplog.messages == [
        "auto: products run at 140 GFLOP/s at the moment; 300 are usual here, and assumed"
    ]


def test_a_machine_that_stays_slow_is_slow_from_the_third_time_on(measured: Measured) -> None:
    for _ in range(5):
        measured(300e9)
    assert [measured(140e9) for _ in range(3)] == [300e9, 300e9, 140e9]
    assert [measured(300e9) for _ in range(3)] == [140e9, 140e9, 300e9]


def test_each_processor_has_its_own(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(300e9)
    monkeypatch.setattr(rate, "processor_name", lambda: "another")
    assert measured(9e12) == 9e12


def test_each_number_of_threads_has_its_own(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of torchrun's processes, which have one each."""
    monkeypatch.setattr(rate, "most_threads", lambda: 16)
    monkeypatch.setattr(rate, "free_cores", lambda: SimpleNamespace(number=lambda: 16))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    for _ in range(3):
        measured(20e9)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    assert measured(300e9) == 300e9


@pytest.mark.parametrize("content", ["", "[1, 2]", "{", '{"x": "fast"}', '{"x": [-1]}', "\ud800"])
def test_a_damaged_file_is_written_anew(measured: Measured, content: str) -> None:
    file = cache_folder() / "rates.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(content.encode("utf-8", "surrogatepass"))

    assert measured(300e9) == 300e9
    [rates] = json.loads(file.read_text()).values()
    assert rates == [300e9]


def test_a_cache_that_cannot_be_written_is_done_without(
    measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "file" / "cache"))
    assert [measured(each) for each in (300e9, 140e9)] == [300e9, 140e9]
