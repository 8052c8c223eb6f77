"""A run's training, opened again: its task, its checkpoints with optimizer state, and which window was seen when."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped

from clearformer.decoding.arguments import check_run, check_whole
from clearformer.decoding.text.samples import Run
from clearformer.device import RANDOM_NUMBERS, kept_random_state
from clearformer.errors import CheckpointError, RunError, UserError, shown
from clearformer.runs.replay import trained_task
from clearformer.training.config import RunConfig
from clearformer.training.step import lr_factor_after
from clearformer.training.store.checkpoint import (
    Progress,
    list_checkpoints,
    load_checkpoint,
    step_folder,
    step_of,
)
from clearformer.training.store.folder import LrFactors, RunFolder
from clearformer.training.store.state import TrainState
from clearformer.training.tasks import Task

Seen = tuple[int, int]
"""A step, from 0, and a row of its batch."""


@dataclass(frozen=True)
class Reopened:
    """A run's training up to the opened checkpoint.

    Attributes:
        folder: The run's directory, which is only read.
        config: The run's configuration.
        task: Its data and loss.
        step: The number of steps taken.
        device: The device of the opened model.
    """

    folder: RunFolder
    config: RunConfig
    task: Task
    step: int
    device: torch.device

    @property
    def kept(self) -> list[int]:
        """The steps of the kept checkpoints up to the opened one, earliest first."""
        steps = map(step_of, list_checkpoints(self.folder.checkpoints))
        return sorted(step for step in steps if step <= self.step)

    def checkpoint_folder(self, step: int) -> Path:
        """Return the directory of a checkpoint."""
        return step_folder(self.folder.checkpoints, step)

    def moment(self, step: int) -> "Moment":
        """Return the training state at one of the checkpoints.

        Raises:
            CheckpointError: it is damaged, or from another model.
            RunError: it has no optimizer state.
        """
        checkpoint = load_checkpoint(self.checkpoint_folder(step))
        if not checkpoint.optimizer:
            raise RunError(
                f"{self.checkpoint_folder(step)}: has no optimizer state: training did not write it (train the run "
                "here), or its optimizer keeps none"
            )
        with RANDOM_NUMBERS, kept_random_state():  # building draws random weights, which are then overwritten
            state = TrainState.build(self.config, self.device)
        try:
            state.load(checkpoint)
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(
                f"{self.checkpoint_folder(step)} does not fit config.toml: {error}"
            ) from None
        return Moment(self.config, state, checkpoint.progress, LrFactors.read(self.folder.lr_factors_file))

    def windows_seen(self, first: int, last: int) -> "WindowsSeen":
        """Return the training windows of the steps from `first` up to, but not including, `last`."""
        ids = [self.task.example_ids(step) for step in range(first, last)]
        nothing = np.zeros(0, np.int64)  # before the first step
        steps = np.concatenate([nothing, *(np.full(len(each), first + i) for i, each in enumerate(ids))])
        rows = np.concatenate([nothing, *(np.arange(len(each)) for each in ids)])
        return WindowsSeen(np.concatenate([nothing, *ids]), steps, rows)


@dataclass(frozen=True)
class Moment:
    """The training at a checkpoint: the weights that gradients are taken of, the optimizers, and the progress.

    Attributes:
        config: The run's configuration.
        state: The weights, and the optimizers with their state.
        progress: How far the training was.
        lr_factors: The recorded factor of the learning rates of each step; NaN for one that is not known.
    """

    config: RunConfig
    state: TrainState
    progress: Progress
    lr_factors: Shaped[np.ndarray, " steps"]

    def lr_factor(self, step: int) -> float:
        """Return the factor of the learning rates at a step, counted from 0.

        If it was not recorded and followed the clock, all steps up to the checkpoint are assumed to be equally long.
        """
        if step < len(self.lr_factors) and np.isfinite(self.lr_factors[step]):
            return float(self.lr_factors[step])
        part, now = step / max(1, self.progress.step), self.progress
        then = replace(
            now,
            step=step,
            seconds=now.seconds * part,
            wall_seconds=now.wall_before + (now.wall_seconds - now.wall_before) * part,
        )
        return lr_factor_after(self.config.train, then)


@dataclass(frozen=True)
class WindowsSeen:
    """The training window in each row of some steps: three arrays of one length."""

    ids: np.ndarray
    steps: np.ndarray
    rows: np.ndarray

    def distinct(self) -> np.ndarray:
        """Return the ids of the windows without repetition."""
        return np.unique(self.ids)

    def of(self, wanted: Iterable[int]) -> dict[int, list[Seen]]:
        """Return the steps and rows in which each of some windows was seen."""
        ids = np.array(list(wanted), np.int64)
        here = np.flatnonzero(np.isin(self.ids, ids))
        found: dict[int, list[Seen]] = {int(each): [] for each in ids}
        for i in here.tolist():
            found[int(self.ids[i])].append((int(self.steps[i]), int(self.rows[i])))
        return found


def reopen(run: Run) -> Reopened:
    """Open a run's training again.

    Raises:
        RunError: the run has no directory, or was imported.
        DataError: its data cannot be read, or have changed.
        UserError: its objective does not say which window a row of a batch is, or its weights are a mean of several
            checkpoints.
    """
    task = task_of(run)
    if getattr(run, "average", 1) > 1:
        raise UserError(
            "run: its weights are the mean of several checkpoints, which the training never had; open a single one, "
            "without an average"
        )
    folder, step = run.folder, run.step  # type: ignore[attr-defined]
    task.example_ids(0)  # raises for an objective that does not say
    return Reopened(folder, task.config, task, step, run.model.embed.weight.device)


def task_of(run: Run) -> Task:
    """Return the task of a run, with the data that it was trained on.

    Raises:
        RunError: the run has no directory, or was imported.
        DataError: its data cannot be read, or have changed.
    """
    check_run(run, "folder")
    return trained_task(run.folder, run.tokenizer)  # type: ignore[attr-defined]


def check_steps(opened: Reopened, steps: Sequence[int] | None) -> tuple[int, int]:
    """Return the first wanted step and the one after the last.

    Raises:
        UserError: the run has no such steps.
    """
    if steps is None:
        return 0, opened.step
    try:
        first, last = map(operator.index, steps)
    except (TypeError, ValueError):
        raise UserError(
            f"steps: give the first step and the one after the last; got {shown(steps)}"
        ) from None
    if not 0 <= first < last <= opened.step:
        raise UserError(f"steps: this run took the steps 0 to {opened.step - 1}; got {first} to {last}")
    return first, last


def check_checkpoints(opened: Reopened, steps: Iterable[int] | None) -> list[int]:
    """Return the wanted checkpoints, by default all that are kept.

    Raises:
        RunError: one of them is not kept.
        UserError: they are no list of steps.
    """
    kept = opened.kept
    if not kept:
        raise RunError(
            f"checkpoints: {opened.folder.path} keeps none with optimizer state up to step {opened.step}; open "
            "it at a later step"
        )
    wanted = kept if steps is None else sorted(set(whole_steps(steps)))
    if absent := [step for step in wanted if step not in kept] or ([] if wanted else ["none"]):
        raise RunError(
            f"checkpoints: {opened.folder.path} keeps {', '.join(map(str, kept))} up to step {opened.step}, but not "
            f"{shown(absent[0])}; train.keep_last sets how many are kept"
        )
    return wanted


def whole_steps(steps: Any) -> list[int]:
    """Return the steps of some checkpoints as a list.

    Raises:
        UserError: they are something else.
    """
    if not isinstance(steps, Iterable):
        raise UserError(f"checkpoints: give a list of steps; got {shown(steps)}")
    found = list(steps)
    for each in found:
        check_whole("checkpoints", each)
    return [int(each) for each in found]
