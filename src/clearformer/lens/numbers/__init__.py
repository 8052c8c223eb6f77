"""The numbers of one block: every matrix on the way through it, and the operands of any one number."""

from clearformer.lens.numbers.block import BlockNumbers, NamedArray, block
from clearformer.lens.numbers.cell import Cell, cell
from clearformer.lens.numbers.code import CodeLine
from clearformer.lens.numbers.matrix import MatrixPart, matrix
from clearformer.lens.numbers.rules import Term
from clearformer.lens.numbers.sources import Operand

__all__ = [
    "BlockNumbers",
    "Cell",
    "CodeLine",
    "MatrixPart",
    "NamedArray",
    "Operand",
    "Term",
    "block",
    "cell",
    "matrix",
]
