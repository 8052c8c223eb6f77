"""Calling a command's typer app: --debug and --import added to its options, usage errors in one line."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from clearformer.cli.commands_to_type import begin_imports, remember_imports
from clearformer.cli.failures import UsageMistake
from clearformer.errors import did_you_mean, nearest, shortened

# Newer versions of typer bundle their own copy of click, so its exceptions and classes are recognised by name.
UsageError: Any = typer.BadParameter.__mro__[1]
HELP = ["--help", "-h"]
IMPORT = "Python file to run first, which registers your own kinds (repeatable)."
DEBUG = "Print the traceback of an error."


def call(app: typer.Typer, name: str, arguments: list[str], enable_debug: Callable[[], None]) -> int:
    """Run a typer app and return its exit status.

    Args:
        app: The app of one command, or of a group of commands.
        name: The command as help and messages show it.
        arguments: The words after the name.
        enable_debug: Called if --debug is among the options.

    Raises:
        UsageMistake: an option or argument is unknown, missing or has a value that it does not take.
    """
    command = get_command(app)
    command.context_settings["help_option_names"] = HELP
    add_common_options(command, enable_debug)
    for each in commands_of(command):
        each.rich_markup_mode = None
        simplify_arguments(each)
    check_known_command(command, name, arguments)
    begin_imports()
    try:
        with command.make_context(name, list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except UsageError as error:
        raise UsageMistake(usage_line(error, name, command, arguments)) from None
    return 0


def add_common_options(command: Any, enable_debug: Callable[[], None]) -> None:
    """Add --debug and --import to a command, or to each command of a group."""

    def run_files(files: list[Path] | None) -> None:
        if files:
            remember_imports(files)
            from clearformer.parts import import_parts

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


def simplify_arguments(command: Any) -> None:
    """Make help show only an argument's metavar: `RUN` instead of `{RUN}` and `RUN <str>`."""
    for param in command.params:
        if param.param_type_name == "argument":
            param.display_type_rich = lambda **_: None
            usage = usage_of(param)
            param.get_usage_pieces = lambda _, usage=usage: [usage]


def usage_of(argument: Any) -> str:
    """How a usage line shows an argument: `RUN`, `[RUN]`, `RUN...` or `[RUN]...`."""
    metavar = name_of(argument)
    if metavar.endswith("..."):  # it says itself what is optional and what repeats
        return metavar
    name = metavar if argument.required else f"[{metavar}]"
    return name if argument.nargs == 1 else f"{name}..."


def commands_of(command: Any) -> Iterator[Any]:
    """Yield a command and, if it is a group, the commands in it."""
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from commands_of(inner)


# --- usage errors -----------------------------------------------------------------------------------------


def check_known_command(command: Any, name: str, arguments: list[str]) -> None:
    """Raise UsageMistake if a group is called without a command, or with one that it does not have."""
    known = getattr(command, "commands", None)
    if known is None or (arguments and (arguments[0].startswith("-") or arguments[0] in known)):
        return
    listed = [each for each, inner in known.items() if not inner.hidden]
    if not arguments:
        raise UsageMistake(f"{name} needs a command: {', '.join(listed)}; see {name} --help")
    typed = shortened(arguments[0])
    hint = did_you_mean(typed, listed) or f"; there are {', '.join(listed)}"
    raise UsageMistake(f"{name}: there is no command {typed!r}{hint}")


def usage_line(error: Any, name: str, command: Any, arguments: list[str]) -> str:
    """Describe a usage error in one line: the command, what is wrong, and how to fix it."""
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
    """Name the unknown option and suggest a similar one, or `--` for an argument that begins with a dash."""
    before_dashes = arguments[: arguments.index("--")] if "--" in arguments else arguments
    typed = next((each for each in before_dashes if each.startswith(option)), option).partition("=")[0]
    known = [each for param in command.params for each in (*param.opts, *param.secondary_opts)]
    options = [each for each in known if each.startswith("--")]
    if match := nearest(typed, options):
        return f"no option {shortened(typed)}; did you mean {match}?"
    way_out = f"; put an argument that begins with - after --: -- {shortened(typed)!r}"
    takes_arguments = any(param.param_type_name == "argument" for param in command.params)
    return f"no option {shortened(typed)}{way_out if takes_arguments else ''}"


def name_of(param: Any) -> str:
    """The name of an option or argument as a user writes it."""
    if param is None:
        return "an argument"
    if param.param_type_name == "argument":
        return str(param.metavar or param.name.upper())
    return max(param.opts, key=len)


def problem_of(error: Any) -> str:
    """Explain why an option does not take a value."""
    from pydantic import ValidationError  # imported here because --help does not need it

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
    return f"has an invalid value: {message}"


def reworded(message: str, path: str) -> str:
    """Reword click's message for any other usage error."""
    if extra := re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message, re.DOTALL):
        return f"too many arguments: {shortened(extra[1])}; see {path} --help"
    return message.rstrip(".")
