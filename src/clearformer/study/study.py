"""A study: a question, the runs that answer it, the measures taken of them, and the result that would refute it.

A study is data. It lists its arms (`Training`, `Probe`) and seeds, the measures of each run (`Measure`), the published
numbers to compare with (`Published`), claims about two arms (`Claim`), and the figures to draw (`Figure`).
"""

import copy
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from types import CellType, CodeType
from typing import TYPE_CHECKING, Any, Protocol

from clearformer.config import is_packaged
from clearformer.decoding.arguments import check_whole
from clearformer.errors import ConfigError, UserError, did_you_mean, shown

if TYPE_CHECKING:
    from clearformer.study.outcomes import Outcome

Values = Mapping[str, Any]
"""Measurements by name, as JSON values: numbers, and for figures also lists and mappings of numbers."""

RESERVED = ("measured", "runs", "claims", "all", "failed", "logs")
"""Names that no study can have: other folders in the folder of studies, and the word for every study."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Measure:
    """A function `f(run, **arguments) -> Values` that measures a trained run, and its arguments.

    The name includes the arguments, which are JSON values: the same function with other arguments is another measure.

    Raises:
        ConfigError: an argument is no JSON value, such as an array.
    """

    function: Callable[..., Values]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _keep_copy(self, "arguments")
        check_json(f"measure {name_of_function(self.function)}", self.arguments)

    @property
    def name(self) -> str:
        return call_name(self.function, self.arguments)

    @property
    def key(self) -> str:
        """The name, with a hash of the source of a user's function, so that it is measured again once edited."""
        return call_name(self.function, self.arguments, identity(self.function))


@dataclass(frozen=True)
class Training:
    """An arm that is trained, once per seed: a preset with settings applied on top.

    Attributes:
        label: Its name in tables and figures.
        preset: The preset to start from.
        settings: `{"model.n_layers": 2, "train.lr": 1e-3}`, applied on top of the study's own `settings`.
        seeds: The number of seeds, if it differs from the study's.
        side: The side of a comparison that the arm belongs to. The arms of a side differ in a tuned setting, and the
            best of them represents the side (see `tuned`).
    """

    label: str
    preset: str = "lecture"
    settings: Mapping[str, Any] = field(default_factory=dict)
    seeds: int | None = None
    side: str = ""

    def __post_init__(self) -> None:
        _keep_copy(self, "settings")


@dataclass(frozen=True)
class Probe:
    """An arm that is computed without training: a function `f(seed=..., **arguments) -> Values`, called once per seed.

    Attributes:
        label: Its name in tables and figures.
        function: A module-level function; its name and arguments identify the probe.
        arguments: Its keyword arguments, as JSON values.
        seeds: The number of seeds, if it differs from the study's; 1 if the function draws nothing at random.
        reads: The files that the function reads; it is called again when their contents change.
    """

    label: str
    function: Callable[..., Values]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    seeds: int | None = None
    reads: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _keep_copy(self, "arguments")
        check_json(f"probe {name_of_function(self.function)}", self.arguments)


Arm = Training | Probe


def tuned(
    side: str, settings: Mapping[str, Any], rates: Sequence[float], preset: str = "lecture"
) -> tuple[Training, ...]:
    """Return the arms of one side of a comparison, one for each learning rate of a grid.

    In claims, tables and figures that name the side, the arm with the lowest mean held-out loss over all seeds
    represents it (`Outcome.best`). Arms that lack the loss for some seed, because they diverged, are not considered.
    The arms are in the order of their rates. Give all sides of a study the same grid; `Outcome.tuning` reports the
    chosen arms.
    """
    return tuple(
        Training(f"{side}, rate {rate:g}", preset, {**settings, "train.lr": rate}, side=side)
        for rate in sorted(rates)
    )


@dataclass(frozen=True)
class Published:
    """A number published in a lecture, and the tolerance within which it counts as reproduced.

    Attributes:
        arm: The label of the arm that measures it.
        value: The name of the measured value.
        published: The lecture's number.
        tolerance: The largest accepted distance from the mean over seeds, in the same unit.
        section: The lecture's section.
        slip: Why the lecture's number is wrong, if it is; a measured number beyond the tolerance is then a slip of the
            lecture.
        why: The reason to report if the number is not reproduced.
        decides: Whether the study is refuted if the number is not reproduced (see `Study.refuted_if`).
        printed: Whether the lecture prints the number; otherwise it follows from what the lecture says.
    """

    arm: str
    value: str
    published: float
    tolerance: float
    section: str
    slip: str = ""
    why: str = ""
    decides: bool = False
    printed: bool = True


@dataclass(frozen=True)
class Claim:
    """The claim that a value is lower for one arm than for another, judged by the paired differences over seeds.

    The claim holds if the 95% interval of the mean difference lies below zero, is refuted if it lies above, and is
    undecided if it contains zero.

    Attributes:
        text: The claim as a sentence.
        value: The name of the measured value.
        lower: The label of the arm claimed to be lower, or of a side, represented by its best arm.
        higher: The label of the other arm or side.
        against: The name of the other arm's value, if it is not `value`.
        decides: Whether the study is refuted if the claim is (see `Study.refuted_if`).
        afterwards: Whether it was written when its results were known. Such a claim tests a sentence about them and
            has predicted nothing; the report says which are such.
    """

    text: str
    value: str
    lower: str
    higher: str
    against: str = ""
    decides: bool = False
    afterwards: bool = False


class Figure(Protocol):
    """A figure of the measured values; `study.figures` has the usual ones."""

    @property
    def title(self) -> str: ...

    def inches(self, outcome: "Outcome") -> tuple[float, float]:
        """Return the width and height."""
        ...

    def draw(self, canvas: Any, outcome: "Outcome") -> None:
        """Draw on a matplotlib figure; arms that were not measured are left out."""
        ...


@dataclass(frozen=True)
class Study:
    """A question, and everything that is run and measured to answer it.

    Attributes:
        name: One word, for the command line and the folder.
        question: One sentence.
        lecture: The section that it belongs to, such as `000, 5.2`.
        arms: The trainings and probes.
        refuted_if: The result that would refute the claim, in one sentence. The report says whether it has come, by the
            published numbers and claims that are declared with `decides=True`.
        settings: Settings of every training arm, applied on top of its preset.
        measures: The measures of every trained run.
        shown: The names of the values in the table; if empty, all numbers.
        published: The lecture's numbers.
        claims: Comparisons of two arms, judged by the paired differences.
        figures: The figures to draw.
        fairness: What the arms have in common, in one sentence.
        meaning: The result at full scale, in two or three sentences; empty before the study was run.
        seeds: The number of seeds.
        tuned_by: The value that selects the best arm of a side; the lowest mean is best.
        first_seed: The first seed; the others follow it one by one.
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
        for name, kinds in PARTS.items():
            _keep_tuple(self, name, kinds)
        _keep_copy(self, "settings")
        check_whole("seeds", self.seeds)
        check_whole("first_seed", self.first_seed, least=0)
        for arm in self.arms:
            if arm.seeds is not None:
                check_whole("seeds", arm.seeds, least=1)
        keys = [measure.key for measure in self.measures]
        if twice := [measure.name for measure in self.measures if keys.count(measure.key) > 1]:
            raise ConfigError(f"study {self.name}: two measures are the same, {twice[0]}; remove one")
        labels = [arm.label for arm in self.arms]
        if not labels:
            raise ConfigError(f"study {self.name}: no arms, so nothing to run")
        if len(set(labels)) < len(labels):
            twice = next(label for label in labels if labels.count(label) > 1)
            raise ConfigError(f"study {self.name}: two arms have the label {twice!r}; give each its own")
        if taken := [side for side in self.sides if side in labels]:
            raise ConfigError(
                f"study {self.name}: a side and an arm have the label {taken[0]!r}; give each its own"
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
        trainings = [arm.settings for arm in self.arms if isinstance(arm, Training)]
        if any("seed" in settings for settings in (self.settings, *trainings)):
            raise ConfigError(
                f"study {self.name}: seed is no setting of an arm, for every arm is trained with the study's seeds; "
                "give seeds and first_seed"
            )

    @property
    def sides(self) -> dict[str, tuple[str, ...]]:
        """The sides of the comparison, each with the labels of its arms."""
        found: dict[str, tuple[str, ...]] = {}
        for arm in self.arms:
            if isinstance(arm, Training) and arm.side:
                found[arm.side] = (*found.get(arm.side, ()), arm.label)
        return found

    def arm(self, label: str) -> Arm:
        """Return the arm with a label."""
        return next(arm for arm in self.arms if arm.label == label)

    def seeds_of(self, arm: Arm, seeds: int | None = None) -> range:
        """Return the seeds of an arm; `seeds` replaces the study's number of seeds, but not the arm's own."""
        return range(self.first_seed, self.first_seed + (arm.seeds or seeds or self.seeds))


PARTS: dict[str, tuple[type, ...]] = {
    "arms": (Training, Probe),
    "measures": (Measure,),
    "shown": (str,),
    "published": (Published,),
    "claims": (Claim,),
    "figures": (object,),
}
"""The parts of a study that are sequences, and what they consist of."""


def _keep_tuple(study: Study, name: str, kinds: tuple[type, ...]) -> None:
    """Keep a sequence of a study, which may have been given as a generator, as a tuple.

    Raises:
        ConfigError: it is none, or contains something else.
    """
    given, wanted = getattr(study, name), " or ".join(kind.__name__ for kind in kinds)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"study {study.name}: {name}: a sequence of {wanted}; got {shown(given)}")
    found = tuple(given)
    if wrong := [each for each in found if not isinstance(each, kinds)]:
        raise ConfigError(f"study {study.name}: {name}: each is a {wanted}; got {shown(wrong[0])}")
    object.__setattr__(study, name, found)


def _keep_copy(part: Any, name: str) -> None:
    """Replace a mapping by a copy, so that what its caller changes later does not change the study.

    Raises:
        ConfigError: it is no mapping.
    """
    given = getattr(part, name)
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name}: a mapping of values by name; got {shown(given)}")
    object.__setattr__(part, name, copy.deepcopy(dict(given)))


def name_of_function(function: Any) -> str:
    """Return the name of a measure's or a probe's function; raise ConfigError if it is none or has no name."""
    if not callable(function) or not hasattr(function, "__name__"):
        raise ConfigError(f"a measure's or a probe's function is one with a name; got {shown(function)}")
    return function.__name__


def check_json(whose: str, arguments: Mapping[str, Any]) -> None:
    """Raise ConfigError if an argument is no JSON value: by these, results are found again."""
    for name, value in arguments.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise ConfigError(
                f"{whose}: {name}: finite numbers, texts, lists or mappings of them; got {shown(value)}"
            ) from None


def check_name(name: str) -> None:
    """Raise ConfigError if a study's name cannot name a folder or an argument of a command, or is reserved."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(
            f"a study's name consists of letters, digits, - and _, and - is not the first; got {shown(name)}"
        )
    if name in RESERVED:
        raise ConfigError(f"the name {name!r} is reserved; choose another name for the study")


def call_name(function: Callable[..., Any], arguments: Mapping[str, Any], name: str | None = None) -> str:
    """Return a function call as text, such as `after_prompt(prompt='To be')`; `name` replaces the function's name."""
    name = function.__name__ if name is None else name
    if not arguments:
        return name
    written = ", ".join(f"{key}={value!r}" for key, value in sorted(arguments.items()))
    return f"{name}({written})"


def identity(function: Callable[..., Any]) -> str:
    """Return a function's name; for the user's own functions, with a hash of the source: `count@1f09a2b4`.

    What a function holds of the place that made it counts as well: its defaults, and the values of functions around it.
    """
    if is_packaged(function):
        return function.__name__
    inner = inspect.unwrap(function)
    text = _source(inner)
    cells = [cell.cell_contents for cell in getattr(inner, "__closure__", None) or () if _is_filled(cell)]
    if len(cells) == 1 and isinstance(cells[0], int | float | str):
        text += repr(cells[0])  # as in every version, so that what was measured is found
    elif cells:
        text += _lasting(cells)
    defaults = getattr(inner, "__defaults__", None), getattr(inner, "__kwdefaults__", None)
    text += _lasting(defaults) if any(defaults) else ""
    return f"{function.__name__}@{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _source(function: Any) -> str:
    try:
        source = inspect.getsource(function)
        return source if source.count("lambda") < 2 else f"{source}{_end_of(function)}"
    except (OSError, TypeError):  # typed at a prompt, or not in Python
        return _instructions(getattr(function, "__code__", None))


def _end_of(function: Any) -> str:
    """Return the column where a function ends: of several lambdas in one line the source is that of all."""
    code = getattr(function, "__code__", None)
    places = [] if code is None else [place for place in code.co_positions() if None not in place]
    return str(max((end_line, end) for _, end_line, _, end in places)[1]) if places else ""


def _lasting(value: Any) -> str:
    """Return a value as text that is the same in every process: `repr` may show an address, or sets in any order."""
    match value:
        case list():
            return f"[{', '.join(map(_lasting, value))}]"
        case tuple():
            return f"({', '.join(map(_lasting, value))}{',' * (len(value) == 1)})"
        case dict():
            return f"{{{', '.join(f'{key!r}: {_lasting(each)}' for key, each in value.items())}}}"
        case set() | frozenset():
            return f"{type(value).__name__}({sorted(map(_lasting, value))})"
        case partial():
            return f"partial{_lasting((value.func, value.args, value.keywords))}"
    if inspect.isroutine(value) or isinstance(value, type):
        return value.__qualname__ + _source(value)
    if inspect.ismodule(value):
        return value.__name__
    return repr(value) if type(value).__repr__ is not object.__repr__ else type(value).__qualname__


def _instructions(code: CodeType | None) -> str:
    """Return what a function without a source does, as text; empty if that is not known either."""
    if code is None:
        return ""
    constants = [_instructions(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  (raises if it is empty)
    except ValueError:
        return False
    return True


def check_scale(scale: float) -> None:
    """Raise UserError if the scale of the steps is no number, or out of range."""
    if isinstance(scale, bool) or not isinstance(scale, Real):
        raise UserError(f"scale: a number above 0 and up to 1 (the whole study); got {shown(scale)}")
    if not 0 < scale <= 1:
        raise UserError(f"scale: above 0 and up to 1 (the whole study); got {scale:g}")


def check_seeds(seeds: int | None) -> None:
    """Raise UserError if the number of seeds is no whole number, or below 1."""
    if seeds is None:
        return
    check_whole("seeds", seeds, least=1)
