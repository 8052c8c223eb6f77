"""What a run came to, for people: figures, something by the model, and what to try next; one function a task."""

import shutil
import sys
from functools import singledispatch
from pathlib import Path

from clearformer.evaluate import Evaluation
from clearformer.evaluate.baseline import Baseline
from clearformer.evaluate.classification import ClassificationReport
from clearformer.evaluate.classifying import ClassEvaluation, baseline_for
from clearformer.evaluate.masked import MaskedEvaluation
from clearformer.evaluate.teacher_forcing import PairLoss
from clearformer.generate import generate
from clearformer.model import Encoder, EncoderDecoder
from clearformer.run import Run
from clearformer.train.folder import RunFolder
from clearformer.train.loop import Outcome
from clearformer.train.tasks import (
    Classification,
    LanguageModelling,
    MaskedModelling,
    Measured,
    Task,
    Translation,
)

SAMPLE_TOKENS = 400
N_SHOWN = 4  # translations at the end of a run


def result(outcome: Outcome, folder: RunFolder) -> str:
    """What a run came to: its held-out figures, something by the model, and what to try next."""
    run = Run(folder, folder.read_config(), outcome.model, outcome.task.tokenizer, outcome.progress.step)
    program, name = program_as_called(), folder.path.name
    lines = [
        f"\n{folder.path}: {outcome.progress.step} steps in {outcome.progress.seconds:.1f} s of training",
        *figures(outcome.task, outcome.evaluation),
        "",
        *shown(outcome.task, run),
        "",
        "Next:",
        *(f"  {program} {line.format(name=name)}" for line in NEXT_COMMANDS[type(outcome.task)]),
    ]
    return "\n".join(lines)


# --- figures ----------------------------------------------------------------------------------------------


def figures(task: Task, evaluation: Measured | None) -> list[str]:
    """The held-out figures."""
    match evaluation:
        case Evaluation() as e:
            line = (
                f"held-out text (all {e.n_tokens:,} tokens of it): {e.loss:.4f} nats per token, "
                f"perplexity {e.perplexity:.2f}"
                + (f", {e.bits_per_char:.3f} bits per character" if e.bits_per_char is not None else "")
            )
        case PairLoss() as e:
            line = (
                f"held-out pairs (all {e.n_pairs:,}): {e.loss:.4f} nats per token, perplexity {e.perplexity:.2f}; "
                f"{e.accuracy:.1%} of their tokens are the model's first choice"
            )
        case MaskedEvaluation() as e:
            line = (
                f"held-out text: of {e.n_tokens:,} masked tokens {e.accuracy:.1%} were guessed; "
                f"{e.loss:.4f} nats per token, perplexity {e.perplexity:.2f}"
            )
        case ClassEvaluation() as e:
            assert isinstance(task, Classification)
            baseline = baseline_for(task.dataset, task.dataset.splits["val"])
            return ["held-out texts:", *class_figures(e.report, baseline)]
        case _:
            return []
    return [
        line,
        f"(perplexity compares only within one vocabulary, here of {task.tokenizer.vocab_size} tokens)",
    ]


def class_figures(report: ClassificationReport, baseline: Baseline | str) -> list[str]:
    """A classifier's figures beside those of what it has to beat, or why that is not there."""
    beside = [baseline] if isinstance(baseline, str) else [baseline.report.summary(), baseline.settings]
    return [
        f"  this run  {report.summary()}",
        *(f"  {name:8}  {line}" for name, line in zip(("baseline", ""), beside, strict=False)),
        f"  majority  accuracy {report.majority:.2%}",
    ]


# --- something by the model -------------------------------------------------------------------------------


@singledispatch
def shown(task: Task, run: Run) -> list[str]:
    """Something by the model."""
    raise NotImplementedError(type(task))


@shown.register
def _(task: LanguageModelling, run: Run) -> list[str]:
    [text] = generate(run, opening(task), max_new_tokens=SAMPLE_TOKENS, temperature=0.8, seed=1)
    return [text.text.strip("\n")]


def opening(task: LanguageModelling) -> str:
    """What a sample begins with: a new line, or the training text's first token where it has no lines."""
    if task.tokenizer.id_of("\n") is not None:
        return "\n"
    return task.tokenizer.decode(task.dataset.splits["train"].read(0, 1))


@shown.register
def _(task: Translation, run: Run) -> list[str]:
    assert isinstance(run.model, EncoderDecoder)
    return [task.examples(run.model, N_SHOWN)]


@shown.register
def _(task: MaskedModelling, run: Run) -> list[str]:
    assert isinstance(run.model, Encoder)
    return [
        "masked tokens are in brackets: [token] where guessed, [guess|token] where not",
        task.sample(run.model),
    ]


@shown.register
def _(task: Classification, run: Run) -> list[str]:
    assert isinstance(run.model, Encoder)
    return [task.sample(run.model)]


# --- what to try next -------------------------------------------------------------------------------------


NEXT_COMMANDS: dict[type[Task], tuple[str, str, str]] = {
    LanguageModelling: (
        'generate {name} --prompt "The " --temperature 0.8 --num 3',
        "eval {name} --stride 16",
        "train quick data.path=YOUR.txt train.max_seconds=120",
    ),
    Translation: (
        "translate {name} YOUR.txt --beams 5",
        "eval {name}",
        "train translate data.source=YOUR.fr data.target=YOUR.en train.max_seconds=600",
    ),
    MaskedModelling: (
        "train classify train.pretrained={name} data.path=YOUR.tsv",
        "eval {name}",
        "export {name} FOLDER",
    ),
    Classification: (
        "classify {name} YOUR.txt",
        "eval {name}",
        "train classify data.path=YOUR.tsv train.max_seconds=120",
    ),
}


def program_as_called() -> str:
    """What the user has to type for this program: its name, or its path where the name is not found."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return "python -m clearformer"
    return called.name if shutil.which(called.name) else str(called)
