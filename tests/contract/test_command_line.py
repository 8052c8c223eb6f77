"""The names of commands and of public functions that others rely on."""

import importlib
import re

import pytest

import clearformer
from clearformer.cli import COMMANDS, main

NAMES = (
    *(
        "train",
        "eval",
        "generate",
        "translate",
        "classify",
        "score",
        "lens",
        "look",
        "tokenizer",
        "data",
        "plan",
        "presets",
        "runs",
    ),
    *("export", "import", "study", "sweep", "compare", "plot", "bench"),
)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(COMMANDS) == NAMES
    assert main(["--help"]) == 0
    listed = re.findall(r"^  (\w+) +\S", capsys.readouterr().out, flags=re.MULTILINE)
    assert listed == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help_of_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"clearformer {name}" in out
    assert "--help" in out


GROUPS = {
    "tokenizer": ("train", "show", "compare"),
    "data": ("list", "prepare", "inspect"),
    "bench": ("train", "generate", "load", "tokenize"),
    "study": ("list", "show", "run", "report", "compare"),
}
PYTHON_TYPE = re.compile(r"<(?:str|int|float|path|list\[.*\]|\w+ range)>", re.IGNORECASE)


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_metavars_and_no_type_of_python(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([name, inner] for inner in GROUPS.get(name, ("--help",))):
        assert main([*words, "--help"]) == 0
        out = capsys.readouterr().out
        assert "Options:" in out
        assert not PYTHON_TYPE.findall(out)


@pytest.mark.parametrize("name", GROUPS)
def test_the_list_of_a_group_s_commands_is_not_cut(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == 0
    listed = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == list(GROUPS[name])
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("eval", "RUN"),
        ("translate", "RUN [FILE]"),
        ("train", "[PRESET] [KEY=VALUE]..."),
        ("tokenizer train", "[PATH]..."),
        ("tokenizer compare", "FILE..."),
        ("study run", "all|NAME..."),
        ("study report", "[all|NAME]..."),
        ("sweep", "PRESET KEY=A,B..."),
    ],
)
def test_usage_shows_arguments_as_they_are_typed(
    words: str, arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--help"]) == 0
    first = capsys.readouterr().out.partition("\n")[0]
    assert first == f"Usage: clearformer {words} [OPTIONS] {arguments}"


@pytest.mark.parametrize("name", clearformer.__all__)
def test_public_names_are_there(name: str) -> None:
    assert getattr(clearformer, name) is not None


def test_what_looks_inside_is_a_package() -> None:
    assert clearformer.lens is importlib.import_module("clearformer.lens")
    assert callable(clearformer.lens.embed)
    assert callable(clearformer.lens.word_similarity)
    with pytest.raises(AttributeError, match="no attribute 'lense'"):
        _ = clearformer.lense  # type: ignore[attr-defined]
