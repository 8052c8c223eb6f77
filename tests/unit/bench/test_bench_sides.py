"""Training, generation and tokenizing measured side by side, each for a moment."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from clearformer.bench import generation, machine
from clearformer.bench.generation import bench_generation, bytes_read
from clearformer.bench.machine import Limits, measure_limits
from clearformer.bench.rounds import Comparison
from clearformer.bench.tokenizing import bench_tokenizing
from clearformer.bench.training import bench_training, is_nanogpt, nanogpt_settings
from clearformer.errors import UserError
from clearformer.model import Decoder, build
from clearformer.model.feedforward import GELU
from clearformer.presets import preset
from clearformer.resolving import resolve_run
from clearformer.training.config import RunConfig

LIMITS = Limits(float32=1e9, bfloat16=2e9, copy=1e9, read=1e9, peak=None)
SIZES = ("model.d_model=12", "model.n_layers=1", "model.max_seq_len=16", "train.batch_size=4")
PLAIN = ("train.dtype=float32", "train.compile=false", "train.device=cpu")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))


def tiny_run(tmp_path: Path, *settings: str) -> RunConfig:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    arguments = ["nanogpt-cpu", "data.name=none", f"data.path={text}", *SIZES, *PLAIN, *settings]
    return resolve_run(arguments, None)


def names(comparison: Comparison) -> list[str]:
    return [side.name.split()[0] for side in comparison.sides]


# --- training ---------------------------------------------------------------------------------------------


def test_training_beside_transformers(tmp_path: Path) -> None:
    found = bench_training(tiny_run(tmp_path), ["transformers", "nanogpt"], 2, 3, LIMITS)
    assert names(found) == ["clearformer", "transformers"]
    assert all(len(side.values) == 2 and min(side.values) > 0 for side in found.sides)
    assert [absent.name for absent in found.absent] == ["nanogpt"]
    ours, facts = found.sides[0].median, found.facts
    assert facts["of_measured_matrix_rate"] == pytest.approx(ours * facts["flops_per_token"] / 1e9, rel=0.01)
    assert facts["ms_per_step"] == pytest.approx(1000 * 4 * 16 / ours, rel=0.01)
    assert facts["mfu"] is None
    assert (facts["dtype"], facts["compiled"]) == ("float32", False)


def test_two_passes_of_a_step_count_twice(tmp_path: Path) -> None:
    dropped = tiny_run(tmp_path, "model.dropout=0.1")
    one, two = (
        bench_training(run, None, 1, 1, LIMITS).facts["flops_per_token"]
        for run in (dropped, dropped.replace(train=dropped.train.replace(r_drop=1.0)))
    )
    assert two == 2 * one


TRAIN_PY = """
import json, os, sys
flags = dict(flag[2:].split("=", 1) for flag in sys.argv[1:])
flags["threads"] = os.environ["OMP_NUM_THREADS"]
with open("calls.jsonl", "a") as file:
    file.write(json.dumps(flags) + "\\n")
for step in range(int(flags["max_iters"])):
    milliseconds = {"True": 4.0, "False": 8.0}[flags["compile"]]
    print(f"iter {step}: loss 1.0, time {milliseconds if step > 4 else 999}ms, mfu -100.00%")
"""


def test_training_beside_nanogpt_takes_its_own_train_py(tmp_path: Path) -> None:
    folder = tmp_path / "nanoGPT"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN_PY)

    found = bench_training(tiny_run(tmp_path), [f"nanogpt={folder}"], 1, 3, LIMITS)

    assert [side.name for side in found.sides] == ["clearformer", "nanogpt", "nanogpt, compiled"]
    assert [side.median for side in found.sides[1:]] == pytest.approx([64 / 0.008, 64 / 0.004])
    assert [side.note for side in found.sides] == ["", "", ""]
    eager, compiled, *_ = map(json.loads, (folder / "calls.jsonl").read_text().splitlines())
    assert (eager["compile"], compiled["compile"]) == ("False", "True")
    assert eager["threads"] == str(torch.get_num_threads())  # as many as ours
    wanted = {"n_layer": "1", "n_head": "4", "n_embd": "12", "block_size": "16", "batch_size": "4"}
    assert wanted.items() <= eager.items()


def test_what_nanogpt_says_when_it_fails_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('no such flag')")
    with pytest.raises(UserError, match=r"train\.py in .* failed: no such flag"):
        bench_training(tiny_run(tmp_path), [f"nanogpt={tmp_path}"], 1, 1, LIMITS)


@pytest.mark.parametrize(
    ("name", "same"), [("nanogpt-cpu", True), ("gpt2", False), ("quick", False), ("lecture", False)]
)
def test_which_models_nanogpt_trains_too(name: str, same: bool) -> None:
    """GPT-2 has the approximate GELU, and nanoGPT the exact one."""
    assert is_nanogpt(preset(name).model) == same


def test_a_batch_in_parts_is_in_parts_there_too() -> None:
    settings = nanogpt_settings(preset("gpt2"), torch.device("cpu"))
    assert (settings["batch_size"], settings["gradient_accumulation_steps"]) == (12, 40)
    assert settings["bias"] is True


def test_translation_is_refused() -> None:
    with pytest.raises(UserError, match="compares language models"):
        bench_training(preset("translate"), [], 1, 1, LIMITS)


# --- generation -------------------------------------------------------------------------------------------


def decoder(name: str, **settings: Any) -> Decoder:
    config = preset(name).model.replace(vocab_size=19, d_model=16, n_layers=2, max_seq_len=24, **settings)
    return build(config).eval()


def test_generation_beside_llama_cpp_gives_the_same_tokens() -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    model = decoder("minigpt", ffn=GELU(approximate="tanh"))
    one, three = bench_generation(model, ["llama_cpp"], 1, 12, [1, 3], "float32", LIMITS)
    assert names(one) == ["clearformer", "llama-cpp-python"]
    assert one.facts["same_tokens"] == "yes"
    assert names(three) == ["clearformer"]
    assert "generates one stream at a time" in three.to_json()["absent"]["llama_cpp"]


def test_a_model_that_no_gguf_file_holds_takes_part_without_llama_cpp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generation, "absence", lambda name, folder: None)
    monkeypatch.setattr(generation, "with_version", lambda name: name)
    [one] = bench_generation(decoder("minigpt"), ["llama_cpp"], 1, 4, [1], "float32", LIMITS)
    assert names(one) == ["clearformer"]
    assert "model.ffn.approximate=none does not fit" in one.to_json()["absent"]["llama_cpp"]


def test_generation_beside_transformers_gives_the_same_tokens() -> None:
    one, three = bench_generation(decoder("minigpt"), [], 1, 12, [1, 3], "float32", LIMITS)
    assert names(one) == names(three) == ["clearformer", "transformers"]
    assert one.facts["same_tokens"] == three.facts["same_tokens"] == "yes"
    n_bytes = 4 * sum(p.numel() for p in decoder("minigpt").parameters())
    read = n_bytes * three.sides[0].median / 3
    assert three.facts["weights_read_per_second"] == pytest.approx(read, abs=1)


def test_in_bfloat16_the_weights_are_read_in_bfloat16() -> None:
    model = decoder("minigpt")
    [found] = bench_generation(model, ["transformers"], 1, 5, [1], "bfloat16", LIMITS)
    n_bytes = 2 * sum(p.numel() for p in model.parameters())
    assert found.facts["weights_read_per_second"] == pytest.approx(n_bytes * found.sides[0].median, abs=1)
    assert model.embed.weight.dtype == torch.float32  # what was handed in is left as it was


def test_of_embeddings_that_are_no_head_a_step_reads_a_few_rows() -> None:
    tied, untied = (decoder("minigpt", tie_embeddings=tied) for tied in (True, False))
    assert bytes_read(tied) == 4 * sum(p.numel() for p in tied.parameters())
    assert bytes_read(untied) == bytes_read(tied)  # its head's matrix in place of the embeddings


def test_another_model_s_tokens_are_not_compared() -> None:
    [found] = bench_generation(decoder("lecture"), [], 1, 5, [1], "float32", LIMITS)
    assert "a GPT-2 of the same sizes" in found.sides[1].note
    assert "same_tokens" not in found.facts


def test_more_tokens_than_positions_are_refused() -> None:
    with pytest.raises(UserError, match=r"--tokens 17: .* give at most 16"):
        bench_generation(decoder("minigpt"), [], 1, 17, [1], "float32", LIMITS)
    short = build(decoder("minigpt").config.replace(max_seq_len=8))
    with pytest.raises(UserError, match=r"the model's 8 positions; choose a model with more"):
        bench_generation(short, [], 1, 1, [1], "float32", LIMITS)


# --- tokenizing -------------------------------------------------------------------------------------------


def test_tokenizing_beside_tokenizers_gives_the_same_ids() -> None:
    text = "".join(f"line {n}: the quick brown fox's {n * n} jumps\n" for n in range(200))
    encoding, decoding, learning = bench_tokenizing(text, ["tokenizers"], 1)
    assert [names(found) for found in (encoding, decoding, learning)] == [["clearformer", "tokenizers"]] * 3
    assert encoding.facts == {"same_ids": True}
    assert "learning a vocabulary" in learning.what


# --- the machine ------------------------------------------------------------------------------------------


def test_the_machine_s_limits_are_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "COPIED_BYTES", 2**20)
    monkeypatch.setattr(
        machine, "measured_rate", lambda dtype, _: type("Rate", (), {"flops_per_second": float(len(dtype))})
    )
    limits = measure_limits(torch.device("cpu"))
    assert (limits.float32, limits.bfloat16, limits.peak) == (7.0, 8.0, None)
    assert limits.copy > 1e6
    assert limits.read > 1e6


def test_a_gpu_s_memory_is_measured_by_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for total, copied in ((80 * 2**30, 2**32), (8 * 2**30, 2**29)):
        whole = type("Properties", (), {"total_memory": total})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, whole=whole: whole)
        assert machine.copied_bytes(torch.device("cuda")) == copied
    assert machine.copied_bytes(torch.device("cpu")) == machine.COPIED_BYTES


def test_a_gpu_is_described_with_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = type("Properties", (), {"total_memory": 5})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: whole)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 80GB HBM3")
    done = subprocess.CompletedProcess([], 0, stdout="580.159.04\n580.159.04\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    found = machine.describe_device(torch.device("cuda"))
    assert found == {
        "device": "NVIDIA H100 80GB HBM3",
        "device_bytes": 5,
        "driver": "580.159.04",
        "cuda": torch.version.cuda,
    }
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "")
    assert machine.nvidia_driver() is None
    assert machine.describe_device(torch.device("cpu")) == {"device": "cpu"}
