"""A logit split into a sum: the common part of the ledgers of logits."""

from abc import ABC
from dataclasses import dataclass

from clearformer.lens.showing import Shown, logit_name, place_name


@dataclass(frozen=True, repr=False, eq=False)
class SplitLogit(Shown, ABC):
    """A logit, or the difference of two, as a sum of parts.

    Attributes:
        token: The token at the position; "" if all positions predict together, as for a classifier's mean.
        position: The position, from 0.
        target: The token (or class) of the logit.
        foil: The token or class whose logit is subtracted, if any.
        logit: The model's own logit, before a soft cap.
        sum: The sum of the parts.
        error: |sum - logit|.
    """

    token: str
    position: int
    target: str
    foil: str | None
    logit: float
    sum: float
    error: float

    def caption(self) -> str:
        return f"{logit_name(self.target, self.foil)} {place_name(self.token, self.position)}"

    def notes(self) -> list[str]:
        return [f"sum {self.sum:+.6f}, the model's logit {self.logit:+.6f}, error {self.error:.1e}"]
