"""Masked language modelling: an encoder predicts masked tokens from both sides (Devlin et al. 2019)."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from clearformer.data import Dataset, LabelledData, Progress, Split, TextData, prepare
from clearformer.data.labelled.batches import (
    LabelledBatches,
    check_lengths,
    draw_with_dropout,
    in_length_order,
)
from clearformer.data.labelled.preparing import LabelledDataset, LabelledSplit, prepare_labelled
from clearformer.data.locating.places import Example
from clearformer.data.locating.windows import find_windows
from clearformer.data.masking import MaskedBatch, Masking, Rows, TextWindows, windows_in_order
from clearformer.data.text.batches import IGNORED
from clearformer.decoding import evaluating
from clearformer.errors import DataError, count
from clearformer.evaluation.masked import MaskedEvaluation, evaluate_masked
from clearformer.evaluation.meter import counted
from clearformer.evaluation.subsets import subset_of_labelled, subset_of_text
from clearformer.model import Encoder
from clearformer.text import Tokenizer, specials_of
from clearformer.training.config import RunConfig
from clearformer.training.objectives import MaskedObjective, ObjectiveSpec
from clearformer.training.tasks.losses import summed_loss_of_any, summed_loss_of_hidden
from clearformer.training.tasks.reports import (
    EvaluationReport,
    Section,
    accuracy_figures,
    one_vocabulary,
    vocabulary_note,
)
from clearformer.training.tasks.seen import choose_rows, seen_text
from clearformer.training.tasks.task import (
    EvaluationData,
    EvaluationOptions,
    FullBatch,
    Task,
    TrainedModel,
    check_rows_divide,
    to_tensors,
)

SAMPLE_TOKENS = 40
HELD_OUT_SEED, MASKED_TOGETHER = 0, 64  # of held-out rows, so that every run masks the same tokens
LEGEND = "masked tokens in brackets: [token] if predicted correctly, else [prediction|token]"


def masked_in_order(
    config: RunConfig, dataset: Dataset | LabelledDataset, split: str = "val", n_rows: int | None = None
) -> Iterator[MaskedBatch]:
    """Yield batches of a whole split, or of `n_rows` of its rows, masked the same whatever the size of a batch."""
    masking = masking_of(config, dataset.tokenizer, HELD_OUT_SEED)
    batch_size = min(config.train.batch_size, MASKED_TOGETHER)
    for place, rows in enumerate(_rows_in_order(config, dataset, split, n_rows)):
        masked = masking(rows.tokens, rows.padding, place)
        for first in range(0, len(rows.tokens), batch_size):
            yield MaskedBatch(*(array[first : first + batch_size] for array in masked))


def masking_of(config: RunConfig, tokenizer: Tokenizer, seed: int) -> Masking:
    """Return the masking that the run's settings describe."""
    objective = config.train.objective
    assert isinstance(objective, MaskedObjective)
    return Masking(tokenizer, seed, objective.fraction, objective.whole_words)


def _rows_in_order(
    config: RunConfig, dataset: Dataset | LabelledDataset, split: str, n_rows: int | None
) -> Iterator[Rows]:
    """Yield the rows of a split, `MASKED_TOGETHER` at a time."""
    length = config.model.max_seq_len
    if not isinstance(dataset, LabelledDataset):
        text = dataset.splits[split]
        part = text if n_rows is None else subset_of_text(text, n_rows, _content(length))
        yield from windows_in_order(part, MASKED_TOGETHER, length, dataset.tokenizer)
        return
    assert isinstance(config.data, LabelledData)
    assert dataset.tokenizer.pad_id is not None
    texts, pad_id = dataset.splits[split], dataset.tokenizer.pad_id
    texts = texts if n_rows is None else subset_of_labelled(texts, n_rows)
    for _, batch in in_length_order(texts, MASKED_TOGETHER, length, pad_id, config.data.too_long):
        yield Rows(batch.tokens, batch.padding)


def n_rows_of(split: Split | LabelledSplit, length: int) -> int:
    """Return the number of texts in a split, or of rows of this length that hold its text."""
    return len(split) if isinstance(split, LabelledSplit) else -(-len(split) // _content(length))


def _content(length: int) -> int:
    """Return how many tokens of text a row of this length holds, between [CLS] and [SEP]."""
    return length - 2


class MaskedTask(Task):
    """See `MaskedObjective`."""

    objective_type: ClassVar[type[ObjectiveSpec]] = MaskedObjective
    targets_at: ClassVar[int | None] = 2
    shapes_vary: ClassVar[bool] = True
    dataset: Dataset | LabelledDataset

    def __init__(self, config: RunConfig, dataset: Dataset | LabelledDataset) -> None:
        super().__init__(config, dataset)
        self._masking = masking_of(config, self.tokenizer, config.seed)
        self._training = self._training_batches()
        # Each part of a batch asks for the whole.
        self._whole_batch = lru_cache(maxsize=2)(self._masked_batch)

    @classmethod
    def prepare(
        cls, config: RunConfig, tokenizer: Tokenizer | None, progress: Progress
    ) -> Dataset | LabelledDataset:
        data, tokenizer_or_settings = config.data, tokenizer or config.tokenizer
        if isinstance(data, LabelledData):
            return prepare_labelled(data, tokenizer_or_settings, uses_labels=False, progress=progress)
        assert isinstance(data, TextData)
        return prepare(data, tokenizer_or_settings, specials=specials_of("encoder"), progress=progress)

    def _training_batches(self) -> LabelledBatches | TextWindows:
        config = self.config
        batch_size, length = config.train.batch_size, config.model.max_seq_len
        if isinstance(self.dataset, LabelledDataset):
            assert isinstance(config.data, LabelledData)
            assert self.tokenizer.pad_id is not None
            texts, too_long = self.dataset.splits["train"], config.data.too_long
            check_lengths(self.dataset.splits.values(), length, too_long)
            objective = config.train.objective
            assert isinstance(objective, MaskedObjective)
            draw = draw_with_dropout(self.tokenizer, objective.wordpiece_dropout)
            pad_id = self.tokenizer.pad_id
            return LabelledBatches(texts, batch_size, length, config.seed, pad_id, too_long, draw)
        assert isinstance(config.data, TextData)
        text = self.dataset.splits["train"]
        return TextWindows(text, config.data.order, batch_size, length, config.seed, self.tokenizer)

    def _masked_batch(self, step: int) -> MaskedBatch:
        """Return the whole batch of a step, masked anew at every step."""
        rows = self._training.batch(step)
        return self._masking(rows.tokens, rows.padding, step)

    def check_divides(self, n_parts: int) -> None:
        check_rows_divide(self.config.train.batch_size, n_parts)

    def batch(self, step: int, part: int, n_parts: int) -> tuple[Tensor, ...]:
        """Return masked tokens [B T], where they are real, the targets [B T], and the weight of each target."""
        whole = self._whole_batch(step)
        n_targets = int((whole.targets != IGNORED).sum())
        rows = slice(part, None, n_parts)
        tensors = to_tensors(*(array[rows] for array in whole))
        return *tensors, torch.tensor(n_parts / max(1, n_targets))

    def example_ids(self, step: int) -> Int64[np.ndarray, " B"]:
        rows = self._training
        return rows.starts(step) if isinstance(rows, TextWindows) else rows.indices(step)

    def find_examples(self, examples: Sequence[int]) -> list[Example]:
        if isinstance(self.dataset, LabelledDataset):
            return self.dataset.splits["train"].find(examples)
        assert isinstance(self.config.data, TextData)
        length = _content(self.config.model.max_seq_len)
        return find_windows(self.config.data, self.dataset, [(first, first + length) for first in examples])

    def n_tokens(self, step: int) -> int:
        return int(self._whole_batch(step).padding.sum())

    @property
    def rows_per_step(self) -> float:
        rows = self._training
        if isinstance(rows, TextWindows):
            return rows.batch_size
        return len(rows.split) / rows.steps_per_epoch  # an epoch is spread evenly over its batches

    @property
    def n_held_out(self) -> int:
        split = self.dataset.splits.get("val")
        return 0 if split is None else n_rows_of(split, self.config.model.max_seq_len)

    def check_measurable(self) -> None:
        if "val" not in self.dataset.splits:
            return
        batches = masked_in_order(self.config, self.dataset)
        if not any((batch.targets != IGNORED).any() for batch in batches):  # usually ends at the first batch
            own = getattr(self.config.data, "val_path", None)
            given = "data.val_fraction" if own is None else f"data.val_path={own}"
            none = "data.val_fraction=0" if own is None else "without data.val_path"
            raise DataError(
                f"{given}: the held-out split has no token to mask: all are special tokens such as [UNK]; hold out "
                f"other texts, hold out nothing ({none}), or use another tokenizer"
            )

    # --- loss -----------------------------------------------------------------------------------------------

    def loss(self, model: Encoder, *batch: Tensor) -> Tensor:
        tokens, padding, targets, weight = batch
        hidden = model.hidden(tokens, padding)
        return weight * summed_loss_of_hidden(model, hidden, targets, self.config.train.label_smoothing)

    @classmethod
    def full_loss(cls, model: Any, batch: FullBatch) -> Tensor:
        tokens, padding = batch.tensors
        n_targets = math.ceil(batch.train.objective.logits_fraction * tokens.numel())
        hidden = model.hidden(tokens, padding)
        return summed_loss_of_any(model, hidden, tokens, n_targets, batch.train.label_smoothing, batch.on_gpu)

    # --- evaluation -----------------------------------------------------------------------------------------

    def evaluate(
        self, model: Encoder, dtype: torch.dtype, n_rows: int | None = None
    ) -> MaskedEvaluation | None:
        if "val" not in self.dataset.splits:
            return None
        batches = masked_in_order(self.config, self.dataset, n_rows=n_rows)
        return evaluate_masked(model, batches, dtype=dtype)

    def metrics(self, result: MaskedEvaluation) -> dict[str, float]:
        return {"val_accuracy": result.accuracy}

    @classmethod
    def evaluate_on(
        cls, trained: TrainedModel, data: EvaluationData, options: EvaluationOptions
    ) -> EvaluationReport:
        """Measure how well an encoder fills in masked tokens."""
        split = data.prepared.splits[data.split]
        if isinstance(split, LabelledSplit):
            assert isinstance(data.config.data, LabelledData)
            length = trained.model.config.max_seq_len
            check_lengths([split], length, data.config.data.too_long, is_trained=True)
        batches = counted(
            masked_in_order(data.config, data.prepared, data.split),
            lambda batch: len(batch.tokens),
            n_rows_of(split, trained.model.config.max_seq_len),
            data.on_step("evaluating"),
        )
        result = evaluate_masked(trained.model, batches, dtype=options.dtype)
        if result is None:
            raise DataError(
                f"{data.description}: no token to mask: all are special tokens such as [UNK]; "
                "use texts that the run's tokenizer knows"
            )
        note = (
            f"{one_vocabulary(trained.tokenizer.vocab_size)},\nand never with those of a left-to-right model."
        )
        predicted = f"{count(result.n_tokens, 'masked token')}, the same every time"
        is_labelled = isinstance(split, LabelledSplit)
        seen = choose_rows(data, split, unseen=False) if is_labelled else seen_text(data, split)
        figures = accuracy_figures(result, "the masked tokens", predicted, data.description)
        sections = (Section(figures=(*figures, *seen.figures)), Section(text=note))
        return EvaluationReport(sections, result.to_json() | seen.values)

    # --- reports --------------------------------------------------------------------------------------------

    def sample(self, model: Encoder) -> str:
        """Return the start of a held-out text, with the model's predictions of its masked tokens."""
        split = "val" if "val" in self.dataset.splits else "train"
        batch = next(masked_in_order(self.config, self.dataset, split))
        device = model.embed.weight.device
        with evaluating(model), torch.inference_mode():
            tokens, padding, targets = (torch.from_numpy(array[:1]).to(device) for array in batch)
            logits = model.unembed(model.hidden(tokens, padding))
            # A pretrained model may have more rows than there are tokens.
            predictions = logits[..., : self.tokenizer.vocab_size].argmax(-1)
        rows = (tensor[0, :SAMPLE_TOKENS].tolist() for tensor in (tokens, padding, targets, predictions))
        return " ".join(self._label(*place) for place in zip(*rows, strict=True)).rstrip()

    def _label(self, token: int, real: bool, target: int, predicted: int) -> str:
        label = self.tokenizer.token_label
        if not real:
            return ""
        if target == IGNORED:
            return label(token)
        return f"[{label(target)}]" if predicted == target else f"[{label(predicted)}|{label(target)}]"

    def final_sample(self, model: Encoder) -> str:
        return f"{LEGEND}\n{self.sample(model)}"

    def figures(self, result: MaskedEvaluation) -> tuple[Section, ...]:
        line = (
            f"held-out text: {result.accuracy:.1%} of {result.n_tokens:,} masked tokens predicted correctly; "
            f"{result.loss:.4f} nats per token, perplexity {result.perplexity:.2f}"
        )
        return Section(text=line), vocabulary_note(self.tokenizer.vocab_size)

    def next_commands(self, run: str, preset: str | None) -> tuple[str, ...]:
        return (
            f"train classify train.pretrained={run} data.path=YOUR.tsv",
            f"look {run}",
            f"eval {run}{self.split_to_evaluate()}",
            f"export {run} FOLDER",
        )
