"""An objective of one's own: one file with its settings and its task, and one line that registers it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clearformer.config import parse_override, resolve, slot_variants
from clearformer.data import TextData, prepare
from clearformer.errors import ConfigError
from clearformer.registry import register, unregister
from clearformer.run import load
from clearformer.runs.evaluation import DataChoice, evaluate_run
from clearformer.training.config import RunConfig, TrainConfig
from clearformer.training.loop import train
from clearformer.training.objectives import ObjectiveSpec
from clearformer.training.planning.plan import plan
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.folder import RunFolder, read_metrics
from clearformer.training.tasks import TASKS
from clearformer.training.tasks.reports import EvaluationReport, Figure, Section
from clearformer.training.tasks.task import EvaluationOptions, FullBatch, Task, TrainedModel, to_tensors

# --- the new file -----------------------------------------------------------------------------------------


class CopyObjective(ObjectiveSpec):
    """-log p(the token that the model has just read), over the first tokens of a text.

    Attributes:
        length: Tokens of a row.
    """

    kind: Literal["copy"] = "copy"
    family: ClassVar[str] = "decoder"
    data_kinds: ClassVar[tuple[str, ...]] = ("text",)
    activity: ClassVar[str] = "repeats texts"

    length: int = 5

    def tokens_per_step(self, batch_size: int, seq_len: int) -> int:
        return batch_size * min(self.length, seq_len)


@dataclass(frozen=True)
class CopyResult:
    loss: float


class CopyTask(Task):
    objective_type: ClassVar[type[ObjectiveSpec]] = CopyObjective

    @classmethod
    def prepare(cls, config: RunConfig, tokenizer: Any, progress: Any) -> Any:
        assert isinstance(config.data, TextData)
        return prepare(config.data, tokenizer or config.tokenizer, progress=progress)

    @property
    def length(self) -> int:
        assert isinstance(self.config.train.objective, CopyObjective)
        return self.config.train.objective.length

    def batch(self, step: int, part: int, n_parts: int) -> tuple[Tensor, ...]:
        n_rows = self.config.train.batch_size // n_parts
        starts = [(step * n_parts + part) * n_rows + row for row in range(n_rows)]
        rows = [self.dataset.splits["train"].read(start, start + self.length) for start in starts]
        return (torch.stack(to_tensors(*rows)).long(),)

    def n_tokens(self, step: int) -> int:
        return self.config.train.batch_size * self.length

    @property
    def rows_per_step(self) -> float:
        return self.config.train.batch_size

    @property
    def n_held_out(self) -> int:
        return 1

    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        return copy_loss(model, batch[0])

    @classmethod
    def full_batch(cls, n_texts: int, seq_len: int) -> tuple[Tensor, ...]:
        return (torch.zeros(n_texts, seq_len, dtype=torch.long),)

    @classmethod
    def full_loss(cls, model: Any, batch: FullBatch) -> Tensor:
        return copy_loss(model, *batch.tensors)

    def evaluate(self, model: Any, dtype: torch.dtype, n_rows: int | None = None) -> CopyResult:
        return evaluate_copies(model, self.dataset.splits["val"], self.length)

    @classmethod
    def evaluate_on(cls, trained: TrainedModel, data: Any, options: EvaluationOptions) -> EvaluationReport:
        result = evaluate_copies(
            trained.model, data.prepared.splits[data.split], data.config.train.objective.length
        )
        section = Section(data.description, (Figure("loss", f"{result.loss:.4f}"),))
        return EvaluationReport((section,), {"loss": result.loss})

    def sample(self, model: Any) -> str:
        return "a copy"

    def figures(self, result: CopyResult) -> tuple[Section, ...]:
        return (Section(text=f"loss {result.loss:.4f}"),)

    def next_commands(self, run: str, preset: str | None) -> tuple[str, ...]:
        return (f"eval {run}",)


def copy_loss(model: Any, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


@torch.no_grad()
def evaluate_copies(model: Any, split: Any, length: int) -> CopyResult:
    tokens = torch.from_numpy(split.read(0, length)).long()
    return CopyResult(float(copy_loss(model, tokens[None])))


# --- the test ---------------------------------------------------------------------------------------------


@pytest.fixture
def _registered() -> Iterator[None]:
    register("objective")(CopyTask)
    yield
    unregister("objective", "copy")


SETTINGS = (
    "model.d_model=6",
    "model.n_layers=1",
    "model.max_seq_len=7",
    "model.attention.n_heads=3",
    "train.objective=copy",
    "train.objective.length=3",
    "train.batch_size=4",
    "train.max_steps=3",
    "train.log_every=1",
    "train.device=cpu",
    "train.dtype=float32",
    "train.compile=false",
)


@pytest.mark.usefixtures("_registered")
def test_an_objective_that_is_registered_is_trained_evaluated_and_planned(
    files: dict[str, Path], run_folder: Callable[[str], RunFolder]
) -> None:
    config = resolve(RunConfig, *map(parse_override, (f"data.path={files['text']}", *SETTINGS)))
    folder = run_folder("a")

    result = train(config, folder, Reporter())

    lines = read_metrics(folder.metrics_file)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[-1]["tokens"] == 3 * 4 * 3
    assert folder.read_config().train.objective == CopyObjective(length=3)
    assert result.evaluation is not None
    assert lines[-1]["val_loss"] == result.evaluation.loss
    report = result.report("a", None)
    assert (report.sample, report.next_commands) == ("a copy", ("eval a",))

    options = EvaluationOptions(torch.float32)
    evaluated = evaluate_run(load("a", device="cpu"), DataChoice(), options)
    assert evaluated.values == {
        "loss": pytest.approx(result.evaluation.loss),
        "split": "val",
        "step": lines[-1]["step"],
        "data_changed": False,
    }
    assert evaluated.sections[0].heading == "the whole val split"

    model = folder.read_config().model
    planned = plan(model, config.train.replace(dtype="float32"))
    assert planned.tokens_per_step == 4 * 3
    assert planned.memory_bytes.weights == 4 * sum(p.numel() for p in result.model.parameters())


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda loss: None, "None"),
        (lambda loss: loss.item(), r"\d\.\d+"),
        (lambda loss: loss.detach(), r"tensor\(.*"),
        (lambda loss: loss.repeat(2), r"tensor\(.*"),
    ],
    ids=["none", "float", "no gradients", "two numbers"],
)
@pytest.mark.usefixtures("_registered")
def test_a_loss_that_cannot_be_learned_from_is_told_so(
    loss: Callable[[Tensor], Any],
    said: str,
    files: dict[str, Path],
    run_folder: Callable[[str], RunFolder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CopyTask, "loss", lambda self, model, tokens: loss(copy_loss(model, tokens)))
    config = resolve(RunConfig, *map(parse_override, (f"data.path={files['text']}", *SETTINGS)))
    line = (
        rf"^train\.objective\.kind: CopyTask\.loss must return one number as a torch tensor .*; got {said}$"
    )
    with pytest.raises(ConfigError, match=line):
        train(config, run_folder("a"), Reporter())


def test_an_objective_that_nobody_registered_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\.objective\.kind is one of next_token, .*; got 'copy'"):
        resolve(RunConfig, parse_override("train.objective=copy"))


def test_every_kind_of_the_slot_has_a_task() -> None:
    kinds = {objective.model_fields["kind"].default for objective in TASKS}
    assert kinds == slot_variants(TrainConfig.model_fields["objective"]).keys()
    assert all(task.objective_type is objective for objective, task in TASKS.items())
