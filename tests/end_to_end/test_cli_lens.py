"""`clearformer lens` as a user types it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from clearformer import lens
from clearformer.cli.views.lens import VIEWS
from clearformer.run import load

from .conftest import Fails, Says

TEXT = "the quick"


def test_every_view_is_printed_within_80_columns(says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    needed = {
        "score": ("--layer", "0", "--key", "2"),
        "patch": ("--donor", "a quick t"),
        "compare": ("--other", "text"),
        "matches": ("--other", "text"),
        "transplant": ("--other", "text", "--layer", "0", "--head", "1"),
    }

    def printed(run: str, view: str, *arguments: str) -> str:
        text = says("lens", run, *arguments, "--view", view, *needed.get(view, ()))
        assert text.strip()
        assert max(map(len, text.splitlines())) <= 80, view
        return text

    for view in VIEWS:
        if view not in ("alignment", "classes"):
            printed("text", view, *([TEXT] if VIEWS[view].reads_text else []))
    assert "cat" in printed("pets", "classes", "a kitten", "--target", "cat")
    assert "reads most" in printed("pairs", "alignment", "le 3 mai", "--output", "May 3")


def test_the_runs_own_data_and_its_events_are_told(answers: Callable[..., dict], refuses: Fails) -> None:
    found = answers("lens", "text", "--view", "corpus", "--split", "train", "--rows", "2")
    assert found["split"] == "train"
    assert len(found["losses"]) == len(found["rows"]) == 2
    assert found["hardest"][0]["spans"][0]["stop"] > 0
    bigram = answers("lens", "text", "--view", "bigram")
    events = answers("lens", "text", "--view", "events")
    assert events["bigram_loss"] == bigram["loss"]
    assert [event["name"] for event in events["events"]] == ["induction", "bigram"]
    assert "split: the data have no 'tset'; choose train, val" in refuses(
        "lens", "text", "--view", "corpus", "--split", "tset"
    )


def test_the_mean_of_several_checkpoints_is_looked_at(answers: Callable[..., dict], refuses: Fails) -> None:
    found = answers("lens", "text", TEXT, "--average", "2")
    assert found == lens.next_tokens(load("text", average=2), TEXT).to_dict()
    assert found != answers("lens", "text", TEXT)
    for view in ("learned", "events", "bigram"):
        text = [TEXT] if VIEWS[view].reads_text else []
        assert f"--average: --view {view} reads the training or its data" in refuses(
            "lens", "text", *text, "--view", view, "--average", "2"
        )
    changes = ("lens", "text", TEXT, "--view", "changes", "--average", "2", "--until", "2")
    assert "--average: --until opens the weights of one step" in refuses(*changes)


def test_the_ledgers_json(answers: Callable[..., dict]) -> None:
    found = answers(
        "lens", "text", TEXT, "--view", "ledger", "--position", "3", "--target", "q", "--foil", "t"
    )
    assert found["token"] == " "
    assert (found["target"], found["foil"], found["position"]) == ("q", "t", 3)
    assert sum(part["value"] for part in found["parts"]) == pytest.approx(found["logit"], abs=1e-4)
    assert found["sum"] == pytest.approx(found["logit"], abs=1e-4)
    assert found["error"] < 1e-4
    assert found["parts"][0] == {
        "name": "hook_embed",
        "layer": None,
        "head": None,
        "value": found["parts"][0]["value"],
    }


def test_the_json_of_the_logit_lens_and_of_patterns(answers: Callable[..., dict]) -> None:
    layers = answers("lens", "text", TEXT, "--view", "lens", "--top", "2")["layers"]
    assert [layer["name"] for layer in layers] == ["blocks.0.hook_resid_pre", "blocks.0.hook_resid_post"]
    assert all(len(layer["top"]) == 2 for layer in layers)
    found = answers("lens", "text", TEXT, "--view", "attention")
    assert "".join(found["tokens"]) == TEXT
    [(name, pattern)] = found["patterns"].items()
    assert name == "blocks.0.attn.hook_pattern"
    assert [len(pattern), len(pattern[0]), len(pattern[0][0])] == [2, 9, 9]
    assert sum(pattern[1][4]) == pytest.approx(1, abs=1e-5)


def test_the_json_of_patching_of_gradients_and_of_what_lowered_the_loss(answers: Callable[..., dict]) -> None:
    donor = "a quick t"
    found = answers(
        "lens", "text", TEXT, "--view", "patch", "--donor", donor, "--where", "blocks.*.hook_resid_post"
    )
    # Behind the last layer the last position's vector alone makes the prediction: patched there, it is the donor's.
    assert found["effects"][-1][-1] == pytest.approx(found["donor"] - found["own"], abs=1e-4)
    assert abs(found["donor"] - found["own"]) > 1e-3
    whole = answers("lens", "text", donor, "--view", "ledger", "--target", found_target(answers))
    assert found["donor"] == pytest.approx(capped(whole), abs=1e-4)
    estimated = answers("lens", "text", TEXT, "--view", "patch", "--donor", donor, "--estimate")
    assert estimated["is_estimate"]
    assert len(estimated["confirmed"]) == 10

    rough, fine = (
        answers("lens", "text", TEXT, "--view", "attribution", "--steps", steps) for steps in ("1", "40")
    )
    assert abs(fine["error"]) < 1e-3
    assert abs(rough["error"]) > abs(fine["error"])

    changes = answers("lens", "text", TEXT, "--view", "changes", "--pieces", "20")
    assert abs(changes["residue"]) < 1e-3


def found_target(answers: Callable[..., dict]) -> str:
    """The token that the model finds likeliest after the text."""
    return answers("lens", "text", TEXT, "--view", "ledger")["target"]


def capped(ledger: dict) -> float:
    return ledger["logit"] if ledger["capped"] is None else ledger["capped"]


@pytest.mark.parametrize("run", ["text", "gaps", "pets", "pairs"])
def test_the_json_of_what_a_prediction_was_learned_from(
    run: str, four_runs: Path, answers: Callable[..., dict]
) -> None:
    text = "le 3 mai" if run == "pairs" else "the dog"
    written = ("--output", "May 3") if run == "pairs" else ()
    found = answers("lens", run, text, "--view", "learned", "--sample", "7", *written)
    assert found["checkpoints"] == [3, 6]
    assert found["steps"] == [0, 6]
    scores = [window["score"] for window in found["windows"]]
    assert len(scores) == 7 < found["n_windows"]
    assert scores == sorted(scores, reverse=True)
    name = {"pairs": "pairs.tsv", "pets": "pets.tsv"}.get(run, "text.txt")
    whole = (four_runs / name).read_bytes()
    for window in found["windows"]:
        [span] = window["spans"]
        assert span["file"] == str(four_runs / name)
        raw = whole[span["start"] : span["stop"]].decode()
        if run == "pets":
            label, _, says = window["text"].partition(": ")
            assert raw == f"{says}\t{label}"
        else:
            assert " ".join(window["text"].split()) in " ".join(raw.split())  # of word pieces, whole words
            assert run == "gaps" or raw == window["text"]


def test_the_json_of_two_runs(answers: Callable[..., dict], says: Says) -> None:
    found = answers("lens", "text", TEXT, "--view", "compare", "--other", "text")
    assert [each["target"] for each in found["losses"]] == list(TEXT[1:])
    assert found["loss"] == found["other"]
    found = answers("lens", "text", TEXT, "--view", "matches", "--other", "text", "--by", "output")
    assert all(each["head"] == each["other"] for each in found["matches"])
    found = answers("lens", "text", "--view", "transplant", "--other", "text", "--layer", "-1", "--head", "0")
    assert found["cost"] == 0
    assert found["before"] == answers("eval", "text")["loss"]
    assert "the cost" not in says("lens", "text", TEXT, "--view", "compare", "--other", "text")


def test_what_two_runs_or_the_training_cannot_tell_is_refused(refuses: Fails, four_runs: Path) -> None:
    two = ("lens", "text", TEXT, "--view", "compare")
    assert "--other: --view compare needs it" in refuses(*two)
    assert "family: decoder and encoder cannot be compared" in refuses(*two, "--other", "gaps")
    assert "there is no run 'texd'" in refuses(*two, "--other", "texd")
    assert "--sample: no option of --view next" in refuses("lens", "text", TEXT, "--sample", "3")
    assert "--by: pattern or output; got 'weights'" in refuses(
        "lens", "text", TEXT, "--view", "matches", "--other", "text", "--by", "weights"
    )
    assert "head 2: there are 2" in refuses(
        "lens", "text", "--view", "transplant", "--other", "text", "--layer", "0", "--head", "2"
    )


@pytest.mark.parametrize("run", ["gaps", "pets", "pairs"])
def test_the_other_families(run: str, answers: Callable[..., dict]) -> None:
    text = "le 3 mai" if run == "pairs" else "the dog"
    written = ("--output", "May 3") if run == "pairs" else ()
    found = answers("lens", run, text, "--view", "ledger", *written)
    assert found["error"] < 1e-3
    assert found["target"] in (("cat", "dog", "a bird") if run == "pets" else (found["target"],))
    assert answers("lens", run, text, "--view", "sources", *written)["sum"] == pytest.approx(
        found["logit"], abs=1e-3
    )
    assert answers("lens", run, text, "--view", "lens", *written)["error"] < 1e-4


def test_a_masked_token_is_guessed(answers: Callable[..., dict]) -> None:
    found = answers("lens", "gaps", "the dog", "--view", "lens", "--masked", "1", "--position", "1")
    assert found["token"] == "[MASK]"
    assert found["target"] != "[MASK]"


def test_a_figure_is_drawn_and_told_of(four_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    from clearformer.cli import main

    path = four_runs / "ledger.svg"
    assert main(["lens", "text", TEXT, "--view", "ledger", "--figure", str(path), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["parts"]
    assert printed.err == f"drawn: {path}\n"
    assert path.read_text().count("<svg")


def test_what_was_found_is_printed_though_its_figure_cannot_be_written(
    four_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    from clearformer.cli import main

    (four_runs / "file").touch()
    figure = four_runs / "file" / "ledger.svg"
    assert main(["lens", "text", TEXT, "--view", "ledger", "--figure", str(figure), "--json"]) != 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["parts"]
    assert str(figure) in printed.err


REFUSED = {
    "--view takes tokens, next": ("--view", "nothing"),
    "did you mean 'ledger'?": ("--view", "leger"),
    "--layer: no option of --view ledger, which takes --output": ("--view", "ledger", "--layer", "0"),
    "--key: --view score needs it": ("--view", "score", "--layer", "0"),
    "position 9 is beyond the text of 9 tokens": ("--view", "lens", "--position", "9"),
    "--target: 'qu' is not a token of this tokenizer, which splits it into: q | u": (
        "--view",
        "ledger",
        "--target",
        "qu",
    ),
    "only an encoder-decoder aligns": ("--view", "alignment"),
    "--output: only an encoder-decoder writes": ("--view", "tokens", "--output", "x"),
    "layer 4: the model has 1 layer": ("--view", "score", "--layer", "4", "--key", "0"),
    "a figure is written as .png": ("--figure", "a.txt"),
    "--key 9 is beyond the text": ("--view", "score", "--layer", "0", "--key", "9"),
    "--masked: only an encoder": ("--view", "tokens", "--masked", "1"),
    "--temperature: numbers of at least 1e-06; got 0.0": ("--view", "next", "--temperature", "0"),
    "--cross: only an encoder-decoder has cross_attn; omit it": (
        "--view",
        "score",
        "--layer",
        "0",
        "--head",
        "0",
        "--key",
        "0",
        "--cross",
    ),
    "--until: ": ("--view", "changes", "--until", "12345"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_shown_is_refused_in_one_line(message: str, refuses: Fails) -> None:
    assert message in refuses("lens", "text", TEXT, *REFUSED[message])


def test_a_text_is_needed_but_by_what_reads_none(refuses: Fails) -> None:
    assert "TEXT is missing: --view tokens" in refuses("lens", "text", "--view", "tokens")
    assert "--view positions reads no text; omit 'abc'" in refuses(
        "lens", "text", "abc", "--view", "positions"
    )
