"""Parameters, FLOPs and bytes: what the formulas say is what the built model has."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from clearformer.config import Spec, slot_variants
from clearformer.cost import (
    LiveBytes,
    analytic_flops,
    analytic_matrices,
    analytic_parameters,
    measured_flops,
    measured_parameters,
    slots,
    tensors_without_memory,
)
from clearformer.cost.slots import NoFormulaError
from clearformer.errors import ConfigError, UserError
from clearformer.model import ModelConfig, build_on_meta, build_undrawn
from clearformer.model.attention import Dot, Last, Mean, MultiHead, Shared
from clearformer.model.feedforward import GEGLU, GELU, NoFeedForward, ReLU, ReLU2, SiLU, SwiGLU
from clearformer.model.linear_attention import Linear
from clearformer.model.norms import LayerNorm, NoNorm, RMSNorm
from clearformer.model.positions import (
    ALiBi,
    Learned,
    NoPositions,
    PositionBase,
    Positions,
    RoPE,
    Sinusoidal,
    Sizes,
)
from clearformer.model.relative_positions import Relative
from clearformer.registry import register, unregister

from ...pairwise import crossed, pairwise
from .activations import activations_by_formula

SMALL: dict[str, Any] = {"vocab_size": 101, "d_model": 40, "n_layers": 3, "max_seq_len": 131}
SEQ_LEN = 131  # two chunks of linear attention and a rest

# Settings that are neither a kind nor a choice of two.
OTHERS: dict[str, dict[str, Any]] = {
    "gqa": {"attention": MultiHead(n_heads=4, n_kv_heads=2, qkv_bias=True, output_bias=True)},
    "mqa": {"attention": MultiHead(n_heads=5, n_kv_heads=1)},
    "narrow-heads": {"attention": MultiHead(n_heads=3, d_head=6)},
    "window": {"attention": MultiHead(n_heads=2, window=5)},
    "qk-layernorm": {"attention": MultiHead(n_heads=4, n_kv_heads=2, qk_norm=LayerNorm())},
    "qk-rmsnorm": {"attention": MultiHead(n_heads=4, qk_norm=RMSNorm(learned=False))},
    "linear-gqa": {"attention": Linear(n_heads=4, n_kv_heads=2, qk_norm=RMSNorm())},
    "wide-swiglu": {"ffn": SwiGLU(d_ff=53, bias=True)},
    "wide-relu": {"ffn": ReLU(d_ff=53)},
    "attention-only-post": {"ffn": NoFeedForward(), "placement": "post"},
    "attention-only-none": {"ffn": NoFeedForward(), "placement": "none"},
    "partial-rope": {"position": RoPE(fraction=0.4)},
    "soft-cap": {"logit_soft_cap": 30.0},
    "relative": {"position": Relative(n_buckets=8, max_distance=20)},
}

# What only one family has, and what each of them has in another number.
OF_FAMILIES: dict[str, dict[str, Any]] = {
    "encoder": {"family": "encoder"},
    "bert": {
        "family": "encoder",
        "n_token_types": 2,
        "masked_head": "transform",
        "head_bias": True,
        "embedding_norm": True,
        "placement": "post",
        "final_norm": False,
    },
    "masked-untied": {
        "family": "encoder",
        "masked_head": "transform",
        "tie_embeddings": False,
        "norm": RMSNorm(),
    },
    "classes-first": {"family": "encoder", "n_classes": 5, "n_token_types": 3},
    "classes-mean": {"family": "encoder", "n_classes": 5, "pooling": "mean", "head_bias": True},
    "classes-untied": {
        "family": "encoder",
        "n_classes": 5,
        "tie_embeddings": False,
        "masked_head": "transform",
    },
    "pair": {"family": "encoder-decoder"},
    "pair-high": {"family": "encoder-decoder", "n_decoder_layers": 3, "embedding_norm": True},
    "pair-low": {"family": "encoder-decoder", "n_layers": 2, "n_decoder_layers": 1, "placement": "post"},
    "pair-bare": {"family": "encoder-decoder", "placement": "none", "final_norm": False},
    "pair-attention-only": {
        "family": "encoder-decoder",
        "ffn": NoFeedForward(),
        "head_bias": True,
    },
    "pair-parallel": {
        "family": "encoder-decoder",
        "parallel": True,
        "placement": "none",
        "final_norm": False,
    },
    "pair-window": {"family": "encoder-decoder", "attention": MultiHead(n_heads=2, window=5)},
    "pair-gqa": {
        "family": "encoder-decoder",
        "attention": MultiHead(n_heads=4, n_kv_heads=2, qkv_bias=True, output_bias=True, qk_norm=RMSNorm()),
    },
}


def switches(spec_type: type[Spec], **more: Iterable[Any]) -> list[dict[str, Any]]:
    """A spec's choices of two, and others, crossed pairwise."""
    names = [name for name, field in spec_type.model_fields.items() if field.annotation is bool]
    crossed = dict.fromkeys(names, (False, True)) | more
    return pairwise(crossed, together=min(2, len(crossed)))


def slot_configs() -> Iterator[Any]:
    """A model for every kind of every slot, with its switches crossed."""
    for slot, field in ModelConfig.model_fields.items():
        for kind, variant in slot_variants(field).items():
            for chosen in switches(variant):
                name = "-".join([slot, kind, *(key for key, on in chosen.items() if on)])
                yield from small(name, {"n_layers": 1, slot: variant(**chosen)})


def whole_configs() -> Iterator[Any]:
    """A model for the model's own switches and placements, crossed."""
    for chosen in switches(ModelConfig, placement=("pre", "post", "none")):
        name = "-".join([chosen["placement"], *(key for key, on in chosen.items() if on is True)])
        yield from small(name, chosen)


def other_configs() -> Iterator[Any]:
    for name, settings in (OTHERS | OF_FAMILIES).items():
        yield from small(name, {"n_layers": 1} | settings)
    yield from small("several layers", {})


def family_configs() -> Iterator[Any]:
    """Encoders and encoder-decoders with every kind of the slots whose cost may depend on the family."""
    kinds = {
        slot: slot_variants(ModelConfig.model_fields[slot])
        for slot in ("attention", "position", "norm", "ffn")
    }
    for family in ("encoder", "encoder-decoder"):
        for row in pairwise(kinds, lambda row, family=family: goes_together(family, row), together=1):
            parts: dict[str, Any] = {slot: kinds[slot][kind]() for slot, kind in row.items()}
            name = "-".join([family, *row.values()])
            yield pytest.param(ModelConfig(**SMALL | {"family": family, "n_layers": 1} | parts), id=name)


def goes_together(family: str, kinds: dict[str, str]) -> bool:
    parts = {slot: {"kind": kind} for slot, kind in kinds.items()}
    return next(small("", {"family": family} | parts), None) is not None


def small(name: str, settings: dict[str, Any]) -> Iterator[Any]:
    """A small model as a test's parameter; nothing where the settings do not go together."""
    try:
        yield pytest.param(ModelConfig(**SMALL | settings), id=name)
    except ConfigError:
        return


EVERY_KIND = [*slot_configs(), *other_configs(), *family_configs()]


def test_every_kind_is_among_the_models() -> None:
    for slot, field in ModelConfig.model_fields.items():
        kinds = {getattr(param.values[0], slot).kind for param in EVERY_KIND if slot_variants(field)}
        assert kinds == set(slot_variants(field))


# --- parameters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [*EVERY_KIND, *whole_configs()])
def test_parameters_by_formula_are_those_of_the_built_model(config: ModelConfig) -> None:
    model = build_on_meta(config)
    assert analytic_parameters(config) == measured_parameters(model)
    assert sum(measured_parameters(model).values()) == sum(p.numel() for p in model.parameters())
    in_matrices = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    assert sum(analytic_matrices(config).values()) == in_matrices


def lecture(d_model: int) -> ModelConfig:
    """The four-layer model of lecture 000, section 5.4."""
    return ModelConfig(
        vocab_size=65,
        d_model=d_model,
        n_layers=4,
        attention=MultiHead(n_heads=1, output=False),
        position=NoPositions(),
        norm=NoNorm(),
        ffn=ReLU(),
        tie_embeddings=False,
    )


@pytest.mark.parametrize(
    ("d_model", "matrices", "total"), [(256, 2_916_864, 2_921_984), (768, 26_052_096, 26_067_456)]
)
def test_the_lecture_s_model(d_model: int, matrices: int, total: int) -> None:
    config = lecture(d_model)
    assert sum(analytic_matrices(config).values()) == matrices == 2 * 65 * d_model + 11 * 4 * d_model**2
    assert sum(measured_parameters(build_on_meta(config)).values()) == total


def gpt(n_layers: int, d_model: int, n_heads: int, max_seq_len: int, **settings: Any) -> ModelConfig:
    """A GPT with GPT-2's vocabulary and its biases."""
    return ModelConfig(
        vocab_size=50_257,
        d_model=d_model,
        n_layers=n_layers,
        max_seq_len=max_seq_len,
        attention=MultiHead(n_heads=n_heads, qkv_bias=True, output_bias=True),
        **settings,
    )


def test_gpt2_has_the_published_parameters() -> None:
    config = gpt(n_layers=12, d_model=768, n_heads=12, max_seq_len=1024)
    counted = measured_parameters(build_on_meta(config))
    assert sum(counted.values()) == 124_439_808
    in_blocks = analytic_matrices(config)["attention"] + analytic_matrices(config)["ffn"]
    assert round(in_blocks / 1e6, 1) == 84.9


def test_gpt3_is_counted_without_its_memory() -> None:
    config = gpt(n_layers=96, d_model=12_288, n_heads=96, max_seq_len=2048, tie_embeddings=False)
    layer = build_on_meta(config.replace(n_layers=1))
    assert all(parameter.is_meta for parameter in layer.parameters())
    assert round(sum(analytic_parameters(config).values()) / 1e9, 1) == 175.2
    without_positions = sum(analytic_matrices(config).values()) - analytic_matrices(config)["position"]
    assert without_positions == 12 * 96 * 12_288**2 + 2 * 50_257 * 12_288


def test_the_original_transformer_base_has_its_63_million_parameters() -> None:
    """Vaswani et al. 2017, table 3: 65 million; V = 37,000 is what they call about their vocabulary's size.

    With d_ff = 4d, a layer of the encoder has 4 d² + 8 d² and one of the decoder 4 d² more: 168 d² in 6 and 6.
    """
    d, vocab_size = 512, 37_000
    config = ModelConfig(
        family="encoder-decoder",
        vocab_size=vocab_size,
        d_model=d,
        n_layers=6,
        max_seq_len=512,
        attention=MultiHead(n_heads=8),
        position=Sinusoidal(),
        ffn=ReLU(d_ff=2048),
        placement="post",
        final_norm=False,
        scale_embeddings=True,
    )
    counted = measured_parameters(build_on_meta(config))

    assert counted["attention"] + counted["ffn"] == 168 * d**2 + 12 * (
        2048 + d
    )  # and the biases of 12 networks
    assert counted["norms"] == (6 * 2 + 6 * 3) * 2 * d
    assert (counted["position"], counted["head"], counted["embedding"]) == (0, 0, vocab_size * d)
    assert sum(counted.values()) == 63_045_632
    assert analytic_parameters(config) == counted


def test_bert_base_has_the_published_parameters() -> None:
    """110 million (Devlin et al. 2019); without its pooler, and with the masked-token head."""
    config = ModelConfig(
        family="encoder",
        vocab_size=30_522,
        d_model=768,
        n_layers=12,
        max_seq_len=512,
        attention=MultiHead(n_heads=12, qkv_bias=True, output_bias=True),
        placement="post",
        final_norm=False,
        embedding_norm=True,
        n_token_types=2,
        masked_head="transform",
        head_bias=True,
    )
    assert sum(measured_parameters(build_on_meta(config)).values()) == 109_514_298


class Scaled(Spec):
    """A norm of the user's own, which learns one number."""

    kind: Literal["scaled"] = "scaled"

    def build(self, d: int) -> nn.Module:
        return ScaledModule()


class ScaledModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))


@pytest.fixture
def scaled() -> Iterator[dict[str, Any]]:
    """The kind as the norm of a model."""
    register("norm")(Scaled)
    yield {"norm": {"kind": "scaled"}}
    unregister("norm", "scaled")


def test_norms_of_ones_own_count_as_norms(scaled: dict[str, Any]) -> None:
    n_layers = SMALL["n_layers"]
    qk_norm = MultiHead(n_heads=4, qk_norm=RMSNorm()).model_dump() | {"qk_norm": {"kind": "scaled"}}
    n_norms = {
        "decoder": 4 * n_layers + 2,
        "encoder": 4 * n_layers + 3,  # and that of the masked-token head
        "encoder-decoder": 11 * n_layers + 4,
    }
    for family, n in n_norms.items():
        masked = {"masked_head": "transform"} if family == "encoder" else {}
        config = ModelConfig(
            **SMALL, **scaled, **masked, family=family, embedding_norm=True, attention=qk_norm
        )  # type: ignore[arg-type]
        model = build_on_meta(config)
        counted = measured_parameters(model)
        assert counted["norms"] == n
        assert sum(counted.values()) == sum(p.numel() for p in model.parameters())


def test_a_parameter_that_belongs_to_no_part_is_named() -> None:
    model = build_on_meta(ModelConfig(**SMALL))
    model.blocks[1].extra = nn.Linear(2, 3)
    with pytest.raises(UserError, match=r"^blocks\.1\.extra\.weight: a parameter of no known component; put"):
        measured_parameters(model)


def test_a_model_without_a_vocabulary_cannot_be_counted() -> None:
    for count in (analytic_parameters, lambda config: analytic_flops(config, 7)):
        with pytest.raises(ConfigError, match="vocab_size"):
            count(ModelConfig())


# --- FLOPs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", EVERY_KIND)
def test_flops_by_formula_are_those_of_the_built_model(config: ModelConfig) -> None:
    formula = analytic_flops(config, SEQ_LEN)
    counted = measured_flops(build_on_meta(config), SEQ_LEN)
    assert counted.forward == formula.forward
    if isinstance(config.attention, Mean):  # its scores are constant and need no gradient
        attention = formula.backward["attention"]
        assert 0.48 * attention < counted.backward["attention"] < attention
        counted.backward["attention"] = attention
    assert counted.backward == formula.backward


LONG: dict[str, Any] = {"vocab_size": 11, "d_model": 12, "n_layers": 1, "max_seq_len": 300}


CHUNKED = {
    "window of 1": {"attention": MultiHead(window=1)},
    "window of 5": {"attention": MultiHead(n_heads=2, n_kv_heads=1, window=5)},
    "window of 67": {"attention": MultiHead(window=67)},
    "window and a bias": {"attention": MultiHead(window=5), "position": ALiBi()},
    "linear": {"attention": Linear(n_heads=2, n_kv_heads=1)},
}


@crossed(settings=CHUNKED, seq_len=[1, 64, 65, 131, 257], family=["decoder", "encoder-decoder"])
def test_flops_of_windows_and_linear_attention_at_any_length(
    settings: dict[str, Any], seq_len: int, family: Any
) -> None:
    """Short texts as a whole, long ones in blocks and chunks, and with a bias all pairs."""
    config = ModelConfig(**LONG | {"family": family} | settings)
    assert analytic_flops(config, seq_len) == measured_flops(build_on_meta(config), seq_len)


@pytest.mark.parametrize(
    ("seq_len", "window", "family", "n_pairs"),
    [
        (131, None, "decoder", 131**2),
        (127, 5, "decoder", 127**2),  # two blocks of 32 keys are more than half of it
        (131, 5, "decoder", 5 * 32 * 64),
        (4096, 5, "decoder", 4096 * 64),
        (4096, 128, "decoder", 4096 * 192),
        (4096, 128, "encoder", 4096 * 320),
        (4099, 128, "decoder", (4096 + 64) * 192),
    ],
)
def test_a_window_s_pairs_by_hand(seq_len: int, window: int | None, family: str, n_pairs: int) -> None:
    n_heads, d_head = 3, 4
    attention = MultiHead(n_heads=n_heads, window=window, output=False)
    config = ModelConfig(**LONG | {"family": family, "max_seq_len": seq_len, "attention": attention})
    projections = 3 * seq_len * 12**2
    mixing = 2 * n_pairs * n_heads * d_head  # the scores, and the values they weigh
    assert analytic_flops(config, seq_len).forward["attention"] == 2 * (projections + mixing)


@pytest.mark.parametrize(
    ("seq_len", "n_chunks", "chunk"), [(1, 1, 1), (64, 1, 64), (65, 2, 33), (131, 3, 44), (192, 3, 64)]
)
def test_linear_attention_s_chunks_by_hand(seq_len: int, n_chunks: int, chunk: int) -> None:
    """Pairs inside chunks of one length and, where there are several, the sums that pass between them."""
    n_heads, d = 3, 4
    config = ModelConfig(**LONG, attention=Linear(n_heads=n_heads, output=False))
    projections = 3 * seq_len * 12**2
    sums = 0 if n_chunks == 1 else n_chunks * chunk * (2 * d**2 + d)
    mixing = n_heads * (n_chunks * chunk**2 * 2 * d + sums)
    assert analytic_flops(config, seq_len).forward["attention"] == 2 * (projections + mixing)


def test_flops_of_a_gpt_are_6n_plus_the_attention_of_palm_s_appendix() -> None:
    n_layers, d_model, seq_len = 12, 768, 1024
    config = gpt(n_layers, d_model, n_heads=12, max_seq_len=seq_len)
    matrices = analytic_matrices(config)
    n = matrices["attention"] + matrices["ffn"] + matrices["embedding"]  # which is the head too
    flops = analytic_flops(config, seq_len)
    a_token = (sum(flops.forward.values()) + sum(flops.backward.values())) / seq_len
    assert a_token == 6 * n + 12 * n_layers * seq_len * d_model


def test_counting_leaves_the_model_as_it_was() -> None:
    model = build_on_meta(ModelConfig(**SMALL))
    measured_flops(model, 7)
    assert all(parameter.grad is None for parameter in model.parameters())


# --- bytes ------------------------------------------------------------------------------------------------

BATCH_SIZE = 7


def activations_by_count(config: ModelConfig) -> int:
    """Bytes that a forward pass and its loss leave behind."""
    with tensors_without_memory(), LiveBytes() as live:
        model = build_undrawn(config)
        tokens = torch.zeros(BATCH_SIZE, SEQ_LEN, dtype=torch.long)
        before = live.now
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        kept = live.now - before
        assert loss.requires_grad
    return kept


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="gpt2"),
        pytest.param(
            {
                "attention": MultiHead(n_heads=2, n_kv_heads=1),
                "position": RoPE(),
                "norm": RMSNorm(),
                "ffn": SwiGLU(),
                "tie_embeddings": False,
            },
            id="llama",
        ),
        pytest.param(
            {
                "attention": MultiHead(output=False),
                "position": NoPositions(),
                "norm": NoNorm(),
                "ffn": ReLU(),
            },
            id="lecture",
        ),
        pytest.param({"placement": "post", "position": Sinusoidal(), "ffn": ReLU()}, id="original"),
        pytest.param({"position": ALiBi(), "embedding_norm": True}, id="bloom"),
        pytest.param({"attention": MultiHead(n_heads=2, qk_norm=RMSNorm(learned=False))}, id="qk-norm"),
        pytest.param({"attention": MultiHead(n_heads=4, value=False)}, id="no-value"),
        pytest.param({"attention": MultiHead(window=SEQ_LEN)}, id="window-of-all"),
        pytest.param({"attention": Dot(), "position": RoPE()}, id="dot"),
        pytest.param({"attention": Shared(), "ffn": ReLU2(), "logit_soft_cap": 15.0}, id="shared"),
        pytest.param({"attention": Mean(), "position": Learned()}, id="mean"),
        pytest.param({"attention": Last(), "ffn": NoFeedForward(), "final_norm": False}, id="last"),
        pytest.param({"ffn": GELU(approximate="tanh"), "norm": LayerNorm(bias=False)}, id="no-norm-bias"),
        pytest.param({"ffn": SiLU(), "head_bias": True}, id="silu"),
        pytest.param({"ffn": GEGLU(), "scale_embeddings": True}, id="geglu"),
    ],
)
def test_activations_by_formula_are_those_that_are_kept(settings: dict[str, Any]) -> None:
    config = ModelConfig(**SMALL | settings)
    # The loss itself and the number of targets, a float each, are what the formula leaves out.
    assert activations_by_count(config) == activations_by_formula(config, BATCH_SIZE, SEQ_LEN) + 8


class OwnPositions(PositionBase):
    """A kind of a user's own, which adds to the scores."""

    kind: Literal["own"] = "own"
    adds_bias: ClassVar[bool] = True

    def build(self, sizes: Sizes) -> Positions:
        return Positions()


def test_positions_of_one_s_own_have_no_formula_and_count_as_what_they_say_they_do() -> None:
    windowed = ModelConfig(**SMALL, attention=MultiHead(window=SEQ_LEN - 1))
    config = windowed.model_copy(update={"position": OwnPositions()})
    with pytest.raises(NoFormulaError, match="the size of 'own'"):
        slots.position_parameters(config.position, config)
    reading = slots.Reading(8 * SEQ_LEN, causal=True)
    with_biases = windowed.replace(position=ALiBi())
    assert slots.mixing(config.attention, config, reading) == slots.mixing(
        with_biases.attention, with_biases, reading
    )
    assert slots.mixing(config.attention, config, reading) > slots.mixing(
        windowed.attention, windowed, reading
    )


def test_live_bytes_follow_tensors_from_birth_to_death() -> None:
    with LiveBytes() as live:
        kept = torch.zeros(5, 7)
        assert live.now == 4 * 35
        view = kept.t()
        kept.add_(1)
        assert live.now == 4 * 35  # neither a view nor a change in place takes more
        passing = torch.zeros(11, dtype=torch.float64)
        del passing
        assert (live.now, live.peak) == (4 * 35, 4 * 35 + 8 * 11)
        del kept
        assert live.now == 4 * 35  # the view holds it
        del view
        assert live.now == 0


def test_live_bytes_are_the_same_for_tensors_that_have_no_memory() -> None:
    def step() -> tuple[int, int]:
        with LiveBytes() as live:
            model = build_undrawn(ModelConfig(**SMALL))
            tokens = torch.zeros(2, 3, dtype=torch.long)
            model(tokens).logsumexp(-1).sum().backward()
            return live.now, live.peak

    real = step()
    with tensors_without_memory():
        assert step() == real


def test_where_torch_has_no_tensors_without_memory_real_ones_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tensors_without_memory():
        assert type(torch.zeros(2, 3)) is not torch.Tensor
    monkeypatch.setitem(sys.modules, "torch._subclasses.fake_tensor", None)
    with tensors_without_memory():
        assert type(torch.zeros(2, 3)) is torch.Tensor


def test_a_count_that_fails_leaves_no_hooks_behind() -> None:
    model = build_on_meta(ModelConfig(vocab_size=11, d_model=8, n_layers=1, max_seq_len=4))
    with pytest.raises(UserError, match="reads at most 4"):
        measured_flops(model, 5)
    assert not any(module._forward_pre_hooks for module in model.modules())
