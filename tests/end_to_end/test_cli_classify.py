"""`clearformer classify`, as it is typed."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clearformer.cli import main
from clearformer.errors import UserError
from clearformer.evaluation.classes import scores
from clearformer.evaluation.classes.scores import EMPTY, classify
from clearformer.run import load

Says = Callable[..., str]
Answers = Callable[..., dict[str, Any]]
LINES = ["the cat", "", "my dog, my cat", "  the cat ", "bird"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def test_one_line_out_for_one_line_in(says: Says, file: Path) -> None:
    out = says("classify", "pets", str(file)).split("\n")
    assert len(out) == len(LINES) + 1
    assert out[1] == ""
    assert out[0] == out[3]  # white space around a text does not count
    for line in out[0], out[2], out[4]:
        label, probability = line.split("\t")
        assert label in ("cat", "dog", "a bird")
        assert 1 / 3 < float(probability) <= 1


def test_standard_input(says: Says, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from_file = says("classify", "pets", str(file))
    for arguments in (("classify", "pets"), ("classify", "pets", "-")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
        assert says(*arguments) == from_file


def test_the_lines_of_a_long_file_come_as_soon_as_they_are_classified(
    says: Says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "long.txt"
    file.write_text("cat\nmy dog\n" * scores.BATCH_SIZE)
    whole = says("classify", "pets", str(file))
    monkeypatch.setattr(scores, "BATCHES_IN_GROUP", 1)
    assert says("classify", "pets", str(file)) == whole

    groups = iter([scores.class_logprobs])  # of the first group alone
    monkeypatch.setattr(scores, "class_logprobs", lambda *arguments: next(groups)(*arguments))
    assert main(["classify", "pets", str(file)]) == 1
    assert capsys.readouterr().out.splitlines() == whole.splitlines()[: scores.BATCH_SIZE]


def test_groups_of_texts_are_passed_on_as_soon_as_they_are_classified(
    four_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = load("pets", device="cpu")
    whole = classify(run, LINES)
    monkeypatch.setattr(scores, "BATCHES_IN_GROUP", 2)
    seen: list[list[scores.Prediction]] = []
    found = classify(run, LINES, batch_size=1, look=seen.append)
    assert [len(group) for group in seen] == [2, 2, 1]
    assert found == [each for group in seen for each in group]
    assert [each.label for each in found] == [each.label for each in whole]
    with pytest.raises(UserError, match="look"):
        classify(run, LINES, look=3)  # type: ignore[arg-type]


def test_all_probabilities_in_json(answers: Answers, file: Path) -> None:
    found = answers("classify", "pets", str(file))
    assert found.keys() == {"run", "step", "average", "lines"}
    assert found["step"] == 6
    assert len(found["lines"]) == len(LINES)
    assert found["lines"][1] == {"label": "", "probability": 0.0, "probabilities": {}}
    first = found["lines"][0]
    assert list(first["probabilities"]) == ["a bird", "cat", "dog"]
    assert sum(first["probabilities"].values()) == pytest.approx(1)
    assert (
        first["probability"] == first["probabilities"][first["label"]] == max(first["probabilities"].values())
    )


def test_a_text_s_class_does_not_depend_on_the_others(four_runs: Path) -> None:
    run = load("pets", device="cpu")
    together = classify(run, LINES * 3, batch_size=2)
    for line, found in zip(LINES * 3, together, strict=True):
        [alone] = classify(run, [line])
        assert alone.label == found.label
        assert list(alone.probabilities.values()) == pytest.approx(
            list(found.probabilities.values()), abs=1e-5
        )
    assert together[1] == EMPTY
    assert classify(run, []) == classify(run, ())
    assert classify(run, ["", " "]) == [EMPTY, EMPTY]


def test_predictions_are_those_that_eval_counts(four_runs: Path) -> None:
    from clearformer.data.labelled.preparing import prepare_labelled
    from clearformer.evaluation.classes.scores import evaluate_classes

    run = load("pets", device="cpu")
    dataset = prepare_labelled(run.config.data, run.tokenizer)  # type: ignore[arg-type]
    evaluation = evaluate_classes(run.model, dataset, "train")  # type: ignore[arg-type]
    found = classify(run, dataset.splits["train"].texts)
    assert [dataset.labels[i] for i in evaluation.logprobs.argmax(1)] == [each.label for each in found]


def test_another_checkpoint_and_the_mean_of_some(answers: Answers, file: Path) -> None:
    found = [
        answers("classify", "pets", str(file), *more)["lines"][0]["probability"]
        for more in ((), ("--checkpoint", "3"), ("--average", "2"))
    ]
    assert len(set(found)) == 3


# --- what cannot be classified ----------------------------------------------------------------------------


def test_a_text_that_is_too_long(refuses: Says, says: Says, tmp_path: Path) -> None:
    long = " ".join(["cat"] * 20)
    path = tmp_path / "long.txt"
    path.write_text(f"cat\n{long}\n{long}\n")
    line = refuses("classify", "pets", str(path))
    assert f"{path}, line 2: 22 tokens" in line
    assert "at most 17 (and 1 more)" in line
    out = says("classify", "pets", str(path), "--truncate").splitlines()
    assert len(out) == 3
    path.write_text(f"cat\n{' '.join(['cat'] * 15)}\n")
    assert says("classify", "pets", str(path)).splitlines()[1] == out[1]  # what is left of the longer one


def test_what_the_run_says_of_long_texts_counts(four_runs: Path) -> None:
    run = load("pets", device="cpu")
    config = run.config.replace(data=run.config.data.replace(too_long="truncate"))
    cuts = type(run)(run.model, run.tokenizer, config, folder=run.folder, step=run.step)
    [found] = classify(cuts, ["cat " * 20])
    assert found.label
    with pytest.raises(Exception, match="text 1: 22 tokens"):
        classify(cuts, ["cat " * 20], too_long="refuse")


def test_a_line_that_is_no_utf8(refuses: Says, tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"cat\ncaf\xe9\n")
    assert f"{path}, line 2: not UTF-8" in refuses("classify", "pets", str(path))


def test_a_name_that_is_empty(refuses: Says) -> None:
    assert "FILE: the name is empty (is a shell variable unset?)" in refuses("classify", "pets", "")


@pytest.mark.parametrize(
    "arguments",
    [("classify", "pets"), ("generate", "text", "--prompt", "-"), ("tokenizer", "show", "-")],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_standard_input_that_is_no_utf8(
    refuses: Says, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], encoding: str
) -> None:
    """Every command that reads it says the same, in a locale without a language too."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"cat\ncaf\xe9\n"), encoding=encoding))
    assert "standard input, line 2: not UTF-8 (byte 0xe9" in refuses(*arguments)


@pytest.mark.parametrize(
    ("run", "instead"),
    [
        ("text", "clearformer generate text"),
        ("pairs", "clearformer translate pairs FILE"),
        ("gaps", "clearformer train classify train.pretrained=gaps"),
    ],
)
def test_a_run_that_does_something_else(refuses: Says, file: Path, run: str, instead: str) -> None:
    line = refuses("classify", run, str(file))
    assert f"{run} does not classify" in line
    assert instead in line
    with pytest.raises(UserError, match="has no classes"):
        classify(load(run, device="cpu"), ["cat"])


def test_names_of_classes_are_numbers_where_the_run_has_none(four_runs: Path) -> None:
    run = load("pets", device="cpu")
    config = run.config.replace(data=run.config.data.replace(labels=None))
    [found] = classify(type(run)(run.model, run.tokenizer, config, folder=run.folder, step=run.step), ["cat"])
    assert list(found.probabilities) == ["0", "1", "2"]
