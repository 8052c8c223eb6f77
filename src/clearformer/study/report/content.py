"""The content of a report: the summary of several studies, failures first, and each study's section."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clearformer.config import is_packaged
from clearformer.errors import count
from clearformer.parts import imported_files
from clearformer.study.figures.base import Drawn
from clearformer.study.figures.texts import Texts
from clearformer.study.lectures import lecture_studies
from clearformer.study.outcomes import (
    BY_NO_NUMBER,
    HOLDS,
    IS_NOT_REFUTED,
    IS_OPEN,
    IS_REFUTED,
    NOT_JUDGED,
    NOT_REPRODUCED,
    NOT_RUN,
    REFUTED,
    REPRODUCED,
    SLIP,
    UNDECIDED,
    ClaimVerdict,
    Outcome,
    PublishedVerdict,
    Tuning,
)
from clearformer.study.report.nodes import (
    Bullets,
    Cell,
    Command,
    Heading,
    Judged,
    Link,
    Node,
    Paragraph,
    Picture,
    Samples,
    Table,
)
from clearformer.study.report.pictures import in_words, is_there, svg_of
from clearformer.study.report.trained import machine_text, unique, what_was_trained
from clearformer.study.study import Figure, Probe, Study
from clearformer.study.trials import trial_name
from clearformer.study.words import (
    MINUS,
    as_written,
    estimate_text,
    interval_text,
    mean_text,
    name_of,
    named,
    number,
    signed_text,
)

TITLE = "Studies: published and measured"
PUBLISHED_HEADS = ("arm", "value", "published", "tolerance", "measured", "95% interval", "seeds", "verdict")
TUNING_HEADS = ("side", "best arm", "mean", "seeds", "arms tried", "at the edge of the grid")
CLAIM_HEADS = ("claim", "value", "difference", "95% interval", "seeds", "verdict")
MOST_COLUMNS, FEW_ARMS = 10, 3  # more values of so few arms are rows of a table, not columns
PLACE = re.compile(r"(?<![\w.~])(?:~|[A-Za-z]:)?(?:[/\\][\w.+~-]+){2,}")


RULE = (
    "Reproduced means that the mean over the seeds lies within the tolerance, wherever its interval ends; a claim "
    "holds if the 95% interval of the paired differences lies below zero. Each interval is that of one comparison: of "
    "many claims a few are expected to be judged wrongly. Learning rates are chosen on the held-out text and by the "
    "seeds that the claims are judged by."
)


def summary(outcomes: Sequence[Outcome], waiting: Sequence[Outcome] = ()) -> Iterator[Node]:
    """Yield the summary at the top of a report of several studies; those in `waiting` have no section."""
    everything = (*outcomes, *waiting)
    published = [(outcome, each) for outcome in everything for each in outcome.published()]
    claims = [(outcome, each) for outcome in everything for each in outcome.claims()]
    yield Paragraph(published_sentence([each for _, each in published]))
    if repeated := printed_sentence(everything):
        yield Paragraph(repeated)
    if claims:
        yield Paragraph(claims_sentence([each for _, each in claims]))
    yield Paragraph(runs_sentence(everything))
    yield from refutation_sentences(outcomes)
    if published:
        yield Paragraph(RULE, kind="small")
    if shortened := shortened_sentence(outcomes):
        yield Paragraph(shortened, "Shortened", "warning")
    yield from failed_tables(published, claims)
    yield studies_table(outcomes, waiting)


def published_sentence(found: Sequence[PublishedVerdict]) -> str:
    """Return a sentence with the number of published numbers by verdict, failures first."""
    if not found:
        return "No published number is compared."
    counts = Counter(each.verdict.split(":")[0] for each in found)
    words = {
        NOT_REPRODUCED: ("is not reproduced", "are not reproduced"),
        SLIP: ("is a slip of the lecture", "are slips of the lecture"),
        UNDECIDED.split(":")[0]: ("is undecided", "are undecided"),
        REPRODUCED: ("is reproduced", "are reproduced"),
        NOT_JUDGED: ("is not judged (shortened run)", "are not judged (shortened runs)"),
        NOT_RUN: ("is not run yet", "are not run yet"),
    }
    told = [count(counts[verdict], *words[verdict]) for verdict in words if counts[verdict]]
    return f"Of {count(len(found), 'published number')}, {listed(told)}."


def printed_sentence(outcomes: Sequence[Outcome]) -> str:
    """Return a sentence on the published numbers that no lecture prints, and on those compared in several studies."""
    published = [each for outcome in outcomes for each in outcome.study.published]
    n_implied = sum(not each.printed for each in published)
    of_studies = [{(each.value, each.published) for each in outcome.study.published} for outcome in outcomes]
    n_repeated = sum(map(len, of_studies)) - len(set().union(*of_studies))
    told = [
        count(n_implied, "follows from what a lecture says and is", "follow from what a lecture says and are")
        + " not printed there"
    ] * (n_implied > 0)
    told += [count(n_repeated, "repeats one of another study", "repeat one of another study")] * (
        n_repeated > 0
    )
    return f"Of these, {listed(told)}." if told else ""


def refutation_sentences(outcomes: Sequence[Outcome]) -> Iterator[Node]:
    """Yield the names of the studies by whether the result has come that would refute them, refuted ones first."""
    asking = [outcome for outcome in outcomes if outcome.study.refuted_if]
    by_verdict = {
        verdict: [each.study.name for each in asking if each.refutation().verdict == verdict]
        for verdict in (IS_REFUTED, IS_OPEN, BY_NO_NUMBER, IS_NOT_REFUTED)
    }
    words = {
        IS_REFUTED: "It has come in",
        IS_OPEN: "Whether it has is undecided in",
        BY_NO_NUMBER: "No single number tells in",
        IS_NOT_REFUTED: "It has not come in",
    }
    told = [
        f"{words[verdict]} {count(len(names), 'study', 'studies')}: {', '.join(names)}."
        for verdict, names in by_verdict.items()
        if names
    ]
    if told:
        yield Paragraph("Each study says which result would refute it.")
        yield Bullets(tuple(told))


def refutation_text(outcome: Outcome) -> str:
    """Return whether a study is refuted, and by what."""
    found = outcome.refutation()
    if found.verdict == BY_NO_NUMBER:
        return f"{found.verdict.capitalize()}."
    if found.verdict == IS_NOT_REFUTED:
        return "No."
    lead = "Yes. These do not hold:" if found.verdict == IS_REFUTED else "Undecided. These are open:"
    return f"{lead} {' '.join(found.because)}"


def claims_sentence(found: Sequence[ClaimVerdict]) -> str:
    """Return the number of claims by verdict, those that do not hold first, and how many were written afterwards."""
    counts = Counter(each.verdict.split(":")[0] for each in found)
    words = {
        REFUTED: ("is refuted", "are refuted"),
        UNDECIDED.split(":")[0]: ("is undecided", "are undecided"),
        HOLDS: ("holds", "hold"),
        NOT_RUN: ("is not run yet", "are not run yet"),
    }
    told = [count(counts[verdict], *words[verdict]) for verdict in words if counts[verdict]]
    sentence = f"Of {count(len(found), 'claim')} about a difference, {listed(told)}."
    n_afterwards = sum(each.afterwards for each in found)
    if not n_afterwards:
        return sentence
    return (
        f"{sentence} {count(n_afterwards, 'was', 'were')} written when results were known: such a claim tests what is "
        "said of them, and predicted nothing."
    )


def runs_sentence(outcomes: Sequence[Outcome]) -> str:
    """Return sentences on how many runs are done, and which studies are partial."""
    done, wanted = sum(each.n_done for each in outcomes), sum(each.n_trials for each in outcomes)
    studies = count(len(outcomes), "study", "studies")
    told = f"{done:,} of {count(wanted, 'run')} {'is' if done == 1 else 'are'} done, in {studies}"
    different = {
        record.key
        for each in outcomes
        for label, by_seed in each.records.items()
        for seed, record in by_seed.items()
        if trial_name(label, seed) not in each.unmeasured
    }
    told += f" ({len(different):,} different ones)." if len(different) < done else "."
    partial = [
        f"{each.study.name} ({each.n_done} of {each.n_trials})"
        for each in outcomes
        if 0 < each.n_done < each.n_trials
    ]
    if partial:
        told += f" Partial: {', '.join(partial)}."
    if n_waiting := sum(not each.n_done for each in outcomes):
        told += f" Not started: {count(n_waiting, 'study', 'studies')}."
    return told


def shortened_sentence(outcomes: Sequence[Outcome]) -> str:
    """Return a sentence on the studies with shortened trainings; empty if there are none."""
    shortened = [f"{each.study.name} ({each.scale:g} of its steps)" for each in outcomes if each.scale < 1]
    if not shortened:
        return ""
    return f"{', '.join(shortened)}. Published numbers of these trainings are not judged."


def listed(texts: Sequence[str]) -> str:
    """Join texts as `a, b and c`."""
    return " and ".join(part for part in (", ".join(texts[:-1]), texts[-1]) if part)


def failed_tables(
    published: Sequence[tuple[Outcome, PublishedVerdict]], claims: Sequence[tuple[Outcome, ClaimVerdict]]
) -> Iterator[Node]:
    """Yield tables of the numbers not reproduced, of slips, and of claims that do not hold."""
    for verdict, caption in (
        (NOT_REPRODUCED, "Not reproduced"),
        (SLIP, "Slips of the lectures, published and measured"),
    ):
        rows = [
            (Link(outcome.study.name), *published_row(each))
            for outcome, each in published
            if each.verdict == verdict
        ]
        if rows:
            yield Table(caption, ("study", *PUBLISHED_HEADS), tuple(rows), n_left=3)
    rows = [
        (Link(outcome.study.name), *claim_row(each))
        for outcome, each in claims
        if each.verdict not in (HOLDS, NOT_RUN)
    ]
    if rows:
        yield Table("Claims that are refuted or undecided", ("study", *CLAIM_HEADS), tuple(rows), n_left=3)


def studies_table(outcomes: Sequence[Outcome], waiting: Sequence[Outcome] = ()) -> Table:
    """Return a table of all studies, with the runs done and the numbers reproduced; names link to sections."""
    names: tuple[Cell, ...] = (
        *(Link(outcome.study.name) for outcome in outcomes),
        *(outcome.study.name for outcome in waiting),
    )
    return Table(
        "All studies",
        ("study", "question", "lecture", "runs", "published numbers reproduced"),
        tuple(
            (
                name,
                outcome.study.question,
                outcome.study.lecture or "own",
                f"{outcome.n_done} of {outcome.n_trials}",
                reproduced_text(outcome.published()),
            )
            for name, outcome in zip(names, (*outcomes, *waiting), strict=True)
        ),
        n_left=3,
    )


def reproduced_text(found: Sequence[PublishedVerdict]) -> str:
    """Return `2 of 3`; a dash if nothing was published."""
    n_reproduced = sum(each.verdict == REPRODUCED for each in found)
    return f"{n_reproduced} of {len(found)}" if found else mean_text(None)


def section(outcome: Outcome, level: int = 2) -> Iterator[Node]:
    """Yield the section of one study."""
    study = outcome.study
    yield Heading(study.question, level, study.name)
    where = f"lecture {study.lecture}" if study.lecture else "not from the lectures"
    yield Paragraph(f"Study {study.name}, {where}.", kind="small")
    yield from state(outcome)
    if outcome.study.published:
        yield Paragraph(published_sentence(outcome.published()))
    if study.refuted_if:  # a sweep only asks
        yield Paragraph(study.refuted_if, "What would refute it")
        if outcome.labels:
            yield Paragraph(refutation_text(outcome), "Is it refuted")
    has_all_seeds = (outcome.seeds or study.seeds) >= study.seeds
    if study.meaning and outcome.scale == 1 and has_all_seeds and outcome.is_whole:
        yield Paragraph(study.meaning, "What it means")
    yield from figures(outcome)
    yield from tables(outcome)
    if study.fairness:
        yield Paragraph(study.fairness, "What the arms share")
    yield from what_was_trained(outcome)
    yield from how(outcome, level + 1)


def state(outcome: Outcome) -> Iterator[Node]:
    """Yield the warnings that a reader must see first: shortened trainings and missing runs."""
    if outcome.scale < 1:
        yield Paragraph(
            f"Trainings ran for {outcome.scale:g} of their steps. No published number is judged, and what holds here "
            "may not hold at full length.",
            "Shortened",
            "warning",
        )
    if outcome.is_whole:
        return
    n, runs = len(outcome.missing), count(outcome.n_trials, "run")
    yield Paragraph(count(n, f"of {runs} is missing:", f"of {runs} are missing:"), "Partial", "warning")
    yield Bullets(tuple(missing_lines(outcome)))


def missing_lines(outcome: Outcome) -> Iterator[str]:
    """Yield the missing runs arm by arm, with the reason for those that failed."""
    for arm in outcome.study.arms:
        waiting = []
        for seed in outcome.study.seeds_of(arm, outcome.seeds):
            name = trial_name(arm.label, seed)
            if name in outcome.failures:
                yield f"{name}: failed: {without_places(outcome.failures[name])}"
            elif name in outcome.missing:
                waiting.append(str(seed))
        if waiting:
            yield f"{arm.label}, {'seed' if len(waiting) == 1 else 'seeds'} {listed(waiting)}: not run yet"


def without_places(text: str) -> str:
    """Shorten the paths in a message to their last part, to hide places on a machine."""
    return PLACE.sub(lambda found: re.split(r"[/\\]", found[0])[-1], text)


def figures(outcome: Outcome) -> Iterator[Node]:
    """Yield the figures that have something to show; samples as text."""
    shown = [figure for figure in outcome.study.figures if is_there(figure, outcome)]
    for i, figure in enumerate(shown, 1):
        if isinstance(figure, Texts):
            yield Samples(figure.title, figure.note(outcome), tuple(figure.blocks(outcome)))
            continue
        note, told = in_words(figure, outcome)
        note = " ".join(part for part in (note, diverged_note(figure, outcome)) if part)
        svg = svg_of(figure, outcome, f"{outcome.study.name}-{i}")
        yield Picture(figure.title, note, told, svg, f"figure-{i}.svg")


def diverged_note(figure: Figure, outcome: Outcome) -> str:
    """Return which of a figure's arms are missing from it, wholly or with some seeds, because they diverged."""
    shown = figure.shown_arms(outcome) if isinstance(figure, Drawn) else []
    told = []
    for label in shown:
        best = outcome.best(label)
        arms = (best,) if best in outcome.records else outcome.study.sides.get(label, ())
        n = sum(len(outcome.records.get(arm, {})) for arm in arms)
        n_diverged = sum(len(outcome.by_seed(arm, "diverged_at")) for arm in arms)
        if n_diverged == n > 0:
            told.append(f"{label} diverged and is not drawn")
        elif n_diverged:
            told.append(f"{label} diverged in {n_diverged} of {count(n, 'run')} and is drawn without")
    return f"{'; '.join(told)}." if told else ""


def tables(outcome: Outcome) -> Iterator[Node]:
    """Yield the tables: published and measured numbers, claims, tuned rates, and the values of all arms."""
    if published := outcome.published():
        rows = tuple(published_row(each) for each in published)
        yield Table("Published and measured", PUBLISHED_HEADS, rows, n_left=2)
    if claims := outcome.claims():
        yield Table(
            "Claims, judged by paired differences over seeds",
            CLAIM_HEADS,
            tuple(map(claim_row, claims)),
            n_left=2,
        )
    if tuning := outcome.tuning():
        yield Table(
            "Learning rates tried, and the best arm of each side",
            TUNING_HEADS,
            tuple(map(tuning_row, tuning)),
            n_left=2,
        )
    names = outcome.numbers()
    if names and outcome.labels:
        yield table_of_arms(outcome, names)
    if diverged := diverged_lines(outcome):
        yield Paragraph("No final loss:", "Diverged")
        yield Bullets(tuple(diverged))


def table_of_arms(outcome: Outcome, names: list[str]) -> Table:
    """Return the table of all arms: a row for each, or where every arm has values of its own, one for each value."""
    title, unit = "All arms: mean over seeds ± half of the 95% interval", outcome.loss_unit
    if outcome.is_sparse(names):
        rows = tuple(
            (label, named(name, loss_unit=unit), estimate_text(estimate), str(estimate.n))
            for label in outcome.labels
            for name in names
            if (estimate := outcome.estimate(label, name))
        )
        return Table(title, ("arm", "value", "measured", "seeds"), rows, n_left=2)
    if len(names) > MOST_COLUMNS and len(outcome.labels) <= FEW_ARMS:
        rows = tuple(
            (
                named(name, loss_unit=unit),
                *(estimate_of_seeds(outcome, label, name) for label in outcome.labels),
            )
            for name in names
        )
        return Table(title, ("value", *outcome.labels), rows)
    rows = tuple(arm_row(outcome, label, names) for label in outcome.labels)
    return Table(title, ("arm", *(named(name, loss_unit=unit) for name in names), "seeds"), rows)


def diverged_lines(outcome: Outcome) -> list[str]:
    """Return the trainings that diverged, and at which step."""
    return [
        f"{label}, seed {seed}: at step {number(step)}"
        for label in outcome.labels
        for seed, step in outcome.by_seed(label, "diverged_at").items()
    ]


def tuning_row(each: Tuning) -> tuple[Cell, ...]:
    """Return a row of the table of tuned sides."""
    edge = "yes: a wider grid might contain a better one" if each.is_at_the_edge else "no"
    return (each.side, each.best, number(each.mean), str(each.n), str(len(each.arms)), edge)


def published_row(each: PublishedVerdict) -> tuple[Cell, ...]:
    """Return a row of the table of published numbers."""
    return (
        each.arm,
        name_of(each.value),
        as_written(each.published) + section_text(each.section),
        f"± {as_written(each.tolerance)}",
        mean_text(each.measured),
        interval_text(each.measured),
        str(each.measured.n if each.measured else 0),
        Judged(each.verdict, each.reason),
    )


def section_text(section: str) -> str:
    """Return a number's section as ` (§ 5.4)`."""
    if not section:
        return ""
    return f" (§ {section})" if section[0].isdigit() else f" ({section})"


def what_is_compared(claim: ClaimVerdict) -> str:
    """Return the difference by which a claim is judged, in words."""
    other = f"{name_of(claim.against)} of " if claim.against else ""
    return f"{name_of(claim.value)}: {claim.lower} {MINUS} {other}{claim.higher}"


def claim_row(each: ClaimVerdict) -> tuple[Cell, ...]:
    """Return a row of the table of claims."""
    return (
        each.text + (" (Written afterwards.)" if each.afterwards else ""),
        what_is_compared(each),
        signed_text(each.difference),
        interval_text(each.difference),
        str(each.difference.n if each.difference else 0),
        Judged(each.verdict),
    )


def estimate_of_seeds(outcome: Outcome, label: str, name: str) -> str:
    """Return an arm's number, and of how many of its seeds it is where some lack it."""
    estimate, n = outcome.estimate(label, name), len(outcome.records[outcome.best(label)])
    return estimate_text(estimate) + (f" ({estimate.n} of {n})" if estimate and estimate.n < n else "")


def arm_row(outcome: Outcome, label: str, names: Sequence[str]) -> tuple[Cell, ...]:
    """Return a row of the table of all arms."""
    values = [estimate_of_seeds(outcome, label, name) for name in names]
    return (label, *values, str(len(outcome.records[label])))


def how(outcome: Outcome, level: int) -> Iterator[Node]:
    """Yield how to repeat the study, and where and when it was run."""
    yield Heading("To reproduce", level)
    yield Command(command(outcome))
    records = [record for by_seed in outcome.records.values() for record in by_seed.values()]
    if not records:
        return
    about = [record.about for record in records]
    machines = unique(machine_text(each) for each in about)
    versions = unique(versions_text(each) for each in about)
    days = sorted({str(each.get("created", ""))[:10] for each in about} - {""})
    hours = sum(record.seconds for record in records)
    yield Paragraph("; ".join(machines), "Machine", "small")
    yield Paragraph("; ".join(versions), "Versions", "small")
    if days:
        yield Paragraph(days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}", "Date", "small")
    yield Paragraph(f"{time_text(hours)} for {count(len(records), 'run')}", "Time", "small")


def command(outcome: Outcome) -> str:
    """Return the command that runs a study as it was run."""
    seeds = outcome.seeds or outcome.study.seeds
    # In all digits, as another scale is another run.
    scale = f" --scale {outcome.scale!r}" if outcome.scale < 1 else ""
    files = own_files(outcome.study)
    if outcome.study.name not in lecture_studies():  # it, or a kind in it, may be of a file that was imported
        files = unique([*files, *(file.name for file in imported_files())])
    imported = "".join(f" --import {name}" for name in files)
    return f"clearformer study run {outcome.study.name}{imported} --seeds {seeds}{scale}"


def own_files(study: Study) -> list[str]:
    """Return the names of the user's files that define a study's measures and probes."""
    functions = [measure.function for measure in study.measures]
    functions += [arm.function for arm in study.arms if isinstance(arm, Probe)]
    own = [each for each in functions if not is_packaged(each)]
    files = (Path(each.__code__.co_filename) for each in own if hasattr(each, "__code__"))
    return unique(file.name for file in files if file.suffix == ".py")


def versions_text(about: Mapping[str, Any]) -> str:
    """Return the versions of packages on one line."""
    versions: Mapping[str, Any] = about.get("versions") or {}
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)


def time_text(seconds: float) -> str:
    """Format a duration in a fitting unit."""
    if seconds < 1:
        return "less than a second"
    for size, unit in ((3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} seconds"
