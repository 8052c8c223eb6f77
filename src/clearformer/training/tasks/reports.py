"""Values that a report shows of a trained model: plain data, which the command line renders."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from clearformer.evaluation.classes.metrics import ClassificationReport


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


def token_figures(loss: float, perplexity: float) -> tuple[Figure, Figure]:
    """The figures of every model of tokens."""
    return Figure("loss", f"{loss:.4f} nats per token"), Figure("perplexity", f"{perplexity:.3f}")
