"""Classification: an encoder tells the class of a text."""

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from clearformer.config import Spec
from clearformer.data import LabelledData
from clearformer.data.labelled_batches import LabelledBatches, TooLong
from clearformer.data.labelled_preparing import LabelledDataset, prepare_labelled
from clearformer.evaluate.classifying import ClassEvaluation, evaluate_classes
from clearformer.model import Encoder
from clearformer.model.config import ModelConfig
from clearformer.text import Tokenizer
from clearformer.train.objective import summed_loss
from clearformer.train.tasks.task import Progress, Task, refuse_uneven_rows, to_tensors, with_size

if TYPE_CHECKING:
    from clearformer.train.config import RunConfig


N_SHOWN = 3


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

    def refuse_uneven(self, n_parts: int) -> None:
        refuse_uneven_rows(self.config.train.batch_size, n_parts)

    def batch(self, step: int, part: int, n_parts: int) -> tuple[Tensor, ...]:
        """Tokens [B T], where they are real, the class of each row, and the weight of each."""
        weight = n_parts / len(self.batches.indices(step))
        return *to_tensors(*self.batches.batch(step, slice(part, None, n_parts))), torch.tensor(weight)

    def n_tokens(self, step: int) -> int:
        return int(self.batches.lengths[self.batches.indices(step)].sum())

    def loss(self, model: Encoder, *batch: Tensor) -> Tensor:
        tokens, padding, labels, weight = batch
        return weight * summed_loss(model(tokens, padding), labels, self.config.train.label_smoothing)

    def evaluate(self, model: Encoder, dtype: torch.dtype) -> ClassEvaluation | None:
        if "val" not in self.dataset.splits:
            return None
        return evaluate_classes(model, self.dataset, too_long=self.too_long, dtype=dtype)

    def metrics(self, measured: ClassEvaluation) -> dict[str, float]:
        return {"val_accuracy": measured.report.accuracy, "val_macro_f1": measured.report.macro_f1}

    def sample(self, model: Encoder) -> str:
        """A few held-out texts, and what the model takes them for."""
        split = "val" if "val" in self.dataset.splits else "train"
        texts = self.dataset.splits[split]
        logprobs = evaluate_classes(model, self.dataset, split, too_long=self.too_long).logprobs[:N_SHOWN]
        rows = zip(texts.texts, texts.label_ids, logprobs, strict=False)
        return "\n".join(
            f"{self.dataset.labels[row.argmax()]} ({np.exp(row.max()):.0%}; is {self.dataset.labels[label]}): {text}"
            for text, label, row in rows
        )
