"""The runs that a page shows: loaded once per checkpoint, and dropped again when they take too much memory."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from clearformer.decoding.arguments import OnStep
from clearformer.errors import UserError, did_you_mean
from clearformer.page.long import LongComputations
from clearformer.page.selection import Selection
from clearformer.page.views import View, beside_of, views_of, views_of_two
from clearformer.run import Run, load, replay
from clearformer.runs.folders import folder_of
from clearformer.runs.kept_weights import kept_steps

MOST_BYTES = 200 * 2**20  # for the weights of further checkpoints


@dataclass(frozen=True)
class Shelf:
    """A run that the page was opened with, and the steps it can be shown at.

    Attributes:
        run: The run, at its own step.
        steps: The steps whose weights are kept, as snapshots or checkpoints, earliest first; empty for a run without
            a folder.
    """

    run: Run

    @property
    def steps(self) -> list[int]:
        folder = folder_of(self.run)
        return [] if folder is None else kept_steps(folder)

    def card(self) -> dict[str, Any]:
        """Return what the page must know of the run before it requests a view."""
        config = self.run.config.model
        return {
            "name": self.run.name,
            "family": config.family,
            "layers": max(config.n_layers, config.decoder_layers),
            "heads": config.attention.heads(config.d_model)[0],
            "context": config.max_seq_len,
            "step": self.run.step,
            "average": self.run.average,
            "steps": self.steps,
            "replayed": [],
            "views": described(views_of(self.run)),
            "views_of_two": described(views_of_two(self.run)),
        }


class OpenedRuns:
    """The page's runs by their names."""

    def __init__(self, runs: Sequence[Run], device: str = "auto") -> None:
        self.shelves = {run.name: Shelf(run) for run in runs}
        self.device = device
        self.long = LongComputations()
        self._opening = Lock()
        self._others: OrderedDict[tuple[str, str], Run] = OrderedDict()
        self._made_again: set[tuple[str, str]] = set()

    @property
    def names(self) -> list[str]:
        """The runs' names, the first of them first."""
        return list(self.shelves)

    def get(self, name: str, checkpoint: str = "latest", field: str = "run") -> Run:
        """Return a run at one of its checkpoints; of a mean of several, `latest` is the mean, a step that step alone.

        Raises:
            UserError: the page was not opened with such a run.
            RunError, CheckpointError: there is no such checkpoint, or it is damaged.
        """
        if name not in self.shelves:
            hint = did_you_mean(name, self.names) or f"; it shows {', '.join(self.names)}"
            raise UserError(f"{field}: this page does not show {name!r}{hint}")
        run = self.shelves[name].run
        if checkpoint == "latest" or (run.average == 1 and checkpoint == str(run.step)):
            return run
        key = (name, checkpoint)
        with self._opening:
            if key not in self._others:
                self._others[key] = load(run.folder.path, checkpoint, device=self.device)
            self._others.move_to_end(key)
            opened = self._others[key]
            self._close_oldest()
            return opened

    def beside(self, view: View, selection: Selection) -> Run | None:
        """Return the second run of a comparison, if one is selected and the view uses it; else None.

        Raises:
            UserError: the page was not opened with such a run, or it has no such view.
            RunError, CheckpointError: there is no such checkpoint, or it is damaged.
        """
        if not selection.versus or not view.takes_other:
            return None
        is_latest = view.is_of_run or not selection.versus_checkpoint
        other = self.get(selection.versus, "latest" if is_latest else selection.versus_checkpoint, "versus")
        return beside_of(view, self.get(selection.run), other)

    def cards(self) -> list[dict[str, Any]]:
        """The runs as the page must know them before it asks for a view."""
        return [shelf.card() | {"replayed": self.replayed(name)} for name, shelf in self.shelves.items()]

    def replay(self, name: str, step: int, on_step: OnStep) -> None:
        """Compute the weights after a step again, so that `get` has them.

        Raises:
            UserError: the page was not opened with such a run, or the run has not taken that many steps.
            RunError, DataError, CheckpointError: the step cannot be replayed.
        """
        self.hold(replay(self.get(name), step, device=self.device, on_step=on_step))

    def hold(self, run: Run) -> None:
        """Keep one of the runs at another step, such as a replayed one, so that `get` has it."""
        key = (run.name, str(run.step))
        with self._opening:
            self._made_again.add(key)
            self._others[key] = run
            self._others.move_to_end(key)
            self._close_oldest()

    def replayed(self, name: str) -> list[int]:
        """Return the steps of a run that were replayed and are still open."""
        return list(self.made_again(name))

    def made_again(self, name: str) -> dict[int, Run]:
        """Return a run at each step that was replayed and is still open."""
        with self._opening:
            return {
                int(step): run
                for (of, step), run in self._others.items()
                if of == name and (of, step) in self._made_again
            }

    def _close_oldest(self) -> None:
        """Drop the least recently used checkpoints while they exceed `MOST_BYTES`; replayed ones last.

        Any other can be loaded again, even the newest.
        """
        while len(self._others) > 1 and sum(map(weight_bytes, self._others.values())) > MOST_BYTES:
            oldest, *_ = self._others
            self._others.pop(next((key for key in self._others if key not in self._made_again), oldest))


def described(views: Mapping[str, View]) -> dict[str, Any]:
    """Return what the page must know of views."""
    return {
        name: {
            "title": view.title,
            "about": view.about,
            "uses": view.fields,
            "is_long": view.is_long,
            "is_in_parts": view.is_in_parts,
        }
        for name, view in views.items()
    }


def weight_bytes(run: Run) -> int:
    """Return the size of a model's parameters in bytes."""
    return sum(each.numel() * each.element_size() for each in run.model.parameters())
