"""Next-token probabilities as bars."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clearformer.evaluation.figures import letters
from clearformer.study.figures.base import Drawn
from clearformer.study.figures.drawing import (
    EDGE,
    INK,
    LABEL_POINTS,
    MUTED,
    TICK_POINTS,
    TITLE_INCHES,
    WIDTH,
    colour,
    head,
    panel,
    plain_axes,
    seen,
    text_inches,
    widest,
)
from clearformer.study.outcomes import Outcome
from clearformer.study.running import is_number
from clearformer.study.words import name_of

Distribution = Mapping[str, float] | Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Distributions(Drawn):
    """The most probable next tokens as bars, in panels side by side.

    If the value is one distribution, {token: probability} or rows [token, probability], each arm has a panel. If it is
    a mapping of names to distributions, each name has a panel, with the bars of all arms side by side.

    Attributes:
        title: The title above the figure.
        value: The name of the measured value, taken from each arm's first seed; or several names, whose bars are side
            by side, such as counted and learned probabilities.
        arms: The labels of the arms to show; None for all.
        top: The number of tokens.
        together: Whether all arms share one panel, if the value is one distribution.
        names: The names of the distributions to show; None for all.
        label: The description of the numbers, where there is no key of colours in its place.
    """

    title: str
    value: str | tuple[str, ...]
    arms: tuple[str, ...] | None = None
    top: int = 10
    together: bool = False
    names: tuple[str, ...] | None = None
    label: str = "probability of the next token"

    def panels(self, outcome: Outcome) -> dict[str, dict[str, dict[str, float]]]:
        """Return the distributions of every panel, by arm."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for label in self.shown_arms(outcome):
            for series, value in self._values(outcome, label):
                for name, each in self._by_name(value).items():
                    panel_name = name or ("" if self.together else label)
                    found.setdefault(panel_name, {})[series] = _probabilities(each)
        return found

    def _values(self, outcome: Outcome, label: str) -> list[tuple[str, Any]]:
        """Return the values of an arm, each with its label in the key of colours."""
        if isinstance(self.value, str):
            return [(label, outcome.first(label, self.value))]
        whose = f"{label}, " if len(self.shown_arms(outcome)) > 1 else ""
        return [(f"{whose}{name_of(name)}", outcome.first(label, name)) for name in self.value]

    def _by_name(self, value: Any) -> Mapping[str, Distribution]:
        if not value:
            return {}
        if not (isinstance(value, Mapping) and not is_number(next(iter(value.values())))):
            return {"": value}
        return {name: value[name] for name in self.names or tuple(value) if name in value}

    def _grid(self, outcome: Outcome) -> tuple[int, int]:
        """Return the number of rows and columns of panels."""
        n = max(len(self.panels(outcome)), 1)
        columns = min(n, 3 if n % 3 == 0 or n > 4 else 2)
        return math.ceil(n / columns), columns

    def _panel_inches(self, outcome: Outcome) -> float:
        n = max((len(arms) for arms in self.panels(outcome).values()), default=1)
        tokens = max(
            (len(shown_tokens(arms, self.top)) for arms in self.panels(outcome).values()), default=self.top
        )
        return 0.5 + tokens * (0.18 if n == 1 else 0.13 * n + 0.06)

    def inches(self, outcome: Outcome) -> tuple[float, float]:
        rows, _ = self._grid(outcome)
        return WIDTH, TITLE_INCHES + rows * self._panel_inches(outcome)

    def note(self, outcome: Outcome) -> str:
        first = next((list(arms) for arms in self.panels(outcome).values()), [])
        whose = f" of {first[0]}" if len(first) > 1 else ""
        names = (self.value,) if isinstance(self.value, str) else self.value
        seed = " First seed only." if max(self.most_seeds(outcome, name) for name in names) > 1 else ""
        return f"The {self.top} most probable tokens{whose}; ␣ is a space, ⏎ the end of a line.{seed}"

    def summary(self, outcome: Outcome) -> str:
        return " ".join(
            f"{', '.join(part for part in (name, arm if arm != name else '') if part)}: "
            + ", ".join(f"{seen(token)} {p:.0%}" for token, p in list(each.items())[:3])
            + "."
            for name, arms in self.panels(outcome).items()
            for arm, each in arms.items()
        )

    def draw(self, canvas: Any, outcome: Outcome) -> None:
        panels = self.panels(outcome)
        arms = list(dict.fromkeys(arm for each in panels.values() for arm in each))
        is_grouped = any(len(each) > 1 for each in panels.values())
        head(canvas, self.title, "" if is_grouped else self.label)
        if is_grouped:
            _key_of_arms(canvas, arms)
        _, columns = self._grid(outcome)
        width, height = canvas.get_size_inches()
        most = max(
            (max(each.values(), default=0) for arms in panels.values() for each in arms.values()), default=1
        )
        wide, high = (width - EDGE) / columns, self._panel_inches(outcome)
        for i, (name, each) in enumerate(panels.items()):
            tokens = shown_tokens(each, self.top)
            left = i % columns * wide + EDGE + widest([seen(token) for token in tokens], TICK_POINTS) + 0.12
            top = TITLE_INCHES + i // columns * high + 0.28
            axes = panel(
                canvas,
                left,
                width - (i % columns + 1) * wide + 0.5,
                top,
                height - top - high + 0.5,
            )
            shades = {arm: colour(arms.index(arm) if is_grouped else 0) for arm in each}
            _draw_distribution(axes, _panel_title(name), tokens, each, shades)
            axes.set_xlim(0, most)


def _panel_title(name: str) -> str:
    """Return the title of a panel; a short token is put in quotation marks to make it visible."""
    return f"“{seen(name)}”" if 0 < len(name) <= 2 else name


def _probabilities(distribution: Distribution) -> dict[str, float]:
    """Return probabilities by token, the most probable first."""
    pairs = distribution.items() if isinstance(distribution, Mapping) else distribution
    return dict(sorted(((str(token), float(p)) for token, p in pairs), key=lambda pair: -pair[1]))


def shown_tokens(arms: Mapping[str, Mapping[str, float]], top: int) -> list[str]:
    """Return the most probable tokens of a panel's first arm."""
    return list(next(iter(arms.values()), {}))[:top]


def _key_of_arms(canvas: Any, arms: Sequence[str]) -> None:
    """Draw the key of colours in a line below the title."""
    width, height = canvas.get_size_inches()
    at, y = EDGE, 1 - 0.42 / height
    for i, arm in enumerate(arms):
        canvas.text(at / width, y, "■", va="center", color=colour(i), fontsize=LABEL_POINTS)
        canvas.text((at + 0.16) / width, y, letters(arm), va="center", color=INK, fontsize=LABEL_POINTS)
        at += text_inches(arm) + 0.42


def _draw_distribution(
    axes: Any,
    name: str,
    tokens: list[str],
    arms: Mapping[str, Mapping[str, float]],
    shades: Mapping[str, str],
) -> None:
    plain_axes(axes, grid="x")
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks([])
    thick = 0.78 / len(arms)
    for i, arm in enumerate(arms):
        places = [row + (i - (len(arms) - 1) / 2) * thick for row in range(len(tokens))]
        values = [arms[arm].get(token) for token in tokens]  # None of one that is not among its likeliest
        axes.barh(places, [value or 0.0 for value in values], height=thick * 0.88, color=shades[arm])
        for place, value in zip(places, values, strict=True):
            axes.annotate(
                "?" if value is None else f"{value:.1%}" if value < 0.1 else f"{value:.0%}",
                (value or 0.0, place),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5 if len(arms) == 1 else 7,
                color=MUTED,
            )
    axes.set_yticks(range(len(tokens)), [letters(seen(token)) for token in tokens], color=INK)
    axes.set_ylim(len(tokens) - 0.4, -0.6)
    axes.set_title(letters(name), fontsize=LABEL_POINTS, color=INK, loc="left", pad=3, fontweight="bold")
