"""The decoder: what it adds to its blocks, and the lectures' counts of parameters."""

import copy
from typing import Any

import pytest
import torch

from clearformer.errors import ConfigError, UserError
from clearformer.model import Decoder, ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.feedforward import ReLU
from clearformer.model.init import Gaussian
from clearformer.model.norms import NoNorm
from clearformer.model.positions import ALiBi, Learned, NoPositions, RoPE, Sinusoidal

B, T, V, D = 2, 5, 13, 22


def small(**changes: Any) -> Decoder:
    settings: dict[str, Any] = {"vocab_size": V, "d_model": D, "n_layers": 2, "max_seq_len": 7}
    settings |= {"attention": MultiHead(n_heads=2), "init": Gaussian()}
    return build(ModelConfig(**(settings | changes)))


def tokens(n: int = T) -> torch.Tensor:
    return torch.randint(V, (B, n))


def lecture_model(**changes: Any) -> ModelConfig:
    """Lecture 000, section 5.4: one head, no output matrix, no norms, no positions, a head of its own."""
    settings: dict[str, Any] = {
        "vocab_size": 65,
        "d_model": 256,
        "n_layers": 4,
        "tie_embeddings": False,
        "attention": MultiHead(n_heads=1, output=False),
        "position": NoPositions(),
        "norm": NoNorm(),
        "ffn": ReLU(bias=False),
        "init": Gaussian(),
        "placement": "none",
    }
    return ModelConfig(**(settings | changes))


def gpt3(**changes: Any) -> ModelConfig:
    """12 N d² + 2 V d: no biases, positions or norm weights, and a head of its own (lecture 002, section 13)."""
    output = MultiHead(n_heads=96)
    sizes = {"vocab_size": 50257, "d_model": 12288, "n_layers": 96}
    return lecture_model(**(sizes | {"attention": output} | changes))


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (lecture_model(), 2_916_864),
        (lecture_model(ffn=ReLU()), 2_921_984),
        (lecture_model(d_model=768), 26_052_096),
        (lecture_model(d_model=768, ffn=ReLU()), 26_067_456),
        (gpt3(), 12 * 96 * 12288**2 + 2 * 50257 * 12288),
    ],
)
def test_parameters_are_the_lectures(config: ModelConfig, total: int) -> None:
    assert parameters(config) == total


def test_gpt3_has_175_billion_parameters_and_twelve_layers_of_768_have_85_million() -> None:
    assert round(parameters(gpt3()) / 1e9, 1) == 175.2
    twelve = gpt3(d_model=768, n_layers=12)
    assert round((parameters(twelve) - 2 * 50257 * 768) / 1e6, 1) == 84.9


@pytest.mark.parametrize("position", [Sinusoidal(), Learned(), RoPE(), ALiBi()])
def test_a_model_on_the_meta_device_takes_no_memory(position: Any) -> None:
    with torch.device("meta"):
        model = Decoder(gpt3(position=position))
        logits = model(torch.zeros(1, 3, dtype=torch.long))
    assert all(tensor.is_meta for tensor in (logits, *model.parameters(), *model.buffers()))


def parameters(config: ModelConfig) -> int:
    with torch.device("meta"):  # no weight is held: GPT-3's would fill 700 GB
        return sum(p.numel() for p in Decoder(config).parameters())


def test_a_model_needs_a_vocabulary() -> None:
    with pytest.raises(ConfigError, match=r"^model\.vocab_size is not set"):
        build(ModelConfig())


@pytest.mark.parametrize("padded", [False, True])
def test_a_text_that_is_too_long_is_refused_with_both_numbers(padded: bool) -> None:
    real = torch.ones(B, 9, dtype=torch.bool)
    with pytest.raises(UserError, match=r"9 tokens long .* at most 7 \(model\.max_seq_len\)"):
        small()(tokens(9), real if padded else None)


@torch.no_grad()
def test_padding_does_not_count_towards_the_longest_text() -> None:
    model, text, real = small(), tokens(9), torch.ones(B, 9, dtype=torch.bool)
    real[:, :3] = False
    torch.testing.assert_close(model(text, real)[:, 3:], model(text[:, 3:]))


def test_a_seed_gives_the_same_model() -> None:
    models = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        models.append(small()(torch.arange(T)[None]))
    assert torch.equal(models[0], models[1])
    assert not torch.allclose(models[0], models[2])


def test_a_tied_head_is_the_embedding_matrix() -> None:
    tied, untied = small(), small(tie_embeddings=False, head_bias=True)
    assert tied.head is None
    x = torch.randn(B, T, D)
    torch.testing.assert_close(tied.unembed(x), x @ tied.embed.weight.T)
    assert untied.head is not None
    torch.testing.assert_close(untied.unembed(x), x @ untied.head.weight.T + untied.head.bias)


def test_no_logit_exceeds_the_soft_cap() -> None:
    free, capped = small(), small(logit_soft_cap=2.0)
    capped.load_state_dict(free.state_dict())
    text = tokens()
    assert free(text).abs().max() > 4
    torch.testing.assert_close(capped(text), 2 * torch.tanh(free(text) / 2))


def test_token_embeddings_are_scaled_and_positions_are_not() -> None:
    plain, scaled = small(), small(scale_embeddings=True)
    scaled.load_state_dict(plain.state_dict())
    text = tokens()
    names = ["hook_embed", "hook_pos_embed"]
    _, before = plain.run_with_cache(text, names=names)
    _, after = scaled.run_with_cache(text, names=names)
    torch.testing.assert_close(after["hook_embed"], before["hook_embed"] * D**0.5)
    assert torch.equal(after["hook_pos_embed"], before["hook_pos_embed"])


@pytest.mark.parametrize(
    ("changes", "present"),
    [
        ({}, {"ln_final"}),
        ({"final_norm": False}, set()),
        ({"embedding_norm": True}, {"ln_embed", "ln_final"}),
        ({"norm": NoNorm(), "embedding_norm": True}, set()),
    ],
)
def test_norms_outside_the_blocks_are_those_asked_for(changes: dict[str, Any], present: set[str]) -> None:
    names = {name.partition(".")[0] for name, _ in small(**changes).named_parameters()}
    assert {name for name in names if name.startswith("ln")} == present


@torch.no_grad()
def test_embeddings_are_dropped_in_training() -> None:
    model = small(dropout=0.5).train()
    _, seen = model.run_with_cache(tokens(), names=["blocks.0.hook_resid_pre"])
    assert 0.3 < (seen["blocks.0.hook_resid_pre"] == 0).float().mean() < 0.7


@torch.no_grad()
def test_a_copy_is_independent_and_complete() -> None:
    """As an average of the weights over training is kept."""
    model, text = small(position=RoPE(fraction=0.75), attention=MultiHead(n_heads=1, d_head=8)), tokens()
    twin, before = copy.deepcopy(model), model(text)
    assert torch.equal(twin(text), before)
    for parameter in model.parameters():
        parameter.zero_()
    assert torch.equal(twin(text), before)
    model.load_state_dict(twin.state_dict())
    assert torch.equal(model(text), before)
