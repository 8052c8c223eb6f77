"""Evaluations during training: how much of the held-out split they read, and which checkpoint is the best."""

import copy
import logging
import math
import time
from dataclasses import dataclass, replace

from clearformer.errors import CheckpointError
from clearformer.model import Transformer
from clearformer.training.config import TrainConfig
from clearformer.training.nonfinite import NonFiniteValueError
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.checkpoint import Progress, load_checkpoint, step_folder
from clearformer.training.store.folder import RunFolder
from clearformer.training.tasks import EvaluationResult, Task

FORWARD_PASSES_IN_A_STEP = 3  # by FLOPs: the forward pass, and a backward pass that costs two
PATIENT_STEPS = 10  # a loss on as many rows tells checkpoints apart, and costs a third of so many steps
MEASUREMENTS = 3
MEASURED_STEPS = 4  # each measurement reads as many rows as so many steps

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeldOutEvaluation:
    """The evaluation of a model on some rows of the held-out split.

    Attributes:
        result: The result; None if those rows have nothing to predict.
        line: Its values for metrics.jsonl.
        is_whole: Whether the whole split was read.
    """

    result: EvaluationResult | None
    line: dict[str, float]
    is_whole: bool

    @property
    def loss(self) -> float | None:
        return None if self.result is None else self.result.loss


class Evaluator:
    """Evaluates models on the held-out split of a run's task, and keeps track of the best checkpoint."""

    def __init__(self, train: TrainConfig, task: Task) -> None:
        self.train, self.task = train, task
        self.seconds_per_row = 0.0  # of the latest evaluation that read enough rows to tell

    @property
    def rows_between_checkpoints(self) -> int | None:
        """The number of rows that an evaluation without a checkpoint reads; None is all of them."""
        return self.rows_within_share(self.train.eval_every)

    @property
    def rows_with_checkpoint(self) -> int | None:
        """The number of rows by which checkpoints are compared; None is all of them.

        Where they decide when the run ends, they are at least as many as `PATIENT_STEPS` steps read.
        """
        n_rows = self.rows_within_share(self.train.checkpoint_every)
        if n_rows is None or self.train.patience is None:
            return n_rows
        n_rows = max(n_rows, math.ceil(PATIENT_STEPS * self.task.rows_per_step))
        return n_rows if n_rows < self.task.n_held_out else None

    def rows_within_share(self, n_steps: int | None) -> int | None:
        """Return how many held-out rows to read in an evaluation after every `n_steps`; None is all of them.

        Their forward passes take `train.eval_flops_fraction` of those steps' FLOPs.
        """
        if self.train.eval_flops_fraction is None or n_steps is None:
            return None
        steps = self.train.eval_flops_fraction * FORWARD_PASSES_IN_A_STEP * n_steps * self.train.n_passes
        n_rows = max(1, round(steps * self.task.rows_per_step))
        return n_rows if n_rows < self.task.n_held_out else None

    def evaluate(self, model: Transformer, n_rows: int | None) -> HeldOutEvaluation:
        """Evaluate a model on `n_rows` rows of the held-out split; None is all of them.

        Raises:
            NonFiniteValueError: the loss is not finite.
        """
        start = time.perf_counter()
        result = self.task.evaluate(model, self.train.matrix_dtype, n_rows)
        if self.is_timed(n_rows):
            self.seconds_per_row = (time.perf_counter() - start) / (n_rows or self.task.n_held_out)
        return self.described(result, n_rows)

    def is_timed(self, n_rows: int | None) -> bool:
        """Whether so many rows tell the time of a row: of a few, a moment's delay would be taken for their pace."""
        return (n_rows or self.task.n_held_out) >= self.rows_measured

    @property
    def rows_measured(self) -> int:
        """The number of rows by which the time of a row is measured."""
        return min(self.task.n_held_out, round(MEASURED_STEPS * self.task.rows_per_step))

    def evaluate_at_the_end(self, model: Transformer) -> tuple[HeldOutEvaluation, HeldOutEvaluation]:
        """Evaluate a model on the whole held-out split, and on the rows by which checkpoints are compared.

        Raises:
            NonFiniteValueError: the loss is not finite.
        """
        n_rows = self.rows_with_checkpoint
        if n_rows is None:
            whole = self.evaluate(model, None)
            return whole, whole
        whole, part = self.task.evaluate_whole_and_part(model, self.train.matrix_dtype, n_rows)
        return self.described(whole, None), self.described(part, n_rows)

    def described(self, result: EvaluationResult | None, n_rows: int | None) -> HeldOutEvaluation:
        """Wrap the result of `n_rows` rows, or of all; raise NonFiniteValueError if its loss is not finite."""
        if result is None:
            return HeldOutEvaluation(None, {}, n_rows is None)
        if not math.isfinite(result.loss):
            raise NonFiniteValueError("held-out loss")
        share = 1.0 if n_rows is None else n_rows / self.task.n_held_out
        metrics = self.task.metrics(result).items()
        finite = {name: value for name, value in metrics if math.isfinite(value)}  # JSON has no other numbers
        line = {"val_loss": result.loss, "val_share": share, **finite}
        return HeldOutEvaluation(result, line, n_rows is None)

    def measure(self, model: Transformer) -> None:
        """Measure the seconds per row before the first evaluation: the least of several times, as the first is slow."""
        n_rows = self.rows_measured
        each = [math.inf]
        for _ in range(MEASUREMENTS if n_rows else 0):
            self.evaluate(model, n_rows)
            each.append(self.seconds_per_row)
        self.seconds_per_row = min(each) if n_rows else 0.0

    @property
    def seconds_at_the_end(self) -> float:
        """The seconds that evaluations are expected to take after the last step, judged by the latest one."""
        n_rows, n_all = self.rows_with_checkpoint, self.task.n_held_out
        return self.seconds_per_row * (n_all if n_rows is None else self.task.rows_of_whole_and_part(n_rows))

    def seconds_after(self, step: int) -> float:
        """Return the seconds that an evaluation is expected to take that is due after a step; 0 if none is."""
        for every, n_rows in (
            (self.train.checkpoint_every, self.rows_with_checkpoint),
            (self.train.eval_every, self.rows_between_checkpoints),
        ):
            if every and step % every == 0:
                return self.seconds_per_row * (n_rows or self.task.n_held_out)
        return 0.0

    # --- the best checkpoint --------------------------------------------------------------------------------

    @property
    def n_rows_compared(self) -> int:
        """The number of rows by which checkpoints are compared."""
        n_rows = self.rows_with_checkpoint
        return self.task.n_held_out if n_rows is None else n_rows

    def with_best(self, progress: Progress) -> Progress:
        """Return the progress with this state as the best if its loss is the lowest so far, else as one more after."""
        loss, best = progress.val_loss, progress.best_val_loss
        if loss is None:
            return progress
        if best is not None and best <= loss:
            return replace(progress, n_worse=progress.n_worse + 1)
        return replace(
            progress,
            best_step=progress.step,
            best_val_loss=loss,
            best_n_rows=self.n_rows_compared,
            n_worse=0,
        )

    def remeasure_best(
        self, progress: Progress, model: Transformer, folder: RunFolder, reporter: Reporter
    ) -> Progress:
        """Evaluate the best checkpoint again if later ones will be compared by another number of rows.

        Losses of different rows cannot be compared, so `train.patience` counts anew. If that checkpoint is damaged, the
        comparison starts anew too.

        Args:
            progress: The progress of the run.
            model: A model of the run; it is copied, not changed.
            folder: The run's folder.
            reporter: Receives a line about it.
        """
        if progress.best_step is None or progress.best_n_rows == self.n_rows_compared:
            return progress
        try:
            best = load_checkpoint(step_folder(folder.checkpoints, progress.best_step))
        except CheckpointError as error:
            logger.warning("%s; choosing the best checkpoint among later ones", error)
            return replace(progress, best_step=None, best_val_loss=None, best_n_rows=None, n_worse=0)
        reporter.say(f"evaluating step {progress.best_step}, the best so far, on the current held-out data")
        model = copy.deepcopy(model)
        model.load_state_dict(best.model)
        result = self.task.evaluate(model, self.train.matrix_dtype, self.rows_with_checkpoint)
        loss = None if result is None else result.loss
        return replace(progress, best_val_loss=loss, best_n_rows=self.n_rows_compared, n_worse=0)
