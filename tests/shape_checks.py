"""The model's annotations checked at run time, each function once for all calls of the same types and shapes.

jaxtyping checks every call, which takes several times as long as the call itself, and finds the same each time.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable
from functools import wraps
from threading import RLock
from types import CodeType
from typing import Any

import jaxtyping
from torch import Tensor

Call = Callable[..., Any]
every_call = jaxtyping.jaxtyped
passed: defaultdict[CodeType, set[Hashable]] = defaultdict(set)
"""The looks of arguments and result that a function was checked with; one that is made anew in each call keeps them."""
checking = RLock()  # a check may call functions that are checked: a mapping's, of its items


def install(package: str) -> None:
    """Check the functions of a package that is imported from now on."""
    jaxtyping.jaxtyped = checked_once
    jaxtyping.install_import_hook(package, "beartype.beartype")


def checked_once(*, typechecker: Call) -> Call:
    """Stand in for `jaxtyping.jaxtyped`, which checks every call."""

    def decorate(function: Any) -> Any:
        if not hasattr(function, "__code__"):
            return every_call(function, typechecker=typechecker)  # a class: a dataclass's fields are checked
        seen, results, checker = passed[function.__code__], [], []

        @wraps(function)
        def result_of_the_call(*_: Any, **__: Any) -> Any:
            return results.pop()

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            look = (look_of(result), *map(look_of, arguments), *named, *map(look_of, named.values()))
            if look not in seen:
                with checking:
                    checker[:] = checker or [every_call(result_of_the_call, typechecker=typechecker)]
                    results.append(result)
                    depth = len(results)
                    try:
                        checker[0](*arguments, **named)
                    finally:
                        del results[depth - 1 :]  # still there, where an argument is wrong
                seen.add(look)
            return result

        return call

    return decorate


def look_of(value: Any) -> Hashable:
    """All of a value that an annotation can speak of."""
    if isinstance(value, Tensor):
        return type(value), value.dtype, value.shape
    if isinstance(value, (str, int, float)):
        return type(value), value
    if isinstance(value, (tuple, list, set, frozenset)):
        return type(value), *map(look_of, value)
    if isinstance(value, dict):
        return type(value), *map(look_of, value), *map(look_of, value.values())
    return type(value)
