"""Training, from a configuration to a trained model in its run's folder.

`train` is the table of contents; a `Training` holds what changes from step to step.

A step is a pure function of the weights, the optimisers' state, the seed and its own number: the batch and the
dropout of step s are drawn from (seed, s). So what a checkpoint holds is all that is needed to go on exactly.
"""

import copy
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from clearformer.device import (
    autocast,
    keep_freed_memory,
    make_deterministic,
    memory_errors,
    resolve_device,
    seed_kernels,
    synchronize,
)
from clearformer.errors import CheckpointError, ClearformerError, DiskError, Interrupted, NonFiniteError
from clearformer.model import Transformer, build
from clearformer.model.fast.compiling import compile_step
from clearformer.training.config import RunConfig, TrainConfig
from clearformer.training.interrupts import Interrupts
from clearformer.training.nonfinite import first_nonfinite_module, weights_are_finite
from clearformer.training.processes import Processes
from clearformer.training.report import Reporter
from clearformer.training.schedules import lr_factor
from clearformer.training.setup import open_task, resumed_config
from clearformer.training.store.async_checkpoint import CheckpointWriter
from clearformer.training.store.checkpoint import (
    Checkpoint,
    Progress,
    link,
    list_checkpoints,
    load_checkpoint,
    newest_whole,
    prune,
    save_checkpoint,
    step_folder,
    step_of,
)
from clearformer.training.store.folder import Metrics, RunFolder
from clearformer.training.store.lock import one_writer
from clearformer.training.store.pretrained import load_pretrained, pretrained_tokenizer
from clearformer.training.store.state import (
    load_optimizer_tensors,
    load_raw_weights,
    move_average,
    optimizer_tensors,
    raw_weights_of,
    weights_of,
)
from clearformer.training.tasks import EvaluationResult, Task, make_task
from clearformer.training.tasks.reports import TrainingReport
from clearformer.training.tensorboard import open_tensorboard, write_scalars, writer_type

LESS_MEMORY = (
    "raise train.grad_accum_steps: the same step in more parts, each of which needs less memory (see "
    "`clearformer plan`)"
)
logger = logging.getLogger(__name__)

FORWARD_PASSES_IN_A_STEP = 3  # by FLOPs: one forward, and a backward pass of two


@dataclass(frozen=True)
class TrainResult:
    """The result of a run: the model to use, its evaluation on the held-out data, and where it stands."""

    model: Transformer
    task: Task
    progress: Progress
    evaluation: EvaluationResult | None

    def report(self, run: str, preset: str | None) -> TrainingReport:
        """The values that a report shows of the run.

        Args:
            run: The run's name, as one types it in a shell.
            preset: The preset by which it began; None where that is not known.
        """
        return TrainingReport(
            () if self.evaluation is None else self.task.figures(self.evaluation),
            self.task.final_sample(self.model),
            self.task.next_commands(run, preset),
        )


def train(config: RunConfig, folder: RunFolder, reporter: Reporter, resume: bool = False) -> TrainResult:
    """Train a model as `config` says, keeping everything in `folder`.

    Args:
        config: The run's configuration; when resuming, that of the run's folder but for what may change.
        folder: Where the run is kept. A new run begins the folder; a resumed one goes on from its newest whole
            checkpoint, and from the start where it has none. This process alone writes to it until the run ends.
        reporter: Told of everything on the way.
        resume: Whether the folder's run goes on.

    Raises:
        Interrupted: SIGINT, SIGTERM or SIGHUP came; the step was finished and saved.
        RunInUseError: another process trains the run.
        RunError: a run is to begin where there is one.
        NonFiniteError: a loss or gradient was not finite; the state before it was saved.
        DiskError: the folder cannot be written; earlier checkpoints are whole.
        CheckpointError: all checkpoints are damaged.
        DeviceError: the device's memory is full; earlier checkpoints are whole.
        DataError, ConfigError: the text and the configuration do not go together, or the run is another one.
    """
    device = resolve_device(config.train.device)
    processes = Processes.join(device)
    if config.train.tensorboard:
        writer_type()  # what would fail later fails now
    with one_writer(folder.path) if processes.is_main else nullcontext() as hold:
        if resume:
            config = resumed_config(folder.read_config(), config)
            task = make_task(config, folder.read_tokenizer(), reporter.preparing)
            folder.check_same_data(task.data_sha256)
        else:
            folder.check_no_run()
            tokenizer = pretrained_tokenizer(config)
            task, config = open_task(config, device, processes, tokenizer, reporter.preparing)
        training = Training(config, folder, task, device, processes, reporter)
        if resume:
            training.restore()
            if processes.is_main:
                folder.change_config(config)
        else:
            training.begin()
        with Interrupts() as interrupts, memory_errors(LESS_MEMORY):
            training.run(interrupts, hold.check if hold else None)
    return TrainResult(training.weights_to_use, task, training.progress, training.evaluation)


class Training:
    """A run under way."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        task: Task,
        device: torch.device,
        processes: Processes,
        reporter: Reporter,
    ) -> None:
        self.config, self.folder, self.task = config, folder, task
        self.device, self.processes = device, processes
        self.reporter = reporter if processes.is_main else Reporter()
        self.n_parts = processes.count * config.train.grad_accum_steps
        task.check_divides(self.n_parts)
        task.check_measurable()
        torch.manual_seed(config.seed)
        self.model = build(config.model).to(device)
        self.average = copy.deepcopy(self.model).eval() if config.train.ema else None
        self.parameters = list(self.model.parameters())  # the walk through the modules takes 0.2 ms
        self.optimizers = config.train.optimizer.build(self.model, config.train.lr)
        self.progress = Progress()
        self.evaluation: EvaluationResult | None = None
        self.metrics: Metrics | None = None  # opened by `run`, in the process that writes
        self.interrupts = Interrupts()
        self.signal_of_all = 0  # that any of several processes had received when the step ended
        self.writer = CheckpointWriter()
        self.compute_loss: Callable[..., Tensor] = self.loss_of_batch

    @property
    def settings(self) -> TrainConfig:
        return self.config.train

    @property
    def weights_to_use(self) -> Transformer:
        """The model that is evaluated and kept: the moving average, where there is one."""
        return self.model if self.average is None else self.average

    def begin(self) -> None:
        """Make the folder of a new run, its first weights set."""
        self.set_first_weights()
        if self.processes.is_main:
            self.folder.create(self.config, self.task.tokenizer, self.task.data_sha256)

    def set_first_weights(self) -> None:
        """Take the weights of an earlier run, where this one begins with them."""
        if self.settings.pretrained is not None:
            load_pretrained(self.model, Path(self.settings.pretrained), self.reporter)
            if self.average is not None:
                self.average.load_state_dict(self.model.state_dict())

    # --- the course of a run --------------------------------------------------------------------------------

    def run(self, interrupts: Interrupts, check_hold: Callable[[], None] | None = None) -> None:
        """Step after step until the run's end, with all that happens between.

        Args:
            interrupts: What signals have come.
            check_hold: Called after each step; raises where another process has taken the run over.
        """
        self.interrupts = interrupts
        with ExitStack() as at_the_end:
            at_the_end.enter_context(self.writer)
            if self.settings.deterministic:
                at_the_end.callback(make_deterministic(self.device))
            if self.processes.is_main:
                self.metrics = Metrics(self.folder.metrics_file, self.progress.step)
            board = None
            if self.settings.tensorboard and self.processes.is_main:
                board = open_tensorboard(self.folder, self.progress.step)
                at_the_end.callback(board.close)
            self.prepare_steps()
            at_the_end.callback(self.reporter.end)
            self.reporter.begin(self.config, self.progress)
            window = self.progress
            while not self.finished():
                loss, norm, lr = self.step()
                line: dict[str, Any] = {}
                if self.due(self.settings.log_every):
                    line = self.describe_step(loss, norm, lr, since=window)
                    window = self.progress
                if check_hold:
                    check_hold()
                if self.due(self.settings.eval_every) or self.due(self.settings.checkpoint_every):
                    line = line or self.describe_step(loss, norm, lr, since=window)
                    with self.kept_if_it_fails(line):
                        line |= self.evaluate()
                if line and self.metrics:
                    self.metrics.append(line)
                if line and board:
                    write_scalars(board, line)
                self.reporter.stepped(self.progress, line)
                if self.settings.sample_every and self.progress.step % self.settings.sample_every == 0:
                    with self.kept_if_it_fails():
                        self.reporter.sampled(self.task.sample(self.weights_to_use))
                stop = self.signal_to_end()
                if stop or self.due(self.settings.checkpoint_every):
                    self.save()
                if stop:
                    self.raise_interrupted(stop)
                self.writer.check()
            self.evaluate_if_stale()

    def signal_to_end(self) -> int:
        """The signal by which the run ends now, 0 for none: in several processes one that all know of."""
        return self.signal_of_all if self.processes.count > 1 else self.interrupts.received or 0

    def raise_interrupted(self, signal_number: int) -> NoReturn:
        """End the run where a signal asked for it, once all is kept."""
        self.writer.wait()
        self.processes.wait_for_all()  # where one ends early, torchrun ends the one that writes
        raise Interrupted(
            f"stopped at step {self.progress.step}; everything so far is kept in {self.folder.path}",
            signal_number,
        )

    @contextmanager
    def kept_if_it_fails(self, line: dict[str, Any] | None = None) -> Iterator[None]:
        """Save the state, and the step's line of metrics, where the `with` block raises what nobody foresaw."""
        try:
            yield
        except (
            NonFiniteError,
            DiskError,
        ):  # the one has seen to it, the other tells that nothing can be saved
            raise
        except Exception:
            try:
                if line and self.metrics:
                    self.metrics.append(line)
                self.save()
                self.writer.wait()
            except ClearformerError as error:
                logger.warning("%s", error)  # what is raised is what came first
            raise

    def finished(self) -> bool:
        return self.part_done() >= 1

    def part_done(self, without_steps: int = 0) -> float:
        """The part of the run that is done, by the nearer of its limits; leaving out the first steps if asked."""
        by_steps = by_seconds = 0.0
        if self.settings.max_steps is not None:
            done, length = self.progress.step - without_steps, self.settings.max_steps - without_steps
            by_steps = done / length if length > 0 else 1.0
        if self.settings.max_seconds is not None:
            by_seconds = self.progress.seconds / self.settings.max_seconds
        return min(1.0, max(by_steps, by_seconds))

    def due(self, every: int | None) -> bool:
        """Whether something that happens every so many steps, and after the last, happens now."""
        return self.finished() or (every is not None and self.progress.step % every == 0)

    # --- one step -------------------------------------------------------------------------------------------

    def prepare_steps(self) -> None:
        """Have all that steps need, outside the time that counts as training: memory, and a compiled step."""
        if self.device.type == "cpu":
            keep_freed_memory()
        if not self.settings.compile or self.finished():
            return
        start = time.perf_counter()
        self.reporter.say("compiling the step (train.compile=false leaves this out)")
        self.compute_loss = compile_step(self.loss_of_batch, dynamic=self.task.shapes_vary or None)
        try:
            self.compute_loss(*self.micro_batch(0, 0)).backward()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of many kinds: a compiler without Python's headers, one that is too old
            self.compute_loss = self.loss_of_batch
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            self.reporter.say(f"compiling failed, going on without it: {reason}")
        else:
            self.reporter.say(f"compiled in {time.perf_counter() - start:.0f} s")
        self.model.zero_grad()

    def step(self) -> tuple[float, float, float]:
        """One step of the optimisers; returns the batch's loss, its gradient's norm and the learning rate."""
        start = time.perf_counter()
        step = self.progress.step
        loss = self.gradients(step)
        norm = self.clip_gradients()
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            self.raise_nonfinite(
                step + 1, "gradient" if torch.isfinite(loss) else "loss", self.find_nonfinite(step)
            )
        lr = self.set_learning_rates(step)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.update_average(step)
        synchronize(self.device)
        seconds, self.signal_of_all = self.processes.end_step(
            self.progress.seconds + (time.perf_counter() - start), self.interrupts.received or 0
        )
        tokens = self.progress.tokens + self.task.n_tokens(step)
        self.progress = replace(self.progress, step=step + 1, seconds=seconds, tokens=tokens, val_loss=None)
        return float(loss), float(norm), lr

    def gradients(self, step: int) -> Tensor:
        """Leave the batch's gradients in the parameters; returns its loss."""
        seed_kernels(self.device, self.dropout_seed(step))
        total = torch.zeros((), device=self.device)
        for part in range(self.settings.grad_accum_steps):
            loss = self.compute_loss(*self.micro_batch(step, part)) / self.settings.grad_accum_steps
            loss.backward()
            total += loss.detach()
        self.processes.all_reduce_mean([p.grad for p in self.parameters if p.grad is not None] + [total])
        return total

    def dropout_seed(self, step: int) -> int:
        """Dropout is drawn anew for each step and process, from the seed and the step alone."""
        place = step * self.processes.count + self.processes.rank
        return (self.config.seed * 1_000_003 + place) % 2**63

    def micro_batch(self, step: int, part: int) -> list[Tensor]:
        """One of the parts of the batch that this process reads, on the device."""
        batch = self.task.batch(
            step, self.processes.rank * self.settings.grad_accum_steps + part, self.n_parts
        )
        return [tensor.to(self.device) for tensor in batch]

    def loss_of_batch(self, *batch: Tensor) -> Tensor:
        """The objective, with the matrix products in the run's type."""
        with autocast(self.device, self.settings.dtype):
            return self.task.loss(self.model, *batch)

    def clip_gradients(self) -> Tensor:
        """Scale all gradients down together where their norm is too large; returns the norm before."""
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if self.settings.grad_clip_norm is not None and norm > self.settings.grad_clip_norm:
            nn.utils.clip_grads_with_norm_(self.parameters, self.settings.grad_clip_norm, norm)
        return norm

    def set_learning_rates(self, step: int) -> float:
        """Move every group to its rate at this step; returns train.lr's."""
        progress = self.part_done(without_steps=self.settings.warmup_steps)
        factor = lr_factor(self.settings.schedule, step, self.settings.warmup_steps, max(0.0, progress))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * factor
        return self.settings.lr * factor

    def update_average(self, step: int) -> None:
        """Move the average towards the weights; in the first steps more, so that they do not weigh on it."""
        if self.average is not None and self.settings.ema is not None:
            move_average(self.average, self.model, decay=min(self.settings.ema, (1 + step) / (10 + step)))

    def find_nonfinite(self, step: int) -> str | None:
        """Compute a step's loss and gradients again, uncompiled, and name where a number stops being finite."""
        seed_kernels(self.device, self.dropout_seed(step))
        for part in range(self.settings.grad_accum_steps):
            batch = self.micro_batch(step, part)
            where = first_nonfinite_module(self.model, partial(self.loss_of_batch, *batch))
            if where:
                return where
        return None

    def raise_nonfinite(self, step: int, what: str, where: str | None) -> NoReturn:
        """Keep the last good state and end the run: the present one, if its own weights are finite."""
        self.model.zero_grad()
        is_good = weights_are_finite(self.model)
        if is_good:
            self.save()
        self.writer.wait()
        kept = "no checkpoint was written yet"
        if is_good:
            kept = f"the state before it is kept as step {self.progress.step}"
        elif checkpoints := list_checkpoints(self.folder.checkpoints):
            kept = f"the last good state is the checkpoint of step {step_of(checkpoints[0])}"
        raise NonFiniteError(
            f"step {step}: the {what} is not finite; first in {where or 'no module by itself'}; {kept} in "
            f"{self.folder.path}. A new run with a lower train.lr or train.grad_clip_norm may help"
        )

    # --- between steps --------------------------------------------------------------------------------------

    def describe_step(self, loss: float, norm: float, lr: float, since: Progress) -> dict[str, Any]:
        """A step's line in metrics.jsonl."""
        seconds = self.progress.seconds - since.seconds
        return {
            "step": self.progress.step,
            "tokens": self.progress.tokens,
            "seconds": round(self.progress.seconds, 4),
            "loss": loss,
            "lr": lr,
            "grad_norm": norm,
            "tokens_per_second": round((self.progress.tokens - since.tokens) / max(seconds, 1e-9), 1),
        }

    def evaluate(self) -> dict[str, float]:
        """Read as much of the held-out split as is due; returns what a metrics line says of it.

        Checkpoints are compared by the same rows of it each time, the last one too; then the rest is read as well.
        Where there is nothing to guess in the rows that were read, there is no loss.

        Raises:
            NonFiniteError: the last update has spoilt the weights.
        """
        if not self.task.n_held_out:
            return {}
        if not self.due(self.settings.checkpoint_every):
            n_rows = self.rows_within_share(self.settings.eval_every)
            return self.describe_evaluation(self.measure(n_rows), n_rows)
        n_rows = self.rows_within_share(self.settings.checkpoint_every)
        measured = self.measure(n_rows)
        self.progress = replace(self.progress, val_loss=None if measured is None else measured.loss)
        if self.finished() and n_rows is not None:
            n_rows, measured = None, self.measure(None)
        if n_rows is None:
            self.evaluation = measured
        return self.describe_evaluation(measured, n_rows)

    def measure(self, n_rows: int | None) -> EvaluationResult | None:
        """Read so many rows of the held-out split, or all of them; None where there is nothing to guess in them.

        Raises:
            NonFiniteError: the loss is not finite.
        """
        measured = self.task.evaluate(self.weights_to_use, getattr(torch, self.settings.dtype), n_rows)
        if measured is not None and not math.isfinite(measured.loss):
            step = self.progress.step
            self.raise_nonfinite(step, "held-out loss", self.find_nonfinite(step))
        return measured

    def describe_evaluation(self, measured: EvaluationResult | None, n_rows: int | None) -> dict[str, float]:
        """What a line in metrics.jsonl says of an evaluation."""
        share = 1.0 if n_rows is None else n_rows / self.task.n_held_out
        if measured is None:
            return {}
        return {"val_loss": measured.loss, "val_share": share} | self.task.metrics(measured)

    def rows_within_share(self, n_steps: int | None) -> int | None:
        """How much of the held-out split an evaluation after every `n_steps` reads; None is all of it.

        As many rows as keep its forward passes at `train.eval_flops_fraction` of those steps' FLOPs.
        """
        if self.settings.eval_flops_fraction is None or n_steps is None:
            return None
        steps = self.settings.eval_flops_fraction * FORWARD_PASSES_IN_A_STEP * n_steps
        n_rows = max(1, round(steps * self.task.rows_per_step))
        return n_rows if n_rows < self.task.n_held_out else None

    @property
    def rows_compared(self) -> int:
        """The rows of the held-out split by which checkpoints are compared."""
        n_rows = self.rows_within_share(self.settings.checkpoint_every)
        return self.task.n_held_out if n_rows is None else n_rows

    def evaluate_if_stale(self) -> None:
        """Evaluate, unless the last evaluation was of this very state (a finished run that is resumed has none)."""
        if self.evaluation is None:
            self.evaluate()

    # --- checkpoints ----------------------------------------------------------------------------------------

    def save(self) -> None:
        """Copy this state, once the checkpoint before is written, and let it be written beside the training.

        Raises:
            NonFiniteError: the last update has spoilt the weights.
            DiskError: the checkpoint before could not be written.
        """
        if not weights_are_finite(self.model):
            self.raise_nonfinite(self.progress.step, "update", self.find_nonfinite(self.progress.step))
        if not self.processes.is_main:
            return
        self.writer.wait()
        self.progress = self.with_best(self.progress)
        weights = weights_of(self.weights_to_use, copy=True)
        self.writer.submit(
            partial(self.write, Checkpoint(self.progress, weights, self.tensors_for_resuming()))
        )

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, the metrics before it, and delete those that are no longer wanted.

        Raises:
            DiskError: it cannot be written.
        """
        progress, checkpoints = checkpoint.progress, self.folder.checkpoints
        if self.metrics:
            self.metrics.sync()
        save_checkpoint(checkpoints, checkpoint)
        link(checkpoints, {"latest": progress.step, "best": progress.best_step})
        prune(checkpoints, self.settings.keep_last, progress)

    def with_best(self, progress: Progress) -> Progress:
        """The progress with this state as the best, where it is by its loss on what checkpoints are compared by."""
        loss, best = progress.val_loss, progress.best_val_loss
        if loss is None or (best is not None and best <= loss):
            return progress
        return replace(progress, best_step=progress.step, best_val_loss=loss, best_n_rows=self.rows_compared)

    def measure_best_anew(self) -> None:
        """Measure the best checkpoint on the rows by which later ones will be, where it was on others.

        The losses of different rows say nothing about which state is better. Where that checkpoint is no longer
        whole, the comparison begins anew.
        """
        progress = self.progress
        if progress.best_step is None or progress.best_n_rows == self.rows_compared:
            return
        try:
            best = load_checkpoint(step_folder(self.folder.checkpoints, progress.best_step))
        except CheckpointError as error:
            logger.warning("%s; the best checkpoint is chosen among the later ones", error)
            self.progress = replace(progress, best_step=None, best_val_loss=None, best_n_rows=None)
            return
        self.reporter.say(
            f"measuring step {progress.best_step}, the best so far, on the held-out data now read"
        )
        model = copy.deepcopy(self.weights_to_use)
        model.load_state_dict(best.model)
        n_rows = self.rows_within_share(self.settings.checkpoint_every)
        measured = self.task.evaluate(model, getattr(torch, self.settings.dtype), n_rows)
        loss = None if measured is None else measured.loss
        self.progress = replace(progress, best_val_loss=loss, best_n_rows=self.rows_compared)

    def tensors_for_resuming(self) -> dict[str, Tensor]:
        """Copies of all that the next step needs besides the weights to use, by name."""
        raw = {} if self.average is None else raw_weights_of(self.model)
        return optimizer_tensors(self.model, self.optimizers) | raw

    def restore(self) -> None:
        """Take up the newest whole checkpoint, or begin as the run did where there is none."""
        checkpoint = newest_whole(self.folder.checkpoints)
        if checkpoint is None:
            self.set_first_weights()
            return
        self.progress = checkpoint.progress
        try:
            self.weights_to_use.load_state_dict(checkpoint.model)
            if self.average is not None:
                load_raw_weights(self.model, checkpoint.optimizer)
            load_optimizer_tensors(self.model, self.optimizers, checkpoint.optimizer)
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(
                f"{self.folder.checkpoints}: the checkpoint of step {self.progress.step} does not fit config.toml: "
                f"{error}"
            ) from None
        self.measure_best_anew()
        self.reporter.say(f"going on from step {self.progress.step}")
