"""A study: a question, the runs that answer it, what is measured of them, and what would refute it.

A study is data. It names what is run (`Training`, `Probe`), with which seeds, what is measured (`Measure`), which
numbers of a lecture it is held against (`Published`), what it claims of two arms (`Claim`), and what is drawn
(`Figure`).
"""

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from clearformer.errors import ConfigError, UserError, did_you_mean

if TYPE_CHECKING:
    from clearformer.study.outcomes import Outcome

Values = Mapping[str, Any]
"""Measurements by their names: numbers, and for figures lists and mappings of them, as JSON has them."""

RESERVED = ("measured", "runs", "claims", "all", "failed", "logs")
"""Folders beside those of the studies, and the word for every study."""


@dataclass(frozen=True)
class Measure:
    """A function `f(run, **arguments) -> Values` of a trained run, and its arguments.

    Its name says both, so that what was measured with other arguments is another measure.
    """

    function: Callable[..., Values]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return call_name(self.function, self.arguments)

    @property
    def key(self) -> str:
        """Its name, and of a function of one's own a hash of its text: one that was changed measures anew."""
        return call_name(self.function, self.arguments, identity(self.function))


@dataclass(frozen=True)
class Training:
    """An arm that is trained: a preset with settings laid over it, once for every seed.

    Attributes:
        label: Its name in tables and figures.
        preset: What it begins with.
        settings: `{"model.n_layers": 2, "train.lr": 1e-3}`, laid over the study's own `settings`.
        seeds: How many seeds, where it has others than the study.
        side: Of a comparison: the arms of one side differ in a setting that is tuned, and the best of them stands for
            it (see `tuned`).
    """

    label: str
    preset: str = "lecture"
    settings: Mapping[str, Any] = field(default_factory=dict)
    seeds: int | None = None
    side: str = ""


@dataclass(frozen=True)
class Probe:
    """An arm that is computed without training: a function `f(seed=..., **arguments) -> Values`, once for every seed.

    Attributes:
        label: Its name in tables and figures.
        function: One of a module; its name and arguments say which probe it is.
        arguments: As JSON has them.
        seeds: How many seeds, where it has others than the study; 1 where nothing is drawn.
    """

    label: str
    function: Callable[..., Values]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    seeds: int | None = None


Arm = Training | Probe


def tuned(
    side: str, settings: Mapping[str, Any], rates: Sequence[float], preset: str = "lecture"
) -> tuple[Training, ...]:
    """The arms of one side of a comparison, trained at each of a grid of learning rates.

    The arm with the lowest mean held-out loss over all seeds stands for the side, in claims, tables and figures that
    name it (`Outcome.best`); arms that lack that loss for a seed, for they diverged, do not. All sides of a study have
    the same grid, and what it chooses is in `Outcome.tuning`.
    """
    return tuple(
        Training(f"{side}, rate {rate:g}", preset, {**settings, "train.lr": rate}, side=side)
        for rate in rates
    )


@dataclass(frozen=True)
class Published:
    """A number of a lecture, and within which tolerance it counts as reproduced.

    Attributes:
        arm: The label of the arm that measures it.
        value: The name of the measured value.
        published: The lecture's number.
        tolerance: The largest distance of the mean over seeds, in the same unit.
        section: Where it stands.
        slip: Why the lecture's number is wrong, where it is; then this is the verdict, and both numbers are shown.
        why: A reason to name where it is not reproduced.
    """

    arm: str
    value: str
    published: float
    tolerance: float
    section: str
    slip: str = ""
    why: str = ""


@dataclass(frozen=True)
class Claim:
    """The claim that a value is lower for one arm than for another, judged by the differences seed by seed.

    It holds where the 95% interval of the mean difference lies on its side of zero, is refuted where it lies on the
    other, and is undecided where it holds zero.

    Attributes:
        text: The claim as a sentence.
        value: The name of the measured value.
        lower: The label of the arm that is said to be lower, or of a side, which its best arm stands for.
        higher: The label of the other.
        against: The name of the other's value, where it is another one.
    """

    text: str
    value: str
    lower: str
    higher: str
    against: str = ""


class Figure(Protocol):
    """A drawing of what was measured; `study.report.figures` has the usual ones."""

    @property
    def title(self) -> str: ...

    def inches(self, outcome: "Outcome") -> tuple[float, float]:
        """Width and height."""
        ...

    def draw(self, canvas: Any, outcome: "Outcome") -> None:
        """Draw it on a figure of matplotlib; arms that were not measured are left out."""
        ...


@dataclass(frozen=True)
class Study:
    """A question, and all that is done to answer it.

    Attributes:
        name: A word for the command line and the folder.
        question: One sentence.
        lecture: The section that it belongs to, such as `000, 5.2`.
        arms: What is run or computed.
        refuted_if: What would refute the claim, in one sentence.
        settings: Laid over the preset of every training arm.
        measures: Of every trained run.
        shown: The names of the values that the table shows; all numbers, where empty.
        published: The lecture's numbers.
        claims: Comparisons of two arms, judged by the paired differences.
        figures: What is drawn.
        fairness: What the arms have in common, in one sentence.
        meaning: What came out at full scale, in two or three sentences; empty before it was run.
        seeds: How many seeds: 1, 2, ...
        tuned_by: The value by which the best arm of a side is found; the lowest mean is best.
        first_seed: The first of them, where it is another than 1.
    """

    name: str
    question: str
    lecture: str
    arms: tuple[Arm, ...]
    refuted_if: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    measures: tuple[Measure, ...] = ()
    shown: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()
    claims: tuple[Claim, ...] = ()
    figures: tuple[Figure, ...] = ()
    fairness: str = ""
    meaning: str = ""
    seeds: int = 3
    tuned_by: str = "val_loss"
    first_seed: int = 1

    def __post_init__(self) -> None:
        check_name(self.name)
        labels = [arm.label for arm in self.arms]
        if not labels:
            raise ConfigError(f"study {self.name}: it has no arms, and nothing to run")
        if len(set(labels)) < len(labels):
            twice = next(label for label in labels if labels.count(label) > 1)
            raise ConfigError(
                f"study {self.name}: two arms are called {twice!r}; give each a label of its own"
            )
        if taken := [side for side in self.sides if side in labels]:
            raise ConfigError(
                f"study {self.name}: a side and an arm are called {taken[0]!r}; give each a label of its own"
            )
        labels += self.sides
        for whose in (*self.published, *self.claims):
            arms = (whose.arm,) if isinstance(whose, Published) else (whose.lower, whose.higher)
            for arm in arms:
                if arm not in labels:
                    hint = did_you_mean(arm, labels) or f"; there are {', '.join(labels)}"
                    raise ConfigError(f"study {self.name}: there is no arm {arm!r}{hint}")
        if self.seeds < 1:
            raise ConfigError(f"study {self.name}: seeds: 1 or more; got {self.seeds}")

    @property
    def sides(self) -> dict[str, tuple[str, ...]]:
        """The sides whose best arm stands for them, each with the labels of its arms."""
        found: dict[str, tuple[str, ...]] = {}
        for arm in self.arms:
            if isinstance(arm, Training) and arm.side:
                found[arm.side] = (*found.get(arm.side, ()), arm.label)
        return found

    def arm(self, label: str) -> Arm:
        """The arm of a label."""
        return next(arm for arm in self.arms if arm.label == label)

    def seeds_of(self, arm: Arm, seeds: int | None = None) -> range:
        """The seeds of one of its arms; `seeds` in place of the study's own number."""
        return range(self.first_seed, self.first_seed + (arm.seeds or seeds or self.seeds))


def check_name(name: str) -> None:
    """Raise ConfigError where a study's name is no name of a folder, or is taken."""
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name) or not name.isascii():
        raise ConfigError(f"a study's name is made of letters, digits, - and _; got {name!r}")
    if name in RESERVED:
        raise ConfigError(f"no study can be called {name!r}; choose another name")


def call_name(function: Callable[..., Any], arguments: Mapping[str, Any], name: str | None = None) -> str:
    """A function, under another name where one is given, and its arguments: `after_prompt(prompt='To be')`."""
    name = function.__name__ if name is None else name
    if not arguments:
        return name
    written = ", ".join(f"{key}={value!r}" for key, value in sorted(arguments.items()))
    return f"{name}({written})"


def identity(function: Callable[..., Any]) -> str:
    """A function's name, and of one of the user's own a hash of its text behind it: `count@1f09a2b4`."""
    if function.__module__.partition(".")[0] == __name__.partition(".")[0]:
        return function.__name__
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):  # typed at a prompt
        return function.__name__
    return f"{function.__name__}@{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def check_scale(scale: float) -> None:
    """Raise UserError where a scale of the steps is none."""
    if not 0 < scale <= 1:
        raise UserError(f"scale: above 0 and up to 1, the whole study; got {scale:g}")


def check_seeds(seeds: int | None) -> None:
    """Raise UserError where a number of seeds is none."""
    if seeds is not None and seeds < 1:
        raise UserError(f"seeds: 1 or more; got {seeds}")
