"""Where did it learn this? The training windows that favour a prediction, and those that oppose it.

    found = lens.tracin(run, "First Citi", target="z")
    found.windows[0].text, found.windows[0].spans      a window, and its bytes in the training files

TracIn over checkpoints (Pruthi et al. 2020), with the optimizer's preconditioner: the score of a window w is

    sum over checkpoints t of lr_t <grad L(prediction), P_t grad L_w>

the amount by which one more optimizer step on that window would lower the prediction's loss at each checkpoint, to
first order, in nats. L_w is the window's part of the loss of the batch in which it was first seen, so that a batch's
windows sum to the batch. P_t is the preconditioner of the optimizer as saved (`preconditioning.py`); lr_t is the
learning rate of the step that led to the checkpoint. A positive score favours the prediction.

Which window was seen when is known exactly: batches are a pure function of (seed, step). Dropout is off, and products
are in float32. A score ignores all later steps that correct or undo this one; `lens.counterfactual` measures the full
effect by training again, and `lens.check_tracin` how well the two agree.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearformer.data.locating.places import Span, in_short
from clearformer.decoding import Text
from clearformer.decoding.arguments import OnStep, check_function, check_whole
from clearformer.decoding.text.samples import Run
from clearformer.errors import count
from clearformer.lens.inputs import Readable, quiet
from clearformer.lens.learning.preconditioning import steps_of
from clearformer.lens.learning.prediction import Prediction, gradients_of, prediction_of
from clearformer.lens.learning.reopening import (
    Moment,
    Reopened,
    Seen,
    check_checkpoints,
    check_steps,
    reopen,
)
from clearformer.lens.showing import Shown, Table, bars, number, quoted
from clearformer.text.tokenizer import readable
from clearformer.training.tasks import Task
from clearformer.training.tasks.rows import rows_of_batch

SAMPLE = 256  # windows, by default
TOP = 8  # windows of either sign in a table
TEXT_CHARS = 48  # of a window in a table


@dataclass(frozen=True)
class TrainingWindow:
    """A window of the training text, a pair or a labelled text.

    Attributes:
        id: The window's first token in the training split for a running text, else the number of the pair or text.
        score: The amount that it takes from the prediction's loss, in nats; positive if it favours the prediction.
        seen: The examined steps, from 0, that trained on it, each with its row of the batch.
        spans: The bytes of the files that contain it.
        text: Its text.
    """

    id: int
    score: float
    seen: list[Seen]
    spans: list[Span]
    text: str

    @property
    def where(self) -> str:
        """The file's name and the bytes."""
        return in_short(self.spans)


@dataclass(frozen=True, repr=False, eq=False)
class Learned(Shown):
    """Training windows, scored by their effect on a prediction.

    Attributes:
        target: The predicted token or class.
        position: Its position in the text; 0 for a class.
        loss: -log p(target) of the opened model, in nats.
        checkpoints: The steps of the examined checkpoints.
        steps: The first step whose windows count, and the one after the last.
        n_windows: The number of different windows in these steps; more than `windows` if only a sample was scored.
        windows: The scored windows, highest score first.
        family: The model's family: an encoder-decoder's windows are pairs, with a tab between source and output.
    """

    target: str
    position: int
    loss: float
    checkpoints: list[int]
    steps: tuple[int, int]
    n_windows: int
    windows: list[TrainingWindow]
    family: str

    def largest(self, n: int = TOP) -> list[TrainingWindow]:
        """Return the windows that favour the prediction most."""
        return [each for each in self.windows[:n] if each.score > 0]

    def smallest(self, n: int = TOP) -> list[TrainingWindow]:
        """Return the windows that oppose it most, strongest first."""
        return [each for each in self.windows[::-1][:n] if each.score < 0]

    def caption(self) -> str:
        return f"training windows for and against {quoted(self.target)} (loss {self.loss:.4f} nats)"

    def table(self) -> Table:
        shown = [*self.largest(), *self.smallest()[::-1]]
        rows = [[number(each.score), short_text(each.text), each.where, when(each.seen)] for each in shown]
        return Table(["score", "text", "bytes", "seen in step"], rows, 4)

    def notes(self) -> list[str]:
        files = dict.fromkeys(span.file for each in self.windows for span in each.spans)
        of = f"{len(self.windows):,} of {count(self.n_windows, 'window')} seen in steps {self.steps[0]:,} to "
        return [
            f"{of}{self.steps[1] - 1:,}, scored at the checkpoints of {', '.join(map(str, self.checkpoints))}",
            "first order: scores ignore what later steps undo; lens.counterfactual retrains without a window",
            *(f"read from {file}" for file in list(files)[:3]),
        ]

    def inches(self) -> tuple[float, float]:
        return 7.0, 0.8 + 0.2 * min(2 * TOP, len(self.windows))

    def draw(self, figure: Any) -> None:
        shown = [*self.largest(), *self.smallest()[::-1]]
        axes = figure.subplots()
        bars(axes, [short_text(each.text) for each in shown], [each.score for each in shown])
        axes.set_xlabel("reduction of the prediction's loss, nats")


def short_text(text: str) -> str:
    """Return a window's text on one line, shortened if long."""
    line = readable(text)
    return line if len(line) <= TEXT_CHARS else f"{line[: TEXT_CHARS - 3]}..."


def when(seen: Sequence[Seen]) -> str:
    """Return the steps in which a window was seen; only the first three if there are more."""
    steps = [f"{step:,}" for step, _ in seen]
    return ", ".join(steps[:3]) + (f" and {len(steps) - 3:,} more" if len(steps) > 3 else "")


@torch.inference_mode(False)
def tracin(
    run: Run,
    text: Readable,
    output: Text | None = None,
    *,
    target: str | int | None = None,
    position: int = -1,
    masked: Sequence[int] = (),
    checkpoints: Iterable[int] | None = None,
    steps: Sequence[int] | None = None,
    sample: int | None = SAMPLE,
    seed: int = 0,
    on_step: OnStep = lambda *_: None,
) -> Learned:
    """Score the training windows of a run by their effect on a prediction.

    Args:
        run: A run in the directory in which it was trained, with its data in place.
        text: A string or ids, or the result of `read`; an encoder-decoder's source.
        output: What an encoder-decoder writes; by default its own translation.
        target: The token or class that is predicted; by default the model's likeliest.
        position: The position that predicts it.
        masked: Positions at which an encoder reads [MASK].
        checkpoints: The steps of the checkpoints to use; by default all that the run keeps up to the opened one.
        steps: The first step whose windows are scored, and the one after the last; by default all steps.
        sample: The number of these windows to draw at random and score; `None` scores all. Each takes a backward pass
            for every checkpoint.
        seed: The seed of the sample.
        on_step: Called after each backward pass with the number done and the total.

    Raises:
        RunError: the run has no directory, was not trained in it, or keeps no such checkpoint.
        DataError: its data cannot be read, or have changed.
        UserError: TracIn does not support its objective or optimizer, or there is no such token, position or step.
    """
    check_function("on_step", on_step)
    prediction = prediction_of(run, text, output, target=target, position=position, masked=masked)
    opened = reopen(run)
    first, last = check_steps(opened, steps)
    wanted = check_checkpoints(opened, checkpoints)
    windows = opened.windows_seen(first, last)
    ids = sampled(windows.distinct(), sample, seed)
    seen = windows.of(ids.tolist())
    scores = scores_at_checkpoints(opened, prediction, wanted, [each[0] for each in seen.values()], on_step)
    examples = opened.task.find_examples(list(seen))
    found = [
        TrainingWindow(window, score, seen[window], example.spans, example.text)
        for window, score, example in zip(seen, scores, examples, strict=True)
    ]
    found.sort(key=lambda each: -each.score)
    return Learned(
        prediction.label,
        prediction.position,
        prediction.value(run.model),
        wanted,
        (first, last),
        len(windows.distinct()),
        found,
        run.model.config.family,
    )


def sampled(ids: np.ndarray, n: int | None, seed: int) -> np.ndarray:
    """Draw some of the windows at random.

    Raises:
        UserError: `n` is less than 1, or the seed less than 0.
    """
    check_whole("seed", seed, least=0)
    if n is None:
        return ids
    check_whole("sample", n, least=1)
    return ids if n >= len(ids) else np.sort(np.random.default_rng(seed).choice(ids, n, replace=False))


def scores_at_checkpoints(
    opened: Reopened,
    prediction: Prediction,
    checkpoints: Sequence[int],
    rows: Sequence[Seen],
    on_step: OnStep = lambda *_: None,
) -> list[float]:
    """Return the score of each of some rows, summed over all checkpoints."""
    totals = [0.0] * len(rows)
    n = len(checkpoints) * len(rows)
    for i, step in enumerate(checkpoints):
        moment, before = opened.moment(step), i * len(rows)
        along = direction(moment, prediction)
        of_rows = products(
            moment, opened.task, along, rows, lambda done, before=before: on_step(before + done, n)
        )
        factor = moment.lr_factor(max(0, step - 1))
        totals = [total + factor * each for total, each in zip(totals, of_rows, strict=True)]
    return totals


def direction(moment: Moment, prediction: Prediction) -> dict[str, Tensor]:
    """Return lr P grad L(prediction) by parameter, at schedule factor 1; P is symmetric, so it serves every window."""
    model, optimizers = moment.state.model, moment.state.optimizers
    return steps_of(model, optimizers, prediction.gradients(model))


def products(
    moment: Moment,
    task: Task,
    along: dict[str, Tensor],
    rows: Iterable[Seen],
    on_row: Callable[[int], None] = lambda _: None,
) -> list[float]:
    """Return the inner product of a direction with the gradient of each row's part of its batch's loss."""
    model = moment.state.model
    device = model.embed.weight.device
    found = []
    for step, row in rows:
        batch = [tensor.to(device) for tensor in rows_of_batch(task, step, [row])]
        with quiet(model, grad=True):
            gradients = gradients_of(model, task.loss(model, *batch))
        found.append(inner_product(along, gradients))
        on_row(len(found))
    return found


def inner_product(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the inner product of two sets of tensors, in float64."""
    terms = [(one[name].cpu().double() * other[name].cpu().double()).sum() for name in one]
    return torch.stack(terms).sum().item()
