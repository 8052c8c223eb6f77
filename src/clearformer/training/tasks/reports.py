"""The parts of a report about a trained model: plain data, which the command line renders."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from clearformer.errors import count
from clearformer.evaluation.classes.metrics import ClassificationReport


class AccuracyResult(Protocol):
    """An evaluation that counts how many tokens were the model's first choice."""

    @property
    def loss(self) -> float: ...
    @property
    def perplexity(self) -> float: ...
    @property
    def accuracy(self) -> float: ...


class Figure(NamedTuple):
    """A named figure, in words; one without a name continues the figure above it."""

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
        figures: The figures of the held-out data; empty if nothing is held out.
        sample: A sample of the model's output.
        next_commands: Commands to try with the run, without the program's name.
    """

    figures: tuple[Section, ...]
    sample: str
    next_commands: tuple[str, ...]


@dataclass(frozen=True)
class EvaluationReport:
    """The result of an evaluation.

    Attributes:
        sections: The report for people.
        values: All values, for JSON.
        classes: A classifier's scores with its confusion matrix; None for other tasks.
    """

    sections: tuple[Section, ...]
    values: dict[str, Any]
    classes: ClassificationReport | None = None


def one_vocabulary(vocab_size: int) -> str:
    """Return a sentence that says which losses may be compared."""
    tokens = count(vocab_size, "token")
    return f"Perplexity and loss per token are comparable only within one vocabulary (here {tokens})"


def vocabulary_note(vocab_size: int) -> Section:
    """Return the same as a line for the figures at the end of a run."""
    tokens = count(vocab_size, "token")
    return Section(text=f"(perplexities are comparable only within one vocabulary, here {tokens})")


def accuracy_figures(
    result: AccuracyResult, which: str, predicted: str, description: str
) -> tuple[Figure, ...]:
    """Return the figures of an evaluation with an accuracy.

    Args:
        result: The evaluation.
        which: The tokens that it predicts, in words.
        predicted: How many they are, in words.
        description: How much of the data was read, in words.
    """
    return (
        *token_figures(result.loss, result.perplexity),
        Figure("accuracy", f"{result.accuracy:.2%} of {which} are the model's first choice"),
        Figure("predicted", predicted),
        Figure("read", description),
    )


def token_figures(loss: float, perplexity: float) -> tuple[Figure, Figure]:
    """Return the two figures that every model of tokens has."""
    return Figure("loss", f"{loss:.4f} nats per token"), Figure("perplexity", f"{perplexity:.3f}")
