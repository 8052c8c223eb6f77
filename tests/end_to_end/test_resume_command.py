"""One command line that begins a run, or goes on with it: what a queue starts again and again."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clearformer import resolving
from clearformer.cli import main
from clearformer.resolving import resolve_run
from clearformer.runs.folders import name_for
from clearformer.training.store.lock import one_writer

TINY = (
    "model.d_model=8",
    "model.n_layers=1",
    "model.max_seq_len=12",
    "train.max_seconds=none",
    "train.checkpoint_every=none",
    "train.log_every=1",
)
OPEN = ("quick", "data.path=text.txt", "model.attention.n_heads=2", "train.batch_size=2", *TINY)
TEXT = (*OPEN, "train.dtype=float32", "train.compile=false")
LABELLED = ("classify", "data.path=pets.tsv", "data.val_fraction=0.2", "tokenizer=byte", "train.batch_size=2")
LABELLED = (*LABELLED, "model.attention.n_heads=2", *TINY, "model.max_seq_len=30")
Says = Callable[..., str]


@pytest.fixture(autouse=True)
def _arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text("".join(f"{n} bottles of beer on the wall\n" for n in range(100)))
    pets = "".join(f"{pet} number {n}\t{pet}\n" for n in range(20) for pet in ("cat", "dog"))
    (tmp_path / "pets.tsv").write_text("text\tlabel\n" + pets)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEARFORMER_RUNS", "runs")
    monkeypatch.setenv("CLEARFORMER_CACHE", "cache")


@pytest.fixture
def train(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    """Types `clearformer train ...`; returns the exit status and the messages."""

    def typed(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["clearformer", "train", *arguments])
        return main(["train", *arguments]), capsys.readouterr().err

    return typed


@pytest.fixture
def works(train: Callable[..., tuple[int, str]]) -> Says:
    """A command that must work; returns its messages."""

    def run(*arguments: str) -> str:
        status, messages = train(*arguments)
        assert status == 0, messages
        return messages

    return run


@pytest.fixture
def refused(train: Callable[..., tuple[int, str]]) -> Says:
    """A command that must be refused as the user's mistake, with nothing changed; returns its line."""

    def run(*arguments: str) -> str:
        before = contents()
        status, messages = train(*arguments)
        assert status == 2, messages
        assert contents() == before
        [line] = [line for line in messages.splitlines() if line.startswith("clearformer: ")]
        return line.removeprefix("clearformer: ")

    return run


def contents() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}


def steps(name: str = "a") -> list[int]:
    lines = Path("runs", name, "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


@pytest.mark.parametrize("command", [OPEN, LABELLED], ids=["text", "labelled"])
def test_the_command_that_begins_a_run_goes_on_with_it(works: Says, command: tuple[str, ...]) -> None:
    """What it leaves open was decided by the run: its type, compilation, vocabulary, labels, whole paths."""
    command = (*command, "train.schedule=constant", "--run", "a", "--resume")
    assert "resuming" not in works(*command, "train.max_steps=3")
    begun = Path("runs/a/config.toml").read_bytes()

    assert "resuming from step 3" in works(*command, "train.max_steps=3")  # and there is nothing to do
    assert steps() == [1, 2, 3]
    assert Path("runs/a/config.toml").read_bytes() == begun
    works(*command, "train.max_steps=5")
    assert steps() == [1, 2, 3, 4, 5]
    decided = re.search(rb'^dtype = "(\w+)"$', begun, re.MULTILINE)
    assert decided is not None  # by measuring the machine, which may come out otherwise when it is busy
    works(*command[:-3], "--run", "whole", "train.max_steps=5", f"train.dtype={decided[1].decode()}")
    one, other = (
        Path("runs", name, "checkpoints/step-00000005/model.safetensors") for name in ("a", "whole")
    )
    assert one.read_bytes() == other.read_bytes()


def test_its_name_alone_goes_on_too(works: Says, refused: Says) -> None:
    works(*TEXT, "--run", "a", "train.max_steps=3")
    assert "resuming from step 3" in works("--run", "a", "--resume")
    assert "no run 'b'" in refused("--run", "b", "--resume")
    assert "--run NAME" in refused("--resume")


def test_a_mistyped_name_begins_no_run(works: Says, refused: Says) -> None:
    works(*TEXT, "--run", "winter", "train.max_steps=1")
    assert "did you mean 'winter'" in refused("--run", "wintre", "--resume", "train.max_steps=3")


def test_a_path_begins_no_run_either(refused: Says, tmp_path: Path) -> None:
    assert "is not a valid run name" in refused(
        *TEXT, "train.max_steps=1", "--resume", f"--run={tmp_path / 'x'}"
    )


NOT_THE_RUN_S = {
    "train.lr=0.5": "train.lr: the run has 0.016, got 0.5;",
    "model.position=learned": "model.position.kind: the run has rope, got learned;",
    "model.ffn.d_ff=64": "model.ffn.d_ff: the run has none, got 64;",
    "seed=2": "seed: the run has 1, got 2;",
    "data.name=pydoc": "data.name: the run has none, got pydoc;",
    "model.vocab_size=90": "model.vocab_size: the run has ",
    "train.compile=true": "train.compile: the run has false, got true;",
}


def test_the_first_setting_that_is_not_the_run_s_is_named(works: Says, refused: Says) -> None:
    works(*TEXT, "--run", "a", "train.max_steps=1")

    for given, told in NOT_THE_RUN_S.items():
        for command in ((*TEXT, given), (given, "data.kind=text")):
            line = refused(*command, "--run", "a", "--resume", "train.max_steps=2")
            assert line.startswith(told)
            assert "train.max_steps" in line.partition("; when resuming, only ")[2]


def test_other_data_are_not_taken_for_moved_ones(works: Says, refused: Says) -> None:
    works(*TEXT, "--run", "a", "train.max_steps=1")
    line = refused("data.path=pets.tsv", "data.kind=text", "--run", "a", "--resume")
    assert line.startswith("these are not the data that runs/a was trained on: ")


def test_the_same_characters_in_other_documents_are_other_data(works: Says, refused: Says) -> None:
    """Their ends are tokens of their own."""
    text = Path("text.txt").read_text()
    Path("texts").mkdir()
    for name, part in (("a", text[:1000]), ("b", text[1000:])):
        Path("texts", f"{name}.txt").write_text(part)
    settings = (*TEXT, "tokenizer=char", "tokenizer.bos=true", "tokenizer.eos=true")
    works(*settings, "data.path=texts", "--run", "a", "train.max_steps=1")
    line = refused("data.path=text.txt", "--run", "a", "--resume", "train.max_steps=2")
    assert "the text is cut into other documents (files or lines) than when this run started" in line
    works("data.path=texts", "--run", "a", "--resume", "train.max_steps=2")


def test_data_with_characters_that_they_had_not_are_said_to_be_others(works: Says, refused: Says) -> None:
    works(*TEXT, "--run", "a", "train.max_steps=1")
    text = Path("text.txt")
    text.write_text(text.read_text() + "Ж\n")
    line = refused("--run", "a", "--resume", "train.max_steps=2")
    assert line.startswith("these are not the data that runs/a was trained on: ")
    assert "line 101, column 1: 'Ж'" in line


def test_another_preset_and_another_file_are_named(works: Says, refused: Says) -> None:
    works(*TEXT, "--run", "a", "train.max_steps=1")
    Path("other.toml").write_text("[train]\nlr = 0.25\n")
    Path("own.toml").write_text("[train]\nlr = 0.016\nmax_steps = 2\n")

    line = refused("nanogpt-cpu", *TEXT[1:], "train.max_steps=1", "--run", "a", "--resume")
    assert line.startswith("model.tie_embeddings: the run has false, got true;")
    line = refused("--config", "other.toml", "--run", "a", "--resume")
    assert line.startswith("train.lr: the run has 0.016, got 0.25;")
    works("--config", "own.toml", "--run", "a", "--resume")
    assert steps() == [1, 2]


def test_what_may_change_stays_unless_it_is_said(works: Says) -> None:
    """The preset says 60 seconds and evaluations after 100 steps; the run was changed since it began."""
    works(*TEXT, "--run", "a", "train.max_steps=2")
    works("--run", "a", "--resume", "train.eval_every=7", "train.max_steps=3")

    works(*TEXT, "--run", "a", "--resume", "train.max_steps=3")

    text = Path("runs/a/config.toml").read_text()
    assert "eval_every = 7" in text
    assert 'max_seconds = "none"' in text
    assert steps() == [1, 2, 3]


def test_a_run_by_auto_is_not_measured_again(
    works: Says, refused: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would choose on another machine, or a busier one, is not what the run is."""
    chosen = resolve_run([*TEXT, "train.max_steps=1"], None)
    monkeypatch.setattr(resolving, "auto_for", lambda wanted, said: chosen)
    command = (
        "auto",
        "data.path=text.txt",
        "train.max_steps=2",
        "train.max_seconds=none",
        "--resume",
        "--run",
    )
    works(*command, "a")
    monkeypatch.delattr(resolving, "auto_for")

    assert "resuming from step 2" in works(*command, "a", "train.max_steps=3")
    assert steps() == [1, 2, 3]
    assert refused(*command, "a", "model.d_model=64").startswith("model.d_model: the run has 8, got 64;")
    works(*TEXT, "--run", "b", "train.max_steps=1")
    assert refused(*command, "b").startswith("auto: runs/b was started with another preset")


def test_a_folder_in_which_beginning_was_cut_short_is_begun(works: Says, refused: Says) -> None:
    """A kill while the text was prepared leaves the lock's file; one while the folder was made, a part of it."""
    Path("runs/a").mkdir(parents=True)
    Path("runs/a/.lock").touch()
    Path("runs/b/checkpoints").mkdir(parents=True)
    Path("runs/b/tokenizer.json").write_text("{")
    for name, way in (("a", ()), ("b", ("--resume",))):
        works(*TEXT, "--run", name, "train.max_steps=1", *way)
        assert steps(name) == [1]


def test_a_run_without_its_tokenizer_is_told_to_restore_it(works: Says, refused: Says) -> None:
    works(*TEXT, "--run", "a", "train.max_steps=1")
    Path("runs/a/tokenizer.json").unlink()
    line = refused("--resume", "--run", "a", "train.max_steps=2")
    assert "tokenizer.json: there is no such file; restore the one of this run" in line


@pytest.mark.parametrize("way", [(), ("--resume",)], ids=str)
def test_a_folder_of_somebody_s_is_left_alone(refused: Says, way: tuple[str, ...]) -> None:
    Path("runs/a/checkpoints/step-00000004").mkdir(parents=True)
    Path("runs/a/checkpoints/step-00000004/model.safetensors").touch()
    Path("runs/b").mkdir(parents=True)
    Path("runs/b/notes.txt").touch()
    for name in ("a", "b"):
        line = refused(*TEXT, "--run", name, "train.max_steps=1", *way)
        assert line.startswith(f"--run: runs/{name} exists but is not a run")


# --- names ------------------------------------------------------------------------------------------------


def test_of_two_runs_that_begin_at_once_one_is_told(train: Callable[..., tuple[int, str]]) -> None:
    with one_writer(Path("runs/a")):
        for way in ((), ("--resume",)):
            status, messages = train(*TEXT, "train.max_steps=1", "--run", "a", *way)
            assert status == 1
            assert "runs/a is in use: process" in messages
    assert not Path("runs/a").exists()


def test_a_run_without_a_name_takes_the_next_one_that_is_free(
    works: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another has begun between the choice of the name and its use."""
    monkeypatch.setattr("clearformer.runs.folders.name_for", lambda preset, settings: "quick-text")
    with one_writer(Path("runs/quick-text")):
        works(*TEXT, "train.max_steps=1")
    assert steps("quick-text-2") == [1]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["multi30k"], "multi30k-en-de"),
        (["translate", "data.name=multi30k"], "translate-multi30k-en-de"),
        (["quick"], "quick-pydoc"),
        (["quick", "data.path=quicksand.txt"], "quick-quicksand"),
        (["quick", "data.path=quick.txt"], "quick"),
    ],
    ids=" ".join,
)
def test_a_free_name_says_everything_once(arguments: list[str], name: str) -> None:
    assert name_for(arguments[0], resolve_run(arguments, None)) == name


# --- what is no longer as it was left -----------------------------------------------------------------------


def test_a_run_without_checkpoints_says_that_it_starts_anew(works: Says) -> None:
    works(*TEXT, "train.max_steps=2", "--run", "a")
    shutil.rmtree("runs/a/checkpoints")
    said = works("--resume", "--run", "a")
    assert "no checkpoint in runs/a/checkpoints: starting from step 0\n" in said
    assert "resuming" not in said


def test_fewer_steps_than_there_are_is_refused(works: Says, refused: Says) -> None:
    works(*TEXT, "train.max_steps=3", "--run", "a")
    said = refused("--resume", "--run", "a", "train.max_steps=2")
    assert said == "train.max_steps: the run has taken 3 steps already; give as many or more, or omit it"
    works("--resume", "--run", "a", "train.max_steps=4")


def test_another_run_s_tokenizer_is_refused(works: Says, refused: Says) -> None:
    for name, kind in (("a", "char"), ("b", "byte")):
        works(*TEXT, "train.max_steps=2", f"tokenizer={kind}", "--run", name)
    shutil.copy("runs/b/tokenizer.json", "runs/a/tokenizer.json")
    said = refused("--resume", "--run", "a", "train.max_steps=4")
    assert said.startswith("runs/a/tokenizer.json: changed since the run began (its SHA-256 was ")
    assert "; restore the one of this run" in said


def test_samples_are_switched_off_or_changed_on_the_way(works: Says) -> None:
    works(*TEXT, "train.max_steps=1", "train.sample_every=1", "train.sample_prompt=1 bot", "--run", "a")
    works(*TEXT, "train.max_steps=2", "train.sample_tokens=3", "--run", "a", "--resume")
    config = Path("runs/a/config.toml").read_text()
    assert "sample_every = 1" in config
    assert "sample_tokens = 3" in config
    works("--run", "a", "--resume", "train.max_steps=3", "train.sample_every=none")
    config = Path("runs/a/config.toml").read_text()
    assert 'sample_every = "none"' in config
    assert 'sample_prompt = "\\n"' in config
