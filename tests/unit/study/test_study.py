"""The declaration of a study: what it refuses, and as data."""

import ast
import functools
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from clearformer.errors import ConfigError, DataError, UserError
from clearformer.study import Claim, Measure, Probe, Published, Store, Study, Training, lectures
from clearformer.study.everyday.declared import (
    all_studies,
    declaration,
    declare,
    from_declaration,
    study_of_name,
)
from clearformer.study.everyday.sweep import sweep
from clearformer.study.lectures import register_study, studies
from clearformer.study.trials import trials

from .parts import tiny_study

A, B = Training("a"), Training("b")


def study(**fields: Any) -> Study:
    return Study(**{"name": "s", "question": "?", "lecture": "", "arms": (A, B), "refuted_if": "", **fields})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"arms": ()}, "study s: no arms"),
        ({"arms": (A, A)}, "study s: two arms have the label 'a'"),
        ({"published": (Published("aa", "loss", 1, 1, "1"),)}, "study s: there is no arm 'aa'"),
        ({"claims": (Claim("?", "loss", "a", "c"),)}, "study s: there is no arm 'c'"),
        ({"seeds": 0}, "study s: seeds: 1 or more; got 0"),
        ({"settings": {"seed": 3}}, "study s: seed is no setting of an arm"),
        ({"arms": (Training("a", settings={"seed": 3}),)}, "study s: seed is no setting of an arm"),
        ({"name": ""}, "a study's name consists of letters"),
        ({"name": "../up"}, "a study's name consists of letters"),
        ({"name": "é"}, "a study's name consists of letters"),
        ({"name": "-x"}, "a study's name consists of letters"),
        ({"name": 3}, "a study's name consists of letters"),
        ({"name": "runs"}, "the name 'runs' is reserved"),
        ({"name": "logs"}, "the name 'logs' is reserved"),
        ({"name": "all"}, "the name 'all' is reserved"),
    ],
    ids=str,
)
def test_what_is_none_is_refused_in_a_line(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study(**fields)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_arm_may_have_seeds_of_its_own() -> None:
    found = study(arms=(A, Training("b", seeds=1)), seeds=3)
    assert list(found.seeds_of(found.arm("a"))) == [1, 2, 3]
    assert list(found.seeds_of(found.arm("a"), 2)) == [1, 2]
    assert list(found.seeds_of(found.arm("b"), 2)) == [1]


def test_a_measure_with_other_arguments_is_another() -> None:
    def count(run: Any, n: int = 1) -> dict[str, int]:
        return {"n": n}

    assert Measure(count).name == "count"
    assert Measure(count, {"n": 2}).name == "count(n=2)"
    assert Measure(count, {"n": 2}).key != Measure(count, {"n": 3}).key


@pytest.mark.parametrize("name", studies())
def test_the_lectures_studies_resolve_at_every_scale(name: str) -> None:
    found = studies()[name]
    assert found.question.endswith("?")
    assert found.lecture
    assert found.refuted_if
    whole = trials(found)
    assert len({(trial.arm.label, trial.seed) for trial in whole}) == len(whole)
    assert len({trial.settings_key for trial in whole}) == len(whole)
    assert len(trials(found, 0.001)) == len(whole)


def test_one_s_own_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lectures, "_OWN", {})
    mine = register_study(study(name="my-own"))
    assert study_of_name("my-own", Store(tmp_path)) is mine
    with pytest.raises(UserError, match="there is no study 'my-ow'; did you mean 'my-own'"):
        study_of_name("my-ow", Store(tmp_path))
    with pytest.raises(UserError, match=r"a study is a cf.Study\(...\); got 3"):
        register_study(3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="there is already a study 'my-own'"):
        register_study(study(name="my-own", seeds=7))


def test_a_cell_that_registers_a_study_may_be_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lectures, "_OWN", {})

    def cell(n_seeds: int = 1) -> Any:
        def count(run: Any) -> dict[str, int]:
            return {"n": 1}

        return register_study(study(name="my-own", measures=(Measure(count),), seeds=n_seeds))

    first, again = cell(), cell()
    assert first.measures[0].function is not again.measures[0].function
    assert studies()["my-own"] is again
    with pytest.raises(UserError, match="there is already a study 'my-own'"):
        cell(2)
    with pytest.raises(
        UserError, match=f"there is already a study '{next(iter(lectures.lecture_studies()))}'"
    ):
        register_study(study(name=next(iter(lectures.lecture_studies()))))


# --- as data ----------------------------------------------------------------------------------------------


def test_a_study_without_functions_is_data_and_comes_back_the_same(tmp_path: Path) -> None:
    mine = tiny_study(
        tmp_path,
        claims=(Claim("Two are better.", "val_loss", "2 layers", "1 layers"),),
        published=(Published("1 layers", "val_loss", 3.0, 0.5, "2"),),
        first_seed=3,
    )
    store = Store(tmp_path / "studies")
    file = declare(mine, store)
    assert declare(mine, store) == file
    back = study_of_name("tiny", store)
    shutil.copytree(store.folder / "tiny", store.folder / "moved")
    with pytest.raises(DataError, match=r"moved/study.json: it declares the study 'tiny'; rename its folder"):
        study_of_name("moved", store)
    shutil.rmtree(store.folder / "moved")
    assert declaration(back) == declaration(mine)
    assert [trial.key for trial in trials(back)] == [trial.key for trial in trials(mine)]
    assert all_studies(store)["tiny"].claims == mine.claims
    reworded = replace(mine, question="Asked in other words?")
    assert declare(reworded, store) == file
    assert study_of_name("tiny", store).question == "Asked in other words?"
    with pytest.raises(UserError, match="there is no study 'tinny'; did you mean 'tiny'"):
        study_of_name("tinny", store)
    with pytest.raises(UserError, match="belongs to another study of that name"):
        declare(tiny_study(tmp_path, seeds=7), store)
    with pytest.raises(UserError, match="of the lectures"):
        declare(tiny_study(tmp_path, name="depth"), store)


def test_a_sweep_is_data(tmp_path: Path) -> None:
    mine = sweep("quick", {"model.position": ["rope", "alibi"]}, seeds=range(2, 4))
    back = from_declaration(json.loads(json.dumps(declaration(mine))))
    assert declaration(back) == declaration(mine)
    assert back.figures == mine.figures
    of_a_path = sweep("quick", {"data.path": [tmp_path / "my.txt"]})
    assert str(tmp_path / "my.txt") in json.dumps(declaration(of_a_path))


def test_one_with_code_is_refused_with_the_way_out() -> None:
    def own(**_: Any) -> dict[str, int]:
        return {}

    for mine in (study(arms=(Probe("p", own),)), study(measures=(Measure(own),)), study(figures=(own,))):
        with pytest.raises(UserError, match=r"is code.*jobs=1.*--import FILE.py"):
            declaration(mine)


@pytest.mark.parametrize("spoil", ["{", "[]", '{"name": "tiny"}', "settings", "arms", "measures", "seeds"])
def test_a_spoilt_declaration_is_named_and_hides_no_other(
    tmp_path: Path, spoil: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path / "studies")
    declare(replace(tiny_study(tmp_path), name="whole"), store)
    file = declare(tiny_study(tmp_path), store)
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {spoil: "x"}) if spoil in content else spoil)
    with pytest.raises(DataError, match=r"study\.json: damaged: .*; delete it") as caught:
        study_of_name("tiny", store)
    assert "\n" not in str(caught.value)
    assert all_studies(store).keys() - studies().keys() == {"whole"}
    assert f"{caught.value}; left out" in caplog.text


# --- what a study keeps of what it is given -------------------------------------------------------------------


def number(run: Any, **_: Any) -> dict[str, float]:
    return {"x": 1.0}


def made_in(word: str) -> Any:
    def after(run: Any) -> dict[str, int]:
        return {f"n_{word}": len(word)}

    return after


def test_a_measure_s_key_counts_what_its_function_keeps() -> None:
    assert Measure(made_in("a")).key != Measure(made_in("b")).key
    assert Measure(made_in("a")).key == Measure(made_in("a")).key


def test_a_function_without_source_counts_by_its_instructions() -> None:
    keys = []
    for body in ("1", "2", "[x + 1 for x in (1,)]", "1"):
        code = compile(f"def typed(run): return {{'x': {body}}}", "<prompt>", "exec").co_consts[0]
        keys.append(Measure(FunctionType(code, {"__name__": "__main__"})).key)
    assert len(set(keys)) == 3
    assert keys[0] == keys[3]


@pytest.mark.parametrize("kind", [Measure, lambda f, a: Probe("p", f, a)])
def test_arguments_are_json_values(kind: Any) -> None:
    """The text of a large array is shortened, so that two would have one name."""
    with pytest.raises(
        ConfigError, match=r"number: weights: finite numbers, texts, lists or mappings of them; got"
    ):
        kind(number, {"weights": np.zeros(2000)})
    with pytest.raises(ConfigError, match=r"number: limit: finite numbers, .*; got inf"):
        kind(number, {"limit": math.inf})
    with pytest.raises(ConfigError, match="function is one with a name; got"):
        kind(functools.partial(number), {})


def test_a_study_takes_generators() -> None:
    arms = (Training(name, settings={"model.position": name}) for name in ("none", "rope"))
    study = Study("gen", "?", "", arms, "", measures=(each for each in (Measure(number),)))  # type: ignore[arg-type]
    assert [arm.label for arm in study.arms] == ["none", "rope"]
    assert len(study.measures) == 1
    assert len(trials(study)) == 6


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"measures": (number,)}, "measures: each is a Measure; got"),
        ({"measures": 5}, "measures: a sequence of Measure; got 5"),
        ({"shown": "loss"}, "shown: a sequence of str; got 'loss'"),
        ({"seeds": 1.5}, "seeds"),
        ({"first_seed": 1.5}, "first_seed: a whole number; got 1.5"),
        ({"first_seed": -2}, "first_seed: 0 or more; got -2"),
        ({"arms": (Training("a", seeds=0),)}, "seeds: 1 or more; got 0"),
        ({"arms": (Training("a", seeds="2"),)}, "seeds: a whole number; got '2'"),  # type: ignore[arg-type]
        ({"settings": None}, "settings: a mapping of values by name; got None"),
        ({"measures": (Measure(number), Measure(number))}, "two measures are the same, number; remove one"),
        ({"arms": (Measure(number),)}, "arms: each is a Training or Probe; got"),
    ],
)
def test_a_study_of_wrong_parts_is_refused(parts: dict[str, Any], problem: str) -> None:
    given: dict[str, Any] = {"arms": (Training("a"),), **parts}
    with pytest.raises(UserError, match=problem):
        Study(name="odd", question="?", lecture="", refuted_if="", **given)


def test_an_arm_keeps_its_own_settings() -> None:
    settings: dict[str, Any] = {"data": {"path": "a"}}
    arms = []
    for rate in (1e-2, 1e-4):
        settings["train.lr"] = rate
        arms.append(Training(f"rate {rate}", settings=settings))
    settings["data"]["path"] = "b"
    assert [arm.settings["train.lr"] for arm in arms] == [1e-2, 1e-4]
    assert arms[0].settings["data"] == {"path": "a"}


def test_the_lectures_studies_are_short_to_read() -> None:
    """Under thirty lines each, but for what their results mean."""
    for file in Path(lectures.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Study":
                fields = [each for each in node.keywords if each.arg != "meaning"]
                n_lines = 2 + sum(lines_of(each.value) for each in fields)
                assert n_lines < 30, (file.name, node.lineno)


def lines_of(node: ast.expr) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1
