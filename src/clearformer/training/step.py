"""One step of training: micro-batches, gradients, clipping, learning rates, the update and the moving average.

A step is a pure function of the weights, the optimizers' state, the seed and its own number: the batch and the
dropout of step s are drawn from (seed, s). So a checkpoint holds all that is needed to resume exactly.
"""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearformer.data.cache import cache_folder, key_of
from clearformer.device import RANDOM_NUMBERS, autocast, instruction_sets, keep_freed_memory, seed_kernels
from clearformer.errors import ConfigError, first_line, shown
from clearformer.model.fast.compiling import compile_step
from clearformer.model.fast.kernels_together import kernels_together
from clearformer.training.config import RunConfig, TrainConfig
from clearformer.training.limits import fraction_done
from clearformer.training.nonfinite import NonFiniteValueError, first_nonfinite_module
from clearformer.training.optim.schedules import lr_factor
from clearformer.training.processes.distributed import Processes
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.checkpoint import Progress
from clearformer.training.store.state import TrainState, move_average
from clearformer.training.tasks import Task


class StepResult(NamedTuple):
    """The result of a step.

    Attributes:
        loss: The loss of its batch, in nats.
        grad_norm: The norm of the gradient before clipping.
        parameter_norms: The norm of each parameter's gradient before clipping, by the parameter's name.
        lr_factor: The schedule's factor, which multiplies every learning rate.
        lr: `train.lr` times that factor.
        n_threads: The number of threads that computed the step.
    """

    loss: float
    grad_norm: float
    parameter_norms: dict[str, float]
    lr_factor: float
    lr: float
    n_threads: int


def lr_factor_after(settings: TrainConfig, progress: Progress) -> float:
    """Return the schedule's factor of the learning rates for the step after `progress`."""
    warmup = settings.warmup_steps
    done = fraction_done(settings, progress, without_steps=warmup)
    return lr_factor(settings.schedule, progress.step, warmup, done)


def compiled_folder() -> Path:
    """Return the cache of compiled steps for this processor, as torch's own keys do not tell processors apart.

    Code for wider vectors than the processor's would leave numbers out without an error.
    """
    return cache_folder() / "compiled" / key_of({"instructions": instruction_sets()})


class TrainStep:
    """Takes the steps of a run, each of which changes its `TrainState`: weights, moving average, optimizers."""

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        state: TrainState,
        device: torch.device,
        processes: Processes,
    ) -> None:
        self.config, self.settings, self.task, self.state = config, config.train, task, state
        self.device, self.processes = device, processes
        self.n_parts = processes.count * config.train.grad_accum_steps
        self.model = state.model  # an attribute, so that the compiler does not follow the whole state
        # Once: the walk through the modules takes time.
        self.parameters = dict(state.model.named_parameters())
        # A replay replaces these two: it leaves rows out, or sets the learning rates that were recorded.
        self.read_batch = task.batch
        self.lr_factor: Callable[[Progress], float] = partial(lr_factor_after, config.train)
        self.compute_loss: Callable[..., Tensor] = self.loss_of_batch

    def prepare(self, reporter: Reporter, compiled: bool, ended: Callable[[], bool] = lambda: False) -> None:
        """Set up memory and, if asked, compile the step; this does not count as training time.

        Args:
            reporter: Receives what is done.
            compiled: Whether to compile.
            ended: Whether a signal has come, which gives the compiling up.
        """
        if self.device.type == "cpu":
            keep_freed_memory()
        if compiled:
            self.compile(reporter, ended)

    def compile(self, reporter: Reporter, ended: Callable[[], bool] = lambda: False) -> None:
        """Compile the loss of a batch; if that fails, report it and go on uncompiled."""
        start = time.perf_counter()
        reporter.say("compiling the step (train.compile=false skips this)")
        on_cpu = self.device.type == "cpu"
        # The trial may change some buffers, or put others in their places.
        buffers = [(name, buffer, buffer.clone()) for name, buffer in self.model.named_buffers()]
        loss = compile_step(self.task_loss, dynamic=self.task.shapes_vary or None, any_threads=on_cpu)
        self.compute_loss = partial(self.in_product_type, loss)
        try:
            with kernels_together(compiled_folder(), ended) if on_cpu else nullcontext():
                self.compute_loss(*self.micro_batch(0, 0)).backward()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # such as a compiler that is too old, or missing Python headers
            self.compute_loss = self.loss_of_batch
            if not ended():
                reporter.say(f"compiling failed, continuing without it: {first_line(error)}")
        else:
            reporter.say(f"compiled in {time.perf_counter() - start:.0f} s")
        finally:
            self.model.zero_grad()
            for name, buffer, before in buffers:
                module, _, last = name.rpartition(".")
                buffer.copy_(before)
                setattr(self.model.get_submodule(module), last, buffer)

    def take(self, progress: Progress) -> StepResult:
        """Take the step after `progress`.

        Raises:
            NonFiniteValueError: the loss or the gradient is not finite; the weights are unchanged.
        """
        step = progress.step
        loss_of_batch = self.gradients(step)
        names, norms = self.parameter_norms()
        norm_of_gradients = torch.linalg.vector_norm(norms)
        # The only transfer from the device in a step. The first two numbers decide whether to apply the update.
        loss, norm, *each = torch.cat([torch.stack([loss_of_batch, norm_of_gradients]), norms]).tolist()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NonFiniteValueError("gradient" if math.isfinite(loss) else "loss")
        if self.settings.grad_clip_norm is not None and norm > self.settings.grad_clip_norm:
            self.clip_gradients(norm_of_gradients, self.settings.grad_clip_norm)
        lr_factor = self.lr_factor(progress)
        self.set_learning_rates(lr_factor)
        for optimizer in self.state.optimizers:
            optimizer.step()
        self.model.zero_grad()  # of parameters that no optimizer has, too
        self.update_average(step)
        return StepResult(
            loss,
            norm,
            dict(zip(names, each, strict=True)),
            lr_factor,
            self.settings.lr * lr_factor,
            torch.get_num_threads(),
        )

    def gradients(self, step: int) -> Tensor:
        """Compute the batch's gradients, left in `parameter.grad`, and return its loss."""
        total = torch.zeros((), device=self.device)
        with RANDOM_NUMBERS:
            seed_kernels(self.device, self.dropout_seed(step))
            for part in range(self.settings.grad_accum_steps):
                loss = self.compute_loss(*self.micro_batch(step, part))
                self.check_loss(loss)
                loss = loss / self.settings.grad_accum_steps
                loss.backward()
                total += loss.detach()
        self.processes.average_gradients([*self.parameters.values()], total)
        return total

    def check_loss(self, loss: Any) -> None:
        """Raise ConfigError if an objective of the user's returns a loss that has no gradients."""
        if not isinstance(loss, Tensor) or loss.dim() > 0 or not loss.requires_grad:
            raise ConfigError(
                f"train.objective.kind: {type(self.task).__name__}.loss must return one number as a torch tensor "
                f"with gradients; got {shown(loss)}"
            )

    def dropout_seed(self, step: int) -> int:
        """Return the seed of a step's dropout: a function of the run's seed, the step and the process's rank."""
        place = step * self.processes.count + self.processes.rank
        return (self.config.seed * 1_000_003 + place) % 2**63

    def micro_batch(self, step: int, part: int) -> list[Tensor]:
        """Return one of this process's parts of the batch, on the device."""
        first = self.processes.rank * self.settings.grad_accum_steps
        return [tensor.to(self.device) for tensor in self.read_batch(step, first + part, self.n_parts)]

    def loss_of_batch(self, *batch: Tensor) -> Tensor:
        """Return the task's loss, with the matrix products in the run's type."""
        return self.in_product_type(self.task_loss, *batch)

    def in_product_type(self, loss: Callable[..., Tensor], *batch: Tensor) -> Tensor:
        """Compute `loss` of a batch, with the matrix products in the run's type.

        Only `loss` itself is compiled: torch's cache keeps no gradients of a function that sets the type.
        """
        with autocast(self.device, self.settings.dtype):
            return loss(*batch)

    def task_loss(self, *batch: Tensor) -> Tensor:
        """Return the loss of the run's task."""
        return self.task.loss(self.model, *batch)

    def parameter_norms(self) -> tuple[list[str], Float[Tensor, " N"]]:
        """Return the parameters' names and their gradients' norms; the norm of these norms is the gradient's."""
        gradients = {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
        return list(gradients), torch.stack([torch.linalg.vector_norm(each) for each in gradients.values()])

    def clip_gradients(self, norm: Tensor, largest: float) -> None:
        """Scale all gradients by one factor, so that their common norm falls from `norm` to `largest`."""
        nn.utils.clip_grads_with_norm_(self.parameters.values(), largest, norm)

    def set_learning_rates(self, factor: float) -> None:
        """Set every learning rate to `factor` times its peak."""
        for optimizer in self.state.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * factor

    def update_average(self, step: int) -> None:
        """Move the average towards the weights, faster in the first steps so that the initial weights fade."""
        if self.state.average is not None and self.settings.ema is not None:
            decay = min(self.settings.ema, (1 + step) / (10 + step))
            move_average(self.state.average, self.model, decay)

    def find_nonfinite(self, step: int) -> str | None:
        """Compute a step's loss and gradients again, uncompiled, and name the first place that is not finite."""
        seed_kernels(self.device, self.dropout_seed(step))
        for part in range(self.settings.grad_accum_steps):
            batch = self.micro_batch(step, part)
            where = first_nonfinite_module(self.model, partial(self.loss_of_batch, *batch))
            if where:
                return where
        return None
