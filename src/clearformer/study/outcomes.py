"""Results of a study: means over seeds with their 95% intervals, paired differences, verdicts.

Intervals are Student's, of the mean over seeds. Comparisons are paired: differences of two arms are taken seed by
seed, because the same seed gives both arms the same data in the same order.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from clearformer.errors import UserError, count, did_you_mean, needs_extra, shown
from clearformer.results import Result
from clearformer.study.running import is_number
from clearformer.study.store import Record, Store
from clearformer.study.study import Claim, Probe, Published, Study
from clearformer.study.trials import trial_name, trials
from clearformer.training.objectives import loss_unit

REPRODUCED, NOT_REPRODUCED, SLIP = "reproduced", "not reproduced", "a slip of the lecture"
NOT_RUN, NOT_JUDGED = "not run yet", "not judged at this scale"
HOLDS, REFUTED, UNDECIDED = "holds", "refuted", "undecided: the interval contains zero"
FEW_SEEDS = "undecided: one seed has no interval"
IS_REFUTED, IS_NOT_REFUTED, IS_OPEN, BY_NO_NUMBER = "yes", "no", "undecided", "no single number tells"
IS_THERE, HAS_NOT_RUN = "", "has not run yet"


@dataclass(frozen=True, repr=False, eq=False)
class Estimate(Result):
    """A mean over seeds.

    Attributes:
        mean: The mean.
        low: The lower end of its 95% interval; None with a single seed.
        high: The upper end.
        n: The number of seeds.
        values: The value of each seed.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    values: tuple[float, ...]

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width; None with a single seed."""
        return None if self.high is None else self.high - self.mean


@dataclass(frozen=True, repr=False, eq=False)
class PublishedVerdict(Result):
    """A published number next to the measured one."""

    arm: str
    value: str
    section: str
    published: float
    tolerance: float
    measured: Estimate | None
    verdict: str
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return the values in the format of result.json."""
        measured = self.measured
        interval = None if measured is None or measured.low is None else [measured.low, measured.high]
        return {
            "arm": self.arm,
            "name": self.value,
            "section": self.section,
            "value": self.published,
            "tolerance": self.tolerance,
            "measured": None if measured is None else measured.mean,
            "interval": interval,
            "seeds": 0 if measured is None else measured.n,
            "verdict": self.verdict,
            "reason": self.reason,
        }


@dataclass(frozen=True, repr=False, eq=False)
class ClaimVerdict(Result):
    """A claim and its verdict from the paired differences (lower - higher); a side is replaced by its best arm.

    `against` is the name of the higher arm's value, if it is another one; for `afterwards` see `Claim`.
    """

    text: str
    value: str
    lower: str
    higher: str
    difference: Estimate | None
    verdict: str
    against: str = ""
    afterwards: bool = False


@dataclass(frozen=True, repr=False, eq=False)
class Refutation(Result):
    """The answer to whether a study is refuted.

    Attributes:
        verdict: `yes`, `no`, `undecided`, or `no single number tells`.
        because: The verdicts that decided it: of `yes` those against the study, of `undecided` those still open.
    """

    verdict: str
    because: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False, eq=False)
class Tuning(Result):
    """The arm that represents a side of a comparison.

    Attributes:
        side: The side.
        best: The arm's label.
        arms: All of the side's arms.
        mean: The mean over seeds of the value that the arm was selected by.
        n: The number of seeds.
        is_at_the_edge: Whether the arm is the first or last of the grid, so that a wider grid might contain a better.
    """

    side: str
    best: str
    arms: tuple[str, ...]
    mean: float
    n: int
    is_at_the_edge: bool


@dataclass(frozen=True)
class Outcome:
    """The measurements of a study, and the verdicts that follow from them.

    Attributes:
        study: The study.
        scale: The fraction of its training steps that was run.
        n_trials: The number of its runs, done or not.
        records: The measurements, by the arm's label and the seed.
        failures: Why runs failed, by their names.
        unmeasured: The names of the runs of which some measures are missing; the others' values count.
        seeds: The number of seeds that replaces the study's own; None if the study's own was used.
    """

    study: Study
    scale: float
    n_trials: int
    records: dict[str, dict[int, Record]]
    failures: dict[str, str]
    seeds: int | None = None
    unmeasured: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"Outcome({self.study.name}: {self.n_done} of {count(self.n_trials, 'run')} done)"

    def _repr_html_(self) -> str:
        """Return the report's tables for a notebook."""
        from clearformer.study.report.content import state, tables
        from clearformer.study.report.html_page import html_of

        question = f"<p>{escape(self.study.question)}</p>"
        return question + "".join(html_of(node) for part in (state, tables) for node in part(self))

    @property
    def missing(self) -> list[str]:
        """The names of the runs that are not done and measured."""
        names = {
            trial_name(arm.label, seed): seed in self.records.get(arm.label, {})
            for arm in self.study.arms
            for seed in self.study.seeds_of(arm, self.seeds)
        }
        return [name for name, is_there in names.items() if not is_there or name in self.unmeasured]

    @property
    def n_done(self) -> int:
        return sum(len(by_seed) for by_seed in self.records.values()) - len(self.unmeasured)

    @property
    def is_whole(self) -> bool:
        """Whether every run is done and measured."""
        return self.n_done == self.n_trials

    @cached_property
    def loss_unit(self) -> str:
        """The unit of the study's losses: nats a token, or of classifiers a text."""
        configs = [trial.config for trial in trials(self.study, seeds=1) if trial.config is not None]
        return loss_unit(config.train.objective for config in configs)

    @property
    def labels(self) -> list[str]:
        """The arms that have measurements, in the study's order."""
        return [arm.label for arm in self.study.arms if self.records.get(arm.label)]

    def tuning(self) -> list[Tuning]:
        """Return the best arm of each side; sides without measurements are left out."""
        found = []
        for side, arms in self.study.sides.items():
            means, n = self._means_to_tune_by(arms)
            if means:
                best = min(means, key=means.__getitem__)
                at_the_edge = best in (arms[0], arms[-1])
                found.append(Tuning(side, best, arms, means[best], n, at_the_edge))
        return found

    def _means_to_tune_by(self, arms: Sequence[str]) -> tuple[dict[str, float], int]:
        """Return the means that a side's arms are selected by, and their number of seeds.

        They are of the arms that have the value in each of their runs, over the seeds that all of these have so far. If
        each arm lacks it for some seed, because it diverged, they are of the arms that have it most often.
        """
        records = {arm: self.records[arm] for arm in arms if self.records.get(arm)}
        values = {
            arm: {
                seed: value
                for seed, record in by_seed.items()
                if is_number(value := record.values.get(self.study.tuned_by))
            }
            for arm, by_seed in records.items()
        }
        whole = {arm: by_seed for arm, by_seed in values.items() if len(by_seed) == len(records[arm])}
        if whole:
            seeds = set.intersection(*map(set, whole.values()))
            means = {
                arm: statistics.fmean(by_seed[seed] for seed in seeds)
                for arm, by_seed in whole.items()
                if seeds
            }
            return means, len(seeds)
        n = max(map(len, values.values()), default=0)
        return {
            arm: statistics.fmean(by_seed.values())
            for arm, by_seed in values.items()
            if len(by_seed) == n > 0
        }, n

    def _is_tuned(self, label: str) -> bool:
        """Whether all runs of a side are done; until then another arm may turn out to be its best."""
        return all(
            seed in self.records.get(arm, {})
            for arm in self.study.sides.get(label, ())
            for seed in self.study.seeds_of(self.study.arm(arm), self.seeds)
        )

    def best(self, label: str) -> str:
        """Return the best arm of a side; the label itself if it is an arm, or a side without measurements.

        Raises:
            UserError: the study has no such arm or side; the message suggests the nearest.
        """
        if label not in self.study.sides:
            known = [*(arm.label for arm in self.study.arms), *self.study.sides]
            if label not in known:
                hint = did_you_mean(label, known) or f"; there are {', '.join(known)}"
                raise UserError(f"study {self.study.name}: there is no arm {shown(label)}{hint}")
            return label
        return next((tuning.best for tuning in self.tuning() if tuning.side == label), label)

    @property
    def compared(self) -> list[str]:
        """The arms that have measurements, with each side in place of its arms."""
        sides = {arm: side for side, arms in self.study.sides.items() for arm in arms}
        return list(dict.fromkeys(sides.get(label, label) for label in self.labels))

    def value(self, arm: str, name: str) -> list[Any]:
        """Return a value of an arm or a side for each seed; seeds that lack it are left out."""
        by_seed = self.records.get(self.best(arm), {})
        found = (by_seed[seed].values.get(name) for seed in sorted(by_seed))
        return [value for value in found if value is not None]

    def first(self, arm: str, name: str) -> Any:
        """Return a value, such as a sample, of the arm's first seed that has it; None if no seed has it."""
        return next(iter(self.value(arm, name)), None)

    def estimate(self, arm: str, name: str) -> Estimate | None:
        """Return the mean of a number over seeds; None if it was not measured."""
        return estimated([value for value in self.value(arm, name) if is_number(value)])

    def difference(self, one: str, other: str, name: str, others: str = "") -> Estimate | None:
        """Return the mean over seeds of one arm's number minus another's; None if they share no seed.

        A probe that is declared for one seed, as it draws nothing, has the same number for every seed of the other arm.

        Args:
            one: An arm or a side.
            other: The arm or side that is subtracted.
            name: The name of the number.
            others: The name of the other arm's number, if it is not `name`.
        """
        ours, theirs = self.records.get(self.best(one), {}), self.records.get(self.best(other), {})
        if self._draws_nothing(one) and ours:
            ours = dict.fromkeys(theirs, next(iter(ours.values())))
        elif self._draws_nothing(other) and theirs:
            theirs = dict.fromkeys(ours, next(iter(theirs.values())))
        pairs = [
            (ours[seed].values.get(name), theirs[seed].values.get(others or name))
            for seed in sorted(ours.keys() & theirs.keys())
        ]
        return estimated([a - b for a, b in pairs if is_number(a) and is_number(b)])

    def _draws_nothing(self, label: str) -> bool:
        arm = next((arm for arm in self.study.arms if arm.label == self.best(label)), None)
        return isinstance(arm, Probe) and arm.seeds == 1

    def numbers(self) -> list[str]:
        """Return the names of the numbers that the table shows."""
        if self.study.shown:
            return list(self.study.shown)
        return list(dict.fromkeys(name for label in self.labels for name in self.all_numbers(label)))

    def is_sparse(self, names: Sequence[str]) -> bool:
        """Whether each of some numbers was measured for less than half of the arms, as where every arm has its own."""
        counts = (sum(bool(self.by_seed(label, name)) for label in self.labels) for name in names)
        return len(self.labels) > 2 and all(2 * n < len(self.labels) for n in counts)

    def all_numbers(self, arm: str) -> list[str]:
        """Return the names of all numbers measured of an arm."""
        values = (record.values for record in self.records.get(arm, {}).values())
        return list(
            dict.fromkeys(name for each in values for name, value in each.items() if is_number(value))
        )

    def by_seed(self, arm: str, name: str) -> dict[int, float]:
        """Return a number of an arm by seed; seeds that lack it are left out."""
        found = (
            (seed, record.values.get(name)) for seed, record in sorted(self.records.get(arm, {}).items())
        )
        return {seed: value for seed, value in found if is_number(value)}

    def published(self) -> list[PublishedVerdict]:
        """Return the verdicts on the lecture's numbers."""
        return [self._published(each) for each in self.study.published]

    def _published(self, published: Published) -> PublishedVerdict:
        measured = self.estimate(published.arm, published.value)
        verdict, reason = self._verdict(published, measured)
        return PublishedVerdict(
            published.arm,
            published.value,
            published.section,
            published.published,
            published.tolerance,
            measured,
            verdict,
            reason,
        )

    def _verdict(self, published: Published, measured: Estimate | None) -> tuple[str, str]:
        gap = self.gap(published.arm, published.value)
        if measured is None and not gap:
            return NOT_RUN, ""
        if not gap and not self._is_tuned(published.arm):
            gap = f"not every rate of {published.arm} has run"
        if measured is None or gap:
            return f"undecided: {gap}", ""
        if self.scale < 1 and not self._is_probe(published.arm):
            return NOT_JUDGED, ""
        if _is_within(abs(measured.mean - published.published), published.tolerance):
            return REPRODUCED, ""
        return (SLIP, published.slip) if published.slip else (NOT_REPRODUCED, published.why)

    def _is_probe(self, arm: str) -> bool:
        return isinstance(self.study.arm(self.best(arm)), Probe)

    def claims(self) -> list[ClaimVerdict]:
        """Return the verdicts on the study's claims."""
        return [self._claim(claim) for claim in self.study.claims]

    def _claim(self, claim: Claim) -> ClaimVerdict:
        difference = self.difference(claim.lower, claim.higher, claim.value, claim.against)
        lower, higher = self.best(claim.lower), self.best(claim.higher)
        gaps = [self.gap(claim.lower, claim.value), self.gap(claim.higher, claim.against or claim.value)]
        if difference is not None:
            sides = (claim.lower, claim.higher)
            gaps += [f"not every rate of {side} has run" for side in sides if not self._is_tuned(side)]
        found = "; ".join(gap for gap in gaps if gap)
        verdict = f"undecided: {found}" if found else claim_verdict(difference)
        return ClaimVerdict(
            claim.text, claim.value, lower, higher, difference, verdict, claim.against, claim.afterwards
        )

    def refutation(self) -> Refutation:
        """Return whether the result has come that would refute the study."""
        study = self.study
        published = zip(study.published, self.published(), strict=True)
        claims = zip(study.claims, self.claims(), strict=True)
        found = [(_said_of(verdict), verdict.verdict) for each, verdict in published if each.decides]
        found += [(verdict.text, verdict.verdict) for each, verdict in claims if each.decides]
        if not found:
            return Refutation(BY_NO_NUMBER)
        against = tuple(text for text, verdict in found if verdict in (REFUTED, NOT_REPRODUCED, SLIP))
        if against:
            return Refutation(IS_REFUTED, against)
        still_open = tuple(text for text, verdict in found if verdict not in (HOLDS, REPRODUCED))
        return Refutation(IS_OPEN, still_open) if still_open else Refutation(IS_NOT_REFUTED)

    def gap(self, label: str, name: str) -> str:
        """Say which seeds of an arm or a side have no finite number, where a mean of the others would mislead."""
        best = self.best(label)
        arms = (best,) if best in self.records else self.study.sides.get(label, (best,))
        reasons: dict[str, list[int]] = {}
        for arm in arms:
            for seed in self.study.seeds_of(self.study.arm(arm), self.seeds):
                reasons.setdefault(self._why_no_number(arm, seed, name), []).append(seed)
        reasons.pop(HAS_NOT_RUN, None)  # the report names these apart
        n = sum(map(len, reasons.values()))
        reasons.pop(IS_THERE, None)
        parts = [
            reason if len(seeds) == n else f"{reason} with {_seeds(seeds)}"
            for reason, seeds in reasons.items()
        ]
        return f"{label} {' and '.join(parts)}" if parts else ""

    def _why_no_number(self, arm: str, seed: int, name: str) -> str:
        """Return why a run has no finite number of a name, as the end of a sentence about its arm."""
        run, record = trial_name(arm, seed), self.records.get(arm, {}).get(seed)
        if record is not None and is_number(record.values.get(name)):
            return IS_THERE
        if record is not None and "diverged_at" in record.values:
            return "diverged"
        if record is None or (run in self.unmeasured and name not in record.values):
            return "failed" if run in self.failures else HAS_NOT_RUN
        if any(name in each.values for each in self.records[arm].values()):
            return "gave no number"
        return f"has no value {shown(name)}{did_you_mean(name, record.values)}"


def _said_of(each: PublishedVerdict) -> str:
    """Return the sentence that a published number stands for."""
    return f"{each.arm}: {each.value.replace('_', ' ')} {each.published:,.10g}."


def _is_within(distance: float, tolerance: float) -> bool:
    """Whether a distance is at most the tolerance, but for rounding: 0.55 - 0.5 is a little above 0.05."""
    return distance <= tolerance or math.isclose(distance, tolerance, rel_tol=1e-9)


def _seeds(seeds: Iterable[int]) -> str:
    numbers = sorted(seeds)
    return f"seed{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def claim_verdict(difference: Estimate | None) -> str:
    """Return the verdict on the claim that a difference is below zero."""
    if difference is None:
        return NOT_RUN
    if difference.low is None or difference.high is None:
        return FEW_SEEDS
    if difference.high < 0:
        return HOLDS
    return REFUTED if difference.low > 0 else UNDECIDED


def outcome(study: Study, store: Store, scale: float = 1.0, seeds: int | None = None) -> Outcome:
    """Return everything measured of a study so far.

    Raises:
        UserError: the scale is out of range.
        DataError: a file is damaged.
    """
    wanted = trials(study, scale, seeds)
    places = Counter(trial.settings_key for trial in {trial.identity: trial for trial in wanted}.values())
    records: dict[str, dict[int, Record]] = {}
    failures, unmeasured = {}, set()
    for trial in wanted:
        record = store.find(trial, or_without_its_file=places[trial.settings_key] == 1)
        is_whole = record is not None and record.has(trial)
        if record is not None and (is_whole or record.of(trial).measured):
            records.setdefault(trial.arm.label, {})[trial.seed] = record.of(trial)
            if not is_whole:
                unmeasured.add(trial.name)
        if not is_whole and (problem := store.failure(trial)) is not None:
            failures[trial.name] = problem
    return Outcome(study, scale, len(wanted), records, failures, seeds, frozenset(unmeasured))


def estimated(values: Sequence[float]) -> Estimate | None:
    """Return the mean of some numbers with Student's 95% interval; None if there are no numbers."""
    if not values:
        return None
    mean, n = statistics.fmean(values), len(values)
    if n == 1:
        return Estimate(mean, None, None, 1, tuple(values))
    half = student_quantile(n - 1) * statistics.stdev(values) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n, tuple(values))


def student_quantile(degrees_of_freedom: int) -> float:
    """Return the 97.5% quantile of Student's t-distribution.

    Raises:
        MissingPackageError: scipy is not installed.
    """
    with needs_extra("metrics", "an interval over seeds needs scipy"):
        from scipy.special import stdtrit
    return float(stdtrit(degrees_of_freedom, 0.975))
