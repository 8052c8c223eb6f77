"""How a command's typer app is called: with --debug beside its own options, and errors of usage in one line."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from clearformer.cli.failures import UsageMistake
from clearformer.errors import did_you_mean, nearest, shortened

# Newer versions of typer bring a copy of click: its exceptions and classes are recognised by their names.
UsageError: Any = typer.BadParameter.__mro__[1]
HELP = ["--help", "-h"]
IMPORT = "Run this Python file first: it registers kinds of your own (may be given more than once)."
DEBUG = "Show where in the code an error came from."


def call(app: typer.Typer, name: str, arguments: list[str], enable_debug: Callable[[], None]) -> int:
    """Run a typer app; returns its exit status.

    Args:
        app: Of one command, or of a group of them.
        name: How it was called, for help and messages.
        arguments: What follows the name.
        enable_debug: Called where --debug is among the options.

    Raises:
        UsageMistake: an option or argument is unknown, missing or has no value that it takes.
    """
    command = get_command(app)
    command.context_settings["help_option_names"] = HELP
    add_common_options(command, enable_debug)
    for each in commands_of(command):
        each.rich_markup_mode = None
        hide_types_of_arguments(each)
    check_known_command(command, name, arguments)
    try:
        with command.make_context(name, list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except UsageError as error:
        raise UsageMistake(usage_line(error, name, command, arguments)) from None
    return 0


def add_common_options(command: Any, enable_debug: Callable[[], None]) -> None:
    """Give a command --debug and --import, or each of a group's commands."""

    def run_files(files: list[Path] | None) -> None:
        if files:
            from clearformer.registry import import_parts

            for file in files:
                import_parts(file)

    def enable(value: bool) -> None:
        if value:
            enable_debug()

    def only(
        debug: Annotated[
            bool, typer.Option("--debug", help=DEBUG, callback=enable, expose_value=False, is_eager=True)
        ] = False,
        own_parts: Annotated[
            list[Path] | None,
            typer.Option("--import", metavar="FILE.py", help=IMPORT, callback=run_files, expose_value=False),
        ] = None,
    ) -> None: ...

    carrier = typer.Typer(add_completion=False)
    carrier.command()(only)
    options = [param for param in get_command(carrier).params if param.name in ("debug", "own_parts")]
    for each in commands_of(command):
        each.params.extend(options)


def hide_types_of_arguments(command: Any) -> None:
    """Let help show an argument by its metavar alone: `RUN` instead of `RUN <str>`."""
    for param in command.params:
        if param.param_type_name == "argument":
            param.display_type_rich = lambda **_: None


def commands_of(command: Any) -> Iterator[Any]:
    """A command and, where it is a group, its commands."""
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from commands_of(inner)


# --- errors of usage --------------------------------------------------------------------------------------


def check_known_command(command: Any, name: str, arguments: list[str]) -> None:
    """Raise UsageMistake where a group is called with a command that it does not have."""
    known = getattr(command, "commands", None)
    if known is None or (arguments and (arguments[0].startswith("-") or arguments[0] in known)):
        return
    if not arguments:
        raise UsageMistake(f"{name} needs one of its commands: {', '.join(known)}; see {name} --help")
    name_typed = shortened(arguments[0])
    raise UsageMistake(
        f"{name}: there is no {name_typed!r}{did_you_mean(name_typed, known) or '; there are ' + ', '.join(known)}"
    )


def usage_line(error: Any, name: str, command: Any, arguments: list[str]) -> str:
    """Describe an error of usage: the command, what is wrong, and the way out."""
    context = error.ctx
    path = context.command_path if context else name
    match type(error).__name__:
        case "NoSuchOption":
            text = no_such_option(error.option_name, context.command if context else command, arguments)
        case "MissingParameter":
            text = f"{name_of(error.param)} is missing; see {path} --help"
        case "BadParameter":
            text = f"{name_of(error.param)} {problem_of(error)}"
        case "BadOptionUsage":
            wrong = "takes no value" if "not take" in error.message else "needs a value"
            text = f"{error.option_name} {wrong}"
        case _:
            text = reworded(error.message, path)
    return f"{path}: {text}"


def no_such_option(option: str, command: Any, arguments: list[str]) -> str:
    """Which option there is not, and which was meant: another one, or a text that only looks like one."""
    before_dashes = arguments[: arguments.index("--")] if "--" in arguments else arguments
    typed = next((each for each in before_dashes if each.startswith(option)), option).partition("=")[0]
    known = [each for param in command.params for each in (*param.opts, *param.secondary_opts)]
    options = [each for each in known if each.startswith("--")]
    if match := nearest(typed, options):
        return f"no option {shortened(typed)}; did you mean {match}?"
    way_out = f"; what begins with - and is no option comes after --: -- {shortened(typed)!r}"
    takes_arguments = any(param.param_type_name == "argument" for param in command.params)
    return f"no option {shortened(typed)}{way_out if takes_arguments else ''}"


def name_of(param: Any) -> str:
    """An option or argument as a user writes it."""
    if param is None:
        return "an argument"
    if param.param_type_name == "argument":
        return str(param.metavar or param.name).upper()
    return max(param.opts, key=len)


def problem_of(error: Any) -> str:
    """Why a value is none for an option."""
    from pydantic import ValidationError  # here, because help needs no settings

    from clearformer.config import short_problem

    cause = error.__cause__
    if isinstance(cause, ValidationError):
        problem: Any = cause.errors(include_url=False)[0]
        if problem["type"] != "value_error":
            return short_problem(problem)
    message = error.message.removeprefix("Value error, ").rstrip(".")
    if choice := re.fullmatch(r"(.*) is not one of (.*)", message, re.DOTALL):
        given, known = choice[1], re.findall(r"'([^']*)'", choice[2])
        return f"takes {', '.join(known)}; got {shortened(given)}{did_you_mean(given.strip(chr(39)), known)}"
    return f"does not take that: {message}"


def reworded(message: str, path: str) -> str:
    """Another error of usage in our words."""
    if extra := re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message, re.DOTALL):
        return f"more arguments than it takes: {shortened(extra[1])}; see {path} --help"
    return message.rstrip(".")
