"""Runs of every kind of data, each trained for a second in a folder of its own, with the steps that it keeps."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import clearformer as cf

STEPS, EVERY = 12, 6
SENTENCE = "der Käse Nummer {} schläft, le café {} dort; the bank lends money.\n"
PRESETS = {"decoder": "quick", "encoder": "masked", "encoder-decoder": "translate", "classes": "classify"}
MODEL = {"d_model": 12, "n_layers": 2, "max_seq_len": 13, "attention": {"n_heads": 2}}
TRAIN = {
    "max_steps": STEPS,
    "max_seconds": None,
    "checkpoint_every": EVERY,
    "keep_last": 10,
    "eval_every": 4,
    "log_every": 1,
    "device": "cpu",
    "dtype": "float32",
    "compile": False,
    "lr": 0.01,
    "optimizer": {"kind": "adamw"},
    "sample_every": None,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "decoder": {"data": {"path": "text.txt"}, "tokenizer": {"kind": "char"}, "train": {"batch_size": 6}},
    "encoder": {"data": {"path": "text.txt"}, "train": {"batch_size": 6}},
    "encoder-decoder": {
        "data": {"kind": "pairs", "path": "pairs.tsv", "val_fraction": 0.2},
        "tokenizer": {"kind": "char"},
        "model": {"max_seq_len": 41},
    },
    "classes": {
        "data": {"kind": "labelled", "path": "labelled.tsv", "val_fraction": 0.2},
        "model": {"max_seq_len": 41},
        "train": {"batch_size": 6},
    },
}


@contextmanager
def home_with_data(folder: Path) -> Iterator[Path]:
    """A folder with a text, pairs and labelled texts, for runs and a cache, in which one works."""
    (folder / "text.txt").write_text("".join(SENTENCE.format(n, n * n) for n in range(60)))
    pairs = "".join(f"le numéro {n} dort\tnumber {n} sleeps\n" for n in range(40))
    (folder / "pairs.tsv").write_text(pairs)
    texts = "".join(f"{'odd' if n % 2 else 'even'}\tthe number {n} of {n * n}\n" for n in range(40))
    (folder / "labelled.tsv").write_text(f"label\ttext\n{texts}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("CLEARFORMER_RUNS", str(folder / "runs"))
        patch.setenv("CLEARFORMER_CACHE", str(folder / "cache"))
        yield folder


def trained(kind: str) -> Any:
    """A run of a kind, trained in the folder in which one works."""
    settings = SETTINGS[kind]
    data = settings["data"] | {"path": str(Path(settings["data"]["path"]).resolve())}
    cf.train(
        PRESETS[kind],
        run=kind,
        data=data,
        model=MODEL | settings.get("model", {}),
        train=TRAIN | settings.get("train", {}),
        **{name: settings[name] for name in ("tokenizer",) if name in settings},
    )
    return cf.load(kind)
