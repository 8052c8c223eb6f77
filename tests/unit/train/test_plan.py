"""What a run is said to cost, against what it does cost."""

from typing import Any

import pytest
import torch

from clearformer.errors import ConfigError
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.count import LiveBytes, activations_by_formula
from clearformer.model.feedforward import ReLU2
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import RoPE
from clearformer.train.config import TrainConfig
from clearformer.train.device import autocast
from clearformer.train.objective import next_token_loss
from clearformer.train.optimizers import Adam, AdamW, Muon
from clearformer.train.plan import (
    DEVICES,
    Rate,
    measured_rate,
    mfu,
    named_rate,
    peak_rate,
    plan,
    training_memory,
)

CPU = torch.device("cpu")
MODEL = ModelConfig(vocab_size=101, d_model=44, n_layers=3, max_seq_len=31)
MODERN = MODEL.replace(
    attention=MultiHead(n_heads=2, n_kv_heads=1), position=RoPE(), norm=RMSNorm(), ffn=ReLU2(bias=False)
)
RATE = Rate("a device", "float32", 1e9, "measured", utilisation=0.5)


def settings(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"batch_size": 6, "max_steps": 7, "dtype": "float32"} | changes)


# --- memory -----------------------------------------------------------------------------------------------


def real_peak(config: ModelConfig, train: TrainConfig) -> int:
    """The most bytes alive in the second step of real training."""
    with LiveBytes() as live:
        model = build(config)
        average = [torch.empty_like(p) for p in model.parameters()] if train.ema else []
        optimizers = train.optimizer.build(model, train.lr)
        tokens = torch.zeros(train.batch_size // train.accumulate, config.max_seq_len, dtype=torch.long)
        for _ in range(2):
            live.peak = live.now
            for _ in range(train.accumulate):
                with autocast(CPU, train.dtype):
                    loss = next_token_loss(model(tokens), tokens)
                loss.backward()
                del loss
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        assert len(average) in (0, len(list(model.parameters())))
    return live.peak


@pytest.mark.parametrize(
    ("config", "train"),
    [
        pytest.param(MODEL, settings(), id="gpt2"),
        pytest.param(MODEL, settings(accumulate=3), id="accumulate"),
        pytest.param(MODEL.replace(dropout=0.1), settings(), id="dropout"),
        pytest.param(MODERN, settings(dtype="bfloat16"), id="modern-bfloat16"),
        pytest.param(MODERN, settings(optimizer=Muon()), id="modern-muon"),
        pytest.param(MODERN, settings(ema=0.9, batch_size=1), id="modern-ema"),
    ],
)
def test_the_peak_is_that_of_real_training(config: ModelConfig, train: TrainConfig) -> None:
    assert training_memory(config, train).peak == real_peak(config, train)


def test_memory_by_its_parts() -> None:
    n_parameters = sum(p.numel() for p in build(MODEL).parameters())
    memory = training_memory(MODEL, settings(optimizer=Adam()))
    assert memory.weights == memory.gradients == 4 * n_parameters
    n_tensors = len(list(build(MODEL).parameters()))
    assert memory.optimizer == 8 * n_parameters + 4 * n_tensors  # a count of its steps for each
    assert memory.activations == sum(activations_by_formula(MODEL, 6, MODEL.max_seq_len).values()) + 8
    assert memory.peak > memory.weights + memory.optimizer + memory.activations


def test_muon_keeps_one_number_for_each_weight_of_a_block_s_matrices() -> None:
    n_matrices = sum(p.numel() for n, p in build(MODEL).named_parameters() if "blocks" in n and p.dim() == 2)
    adam, muon = (training_memory(MODEL, settings(optimizer=kind)).optimizer for kind in (AdamW(), Muon()))
    n_in_blocks = sum(1 for n, p in build(MODEL).named_parameters() if "blocks" in n and p.dim() == 2)
    assert adam - muon == 4 * n_matrices + 4 * n_in_blocks


def test_a_moving_average_takes_the_weights_once_more() -> None:
    without, with_average = (training_memory(MODEL, settings(ema=ema)) for ema in (None, 0.99))
    assert with_average.optimizer - without.optimizer == without.weights


def test_a_batch_in_parts_keeps_fewer_activations_and_all_gradients() -> None:
    whole, parts = (training_memory(MODEL, settings(accumulate=count)) for count in (1, 6))
    assert parts.activations < whole.activations / 5
    assert parts.peak > parts.weights + parts.gradients + parts.optimizer + parts.activations
    assert parts.peak < whole.peak


def test_dropout_keeps_no_attention_pattern_on_a_gpu() -> None:
    config = MODEL.replace(dropout=0.1)
    cpu, gpu = (training_memory(config, settings(), kind).activations for kind in ("cpu", "cuda"))
    pattern = 4 * config.n_layers * 6 * 4 * config.max_seq_len**2  # bytes, layers, texts, heads, scores
    assert cpu - gpu > pattern


# --- rates ------------------------------------------------------------------------------------------------


def test_a_named_device_has_its_datasheet_s_rate() -> None:
    rate = named_rate("a100", "bfloat16")
    assert (rate.flops_per_second, rate.source, rate.dtype) == (312e12, "datasheet", "bfloat16")
    assert named_rate("a100", "float32").flops_per_second == 19.5e12


@pytest.mark.parametrize("name", DEVICES)
def test_auto_is_the_fastest_type_of_a_device(name: str) -> None:
    assert named_rate(name, "auto").flops_per_second == max(DEVICES[name].peak.values())


def test_an_unknown_device_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"--device.*'h10'.*measure.*h200, h100-sxm"):
        named_rate("h10", "bfloat16")


def test_a_type_that_a_device_lacks_is_refused_with_the_one_it_has() -> None:
    with pytest.raises(ConfigError, match=r"t4 has no bfloat16.*train\.dtype=float32"):
        named_rate("t4", "bfloat16")


@pytest.mark.parametrize(
    ("torch_name", "peak"),
    [
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("Tesla T4", None),
    ],
)
def test_the_gpu_at_hand_is_found_by_its_name(
    monkeypatch: pytest.MonkeyPatch, torch_name: str, peak: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: torch_name)
    assert peak_rate(torch.device("cuda"), "bfloat16") == peak


def test_a_cpu_s_peak_is_not_known() -> None:
    assert peak_rate(CPU, "float32") is None


def test_a_measured_rate_is_that_of_products_on_this_machine() -> None:
    rate = measured_rate("float32", CPU, seconds=0.05)
    assert (rate.source, rate.dtype) == ("measured", "float32")
    assert 1e8 < rate.flops_per_second < 1e15


def test_mfu_is_the_part_of_the_peak_that_the_model_uses() -> None:
    assert mfu(6e9, 1000, 24e12) == pytest.approx(0.25)
    assert mfu(6e9, 1000, None) is None


# --- the plan ---------------------------------------------------------------------------------------------


def test_time_is_flops_over_the_rate_that_is_reached() -> None:
    planned = plan(MODEL, settings(), RATE)
    assert planned.tokens_per_step == 6 * 31
    flops = planned.flops_per_token
    assert flops.forward + flops.backward == pytest.approx(flops.by_formula)
    expected = flops.by_formula * planned.tokens_per_step / (1e9 * 0.5)
    assert planned.seconds_per_step == pytest.approx(expected)
    assert planned.seconds == pytest.approx(7 * expected)
    assert planned.steps == 7


def test_a_run_ends_at_the_nearer_of_its_limits() -> None:
    each = plan(MODEL, settings(), RATE).seconds_per_step
    assert each is not None
    by_time = plan(MODEL, settings(max_steps=30, max_seconds=10.5 * each), RATE)
    assert (by_time.steps, by_time.seconds) == (11, 10.5 * each)
    by_steps = plan(MODEL, settings(max_steps=3, max_seconds=10.5 * each), RATE)
    assert (by_steps.steps, by_steps.seconds) == (3, 3 * each)
    only_time = plan(MODEL, settings(max_steps=None, max_seconds=1.5 * each), RATE)
    assert only_time.steps == 2


def test_without_a_rate_no_time_is_estimated() -> None:
    planned = plan(MODEL, settings())
    assert (planned.seconds, planned.seconds_per_step, planned.rate) == (None, None, None)
    assert planned.steps == 7


def test_components_add_up() -> None:
    planned = plan(MODEL, settings())
    assert sum(planned.parameters.by_component.values()) == planned.parameters.total
    assert planned.parameters.total == planned.parameters.by_formula > planned.parameters.matrices
    assert sum(planned.flops_per_token.by_component.values()) == pytest.approx(
        planned.flops_per_token.forward
    )


def test_a_plan_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    plan(MODEL.replace(dropout=0.1), settings(), RATE)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_plan_needs_the_vocabulary_s_size() -> None:
    with pytest.raises(ConfigError, match="vocab_size"):
        plan(ModelConfig(), settings())
