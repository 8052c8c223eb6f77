"""Replaying a run's training bit for bit, to get its weights after any step.

Training's own code repeats the steps, from the nearest earlier checkpoint or from the first weights. It takes the
recorded learning rates (lr_factors.f64), which may have depended on the clock, and the recorded numbers of threads
(threads.u16), which may have depended on the machine's load. The run's folder is only read. The weights come out the
same to the bit on the machine that trained the run.
"""

import logging
import math
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from clearformer.decoding.arguments import OnStep, check_function
from clearformer.device import RANDOM_NUMBERS, kept_random_state, resolve_device
from clearformer.errors import CheckpointError, RunError, UserError
from clearformer.model import build_undrawn
from clearformer.runs.folders import Loaded, checked_step, read_run
from clearformer.runs.kept_weights import find_kept, kept_steps, listed, verified_weights
from clearformer.text import Tokenizer
from clearformer.threads import ThreadsOfThen
from clearformer.training.config import RunConfig
from clearformer.training.loop import Training
from clearformer.training.optim.schedules import lr_factor
from clearformer.training.processes.distributed import Processes
from clearformer.training.reporting.report import Reporter
from clearformer.training.setup import torch_as_usual
from clearformer.training.step import lr_factor_after
from clearformer.training.store.checkpoint import (
    Progress,
    list_checkpoints,
    load_checkpoint,
    step_folder,
    step_of,
)
from clearformer.training.store.folder import LrFactors, RunFolder, ThreadCounts, read_metrics
from clearformer.training.store.state import are_equal, weights_of
from clearformer.training.tasks import Task, make_task

SAME_RATE = 1e-9
SAME_RATE_AT_ZERO = 1e-12  # times the peak rate; next to the rate 0, no relative difference is small

logger = logging.getLogger(__name__)


# --- the weights after a step -----------------------------------------------------------------------------


def replay_run(
    folder: RunFolder, step: int, device: str | torch.device = "auto", on_step: OnStep = lambda *_: None
) -> Loaded:
    """Return the run as it was after a step; arguments and errors are those of `run.replay`."""
    step = checked_step(step)
    check_function("on_step", on_step)
    check_took(folder, step)
    if find_kept(folder, step) is not None:
        return read_run(folder.path, step, device)
    config = folder.read_config()
    tokenizer = folder.read_tokenizer(config.model.vocab_size)
    where = resolve_device(device, key="device")
    model = build_undrawn(config.model)
    model.load_state_dict(replayed_weights(folder, config, trained_task(folder, tokenizer), step, on_step))
    return Loaded(folder, config, model.to(where).eval(), tokenizer, step)


def replayed_weights(
    folder: RunFolder, config: RunConfig, task: Task, step: int, on_step: OnStep
) -> dict[str, Tensor]:
    """Return the weights after a step by repeating the training up to it, and on to the next step on disk.

    Raises:
        RunError: the weights of a step that is on disk did not come out the same.
    """
    kept = kept_steps(folder)
    last = next((each for each in kept if each >= step), step)
    with made_again(folder, config, task, step, last) as training:
        start = training.progress.step
        weights = weights_of(training.weights_to_use, copy=True)
        while (now := training.progress.step) < last:
            training.step()
            now += 1
            if now in kept:
                check_same(folder, now, training, start)
            if now == step:
                weights = weights_of(training.weights_to_use, copy=True)
            on_step(now - start, last - start)
    return weights


def check_took(folder: RunFolder, step: int, name: str = "step") -> None:
    """Raise UserError if a run has not taken this many steps; `name` is that of the argument at fault."""
    lines = read_metrics(folder.metrics_file)
    taken = max(
        [0, len(LrFactors.read(folder.lr_factors_file)), *kept_steps(folder)]
        + [line["step"] for line in lines]
    )
    if step > taken:
        folder.read_config()  # names a folder that has been deleted or moved
        raise UserError(f"{name}: {folder.path} has taken {taken} steps so far; got {step}")


def check_same(folder: RunFolder, step: int, training: Training, start: int) -> None:
    """Raise RunError if the replayed weights differ from those on disk; skipped if those are gone or damaged."""
    kept = find_kept(folder, step)
    try:
        theirs = None if kept is None else verified_weights(kept)
    except CheckpointError as error:
        theirs = None  # a run in progress may delete it meanwhile
        if kept is not None and kept.is_dir():
            logger.warning("%s; skipping the comparison with it", error)
    if theirs is not None and not are_equal(theirs, weights_of(training.weights_to_use)):
        raise RunError(
            f"{folder.path}: replayed from step {start}, its weights after step {step} differ from those on disk; "
            "replay it on the machine that trained it, with as many threads (see env.json) and one process"
        )


# --- the training made again ------------------------------------------------------------------------------


def trained_task(folder: RunFolder, tokenizer: Tokenizer) -> Task:
    """Return the task of a run that was trained in its folder, with the data that it was trained on.

    Raises:
        RunError: the run was imported or saved from Python.
        DataError: its data cannot be read, or have changed.
    """
    try:
        folder.trained_on()
    except RunError:
        raise RunError(
            f"{folder.path}: imported or saved from Python, so its training data are unknown; open a run that was "
            "trained here"
        ) from None
    task = make_task(folder.read_config(), tokenizer, lambda *_: None)
    folder.check_same_data(task.data_sha256, n_tokens=task.n_train_tokens)
    return task


@contextmanager
def made_again(folder: RunFolder, config: RunConfig, task: Task, first: int, last: int) -> Iterator[Training]:
    """Yield a run's training, set to its nearest checkpoint up to step `first`, or to its first weights.

    Its next steps, up to `last`, take the recorded learning rates and threads. Between them the random state is the
    process's own: another thread may train or draw random numbers meanwhile.

    Raises:
        RunError: the learning rates are not known, or several processes trained the run.
        CheckpointError: a checkpoint is of another model.
    """
    check_one_process(folder)
    device = resolve_device(config.train.device)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        stack.enter_context(torch_as_usual(device))
        with drawing_apart():
            training = Training(config, RunFolder(Path(scratch)), task, device, Processes(), Reporter())
        training.threads = ThreadsOfThen(ThreadCounts.read(folder.threads_file))
        stack.enter_context(training.kernels())
        stack.enter_context(training.threads)
        with drawing_apart():
            begin_at(training, folder, first)
        rates = RatesOfThen(folder, config)
        rates.check_known(training.progress.step, last)
        train_step = training.train_step
        train_step.lr_factor = rates.factor
        with drawing_apart():
            train_step.prepare(Reporter(), config.train.compile is True)
        train_step.gradients = drawing_apart()(train_step.gradients)
        yield training


@contextmanager
def drawing_apart() -> Iterator[None]:
    """Seed and draw random numbers in the `with` block without effect on those of the process."""
    with RANDOM_NUMBERS, kept_random_state():
        yield


def check_one_process(folder: RunFolder) -> None:
    """Raise RunError if several processes trained a run, as each draws dropout of its own for its part of a batch."""
    if (count := folder.n_processes()) > 1:
        raise RunError(
            f"{folder.path}: {count} processes trained it, and one cannot repeat their steps to the bit; "
            f"only the steps it keeps can be opened: {listed(kept_steps(folder))}"
        )


def begin_at(training: Training, folder: RunFolder, first: int) -> None:
    """Set a training to its run's nearest whole checkpoint up to step `first`, or to its first weights."""
    for path in list_checkpoints(folder.checkpoints):
        if step_of(path) > first:
            continue
        try:
            checkpoint = load_checkpoint(path)
        except CheckpointError as error:
            if path.is_dir():  # otherwise the run, still in progress, has deleted it
                logger.warning("%s; trying an earlier one", error)
            continue
        try:
            training.state.load(checkpoint)
        except (KeyError, IndexError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{path} does not fit {folder.config_file}: {error}") from None
        training.progress = checkpoint.progress
        return
    begin_anew(training, folder)


def begin_anew(training: Training, folder: RunFolder) -> None:
    """Set a training to its run's first weights: those on disk, or the same ones drawn again."""
    kept = step_folder(folder.snapshots, 0)
    try:
        weights = verified_weights(kept)
    except CheckpointError as error:
        if kept.is_dir():
            logger.warning("%s; drawing the first weights again", error)
        training.set_first_weights(folder.pretrained())
        return
    try:
        training.model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"{kept} does not fit {folder.config_file}: {error}") from None
    training.state.restart_average()


class RatesOfThen:
    """The learning rates that a run had at each step.

    Each step's factor is on record. In runs from before factors were recorded, they follow from the settings, unless
    they depended on the clock or the run was resumed with another length.
    """

    def __init__(self, folder: RunFolder, config: RunConfig) -> None:
        self.folder, self.train = folder, config.train
        self.recorded = LrFactors.read(folder.lr_factors_file)
        lines = read_metrics(folder.metrics_file)
        self.logged = {line["step"]: line["lr"] for line in lines if "lr" in line}

    def factor(self, progress: Progress) -> float:
        """Return the factor of the step after `progress`.

        Raises:
            RunError: it contradicts metrics.jsonl.
        """
        step = progress.step
        is_recorded = self.is_recorded(step)
        factor = float(self.recorded[step]) if is_recorded else lr_factor_after(self.train, progress)
        rate = self.train.lr * factor
        was = self.logged.get(step + 1, rate)
        if math.isclose(was, rate, rel_tol=SAME_RATE, abs_tol=SAME_RATE_AT_ZERO * self.train.lr):
            return factor
        if is_recorded:
            raise RunError(
                f"{self.folder.lr_factors_file}: damaged: it has {rate:g} as the learning rate of step {step + 1}, "
                f"but {self.folder.metrics_file.name} has {was:g}"
            )
        raise RunError(
            f"step {step + 1}: the run's learning rate was {was:g}, but its settings give {rate:g}: it was resumed "
            "with another length, so it cannot be replayed; train it in one go"
        )

    def is_recorded(self, step: int) -> bool:
        """Whether the factor of a step, counted from 0, is on record."""
        return step < len(self.recorded) and math.isfinite(self.recorded[step])

    def check_known(self, first: int, last: int) -> None:
        """Raise RunError if rates from step `first` up to `last` depended on the clock and are not on record."""
        warmup = self.train.warmup_steps
        limits = {name: getattr(self.train, name) for name in ("max_seconds", "max_wall_seconds")}
        limits = {f"train.{name}": limit for name, limit in limits.items() if limit is not None}
        begin, end = (lr_factor(self.train.schedule, warmup, warmup, done) for done in (0.0, 1.0))
        if not limits or begin == end or all(map(self.is_recorded, range(first, last))):
            return
        given = " ".join(f"{name}={limit:g}" for name, limit in limits.items())
        without = " ".join(f"{name}=none" for name in limits)
        raise RunError(
            f"{self.folder.path}: its learning rate followed the clock ({given}), and "
            f"{self.folder.lr_factors_file.name} does not have it for all steps, so it cannot be replayed exactly; "
            f"train it with {without} train.max_steps={last}"
        )
