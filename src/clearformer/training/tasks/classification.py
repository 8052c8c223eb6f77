"""Classification: an encoder predicts the class of a text."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from clearformer.data import LabelledData, Progress
from clearformer.data.labelled.batches import (
    LabelledBatches,
    TooLong,
    batch_of,
    check_lengths,
    draw_with_dropout,
)
from clearformer.data.labelled.preparing import LabelledDataset, LabelledSplit, prepare_labelled
from clearformer.data.locating.places import Example
from clearformer.data.masking import hide_tokens
from clearformer.data.text.batches import generator_at
from clearformer.errors import DataError, MissingPackageError, RunError, shortened
from clearformer.evaluation.classes.baseline import Baseline, baseline_seconds, takes_too_long
from clearformer.evaluation.classes.metrics import ClassificationReport
from clearformer.evaluation.classes.scores import (
    ClassEvaluation,
    baseline_for,
    class_logprobs,
    evaluate_classes,
)
from clearformer.evaluation.subsets import labelled_at, subset_of_labelled
from clearformer.model import Encoder
from clearformer.text import Tokenizer
from clearformer.training.config import RunConfig
from clearformer.training.objectives import ClassificationObjective, ObjectiveSpec
from clearformer.training.tasks.losses import summed_loss
from clearformer.training.tasks.r_drop import summed_r_drop, twice
from clearformer.training.tasks.reports import EvaluationReport, Figure, Section
from clearformer.training.tasks.seen import choose_rows
from clearformer.training.tasks.task import (
    SAMPLE_CHARACTERS,
    EvaluationData,
    EvaluationOptions,
    FullBatch,
    Task,
    TrainedModel,
    check_rows_divide,
    to_tensors,
    with_size,
)

N_SAMPLES = 4
HIDING_STREAM = 8


class ClassificationTask(Task):
    """See `ClassificationObjective`."""

    objective_type: ClassVar[type[ObjectiveSpec]] = ClassificationObjective
    targets_at: ClassVar[int | None] = 2
    shapes_vary: ClassVar[bool] = True
    dataset: LabelledDataset

    def __init__(self, config: RunConfig, dataset: LabelledDataset) -> None:
        super().__init__(config, dataset)
        assert isinstance(config.data, LabelledData)
        assert self.tokenizer.pad_id is not None
        self.too_long: TooLong = config.data.too_long
        check_lengths(dataset.splits.values(), config.model.max_seq_len, self.too_long)
        objective = config.train.objective
        assert isinstance(objective, ClassificationObjective)
        self.batches = LabelledBatches(
            dataset.splits["train"],
            config.train.batch_size,
            config.model.max_seq_len,
            config.seed,
            self.tokenizer.pad_id,
            self.too_long,
            draw_with_dropout(self.tokenizer, objective.wordpiece_dropout),
        )

    @classmethod
    def prepare(cls, config: RunConfig, tokenizer: Tokenizer | None, progress: Progress) -> LabelledDataset:
        assert isinstance(config.data, LabelledData)
        return prepare_labelled(config.data, tokenizer or config.tokenizer, progress=progress)

    @classmethod
    def fit(cls, config: RunConfig, dataset: LabelledDataset) -> RunConfig:
        config = super().fit(config, dataset)
        n_classes = len(dataset.labels)
        return config.replace(
            model=with_size(config.model, "n_classes", n_classes, "the {} labels of the data"),
            data=config.data.replace(labels=dataset.labels),
        )

    def check_divides(self, n_parts: int) -> None:
        check_rows_divide(self.config.train.batch_size, n_parts)

    def batch(self, step: int, part: int, n_parts: int) -> tuple[Tensor, ...]:
        """Return tokens [B T], where they are real, the class of each row [B], and the weight of each row."""
        weight = n_parts / len(self.batches.indices(step))
        tokens, padding, labels = self.batches.batch(step)
        rows = slice(part, None, n_parts)
        return *to_tensors(self._hidden(tokens, step)[rows], padding[rows], labels[rows]), torch.tensor(
            weight
        )

    def _hidden(self, tokens: np.ndarray, step: int) -> np.ndarray:
        """Return a step's tokens [B T] with a fraction `hidden` replaced by [MASK], drawn from seed and step."""
        objective = self.config.train.objective
        assert isinstance(objective, ClassificationObjective)
        if not objective.hidden:
            return tokens
        assert self.tokenizer.mask_id is not None
        rng = generator_at(self.config.seed, HIDING_STREAM, step)
        return hide_tokens(
            tokens, self.tokenizer.is_plain[tokens], self.tokenizer.mask_id, objective.hidden, rng
        )

    def example_ids(self, step: int) -> Int64[np.ndarray, " B"]:
        return self.batches.indices(step)

    def find_examples(self, examples: Sequence[int]) -> list[Example]:
        labels = self.dataset.labels
        split = self.dataset.splits["train"]
        return [
            found._replace(text=f"{labels[split.label_ids[index]]}: {found.text}")
            for index, found in zip(examples, split.find(examples), strict=True)
        ]

    def n_tokens(self, step: int) -> int:
        return int(self.batches.batch(step).padding.sum())

    @property
    def rows_per_step(self) -> float:
        return len(self.batches.split) / self.batches.steps_per_epoch

    # --- loss -----------------------------------------------------------------------------------------------

    def loss(self, model: Encoder, *batch: Tensor) -> Tensor:
        tokens, padding, labels, weight = batch
        smoothing, alpha = self.config.train.label_smoothing, self.config.train.r_drop
        if alpha:
            return weight * summed_r_drop(model(*twice(tokens, padding)), labels, alpha, smoothing)
        return weight * summed_loss(model(tokens, padding), labels, smoothing)

    @classmethod
    def full_loss(cls, model: Any, batch: FullBatch) -> Tensor:
        tokens, padding = batch.tensors
        smoothing, alpha = batch.train.label_smoothing, batch.train.r_drop
        if alpha:
            return summed_r_drop(model(*twice(tokens, padding)), tokens[:, 0], alpha, smoothing)
        return summed_loss(model(tokens, padding), tokens[:, 0], smoothing)

    # --- evaluation -----------------------------------------------------------------------------------------

    def evaluate(
        self, model: Encoder, dtype: torch.dtype, n_rows: int | None = None
    ) -> ClassEvaluation | None:
        texts, dataset = self.dataset.splits.get("val"), self.dataset
        if texts is None:
            return None
        if n_rows is not None:
            dataset = replace(dataset, splits={"val": subset_of_labelled(texts, n_rows)})
        return evaluate_classes(model, dataset, too_long=self.too_long, dtype=dtype)

    def metrics(self, result: ClassEvaluation) -> dict[str, float]:
        return {"val_accuracy": result.report.accuracy, "val_macro_f1": result.report.macro_f1}

    @classmethod
    def evaluate_on(
        cls, trained: TrainedModel, data: EvaluationData, options: EvaluationOptions
    ) -> EvaluationReport:
        """Measure how well an encoder classifies, and how well the baseline does."""
        assert isinstance(data.config.data, LabelledData)
        texts = data.prepared.splits[data.split]
        chosen = choose_rows(data, texts, unseen=options.unseen)
        texts = labelled_at(texts, chosen.indices)
        too_long = data.config.data.too_long
        check_lengths([texts], trained.model.config.max_seq_len, too_long, is_trained=True)
        scores = evaluate_classes(
            trained.model,
            replace(data.prepared, splits={data.split: texts}),
            data.split,
            too_long=too_long,
            dtype=options.dtype,
            on_step=data.on_step("evaluating"),
        ).report
        data.progress("training the baseline", 0, None)
        baseline = baseline_on(data, texts)
        figures = (*class_figures(scores, baseline), *chosen.figures)
        sections = (
            Section(heading=f"{chosen.description}:", figures=figures),
            Section(text=scores.table()),
            Section(text=scores.confusion_table()),
        )
        values = scores.to_json() | {
            "labels": list(scores.names),
            "baseline": None if isinstance(baseline, str) else baseline_values(baseline),
        }
        return EvaluationReport(sections, values | chosen.values, scores)

    # --- reports --------------------------------------------------------------------------------------------

    def sample(self, model: Encoder) -> str:
        """Return a few evenly spaced held-out texts with the model's predictions."""
        texts = self.dataset.splits.get("val", self.dataset.splits["train"])
        places = np.linspace(0, len(texts) - 1, min(N_SAMPLES, len(texts))).astype(int)
        length = min(int(texts.lengths[places].max()), self.config.model.max_seq_len)
        assert self.tokenizer.pad_id is not None
        batch = batch_of(texts, places, length, self.tokenizer.pad_id)
        rows = [(np.arange(len(places)), batch.tokens, batch.padding)]
        logprobs = class_logprobs(model, rows, len(places))
        samples = [texts.texts[int(place)] for place in places]
        return "\n".join(map(self._prediction, samples, batch.labels.tolist(), logprobs))

    def _prediction(self, text: str, label: int, logprobs: np.ndarray) -> str:
        predicted = int(logprobs.argmax())
        verdict = "right" if predicted == label else f"wrong: {self.dataset.labels[label]}"
        name, probability = self.dataset.labels[predicted], np.exp(logprobs[predicted])
        return f"{name} {probability:.0%} ({verdict}): {shortened(text, SAMPLE_CHARACTERS)}"

    @cached_property
    def baseline(self) -> Baseline | str:
        """The baseline on the held-out texts, or the reason why there is none."""
        train, limit = self.dataset.splits["train"], self.config.train.max_wall_seconds
        seconds = baseline_seconds(sum(len(text.encode()) for text in train.texts), len(self.dataset.labels))
        if takes_too_long(seconds, limit):
            of_limit = f"of the {limit:g} s" if limit else "s"
            return f"left out: it takes about {seconds:.0f} {of_limit}; eval fits it"
        return baseline_or_reason(self.dataset, self.dataset.splits["val"])

    def prepare_report(self) -> None:
        if "val" in self.dataset.splits:
            _ = self.baseline

    def figures(self, result: ClassEvaluation) -> tuple[Section, ...]:
        return (Section(heading="held-out texts:", figures=class_figures(result.report, self.baseline)),)

    def next_commands(self, run: str, preset: str | None) -> tuple[str, ...]:
        # `auto` is for any kind of data, and takes a file for plain text or pairs unless told its kind
        begin_with = "auto data.kind=labelled" if preset == "auto" else preset or "classify"
        return (
            f"classify {run} YOUR.txt",
            f"look {run}",
            f"eval {run}{self.split_to_evaluate()}",
            f"train {begin_with} data.path=YOUR.tsv train.max_seconds=120",
        )


def class_figures(scores: ClassificationReport, baseline: Baseline | str) -> tuple[Figure, ...]:
    """Return a classifier's figures next to those of the baseline, or to the reason why there is none."""
    of_baseline = [baseline] if isinstance(baseline, str) else [baseline.report.summary(), baseline.settings]
    return (
        Figure("this run", scores.summary()),
        *map(Figure, ("baseline", ""), of_baseline),
        Figure("majority", f"accuracy {scores.majority:.2%}"),
    )


def baseline_on(data: EvaluationData, split: LabelledSplit) -> Baseline | str:
    """Train the baseline on the run's training texts and measure it on `split`, or return why that cannot be done."""
    try:
        trained_on = data.training_data()
    except (DataError, RunError) as error:
        return f"none: it needs the run's training texts: {error}"
    assert isinstance(trained_on, LabelledDataset)
    return baseline_or_reason(trained_on, split)


def baseline_or_reason(trained_on: LabelledDataset, split: LabelledSplit) -> Baseline | str:
    """Return the baseline, or a message that names the extra to install."""
    try:
        return baseline_for(trained_on, split)
    except MissingPackageError as missing:
        return str(missing)


def baseline_values(baseline: Baseline) -> dict[str, Any]:
    """Return the baseline's figures for JSON, without its table."""
    report = baseline.report
    return {
        "accuracy": report.accuracy,
        "macro_f1": report.macro_f1,
        "loss": report.loss,
        "settings": baseline.settings,
    }
