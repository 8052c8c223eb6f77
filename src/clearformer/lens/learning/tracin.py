"""Where did it learn this? The training windows that speak for a prediction, and those that speak against it.

    found = lens.tracin(run, "First Citi", target="z")
    found.windows[0].text, found.windows[0].spans      the window, and where in the training files it stands

TracIn over checkpoints (Pruthi et al. 2020), with the optimiser's preconditioner: the score of a window w is

    sum over checkpoints t of lr_t <grad L(prediction), P_t grad L_w>

what one more step of the optimiser on that window would, at each checkpoint, take from the prediction's loss, to
first order, in nats. L_w is the window's part of the loss of the batch in which it was first seen, so that the windows
of a batch sum to the batch. P_t is what the optimiser, as saved, makes of a gradient (`preconditioning.py`); lr_t is
the rate of the step that led to the checkpoint. A positive score speaks for the prediction.

Which window was seen when is no guess: batches are a pure function of (seed, step). Dropout is off, and products are in
float32. What a score leaves out (all later steps that correct or undo this one) `lens.counterfactual` finds by training
again; `lens.check_tracin` says how well the two agree.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearformer.data.locating.places import Span
from clearformer.decoding import Text
from clearformer.decoding.text.samples import Run
from clearformer.errors import UserError, count
from clearformer.lens.inputs import Inputs, quiet
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

SAMPLE = 256  # windows, where no other number is asked for
TOP = 8  # of each sort in a table
TEXT_CHARS = 48  # of a window in a table

OnStep = Callable[[int, int], None]
"""Receives how much is done, and how much there is to do."""


@dataclass(frozen=True)
class TrainingWindow:
    """A window of the training text, a pair or a labelled text.

    Attributes:
        id: Of a running text the window's first token in the training split, else the number of the pair or text.
        score: What it takes from the prediction's loss, in nats; positive where it speaks for the prediction.
        seen: Those of the steps looked at, from 0, in which it was trained on, each with the row of the batch.
        spans: The bytes of the files that it stands in.
        text: What it says.
    """

    id: int
    score: float
    seen: list[Seen]
    spans: list[Span]
    text: str

    @property
    def where(self) -> str:
        """The place of it in few words: the file's name, and its bytes."""
        return "; ".join(f"{Path(span.file).name} {span.start:,}-{span.stop:,}" for span in self.spans)


@dataclass(frozen=True, repr=False, eq=False)
class Learned(Shown):
    """Training windows by what they did for a prediction.

    Attributes:
        target: What is predicted.
        position: Where in the text; 0 of a class.
        loss: -log p(target) of the opened model, in nats.
        checkpoints: The steps of those that were looked at.
        steps: The first step whose windows are meant, and the one behind the last.
        n_windows: How many different windows these steps have; more than `windows` where only a sample was scored.
        windows: Those that were scored, the highest score first.
    """

    target: str
    position: int
    loss: float
    checkpoints: list[int]
    steps: tuple[int, int]
    n_windows: int
    windows: list[TrainingWindow]

    def largest(self, n: int = TOP) -> list[TrainingWindow]:
        """The windows that speak most for the prediction."""
        return [each for each in self.windows[:n] if each.score > 0]

    def smallest(self, n: int = TOP) -> list[TrainingWindow]:
        """Those that speak most against it, the strongest first."""
        return [each for each in self.windows[::-1][:n] if each.score < 0]

    def caption(self) -> str:
        return f"training windows that speak for or against {quoted(self.target)} (loss {self.loss:.4f} nats)"

    def table(self) -> Table:
        shown = [*self.largest(), *self.smallest()[::-1]]
        rows = [[number(each.score), short_text(each.text), each.where, when(each.seen)] for each in shown]
        return Table(["score", "text", "bytes", "seen in step"], rows, 4)

    def notes(self) -> list[str]:
        files = dict.fromkeys(span.file for each in self.windows for span in each.spans)
        of = f"{len(self.windows):,} of {count(self.n_windows, 'window')} seen in steps {self.steps[0]:,} to "
        return [
            f"{of}{self.steps[1] - 1:,}, scored at the checkpoints of {', '.join(map(str, self.checkpoints))}",
            "first order: what later steps undo is not in a score; lens.counterfactual trains again without a window",
            *(f"read from {file}" for file in list(files)[:3]),
        ]

    def inches(self) -> tuple[float, float]:
        return 7.0, 0.8 + 0.2 * min(2 * TOP, len(self.windows))

    def draw(self, figure: Any) -> None:
        shown = [*self.largest(), *self.smallest()[::-1]]
        axes = figure.subplots()
        bars(axes, [short_text(each.text) for each in shown], [each.score for each in shown])
        axes.set_xlabel("taken from the prediction's loss, nats")


def short_text(text: str) -> str:
    """A window's text on one line, its end left out where it is long."""
    line = readable(text)
    return line if len(line) <= TEXT_CHARS else f"{line[: TEXT_CHARS - 3]}..."


def when(seen: Sequence[Seen]) -> str:
    """The steps in which a window was seen, the first of many."""
    steps = [f"{step:,}" for step, _ in seen]
    return ", ".join(steps[:3]) + (f" and {len(steps) - 3:,} more" if len(steps) > 3 else "")


def tracin(
    run: Run,
    text: Text | Inputs,
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
    """Score the training windows of a run by what they did for a prediction.

    Args:
        run: Kept in the folder in which it was trained, with its data where they were.
        text: A string or ids, or what `read` made of them; an encoder-decoder's source.
        output: What an encoder-decoder writes; its own translation, where not given.
        target: The token or class that is predicted; the one that the model finds likeliest, where not given.
        position: Where it is predicted.
        masked: Positions at which an encoder reads [MASK].
        checkpoints: The steps of those to look at; all that the run keeps up to the opened one, where not given.
        steps: The first step whose windows are scored, and the one behind the last; all, where not given.
        sample: How many of these windows, drawn at random, are scored; `None` scores all. Each takes a backward pass
            for every checkpoint.
        seed: Of the sample.
        on_step: Called after each backward pass with how many are done, and how many there are.

    Raises:
        RunError: the run is kept in no folder, was not trained in it, or keeps no such checkpoint.
        DataError: its data cannot be read, or have changed.
        UserError: its objective or its optimiser has no TracIn, or there is no such token, position or step.
    """
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
    )


def sampled(ids: np.ndarray, n: int | None, seed: int) -> np.ndarray:
    """Some of the windows, drawn at random.

    Raises:
        UserError: there is to be none.
    """
    if n is not None and n < 1:
        raise UserError(f"sample: at least 1 window; got {n}")
    if n is None or n >= len(ids):
        return ids
    return np.sort(np.random.default_rng(seed).choice(ids, n, replace=False))


def scores_at_checkpoints(
    opened: Reopened,
    prediction: Prediction,
    checkpoints: Sequence[int],
    rows: Sequence[Seen],
    on_step: OnStep = lambda *_: None,
) -> list[float]:
    """The score of each of some rows, each summed over all checkpoints."""
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
    """lr P grad L(prediction) by parameter, at the schedule's factor 1: P is symmetric, so it serves every window."""
    model, optimizers = moment.state.model, moment.state.optimizers
    return steps_of(model, optimizers, prediction.gradients(model))


def products(
    moment: Moment,
    task: Task,
    along: dict[str, Tensor],
    rows: Iterable[Seen],
    on_row: Callable[[int], None] = lambda _: None,
) -> list[float]:
    """The product of a direction with the gradient of each row's part of its batch's loss."""
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
    """The sum of the products of all numbers of two sets of tensors, in float64."""
    terms = [(one[name].double() * other[name].double()).sum() for name in one]
    return torch.stack(terms).sum().item()
