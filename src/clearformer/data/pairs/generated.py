"""Pairs made by a registered kind of data."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from clearformer.data.generated import generated_rows
from clearformer.data.holding_out import HeldOutPairs, hold_out_pairs
from clearformer.data.pairs.config import PairsData
from clearformer.data.pairs.source import Pair, PairSource, digest_of
from clearformer.errors import DataError, shown


@dataclass(frozen=True)
class GeneratedPairs(PairSource):
    """The pairs of a kind's method `pairs`, which yields the same ones on every call."""

    config: PairsData

    @property
    def description(self) -> str:
        return f"{self.config.kind}: {self.config.about()}"

    @cached_property
    def made(self) -> list[Pair]:
        """The pairs, numbered from 1.

        Raises:
            DataError: there are none, or one of them is not two non-blank lines of whole characters.
        """
        pairs = []
        for number, made in enumerate(generated_rows(self.config, "(source, target)"), start=1):
            if any("\n" in side for side in made):
                raise DataError(
                    f"data.kind={self.config.kind}: each side of a pair must be one line; number "
                    f"{number} is {shown(made)}"
                )
            pairs.append(Pair(*made, number))
        if not pairs:
            raise DataError(f"data.kind={self.config.kind}: pairs() yields no pairs")
        return pairs

    def identity(self) -> dict[str, Any]:
        return {
            "name": self.config.kind,
            "pairs_sha256": digest_of({"all": self.made}),
            "held_out": {split: str(share) for split, share in self.config.held_out().items()},
        }

    def read(self) -> HeldOutPairs[Pair]:
        return hold_out_pairs(self.made, self.config.held_out())
