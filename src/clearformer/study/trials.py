"""The runs of a study: one arm with one seed, and the key by which it is found again.

The key is a SHA-256 of all that decides the result: the resolved configuration, or the probe and its arguments, the
seed, the data. How often a run is saved, and on which device it is computed, is left out. So studies share runs, and
nothing is computed twice.

Settings that are left to their defaults are not hashed, so that one that the package gets later changes no key. Where a
default changes, `GENERATION` is counted up (a test says so).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from clearformer.config import explicit, sections_of, whole
from clearformer.data import prepare_data
from clearformer.errors import ConfigError
from clearformer.presets import resolve_settings
from clearformer.runs.folders import find_checkpoint, find_run
from clearformer.study.study import (
    Arm,
    Measure,
    Probe,
    Study,
    Training,
    call_name,
    check_scale,
    check_seeds,
    identity,
)
from clearformer.training.config import TRAIN_MAY_CHANGE, RunConfig
from clearformer.training.store.checkpoint import MODEL, describe

GENERATION = 1
"""Counted up where the package comes to compute other results from the same settings, or where a default changes; all
are then made again."""

DECIDES = frozenset({"max_steps", "max_seconds", "max_wall_seconds", "eval_every", "log_every"})
"""Of the settings that a resumed run may change, those that its weights or its curves depend on."""

LEAST_STEPS = 2
SHORT = 16  # characters of a key in names of files
PROBE = "probe"  # the name under which the values of a probe are kept


@dataclass(frozen=True)
class Trial:
    """One arm with one seed.

    Attributes:
        arm: The arm.
        seed: The seed.
        config: What is trained; None for a probe.
        measures: What is measured of it; none for a probe.
        data_keys: The hashes of data that were read, shared by the trials that are made together.
    """

    arm: Arm
    seed: int
    config: RunConfig | None
    measures: tuple[Measure, ...] = ()
    data_keys: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All that decides its result, but for the contents of the data; as JSON has it."""
        if self.config is not None:
            return {"generation": GENERATION, "config": deciding(self.config, whole(self.config))}
        assert isinstance(self.arm, Probe)
        probe = {"function": identity(self.arm.function), "arguments": dict(self.arm.arguments)}
        return {"generation": GENERATION, "probe": probe, "seed": self.seed}

    @cached_property
    def settings_key(self) -> str:
        """The first part of its key: the hash of its settings, without those that are left to their defaults."""
        if self.config is None:
            return digest(self.settings)[:SHORT]
        chosen = deciding(self.config, explicit(self.config))
        return digest({"generation": GENERATION, "config": chosen})[:SHORT]

    @cached_property
    def data_key(self) -> str:
        """The second part: the hash of its data; of a probe, which has none, 0.

        Raises:
            ClearformerError: they cannot be read.
        """
        if self.config is None:
            return "0"
        tokens = self.config.model.max_seq_len
        wanted = digest(
            {"data": whole(self.config.data), "tokenizer": whole(self.config.tokenizer), "n": tokens}
        )
        if wanted not in self.data_keys:
            manifest = prepare_data(self.config.data, self.config.tokenizer, max_tokens=tokens).manifest
            self.data_keys[wanted] = manifest["source"]["sha256"][:SHORT]
        return self.data_keys[wanted]

    @property
    def key(self) -> str:
        """The name of its files.

        Raises:
            ClearformerError: its data cannot be read.
        """
        return f"{self.settings_key}-{self.data_key}"

    @property
    def name(self) -> str:
        """Its name for people."""
        return trial_name(self.arm.label, self.seed)

    @property
    def call(self) -> str:
        """The probe's function and arguments in one word."""
        assert isinstance(self.arm, Probe)
        return call_name(self.arm.function, self.arm.arguments)

    @cached_property
    def values(self) -> frozenset[str]:
        """The keys of what is wanted of it: of its measures, or of the probe."""
        if self.config is None:
            return frozenset({PROBE})
        return frozenset(measure.key for measure in self.measures)

    def with_measures(self, measures: Iterable[Measure]) -> "Trial":
        """The same run, of which more is measured."""
        by_key = {measure.key: measure for measure in (*self.measures, *measures)}
        return replace(self, measures=tuple(by_key.values()))


def trial_name(label: str, seed: int) -> str:
    """The name of a run for people."""
    return f"{label}, seed {seed}"


def trials(
    study: Study, scale: float = 1.0, seeds: int | None = None, device: str | None = None
) -> list[Trial]:
    """The runs of a study, all arms of the first seed first.

    Args:
        study: The study.
        scale: Of the steps of its trainings, above 0 and up to 1.
        seeds: How many seeds, in place of its own number; arms that say a number keep theirs.
        device: Where it trains, in place of what its settings say.

    Raises:
        UserError: the scale or the number of seeds is out of range.
        ConfigError: an arm's settings are none.
    """
    check_scale(scale)
    check_seeds(seeds)
    data_keys: dict[str, str] = {}
    found = [
        Trial(arm, seed, *_what(study, arm, seed, scale, device), data_keys)
        for arm in study.arms
        for seed in study.seeds_of(arm, seeds)
    ]
    return sorted(found, key=lambda trial: trial.seed)


def _what(
    study: Study, arm: Arm, seed: int, scale: float, device: str | None
) -> tuple[Any, tuple[Measure, ...]]:
    if isinstance(arm, Probe):
        return None, ()
    return config_of(study, arm, seed, scale, device), study.measures


def config_of(study: Study, arm: Training, seed: int, scale: float, device: str | None = None) -> RunConfig:
    """The configuration of a training arm.

    Raises:
        ConfigError: its settings are none; the study and the arm are named.
    """
    chosen = {} if device is None else {"train.device": device}
    layers = [sections_of(dict(each)) for each in (study.settings, arm.settings, {"seed": seed, **chosen})]
    try:
        return scaled(resolve_settings(arm.preset, layers), scale)
    except ConfigError as error:
        raise ConfigError(f"study {study.name}, arm {arm.label!r}: {error}") from None


def scaled(config: RunConfig, scale: float) -> RunConfig:
    """A configuration with its steps, its warm-up and the steps between evaluations scaled alike."""
    if scale == 1:
        return config
    train = config.train
    steps = train.max_steps and max(LEAST_STEPS, round(scale * train.max_steps))
    return config.replace(
        train=train.replace(
            max_steps=steps,
            max_seconds=train.max_seconds and scale * train.max_seconds,
            max_wall_seconds=train.max_wall_seconds and scale * train.max_wall_seconds,
            warmup_steps=round(scale * train.warmup_steps),
            eval_every=max(1, round(scale * train.eval_every)),
            log_every=max(1, round(scale * train.log_every)),
        )
    )


def deciding(config: RunConfig, settings: dict[str, Any]) -> dict[str, Any]:
    """Those of a configuration's settings that decide a run's result.

    Of files of the user's the contents count, and not their paths; of a run that it begins with its weights.
    """
    decides = dict(settings)
    decides["train"] = {
        name: value
        for name, value in settings["train"].items()
        if name not in TRAIN_MAY_CHANGE or name in DECIDES
    }
    decides["data"] = {name: value for name, value in settings["data"].items() if not _is_place(name)}
    if config.train.pretrained is not None:
        decides["train"]["pretrained"] = weights_hash(config.train.pretrained)
    return decides


def weights_hash(run: str) -> str:
    """The SHA-256 of the last weights of a run.

    Raises:
        RunError: there is no such run, or it has no weights yet.
    """
    return str(describe(find_checkpoint(find_run(run), "latest") / MODEL)["sha256"])


def _is_place(name: str) -> bool:
    return name in ("path", "source", "target")


def digest(value: Mapping[str, Any]) -> str:
    """The SHA-256 of JSON's values, whatever the order of their names."""
    written = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(written.encode()).hexdigest()
