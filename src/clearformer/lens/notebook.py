"""A view of the page in a notebook, asked for where its numbers are."""

from pathlib import Path
from typing import Any

from clearformer.decoding.text.samples import Run
from clearformer.late import found


def show(
    run: Run | str | Path,
    text: str | None = None,
    view: str = "attention",
    *,
    checkpoint: str | int = "latest",
    device: str = "auto",
    **selected: Any,
) -> Any:
    """Show a view of a run in a notebook (Jupyter, VS Code, Colab, marimo), as the page has it.

        seen = cf.lens.show(run, "To be or not", "ledger", position=3, foil=" a")
        seen.select(position=5)
        seen.found.logit

    What is pressed in it is computed here, in the kernel.

    Args:
        run: A run, or its name.
        text: What is read; where not given, the beginning of the run's held-out text.
        view: `overview`, `tokens`, `block`, `attention`, `ledger`, `lens`, `sampling`, `continuations`, `beams`,
            `interventions` or `training`.
        checkpoint: `latest`, `best` or a step, of a run that is given by its name.
        device: Of a model that is opened by name.
        **selected: Other fields of the page's selection, such as `position`, `layer`, `head`, `target` and `foil`.

    Returns:
        An `anywidget.AnyWidget`: `found` is what the lens found of the present `selection`; `select` changes it.

    Raises:
        UserError: there is no such view of the run, or a field of the selection is unknown or out of range.
        RunError: there is no such run.
        MissingPackageError: anywidget is not installed.
    """
    return found("lens.show")(run, text, view, checkpoint=checkpoint, device=device, **selected)
