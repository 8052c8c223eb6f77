"""Classification: an encoder tells the class of a text."""

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from clearformer.config import Spec
from clearformer.data import Data, LabelledData
from clearformer.data.labelled.batches import LabelledBatches, TooLong, batch_of, fitted_lengths
from clearformer.data.labelled.preparing import LabelledDataset, prepare_labelled
from clearformer.evaluation.classes.scores import ClassEvaluation, class_logprobs, evaluate_classes
from clearformer.evaluation.parts import part_of_labelled
from clearformer.model import Encoder
from clearformer.model.config import ModelConfig
from clearformer.text import Tokenizer
from clearformer.training.objective import summed_loss
from clearformer.training.tasks.task import (
    Progress,
    Task,
    check_rows_divide,
    shortened,
    to_tensors,
    with_size,
)

if TYPE_CHECKING:
    from clearformer.training.config import RunConfig


N_SHOWN = 4


class Classify(Spec):
    """-log p(class of a text)."""

    kind: Literal["classification"] = "classification"
    family: ClassVar[str] = "encoder"
    data_kinds: ClassVar[tuple[str, ...]] = ("labelled",)

    def open(self, config: "RunConfig", tokenizer: Tokenizer | None, progress: Progress) -> "Classification":
        """The task, its texts prepared; a tokeniser that is given is used, otherwise one is made."""
        assert isinstance(config.data, LabelledData)
        dataset = prepare_labelled(config.data, tokenizer or config.tokenizer, progress=progress)
        return Classification(config, dataset)


class Classification(Task):
    """See `Classify`."""

    shapes_vary: ClassVar[bool] = True

    def __init__(self, config: "RunConfig", dataset: LabelledDataset) -> None:
        assert isinstance(config.data, LabelledData)
        assert dataset.tokenizer.pad_id is not None
        self.config, self.dataset, self.tokenizer = config, dataset, dataset.tokenizer
        self.too_long: TooLong = config.data.too_long
        for split in dataset.splits.values():  # what would fail later fails now
            fitted_lengths(split, config.model.max_seq_len, self.too_long)
        self.batches = LabelledBatches(
            dataset.splits["train"],
            config.train.batch_size,
            config.model.max_seq_len,
            config.seed,
            dataset.tokenizer.pad_id,
            self.too_long,
        )

    @property
    def data_sha256(self) -> str:
        return self.dataset.manifest["source"]["sha256"]

    def fit(self, model: ModelConfig) -> ModelConfig:
        n_classes = len(self.dataset.labels)
        return with_size(super().fit(model), "n_classes", n_classes, "the {} labels of the data")

    def fit_data(self, data: Data) -> Data:
        return data.replace(labels=self.dataset.labels)

    def check_divides(self, n_parts: int) -> None:
        check_rows_divide(self.config.train.batch_size, n_parts)

    def batch(self, step: int, part: int, n_parts: int) -> tuple[Tensor, ...]:
        """Tokens [B T], where they are real, the class of each row, and the weight of each."""
        weight = n_parts / len(self.batches.indices(step))
        return *to_tensors(*self.batches.batch(step, slice(part, None, n_parts))), torch.tensor(weight)

    def n_tokens(self, step: int) -> int:
        return int(self.batches.lengths[self.batches.indices(step)].sum())

    def loss(self, model: Encoder, *batch: Tensor) -> Tensor:
        tokens, padding, labels, weight = batch
        return weight * summed_loss(model(tokens, padding), labels, self.config.train.label_smoothing)

    @property
    def rows_per_step(self) -> float:
        return len(self.batches.split) / self.batches.steps_per_epoch

    @property
    def n_held_out(self) -> int:
        return len(self.dataset.splits.get("val", ()))

    def evaluate(
        self, model: Encoder, dtype: torch.dtype, n_rows: int | None = None
    ) -> ClassEvaluation | None:
        texts, dataset = self.dataset.splits.get("val"), self.dataset
        if texts is None:
            return None
        if n_rows is not None:
            dataset = replace(dataset, splits={"val": part_of_labelled(texts, n_rows)})
        return evaluate_classes(model, dataset, too_long=self.too_long, dtype=dtype)

    def metrics(self, measured: ClassEvaluation) -> dict[str, float]:
        return {"val_accuracy": measured.report.accuracy, "val_macro_f1": measured.report.macro_f1}

    def sample(self, model: Encoder) -> str:
        """A few held-out texts, from all of them evenly, and what the model takes them for."""
        texts = self.dataset.splits.get("val", self.dataset.splits["train"])
        places = np.linspace(0, len(texts) - 1, min(N_SHOWN, len(texts))).astype(int)
        length = min(int(texts.lengths[places].max()), self.config.model.max_seq_len)
        assert self.tokenizer.pad_id is not None
        batch = batch_of(texts, places, length, self.tokenizer.pad_id)
        parts = [(np.arange(len(places)), batch.tokens, batch.padding)]
        logprobs = class_logprobs(model, parts, len(places))
        shown = [texts.texts[int(place)] for place in places]
        return "\n".join(map(self._guess, shown, batch.labels.tolist(), logprobs))

    def _guess(self, text: str, label: int, logprobs: np.ndarray) -> str:
        guess = int(logprobs.argmax())
        verdict = "right" if guess == label else f"is {self.dataset.labels[label]}"
        return f"{self.dataset.labels[guess]} {np.exp(logprobs[guess]):.0%} ({verdict}): {shortened(text)}"
