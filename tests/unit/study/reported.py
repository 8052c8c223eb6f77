"""Outcomes made by hand, for the tests of the report."""

from collections.abc import Mapping, Sequence
from typing import Any

from clearformer.study.outcomes import Outcome
from clearformer.study.store import Record
from clearformer.study.study import Claim, Figure, Probe, Published, Study, Training, Values

ABOUT = {
    "created": "2026-03-14T15:09:26+00:00",
    "processor": "A Processor",
    "cpus": 2,
    "threads": 1,
    "gpus": [],
    "versions": {"clearformer": "0.1.0", "torch": "2.13.0", "safetensors": None},
}


def nothing(seed: int, arm: str) -> Values:
    """Stands for a probe; its values are written by hand."""
    raise AssertionError((seed, arm))


def study(*arms: str, trained: bool = False, **fields: Any) -> Study:
    """A study of some arms."""
    made = [Training(arm) if trained else Probe(arm, nothing, {"arm": arm}) for arm in arms]
    return Study(
        **{
            "name": "planted",
            "question": "Is it so?",
            "lecture": "000, 5.4",
            "arms": tuple(made),
            "refuted_if": "It is not.",
            **fields,
        }
    )


def outcome_of(
    of: Study,
    values: Mapping[str, Sequence[Values]],
    scale: float = 1.0,
    seeds: int | None = None,
    failures: Mapping[str, str] | None = None,
) -> Outcome:
    """An outcome of values of every arm, seed by seed."""
    records = {
        arm: {
            seed: Record(f"{arm}-{seed}", {}, seed, {"losses": each}, 60.0, ABOUT)
            for seed, each in enumerate(by_seed, 1)
        }
        for arm, by_seed in values.items()
    }
    n_trials = sum(len(of.seeds_of(arm, seeds)) for arm in of.arms)
    return Outcome(of, scale, n_trials, records, dict(failures or {}), seeds)


def losses(*values: float) -> list[Values]:
    """One number for every seed."""
    return [{"loss": value} for value in values]


def planted(trained: bool = False, scale: float = 1.0, figures: tuple[Figure, ...] = ()) -> Outcome:
    """One number that is reproduced, one that is not, one slip; a claim that holds, one undecided, one refuted."""
    of = study(
        "low",
        "high",
        trained=trained,
        published=(
            Published("low", "loss", 1.25, 0.05, "5.4"),
            Published("high", "loss", 1.63, 0.05, "5.4", why="Another text."),
            Published("high", "loss", 9.0, 0.05, "8", slip="A misprint."),
        ),
        claims=(
            Claim("Low is lower.", "loss", "low", "high"),
            Claim("High is lower.", "loss", "high", "low"),
        ),
        figures=figures,
        fairness="The same batches.",
        meaning="It is as it is.",
        seeds=3,
    )
    return outcome_of(of, {"low": losses(1.24, 1.25, 1.27), "high": losses(2.0, 2.01, 2.05)}, scale)
