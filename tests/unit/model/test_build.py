"""Models built without first weights; what these are is tested with their kinds."""

from typing import Literal

import pytest
import torch
from torch import nn

from clearformer.config import Spec
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.build import _NothingIsDrawn, build_on_meta, build_undrawn
from clearformer.registry import register, unregister

CONFIG = ModelConfig(vocab_size=7, d_model=8, n_layers=1)


@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder-decoder"])
def test_a_model_on_the_meta_device_has_shapes_alone(family: str) -> None:
    config = CONFIG.replace(family=family)
    there, here = build_on_meta(config), build(config)

    assert all(parameter.is_meta for parameter in there.parameters())
    assert {name: p.shape for name, p in there.named_parameters()} == {
        name: p.shape for name, p in here.named_parameters()
    }


def test_building_without_first_weights_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    build_undrawn(CONFIG)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_tensor_that_is_not_drawn_is_handed_on() -> None:
    """As parts of one's own use it: nn.init.normal_(nn.Parameter(torch.empty(3)))."""
    tensor = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    with _NothingIsDrawn(), torch.no_grad():
        same = (
            tensor.normal_(),
            tensor.uniform_(-1, 1),
            nn.init.normal_(tensor),
            nn.init.uniform_(tensor=tensor),
        )

    assert all(each is tensor for each in same)
    assert tensor.tolist() == [1, 2, 3]


class WithBuffer(nn.LayerNorm):
    """A norm with numbers that no file of weights holds."""

    drawn: torch.Tensor

    def __init__(self, d: int) -> None:
        super().__init__(d)
        drawn = torch.empty(d).normal_(generator=torch.Generator().manual_seed(1))
        self.register_buffer("drawn", drawn, persistent=False)
        self.ones = nn.init.ones_(torch.empty(d))


class Buffered(Spec):
    kind: Literal["buffered"] = "buffered"

    def build(self, d: int) -> nn.Module:
        return WithBuffer(d)


def test_what_is_no_parameter_is_as_the_constructor_sets_it() -> None:
    register("norm")(Buffered)
    try:
        config = ModelConfig(vocab_size=5, d_model=8, attention=MultiHead(n_heads=2), norm=Buffered())  # type: ignore[arg-type]
        for model in (build_undrawn(config), build(config)):
            norm = next(module for module in model.modules() if isinstance(module, WithBuffer))
            assert torch.equal(norm.drawn, WithBuffer(8).drawn)
            assert norm.ones.tolist() == [1.0] * 8
    finally:
        unregister("norm", "buffered")
