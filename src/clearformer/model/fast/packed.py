"""x W^T + b of several vectors by oneDNN, with weights that were laid out for it beforehand.

Of 16 vectors and the matrices of a small model torch's own product reaches half of what oneDNN does, which copies a
matrix into the order that it reads at every call unless somebody has done so before. torch's compiler lays out weights
that never change, and makes them part of what it compiled; here they stay the model's, and are laid out for as long as
somebody holds `PackedWeights`. torch has no public function for it: `_lay_out` and `_product` are the only places that
call its own ones, and without them, or for weights that nobody has laid out, the product is torch's.

Shapes: I inputs, O outputs.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

LEAST_WEIGHTS = 2**16
"""Numbers of a matrix from which on it pays: of smaller ones calling oneDNN takes longer than the product."""

MOST_VECTORS = 64
"""Up to so many are few: then reading the weights counts."""

MOST_BYTES = 2**28
"""Of all weights of a model, which are held twice."""


class _Packed:
    """A matrix as it is and as oneDNN reads it; by keeping the first, no other can come to lie in its place."""

    def __init__(self, weight: Float[Tensor, "O I"], n_vectors: int) -> None:
        self.weight, self.version = weight, weight._version
        self.laid_out = _lay_out(weight.detach(), n_vectors)

    def is_of(self, weight: Float[Tensor, "O I"]) -> bool:
        """Whether it is this matrix, unchanged since."""
        return self.version == weight._version and self.weight.shape == weight.shape


_packed: WeakValueDictionary[int, _Packed] = WeakValueDictionary()  # by where the weights lie


class PackedWeights(NamedTuple):
    """Matrices that `packed_linear` finds laid out, as long as this is held."""

    matrices: tuple[_Packed, ...] = ()

    @classmethod
    def of(cls, weights: Iterable[Float[Tensor, "_ _"]], n_vectors: int) -> "PackedWeights":
        """Lay out those matrices that are worth it, for products with so many vectors; none where torch cannot."""
        worth_it = [each for each in weights if is_worth_it(each, n_vectors) and not each.is_inference()]
        if sum(weight.numel() * weight.element_size() for weight in worth_it) > MOST_BYTES:
            return cls()
        try:
            packed = cls(tuple(_Packed(weight, n_vectors) for weight in worth_it))
        except (AttributeError, RuntimeError):  # a torch without oneDNN, or with other functions for it
            return cls()
        _packed.update({matrix.weight.data_ptr(): matrix for matrix in packed.matrices})
        return packed


def is_worth_it(weight: Float[Tensor, "O I"], n_vectors: int) -> bool:
    """Whether a product of this matrix with so many vectors gains by it, on a CPU in float32."""
    is_fit = weight.device.type == "cpu" and weight.dtype == torch.float32
    return is_fit and weight.numel() >= LEAST_WEIGHTS and 1 < n_vectors <= MOST_VECTORS


def packed_linear(
    x: Float[Tensor, "*B I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None
) -> Float[Tensor, "*B O"]:
    """x W^T + b, sooner where the matrix is laid out; without gradients. An operation by itself to the compiler."""
    return torch.ops.clearformer.packed_linear(x, weight, bias)


# --- as torch has it ----------------------------------------------------------------------------------------


def _lay_out(weight: Float[Tensor, "O I"], n_vectors: int) -> Any:
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), n_vectors)


def _product(x: Float[Tensor, "*B I"], laid_out: Any, bias: Float[Tensor, " O"] | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, laid_out, bias, "none", [], "")


def _on_a_cpu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    packed = _packed.get(weight.data_ptr())
    if packed is None or not packed.is_of(weight):
        return F.linear(x, weight, bias)
    return _product(x, packed.laid_out, bias)


def _shape(x: Tensor, weight: Tensor, _bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


_library = torch.library.Library("clearformer", "FRAGMENT")
_library.define("packed_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_library.impl("packed_linear", _on_a_cpu, "CPU")
_library.impl("packed_linear", _shape, "Meta")
