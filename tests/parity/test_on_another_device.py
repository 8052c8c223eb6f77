"""Models, training, writing and measuring on a device that is not the CPU, without a GPU: tests/gpu/other_device.py.

In a process of its own: the device is made known to torch for good.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1] / "gpu"
SOME = (
    "computes_what and encoder-decoder and padded and (multihead or linear or dot)",
    "padding_that_may and heads-alibi",
    "fused_kernel and heads-rope",
    "run_with_cache and multihead",
    "takes_effect",
    "compiler_s_forms",
    "dropout_drops",
    "large_vocabulary",
    "every_task",
    "goes_on_on_a_cpu",
    "loss_in_chunks",
    "classes_are_those",
    "writes_what_a_cpu and greedy-learned",
    "beam_search and never",
    "a_text_s_loss",
)
"""Of the tests that need a GPU those that find out, in little time, what is made on the wrong device."""


REFUSES = "test_other_device.py::test_it_refuses_what_a_gpu_does"


def test_what_runs_on_another_device_finds_what_it_does_on_a_cpu() -> None:
    """And the device is one, on which what mixes it with the CPU fails."""
    found = run_there("-v", "-k", " or ".join(f"({each})" for each in (*SOME, "refuses_what_a_gpu_does")))
    passed = re.search(r"^=* ?(\d+) passed, \d+ deselected in", found.stdout, re.MULTILINE)
    assert passed, found.stdout
    assert int(passed[1]) >= 31
    assert re.search(rf"{REFUSES} PASSED", found.stdout), found.stdout


def run_there(*options: str) -> "subprocess.CompletedProcess[str]":
    """Tests on that device; they must pass."""
    paths = [str(HERE), *(path for path in sys.path if path)]
    pytest = [sys.executable, "-m", "pytest", "-p", "other_device", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*pytest, f"--confcutdir={HERE}", str(HERE), *options],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done
