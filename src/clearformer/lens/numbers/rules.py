"""How a number is computed from others: for each kind of step the formula with its indices, operands and terms.

A rule recomputes the number in float64 from its operands alone, as a sum of terms if it is one. `expression` is the
same computation in Python, in the operands' symbols.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from clearformer.lens.numbers.sources import Operand, Source, constant


@dataclass(frozen=True)
class Term:
    """One term of a sum.

    Attributes:
        label: The name of the term.
        left: Its first factor, if it is a product.
        right: Its second factor.
        value: Its value.
    """

    label: str
    left: float | None
    right: float | None
    value: float


@dataclass(frozen=True)
class Explained:
    """A recomputed number.

    Attributes:
        formula: The formula with the number's indices.
        operands: The numbers that it is computed from.
        terms: The terms of the sum in the formula.
        value: The result.
        expression: The formula as Python code, in the operands' symbols.
    """

    formula: str
    operands: list[Operand]
    terms: list[Term]
    value: float
    expression: str


class Rule(ABC):
    """How each number of a matrix is computed from others."""

    @abstractmethod
    def at(self, symbol: str, row: int, column: int) -> Explained:
        """Explain one number of the matrix with the given symbol."""


def summed(terms: Sequence[Term]) -> float:
    """Return the sum of the terms."""
    return float(sum(term.value for term in terms))


def addend(operand: Operand) -> Term:
    """Return a term for an operand that is added unchanged."""
    return Term(operand.symbol, None, None, operand.value)


# --- sums and products ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dot(Rule):
    """factor * sum over i of left[r,i] right[i,c], + bias[c] + added[r,c].

    Attributes:
        left: The matrix whose row is one side.
        right: The other side: a weight [out, in], a matrix of which a row is taken, or one of which a column is taken.
        over: The letter of the summation index.
        of: Which of the three `right` is.
    """

    left: Source
    right: Source
    over: str
    of: Literal["weight", "rows", "columns"] = "weight"
    bias: Source | None = None
    factor: Operand | None = None
    added: Source | None = None

    def at(self, symbol: str, row: int, column: int) -> Explained:
        left = self.left.at_row(row)
        right = self.right.at_column(column) if self.of == "columns" else self.right.at_row(column)
        where = f"[{column},{self.over}]" if self.of == "rows" else f"[{self.over},{column}]"
        formula = f"sum_{self.over} {left.symbol}[{row},{self.over}] {right.symbol}{where}"
        expression, operands = f"{left.symbol} @ {right.symbol}", [left, right]
        products = left.values * right.values
        if self.factor is not None:
            operands.append(self.factor)
            formula, expression = (
                f"{self.factor.symbol} * {formula}",
                f"{self.factor.symbol} * ({expression})",
            )
            products = products * self.factor.value
        terms = [
            Term(f"{self.over}={i}", a, b, product)
            for i, (a, b, product) in enumerate(
                zip(left.values.tolist(), right.values.tolist(), products.tolist(), strict=True)
            )
        ]
        for source, index in ((self.bias, (column,)), (self.added, (row, column))):
            if source is not None:
                operand = source.at(*index)
                operands.append(operand)
                terms.append(addend(operand))
                formula += f" + {operand.symbol}[{','.join(map(str, index))}]"
                expression += f" + {operand.symbol}"
        return Explained(f"{symbol}[{row},{column}] = {formula}", operands, terms, summed(terms), expression)


@dataclass(frozen=True)
class Sum(Rule):
    """The sum of matrices, or a single one unchanged."""

    parts: tuple[Source, ...]

    def at(self, symbol: str, row: int, column: int) -> Explained:
        operands = [part.at(row, column) for part in self.parts]
        formula = " + ".join(f"{part.symbol}[{part.row + row},{part.column + column}]" for part in self.parts)
        terms = [addend(each) for each in operands]
        expression = " + ".join(each.symbol for each in operands)
        return Explained(f"{symbol}[{row},{column}] = {formula}", operands, terms, summed(terms), expression)


@dataclass(frozen=True)
class Product(Rule):
    """The elementwise product of two matrices."""

    left: Source
    right: Source

    def at(self, symbol: str, row: int, column: int) -> Explained:
        a, b = self.left.at(row, column), self.right.at(row, column)
        term = Term(f"{a.symbol} {b.symbol}", a.value, b.value, a.value * b.value)
        formula = f"{symbol}[{row},{column}] = {a.symbol}[{row},{column}] * {b.symbol}[{row},{column}]"
        return Explained(formula, [a, b], [term], term.value, f"{a.symbol} * {b.symbol}")


@dataclass(frozen=True)
class Mean(Rule):
    """The mean over each column."""

    source: Source

    def at(self, symbol: str, row: int, column: int) -> Explained:
        operand = self.source.at_column(column)
        n = len(operand.values)
        terms = [Term(f"t={t}", each, 1 / n, each / n) for t, each in enumerate(operand.values.tolist())]
        formula = f"{symbol}[{row},{column}] = sum_t {operand.symbol}[t,{column}] / {n}"
        return Explained(formula, [operand], terms, summed(terms), f"{operand.symbol}.mean()")


# --- embeddings and positions -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Embedding(Rule):
    """The row of a token's id, times a factor, plus the token-type vector."""

    tokens: list[int]
    matrix: Source
    factor: Operand | None = None
    types: Source | None = None

    def at(self, symbol: str, row: int, column: int) -> Explained:
        entry = self.matrix.at(self.tokens[row], column)
        formula, expression, operands = f"{entry.symbol}{entry.index}", entry.symbol, [entry]
        value = entry.value
        if self.factor is not None:
            operands.append(self.factor)
            value *= self.factor.value
            formula, expression = (f"{each} * {self.factor.symbol}" for each in (formula, expression))
        terms = [Term(formula, None, None, value)]
        if self.types is not None:
            operands.append(of_type := self.types.at(0, column))
            terms.append(addend(of_type))
            formula, expression = (
                f"{formula} + {of_type.symbol}{of_type.index}",
                f"{expression} + {of_type.symbol}",
            )
        said = f"{symbol}[{row},{column}] = {formula}, the row of the id {self.tokens[row]}"
        return Explained(said, operands, terms, summed(terms), expression)


@dataclass(frozen=True)
class Lookup(Rule):
    """An entry of a table: of a position's vector, or the bias of a distance.

    Attributes:
        table: The table.
        entry: Maps a row and a column to a place in the table.
        why: The reason, in a few words.
    """

    table: Source
    entry: Callable[[int, int], tuple[int, int]]
    why: str

    def at(self, symbol: str, row: int, column: int) -> Explained:
        operand = self.table.at(*self.entry(row, column))
        formula = f"{symbol}[{row},{column}] = {operand.symbol}{operand.index}, {self.why}"
        return Explained(formula, [operand], [addend(operand)], operand.value, operand.symbol)


@dataclass(frozen=True)
class Sinusoid(Rule):
    """sin or cos of t / 10000^(2i/d), rounded to float32 as the table is."""

    d_model: int
    interleaved: bool

    def at(self, symbol: str, row: int, column: int) -> Explained:
        half = -(-self.d_model // 2)
        pair, is_sine = (column // 2, column % 2 == 0) if self.interleaved else (column % half, column < half)
        function = "sin" if is_sine else "cos"
        t, i, d = (
            constant(name, what, n, str(n))
            for name, what, n in (
                ("t", "the position", row),
                ("i", "the pair of dimensions", pair),
                ("d", "d_model", self.d_model),
            )
        )
        angle = row / 10_000 ** (2 * pair / self.d_model)
        value = float(np.float32(np.sin(angle) if is_sine else np.cos(angle)))
        formula = (
            f"{symbol}[{row},{column}] = {function}({row} / 10000^(2*{pair}/{self.d_model})), in float32"
        )
        expression = f"torch.tensor(t / 10_000 ** (2 * i / d), dtype=torch.float64).{function}().float()"
        return Explained(
            formula, [t, i, d], [Term(f"{function}(angle)", angle, None, value)], value, expression
        )


@dataclass(frozen=True)
class Rotation(Rule):
    """RoPE: dimension i is paired with i + n/2, and each pair is rotated by its angle at the position."""

    source: Source
    cos: Source
    sin: Source

    def at(self, symbol: str, row: int, column: int) -> Explained:
        half = self.cos.values.shape[1]
        own = self.source.at(row, column)
        if column >= 2 * half:
            formula = f"{symbol}[{row},{column}] = {own.symbol}[{row},{column}], which is not turned"
            return Explained(formula, [own], [addend(own)], own.value, own.symbol)
        pair, first = column % half, column < half
        partner = pair + half if first else pair
        sign, minus = ("-", -1.0) if first else ("+", 1.0)
        other = self.source.at(row, partner)
        other = Operand("partner", other.name, other.index, other.values, other.python)
        cos, sin = self.cos.at(row, pair), self.sin.at(row, pair)
        name = own.symbol
        terms = [
            Term(f"{name}[{row},{column}] cos", own.value, cos.value, own.value * cos.value),
            Term(
                f"{sign}{name}[{row},{partner}] sin", other.value, sin.value, minus * other.value * sin.value
            ),
        ]
        formula = (
            f"{symbol}[{row},{column}] = {name}[{row},{column}] cos[{row},{pair}] {sign} "
            f"{name}[{row},{partner}] sin[{row},{pair}]"
        )
        expression = f"{name} * cos {sign} partner * sin"
        return Explained(formula, [own, cos, other, sin], terms, summed(terms), expression)


@dataclass(frozen=True)
class Distance(Rule):
    """ALiBi: minus a head's slope times the distance."""

    slopes: Source
    head: int

    def at(self, symbol: str, row: int, column: int) -> Explained:
        slope = self.slopes.at(self.head)
        far = abs(row - column)
        distance = constant("distance", "|query - key|", far, str(far))
        value = -slope.value * far
        formula = f"{symbol}[{row},{column}] = -slope[{self.head}] * |{row} - {column}|"
        term = Term("-slope * distance", -slope.value, float(far), value)
        return Explained(formula, [slope, distance], [term], value, f"-{slope.symbol} * distance")


@dataclass(frozen=True)
class MayRead(Rule):
    """1 where a query may read a key, else 0."""

    causal: bool
    window: int | None

    def at(self, symbol: str, row: int, column: int) -> Explained:
        conditions = ["key <= query"] if self.causal else []
        if self.window is not None:
            conditions.append(f"abs(query - key) < {self.window}")
        readable = (not self.causal or column <= row) and (
            self.window is None or abs(row - column) < self.window
        )
        query = constant("query", "the query's position", row, str(row))
        key = constant("key", "the key's position", column, str(column))
        rule = " and ".join(conditions) or "True"
        why = " and ".join(conditions) or "every query may read every key"
        value = float(readable)
        formula = f"{symbol}[{row},{column}] = {value:.0f}: 1 where {why}, with query {row} and key {column}"
        if not conditions:
            formula = f"{symbol}[{row},{column}] = 1: {why}"
        return Explained(formula, [query, key], [], value, f"float({rule})")


# --- norms ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NormScale(Rule):
    """sqrt(mean of squares + eps), the divisor of a norm; LayerNorm subtracts the mean first."""

    source: Source
    eps: float
    centred: bool

    def at(self, symbol: str, row: int, column: int) -> Explained:
        x = self.source.at_row(row)
        eps = constant("eps", "the norm's eps", self.eps, repr(self.eps))
        n, values = len(x.values), x.values - (x.values.mean() if self.centred else 0.0)
        terms = [Term(f"d={i}", each, each, each * each / n) for i, each in enumerate(values.tolist())]
        terms.append(addend(eps))
        of = f"({x.symbol}[{row},d] - mean)" if self.centred else f"{x.symbol}[{row},d]"
        formula = f"{symbol}[{row}] = sqrt(sum_d {of}^2 / {n} + eps)"
        centred = f"({x.symbol} - {x.symbol}.mean())" if self.centred else x.symbol
        expression = f"({centred}.square().mean() + eps) ** 0.5"
        return Explained(formula, [x, eps], terms, float(np.sqrt(summed(terms))), expression)


@dataclass(frozen=True)
class Normalized(Rule):
    """x / scale * weight + bias; LayerNorm subtracts the mean first."""

    source: Source
    scale: Source
    weight: Source | None
    bias: Source | None
    centred: bool

    def at(self, symbol: str, row: int, column: int) -> Explained:
        x, scale = self.source.at_row(row), self.scale.at(row, 0)
        name, operands = x.symbol, [x, scale]
        formula = f"{name}[{row},{column}]" + (" - mean" if self.centred else "")
        expression = f"{name}[{column}]" + (f" - {name}.mean()" if self.centred else "")
        if self.centred:
            formula, expression = f"({formula})", f"({expression})"
        formula, expression = f"{formula} / {scale.symbol}[{row}]", f"{expression} / {scale.symbol}"
        factor = 1 / scale.value
        if self.weight is not None:
            operands.append(weight := self.weight.at(column))
            factor *= weight.value
            formula, expression = (
                f"{formula} * {weight.symbol}[{column}]",
                f"{expression} * {weight.symbol}",
            )
        own, mean = float(x.values[column]), float(x.values.mean())
        terms = [Term(f"{name}[{row},{column}]", own, factor, own * factor)]
        if self.centred:
            terms.append(Term("-mean", -mean, factor, -mean * factor))
        if self.bias is not None:
            operands.append(bias := self.bias.at(column))
            terms.append(addend(bias))
            formula, expression = f"{formula} + {bias.symbol}[{column}]", f"{expression} + {bias.symbol}"
        return Explained(f"{symbol}[{row},{column}] = {formula}", operands, terms, summed(terms), expression)


# --- nonlinear rules --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Softmax(Rule):
    """exp(score) over the sum of exp(score) of all keys; subtracting the largest score first changes nothing."""

    scores: Source

    def at(self, symbol: str, row: int, column: int) -> Explained:
        scores = self.scores.at_row(row)
        powers = np.exp(scores.values - scores.values.max())
        terms = [
            Term(f"s={s}", score, None, power)
            for s, (score, power) in enumerate(zip(scores.values.tolist(), powers.tolist(), strict=True))
        ]
        name = scores.symbol
        formula = (
            f"{symbol}[{row},{column}] = exp({name}[{row},{column}] - max) / sum_s exp({name}[{row},s] - max)"
        )
        largest = f"({name} - {name}.max()).exp()"
        expression = f"{largest}[{column}] / {largest}.sum()"
        return Explained(formula, [scores], terms, float(powers[column] / summed(terms)), expression)


@dataclass(frozen=True)
class Share(Rule):
    """A score over the sum of all keys' scores, as in linear attention; 0 where no key may be read."""

    scores: Source

    def at(self, symbol: str, row: int, column: int) -> Explained:
        scores = self.scores.at_row(row)
        terms = [Term(f"s={s}", None, None, each) for s, each in enumerate(scores.values.tolist())]
        name = scores.symbol
        formula = f"{symbol}[{row},{column}] = {name}[{row},{column}] / sum_s {name}[{row},s]"
        value = float(scores.values[column]) / (summed(terms) or 1.0)
        expression = f"{name}[{column}] / {name}.sum()"
        return Explained(formula, [scores], terms, value, expression)


@dataclass(frozen=True)
class Activated(Rule):
    """f of a number, times the number of a gated network's other matrix.

    Attributes:
        source: The argument of f.
        function: f, the model's own.
        words: The name of f, optionally followed by a colon and its formula.
        python: A Python expression of f.
        times: The other factor, if any.
    """

    source: Source
    function: Callable[[Tensor], Any]
    words: str
    python: str
    times: Source | None = None

    def at(self, symbol: str, row: int, column: int) -> Explained:
        a = self.source.at(row, column)
        bent = float(self.function(torch.tensor(a.value, dtype=torch.float64)))
        name, _, what = self.words.partition(": ")
        formula, expression = f"{name}({a.symbol}[{row},{column}])", f"{self.python}({a.symbol})"
        label, operands, value, factor = f"{name}({a.symbol})", [a], bent, None
        if self.times is not None:
            operands.append(b := self.times.at(row, column))
            value, factor = bent * b.value, b.value
            label, expression = f"{label} {b.symbol}", f"{expression} * {b.symbol}"
            formula += f" * {b.symbol}[{row},{column}]"
        said = f"{symbol}[{row},{column}] = {formula}" + (f", {what}" if what else "")
        return Explained(said, operands, [Term(label, bent, factor, value)], value, expression)
