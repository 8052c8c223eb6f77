"""Masked language modelling: an encoder fills in tokens from the text on both sides (Devlin et al. 2019)."""

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from clearformer.config import Spec
from clearformer.data import Data, Dataset, LabelledData, TextData, prepare
from clearformer.data.labelled.batches import LabelledBatches, fitted_lengths, in_length_order
from clearformer.data.labelled.preparing import LabelledDataset, prepare_labelled
from clearformer.data.masking import MaskedBatch, MaskedBatches, Masking, Rows, TextWindows, windows_in_order
from clearformer.data.text.batches import IGNORED
from clearformer.decoding import evaluating
from clearformer.errors import DataError
from clearformer.evaluation.masked import MaskedEvaluation, evaluate_masked
from clearformer.evaluation.parts import part_of_labelled, part_of_text
from clearformer.model import Encoder
from clearformer.text import Tokenizer, TokenizerConfig, specials_of
from clearformer.training.objective import summed_loss_of_hidden
from clearformer.training.tasks.task import Progress, Task, check_rows_divide, to_tensors

if TYPE_CHECKING:
    from clearformer.training.config import RunConfig

N_SHOWN = 40  # tokens of a sample
HELD_OUT_SEED = 0  # what is masked in the held-out texts is the same in every run


class Masked(Spec):
    """-log p(token) where tokens were chosen: 80% hidden by [MASK], 10% replaced by others, 10% left.

    Attributes:
        fraction: The part of the tokens that is chosen.
        whole_words: Whether all tokens of a word are chosen together.
    """

    kind: Literal["masked"] = "masked"
    family: ClassVar[str] = "encoder"
    data_kinds: ClassVar[tuple[str, ...]] = ("text", "labelled")

    fraction: float = Field(default=0.15, gt=0, lt=1)
    whole_words: bool = False

    def open(self, config: "RunConfig", tokenizer: Tokenizer | None, progress: Progress) -> "MaskedModelling":
        """The task, its texts prepared; a tokeniser that is given is used, otherwise one is made.

        Of labelled texts the labels are left aside: masked training on a task's own text.
        """
        return MaskedModelling(
            config, self, prepare_for_masking(config.data, tokenizer or config.tokenizer, progress)
        )


def prepare_for_masking(
    data: Data, tokenizer: TokenizerConfig | Tokenizer, progress: Progress = lambda *_: None
) -> Dataset | LabelledDataset:
    """Texts in an encoder's tokens."""
    if isinstance(data, LabelledData):
        return prepare_labelled(data, tokenizer, progress=progress)
    assert isinstance(data, TextData)
    return prepare(data, tokenizer, specials=specials_of("encoder"), progress=progress)


def masked_in_order(
    config: "RunConfig", dataset: Dataset | LabelledDataset, split: str = "val", n_rows: int | None = None
) -> Iterator[MaskedBatch]:
    """A whole split, or so many rows of it, masked as it is in every run with these settings."""
    assert isinstance(config.train.objective, Masked)
    spec = config.train.objective
    masking = Masking(dataset.tokenizer, HELD_OUT_SEED, spec.fraction, spec.whole_words)
    for place, rows in enumerate(_rows_in_order(config, dataset, split, n_rows)):
        yield masking(rows.tokens, rows.padding, place)


def _rows_in_order(
    config: "RunConfig", dataset: Dataset | LabelledDataset, split: str, n_rows: int | None
) -> Iterator[Rows]:
    batch_size, length = config.train.batch_size, config.model.max_seq_len
    if not isinstance(dataset, LabelledDataset):
        text = dataset.splits[split]
        part = text if n_rows is None else part_of_text(text, n_rows, _content(length))
        yield from windows_in_order(part, batch_size, length, dataset.tokenizer)
        return
    assert isinstance(config.data, LabelledData)
    assert dataset.tokenizer.pad_id is not None
    texts, pad_id = dataset.splits[split], dataset.tokenizer.pad_id
    texts = texts if n_rows is None else part_of_labelled(texts, n_rows)
    for _, batch in in_length_order(texts, batch_size, length, pad_id, config.data.too_long):
        yield Rows(batch.tokens, batch.padding)


def _content(length: int) -> int:
    """The tokens of a text in a row of this length, which [CLS] and [SEP] are in too."""
    return length - 2


class MaskedModelling(Task):
    """See `Masked`."""

    shapes_vary: ClassVar[bool] = True

    def __init__(self, config: "RunConfig", spec: Masked, dataset: Dataset | LabelledDataset) -> None:
        self.config, self.spec, self.dataset, self.tokenizer = config, spec, dataset, dataset.tokenizer
        masking = Masking(self.tokenizer, config.seed, spec.fraction, spec.whole_words)
        masked = MaskedBatches(self._training_batches(), masking)
        self._whole_batch = lru_cache(maxsize=2)(masked.batch)  # each part of a batch asks for the whole

    def _training_batches(self) -> LabelledBatches | TextWindows:
        config = self.config
        batch_size, length = config.train.batch_size, config.model.max_seq_len
        if isinstance(self.dataset, LabelledDataset):
            assert isinstance(config.data, LabelledData)
            assert self.tokenizer.pad_id is not None
            texts, too_long = self.dataset.splits["train"], config.data.too_long
            for split in self.dataset.splits.values():  # what would fail later fails now
                fitted_lengths(split, length, too_long)
            return LabelledBatches(texts, batch_size, length, config.seed, self.tokenizer.pad_id, too_long)
        assert isinstance(config.data, TextData)
        text = self.dataset.splits["train"]
        return TextWindows(text, config.data.order, batch_size, length, config.seed, self.tokenizer)

    @property
    def data_sha256(self) -> str:
        return self.dataset.manifest["source"]["sha256"]

    def check_divides(self, n_parts: int) -> None:
        check_rows_divide(self.config.train.batch_size, n_parts)

    def batch(self, step: int, part: int, n_parts: int) -> tuple[Tensor, ...]:
        """Tokens with some hidden [B T], where they are real, the hidden ones, and the weight of each."""
        whole = self._whole_batch(step)
        n_targets = int((whole.targets != IGNORED).sum())
        rows = slice(part, None, n_parts)
        tensors = to_tensors(*(array[rows] for array in whole))
        return *tensors, torch.tensor(n_parts / max(1, n_targets))

    def n_tokens(self, step: int) -> int:
        return int(self._whole_batch(step).padding.sum())

    def loss(self, model: Encoder, *batch: Tensor) -> Tensor:
        tokens, padding, targets, weight = batch
        hidden = model.hidden(tokens, padding)
        return weight * summed_loss_of_hidden(model, hidden, targets, self.config.train.label_smoothing)

    @property
    def rows_per_step(self) -> float:
        return self.config.train.batch_size

    @property
    def n_held_out(self) -> int:
        length = len(self.dataset.splits.get("val", ()))
        if isinstance(self.dataset, LabelledDataset):
            return length
        return -(-length // _content(self.config.model.max_seq_len))

    def check_measurable(self) -> None:
        if "val" not in self.dataset.splits:
            return
        batches = masked_in_order(self.config, self.dataset)
        if not any((batch.targets != IGNORED).any() for batch in batches):  # as a rule the first has one
            raise DataError(
                "data.val_fraction: the held-out split has no token to mask, for all of its tokens are special ones "
                "such as [UNK]; hold out other texts, hold out nothing (data.val_fraction=0), or take another tokenizer"
            )

    def evaluate(
        self, model: Encoder, dtype: torch.dtype, n_rows: int | None = None
    ) -> MaskedEvaluation | None:
        if "val" not in self.dataset.splits:
            return None
        batches = masked_in_order(self.config, self.dataset, n_rows=n_rows)
        return evaluate_masked(model, batches, dtype=dtype)

    def metrics(self, measured: MaskedEvaluation) -> dict[str, float]:
        return {"val_accuracy": measured.accuracy}

    def sample(self, model: Encoder) -> str:
        """The start of a held-out text, and what the model makes of the tokens that are masked in it."""
        split = "val" if "val" in self.dataset.splits else "train"
        batch = next(masked_in_order(self.config, self.dataset, split))
        device = model.embed.weight.device
        with evaluating(model), torch.inference_mode():
            tokens, padding, targets = (torch.from_numpy(array[:1]).to(device) for array in batch)
            guesses = model.unembed(model.hidden(tokens, padding)).argmax(-1)
        rows = (tensor[0, :N_SHOWN].tolist() for tensor in (tokens, padding, targets, guesses))
        return " ".join(self._shown(*place) for place in zip(*rows, strict=True)).rstrip()

    def _shown(self, token: int, real: bool, target: int, guess: int) -> str:
        label = self.tokenizer.token_label
        if not real:
            return ""
        if target == IGNORED:
            return label(token)
        return f"[{label(target)}]" if guess == target else f"[{label(guess)}|{label(target)}]"
