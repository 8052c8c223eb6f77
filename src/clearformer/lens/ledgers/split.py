"""A logit that is split into a sum: what the ledgers of it have in common."""

from abc import ABC
from dataclasses import dataclass

from clearformer.lens.showing import Shown, logit_name, quoted


@dataclass(frozen=True, repr=False, eq=False)
class SplitLogit(Shown, ABC):
    """A logit, or the difference of two, as a sum.

    Attributes:
        token: The token at the position.
        position: Counted from 0.
        target: The token (or class) whose logit it is.
        foil: The one whose logit is taken away, if any.
        logit: The model's own, before a soft cap.
        sum: That of the parts.
        error: How far the two are apart.
    """

    token: str
    position: int
    target: str
    foil: str | None
    logit: float
    sum: float
    error: float

    def caption(self) -> str:
        return f"{logit_name(self.target, self.foil)} at {quoted(self.token)} (position {self.position})"

    def notes(self) -> list[str]:
        return [f"sum {self.sum:+.6f}, the model's logit {self.logit:+.6f}, error {self.error:.1e}"]
