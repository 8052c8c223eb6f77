"""torch.compile for what is called thousands of times with one model."""

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
    """A function of a model's, compiled when first called, for calls between which the modules stay as they are.

    Looking at each call whether some hundred modules have changed takes a good part of a small model's step. What is
    compiled here is nobody else's, so that another model's step does not pass for it. A torch that cannot keep them
    apart looks at the modules.

    Args:
        function: Its weights may change, and be others of the same shapes; neither modules nor settings may.
        dynamic: Whether shapes vary; found out where None.
        any_threads: Whether it goes on with any number of threads, and is not compiled anew for each. It is then not
            looked at either whether gradients are wanted, or products in another type.
        options: The compiler's.
    """
    options, settings = dict(options or {}), {}
    if any_threads:
        options["cpp.dynamic_threads"] = True
    compiler: Any = torch.compile  # whose stubs lack what the newest has
    if "isolate_recompiles" in inspect.signature(compiler).parameters:
        options["guard_filter_fn"] = kept_with_any_threads if any_threads else kept_guards
        settings["isolate_recompiles"] = True
    return compiler(function, dynamic=dynamic, options=options, **settings)


kept_guards = torch.compiler.skip_guard_on_all_nn_modules_unsafe


def kept_with_any_threads(guards: Sequence[Any]) -> list[bool]:
    """Of the compiler's questions those about neither modules nor torch's global state, as the number of threads is."""
    return [
        kept and guard.guard_type != "GLOBAL_STATE"
        for guard, kept in zip(guards, kept_guards(guards), strict=True)
    ]
