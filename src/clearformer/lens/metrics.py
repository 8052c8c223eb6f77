"""A run's recorded training: loss, held-out loss, learning rate and gradient norm by step."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from clearformer.decoding.arguments import check_run
from clearformer.decoding.text.samples import Run
from clearformer.lens.showing import FIRST, Shown, Table, is_changing
from clearformer.training.objectives import NATS_A_TOKEN, loss_unit
from clearformer.training.store.folder import RunFolder, read_metrics

BY_LAYER = "grad_norm/"


@dataclass(frozen=True, repr=False, eq=False)
class Metrics(Shown):
    """The lines of a run's metrics.jsonl as columns.

    Attributes:
        columns: The columns by name, `step` first; NaN where a line lacks the value.
        unit: The unit of the losses.
    """

    columns: dict[str, Float[np.ndarray, " N"]]
    unit: str = field(default=NATS_A_TOKEN, repr=False, metadata={FIRST: True})

    def caption(self) -> str:
        steps = self.columns["step"]
        return f"training up to step {int(steps.max()):,}" if len(steps) else "no metrics were recorded"

    def table(self) -> Table:
        rows = [[_word(value) for value in line] for line in zip(*self.columns.values(), strict=True)]
        return Table(list(self.columns), rows, n_left=0)

    def change_to(self, other: "Metrics") -> "Metrics":
        """Return another run's columns less these, at the steps of both; of repeated steps, the last line counts."""
        ours, theirs = ({step: i for i, step in enumerate(each.columns["step"])} for each in (self, other))
        steps = [step for step in ours if step in theirs]
        mine, its = ([rows[step] for step in steps] for rows in (ours, theirs))
        changes = {
            name: other.columns[name][its] - values[mine]
            for name, values in self.columns.items()
            if name in other.columns
        }
        return Metrics(changes | {"step": np.array(steps, dtype=float)}, self.unit)

    @property
    def layers(self) -> dict[str, Float[np.ndarray, " N"]]:
        """The gradient norm of each part of the model by name, `embed` first."""
        return {
            name.removeprefix(BY_LAYER): values
            for name, values in self.columns.items()
            if name.startswith(BY_LAYER)
        }

    def inches(self) -> tuple[float, float]:
        return 7.0, 6.4 if self.layers else 4.0

    def draw(self, figure: Any) -> None:
        if not self.layers:
            self._draw_losses(figure.subplots())
            return
        losses, norms = figure.subplots(2, 1, sharex=True)
        self._draw_losses(losses)
        losses.set_xlabel("")
        self._draw_norms(norms)

    def _draw_norms(self, axes: Any) -> None:
        """Plot the gradient norm by layer, from dark to light."""
        for i, (name, values) in enumerate(self.layers.items()):
            known, shade = np.isfinite(values), i / max(1, len(self.layers) - 1)
            colour = (0.05 + 0.9 * shade, 0.15 + 0.6 * shade, 0.42 - 0.2 * shade)
            axes.plot(self.columns["step"][known], values[known], label=name, color=colour, linewidth=1.0)
        if not is_changing():
            axes.set_yscale("log")
        axes.set_xlabel("step")
        axes.set_ylabel(_named("gradient norm"))
        axes.legend(frameon=False, fontsize=7, ncols=-(-len(self.layers) // 8))

    def _draw_losses(self, axes: Any) -> None:
        for name, label in (("loss", "training"), ("val_loss", "held out")):
            values = self.columns.get(name, np.array([]))
            known = np.isfinite(values)
            if known.any():
                axes.plot(self.columns["step"][known], values[known], label=label)
        axes.set_xlabel("step")
        axes.set_ylabel(_named(f"loss, {self.unit}"))
        if axes.lines:
            axes.legend(frameon=False)


def metrics(run: Run) -> Metrics:
    """Return the metrics that were recorded while a run was trained.

    Raises:
        RunError: the run has no directory, or a line of its metrics is damaged.
    """
    check_run(run, "folder")
    folder: RunFolder = run.folder  # type: ignore[attr-defined]
    lines = read_metrics(folder.metrics_file)
    names = dict.fromkeys(["step", *(name for line in lines for name in line)])
    numeric = [name for name in names if all(_is_number(line.get(name)) for line in lines)]
    columns = {name: np.array([_number(line.get(name)) for line in lines]) for name in numeric}
    return Metrics(columns, loss_unit([folder.read_config().train.objective]))


def _named(amount: str) -> str:
    """Return the label of an axis: of the amount, or of its change in a difference."""
    return f"change of the {amount}" if is_changing() else amount


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _word(value: float) -> str:
    return f"{value:g}" if np.isfinite(value) else ""
