"""`clearformer train`: one command from a text to a trained model, its held-out loss and a sample."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearformer.errors import ConfigError, RunError

if TYPE_CHECKING:
    from clearformer.train.config import RunConfig
    from clearformer.train.folder import RunFolder

app = typer.Typer(add_completion=False)


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
    """Train a model; see it learn; end with its held-out loss and something by it.

    Where no preset is named, the data decide: texts are continued, pairs translated, labelled texts classified.

    Settings come from the preset, then the TOML file, then key=value, later ones winning. Everything is kept in
    runs/NAME: config.toml, tokenizer.json, metrics.jsonl, checkpoints. Ctrl-C finishes the step and saves.
    """
    from clearformer.cli.console import ConsoleReporter
    from clearformer.cli.outcomes import result
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
    preset, _ = split_arguments(arguments, config)
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
    from clearformer.train.tasks import Translate

    model, train = config.model, config.train
    layers = f"{model.n_layers}"
    if model.family == "encoder-decoder":
        layers += f" + {model.decoder_layers}"
    batch = f"{train.batch_size} texts"
    if config.data.kind == "text":
        batch = f"{train.batch_size} x {model.max_seq_len} tokens"
    if isinstance(train.objective, Translate):
        batch = f"up to {train.objective.batch_tokens} tokens"
    return (
        f"{model.family} of {layers} layers, d_model {model.d_model}, {model.attention.kind} attention, "
        f"{model.position.kind} positions; {train.optimizer.kind} on {config.data.label}, {batch} a step"
    )
