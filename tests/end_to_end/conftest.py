"""For the tests of commands on trained runs: one of each kind, trained once for a few steps."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from clearformer.cli import main
from clearformer.training.tasks import next_token

TINY = (
    "model.d_model=12",
    "model.n_layers=1",
    "model.attention.n_heads=2",
    "train.max_steps=6",
    "train.max_seconds=none",
    "train.dtype=float32",
    "train.compile=false",
    "train.device=cpu",
    "train.checkpoint_every=3",
)
TEXT = "the quick brown fox jumps over the lazy dog\n" * 40
PAIRS = [(f"le {n} mai", f"May {n}, {2000 + n}") for n in range(1, 41)]
PETS = {
    "cat": ("the cat purrs", "a small cat", "cats like milk", "my cat sleeps", "cat, cat!"),
    "dog": ("the dog barks", "a large dog", "dogs like bones", "my dog runs", "dog, dog!"),
    "a bird": ("the bird sings", "a small bird", "birds like seeds", "my bird flies", "bird, bird!"),
}
Says = Callable[..., str]
Fails = Callable[..., str]


def labelled(path: Path, rows: list[tuple[str, str]]) -> Path:
    """A TSV of texts and labels."""
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    return path


@pytest.fixture(autouse=True)
def _short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_samples(monkeypatch)


def shorten_samples(patch: pytest.MonkeyPatch) -> None:
    """Let runs end with fewer tokens, though more than there are positions: all 400 take longer than a small run."""
    patch.setattr(next_token, "SAMPLE_TOKENS", 20)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs` and `cache` in it; the runs are called text, pairs, gaps and pets."""
    home = tmp_path_factory.mktemp("home")
    (home / "text.txt").write_text(TEXT)
    (home / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    labelled(home / "pets.tsv", [(text, label) for label, texts in PETS.items() for text in texts])
    commands = {
        "text": ["quick", f"data.path={home / 'text.txt'}", "model.max_seq_len=13", "train.batch_size=2"],
        "pairs": [
            *("translate", f"data.path={home / 'pairs.tsv'}", "data.val_fraction=0.1", "tokenizer.kind=char"),
            *("model.max_seq_len=29", "train.objective.batch_tokens=100"),
        ],
        "gaps": [
            *("masked", f"data.path={home / 'text.txt'}", "tokenizer.vocab_size=90", "model.max_seq_len=13"),
            "train.batch_size=3",
        ],
        "pets": [
            *(
                "classify",
                f"data.path={home / 'pets.tsv'}",
                "data.val_fraction=0.2",
                "tokenizer.vocab_size=90",
            ),
            *("model.max_seq_len=17", "train.batch_size=5"),
        ],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLEARFORMER_RUNS", str(home / "runs"))
        patch.setenv("CLEARFORMER_CACHE", str(home / "cache"))
        shorten_samples(patch)
        for name, (preset, *settings) in commands.items():
            assert main(["train", preset, *TINY, *settings, "--run", name]) == 0
    return home


@pytest.fixture
def four_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the four runs, which commands find."""
    monkeypatch.setenv("CLEARFORMER_RUNS", str(home / "runs"))
    monkeypatch.setenv("CLEARFORMER_CACHE", str(home / "cache"))
    return home


@pytest.fixture
def says(four_runs: Path, capsys: pytest.CaptureFixture[str]) -> Says:
    """Runs a command that must work; returns what it prints on standard output."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(list(arguments)) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def refuses(four_runs: Path, capsys: pytest.CaptureFixture[str]) -> Fails:
    """Runs a command that must be refused; returns its one line."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(list(arguments)) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        [line] = printed.err.splitlines()
        return line

    return run


@pytest.fixture
def answers(says: Says) -> Callable[..., dict]:
    """The JSON object that a command prints, alone on standard output."""
    return lambda *arguments: json.loads(says(*arguments, "--json"))
