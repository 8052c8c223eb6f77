"""The compiled step: whose it is, and a way on where compiling fails. (That it writes the same: end_to_end.)"""

from typing import Any
from unittest.mock import patch

import pytest
import torch

from clearformer.decoding.fast.compiling import _compiled, _or_plain, compiled_step, read_tokens
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.init import Gaussian
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import RoPE

# torch's compiler imports parts of torch that are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

CONFIG = ModelConfig(
    vocab_size=13,
    d_model=12,
    n_layers=1,
    max_seq_len=32,
    attention=MultiHead(n_heads=2, qk_norm=RMSNorm()),
    position=RoPE(),
    norm=RMSNorm(),
    init=Gaussian(),
)


def test_who_looks_inside_gets_the_plain_step() -> None:
    model = build(CONFIG)

    with model.hooked({"blocks.0.hook_resid_post": lambda _, __: None}):
        step = compiled_step(model, 1)

    assert step is read_tokens
    assert compiled_step(model, 1) is not step


def test_models_of_one_configuration_share_a_step() -> None:
    assert compiled_step(build(CONFIG), 2) is compiled_step(build(CONFIG), 3)


def test_another_type_or_configuration_has_a_step_of_its_own() -> None:
    steps = {
        compiled_step(model, 1)
        for model in (build(CONFIG), build(CONFIG).double(), build(CONFIG.replace(n_layers=2)))
    }

    assert len(steps) == 3


def test_a_small_model_s_single_text_has_a_step_of_its_own() -> None:
    model = build(CONFIG)

    assert compiled_step(model, 1) is not compiled_step(model, 2)
    with patch("clearformer.decoding.fast.compiling.SMALL_MODEL", 0):
        assert compiled_step(model, 1) is compiled_step(model, 2)


def test_where_compiling_fails_the_plain_step_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    from torch._dynamo.exc import BackendCompilerFailed

    calls = []

    def fails(*_: Any) -> torch.Tensor:
        calls.append(1)
        raise BackendCompilerFailed(plain, RuntimeError("no C++ compiler"), None)

    def plain(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    step = _or_plain(fails, plain)

    assert [step(torch.tensor(1)).item(), step(torch.tensor(2)).item()] == [2, 3]
    assert len(calls) == 1
    [record] = caplog.records
    assert "compiling failed, continuing without it" in record.message
    assert "no C++ compiler" in record.message


def test_errors_that_are_not_the_compilers_are_raised() -> None:
    def fails(*_: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError, match="full"):
        _or_plain(fails, lambda x: x)(torch.tensor(1))


def test_torch_without_isolated_compiling_checks_everything() -> None:
    found: dict[str, Any] = {}

    def compile_of_an_older_torch(step: Any, dynamic: bool | None, options: dict[str, Any]) -> Any:
        found.update(options)
        return step

    with patch("torch.compile", compile_of_an_older_torch):
        _compiled.__wrapped__(on_cpu=True, in_cpp=False, _specialized_on=())

    assert "guard_filter_fn" not in found
