"""Check the model's shape annotations at run time, for each function once per combination of shapes.

jaxtyping checks every call, which takes several times as long as the call itself, and finds the same each time.
Functions annotated only with classes are left to pyright.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import is_dataclass
from functools import wraps
from threading import RLock
from types import CodeType, UnionType
from typing import Any, ForwardRef, Literal, get_args, get_origin

import jaxtyping
import torch
from torch import Tensor

Call = Callable[..., Any]
every_call = jaxtyping.jaxtyped
passed: defaultdict[tuple[CodeType, str], set[Hashable]] = defaultdict(set)
"""The looks of arguments and result that a function has passed; kept for a nested function that is defined anew."""
checking = RLock()  # reentrant: a check may call checked functions, such as those that give a mapping's items


def install(package: str) -> None:
    """Check the functions of a package in all modules that are imported from now on."""
    jaxtyping.jaxtyped = checked_once
    jaxtyping.install_import_hook(package, "beartype.beartype")


def checked_once(*, typechecker: Call) -> Call:
    """Replace `jaxtyping.jaxtyped`, which checks every call."""

    def decorate(function: Any) -> Any:
        if is_dataclass(function):
            function.__init__ = decorate(function.__init__)
            return function
        if not hasattr(function, "__code__"):
            return every_call(function, typechecker=typechecker)
        if only_types_matter(function):
            return function
        looks_of = looks_of_all if speaks_of_more_than_kinds(function) else kinds_of_all
        seen, results, checker = passed[function.__code__, function.__qualname__], [], []

        @wraps(function)
        def result_of_the_call(*_: Any, **__: Any) -> Any:
            return results.pop()

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            if torch.compiler.is_compiling():  # it would trace the search in the set, item by item
                return result
            look = looks_of((result, *arguments, *named.values()) if named else (result, *arguments), named)
            if look not in seen:
                with checking:
                    checker[:] = checker or [every_call(result_of_the_call, typechecker=typechecker)]
                    results.append(result)
                    depth = len(results)
                    try:
                        checker[0](*arguments, **named)
                    finally:
                        del results[depth - 1 :]  # not consumed if an argument is wrong
                seen.add(look)
            return result

        return call

    return decorate


def only_types_matter(function: Call) -> bool:
    """Whether all of a function's annotations are plain classes, without shapes."""
    annotations = [
        part
        for each in function.__annotations__.values()
        for part in (get_args(each) if isinstance(each, UnionType) else [each])
    ]
    return all(each is None or says_nothing(each) or is_plain(each) for each in annotations)


def says_nothing(annotation: Any) -> bool:
    """Whether an annotation is `Any`, or has only `Any` as arguments, like `Callable[..., Any]`."""
    return annotation is Any or get_args(annotation) in ((..., Any), (Any, ...))


def is_plain(annotation: Any) -> bool:
    if not isinstance(annotation, type):
        return False
    return annotation.__module__ != "jaxtyping" and not getattr(annotation, "_is_protocol", False)


def speaks_of_more_than_kinds(function: Call) -> bool:
    """Whether an annotation is of shapes or of certain words, or is not known yet."""
    return any(map(is_more_than_kinds, function.__annotations__.values()))


def is_more_than_kinds(annotation: Any) -> bool:
    if isinstance(annotation, list):  # the arguments of a `Callable`
        return any(map(is_more_than_kinds, annotation))
    if isinstance(annotation, str | ForwardRef) or get_origin(annotation) is Literal:
        return True
    if isinstance(annotation, type) and annotation.__module__ == "jaxtyping":
        return True
    return any(map(is_more_than_kinds, get_args(annotation)))


def kinds_of_all(values: Iterable[Any], names: Iterable[str]) -> Hashable:
    """The kinds of values, and of what the first item of each container is, which is as far as beartype looks."""
    kinds: list[Hashable] = [*names]
    for value in values:
        kind = type(value)
        kinds.append(kind)
        if kind is tuple:
            kinds.append(tuple(map(type, value)))
        elif kind in CONTAINERS and value:
            first = next(iter(value))
            kinds.append(type(first))
            if kind is dict:
                kinds.append(type(value[first]))
    return tuple(kinds)


def looks_of_all(values: Iterable[Any], names: Iterable[str]) -> Hashable:
    """All of values that annotations can speak of."""
    looks: list[Hashable] = [*names]
    for value in values:
        kind = type(value)
        if kind is Tensor:  # as look_of has it, without calls for what most values are
            looks += value.dtype, value.shape
        elif LOOKS.get(kind, look_of) is None:
            looks.append(kind)
        else:
            looks.append(look_of(value))
    return tuple(looks)


def look_of(value: Any) -> Hashable:
    """Return all properties of a value that an annotation can check."""
    kind = type(value)
    try:
        look = LOOKS[kind]
    except KeyError:
        look = LOOKS[kind] = next((LOOKS[each] for each in kind.__mro__ if each in LOOKS), None)
    return kind if look is None else look(value)


def look_of_a_tensor(value: Tensor) -> Hashable:
    return type(value), value.dtype, value.shape


def look_of_a_constant(value: str | float) -> Hashable:
    return type(value), value


def look_of_items(value: Iterable[Any]) -> Hashable:
    return type(value), *map(look_of, value)


def look_of_a_mapping(value: dict[Any, Any]) -> Hashable:
    return type(value), *map(look_of, value), *map(look_of, value.values())


CONTAINERS = frozenset({list, set, frozenset, dict})

LOOKS: dict[type, Callable[[Any], Hashable] | None] = {
    Tensor: look_of_a_tensor,
    str: look_of_a_constant,
    int: look_of_a_constant,
    float: look_of_a_constant,
    tuple: look_of_items,
    list: look_of_items,
    set: look_of_items,
    frozenset: look_of_items,
    dict: look_of_a_mapping,
}
"""The function for each type; for other types, the look is the type alone."""
