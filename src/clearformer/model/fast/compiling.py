"""torch.compile for what is called thousands of times with one model."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def compile_step(
    function: Callable[..., Tensor], *, dynamic: bool | None = None, options: dict[str, Any] | None = None
) -> Callable[..., Tensor]:
    """A function of a model's, compiled when first called, for calls between which the modules stay as they are.

    Looking at each call whether some hundred modules have changed takes a good part of a small model's step. What is
    compiled here is nobody else's, so that another model's step does not pass for it. A torch that cannot keep them
    apart looks at the modules.

    Args:
        function: Its weights may change, and be others of the same shapes; neither modules nor settings may.
        dynamic: Whether shapes vary; found out where None.
        options: The compiler's.
    """
    options, settings = dict(options or {}), {}
    compiler: Any = torch.compile  # whose stubs lack what the newest has
    if "isolate_recompiles" in inspect.signature(compiler).parameters:
        options["guard_filter_fn"] = torch.compiler.skip_guard_on_all_nn_modules_unsafe
        settings["isolate_recompiles"] = True
    return compiler(function, dynamic=dynamic, options=options, **settings)
