"""max(0, x) and its gradient by the sign of its result."""

from unittest.mock import patch

import torch
import torch._dynamo  # it keeps the `is_compiling` that it finds: not the one that a test puts there

from clearformer.model.fast.relu_by_sign import ReLUBySign, relu


def test_relu_by_sign_has_relus_values_and_gradients() -> None:
    x = torch.tensor([-2.0, -0.0, 0.0, 1e-30, 3.0], dtype=torch.float64, requires_grad=True)
    of_result = torch.randn(5, dtype=torch.float64)

    by_sign, torchs = ReLUBySign.apply(x), torch.relu(x)

    assert torch.equal(by_sign, torchs)
    [gradient], [expected] = (torch.autograd.grad(y, x, of_result) for y in (by_sign, torchs))
    assert torch.equal(gradient, expected)


def test_it_is_taken_in_compiled_training_on_a_cpu_alone() -> None:
    x = torch.randn(3, 5)

    with patch.object(ReLUBySign, "apply", wraps=ReLUBySign.apply) as by_sign:
        assert torch.equal(relu(x), torch.relu(x))
        with patch("torch.compiler.is_compiling", return_value=True):
            relu(x.to("meta"))
            with torch.no_grad():
                assert torch.equal(relu(x), torch.relu(x))
            assert by_sign.call_count == 0
            assert torch.equal(relu(x), torch.relu(x))

    assert by_sign.call_count == 1
