"""Losses of a run: the training and held-out loss at the end, and their curves."""

import math
import statistics
from typing import Any

from clearformer.evaluation.language_model import perplexity_of
from clearformer.run import Run
from clearformer.study.study import Measure, Values
from clearformer.training.store.folder import read_metrics

LAST = 0.05  # the fraction of a run's steps over which the training loss is averaged
MOST_POINTS = 200  # of a curve
STEP, TOKENS, SECONDS, TRAINING, HELD_OUT = range(5)
"""The columns of a curve."""


def losses(run: Run) -> Values:
    """Return a run's losses from its metrics.jsonl.

    Returns:
        train_loss: The mean over the logged ones of the last twentieth of the steps, in nats a token;
            `train_perplexity` is e to that.
        val_loss: The loss of the whole held-out split, in nats a token; `perplexity` is e to that. Both are None if
            nothing is held out.
        parameters: The number of parameters of the model.
        steps: The number of steps taken.
        curve: Rows of step, tokens, seconds, training loss, held-out loss (None where it was not evaluated).
    """
    lines = read_metrics(run.folder.metrics_file)
    train_loss, val_loss = last_training_loss(lines, run.step), lines[-1].get("val_loss")
    return {
        "train_loss": train_loss,
        "val_loss": val_loss,
        "train_perplexity": perplexity_of(train_loss),
        "perplexity": None if val_loss is None else perplexity_of(val_loss),
        "parameters": run.n_parameters,
        "steps": run.step,
        "curve": curve(lines),
    }


def last_training_loss(lines: list[dict[str, Any]], step: int) -> float:
    """Return the mean training loss over the logged ones of the last twentieth of `step` steps."""
    last = [line["loss"] for line in lines if line["step"] > (1 - LAST) * step]
    return statistics.fmean(last or [lines[-1]["loss"]])


def curve(lines: list[dict[str, Any]]) -> list[list[float | None]]:
    """Return the curves of a run, thinned out, at the steps of its evaluations and between them.

    Returns:
        Up to `2 * MOST_POINTS` rows: step, tokens, seconds, mean training loss since the last row, held-out loss.
    """
    every = math.ceil(len(lines) / MOST_POINTS)
    chunks = [lines[start : start + every] for start in range(0, len(lines), every)]
    return [row_of(part) for chunk in chunks for part in parted(chunk)]


def parted(chunk: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Part some lines after the last one that has a held-out loss."""
    n = max((i + 1 for i, line in enumerate(chunk) if line.get("val_loss") is not None), default=0)
    return [part for part in (chunk[:n], chunk[n:]) if part]


def row_of(part: list[dict[str, Any]]) -> list[float | None]:
    """Return the row of a curve for some lines of metrics.jsonl."""
    last = part[-1]
    loss = round(statistics.fmean(line["loss"] for line in part), 5)
    return [last["step"], last["tokens"], last["seconds"], loss, last.get("val_loss")]


LOSSES = Measure(losses)
