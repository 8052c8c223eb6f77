"""A run's configuration from a preset, a TOML file and overrides, for new and for resumed runs."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clearformer.auto import MEASURED_BY, auto, auto_for
from clearformer.config import (
    NONE,
    Spec,
    as_written,
    check_each,
    explicit,
    flat,
    nested,
    parse_override,
    read_toml,
    resolve,
    whole,
)
from clearformer.data import BUILT_IN_BY_KIND, PrepareConfig, form_of, kind_of, section_settings
from clearformer.errors import ConfigError, did_you_mean, shortened
from clearformer.files import user_path
from clearformer.presets import DEFAULTS, PRESETS, preset
from clearformer.runs.folders import find_run
from clearformer.training.config import TRAIN_MAY_CHANGE, RunConfig
from clearformer.training.store.folder import RunFolder

TWO_FILES = {"source", "target"}
SOURCES = ("name", "path", *TWO_FILES)  # keys of section `data`, one of which says what to read

logger = logging.getLogger(__name__)


def split_arguments(
    arguments: list[str], config_file: Path | None = None
) -> tuple[str, list[dict[str, Any]]]:
    """Return the preset's name and the settings to lay over it: those of a TOML file, then the `key=value` arguments.

    If the arguments name no preset, the settings of the data decide: `translate` for pairs, `classify` for labelled
    texts, and `quick` for any other text.
    """
    names = [argument for argument in arguments if "=" not in argument]
    if len(names) > 1:
        raise ConfigError(f"one preset at a time: got {' and '.join(names)}; settings are written key=value")
    layers = [] if config_file is None else [read_toml(user_path(config_file))]
    layers += [parse_override(argument) for argument in arguments if "=" in argument]
    return (names[0] if names else default_preset(layers)), layers


def default_preset(layers: list[dict[str, Any]]) -> str:
    """Return the default preset for the data that some settings name.

    Raises:
        ConfigError: there is no such built-in data.
    """
    return DEFAULTS[_form_of_data(layers)]


def _form_of_data(layers: list[dict[str, Any]]) -> str:
    """Return the form of the data that some settings name: `text`, `pairs` or `labelled`; by default `text`."""
    settings = section_settings(one_source(layers))
    data = {key: value for key, value in settings.items() if _is_set(value)}
    if not data:
        return "text"
    if kind := kind_of(data):
        form = form_of(kind)
        return form if form in DEFAULTS else "text"
    if isinstance(name := data.get("name"), str) and name.strip():
        known = [name for names in BUILT_IN_BY_KIND.values() for name in names]
        hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
        raise ConfigError(
            f"data.name={shortened(name)}: no such built-in data{hint} (for your own file: data.path=FILE)"
        )
    path = data.get("path")
    is_table = isinstance(path, str) and path.lower().removesuffix(".gz").endswith(".tsv")
    return "pairs" if is_table else "text"


def resolve_run(arguments: list[str], config_file: Path | None) -> RunConfig:
    """Return a run's configuration from a preset, a TOML file and overrides; later ones win.

    If `train.pretrained` names a run, its model and tokenizer override the preset's.

    Raises:
        ConfigError: one line for the first mistake.
        RunError: there is no such run to begin with.
    """
    return resolve_settings(*split_arguments(arguments, config_file))


def resolve_settings(name: str, given: list[dict[str, Any]]) -> RunConfig:
    """Return a run's configuration from a preset's name and the settings to lay over it; see `resolve_run`."""
    if name == "auto":
        return _resolve_auto(given)
    begin_with = preset(name)
    return _resolve_with_pretrained(begin_with, [explicit(begin_with), *given])


def resolve_data(given: list[dict[str, Any]]) -> PrepareConfig:
    """Return the data and the tokenizer that a run of the default preset for the data has with some settings.

    Raises:
        ConfigError: one line for the first mistake.
    """
    begin_with = explicit(preset(default_preset(given)))
    sections = {name: begin_with[name] for name in PrepareConfig.model_fields if name in begin_with}
    return resolve(PrepareConfig, *one_source([sections, *given]))


def _resolve_auto(given: list[dict[str, Any]]) -> RunConfig:
    """Return what `auto` chooses for the data and time of some settings, with these laid over its choices."""
    begin_with = auto(_form_of_data(given))
    said = {key: value for layer in given for key, value in _by_key(layer).items()}
    _check_objective(said, begin_with)
    # A misspelt key or an ill-typed value is refused before data and machine are measured.
    check_each(RunConfig, *_with_pretrained(begin_with, [explicit(begin_with), *given]))
    wanted = [explicit(begin_with), *map(_read_by_auto, given)]
    if _is_set(said.get("train.max_seconds")) and "train.max_wall_seconds" not in said:
        # The given limit is in place of the preset's own.
        wanted.append({"train": {"max_wall_seconds": NONE}})
    chosen = auto_for(_resolve_with_pretrained(begin_with, wanted), said)
    run = _resolve_with_pretrained(begin_with, [explicit(chosen), *given])
    if earlier := run.train.pretrained:  # whose model and tokens are in the place of the chosen ones
        logger.info("auto: the model and its tokens are those of %s", earlier)
        chosen = _resolve_with_pretrained(begin_with, [explicit(chosen), {"train": {"pretrained": earlier}}])
    if replaced := _replaced(chosen, run):
        logger.info("auto: replaced by your settings: %s", ", ".join(replaced))
    own, given_kind = chosen.train.optimizer.kind, run.train.optimizer.kind
    if own != given_kind and "train.lr" not in said:
        logger.warning(
            "auto: train.lr=%g was chosen for %s, not for %s: set train.lr too",
            *(run.train.lr, own, given_kind),
        )
    return run


def _read_by_auto(layer: dict[str, Any]) -> dict[str, Any]:
    """Return those settings of a layer that `auto` reads before it chooses; others may fit its choices alone."""
    kept = {name: layer[name] for name in ("data", "tokenizer") if name in layer}
    of_train = {key: value for key, value in _by_key(layer).items() if key in MEASURED_BY}
    return kept | nested(of_train)


def _by_key(layer: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a layer by dotted keys, also those of a section that is given as a whole."""
    return flat({name: whole(each) if isinstance(each, Spec) else each for name, each in layer.items()})


def _check_objective(said: dict[str, Any], begin_with: RunConfig) -> None:
    """Check that the objective, if one is given, is the one that `auto` has rules for.

    Raises:
        ConfigError: it is another one.
    """
    objective = said.get("train.objective", said.get("train.objective.kind"))
    own = begin_with.train.objective.kind
    if isinstance(objective, str) and objective not in (own, NONE):
        raise ConfigError(
            f"train.objective={shortened(objective)}: of these data, auto has rules for {own} alone; for another "
            "objective begin with a preset that has it: clearformer presets"
        )


def _replaced(chosen: RunConfig, run: RunConfig) -> list[str]:
    """Return the settings of a run that are in the place of chosen ones, as `key=value`."""
    before, after = flat(whole(chosen)), flat(whole(run))
    return [
        f"{key}={as_written(after[key])}"
        for key in _decided(chosen)
        if key in after and after[key] != before[key]
    ]


def _decided(spec: Spec, prefix: str = "") -> Iterator[str]:
    """Yield the keys of the settings that were given to a spec, even if they equal the defaults."""
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if isinstance(value, Spec):
            yield from _decided(value, f"{prefix}{name}.")
        elif name == "kind" or name in spec.model_fields_set:
            yield prefix + name


def resolve_changes(begin_with: RunConfig, given: list[dict[str, Any]]) -> RunConfig:
    """Return a configuration with other settings laid over it; see `resolve_run`."""
    return _resolve_with_pretrained(begin_with, [explicit(begin_with), *given], given)


def _resolve_with_pretrained(
    begin_with: RunConfig, layers: list[dict[str, Any]], named_in: list[dict[str, Any]] | None = None
) -> RunConfig:
    return resolve(RunConfig, *_with_pretrained(begin_with, layers, named_in))


def _with_pretrained(
    begin_with: RunConfig, layers: list[dict[str, Any]], named_in: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Return the layers with the model and tokenizer of the run that they begin with, if they name one."""
    layers = list(layers)
    if pretrained := _pretrained(layers if named_in is None else named_in):
        folder = find_run(pretrained)
        layers.insert(1, _like(folder.read_config(), begin_with))
        layers.append({"train": {"pretrained": str(folder.path.resolve())}})
    return one_source(layers)


def resolve_resumed(folder: RunFolder, arguments: list[str], config_file: Path | None) -> RunConfig:
    """Return the configuration to resume a run with, from command-line arguments; see `resumed_settings`.

    Raises:
        ConfigError: one line for the first mistake.
        RunError: config.toml is missing.
    """
    name, given = split_arguments(arguments, config_file)
    return resumed_settings(folder, name if name in arguments else None, given)


def resumed_settings(folder: RunFolder, name: str | None, given: list[dict[str, Any]]) -> RunConfig:
    """Return the configuration to resume a run with, from a preset's name, if one is given, and settings.

    These may be the ones that the run began with, or only those that change. Settings that are not given stay as the
    run has them. Those of a named preset must be the run's own, except in what may change (`training.setup` compares
    them in `resumed_config`). `auto` does not choose again.

    Raises:
        ConfigError: one line for the first mistake.
        RunError: config.toml is missing.
    """
    begun = _without_samples(folder.read_config(), given)
    if name == "auto" and preset_of(folder) != "auto":
        raise ConfigError(f"auto: {folder.path} was started with another preset; omit it to resume the run")
    if name is not None and name != "auto":
        samples = {key: NONE if value is None else value for key, value in _of_samples(begun).items()}
        wanted = resolve_settings(name, [{"train": samples}, *given])
    else:
        layers = [explicit(begun), *given]
        if pretrained := _pretrained(given):
            layers.append({"train": {"pretrained": str(find_run(pretrained).path.resolve())}})
        wanted = resolve(RunConfig, *one_source(layers))
    said = {key for layer in given if isinstance(layer.get("train"), dict) for key in layer["train"]}
    kept = {key: getattr(begun.train, key) for key in TRAIN_MAY_CHANGE - said}
    return wanted.replace(train=wanted.train.replace(**kept))


def _without_samples(begun: RunConfig, given: list[dict[str, Any]]) -> RunConfig:
    """Return the configuration without what needs `train.sample_every`, where the given settings take that away."""
    sections = [layer["train"] for layer in given if isinstance(layer.get("train"), dict)]
    asked = [section["sample_every"] for section in sections if "sample_every" in section]
    if not asked or asked[-1] not in (None, NONE):
        return begun
    usual = {key: type(begun.train).model_fields[key].default for key in _of_samples(begun)}
    return begun.replace(train=begun.train.replace(**usual))


def _of_samples(run: RunConfig) -> dict[str, Any]:
    """Return the settings of samples on the way."""
    names = ("sample_every", "sample_prompt", "sample_tokens", "sample_temperature")
    return {name: getattr(run.train, name) for name in names}


def preset_of(folder: RunFolder) -> str | None:
    """Return the preset that a run began with, from its env.json: its entry, or in older ones the command."""
    if (recorded := folder.preset()) is not None:
        return recorded if recorded in PRESETS else None
    return next((word for word in folder.command()[1:] if word in PRESETS), None)


def _pretrained(layers: list[dict[str, Any]]) -> str | None:
    sections = [layer["train"] for layer in layers if isinstance(layer.get("train"), dict)]
    named = [section["pretrained"] for section in sections if "pretrained" in section]
    return named[-1] if named and isinstance(named[-1], str) and named[-1] != NONE else None


def _like(run: RunConfig, begin_with: RunConfig) -> dict[str, Any]:
    """Return the settings of a pretrained run's model and tokenizer, to be laid over a preset."""
    model = explicit(run.model, default=begin_with.model)
    for of_the_task in ("n_classes", "pooling", "dropout"):
        model.pop(of_the_task, None)
    return {"model": model, "tokenizer": explicit(run.tokenizer, default=begin_with.tokenizer)}


def _is_set(value: Any) -> bool:
    """Whether a setting has a value; without one it is `none` as typed, or None from Python."""
    return value is not None and value != NONE


def one_source(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the layers with every key unset that names a source of data which a later layer replaces."""
    said: set[str] = set()
    done = []
    for layer in layers:
        data = layer.get("data")
        if isinstance(data, dict) and (given := {key for key in SOURCES if _is_set(data.get(key))}):
            kept = given | (
                TWO_FILES if given & TWO_FILES else set()
            )  # the two files may be set in different layers
            taken_back = dict.fromkeys(said - kept, NONE)
            layer, said = layer | {"data": taken_back | data}, said | given
        done.append(layer)
    return done
