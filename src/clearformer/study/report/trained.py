"""The trainings of a study: the settings that all arms share, each arm's own, machine and precision."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from clearformer.config import NONE, as_written, flat
from clearformer.errors import count
from clearformer.study.outcomes import Outcome
from clearformer.study.report.nodes import Node, Paragraph, Table
from clearformer.study.store import Record
from clearformer.study.study import Training
from clearformer.study.words import TIMES

AUTO, NOT_RECORDED = "auto", "not recorded"
SCALED = {
    f"train.{name}"
    for name in (
        *("max_steps", "max_seconds", "max_wall_seconds", "warmup_steps"),
        *("eval_every", "log_every", "checkpoint_every"),
    )
}
"""The settings that the scale of a study changes; see `trials.scaled`."""


def what_was_trained(outcome: Outcome) -> Iterator[Node]:
    """Yield the settings in common, and a table of the arms; nothing if no training is measured."""
    records = {
        label: [record for record in outcome.records[label].values() if "config" in record.settings]
        for label in outcome.labels
    }
    arms = [arm for arm in outcome.study.arms if isinstance(arm, Training) and records.get(arm.label)]
    if not arms:
        return
    presets = unique(arm.preset for arm in arms)
    parts = [f"preset {presets[0]}"] if len(presets) == 1 else []
    parts += settings_words(in_common(outcome.study.settings, arms, is_scaled=outcome.scale != 1))
    firsts = [records[arm.label][0] for arm in arms]
    told = [in_short(record.settings["config"]) for record in firsts]
    parts += [told[0][name] for name in told[0] if len({each[name] for each in told}) == 1]
    parts += data_words(firsts)
    yield Paragraph("; ".join(parts), "Every training", "small")
    rows = tuple(
        (
            arm.label,
            " ".join([arm.preset] * (len(presets) > 1) + settings_words(arm.settings)) or "as above",
            "; ".join(unique(machine_text(each.about) for each in records[arm.label])),
            "; ".join(unique(map(precision, records[arm.label]))),
        )
        for arm in arms
    )
    yield Table(
        "Settings of each arm, and where it ran", ("arm", "settings", "machine", "precision"), rows, n_left=4
    )


def in_common(settings: Mapping[str, Any], arms: Iterable[Training], is_scaled: bool) -> dict[str, Any]:
    """Return those of a study's settings that no arm overrides and, of a scaled study, that are not scaled."""
    own = {key for arm in arms for key in flat(arm.settings)}
    own |= SCALED if is_scaled else set()
    return {
        key: value
        for key, value in flat(settings).items()
        if not any(key == each or key.startswith(f"{each}.") or each == f"{key}.kind" for each in own)
    }


def settings_words(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as one types them: `train.lr=0.003`."""
    return [f"{key}={as_written(value)}" for key, value in flat(settings).items()]


def in_short(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the main settings of a resolved configuration in words, by their subject."""
    model, train = config["model"], config["train"]
    steps = "" if train["max_steps"] == NONE else f"{count(train['max_steps'], 'step')}"
    if config["data"]["kind"] == "text":
        steps += f" of {train['batch_size']} {TIMES} {model['max_seq_len']} tokens"
    return {
        "model": f"{model['family']} of width {model['d_model']}, {count(model['n_layers'], 'layer')}",
        "steps": steps.strip() or "no limit of steps",
        "optimizer": str(train["optimizer"]["kind"]),
        "rate": f"learning rate {train['lr']:g}",
        "schedule": f"schedule {train['schedule']['kind']}",
    }


def data_words(records: Iterable[Record]) -> list[str]:
    """Return the data's name with the beginning of their SHA-256, if all arms have the same; a file has no name."""
    known = [
        (record.settings["config"]["data"].get("name", NONE), record.key.partition("-")[2])
        for record in records
    ]
    name, sha256 = known[0]
    return [f"data{'' if name == NONE else f' {name}'} (SHA-256 {sha256}…)"] if len(set(known)) == 1 else []


def precision(record: Record) -> str:
    """Return the type of the numbers that a run computed with."""
    chosen = record.about.get("dtype") or record.settings["config"]["train"]["dtype"]
    return f"{AUTO}: {NOT_RECORDED}" if chosen == AUTO else str(chosen)


def machine_text(about: Mapping[str, Any]) -> str:
    """Describe a machine in a few words: its GPUs, its processor."""
    gpus = ", ".join(map(str, about.get("gpus") or ()))
    processor = str(about.get("processor") or "").strip()
    cpus, threads = about.get("cpus"), about.get("threads")
    cores = f"{count(cpus, 'CPU')}, {count(threads, 'thread')}" if cpus and threads else ""
    return ", ".join(part for part in (gpus, processor, cores) if part) or NOT_RECORDED


def unique(texts: Iterable[str]) -> list[str]:
    """Remove repeated and empty texts, keeping the order."""
    return [text for text in dict.fromkeys(texts) if text]
