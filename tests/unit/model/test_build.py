"""Models built without first weights; what these are is tested with their kinds."""

import pytest
import torch
from torch import nn

from clearformer.model import ModelConfig, build
from clearformer.model.build import _NothingIsDrawn, build_on_meta, build_undrawn

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
    """As parts of one's own use it: nn.Parameter(torch.empty(3).normal_())."""
    tensor = torch.tensor([1.0, 2.0, 3.0])

    with _NothingIsDrawn():
        same = (
            tensor.normal_(),
            tensor.uniform_(-1, 1),
            nn.init.normal_(tensor),
            nn.init.uniform_(tensor=tensor),
        )

    assert all(each is tensor for each in same)
    assert tensor.tolist() == [1, 2, 3]
