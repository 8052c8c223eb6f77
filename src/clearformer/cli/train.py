"""`clearformer train`: one command from a text to a trained model, its held-out loss and a sample."""

import logging
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearformer.errors import ConfigError, RunError

if TYPE_CHECKING:
    from clearformer.run import Run
    from clearformer.train.config import RunConfig
    from clearformer.train.folder import RunFolder
    from clearformer.train.loop import Outcome

app = typer.Typer(add_completion=False)

SAMPLE_TOKENS = 400


@app.command()
def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PRESET] [KEY=VALUE]...", help="A preset (quick), then settings: train.lr=3e-4"
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file of settings, laid over the preset.")
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="The run's name under runs/ (or $CLEARFORMER_RUNS).")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run of that name.")] = False,
) -> None:
    """Train a model; see it learn; end with its held-out loss and a sample.

    Settings come from the preset, then the TOML file, then key=value, later ones winning. Everything is kept in
    runs/NAME: config.toml, tokenizer.json, metrics.jsonl, checkpoints. Ctrl-C finishes the step and saves.
    """
    from clearformer.cli.console import ConsoleReporter
    from clearformer.train import loop
    from clearformer.train.processes import is_main_process
    from clearformer.train.report import Reporter

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    settings, folder = (resumed if resume else begun)(arguments or [], config, run)
    reporter = ConsoleReporter() if is_main_process() else Reporter()
    reporter.say(f"run {folder.path}: {summary(settings)}")
    outcome = loop.train(settings, folder, reporter, resume=resume)
    if is_main_process():
        typer.echo(result(outcome, folder))


def begun(arguments: list[str], config: Path | None, run: str | None) -> "tuple[RunConfig, RunFolder]":
    """A new run's configuration and folder."""
    from clearformer.presets import resolve_run, split_arguments
    from clearformer.run import free_name, new_run

    settings = resolve_run(arguments, config)
    preset, _ = split_arguments(arguments)
    return settings, new_run(free_name(f"{preset}-{settings.data.label}") if run is None else run)


def resumed(arguments: list[str], config: Path | None, run: str | None) -> "tuple[RunConfig, RunFolder]":
    """An earlier run's configuration and folder; how long it runs and what it tells may be changed."""
    from clearformer.config import explicit, parse_override, resolve
    from clearformer.run import find_run
    from clearformer.train.config import MAY_CHANGE, RunConfig

    if run is None:
        raise RunError("--resume: say which run by --run NAME")
    if config is not None:
        raise ConfigError(
            "--config: a resumed run keeps its own config.toml; change single keys by key=value"
        )
    folder = find_run(run)
    settings = folder.read_config()
    for argument in arguments:
        key = argument.partition("=")[0]
        if key not in MAY_CHANGE:
            raise ConfigError(
                f"{key}: a resumed run must stay the run it was; what may change is {', '.join(sorted(MAY_CHANGE))}"
            )
    if arguments:
        settings = resolve(RunConfig, explicit(settings), *map(parse_override, arguments))
        folder.write_config(settings)
    return settings, folder


def summary(config: "RunConfig") -> str:
    """A run in a line, before it begins."""
    model = config.model
    return (
        f"{model.n_layers} layers, d_model {model.d_model}, {model.attention.kind} attention, "
        f"{model.position.kind} positions; {config.train.optimizer.kind} on {config.data.label}, "
        f"{config.train.batch_size} x {model.max_seq_len} tokens a step"
    )


def result(outcome: "Outcome", folder: "RunFolder") -> str:
    """What a run came to: its held-out figures, a sample, and what to try next."""
    from clearformer.run import Run

    tokenizer = outcome.dataset.tokenizer
    lines = [
        f"\n{folder.path}: {outcome.progress.step} steps in {outcome.progress.seconds:.1f} s of training"
    ]
    if outcome.evaluation is not None:
        lines.append(evaluation_line(outcome))
    run = Run(folder, folder.read_config(), outcome.model, tokenizer, outcome.progress.step)
    lines += ["", sample(run, opening(outcome)), "", *next_commands(folder)]
    return "\n".join(lines)


def evaluation_line(outcome: "Outcome") -> str:
    """The held-out figures in a line."""
    evaluation = outcome.evaluation
    assert evaluation is not None
    return (
        f"held-out text (all {evaluation.n_tokens:,} tokens of it): {evaluation.loss:.4f} nats per token, "
        f"perplexity {evaluation.perplexity:.2f}, {evaluation.bits_per_char:.3f} bits per character\n"
        f"(perplexity compares only within one vocabulary, here of {outcome.dataset.tokenizer.vocab_size} tokens)"
    )


def opening(outcome: "Outcome") -> str:
    """What a sample begins with: a new line, or the training text's first token where it has no lines."""
    dataset = outcome.dataset
    if dataset.tokenizer.id_of("\n") is not None:
        return "\n"
    return dataset.tokenizer.decode(dataset.splits["train"].read(0, 1))


def sample(run: "Run", prompt: str) -> str:
    """A text by the trained model."""
    from clearformer.generate import generate

    [text] = generate(run, prompt, max_new_tokens=SAMPLE_TOKENS, temperature=0.8, seed=1)
    return text.text.strip("\n")


def next_commands(folder: "RunFolder") -> list[str]:
    """Three commands to try next."""
    name, program = folder.path.name, program_as_called()
    return [
        "Next:",
        f'  {program} generate {name} --prompt "The " --temperature 0.8 --num 3',
        f"  {program} eval {name} --stride 16",
        f"  {program} train quick data.path=YOUR.txt train.max_seconds=120",
    ]


def program_as_called() -> str:
    """What the user has to type for this program: its name, or its path where the name is not found."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return "python -m clearformer"
    return called.name if shutil.which(called.name) else str(called)
