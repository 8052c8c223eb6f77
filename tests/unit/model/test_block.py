"""The wiring of a block, with parts simple enough to follow by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearformer.hooks import hooked
from clearformer.model.attention import Mean, MultiHead
from clearformer.model.block import Block, EncoderOutput
from clearformer.model.config import ModelConfig, Placement
from clearformer.model.feedforward import NoFeedForward, ReLU
from clearformer.model.masks import Mask
from clearformer.model.norms import LayerNorm, NoNorm
from clearformer.model.positions import Positions

B, T, D = 2, 3, 5


class Halve(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


class Square(nn.Module):
    def forward(self, x: Tensor, *_: object) -> Tensor:
        return x.square()


class AddSum(nn.Module):
    """Cross-attention whose result shows both what reads and what is read."""

    def forward(
        self, x: Tensor, _mask: Mask, _positions: Positions, _cache: object, memory: Tensor
    ) -> Tensor:
        return x + memory.sum(1, keepdim=True)


class AddOne(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def config(**settings: Any) -> ModelConfig:
    return ModelConfig(
        **{"d_model": D, "attention": MultiHead(), "ffn": ReLU(), "norm": LayerNorm()} | settings
    )


def simple_block(placement: Placement, residual: bool, parallel: bool = False, cross: bool = False) -> Block:
    """norm(x) = x / 2, attention(x) = x², cross-attention(x) = x + the memory's sum, feed-forward(x) = x + 1."""
    block = Block(config(attention=Mean(), placement=placement, residual=residual, parallel=parallel), cross)
    for name in ("ln1", "ln2", *(["ln_cross"] if cross else [])):
        block.add_module(name, nn.Identity() if placement == "none" else Halve())
    block.add_module("attn", Square())
    if cross:
        block.add_module("cross_attn", AddSum())
    block.mlp = AddOne()
    return block


def run(block: Block, x: Tensor, memory: EncoderOutput | None = None) -> Tensor:
    n = x.shape[1]
    mask = Mask(q_pos=torch.arange(n), k_pos=torch.arange(n), causal=True)
    return block(x, mask, Positions(), memory=memory)


@pytest.mark.parametrize(
    ("placement", "residual", "expected"),
    [  # of x = 4
        ("pre", True, 4 + 2**2 + (8 / 2 + 1)),
        ("post", True, ((4 + 4**2) / 2 + (20 / 2 + 1)) / 2),
        ("none", True, 4 + 4**2 + (20 + 1)),
        ("pre", False, 2**2 / 2 + 1),
        ("post", False, (4**2 / 2 + 1) / 2),
        ("none", False, 4**2 + 1),
    ],
)
def test_norms_and_residuals_stand_where_they_should(
    placement: Placement, residual: bool, expected: float
) -> None:
    x = torch.full((B, T, D), 4.0)
    assert torch.equal(run(simple_block(placement, residual), x), torch.full((B, T, D), expected))


@pytest.mark.parametrize(
    ("placement", "residual", "expected"),
    [  # of x = 4
        ("pre", True, 4 + 2**2 + (4 / 2 + 1)),
        ("post", True, ((4 + 4**2) / 2 + (4 + 1)) / 2),
        ("none", True, 4 + 4**2 + (4 + 1)),
    ],
)
def test_parallel_sub_layers_both_read_what_the_block_reads(
    placement: Placement, residual: bool, expected: float
) -> None:
    x = torch.full((B, T, D), 4.0)
    result = run(simple_block(placement, residual, parallel=True), x)
    assert torch.equal(result, torch.full((B, T, D), expected))


@pytest.mark.parametrize(
    ("placement", "residual", "expected"),
    [  # of x = 4 and a memory that sums to 14; attention gives 8, 10, 20, 4, 8 and 16
        ("pre", True, 8 + (8 / 2 + 14) + (26 / 2 + 1)),
        ("post", True, ((10 + (10 + 14)) / 2 + (17 + 1)) / 2),
        ("none", True, 20 + (20 + 14) + (54 + 1)),
        ("pre", False, (4 / 2 + 14) / 2 + 1),
        ("post", False, ((8 + 14) / 2 + 1) / 2),
        ("none", False, (16 + 14) + 1),
    ],
)
def test_cross_attention_stands_between_the_two_with_a_norm_and_residual_of_its_own(
    placement: Placement, residual: bool, expected: float
) -> None:
    x, memory = torch.full((B, T, D), 4.0), EncoderOutput(torch.full((B, 7, D), 2.0))
    result = run(simple_block(placement, residual, cross=True), x, memory)
    assert torch.equal(result, torch.full((B, T, D), expected))


def test_a_block_that_reads_another_text_has_a_third_norm_and_no_window_there() -> None:
    block = Block(config(attention=MultiHead(window=3)), cross=True)
    parts = {name.partition(".")[0] for name, _ in block.named_parameters()}
    assert parts == {"ln1", "attn", "ln_cross", "cross_attn", "ln2", "mlp"}
    assert (block.attn.window, getattr(block.cross_attn, "window", 0)) == (3, None)


def test_a_memory_is_read_throughout_but_for_its_padding() -> None:
    real = torch.tensor([[True, True, False], [False, True, True]])
    attend = EncoderOutput(torch.randn(2, 3, D), real).mask(torch.arange(T)).attend(None)
    assert torch.equal(attend.expand(2, 1, T, 3), real[:, None, None].expand(2, 1, T, 3))


def test_attention_only_blocks_have_one_norm_and_no_feed_forward() -> None:
    block = Block(config(ffn=NoFeedForward()))
    assert {name.partition(".")[0] for name, _ in block.named_parameters()} == {"ln1", "attn"}
    x = torch.randn(B, T, D)
    seen: list[Tensor] = []
    with hooked(block, {"hook_attn_out": lambda out, _: seen.append(out)}):
        result = run(block, x)
    torch.testing.assert_close(result, x + seen[0])


@pytest.mark.parametrize(
    ("norm", "placement"), [(LayerNorm(), "none"), (NoNorm(), "pre"), (NoNorm(), "post")]
)
def test_blocks_without_norms_have_no_norm_parameters(norm: LayerNorm | NoNorm, placement: Placement) -> None:
    block = Block(config(norm=norm, placement=placement))
    assert {name.partition(".")[0] for name, _ in block.named_parameters()} == {"attn", "mlp"}


def test_the_two_norms_are_two() -> None:
    block = Block(config())
    assert block.ln1 is not block.ln2


def test_what_a_sub_layer_writes_is_dropped_and_the_stream_is_not() -> None:
    block = simple_block("pre", residual=True)
    block.dropout = 0.5
    x = torch.full((50, 20, D), 4.0)

    result = run(block.train(), x)
    block.eval()

    # what attention wrote (2² = 4) is 0 or doubled; what the feed-forward network wrote likewise
    assert set(result.unique().tolist()) == {4.0, 12.0, 4 + 2 * (4 / 2 + 1), 12 + 2 * (12 / 2 + 1)}
    assert (result.flatten() == 4.0).float().mean().item() == pytest.approx(0.25, abs=0.05)
    assert run(block, x).unique().tolist() == [13.0]
