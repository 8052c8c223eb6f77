"""The progress of a run in a notebook: a bar that is drawn once, moved in place, and gone at the end.

IPython's `display` is stood in for by a list, because IPython is no dependency.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import clearformer as cf
from clearformer.training.reporting.console import NotebookReporter, as_html

Drawn = list[dict[str, str]]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """What a notebook was given to draw; `rich` finds itself in one."""
    shown: Drawn = []

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            assert raw
            shown.append(data)

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        shown.append(data)
        return Handle()

    module: Any = ModuleType("IPython.display")
    module.display = display
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    return shown


def test_a_run_moves_the_bar_to_its_end_and_takes_it_away(
    drawn: Drawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path))
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be\n" * 40)
    cf.train(
        "quick",
        data={"path": str(text)},
        model={"n_layers": 1, "d_model": 8, "attention": {"n_heads": 1}, "max_seq_len": 8},
        train={"max_steps": 4, "log_every": 1, "eval_every": 2, "batch_size": 2, "compile": False},
    )
    first, *moved, last = drawn
    assert "the first steps" in first["text/html"]
    assert last == {"text/html": "", "text/plain": ""}
    assert [each["text/plain"].split()[:3] for each in moved] == [
        [f"{25 * step}%", "step", str(step)] for step in range(1, 5)
    ]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.strip()[:1].isdigit()] == ["2", "4"]


def test_a_bar_is_no_html_of_the_run_s(drawn: Drawn) -> None:
    bar = NotebookReporter()
    bar.start_bar()
    bar.move_bar(0.5, "loss <1>")
    assert drawn[-1] == as_html(0.5, "loss <1>")
    assert "value='0.5000' max='1'" in drawn[-1]["text/html"]
    assert "loss &lt;1&gt;" in drawn[-1]["text/html"]
    assert drawn[-1]["text/plain"] == "50% loss <1>"


def test_there_is_no_bar_to_take_away_where_a_run_cannot_begin(drawn: Drawn) -> None:
    NotebookReporter().end()
    assert drawn == []
