"""Masked language modelling: an encoder fills in tokens from the text on both sides (Devlin et al. 2019)."""

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from clearformer.config import Spec
from clearformer.data import Dataset, LabelledData, TextData, prepare
from clearformer.data.labelled_batches import LabelledBatches, in_length_order
from clearformer.data.labelled_preparing import LabelledDataset, prepare_labelled
from clearformer.data.masking import MaskedBatch, MaskedBatches, Masking, Rows, TextWindows
from clearformer.evaluate.masked import MaskedEvaluation, evaluate_masked
from clearformer.model import Encoder
from clearformer.text import Tokenizer, specials_of
from clearformer.train.objective import IGNORED, summed_loss_of_hidden
from clearformer.train.tasks.task import Progress, Task, refuse_uneven_rows, to_tensors

if TYPE_CHECKING:
    from clearformer.train.config import RunConfig

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
        if isinstance(config.data, LabelledData):
            return MaskedModelling(
                config, self, prepare_labelled(config.data, tokenizer or config.tokenizer, progress=progress)
            )
        assert isinstance(config.data, TextData)
        dataset = prepare(
            config.data,
            tokenizer or config.tokenizer,
            specials=specials_of("encoder"),
            progress=progress,
        )
        return MaskedModelling(config, self, dataset)


class MaskedModelling(Task):
    """See `Masked`."""

    shapes_vary: ClassVar[bool] = True

    def __init__(self, config: "RunConfig", spec: Masked, dataset: Dataset | LabelledDataset) -> None:
        self.config, self.spec, self.dataset, self.tokenizer = config, spec, dataset, dataset.tokenizer
        batches = self._batches_of("train")
        masked = MaskedBatches(batches, self._masking(config.seed))
        self._whole_batch = lru_cache(maxsize=2)(masked.batch)  # each part of a batch asks for the whole

    def _masking(self, seed: int) -> Masking:
        return Masking(self.tokenizer, seed, self.spec.fraction, self.spec.whole_words)

    def _batches_of(self, split: str) -> Any:
        config = self.config
        batch_size, length = config.train.batch_size, config.model.max_seq_len
        if isinstance(self.dataset, LabelledDataset):
            assert isinstance(config.data, LabelledData)
            assert self.tokenizer.pad_id is not None
            texts = self.dataset.splits[split]
            return LabelledBatches(
                texts, batch_size, length, config.seed, self.tokenizer.pad_id, config.data.too_long
            )
        assert isinstance(config.data, TextData)
        text = self.dataset.splits[split]
        return TextWindows(text, config.data.order, batch_size, length, config.seed, self.tokenizer)

    @property
    def data_sha256(self) -> str:
        return self.dataset.manifest["source"]["sha256"]

    def refuse_uneven(self, n_parts: int) -> None:
        refuse_uneven_rows(self.config.train.batch_size, n_parts)

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

    def evaluate(self, model: Encoder, dtype: torch.dtype) -> MaskedEvaluation | None:
        if "val" not in self.dataset.splits:
            return None
        return evaluate_masked(model, self.held_out(), dtype=dtype)

    def held_out(self, split: str = "val") -> Iterator[MaskedBatch]:
        """A whole split, masked once and for all."""
        masking = self._masking(HELD_OUT_SEED)
        for place, rows in enumerate(self._in_order(split)):
            yield masking(rows.tokens, rows.padding, place)

    def _in_order(self, split: str) -> Iterator[Rows]:
        if not isinstance(self.dataset, LabelledDataset):
            yield from self._batches_of(split).in_order()
            return
        assert isinstance(self.config.data, LabelledData)
        assert self.tokenizer.pad_id is not None
        batches = in_length_order(
            self.dataset.splits[split],
            self.config.train.batch_size,
            self.config.model.max_seq_len,
            self.tokenizer.pad_id,
            self.config.data.too_long,
        )
        for _, batch in batches:
            yield Rows(batch.tokens, batch.padding)

    def metrics(self, measured: MaskedEvaluation) -> dict[str, float]:
        return {"val_accuracy": measured.accuracy}

    def sample(self, model: Encoder) -> str:
        """The start of a held-out text, and what the model makes of the tokens that are masked in it."""
        batch = next(self.held_out("val" if "val" in self.dataset.splits else "train"))
        device = model.embed.weight.device
        with torch.inference_mode():
            tokens, padding, targets = (torch.from_numpy(array[:1]).to(device) for array in batch)
            guesses = model.unembed(model.hidden(tokens, padding)).argmax(-1)
        words = []
        for shown, real, target, guess in zip(
            *(t[0].tolist() for t in (tokens, padding, targets, guesses)), strict=True
        ):
            label = self.tokenizer.token_label
            if real:
                words.append(label(shown) if target == IGNORED else f"[{label(guess)}|{label(target)}]")
        return " ".join(words)
