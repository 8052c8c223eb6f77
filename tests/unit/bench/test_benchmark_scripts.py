"""The scripts of benchmarks/: each says what it does, and those that are quick enough run at a tiny size."""

import ast
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import clearformer as cf

FOLDER = Path(__file__).parents[3] / "benchmarks"
SCRIPTS = sorted(file for file in FOLDER.glob("*.py") if "argparse" in file.read_text())


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a script as its command line would, in this process."""

    def run(script: Path, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [script.name, *arguments])
        monkeypatch.syspath_prepend(str(FOLDER))
        runpy.run_path(str(script), run_name="__main__")

    return run


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda file: file.stem)
def test_a_script_finds_all_that_it_imports_and_says_how_it_is_called(
    script: Path, called: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        called(script, "--help")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {script.name}")
    assert f"benchmarks/{script.name}" in (ast.get_docstring(ast.parse(script.read_text())) or "")


def test_drafts_are_timed_and_give_the_same_text(
    called: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    text, runs, file = tmp_path / "a.txt", tmp_path / "runs", tmp_path / "lookup.json"
    text.write_text("to be, or not to be, that is the question\n" * 200)
    monkeypatch.setenv("CLEARFORMER_RUNS", str(runs))
    cf.train(
        "nanogpt-cpu",
        data={"path": str(text)},
        tokenizer="byte",
        model={"d_model": 8, "n_layers": 1, "attention.n_heads": 1, "max_seq_len": 16},
        train={"max_steps": 2, "batch_size": 2, "compile": False},
        run="a",
    )
    called(FOLDER / "lookup.py", "a", "--tokens", "6", "--lookup", "2", "--rounds", "1", "--json", str(file))
    prompts = json.loads(file.read_text())["medians"]
    assert list(prompts) == ["likeliest", "listed", "cool", "drawn"]
    assert all(prompt["same"] for prompt in prompts.values())


def test_rounded_weights_are_timed(called: Callable[..., None], tmp_path: Path) -> None:
    file = tmp_path / "int8.json"
    called(
        FOLDER / "int8.py",
        *("--model", "quick", "--tokens", "2", "--rounds", "1", "--no-compile", "--json", str(file)),
    )
    megabytes = json.loads(file.read_text())["megabytes"]
    assert megabytes["int8"] < megabytes["bfloat16"] < megabytes["float32"]
