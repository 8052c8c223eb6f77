"""A model with int8 weights: a quarter of the memory, and of the bytes read for a token.

Each row of a matrix is stored as whole numbers from -127 to 127 and one scale, max |w| / 127 (weight-only, symmetric;
the vector-wise quantisation of Dettmers et al. 2022, section 3.1, for the weights alone). Activations, norms, biases
and position tables are unchanged, and products are computed in the activations' dtype:

    W ~ s_o q_oi,    W x + b ~ s * (q x) + b

In float32 a weight is off by at most half a scale; `runs.int8.int8_losses` measures the effect on the loss.

Shapes: I inputs, O outputs, V vocabulary, D d_model.
"""

import copy
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn

from clearformer.hooks import hook_points
from clearformer.model import Transformer
from clearformer.model.fast import Linear
from clearformer.model.fast.products import matrix_vector
from clearformer.model.norms import at_least_float32

LARGEST = 127

ModelT = TypeVar("ModelT", bound=Transformer)


class Rows(NamedTuple):
    """A matrix in int8, with one scale per row."""

    weight: Int8[Tensor, "O I"]
    scale: Float[Tensor, " O"]


def int8_rows(matrix: Float[Tensor, "O I"]) -> Rows:
    """Round a matrix to int8 rows; a row of zeros remains one."""
    matrix = matrix.detach()
    scale = matrix.abs().amax(1) / LARGEST
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale)).unsqueeze(1)
    # In bfloat16 the quotient itself is rounded, to 128 at times, which int8 does not have.
    quotient = at_least_float32(matrix) / divisor
    return Rows(quotient.round().clamp(-LARGEST, LARGEST).to(torch.int8), scale)


class Int8Linear(nn.Module):
    """x W^T + b with W in int8 rows."""

    weight: Tensor  # [O I], int8
    scale: Tensor  # [O]
    bias: Tensor | None  # [O]

    def __init__(self, rows: Rows, bias: Float[Tensor, " O"] | None) -> None:
        super().__init__()
        self.register_buffer("weight", rows.weight)
        self.register_buffer("scale", rows.scale)
        self.register_buffer("bias", None if bias is None else bias.detach())

    def forward(self, x: Float[Tensor, "*B I"]) -> Float[Tensor, "*B O"]:
        # In float16, products with numbers up to 127 soon pass the largest, 65,504.
        if dtype_of_products(x) == torch.float16:
            return F.linear(x, self.weight.to(x.dtype) * self.scale.unsqueeze(1), self.bias)
        if torch.compiler.is_compiling() and x.device.type == "cpu" and x.shape[:-1].numel() == 1:
            y = matrix_vector(x, self.weight)  # reads the int8 numbers without a copy in another dtype
        else:
            y = F.linear(x, self.weight.to(x.dtype))
        y = y * self.scale.to(y.dtype)
        return y if self.bias is None else y + self.bias.to(y.dtype)


class Int8Embedding(nn.Module):
    """A vector for each token, in int8 rows."""

    weight: Tensor  # [V D], int8
    scale: Tensor  # [V]

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.register_buffer("weight", rows.weight)
        self.register_buffer("scale", rows.scale)
        self.num_embeddings = len(rows.weight)

    def forward(self, tokens: Int[Tensor, "*B"]) -> Float[Tensor, "*B D"]:
        # An index in brackets would count negative ids from the end; this refuses them.
        scale = F.embedding(tokens, self.scale.unsqueeze(-1))
        return F.embedding(tokens, self.weight).to(scale.dtype) * scale


def dtype_of_products(x: Tensor) -> torch.dtype:
    """Return the type in which products of x are computed: autocast's, where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def with_int8_weights(model: ModelT) -> ModelT:
    """Return a copy of a model with matrices and embeddings in int8, for inference; do not train or save it."""
    embeddings = int8_rows(model.embed.weight)
    replaced: dict[int, nn.Module] = {
        id(layer): Int8Linear(int8_rows(layer.weight), layer.bias)
        for layer in model.modules()
        if type(layer) is Linear  # a class of the user's own may compute something else
    }
    replaced[id(model.embed)] = Int8Embedding(embeddings)
    # The copy has the model's own hook points, so that it is hooked where the model is.
    kept = replaced | {id(point): point for point in hook_points(model).values()}
    copied = copy.deepcopy(model, dict[int, Any](kept)).eval().requires_grad_(requires_grad=False)
    if model.head is None:  # tied: the head shares the embeddings' rows
        del copied.head
        copied.add_module("head", Int8Linear(embeddings, model.head_bias))
    return copied


def n_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's parameters and buffers."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
