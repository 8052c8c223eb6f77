"""`clearformer train`: from data to a trained model, its held-out loss and a sample."""

import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearformer.cli.commands_to_type import to_type
from clearformer.cli.importing import importing
from clearformer.cli.options import Config, show_log
from clearformer.cli.streams import write_text
from clearformer.errors import Interrupted, RunError

if TYPE_CHECKING:
    from clearformer.runs.training import RunStart
    from clearformer.training.config import RunConfig

app = typer.Typer(add_completion=False)


@app.command()
def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PRESET] [KEY=VALUE]...",
            help="A preset (see clearformer presets) and settings, such as train.lr=3e-4.",
        ),
    ] = None,
    config: Config = None,
    run: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the run under runs/ (or $CLEARFORMER_RUNS).")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run of that name, or start it if there is none.")
    ] = False,
) -> None:
    """Train a model, then print its held-out loss and a sample of its output.

    Without a preset, the settings of the data decide: a .tsv file, data.source= and data.target=, or built-in pairs
    train a translator; data.kind=labelled or built-in labelled texts a classifier; any other text a language model.

    Settings come from the preset, then the TOML file, then key=value; later ones win. Everything is kept in runs/NAME:
    config.toml, tokenizer.json, metrics.jsonl, checkpoints. Ctrl-C finishes the step and saves.

    --resume continues the run of that name; the command that started it or the name alone will do. With the full
    command, it starts the run if there is none yet.

    Several processes share each batch with torchrun --nproc-per-node 2 -m -- clearformer train ... (without the --,
    torchrun takes --run for an option of its own).
    """
    began = time.perf_counter()  # the import of torch, most of the time that a start takes, comes after this
    with importing():
        from clearformer.cli.views.results import result_text
        from clearformer.runs.folders import name_of
        from clearformer.runs.training import train_run
        from clearformer.training.processes.distributed import is_main_process
        from clearformer.training.reporting.console import ConsoleReporter
        from clearformer.training.reporting.report import Reporter

    show_log()
    start = (resumed_start if resume else new_start)(arguments or [], config, run)
    start.began = began
    reporter = ConsoleReporter() if is_main_process() else Reporter()
    try:
        result = train_run(start, reporter, summary(start.config))
    except Interrupted as interrupted:
        if not is_main_process():  # the first process prints the message
            raise typer.Exit(interrupted.exit_status) from None
        way_on = continuing(name_of(start.folder))
        raise Interrupted(f"{interrupted}; to continue: {way_on}", interrupted.signal_number) from None
    if is_main_process():
        write_text(result_text(result, start.folder) + "\n")


def continuing(run: str) -> str:
    """Return the command that continues a run with as many processes: other numbers of them draw other dropout."""
    from clearformer.training.processes.distributed import Place

    command = shlex.join(["train", "--resume", "--run", run])
    place = Place.of_this_process()
    if place.count == 1:
        return to_type(command, None)
    machines = ""
    if place.n_here < place.count:  # on each of the others with its own number
        first = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        machines = "--nnodes {} --node-rank 0 --master-addr {} --master-port {} ".format(
            place.count // place.n_here, *first
        )
    return to_type(command, f"torchrun {machines}--nproc-per-node {place.n_here} -m -- clearformer")


def new_start(arguments: list[str], config: Path | None, run: str | None) -> "RunStart":
    """Set up a new run under the given name or a free one."""
    from clearformer.resolving import resolve_settings, split_arguments
    from clearformer.runs.folders import name_for, new_run
    from clearformer.runs.training import RunStart

    if run is not None:
        new_run(run)  # a name that is taken fails here, before `auto` measures the machine
    preset, layers = split_arguments(arguments, config)
    settings = resolve_settings(preset, layers)
    folder = new_run(name_for(preset, settings) if run is None else run)
    return RunStart(settings, folder, resume=False, is_named=run is not None, preset=preset)


def resumed_start(arguments: list[str], config: Path | None, run: str | None) -> "RunStart":
    """Set up an earlier run to resume or, if there is none, the new run that the arguments describe."""
    from clearformer.resolving import resolve_resumed
    from clearformer.runs.folders import find_run
    from clearformer.runs.training import RunStart

    if run is None:
        raise RunError("--resume: name the run with --run NAME")
    try:
        folder = find_run(run)
    except RunError:
        if not describes_a_run(arguments, config):
            raise
        return new_start(arguments, config, run)
    return RunStart(resolve_resumed(folder, arguments, config), folder, resume=True, is_named=True)


def describes_a_run(arguments: list[str], config: Path | None) -> bool:
    """Whether the arguments describe a new run: a mistyped name with only a new length or log interval must not."""
    from clearformer.training.config import MAY_CHANGE

    return config is not None or any(word.partition("=")[0] not in MAY_CHANGE for word in arguments)


def summary(config: "RunConfig") -> str:
    """Summarise a run in one line before it begins."""
    model, train = config.model, config.train
    layers = f"{model.n_layers} layer{'s' * (model.n_layers != 1)}"
    if model.family == "encoder-decoder":
        layers = f"{model.n_layers} + {model.decoder_layers} layers"
    positions = "no" if model.position.kind == "none" else model.position.kind
    batch = train.objective.describe_batch(train.batch_size, model.max_seq_len, config.data.form)
    return (
        f"{model.family} of {layers}, d_model {model.d_model}, {model.attention.kind} attention, "
        f"{positions} positions; data {config.data.label}, optimizer {train.optimizer.kind}, {batch} per step"
    )
