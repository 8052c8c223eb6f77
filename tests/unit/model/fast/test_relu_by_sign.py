"""max(0, x) and its gradient by the sign of its result."""

import torch

from clearformer.model.fast.relu_by_sign import ReLUBySign


def test_relu_by_sign_has_relus_values_and_gradients() -> None:
    x = torch.tensor([-2.0, -0.0, 0.0, 1e-30, 3.0], dtype=torch.float64, requires_grad=True)
    of_result = torch.randn(5, dtype=torch.float64)

    by_sign, torchs = ReLUBySign.apply(x), torch.relu(x)

    assert torch.equal(by_sign, torchs)
    [gradient], [expected] = (torch.autograd.grad(y, x, of_result) for y in (by_sign, torchs))
    assert torch.equal(gradient, expected)
