"""What a run came to, for people: figures, something by the model, and what to try next; one function a task."""

import shlex
import shutil
import sys
from functools import singledispatch
from pathlib import Path

from clearformer.decoding import generate
from clearformer.errors import TokenizerError
from clearformer.evaluation import Evaluation
from clearformer.evaluation.classes.baseline import Baseline
from clearformer.evaluation.classes.metrics import ClassificationReport
from clearformer.evaluation.classes.scores import ClassEvaluation, baseline_for
from clearformer.evaluation.masked import MaskedEvaluation
from clearformer.evaluation.teacher_forcing import PairLoss
from clearformer.model import Encoder, EncoderDecoder
from clearformer.presets import preset_of
from clearformer.run import Run
from clearformer.runs import name_of
from clearformer.training.loop import TrainResult
from clearformer.training.store.folder import RunFolder
from clearformer.training.tasks import (
    Classification,
    LanguageModelling,
    MaskedModelling,
    Measured,
    Task,
    Translation,
)

SAMPLE_TOKENS = 400
N_SHOWN = 4  # translations at the end of a run


def result(outcome: TrainResult, folder: RunFolder) -> str:
    """What a run came to: its held-out figures, something by the model, and what to try next."""
    run = Run(
        outcome.model,
        outcome.task.tokenizer,
        folder.read_config(),
        folder=folder,
        step=outcome.progress.step,
    )
    step = outcome.progress.step
    lines = [
        f"\n{folder.path}: {step} step{'s' * (step != 1)} in {outcome.progress.seconds:.1f} s of training",
        *figures(outcome.task, outcome.evaluation),
        "",
        *shown(outcome.task, run),
        "",
        "Next:",
        *(f"  {program_as_called()} {command}" for command in next_commands(outcome.task, folder)),
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
                f"{e.accuracy:.1%} of the tokens are the model's first choice"
            )
        case MaskedEvaluation() as e:
            line = (
                f"held-out text: {e.accuracy:.1%} of {e.n_tokens:,} masked tokens were guessed right; "
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
        f"(perplexities compare only within one vocabulary, here of {task.tokenizer.vocab_size:,} tokens)",
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
        "masked tokens are in brackets: [token] where the guess is right, [guess|token] where it is wrong",
        task.sample(run.model),
    ]


@shown.register
def _(task: Classification, run: Run) -> list[str]:
    assert isinstance(run.model, Encoder)
    return [task.sample(run.model)]


# --- what to try next -------------------------------------------------------------------------------------


PROMPT, STRIDE, FIRST_TOKENS = "The ", 16, 40


def next_commands(task: Task, folder: RunFolder) -> tuple[str, ...]:
    """Commands that go on from a run, without the program's name: by its preset where it had one."""
    name = shlex.quote(name_of(folder))
    preset = preset_of(folder)
    match task:
        case LanguageModelling():
            return (
                f"generate {name} --prompt {shlex.quote(prompt_for(task))} --temperature 0.8 --num 3",
                f"eval {name}"
                + (f" --stride {STRIDE}" if task.config.model.max_seq_len > 2 * STRIDE else ""),
                f"train {preset or 'quick'} data.path=YOUR.txt train.max_seconds=120",
            )
        case Translation():
            return (
                f"translate {name} YOUR.txt --beams 5",
                f"eval {name}",
                f"train {preset or 'translate'} data.source=YOUR.fr data.target=YOUR.en train.max_seconds=600",
            )
        case MaskedModelling():
            return (
                f"train classify train.pretrained={name} data.path=YOUR.tsv",
                f"eval {name}",
                f"export {name} FOLDER",
            )
        case Classification():
            return (
                f"classify {name} YOUR.txt",
                f"eval {name}",
                f"train {preset or 'classify'} data.path=YOUR.tsv train.max_seconds=120",
            )
    raise NotImplementedError(type(task))


def prompt_for(task: LanguageModelling) -> str:
    """A prompt to try: in English, or where the vocabulary cannot spell that, the training text's first word."""
    try:
        task.tokenizer.encode(PROMPT)
    except TokenizerError:
        text = task.dataset.splits["train"]
        words = task.tokenizer.decode(text.read(0, min(len(text), FIRST_TOKENS))).split()
        return words[0] if words else opening(task)
    return PROMPT


def program_as_called() -> str:
    """What the user has to type for this program: its name, or its path where the name is not found."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return "python -m clearformer"
    return called.name if shutil.which(called.name) else str(called)
