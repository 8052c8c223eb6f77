"""Fair comparison on a noisy machine: alternate measurements (A B A B), medians, and ratios within each round."""

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from clearformer.threads import FixedThreads

OURS = "clearformer"
"""The name of the first side of every comparison."""


@dataclass(frozen=True)
class Contender:
    """One side: `measure` does the work once and returns its figure; `note` names differences from our side."""

    name: str
    measure: Callable[[], float]
    note: str = ""


@dataclass(frozen=True)
class Absent:
    """A side that could not take part, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class Figures:
    """The figures of one side, one for each round."""

    name: str
    values: list[float]
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass(frozen=True)
class Comparison:
    """The figures of several sides; the first is ours.

    Attributes:
        what: The measured work, with its sizes.
        unit: The unit of the figures.
        more_is_better: Whether the figures are rates instead of times.
        sides: Each side's figures, round by round.
        absent: The peers that could not take part.
        facts: Other figures of the same rounds, by name.
    """

    what: str
    unit: str
    more_is_better: bool
    sides: list[Figures]
    absent: list[Absent] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def times_as_fast(self, other: Figures) -> float:
        """Return how many times as fast the first side is as another: the median of the rounds' ratios."""
        pairs = zip(self.sides[0].values, other.values, strict=True)
        return statistics.median(a / b if self.more_is_better else b / a for a, b in pairs)

    def to_json(self) -> dict[str, Any]:
        """Return all figures as plain values for `json.dumps`."""
        return {
            "what": self.what,
            "unit": self.unit,
            "sides": [
                {
                    "name": side.name,
                    "rounds": [float(f"{value:.5g}") for value in side.values],
                    "median": float(f"{side.median:.5g}"),
                    **({"clearformer_times_as_fast": round(self.times_as_fast(side), 3)} if i else {}),
                    **({"note": side.note} if side.note else {}),
                }
                for i, side in enumerate(self.sides)
            ],
            "absent": {side.name: side.reason for side in self.absent},
            **self.facts,
        }


def with_as_many_threads() -> dict[str, str]:
    """Return the environment for a side that runs in a process of its own: it has as many threads as torch has here.

    By itself it would not heed the quota of a container.
    """
    return os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}


def interleave(
    contenders: Sequence[Contender], rounds: int, on_figure: Callable[[str, float], None] = lambda *_: None
) -> list[Figures]:
    """Measure every side once per round, in the same order, after one run of each that does not count.

    Args:
        contenders: The sides.
        rounds: How often each is measured.
        on_figure: Called with each name and figure as it is measured.
    """
    values: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    with FixedThreads():  # peers have as many
        for contender in contenders:
            contender.measure()
        for _ in range(rounds):
            for contender in contenders:
                found = contender.measure()
                values[contender.name].append(found)
                on_figure(contender.name, found)
    return [Figures(contender.name, values[contender.name], contender.note) for contender in contenders]
