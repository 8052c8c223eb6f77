"""What a run is said to cost, against what it does cost."""

import math
import sys
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import clearformer.training.planning.plan as plan_module
from clearformer.cost import LiveBytes
from clearformer.cost.rates import DEVICES, Rate, measured_rate, mfu, named_rate, peak_rate
from clearformer.device import autocast
from clearformer.errors import ConfigError
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.feedforward import ReLU2
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import RoPE
from clearformer.training.config import TrainConfig
from clearformer.training.objectives import ClassificationObjective, MaskedObjective, TranslationObjective
from clearformer.training.optim.optimizers import Adam, AdamW, Muon
from clearformer.training.planning import duration
from clearformer.training.planning.memory import MemoryBytes
from clearformer.training.planning.plan import (
    count_flops,
    count_parameters,
    for_every_layer,
    part_size,
    plan,
    training_memory,
)
from clearformer.training.tasks.losses import IGNORED, next_token_loss, summed_loss, summed_loss_of_hidden
from clearformer.training.tasks.r_drop import summed_r_drop, twice

from ...cost.activations import activations_by_formula

CPU = torch.device("cpu")
MODEL = ModelConfig(vocab_size=101, d_model=44, n_layers=2, max_seq_len=31)
SHALLOW = MODEL.replace(n_layers=1)  # where it does not matter what is planned
MODERN = MODEL.replace(
    attention=MultiHead(n_heads=2, n_kv_heads=1), position=RoPE(), norm=RMSNorm(), ffn=ReLU2(bias=False)
)
RATE = Rate("a device", "float32", 1e9, "measured", utilisation=0.5)


def settings(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"batch_size": 6, "max_steps": 7, "dtype": "float32"} | changes)


@pytest.fixture
def without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory is measured, which takes longer than all the rest of a plan."""
    monkeypatch.setattr(plan_module, "training_memory", lambda *_: MemoryBytes(0, 0, 0, 0, 0))


# --- memory -----------------------------------------------------------------------------------------------


def test_the_memory_is_the_same_where_torch_has_no_tensors_without_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = MODERN.replace(n_layers=1)
    expected = training_memory(model, settings(optimizer=Muon(), ema=0.9))
    monkeypatch.setitem(sys.modules, "torch._subclasses.fake_tensor", None)

    assert training_memory(model, settings(optimizer=Muon(), ema=0.9)) == expected


def real_peak(config: ModelConfig, train: TrainConfig) -> int:
    """The most bytes alive in the second step of real training."""
    with LiveBytes() as live:
        model = build(config)
        average = [torch.empty_like(p) for p in model.parameters()] if train.ema else []
        optimizers = train.optimizer.build(model, train.lr)
        tokens = torch.zeros(train.batch_size // train.grad_accum_steps, config.max_seq_len, dtype=torch.long)
        for _ in range(2):
            live.peak = live.now
            for _ in range(train.grad_accum_steps):
                with autocast(CPU, train.dtype):
                    loss = (
                        summed_r_drop(model(*twice(tokens)), tokens, train.r_drop) / tokens.numel()
                        if train.r_drop
                        else next_token_loss(model(tokens), tokens)
                    )
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
        pytest.param(MODEL, settings(grad_accum_steps=3), id="grad_accum_steps"),
        pytest.param(MODEL.replace(dropout=0.1), settings(), id="dropout"),
        pytest.param(MODERN, settings(dtype="bfloat16"), id="modern-bfloat16"),
        pytest.param(MODERN, settings(optimizer=Muon()), id="modern-muon"),
        pytest.param(MODERN, settings(ema=0.9, batch_size=1), id="modern-ema"),
        pytest.param(MODEL.replace(dropout=0.1), settings(r_drop=5.0), id="r_drop"),
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
    assert memory.activations == activations_by_formula(MODEL, 6, MODEL.max_seq_len) + 8
    assert memory.peak > memory.weights + memory.optimizer + memory.activations


def test_muon_keeps_one_number_for_each_weight_of_a_block_s_matrices() -> None:
    n_matrices = sum(
        p.numel() for n, p in build(SHALLOW).named_parameters() if "blocks" in n and p.dim() == 2
    )
    adam, muon = (training_memory(SHALLOW, settings(optimizer=kind)).optimizer for kind in (AdamW(), Muon()))
    n_in_blocks = sum(1 for n, p in build(SHALLOW).named_parameters() if "blocks" in n and p.dim() == 2)
    assert adam - muon == 4 * n_matrices + 4 * n_in_blocks


def test_a_moving_average_takes_the_weights_once_more() -> None:
    without, with_average = (training_memory(SHALLOW, settings(ema=ema)) for ema in (None, 0.99))
    assert with_average.optimizer - without.optimizer == without.weights


def test_a_batch_in_parts_keeps_fewer_activations_and_all_gradients() -> None:
    whole, parts = (training_memory(MODEL, settings(grad_accum_steps=count)) for count in (1, 6))
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
    assert named_rate("A100", "bfloat16") == rate


@pytest.mark.parametrize("name", DEVICES)
def test_auto_is_the_fastest_type_of_a_device(name: str) -> None:
    assert named_rate(name, "auto").flops_per_second == max(DEVICES[name].peak.values())


def test_an_unknown_device_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"^device: .*'h10'.*measure.*h200, h100-sxm"):
        named_rate("h10", "bfloat16")


def test_a_type_that_a_device_lacks_is_refused_with_the_one_it_has() -> None:
    with pytest.raises(ConfigError, match=r"t4 has no bfloat16.*train\.dtype=float32"):
        named_rate("t4", "bfloat16")


@pytest.mark.parametrize(
    ("torch_name", "peak"),
    [
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100-PCIE-40GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA A100 80GB PCIe MIG 1g.10gb", None),
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


def ticking(durations: list[int]) -> Iterator[int]:
    """A clock that is asked for the end, then before, at the start and at the end of each product, and once more."""
    now = 0
    yield now
    for seconds in durations:
        yield from (now, now, now + seconds)
        now += seconds
    yield now


@pytest.mark.parametrize(("quantile", "seconds"), [(0.5, 6), (0.1, 2)])
def test_a_measured_rate_is_of_a_quantile_of_the_times(
    monkeypatch: pytest.MonkeyPatch, quantile: float, seconds: int
) -> None:
    clock = ticking([4, 10, 1, 7, 2, 9, 3, 8, 6, 5])
    monkeypatch.setattr("clearformer.cost.rates.time", SimpleNamespace(perf_counter=lambda: next(clock)))

    rate = measured_rate("float32", CPU, seconds=55, quantile=quantile)

    assert rate.flops_per_second == 2 * 1024**3 / seconds
    assert rate.spread == 6 / 2


def test_a_measurement_for_no_time_is_of_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0, 9, 9, 13, 13])
    monkeypatch.setattr("clearformer.cost.rates.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert measured_rate("float32", CPU, seconds=1e-6).flops_per_second == 2 * 1024**3 / 4


@pytest.mark.parametrize(("slow", "is_uneven"), [(10, False), (15, False), (20, True)])
def test_a_machine_that_was_busy_while_it_was_measured_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, slow: int, is_uneven: bool
) -> None:
    clock = ticking([10, 10, *[slow] * 8])
    monkeypatch.setattr("clearformer.cost.rates.time", SimpleNamespace(perf_counter=lambda: next(clock)))

    rate = measured_rate("float32", CPU, seconds=20 + 8 * slow)

    assert rate.spread == slow / 10
    assert rate.is_uneven is is_uneven


def test_a_datasheet_s_rate_is_even() -> None:
    assert not named_rate("a100", "bfloat16").is_uneven


def test_mfu_is_the_part_of_the_peak_that_the_model_uses() -> None:
    assert mfu(6e9, 1000, 24e12) == pytest.approx(0.25)
    assert mfu(6e9, 1000, None) is None


# --- the plan ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_memory")
def test_time_is_flops_over_the_rate_that_is_reached() -> None:
    planned = plan(SHALLOW, settings(), RATE)
    assert planned.tokens_per_step == 6 * 31
    flops = planned.flops_per_token
    assert flops.by_formula is not None
    assert flops.forward + flops.backward == pytest.approx(flops.by_formula)
    expected = flops.by_formula * planned.tokens_per_step / (1e9 * 0.5)
    assert planned.seconds_per_step == pytest.approx(expected)
    assert planned.seconds == pytest.approx(7 * expected)
    assert planned.steps == 7


@pytest.mark.usefixtures("without_memory")
def test_two_passes_take_twice_the_flops_and_the_time() -> None:
    one, two = (plan(SHALLOW.replace(dropout=0.1), settings(r_drop=alpha), RATE) for alpha in (0.0, 5.0))
    assert two.tokens_per_step == one.tokens_per_step
    assert two.seconds_per_step == pytest.approx(2 * one.seconds_per_step)  # type: ignore[operator]
    assert two.parameters == one.parameters
    twice_as_many, once = two.flops_per_token, one.flops_per_token
    for name in ("forward", "backward", "by_formula"):
        assert getattr(twice_as_many, name) == pytest.approx(2 * getattr(once, name))
    assert sum(twice_as_many.by_component.values()) == pytest.approx(twice_as_many.forward)


@pytest.mark.parametrize(
    ("family", "objective", "sizes"),
    [
        ("encoder-decoder", TranslationObjective(batch_tokens=200), {"vocab_size": 101}),
        ("encoder-decoder", TranslationObjective(batch_tokens=200), {"vocab_size": 3001}),  # in chunks
        ("encoder", ClassificationObjective(), {"n_classes": 3}),
    ],
)
def test_two_passes_keep_twice_the_activations(family: str, objective: Any, sizes: dict[str, int]) -> None:
    model = SHALLOW.replace(family=family, dropout=0.1, **sizes)
    batch = {"batch_size": 32} if family == "encoder-decoder" else {}
    one, two = (
        training_memory(model, settings(objective=objective, r_drop=alpha, **batch)) for alpha in (0.0, 5.0)
    )
    assert one.weights == two.weights
    assert 1.3 * one.activations < two.activations < 3 * one.activations


@pytest.mark.usefixtures("without_memory")
def test_a_run_ends_at_the_nearer_of_its_limits() -> None:
    each = plan(SHALLOW, settings(), RATE).seconds_per_step
    assert each is not None
    by_time = plan(SHALLOW, settings(max_steps=30, max_seconds=10.5 * each), RATE)
    assert (by_time.steps, by_time.seconds) == (11, 10.5 * each)
    by_steps = plan(SHALLOW, settings(max_steps=3, max_seconds=10.5 * each), RATE)
    assert (by_steps.steps, by_steps.seconds) == (3, 3 * each)
    only_time = plan(SHALLOW, settings(max_steps=None, max_seconds=1.5 * each), RATE)
    assert only_time.steps == 2


@pytest.mark.usefixtures("without_memory")
def test_without_a_rate_no_time_is_estimated() -> None:
    planned = plan(SHALLOW, settings())
    assert (planned.seconds, planned.seconds_per_step, planned.rate) == (None, None, None)
    assert planned.steps == 7


def test_components_add_up() -> None:
    planned = plan(MODEL, settings())
    assert sum(planned.parameters.by_component.values()) == planned.parameters.total
    assert planned.parameters.matrices is not None
    assert planned.parameters.total == planned.parameters.by_formula
    assert planned.parameters.total > planned.parameters.matrices
    assert sum(planned.flops_per_token.by_component.values()) == pytest.approx(
        planned.flops_per_token.forward
    )


def test_a_plan_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    plan(SHALLOW.replace(dropout=0.1), settings(), RATE)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_plan_needs_the_vocabulary_s_size() -> None:
    with pytest.raises(ConfigError, match="vocab_size"):
        plan(ModelConfig(), settings())


# --- the other families -----------------------------------------------------------------------------------

ENCODER = SHALLOW.replace(
    family="encoder", placement="post", n_token_types=2, masked_head="transform", dropout=0.1
)
CLASSIFIER = ENCODER.replace(n_classes=5)
PAIRS = MODEL.replace(family="encoder-decoder", n_layers=1, n_decoder_layers=2, final_norm=False)


def of_pairs(batch_tokens: int, **changes: Any) -> TrainConfig:
    objective = TranslationObjective(batch_tokens=batch_tokens)
    return TrainConfig(**{"max_steps": 7, "dtype": "float32", "objective": objective} | changes)


LARGE = {"vocab_size": 2053}  # where the loss is formed chunk by chunk


def loss_of_a_part(model: Any, train: TrainConfig, n_texts: int) -> torch.Tensor:
    """The loss as the tasks form it, of texts as long as the model reads."""
    tokens = torch.zeros(n_texts, model.config.max_seq_len, dtype=torch.long)
    padding = torch.ones_like(tokens, dtype=torch.bool)
    match train.objective:
        case TranslationObjective():
            return summed_loss_of_hidden(model, model.hidden(tokens, tokens, padding), tokens)
        case MaskedObjective() as masked:
            targets = torch.full_like(tokens, IGNORED)
            targets.view(-1)[: math.ceil(masked.fraction * tokens.numel())] = 0
            return summed_loss_of_hidden(model, model.hidden(tokens, padding), targets)
        case _:
            return summed_loss(model(tokens, padding), tokens[:, 0])


@pytest.mark.parametrize(
    ("config", "train", "n_texts"),
    [
        pytest.param(ENCODER, settings(objective=MaskedObjective(fraction=0.2)), 6, id="masked"),
        pytest.param(
            ENCODER.replace(**LARGE),
            settings(objective=MaskedObjective(), grad_accum_steps=2),
            3,
            id="masked-chunked",
        ),
        pytest.param(CLASSIFIER, settings(objective=ClassificationObjective()), 6, id="classes"),
        pytest.param(PAIRS, of_pairs(5 * 31), 5, id="pairs"),
        pytest.param(
            PAIRS.replace(**LARGE),
            of_pairs(100, dtype="bfloat16"),
            3,
            id="pairs-3",
        ),
    ],
)
def test_the_memory_of_every_family_is_that_of_real_training(
    config: ModelConfig, train: TrainConfig, n_texts: int
) -> None:
    planned = training_memory(config, train)
    with LiveBytes() as live:
        model = build(config)
        optimizers = train.optimizer.build(model, train.lr)
        for _ in range(2):
            live.peak = live.now
            for _ in range(train.grad_accum_steps):
                with autocast(CPU, train.dtype):
                    loss = loss_of_a_part(model, train, n_texts)
                loss.backward()
                del loss
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    assert planned.peak == pytest.approx(live.peak, rel=0.02)  # which targets count takes a few bytes
    assert planned.weights == 4 * sum(p.numel() for p in model.parameters())


def test_the_logits_of_masked_tokens_alone_are_kept() -> None:
    few, many = (
        training_memory(ENCODER, settings(objective=MaskedObjective(fraction=fraction))).activations
        for fraction in (0.1, 0.9)
    )
    logits = 4 * 0.8 * 6 * 31 * 101
    assert many - few == pytest.approx(logits * (1 + 44 / 101), rel=0.1)  # and what they are made of


def test_a_gpu_forms_all_logits_of_pairs_at_once() -> None:
    train = of_pairs(5 * 31)
    cpu, gpu = (training_memory(PAIRS.replace(**LARGE), train, kind).activations for kind in ("cpu", "cuda"))
    assert gpu > cpu
    assert gpu - cpu < 4 * 5 * 31 * 2053


@pytest.mark.usefixtures("without_memory")
def test_a_step_of_pairs_is_counted_in_tokens() -> None:
    train = of_pairs(1000, grad_accum_steps=3)
    planned = plan(PAIRS, train, RATE)
    assert planned.tokens_per_step == 1000
    flops = planned.flops_per_token
    assert planned.seconds_per_step == pytest.approx((flops.forward + flops.backward) * 1000 / (1e9 * 0.5))
    assert part_size(PAIRS, train) == (333 // 31, 31)
    assert part_size(PAIRS, of_pairs(7)) == (1, 31)


@pytest.mark.usefixtures("without_memory")
def test_masked_tokens_alone_take_the_time_of_logits() -> None:
    few, many = (
        plan(ENCODER, settings(objective=MaskedObjective(fraction=fraction)), RATE).seconds_per_step
        for fraction in (0.1, 0.6)
    )
    assert few is not None
    assert many is not None
    assert many - few == pytest.approx(0.5 * 6 * 44 * 101 * 6 * 31 / (1e9 * 0.5))


@pytest.mark.usefixtures("without_memory")
@pytest.mark.parametrize("config", [ENCODER, CLASSIFIER, PAIRS], ids=["encoder", "classifier", "pairs"])
def test_components_of_every_family_add_up(config: ModelConfig) -> None:
    classify_or_fill = settings(
        objective=ClassificationObjective() if config.n_classes else MaskedObjective()
    )
    planned = plan(config, of_pairs(100) if config is PAIRS else classify_or_fill)
    assert sum(planned.parameters.by_component.values()) == planned.parameters.total
    assert planned.parameters.total == planned.parameters.by_formula
    flops = planned.flops_per_token
    assert flops.forward + flops.backward == pytest.approx(flops.by_formula, rel=1e-3)


# --- models that are too large to be built ----------------------------------------------------------------


@pytest.mark.parametrize("model", [MODEL, MODERN], ids=["gpt2", "modern"])
@pytest.mark.parametrize("what", ["parameters", "flops", "memory"])
def test_many_layers_are_reckoned_from_a_few_as_if_all_were_built(
    monkeypatch: pytest.MonkeyPatch, model: ModelConfig, what: str
) -> None:
    count = {
        "parameters": count_parameters,
        "flops": count_flops,
        "memory": lambda config: training_memory(config, settings()),
    }[what]
    deep = model.replace(n_layers=4)
    monkeypatch.setattr(plan_module, "MOST_BUILT_LAYERS", 2)
    assert for_every_layer(count, deep) == count(deep)


def test_the_layers_of_both_stacks_are_reckoned(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = MODEL.replace(family="encoder-decoder", n_layers=3, n_decoder_layers=4)
    monkeypatch.setattr(plan_module, "MOST_BUILT_LAYERS", 2)
    assert for_every_layer(count_parameters, deep) == count_parameters(deep)
    assert for_every_layer(count_flops, deep) == count_flops(deep)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"d_model": 4 * 10**15}, "model.d_model"),
        ({"vocab_size": 10**18}, "model.vocab_size"),
        ({"max_seq_len": 10**12}, "model.max_seq_len"),
    ],
)
def test_sizes_that_nothing_can_count_are_refused_by_name(changes: dict[str, int], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{key}: [\d,]+ is too large"):
        plan(MODEL.replace(**changes), settings(), RATE)


@pytest.mark.usefixtures("without_memory")
def test_a_run_of_more_seconds_than_can_be_counted_has_no_number_of_steps() -> None:
    planned = plan(SHALLOW, settings(max_steps=None, max_seconds=1e308), RATE)
    assert (planned.steps, planned.seconds) == (None, 1e308)


def test_a_short_training_is_not_compiled_whatever_the_command_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(duration, "seconds_per_step", lambda *_: 0.01)
    limits = TrainConfig(max_steps=None, max_seconds=10.0)
    for wall in (None, 3600.0):
        train = limits.replace(max_wall_seconds=wall)
        assert not duration.compile_pays(ModelConfig(vocab_size=11), train, "float32", torch.device("cpu"))
    train = limits.replace(max_seconds=1000.0, max_wall_seconds=3600.0)
    assert duration.compile_pays(ModelConfig(vocab_size=11), train, "float32", torch.device("cpu"))


def test_a_run_whose_time_went_by_for_preparing_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual start counts for nothing; a text that takes longer leaves too little to gain."""
    monkeypatch.setattr(duration, "seconds_per_step", lambda *_: 0.01)
    train = TrainConfig(max_steps=None, max_wall_seconds=60.0)
    pays = partial(duration.compile_pays, ModelConfig(vocab_size=11), train, "float32", torch.device("cpu"))
    assert [pays(gone) for gone in (0.0, 11.0, 13.0, 30.0)] == [True, True, False, False]
