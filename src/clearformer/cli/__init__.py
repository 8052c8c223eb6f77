"""The command line: one file per command, imported only when that command is called.

`clearformer --help` therefore answers at once, and only commands that compute import torch.
"""

import sys
from importlib import import_module

from clearformer.cli.streams import ReaderGone, standard_streams
from clearformer.errors import UserError, did_you_mean, shortened

COMMANDS = {
    "train": "Train a model from a preset, a TOML file or key=value settings.",
    "eval": "Evaluate a run on held-out data: loss, BLEU, accuracy, baselines.",
    "generate": "Continue a prompt.",
    "translate": "Translate a file, line by line.",
    "classify": "Classify each line of a file.",
    "score": "Print the log-probability of each line of a file.",
    "lens": "Look inside a model: attention, logits, heads, attributions.",
    "look": "Inspect every number of a run in the browser, live while it trains.",
    "tokenizer": "Train a tokenizer, show the tokens of a text, or compare several.",
    "data": "List the built-in data; prepare and inspect your own.",
    "plan": "Show a run's parameters, FLOPs, memory and time before training.",
    "presets": "List the presets to start from, or show one.",
    "runs": "List the runs with their progress and losses.",
    "export": "Export a run to the format of transformers or llama.cpp.",
    "import": "Make a run from a model in the format of transformers.",
    "study": "Run the lectures' experiments or your own; check published numbers.",
    "sweep": "Train every combination of some settings' values.",
    "compare": "Compare runs: settings, losses, intervals, paired differences.",
    "plot": "Plot the loss curves of runs, in the terminal or to a file.",
    "bench": "Compare speed with other packages on this machine.",
}

USAGE = """\
Usage: clearformer COMMAND [ARGUMENTS]

Transformers you can see through: build, train, measure, sample.

Commands:
{commands}

Options:
  --help     Show this help or, after a command, the command's help.
  --version  Show the version.
  --debug    Print the traceback of an error.

Start with `clearformer train`: about a minute for a small model of English."""


def usage() -> str:
    """The text of `clearformer --help`."""
    return USAGE.format(commands="\n".join(f"  {name:<10} {about}" for name, about in COMMANDS.items()))


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status.

    0: done, or the reader of the output has closed it (`| head`). 1: the command failed. 2: the user's input is at
    fault. 129, 130 and 143: interrupted, with everything so far saved. An error is reported in one line; --debug prints
    the traceback before it.
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
                return self.run(arguments[1], [*arguments[2:], "--help"])
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
