"""Models, training, writing and measuring on a device that is not the CPU, without a GPU: tests/gpu/other_device.py.

In a process of its own: the device is made known to torch for good.
"""

import os
import re
import subprocess
from pathlib import Path

from ..forks import ForkServer

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


def test_what_runs_on_another_device_finds_what_it_does_on_a_cpu(forks: ForkServer) -> None:
    found = run_there(forks, "-k", " or ".join(f"({each})" for each in SOME))
    passed = re.search(r"^(\d+) passed, \d+ deselected in", found.stdout, re.MULTILINE)
    assert passed, found.stdout
    assert int(passed[1]) >= 30


MIXED = """
import torch
import pytest
from other_device import other_device

def test_mixed():
    with other_device() as device:
        here, there = torch.ones(3), torch.ones(3, device=device)
        assert (there + torch.tensor(2.0)).tolist() == [3, 3, 3]
        assert there.device.type == "other"
        for mix in (
            lambda: here + there,
            lambda: here[there.long()],
            lambda: torch.zeros(()).add_(there.sum()),
            lambda: torch.cat([there, here]),
            lambda: torch.nn.functional.linear(there, torch.ones(2, 3)),
        ):
            with pytest.raises(RuntimeError, match="tensors on two devices"):
                mix()
        for read in (there.numpy, lambda: torch.ones(3, device=device, requires_grad=True).detach().numpy()):
            with pytest.raises(TypeError, match="numpy cannot read"):
                read()
        assert there.cpu().numpy().tolist() == [1, 1, 1]
"""


def test_that_device_refuses_what_a_gpu_does(forks: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "test_mixed.py").write_text(MIXED)
    run_there(forks, "--rootdir", str(tmp_path), "-c", os.devnull, folder=tmp_path)


PYTEST = """
import sys
folder, *arguments = sys.argv[1:]
sys.path.insert(0, folder)
import pytest
sys.exit(pytest.main(arguments))
"""


def run_there(forks: ForkServer, *options: str, folder: Path = HERE) -> "subprocess.CompletedProcess[str]":
    """Tests on that device; they must pass."""
    options = ("-q", "-p", "other_device", "-p", "no:cacheprovider", f"--confcutdir={folder}", *options)
    done = forks.run(str(HERE), *options, str(folder), script=PYTEST)
    assert done.returncode == 0, done.stdout + done.stderr
    return done
