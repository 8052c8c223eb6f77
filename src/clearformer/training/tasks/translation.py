"""Translation: an encoder-decoder predicts each token of a target from those before it and from the source."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from clearformer.data import PairBatches, PairDataset, PairsData, PairSplit, Progress, prepare_pairs
from clearformer.data.locating.places import Example
from clearformer.data.pairs.merge_dropout import ReadAnew
from clearformer.decoding.arguments import OnStep
from clearformer.decoding.text.translations import translate
from clearformer.errors import MissingPackageError, count, shortened
from clearformer.evaluation.subsets import pairs_at, subset_of_pairs
from clearformer.evaluation.teacher_forcing import PairLoss, evaluate_pairs
from clearformer.evaluation.translation import evaluate_translation
from clearformer.model import EncoderDecoder
from clearformer.text import Tokenizer
from clearformer.training.config import RunConfig
from clearformer.training.objectives import ObjectiveSpec, TranslationObjective
from clearformer.training.tasks.losses import summed_loss_of_any, summed_loss_of_hidden
from clearformer.training.tasks.r_drop import (
    PASSES,
    summed_r_drop_of_counted,
    summed_r_drop_of_hidden,
    twice,
)
from clearformer.training.tasks.reports import (
    EvaluationReport,
    Section,
    accuracy_figures,
    one_vocabulary,
    vocabulary_note,
)
from clearformer.training.tasks.seen import choose_rows
from clearformer.training.tasks.task import (
    SAMPLE_CHARACTERS,
    EvaluationData,
    EvaluationOptions,
    FullBatch,
    Task,
    TrainedModel,
    to_tensors,
)

N_EXAMPLES = 4  # translations at the end of a run


class TranslationTask(Task):
    """See `TranslationObjective`."""

    objective_type: ClassVar[type[ObjectiveSpec]] = TranslationObjective
    targets_at: ClassVar[int | None] = 3
    shapes_vary: ClassVar[bool] = True
    dataset: PairDataset

    def __init__(self, config: RunConfig, dataset: PairDataset) -> None:
        super().__init__(config, dataset)
        objective = config.train.objective
        assert isinstance(objective, TranslationObjective)
        train, read, max_tokens = dataset.splits["train"], None, config.model.max_seq_len
        if objective.bpe_dropout:
            room = max_tokens - 1 - len(self.tokenizer.before_pair)
            read = ReadAnew(train, self.tokenizer, objective.bpe_dropout, config.seed, room)
        self.batches = PairBatches(
            train, self.tokenizer, objective.batch_tokens, config.seed, read=read, max_tokens=max_tokens
        )

    @classmethod
    def prepare(cls, config: RunConfig, tokenizer: Tokenizer | None, progress: Progress) -> PairDataset:
        assert isinstance(config.data, PairsData)
        return prepare_pairs(
            config.data, tokenizer or config.tokenizer, config.model.max_seq_len, progress=progress
        )

    def batch(self, step: int, part: int, n_parts: int) -> tuple[Tensor, ...]:
        """Return source [B S], where it is real, decoder input [B T], targets [B T], and the weight of each target."""
        b = self.batches.batch(step, part, n_parts)
        tensors = to_tensors(b.source, b.source_padding, b.tokens, b.targets)
        return *tensors, torch.tensor(n_parts / b.n_target_tokens)

    def example_ids(self, step: int) -> Int64[np.ndarray, " B"]:
        return self.batches.pairs(step)

    def find_examples(self, examples: Sequence[int]) -> list[Example]:
        return self.dataset.find(examples)

    def n_tokens(self, step: int) -> int:
        return self.batches.n_target_tokens(step)

    @property
    def rows_per_step(self) -> float:
        return len(self.batches.split) / self.batches.batches_per_epoch

    # --- loss -----------------------------------------------------------------------------------------------

    def loss(self, model: EncoderDecoder, *batch: Tensor) -> Tensor:
        source, source_padding, tokens, targets, weight = batch
        smoothing, alpha = self.config.train.label_smoothing, self.config.train.r_drop
        if alpha:
            hidden = model.hidden(*twice(source, tokens, source_padding))
            return weight * summed_r_drop_of_hidden(model, hidden, targets, alpha, smoothing)
        # Targets are padded on the right, where causal attention keeps all positions that count from reading it.
        hidden = model.hidden(source, tokens, source_padding)
        return weight * summed_loss_of_hidden(model, hidden, targets, smoothing)

    @classmethod
    def full_loss(cls, model: Any, batch: FullBatch) -> Tensor:
        tokens, padding = batch.tensors
        smoothing, alpha = batch.train.label_smoothing, batch.train.r_drop
        if alpha:
            both = model.hidden(*twice(tokens, tokens, padding)).view(PASSES, tokens.numel(), -1)
            return summed_r_drop_of_counted(model, both, tokens.flatten(), alpha, smoothing, batch.on_gpu)
        hidden = model.hidden(tokens, tokens, padding)
        return summed_loss_of_any(model, hidden, tokens, tokens.numel(), smoothing, batch.on_gpu)

    # --- evaluation -----------------------------------------------------------------------------------------

    def evaluate(
        self, model: EncoderDecoder, dtype: torch.dtype, n_rows: int | None = None
    ) -> PairLoss | None:
        split = self.dataset.splits.get("val")
        if split is None:
            return None
        subset = split if n_rows is None else subset_of_pairs(split, n_rows)
        return evaluate_pairs(model, subset, self.tokenizer, dtype=dtype)

    def metrics(self, result: PairLoss) -> dict[str, float]:
        return {"val_perplexity": round(result.perplexity, 4)}

    @classmethod
    def evaluate_on(
        cls, trained: TrainedModel, data: EvaluationData, options: EvaluationOptions
    ) -> EvaluationReport:
        """Measure how well an encoder-decoder predicts given translations, and how good its own are."""
        chosen = choose_rows(data, data.prepared.splits[data.split], unseen=options.unseen)
        split = pairs_at(data.prepared.splits[data.split], chosen.indices)
        forced = evaluate_pairs(
            trained.model,
            split,
            trained.tokenizer,
            dtype=options.dtype,
            on_step=data.on_step("evaluating"),
        )
        of_search, values = own_translations(trained, split, options, data.on_step("translating"))
        predicted = f"{count(forced.n_tokens, 'token')} of {count(forced.n_pairs, 'translation')}"
        figures = accuracy_figures(forced, "the tokens", predicted, chosen.description)
        sections = (
            Section(figures=(*figures, *chosen.figures)),
            Section(text=of_search),
            Section(
                text=f"{one_vocabulary(trained.tokenizer.vocab_size)};\n"
                "BLEU and chrF are comparable between any models on the same sentences with the same signature."
            ),
        )
        return EvaluationReport(sections, forced.to_json() | values | chosen.values)

    # --- reports --------------------------------------------------------------------------------------------

    def sample(self, model: EncoderDecoder) -> str:
        """Return the first held-out source, its translation by the model, and the reference."""
        return self.examples(model, 1, beams=1)

    def final_sample(self, model: EncoderDecoder) -> str:
        return self.examples(model, N_EXAMPLES)

    def examples(self, model: EncoderDecoder, n: int, **search: Any) -> str:
        """Return `n` held-out sources, each with its translation by the model and the reference."""
        split = self.dataset.splits.get("val", self.dataset.splits["train"])
        sources, references = split.source_texts[:n], split.target_texts[:n]
        translations = translate(TrainedModel(model, self.tokenizer), sources, **search)
        return "\n".join(map(_example, sources, [best.text for best, *_ in translations], references))

    def figures(self, result: PairLoss) -> tuple[Section, ...]:
        line = (
            f"held-out pairs (all {result.n_pairs:,}): {result.loss:.4f} nats per token, perplexity "
            f"{result.perplexity:.2f}; {result.accuracy:.1%} of the tokens are the model's first choice"
        )
        return Section(text=line), vocabulary_note(self.tokenizer.vocab_size)

    def next_commands(self, run: str, preset: str | None) -> tuple[str, ...]:
        return (
            f"translate {run} YOUR.txt --beams 5",
            f"look {run}",
            f"eval {run}{self.split_to_evaluate()}",
            f"train {preset or 'translate'} data.source=YOUR.fr data.target=YOUR.en train.max_seconds=600",
        )


def own_translations(
    trained: TrainedModel, split: PairSplit, options: EvaluationOptions, on_step: OnStep
) -> tuple[str, dict[str, Any]]:
    """Translate a split; return the scores in words and for JSON, or the reason why there are none."""
    try:
        own = evaluate_translation(
            trained,
            split.source_texts,
            split.target_texts,
            beams=options.n_beams,
            dtype=options.dtype,
            on_step=on_step,
        )
    except MissingPackageError as missing:  # the loss is not lost by it
        return f"Not translated: {missing}", {"bleu": None, "bleu_lowercase": None, "chrf": None}
    search = "greedily" if options.n_beams == 1 else f"by beam search with {options.n_beams} beams"
    cut = f"; {own.n_cut:,} were cut at the maximum length" if own.n_cut else ""
    return f"Translated {search}{cut}:\n{own.scores}", own.to_json()


def _example(source: str, translation: str, reference: str) -> str:
    matches = translation == reference
    source, translation, reference = (
        shortened(text, SAMPLE_CHARACTERS) for text in (source, translation, reference)
    )
    if matches:
        return f"{source}\n  -> {translation} (matches the reference)"
    return f"{source}\n  -> {translation}\n     reference: {reference}"
