"""Named places in a model where an activation can be read or replaced.

A hook point is an ordinary attribute of the module that owns it, so its full name is the module's path and
the attribute's (`blocks.0.attn.hook_pattern`, the names TransformerLens users know). Called while nobody
looks, it hands its argument on and does nothing else; `torch.compile` removes it altogether.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from clearformer.errors import UserError, did_you_mean

Look = Callable[[Tensor], Tensor | None]
"""What a hook does with an activation: returns another to put in its place, or None to leave it."""


class HookPoint:
    """One named place; `watched` while a function looks at it."""

    def __init__(self) -> None:
        self.look: Look | None = None

    @property
    def watched(self) -> bool:
        return self.look is not None

    def __call__(self, activation: Tensor) -> Tensor:
        if self.look is None:
            return activation
        replacement = self.look(activation)
        return activation if replacement is None else replacement


def hook_points(model: nn.Module) -> dict[str, HookPoint]:
    """Every hook point of a model by its full name, in the order of its modules."""
    return {
        f"{path}.{name}" if path else name: value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, HookPoint)
    }


@contextmanager
def hooked(model: nn.Module, looks: Mapping[str, Look]) -> Iterator[None]:
    """Let functions look at, or replace, the named activations inside the `with` block.

    Raises:
        UserError: a name that is no hook point of this model (with the nearest that is).
    """
    points = hook_points(model)
    for name in looks:
        if name not in points:
            hint = did_you_mean(name, points) or f"; it has {', '.join(points)}"
            raise UserError(f"this model has no hook point {name!r}{hint}")
    before = {name: points[name].look for name in looks}
    try:
        for name, look in looks.items():
            points[name].look = look
        yield
    finally:
        for name, look in before.items():
            points[name].look = look
