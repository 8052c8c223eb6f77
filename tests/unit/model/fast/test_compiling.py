"""What a compiled step asks of the compiler; that it computes the same is tested where it is used."""

from typing import Any
from unittest.mock import patch

import torch

from clearformer.model.fast.compiling import compile_step


def test_a_step_is_compiled_apart_from_others_and_without_a_look_at_its_modules() -> None:
    asked: dict[str, Any] = {}

    def newest(function: Any, dynamic: bool | None, options: dict[str, Any], isolate_recompiles: bool) -> Any:
        asked.update(options, dynamic=dynamic, isolate_recompiles=isolate_recompiles)
        return function

    own = {"size_asserts": False}
    with patch("torch.compile", newest):
        assert compile_step(len, dynamic=True, options=own) is len  # type: ignore[arg-type]

    assert asked == {
        "size_asserts": False,
        "guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe,
        "dynamic": True,
        "isolate_recompiles": True,
    }
    assert own == {"size_asserts": False}  # the caller's stay as they are
