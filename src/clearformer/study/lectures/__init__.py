"""The studies of the lectures, and those that users register."""

from clearformer.errors import UserError, shown
from clearformer.study.lectures import architecture, embedding, information, inside, translation
from clearformer.study.study import Study

MODULES = (embedding, information, inside, architecture, translation)
"""The modules of this package in the order in which studies are listed; each has a tuple `STUDIES`."""

_OWN: dict[str, Study] = {}


def studies() -> dict[str, Study]:
    """Return all studies by name: those of the lectures, then the registered ones."""
    return lecture_studies() | _OWN


def lecture_studies() -> dict[str, Study]:
    """Return the studies of the lectures by name; these alone are known in every process."""
    return {study.name: study for module in MODULES for study in module.STUDIES}


def register_study(study: Study) -> Study:
    """Make a study known to the command line; returns it.

    Raises:
        UserError: it is no study, or there is another with that name.
    """
    if not isinstance(study, Study):
        raise UserError(f"a study is a cf.Study(...); got {shown(study)}")
    if studies().get(study.name, study) != study:
        raise UserError(f"there is already a study {study.name!r}; choose another name")
    _OWN[study.name] = study
    return study
