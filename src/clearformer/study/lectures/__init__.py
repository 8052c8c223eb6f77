"""The studies of the lectures, by their names."""

from clearformer.errors import UserError, did_you_mean
from clearformer.study.lectures import architecture, embedding, information, inside, translation
from clearformer.study.study import Study

MODULES = (embedding, information, inside, architecture, translation)
"""Files of this folder, in the order in which studies are listed; each has a tuple `STUDIES`."""

_OWN: dict[str, Study] = {}


def studies() -> dict[str, Study]:
    """All studies by their names: those of the lectures, then those of one's own."""
    found = {study.name: study for module in MODULES for study in module.STUDIES}
    return found | _OWN


def register_study(study: Study) -> Study:
    """Add a study of one's own to those that the command line knows; returns it.

    Raises:
        UserError: there is another one of that name.
    """
    if studies().get(study.name, study) != study:
        raise UserError(f"there is a study {study.name!r} already; choose another name")
    _OWN[study.name] = study
    return study


def find_study(name: str) -> Study:
    """The study of a name.

    Raises:
        UserError: there is none (with the nearest).
    """
    known = studies()
    if name not in known:
        hint = did_you_mean(name, known) or "; see clearformer study list"
        raise UserError(f"there is no study {name!r}{hint}")
    return known[name]
