"""A run's folder: settings, environment, metrics, tokenizer and checkpoints that somebody changed."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

from clearformer.training.store.checkpoint import (
    MANIFEST,
    MODEL,
    OPTIMIZER,
    STATE,
    describe,
    list_checkpoints,
    verify,
)
from clearformer.training.store.folder import RunFolder

from ..cases import Case, Violation
from ..mutations import draw_file_step, spoil_file
from ..oracle import Answer, call, contents, unchanged
from .trained import KINDS, copied, give_runs

HONEST = "with its manifest"
RESUMED = ("train.max_steps=4", "train.max_seconds=20", "train.sample_every=none")


class Runs:
    """Used by a command after its folder was changed.

    A base is a run's kind, a command, and whether the checkpoint's manifest is made to fit what was changed. A step is
    a file's name and what is done to it.
    """

    name = "runs"

    def prepare(self, originals: Path) -> None:
        """Train one run of each kind for three steps."""
        give_runs(originals)

    def draw(self, rng: random.Random, originals: Path) -> Case:
        """One or two changes of a run's files."""
        kind = rng.choice(list(KINDS))
        command = rng.choice(["resume", "resume", "eval", "use", "list", "export"])
        run = originals / "runs" / kind
        files = sorted(path for path in run.rglob("*") if path.is_file() and not path.parent.is_symlink())
        names = [str(path.relative_to(run)) for path in files]
        steps = []
        for _ in range(rng.choice([1, 1, 2])):
            file = "config.toml" if rng.random() < 0.4 else rng.choice(names)
            steps.append([file, *draw_file_step(rng, run / file)])
        honest = f" {HONEST}" if rng.random() < 0.5 else ""
        return Case(self.name, f"{kind}, {command}{honest}", tuple(steps))

    def run(self, case: Case, originals: Path, place: Path) -> None:
        """Change the folder, and call the command."""
        kind, _, rest = case.base.partition(", ")
        copied(originals, place, kind)
        folder = place / "runs" / kind
        for file, *step in case.steps:
            spoil_file(folder / file, step)
        if rest.endswith(HONEST):
            for checkpoint in (folder / "checkpoints").glob("step-*"):
                write_manifest(checkpoint)
        before = contents(folder)
        command = rest.removesuffix(f" {HONEST}")
        answer = call(*typed(command, kind, place))
        if answer.status != 0 or command != "resume":
            unchanged(before, folder)
        else:
            still_whole(folder, answer)


def typed(command: str, kind: str, place: Path) -> list[str]:
    """A command as typed."""
    use = {
        "text": ["generate", "text", "--max-new-tokens", "3"],
        "pairs": ["translate", "pairs", str(place / "line.txt"), "--max-new-tokens", "3"],
        "pets": ["classify", "pets", str(place / "line.txt")],
        "gaps": ["eval", "gaps", "--data", str(place / "text.txt")],
    }
    return {
        "resume": ["train", "--run", kind, "--resume", *RESUMED],
        "eval": ["eval", kind],
        "use": use[kind],
        "list": ["runs", "--json"],
        "export": ["export", kind, str(place / "exported")],
    }[command]


def write_manifest(checkpoint: Path) -> None:
    """Describe a checkpoint's files as they are."""
    described: dict[str, Any] = {name: describe(checkpoint / name) for name in (MODEL, OPTIMIZER, STATE)}
    (checkpoint / MANIFEST).write_text(json.dumps(described))


def still_whole(folder: Path, answer: Answer) -> None:
    """Check what a resumed run leaves.

    Raises:
        Violation: a line of metrics is none.
        ClearformerError: another file cannot be read.
    """
    RunFolder(folder).read_config()
    for path in list_checkpoints(folder / "checkpoints")[:1]:
        verify(path)
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        if not isinstance(json.loads(line), dict):
            raise Violation("a line of metrics.jsonl is no object")
    shutil.rmtree(folder)
