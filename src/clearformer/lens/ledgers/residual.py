"""The residual ledger: a logit as the sum of each part's contribution (direct logit attribution).

    found = lens.ledger(run, "First Citizen:", target="\\n")
    found.parts[0]                     blocks.3.hook_mlp_out wrote +2.31 of the logit
    found.logit - found.sum            found.error

Norm scales are held constant; each part is pushed through every norm after it. The sum is exact, but it does not say
what a part would write if another were changed: for causes see the interventions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from clearformer.decoding import Text
from clearformer.lens.activations import kept
from clearformer.lens.inputs import Inputs, Readable, Subject, quiet, read
from clearformer.lens.ledgers.readout import Readout, readout
from clearformer.lens.ledgers.split import SplitLogit
from clearformer.lens.ledgers.stream import Decomposition, Writer, is_needed, own_prefix
from clearformer.lens.showing import Table, bars, letters, number
from clearformer.text import Tokenizer

MOST_BARS = 32


@dataclass(frozen=True)
class Part:
    """One part of a sum.

    Attributes:
        name: Its hook point, or its parameter if it is a bias.
        layer: The number of its block, if any.
        head: The number of the attention head, if any.
        value: Its contribution.
    """

    name: str
    layer: int | None
    head: int | None
    value: float

    @classmethod
    def of(cls, writer: Writer, value: float) -> "Part":
        return cls(writer.name, writer.layer, writer.head, value)

    @property
    def label(self) -> str:
        """The name, with the number of the head."""
        return self.name if self.head is None else f"{self.name}[{self.head}]"


@dataclass(frozen=True)
class LayerSum:
    """The parts of one layer, summed.

    Attributes:
        name: The layer's number; `in` before the blocks, `out` after them.
        value: The sum of its parts.
        so_far: The sum up to and including this layer.
    """

    name: str
    value: float
    so_far: float


@dataclass(frozen=True, repr=False, eq=False)
class Ledger(SplitLogit):
    """A logit, or the difference of two, as a sum of parts.

    Attributes:
        parts: The parts, in order of computation.
        soft_cap: The cap of the last step, cap * tanh(logit / cap); None if there is none.
        capped: The logit (or difference) after that step; None if there is none.
        tokens: The text's tokens, for the figure.
        by_layer: The parts summed by layer, in order of computation.
    """

    parts: list[Part]
    soft_cap: float | None = None
    capped: float | None = None
    tokens: list[str] = field(default_factory=list, repr=False)
    by_layer: list[LayerSum] = field(default_factory=list, repr=False)

    @property
    def largest(self) -> list[Part]:
        """The parts, the largest in absolute value first."""
        return sorted(self.parts, key=lambda part: -abs(part.value))

    def table(self) -> Table:
        rows = [[part.name, place(part.layer), place(part.head), number(part.value)] for part in self.largest]
        return Table(["part", "layer", "head", "value"], rows)

    def notes(self) -> list[str]:
        lines = super().notes()
        if self.capped is not None:
            lines.append(f"after the soft cap of {self.soft_cap:g}: {self.capped:+.6f}")
        return lines

    def inches(self) -> tuple[float, float]:
        return 7.5, 1.4 + 0.21 * len(self._bars()[0])

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        names, values = self._bars()
        bars(axes, names, values)
        axes.set_xlabel("contribution to the logit")
        axes.set_title(f"{letters(self.caption())}\nlogit {self.logit:+.3f}", fontsize=10)

    def _bars(self) -> tuple[list[str], list[float]]:
        """Return the largest parts, and the rest as one."""
        shown = self.largest[:MOST_BARS]
        rest = self.largest[MOST_BARS:]
        names, values = [part.label for part in shown], [part.value for part in shown]
        if rest:
            names.append(f"{len(rest)} others")
            values.append(sum(part.value for part in rest))
        return names, values


def ledger(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    position: int = -1,
    target: str | int | None = None,
    foil: str | int | None = None,
    tokenizer: Tokenizer | None = None,
    masked: Sequence[int] = (),
) -> Ledger:
    """Split a logit of one position into parts: embedding, position, heads, feed-forward networks and biases.

    Args:
        subject: A run, or a bare model.
        text: What to read; see `read` for this and for `output`, `tokenizer` and `masked`.
        output: What an encoder-decoder writes.
        position: The position of the logit; negative ones count from the end.
        target: The token, by its text or id, or the class; by default the one with the largest logit.
        foil: Another, whose logit is subtracted: why the target rather than the foil?
        tokenizer: The tokenizer of a bare model.
        masked: Positions at which an encoder reads [MASK].

    Raises:
        UserError: there is no such position, token or class, or the model has a norm that cannot be held constant.
    """
    inputs = read(subject, text, output, tokenizer=tokenizer, masked=masked)
    at = inputs.predicting(position)
    with quiet(inputs.model):
        cache = kept(inputs, is_needed)
        way = readout(inputs, cache, at, target, foil)
        stream = Decomposition(inputs.model, cache).final(own_prefix(inputs.model), way.rows)
        values = way.of(stream.vectors).tolist()
    parts = [Part.of(writer, value) for writer, value in zip(stream.writers, values, strict=True)]
    parts += [Part.of(writer, value) for writer, value in way.constants]
    return of_parts(inputs, at, way, parts)


def of_parts(inputs: Inputs, position: int, way: Readout, parts: list[Part]) -> Ledger:
    """Make a ledger of some parts, with the model's own logit."""
    total = sum(part.value for part in parts)
    return Ledger(
        token=inputs.predicting_label(position),
        position=position,
        target=inputs.output_label(way.target),
        foil=None if way.foil is None else inputs.output_label(way.foil),
        logit=way.logit,
        sum=total,
        error=abs(total - way.logit),
        parts=parts,
        soft_cap=None if way.capped is None else inputs.model.config.logit_soft_cap,
        capped=way.capped,
        tokens=inputs.labels,
        by_layer=summed_by_layer(parts),
    )


def summed_by_layer(parts: Sequence[Part]) -> list[LayerSum]:
    """Sum the parts of each layer."""
    sums: dict[str, float] = {}
    is_behind = False
    for part in parts:
        is_behind = is_behind or part.layer is not None
        name = str(part.layer) if part.layer is not None else "out" if is_behind else "in"
        sums[name] = sums.get(name, 0.0) + part.value
    so_far = accumulate(sums.values())
    return [LayerSum(name, value, total) for (name, value), total in zip(sums.items(), so_far, strict=True)]


def place(number: int | None) -> str:
    """Return a layer or head for a table."""
    return "" if number is None else str(number)
