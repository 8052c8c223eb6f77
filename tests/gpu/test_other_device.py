"""The pretended device itself (other_device.py)."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


def test_it_refuses_what_a_gpu_does(device: torch.device) -> None:
    if device.type != "other":
        pytest.skip("this is a GPU")
    here, there = torch.ones(3), torch.ones(3, device=device)
    mixtures: tuple[Callable[[], Tensor], ...] = (
        lambda: here + there,
        lambda: here[there.long()],
        lambda: torch.zeros(()).add_(there.sum()),
        lambda: torch.cat([there, here]),
        lambda: torch.nn.functional.linear(there, torch.ones(2, 3)),
    )
    reads = (there.numpy, lambda: torch.ones(3, device=device, requires_grad=True).detach().numpy())

    assert (there + torch.tensor(2.0)).tolist() == [3, 3, 3]
    assert there.device.type == "other"
    for mix in mixtures:
        with pytest.raises(RuntimeError, match="tensors on two devices"):
            mix()
    for read in reads:
        with pytest.raises(TypeError, match="numpy cannot read"):
            read()
    assert there.cpu().numpy().tolist() == [1, 1, 1]
