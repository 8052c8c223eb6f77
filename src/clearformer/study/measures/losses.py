"""Losses of a run: in training, on held-out data, and on the way."""

import math
import statistics
from typing import Any

from clearformer.run import Run
from clearformer.study.study import Measure, Values
from clearformer.training.store.folder import read_metrics

LAST = 0.05  # of a run's steps, over which the training loss is averaged
MOST_POINTS = 200  # of a curve


def losses(run: Run) -> Values:
    """The losses that a run has come to, as its metrics.jsonl has them.

    Returns:
        train_loss: In nats a token, the mean over the last twentieth of its steps; `train_perplexity` is e to that.
        val_loss: Of the whole held-out split, in nats a token; `perplexity` is e to that.
        parameters: Of the model.
        curve: Rows of step, tokens, seconds, training loss, held-out loss (None where it was not evaluated).
    """
    lines = read_metrics(run.folder.metrics_file)
    train_loss, val_loss = last_training_loss(lines, run.step), lines[-1]["val_loss"]
    return {
        "train_loss": train_loss,
        "val_loss": val_loss,
        "train_perplexity": math.exp(train_loss),
        "perplexity": math.exp(val_loss),
        "parameters": run.n_parameters,
        "curve": curve(lines),
    }


def last_training_loss(lines: list[dict[str, Any]], step: int) -> float:
    """The mean training loss over the last twentieth of so many steps."""
    last = [line["loss"] for line in lines if line["step"] > (1 - LAST) * step]
    return statistics.fmean(last or [lines[-1]["loss"]])


def curve(lines: list[dict[str, Any]]) -> list[list[float | None]]:
    """Step, tokens, seconds, mean training loss since the point before, held-out loss; at most `MOST_POINTS` rows."""
    every = math.ceil(len(lines) / MOST_POINTS)
    rows = []
    for start in range(0, len(lines), every):
        part = lines[start : start + every]
        last = part[-1]
        held_out = [line["val_loss"] for line in part if line.get("val_loss") is not None]
        loss = statistics.fmean(line["loss"] for line in part)
        rows.append(
            [
                last["step"],
                last["tokens"],
                last["seconds"],
                round(loss, 5),
                held_out[-1] if held_out else None,
            ]
        )
    return rows


LOSSES = Measure(losses)
