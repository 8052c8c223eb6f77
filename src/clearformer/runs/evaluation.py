"""The evaluation of a run on a whole split of its own data, or on other data of the same kind."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from clearformer.config import resolve
from clearformer.data import Data, PairsData, Prepared, prepare_data
from clearformer.errors import ConfigError, RunError, UserError
from clearformer.runs.folders import RunLike, read_own_data
from clearformer.training.tasks import task_type
from clearformer.training.tasks.reports import EvaluationReport, Section
from clearformer.training.tasks.task import EvaluationData, EvaluationOptions, TrainedModel

WHOLE = "train"  # the split that holds all of the data of which none are held out
INHERITED = (
    "field",
    "text_field",
    "label_field",
    "columns",
    "labels",
    "too_long",
)  # of the run's own settings
CHANGED = (
    "the run's own data have changed since it was trained: what is held out now may have been training text"
)


@dataclass(frozen=True)
class DataChoice:
    """The data to evaluate a run on.

    Attributes:
        split: Of the run's own data.
        files: Other data in their place, read whole.
        allow_changed: Whether own data that have changed since training are read as they are, and not refused.
    """

    split: str = "val"
    files: Sequence[str] = ()
    allow_changed: bool = False

    @property
    def name(self) -> str:
        """The name of the data in a message or a JSON object."""
        return " ".join(self.files) or self.split


def evaluate_run(run: RunLike, choice: DataChoice, options: EvaluationOptions) -> EvaluationReport:
    """Evaluate a run by what it is trained for.

    The values for JSON say in `data_changed` whether the run's own data are others than it was trained on; it is null
    where they were not read.

    Raises:
        RunError: the run's data have no such split, or it was imported and has none.
        DataError, TokenizerError: the data cannot be read, or not by this run; or they have changed.
        UserError: the context or the stride is out of range, or the number of files is wrong.
    """
    data, changed = other_data(run, choice) if choice.files else own_data(run, choice)
    task = task_type(run.config.train.objective)
    report = task.evaluate_on(TrainedModel(run.model, run.tokenizer), data, options)
    note = (Section(text=CHANGED),) if changed else ()
    values = report.values | {"split": choice.name, "data_changed": changed}
    return replace(report, sections=note + report.sections, values=values)


class _Chosen(NamedTuple):
    """The data, and whether they are the run's own and others than it was trained on; None of others."""

    data: EvaluationData
    changed: bool | None


def own_data(run: RunLike, choice: DataChoice) -> _Chosen:
    """A split of the data that the run was trained on.

    Raises:
        RunError: there is no such split.
        DataError: the data cannot be used, or are not those that the run was trained on.
    """
    own = read_own_data(run, allow_changed=choice.allow_changed)
    if choice.split not in own.prepared.splits:
        there_are = ", ".join(own.prepared.splits)
        raise RunError(f"--split: the run's data have no split {choice.split!r}; they have {there_are}")
    data = EvaluationData(
        run.config,
        own.prepared,
        choice.split,
        choice.name,
        f"the whole {choice.split} split",
        lambda: own.prepared,
    )
    return _Chosen(data, own.changed)


def other_data(run: RunLike, choice: DataChoice) -> _Chosen:
    """All of some files, as data of the kind that the run was trained on.

    Raises:
        UserError: there are too many, or a name that is none.
        DataError: the data cannot be used.
    """
    config = run.config.replace(data=data_of_files(run.config.data, choice.files))
    prepared = prepare_data(config.data, run.tokenizer, max_tokens=config.model.max_seq_len)
    data = EvaluationData(
        config, prepared, WHOLE, choice.name, f"all of {choice.name}", partial(training_data, run)
    )
    return _Chosen(data, None)


def training_data(run: RunLike) -> Prepared:
    """The data that the run was trained on, refused where they have changed."""
    return read_own_data(run).prepared


def data_of_files(own: Data, files: Sequence[str]) -> Data:
    """The settings of some files, read whole, as data of the kind that the run was trained on.

    Raises:
        UserError: there are too many, or a name that is none.
    """
    most = 2 if isinstance(own, PairsData) else 1
    if len(files) > most:
        what = "pairs are one TSV or two files, source and target" if most == 2 else "one file"
        raise UserError(f"--data: {what}; got {len(files)}")
    inherited = {name: getattr(own, name) for name in INHERITED if name in type(own).model_fields}
    paths = {"source": files[0], "target": files[1]} if len(files) == 2 else {"path": files[0]}
    try:
        return resolve(type(own), inherited | paths | {"val_fraction": 0.0})
    except ConfigError as error:
        raise UserError(f"--data: {error}") from None
