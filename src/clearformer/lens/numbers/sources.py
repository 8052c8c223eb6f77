"""The operands of a number: activations and parameters, and the part of them that is used.

Shapes: R rows, C columns.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearformer.results import Result


@dataclass(frozen=True, repr=False, eq=False)
class Operand(Result):
    """The numbers that a number is computed from: a single one, or a vector.

    Attributes:
        symbol: Its name in the formula and in the Python code.
        name: The hook point or parameter that it is part of.
        index: Which part: `[3, :]`.
        values: The numbers, [] or [N].
        python: The Python expression of `cache`, `weights` and `run` for it.
    """

    symbol: str
    name: str
    index: str
    values: Float[np.ndarray, "*N"]
    python: str

    @property
    def value(self) -> float:
        """The number, for an operand that is a single one."""
        return float(self.values)


@dataclass(frozen=True, eq=False)
class Source:
    """A matrix (or the vector of a bias) as used; for a parameter, possibly only one head's part of it.

    Attributes:
        symbol: Its name in formulas.
        name: The hook point or parameter.
        values: The part that is used, [R C] or [C].
        python: The Python expression of the whole.
        row: The place in the whole of its first row.
        column: The place in the whole of its first column.
        cut: Whether the whole has further columns.
        first_row: The number by which its first row is addressed.
    """

    symbol: str
    name: str
    values: Tensor
    python: str
    row: int = 0
    column: int = 0
    cut: bool = False
    first_row: int = 0

    def rows(self, start: int, size: int) -> "Source":
        """Return some of its rows, or some entries of a vector."""
        part = self.values[start : start + size]
        if self.values.dim() == 1:
            return Source(self.symbol, self.name, part, self.python, column=self.column + start, cut=True)
        return Source(self.symbol, self.name, part, self.python, self.row + start, self.column, self.cut)

    def columns(self, start: int, size: int) -> "Source":
        """Return some of its columns."""
        part = self.values[:, start : start + size]
        cut = self.cut or size < self.values.shape[1]
        return Source(self.symbol, self.name, part, self.python, self.row, self.column + start, cut)

    def at_row(self, row: int) -> Operand:
        """Return one row as an operand."""
        start, stop = self.column, self.column + self.values.shape[1]
        where = f"{self.row + row}, {start}:{stop}" if self.cut else f"{self.row + row}"
        shown = f"[{where}]" if self.cut else f"[{where}, :]"
        return self._operand(shown, self.values[row], f"{self.python}[{where}]")

    def at_column(self, column: int) -> Operand:
        """Return one column as an operand."""
        where = f"[:, {self.column + column}]"
        return self._operand(where, self.values[:, column], f"{self.python}{where}")

    def at(self, *index: int) -> Operand:
        """Return one number as an operand."""
        if len(index) == 1:
            where = f"[{self.column + index[0]}]"
            return self._operand(where, self.values[index], f"{self.python}{where}")
        row, column = index[0] - self.first_row, index[1]
        where = f"[{self.row + row}, {self.column + column}]"
        return self._operand(
            f"[{self.row + index[0]}, {self.column + column}]",
            self.values[row, column],
            f"{self.python}{where}",
        )

    def _operand(self, index: str, values: Tensor, python: str) -> Operand:
        return Operand(self.symbol, self.name, index, as_float64(values), python)


def constant(symbol: str, name: str, value: float, python: str) -> Operand:
    """Return an operand for a number that is not part of a matrix."""
    return Operand(symbol, name, "", np.array(value, dtype=np.float64), python)


def as_float64(values: Tensor) -> Float[np.ndarray, "*N"]:
    """Return a tensor's numbers as float64 NumPy values, whatever their type."""
    return values.detach().to("cpu", torch.float64, copy=True).numpy()


def as_array(values: Tensor) -> Any:
    """Return a tensor's numbers for display: in float32, or float64 for a float64 model."""
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    return values.detach().to("cpu", dtype).numpy()
