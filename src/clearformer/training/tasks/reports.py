"""Values that a report shows of a trained model: plain data, which the command line renders."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from clearformer.evaluation.classes.metrics import ClassificationReport


class AccuracyResult(Protocol):
    """An evaluation with the share of tokens that were the model's first choice."""

    @property
    def loss(self) -> float: ...
    @property
    def perplexity(self) -> float: ...
    @property
    def accuracy(self) -> float: ...


class Figure(NamedTuple):
    """A figure with its name, in words; a line without a name goes on with the figure above it."""

    name: str
    value: str


@dataclass(frozen=True)
class Section:
    """A part of a report: a heading, figures with their names, and text."""

    heading: str = ""
    figures: tuple[Figure, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class TrainingReport:
    """The result of a training run.

    Attributes:
        figures: Of the held-out data; none where nothing is held out.
        sample: Something by the model.
        next_commands: Commands that go on from the run, without the program's name.
    """

    figures: tuple[Section, ...]
    sample: str
    next_commands: tuple[str, ...]


@dataclass(frozen=True)
class EvaluationReport:
    """The result of an evaluation.

    Attributes:
        sections: For people.
        values: All of it, for JSON.
        classes: A classifier's scores with its confusion matrix; None of other tasks.
    """

    sections: tuple[Section, ...]
    values: dict[str, Any]
    classes: ClassificationReport | None = None


def one_vocabulary(vocab_size: int) -> str:
    """A sentence about what the loss may be compared with."""
    return f"Perplexity and loss per token compare only within one vocabulary (here {vocab_size} tokens)"


def vocabulary_note(vocab_size: int) -> Section:
    """The same, in a line beside the figures of a run's end."""
    return Section(text=f"(perplexities compare only within one vocabulary, here of {vocab_size:,} tokens)")


def accuracy_figures(
    result: AccuracyResult, which: str, predicted: str, description: str
) -> tuple[Figure, ...]:
    """The figures of tokens of which it is counted how many are the model's first choice.

    Args:
        result: The evaluation.
        which: The tokens, in words.
        predicted: How many they are, in words.
        description: How much of the data was read.
    """
    return (
        *token_figures(result.loss, result.perplexity),
        Figure("accuracy", f"{result.accuracy:.2%} of {which} are the model's first choice"),
        Figure("predicted", predicted),
        Figure("read", description),
    )


def token_figures(loss: float, perplexity: float) -> tuple[Figure, Figure]:
    """The figures of every model of tokens."""
    return Figure("loss", f"{loss:.4f} nats per token"), Figure("perplexity", f"{perplexity:.3f}")
