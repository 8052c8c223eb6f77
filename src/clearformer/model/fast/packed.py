"""x W^T + b of several vectors by oneDNN, with weights packed for it beforehand.

For 16 vectors and the matrices of a small model, torch's own product reaches half of oneDNN's speed. But oneDNN
repacks a matrix into its own layout at every call unless it is packed already. torch's compiler packs weights as
constants of the compiled code; here they remain the model's, and the packed copies last as long as a `PackedWeights`
is held. torch has no public function for this: only `_lay_out` and `_product` call its private ones. Without these,
or for weights that are not packed, the product is torch's.

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
"""Smallest matrix worth packing, in elements: for smaller ones the call into oneDNN takes longer than the product."""

MOST_VECTORS = 64
"""The most vectors for which packing pays: up to these, reading the weights dominates."""

MOST_BYTES = 2**28
"""The most memory that a model's packed weights may take, in addition to the weights themselves."""


class _Packed:
    """A matrix and its packed copy; holding the matrix keeps its address from being reused by another."""

    def __init__(self, weight: Float[Tensor, "O I"], n_vectors: int) -> None:
        self.weight, self.version = weight, weight._version
        self.laid_out = _lay_out(weight.detach(), n_vectors)

    def is_of(self, weight: Float[Tensor, "O I"]) -> bool:
        """Whether this is the packed matrix, unchanged since."""
        is_laid_out_alike = self.weight.shape == weight.shape and self.weight.stride() == weight.stride()
        return self.version == weight._version and is_laid_out_alike


_packed: WeakValueDictionary[int, _Packed] = WeakValueDictionary()  # by the weights' address


class PackedWeights(NamedTuple):
    """Matrices whose packed copies `packed_linear` uses for as long as this is held."""

    matrices: tuple[_Packed, ...] = ()

    @classmethod
    def of(cls, weights: Iterable[Float[Tensor, "_ _"]], n_vectors: int) -> "PackedWeights":
        """Pack the matrices that are worth it, for products with `n_vectors` vectors; none where torch cannot."""
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
    """Whether packing speeds up this matrix's product with `n_vectors` vectors: on a CPU, in float32."""
    is_fit = weight.device.type == "cpu" and weight.dtype == torch.float32
    return is_fit and weight.numel() >= LEAST_WEIGHTS and 1 < n_vectors <= MOST_VECTORS


def packed_linear(
    x: Float[Tensor, "*B I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None = None
) -> Float[Tensor, "*B O"]:
    """Return x W^T + b, faster where the matrix is packed; without gradients. The compiler does not look inside it."""
    return torch.ops.clearformer.packed_linear(x, weight, bias)


# --- torch's private functions, and the operator ------------------------------------------------------------


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
