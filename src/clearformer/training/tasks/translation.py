"""Translation: an encoder-decoder predicts each token of a target from those before it and from the source."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor

from clearformer.config import Spec
from clearformer.data import PairBatches, PairDataset, PairsData, prepare_pairs
from clearformer.decoding.translations import translate
from clearformer.evaluation.parts import part_of_pairs
from clearformer.evaluation.teacher_forcing import PairLoss, evaluate_pairs
from clearformer.model import EncoderDecoder
from clearformer.text import Tokenizer
from clearformer.training.objective import summed_loss_of_hidden
from clearformer.training.tasks.task import Progress, Task, shortened, to_tensors

if TYPE_CHECKING:
    from clearformer.training.config import RunConfig


class Translate(Spec):
    """-log p(next token of the target), given the source: teacher forcing (Vaswani et al. 2017; lecture 002).

    Attributes:
        batch_tokens: The most tokens on either side of a batch, padding included.
    """

    kind: Literal["translation"] = "translation"
    family: ClassVar[str] = "encoder-decoder"
    data_kinds: ClassVar[tuple[str, ...]] = ("pairs",)

    batch_tokens: PositiveInt = 4096

    def open(self, config: "RunConfig", tokenizer: Tokenizer | None, progress: Progress) -> "Translation":
        """The task, its pairs prepared; a tokeniser that is given is used, otherwise one is made."""
        assert isinstance(config.data, PairsData)
        dataset = prepare_pairs(
            config.data, tokenizer or config.tokenizer, config.model.max_seq_len, progress=progress
        )
        return Translation(config, dataset, self.batch_tokens)


class Translation(Task):
    """See `Translate`."""

    shapes_vary: ClassVar[bool] = True

    def __init__(self, config: "RunConfig", dataset: PairDataset, batch_tokens: int) -> None:
        self.config, self.dataset, self.tokenizer = config, dataset, dataset.tokenizer
        self.batches = PairBatches(dataset.splits["train"], self.tokenizer, batch_tokens, config.seed)

    @property
    def data_sha256(self) -> str:
        return self.dataset.manifest["source"]["sha256"]

    def batch(self, step: int, part: int, n_parts: int) -> tuple[Tensor, ...]:
        """Source [B S] and where it is real, target so far [B T], target [B T], and the weight of its tokens."""
        b = self.batches.batch(step, part, n_parts)
        tensors = to_tensors(b.source, b.source_padding, b.tokens, b.targets)
        return *tensors, torch.tensor(n_parts / b.n_target_tokens)

    def n_tokens(self, step: int) -> int:
        return self.batches.n_target_tokens(step)

    def loss(self, model: EncoderDecoder, *batch: Tensor) -> Tensor:
        source, source_padding, tokens, targets, weight = batch
        # Padding on the right of a target is read by nothing that counts: causal order is mask enough.
        hidden = model.hidden(source, tokens, source_padding)
        return weight * summed_loss_of_hidden(model, hidden, targets, self.config.train.label_smoothing)

    @property
    def rows_per_step(self) -> float:
        return len(self.batches.split) / self.batches.batches_per_epoch

    @property
    def n_held_out(self) -> int:
        return len(self.dataset.splits.get("val", ()))

    def evaluate(
        self, model: EncoderDecoder, dtype: torch.dtype, n_rows: int | None = None
    ) -> PairLoss | None:
        split = self.dataset.splits.get("val")
        if split is None:
            return None
        part = split if n_rows is None else part_of_pairs(split, n_rows)
        return evaluate_pairs(model, part, self.tokenizer, dtype=dtype)

    def metrics(self, measured: PairLoss) -> dict[str, float]:
        return {"val_perplexity": round(measured.perplexity, 4)}

    def sample(self, model: EncoderDecoder) -> str:
        """The first held-out source, its translation by the model, and the reference."""
        return self.examples(model, 1, beams=1)

    def examples(self, model: EncoderDecoder, n: int, **search: Any) -> str:
        """Held-out sources, each with its translation by the model and the reference."""
        split = self.dataset.splits.get("val", self.dataset.splits["train"])
        sources, references = split.source_texts[:n], split.target_texts[:n]
        found = translate(_Run(model, self.tokenizer), sources, **search)
        return "\n".join(map(_example, sources, [best.text for best, *_ in found], references))


def _example(source: str, found: str, reference: str) -> str:
    if found == reference:
        return f"{shortened(source)}\n  -> {shortened(found)} (as in the reference)"
    return f"{shortened(source)}\n  -> {shortened(found)}\n     reference: {shortened(reference)}"


@dataclass(frozen=True)
class _Run:
    model: EncoderDecoder
    tokenizer: Tokenizer
