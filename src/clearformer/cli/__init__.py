"""The command line: one file per command, imported only when that command is called.

`clearformer --help` therefore answers at once, and only commands that compute import torch.
"""

import sys
from importlib import import_module

from clearformer.cli.streams import ReaderGone, standard_streams
from clearformer.errors import UserError, did_you_mean, shortened

COMMANDS = {
    "train": "Train a model from a preset, a TOML file, key=value settings.",
    "eval": "Measure a run on held-out data: loss, BLEU, accuracy, and what they compare with.",
    "generate": "Continue a text.",
    "translate": "Translate a file, line by line.",
    "classify": "Tell the class of each line of a file.",
    "lens": "Look inside: why this token, who reads whom, what each layer predicts.",
    "look": "Open a run in the browser: every number of it, live while it trains.",
    "tokenizer": "Train a tokenizer, or see what one makes of a text.",
    "data": "List the built-in texts; prepare and inspect yours.",
    "plan": "Parameters, FLOPs, memory and time of a run, before it is made.",
    "presets": "List the runs to begin from, or show one.",
    "runs": "List what has been trained.",
    "export": "Write a run as a folder that transformers loads.",
    "import": "Make a run of a model that others saved.",
    "study": "Run the lectures' experiments, and one's own; published numbers beside measured ones.",
    "sweep": "Run the product of some settings' values.",
    "compare": "Runs beside each other: settings, losses, intervals, paired differences.",
    "plot": "Draw the curves of runs, to a file or in the terminal.",
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
    """The text of `clearformer --help`."""
    return USAGE.format(commands="\n".join(f"  {name:<10} {about}" for name, about in COMMANDS.items()))


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status.

    0: done, or the reader of the output has closed it (`| head`). 1: the command failed. 2: the user's input is at
    fault. 130 and 143: interrupted, with everything so far saved. An error is reported in one line; --debug prints the
    traceback before it.
    """
    call = Call(list(sys.argv[1:] if arguments is None else arguments))
    with standard_streams():
        try:
            status = call.dispatch()
            sys.stdout.flush()
        except SystemExit:
            raise
        except ReaderGone as enough:
            return enough.exit_status
        except KeyboardInterrupt:
            return 130
        except BaseException as error:  # pyo3's panics do not derive from Exception
            return call.failed(error)
    return status


class Call:
    """One call of the command line.

    Attributes:
        arguments: The words after the program's name.
        debug: Whether to print tracebacks.
    """

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments
        self.debug = False

    def enable_debug(self) -> None:
        """Print tracebacks from now on."""
        self.debug = True

    def dispatch(self) -> int:
        """Answer --help and --version, or run the named command with the remaining arguments."""
        arguments = self.arguments
        while arguments[:1] == ["--debug"]:
            self.enable_debug()
            arguments = arguments[1:]
        if not arguments or arguments[0] in ("--help", "-h", "help"):
            if arguments[:1] == ["help"] and arguments[1:]:
                return self.run(arguments[1], ["--help"])
            print(usage())
            return 0
        if arguments[0] == "--version":
            from clearformer import __version__

            print(f"clearformer {__version__}")
            return 0
        return self.run(arguments[0], arguments[1:])

    def run(self, name: str, arguments: list[str]) -> int:
        """Import one command's file and call its typer app."""
        if name not in COMMANDS:
            what = "option" if name.startswith("-") else "command"
            hint = did_you_mean(name, COMMANDS) or "; see clearformer --help"
            raise UserError(f"there is no {what} {shortened(name)!r}{hint}")
        from clearformer.cli.calling import call

        app = import_module(f"clearformer.cli.commands.{name}").app
        return call(app, f"clearformer {name}", arguments, self.enable_debug)

    def failed(self, error: BaseException) -> int:
        """Print the error in one line and return its exit status."""
        import traceback

        from clearformer.cli.failures import describe_error

        if self.debug:
            traceback.print_exception(error)
        line, status = describe_error(error)
        print(line, file=sys.stderr)
        return status
