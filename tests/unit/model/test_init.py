"""How weights begin, statistically."""

from typing import Any

import pytest
import torch
from torch import Tensor

from clearformer.config import slot_variants
from clearformer.model import Decoder, ModelConfig, Transformer, build, initialise
from clearformer.model.attention import MultiHead
from clearformer.model.feedforward import ReLU
from clearformer.model.init import GPT2, Gaussian, Torch, Xavier
from clearformer.model.relative_positions import Relative

V, D, FF, N = 331, 128, 211, 3
MATRICES = {  # name: (outputs, inputs)
    "attn.W_Q": (D, D),
    "attn.W_K": (D // 2, D),
    "attn.W_V": (D // 2, D),
    "attn.W_O": (D, D),
    "mlp.W_in": (FF, D),
    "mlp.W_out": (D, FF),
}
OUTPUTS = ("attn.W_O", "mlp.W_out")
EVERY_KIND = [Gaussian(), Xavier(), GPT2(), GPT2(zero_outputs=True)]


def model(init: Any, **changes: Any) -> Decoder:
    settings: dict[str, Any] = {"vocab_size": V, "d_model": D, "n_layers": N, "tie_embeddings": False}
    settings |= {"attention": MultiHead(n_heads=4, n_kv_heads=2, qkv_bias=True), "ffn": ReLU(d_ff=FF)}
    return build(ModelConfig(init=init, **(settings | changes)))


def matrices(decoder: Decoder, name: str) -> Tensor:
    return torch.stack([decoder.get_parameter(f"blocks.{i}.{name}.weight") for i in range(N)]).detach()


def assert_normal(weight: Tensor, std: float) -> None:
    """Mean 0, the standard deviation, and the tails of a normal distribution."""
    assert weight.std().item() == pytest.approx(std, rel=0.03)
    assert abs(weight.mean().item()) < 4 * std / weight.numel() ** 0.5
    assert (weight.abs() > 2 * std).float().mean().item() == pytest.approx(0.0455, abs=0.01)


def test_gaussian() -> None:
    decoder = model(Gaussian())
    for name, (_, inputs) in MATRICES.items():
        assert_normal(matrices(decoder, name), inputs**-0.5)
    assert_normal(decoder.get_parameter("head.weight"), D**-0.5)
    for name in ("embed.weight", "position.weight"):
        assert_normal(decoder.get_parameter(name), 1.0)


def test_torch_is_the_default_of_its_layers() -> None:
    decoder = model(Torch())
    for name, (_, inputs) in MATRICES.items():
        weight, theirs = matrices(decoder, name), torch.nn.Linear(inputs, 50_000, bias=False).weight
        assert 0.99 * inputs**-0.5 < weight.abs().max() <= inputs**-0.5
        assert weight.std().item() == pytest.approx(theirs.std().item(), rel=0.03)
    for name in ("embed.weight", "position.weight"):
        assert_normal(decoder.get_parameter(name), 1.0)
    bias = decoder.get_parameter("blocks.0.mlp.W_in.bias")
    assert 0.9 * D**-0.5 < bias.abs().max() <= D**-0.5
    assert not torch.equal(bias, decoder.get_parameter("blocks.1.mlp.W_in.bias"))


def test_xavier() -> None:
    decoder = model(Xavier())
    for name, (outputs, inputs) in MATRICES.items():
        weight, bound = matrices(decoder, name), (6 / (inputs + outputs)) ** 0.5
        assert 0.99 * bound < weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.03)
    for name in ("embed.weight", "position.weight"):
        assert_normal(decoder.get_parameter(name), D**-0.5)


@pytest.mark.parametrize("std", [0.02, 0.3])
def test_gpt2_scales_what_is_written_to_the_residual_stream(std: float) -> None:
    decoder = model(GPT2(std=std))
    for name in MATRICES:
        assert_normal(matrices(decoder, name), std / (2 * N) ** 0.5 if name in OUTPUTS else std)
    for name in ("embed.weight", "position.weight", "head.weight"):
        assert_normal(decoder.get_parameter(name), std)


FAMILIES: dict[str, dict[str, Any]] = {
    "decoder": {},
    "encoder": {"n_token_types": 2, "masked_head": "transform", "embedding_norm": True},
    "encoder-decoder": {"n_decoder_layers": 2},
    "classifier": {"family": "encoder", "n_classes": 5},
}


def of_family(name: str, init: Any, **changes: Any) -> Transformer:
    settings = {"family": name} | FAMILIES[name] | {"tie_embeddings": True, "head_bias": True} | changes
    return build(model(init).config.replace(**settings))


@pytest.mark.parametrize("init", EVERY_KIND)
@pytest.mark.parametrize("family", FAMILIES)
def test_biases_begin_at_zero_and_norms_at_one(init: Any, family: str) -> None:
    decoder = of_family(family, init)
    vectors = {name: p for name, p in decoder.named_parameters() if p.dim() == 1}
    assert len(vectors) > 10
    assert ("head_bias" in vectors) == (family != "classifier")
    for name, vector in vectors.items():
        assert (vector == (1.0 if "ln" in name and name.endswith("weight") else 0.0)).all()


@pytest.mark.parametrize("init", [kind(zero_outputs=True) for kind in (Gaussian, Torch, Xavier, GPT2)])
def test_zero_outputs_make_blocks_the_identity_and_the_first_prediction_uniform(init: Any) -> None:
    decoder, tokens = model(init), torch.randint(V, (2, 7))
    logits, seen = decoder.run_with_cache(tokens)

    assert torch.equal(seen[f"blocks.{N - 1}.hook_resid_post"], seen["blocks.0.hook_resid_pre"])
    torch.testing.assert_close(logits.softmax(-1), torch.full_like(logits, 1 / V))
    for name in MATRICES:
        assert matrices(decoder, name).any() != (name in OUTPUTS)


def test_a_tied_head_does_not_begin_at_zero() -> None:
    assert model(GPT2(zero_outputs=True), tie_embeddings=True).embed.weight.std() > 0


def test_segments_begin_like_tokens_and_relative_positions_all_alike() -> None:
    encoder = of_family("encoder", GPT2(std=0.3), position=Relative())
    assert encoder.get_parameter("token_types.weight").std().item() == pytest.approx(0.3, rel=0.15)
    assert not encoder.get_parameter("position.weight").any()


def test_a_classifier_of_zero_outputs_prefers_no_class() -> None:
    classifier = of_family("classifier", GPT2(zero_outputs=True))
    assert not classifier(torch.randint(V, (2, 7))).any()
    assert classifier.get_parameter("pooler.weight").any()


def test_every_kind_is_here() -> None:
    assert {each.kind for each in (*EVERY_KIND, Torch())} == set(
        slot_variants(ModelConfig.model_fields["init"])
    )


@pytest.mark.parametrize("init", [*EVERY_KIND, Torch()])  # whose biases are drawn too
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_made_without_memory_is_filled_like_any_other(init: Any, family: str) -> None:
    expected = of_family(family, init)
    with torch.device("meta"):
        decoder = of_family(family, init)
    decoder.to_empty(device="cpu")
    for parameter in decoder.parameters():
        parameter.data.fill_(torch.nan)

    for each in (expected, decoder):
        initialise(each, seed=5)

    torch.testing.assert_close(decoder.state_dict(), expected.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("init", [Gaussian(), Torch()])
def test_a_parameter_s_numbers_follow_from_the_seed_and_its_name_alone(init: Any) -> None:
    deep, shallow, other = (model(init, n_layers=n) for n in (3, 2, 2))
    initialise(deep, seed=5)
    initialise(shallow, seed=5)
    initialise(other, seed=6)

    for name, weight in shallow.state_dict().items():
        assert torch.equal(weight, deep.state_dict()[name]), name
    assert not torch.equal(shallow.embed.weight, other.embed.weight)
    assert not torch.equal(shallow.get_parameter("head.weight"), shallow.embed.weight)


def test_a_model_s_seed_is_drawn_from_the_global_generator() -> None:
    first, second, third = (built(seed) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def built(seed: int) -> Tensor:
    torch.manual_seed(seed)
    return model(GPT2()).embed.weight
