"""Layouts and rules: what is packed comes back to the bit."""

import pytest
import torch

from clearformer.interop.mapping.tensors import (
    AsRow,
    Below,
    ByHead,
    Conv1D,
    HalvesExchanged,
    Layout,
    Rule,
    Same,
    shapes_of,
    tensor_maps,
    to_ours,
    to_theirs,
)


@pytest.mark.parametrize(
    ("layout", "n_parts", "shape", "packed"),
    [
        (Same(), 1, (6, 5), (6, 5)),
        (Conv1D(), 1, (6, 5), (5, 6)),
        (Conv1D(), 1, (6,), (6,)),
        (Conv1D(3), 3, (6, 5), (5, 18)),
        (Conv1D(3), 3, (6,), (18,)),
        (ByHead(2), 3, (6, 5), (18, 5)),
        (ByHead(2), 3, (6,), (18,)),
        (HalvesExchanged(3), 1, (12, 5), (12, 5)),
        (HalvesExchanged(3), 1, (12,), (12,)),
        (Below(2), 1, (6, 5), (8, 5)),
        (AsRow(), 1, (6,), (1, 6)),
    ],
)
def test_unpacking_undoes_packing(
    layout: Layout, n_parts: int, shape: tuple[int, ...], packed: tuple[int, ...]
) -> None:
    parts = [torch.randn(shape) for _ in range(n_parts)]
    theirs = layout.pack(parts)
    assert theirs.shape == packed
    for part, back in zip(parts, layout.unpack(theirs), strict=True):
        assert torch.equal(part, back)


def test_by_head_takes_q_k_and_v_of_a_head_together() -> None:
    q, k, v = (torch.arange(6.0) + 10 * i for i in range(3))
    packed = ByHead(2).pack([q, k, v])
    assert packed.tolist() == [0, 1, 2, 10, 11, 12, 20, 21, 22, 3, 4, 5, 13, 14, 15, 23, 24, 25]


def test_the_second_half_of_each_head_comes_first() -> None:
    assert HalvesExchanged(2).pack([torch.arange(8.0)]).tolist() == [2, 3, 0, 1, 6, 7, 4, 5]


def test_the_third_row_is_position_0() -> None:
    table = torch.randn(3, 2)
    assert torch.equal(Below(2).pack([table])[2], table[0])


RULES = [
    Rule("embed", "wte", copies=["lm_head"]),
    Rule(["blocks.*.W_Q", "blocks.*.W_K"], "h.*.qk", Conv1D(2)),
    Rule("head_bias", "bias_of_logits", AsRow()),
    Rule("head", "lm_head"),
]
OURS = {
    "embed.weight": torch.randn(7, 3),
    "blocks.0.W_Q.weight": torch.randn(3, 3),
    "blocks.0.W_K.weight": torch.randn(3, 3),
    "blocks.0.W_Q.bias": torch.randn(3),
    "blocks.0.W_K.bias": torch.randn(3),
    "blocks.1.W_Q.weight": torch.randn(3, 3),
    "blocks.1.W_K.weight": torch.randn(3, 3),
    "head_bias": torch.randn(7),
}


def test_rules_are_for_what_is_there() -> None:
    places = tensor_maps(RULES, OURS, n_layers=2)
    theirs = to_theirs(places, OURS)
    assert theirs.keys() == {"wte.weight", "h.0.qk.weight", "h.0.qk.bias", "h.1.qk.weight", "bias_of_logits"}
    assert {name: tuple(tensor.shape) for name, tensor in theirs.items()} == shapes_of(places, OURS)
    assert next(place.copies for place in places if place.theirs == "wte.weight") == ("lm_head.weight",)
    back = to_ours(places, theirs)
    assert back.keys() == OURS.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in OURS.items())


def test_a_tensor_without_a_place_is_told() -> None:
    with pytest.raises(AssertionError, match=r"blocks\.2"):
        tensor_maps(RULES, {**OURS, "blocks.2.W_Q.weight": torch.ones(1)}, n_layers=2)
