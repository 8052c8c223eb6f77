"""Studies as data: the file FOLDER/NAME/study.json, from which a user's study is loaded by its name.

It holds names, settings and numbers, and no code: every arm is a training, and every measure belongs to the package.
"""

import json
import logging
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from clearformer.config import Spec, whole
from clearformer.errors import ConfigError, DataError, UserError, did_you_mean
from clearformer.files import parse_json, write_file
from clearformer.results import plain
from clearformer.study.figures.curves import Curves
from clearformer.study.lectures import lecture_studies, studies
from clearformer.study.measures.losses import LOSSES
from clearformer.study.store import Store
from clearformer.study.study import Claim, Published, Study, Training

logger = logging.getLogger(__name__)

FILE = "study.json"
PROSE = frozenset({"question", "lecture", "refuted_if", "fairness"})
"""The fields that change no run and no verdict."""
CURVES = Curves("Training and held-out loss")
MEASURES = {"losses": LOSSES}
"""The measures that a declared study can use, by name."""
FIGURES = {"curves": CURVES}
"""The figures that a declared study can use, by name."""


def declaration(study: Study) -> dict[str, Any]:
    """Return a study as JSON values.

    Raises:
        UserError: the study has functions or figures of its own.
    """
    measures = {measure.key: name for name, measure in MEASURES.items()}
    figures: dict[Any, str] = {figure: name for name, figure in FIGURES.items()}
    check_is_data(study)
    return plain(
        {
            "name": study.name,
            "question": study.question,
            "lecture": study.lecture,
            "refuted_if": study.refuted_if,
            "fairness": study.fairness,
            "settings": without_specs(study.settings),
            "arms": [without_specs(vars(arm)) for arm in study.arms],
            "measures": [measures[measure.key] for measure in study.measures],
            "shown": list(study.shown),
            "claims": [vars(claim) for claim in study.claims],
            "published": [vars(each) for each in study.published],
            "figures": [figures[figure] for figure in study.figures],
            "tuned_by": study.tuned_by,
            "seeds": study.seeds,
            "first_seed": study.first_seed,
        }
    )


def without_specs(value: Any) -> Any:
    """Return settings with each spec in them as a mapping of its settings, and each path as text."""
    if isinstance(value, Mapping):
        return {name: without_specs(each) for name, each in value.items()}
    if isinstance(value, PathLike):
        return fspath(value)
    return whole(value) if isinstance(value, Spec) else value


def check_is_data(study: Study) -> None:
    """Raise UserError if a study has functions or figures of its own."""
    measures = {measure.key for measure in MEASURES.values()}
    code = [arm.label for arm in study.arms if not isinstance(arm, Training)]
    code += [measure.name for measure in study.measures if measure.key not in measures]
    code += ["a figure" for figure in study.figures if figure not in FIGURES.values()]
    if code:
        raise UserError(
            f"study {study.name}: {code[0]} is code, which other processes can only load from a file: use jobs=1, or "
            f"register the study in a file and run clearformer study run {study.name} --import FILE.py"
        )


def from_declaration(content: dict[str, Any]) -> Study:
    """Return the study of a declaration.

    Raises:
        ConfigError: a field is missing or invalid.
    """
    try:
        return Study(
            name=str(content["name"]),
            question=str(content["question"]),
            lecture=str(content["lecture"]),
            refuted_if=str(content["refuted_if"]),
            fairness=str(content["fairness"]),
            settings=dict(content["settings"]),
            arms=tuple(Training(**arm) for arm in content["arms"]),
            measures=tuple(MEASURES[name] for name in content["measures"]),
            shown=tuple(map(str, content["shown"])),
            claims=tuple(Claim(**claim) for claim in content["claims"]),
            published=tuple(Published(**each) for each in content["published"]),
            figures=tuple(FIGURES[name] for name in content["figures"]),
            tuned_by=str(content["tuned_by"]),
            seeds=int(content["seeds"]),
            first_seed=int(content["first_seed"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"not a study declaration: {type(error).__name__}: {error}") from None


def declare(study: Study, store: Store) -> Path:
    """Write a study's declaration to its folder; returns the file.

    Raises:
        UserError: the study has code of its own, or another study has its name, there, in the lectures or registered.
        DiskError: the file cannot be written.
    """
    content, file = declaration(study), store.folder / study.name / FILE
    if studies().get(study.name, study) != study:
        whose = "of the lectures" if study.name in lecture_studies() else "registered"
        raise UserError(f"there is already a study {study.name!r} {whose}; choose another name")
    if file.exists():
        kept = declaration(read_declaration(file))
        if kept == content:
            return file
        if any(kept[name] != content[name] for name in content if name not in PROSE):
            raise UserError(
                f"{file.parent} belongs to another study of that name; choose another name, or delete it"
            )
    write_file(file, (json.dumps(content, indent=1) + "\n").encode())
    return file


def read_declaration(file: Path) -> Study:
    """Return the study that a file declares.

    Raises:
        DataError: the file is damaged.
    """
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ConfigError("not a study declaration")
        return from_declaration(content)
    except (OSError, ValueError, ConfigError) as error:
        raise DataError(f"{file}: damaged: {error}; delete it and declare the study again") from None


def all_studies(store: Store) -> dict[str, Study]:
    """Return the lectures' studies, the registered ones, and those that a folder declares, by name.

    A damaged declaration is left out, with a warning.
    """
    found = dict(studies())
    for file in sorted(store.folder.glob(f"*/{FILE}")):
        try:
            found.setdefault(file.parent.name, read_declaration(file))
        except DataError as error:
            logger.warning("%s; left out", error)
    return found


def study_of_name(name: str, store: Store) -> Study:
    """Return the study with a name.

    Raises:
        UserError: there is none; the message suggests the nearest name.
        DataError: the declaration is damaged.
    """
    known = studies()
    if name in known:
        return known[name]
    file = store.folder / name / FILE
    if "/" not in name and file.is_file():
        study = read_declaration(file)
        if study.name != name:
            raise DataError(
                f"{file}: it declares the study {study.name!r}; rename its folder to that, or the name in the file"
            )
        return study
    names = [*known, *(file.parent.name for file in store.folder.glob(f"*/{FILE}"))]
    hint = did_you_mean(name, names) or "; see clearformer study list"
    raise UserError(f"there is no study {name!r}{hint}")
