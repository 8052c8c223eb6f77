"""Batches by their rows: parts of a loss that sum to it, and what is left when rows are left out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from clearformer.config import parse_override, resolve
from clearformer.model import build
from clearformer.presets import preset
from clearformer.training.config import RunConfig
from clearformer.training.processes.distributed import Processes
from clearformer.training.setup import open_task
from clearformer.training.tasks import Task
from clearformer.training.tasks.rows import WithoutRows, rows_of_batch

TINY = (
    "model.d_model=12",
    "model.n_layers=1",
    "train.device=cpu",
    "train.compile=false",
    "train.dtype=float32",
)
KINDS = {
    "quick": (
        "model.max_seq_len=13",
        "model.attention.n_heads=2",
        "train.batch_size=6",
        "train.label_smoothing=0.1",
    ),
    "translate": ("model.max_seq_len=29", "train.objective.batch_tokens=150", "tokenizer.kind=char"),
    "masked": ("model.max_seq_len=13", "train.batch_size=6", "tokenizer.vocab_size=90"),
    "classify": (
        "model.max_seq_len=17",
        "train.batch_size=6",
        "tokenizer.vocab_size=90",
        "data.val_fraction=0.2",
    ),
}


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Task, Any]]:
    """The task of a preset on some texts, and a model in float64 without dropout."""
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(
        "".join(f"the quick brown fox jumps over {n} dogs\n" for n in range(60))
    )
    (tmp_path / "pairs.tsv").write_text("".join(f"le {n} mai\tMay {n}, {2000 + n}\n" for n in range(1, 60)))
    rows = "".join(f"the {name} {n}\t{name}\n" for n in range(12) for name in ("cat", "dog", "bird"))
    (tmp_path / "pets.tsv").write_text(f"text\tlabel\n{rows}")
    files = {"translate": "pairs.tsv", "classify": "pets.tsv"}

    def opened(kind: str) -> tuple[Task, Any]:
        path = tmp_path / files.get(kind, "text.txt")
        settings = (f"data.path={path}", *TINY, "model.attention.n_heads=2", *KINDS[kind])
        layers = [parse_override(each) for each in settings]
        config = resolve(RunConfig, preset(kind).model_dump(), *layers)
        task, config = open_task(config, torch.device("cpu"), Processes())
        return task, build(config.model).double().eval()

    return opened


def losses(task: Task, model: Any, read: Callable[..., Any], step: int, n_parts: int) -> list[float]:
    return [task.loss(model, *read(step, part, n_parts)).item() for part in range(n_parts)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_parts_sum_to_the_loss_of_the_batch(kind: str, opened: Callable[..., Any]) -> None:
    task, model = opened(kind)
    for step in (0, 3):
        [whole] = losses(task, model, task.batch, step, 1)
        n = len(task.example_ids(step))
        parts = [task.loss(model, *rows_of_batch(task, step, [row])).item() for row in range(n)]
        assert n > 2
        assert sum(parts) == pytest.approx(whole, rel=1e-6)  # a weight is a number in float32
        assert task.loss(model, *rows_of_batch(task, step)).item() == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_without_rows_the_loss_is_the_mean_over_the_rest(kind: str, opened: Callable[..., Any]) -> None:
    task, model = opened(kind)
    step = 2
    n = len(task.example_ids(step))
    without = WithoutRows(task, {step: [0, n - 1]})
    [left] = losses(task, model, without, step, 1)
    rest = rows_of_batch(task, step, range(1, n - 1))
    assert task.targets_at is not None
    whole, kept = (int((each[task.targets_at] != -100).sum()) for each in (rows_of_batch(task, step), rest))
    assert left == pytest.approx(task.loss(model, *rest).item() * whole / kept, rel=1e-6)
    parts = losses(task, model, without, step, 2)
    assert sum(parts) / 2 == pytest.approx(left, rel=1e-6)
    assert [each.shape for each in without(step, 1, 2)[:2]] == [
        each.shape for each in task.batch(step, 1, 2)[:2]
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_other_steps_are_read_as_they_were_and_a_batch_of_nothing_has_no_loss(
    kind: str, opened: Callable[..., Any]
) -> None:
    task, model = opened(kind)
    n = len(task.example_ids(1))
    without = WithoutRows(task, {1: list(range(n))})
    for before, after in zip(task.batch(0, 0, 2), without(0, 0, 2), strict=True):
        assert torch.equal(before, after)
    assert losses(task, model, without, 1, 1) == [0.0]


@pytest.mark.parametrize("kind", KINDS)
def test_examples_are_the_rows_of_the_batch(kind: str, opened: Callable[..., Any]) -> None:
    task, _ = opened(kind)
    step = 1
    tensors = rows_of_batch(task, step)
    found = task.find_examples(task.example_ids(step).tolist())
    for row, example in enumerate(found):
        tokens = tensors[0][row].numpy()
        if kind == "masked":
            targets = tensors[2][row].numpy()
            tokens = [t if target == -100 else target for t, target in zip(tokens, targets, strict=True)]
        said = task.tokenizer.decode(tokens)
        assert (
            example.text.partition("\t")[0].partition(": ")[2 if kind == "classify" else 0].startswith(said)
        )
        [span] = example.spans
        raw = Path(span.file).read_bytes()[span.start : span.stop].decode()
        if kind == "classify":
            label, _, text = example.text.partition(": ")
            assert raw == f"{text}\t{label}"
        else:
            assert raw == example.text or kind == "masked"
