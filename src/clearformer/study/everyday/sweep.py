"""Sweeps: the Cartesian product of some settings' values, as a study."""

import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

from clearformer.config import Spec, explicit, flat, merge_all, nested, parse_override, read_toml, whole
from clearformer.errors import ConfigError, UserError, count, shortened, shown
from clearformer.files import user_path
from clearformer.presets import preset as preset_of_name
from clearformer.resolving import one_source
from clearformer.study.everyday.caveats import BY_THE_CLOCK, IN_WARMUP, MAY_END_BY_THE_CLOCK, caveats
from clearformer.study.everyday.declared import CURVES, FILE, read_declaration
from clearformer.study.lectures import studies
from clearformer.study.measures.losses import LOSSES
from clearformer.study.store import Store
from clearformer.study.study import Study, Training
from clearformer.study.trials import trials
from clearformer.training.config import RunConfig

RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
MOST_RUNS = 10_000
SHOWN = ("train_loss", "val_loss", "parameters", "steps")
DRAWN_BY = frozenset(
    {
        "train.batch_size",
        "train.grad_accum_steps",
        "train.objective.batch_tokens",
        "train.objective.bpe_dropout",
        "train.objective.wordpiece_dropout",
        "train.pretrained",
        "model.max_seq_len",
    }
)
"""The settings by which a seed draws other data, beside those of the data and the tokenizer.

A pretrained run brings its tokenizer.
"""
NOT_LEARNED_FROM = frozenset({"data.val_path", "data.test_path", "data.order", "data.labels"})
"""The settings of data that leave a tokenizer as it is, which is trained on the training text."""

Values = Mapping[str, Sequence[Any]]


def sweep(preset: str, values: Values, *, seeds: range = range(1, 2), name: str | None = None) -> Study:
    """Return a study with one arm for each combination of the settings' values.

    Args:
        preset: The preset that every run starts from.
        values: The values of each setting, such as `{"model.position": ["rope", "alibi"], "train.lr": [1e-3]}`; a
            setting with one value is the same in all arms. The values of `seed` are the seeds.
        seeds: Consecutive seeds, each of which trains every arm, unless `values` has them.
        name: The study's name; by default made of the preset and the settings that vary.

    Raises:
        ConfigError: there is no such preset, or the name is invalid.
        UserError: there is nothing to run, or too much, two arms would be the same run, or values are no list.
    """
    preset_of_name(preset)
    seeds = as_range(values.get("seed", seeds))
    values = {key: each for key, each in values.items() if key != "seed"}
    for key, each in values.items():
        if isinstance(each, str) or not isinstance(each, Sequence):
            raise UserError(f"{shortened(key)}: give its values as a list; got {shown(each)}")
        if not each:
            raise UserError(f"{shortened(key)}: no values given, so there is nothing to run")
        if len(set(map(repr, each))) < len(each):
            raise UserError(f"{shortened(key)}: a value is given twice")
    if not seeds:
        raise UserError("seed: no seeds given, so there is nothing to run")
    n_runs = math.prod(map(len, values.values())) * len(seeds)
    if n_runs > MOST_RUNS:
        raise UserError(f"a sweep of {count(n_runs, 'run')}: at most {MOST_RUNS:,}; remove some values")
    varied = {key: each for key, each in values.items() if len(each) > 1}
    short = short_names(varied)
    study = Study(
        name=default_name(preset, list(short.values())) if name is None else name,
        question=question(preset, list(varied)),
        lecture="",
        arms=tuple(
            Training(label(preset, short, chosen), preset, dict(zip(varied, chosen, strict=True)))
            for chosen in itertools.product(*varied.values())
        ),
        settings={key: each[0] for key, each in values.items() if len(each) == 1},
        measures=(LOSSES,),
        shown=SHOWN,
        figures=(CURVES,),
        refuted_if="",
        seeds=len(seeds),
        first_seed=seeds.start,
    )
    _check_no_two_are_one(study)
    return replace(study, fairness=fairness(study, keys_that_vary(varied)))


def _check_no_two_are_one(study: Study) -> None:
    """Raise UserError if two arms are the same run, as where a value is spelled in two ways."""
    labels: dict[str, str] = {}
    for trial in trials(study, seeds=1):
        if (other := labels.setdefault(trial.identity, trial.arm.label)) != trial.arm.label:
            raise UserError(f"{other!r} and {trial.arm.label!r} are the same run: remove one of the values")


def question(preset: str, varied: Sequence[str]) -> str:
    """Return the question that a sweep asks."""
    if not varied:
        return f"To which loss does the preset {preset} come, seed by seed?"
    *others, last = varied
    settings = f"{', '.join(others)} and {last}" if others else last
    return f"How do the losses of the preset {preset} depend on {settings}?"


def keys_that_vary(varied: Values) -> list[str]:
    """Return the dotted keys that differ between the values of settings, which may be mappings of several keys."""
    keys: dict[str, None] = {}
    for key, values in varied.items():
        written = [flat({key: whole(each) if isinstance(each, Spec) else each}) for each in values]
        for name in dict.fromkeys(name for each in written for name in each):
            if len({repr(each.get(name)) for each in written}) > 1:
                keys[name] = None
    return list(keys)


def fairness(study: Study, varied: Collection[str]) -> str:
    """Return what the arms of a sweep share, and what forbids comparing their losses."""
    shared = "Every value of one setting meets every value of the others"
    if not any(key.partition(".")[0] in ("data", "tokenizer") or key in DRAWN_BY for key in varied):
        shared += "; a seed gives all the same data in the same order"
    return " ".join((f"{shared}.", *caveats_of(study, varied)))


def caveats_of(study: Study, varied: Collection[str]) -> list[str]:
    """Return a sentence for each reason not to compare the losses of a sweep's arms."""
    configs = [trial.config for trial in trials(study, seeds=1) if trial.config is not None]
    trains_tokenizers = any(
        config.tokenizer.needs_corpus and config.tokenizer.kind != "char" for config in configs
    )
    sections = {key.partition(".")[0] for key in varied if key not in NOT_LEARNED_FROM}
    if (trains_tokenizers and "data" in sections) or "train.pretrained" in varied:
        varied = [*varied, "tokenizer"]
    timed = [config.train for config in configs if config.train.max_seconds or config.train.max_wall_seconds]
    by_the_clock = BY_THE_CLOCK if any(each.max_steps is None for each in timed) else MAY_END_BY_THE_CLOCK
    in_warmup = any(config.train.ends_in_warmup for config in configs)
    told = [by_the_clock] * (bool(timed) and len(configs) > 1) + [IN_WARMUP] * in_warmup
    return caveats(varied, [config.train.objective for config in configs]) + told


def short_names(keys: Mapping[str, Any]) -> dict[str, str]:
    """Shorten each key to its last part, or to its last two where one is ambiguous."""
    last = {key: _last(key, 1) for key in keys}
    return {
        key: _last(key, 2) if name == "kind" or list(last.values()).count(name) > 1 else name
        for key, name in last.items()
    }


def _last(key: str, n: int) -> str:
    return ".".join(key.split(".")[-n:])


def label(preset: str, short: Mapping[str, str], chosen: Sequence[Any]) -> str:
    """Return the label of one combination of values."""
    if not short:
        return preset
    return ", ".join(f"{name}={written(value)}" for name, value in zip(short.values(), chosen, strict=True))


def written(value: Any) -> str:
    """Return a value as a user would type it; a spec by its kind and the settings that are not its defaults."""
    if isinstance(value, Spec):
        kind, *others = (f"{name}={written(each)}" for name, each in flat(explicit(value)).items())
        return " ".join((kind.removeprefix("kind="), *others))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and float(short := f"{value:g}") == value:
        return short
    return str(value)


def default_name(preset: str, varied: Sequence[str]) -> str:
    """Return a name made of the preset and the settings that vary."""
    words = [preset, *(varied or ["seeds"])]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", "-".join(words))[:80].strip("-")


def free_name(study: Study, store: Store) -> str:
    """Return a sweep's name, with a number appended if another study has that name."""
    for number in itertools.count(1):
        name = study.name if number == 1 else f"{study.name}-{number}"
        file = store.folder / name / FILE
        if name in studies():
            continue
        if not file.exists() or _is_same(read_declaration(file), study):
            return name
    raise AssertionError


def _is_same(kept: Study, study: Study) -> bool:
    """Whether two sweeps have the same runs."""
    return (kept.arms, kept.settings, kept.seeds, kept.first_seed) == (
        study.arms,
        study.settings,
        study.seeds,
        study.first_seed,
    )


# --- as typed ---------------------------------------------------------------------------------------------


def parse_sweep(arguments: Sequence[str]) -> tuple[str, dict[str, list[Any]]]:
    """Parse `PRESET key=a,b seed=1..3` into the preset and the values of each setting.

    Raises:
        ConfigError, UserError: one line about the first error.
    """
    names = [argument for argument in arguments if "=" not in argument]
    if len(names) != 1:
        got = f"got {' and '.join(map(shortened, names))}" if names else "none is named"
        raise ConfigError(f"a sweep starts from one preset, but {got}; write settings as key=a,b")
    values: dict[str, list[Any]] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if equals:
            if key in values:
                raise ConfigError(
                    f"{shortened(key)} is given twice; write its values as {shortened(key)}=a,b"
                )
            values[key] = parse_values(key, text)
    return names[0], values


def over_file(path: Path, values: Values) -> dict[str, list[Any]]:
    """Return a sweep's values laid over the settings of a TOML file, each of which has one value.

    Data that are named by one value replace those that the file names, as in training.

    Raises:
        ConfigError: the file cannot be read, or has a key or kind that there is not.
    """
    single = {key: each[0] for key, each in values.items() if len(each) == 1}
    fixed = merge_all(RunConfig, one_source([read_toml(user_path(path)), nested(single)]))
    varied = {key: list(each) for key, each in values.items() if key not in single}
    return {key: [value] for key, value in flat(fixed).items() if key not in varied} | varied


def parse_values(key: str, text: str) -> list[Any]:
    """Parse values such as `rope,alibi`, `1e-3,3e-3` or `1..3`; commas inside brackets or quotes do not separate.

    Raises:
        UserError: a value is missing.
    """
    found: list[Any] = []
    for part in split_at_commas(text):
        part = part.strip()
        if not part:
            raise UserError(f"{shortened(key)}: a value is missing in {shortened(text)!r}")
        if bounds := RANGE.fullmatch(part):
            first, last = map(int, bounds.groups())
            if last - first >= MOST_RUNS:
                raise UserError(f"{shortened(key)}: {part} are too many values")
            if last < first:
                raise UserError(f"{shortened(key)}: {part} has no values: write {last}..{first}")
            found += range(first, last + 1)
        else:
            found.append(parse_override(f"value={part}")["value"])
    return found


def split_at_commas(text: str) -> list[str]:
    """Split a text at the commas outside of brackets and quotes; an apostrophe within a word is no quote.

    Raises:
        UserError: a quote is not closed.
    """
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and (depth or not parts[-1].strip()):
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    if quote:
        raise UserError(f"{shortened(text)}: a quote ({quote}) is not closed")
    return parts


def as_range(seeds: Any) -> range:
    """Return seeds as a range.

    Raises:
        UserError: they are no list of whole numbers of 0 or more, or not consecutive.
    """
    given: list[Any] = list(seeds) if isinstance(seeds, Iterable) else [None]
    if any(isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0 for seed in given):
        raise UserError("seed: whole numbers of 0 or more, such as seed=1..3")
    if not given:
        return range(0)
    found = range(int(given[0]), int(given[0]) + len(given))
    if given != list(found):
        raise UserError("seed: a sweep takes consecutive seeds, such as seed=1..3")
    return found


def described(study: Study) -> str:
    """Return a sweep's size as `4 combinations of values, 3 seeds each`."""
    return f"{count(len(study.arms), 'combination')} of values, {count(study.seeds, 'seed')} each"
