"""A case: what is spoilt, and how, as data that one line of JSON holds."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

Step = list[Any]


@dataclass(frozen=True)
class Case:
    """One thing to try.

    Attributes:
        target: The name of what is fed.
        base: What is sound before it is spoilt, in the target's words.
        steps: What is done to it, in order; each is a list of JSON values.
    """

    target: str
    base: str
    steps: tuple[Step, ...]

    def line(self) -> str:
        """The case as one line of JSON, which `parse` reads."""
        return json.dumps({"target": self.target, "base": self.base, "steps": self.steps})

    def simpler(self) -> Iterator["Case"]:
        """The same with one step less, for each of its steps."""
        for number in range(len(self.steps)):
            yield replace(self, steps=self.steps[:number] + self.steps[number + 1 :])


def parse(line: str) -> Case:
    """The case that `Case.line` wrote."""
    read = json.loads(line)
    return Case(read["target"], read["base"], tuple(read["steps"]))


class Target(Protocol):
    """Something that takes what users write."""

    name: str

    def prepare(self, originals: Path) -> None:
        """Write what the cases spoil into an empty folder."""
        ...

    def draw(self, rng: random.Random, originals: Path) -> Case:
        """A case, by the random numbers alone."""
        ...

    def run(self, case: Case, originals: Path, place: Path) -> None:
        """Try a case in an empty folder.

        Raises:
            Violation: it ended otherwise than it must.
            ClearformerError: it was refused, as it may be.
        """
        ...


class Violation(Exception):
    """Something that must hold does not."""
