"""Errors of usage: one line with the command, what is wrong and the way out; --debug as an option like others."""

from collections.abc import Callable

import pytest

from clearformer.cli import main

Ends = Callable[..., tuple[int, str]]


@pytest.fixture
def ends(capsys: pytest.CaptureFixture[str]) -> Ends:
    """Runs a command; gives its exit status and what it says on standard error."""

    def run(*arguments: str) -> tuple[int, str]:
        status = main(list(arguments))
        return status, capsys.readouterr().err.removesuffix("\n")

    return run


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("train --confg x", "clearformer train: no option --confg; did you mean --config?"),
        (
            "train --zzz",
            "clearformer train: no option --zzz; put an argument that begins with - after --: -- '--zzz'",
        ),
        (
            "tokenizer show -x",
            "clearformer tokenizer show: no option -x; put an argument that begins with - after --: -- '-x'",
        ),
        ("runs --zzz", "clearformer runs: no option --zzz"),
        ("runs --jsno", "clearformer runs: no option --jsno; did you mean --json?"),
        ("generate", "clearformer generate: RUN is missing; see clearformer generate --help"),
        ("generate a --num x", "clearformer generate: --num takes a whole number; got 'x'"),
        ("generate a --num 0", "clearformer generate: --num takes a number of 1 or more; got '0'"),
        ("generate a --prompt", "clearformer generate: --prompt needs a value"),
        ("runs --json=3", "clearformer runs: --json takes no value"),
        (
            "presets a b",
            "clearformer presets: too many arguments: b; see clearformer presets --help",
        ),
        (
            "tokenizer",
            "clearformer tokenizer needs a command: train, show, compare; see clearformer tokenizer --help",
        ),
        ("tokenizer shw x", "clearformer tokenizer: there is no command 'shw'; did you mean 'show'?"),
        (
            "study",
            "clearformer study needs a command: list, show, run, report, compare; see clearformer study --help",
        ),
        (
            "bench zzz",
            "clearformer bench: there is no command 'zzz'; there are train, generate, load, tokenize",
        ),
        (
            "tokenizer train --family encodr",
            "clearformer tokenizer train: --family takes decoder, encoder, encoder-decoder; got 'encodr'; "
            "did you mean 'encoder'?",
        ),
        ("trian", "clearformer: there is no command 'trian'; did you mean 'train'?"),
        ("zzz", "clearformer: there is no command 'zzz'; see clearformer --help"),
        ("--verison", "clearformer: there is no option '--verison'; see clearformer --help"),
        ("help zzz", "clearformer: there is no command 'zzz'; see clearformer --help"),
    ],
)
def test_an_error_of_usage_is_one_line(ends: Ends, arguments: str, line: str) -> None:
    assert ends(*arguments.split()) == (2, line)


@pytest.mark.parametrize(
    "arguments", ["presets --help", "presets -h", "help presets", "tokenizer show --help"]
)
def test_help_is_no_error(capsys: pytest.CaptureFixture[str], arguments: str) -> None:
    assert main(arguments.split()) == 0
    printed = capsys.readouterr()
    assert "Usage: clearformer" in printed.out
    assert "--debug" in printed.out
    assert printed.err == ""


@pytest.mark.parametrize(
    "arguments", ["--debug presets quik", "presets --debug quik", "presets quik --debug"]
)
def test_debug_shows_the_traceback_before_the_line(ends: Ends, arguments: str) -> None:
    status, err = ends(*arguments.split())
    assert status == 2
    assert err.startswith("Traceback")
    assert err.splitlines()[-1].startswith("clearformer: there is no preset 'quik'")


def test_debug_is_no_option_where_it_is_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenizer", "show", "--", "--debug"]) == 0
    assert "7 characters" in capsys.readouterr().out
    assert main(["tokenizer", "show", "a", "--tokenizer", "--debug"]) == 2
    assert capsys.readouterr().err.startswith("clearformer: --tokenizer --debug: neither a file")


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("by zero"), RecursionError("deep"), BaseException("panic")]
)
def test_a_defect_is_told_as_one(ends: Ends, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr("clearformer.presets.preset", fail)
    status, err = ends("presets", "quick")
    assert status == 1
    assert err.count("\n") == 0
    assert f"this is a bug in clearformer: {type(error).__name__}: {error}; please report it" in err
    status, err = ends("presets", "quick", "--debug")
    assert (status, err.startswith("Traceback")) == (1, True)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_who_ends_it_on_purpose_is_heard(monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr("clearformer.presets.preset", fail)
    if error is KeyboardInterrupt:
        assert main(["presets", "quick"]) == 130
    else:
        with pytest.raises(SystemExit):
            main(["presets", "quick"])
