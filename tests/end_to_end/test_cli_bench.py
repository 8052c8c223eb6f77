"""`clearformer bench`, as a user types it."""

import json
import sys
from pathlib import Path

import pytest

from clearformer.bench import loading, machine
from clearformer.bench.machine import Limits
from clearformer.cli import main
from clearformer.cli.commands import bench
from clearformer.errors import UserError

from ..forks import ForkServer

LIMITS = Limits(float32=1e11, bfloat16=2e11, copy=3e10, read=2e10, peak=None)


@pytest.fixture(autouse=True)
def _known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "measure_limits", lambda _: LIMITS)
    monkeypatch.setenv("COLUMNS", "100")


def test_training_for_a_person(four_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "train", "nanogpt-cpu", "data.name=none", f"data.path={four_runs / 'text.txt'}"]
    arguments += [
        "model.d_model=8",
        "train.dtype=float32",
        "train.compile=false",
        "--rounds",
        "1",
        "--steps",
        "2",
    ]
    assert main([*arguments, "--against", "transformers", "--against", "nanogpt"]) == 0
    printed = capsys.readouterr()
    assert "100 GFLOP/s in float32, 200 GFLOP/s in bfloat16; copying 30 GB/s" in " ".join(printed.out.split())
    assert "times as fast" in printed.out
    assert "nanogpt skipped: no folder given: --against nanogpt=FOLDER" in printed.out
    assert "mfu: unknown" in printed.out
    assert "  transformers" in printed.err


def test_generation_for_a_program(four_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "bench",
                "generate",
                "text",
                "--tokens",
                "4",
                "--streams",
                "2",
                "--rounds",
                "1",
                "--json",
                "--no-compile",
            ]
        )
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert told["bench"] == "generate"
    assert told["machine"]["limits"]["read"] == 2e10
    [comparison] = told["comparisons"]
    assert comparison["what"] == "greedy generation, 2 streams"
    assert [side["name"].split()[0] for side in comparison["sides"]] == ["clearformer", "transformers"]


def test_generation_by_a_preset_with_changes(four_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["model.d_model=16", "model.n_layers=1", "model.attention.n_heads=2"]
    options = ["--tokens", "4", "--streams", "1", "--rounds", "1", "--json", "--no-compile"]
    assert main(["bench", "generate", "minigpt", *changes, *options]) == 0
    [comparison] = json.loads(capsys.readouterr().out)["comparisons"]
    # 65 tokens and 1,024 positions of width 16 and one block, in float32: hundredfold less than minigpt's 19 MB
    assert comparison["weights_read_per_second"] / comparison["sides"][0]["median"] < 2e5


def test_tokenizing_a_file(four_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = four_runs / "text.txt"
    assert main(["bench", "tokenize", str(file), "--rounds", "1", "--against", "tokenizers", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [found["what"].split(",")[0] for found in told["comparisons"]] == [
        "encoding",
        "decoding",
        "learning a vocabulary",
    ]


@pytest.mark.usefixtures("_nothing_is_imported")
def test_loading_a_run(
    four_runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, forks: ForkServer
) -> None:
    """Each side's command runs once, in a fork, and not a second time for the figure."""
    ran = []

    def once(command: list[str]) -> None:
        if command in ran:
            return
        ran.append(command)
        _, way, *given = command
        done = forks.run(*given[1:], script=given[0]) if way == "-c" else forks.run(*given[1:])
        assert done.returncode == 0, done.stderr

    monkeypatch.setattr(loading, "in_new_process", once)
    assert main(["bench", "load", "text", "--rounds", "1", "--json"]) == 0
    printed = capsys.readouterr()
    opening, first = json.loads(printed.out)["comparisons"]
    assert "shards" not in printed.err  # of transformers' progress bar
    assert (opening["unit"], first["unit"]) == ("ms", "s")
    assert len(first["sides"]) == 2
    assert [command[1] for command in ran] == ["-m", "-c"]


def test_a_command_in_a_new_process() -> None:
    loading.in_new_process([sys.executable, "-c", "pass"])
    with pytest.raises(UserError, match=r"failed: ValueError: mine$"):
        loading.in_new_process([sys.executable, "-c", "raise ValueError('mine')"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "pairs"), "bench generate compares decoders, and pairs is not one"),
        (("generate", "text", "model.n_layers=2"), "model.n_layers=2: text is a run"),
        (("generate", "minigpt", "model.n_layer=2"), "model.n_layer"),
        (("generate", "nowhere"), "there is no run 'nowhere'"),
        (("generate", "minigpt", "--dtype", "int8"), "--dtype takes float32 or bfloat16; got 'int8'"),
        (("train", "quick", "--against", "keras"), "unknown peer; choose from nanogpt, transformers, litgpt"),
        (("load", "pets"), "bench load compares decoders, and pets is not one"),
        (("tokenize", "nowhere.txt"), "nowhere.txt: there is no such file"),
        (("tokenize", ""), "FILE: the name is empty"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], message: str, four_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in last


def test_settings_alone_change_the_default_preset() -> None:
    assert bench.with_preset(None, "minigpt") == ["minigpt"]
    assert bench.with_preset(["model.n_layers=2"], "minigpt") == ["minigpt", "model.n_layers=2"]
    assert bench.with_preset(["quick", "model.n_layers=2"], "minigpt") == ["quick", "model.n_layers=2"]
    assert len(bench.decoder_of(bench.with_preset(["model.n_layers=2"], "minigpt")).blocks) == 2
    assert len(bench.decoder_of(["model.n_layers=2", "quick"]).blocks) == 2
