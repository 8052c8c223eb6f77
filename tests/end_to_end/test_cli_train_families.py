"""`clearformer train` for the three families: from one command to a result that a person can read."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from clearformer.cli import main

SMALL = (
    "model.d_model=24",
    "model.n_layers=1",
    "train.max_steps=4",
    "train.max_seconds=none",
    "train.eval_every=3",
    "train.device=cpu",
    "train.dtype=float32",
    "train.compile=false",
)
Trains = Callable[..., tuple[list[str], str]]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "sys.argv", ["clearformer"]
    )  # how the program was called is in what it says to try next
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def trains(capsys: pytest.CaptureFixture[str]) -> Trains:
    """Runs `clearformer train` with some arguments; returns the lines of its result, and what it told on the way."""

    def trains(*arguments: str) -> tuple[list[str], str]:
        capsys.readouterr()
        assert main(["train", *SMALL, *arguments]) == 0, capsys.readouterr().err
        captured = capsys.readouterr()
        return captured.out.strip("\n").split("\n"), captured.err

    return trains


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[str, str]:
    """Two files of 60 lines, as settings."""
    (tmp_path / "my.fr").write_text("".join(f"le {n} mai\n" for n in range(60)))
    (tmp_path / "my.en").write_text("".join(f"May {n}\n" for n in range(60)))
    return "data.source=my.fr", "data.target=my.en"


@pytest.fixture
def labelled(tmp_path: Path) -> str:
    """A file of 60 texts with one of two labels, as a setting."""
    rows = "".join(
        f"it is {n} {'apples' if n % 2 else 'pears'}\t{'odd' if n % 2 else 'even'}\n" for n in range(60)
    )
    (tmp_path / "my.tsv").write_text("text\tlabel\n" + rows)
    return "data.path=my.tsv"


def next_commands(lines: list[str]) -> list[str]:
    return [
        re.sub(r"^.*?(clearformer|pytest|__main__\S*) ", "", line)
        for line in lines[lines.index("Next:") + 1 :]
    ]


def metrics(run: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in Path("runs", run, "metrics.jsonl").read_text().splitlines()]


def test_pairs_are_translated(trains: Trains, pairs: tuple[str, str]) -> None:
    lines, told = trains(*pairs, "tokenizer.vocab_size=300", "data.val_fraction=0.1")

    run = "translate-my"
    assert "encoder-decoder of 1 + 1 layers, d_model 24" in told
    assert "up to 1,024 tokens per step" in told
    assert lines[0].startswith(f"{Path('runs').resolve() / run}: 4 steps in ")
    assert re.fullmatch(
        r"held-out pairs \(all 7\): \d+\.\d{4} nats per token, perplexity \d+\.\d\d; \d+\.\d% of the tokens are .*",
        lines[1],
    )
    examples = lines[lines.index("") + 1 : lines.index("Next:") - 1]
    sources = [line for line in examples if not line.startswith("  ")]
    assert len(sources) == 4
    assert all(re.fullmatch(r"le \d+ mai", source) for source in sources)
    assert max(map(len, examples)) <= 110  # however long an undertrained model's translations are
    assert [command.split()[0] for command in next_commands(lines)] == ["translate", "look", "eval", "train"]
    assert [line["step"] for line in metrics(run) if "val_perplexity" in line] == [3, 4]


def test_auto_chooses_for_pairs_and_for_labelled_texts(
    trains: Trains, pairs: tuple[str, str], labelled: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fewer = ("model.attention.n_heads=2", "train.log_every=1")
    lines, _ = trains("auto", *pairs, *fewer, "data.val_fraction=0.1", "--run", "t")

    assert "passes over the pairs: dropout" in caplog.text
    assert lines[1].startswith("held-out pairs (all 7): ")
    assert "train auto data.source=YOUR.fr" in next_commands(lines)[-1]

    lines, _ = trains("auto", "data.kind=labelled", labelled, *fewer, "--run", "c")

    assert "auto: about 112 steps of 8 texts" in caplog.text
    assert "accuracy" in lines[2]
    assert "train auto data.kind=labelled data.path=YOUR.tsv" in next_commands(lines)[-1]


def test_a_tsv_is_translated_and_dates_are_too(trains: Trains, tmp_path: Path) -> None:
    (tmp_path / "my.tsv").write_text("".join(f"{n}a\t{n}b\n" for n in range(60)))

    _, told = trains("data.path=my.tsv", "tokenizer=char", "train.max_steps=1")
    assert "encoder-decoder" in told
    lines, told = trains("data.name=dates", "data.size=100", "tokenizer.vocab_size=300", "train.max_steps=1")
    assert "data dates-fr-en, optimizer muon" in told
    assert lines[0].startswith(f"{Path('runs').resolve() / 'translate-dates-fr-en'}: 1 step in ")


def test_labelled_texts_are_classified_beside_a_baseline(trains: Trains, labelled: str) -> None:
    lines, told = trains("classify", labelled, "tokenizer.vocab_size=90", "train.batch_size=8")

    assert "encoder of 1 layer, d_model 24" in told
    assert "8 texts per step" in told
    assert lines[1] == "held-out texts:"
    assert re.match(r"  this run  accuracy \d+\.\d\d% \(\d of 4\), macro-F1 ", lines[2])
    assert re.match(r"  baseline  accuracy 100\.00% \(4 of 4\), macro-F1 1\.0000", lines[3])
    assert "TF-IDF" in lines[4]
    assert re.match(r"  majority  accuracy \d+\.\d\d%", lines[5])
    guesses = lines[lines.index("") + 1 : lines.index("Next:") - 1]
    assert all(
        re.fullmatch(r"(odd|even) \d+% \((right|wrong: odd|wrong: even)\): it is .*", guess)
        for guess in guesses
    )
    assert len(guesses) == 4
    assert [command.split()[0] for command in next_commands(lines)] == ["classify", "look", "eval", "train"]
    assert {"val_accuracy", "val_macro_f1"} <= metrics("classify-my")[-1].keys()


def test_what_to_try_next_is_what_was_begun_with(
    trains: Trains, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my.txt").write_text("".join(f"{n} of a text\n" for n in range(200)))
    monkeypatch.setattr("sys.argv", ["/bin/clearformer", "train", "lecture", "data.path=my.txt"])

    lines, told = trains("lecture", "data.path=my.txt", "model.max_seq_len=20", "train.batch_size=2")

    assert (
        "decoder of 1 layer, d_model 24, multihead attention, no positions; data my, optimizer adam" in told
    )
    assert next_commands(lines) == [
        "generate lecture-my --prompt 0 --temperature 0.8 --num 3",  # for there is no T in the text
        "look lecture-my",
        "eval lecture-my",
        "train lecture data.path=YOUR.txt train.max_seconds=120",
    ]


def test_masked_tokens_are_filled_in(trains: Trains, tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("".join(f"line {n} of a text\n" for n in range(200)))

    lines, told = trains(
        "masked", "data.path=my.txt", "tokenizer.vocab_size=90", "train.batch_size=8", "train.sample_every=3"
    )

    assert re.match(
        r"held-out text: \d+\.\d% of \d+ masked tokens predicted correctly; .* perplexity", lines[1]
    )
    assert (
        lines[lines.index("") + 1]
        == "masked tokens in brackets: [token] if predicted correctly, else [prediction|token]"
    )
    sample = lines[lines.index("") + 2]
    assert sample.startswith("[CLS] ")
    assert "|" in sample
    assert told.count("[CLS] ") == 1  # the sample on the way
    assert next_commands(lines)[0] == "train classify train.pretrained=masked-my data.path=YOUR.tsv"
    assert "val_accuracy" in metrics("masked-my")[-1]


def test_a_classifier_begins_with_a_masked_run(trains: Trains, labelled: str, tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("".join(f"it is {n} apples or pears\n" for n in range(200)))
    trains(
        "masked",
        "data.path=my.txt",
        "tokenizer=byte",
        "model.max_seq_len=50",
        "train.batch_size=8",
        "--run",
        "m",
    )

    _, told = trains("classify", "train.pretrained=m", labelled, "train.batch_size=8", "--run", "c")

    assert (
        f"starting from the weights of {Path('runs').resolve() / 'm'}, step 4; new: classifier, pooler"
        in told
    )
    config = Path("runs/c/config.toml").read_text()
    assert "max_seq_len = 50" in config
    assert Path("runs/c/tokenizer.json").read_text() == Path("runs/m/tokenizer.json").read_text()


def test_without_held_out_data_there_is_still_a_result(trains: Trains, labelled: str) -> None:
    lines, _ = trains(
        "classify", labelled, "data.val_fraction=0", "tokenizer.vocab_size=90", "train.batch_size=8"
    )

    assert lines[1] == ""
    assert re.match(r"(odd|even) \d+%", lines[2])


@pytest.mark.parametrize("family", ["text", "pairs", "labelled", "masked"])
def test_the_evaluation_that_is_proposed_works_without_held_out_data(
    trains: Trains,
    pairs: tuple[str, str],
    labelled: str,
    tmp_path: Path,
    family: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "text.txt").write_text("a text of some words\n" * 40)
    of_family = {
        "text": ("quick", "data.path=text.txt", "tokenizer=char", "model.attention.n_heads=2"),
        "pairs": ("translate", *pairs, "tokenizer=char", "train.objective.batch_tokens=300"),
        "labelled": ("classify", labelled, "tokenizer=byte"),
        "masked": ("masked", "data.path=text.txt", "tokenizer.vocab_size=90"),
    }
    lines, _ = trains(*of_family[family], "data.val_fraction=0", "--run", "a")
    [evaluate] = [command for command in next_commands(lines) if command.startswith("eval ")]
    assert evaluate.startswith("eval a --split train")
    assert main(evaluate.split()) == 0
    capsys.readouterr()
    assert main(["eval", "a"]) == 2
    assert capsys.readouterr().err == (
        "clearformer: the run's data have no split 'val': choose --split (train), or other data with --data\n"
    )


def test_what_an_earlier_command_imported_is_no_part_of_a_later_one_s_advice(
    trains: Trains, pairs: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text("")
    begun = (
        "translate",
        *pairs,
        "tokenizer=char",
        "train.objective.batch_tokens=300",
        "data.val_fraction=0.1",
    )
    with_import, _ = trains(*begun, "--import", "own.py", "--run", "a")
    assert all(command.endswith(" --import own.py") for command in next_commands(with_import))
    without, _ = trains(*begun, "--run", "b")
    assert not any("--import" in command for command in next_commands(without))


def test_a_character_that_a_pretrained_run_does_not_know_is_no_matter_of_the_tokenizer(
    trains: Trains, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "known.txt").write_text("the cat sat on the mat\n" * 40)
    (tmp_path / "other.txt").write_text("The cat sat on the mat\n" * 40)
    own = ("quick", "model.attention.n_heads=2", "model.max_seq_len=8", "train.batch_size=2")
    trains(*own, "data.path=known.txt", "--run", "known")
    capsys.readouterr()
    assert main(["train", *SMALL, *own, "data.path=other.txt", "train.pretrained=known"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "'T' (U+0054) is not among this tokenizer's" in line
    assert line.endswith("runs/known: use texts that it knows, or begin without it")
    assert "tokenizer.unk" not in line
