"""The command line: one file a command, imported only when that command is called.

So `clearformer --help` answers at once, and torch is imported only by commands that compute.
"""

import os
import sys
from importlib import import_module

from clearformer.cli.standard_output import take_every_character
from clearformer.errors import ClearformerError, UserError, did_you_mean

COMMANDS = {
    "train": "Train a model from a preset, a TOML file, key=value settings.",
    "eval": "Measure a run on held-out data: loss, BLEU, accuracy, and what they compare with.",
    "generate": "Continue a text.",
    "translate": "Translate a file, line by line.",
    "classify": "Tell the class of each line of a file.",
    "tokenizer": "Train a tokenizer, or see what one makes of a text.",
    "data": "List the built-in texts; prepare and inspect yours.",
    "plan": "Parameters, FLOPs, memory and time of a run, before it is made.",
    "presets": "List the runs to begin from, or show one.",
    "runs": "List what has been trained.",
    "export": "Write a run as a folder that transformers loads.",
    "import": "Make a run of a model that others saved.",
    "bench": "Speed beside what people use today, in turn on this machine.",
}

USAGE = """\
Usage: clearformer COMMAND [ARGUMENTS]

Transformers you can see through: build, train, measure, sample.

Commands:
{commands}

Options:
  --help     Show this, or a command's own help after its name.
  --version  Show the version.
  --debug    Show where in the code an error came from.

Begin with `clearformer train`: a small model of English in about a minute of training."""


def usage() -> str:
    """What `clearformer --help` prints."""
    return USAGE.format(commands="\n".join(f"  {name:<10} {about}" for name, about in COMMANDS.items()))


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit status.

    0 done; 1 it failed; 2 the user's input is at fault (one line, no traceback unless --debug); 130 and 143
    interrupted, with everything so far kept.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    take_every_character()
    try:
        return dispatch(arguments)
    except ClearformerError as error:
        if debug:
            raise
        print(f"clearformer: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def dispatch(arguments: list[str]) -> int:
    """Answer what needs no command, or import the command and hand it the rest."""
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(usage())
        return 0
    if arguments[0] == "--version":
        from clearformer import __version__

        print(f"clearformer {__version__}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS)
        raise UserError(f"there is no command {name!r}{hint or '; see clearformer --help'}")
    return run_command(name, rest)


def run_command(name: str, arguments: list[str]) -> int:
    """Call the typer app of one command's file."""
    from typer.main import get_command

    app = import_module(f"clearformer.cli.{name}").app
    try:
        get_command(app).main(args=arguments, prog_name=f"clearformer {name}")
    except SystemExit as done:  # how typer ends, with 0 and after an error of usage alike
        return done.code if isinstance(done.code, int) else 1
    return 0
