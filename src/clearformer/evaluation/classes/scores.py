"""Classifying texts: evaluation on a whole split, and `classify` for any texts."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, get_args

import numpy as np
import torch
from jaxtyping import Float

from clearformer.data import LabelledData
from clearformer.data.labelled.batches import TooLong, in_length_order, padded, padded_length
from clearformer.data.labelled.preparing import LabelledDataset, LabelledSplit
from clearformer.decoding import Texts, evaluating
from clearformer.decoding.arguments import OnStep, check_function, check_run, check_whole, matrix_dtype
from clearformer.decoding.loop import NOT_FINITE
from clearformer.decoding.text.inputs import encoded, texts_of, with_specials
from clearformer.device import autocast
from clearformer.errors import DataError, NonFiniteError, TokenizerError, UserError, shown
from clearformer.evaluation.classes.baseline import Baseline, tfidf_baseline
from clearformer.evaluation.classes.metrics import ClassificationReport, classification_report
from clearformer.evaluation.meter import counted
from clearformer.model import Encoder, Transformer
from clearformer.results import Result
from clearformer.text import Tokenizer

BATCH_SIZE = 64  # texts that are read at once
BATCHES_IN_GROUP = 16  # enough for batches of texts of similar length

Part = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Some of the texts: their indices [B], their tokens [B T], and where those are real [B T]."""


# --- a split ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassEvaluation:
    """How well a classifier does on a split.

    Attributes:
        loss: The mean of -log p(label), in nats.
        report: Accuracy, F1 and the confusion matrix.
        logprobs: The log-probability of every class for every text, in the order of the split.
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
    on_step: OnStep = lambda *_: None,
) -> ClassEvaluation:
    """Classify every text of a split, restoring the model's mode.

    `on_step` is called after each batch with the number of texts done and the total.

    Raises:
        DataError: there are no texts, one is too long and may not be cut, or the numbers of labels and of the model's
            classes differ.
    """
    if not len(dataset.splits[split]):
        raise DataError(f"the {split} split has no texts to evaluate a model on")
    if len(dataset.labels) != model.config.n_classes:
        raise DataError(
            f"the data have {len(dataset.labels)} labels, but the model has {model.config.n_classes} classes: "
            "they are not the data that it was trained on"
        )
    texts, pad_id = dataset.splits[split], pad_of(dataset.tokenizer)
    ordered = in_length_order(texts, BATCH_SIZE, model.config.max_seq_len, pad_id, too_long)
    parts = ((places, batch.tokens, batch.padding) for places, batch in ordered)
    parts = counted(parts, lambda part: len(part[0]), len(texts), on_step)
    logprobs = class_logprobs(model, parts, len(texts), dtype)
    report = classification_report(texts.label_ids, logprobs.argmax(1), dataset.labels, logprobs)
    assert report.loss is not None
    return ClassEvaluation(report.loss, report, logprobs)


def class_logprobs(
    model: Encoder, parts: Iterable[Part], n_texts: int, dtype: torch.dtype | None = None
) -> Float[np.ndarray, "N C"]:
    """Return the log-probability of every class for each of `n_texts` texts, in nats."""
    assert model.config.n_classes is not None
    device = model.embed.weight.device
    logprobs = np.zeros((n_texts, model.config.n_classes), np.float32)
    with evaluating(model) as threads, torch.inference_mode(), autocast(device, dtype):
        for places, tokens, padding in parts:
            threads.adapt()
            scores = model(torch.from_numpy(tokens).to(device), torch.from_numpy(padding).to(device))
            logprobs[places] = scores.float().log_softmax(-1).cpu().numpy()
    return logprobs


def baseline_for(trained_on: LabelledDataset, split: LabelledSplit) -> Baseline:
    """Train the baseline on the model's training texts and evaluate it on a split.

    Its classes are those of `trained_on`, like the model's.
    """
    train, names = trained_on.splits["train"], np.array(trained_on.labels)
    return tfidf_baseline(
        train.texts, names[train.label_ids].tolist(), split.texts, names[split.label_ids].tolist()
    )


# --- any texts --------------------------------------------------------------------------------------------


class Run(Protocol):
    """A model that classifies texts, its tokenizer, and its settings."""

    @property
    def model(self) -> Transformer: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def config(self) -> Any: ...


@dataclass(frozen=True, repr=False, eq=False)
class Prediction(Result):
    """The predicted class of a text.

    Attributes:
        label: The most probable class; "" for an empty text.
        probability: Its probability.
        probabilities: The probability of every class, in the model's order.
    """

    label: str
    probability: float
    probabilities: dict[str, float]


EMPTY = Prediction("", 0.0, {})


def classify(
    run: Run,
    texts: Texts,
    *,
    too_long: TooLong | None = None,
    dtype: torch.dtype | str | None = None,
    batch_size: int = BATCH_SIZE,
    place: Callable[[int], str] = "text {}".format,
    look: Callable[[list[Prediction]], None] | None = None,
) -> list[Prediction]:
    """Predict the class of each text, in order; white space around a text is ignored, and an empty text has no class.

    Args:
        run: A run that classifies.
        texts: The texts, or the ids of their tokens [T]; a single one is treated as a list of one.
        too_long: Whether a text with more tokens than the model reads is an error (`refuse`) or cut (`truncate`). By
            default as in training.
        dtype: The type of the matrix products (autocast), also by name (`bfloat16`). By default as around the call.
        batch_size: The most texts to read at once.
        place: Returns the name of the n-th text (counted from 1) for messages, such as a file and a line.
        look: Called with the predictions for the first texts, the next ones and so on, as soon as they are made.

    Raises:
        UserError: the run's model has no classes, or its tokenizer no <pad>; or `too_long`, `dtype` or `batch_size`
            is invalid.
        DataError: a text is too long and may not be cut.
        TokenizerError: a text holds a character that the tokenizer lacks.
        NonFiniteError: the model's scores are not finite.
    """
    check_run(run, "config")
    check_function("place", place)
    if look is not None:
        check_function("look", look)
    check_whole("batch_size", batch_size, least=1)
    model, labels = classifier(run)
    pad_id = pad_of(run.tokenizer)
    if too_long is None:
        too_long = run.config.data.too_long
    elif too_long not in (known := get_args(TooLong)):
        raise UserError(f"too_long: {' or '.join(known)}; got {shown(too_long)}")
    rows = encode_texts(run.tokenizer, texts_of(texts), place)
    if too_long == "refuse":
        check_length(rows, model.config.max_seq_len, place)
    products = None if dtype is None else matrix_dtype(dtype)
    predictions: list[Prediction] = []
    for first in range(0, len(rows), BATCHES_IN_GROUP * batch_size):
        group = rows[first : first + BATCHES_IN_GROUP * batch_size]
        logprobs = class_logprobs(model, batches(group, pad_id, model, batch_size), len(group), products)
        if not np.isfinite(logprobs).all():
            raise NonFiniteError(NOT_FINITE)
        of_group = [
            prediction(labels, row) if len(tokens) else replace(EMPTY, probabilities={})
            for tokens, row in zip(group, logprobs, strict=True)
        ]
        if look is not None:
            look(of_group)
        predictions += of_group
    return predictions


def classifier(run: Run) -> tuple[Encoder, tuple[str, ...]]:
    """Return a run's model and the names of its classes, or their numbers if they have no names.

    Raises:
        UserError: the model has no classes.
    """
    model, data = run.model, run.config.data
    if not isinstance(model, Encoder) or model.config.n_classes is None:
        raise UserError(
            f"this run's model is of family {model.config.family} and has no classes; only an encoder "
            "trained to classify has them"
        )
    labels = data.labels if isinstance(data, LabelledData) else None
    return model, labels or tuple(map(str, range(model.config.n_classes)))


def pad_of(tokenizer: Tokenizer) -> int:
    """Return the id of <pad>, the token that fills up the shorter texts of a batch.

    Raises:
        UserError: the tokenizer has none.
    """
    if tokenizer.pad_id is None:
        raise UserError("this run's tokenizer has no <pad>, which fills up batches of texts")
    return tokenizer.pad_id


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str | list[int]], place: Callable[[int], str]
) -> list[np.ndarray]:
    """Return each text's ids between [CLS] and [SEP]; an empty row for an empty text.

    Raises:
        TokenizerError: a text holds a character that the tokenizer lacks.
    """
    before, behind = (mark.tolist() for mark in tokenizer.marks)
    contents = [text.strip() if isinstance(text, str) else text for text in texts]
    try:
        rows = encoded(tokenizer, contents, place)
    except TokenizerError:
        encoded(tokenizer, texts, place)  # counts the characters of the text as it was given
        raise
    return [
        np.array(with_specials(ids, before, behind) if content else [], np.int32)
        for content, ids in zip(contents, rows, strict=True)
    ]


def check_length(rows: Sequence[np.ndarray], limit: int, place: Callable[[int], str]) -> None:
    """Raise DataError if a text has more tokens than the model reads."""
    longer = [number for number, row in enumerate(rows, start=1) if len(row) > limit]
    if longer:
        more = f" (and {len(longer) - 1:,} more)" if len(longer) > 1 else ""
        raise DataError(
            f"{place(longer[0])}: {len(rows[longer[0] - 1]):,} tokens with [CLS] and [SEP], but the model reads at "
            f"most {limit:,}{more}: shorten it, or truncate it (too_long=truncate, on the command line --truncate)"
        )


def batches(rows: Sequence[np.ndarray], pad_id: int, model: Encoder, batch_size: int) -> Iterable[Part]:
    """Yield batches of all texts but the empty ones, the longest first; texts that are too long are cut."""
    limit = model.config.max_seq_len
    order = sorted((i for i, row in enumerate(rows) if len(row)), key=lambda i: -len(rows[i]))
    for first in range(0, len(order), batch_size):
        places = order[first : first + batch_size]
        length = padded_length(min(len(rows[places[0]]), limit), limit)
        yield np.array(places), *padded([rows[i] for i in places], length, pad_id)


def prediction(labels: Sequence[str], logprobs: np.ndarray) -> Prediction:
    """Return the most probable class, and the probabilities of all."""
    probabilities = dict(zip(labels, np.exp(logprobs.astype(np.float64)).tolist(), strict=True))
    best = labels[int(logprobs.argmax())]
    return Prediction(best, probabilities[best], probabilities)
