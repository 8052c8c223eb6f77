"""The line of Python that opens a run again, for code that the lens and its page offer."""

from clearformer.runs.folders import RunLike, name_of
from clearformer.runs.kept_weights import kept_steps


def opening(run: RunLike, name: str = "run") -> str:
    """Return the line of Python that opens a run at its step, with the weights that it has.

    Raises:
        RunError: the run is kept in no folder.
    """
    folder = run.folder
    if run.step not in kept_steps(folder):
        return f"{name} = cf.replay({name_of(folder)!r}, {run.step})"
    n_averaged = getattr(run, "average", 1)
    average = "" if n_averaged == 1 else f", average={n_averaged}"
    return f"{name} = cf.load({name_of(folder)!r}, checkpoint={run.step}{average})"
