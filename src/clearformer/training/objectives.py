"""Objectives of training as settings: pure data, and the arithmetic that follows from them.

The task of an objective (its data, loss, evaluation and reports) is in `training/tasks/`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt

from clearformer.config import Spec
from clearformer.errors import ConfigError
from clearformer.model.config import ModelConfig
from clearformer.text import TokenizerConfig

DEFAULT_BATCH_SIZE = 32


class ObjectiveSpec(Spec):
    """The settings of an objective; each kind overrides what is different of it.

    Attributes:
        kind: Its name in a configuration.
        family: The family of models that it trains.
        data_kinds: The forms of data that it learns from.
        activity: The verb of a trained run, in a message.
        usage: The command for that, or for another way on, after the activity; `{run}` stands for the run.
        evaluation_options: The options of `eval` that are for this objective alone, and what each is about.
        continues_prompts: Whether a sample is the continuation of a prompt.
        predicts_classes: Whether a run tells the class of a text.
        has_r_drop: Whether its loss can be that of two passes with other dropout (see `train.r_drop`). It is not
            inherited, for another kind may have another loss: see `takes_r_drop`.
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
        """Whether this kind itself, and not one that it derives from, says that it has a loss of two passes."""
        return vars(type(self)).get("has_r_drop", False)

    @property
    def logits_fraction(self) -> float:
        """The fraction of a text's tokens for which the loss needs logits."""
        return 1.0

    def tokens_per_step(self, batch_size: int, seq_len: int) -> int:
        """Tokens of a whole batch, where it is full; of pairs, those of either side."""
        return batch_size * seq_len

    def texts_per_part(self, batch_size: int, grad_accum_steps: int, seq_len: int) -> int:
        """Texts of a micro-batch, where all of them have `seq_len` tokens."""
        return batch_size // grad_accum_steps

    def describe_batch(self, batch_size: int, seq_len: int, data_kind: str) -> str:
        """The size of a batch in words."""
        return f"{batch_size} x {seq_len} tokens" if data_kind == "text" else f"{batch_size} texts"

    def check_batches(self, batch_size: int, grad_accum_steps: int) -> None:
        """Raise ConfigError where the batches cannot be made as the settings of section `train` say."""
        if batch_size % grad_accum_steps:
            raise ConfigError(
                f"train.grad_accum_steps: {grad_accum_steps} parts do not divide train.batch_size={batch_size}"
            )

    def check_model(self, model: ModelConfig) -> None:
        """Raise ConfigError where a model of the family has a part that this objective does not train."""
        return

    def check_tokenizer(self, tokenizer: TokenizerConfig) -> None:
        """Raise ConfigError where the objective's settings do not go with the kind of tokeniser."""
        return


class NextTokenObjective(ObjectiveSpec):
    """-log p(next token), over windows of a text (lecture 000, section 3.3)."""

    kind: Literal["next_token"] = "next_token"
    family: ClassVar[str] = "decoder"
    data_kinds: ClassVar[tuple[str, ...]] = ("text",)
    activity: ClassVar[str] = "continues texts"
    usage: ClassVar[str] = ": clearformer generate {run}"
    evaluation_options: ClassVar[Mapping[str, str]] = {
        "context": "how much of a text is read at once",
        "stride": "how a text is read window by window",
    }
    continues_prompts: ClassVar[bool] = True
    has_r_drop: ClassVar[bool] = True


class TranslationObjective(ObjectiveSpec):
    """-log p(next token of the target), given the source: teacher forcing (Vaswani et al. 2017; lecture 002).

    Attributes:
        batch_tokens: The most tokens on either side of a batch, padding included.
        bpe_dropout: The probability with which each merge of BPE is left out while training, anew whenever a sentence
            is read, on both sides (Provilkov et al. 2020; there 0.1). Evaluations and translations leave none out.
    """

    kind: Literal["translation"] = "translation"
    family: ClassVar[str] = "encoder-decoder"
    data_kinds: ClassVar[tuple[str, ...]] = ("pairs",)
    activity: ClassVar[str] = "translates"
    usage: ClassVar[str] = ": clearformer translate {run} FILE"
    evaluation_options: ClassVar[Mapping[str, str]] = {"beams": "beam search"}
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
                "train.batch_size: the batches of a translation are counted in tokens; set "
                "train.objective.batch_tokens"
            )

    def check_tokenizer(self, tokenizer: TokenizerConfig) -> None:
        if self.bpe_dropout and tokenizer.kind != "bpe":
            raise ConfigError(
                f"train.objective.bpe_dropout leaves out merges, and tokenizer.kind={tokenizer.kind} has none to leave "
                "out: choose tokenizer.kind=bpe, or train.objective.bpe_dropout=0"
            )


class MaskedObjective(ObjectiveSpec):
    """-log p(token) where tokens were chosen: 80% hidden by [MASK], 10% replaced by others, 10% left.

    The source is Devlin et al. 2019. Of labelled texts the labels are left aside.

    Attributes:
        fraction: The part of the tokens that is chosen.
        whole_words: Whether all tokens of a word are chosen together.
    """

    kind: Literal["masked"] = "masked"
    family: ClassVar[str] = "encoder"
    data_kinds: ClassVar[tuple[str, ...]] = ("text", "labelled")
    activity: ClassVar[str] = "fills in masked tokens"
    usage: ClassVar[str] = (
        "; clearformer train classify train.pretrained={run} data.path=FILE.tsv makes a classifier of it"
    )

    fraction: float = Field(default=0.15, gt=0, lt=1)
    whole_words: bool = False

    @property
    def logits_fraction(self) -> float:
        return self.fraction

    def check_model(self, model: ModelConfig) -> None:
        if model.n_classes is not None:
            raise ConfigError(
                "model.n_classes: masked training fills in tokens and tells no classes; leave it out"
            )
        if model.pooling != "first":
            raise ConfigError(
                "model.pooling: masked training pools nothing; set it where the texts are classified"
            )


class ClassificationObjective(ObjectiveSpec):
    """-log p(class of a text).

    Attributes:
        hidden: The part of the tokens that training hides behind [MASK], others in every epoch (word dropout; Iyyer et
            al. 2015).
    """

    kind: Literal["classification"] = "classification"
    family: ClassVar[str] = "encoder"
    data_kinds: ClassVar[tuple[str, ...]] = ("labelled",)
    activity: ClassVar[str] = "classifies"
    usage: ClassVar[str] = ": clearformer classify {run} FILE"
    evaluation_options: ClassVar[Mapping[str, str]] = {
        "figure": "the confusion matrix",
        "unseen": "leaving out texts that stand in training too",
    }
    predicts_classes: ClassVar[bool] = True
    has_r_drop: ClassVar[bool] = True

    hidden: float = Field(default=0.0, ge=0, lt=1)


Objective = Annotated[
    NextTokenObjective | TranslationObjective | MaskedObjective | ClassificationObjective,
    Field(discriminator="kind"),
]
"""Slot `train.objective`: the objectives that come with the package (`registry.register("objective")` adds to them)."""
