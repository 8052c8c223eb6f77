"""Samples of text side by side."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clearformer.evaluation.figures import letters
from clearformer.study.figures.base import Drawn
from clearformer.study.figures.drawing import (
    EDGE,
    INK,
    LABEL_POINTS,
    LINE_INCHES,
    MUTED,
    TITLE_INCHES,
    WIDTH,
    head,
    wrapped,
)
from clearformer.study.outcomes import Outcome


@dataclass(frozen=True)
class Texts(Drawn):
    """Samples of text side by side; a report shows them as text, not as a picture.

    The value is a text, a list of texts, or a mapping of names to texts.

    Attributes:
        title: The title above the figure.
        value: The name of the measured value, taken from each arm's first seed.
        arms: The labels of the arms to show; None for all.
    """

    title: str
    value: str
    arms: tuple[str, ...] | None = None

    def blocks(self, outcome: Outcome) -> list[tuple[str, str]]:
        """Return the texts, each with its label."""
        labels = self.shown_arms(outcome)
        found = []
        for label in labels:
            for name, text in _named_texts(outcome.first(label, self.value)):
                known = (label if len(labels) > 1 or not name else "", name)
                found.append((", ".join(part for part in known if part), text))
        return found

    def is_there(self, outcome: Outcome) -> bool:
        return bool(self.blocks(outcome))

    def note(self, outcome: Outcome) -> str:
        return "First seed only." if self.most_seeds(outcome, self.value) > 1 else ""

    def inches(self, outcome: Outcome) -> tuple[float, float]:
        n_lines = sum(2 + wrapped_lines(text) for _, text in self.blocks(outcome))
        return WIDTH, TITLE_INCHES + LINE_INCHES * max(n_lines, 1)

    def draw(self, canvas: Any, outcome: Outcome) -> None:
        head(canvas, self.title)
        width, height = canvas.get_size_inches()
        y = TITLE_INCHES
        for label, text in self.blocks(outcome):
            canvas.text(
                EDGE / width, 1 - y / height, letters(label), color=MUTED, fontsize=LABEL_POINTS, va="top"
            )
            y += LINE_INCHES
            canvas.text(
                EDGE / width,
                1 - y / height,
                letters(_wrapped_text(text)),
                color=INK,
                fontsize=8,
                family="monospace",
                va="top",
            )
            y += LINE_INCHES * (1 + wrapped_lines(text))


def _named_texts(value: Any) -> list[tuple[str, str]]:
    if value is None:
        return []
    if isinstance(value, str):
        return [("", value)]
    if isinstance(value, Mapping):
        return [(str(name), str(text)) for name, text in value.items()]
    return [(f"sample {i}", str(text)) for i, text in enumerate(value, 1)]


def _wrapped_text(text: str) -> str:
    return "\n".join(wrapped(line, 96) for line in text.split("\n"))


def wrapped_lines(text: str) -> int:
    """Return the number of lines of a text on a figure."""
    return _wrapped_text(text).count("\n") + 1
