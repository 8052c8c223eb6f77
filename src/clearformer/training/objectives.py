"""Training objectives as settings: pure data, and the arithmetic that follows from them.

An objective's task (its data, loss, evaluation and reports) is in `training/tasks/`.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt

from clearformer.config import Spec
from clearformer.errors import ConfigError
from clearformer.model.config import ModelConfig
from clearformer.text import TokenizerConfig

DEFAULT_BATCH_SIZE = 32
NATS_A_TOKEN, NATS_A_TEXT = "nats a token", "nats a text"
UNSEEN = "skipping what is also in training"


class ObjectiveSpec(Spec):
    """The settings of an objective; each kind overrides the members in which it differs.

    Attributes:
        kind: Its name in a configuration.
        family: The family of models that it trains.
        data_kinds: The forms of data that it learns from.
        activity: What a trained run does, as a message says it: "translates".
        usage: What follows the activity in that message: the command to run next; `{run}` stands for the run.
        evaluation_options: The options of `eval` for this objective alone, each with a description for messages.
        continues_prompts: Whether a sample is the continuation of a prompt.
        predicts_classes: Whether a run predicts the class of a text.
        has_r_drop: Whether it has the loss of two passes with different dropout (see `train.r_drop`). Subclasses do
            not inherit it, as their loss may be another; see `takes_r_drop`.
    """

    kind: Any
    family: ClassVar[str]
    data_kinds: ClassVar[tuple[str, ...]]
    activity: ClassVar[str]
    usage: ClassVar[str] = ""
    evaluation_options: ClassVar[Mapping[str, str]] = {}
    continues_prompts: ClassVar[bool] = False
    predicts_classes: ClassVar[bool] = False
    has_r_drop: ClassVar[bool] = False

    @property
    def takes_r_drop(self) -> bool:
        """Whether this very class, and not a base class, sets `has_r_drop`."""
        return vars(type(self)).get("has_r_drop", False)

    @property
    def logits_fraction(self) -> float:
        """The fraction of a row's tokens for which the loss needs logits."""
        return 1.0

    def tokens_per_step(self, batch_size: int, seq_len: int) -> int:
        """Return the tokens of a full batch; for pairs, those of either side."""
        return batch_size * seq_len

    def texts_per_part(self, batch_size: int, grad_accum_steps: int, seq_len: int) -> int:
        """Return the rows of a micro-batch in which every row has `seq_len` tokens."""
        return batch_size // grad_accum_steps

    def describe_batch(self, batch_size: int, seq_len: int, data_kind: str) -> str:
        """Return the size of a batch in words."""
        return f"{batch_size} x {seq_len} tokens" if data_kind == "text" else f"{batch_size} texts"

    def check_batches(self, batch_size: int, grad_accum_steps: int) -> None:
        """Raise ConfigError if batches of this size cannot be made, or not be divided into parts."""
        if batch_size % grad_accum_steps:
            raise ConfigError(
                f"train.grad_accum_steps: {grad_accum_steps} does not divide train.batch_size={batch_size}"
            )

    def check_model(self, model: ModelConfig) -> None:
        """Raise ConfigError if a model has a part that this objective does not train."""
        return

    def check_tokenizer(self, tokenizer: TokenizerConfig) -> None:
        """Raise ConfigError if the objective's settings do not fit the kind of tokenizer."""
        return

    def check_data(self, form: str) -> None:
        """Raise ConfigError if the objective's settings do not fit this one of its `data_kinds`."""
        return


class NextTokenObjective(ObjectiveSpec):
    """-log p(next token), over windows of a text (lecture 000, section 3.3)."""

    kind: Literal["next_token"] = "next_token"
    family: ClassVar[str] = "decoder"
    data_kinds: ClassVar[tuple[str, ...]] = ("text",)
    activity: ClassVar[str] = "continues texts"
    usage: ClassVar[str] = ": clearformer generate {run}"
    evaluation_options: ClassVar[Mapping[str, str]] = {
        "context": "the size of a window",
        "stride": "the step from window to window",
    }
    continues_prompts: ClassVar[bool] = True
    has_r_drop: ClassVar[bool] = True


class TranslationObjective(ObjectiveSpec):
    """-log p(next token of the target), given the source: teacher forcing (Vaswani et al. 2017; lecture 004, 4.8).

    Attributes:
        batch_tokens: The most tokens on either side of a batch, padding included, unless one pair alone has more. With
            `bpe_dropout` this holds in the first epoch and approximately in others.
        bpe_dropout: The probability of leaving out each merge of BPE in training, on both sides and drawn anew whenever
            a sentence is read (Provilkov et al. 2020; there 0.1). Evaluations and translations leave none out.
    """

    kind: Literal["translation"] = "translation"
    family: ClassVar[str] = "encoder-decoder"
    data_kinds: ClassVar[tuple[str, ...]] = ("pairs",)
    activity: ClassVar[str] = "translates"
    usage: ClassVar[str] = ": clearformer translate {run} FILE"
    evaluation_options: ClassVar[Mapping[str, str]] = {"beams": "beam search", "unseen": UNSEEN}
    has_r_drop: ClassVar[bool] = True

    batch_tokens: PositiveInt = 4096
    bpe_dropout: float = Field(default=0.0, ge=0, lt=1)

    def tokens_per_step(self, batch_size: int, seq_len: int) -> int:
        return self.batch_tokens

    def texts_per_part(self, batch_size: int, grad_accum_steps: int, seq_len: int) -> int:
        return max(1, self.batch_tokens // grad_accum_steps // seq_len)

    def describe_batch(self, batch_size: int, seq_len: int, data_kind: str) -> str:
        return f"up to {self.batch_tokens:,} tokens"

    def check_batches(self, batch_size: int, grad_accum_steps: int) -> None:
        if batch_size != DEFAULT_BATCH_SIZE:
            raise ConfigError(
                "train.batch_size: translation batches are sized in tokens; set train.objective.batch_tokens"
            )

    def check_tokenizer(self, tokenizer: TokenizerConfig) -> None:
        if self.bpe_dropout and tokenizer.kind != "bpe":
            raise ConfigError(
                f"train.objective.bpe_dropout drops merges, but tokenizer.kind={tokenizer.kind} has none: set "
                "tokenizer.kind=bpe or train.objective.bpe_dropout=0"
            )


class EncoderObjective(ObjectiveSpec):
    """An objective of encoders.

    Attributes:
        wordpiece_dropout: The probability of leaving out each longest match of WordPiece in training, drawn anew
            whenever a text is read (Hiraoka 2022). Evaluations and predictions leave none out.
    """

    family: ClassVar[str] = "encoder"

    wordpiece_dropout: float = Field(default=0.0, ge=0, lt=1)

    def check_tokenizer(self, tokenizer: TokenizerConfig) -> None:
        if self.wordpiece_dropout and tokenizer.kind != "wordpiece":
            raise ConfigError(
                f"train.objective.wordpiece_dropout leaves out WordPiece's longest matches, but tokenizer.kind="
                f"{tokenizer.kind} has none: set tokenizer.kind=wordpiece or train.objective.wordpiece_dropout=0"
            )


class MaskedObjective(EncoderObjective):
    """-log p(token) of the chosen tokens: 80% hidden by [MASK], 10% replaced by others, 10% left (Devlin et al. 2019).

    With labelled texts, the labels are ignored.

    Attributes:
        wordpiece_dropout: As in `EncoderObjective`; with labelled texts alone, as windows of a running text have no
            room for more tokens.
        fraction: The fraction of the tokens that is chosen.
        whole_words: Whether all tokens of a word are chosen together.
    """

    kind: Literal["masked"] = "masked"
    data_kinds: ClassVar[tuple[str, ...]] = ("text", "labelled")
    activity: ClassVar[str] = "fills in masked tokens"
    usage: ClassVar[str] = (
        "; clearformer train classify train.pretrained={run} data.path=FILE.tsv turns it into a classifier"
    )

    fraction: float = Field(default=0.15, gt=0, lt=1)
    whole_words: bool = False

    @property
    def logits_fraction(self) -> float:
        return self.fraction

    def check_model(self, model: ModelConfig) -> None:
        if model.n_classes is not None:
            raise ConfigError("model.n_classes: masked training predicts tokens, not classes; remove it")
        if model.pooling != "first":
            raise ConfigError(
                "model.pooling: masked training does no pooling; set it when training a classifier"
            )

    def check_data(self, form: str) -> None:
        if self.wordpiece_dropout and form != "labelled":
            raise ConfigError(
                "train.objective.wordpiece_dropout: windows of a running text have no room for more tokens; set "
                "data.kind=labelled (one text a row), or remove it"
            )


class ClassificationObjective(EncoderObjective):
    """-log p(class of a text).

    Attributes:
        hidden: The fraction of the tokens that training replaces by [MASK], drawn anew at every step (word dropout;
            Iyyer et al. 2015).
    """

    kind: Literal["classification"] = "classification"
    data_kinds: ClassVar[tuple[str, ...]] = ("labelled",)
    activity: ClassVar[str] = "classifies"
    usage: ClassVar[str] = ": clearformer classify {run} FILE"
    evaluation_options: ClassVar[Mapping[str, str]] = {
        "figure": "the confusion matrix",
        "unseen": UNSEEN,
    }
    predicts_classes: ClassVar[bool] = True
    has_r_drop: ClassVar[bool] = True

    hidden: float = Field(default=0.0, ge=0, lt=1)


Objective = Annotated[
    NextTokenObjective | TranslationObjective | MaskedObjective | ClassificationObjective,
    Field(discriminator="kind"),
]
"""Slot `train.objective`: the package's own objectives; `registry.register("objective")` adds others."""


def loss_unit(objectives: Iterable[ObjectiveSpec]) -> str:
    """Return the unit of the losses of runs: nats a token, or of classifiers a text; nats for runs of both kinds."""
    units = {NATS_A_TEXT if each.predicts_classes else NATS_A_TOKEN for each in objectives}
    return "nats" if len(units) > 1 else units.pop() if units else NATS_A_TOKEN
