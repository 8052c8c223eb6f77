"""Evaluating a run on a whole split of its own data, or on other data of the same kind."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

from clearformer.config import resolve
from clearformer.data import Data, LabelledData, Prepared, Progress, TextData, open_source, prepare_data
from clearformer.data.kinds import KINDS
from clearformer.data.labelled.reading import names_its_fields
from clearformer.data.text.sources import reads_json_lines
from clearformer.decoding.loop import NOT_FINITE
from clearformer.errors import ConfigError, NonFiniteError, RunError, UserError, shown, worded_for
from clearformer.files import user_path, whole_path
from clearformer.runs.folders import RunLike
from clearformer.runs.own_data import read_own_data
from clearformer.training.config import RunConfig
from clearformer.training.tasks import TASKS, task_type
from clearformer.training.tasks.reports import EvaluationReport, Section
from clearformer.training.tasks.task import EvaluationData, EvaluationOptions, TrainedModel

Spelled = Callable[[str], str]
"""Returns an option's name as the user types it: `split` in Python, `--split` on the command line."""

HELD_OUT = "val"
WHOLE = "train"  # the split that holds all of the data if none are held out
INHERITED = (
    "field",
    "text_field",
    "label_field",
    "columns",
    "labels",
    "too_long",
)  # settings that other data take from the run's own
AS_IN_THE_RUN = {
    "choose the text field with data.field=NAME": "name the field as in the run's own data",
    "choose fields with data.text_field=NAME and data.label_field=NAME": "name the fields as in the run's own data",
    "; data.columns=": "; a first line with the columns ",
}
"""Words of errors about other data, and those to put in their place, because the run has decided these settings."""
CHANGED = "the run's own data have changed since it was trained: held-out text may be training text"


@dataclass(frozen=True)
class DataChoice:
    """The data to evaluate a run on.

    Attributes:
        split: The split of the run's own data; by default the held-out one.
        files: Other data to read instead, whole.
        allow_changed: Whether to accept own data that have changed since training; otherwise they are refused.
    """

    split: str | None = None
    files: Sequence[str] = ()
    allow_changed: bool = False

    @property
    def name(self) -> str:
        """The name of the data in messages and JSON."""
        return " ".join(self.files) or self.own_split

    @property
    def own_split(self) -> str:
        """The split to read of the run's own data, if there are no files."""
        return HELD_OUT if self.split is None else self.split


def check_choice(choice: DataChoice, spelled: Spelled = str) -> None:
    """Raise UserError if an option about the run's own data is combined with other data.

    Args:
        choice: The data.
        spelled: Returns an option's name as the user types it.
    """
    data = spelled("data")
    if choice.split is not None and not isinstance(choice.split, str):
        raise UserError(f"{spelled('split')}: the name of a split; got {shown(choice.split)}")
    if choice.files and choice.split is not None:
        raise UserError(f"{spelled('split')}: other data are read whole; remove {spelled('split')} or {data}")
    if choice.files and choice.allow_changed:
        name = "allow_changed" if spelled is str else spelled("changed-data")
        raise UserError(f"{name}: applies only to the run's own data; remove it or {data}")


def check_applicable(config: RunConfig, given: Iterable[str], spelled: Spelled = str) -> None:
    """Raise UserError for an option that does not apply to runs of this kind.

    Args:
        config: The run's configuration.
        given: The options that were given.
        spelled: Returns an option's name as the user types it.
    """
    own = config.train.objective
    for name in given:
        others = [objective for objective in TASKS if name in objective.evaluation_options]
        if others and name not in own.evaluation_options:
            about = others[0].evaluation_options[name]
            activities = " or ".join(objective.activity for objective in others)
            raise UserError(
                f"{spelled(name)}: {about} is for a run that {activities}, but this one {own.activity}; "
                f"remove {spelled(name)}"
            )


def evaluate_run(
    run: RunLike,
    choice: DataChoice,
    options: EvaluationOptions,
    spelled: Spelled = str,
    progress: Progress = lambda *_: None,
) -> EvaluationReport:
    """Evaluate a run on the task that it was trained for.

    In the values for JSON, `step` is the step that the weights are of (of a mean of checkpoints, its last), and
    `data_changed` says whether the run's own data have changed since training; it is null if other data were read.
    `progress` is called with what is being done, how much of it is done, and the total where it is known.

    Raises:
        RunError: the run's data have no such split, or it was imported and has none.
        DataError, TokenizerError: the data cannot be read, or not by this run; or they have changed.
        UserError: an option is out of range or is for other runs, or the number of files is wrong.
        NonFiniteError: the loss is not finite.
    """
    check_applicable(run.config, options.given, spelled)
    check_choice(choice, spelled)
    data, changed = (other_data if choice.files else own_data)(run, choice, spelled, progress)
    task = task_type(run.config.train.objective)
    report = task.evaluate_on(TrainedModel(run.model, run.tokenizer), data, options)
    loss = report.values.get("loss", 0.0)
    if loss is None or not math.isfinite(loss):
        raise NonFiniteError(NOT_FINITE)
    note = (Section(text=CHANGED),) if changed else ()
    values = report.values | {"split": choice.name, "step": run.step, "data_changed": changed}
    return replace(report, sections=note + report.sections, values=values)


class _Chosen(NamedTuple):
    """The data, and whether they have changed since training; None for data that are not the run's own."""

    data: EvaluationData
    changed: bool | None


def own_data(run: RunLike, choice: DataChoice, spelled: Spelled, progress: Progress) -> _Chosen:
    """Read a split of the data that the run was trained on.

    Raises:
        RunError: there is no such split.
        DataError: the data cannot be used, or have changed since training.
    """
    own = read_own_data(run, allow_changed=choice.allow_changed, can_choose=True, progress=progress)
    if choice.own_split not in own.prepared.splits:
        there_are = ", ".join(own.prepared.splits)
        if choice.split is None:
            raise RunError(
                f"the run's data have no split {choice.own_split!r}: choose {spelled('split')} ({there_are}), or other "
                f"data with {spelled('data')}"
            )
        raise RunError(
            f"{spelled('split')}: the run's data have no split {choice.own_split!r}; they have {there_are}"
        )
    data = EvaluationData(
        run.config,
        own.prepared,
        choice.own_split,
        choice.name,
        f"the whole {choice.own_split} split",
        lambda: own.prepared,
        progress,
    )
    return _Chosen(data, own.changed)


def other_data(run: RunLike, choice: DataChoice, spelled: Spelled, progress: Progress) -> _Chosen:
    """Read files whole, as data of the kind that the run was trained on.

    Raises:
        UserError: there are too many files, or a name is not valid.
        DataError: the data cannot be used.
    """
    chosen = data_of_files(run.config.data, choice.files, spelled)
    with worded_for(AS_IN_THE_RUN | as_given(choice.files, spelled)):
        config = run.config.replace(data=without_needless_field(chosen))
        prepared = prepare_data(
            config.data,
            run.tokenizer,
            max_tokens=config.model.max_seq_len,
            uses_labels=config.train.objective.predicts_classes,
            progress=progress,
        )
    data = EvaluationData(
        config,
        prepared,
        WHOLE,
        choice.name,
        f"all of {choice.name}",
        cache(partial(training_data, run, progress)),
        progress,
    )
    return _Chosen(data, None)


def as_given(files: Sequence[str], spelled: Spelled) -> dict[str, str]:
    """Return the words of errors that name a file by its setting, and those by which the user named it."""
    given = "data=" if spelled is str else f"{spelled('data')} "
    places = map(whole_path, files)
    return {
        f"data.{key}={place}": f"{given}{place}" for place in places for key in ("path", "source", "target")
    }


def training_data(run: RunLike, progress: Progress) -> Prepared:
    """Read the data that the run was trained on; an error if they have changed."""
    return read_own_data(run, progress=progress).prepared


def data_of_files(own: Data, files: Sequence[str], spelled: Spelled = str) -> Data:
    """Return the settings to read files whole, as data of the kind that the run was trained on.

    Raises:
        UserError: there are too many files, or a name is not valid.
    """
    kind: type[Data] = KINDS[own.form]
    inherited = {name: getattr(own, name) for name in INHERITED if name in kind.model_fields}
    columns = own.column_names if isinstance(own, LabelledData) else None
    if columns and len(files) == 1 and names_its_fields(user_path(files[0]), columns):
        del inherited["columns"]  # of files without a header, as the run's own are
    try:
        return resolve(kind, inherited | own.settings_of_files(files) | {"val_fraction": 0.0})
    except ConfigError as error:
        raise UserError(f"{spelled('data')}: {error}") from None


def without_needless_field(data: Data) -> Data:
    """Return the settings without the field of the run's own JSON lines where these files are none.

    Raises:
        DataError: a file cannot be found.
    """
    if isinstance(data, TextData) and not reads_json_lines([open_source(data)]):
        return data.replace(field=TextData.model_fields["field"].default)
    return data
