"""Costs of a configuration: parameters and FLOPs, by formula and as measured on the model itself; bytes as measured.

Formulas and measurements are independent of each other, and the tests check that they agree for every kind of every
slot. `slots.py` has each kind's formulas.
"""

from clearformer.cost.flops import Flops, analytic_flops, measured_flops
from clearformer.cost.live_bytes import LiveBytes, tensors_without_memory
from clearformer.cost.parameters import (
    COMPONENTS,
    analytic_matrices,
    analytic_parameters,
    measured_parameters,
)
from clearformer.cost.slots import NoFormulaError, if_known

__all__ = [
    "COMPONENTS",
    "Flops",
    "LiveBytes",
    "NoFormulaError",
    "analytic_flops",
    "analytic_matrices",
    "analytic_parameters",
    "if_known",
    "measured_flops",
    "measured_parameters",
    "tensors_without_memory",
]
