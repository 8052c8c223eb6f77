"""What a model may be made of, and what is refused, with the key at fault."""

from typing import Any, get_args

import pytest

from clearformer.config import parse_override, resolve, slot_variants
from clearformer.errors import ConfigError
from clearformer.model import ModelConfig, build
from clearformer.model.config import Family

REFUSED_PAIRS = {
    ("last", "rope"),
    ("mean", "rope"),
    *((attention, position) for attention in ("last", "linear") for position in ("alibi", "relative")),
}
PAIRS = [
    (attention, position)
    for attention in slot_variants(ModelConfig.model_fields["attention"])
    for position in slot_variants(ModelConfig.model_fields["position"])
]


def made_from(*overrides: str) -> ModelConfig:
    return resolve(ModelConfig, *(parse_override(override) for override in overrides))


def test_the_slots_and_their_kinds() -> None:
    """The kinds are a contract: they stand in people's files."""
    slots = {name: [*slot_variants(field)] for name, field in ModelConfig.model_fields.items()}
    assert {name: kinds for name, kinds in slots.items() if kinds} == {
        "attention": ["last", "mean", "dot", "shared", "multihead", "linear"],
        "position": ["none", "sinusoidal", "learned", "rope", "alibi", "relative"],
        "norm": ["none", "layernorm", "rmsnorm"],
        "ffn": ["none", "relu", "gelu", "silu", "relu2", "swiglu", "geglu"],
        "init": ["gaussian", "torch", "xavier", "gpt2"],
    }


@pytest.mark.parametrize(("attention", "position"), PAIRS)
def test_positions_that_would_have_no_effect_are_refused(attention: str, position: str) -> None:
    overrides = [f"attention={attention}", f"position={position}"]
    if (attention, position) not in REFUSED_PAIRS:
        made_from(*overrides)
        return
    with pytest.raises(
        ConfigError, match=rf"^model\.position\.kind: {position} .*{attention}.*use sinusoidal"
    ):
        made_from(*overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["attention.n_heads=3"], r"^model\.attention\.n_heads: 3 heads do not divide model\.d_model=128"),
        (["attention.n_kv_heads=3"], r"^model\.attention\.n_kv_heads: 3 .*model\.attention\.n_heads=4"),
        (["position=rope", "d_model=12"], r"^model\.position\.fraction: .* heads of 3 is 3"),
        (["position=rope", "position.fraction=0.01"], r"^model\.position\.fraction: .*is 0;"),
        (["attention.d_head=5", "attention.output=false"], r"^model\.attention\.output: "),
        (["attention.d_head=5", "attention.value=false"], r"^model\.attention\.value: "),
        (["family=encoder-decoder", "attention=last"], r"^model\.attention\.kind: last .*choose multihead"),
    ],
)
def test_parts_that_do_not_fit_are_refused_with_the_way_out(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made_from(*overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["residual=false", "init.zero_outputs=true"],
            r"^model\.init\.zero_outputs: without residuals the blocks",
        ),
        (
            ["attention.output=false", "attention.output_bias=true"],
            r"^model\.attention\.output_bias: without an",
        ),
    ],
)
def test_settings_that_would_have_no_effect_or_let_nothing_be_learned_are_refused(
    overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        made_from(*overrides)


def test_attention_that_would_have_no_effect_is_refused() -> None:
    """Without residuals the network's output is all that is left of a block, and in parallel it reads no attention."""
    with pytest.raises(ConfigError, match=r"^model\.parallel: without residuals .* model\.residual=true$"):
        made_from("parallel=true", "residual=false")
    assert not made_from("parallel=true", "residual=false", "ffn=none").residual  # attention is the block


OF_ONE_FAMILY = {
    "n_decoder_layers": ("3", "encoder-decoder"),
    "n_token_types": ("2", "encoder"),
    "masked_head": ("transform", "encoder"),
    "n_classes": ("5", "encoder"),
    "pooling": ("mean", "encoder"),
}


@pytest.mark.parametrize("family", get_args(Family))
@pytest.mark.parametrize("key", OF_ONE_FAMILY)
def test_a_part_that_a_family_does_not_have_is_refused(key: str, family: str) -> None:
    value, owner = OF_ONE_FAMILY[key]
    overrides = [f"family={family}", f"{key}={value}"]
    if family == owner:
        assert str(getattr(made_from(*overrides), key)) == value
        return
    with pytest.raises(
        ConfigError, match=rf"^model\.{key}: only an {owner} has this setting; model\.family is {family}$"
    ):
        made_from(*overrides)


def test_a_decoder_s_stack_is_as_high_as_the_encoder_s_unless_told() -> None:
    config = ModelConfig(family="encoder-decoder", n_layers=5)
    assert (config.decoder_layers, config.replace(n_decoder_layers=2).decoder_layers) == (5, 2)


def test_the_usual_arrangement_needs_no_setting() -> None:
    """Parts one after the other around a residual stream, as in GPT-2; and an encoder with nothing besides."""
    block = build(ModelConfig(vocab_size=5, n_layers=1)).blocks[0]
    assert (block.placement, block.residual, block.parallel) == ("pre", True, False)

    encoder = build(ModelConfig(family="encoder", vocab_size=5, n_layers=1))
    assert encoder.token_types is None
    assert not any(name.startswith(("masked_head", "pooler", "classifier")) for name in encoder.state_dict())


@pytest.mark.parametrize(
    "field",
    [
        {"d_model": 0},
        {"n_layers": -1},
        {"max_seq_len": 0},
        {"vocab_size": 0},
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"logit_soft_cap": 0.0},
        {"placement": "before"},
        {"family": "encode"},
        {"n_decoder_layers": 0},
        {"n_token_types": -1},
        {"n_classes": 0},
        {"pooling": "last"},
        {"position": {"kind": "rope", "fraction": 0.0}},
        {"position": {"kind": "rope", "fraction": 1.5}},
        {"position": {"kind": "relative", "n_buckets": 30}},
        {"position": {"kind": "relative", "n_buckets": 32, "max_distance": 16}},
    ],
)
def test_values_outside_their_range_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(field))):
        ModelConfig(**field)


def test_a_model_is_frozen_and_a_copy_is_checked() -> None:
    config = ModelConfig(d_model=64)
    with pytest.raises(ConfigError, match=r"frozen; use cfg\.replace\(d_model=32\)"):
        config.d_model = 32
    assert config.replace(n_layers=3) == ModelConfig(d_model=64, n_layers=3)
    with pytest.raises(ConfigError, match="do not divide"):
        config.replace(d_model=30)
    with pytest.raises(ConfigError, match="mean 'n_layers'"):
        config.replace(n_layer=3)
