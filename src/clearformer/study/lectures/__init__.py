"""The studies of the lectures, and those that users register."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any

from clearformer.errors import UserError, shown
from clearformer.parts import load_installed_parts
from clearformer.study.lectures import architecture, embedding, information, inside, translation
from clearformer.study.study import Study

MODULES = (embedding, information, inside, architecture, translation)
"""The modules of this package in the order in which studies are listed; each has a tuple `STUDIES`."""

_OWN: dict[str, Study] = {}


def studies() -> dict[str, Study]:
    """Return all studies by name: those of the lectures, then the registered ones.

    Raises:
        ConfigError: a part of an installed package, which may register some, cannot be imported.
    """
    load_installed_parts()
    return lecture_studies() | _OWN


def lecture_studies() -> dict[str, Study]:
    """Return the studies of the lectures by name; these alone are known in every process."""
    return {study.name: study for module in MODULES for study in module.STUDIES}


def register_study(study: Study) -> Study:
    """Make a study known to the command line; returns it.

    A study replaces an earlier one of its name that differs from it in functions alone, if they were defined in the
    same places: a cell of a notebook that is run again defines them anew.

    Raises:
        UserError: it is no study, or there is another with that name.
    """
    if not isinstance(study, Study):
        raise UserError(f"a study is a cf.Study(...); got {shown(study)}")
    other = (lecture_studies() | _OWN).get(study.name, study)
    if other != study and (study.name not in _OWN or _by_name(other) != _by_name(study)):
        raise UserError(f"there is already a study {study.name!r}; choose another name")
    _OWN[study.name] = study
    return study


def _by_name(value: Any) -> Any:
    """Return a study, or a part of one, as plain data, with the module and name of each function in its place."""
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), [_by_name(getattr(value, each.name)) for each in fields(value)]
    if isinstance(value, Mapping):
        return {key: _by_name(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_by_name(each) for each in value]
    return (value.__module__, value.__qualname__) if isinstance(value, FunctionType) else value
