"""Studies at a tiny size: their trainings and probes with other settings, computed in a folder."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clearformer.data.text import sources
from clearformer.data.text.generated import GeneratedSource
from clearformer.study.outcomes import Outcome, outcome
from clearformer.study.running import compute
from clearformer.study.store import Store
from clearformer.study.study import Arm, Study, Training
from clearformer.study.trials import trials

TEXT = "".join(
    f"The river ran by bank {letter}, and it was wide. They put gold in the bank; it was safe {letter * 2}!\n"
    for letter in "abcdefghijklmnopqrstuvwxyz" * 2
)
MODEL = {"d_model": 12, "n_layers": 2, "max_seq_len": 16}
TRAIN = {"max_steps": 3, "batch_size": 4, "device": "cpu", "dtype": "float32", "compile": False}


@contextmanager
def text_folder(folder: Path) -> Iterator[Path]:
    """A folder in which one works, with a text that stands for Tiny Shakespeare."""
    (folder / "text.txt").write_text(TEXT)
    source = GeneratedSource("shakespeare", "a small text in its place", lambda: (TEXT,))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("CLEARFORMER_CACHE", str(folder / "cache"))
        patch.setattr(sources, "_open_shakespeare", lambda: source)
        patch.setattr(sources, "MARKOV_CHARACTERS", 3000)
        for cached in (sources.markov_chain, sources.markov_text):
            cached.cache_clear()
        yield folder
    for cached in (sources.markov_chain, sources.markov_text):
        cached.cache_clear()


def tiny(study: Study, training: Mapping[str, Any] = {}, probe: Mapping[str, Any] = {}) -> Study:
    """A study with other settings for its trainings, and other arguments for the probes that have these."""
    return replace(study, arms=tuple(_tiny(arm, training, probe) for arm in study.arms), shown=())


def _tiny(arm: Arm, training: Mapping[str, Any], probe: Mapping[str, Any]) -> Arm:
    if isinstance(arm, Training):
        sizes = {f"model.{name}": value for name, value in MODEL.items()}
        steps = {f"train.{name}": value for name, value in TRAIN.items()}
        return replace(
            arm, settings={**arm.settings, **sizes, **steps, "model.attention.n_heads": 2, **training}
        )
    own = {name: value for name, value in probe.items() if name in arm.arguments}
    return replace(arm, arguments={**arm.arguments, **own})


def computed(study: Study, folder: Path, seeds: int | None = 1) -> Outcome:
    """A study, all of it computed in a folder."""
    store = Store(folder / "studies")
    for trial in trials(study, seeds=seeds):
        if not store.is_done(trial):
            compute(trial, store)
    found = outcome(study, store, seeds=seeds)
    assert found.is_whole
    return found
