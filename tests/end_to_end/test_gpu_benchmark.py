"""`make gpu`, dry: every stage at tiny sizes on the CPU, its results kept, its table whole."""

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NANOGPT = """
import sys
flags = dict(flag[2:].split("=", 1) for flag in sys.argv[1:])
for step in range(int(flags["max_iters"])):
    print(f"iter {step}: loss 1.0, time 4.0ms, mfu -100.00%")
"""
Gpu = Callable[..., int]


@pytest.fixture(scope="module")
def scripts() -> dict[str, ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return {name: importlib.import_module(name) for name in ("gpu", "gpu_stages", "gpu_table")}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gpu.json"


@pytest.fixture
def gpu(scripts: dict[str, ModuleType], file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """The command, dry."""
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    return lambda *arguments: scripts["gpu"].main(["--dry", "--json", str(file), *arguments])


def stages(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())["stages"]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_stage_runs_and_the_table_has_every_figure(
    gpu: Gpu, scripts: dict[str, ModuleType], file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(NANOGPT)

    assert gpu("--nanogpt", str(tmp_path)) == 0, capfd.readouterr().err

    found = stages(file)
    assert list(found) == list(scripts["gpu_stages"].STAGES)
    assert {stage["state"] for stage in found.values()} == {"done"}
    assert found["tests"]["figures"]["skipped"] > 100
    for name, stage in found.items():
        assert stage["command"].startswith(f"python benchmarks/gpu.py --stage {name} --seed 1")
        assert stage["seconds"] > 0
    capfd.readouterr()

    assert scripts["gpu"].main(["--table", str(file)]) == 0

    text = capfd.readouterr().out
    lines = text.splitlines()
    assert "not run yet" not in text
    assert "unknown" not in text
    for row in (line for line in lines if line.startswith("|")):
        header = [
            line for line in lines[: lines.index(row) + 1] if re.match(r"\| (training|generation) ", line)
        ][-1]
        assert len(cells(row)) == len(cells(header))
    rows = {tuple(cells(line)[:2]): cells(line)[2:] for line in lines if line.startswith("|")}
    ours = [figures for (_, side), figures in rows.items() if side == "clearformer"]
    assert len(ours) == 4 + 2 * 2  # four runs, two models that write, of one stream and of two
    for figures in ours:
        assert [cell for cell in figures[:-1] if not re.search(r"\d", cell) and cell != "-"] == []
    theirs = [figures for (_, side), figures in rows.items() if side.startswith("nanogpt")]
    assert len(theirs) == 4
    assert all(figures[-1].endswith("times as fast") for figures in theirs)
    assert re.search(
        r"held-out loss 99\.0 reached at step 2, after [\d.]+ s of training\. Best \d\.\d{4}; 4 steps", text
    )
    assert re.search(r"^Tests on the GPU: 0 passed, 0 failed, \d+ skipped\.$", text, re.MULTILINE)
    assert lines[0] == "A dry run: no figure here means anything."


def test_a_stage_that_fails_keeps_no_other_from_its_turn_and_is_tried_again(
    gpu: Gpu,
    scripts: dict[str, ModuleType],
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ran = []

    def works(options: Any) -> dict[str, Any]:
        ran.append(options.seed)
        return {"figure": 1}

    def fails(options: Any) -> dict[str, Any]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    few = {
        "tests": works,
        "decode": fails,
        "nanogpt": scripts["gpu_stages"].STAGES["nanogpt"],
        "shakespeare": works,
    }
    for module in ("gpu", "gpu_table"):
        monkeypatch.setattr(scripts[module], "STAGES", few)

    assert gpu("--seed", "7") == 1
    assert {name: stage["state"] for name, stage in stages(file).items()} == {
        "tests": "done",
        "decode": "failed",
        "nanogpt": "skipped",
        "shakespeare": "done",
    }
    assert (
        stages(file)["decode"]["error"]
        == "RuntimeError: CUDA error: an illegal memory access was encountered"
    )
    assert ran == [7, 7]
    few["decode"] = works
    assert gpu() == 0
    assert ran == [7, 7, 1]  # what was done is not done again
    assert gpu("--stage", "tests", "--again") == 0
    assert ran == [7, 7, 1, 1]


def test_a_loss_that_is_not_reached_and_a_test_that_fails_are_told(scripts: dict[str, ModuleType]) -> None:
    found = {"reached_at_step": None, "best_loss": 1.5, "target": 1.4697, "steps": 5000, "seconds": 60.0}
    lines = scripts["gpu_table"].shakespeare_lines(found | {"tokens_per_second": 9, "compile_seconds": 30})
    assert "held-out loss 1.4697 not reached; best 1.5000" in lines
    broken = {"state": "failed", "error": "1 tests failed: tests.gpu::test_it", "dry": False}
    text = scripts["gpu_table"].table({"stages": {"tests": broken}})
    assert "tests: failed: 1 tests failed: tests.gpu::test_it" in text
    assert "decode: not run yet" in text


def test_a_report_of_pytest_is_read(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(
        """<testsuites><testsuite>
        <testcase classname="a" name="one"><system-out>noise
figure: memory of one: 5 MB</system-out></testcase>
        <testcase classname="a" name="two"><failure message="x"/></testcase>
        <testcase classname="b" name="three"><error message="x"/></testcase>
        <testcase classname="b" name="four"><skipped message="x"/></testcase>
        </testsuite></testsuites>"""
    )
    assert scripts["gpu_stages"].outcome_of_tests(tmp_path / "report.xml") == {
        "passed": 1,
        "failed": 2,
        "skipped": 1,
        "which_failed": ["a::two", "b::three"],
        "told": ["figure: memory of one: 5 MB"],
    }


def test_what_a_dry_run_found_is_nothing_to_a_real_one(scripts: dict[str, ModuleType]) -> None:
    results = {"stages": {"decode": {"state": "done", "dry": True}}}
    assert scripts["gpu"].is_done(results, "decode", dry=True)
    assert not scripts["gpu"].is_done(results, "decode", dry=False)
    assert not scripts["gpu"].is_done(results, "tests", dry=True)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os; os._exit(3)", "exit status 3"),
        ("import time; time.sleep(60)", "took more than 0.5 s"),
    ],
)
def test_a_stage_whose_process_dies_is_told_of(
    code: str,
    told: str,
    scripts: dict[str, ModuleType],
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(code)
    command = scripts["gpu"]
    monkeypatch.setattr(command, "__file__", str(script))
    monkeypatch.setattr(command, "MOST_SECONDS", 0.5 if "sleep" in code else 60)
    options = scripts["gpu_stages"].Options(scripts["gpu_stages"].FULL, 1, None, tmp_path)

    command.in_a_process_of_its_own("decode", file, [], options)

    assert (stages(file)["decode"]["state"], stages(file)["decode"]["error"]) == ("failed", told)


def test_without_a_gpu_it_says_so(
    scripts: dict[str, ModuleType],
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert scripts["gpu"].main(["--json", str(file)]) == 2
    assert capfd.readouterr().err == (
        "benchmarks/gpu.py: there is no CUDA device here; --dry runs every stage at tiny sizes on a CPU\n"
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("CLEARFORMER_DATA", str(file.parent))
    assert scripts["gpu"].main(["--json", str(file)]) == 2
    assert "lacks shakespeare/input.txt, gpt2-bpe/encoder.json" in capfd.readouterr().err
    assert not file.exists()


def test_what_is_not_installed_is_named_in_one_line() -> None:
    """And nothing else is needed: with the rest hidden, all that the stages import is imported."""
    hidden = (
        "babel",
        "num2words",
        "sacrebleu",
        "sklearn",
        "matplotlib",
        "typer",
        "rich",
        "gguf",
        "tensorboard",
    )
    code = f"""
import importlib.util, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
class Hidden:
    names = {{*{hidden!r}}}
    def find_spec(self, name, *_):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
import gpu
assert gpu.what_is_lacking(dry=True) is None
import clearformer.bench.generation, clearformer.bench.training, clearformer.evaluation, clearformer.presets
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *_: None if name in ("pydantic", "tomli_w") else found(name)
sys.exit(gpu.main(["--dry", "--json", "nowhere.json"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "benchmarks/gpu.py: not installed here: pydantic, tomli-w\n")
