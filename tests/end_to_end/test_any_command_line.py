"""Command lines and settings that nobody would type on purpose: each ends in a result or in one line.

Drawn with a fixed seed, so that a failure is found again.
"""

import contextlib
import io
import random
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clearformer.cli import main
from clearformer.config import Spec, resolve, slot_variants, to_toml
from clearformer.errors import ClearformerError
from clearformer.presets import resolve_run
from clearformer.train.config import RunConfig

VALUES = (
    *(
        "",
        " ",
        "0",
        "-1",
        "1",
        "2",
        "7",
        "-0.0",
        "0.5",
        "1.5",
        "1_000",
        "nan",
        "inf",
        "-inf",
        "1e308",
        "1e-308",
    ),
    *(
        "1e400",
        "9" * 30,
        "9" * 5000,
        str(2**63 - 1),
        str(2**63),
        "0x" + "f" * 5000,
        "100000000",
        "true",
        "none",
    ),
    *("[1]", "[]", "[nan]", "[1e400, 1]", "[1,2]", "[0.9, 0.99]", '["a", "a"]', "[[[[1]]]]", "[" * 20_000),
    *("{}", "{a = 1}", "{kind = 1}", '{kind = "rope"}', "{name = [1]}", '{"" = 1}', '{"a.b" = 1}'),
    *(
        '"x"',
        "é",
        "\udcff",
        '"\\u0000"',
        "x" * 5000,
        "a\nb",
        "1\nseed = 2",
        "1 # 2",
        "2024-01-01",
        "~",
        "~nobody/x",
    ),
    *(
        "/nope",
        "/dev/null",
        "../..",
        "auto",
        "cpu",
        "rope",
        "-",
        "--",
        "-x",
        "--debug",
        "a=b",
        "$HOME",
        "\x1b[31m",
    ),
)
SEED = 20_240_501


def keys(spec: type[Spec], prefix: str = "") -> Iterator[str]:
    """All settings, of every kind of every slot."""
    for name, field in spec.model_fields.items():
        yield prefix + name
        inner = list(slot_variants(field).values())
        if isinstance(field.annotation, type) and issubclass(field.annotation, Spec):
            inner.append(field.annotation)
        for each in inner:
            yield from keys(each, f"{prefix}{name}.")


@pytest.mark.parametrize("preset", ["quick", "translate", "classify"])
def test_any_setting_is_taken_or_refused_in_words(preset: str) -> None:
    draw, refusals = random.Random(f"{SEED} {preset}"), list[str]()
    for key in sorted(set(keys(RunConfig))):
        for value in draw.sample(VALUES, 3):
            try:
                config = resolve_run([preset, f"{key}={value}"], None)
            except ClearformerError as error:
                refusals.append(str(error))
            else:
                assert resolve(RunConfig, tomllib.loads(to_toml(config))) == config
    assert len(refusals) > 100
    assert max(map(len, refusals)) < 1000
    assert not [refusal for refusal in refusals if "is not as it should be" in refusal]


@pytest.mark.parametrize(
    "key", ["data", "model", "train", "tokenizer", "data.name", "data.path", "data.source"]
)
def test_any_section_is_taken_or_refused_in_words(key: str, tmp_path: Path) -> None:
    """Where no preset is named, the data decide; so they are looked at before they are checked."""
    file = tmp_path / "settings.toml"
    for value in VALUES:
        for how in ("override", "file"):
            if how == "file":
                file.write_text(f"{key} = {value}\n", errors="replace")
            with contextlib.suppress(ClearformerError):
                resolve_run([f"{key}={value}"], None) if how == "override" else resolve_run([], file)


OPTIONS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "generate": (
        ["text", "--max-new-tokens=3"],
        (
            *(
                "--prompt",
                "--temperature",
                "--top-k",
                "--top-p",
                "--min-p",
                "--repetition-penalty",
                "--beams",
            ),
            *("--seed", "--stop", "--checkpoint"),
        ),
    ),
    "translate": (
        ["pairs", "{home}/line.txt", "--max-new-tokens=3"],
        (
            *("--beams", "--length-penalty", "--length-penalty-kind", "--early-stopping", "--n-best"),
            *("--batch-tokens", "--reference", "--average", "--checkpoint", "--dtype"),
        ),
    ),
    "classify": (["pets", "{home}/pet.txt"], ("--average", "--checkpoint", "--dtype")),
    "tokenizer show": (["cat"], ("--tokenizer",)),
    "tokenizer compare": (
        ["{home}/text.txt", "--vocab-size=300"],
        ("--kinds", "--held-out", "--tokenizer", "--vocab-size"),
    ),
    "tokenizer train": (
        ["{home}/text.txt", "--out={new}"],
        ("--kind", "--vocab-size", "--normalize", "--family"),
    ),
    "presets": ([], ("",)),
    "runs": ([], ("",)),
}
TAKEN = {0, 1, 2}
SLOW = {"100000000", "9" * 30, str(2**63 - 1)}


@pytest.fixture
def ends_in_words(
    four_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Runs a command; it must work, or say in one line why not."""
    (tmp_path / "line.txt").write_text("le 3 mai\n")
    (tmp_path / "pet.txt").write_text("a small cat\n")
    (tmp_path / "text.txt").write_text((four_runs / "text.txt").read_text())

    def run(*arguments: str) -> None:
        capsys.readouterr()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a small cat\n"), encoding="utf-8"))
        status = main(list(arguments))
        err = capsys.readouterr().err
        told = [line for line in err.splitlines() if line.startswith("clearformer")]
        assert "defect" not in err, (arguments, err)
        assert "Traceback" not in err
        assert status in TAKEN
        assert len(told) == (status != 0), (arguments, err)

    return run


@pytest.mark.parametrize("command", OPTIONS)
def test_any_command_line_ends_in_words(
    command: str, ends_in_words: Callable[..., None], tmp_path: Path
) -> None:
    draw = random.Random(f"{SEED} {command}")
    usual, options = OPTIONS[command]
    for number in range(25):
        values = {"home": tmp_path, "new": tmp_path / f"{number}.json"}
        arguments = [argument.format(**values) for argument in usual]
        option = draw.choice(options)
        value = draw.choice(VALUES)
        if option in ("--max-new-tokens", "--num") and value in SLOW:
            continue
        arguments += (
            [f"{option}={value}"]
            if option and draw.random() < 0.7
            else [option, value]
            if option
            else [value]
        )
        if draw.random() < 0.2:
            arguments.pop(draw.randrange(len(arguments)))
        ends_in_words(*command.split(), *arguments)
