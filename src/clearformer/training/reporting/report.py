"""The interface through which a run in progress reports, on the command line and in Python."""

from collections.abc import Mapping
from typing import Any

from clearformer.training.config import RunConfig
from clearformer.training.store.checkpoint import Progress


def held_out(metrics: Mapping[str, Any]) -> str:
    """Format the held-out loss of a metrics line: with ~ if it is of a part of the split only, and - for none."""
    if metrics.get("val_loss") is None:
        return "-"
    return f"{'' if is_of_the_whole(metrics) else '~'}{metrics['val_loss']:.4f}"


def is_of_the_whole(metrics: Mapping[str, Any]) -> bool:
    """Whether the evaluation of a metrics line read the whole held-out split; a line that says nothing did."""
    share = metrics.get("val_share")
    return share is None or share >= 1


class Reporter:
    """Receives all reports and shows nothing; subclasses override what they show."""

    def say(self, message: str) -> None:
        """Report a message: what is being done, and why."""

    def preparing(self, doing: str, done: int, total: int | None) -> None:
        """Report the preparation of the data, in characters; `total` is None where it is not known."""

    def opening(self, config: RunConfig) -> None:
        """Called when all settings are decided but nothing is written, so that an error here leaves no trace."""

    def begin(self, config: RunConfig, progress: Progress) -> None:
        """Called when training starts, or is resumed from `progress`."""

    def stepped(self, progress: Progress, metrics: Mapping[str, Any]) -> None:
        """Called after each step with its line in metrics.jsonl; `metrics` is empty if the step has none."""

    def sampled(self, text: str) -> None:
        """Report a sample of the model's output during training."""

    def end(self) -> None:
        """Called when training is over, for whatever reason, even if it could not begin."""
