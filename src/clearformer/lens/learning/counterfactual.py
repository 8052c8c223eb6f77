"""The true effect of training windows: the run trained again without them.

    lens.counterfactual(run, text, without=[window, (17, 3)])     a window of `tracin`, row 3 of step 17
    lens.counterfactual(run, without=[])                          the check: the same weights, to the bit

Without a row, its targets are ignored, and the loss of its batch is the mean over the remaining targets. The row still
passes through the model, so that the rest of the batch is computed as before, including its dropout. Everything else is
unchanged: training starts from the nearest checkpoint before the first such row, or from the initial weights. The run's
own directory is only read.

The learning rates are the original ones, even where they followed the clock. The rest is the same to the bit only on
the machine, and with the number of threads, that trained the run.
"""

import hashlib
import operator
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch
from safetensors.torch import save

from clearformer.decoding import Text
from clearformer.decoding.text.samples import Run
from clearformer.errors import UserError, count, shown
from clearformer.lens.inputs import Readable
from clearformer.lens.learning.prediction import Prediction, prediction_of
from clearformer.lens.learning.reopening import Reopened, Seen, reopen
from clearformer.lens.learning.tracin import TrainingWindow, direction, products
from clearformer.lens.showing import Shown, Table, bars, number
from clearformer.model import Transformer
from clearformer.runs.replay import made_again
from clearformer.training.store.state import weights_of
from clearformer.training.tasks.rows import WithoutRows

LeftOut = TrainingWindow | Seen | int
"""A window of `tracin`, for the rows in its `seen`; a step, from 0, and a row; or a window's id, for all its rows."""


@dataclass(frozen=True, repr=False, eq=False)
class Counterfactual(Shown):
    """A run, and the same run without some rows.

    Attributes:
        what: The name of the loss that is compared.
        left_out: The rows that were left out, each with its step.
        start: The step from which the run was trained again.
        step: The step up to which it was.
        before: The loss of the run's own weights, in nats.
        after: The loss of the weights trained without those rows.
        change: after - before: positive if the rows had lowered the loss.
        estimate: TracIn's estimate of the change, with each row counted at the checkpoint nearest to its step and at
            that step's rate. It leaves the batch's other rows as they were, which count for more where the run is
            trained without one. None if the loss is not a single prediction's, no checkpoint has the optimizer's state,
            or TracIn does not know the optimizer.
        same_weights: Whether both sets of weights are equal to the bit.
        sha256: The hash of the new weights, as a checkpoint would hold them.
        model: The new weights.
    """

    what: str
    left_out: list[Seen]
    start: int
    step: int
    before: float
    after: float
    change: float
    estimate: float | None
    same_weights: bool
    sha256: str
    model: Transformer = field(repr=False)

    def caption(self) -> str:
        left_out = (
            f" without {count(len(self.left_out), 'row')}"
            if self.left_out
            else " without leaving anything out"
        )
        return f"{self.what}: the run retrained{left_out}, from step {self.start} to {self.step}"

    def table(self) -> Table:
        rows = [["as trained", f"{self.before:.6f}"], ["without", f"{self.after:.6f}"]]
        rows.append(["true change", number(self.change)])
        if self.estimate is not None:
            rows.append(["TracIn's estimate", number(self.estimate)])
        return Table(["", "loss"], rows)

    def notes(self) -> list[str]:
        same = (
            "the weights are bit-identical to the run's"
            if self.same_weights
            else "the weights differ from the run's"
        )
        return [f"{same} (SHA-256 {self.sha256[:12]})"]

    def inches(self) -> tuple[float, float]:
        return 5.0, 1.6

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        named = {"true change": self.change} | ({} if self.estimate is None else {"TracIn": self.estimate})
        bars(axes, list(named), list(named.values()))
        axes.set_xlabel("change of the loss, nats")


@torch.inference_mode(False)
def counterfactual(
    run: Run,
    text: Readable | None = None,
    output: Text | None = None,
    *,
    without: Iterable[LeftOut],
    target: str | int | None = None,
    position: int = -1,
    masked: Sequence[int] = (),
) -> Counterfactual:
    """Train a run again without some rows, and compare the losses.

    Args:
        run: A run in the directory in which it was trained, with its data in place.
        text: The text whose prediction's loss is compared; by default the loss on the run's held-out split.
        output: What an encoder-decoder writes.
        without: The rows to leave out; an empty list checks that the run is reproduced to the bit.
        target: The token or class that is predicted; by default the run's likeliest.
        position: The position that predicts it.
        masked: Positions at which an encoder reads [MASK].

    Raises:
        RunError: the run cannot be trained again; see the module.
        DataError: its data cannot be read, or have changed.
        UserError: there is no such row, window, token or position; or no text is given and the run has no held-out
            split.
    """
    prediction = (
        None
        if text is None
        else prediction_of(run, text, output, target=target, position=position, masked=masked)
    )
    opened = reopen(run)
    left_out = rows_left_out(opened, without)
    before = loss_of(opened, prediction, run.model)
    again = train_again(opened, left_out)
    after = loss_of(opened, prediction, again.model)
    estimate = None
    if prediction is not None and opened.kept:
        with suppress(UserError):  # the optimizer keeps no state, or is one that TracIn does not know
            estimate = estimated_change(opened, prediction, left_out)
    what = "the held-out loss" if prediction is None else f"the loss of {prediction}"
    return Counterfactual(
        what,
        left_out,
        again.start,
        opened.step,
        before,
        after,
        after - before,
        estimate,
        again.sha256 == sha256_of(run.model),
        again.sha256,
        again.model,
    )


def loss_of(opened: Reopened, prediction: Prediction | None, model: Transformer) -> float:
    """Return the loss to compare: a prediction's, or that on the held-out split.

    Raises:
        UserError: there is no such split.
    """
    if prediction is not None:
        return prediction.value(model)
    evaluation = opened.task.evaluate(model, opened.config.train.matrix_dtype)
    if evaluation is None:
        raise UserError("text: this run has no held-out split to measure a loss on; give a text")
    return evaluation.loss


# --- rows to leave out ------------------------------------------------------------------------------------


def rows_left_out(opened: Reopened, without: Iterable[LeftOut]) -> list[Seen]:
    """Return the rows to leave out, in the order of their steps.

    Raises:
        UserError: the run has not seen one of them.
    """
    if isinstance(without, TrainingWindow | str) or not isinstance(without, Iterable):
        raise UserError(f"without: give a list of windows or of (step, row); got {shown(without)}")
    found: set[Seen] = set()
    for each in without:
        if isinstance(each, TrainingWindow):
            found.update(each.seen)
        elif isinstance(each, Integral) and not isinstance(each, bool):
            found.update(times_seen(opened, int(each)))
        else:
            found.add(checked_row(opened, each))
    return sorted(found)


def times_seen(opened: Reopened, window: int) -> list[Seen]:
    """Return every row in which a window was seen."""
    seen = opened.windows_seen(0, opened.step).of([window])[window]
    if not seen:
        raise UserError(
            f"without: the run never saw window {window}; `lens.tracin` lists the windows that it saw"
        )
    return seen


def checked_row(opened: Reopened, given: Any) -> Seen:
    """Return a step of the run and a row of its batch after checking them."""
    try:
        step, row = map(operator.index, given)
    except (TypeError, ValueError):
        raise UserError(
            f"without: a window of `lens.tracin`, its id, or (step, row); got {shown(given)}"
        ) from None
    if not 0 <= step < opened.step:
        raise UserError(f"without: the run took the steps 0 to {opened.step - 1}; there is no step {step}")
    n = len(opened.task.example_ids(step))
    if not 0 <= row < n:
        raise UserError(f"without: the batch of step {step} has the rows 0 to {n - 1}; there is no row {row}")
    return step, row


# --- training again ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Again:
    """A run trained again: its weights, their SHA-256, and the step that it started from."""

    model: Transformer
    sha256: str
    start: int


def train_again(opened: Reopened, left_out: Sequence[Seen]) -> Again:
    """Take the steps of a run again without some rows, in memory, by the trainer's own code.

    Raises:
        RunError: its original learning rates are unknown.
    """
    first = left_out[0][0] if left_out else 0
    with made_again(opened.folder, opened.config, opened.task, first, opened.step) as training:
        start = training.progress.step
        training.train_step.read_batch = WithoutRows(opened.task, by_step(left_out))
        while training.progress.step < opened.step:
            training.step()
    model = training.weights_to_use.to(opened.device).eval()
    return Again(model, sha256_of(model), start)


def sha256_of(model: Transformer) -> str:
    """Return the SHA-256 of a model's weights, as a checkpoint would hold them."""
    return hashlib.sha256(save(weights_of(model))).hexdigest()


def by_step(left_out: Iterable[Seen]) -> Mapping[int, list[int]]:
    """Return the rows by step."""
    rows: dict[int, list[int]] = {}
    for step, row in left_out:
        rows.setdefault(step, []).append(row)
    return rows


# --- the estimate -----------------------------------------------------------------------------------------


def estimated_change(opened: Reopened, prediction: Prediction, left_out: Sequence[Seen]) -> float:
    """Return TracIn's estimate: lr <grad L(prediction), P grad L_row> at the nearest checkpoint, summed over rows."""
    kept = opened.kept
    nearest: dict[int, list[Seen]] = {}
    for step, row in left_out:
        nearest.setdefault(min(kept, key=lambda each: abs(each - step)), []).append((step, row))
    total = 0.0
    for checkpoint, rows in nearest.items():
        moment = opened.moment(checkpoint)
        of_rows = products(moment, opened.task, direction(moment, prediction), rows)
        total += sum(moment.lr_factor(step) * each for (step, _), each in zip(rows, of_rows, strict=True))
    return total
