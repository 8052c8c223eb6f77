"""What a compiled step asks of the compiler; that it computes the same is tested where it is used."""

from typing import Any
from unittest.mock import patch

import torch

from clearformer.model.fast.compiling import compile_step, kept_guards


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
        "cpp.dynamic_threads": False,
        "guard_filter_fn": kept_guards,
        "dynamic": True,
        "isolate_recompiles": True,
    }
    assert own == {"size_asserts": False}  # the caller's stay as they are


def test_a_step_that_is_compiled_for_any_threads_is_compiled_once() -> None:
    """As plain Python: its guards alone are asked."""
    calls = 0

    def backend(graph: Any, inputs: Any, **_: Any) -> Any:
        nonlocal calls
        calls += 1
        return graph.forward

    def compiled(any_threads: bool) -> int:
        nonlocal calls
        calls = 0
        torch.compiler.reset()  # what was compiled without guards would pass for any
        whole = torch.compile

        def plain(function: Any, dynamic: Any, options: dict[str, Any], isolate_recompiles: bool) -> Any:
            assert options.get("cpp.dynamic_threads", False) == any_threads
            guards = {"guard_filter_fn": options["guard_filter_fn"]}
            return whole(function, backend=backend, options=guards)

        with patch("torch.compile", plain):
            step = compile_step(lambda x: x + 1, any_threads=any_threads)
        before = torch.get_num_threads()
        for number in (1, 2, 1):
            torch.set_num_threads(number)
            assert step(torch.ones(3)).sum() == 6
        torch.set_num_threads(before)
        return calls

    assert compiled(any_threads=True) == 1
    assert compiled(any_threads=False) == 2
