"""`evaluate` and `classify` in Python give what the command line prints."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clearformer as cf
from clearformer.cli import main
from clearformer.errors import DataError, RunError, UserError


@pytest.fixture(autouse=True)
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_RUNS", str(home / "runs"))
    monkeypatch.setenv("CLEARFORMER_CACHE", str(home / "cache"))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["text", "pairs", "gaps", "pets"])
def test_a_run_s_scores_are_those_of_eval(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = cf.load(name, device="cpu")
    own: dict[str, Any] = {"beams": 2} if name == "pairs" else {}
    scores = cf.evaluate(run, dtype=torch.float32, **own)

    expected = printed(capsys, "eval", name, "--device", "cpu", *(["--beams", "2"] * (name == "pairs")))
    assert scores.to_dict() == expected
    assert scores.loss == scores["loss"] == expected["loss"]
    assert list(scores) == list(expected)
    assert dict(scores) == {name: scores[name] for name in scores}
    assert len(scores) == len(expected)
    assert "perplexities" not in scores
    assert run.evaluate(dtype=torch.float32, **own).to_dict() == expected
    assert repr(scores).startswith("Scores(loss=") or "loss=" in repr(scores)
    assert len(repr(scores)) < 300


@pytest.mark.parametrize(
    ("name", "doing"),
    [
        ("text", ["evaluating", "comparing with the training data"]),
        ("pairs", ["comparing with the training data", "evaluating", "translating"]),
        ("gaps", ["evaluating", "comparing with the training data"]),
        ("pets", ["comparing with the training data", "evaluating", "training the baseline"]),
    ],
)
def test_how_far_an_evaluation_is(name: str, doing: list[str]) -> None:
    told: list[tuple[str, int, int | None]] = []
    run = cf.load(name, device="cpu")
    run.evaluate(progress=lambda *report: told.append(report))

    parts = list(dict.fromkeys(what for what, _, _ in told))
    assert [part for part in parts if part in doing] == doing
    for part in {"evaluating", "translating"} & set(doing):
        done = [n for what, n, _ in told if what == part]
        [total] = {total for what, _, total in told if what == part}
        assert done == sorted(set(done))
        assert done[-1] == total
    with pytest.raises(UserError, match=r"^progress: a function; got True$"):
        run.evaluate(progress=True)  # type: ignore[arg-type]


def test_how_far_a_translation_is() -> None:
    run: Any = cf.load("pairs", device="cpu")
    told: list[tuple[int, int]] = []
    sentences = [*(f"le {day} mai" for day in range(1, 6)), "", " "]
    run.translate(sentences, batch_tokens=1, on_step=lambda *report: told.append(report))
    assert told == [(n, 5) for n in range(1, 6)]
    with pytest.raises(UserError, match=r"^on_step: a function; got 1$"):
        run.translate(sentences, on_step=1)


def test_an_empty_text_has_a_prediction_of_its_own() -> None:
    run = cf.load("pets", device="cpu")
    one, other = run.classify(["", ""])
    one.probabilities["cat"] = 1.0
    assert other.probabilities == run.classify("")[0].probabilities == {}


def test_another_file_is_read_whole(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = cf.load("text", device="cpu")
    other = home / "text.txt"
    by_command = printed(capsys, "eval", "text", "--data", str(other), "--context", "8", "--device", "cpu")
    assert run.evaluate(other, context=8)["bits_per_char"] == by_command["bits_per_char"]
    assert run.evaluate(str(other))["split"] == str(other)
    assert run.evaluate(data=[other], stride=3)["stride"] == 3


def test_what_cannot_be_measured_is_told_in_one_line(home: Path) -> None:
    run = cf.load("text", device="cpu")
    with pytest.raises(RunError, match=r"^split: the run's data have no split 'valid'; they have train, val"):
        run.evaluate(split="valid")
    with pytest.raises(UserError, match=r"^split: the name of a split; got \[0\]$"):
        run.evaluate(split=[0])  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^data: takes one file; got 2"):
        run.evaluate(["a", "b"])
    with pytest.raises(UserError, match=r"^place: a function; got None$"):
        cf.classify(cf.load("pets", device="cpu"), "a cat", place=None)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"^data=.*nothing\.txt: there is no such file"):
        run.evaluate("nothing.txt")
    with pytest.raises(RunError, match="its training data are unknown"):
        cf.Run(run.model, run.tokenizer).save(home / "runs" / "copy").evaluate()
    with pytest.raises(RunError, match=r"^this run: its training data are unknown.*evaluate it on your own"):
        cf.Run(run.model, run.tokenizer).evaluate()


def test_texts_are_classified_whatever_they_are_given_as() -> None:
    run = cf.load("pets", device="cpu")
    [found] = run.classify("the cat purrs")

    assert found.label in run.config.data.labels  # type: ignore[union-attr]
    ids = run.tokenizer.encode("the cat purrs")
    for given in (["the cat purrs"], ids, ids.tolist(), run.tokenizer.wrap(ids), np.array(["the cat purrs"])):
        assert run.classify(given) == cf.classify(run, given) == [found]
    assert found.to_dict()["probabilities"] == found.probabilities
    with pytest.raises(UserError, match="has no classes"):
        cf.load("text", device="cpu").classify("a")
