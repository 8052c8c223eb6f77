"""`clearformer score` of a run of each kind, as it is typed."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clearformer as cf
from clearformer.cli import main
from clearformer.evaluation import likelihood

Says = Callable[..., str]
Answers = Callable[..., dict[str, Any]]


@pytest.fixture
def lines(four_runs: Path) -> Callable[..., str]:
    def write(*lines: str) -> str:
        (four_runs / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
        return str(four_runs / "lines.txt")

    return write


@pytest.mark.parametrize("run", ["text", "gaps"])
def test_a_line_for_each_line(answers: Answers, says: Says, lines: Callable[..., str], run: str) -> None:
    file = lines("the cat", "", "a dog", "cat the")
    printed = says("score", run, file, "--device", "cpu").splitlines()
    found = cf.load(run, device="cpu").score(["the cat", "", "a dog", "cat the"])
    assert len(printed) == 4
    assert printed[1] == ""
    for line, own in zip(printed, found, strict=True):
        if line:
            assert line == f"{own.logprob:.4f}\t{len(own.tokens)}\t{own.perplexity:.4f}"
    given = answers("score", run, file, "--device", "cpu")
    assert given["lines"] == [own.to_dict() for own in found]


def test_the_lines_of_a_long_file_come_as_soon_as_they_are_scored(
    says: Says,
    lines: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["score", "text", lines("the cat", "", "a dog", "cat the"), "--device", "cpu"]
    whole = says(*arguments)
    monkeypatch.setattr(likelihood, "TOKENS_HELD", 2)
    assert says(*arguments) == whole

    batches = iter([likelihood._of_batch] * 2)  # of the first two groups alone
    monkeypatch.setattr(likelihood, "_of_batch", lambda *arguments: next(batches)(*arguments))
    assert main(arguments) == 1
    out = capsys.readouterr().out
    assert out
    assert out != whole
    assert whole.startswith(out)


def test_a_prefix_and_standard_input(
    answers: Answers, lines: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(b" cat\n dog\n"))
    monkeypatch.setattr(sys, "stdin", stream)
    found = answers("score", "text", "--prefix", "the", "--device", "cpu")["lines"]
    run = cf.load("text", device="cpu")
    assert found == [own.to_dict() for own in run.score([" cat", " dog"], prefix="the")]
    assert [len(line["logprobs"]) for line in found] == [4, 4]


def test_a_character_of_an_output_is_counted_within_it(refuses: Says, lines: Callable[..., str]) -> None:
    message = refuses("score", "pairs", lines("le 3 mai\tMay Q"))
    assert "lines.txt, line 1, output: 'Q' (U+0051), character 5 of it" in message


def test_pairs_are_a_text_and_its_output(answers: Answers, refuses: Says, lines: Callable[..., str]) -> None:
    source, target = "le 3 mai", "May 3, 2003"
    found = answers("score", "pairs", lines(f"{source}\t{target}", ""), "--device", "cpu")["lines"]
    assert found[0] == cf.load("pairs", device="cpu").score(source, target)[0].to_dict()
    assert found[0]["tokens"][-1] == "<eos>"
    assert found[1]["perplexity"] is None
    assert "lines.txt, line 2: give text<TAB>output, one tab between them" in refuses(
        "score", "pairs", lines("le 3 mai\tMay 3", "le 3 mai")
    )
    assert "--prefix: only a decoder takes it" in refuses("score", "pairs", lines("one\tun"), "--prefix", "x")


def test_a_long_line_at_a_context_and_a_stride(
    answers: Answers, says: Says, refuses: Says, lines: Callable[..., str]
) -> None:
    """One long line has the loss of the same text in a file, as eval measures it."""
    text = "the quick brown fox jumps over the lazy dog the lazy fox"
    file = lines(text)
    one_line = Path(file).with_name("one.txt")
    one_line.write_text(text)
    losses = []
    for given in (("--context", "7", "--stride", "2"), ("--stride", "13"), ()):
        [found] = answers("score", "text", file, *given, "--device", "cpu")["lines"]
        of_eval = answers("eval", "text", "--data", str(one_line), *given, "--device", "cpu")
        assert len(found["tokens"]) == of_eval["n_tokens"]
        assert -found["logprob"] / of_eval["n_tokens"] == pytest.approx(of_eval["loss"], rel=1e-6)
        losses.append(of_eval["loss"])
    assert len(set(losses)) == 3
    [own] = cf.load("text", device="cpu").score(text, context=7, stride=2)
    assert -own.logprob / len(own.tokens) == pytest.approx(losses[0], rel=1e-6)
    assert "--stride: from 1 to the context of 13" in refuses("score", "text", file, "--stride", "14")
    assert "--context: from 1 to 13" in refuses("score", "text", file, "--context", "99")
    assert "--stride: only a decoder takes it" in refuses("score", "gaps", file, "--stride", "2")


def test_a_classifier_gives_no_probability(refuses: Says, lines: Callable[..., str]) -> None:
    assert refuses("score", "pets", lines("a cat")).endswith(
        "pets gives texts no probability; it classifies: clearformer classify pets FILE"
    )


def test_what_is_wrong_with_a_line_names_it(refuses: Says, lines: Callable[..., str]) -> None:
    assert "lines.txt, line 2" in refuses("score", "gaps", lines("the cat", "the cat " * 40))
