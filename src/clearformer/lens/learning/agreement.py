"""How far TracIn can be trusted on a run: its ranking of some windows against the true effect of each.

    found = lens.check_tracin(run, text, windows=20)
    found.rank_correlation      Spearman's: 1 if both rank alike, around 0 if they are unrelated

Each window is left out for every time it was seen in the examined steps, and the run is trained again: once for each
window, and once without leaving out anything, which must reproduce the run's own weights to the bit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_whole
from clearformer.decoding.text.samples import Run
from clearformer.errors import RunError, UserError, count
from clearformer.lens.inputs import Readable
from clearformer.lens.learning.counterfactual import Counterfactual, counterfactual
from clearformer.lens.learning.tracin import SAMPLE, Learned, TrainingWindow, short_text, tracin
from clearformer.lens.showing import Shown, Table, number, quoted

WINDOWS = 20


@dataclass(frozen=True)
class Compared:
    """One window: TracIn's score and estimate, and the true change of the loss without it."""

    window: TrainingWindow
    estimate: float
    change: float


@dataclass(frozen=True, repr=False, eq=False)
class Agreement(Shown):
    """TracIn's scores of some windows, and the true changes of the loss without each.

    Attributes:
        target: The predicted token or class.
        loss: -log p(target) of the run, in nats.
        rank_correlation: Spearman's, of the scores and true changes; NaN if all values of one are equal.
        rank_correlation_of_estimates: The same for TracIn's estimates, which count when and how often it was seen.
        compared: The windows, highest score first.
    """

    target: str
    loss: float
    rank_correlation: float
    rank_correlation_of_estimates: float
    compared: list[Compared]

    def caption(self) -> str:
        return (
            f"TracIn's scores for {quoted(self.target)} and the true change of its loss without each of "
            f"{len(self.compared)} windows: rank correlation {self.rank_correlation:+.2f}"
        )

    def table(self) -> Table:
        rows = [
            [
                short_text(each.window.text),
                number(each.window.score),
                number(each.estimate),
                number(each.change),
            ]
            for each in self.compared
        ]
        return Table(["window", "score", "estimate", "true change"], rows)

    def notes(self) -> list[str]:
        return [
            f"Spearman's rank correlation with the true change: of the scores {self.rank_correlation:+.3f}, of the "
            f"estimates {self.rank_correlation_of_estimates:+.3f}",
            "retrained without leaving anything out, the run is bit-identical",
        ]

    def inches(self) -> tuple[float, float]:
        return 5.0, 4.0

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        axes.scatter(
            [each.window.score for each in self.compared], [each.change for each in self.compared], s=14
        )
        axes.set_xlabel("TracIn's score, nats")
        axes.set_ylabel("true change of the loss, nats")
        axes.spines[["top", "right"]].set_visible(False)


@torch.inference_mode(False)
def check_tracin(
    run: Run,
    text: Readable,
    output: Text | None = None,
    *,
    windows: int = WINDOWS,
    target: str | int | None = None,
    position: int = -1,
    masked: Sequence[int] = (),
    checkpoints: Iterable[int] | None = None,
    steps: Sequence[int] | None = None,
    sample: int | None = SAMPLE,
    seed: int = 0,
) -> Agreement:
    """Compare TracIn's ranking with that of true counterfactuals.

    Args:
        run: A run in the directory in which it was trained; a small one, because it is trained again for each window.
        text: See `tracin`, also for the arguments that are not explained here.
        output: What an encoder-decoder writes.
        windows: The number of windows to compare, evenly spaced in the ranking, including the first and the last.
        target: The token or class that is predicted.
        position: The position that predicts it.
        masked: Positions at which an encoder reads [MASK].
        checkpoints: The checkpoints that TracIn uses.
        steps: The steps whose windows are scored.
        sample: The number of windows that are scored.
        seed: The seed of the sample.

    Raises:
        RunError: the run cannot be trained again, or is not reproduced to the bit.
        UserError: there are fewer than three windows; see `tracin`.
    """
    check_whole("windows", windows)
    found = tracin(
        run,
        text,
        output,
        target=target,
        position=position,
        masked=masked,
        checkpoints=checkpoints,
        steps=steps,
        sample=sample,
        seed=seed,
    )
    if not 3 <= windows <= len(found.windows):
        raise UserError(f"windows: from 3 to the {count(len(found.windows), 'scored window')}; got {windows}")

    def without(*left_out: TrainingWindow) -> Counterfactual:
        return counterfactual(
            run, text, output, without=left_out, target=target, position=position, masked=masked
        )

    if not without().same_weights:
        raise RunError(
            f"{run.folder.path}: retrained without leaving anything out, its weights differ from the original; "  # type: ignore[attr-defined]
            "compare on the machine that trained it, with the same number of threads"
        )
    chosen = [found.windows[i] for i in np.linspace(0, len(found.windows) - 1, windows).astype(int)]
    return compared(found, [(window, without(window)) for window in chosen])


def compared(found: Learned, pairs: Sequence[tuple[TrainingWindow, Counterfactual]]) -> Agreement:
    """Combine scores and true changes."""
    rows = [Compared(window, result.estimate or 0.0, result.change) for window, result in pairs]
    changes = [each.change for each in rows]
    return Agreement(
        found.target,
        found.loss,
        rank_correlation([each.window.score for each in rows], changes),
        rank_correlation([each.estimate for each in rows], changes),
        rows,
    )


def rank_correlation(one: ArrayLike, other: ArrayLike) -> float:
    """Return Spearman's correlation of two lists: that of the ranks, where equal values share their mean rank.

    It is NaN if all values of one list are equal.
    """
    ranks = np.array([mean_ranks(one), mean_ranks(other)])
    if not ranks.std(axis=1).all():
        return nan
    return float(np.corrcoef(ranks)[0, 1])


def mean_ranks(values: ArrayLike) -> np.ndarray:
    """Return the rank of each value, from 1; equal values share their mean rank."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[places]
