"""`clearformer eval` of a run of each kind, as it is typed."""

import json
import math
import shutil
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clearformer.cli import main
from clearformer.data import PairSplit
from clearformer.decoding import translate
from clearformer.evaluation.classes.baseline import tfidf_baseline
from clearformer.evaluation.figures import SUFFIXES
from clearformer.evaluation.translation import score_translations
from clearformer.interop.importing import run_config
from clearformer.model import ModelConfig, build
from clearformer.run import load
from clearformer.runs.folders import new_run
from clearformer.runs.own_data import read_own_data
from clearformer.text import CharTokenizerSpec
from clearformer.training.store.checkpoint import Checkpoint, Progress, save_checkpoint
from clearformer.training.store.folder import read_metrics
from clearformer.training.store.state import weights_of

from .conftest import PAIRS, PETS, TEXT, TINY, labelled

Says = Callable[..., str]
Answers = Callable[..., dict[str, Any]]


def last_line(home: Path, run: str) -> dict[str, Any]:
    return read_metrics(home / "runs" / run / "metrics.jsonl")[-1]


# --- what every kind has ----------------------------------------------------------------------------------

OF_EVERY_KIND = {"split", "step", "data_changed"}
KEYS = {
    "text": {
        *("loss", "mean_entropy", "n_tokens", "n_chars", "n_bytes", "context", "stride"),
        *("perplexity", "bits_per_token", "bits_per_char", "bits_per_byte", "n_unknown"),
        *("n_words", "perplexity_per_word", "also_in_train"),
    },
    "pairs": {
        *("loss", "accuracy", "n_tokens", "n_pairs", "perplexity", "bits_per_token", "n", "bleu"),
        *("bleu_lowercase", "chrf", "exact_match", "length_ratio", "n_cut", "beams"),
        *("n_also_in_train", "n_left_out"),
    },
    "gaps": {"loss", "accuracy", "n_tokens", "perplexity", "also_in_train"},
    "pets": {
        *("n", "accuracy", "macro_f1", "majority", "loss", "classes", "confusion", "labels"),
        *("baseline", "n_also_in_train", "n_left_out"),
    },
}


@pytest.mark.parametrize("run", KEYS)
def test_the_object_of_each_kind(answers: Answers, four_runs: Path, run: str) -> None:
    found = answers("eval", run)
    assert found.keys() == KEYS[run] | OF_EVERY_KIND
    assert found["split"] == "val"
    assert found["step"] == last_line(four_runs, run)["step"]
    assert found["data_changed"] is False


@pytest.mark.parametrize("run", KEYS)
def test_the_loss_is_that_of_the_end_of_training(answers: Answers, four_runs: Path, run: str) -> None:
    found = answers("eval", run)
    assert found["loss"] == pytest.approx(last_line(four_runs, run)["val_loss"], abs=1e-4)
    if "perplexity" in found:
        assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_how_far_it_is(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert answers("eval", "pairs")["split"] == "val"
    assert "100%" in terminal.getvalue()
    monkeypatch.setattr(sys, "stderr", elsewhere := StringIO())
    assert answers("eval", "pairs")["split"] == "val"
    assert elsewhere.getvalue() == ""


@pytest.mark.parametrize("run", KEYS)
def test_a_split_is_read_whole(answers: Answers, says: Says, run: str) -> None:
    count = {"text": "n_tokens", "pairs": "n_pairs", "gaps": "n_tokens", "pets": "n"}[run]
    train, val = (answers("eval", run, "--split", split) for split in ("train", "val"))
    assert train["split"] == "train"
    all_rows = {"pairs": len(PAIRS), "pets": sum(map(len, PETS.values()))}
    if run in all_rows:
        assert train[count] + val[count] == all_rows[run]
    else:
        assert train[count] > 3 * val[count]
    assert "the whole train split" in says("eval", run, "--split", "train")


@pytest.mark.parametrize("run", KEYS)
def test_a_mean_of_checkpoints(answers: Answers, run: str) -> None:
    losses = [answers("eval", run, *more)["loss"] for more in ((), ("--average", "2"), ("--checkpoint", "3"))]
    assert len(set(losses)) == 3


def test_splits_in_files_of_their_own(answers: Answers, says: Says, tmp_path: Path) -> None:
    """Training reads the first, its evaluations the second, and the third is read when it is asked for."""
    files = {name: tmp_path / f"{name}.txt" for name in ("path", "val_path", "test_path")}
    for name, letters in zip(files, ("abcdef", "abc", "fed"), strict=True):
        files[name].write_text(f"{letters}\n" * 60)
    given = [f"data.{name}={file}" for name, file in files.items()]
    says("train", "quick", *TINY, *given, "--run", "apart")
    for split, letters in (("val", "abc"), ("test", "fed")):
        found = answers("eval", "apart", "--split", split)
        assert found["n_chars"] == 60 * len(letters) + 60 - 1
        assert found["loss"] == pytest.approx(
            answers("eval", "apart", "--data", str(files[f"{split}_path"]))["loss"]
        )
    assert answers("eval", "apart", "--split", "train")["n_chars"] == 60 * 7 - 1


@pytest.mark.parametrize("run", KEYS)
def test_a_split_that_is_not_there(refuses: Says, run: str) -> None:
    assert "no split 'test'; they have train, val" in refuses("eval", run, "--split", "test")


ITS_OPTIONS = {
    "text": ("context", "stride"),
    "pairs": ("beams", "unseen"),
    "gaps": (),
    "pets": ("figure", "unseen"),
}
VALUES = {"context": "=7", "stride": "=3", "beams": "=5", "figure": "=f.png", "unseen": ""}


@pytest.mark.parametrize("option", VALUES)
@pytest.mark.parametrize("run", KEYS)
def test_an_option_of_another_kind_is_refused(refuses: Says, says: Says, run: str, option: str) -> None:
    command = ["eval", run, f"--{option}{VALUES[option]}"]
    if option in ITS_OPTIONS[run]:
        if option != "figure":
            says(*command)
        return
    line = refuses(*command)
    assert line.startswith(f"clearformer: --{option}: ")
    assert line.endswith(f"; remove --{option}")


def test_what_does_not_go_together(refuses: Says, four_runs: Path) -> None:
    text = str(four_runs / "text.txt")
    assert "--split" in refuses("eval", "text", "--data", text, "--split", "val")
    assert "takes one file; got 2" in refuses("eval", "text", "--data", text, "--data", text)
    assert "got 3" in refuses("eval", "pairs", *["--data", text] * 3)
    assert "--dtype" in refuses("eval", "text", "--dtype", "int8")
    assert "clearformer: --beams takes a number of at most" in refuses("eval", "pairs", "--beams", "1000000")
    assert "absent.txt" in refuses("eval", "text", "--data", "absent.txt")
    line = refuses("eval", "text", "--average", "3")
    assert "--average: " in line
    assert "train.keep_last" in line
    assert "--changed-data: " in refuses("eval", "text", "--data", text, "--changed-data")


def test_help_names_every_format_of_a_figure(says: Says) -> None:
    assert all(suffix in says("eval", "--help") for suffix in SUFFIXES)


def test_other_data_are_blamed_in_words_of_the_command(refuses: Says, tmp_path: Path) -> None:
    file = tmp_path / "other.jsonl"
    file.write_text('{"body": "a cat", "pet": "cat"}\n')
    assert "no field 'text'; it has 'body', 'pet' (name the field as in the run's own data)" in refuses(
        "eval", "text", "--data", str(file)
    )
    line = refuses("eval", "pets", "--data", str(file))
    assert "no field 'text'; it has 'body', 'pet' (name the fields as in the run's own data)" in line
    table = tmp_path / "other.tsv"
    table.write_text("body\tpet\n")
    assert (
        "(name the fields as in the run's own data; a first line with the columns text,label names"
        in refuses("eval", "pets", "--data", str(table))
    )
    for run, names in (("text", ["a.txt"]), ("pets", ["a.tsv"]), ("pairs", ["a.en", "a.fr"])):
        absent = [str(tmp_path / name) for name in names]
        line = refuses("eval", run, *(word for name in absent for word in ("--data", name)))
        assert line.startswith(f"clearformer: --data {absent[0]}: there is no such file")


# --- data that have changed since the run was trained -----------------------------------------------------

FILES = {"text": "text.txt", "pairs": "pairs.tsv", "gaps": "text.txt", "pets": "pets.tsv"}


@pytest.fixture
def changed(four_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the runs and of their data, of which each has lost its last tenth."""
    for name, file in FILES.items():
        shutil.copytree(four_runs / "runs" / name, tmp_path / "runs" / name)
        config = tmp_path / "runs" / name / "config.toml"
        config.write_text(config.read_text().replace(str(four_runs), str(tmp_path)))
        lines = (four_runs / file).read_text().splitlines(keepends=True)
        (tmp_path / file).write_text("".join(lines[: len(lines) * 9 // 10]))
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    return tmp_path


@pytest.mark.parametrize("more", [(), ("--average", "2"), ("--split", "train"), ("--json",)])
@pytest.mark.parametrize("run", KEYS)
def test_changed_data_are_refused(refuses: Says, changed: Path, run: str, more: tuple[str, ...]) -> None:
    line = refuses("eval", run, *more)
    began_on = json.loads((changed / "runs" / run / "env.json").read_text())["text_sha256"]
    assert f"data.path={changed / FILES[run]} had SHA-256 {began_on[:12]} and now has " in line
    assert "--data FILE" in line
    assert line.endswith("--changed-data)")


@pytest.mark.parametrize("run", KEYS)
def test_changed_data_are_read_on_request_and_that_is_said(
    answers: Answers, says: Says, changed: Path, run: str
) -> None:
    found = answers("eval", run, "--changed-data")
    assert found.keys() == KEYS[run] | OF_EVERY_KIND
    assert found["data_changed"] is True
    assert says("eval", run, "--changed-data").startswith(
        "the run's own data have changed since it was trained"
    )


@pytest.mark.parametrize("run", KEYS)
def test_of_the_same_data_nothing_is_said(answers: Answers, says: Says, run: str) -> None:
    assert answers("eval", run, "--changed-data")["data_changed"] is False
    assert "changed" not in says("eval", run, "--changed-data")


@pytest.mark.parametrize("run", KEYS)
def test_other_data_are_measured_whatever_became_of_the_run_s_own(
    answers: Answers, changed: Path, run: str
) -> None:
    found = answers("eval", run, "--data", str(changed / FILES[run]))
    assert found["data_changed"] is None
    if run == "pets":  # the baseline would learn from other texts than the run
        assert found["baseline"] is None


def test_a_baseline_that_cannot_learn_what_the_run_did_says_why(says: Says, changed: Path) -> None:
    out = says("eval", "pets", "--data", str(changed / "pets.tsv"))
    assert "baseline  none: it needs the run's training texts: " in out
    assert "the data have changed" in out


def test_data_that_only_lie_elsewhere_are_the_same(answers: Answers, changed: Path, four_runs: Path) -> None:
    shutil.copy(four_runs / "text.txt", changed / "text.txt")
    assert answers("eval", "text")["data_changed"] is False


def test_a_run_whose_data_are_gone_or_cannot_be_read_says_what_else_to_give(
    refuses: Says, changed: Path
) -> None:
    (changed / "text.txt").unlink()
    gone = refuses("eval", "text")
    (changed / "text.txt").write_text("Ж\n")
    others = refuses("eval", "text")
    assert f"data.path={changed / 'text.txt'}: there is no such file or folder" in gone
    assert f"{changed / 'text.txt'}, line 1, column 1: 'Ж'" in others
    for line in (gone, others):
        assert line.endswith("restore them, or give others (data=FILE, on the command line --data FILE)")


def test_a_run_whose_data_are_not_known_is_refused(refuses: Says, answers: Answers, changed: Path) -> None:
    env = changed / "runs" / "text" / "env.json"
    env.write_text('{"text_sha256": ""}')  # as an import leaves it
    for more in ((), ("--changed-data",)):
        assert "its training data are unknown" in refuses("eval", "text", *more)
    env.unlink()
    assert "env.json: missing or damaged" in refuses("eval", "text", "--changed-data")
    assert answers("eval", "text", "--data", str(changed / "text.txt"))["n_tokens"] > 0


def test_a_split_that_is_too_small_to_measure_is_one_line(
    refuses: Says, changed: Path, tmp_path: Path
) -> None:
    (changed / "text.txt").write_text("a lazy dog")
    assert f"{changed / 'text.txt'}: the val split has 1 token" in refuses("eval", "text", "--changed-data")
    (tmp_path / "a.txt").write_text("a")
    assert "a.txt: the text has 1 token (1 character) but needs 2" in refuses(
        "eval", "text", "--data", str(tmp_path / "a.txt")
    )


def test_a_name_that_is_none_is_one_line(refuses: Says) -> None:
    for run in KEYS:
        assert "--data: " in (line := refuses("eval", run, "--data", ""))
        assert "path: empty (is a shell variable unset?): give a value" in line
    assert "--data: " in refuses("eval", "pairs", "--data", "", "--data", "")


# --- texts ------------------------------------------------------------------------------------------------


def test_another_text(answers: Answers, says: Says, tmp_path: Path) -> None:
    path = tmp_path / "other.txt"
    path.write_text("the lazy dog")
    found = answers("eval", "text", "--data", str(path), "--context", "5", "--stride", "2")
    assert (found["n_tokens"], found["context"], found["stride"]) == (11, 5, 2)
    assert found["split"] == str(path)
    out = says("eval", "text", "--data", str(path))
    assert "bits per character" in out
    assert f"all of {path}" in out


@pytest.fixture
def one_that_has_unknown_characters(four_runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that knows a, b and the end of a line; and a text in which one character in four is another."""
    tokenizer = CharTokenizerSpec(unk=True).train(["ab\n"])
    model = ModelConfig(vocab_size=tokenizer.vocab_size, d_model=4, n_layers=1, max_seq_len=8)
    monkeypatch.setenv("CLEARFORMER_RUNS", str(four_runs / "runs of one test"))
    folder = new_run("unk")
    folder.create(run_config(model), tokenizer, text_sha256="")
    save_checkpoint(folder.checkpoints, Checkpoint(Progress(step=1), weights_of(build(model)), {}))
    text = four_runs / "unknown.txt"
    text.write_text("abxa" * 25)
    return text


def test_a_text_of_unknown_characters_has_no_bits_per_character(
    one_that_has_unknown_characters: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = str(one_that_has_unknown_characters)
    assert main(["eval", "unk", "--data", text, "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["n_tokens"], found["n_unknown"]) == (99, 25)
    assert [found[name] for name in ("n_chars", "n_bytes", "bits_per_char", "bits_per_byte")] == [None] * 4
    assert main(["eval", "unk", "--data", text, "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "99 tokens, 25 of them (25.25%) not in the vocabulary" in out
    assert "bits per character  - (the tokens do not encode the whole text)" in out
    assert "comparable between any" not in out
    assert "per word" not in out


# --- pairs ------------------------------------------------------------------------------------------------


def test_translations_are_measured(answers: Answers, says: Says, four_runs: Path) -> None:
    found = answers("eval", "pairs", "--split", "train", "--beams", "2")
    run = load("pairs", device="cpu")
    held_out = {pair for pair in PAIRS if pair[0] not in train_sources(run)}
    assert 0 < len(held_out) < len(PAIRS) / 2
    pairs = [pair for pair in PAIRS if pair not in held_out]
    texts = [best.text for [best] in translate(run, [source for source, _ in pairs], beams=2)]
    scores = score_translations(texts, [target for _, target in pairs])
    assert found["bleu"] == {"score": scores.bleu.score, "signature": scores.bleu.signature}
    assert found["chrf"]["score"] == scores.chrf.score
    assert (found["n"], found["n_pairs"], found["beams"]) == (len(pairs), len(pairs), 2)
    out = says("eval", "pairs")
    assert "by beam search with 5 beams" in out
    assert "exact match" in out
    assert "BLEU" in out
    assert "nrefs:1|case:mixed" in out
    assert "greedily" in says("eval", "pairs", "--beams", "1")


def train_sources(run: Any) -> list[str]:
    from clearformer.data import prepare_pairs

    return prepare_pairs(run.config.data, run.tokenizer).splits["train"].source_texts


def test_other_pairs_in_one_file_or_two(answers: Answers, tmp_path: Path) -> None:
    (tmp_path / "p.tsv").write_text("le 3 mai\tMay 3\nle 7 mai\tMay 7\nle 11 mai\tMay 11\n")
    (tmp_path / "p.fr").write_text("le 3 mai\nle 7 mai\nle 11 mai\n")
    (tmp_path / "p.en").write_text("May 3\nMay 7\nMay 11\n")
    one = answers("eval", "pairs", "--data", str(tmp_path / "p.tsv"))
    two = answers("eval", "pairs", "--data", str(tmp_path / "p.fr"), "--data", str(tmp_path / "p.en"))
    assert one["n_pairs"] == 3
    assert one.pop("split") != two.pop("split")
    assert one == two


# --- masked tokens ----------------------------------------------------------------------------------------


def test_other_texts_with_gaps_however_short(answers: Answers, says: Says, tmp_path: Path) -> None:
    path = tmp_path / "other.txt"
    path.write_text("the lazy dog")
    found = answers("eval", "gaps", "--data", str(path))
    assert 1 <= found["n_tokens"] <= 3
    assert found == answers("eval", "gaps", "--data", str(path))  # the same are masked every time
    assert "never with those of a left-to-right model" in says("eval", "gaps")


# --- classes ----------------------------------------------------------------------------------------------


def test_classes_beside_the_baseline(answers: Answers, says: Says, four_runs: Path, tmp_path: Path) -> None:
    rows = [("cats sleep", "cat"), ("a bird", "a bird"), ("the dog sings", "dog"), ("dogs", "dog")]
    path = labelled(tmp_path / "other.tsv", rows)
    found = answers("eval", "pets", "--data", str(path))
    assert found["labels"] == ["a bird", "cat", "dog"]
    assert np.array(found["confusion"]).sum(1).tolist() == [1, 1, 2]
    train = [(text, label) for label, texts in PETS.items() for text in texts if text in train_texts()]
    assert {label for _, label in train} == set(PETS)
    baseline = tfidf_baseline(*zip(*train, strict=True), *zip(*rows, strict=True))
    assert found["baseline"]["accuracy"] == baseline.report.accuracy
    assert found["baseline"]["loss"] == pytest.approx(baseline.report.loss)
    out = says("eval", "pets", "--data", str(path))
    assert baseline.report.summary() in out
    assert "TF-IDF" in out
    assert "rows: the label; columns: the prediction" in out
    assert "precision" in out


def test_texts_that_stand_in_training_too_are_left_out_on_request(
    answers: Answers, says: Says, refuses: Says, tmp_path: Path
) -> None:
    label_of = {text: label for label, texts in PETS.items() for text in texts}
    learnt = [(f"  {text} ", label_of[text]) for text in train_texts()[:2]]
    fresh = [("cats sleep", "cat"), ("a new bird", "a bird"), ("the dog sings", "dog")]
    mixed = str(labelled(tmp_path / "mixed.tsv", [fresh[0], learnt[0], *fresh[1:], learnt[1]]))
    alone = answers("eval", "pets", "--data", str(labelled(tmp_path / "fresh.tsv", fresh)))

    found = answers("eval", "pets", "--data", mixed, "--unseen")

    assert (found["n"], found["n_left_out"]) == (3, 2)
    assert found | {"n_left_out": 0, "split": alone["split"]} == alone
    assert (whole := answers("eval", "pets", "--data", mixed))["n"] == 5
    assert (whole["n_left_out"], whole["n_also_in_train"]) == (0, 2)
    assert "also in training  2 of 5 texts\n" in says("eval", "pets", "--data", mixed)
    assert "without those also in training (2):" in says("eval", "pets", "--data", mixed, "--unseen")
    assert load("pets", device="cpu").evaluate(mixed, unseen=True)["n_left_out"] == 2
    assert (
        answers("eval", "pets", "--unseen")["n_left_out"] == 0
    )  # what is held out by its content is nowhere else
    line = refuses("eval", "pets", "--split", "train", "--unseen")
    assert line.endswith("every text is also in training, so there is none to evaluate")


def test_pairs_that_stand_in_training_too_are_left_out_on_request(
    answers: Answers, says: Says, refuses: Says, tmp_path: Path
) -> None:
    own = load("pairs", device="cpu")
    learnt = read_own_data(own).prepared.splits["train"]
    assert isinstance(learnt, PairSplit)
    fresh = [("le 1 mai le 2 mai", "May 1, May 2"), ("le 9 mai 9", "May 9, 9")]
    mixed = [
        (f" {learnt.source_texts[0]}", "May, May"),  # by its source
        fresh[0],
        ("le 2 le 2", learnt.target_texts[1]),  # by its translation
        fresh[1],
    ]
    for name, pairs in (("fresh", fresh), ("mixed", mixed)):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in pairs))
    given = ("eval", "pairs", "--data", str(tmp_path / "mixed.tsv"))
    alone = answers("eval", "pairs", "--data", str(tmp_path / "fresh.tsv"))

    found = answers(*given, "--unseen")

    assert (found["n_pairs"], found["n_left_out"], found["n_also_in_train"]) == (2, 2, 0)
    assert found | {"n_left_out": 0, "split": alone["split"]} == alone
    whole = answers(*given)
    assert (whole["n_pairs"], whole["n_left_out"], whole["n_also_in_train"]) == (4, 0, 2)
    assert "also in training    2 of 4 pairs\n" in says(*given)
    assert "without those also in training (2)" in says(*given, "--unseen")
    assert own.evaluate(str(tmp_path / "mixed.tsv"), unseen=True)["n_pairs"] == 2
    line = refuses("eval", "pairs", "--split", "train", "--unseen")
    assert line.endswith("every pair is also in training, so there is none to evaluate")


@pytest.mark.parametrize("run", ["text", "gaps"])
def test_how_much_of_a_text_stands_in_training_too(
    answers: Answers, says: Says, tmp_path: Path, run: str
) -> None:
    half = tmp_path / "half.txt"
    half.write_text(TEXT[:440] + TEXT[:440][::-1])
    found = answers("eval", run, "--data", str(half))["also_in_train"]
    assert found["share"] == pytest.approx(0.5) if run == "text" else 0.2 < found["share"] < 0.5
    of_text = f"also in training    {found['share']:.1%}, in stretches of {found['width']} tokens or more"
    assert of_text in says("eval", run, "--data", str(half))
    assert answers("eval", run)["also_in_train"]["share"] > 0.5  # lines that repeat
    assert answers("eval", run, "--split", "train")["also_in_train"] is None
    assert "also in training" not in says("eval", run, "--split", "train")


def test_training_data_that_are_gone_leave_it_open(answers: Answers, four_runs: Path, tmp_path: Path) -> None:
    shutil.copytree(four_runs / "runs" / "text", tmp_path / "moved")
    config = tmp_path / "moved" / "config.toml"
    config.write_text(config.read_text().replace(str(four_runs / "text.txt"), str(tmp_path / "gone.txt")))
    (tmp_path / "other.txt").write_text(TEXT)
    found = answers("eval", str(tmp_path / "moved"), "--data", str(tmp_path / "other.txt"))
    assert found["also_in_train"] is None


def train_texts() -> list[str]:
    from clearformer.data.labelled.preparing import prepare_labelled

    run = load("pets", device="cpu")
    return list(prepare_labelled(run.config.data, run.tokenizer).splits["train"].texts)  # type: ignore[arg-type]


def test_labels_are_the_run_s_even_where_a_file_has_one_of_them(answers: Answers, tmp_path: Path) -> None:
    found = answers("eval", "pets", "--data", str(labelled(tmp_path / "o.tsv", [("the dog", "dog")])))
    assert found["labels"] == ["a bird", "cat", "dog"]
    assert found["n"] == 1


def test_a_label_that_the_run_does_not_know(refuses: Says, tmp_path: Path) -> None:
    path = labelled(tmp_path / "o.tsv", [("the dog", "dog"), ("the cow", "cow")])
    line = refuses("eval", "pets", "--data", str(path))
    assert f"{path}, line 3" in line
    assert "'cow' is not among the classes" in line


def test_without_the_training_texts_there_is_no_baseline_and_it_says_why(
    says: Says, answers: Answers, four_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(four_runs / "runs" / "pets", tmp_path / "runs" / "pets")
    config = tmp_path / "runs" / "pets" / "config.toml"
    config.write_text(config.read_text().replace("pets.tsv", "gone.tsv"))
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    path = labelled(tmp_path / "o.tsv", [("the dog", "dog")])
    assert answers("eval", "pets", "--data", str(path))["baseline"] is None
    assert "baseline  none: it needs the run's training texts: data.path=" in says(
        "eval", "pets", "--data", str(path)
    )


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_confusion_matrix_as_a_figure(answers: Answers, tmp_path: Path, ending: str) -> None:
    figure = tmp_path / f"confusion.{ending}"
    answers("eval", "pets", "--figure", str(figure))
    start = figure.read_bytes()[:300]
    assert start.startswith(b"\x89PNG") if ending == "png" else b"<svg" in start or b"<?xml" in start


def test_a_figure_that_cannot_be_drawn_is_refused_at_once(refuses: Says, tmp_path: Path) -> None:
    assert ".png, .svg" in refuses("eval", "pets", "--figure", str(tmp_path / "confusion.gif"))


@pytest.mark.parametrize("run", KEYS)
def test_the_same_every_time(says: Says, run: str) -> None:
    assert says("eval", run) == says("eval", run)


def test_without_scikit_learn_a_classifier_is_measured_and_the_baseline_is_not(
    says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    printed = says("eval", "pets")
    assert "this run  accuracy" in printed
    assert "baseline  the TF-IDF baseline needs scikit-learn" in printed
    assert "pip install 'clearformer[metrics]'" in printed
    assert json.loads(says("eval", "pets", "--json"))["baseline"] is None


def test_without_sacrebleu_a_translator_s_loss_is_measured_all_the_same(
    says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = json.loads(says("eval", "pairs", "--json"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "sacrebleu"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    printed = says("eval", "pairs")
    assert "perplexity" in printed
    assert "Not translated: BLEU and chrF need sacrebleu" in " ".join(printed.split())
    without = json.loads(says("eval", "pairs", "--json"))
    assert without["loss"] == whole["loss"]
    assert without["bleu"] is without["chrf"] is None


def test_a_run_of_files_without_a_header_is_evaluated_on_files_with_one(
    four_runs: Path, says: Says, tmp_path: Path
) -> None:
    rows = [(text, label) for label, texts in PETS.items() for text in texts]
    (tmp_path / "bare.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
    labelled(tmp_path / "headed.tsv", rows)
    lines = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
    (tmp_path / "named.jsonl").write_text(lines)
    settings = (
        *TINY,
        "tokenizer=byte",
        "model.max_seq_len=20",
        "data.val_fraction=0.2",
        "train.batch_size=5",
    )
    says(
        *("train", "classify", f"data.path={tmp_path / 'bare.tsv'}", "data.columns=text,label", *settings),
        *("--run", "bare"),
    )
    (tmp_path / "turned.tsv").write_text(
        "label\ttext\n" + "".join(f"{label}\t{text}\n" for text, label in rows)
    )
    files = ("bare.tsv", "headed.tsv", "named.jsonl", "turned.tsv")
    found = [json.loads(says("eval", "bare", "--json", "--data", str(tmp_path / name))) for name in files]
    assert len({each["loss"] for each in found}) == 1


def test_a_plain_text_for_a_run_on_json_lines(says: Says, answers: Answers, tmp_path: Path) -> None:
    lines = TEXT.splitlines()
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps({"words": line}) + "\n" for line in lines))
    (tmp_path / "plain.txt").write_text(TEXT)
    own = (
        f"data.path={tmp_path / 'lines.jsonl'}",
        "data.field=words",
        "model.max_seq_len=13",
        "tokenizer=byte",
    )
    says("train", "quick", *TINY, *own, "train.batch_size=2", "--run", "json")
    assert answers("eval", "json", "--data", str(tmp_path / "plain.txt"))["n_chars"] == len(TEXT) - 1
    assert answers("eval", "json", "--data", str(tmp_path / "lines.jsonl"))["n_tokens"] > 100
