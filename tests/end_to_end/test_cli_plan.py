"""`clearformer plan`, as a user types it."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from clearformer.cli import main
from clearformer.cli.commands.plan import time_line
from clearformer.cli.units import readable_bytes, readable_number, readable_rate, readable_seconds
from clearformer.cost.rates import Rate
from clearformer.model import ModelConfig
from clearformer.presets import PRESETS
from clearformer.training.config import TrainConfig
from clearformer.training.planning import plan as plan_module
from clearformer.training.planning import run_plan as run_plan_module
from clearformer.training.planning.memory import MemoryBytes
from clearformer.training.planning.plan import plan

SMALL = [
    "model.d_model=32",
    "model.attention.n_heads=2",
    "model.n_layers=1",
    "model.max_seq_len=16",
    "train.batch_size=2",
]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `clearformer plan ...`; gives its exit status, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "100")

    def run_plan(*arguments: str) -> tuple[int, str, str]:
        status = main(["plan", *arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run_plan


@pytest.fixture
def without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory is measured, which takes longer than all the rest of a plan."""
    monkeypatch.setattr(plan_module, "training_memory", lambda *_: MemoryBytes(0, 0, 0, 0, 0))


def test_what_auto_has_chosen_is_said_with_its_reasons(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be\n" * 100)
    arguments = ["plan", "auto", f"data.path={tmp_path / 'a.txt'}", "train.max_wall_seconds=20"]
    command = [sys.executable, "-m", "clearformer", *arguments, "--device", "a100", "--json"]
    # In a process of its own, as pytest takes the log of this one.
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["seconds"] > 0
    assert "auto: tokens: char, 0.0019 MB of text" in done.stderr
    assert "note: auto chose this run for the time that it has here, not on a100" in done.stderr


@pytest.mark.usefixtures("without_memory")
def test_the_length_of_labelled_texts_is_a_guess_and_said_to_be(run: Any) -> None:
    _, _, err = run("classify", "--device", "a100")
    assert "takes each to have 128 tokens" in " ".join(err.split())
    assert "takes each" not in run("quick", "--device", "a100")[2]


def test_the_lecture_s_model_for_a_person(run: Any) -> None:
    status, out, err = run("lecture", "--device", "a100")
    assert status == 0
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert lines["embedding"] == ["16,640", "0.6%", "0"]
    assert lines["ffn"] == ["2,102,272", "71.9%", "4,194,304"]
    assert lines["total"] == ["2,921,984", "6,324,736"]
    assert "By formula: 2,921,984 parameters, 2,916,864 without biases and norms" in out
    assert lines["weights"] == ["11.1", "MiB"]
    assert float(lines["peak"][0]) > float(lines["activations"][0])
    assert "Time (estimate)" in out
    assert "40% of 312.0 TFLOP/s (a100 in bfloat16, datasheet)" in " ".join(out.split())
    assert "assumes 65" in err


def test_json_is_all_that_is_on_standard_output(run: Any) -> None:
    status, out, err = run("lecture", "--device", "h200", "--json")
    assert status == 0
    planned = json.loads(out)
    assert planned["parameters"]["total"] == planned["parameters"]["by_formula"] == 2_921_984
    assert planned["parameters"]["matrices"] == 2_916_864
    assert sum(planned["parameters"]["by_component"].values()) == 2_921_984
    assert planned["flops_per_token"]["backward"] == 2 * planned["flops_per_token"]["forward"]
    assert set(planned["memory_bytes"]) == {"weights", "gradients", "optimizer", "activations", "peak"}
    assert planned["tokens_per_step"] == 64 * 128
    assert planned["steps"] == 10_000
    assert planned["seconds"] == pytest.approx(10_000 * planned["seconds_per_step"])
    assert planned["rate"]["device"] == "h200"
    assert "65" in err


def test_without_a_device_the_rate_is_measured_here(run: Any) -> None:
    status, out, _ = run(*SMALL, "train.device=cpu", "train.dtype=float32", "--json")
    assert status == 0
    rate = json.loads(out)["rate"]
    assert (rate["source"], rate["dtype"]) == ("measured", "float32")
    assert "cpu" in rate["device"]


@pytest.mark.usefixtures("without_memory")
def test_settings_come_from_a_file_too(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[model]\nd_model = 64\nn_layers = 1\n")
    _, out, _ = run("lecture", "model.d_model=32", "--config", str(file), "--device", "t4", "--json")
    planned = json.loads(out)
    assert planned["parameters"]["matrices"] == 2 * 65 * 32 + 11 * 32**2
    assert planned["rate"]["dtype"] == "float32"  # all that a T4 has for a run


@pytest.mark.usefixtures("without_memory")
@pytest.mark.parametrize(
    ("settings", "vocab_size"),
    [
        (["tokenizer.unk=true"], 66),
        (["tokenizer.kind=byte", "tokenizer.eos=true"], 257),
        (["tokenizer.kind=bpe", "tokenizer.vocab_size=300"], 300),
        (["tokenizer.kind=gpt2"], 50_257),
        (["model.vocab_size=77"], 77),
    ],
)
def test_the_vocabulary_is_the_tokenizer_s(run: Any, settings: list[str], vocab_size: int) -> None:
    _, out, err = run(*SMALL, *settings, "--device", "l4", "--json")
    assert json.loads(out)["parameters"]["by_component"]["embedding"] == 32 * vocab_size
    assert ("note:" in err) == (settings == ["tokenizer.unk=true"])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--device", "abacus"], "--device: no rate is known for 'abacus'"),
        (["--device", "v100", "train.dtype=bfloat16"], "train.dtype=float32"),
        (["model.d_modle=3"], "d_model"),
        (["lecturee"], "lecture"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
        (["model.attention.n_heads=3", "model.d_model=32"], "n_heads"),
        (["data.name=[1]"], "data.name takes text"),
        (["data=5"], "data takes one of text, pairs, labelled; got 5"),
        (["train.lr=" + "[" * 20_000], "nested too deeply"),
        (["tokenizer.vocab_size=1000"], "tokenizer.kind=bpe, wordpiece or unigram has it"),
        (["model.d_model=" + "9" * 5000], "model.d_model takes a whole number"),
        (["model.d_model=1" + "0" * 30], "model.d_model takes a whole number below 2^63"),
        (
            ["model.vocab_size=1" + "0" * 18, "--device", "l4"],
            "model.vocab_size: 1,000,000,000,000,000,000 is too",
        ),
        (
            ["lecture", "model.d_model=1" + "0" * 15, "--device", "l4"],
            "model.d_model: 1,000,000,000,000,000 is too",
        ),
        (
            ["model.max_seq_len=1" + "0" * 12, "--device", "l4"],
            "model.max_seq_len: 1,000,000,000,000 is too large",
        ),
    ],
)
def test_wrong_input_is_one_line(run: Any, arguments: list[str], named: str) -> None:
    status, out, err = run(*arguments)
    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    assert named in err


@pytest.mark.usefixtures("without_memory")
@pytest.mark.parametrize(
    ("preset", "settings", "total"),
    [
        ("transformer-base", [], 63_082_496),
        ("classify", ["model.n_classes=7"], 1_652_482 + 5 * 129),
        ("masked", ["tokenizer.vocab_size=9001"], 1_660_480 + 1001 * 129),
        ("masked", ["tokenizer.kind=unigram", "tokenizer.vocab_size=9001"], 1_660_480 + 1001 * 129),
        ("masked", ["tokenizer.kind=byte"], 1_660_480 - (8000 - 256 - 4) * 129),
        ("translate", ["tokenizer.kind=char", "tokenizer.unk=true"], 1_581_568 - (2000 - 65 - 4) * 128),
    ],
)
def test_the_parameters_of_the_other_families(
    run: Any, preset: str, settings: list[str], total: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_module, "MOST_BUILT_LAYERS", 2)
    _, out, _ = run(preset, *settings, "--device", "l4", "--json")
    parameters = json.loads(out)["parameters"]
    assert parameters["total"] == parameters["by_formula"] == total


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_a_plan(run: Any, preset: str) -> None:
    status, out, _ = run(preset, "model.n_layers=1", "--device", "h200", "--json")
    assert status == 0
    planned = json.loads(out)
    assert planned["memory_bytes"]["peak"] > planned["memory_bytes"]["weights"] > 0
    assert planned["seconds"] > 0


@pytest.mark.usefixtures("without_memory")
def test_a_guess_of_the_classes_is_told(run: Any) -> None:
    small = [*SMALL, "tokenizer.vocab_size=300", "--device", "l4"]
    _, _, err = run("classify", *small)
    assert "model.n_classes=N" in err
    _, _, err = run("classify", *small, "model.n_classes=4")
    assert "n_classes" not in err
    _, _, err = run("classify", *small, 'data.labels=["a", "b", "c"]')
    assert "n_classes" not in err


@pytest.mark.usefixtures("without_memory")
def test_a_step_of_pairs_is_counted_in_tokens(run: Any) -> None:
    small = [setting for setting in SMALL if "batch_size" not in setting]
    _, out, _ = run("translate", *small, "train.objective.batch_tokens=500", "--device", "l4", "--json")
    assert json.loads(out)["tokens_per_step"] == 500


@pytest.mark.usefixtures("without_memory")
def test_without_a_rate_the_plan_says_so() -> None:
    config = ModelConfig(vocab_size=11, d_model=8, n_layers=1, max_seq_len=5)
    assert "not known" in time_line(plan(config, TrainConfig(batch_size=2, max_steps=3, dtype="float32")))


def test_units_that_people_read() -> None:
    assert readable_bytes(1000) == "1000 B"
    assert readable_bytes(3 * 2**20 // 2) == "1.5 MiB"
    assert readable_bytes(5000 * 2**40) == "4.9 PiB"
    assert readable_bytes(2**71) == "2,048.0 EiB"
    assert readable_rate(527e9) == "527 GFLOP/s"
    assert readable_rate(989.4e12) == "989.4 TFLOP/s"
    numbers = [0.01234, 999.4, 999.6, 1234.5]
    assert [readable_number(n) for n in numbers] == ["0.0123", "999", "1,000", "1,234"]
    times = [0.0123, 3.14, 60, 600, 36_000, 1e6]
    assert [readable_seconds(t) for t in times] == ["12 ms", "3.1 s", "60 s", "10 min", "10 hours", "12 days"]


@pytest.mark.usefixtures("without_memory")
def test_a_model_of_a_billion_layers_is_answered_at_once(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "MOST_BUILT_LAYERS", 2)
    status, out, _ = run(
        *SMALL, "model.n_layers=1000000000", "model.vocab_size=7", "--device", "l4", "--json"
    )
    assert status == 0
    parameters = json.loads(out)["parameters"]
    assert parameters["total"] == parameters["by_formula"]


def test_no_number_is_cut_in_a_terminal_of_any_width(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_plan_module, "plan", cache(plan))
    for columns in (40, 60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        _, out, _ = run("lecture", "--device", "a100")
        assert max(map(len, out.splitlines())) <= columns
        assert "…" not in out
        for number in ("2,102,272", "4,194,304", "6,324,736", "71.9%", "11.1 MiB", "2,916,864"):
            assert number in " ".join(out.split())


@pytest.mark.usefixtures("without_memory")
def test_a_busy_machine_s_estimate_is_told_as_such() -> None:
    config = ModelConfig(vocab_size=11, d_model=8, n_layers=1, max_seq_len=5)
    train = TrainConfig(batch_size=2, max_steps=1, dtype="float32")
    steady = Rate("this machine's cpu", "float32", 1e9, "measured", 0.6)
    assert "busy" not in time_line(plan(config, train, steady))
    told = time_line(plan(config, train, replace(steady, spread=2.5)))
    assert "2.5 times as long as the fastest" in told
    assert "1 step of 10 tokens" in told
