"""Hook points, at which a model's activations are read or replaced, and the activations read there."""

from clearformer.hooks.activations import ActivationCache, UnknownActivationError
from clearformer.hooks.points import (
    Hook,
    HookedModule,
    HookFn,
    HookPoint,
    has_any_hooks,
    hook_points,
    hooked,
    is_any_open,
    matching,
    patterns_of,
)

__all__ = [
    "ActivationCache",
    "Hook",
    "HookFn",
    "HookPoint",
    "HookedModule",
    "UnknownActivationError",
    "has_any_hooks",
    "hook_points",
    "hooked",
    "is_any_open",
    "matching",
    "patterns_of",
]
