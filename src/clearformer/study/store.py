"""Measurements on disk: one small JSON file per run, next to the runs themselves.

FOLDER/measured/KEY.json   the measurements of one run; another machine needs these alone, and not the weights
       runs/KEY/           the run, like any other; may be deleted once it is measured
       claims/KEY.N        the process that computes it now (`workers.claims`)
       failed/SETTINGS.json  why it could not be computed, until it is tried again
       NAME/               a study's result.json, report.html and figures
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from clearformer.errors import ClearformerError, DataError
from clearformer.files import disk_errors, parse_json, user_path, write_file
from clearformer.results import plain
from clearformer.study.study import Values
from clearformer.study.trials import Trial

FOLDER = "studies"
VARIABLE = "CLEARFORMER_STUDIES"
DIVERGED = "diverged"


def studies_folder() -> Path:
    """Return the folder of studies: $CLEARFORMER_STUDIES if it is set, else `studies/`."""
    return user_path(os.environ.get(VARIABLE) or FOLDER)


@dataclass(frozen=True)
class Record:
    """The measurements of one run.

    Attributes:
        key: The trial's key.
        settings: Everything that determines the result.
        seed: The seed.
        measured: The values of each measure, by its key; of a probe, under `probe`. A training that diverged has only
            `diverged`, in place of all measures.
        seconds: The duration of the training or the probe.
        about: The date, the machine and the versions.
    """

    key: str
    settings: Mapping[str, Any]
    seed: int
    measured: Mapping[str, Values]
    seconds: float
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Any]:
        """All measured values by name, across measures."""
        return {name: value for values in self.measured.values() for name, value in values.items()}

    def has(self, trial: Trial) -> bool:
        """Whether all values that the trial asks for are measured; always true if the training diverged."""
        return DIVERGED in self.measured or trial.values <= self.measured.keys()

    def of(self, trial: Trial) -> "Record":
        """Return the record with only the measures of a trial: other studies may have measured more of the run."""
        wanted = {name: values for name, values in self.measured.items() if name in {*trial.values, DIVERGED}}
        return replace(self, measured=wanted)


FIELDS: dict[str, Any] = {
    "key": str,
    "settings": dict,
    "seed": int,
    "measured": dict,
    "seconds": float | int,
}
"""The types of a record's fields; `about`, a mapping, may be absent."""


def is_measurement(content: Any) -> bool:
    """Whether JSON has the fields of a record, of the right types."""
    if not isinstance(content, dict):
        return False
    fields = {"about": {}, **content}
    return (
        fields.keys() == {*FIELDS, "about"}
        and all(isinstance(fields[name], kind) for name, kind in FIELDS.items())
        and all(isinstance(part, dict) for part in (fields["about"], *fields["measured"].values()))
    )


class Store:
    """A folder of studies."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = studies_folder() if folder is None else folder
        self.measured, self.failed = self.folder / "measured", self.folder / "failed"
        self.runs, self.claims = self.folder / "runs", self.folder / "claims"

    def find(self, trial: Trial, or_without_its_file: bool = False) -> Record | None:
        """Return the measurements of a trial, or None.

        If its data cannot be read here, a result of the same settings is used, provided there is only one: of built-in
        data always, of a user's file only on request, for the result may be another file's.

        Args:
            trial: The trial.
            or_without_its_file: Whether its own file may be absent.

        Raises:
            DataError: the file is damaged, or results of different data exist and the right one cannot be determined.
        """
        found = sorted(self.measured.glob(f"{trial.settings_key}-*.json"))
        if not found:
            return None  # found out without reading the data
        try:
            file = self.measured / f"{trial.key}.json"
        except ClearformerError as missing:
            if trial.place and not or_without_its_file:
                return None
            if len(found) > 1:
                raise DataError(
                    f"{found[0]} and {found[1].name} are results on different data; cannot tell which to use: "
                    f"{missing}"
                ) from None
            (file,) = found
        return self._read(file) if file in found else None

    def _read(self, file: Path) -> Record:
        try:
            content = parse_json(file.read_text())
        except ValueError as error:
            raise DataError(f"{file}: damaged ({error}); delete it to compute its run again") from None
        if not is_measurement(content):
            raise DataError(f"{file}: damaged (not a measurement); delete it to compute its run again")
        return Record(**content)

    def is_done(self, trial: Trial) -> bool:
        """Whether all values that a trial asks for are measured."""
        record = self.find(trial)
        return record is not None and record.has(trial)

    def write(self, record: Record) -> None:
        """Write a record atomically.

        Raises:
            DiskError: it cannot be written.
        """
        content = json.dumps(plain(asdict(record)), separators=(",", ":"), allow_nan=False) + "\n"
        write_file(self.measured / f"{record.key}.json", content.encode())

    def write_failure(self, trial: Trial, problem: str, trace: str = "") -> None:
        """Store why a trial could not be computed: one line, and the traceback of an unexpected error."""
        lacking = sorted(self._lacking(trial))
        about = {"name": trial.name, "problem": problem, "lacking": lacking, "traceback": trace}
        write_file(self._failure_file(trial), (json.dumps(about, indent=1) + "\n").encode())

    def failure(self, trial: Trial) -> str | None:
        """Return why a trial could not be computed; None if it did not fail or was not tried.

        The same run fails for one study alone where a measure that only this study takes is at fault.
        """
        try:
            about = json.loads(self._failure_file(trial).read_text())
            lacking = set(about["lacking"])  # empty where the study measures nothing
            return str(about["problem"]) if not lacking or trial.values & lacking else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _lacking(self, trial: Trial) -> frozenset[str]:
        """Return the keys of the values that a trial asks for and that are not measured."""
        try:
            record = self.find(trial)
        except ClearformerError:  # its data or its file cannot be read
            record = None
        return trial.values - (record.measured.keys() if record else set())

    def forget_failure(self, trial: Trial) -> None:
        """Delete the failure of a trial, so that it is tried again."""
        with disk_errors(self.failed):
            self._failure_file(trial).unlink(missing_ok=True)

    def _failure_file(self, trial: Trial) -> Path:
        return self.failed / f"{trial.identity}.json"

    def by_settings(self) -> dict[str, list[Record]]:
        """Return all records by the hash of their settings, whatever their data; quick, because no data are read.

        Raises:
            DataError: a file is damaged.
        """
        found: dict[str, list[Record]] = {}
        for file in sorted(self.measured.glob("*.json")):
            found.setdefault(file.name.partition("-")[0], []).append(self._read(file))
        return found
