"""The data that a run was trained on, read again and compared with the data of that time."""

from dataclasses import dataclass

from clearformer.data import Prepared, Progress, prepare_data
from clearformer.errors import DataError, RunError, TokenizerError
from clearformer.runs.folders import RunLike

OTHERS = "data=FILE, on the command line --data FILE"


@dataclass(frozen=True)
class OwnData:
    """The data that a run was trained on, in its own tokens.

    Attributes:
        prepared: The splits by name, and how they were made.
        changed: Whether the data have changed since training, so that held-out data may have been training data.
    """

    prepared: Prepared
    changed: bool


def read_own_data(
    run: RunLike,
    *,
    allow_changed: bool = False,
    can_choose: bool = False,
    progress: Progress = lambda *_: None,
) -> OwnData:
    """Read the data that a run was trained on, and compare them with the data of that time.

    All code that evaluates a run on its own data reads them here.

    Args:
        run: Any run.
        allow_changed: Whether to accept data that have changed since training; otherwise they are refused.
        can_choose: Whether the caller takes other data (`data=`) or changed ones, so that errors may advise it.
        progress: Called with the progress of preparing them.

    Raises:
        DataError: they have changed since training, or cannot be read.
        RunError: the run was imported or is kept in no folder and has none, or its env.json does not record them.
    """
    check_has_own_data(run, can_choose)
    others = f", or give others ({OTHERS})" if can_choose else ""
    try:
        prepared = prepare_data(
            run.config.data,
            run.tokenizer,
            max_tokens=run.config.model.max_seq_len,
            uses_labels=run.config.train.objective.predicts_classes,
            progress=progress,
        )
    except (DataError, TokenizerError) as error:
        raise DataError(f"{error}; the run was trained on these: restore them{others}") from None
    difference = run.folder.difference_of_text(prepared.manifest["source"]["sha256"])
    if difference and not allow_changed:
        accept = (
            f", give others ({OTHERS}), or accept the change (allow_changed=True, --changed-data)"
            if can_choose
            else ""
        )
        raise DataError(f"{difference}, so held-out text may be training text: restore the data{accept}")
    return OwnData(prepared, difference is not None)


def check_has_own_data(run: RunLike, can_choose: bool) -> None:
    """Raise RunError for a run whose training data are unknown, before data are read that are not its own."""
    whose = "this run"
    try:
        whose = str(run.folder.path)
        run.folder.trained_on()
    except RunError:
        way_on = (
            f"evaluate it on your own ({OTHERS})" if can_choose else "this needs a run that was trained here"
        )
        raise RunError(
            f"{whose}: its training data are unknown, as it was imported or made in Python; {way_on}"
        ) from None
