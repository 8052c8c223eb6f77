"""Dataclasses are values: nobody changes one that another may hold, and results show and compare themselves."""

import copy
import importlib
import pickle
import pkgutil
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import ModuleType
from typing import Any

import clearformer
from clearformer.errors import ClearformerError, Interrupted, NonFiniteError
from clearformer.results import Result
from clearformer.text.tokenizer import UnknownCharacterError

CHANGED = {
    "clearformer.runs.training.RunStart"
}  # whose folder is another one where a name was taken meanwhile


def modules(package: ModuleType) -> Iterator[ModuleType]:
    yield package
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def dataclasses() -> dict[str, type]:
    """Those that the package defines, by module and name."""
    return {
        f"{module.__name__}.{name}": value
        for module in modules(clearformer)
        for name, value in vars(module).items()
        if isinstance(value, type) and is_dataclass(value) and value.__module__ == module.__name__
    }


def settings_of(dataclass: type) -> Any:
    """What the decorator was given."""
    return dataclass.__dataclass_params__  # type: ignore[attr-defined]


def test_dataclasses_are_frozen() -> None:
    found = dataclasses()
    assert len(found) > 50
    assert {name for name, each in found.items() if not settings_of(each).frozen} == CHANGED


def errors() -> list[type[ClearformerError]]:
    """The exceptions that the package defines."""
    found = {
        value for module in modules(clearformer) for value in vars(module).values() if isinstance(value, type)
    }
    return sorted(
        (each for each in found if issubclass(each, ClearformerError)), key=lambda each: each.__name__
    )


def test_errors_can_be_copied_and_given_to_another_process() -> None:
    arguments: dict[type, tuple[Any, ...]] = {
        UnknownCharacterError: ("a text", 2, "is not in the vocabulary"),
        Interrupted: ("stopped", 15),
        NonFiniteError: ("the loss is not finite", 7),
    }
    assert len(errors()) > 20
    for kind in errors():
        error = kind(*arguments.get(kind, ("one line",)))
        received = pickle.loads(pickle.dumps(error))  # noqa: S301  (our own)
        for other in (received, copy.copy(error), copy.deepcopy(error)):
            assert type(other) is kind
            assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))


def test_results_show_and_compare_themselves() -> None:
    results = [each for each in dataclasses().values() if issubclass(each, Result)]
    assert len(results) > 5
    assert [each for each in results if settings_of(each).repr or settings_of(each).eq] == []
