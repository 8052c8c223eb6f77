"""Reports of a run while it goes on, for the command line or for a user of the library."""

from collections.abc import Mapping
from typing import Any

from clearformer.training.config import RunConfig
from clearformer.training.store.checkpoint import Progress


def held_out(metrics: Mapping[str, Any]) -> str:
    """The held-out loss of a line of metrics, for people: ~ before one of a part of the split alone, - for none."""
    if metrics.get("val_loss") is None:
        return "-"
    return f"{'~' if metrics.get('val_share', 1) < 1 else ''}{metrics['val_loss']:.4f}"


class Reporter:
    """Receives everything and shows nothing; the base of those that show it."""

    def say(self, message: str) -> None:
        """A sentence about what is done and why."""

    def preparing(self, doing: str, done: int, total: int | None) -> None:
        """The text is being prepared: so many characters are done, of so many where that is known."""

    def opening(self, config: RunConfig) -> None:
        """All settings are decided, and nothing is written yet: an error ends the run before it leaves a trace."""

    def begin(self, config: RunConfig, progress: Progress) -> None:
        """Training starts, or is resumed from `progress`."""

    def stepped(self, progress: Progress, metrics: Mapping[str, Any]) -> None:
        """A step is done. `metrics` is its line in metrics.jsonl, empty where the step has none."""

    def sampled(self, text: str) -> None:
        """A sample of the model so far."""

    def end(self) -> None:
        """Training is over, for whatever reason."""
