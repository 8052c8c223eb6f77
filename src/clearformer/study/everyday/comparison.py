"""Compare runs: the settings that differ, and the losses, with intervals over runs that differ only in the seed."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import Any

from clearformer.config import NONE, flat, whole
from clearformer.cost import measured_parameters
from clearformer.decoding.arguments import check_run
from clearformer.errors import DataError, RunError, UserError
from clearformer.model.build import build_on_meta
from clearformer.results import Result
from clearformer.runs.folders import RunLike, find_run, name_of
from clearformer.study.everyday.caveats import TASK_KEYS, caveats
from clearformer.study.measures.losses import last_training_loss
from clearformer.study.outcomes import Estimate, estimated
from clearformer.study.running import is_trained
from clearformer.study.trials import deciding, digest, is_place
from clearformer.text import ByteTokenizerSpec
from clearformer.training.config import RunConfig
from clearformer.training.reporting.report import is_of_the_whole
from clearformer.training.store.checkpoint import list_checkpoints
from clearformer.training.store.folder import RunFolder, read_metrics, sha256_of

VALUES = ("train_loss", "val_loss")
IN_EVERY_LINE = ("step", "seconds", "tokens", "loss")
"""The numbers of every line of metrics.jsonl."""
OF_AN_EVALUATION = ("val_loss", "val_share")
"""The numbers that only lines with an evaluation have."""


@dataclass(frozen=True, repr=False, eq=False)
class ComparedRun(Result):
    """One run of a comparison.

    Attributes:
        run: Its name.
        seed: Its seed.
        step: Its last step.
        seconds: The training time.
        train_loss: The mean over the last twentieth of the steps, in nats a token.
        val_loss: The last held-out loss, over the whole split once the run has ended; None if it was not evaluated.
        is_whole: Whether `val_loss` is over the whole split.
        is_finished: Whether the training has reached its end.
    """

    run: str
    seed: int
    step: int
    seconds: float
    train_loss: float
    val_loss: float | None
    is_whole: bool
    is_finished: bool


@dataclass(frozen=True, repr=False, eq=False)
class Group(Result):
    """Runs that differ only in the seed.

    Attributes:
        name: The name of the first run.
        settings: The settings that differ between groups, by key.
        parameters: The number of parameters of the model.
        runs: The runs.
        train_loss: The mean over the seeds of the finished runs, or of all where none is; runs of one seed count as
            their mean, as they are no sample of seeds.
        val_loss: Likewise; None if no run was evaluated.
    """

    name: str
    settings: dict[str, Any]
    parameters: int
    runs: list[ComparedRun]
    train_loss: Estimate | None
    val_loss: Estimate | None


@dataclass(frozen=True, repr=False, eq=False)
class Difference(Result):
    """The paired difference of two groups.

    Attributes:
        group: The name of the first group.
        less: The name of the group that is subtracted.
        value: The name of the number.
        difference: The mean over the seeds that both have; with a 95% interval if there are two or more.
    """

    group: str
    less: str
    value: str
    difference: Estimate


@dataclass(frozen=True, repr=False, eq=False)
class Comparison(Result):
    """The result of `compare`.

    Attributes:
        differ: The keys of the settings that differ between groups.
        groups: The runs, grouped so that those of a group differ only in the seed.
        differences: The paired differences of each further group and the first one, if it has the same task.
        caveats: A sentence for each reason not to compare the losses.
    """

    differ: list[str]
    groups: list[Group]
    differences: list[Difference]
    caveats: list[str]


def compare(*runs: RunLike | str | PathLike[str]) -> Comparison:
    """Compare runs: settings that differ, parameters, losses, paired differences.

        cf.compare("rope-1", "rope-2", "alibi-1", "alibi-2")

    Runs that differ only in the seed form a group, whose losses have a 95% interval (Student's, of the mean).
    Differences are taken seed by seed, because the same seed gives both runs the same data in the same order.

    Args:
        *runs: Names of runs, paths of their folders, or opened runs, of which the folder counts.

    Raises:
        RunError: there is no such run, or it has no metrics yet; or an opened one is kept in no folder.
        UserError: a run is given twice, or none is given.
    """
    if not runs:
        raise UserError("compare: name the runs to compare")
    folders = [_folder_of(run) for run in runs]
    names = [name_of(folder) for folder in folders]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"compare: the run {twice} is given twice")
    configs = [folder.read_config() for folder in folders]
    data = [_data_of(folder) for folder in folders]
    members: dict[str, list[int]] = {}
    for i, config in enumerate(configs):
        members.setdefault(without_seed(config, data[i], _brought_to(folders[i])), []).append(i)
    settings = [_settings_of(folders[i[0]], configs[i[0]]) for i in members.values()]
    differ = differing(settings)
    groups = [
        _group([(folders[i], configs[i]) for i in chosen], {key: own.get(key) for key in differ})
        for chosen, own in zip(members.values(), settings, strict=True)
    ]
    found = differences(groups)
    told = [*caveats_between(folders), *_unfinished(groups), *_apart(groups, found)]
    return Comparison(differ, groups, found, told)


def caveats_between(folders: Sequence[RunFolder]) -> list[str]:
    """Return a sentence for each reason not to compare the losses of runs."""
    configs = [folder.read_config() for folder in folders]
    differ = _differ_in_data(
        differing([flat(whole(config)) for config in configs]), [_data_of(folder) for folder in folders]
    )
    tokenizers = {sha256_of(folder.tokenizer_file) for folder in folders} - {None}
    if tokenizers:  # made in different ways it may be the same one, and of different texts another one
        differ = [key for key in differ if key.partition(".")[0] != "tokenizer"]
        of_characters = all(config.tokenizer.kind == "char" for config in configs)  # whatever their alphabets
        differ += ["tokenizer"] * (len(tokenizers) > 1 and not of_characters)
    return caveats(differ, [config.train.objective for config in configs])


def _folder_of(run: RunLike | str | PathLike[str]) -> RunFolder:
    if isinstance(run, str | PathLike):
        return find_run(Path(run) if isinstance(run, PathLike) else run)
    check_run(run)
    return run.folder


def _data_of(folder: RunFolder) -> str | None:
    """Return the SHA-256 of a run's training data; None if it is not known."""
    with suppress(RunError):
        return folder.trained_on()
    return None


def _brought_to(folder: RunFolder) -> dict[str, Any]:
    """Return the SHA-256 of what a run began with that its settings name by a place: its weights and its tokenizer."""
    config, began = folder.read_config(), folder.pretrained()
    has_files = bool(getattr(config.tokenizer, "files", ()))
    return ({"pretrained": began["sha256"]} if began else {}) | (
        {"tokenizer": sha256_of(folder.tokenizer_file)} if has_files else {}
    )


def _settings_of(folder: RunFolder, config: RunConfig) -> dict[str, Any]:
    """Return all settings by key; a pretrained run with the step and the hash of the weights taken from it."""
    settings, began = flat(whole(config)), folder.pretrained()
    if began is not None:
        taken = f"{config.train.pretrained} (step {began['step']}, {began['sha256'][:6]})"
        settings["train.pretrained"] = taken
    return settings


def _differ_in_data(differ: Sequence[str], data: Sequence[str | None]) -> list[str]:
    """Return the settings that differ, with the places of the data only if the data themselves may differ."""
    if len(set(data)) == 1 and None not in data:
        return [
            key for key in differ if not (key.startswith("data.") and is_place(key.removeprefix("data.")))
        ]
    names_data = any(key.partition(".")[0] == "data" for key in differ)
    return [*differ, *(["data"] if len(set(data) - {None}) > 1 and not names_data else [])]


def _unfinished(groups: Sequence[Group]) -> list[str]:
    """Return a sentence for each run that has not reached its end."""
    return [
        f"{run.run} is not finished (step {run.step:,}): "
        + (
            "left out of the means."
            if any(each.is_finished for each in group.runs)
            else "its losses are so far."
        )
        for group in groups
        for run in group.runs
        if not run.is_finished
    ]


def _apart(groups: Sequence[Group], found: Sequence[Difference]) -> list[str]:
    """Return a sentence for each group of the first one's task that shares no seed with it."""
    paired = {difference.group for difference in found}
    return [
        f"{group.name} and {groups[0].name} have no seed in common: there is no paired difference."
        for group in groups[1:]
        if group.name not in paired and _is_same_task(group, groups[0])
    ]


def without_seed(
    config: RunConfig, data_sha256: str | None = None, brought: Mapping[str, Any] | None = None
) -> str:
    """Return a hash of everything that determines a run's result, except the seed.

    Data count by their SHA-256, or by their paths where it is not known. A pretrained run counts by the weights that
    were taken from it, and a tokenizer's file by the tokenizer that was made of it, as `brought` gives them; otherwise
    by what lies there today, or by its path once it is gone.
    """
    settings, brought = whole(config), brought or {}
    if "pretrained" in brought:
        config = config.replace(train=config.train.replace(pretrained=None))
    if "tokenizer" in brought:
        config = config.replace(tokenizer=ByteTokenizerSpec())
    try:
        settings = deciding(config, whole(config))
    except (RunError, DataError, OSError):  # a pretrained run, or GPT-2's vocabulary, is gone
        here = config.replace(train=config.train.replace(pretrained=None), tokenizer=ByteTokenizerSpec())
        settings = deciding(here, settings)
    paths = {key: value for key, value in whole(config.data).items() if is_place(key)}
    return digest({**settings, "seed": None, "read": data_sha256 or paths, "brought": brought})


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values are not the same in all settings."""
    keys = dict.fromkeys(key for each in settings for key in each)
    return [
        key for key in keys if key != "seed" and len({repr(each.get(key, NONE)) for each in settings}) > 1
    ]


def _group(runs: Sequence[tuple[RunFolder, RunConfig]], settings: dict[str, Any]) -> Group:
    compared = sorted((_compared(folder, config) for folder, config in runs), key=lambda run: run.seed)
    return Group(
        name=compared[0].run,
        settings=settings,
        parameters=sum(measured_parameters(build_on_meta(runs[0][1].model)).values()),
        runs=compared,
        train_loss=estimated(list(by_seed(counted(compared), "train_loss").values())),
        val_loss=estimated(list(by_seed(counted(compared), "val_loss").values())),
    )


def counted(runs: Sequence[ComparedRun]) -> Sequence[ComparedRun]:
    """Return the runs that means are of: the finished ones, or all if none is."""
    return [run for run in runs if run.is_finished] or runs


def _compared(folder: RunFolder, config: RunConfig) -> ComparedRun:
    lines = lines_of(folder)
    evaluated = next((line for line in reversed(lines) if line.get("val_loss") is not None), {})
    return ComparedRun(
        run=name_of(folder),
        seed=config.seed,
        step=lines[-1]["step"],
        seconds=lines[-1]["seconds"],
        train_loss=last_training_loss(lines, lines[-1]["step"]),
        val_loss=evaluated.get("val_loss"),
        is_whole=bool(evaluated) and is_of_the_whole(evaluated),
        is_finished=_is_finished(folder, config, lines[-1]),
    )


def _is_finished(folder: RunFolder, config: RunConfig, last: Mapping[str, Any]) -> bool:
    """Whether a run has reached its end; without any checkpoint, whether its last line is of the whole split."""
    if list_checkpoints(folder.checkpoints):
        return is_trained(folder, config.train)
    return last.get("val_loss") is not None and is_of_the_whole(last)


def lines_of(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.

    Raises:
        RunError: there are none yet, or a line is damaged.
    """
    lines = read_metrics(folder.metrics_file)
    if not lines:
        raise RunError(f"{folder.path} has no metrics yet: not trained, or only just started")
    for line in lines:
        for name in (*IN_EVERY_LINE, *OF_AN_EVALUATION):
            value = line.get(name)
            if value is None and name in OF_AN_EVALUATION:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise RunError(
                    f"{folder.metrics_file}: {name} of step {line['step']} is not a number: {value!r}"
                )
    return lines


def differences(groups: Sequence[Group]) -> list[Difference]:
    """Return the differences of both losses between each further group and the first, over the seeds that both have.

    Losses of another task than the first group's are left out: they count something else.
    """
    found = []
    for group in groups[1:]:
        if not _is_same_task(group, groups[0]):
            continue
        for value in VALUES:
            ours, theirs = (by_seed(counted(each.runs), value) for each in (group, groups[0]))
            both = sorted(ours.keys() & theirs.keys())
            difference = estimated([ours[seed] - theirs[seed] for seed in both])
            if difference is not None:
                found.append(Difference(group.name, groups[0].name, value, difference))
    return found


def _is_same_task(group: Group, other: Group) -> bool:
    return all(group.settings.get(key) == other.settings.get(key) for key in TASK_KEYS)


def by_seed(runs: Sequence[ComparedRun], value: str) -> dict[int, float]:
    """Return a number of some runs by seed; the mean where several runs have one seed."""
    found: dict[int, list[float]] = {}
    for run in runs:
        if (number := getattr(run, value)) is not None:
            found.setdefault(run.seed, []).append(number)
    return {seed: fmean(numbers) for seed, numbers in found.items()}
