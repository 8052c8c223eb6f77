"""torch.compile for functions that are called thousands of times with one model."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def compile_step(
    function: Callable[..., Tensor],
    *,
    dynamic: bool | None = None,
    any_threads: bool = False,
    options: dict[str, Any] | None = None,
) -> Callable[..., Tensor]:
    """Return the function compiled (at its first call), without a check at each call that modules are unchanged.

    Checking some hundred modules takes a good part of a small model's step. Without the checks, one model's compiled
    step could be taken for another's, so each call of `compile_step` compiles separately. A torch that cannot isolate
    them (without `isolate_recompiles`) keeps the checks.

    Args:
        function: Its weights may change, also to others of the same shapes, but neither its modules nor settings.
        dynamic: Whether shapes vary; None: the compiler finds out.
        any_threads: Whether the number of threads may change without compiling again. Changes of gradient mode or
            autocast then go unnoticed as well.
        options: The compiler's. With `cpp.dynamic_threads` false, the compiled loops themselves keep to the number of
            threads at compilation, which is faster; products follow the changes.
    """
    options, settings = {"cpp.dynamic_threads": any_threads} | (options or {}), {}
    compiler: Any = torch.compile  # Any: its stubs lack the newest arguments
    if "isolate_recompiles" in inspect.signature(compiler).parameters:
        options["guard_filter_fn"] = kept_with_any_threads if any_threads else kept_guards
        settings["isolate_recompiles"] = True
    return compiler(function, dynamic=dynamic, options=options, **settings)


kept_guards = torch.compiler.skip_guard_on_all_nn_modules_unsafe


def kept_with_any_threads(guards: Sequence[Any]) -> list[bool]:
    """Keep the guards on neither modules nor torch's global state, which includes the number of threads."""
    return [
        kept and guard.guard_type != "GLOBAL_STATE"
        for guard, kept in zip(guards, kept_guards(guards), strict=True)
    ]
