"""Trained runs of each kind, and the data that they were trained on."""

import shutil
from pathlib import Path

from ..oracle import call, in_place

TINY = (
    "model.d_model=12",
    "model.n_layers=1",
    "model.attention.n_heads=2",
    "model.max_seq_len=13",
    "train.max_steps=3",
    "train.max_seconds=none",
    "train.dtype=float32",
    "train.compile=false",
    "train.device=cpu",
    "train.checkpoint_every=none",
)
TEXT = "the quick brown fox jumps over the lazy dog\n" * 30
KINDS = {
    "text": ("quick", "data.path=text.txt", "train.batch_size=2"),
    "pairs": (
        *("translate", "data.path=pairs.tsv", "data.val_fraction=0.1", "tokenizer.kind=char"),
        *("train.objective.batch_tokens=60", "model.max_seq_len=29"),
    ),
    "pets": (
        *("classify", "data.path=pets.tsv", "data.val_fraction=0.2", "tokenizer.kind=byte"),
        *("train.batch_size=5", "model.max_seq_len=17"),
    ),
    "gaps": ("masked", "data.path=text.txt", "tokenizer.kind=char", "train.batch_size=3"),
}


def write_data(folder: Path) -> None:
    """The data that the runs are trained on."""
    (folder / "text.txt").write_text(TEXT)
    (folder / "line.txt").write_text("le 3 mai\n")
    (folder / "pairs.tsv").write_text("".join(f"le {n} mai\tMay {n}, {2000 + n}\n" for n in range(1, 41)))
    rows = [
        f"the {pet} {does} {n}\t{pet}\n"
        for pet, does in (("cat", "purrs"), ("dog", "barks"))
        for n in range(9)
    ]
    (folder / "pets.tsv").write_text("text\tlabel\n" + "".join(rows))


def give_runs(originals: Path) -> None:
    """Put the runs and their data into a folder; trained once for all targets."""
    trained = originals.parent / "trained"
    if not trained.exists():
        trained.mkdir()
        train_runs(trained)
    shutil.copytree(trained, originals, symlinks=True, dirs_exist_ok=True)


def train_runs(folder: Path) -> None:
    """Train the runs, in the folder's `runs`; they name their data by paths from where they are used."""
    write_data(folder)
    with in_place(folder):
        for name, (preset, *settings) in KINDS.items():
            answer = call("train", preset, *TINY, *settings, "--run", name)
            assert answer.status == 0, answer.err


def copied(originals: Path, place: Path, *kinds: str) -> None:
    """The data and some of the runs in a folder of their own."""
    for path in originals.iterdir():
        if path.is_file():
            shutil.copy(path, place)
    for kind in kinds:
        shutil.copytree(originals / "runs" / kind, place / "runs" / kind, symlinks=True)
