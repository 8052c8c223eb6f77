"""Settings: overrides, layers, slots, TOML in and out, and what is said of a wrong one."""

import importlib
import math
import tomllib
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.fields import FieldInfo

from clearformer.config import (
    LARGEST_FILE,
    Spec,
    code_hash,
    explicit,
    merge,
    nested,
    parse_override,
    read_toml,
    resolve,
    slot_variants,
    to_toml,
    whole,
)
from clearformer.errors import ConfigError
from clearformer.model import ModelConfig
from clearformer.model.attention import Dot, MultiHead


class Constant(Spec):
    kind: Literal["constant"] = "constant"


class Cosine(Spec):
    kind: Literal["cosine"] = "cosine"
    final: float = 0.1
    warmup: int = 10


class Linear(Spec):
    kind: Literal["linear"] = "linear"
    warmup: int = 10
    nested: Annotated[Constant | Cosine, Field(discriminator="kind")] = Constant()


Schedule = Annotated[Constant | Cosine | Linear, Field(discriminator="kind")]


class Train(Spec):
    lr: PositiveFloat = 1e-3
    steps: PositiveInt | None = 100
    betas: tuple[float, float] = (0.9, 0.99)
    names: list[str] = Field(default_factory=list)
    fast: bool = False
    compiled: bool | None = None
    mode: Literal["none", "some"] = "some"
    either: Literal["auto"] | bool = "auto"
    schedule: Schedule = Cosine(warmup=20)


class Run(Spec):
    seed: int = 0
    title: str = "a run"
    path: Path | None = None
    train: Train = Train(lr=0.5)
    tuned: Train = Train()


def made_from(*overrides: str) -> Run:
    return resolve(Run, *(parse_override(override) for override in overrides))


# --- overrides --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("3e-4", 3e-4),
        ("10_000", 10_000),
        ("true", True),
        ("false", False),
        ("True", "True"),
        ("[0.9, 0.95]", [0.9, 0.95]),
        ('["a", "b"]', ["a", "b"]),
        ("rope", "rope"),
        ('"rope"', "rope"),
        ("'3'", "3"),
        ("tiny shakespeare", "tiny shakespeare"),
        ("a=b", "a=b"),
        ("data/my file.txt", "data/my file.txt"),
        ("C:\\texts\\new.txt", "C:\\texts\\new.txt"),
        ("", ""),
        ("none", "none"),
        ("{final = 0.5}", {"final": 0.5}),
        ("é", "é"),
        ("1,2", "1,2"),
        ("3,", "3,"),
        ("1#2", "1#2"),
        ("3\nseed=4", "3\nseed=4"),
        ("3]\nseed=[4", "3]\nseed=[4"),
        ("9" * 5000, "9" * 5000),
        ("[1, [2]]", [1, [2]]),
    ],
)
def test_an_override_is_read_as_toml_and_else_as_a_word(text: str, value: Any) -> None:
    assert parse_override(f"train.lr={text}") == {"train": {"lr": value}}
    assert parse_override(f"seed={text}") == {"seed": value}


@pytest.mark.parametrize("text", ["train.lr", "", "=3", ".lr=3", "train.=3", "train..lr=3"])
def test_what_is_no_override_is_shown_with_how_to_write_one(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a setting: write it as key=value") as error:
        parse_override(text)
    assert repr(text) in str(error.value)


def test_a_value_of_too_many_brackets_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^train: the brackets of its value are nested too deeply$"):
        parse_override("train.lr=" + "[" * 20_000)


def test_what_was_given_is_cut_where_it_is_long() -> None:
    for value in ("9" * 5000, "0x" + "f" * 5000, "x" * 5000, "[" + "1, " * 5000 + "]"):
        with pytest.raises(ConfigError, match=r"^train\.lr takes ") as error:
            made_from(f"train.lr={value}")
        assert len(str(error.value)) < 200
    for override in (f"{'x' * 5000}=1", f"train.{'x' * 5000}=1", f"{'x' * 5000}"):
        with pytest.raises(ConfigError) as error:
            made_from(override)
        assert len(str(error.value)) < 500


# --- layers and slots -------------------------------------------------------------------------------------


def test_later_layers_win_key_by_key() -> None:
    run = resolve(
        Run,
        {"seed": 1, "train": {"lr": 0.1, "steps": 7}},
        {"train": {"lr": 0.2}},
        parse_override("train.lr=0.3"),
    )
    assert (run.seed, run.train.lr, run.train.steps) == (1, 0.3, 7)


def test_a_layer_changes_nothing_but_its_keys() -> None:
    run = made_from("train.steps=7")
    assert run == Run(train=Train(lr=0.5, steps=7))
    assert resolve(Run) == resolve(Run, {}) == Run()


def test_layers_are_left_as_they_were() -> None:
    first, second = {"train": {"lr": 0.1}}, {"train": {"schedule": {"kind": "linear"}}}
    merge(Run, first, second)
    assert first == {"train": {"lr": 0.1}}
    assert second == {"train": {"schedule": {"kind": "linear"}}}


@pytest.mark.parametrize(
    "override",
    ["train.schedule=linear", "train.schedule.kind=linear", 'train.schedule={kind = "linear"}'],
)
def test_a_bare_word_is_short_for_a_kind(override: str) -> None:
    assert isinstance(made_from(override).train.schedule, Linear)


def test_a_field_of_a_slot_needs_no_kind() -> None:
    assert made_from("train.schedule.final=0.5").train.schedule == Cosine(final=0.5, warmup=20)


def test_a_new_kind_keeps_the_fields_it_shares_and_drops_the_others() -> None:
    run = made_from("train.schedule.final=0.5", "train.schedule.warmup=5", "train.schedule=linear")
    assert run.train.schedule == Linear(warmup=5)
    back = made_from("train.schedule.final=0.5", "train.schedule=linear", "train.schedule=cosine")
    assert back.train.schedule == Cosine(warmup=20)


def test_a_new_kind_keeps_what_the_default_of_its_slot_sets() -> None:
    """Whether a field was named before the kind changed makes no difference."""
    assert made_from("train.schedule=linear").train.schedule == Linear(warmup=20)
    assert made_from("train.schedule.final=0.5", "train.schedule=linear").train.schedule == Linear(warmup=20)


def test_a_new_kind_and_its_fields_come_together_or_one_by_one() -> None:
    together = made_from('train.schedule={kind = "linear", warmup = 3}')
    one_by_one = made_from("train.schedule=linear", "train.schedule.warmup=3")
    assert together == one_by_one == Run(train=Train(lr=0.5, schedule=Linear(warmup=3)))


def test_slots_lie_in_slots() -> None:
    run = made_from(
        "train.schedule=linear", "train.schedule.nested=cosine", "train.schedule.nested.final=0.2"
    )
    assert run.train.schedule == Linear(warmup=20, nested=Cosine(final=0.2))


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("train.steps=none", None),
        ('train.steps="none"', None),
        ("train.compiled=none", None),
        ("path=none", None),
        ("train.mode=none", "none"),
        ("title=none", "none"),
    ],
)
def test_none_is_no_value_where_a_field_may_have_none_and_a_word_elsewhere(override: str, value: Any) -> None:
    run = made_from(override)
    key = override.partition("=")[0].split(".")
    assert (getattr(run.train, key[1]) if len(key) > 1 else getattr(run, key[0])) == value


def test_none_is_a_kind_of_a_slot() -> None:
    assert resolve(ModelConfig, parse_override("position=none")).position.kind == "none"


def test_explicit_is_what_was_set_and_every_kind() -> None:
    assert explicit(Run(seed=3, train=Train(steps=None, fast=False))) == {
        "seed": 3,
        "train": {"lr": 1e-3, "steps": None, "schedule": {"kind": "cosine", "warmup": 20}},
        "tuned": {"schedule": {"kind": "cosine", "warmup": 20}},
    }


# --- what is wrong, in one line ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sede=1", "unknown key 'sede'; did you mean 'seed'?"),
        ("qwerty=1", "unknown key 'qwerty'; it has seed, title, path, train, tuned"),
        ("fast=true", "unknown key 'fast'; did you mean train.fast or tuned.fast?"),
        ("train.lrr=1", "unknown key 'train.lrr': train has no 'lrr'; did you mean 'lr'?"),
        (
            "train.schedule.warmpu=1",
            "unknown key 'train.schedule.warmpu': train.schedule of kind 'cosine' has no 'warmpu'; "
            "did you mean 'warmup'?",
        ),
        (
            "train.schedule.zzz=1",
            "unknown key 'train.schedule.zzz': train.schedule of kind 'cosine' has no 'zzz'; it has final, warmup",
        ),
        (
            "train.schedule=cosin",
            "train.schedule.kind is one of constant, cosine, linear; got 'cosin'; did you mean 'cosine'?",
        ),
        ("train.schedule=3", "train.schedule takes one of constant, cosine, linear; got 3"),
        ("train.schedule.kind=[1]", "train.schedule.kind is one of constant, cosine, linear; got [1]"),
        ("train=3", "train is a section, not a value: set one of its keys, such as train.lr=..."),
        (
            "train.schedule.nested=3",
            "unknown key 'train.schedule.nested': train.schedule of kind 'cosine' has no 'nested'; "
            "train.schedule.kind=linear has it",
        ),
        ("train.lr=fast", "train.lr takes a number; got 'fast'"),
        ("train.lr=1e-3,3e-3", "train.lr takes a number; got '1e-3,3e-3'"),
        ("train.lr=0", "train.lr takes a number above 0; got 0"),
        ("train.lr=nan", "train.lr takes a finite number; got nan"),
        ("train.lr=inf", "train.lr takes a finite number; got inf"),
        ("train.lr=NaN", "train.lr takes a finite number; got 'NaN'"),
        ("train.schedule.final=-inf", "train.schedule.final takes a finite number; got -inf"),
        ("train.lr=true", "train.lr takes a value and is not a switch; got true"),
        ("train.steps=false", "train.steps takes a value and is not a switch; got false"),
        ("train.mode=any", "train.mode takes 'none' or 'some'; got 'any'"),
        ("train.mode=sme", "train.mode takes 'none' or 'some'; got 'sme'; did you mean 'some'?"),
        ("train.fast=[1]", "train.fast takes true or false; got [1]"),
        ("train.fast=maybe", "train.fast takes true or false; got 'maybe'"),
        ("train.names=3", 'train.names takes a list, such as [1, 2] or ["a", "b"]; got 3'),
        ("train.betas=[1]", "train.betas[1] is missing"),
        ("train.betas=[1,2,3]", "train.betas takes at most 2 values; got [1, 2, 3]"),
        ("train.either=nope", "train.either takes 'auto' or true or false; got 'nope'"),
        ("seed=1.5", "seed takes a whole number; got 1.5"),
        ("seed=9223372036854775808", "seed takes a whole number below 2^63; got 9223372036854775808"),
        (
            "title=2024",
            "title takes text (quote a number or date that is meant as text: '\"2024\"'); got 2024",
        ),
        ("title=\udcff", r"title takes text in UTF-8; got '\udcff'"),
    ],
)
def test_a_wrong_setting_is_one_line_with_its_key(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        made_from(override)
    assert str(error.value) == message


def test_the_place_in_a_list_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^train\.betas\[1\] takes a finite number; got inf$"):
        made_from("train.betas=[0.9, inf]")


def test_a_switch_may_be_switched() -> None:
    run = made_from("train.fast=true", "train.compiled=false")
    assert (run.train.fast, run.train.compiled) == (True, False)


def test_a_spec_made_in_python_is_checked_too() -> None:
    with pytest.raises(
        ConfigError, match="'warmpu': Cosine of kind 'cosine' has no 'warmpu'; did you mean 'warmup'"
    ):
        Cosine.model_validate({"warmpu": 3})
    with pytest.raises(ConfigError, match="finite"):
        Train(lr=math.nan)
    with pytest.raises(ConfigError, match=r"^settings are frozen; use cfg\.replace\(lr=3\)$"):
        Train().lr = 3  # type: ignore[misc]
    with pytest.raises(
        ConfigError, match=r"^Train takes settings by name, such as Train\(lr=\.\.\.\); got 5$"
    ):
        Train(5)  # type: ignore[call-arg]


def test_merge_says_the_whole_path_from_where_it_began() -> None:
    with pytest.raises(ConfigError, match=r"^unknown key 'run\.train\.lrr'"):
        merge(Run, {}, {"train": {"lrr": 1}}, prefix="run.")


# --- TOML -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_read_toml(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text('seed = 3\n[train]\nlr = 0.1\nschedule = "linear"\n', encoding=encoding)
    assert resolve(Run, read_toml(path)) == Run(seed=3, train=Train(lr=0.1, schedule=Linear(warmup=20)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"seed = \n", r"not valid TOML: .*line 1"),
        (b"seed = 1\nseed = 2\n", r"not valid TOML: .*line 2"),
        (b"title = '\xff'\n", "not a UTF-8 text file"),
        (b"\0\1\2", "not valid TOML: .*line 1"),
        (b"seed = " + b"[" * 20_000, "nested too deeply"),
        (b"seed = " + b"9" * 5000, "not valid TOML: .*digits"),
        (b"#" * (LARGEST_FILE + 1), "larger than 1 MiB"),
        (None, "there is no such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_line(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as error:
        read_toml(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_a_folder_is_no_toml_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder; --config takes a TOML file"):
        read_toml(tmp_path)


def test_a_file_in_a_file_is_no_toml_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").touch()
    with pytest.raises(ConfigError, match="cannot be read: Not a directory"):
        read_toml(tmp_path / "run.toml" / "inner.toml")


def test_toml_holds_everything_defaults_too() -> None:
    assert tomllib.loads(to_toml(Run())) == {
        "seed": 0,
        "title": "a run",
        "path": "none",
        "train": {
            "lr": 0.5,
            "steps": 100,
            "betas": [0.9, 0.99],
            "names": [],
            "fast": False,
            "compiled": "none",
            "mode": "some",
            "either": "auto",
            "schedule": {"kind": "cosine", "final": 0.1, "warmup": 20},
        },
        "tuned": {
            "lr": 1e-3,
            "steps": 100,
            "betas": [0.9, 0.99],
            "names": [],
            "fast": False,
            "compiled": "none",
            "mode": "some",
            "either": "auto",
            "schedule": {"kind": "cosine", "final": 0.1, "warmup": 20},
        },
    }


def values_of(field: FieldInfo, name: str) -> st.SearchStrategy[Any]:
    """Values of any field of any spec, by its type."""
    if variants := slot_variants(field):
        return st.one_of([settings_of(variant) for variant in variants.values()])
    if name == "fraction":  # of a head, so that pairs of dimensions come out
        return st.sampled_from([0.5, 1.0])
    return values_of_type(field.annotation)


def values_of_type(annotation: Any) -> st.SearchStrategy[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return values_of_type(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return st.one_of([values_of_type(member) for member in get_args(annotation)])
    if origin is Literal:
        return st.sampled_from(get_args(annotation))
    if origin is tuple:
        return st.tuples(*map(values_of_type, get_args(annotation)))
    if origin is list:
        return st.lists(values_of_type(get_args(annotation)[0]), max_size=3)
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return settings_of(annotation)
    simple = {
        bool: st.booleans(),
        int: st.sampled_from([1, 2, 4, 8]),
        float: st.floats(1e-9, 1, exclude_max=True),
        str: st.text(st.characters(codec="utf-8")).filter(lambda text: text != "none"),
        Path: st.just(Path("some") / "place.txt"),
        types.NoneType: st.none(),
    }
    return simple[annotation]


def settings_of(spec_type: type[Spec]) -> st.SearchStrategy[dict[str, Any]]:
    """Some fields of a spec set and others left to their defaults."""
    fields = {
        name: values_of(field, name) for name, field in spec_type.model_fields.items() if name != "kind"
    }
    kind = spec_type.model_fields.get("kind")
    required = {} if kind is None else {"kind": st.just(kind.default)}
    return st.fixed_dictionaries(required, optional=fields)


@settings(max_examples=150, deadline=None)
@given(chosen=settings_of(Run))
def test_toml_reads_back_to_an_equal_spec(chosen: dict[str, Any]) -> None:
    run = Run(**chosen)
    assert resolve(Run, tomllib.loads(to_toml(run))) == run


@settings(max_examples=150, deadline=None)
@given(chosen=settings_of(ModelConfig))
def test_toml_of_a_model_reads_back_to_an_equal_model(chosen: dict[str, Any]) -> None:
    try:
        config = ModelConfig(**chosen)
    except ConfigError:  # parts that do not fit, numbers out of range
        assume(False)
        return
    assert resolve(ModelConfig, tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize("slot", ["attention", "position", "norm", "ffn", "init"])
def test_toml_of_every_kind_reads_back_to_an_equal_model(slot: str) -> None:
    for variant in slot_variants(ModelConfig.model_fields[slot]).values():
        config = ModelConfig(**{"position": {"kind": "none"}, slot: variant()})
        assert resolve(ModelConfig, tomllib.loads(to_toml(config))) == config


@settings(max_examples=100, deadline=None)
@given(chosen=settings_of(Run))
def test_what_is_explicit_is_enough_to_make_a_spec_again(chosen: dict[str, Any]) -> None:
    run = Run(**chosen)
    assert resolve(Run, explicit(run)) == run


@pytest.mark.parametrize("attention", [MultiHead(), MultiHead(n_heads=1), MultiHead(n_heads=2), Dot()])
def test_a_slot_set_to_its_kinds_own_default_is_explicit_too(attention: MultiHead | Dot) -> None:
    """One head, where a model has four of them unless told otherwise."""
    config = ModelConfig(attention=attention)
    assert resolve(ModelConfig, explicit(config)) == config


@settings(max_examples=100, deadline=None)
@given(below=settings_of(Run), above=settings_of(Run))
def test_a_whole_spec_leaves_nothing_of_what_it_is_laid_over(
    below: dict[str, Any], above: dict[str, Any]
) -> None:
    run = Run(**above)
    assert resolve(Run, explicit(Run(**below)), whole(run)) == run


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"train": 3, "train.lr": 1},
            "train is set to 3, so train.lr cannot be set: remove one of the two",
        ),
        ({"train..lr": 1}, "the key 'train..lr' has an empty part: write it as train.lr"),
        ({"train": {3: 4}}, "a setting's name is text; got 3"),
    ],
)
def test_names_that_are_none_are_told(given: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        nested(given)
    assert str(raised.value) == line


def test_later_settings_lie_over_earlier_ones_and_over_specs() -> None:
    assert nested({"model.ffn": "swiglu", "model.ffn.d_ff": 64}) == {
        "model": {"ffn": {"kind": "swiglu", "d_ff": 64}}
    }
    assert nested({"model.ffn.d_ff": 64, "model.ffn": "swiglu"}) == {
        "model": {"ffn": {"d_ff": 64, "kind": "swiglu"}}
    }
    assert nested({"model": {"ffn": "relu2"}, "model.ffn.d_ff": 8}) == {
        "model": {"ffn": {"kind": "relu2", "d_ff": 8}}
    }
    assert nested({"train.lr": 1, "train": {"steps": 2}}) == {"train": {"lr": 1, "steps": 2}}
    assert nested({"train": {"lr": 1}, "train.lr": 2}) == {"train": {"lr": 2}}
    assert nested({"schedule": "cosine", "schedule.final": 2}) == {"schedule": {"kind": "cosine", "final": 2}}
    config = Run(**{"train": Train(lr=0.5, steps=3), "train.steps": 4})
    assert (config.train.lr, config.train.steps) == (0.5, 4)
    inner = nested({"train": {"schedule": Cosine(final=0.5)}, "train.schedule.warmup": 7})
    assert Run(**inner).train.schedule == Cosine(final=0.5, warmup=7)


def test_a_path_is_text_among_settings() -> None:
    assert nested({"data": {"path": Path("a") / "b"}}) == {"data": {"path": str(Path("a") / "b")}}


def test_the_code_of_a_class_is_that_of_its_bases_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "code_of_a_base.py").write_text("class Base:\n    n = 1\n")
    (tmp_path / "code_of_a_child.py").write_text(
        "from code_of_a_base import Base\nclass Child(Base):\n    pass\n"
    )
    child = importlib.import_module("code_of_a_child").Child
    alone, before = code_hash(child.__mro__[1]), code_hash(child)
    assert None not in (alone, before)
    (tmp_path / "code_of_a_base.py").write_text("class Base:\n    n = 2\n")
    assert code_hash(child) != before
