"""The runs of a study: one arm with one seed, and the key under which its results are stored.

The key is a SHA-256 of everything that determines the result: the resolved configuration, or the probe and its
arguments, the seed, the data. A kind of the user's own counts by the whole file that defines it. How often a run is
saved and the device it runs on are left out. So studies share runs, and nothing is computed twice.

Settings left at their defaults are not hashed, so that a setting added to the package later changes no key. When a
default changes, increment `GENERATION` (a test checks this).
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from clearformer.config import NONE, Spec, code_hash, explicit, sections_of, whole
from clearformer.data import prepare_data
from clearformer.device import device_name
from clearformer.errors import ConfigError, DataError, UserError, shown
from clearformer.files import user_path
from clearformer.resolving import resolve_settings
from clearformer.runs.folders import find_run
from clearformer.runs.kept_weights import find_checkpoint
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
from clearformer.training.setup import PATHS
from clearformer.training.store.checkpoint import MODEL, describe
from clearformer.training.tasks import TASKS

GENERATION = 1
"""Incremented when the same settings come to give other results, or when a default changes; every study is then
computed again."""

DECIDES = frozenset(
    {
        *("max_steps", "max_seconds", "max_wall_seconds", "patience"),
        *("eval_every", "eval_flops_fraction", "log_every"),
    }
)
"""The settings that a resumed run may change, but that its weights or curves depend on."""

LEAST_STEPS = 2
SHORT = 16  # hex digits of a hash in file names
PROBE = "probe"  # the name under which the values of a probe are stored


@dataclass(frozen=True)
class Trial:
    """One arm with one seed.

    Attributes:
        arm: The arm.
        seed: The seed.
        config: The configuration to train; None for a probe.
        measures: The measures of the trained run; empty for a probe.
        data_keys: A cache of the hashes of data, shared by trials that are created together.
        by_study: The keys of the measures of each study that shares the run; empty for one study alone.
    """

    arm: Arm
    seed: int
    config: RunConfig | None
    measures: tuple[Measure, ...] = ()
    data_keys: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    by_study: tuple[frozenset[str], ...] = ()

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Everything that determines the result, except the contents of the data; as JSON values."""
        if self.config is not None:
            config = deciding(self.config, whole(self.config))
            return {"generation": GENERATION, "config": config, **self._own_code}
        assert isinstance(self.arm, Probe)
        probe = {"function": identity(self.arm.function), "arguments": dict(self.arm.arguments)}
        return {"generation": GENERATION, "probe": probe, "seed": self.seed}

    @cached_property
    def settings_key(self) -> str:
        """The first part of the key: the hash of the settings, without those left at their defaults."""
        if self.config is None:
            return digest(self.settings)[:SHORT]
        chosen = deciding(self.config, explicit(self.config))
        return digest({"generation": GENERATION, "config": chosen, **self._own_code})[:SHORT]

    @property
    def _own_code(self) -> dict[str, Any]:
        """The hashes of the files that define the user's own kinds, by slot; empty if there are none."""
        assert self.config is not None
        found = {name: code for name, part in parts_of(self.config) if (code := code_hash(part)) is not None}
        return {"code": found} if found else {}

    @property
    def place(self) -> dict[str, Any]:
        """The settings that say where the data lie; empty for built-in data and for probes."""
        data = {} if self.config is None else whole(self.config.data)
        return {name: value for name, value in data.items() if is_place(name) and value != NONE}

    @property
    def reads(self) -> tuple[str, ...]:
        """The files that a probe reads; empty for a training, whose data count by themselves."""
        return self.arm.reads if isinstance(self.arm, Probe) else ()

    @cached_property
    def identity(self) -> str:
        """The run's name on one machine, which needs no data: the hash of its settings and of where its data lie."""
        return f"{self.settings_key}-{digest(self.place)[:SHORT]}" if self.place else self.settings_key

    @cached_property
    def data_key(self) -> str:
        """The second part of the key: the hash of the data, or of the files that a probe reads; 0 if it reads none.

        Raises:
            ClearformerError: the data cannot be read.
        """
        if isinstance(self.arm, Probe):
            return files_hash(self.reads)[:SHORT] if self.reads else "0"
        assert self.config is not None
        tokens = self.config.model.max_seq_len
        wanted = digest(
            {"data": whole(self.config.data), "tokenizer": whole(self.config.tokenizer), "n": tokens}
        )
        if wanted not in self.data_keys:
            manifest = prepare_data(
                self.config.data,
                self.config.tokenizer,
                max_tokens=tokens,
                uses_labels=self.config.train.objective.predicts_classes,
            ).manifest
            self.data_keys[wanted] = manifest["source"]["sha256"][:SHORT]
        return self.data_keys[wanted]

    @property
    def key(self) -> str:
        """The name of the trial's files.

        Raises:
            ClearformerError: its data cannot be read.
        """
        return f"{self.settings_key}-{self.data_key}"

    @property
    def name(self) -> str:
        """The name shown to users."""
        return trial_name(self.arm.label, self.seed)

    @property
    def call(self) -> str:
        """The probe's function and arguments, as a call."""
        assert isinstance(self.arm, Probe)
        return call_name(self.arm.function, self.arm.arguments)

    @cached_property
    def values(self) -> frozenset[str]:
        """The keys of the values that the trial asks for: those of its measures, or that of the probe."""
        if self.config is None:
            return frozenset({PROBE})
        return frozenset(measure.key for measure in self.measures)

    def with_measures(self, measures: Iterable[Measure]) -> "Trial":
        """Return the same run with the measures of another study too."""
        others = list(measures)
        by_key = {measure.key: measure for measure in (*self.measures, *others)}
        by_study = (*(self.by_study or (self.values,)), frozenset(measure.key for measure in others))
        return replace(self, measures=tuple(by_key.values()), by_study=by_study)

    def beside(self, measure: Measure) -> tuple[Measure, ...]:
        """Return the measures that some study takes together with this one."""
        groups = [keys for keys in self.by_study or (self.values,) if measure.key in keys]
        return tuple(each for each in self.measures if any(each.key in keys for keys in groups))


def trial_name(label: str, seed: int) -> str:
    """Return the name of a run that is shown to users."""
    return f"{label}, seed {seed}"


def trials(
    study: Study, scale: float = 1.0, seeds: int | None = None, device: str | None = None
) -> list[Trial]:
    """Return the runs of a study, ordered by seed.

    Args:
        study: The study.
        scale: The fraction of the training steps to run, above 0 and up to 1.
        seeds: The number of seeds, in place of the study's own; arms with a number of their own keep it.
        device: The device to train on, in place of the one in the settings.

    Raises:
        UserError: the scale or the number of seeds is out of range, or the device is none.
        ConfigError: an arm's settings are invalid.
    """
    check_scale(scale)
    check_seeds(seeds)
    check_device(device)
    data_keys: dict[str, str] = {}
    found = [
        Trial(arm, seed, *_what(study, arm, seed, scale, device), data_keys)
        for arm in study.arms
        for seed in study.seeds_of(arm, seeds)
    ]
    return sorted(found, key=lambda trial: trial.seed)


def check_device(device: str | None) -> None:
    """Raise UserError if a device is given that is none: no study's setting is at fault, but the argument."""
    if device is not None:
        if not isinstance(device, str):
            raise UserError(f"device: the name of one, such as cpu or cuda; got {shown(device)}")
        try:
            device_name(device, "device")
        except ConfigError as error:
            raise UserError(str(error)) from None


def _what(
    study: Study, arm: Arm, seed: int, scale: float, device: str | None
) -> tuple[Any, tuple[Measure, ...]]:
    if isinstance(arm, Probe):
        return None, ()
    return config_of(study, arm, seed, scale, device), study.measures


def config_of(study: Study, arm: Training, seed: int, scale: float, device: str | None = None) -> RunConfig:
    """Return the configuration of a training arm.

    Raises:
        ConfigError: the settings are invalid; the message names the study and the arm.
    """
    chosen = {} if device is None else {"train.device": device}
    layers = [sections_of(dict(each)) for each in (study.settings, arm.settings, {"seed": seed, **chosen})]
    try:
        if arm.preset == "auto":
            raise ConfigError(
                "auto chooses by the machine's speed at the moment, so its runs would differ in more than the arms; "
                "train it once, and give the study the settings that it chose"
            )
        return scaled(resolve_settings(arm.preset, layers), scale)
    except ConfigError as error:
        raise ConfigError(f"study {study.name}, arm {arm.label!r}: {error}") from None


def scaled(config: RunConfig, scale: float) -> RunConfig:
    """Scale a configuration's steps, time limits, warm-up, and steps between evaluations and log lines.

    Those between checkpoints are scaled too where these may end the run (`train.patience`).
    """
    if scale == 1:
        return config
    train, every = config.train, config.train.checkpoint_every
    steps = train.max_steps and max(LEAST_STEPS, round(scale * train.max_steps))
    return config.replace(
        train=train.replace(
            max_steps=steps,
            max_seconds=train.max_seconds and scale * train.max_seconds,
            max_wall_seconds=train.max_wall_seconds and scale * train.max_wall_seconds,
            warmup_steps=round(scale * train.warmup_steps),
            eval_every=max(1, round(scale * train.eval_every)),
            log_every=max(1, round(scale * train.log_every)),
            checkpoint_every=every if train.patience is None else every and max(1, round(scale * every)),
        )
    )


def deciding(config: RunConfig, settings: dict[str, Any]) -> dict[str, Any]:
    """Return those settings of a configuration that determine a run's result.

    Paths of data files are left out: the contents are hashed elsewhere. A pretrained run counts by its weights, and a
    folder of a vocabulary by its files.
    """
    decides = dict(settings)
    by_checkpoints = {"checkpoint_every"} if config.train.patience is not None else set()
    decides["train"] = {
        name: value
        for name, value in settings["train"].items()
        if name not in TRAIN_MAY_CHANGE or name in DECIDES | by_checkpoints
    }
    decides["data"] = {name: value for name, value in settings["data"].items() if not is_place(name)}
    if files := getattr(config.tokenizer, "files", ()):
        decides["tokenizer"] = {**settings["tokenizer"], "path": files_hash(files)}
    if config.train.pretrained is not None:
        decides["train"]["pretrained"] = weights_hash(config.train.pretrained)
    return decides


def weights_hash(run: str) -> str:
    """Return the SHA-256 of the latest weights of a run.

    Raises:
        RunError: there is no such run, or it has no weights yet.
    """
    return str(describe(find_checkpoint(find_run(run), "latest") / MODEL)["sha256"])


def is_place(name: str) -> bool:
    """Whether a setting of section `data` says where data lie, and not what they are."""
    return name in PATHS


def files_hash(files: Iterable[str | Path]) -> str:
    """Return the SHA-256 of the contents of some files, in order.

    Raises:
        DataError: one of them cannot be read.
    """
    contents = hashlib.sha256()
    for file in files:
        try:
            contents.update(hashlib.sha256(user_path(file).read_bytes()).digest())
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror or error}") from None
    return contents.hexdigest()


def parts_of(config: RunConfig) -> Iterator[tuple[str, type]]:
    """Yield the classes of a configuration's kinds, each with its slot, and its task."""
    yield "task", TASKS[type(config.train.objective)]
    for name, spec in specs_in(config):
        yield name, type(spec)


def specs_in(spec: Spec, prefix: str = "") -> Iterator[tuple[str, Spec]]:
    """Yield the specs inside a spec, each with its key."""
    for name in type(spec).model_fields:
        if isinstance(value := getattr(spec, name), Spec):
            yield prefix + name, value
            yield from specs_in(value, f"{prefix}{name}.")


def digest(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a mapping of JSON values, whatever the order of its keys."""
    written = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(written.encode()).hexdigest()
