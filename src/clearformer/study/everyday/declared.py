"""Studies as data: the file FOLDER/NAME/study.json, by which a study of one's own is found again by its name.

It holds names, settings and numbers, and no code: all its arms are trained, and its measures are of the package.
"""

import json
from pathlib import Path
from typing import Any

from clearformer.errors import ConfigError, DataError, UserError, did_you_mean
from clearformer.files import disk_errors, make_folders, parse_json, write_file
from clearformer.results import plain
from clearformer.study.lectures import studies
from clearformer.study.measures.losses import LOSSES
from clearformer.study.store import Store
from clearformer.study.study import Claim, Study, Training

FILE = "study.json"
MEASURES = {"losses": LOSSES}
"""The measures that a declared study can name."""


def declaration(study: Study) -> dict[str, Any]:
    """A study as JSON has it.

    Raises:
        UserError: it has functions of its own, which are no data.
    """
    names = {measure: name for name, measure in ((name, each.key) for name, each in MEASURES.items())}
    for arm in study.arms:
        if not isinstance(arm, Training):
            raise UserError(f"study {study.name}: {arm.label!r} is a function, and no data")
    for measure in study.measures:
        if measure.key not in names:
            raise UserError(f"study {study.name}: {measure.name} is a function, and no data")
    arms = [
        {"label": arm.label, "preset": arm.preset, "settings": dict(arm.settings), "seeds": arm.seeds}
        for arm in study.arms
        if isinstance(arm, Training)
    ]
    return plain(
        {
            "name": study.name,
            "question": study.question,
            "lecture": study.lecture,
            "refuted_if": study.refuted_if,
            "fairness": study.fairness,
            "settings": dict(study.settings),
            "arms": arms,
            "measures": [names[measure.key] for measure in study.measures],
            "shown": list(study.shown),
            "claims": [vars(claim) for claim in study.claims],
            "seeds": study.seeds,
            "first_seed": study.first_seed,
        }
    )


def from_declaration(content: dict[str, Any]) -> Study:
    """The study of a declaration.

    Raises:
        ConfigError: something of it is wrong, or is not there.
    """
    try:
        return Study(
            name=str(content["name"]),
            question=str(content["question"]),
            lecture=str(content["lecture"]),
            refuted_if=str(content["refuted_if"]),
            fairness=str(content["fairness"]),
            settings=dict(content["settings"]),
            arms=tuple(_arm(arm) for arm in content["arms"]),
            measures=tuple(MEASURES[name] for name in content["measures"]),
            shown=tuple(map(str, content["shown"])),
            claims=tuple(Claim(**claim) for claim in content["claims"]),
            seeds=int(content["seeds"]),
            first_seed=int(content["first_seed"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"no declaration of a study: {type(error).__name__}: {error}") from None


def _arm(arm: dict[str, Any]) -> Training:
    seeds = arm["seeds"]
    settings = dict(arm["settings"])
    return Training(str(arm["label"]), str(arm["preset"]), settings, None if seeds is None else int(seeds))


def declare(study: Study, store: Store) -> Path:
    """Keep a study's declaration in its folder; returns the file.

    Raises:
        UserError: it is no data, or another study of that name is kept there or belongs to the lectures.
        DiskError: it cannot be written.
    """
    content, file = declaration(study), store.folder / study.name / FILE
    if study.name in studies():
        raise UserError(f"there is a study {study.name!r} of the lectures; choose another name")
    if file.exists():
        if declaration(read_declaration(file)) != content:
            raise UserError(
                f"{file.parent} is of another study of that name; choose another name, or delete it"
            )
        return file
    with disk_errors(file):
        make_folders(file.parent)
        write_file(file, (json.dumps(content, indent=1) + "\n").encode())
    return file


def read_declaration(file: Path) -> Study:
    """The study that a file declares.

    Raises:
        DataError: it is damaged.
    """
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ConfigError("no declaration of a study")
        return from_declaration(content)
    except (OSError, ValueError, ConfigError) as error:
        raise DataError(f"{file}: damaged: {error}") from None


def all_studies(store: Store) -> dict[str, Study]:
    """The lectures' studies, those that are registered, and those that a folder declares, by their names.

    Raises:
        DataError: a declaration is damaged.
    """
    found = dict(studies())
    for file in sorted(store.folder.glob(f"*/{FILE}")):
        found.setdefault(file.parent.name, read_declaration(file))
    return found


def study_of_name(name: str, store: Store) -> Study:
    """The study of a name.

    Raises:
        UserError: there is none (with the nearest name).
        DataError: its declaration is damaged.
    """
    known = studies()
    if name in known:
        return known[name]
    file = store.folder / name / FILE
    if "/" not in name and file.is_file():
        return read_declaration(file)
    names = [*known, *(file.parent.name for file in store.folder.glob(f"*/{FILE}"))]
    hint = did_you_mean(name, names) or "; see clearformer study list"
    raise UserError(f"there is no study {name!r}{hint}")
