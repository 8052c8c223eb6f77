"""A study's result.json: all results as numbers."""

from typing import Any

from clearformer.results import plain
from clearformer.study.outcomes import Estimate, Outcome
from clearformer.study.report.content import command, without_places


def result_of(outcome: Outcome) -> dict[str, Any]:
    """Return the content of result.json."""
    study = outcome.study
    return {
        "name": study.name,
        "question": study.question,
        "lecture": study.lecture,
        "refuted_if": study.refuted_if,
        "refuted": outcome.refutation().to_dict(),
        "command": command(outcome),
        "scale": outcome.scale,
        "runs": {"done": outcome.n_done, "wanted": outcome.n_trials},
        "is_whole": outcome.is_whole,
        "missing": outcome.missing,
        "failures": {name: without_places(problem) for name, problem in outcome.failures.items()},
        "published": [each.to_dict() for each in outcome.published()],
        "claims": [
            {
                "text": each.text,
                "value": each.value,
                "lower": each.lower,
                "higher": each.higher,
                "difference": estimate_dict(each.difference),
                "verdict": each.verdict,
                **({"against": each.against} if each.against else {}),
                **({"afterwards": True} if each.afterwards else {}),
            }
            for each in outcome.claims()
        ],
        "tuning": [each.to_dict() for each in outcome.tuning()],
        "values": {label: arm_values(outcome, label) for label in outcome.labels},
        "about": [
            {
                "arm": label,
                "seed": seed,
                "run": record.key,
                "seconds": record.seconds,
                **plain(dict(record.about)),
            }
            for label in outcome.labels
            for seed, record in sorted(outcome.records[label].items())
        ],
    }


def arm_values(outcome: Outcome, label: str) -> dict[str, Any]:
    """Return every number of an arm: mean, interval, and the value of each seed."""
    by_name: dict[str, Any] = {}
    for name in outcome.all_numbers(label):
        estimate = outcome.estimate(label, name)
        if estimate is not None:
            by_name[name] = estimate_dict(estimate) | {"by_seed": outcome.by_seed(label, name)}  # type: ignore[operator]
    return by_name


def estimate_dict(estimate: Estimate | None) -> dict[str, Any] | None:
    """Return a mean with its interval and number of seeds."""
    if estimate is None:
        return None
    interval = None if estimate.low is None else [estimate.low, estimate.high]
    return {"mean": estimate.mean, "interval": interval, "seeds": estimate.n}
