"""Small studies for the tests."""

from pathlib import Path
from typing import Any

from clearformer.study import LOSSES, Study, Training

TEXT = "".join(f"the quick brown fox {n} jumps over the lazy dog\n" for n in range(60))


def tiny(folder: Path, **changes: Any) -> dict[str, Any]:
    """Settings of a run of three steps on a text in a folder."""
    file = folder / "text.txt"
    if not file.exists():
        file.write_text(TEXT)
    return {
        "data": {"path": str(file)},
        "model.d_model": 12,
        "model.n_layers": 1,
        "model.max_seq_len": 8,
        "train.batch_size": 2,
        "train.max_steps": 3,
        "train.log_every": 1,
        "train.dtype": "float32",
        "train.compile": False,
        "train.device": "cpu",
        **changes,
    }


def tiny_study(folder: Path, **changes: Any) -> Study:
    """Two arms of three steps with two seeds."""
    arms = tuple(Training(f"{n} layers", "quick", {"model.n_layers": n}) for n in (1, 2))
    fields: dict[str, Any] = {
        "name": "tiny",
        "question": "Are two layers better?",
        "lecture": "",
        "arms": arms,
        "refuted_if": "They are not.",
        "settings": tiny(folder),
        "measures": (LOSSES,),
        "seeds": 2,
    }
    return Study(**fields | changes)
