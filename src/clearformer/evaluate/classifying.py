"""A classifier's scores for texts, and how well it does on a whole split."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from clearformer.data.labelled_batches import TooLong, in_length_order
from clearformer.data.labelled_preparing import LabelledDataset
from clearformer.evaluate.baseline import Baseline, tfidf_baseline
from clearformer.evaluate.classification import ClassificationReport, classification_report
from clearformer.evaluate.language_model import autocast_to
from clearformer.generate import evaluating
from clearformer.model import Encoder

BATCH_SIZE = 64


@dataclass(frozen=True)
class ClassEvaluation:
    """How well a classifier does on a split.

    Attributes:
        loss: The mean of -log p(label), in nats.
        report: Accuracy, F1 and what is taken for what.
        logprobs: Of every class for every text, in the order of the split.
    """

    loss: float
    report: ClassificationReport
    logprobs: Float[np.ndarray, "N C"]


def evaluate_classes(
    model: Encoder,
    dataset: LabelledDataset,
    split: str = "val",
    *,
    too_long: TooLong = "refuse",
    dtype: torch.dtype | None = None,
    batch_size: int = BATCH_SIZE,
) -> ClassEvaluation:
    """Classify every text of a split; the model's mode is left as it was.

    Raises:
        DataError: a text is too long and may not be cut.
    """
    device = model.embed.weight.device
    texts, pad_id = dataset.splits[split], dataset.tokenizer.pad_id
    assert pad_id is not None
    logprobs = np.empty((len(texts), len(dataset.labels)), np.float32)
    with evaluating(model), torch.inference_mode(), autocast_to(device, dtype):
        for indices, batch in in_length_order(texts, batch_size, model.config.max_seq_len, pad_id, too_long):
            scores = model(
                torch.from_numpy(batch.tokens).to(device), torch.from_numpy(batch.padding).to(device)
            )
            logprobs[indices] = scores.float().log_softmax(-1).cpu().numpy()
    report = classification_report(texts.label_ids, logprobs.argmax(1), dataset.labels)
    loss = float(-logprobs[np.arange(len(texts)), texts.label_ids].astype(np.float64).mean())
    return ClassEvaluation(loss, report, logprobs)


def dataset_baseline(dataset: LabelledDataset, split: str = "val") -> Baseline:
    """The baseline, trained on the same texts as the model and measured on the same split."""
    train, held_out = dataset.splits["train"], dataset.splits[split]
    names = np.array(dataset.labels)
    return tfidf_baseline(
        train.texts, names[train.label_ids].tolist(), held_out.texts, names[held_out.label_ids].tolist()
    )
