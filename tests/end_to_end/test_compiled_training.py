"""Compiled steps of training are those of the plain ones, run after run in one process.

In a process of its own: torch's compiler traces no function whose shapes are checked as the tests check them.
"""

from pathlib import Path

from ..forks import ForkServer

SCRIPT = """
import sys
from pathlib import Path

import torch
from clearformer.resolving import resolve_run
from clearformer.training.store.folder import RunFolder
from clearformer.training.loop import train
from clearformer.training.reporting.report import Reporter

folder = Path(sys.argv[1])
(folder / "text.txt").write_text("the cat sat on the mat. " * 50)
whole = torch.compile
def traced(function, dynamic, options, **settings):  # C++ takes its time: only the tracing and the guards
    granted = {name: options[name] for name in options if name == "guard_filter_fn"}
    return whole(function, dynamic=dynamic, backend="aot_eager", options=granted, **settings)
torch.compile = traced

class Told(Reporter):
    def say(self, line):
        print(name, line.split(" in ")[0])

def weights_after(*settings):
    given = ["nanogpt-cpu", f"data.path={folder / 'text.txt'}", "data.name=none", "model.max_seq_len=8",
             "model.attention.n_heads=2", "train.batch_size=3", "train.max_steps=4", "train.warmup_steps=1",
             "train.dtype=float32", *settings]
    kept = RunFolder(folder / name)
    return train(resolve_run(given, None), kept, Told()).model.state_dict()

for shape, settings in {
    "small": ["model.d_model=8", "model.n_layers=1"],
    "deeper": ["model.d_model=8", "model.n_layers=2"],  # the same but for what the guards leave out
    "dropout": ["model.d_model=8", "model.n_layers=1", "model.dropout=0.5"],
    "r_drop": ["model.d_model=8", "model.n_layers=1", "model.dropout=0.5", "train.r_drop=5"],
    "relu": ["model.d_model=8", "model.n_layers=1", "model.ffn=relu", "train.optimizer=muon"],
}.items():
    name = f"{shape} compiled"
    compiled = weights_after("train.compile=true", *settings)
    name = f"{shape} plain"
    plain = weights_after("train.compile=false", *settings)
    near = all(torch.allclose(compiled[key], plain[key], rtol=0, atol=1e-4) for key in plain)
    print(shape, len(plain), "same" if near and len(compiled) == len(plain) else "DIFFERENT")
"""


def test_compiled_steps_are_the_plain_ones(forks: ForkServer, tmp_path: Path) -> None:
    done = forks.run(str(tmp_path), script=SCRIPT)

    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    results = [line.split() for line in told if line.endswith(("same", "DIFFERENT"))]
    assert [(shape, same) for shape, _, same in results] == [
        ("small", "same"),
        ("deeper", "same"),
        ("dropout", "same"),
        ("r_drop", "same"),
        ("relu", "same"),
    ]
    assert int(results[1][1]) > int(results[0][1])  # more layers, more weights
    assert sum("compiled compiled" in line for line in told) == 5
    assert not any("failed" in line for line in told)
