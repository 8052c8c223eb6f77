"""Studies as text and as JSON: the runs that they plan, and their results."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clearformer.cli.tables import definitions, paragraph, table
from clearformer.cli.units import readable_seconds
from clearformer.config import as_written as as_typed
from clearformer.config import flat
from clearformer.cost.rates import Rate, measured_rate
from clearformer.device import resolve_device, resolve_dtype
from clearformer.errors import ConfigError, count
from clearformer.study.outcomes import ClaimVerdict, Estimate, Outcome, PublishedVerdict
from clearformer.study.report.content import diverged_lines, estimate_of_seeds, what_is_compared
from clearformer.study.store import Store
from clearformer.study.study import Study, Training
from clearformer.study.trials import Trial, trials
from clearformer.study.words import as_written, estimate_text
from clearformer.study.workers.progress import estimated_seconds
from clearformer.training.planning.plan import count_parameters, for_every_layer
from clearformer.training.planning.run_plan import expected_model, notes_on

# --- before a study runs ----------------------------------------------------------------------------------


def described(
    study: Study, store: Store, scale: float, seeds: int | None, device: str | None
) -> dict[str, Any]:
    """Describe a study and its runs as plain values for JSON."""
    wanted = trials(study, scale, seeds, device)
    times = Times()
    done = {id(trial): store.is_done(trial) for trial in wanted}
    arms = [
        _arm(arm.label, [trial for trial in wanted if trial.arm is arm], done, store, times)
        for arm in study.arms
    ]
    left = [times.of(trial) for trial in wanted if not done[id(trial)] and trial.config is not None]
    return {
        "name": study.name,
        "question": study.question,
        "lecture": study.lecture,
        "fairness": study.fairness,
        "refuted_if": study.refuted_if,
        "scale": scale,
        "settings": _written(study.settings),
        "runs": len(wanted),
        "done": sum(done.values()),
        "seconds_left": None if None in left else sum(each for each in left if each is not None),
        "arms": arms,
        "published": [
            {
                "arm": each.arm,
                "name": each.value,
                "value": each.published,
                "tolerance": each.tolerance,
                "section": each.section,
                "slip": each.slip,
            }
            for each in study.published
        ],
        "claims": [each.text for each in study.claims],
    }


def _arm(
    label: str, mine: list[Trial], done: dict[int, bool], store: Store, times: "Times"
) -> dict[str, Any]:
    first = mine[0]
    if first.config is None:
        about: dict[str, Any] = {"probe": first.call, "parameters": None, "steps": None, "seconds": None}
        about |= {"preset": None, "settings": {}, "notes": []}
    else:
        assert isinstance(first.arm, Training)
        measured = _measured_parameters(mine, store)
        about = {
            "probe": None,
            "preset": first.arm.preset,
            "settings": _written(first.arm.settings),
            "parameters": measured or for_every_layer(count_parameters, expected_model(first.config)).total,
            "notes": [] if measured else notes_on(first.config),
            "steps": first.config.train.max_steps,
            "seconds": times.of(first),
        }
    return {
        "label": label,
        "seeds": [trial.seed for trial in mine],
        "done": sum(done[id(trial)] for trial in mine),
        **about,
    }


def _written(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings by dotted keys, as one types them."""
    return {key: as_typed(value) for key, value in flat(settings).items()}


def _measured_parameters(mine: list[Trial], store: Store) -> int | None:
    """Return the parameters that a run of an arm had; None before any is measured."""
    records = (store.find(trial) for trial in mine)
    return next(
        (found.values["parameters"] for found in records if found and "parameters" in found.values), None
    )


class Times:
    """Estimates of training time on this machine; its rate is measured once for each device and dtype.

    There is none for a probe, nor for a device that this machine does not have.
    """

    def __init__(self) -> None:
        self._rates: dict[tuple[str, str], Rate | None] = {}

    def of(self, trial: Trial) -> float | None:
        """Estimate the seconds of one training."""
        if trial.config is None:
            return None
        train = trial.config.train
        wanted = (train.device, train.dtype)
        if wanted not in self._rates:
            self._rates[wanted] = self._measured(*wanted)
        rate = self._rates[wanted]
        return None if rate is None else estimated_seconds(trial, rate)

    def _measured(self, device_name: str, dtype: str) -> Rate | None:
        try:
            device = resolve_device(device_name)
        except ConfigError:
            return None
        return measured_rate(resolve_dtype(dtype, device), device)


def as_text(shown: dict[str, Any]) -> str:
    """Format the description of a study as text."""
    about = [
        ("lecture", shown["lecture"]),
        ("fairness", shown["fairness"]),
        ("refuted if", shown["refuted_if"]),
        ("runs", f"{shown['runs']}, {shown['done']} done"),
        ("time left", _time_left(shown)),
        ("settings", _settings_text(shown["settings"])),
    ]
    parts = [
        paragraph(f"{shown['name']}: {shown['question']}"),
        definitions([(name, text) for name, text in about if text]),
        table(("arm", "seeds", "done", "parameters", "steps", "each"), map(_arm_row, shown["arms"])),
        definitions([(arm["label"], _of_arm(arm)) for arm in shown["arms"]]),
    ]
    parts += [
        paragraph(note) for note in dict.fromkeys(note for arm in shown["arms"] for note in arm["notes"])
    ]
    if shown["published"]:
        rows = [
            (
                each["arm"],
                each["name"],
                each["section"],
                as_written(each["value"]),
                f"± {as_written(each['tolerance'])}",
            )
            for each in shown["published"]
        ]
        parts.append(table(("arm", "published", "section", "value", "±"), rows, n_left=3))
    if shown["claims"]:
        parts.append("Claims:\n" + "\n".join(f"  {text}" for text in shown["claims"]))
    return "\n\n".join(parts)


def _settings_text(settings: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items())


def _of_arm(arm: dict[str, Any]) -> str:
    """Return what an arm is: its preset with its own settings, or the call that computes it."""
    return arm["probe"] or f"{arm['preset']} {_settings_text(arm['settings'])}".strip()


def _time_left(shown: dict[str, Any]) -> str:
    if not shown["seconds_left"]:
        return ""
    return f"about {readable_seconds(shown['seconds_left'])} of training on this machine, one run at a time"


def _arm_row(arm: dict[str, Any]) -> tuple[str, ...]:
    seconds = arm["seconds"]
    return (
        arm["label"],
        f"{len(arm['seeds'])}",
        f"{arm['done']}",
        "" if arm["parameters"] is None else f"{'~' if arm['notes'] else ''}{arm['parameters']:,}",
        "computed" if arm["probe"] else "" if arm["steps"] is None else f"{arm['steps']:,}",
        "" if seconds is None else readable_seconds(seconds),
    )


# --- results ----------------------------------------------------------------------------------------------


def outcome_json(found: Outcome, folder: Path) -> dict[str, Any]:
    """Return the outcome of a study, and the paths of its files, for JSON."""
    place = folder / found.study.name
    return {
        "name": found.study.name,
        "scale": found.scale,
        "runs": found.n_trials,
        "done": found.n_done,
        "failed": found.failures,
        "published": [each.to_dict() for each in found.published()],
        "claims": [each.to_dict() for each in found.claims()],
        "result": str(place / "result.json"),
        "report": str(place / "report.html"),
    }


def outcome_text(found: Outcome, folder: Path) -> str:
    """Format the outcome of a study as text."""
    scaled = "" if found.scale == 1 else f" at scale {found.scale:g}; published numbers are not judged"
    head = f"{found.study.name}: {found.n_done} of {count(found.n_trials, 'run')} done{scaled}"
    parts = [paragraph(head), numbers(found)]
    parts.append("\n".join(f"diverged: {line}" for line in diverged_lines(found)))
    if published := found.published():
        heads = ("arm", "published", "", "measured", "seeds", "verdict")
        parts.append(table(heads, map(_published_row, published), n_left=2))
    if claims := found.claims():
        parts.append("\n".join(map(_claim_line, claims)))
    parts += failures(found)
    parts.append(f"report: {folder / found.study.name / 'report.html'}")
    return "\n\n".join(part for part in parts if part)


def failures(found: Outcome) -> list[str]:
    """Return each reason why runs failed, once, after the first of the runs and the number of the others."""
    runs: dict[str, list[str]] = {}
    for name, problem in found.failures.items():
        runs.setdefault(problem, []).append(name)
    return [f"failed: {_first_and_number(names)}: {problem}" for problem, names in runs.items()]


def _first_and_number(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}, and {count(len(names) - 1, 'more run')}"


def numbers(found: Outcome) -> str:
    """Format the table of all arms that have a measurement."""
    names = found.numbers()
    if found.is_sparse(names):
        each = ((label, name) for label in found.labels for name in names if found.estimate(label, name))
        measured = [(label, name, estimate_of_seeds(found, label, name)) for label, name in each]
        return table(("arm", "value", "measured"), measured, n_left=2)
    rows = [(label, *(estimate_of_seeds(found, label, name) for name in names)) for label in found.labels]
    return table(("arm", *names), rows) if rows else ""


def interval(estimate: Estimate | None) -> str:
    """Format a mean and half the width of its 95% interval."""
    return "-" if estimate is None else estimate_text(estimate)


def _published_row(each: PublishedVerdict) -> tuple[str, ...]:
    seeds = "" if each.measured is None else str(each.measured.n)
    verdict = f"{each.verdict}: {each.reason}" if each.reason else each.verdict
    return each.arm, each.value, as_written(each.published), interval(each.measured), seeds, verdict


def _claim_line(each: ClaimVerdict) -> str:
    difference = (
        ""
        if each.difference is None
        else f" ({what_is_compared(each)}: {interval(each.difference)}, {count(each.difference.n, 'seed')})"
    )
    return paragraph(f"{each.text} {each.verdict}{difference}")
