"""Runs by their names or folders: finding, listing and loading them."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from clearformer.errors import CheckpointError, RunError, did_you_mean
from clearformer.model import Decoder, build
from clearformer.text import Tokenizer
from clearformer.train.checkpoint import MODEL, best_step, list_checkpoints, step_of, verify
from clearformer.train.config import RunConfig
from clearformer.train.device import resolve_device
from clearformer.train.folder import RunFolder


@dataclass(frozen=True)
class Run:
    """A trained run, ready to use: the model in evaluation mode, its tokeniser and its configuration."""

    folder: RunFolder
    config: RunConfig
    model: Decoder
    tokenizer: Tokenizer
    step: int


def runs_folder() -> Path:
    """Where runs are kept: `$CLEARFORMER_RUNS`, else `runs` here."""
    return Path(os.environ.get("CLEARFORMER_RUNS") or "runs").expanduser()


def list_runs() -> list[RunFolder]:
    """The runs in the runs' folder, by name."""
    return [RunFolder(path.parent) for path in sorted(runs_folder().glob("*/config.toml"))]


def find_run(name_or_path: str | Path) -> RunFolder:
    """The folder of a run given by its name or by a path.

    Raises:
        RunError: there is no such run (with the nearest name).
    """
    for path in (runs_folder() / name_or_path, Path(name_or_path)):
        if str(name_or_path) and (path / "config.toml").is_file():
            return RunFolder(path)
    names = [folder.path.name for folder in list_runs()]
    hint = did_you_mean(str(name_or_path), names) or (f"; there are {', '.join(names[:8])}" if names else "")
    raise RunError(
        f"there is no run {str(name_or_path)!r}: no config.toml in {runs_folder() / name_or_path}{hint}"
    )


def new_run(name: str) -> RunFolder:
    """The folder for a new run.

    Raises:
        RunError: the name is no plain name, or is taken.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{,99}", name):
        raise RunError(f"--run: {name!r} is no name for a run; use letters, digits, '.', '_' and '-'")
    path = runs_folder() / name
    if path.exists():
        raise RunError(
            f"--run: {path} exists; go on with it by --resume, choose another name, or delete the folder"
        )
    return RunFolder(path)


def free_name(stem: str) -> str:
    """A name for a new run: `stem` in the letters a name may have, or `stem-2`, `stem-3` ... where it is taken."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem)[:80].strip("-")
    number, name = 1, stem
    while (runs_folder() / name).exists():
        number += 1
        name = f"{stem}-{number}"
    return name


def load(name_or_path: str | Path, checkpoint: str = "latest", device: str = "auto") -> Run:
    """A run's model, tokeniser and configuration.

    Args:
        name_or_path: A name under the runs' folder, or a path to a run's folder.
        checkpoint: `latest` (the newest), `best` (the lowest held-out loss) or a step's number.
        device: `auto`, `cpu`, `cuda` or `mps`.

    Raises:
        RunError: there is no such run or checkpoint.
        CheckpointError: the checkpoint is damaged.
    """
    folder = find_run(name_or_path)
    config, tokenizer = folder.read_config(), folder.read_tokenizer()
    path = find_checkpoint(folder, checkpoint)
    verify(path)
    where = resolve_device(device)
    model = build(config.model)
    try:
        model.load_state_dict(load_file(path / MODEL))
    except (RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{path / MODEL} does not fit {folder.config_file}: {error}") from None
    return Run(folder, config, model.to(where).eval(), tokenizer, step_of(path))


def find_checkpoint(folder: RunFolder, which: str) -> Path:
    """The folder of a checkpoint: `latest`, `best`, or a step's number.

    Raises:
        RunError: the run has no such checkpoint.
        CheckpointError: which one is the best stands in a damaged one.
    """
    steps = {step_of(path): path for path in list_checkpoints(folder.checkpoints)}
    if not steps:
        raise RunError(f"{folder.path} has no checkpoint yet; train it with --resume")
    if which == "latest":
        return steps[max(steps)]
    if which == "best":
        best = best_step(folder.checkpoints)
        if best not in steps:
            raise RunError(f"--checkpoint: no checkpoint of {folder.path} was evaluated; take latest")
        return steps[best]
    if which.isdecimal() and int(which) in steps:
        return steps[int(which)]
    raise RunError(
        f"--checkpoint: {folder.path} has no checkpoint {which!r}; there are latest, best and the steps "
        f"{', '.join(str(step) for step in sorted(steps))}"
    )
