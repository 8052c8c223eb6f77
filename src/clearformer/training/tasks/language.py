"""Language modelling: a decoder predicts each token of a text from those before it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from clearformer.config import Spec
from clearformer.data import Batches, Dataset, TextData, prepare
from clearformer.decoding import generate
from clearformer.errors import DataError
from clearformer.evaluation import Evaluation, evaluate_split
from clearformer.evaluation.language_model import count_windows
from clearformer.model import Decoder
from clearformer.text import Tokenizer
from clearformer.training.objective import next_token_loss
from clearformer.training.tasks.task import Progress, Task, check_rows_divide, rows_of_part, to_tensors

if TYPE_CHECKING:
    from clearformer.training.config import RunConfig


class NextToken(Spec):
    """-log p(next token), over windows of a text (lecture 000, section 3.3)."""

    kind: Literal["next_token"] = "next_token"
    family: ClassVar[str] = "decoder"
    data_kinds: ClassVar[tuple[str, ...]] = ("text",)

    def open(
        self, config: "RunConfig", tokenizer: Tokenizer | None, progress: Progress
    ) -> "LanguageModelling":
        """The task, its text prepared; a tokeniser that is given is used, otherwise one is made."""
        assert isinstance(config.data, TextData)
        dataset = prepare(config.data, tokenizer or config.tokenizer, progress=progress)
        return LanguageModelling(config, dataset)


class LanguageModelling(Task):
    """See `NextToken`."""

    def __init__(self, config: "RunConfig", dataset: Dataset) -> None:
        assert isinstance(config.data, TextData)
        self.config, self.dataset, self.tokenizer = config, dataset, dataset.tokenizer
        if config.train.sample_every:
            self.tokenizer.encode(config.train.sample_prompt)  # what would fail later fails now
        self.batches = Batches(
            dataset.splits["train"],
            config.data.order,
            config.train.batch_size,
            config.model.max_seq_len,
            config.seed,
        )

    @property
    def data_sha256(self) -> str:
        return self.dataset.manifest["source"]["sha256"]

    def check_divides(self, n_parts: int) -> None:
        check_rows_divide(self.config.train.batch_size, n_parts)

    def batch(self, step: int, part: int, n_parts: int) -> tuple[Tensor, ...]:
        """Inputs and targets, each [B T]."""
        return to_tensors(
            *self.batches.batch(step, rows_of_part(self.config.train.batch_size, part, n_parts))
        )

    def n_tokens(self, step: int) -> int:
        return self.config.train.batch_size * self.config.model.max_seq_len

    def loss(self, model: Decoder, *batch: Tensor) -> Tensor:
        inputs, targets = batch
        return next_token_loss(model(inputs), targets, self.config.train.label_smoothing)

    @property
    def rows_per_step(self) -> float:
        return self.config.train.batch_size

    @property
    def n_held_out(self) -> int:
        split = self.dataset.splits.get("val")
        return 0 if split is None else count_windows(len(split), self.config.model.max_seq_len)

    def check_measurable(self) -> None:
        n_tokens = len(self.dataset.splits.get("val", (0, 0)))
        if n_tokens < 2:
            raise DataError(
                f"data.val_fraction: the held-out split has {n_tokens} token{'s' * (n_tokens != 1)}, and a prediction "
                "needs two; hold out more, hold out nothing (data.val_fraction=0), or give a longer text"
            )

    def evaluate(self, model: Decoder, dtype: torch.dtype, n_rows: int | None = None) -> Evaluation | None:
        split = self.dataset.splits.get("val")
        if split is None:
            return None
        return evaluate_split(model, split, self.tokenizer, dtype=dtype, n_windows=n_rows)

    def sample(self, model: Decoder) -> str:
        settings = self.config.train
        [sample] = generate(
            _Run(model, self.tokenizer),
            settings.sample_prompt,
            max_new_tokens=settings.sample_tokens,
            temperature=settings.sample_temperature,
            seed=self.config.seed,
        )
        return sample.text


@dataclass(frozen=True)
class _Run:
    model: Any
    tokenizer: Tokenizer
