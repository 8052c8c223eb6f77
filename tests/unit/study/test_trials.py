"""The keys of runs: stable, changed by all that changes a result and by nothing else."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clearformer.config import whole
from clearformer.errors import ConfigError, DataError, UserError
from clearformer.presets import preset
from clearformer.registry import import_parts, unregister
from clearformer.study import Measure, Probe, Store, Study, Training
from clearformer.study.study import _lasting, identity
from clearformer.study.trials import GENERATION, Trial, config_of, deciding, scaled, trials
from clearformer.study.workers.launch import jobs_of, run_here
from clearformer.study.workers.pool import Selection
from clearformer.training.config import RunConfig

from .parts import tiny, tiny_study

LECTURE_KEY = "e8c6295cfc14d57c"
"""Pinned: where it changes, every measured result is lost to its study. Only `GENERATION` may change it."""


def key_of(**settings: Any) -> str:
    """The key of a run of preset lecture with other settings."""
    arm = Training("a", "lecture", settings)
    return Trial(arm, 1, config_of(Study("s", "?", "", (arm,), ""), arm, 1, 1.0)).settings_key


def test_the_key_of_a_configuration_is_pinned() -> None:
    assert key_of() == LECTURE_KEY


@pytest.mark.parametrize(
    "settings",
    [
        {"model.d_model": 128},
        {"model.attention.n_heads": 2},
        {"model.attention.window": 64},
        {"model.position": "rope"},
        {"model.norm": "rmsnorm"},
        {"model.ffn": "swiglu"},
        {"model.init": "gaussian"},
        {"model.dropout": 0.1},
        {"data.val_fraction": 0.2},
        {"data.order": "epochs"},
        {"tokenizer": "byte"},
        {"train.batch_size": 32},
        {"train.max_steps": 9_999},
        {"train.max_seconds": 60.0},
        {"train.lr": 1e-3},
        {"train.optimizer": "adamw"},
        {"train.optimizer.betas": [0.9, 0.95]},
        {"train.schedule": "cosine"},
        {"train.warmup_steps": 10},
        {"train.grad_clip_norm": 1.0},
        {"train.ema": 0.99},
        {"train.dtype": "float32"},
        {"train.eval_every": 100},
        {"train.eval_flops_fraction": 0.5},
        {"train.log_every": 5},
        {"train.patience": 3},
    ],
    ids=str,
)
def test_whatever_changes_a_result_changes_the_key(settings: dict[str, Any]) -> None:
    assert key_of(**settings) != key_of()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"model.n_layers": 4},
        {"train.checkpoint_every": 7},
        {"train.keep_last": 9},
        {"train.device": "cpu"},
        {"train.sample_every": 100},
        {"train.snapshot_megabytes": 1.0},
        {"train.tensorboard": True},
    ],
    ids=str,
)
def test_whatever_does_not_leaves_it(settings: dict[str, Any]) -> None:
    assert key_of(**settings) == key_of()


def test_how_often_checkpoints_are_written_counts_where_they_end_the_run() -> None:
    patient = {"train.patience": 3}
    keys = {key_of(**patient, **{"train.checkpoint_every": every}) for every in (7, 8)}
    assert len(keys | {key_of(**patient)}) == 3
    config = RunConfig(train={"patience": 3, "max_steps": 100, "checkpoint_every": 20})  # type: ignore[arg-type]
    assert scaled(config, 0.1).train.checkpoint_every == 2
    assert scaled(config.replace(train=config.train.replace(patience=None)), 0.1).train.checkpoint_every == 20


def test_a_path_does_not_count_and_its_contents_do(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    keys = []
    for folder in (one, other):
        folder.mkdir()
        keys.append(trials(tiny_study(folder))[0].key)
    assert keys[0] == keys[1]
    (other / "text.txt").write_text((other / "text.txt").read_text() + "more of it\n")
    changed = trials(tiny_study(other))[0]
    assert changed.key != keys[0]
    assert changed.settings_key == trials(tiny_study(one))[0].settings_key


@pytest.mark.parametrize("name", ["path", "val_path", "test_path"])
def test_every_file_of_the_data_counts_by_its_contents_alone(tmp_path: Path, name: str) -> None:
    files = {each: tmp_path / f"{each}.tsv" for each in ("path", "val_path", "test_path")}
    for each, file in files.items():
        lines = "".join(f"{each} number {n}\t{'ab'[n % 2]}\n" for n in range(20))
        file.write_text(f"text\tlabel\n{lines}")

    def trial() -> Trial:
        settings = {f"data.{each}": str(file) for each, file in files.items()}
        arm = Training("a", "classify", {"data.kind": "labelled", "tokenizer": "byte", **settings})
        return Trial(arm, 1, config_of(Study("s", "?", "", (arm,), ""), arm, 1, 1.0))

    before = trial().key
    files[name] = files[name].rename(tmp_path / "moved.tsv")
    assert trial().key == before
    files[name].write_text(files[name].read_text() + "another\ta\n")
    assert trial().key != before


def test_a_vocabulary_from_a_folder_counts_by_its_files(tmp_path: Path) -> None:
    keys = []
    for name, merges in (("one", "a b\n"), ("other", "a b\n"), ("third", "b a\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "encoder.json").write_text("{}")
        (tmp_path / name / "vocab.bpe").write_text(merges)
        keys.append(key_of(**{"tokenizer": {"kind": "gpt2", "path": str(tmp_path / name)}}))
    assert keys[0] == keys[1] != keys[2]
    with pytest.raises(DataError, match=r"encoder\.json cannot be read: No such file"):
        key_of(**{"tokenizer": {"kind": "gpt2", "path": str(tmp_path / "nowhere")}})


OWN_SCHEDULE = """
from typing import Literal

import clearformer as cf
from clearformer.config import Spec

RATE = 1.0


@cf.register("schedule")
class Odd(Spec):
    kind: Literal["odd"] = "odd"

    def after_warmup(self, step, warmup_steps, progress):
        return RATE
"""


def test_a_kind_of_one_s_own_counts_by_its_file(tmp_path: Path) -> None:
    """So that what an earlier one trained is not shown as the result of a changed one."""
    keys = []
    for number, text in enumerate((OWN_SCHEDULE, OWN_SCHEDULE, OWN_SCHEDULE.replace("1.0", "0.001"))):
        file = tmp_path / f"parts{number}.py"
        file.write_text(text)
        import_parts(file)
        keys.append(key_of(**{"train.schedule": "odd"}))
        unregister("schedule", "odd")
    assert keys[0] == keys[1] != keys[2]


DEFAULTS_NOT_HASHED = """
The default of a setting is not hashed (so that a new setting changes no key). One has changed: runs of the same key now
give other results. Count `study.trials.GENERATION` up, and write the new defaults here.
"""


def test_no_default_has_changed_since_keys_leave_them_out() -> None:
    settings = whole(RunConfig())
    model, train = settings["model"], settings["train"]
    assert GENERATION == 1
    chosen = {
        "seed": settings["seed"],
        **{
            f"model.{key}": model[key]
            for key in ("d_model", "n_layers", "max_seq_len", "dropout", "tie_embeddings")
        },
        **{f"model.{slot}": model[slot]["kind"] for slot in ("attention", "position", "norm", "ffn", "init")},
        **{
            f"train.{key}": train[key]
            for key in ("batch_size", "lr", "warmup_steps", "grad_clip_norm", "eval_every")
        },
        **{f"train.{slot}": train[slot] for slot in ("optimizer", "schedule")},
        "tokenizer": settings["tokenizer"],
        "data": settings["data"],
    }
    assert chosen == DEFAULTS, DEFAULTS_NOT_HASHED


DEFAULTS: dict[str, Any] = {
    "seed": 1,
    "model.d_model": 128,
    "model.n_layers": 4,
    "model.max_seq_len": 128,
    "model.dropout": 0.0,
    "model.tie_embeddings": True,
    "model.attention": "multihead",
    "model.position": "learned",
    "model.norm": "layernorm",
    "model.ffn": "gelu",
    "model.init": "gpt2",
    "train.batch_size": 32,
    "train.lr": 0.001,
    "train.warmup_steps": 0,
    "train.grad_clip_norm": 1.0,
    "train.eval_every": 250,
    "train.optimizer": {"betas": (0.9, 0.999), "eps": 1e-08, "weight_decay": 0.1, "kind": "adamw"},
    "train.schedule": {"kind": "cosine", "final": 0.1},
    "tokenizer": {"kind": "char", "bos": False, "eos": False, "unk": False},
    "data": {
        "kind": "text",
        "name": "none",
        "path": "none",
        "val_path": "none",
        "test_path": "none",
        "field": "text",
        "order": "random",
        "val_fraction": 0.1,
        "test_fraction": 0.0,
    },
}


# --- probes and functions of one's own --------------------------------------------------------------------


def shout(seed: int, text: str = "") -> dict[str, Any]:
    return {"text": text, "seed": seed}


def test_the_key_of_a_probe_is_its_function_arguments_and_seed() -> None:
    def key(arguments: dict[str, Any], seed: int = 1) -> str:
        return Trial(Probe("any label", shout, arguments), seed, None).key

    assert key({"text": "a"}) == key({"text": "a"})
    assert len({key({"text": "a"}), key({"text": "b"}), key({}), key({"text": "a"}, seed=2)}) == 4
    assert key({}).endswith("-0")


def test_a_probe_is_computed_again_when_a_file_that_it_reads_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "my.txt"

    def key() -> str:
        return Trial(Probe("any label", shout, {"text": "a"}, reads=(str(file),)), 1, None).key

    file.write_text("abc")
    before = key()
    assert key() == before
    file.write_text("abcd")
    assert key() != before
    file.unlink()
    with pytest.raises(DataError, match=r"my\.txt cannot be read: No such file"):
        key()


def test_what_a_function_holds_tells_it_apart() -> None:
    def around(*held: Any) -> Callable[..., Any]:
        one, other = held
        return lambda seed: {"x": (one, other)}

    by_default = [lambda seed, n=n: {"x": n} for n in (1, 2)]
    by_keyword = [lambda seed, *, n=n: {"x": n} for n in (1, 2)]
    by_cells = [around(1, 23), around(12, 3), around((1, 2), "a"), around([1, 2], "a"), around((1, 3), "a")]
    by_others = [around(each, None) for each in ({"k": 1}, {"k": 2}, len, abs, None)]
    in_a_line = [lambda seed: {"x": 1}, lambda seed: {"x": 2}]
    for functions in (by_default, by_keyword, by_cells, by_others, in_a_line):
        assert len({identity(function) for function in functions}) == len(functions)


def test_a_key_and_what_a_function_holds_have_the_same_name_in_every_process() -> None:
    """Addresses and the order of sets are other ones in each."""
    code = """
import hashlib, random
from functools import partial
from clearformer.study.study import _lasting
class Own: pass
def near(a, b): return a - b
print(_lasting([near, Own(), Own, frozenset({"a", "b", "c", "d", "e"}), (1,), {"x": [2.5, None]}, partial(near, 1)]))
from clearformer.study import Study, Training; from clearformer.study.trials import trials
print(trials(Study('s', '?', '', (Training('a'),), ''))[0].settings_key)
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert found.pop().splitlines()[-1] == LECTURE_KEY
    plain = [1, 2.5, "a", (1,), (1, "b"), [], {"x": [None, True]}]
    assert _lasting(plain) == repr(plain)  # so that what was measured before is found


def test_auto_is_no_preset_of_a_study(tmp_path: Path) -> None:
    study = replace(
        tiny_study(tmp_path), arms=(Training("a", preset="auto"),), claims=(), published=(), figures=()
    )
    with pytest.raises(ConfigError, match=r"arm 'a': auto chooses by the machine's speed"):
        trials(study)


def test_a_function_of_one_s_own_counts_by_its_text(tmp_path: Path) -> None:
    """So that one that was changed is measured anew."""

    def own(text: str) -> Any:
        file = tmp_path / "own.py"
        file.write_text(text)
        names: dict[str, Any] = {"__name__": "own"}
        import linecache

        linecache.checkcache(str(file))
        exec(compile(text, str(file), "exec"), names)  # noqa: S102
        return names["own"]

    first = identity(own("def own(run):\n    return {'n': 1}\n"))
    again = identity(own("def own(run):\n    return {'n': 1}\n"))
    changed = identity(own("def own(run):\n    return {'n': 2}\n"))
    assert first == again
    assert first.startswith("own@")
    assert changed != first
    from clearformer.study.measures.losses import losses

    assert identity(losses) == "losses"
    assert Measure(losses, {"a": 1}).key == Measure(losses, {"a": 1}).name == "losses(a=1)"


# --- the trials of a study --------------------------------------------------------------------------------


def test_all_arms_of_the_first_seed_come_first(tmp_path: Path) -> None:
    found = trials(tiny_study(tmp_path))
    assert [trial.name for trial in found] == [
        "1 layers, seed 1",
        "2 layers, seed 1",
        "1 layers, seed 2",
        "2 layers, seed 2",
    ]
    assert [trial.seed for trial in trials(tiny_study(tmp_path, seeds=1, first_seed=5))] == [5, 5]
    assert len(trials(tiny_study(tmp_path), seeds=3)) == 6


def test_a_scale_scales_steps_and_what_is_counted_in_them() -> None:
    config = preset("lecture")
    config = config.replace(train=config.train.replace(warmup_steps=100, max_seconds=50.0))
    train = scaled(config, 0.05).train
    assert (train.max_steps, train.max_seconds, train.warmup_steps) == (500, 2.5, 5)
    assert train.eval_every == config.train.eval_every / 20
    assert scaled(config, 1e-9).train.max_steps == 2
    assert scaled(config, 1) is config


@pytest.mark.parametrize("scale", [0, -1, 1.5, float("nan")])
def test_a_scale_is_checked(tmp_path: Path, scale: float) -> None:
    with pytest.raises(UserError, match="scale: above 0 and up to 1"):
        trials(tiny_study(tmp_path), scale)


def test_seeds_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="seeds: 1 or more; got 0"):
        trials(tiny_study(tmp_path), seeds=0)


def test_a_wrong_setting_names_study_and_arm(tmp_path: Path) -> None:
    arm = Training("wrong", "quick", {"train.lrr": 1})
    with pytest.raises(
        ConfigError, match=r"study tiny, arm 'wrong': unknown key 'train.lrr'.*did you mean 'lr'"
    ):
        trials(tiny_study(tmp_path, arms=(arm,)))


def test_arms_that_differ_in_their_file_alone_are_runs_of_their_own(tmp_path: Path) -> None:
    store, arms = Store(tmp_path / "studies"), []
    for name in ("one", "other"):
        (tmp_path / f"{name}.txt").write_text(f"{name} and {name}\n" * 400)
        arms.append(Training(name, "quick", {"data.path": str(tmp_path / f"{name}.txt")}))
    study = tiny_study(tmp_path, arms=tuple(arms))
    study = replace(study, settings={k: v for k, v in study.settings.items() if k != "data.path"})
    here = [job.trial for job in jobs_of([study], seeds=1)]
    assert [trial.arm.label for trial in here] == ["one", "other"]
    assert here[0].settings_key == here[1].settings_key
    store.write_failure(here[1], "no room")
    assert (store.failure(here[0]), store.failure(here[1])) == (None, "no room")
    store.forget_failure(here[1])

    [found] = run_here([study], Selection((study.name,), store.folder, seeds=1), quiet=True)
    losses = {arm: found.estimate(arm, "val_loss").mean for arm in ("one", "other")}  # type: ignore[union-attr]
    assert losses["one"] != losses["other"]

    (tmp_path / "other.txt").unlink()
    [left] = run_here([study], Selection((study.name,), store.folder, seeds=1), quiet=True)
    assert left.estimate("other", "val_loss") is None
    assert "there is no such file" in left.failures["other, seed 1"]


def test_a_device_changes_where_and_not_what(tmp_path: Path) -> None:
    here, there = trials(tiny_study(tmp_path))[0], trials(tiny_study(tmp_path), device="cuda:1")[0]
    assert here.settings_key == there.settings_key
    assert there.config is not None
    assert there.config.train.device == "cuda:1"


def test_what_a_run_begins_with_counts_by_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clearformer.study.running import trained
    from clearformer.study.store import Store
    from clearformer.training.reporting.report import Reporter

    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    store = Store(tmp_path / "studies")
    runs = [
        trained(trial, store, Reporter())
        for trial in trials(tiny_study(tmp_path, arms=tiny_study(tmp_path).arms[:1]))
    ]
    keys = set()
    for run in (*runs, runs[0]):
        arm = Training("further", "quick", tiny(tmp_path, **{"train.pretrained": str(run.folder.path)}))
        config = config_of(tiny_study(tmp_path), arm, 1, 1.0)
        keys.add(Trial(arm, 1, config).settings_key)
        assert str(run.folder.path) not in str(deciding(config, whole(config)))
    assert len(keys) == 2
