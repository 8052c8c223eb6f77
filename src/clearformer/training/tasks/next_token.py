"""Language modelling: a decoder predicts each token of a text from those before it."""

import shlex
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from clearformer.data import Batches, Dataset, Progress, TextData, prepare
from clearformer.data.locating.places import Example
from clearformer.data.locating.windows import find_windows
from clearformer.decoding import generate
from clearformer.decoding.text.inputs import ids_of
from clearformer.decoding.text.samples import Sample
from clearformer.errors import TokenizerError, count
from clearformer.evaluation import Evaluation, evaluate_split, evaluate_whole_and_part
from clearformer.evaluation.language_model import count_windows
from clearformer.model import Decoder
from clearformer.text import Tokenizer, located
from clearformer.training.config import RunConfig
from clearformer.training.objectives import NextTokenObjective, ObjectiveSpec
from clearformer.training.tasks.losses import next_token_loss, summed_loss
from clearformer.training.tasks.r_drop import summed_r_drop, twice
from clearformer.training.tasks.reports import (
    EvaluationReport,
    Figure,
    Section,
    one_vocabulary,
    token_figures,
    vocabulary_note,
)
from clearformer.training.tasks.seen import seen_text
from clearformer.training.tasks.task import (
    EvaluationData,
    EvaluationOptions,
    FullBatch,
    Task,
    TrainedModel,
    check_rows_divide,
    contiguous_rows,
    to_tensors,
)

SAMPLE_TOKENS, FEWEST_SAMPLE_TOKENS = 400, 100  # at the end of a run; of a short one on a slow machine
MEASURED_TOKENS, MEASUREMENTS = 16, 2  # by which the time of that sample is told
PROMPT, STRIDE, FIRST_TOKENS = "The ", 16, 40  # for the commands to try next
NEW_LINE = "\n"
NOT_LOSSLESS = "- (the tokens do not encode the whole text)"


class NextTokenTask(Task):
    """See `NextTokenObjective`."""

    objective_type: ClassVar[type[ObjectiveSpec]] = NextTokenObjective
    targets_at: ClassVar[int | None] = 1
    dataset: Dataset

    def __init__(self, config: RunConfig, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        assert isinstance(config.data, TextData)
        if config.train.sample_every:
            self.check_sample_prompt()  # fail now, not at the first sample
        self.n_final_tokens = SAMPLE_TOKENS
        self.batches = Batches(
            dataset.splits["train"],
            config.data.order,
            config.train.batch_size,
            config.model.max_seq_len,
            config.seed,
        )

    @classmethod
    def prepare(cls, config: RunConfig, tokenizer: Tokenizer | None, progress: Progress) -> Dataset:
        assert isinstance(config.data, TextData)
        return prepare(config.data, tokenizer or config.tokenizer, progress=progress)

    def check_divides(self, n_parts: int) -> None:
        check_rows_divide(self.config.train.batch_size, n_parts)

    def batch(self, step: int, part: int, n_parts: int) -> tuple[Tensor, ...]:
        """Return inputs and targets, each [B T]."""
        return to_tensors(
            *self.batches.batch(step, contiguous_rows(self.config.train.batch_size, part, n_parts))
        )

    def example_ids(self, step: int) -> Int64[np.ndarray, " B"]:
        return self.batches.starts(step)

    def find_examples(self, examples: Sequence[int]) -> list[Example]:
        assert isinstance(self.config.data, TextData)
        length = self.batches.seq_len + 1  # the last is a target alone
        windows = [(first, first + length) for first in examples]
        return find_windows(self.config.data, self.dataset, windows)

    @classmethod
    def rows_of_part(cls, n_rows: int, part: int, n_parts: int) -> slice:
        return contiguous_rows(n_rows, part, n_parts)

    def n_tokens(self, step: int) -> int:
        return self.config.train.batch_size * self.config.model.max_seq_len

    @property
    def rows_per_step(self) -> float:
        return self.config.train.batch_size

    @property
    def n_held_out(self) -> int:
        split = self.dataset.splits.get("val")
        return 0 if split is None else count_windows(len(split), self.config.model.max_seq_len)

    # --- loss -----------------------------------------------------------------------------------------------

    def loss(self, model: Decoder, *batch: Tensor) -> Tensor:
        inputs, targets, *weight = batch
        smoothing, alpha = self.config.train.label_smoothing, self.config.train.r_drop
        if alpha:
            each = weight[0] if weight else 1 / targets.numel()
            return each * summed_r_drop(model(*twice(inputs)), targets, alpha, smoothing)
        if weight:  # of each target, where rows are left out of the batch (`tasks/rows.py`)
            return weight[0] * summed_loss(model(inputs), targets, smoothing)
        return next_token_loss(model(inputs), targets, smoothing)

    @classmethod
    def full_batch(cls, n_texts: int, seq_len: int) -> tuple[Tensor, ...]:
        return (torch.zeros(n_texts, seq_len, dtype=torch.long),)

    @classmethod
    def full_loss(cls, model: Any, batch: FullBatch) -> Tensor:
        [tokens] = batch.tensors
        smoothing, alpha = batch.train.label_smoothing, batch.train.r_drop
        if alpha:
            return summed_r_drop(model(*twice(tokens)), tokens, alpha, smoothing) / tokens.numel()
        return next_token_loss(model(tokens), tokens, smoothing)

    # --- evaluation -----------------------------------------------------------------------------------------

    def evaluate(self, model: Decoder, dtype: torch.dtype, n_rows: int | None = None) -> Evaluation | None:
        split = self.dataset.splits.get("val")
        if split is None:
            return None
        return evaluate_split(model, split, self.tokenizer, dtype=dtype, n_windows=n_rows)

    def evaluate_whole_and_part(
        self, model: Decoder, dtype: torch.dtype, n_rows: int
    ) -> tuple[Evaluation | None, Evaluation | None]:
        split = self.dataset.splits.get("val")
        if split is None:
            return None, None
        return evaluate_whole_and_part(model, split, self.tokenizer, dtype=dtype, n_windows=n_rows)

    def rows_of_whole_and_part(self, n_rows: int) -> int:
        return self.n_held_out

    @classmethod
    def evaluate_on(
        cls, trained: TrainedModel, data: EvaluationData, options: EvaluationOptions
    ) -> EvaluationReport:
        """Measure how well a decoder predicts a text."""
        text = data.prepared.splits[data.split]
        result = evaluate_split(
            trained.model,
            text,
            trained.tokenizer,
            context=options.context,
            stride=options.stride,
            dtype=options.dtype,
            on_step=data.on_step("evaluating"),
        )
        note = one_vocabulary(trained.tokenizer.vocab_size)
        if result.bits_per_char is not None:
            of_the_text = "bits per character and byte, and perplexity per word"
            note += f";\n{of_the_text}, are comparable between any models of the same text"
        seen = seen_text(data, text)
        figures = (*text_figures(result, data.description), *seen.figures)
        sections = (Section(figures=figures), Section(text=f"{note}."))
        return EvaluationReport(sections, result.to_json() | seen.values)

    # --- reports --------------------------------------------------------------------------------------------

    def check_sample_prompt(self) -> None:
        """Raise TokenizerError if a sample cannot begin with the prompt of the settings."""
        try:
            tokens = ids_of(self.tokenizer, self.sample_prompt())
        except TokenizerError as error:
            raise located(error, "train.sample_prompt") from None
        if not tokens and self.tokenizer.bos_id is None and self.tokenizer.id_of(NEW_LINE) is None:
            raise TokenizerError(
                f"train.sample_prompt: {self.config.train.sample_prompt!r} has no token of this tokenizer; give another"
            )

    def sample_prompt(self) -> str | list[int]:
        """Return the prompt of the settings; for a new line, what stands for it in this vocabulary."""
        prompt = self.config.train.sample_prompt
        return self.opening() if prompt == NEW_LINE else prompt

    def sample(self, model: Decoder) -> str:
        settings = self.config.train
        [sample] = generate(
            TrainedModel(model, self.tokenizer),
            self.sample_prompt(),
            max_new_tokens=settings.sample_tokens,
            temperature=settings.sample_temperature,
            seed=self.config.seed,
        )
        return sample.text

    def final_sample(self, model: Decoder) -> str:
        return self._sampled(model, self.n_final_tokens).text.strip("\n")

    def fit_final_sample(self, model: Decoder, seconds: float) -> float:
        """Take the time of a token from the first ones: the least of several times, as the first is slow."""
        each = []
        for _ in range(MEASUREMENTS):
            start = time.perf_counter()
            n_tokens = len(self._sampled(model, MEASURED_TOKENS).tokens)
            each.append((time.perf_counter() - start) / n_tokens)
        of_one = min(each)
        if of_one * self.n_final_tokens > seconds:
            self.n_final_tokens = min(self.n_final_tokens, max(FEWEST_SAMPLE_TOKENS, int(seconds / of_one)))
        return of_one * self.n_final_tokens

    def _sampled(self, model: Decoder, n_tokens: int) -> Sample:
        trained = TrainedModel(model, self.tokenizer)
        [sample] = generate(trained, self.opening(), max_new_tokens=n_tokens, temperature=0.8, seed=1)
        return sample

    def opening(self) -> str | list[int]:
        """Return the prompt of a sample: a new line, or the first training token if the vocabulary has no new line.

        The token is returned as its id, as an unknown one has no text.
        """
        if self.tokenizer.id_of(NEW_LINE) is not None:
            return NEW_LINE
        return self.dataset.splits["train"].read(0, 1).tolist()

    def figures(self, result: Evaluation) -> tuple[Section, ...]:
        line = (
            f"held-out text (all {result.n_tokens:,} tokens): {result.loss:.4f} nats per token, "
            f"perplexity {result.perplexity:.2f}"
        )
        if result.bits_per_char is not None:
            line += f", {result.bits_per_char:.3f} bits per character"
        return Section(text=line), vocabulary_note(self.tokenizer.vocab_size)

    def next_commands(self, run: str, preset: str | None) -> tuple[str, ...]:
        stride = f" --stride {STRIDE}" if self.config.model.max_seq_len > 2 * STRIDE else ""
        return (
            f"generate {run} --prompt {shlex.quote(self.prompt_to_try())} --temperature 0.8 --num 3",
            f"look {run}",
            f"eval {run}{self.split_to_evaluate()}{stride}",
            f"train {preset or 'quick'} data.path=YOUR.txt train.max_seconds=120",
        )

    def prompt_to_try(self) -> str:
        """Return an English prompt, or the training text's first word if the vocabulary cannot spell it."""
        try:
            self.tokenizer.encode(PROMPT)
        except TokenizerError:
            text = self.dataset.splits["train"]
            words = self.tokenizer.decode(text.read(0, min(len(text), FIRST_TOKENS))).split()
            return words[0] if words else NEW_LINE
        return PROMPT


def text_figures(result: Evaluation, description: str) -> tuple[Figure, ...]:
    """Return the figures of an evaluated text; `description` says how much of it was read."""
    size = ""
    if result.n_chars is not None and result.n_bytes is not None:
        size = f" ({count(result.n_chars, 'character')}, {count(result.n_bytes, 'byte')})"
    return (
        *token_figures(result.loss, result.perplexity),
        Figure("bits per token", f"{result.bits_per_token:.4f}"),
        Figure("bits per character", bits(result.bits_per_char)),
        Figure("bits per byte", bits(result.bits_per_byte)),
        *words_figures(result),
        Figure("mean entropy", f"{result.mean_entropy:.4f} nats, the loss the model expects"),
        Figure("predicted", f"{count(result.n_tokens, 'token')}{size}{unknown_tokens(result)}"),
        Figure("read", f"{description}, context {result.context}, stride {result.stride}"),
    )


def words_figures(result: Evaluation) -> tuple[Figure, ...]:
    """Return the perplexity per word, if the words are known."""
    if result.n_words is None or result.perplexity_per_word is None:
        return ()
    words = f"({count(result.n_words, 'word')}, by spaces)"
    return (Figure("perplexity per word", f"{result.perplexity_per_word:,.2f} {words}"),)


def bits(value: float | None) -> str:
    """Return bits per character or byte in words, or the reason why there are none."""
    return NOT_LOSSLESS if value is None else f"{value:.4f}"


def unknown_tokens(result: Evaluation) -> str:
    """Return the number of unknown tokens in words; empty if there are none."""
    if not result.n_unknown:
        return ""
    share = result.n_unknown / result.n_tokens
    return f", {result.n_unknown:,} of them ({share:.2%}) not in the vocabulary"
