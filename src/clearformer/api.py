"""The functions of `import clearformer as cf`, for notebooks and scripts.

Settings are written as on the command line: a section is a mapping or a spec, a bare word is short for a slot's kind,
and `{"train.lr": 3e-4}` is short for `{"train": {"lr": 3e-4}}`. A mistake in them raises a `ClearformerError` whose
message is one line.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, overload

import numpy as np
from jaxtyping import Int

from clearformer.config import Spec, nested, read_toml, resolve, sections_of, slot_variants, whole
from clearformer.decoding import Text, generate, search, stream, translate
from clearformer.decoding.arguments import check_kind
from clearformer.decoding.text.inputs import ids_of, text_of, words_of
from clearformer.device import kept_random_state, torch_as_it_begins
from clearformer.errors import ConfigError, Interrupted, RunError, UserError, did_you_mean, nearest, shown
from clearformer.evaluation.classes.scores import classify
from clearformer.evaluation.likelihood import score
from clearformer.files import user_path
from clearformer.interop import to_hf
from clearformer.model import ModelConfig, Transformer
from clearformer.model import build as build_model
from clearformer.presets import PRESETS
from clearformer.presets import preset as preset_of_name
from clearformer.resolving import default_preset, resolve_changes, resolve_settings, resumed_settings
from clearformer.results import Result
from clearformer.run import Run, from_hf, load, replay
from clearformer.runs.folders import find_run, is_run, name_for, name_of, new_run
from clearformer.runs.scores import evaluate
from clearformer.runs.training import RunStart, train_run
from clearformer.text import Tokenizer, load_tokenizer
from clearformer.training.config import RunConfig
from clearformer.training.planning import run_plan
from clearformer.training.planning.plan import Plan
from clearformer.training.processes.distributed import is_main_process
from clearformer.training.reporting.console import reporter_here
from clearformer.training.reporting.loggers import Logger, LoggingReporter, checked_loggers
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.folder import RunFolder

__all__ = [
    "ModelConfig",
    "Run",
    "RunConfig",
    "build",
    "classify",
    "evaluate",
    "from_hf",
    "generate",
    "load",
    "plan",
    "preset",
    "replay",
    "score",
    "search",
    "stream",
    "to_hf",
    "tokenize",
    "train",
    "translate",
]

Config = str | PathLike[str] | RunConfig | Mapping[str, Any] | None
"""A preset's name, a TOML file (a path, or a name that ends in .toml), a configuration, settings, or nothing."""
Section = Spec | Mapping[str, Any] | str | None
"""The settings of a section; for a slot, the name of its kind will do."""


# --- training ---------------------------------------------------------------------------------------------


def train(
    config: Config = None,
    *,
    run: str | None = None,
    data: Section = None,
    model: Section = None,
    tokenizer: Section = None,
    train: Section = None,
    resume: bool = False,
    quiet: bool = False,
    loggers: Iterable[Logger] = (),
    **overrides: Any,
) -> Run:
    """Train a model and keep everything in a run's folder: `clearformer train` in Python.

        run = cf.train("quick", data={"path": "my.txt"}, train={"max_seconds": 60})

    Args:
        config: The configuration to start from. By default the preset that fits the settings of the data: a translator
            for a .tsv file, `source` and `target` or built-in pairs, a classifier for `kind="labelled"` or built-in
            labelled texts, a language model for any other text.
        run: The run's name under the runs' folder. By default a free name made of the preset and the data.
        data: Settings of section `data`, which override those of `config`; likewise the next three.
        model: Settings of section `model`.
        tokenizer: Settings of section `tokenizer`.
        train: Settings of section `train`.
        resume: Continue the run of that name. Settings that are not given stay as the run has them.
        quiet: Print no progress.
        loggers: Receive every line of metrics; see `training.reporting.loggers`.
        **overrides: Other settings, such as `seed=2` or `**{"train.lr": 3e-4}`; these win.

    Returns:
        The run, its model in evaluation mode on the device where it was trained.

    Raises:
        ConfigError: a setting is unknown, ill-typed or does not fit the others.
        DataError, TokenizerError: the data cannot be used.
        RunError: the name is taken, or there is no such run to resume.
        Interrupted: a signal came; everything so far is kept.
        ClearformerError: a logger cannot start; nothing is written.
        NonFiniteError, DiskError, DeviceError, CheckpointError, RunInUseError: see `training.loop.train`.
    """
    began = time.perf_counter()
    chosen = checked_loggers(loggers)
    _check_spelled(overrides, "run", "resume", "quiet", "loggers")
    settings = _settings(data=data, model=model, tokenizer=tokenizer, train=train, **overrides)
    with kept_random_state(), torch_as_it_begins():
        start = _resumed(run, config, settings) if resume else _new(run, config, settings)
        start.began = began
        reporter = Reporter() if quiet or not is_main_process() else reporter_here()
        try:
            result = train_run(start, LoggingReporter(reporter, chosen))
        except Interrupted as interrupted:
            way_on = f"cf.train(run={name_of(start.folder)!r}, resume=True)"
            raise Interrupted(f"{interrupted}; resume with: {way_on}", interrupted.signal_number) from None
    trained_config = result.task.config  # every setting is decided there
    return Run(
        result.model.eval(),
        result.task.tokenizer,
        trained_config,
        folder=start.folder,
        step=result.progress.step,
    )


def _new(run: str | None, config: Config, settings: Mapping[str, Any]) -> RunStart:
    if run is not None:
        _new_folder(run)  # before `auto` measures the machine
    name, resolved_config = resolved(config, settings)
    folder = _new_folder(run) if run is not None else new_run(name_for(name, resolved_config))
    preset = None if isinstance(config, RunConfig) else name
    return RunStart(resolved_config, folder, resume=False, is_named=run is not None, preset=preset)


def _resumed(run: str | None, config: Config, settings: Mapping[str, Any]) -> RunStart:
    if run is None:
        raise RunError("resume=True: name the run with run=NAME")
    folder = find_run(run)
    name, layers = _begin_with(config)
    resumed = resumed_settings(folder, name, [*layers, dict(settings)])
    return RunStart(resumed, folder, resume=True, is_named=True)


def _new_folder(run: str) -> RunFolder:
    return new_run(run, "run", "resume it with resume=True, choose another name, or delete the folder")


# --- configurations ---------------------------------------------------------------------------------------


def preset(
    name: str,
    *,
    data: Section = None,
    model: Section = None,
    tokenizer: Section = None,
    train: Section = None,
    **overrides: Any,
) -> RunConfig:
    """Return a preset's configuration, with some of its settings overridden.

        cf.preset("quick", model={"n_layers": 2, "position": "alibi"}, seed=2)

    Args:
        name: One of the names that `clearformer presets` lists. Of `auto` without settings it is the choice for a
            typical text and machine, and nothing is measured; `cf.train("auto", data=...)` measures and chooses.
        data: Settings of section `data`, which override the preset's; likewise the next three.
        model: Settings of section `model`.
        tokenizer: Settings of section `tokenizer`.
        train: Settings of section `train`.
        **overrides: Other settings; these win.

    Raises:
        ConfigError: there is no such preset, or a setting is unknown, ill-typed or does not fit the others.
    """
    settings = _settings(data=data, model=model, tokenizer=tokenizer, train=train, **overrides)
    return resolve_settings(name, [settings]) if settings else preset_of_name(name)


def resolved(config: Config, settings: Mapping[str, Any]) -> tuple[str, RunConfig]:
    """Return the preset's name that a run is named after, and the whole configuration; see `train`."""
    if isinstance(config, RunConfig):
        changed = resolve_changes(config, [dict(settings)]) if settings else config
        return changed.train.objective.kind.replace("_", "-"), changed
    name, layers = _begin_with(config)
    layers = [*layers, dict(settings)]
    name = default_preset(layers) if name is None else name
    return name, resolve_settings(name, layers)


def _begin_with(config: Config) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the preset's name if `config` is one, and otherwise the settings that it holds."""
    if config is None:
        return None, []
    if isinstance(config, RunConfig):
        return None, [whole(config)]
    if isinstance(config, Mapping):
        return None, [sections_of(config)]
    if isinstance(config, str) and not config.endswith(".toml"):
        return config, []
    if isinstance(config, str | PathLike):
        return None, [read_toml(user_path(Path(config)))]
    raise ConfigError(
        f"a configuration is a preset name, a TOML file, a RunConfig or settings by name; got {shown(config)}"
    )


def _check_spelled(overrides: Mapping[str, Any], *options: str) -> None:
    """Refuse an unknown setting whose name is nearest to one of a function's own options.

    Raises:
        ConfigError: there is one; the message names the option.
    """
    for name in overrides:
        if "." not in name and nearest(name, [*RunConfig.model_fields, "config", *options]) in (
            "config",
            *options,
        ):
            raise ConfigError(f"unknown key {name!r}{did_you_mean(name, ('config', *options))}")


def _settings(
    *, data: Section, model: Section, tokenizer: Section, train: Section, **overrides: Any
) -> dict[str, Any]:
    """Return the sections that are not None, and the overrides, as settings; None unsets what an override names.

    A spec stands for all of its settings, so it replaces the whole section that it overrides.
    """
    sections = {"data": data, "model": model, "tokenizer": tokenizer, "train": train}
    given = {name: section for name, section in sections.items() if section is not None}
    return sections_of(given | overrides)


def build(config: ModelConfig | Mapping[str, Any]) -> Transformer:
    """Build a model: an `nn.Module`, by `config.family` a Decoder, an Encoder or an EncoderDecoder.

    A decoder and an encoder are called as `model(tokens) -> logits`, tokens [B T] and logits [B T V], or [B C] of an
    encoder with `n_classes`; an encoder-decoder as `model(source, target) -> logits`, [B S] and [B T] to [B T V].
    `run_with_cache` takes the same arguments, and all have `hooked(...)`. The weights are drawn from torch's global
    generator.

    Args:
        config: The model's settings, as a ModelConfig or by their names.

    Raises:
        ConfigError: these are not the settings of a model, or `vocab_size` is not given. Only a run can take it from
            its tokenizer.
    """
    if isinstance(config, Mapping):
        config = resolve(ModelConfig, nested(config))
    if not isinstance(config, ModelConfig):
        raise ConfigError(_no_model(config))
    if config.vocab_size is None:
        raise ConfigError(
            "vocab_size is missing: a model without a run needs it, such as ModelConfig(vocab_size=256)"
        )
    return build_model(config)


def _no_model(config: Any) -> str:
    wanted = "a model is built from a ModelConfig or settings by name"
    if isinstance(config, RunConfig):
        return f"{wanted}; got a run's configuration: pass its .model"
    if isinstance(config, str) and config in PRESETS:
        return f"{wanted}; got a preset name: pass cf.preset({config!r}, model={{'vocab_size': N}}).model"
    return f"{wanted}; got {shown(config)}"


def plan(
    config: Config = None,
    *,
    device: str = run_plan.MEASURE,
    data: Section = None,
    model: Section = None,
    tokenizer: Section = None,
    train: Section = None,
    **overrides: Any,
) -> Plan:
    """Estimate what a run will cost: parameters, FLOPs, memory and time.

    Args:
        config: As in `train`; likewise the settings.
        device: A GPU's name such as `a100`, or `measure` to measure this machine for about a second.
        data: Settings of section `data`.
        model: Settings of section `model`.
        tokenizer: Settings of section `tokenizer`.
        train: Settings of section `train`.
        **overrides: Other settings; these win.

    Raises:
        ConfigError: a setting is unknown, ill-typed or does not fit, or there is no such device.
        UserError: the device is not given by its name.
    """
    check_kind("device", device, str)
    _check_spelled(overrides, "device")
    settings = _settings(data=data, model=model, tokenizer=tokenizer, train=train, **overrides)
    return run_plan.plan_run(resolved(config, settings)[1], device)


# --- tokens -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False, eq=False)
class Tokens(Result, Sequence[int]):
    """A text and its tokens: the sequence of their ids, which whatever takes a text reads as such.

    Attributes:
        text: The text, decoded where ids were given.
        ids: The ids of its tokens, [T] int32; no special tokens are added.
        labels: A readable label for each token.
        tokenizer: The tokenizer that cut it.
    """

    text: str
    ids: Int[np.ndarray, " T"]
    labels: list[str]
    tokenizer: Tokenizer = field(repr=False)

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self.ids[index].tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.ids, dtype=dtype)

    def __str__(self) -> str:
        return " | ".join(self.labels)


def tokenize(
    text: Text, tokenizer: Run | RunConfig | Tokenizer | Spec | str | PathLike[str] = "byte", **settings: Any
) -> Tokens:
    """Cut a text into tokens.

        print(cf.tokenize("low lower lowest", "bpe", vocab_size=262))
        cf.tokenize("To be", run).ids

    Args:
        text: A text, or ids, which are shown with their labels.
        tokenizer: A run, a tokenizer or a `tokenizer.json`; or a kind (`char`, `byte`, `bpe`, ...), its spec or a
            whole configuration, and then a tokenizer of that kind is trained on the text.
        **settings: Settings of the kind, such as `vocab_size`.

    Raises:
        TokenizerError: the tokenizer has no token for a part of the text, or cannot be read.
        ConfigError: there is no such kind or setting.
    """
    plain = text_of(text)
    chosen = _tokenizer(tokenizer, settings, plain)
    ids = ids_of(chosen, plain)
    labels = [chosen.token_label(token) for token in ids]
    return Tokens(words_of(chosen, plain), np.array(ids, np.int32), labels, chosen)


def _tokenizer(tokenizer: Any, settings: Mapping[str, Any], text: str | Sequence[int]) -> Tokenizer:
    is_file = isinstance(tokenizer, PathLike) or (isinstance(tokenizer, str) and tokenizer.endswith(".json"))
    if settings and (is_file or isinstance(tokenizer, Run | Tokenizer)):
        raise ConfigError(f"{next(iter(settings))}: only a tokenizer kind takes settings; remove it")
    if is_file:
        return load_tokenizer(user_path(Path(tokenizer)))
    if isinstance(tokenizer, Run | Tokenizer):
        return tokenizer.tokenizer if isinstance(tokenizer, Run) else tokenizer
    spec = _tokenizer_spec(tokenizer, settings)
    if not isinstance(text, str):
        raise UserError("ids are already tokens; pass the run or tokenizer they belong to")
    return spec.train([text])


def _tokenizer_spec(tokenizer: Any, settings: Mapping[str, Any]) -> Any:
    """Return the spec of a kind of tokenizer, with settings laid over it."""
    if isinstance(tokenizer, RunConfig):
        tokenizer = tokenizer.tokenizer
    kinds = slot_variants(RunConfig.model_fields["tokenizer"])
    if isinstance(tokenizer, Spec) and isinstance(tokenizer, tuple(kinds.values())):
        return tokenizer.replace(**settings)
    if not isinstance(tokenizer, str):
        raise ConfigError(
            f"a tokenizer is a kind ({', '.join(kinds)}) or its spec, a run's, or a tokenizer.json; got "
            f"{type(tokenizer).__name__ if isinstance(tokenizer, Spec) else shown(tokenizer)}"
        )
    if tokenizer not in kinds and is_run(tokenizer):
        raise ConfigError(f"{shown(tokenizer)} is a run: pass cf.load({tokenizer!r}) to use its tokenizer")
    return resolve(RunConfig, {"tokenizer": {"kind": tokenizer, **settings}}).tokenizer
