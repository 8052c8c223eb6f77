"""One logit, or the difference of two, as a linear function of the final residual stream: r x + c.

The nonlinear steps in between are held at their values in this call: the scale of a masked head's norm, and for
its GELU and a classifier's tanh the ratio f(x) / x. A soft cap comes after; it is not part of the sum.

Shapes: P positions that are read, D d_model, V vocabulary, C classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from clearformer.hooks import ActivationCache
from clearformer.lens.inputs import Inputs
from clearformer.lens.ledgers.stream import Writer, check_norm, own_prefix, scale_of
from clearformer.model import Encoder, Transformer
from clearformer.model.norms import LayerNormModule, at_least_float32
from clearformer.model.transformer import MaskedHead


@dataclass(frozen=True)
class Readout:
    """The logit of an output, or of a target less a foil, as a function of the final residual stream.

    Attributes:
        rows: The positions that are read: one, or all of them if a classifier takes their mean.
        direction: r, in float32 or float64.
        constants: The parts of c, each with its parameter.
        logit: The model's own logit, before a soft cap.
        capped: The logit after the soft cap; None if the model has none.
        target: The number of the token or class.
        foil: The number of the foil, if any.
    """

    rows: list[int]
    direction: Float[Tensor, " D"]
    constants: list[tuple[Writer, float]]
    logit: float
    capped: float | None
    target: int
    foil: int | None

    def of(self, vectors: Float[Tensor, "*N P D"]) -> Float[Tensor, "*N"]:
        """Return r x for final vectors, averaged over the positions that are read."""
        return (at_least_float32(vectors) @ self.direction).mean(-1)

    @property
    def constant(self) -> float:
        """c."""
        return sum(value for _, value in self.constants)


def readout(
    inputs: Inputs,
    cache: ActivationCache,
    position: int,
    target: int | str | None,
    foil: int | str | None,
) -> Readout:
    """Return the linear function for a logit; without a target, for the largest.

    Raises:
        UserError: the target or the foil is not an output of the model.
    """
    model = inputs.model
    vectors = final_vectors(model, cache)  # [T D]
    rows = rows_read(inputs, position)
    outputs = uncapped_outputs(model, vectors[None], position)  # [V] or [C]
    chosen = int(outputs.argmax()) if target is None else inputs.output("target", target)
    other = None if foil is None else inputs.output("foil", foil)

    def difference(of_outputs: Tensor) -> Tensor:
        return of_outputs[chosen] if other is None else of_outputs[chosen] - of_outputs[other]

    matrix = last_matrix(model)
    constants = _constant(matrix.bias_name, matrix.bias, difference)
    direction = at_least_float32(difference(matrix.weight)) * matrix.scale
    if matrix.bend is not None:
        direction, before = _back_through(matrix.bend, direction, vectors[rows[0]])
        constants = [*before, *constants]
    capped = None if matrix.cap is None else float(difference(matrix.cap * torch.tanh(outputs / matrix.cap)))
    return Readout(rows, direction, constants, float(difference(outputs)), capped, chosen, other)


def final_vectors(model: Transformer, cache: ActivationCache) -> Float[Tensor, "T D"]:
    """Return the vectors after the final norm of the stack whose positions predict."""
    prefix = own_prefix(model)
    stack = model.stack(prefix)
    return stack.ln_final(cache[f"{prefix}blocks.{len(stack.blocks) - 1}.hook_resid_post"])[0]


def rows_read(inputs: Inputs, position: int) -> list[int]:
    """Return the positions whose final vectors make the outputs: the given one, or those that a classifier pools."""
    config = inputs.model.config
    if config.n_classes is None:
        return [position]
    return [0] if config.pooling == "first" else list(range(len(inputs)))


def uncapped_outputs(
    model: Transformer, vectors: Float[Tensor, "1 T D"], position: int
) -> Float[Tensor, " V"]:
    """Return the logits of a position, or of all classes, by the model's own modules, without a soft cap."""
    if not isinstance(model, Encoder):
        return model.uncapped_logits(vectors[0, position])
    if model.config.n_classes is not None:
        return model.classifier(model.pool(vectors))[0]
    return model.uncapped_logits(model.masked_head(vectors[:, position : position + 1])[0, 0])


# --- between the final vectors and the outputs ------------------------------------------------------------


@dataclass(frozen=True)
class Bend:
    """norm(f(W x + b)), in which f and the norm are nonlinear."""

    path: str
    dense: nn.Linear
    activation: Callable[[Tensor], Tensor]
    norm: nn.Module | None = None
    norm_path: str = ""


@dataclass(frozen=True)
class LastMatrix:
    """The matrix that makes the outputs, and the steps around it."""

    weight: Float[Tensor, "V D"]
    bias: Float[Tensor, " V"] | None
    bias_name: str
    bend: Bend | None = None
    scale: float = 1.0
    cap: float | None = None


def last_matrix(model: Transformer) -> LastMatrix:
    """Return the matrix from the final vectors to a model's outputs."""
    config = model.config
    if isinstance(model, Encoder) and config.n_classes is not None:
        pooler = model.pooler
        bend = None if pooler is None else Bend("pooler", pooler, torch.tanh)
        return LastMatrix(model.classifier.weight, model.classifier.bias, "classifier.bias", bend)
    bend = None
    if isinstance(model, Encoder) and isinstance(model.masked_head, MaskedHead):
        head = model.masked_head
        bend = Bend("masked_head.dense", head.dense, F.gelu, head.ln, "masked_head.ln")
    weight, bias, name = model.embed.weight, model.head_bias, "head_bias"
    if model.head is not None:
        weight, bias, name = model.head.weight, model.head.bias, "head.bias"
    scale = config.d_model**-0.5 if config.scale_logits else 1.0
    return LastMatrix(weight, bias, name, bend, scale, config.logit_soft_cap)


def _back_through(
    bend: Bend, direction: Float[Tensor, " D"], x: Float[Tensor, " D"]
) -> tuple[Float[Tensor, " D"], list[tuple[Writer, float]]]:
    """Pull a direction back through a bend: return the direction before it, and the shares of its biases."""
    constants = []
    hidden = bend.dense(x)
    bent = bend.activation(hidden)
    if bend.norm is not None:
        check_norm(bend.norm, bend.norm_path)
        constants += _constant(f"{bend.norm_path}.bias", getattr(bend.norm, "bias", None), direction.dot)
        direction = _back_through_norm(bend.norm, direction, bent)
    direction = direction * torch.where(hidden == 0, 0, bent / hidden)
    constants += _constant(f"{bend.path}.bias", bend.dense.bias, direction.dot)
    return direction @ at_least_float32(bend.dense.weight), constants


def _back_through_norm(
    norm: nn.Module, direction: Float[Tensor, " D"], x: Float[Tensor, " D"]
) -> Float[Tensor, " D"]:
    """Pull a direction back through a norm whose scale is that of x."""
    if isinstance(norm, nn.Identity):
        return direction
    weight = getattr(norm, "weight", None)
    direction = (direction if weight is None else direction * weight) / scale_of(norm, x)
    return direction - direction.mean() if isinstance(norm, LayerNormModule) else direction


def _constant(
    name: str, bias: Tensor | None, value: Callable[[Tensor], Tensor]
) -> list[tuple[Writer, float]]:
    return [] if bias is None else [(Writer(name), float(value(at_least_float32(bias))))]
