"""The costs of each kind: one function per quantity, followed by the formula of each kind.

A user-defined kind without a formula raises NoFormulaError; `measured_parameters` and `measured_flops` need none.

Letters: T positions, S keys, D d_model, F d_ff.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, NoReturn, TypeVar

from clearformer.config import Spec
from clearformer.errors import ConfigError
from clearformer.model.attention import Dot, Last, Mean, MultiHead, Shared
from clearformer.model.config import ModelConfig
from clearformer.model.fast.linear_chunks import linear_chunks
from clearformer.model.fast.window import WindowBlocks
from clearformer.model.feedforward import GEGLU, GELU, NoFeedForward, ReLU, ReLU2, SiLU, SwiGLU
from clearformer.model.linear_attention import Linear
from clearformer.model.norms import LayerNorm, NoNorm, RMSNorm
from clearformer.model.positions import ALiBi, Learned, NoPositions, RoPE, Sinusoidal
from clearformer.model.relative_positions import Relative

Known = TypeVar("Known")


@dataclass(frozen=True)
class Matrix:
    """A matrix by which every token's vector is multiplied, and its bias.

    Attributes:
        uses: The number of times that each token is multiplied by it.
    """

    n_in: int
    n_out: int
    bias: bool = False
    uses: int = 1

    @property
    def size(self) -> int:
        return self.n_in * self.n_out

    @property
    def bias_size(self) -> int:
        return self.n_out if self.bias else 0


@dataclass(frozen=True)
class Reading:
    """How an attention sub-layer reads a sequence of T positions.

    Attributes:
        cross: Whether this is cross-attention.
    """

    n_positions: int
    causal: bool
    cross: bool = False


class NoFormulaError(ConfigError):
    """Raised where a user-defined kind has no formula for a quantity."""


def no_formula(question: str, spec: Any) -> NoReturn:
    """Raise NoFormulaError for a kind."""
    kind = getattr(spec, "kind", spec)
    raise NoFormulaError(f"there is no formula for {question} of {kind!r}: add one in clearformer.cost.slots")


def if_known(formula: Callable[..., Known], *arguments: Any) -> Known | None:
    """Return the result of a formula; None where a user-defined kind has none."""
    try:
        return formula(*arguments)
    except NoFormulaError:
        return None


# --- matrices of one sub-layer ------------------------------------------------------------------------------


@singledispatch
def matrices(spec: Spec | None, d_model: int) -> list[Matrix]:
    """Return the matrices of an attention or feed-forward sub-layer."""
    no_formula("the size", spec)


@matrices.register(Last)
@matrices.register(Mean)
@matrices.register(Dot)
@matrices.register(NoFeedForward)
def _(spec: Spec, d_model: int) -> list[Matrix]:
    return []


@matrices.register
def _(spec: Shared, d_model: int) -> list[Matrix]:
    return [Matrix(d_model, d_model, uses=2)]  # for the queries and for the keys


@matrices.register(MultiHead)
@matrices.register(Linear)
def _(spec: MultiHead | Linear, d_model: int) -> list[Matrix]:
    n_heads, d_head = spec.heads(d_model)
    joined, joined_kv = n_heads * d_head, spec.n_key_value_heads * d_head
    queries, keys = Matrix(d_model, joined, spec.qkv_bias), Matrix(d_model, joined_kv, spec.qkv_bias)
    values = [keys] if spec.value else []
    return [queries, keys, *values, *([Matrix(joined, d_model, spec.output_bias)] if spec.output else [])]


@matrices.register(ReLU)
@matrices.register(GELU)
@matrices.register(SiLU)
@matrices.register(ReLU2)
def _(spec: ReLU | GELU | SiLU | ReLU2, d_model: int) -> list[Matrix]:
    d_ff = spec.width(d_model)
    return [Matrix(d_model, d_ff, spec.bias), Matrix(d_ff, d_model, spec.bias)]


@matrices.register(SwiGLU)
@matrices.register(GEGLU)
def _(spec: SwiGLU | GEGLU, d_model: int) -> list[Matrix]:
    d_ff = spec.width(d_model)
    return [Matrix(d_model, d_ff, spec.bias)] * 2 + [Matrix(d_ff, d_model, spec.bias)]


# --- multiply-adds that mix the positions of one sequence in one sub-layer ----------------------------------


@singledispatch
def mixing(spec: Spec, config: ModelConfig, reading: Reading) -> int:
    """Return the multiply-adds of the scores and of the weighted sums of values."""
    no_formula("the mixing", spec)


@mixing.register
def _(spec: Last, config: ModelConfig, reading: Reading) -> int:
    return 0


@mixing.register
def _(spec: Mean, config: ModelConfig, reading: Reading) -> int:
    return reading.n_positions**2 * (1 + config.d_model)  # its queries and keys have one dimension


@mixing.register(Dot)
@mixing.register(Shared)
def _(spec: Dot | Shared, config: ModelConfig, reading: Reading) -> int:
    n_heads, d_head = spec.heads(config.d_model)
    return reading.n_positions**2 * n_heads * 2 * d_head


@mixing.register
def _(spec: MultiHead, config: ModelConfig, reading: Reading) -> int:
    n_heads, d_head = spec.heads(config.d_model)
    # Cross-attention has no window: there are no distances between two sequences. With a bias all scores are computed.
    in_blocks = not reading.cross and not config.position.adds_bias
    blocks = WindowBlocks.of(reading.n_positions, spec.window, reading.causal) if in_blocks else None
    n_pairs = reading.n_positions**2 if blocks is None else blocks.n_pairs
    return n_pairs * n_heads * 2 * d_head


@mixing.register
def _(spec: Linear, config: ModelConfig, reading: Reading) -> int:
    n_heads, d_head = spec.heads(config.d_model)
    sums = 2 * d_head**2 + d_head  # k^T v, its product with q, and the sums to divide by
    if not reading.causal:
        return reading.n_positions * n_heads * sums
    n_chunks, chunk = linear_chunks(reading.n_positions)
    within = chunk * 2 * d_head  # pairs inside a chunk
    return n_chunks * chunk * n_heads * (within + (sums if n_chunks > 1 else 0))


# --- norms and positions ------------------------------------------------------------------------------------


@singledispatch
def norm_parameters(spec: Spec, size: int) -> int:
    """Return the number of parameters of a norm of vectors of `size` numbers."""
    no_formula("the size", spec)


@norm_parameters.register
def _(spec: NoNorm, size: int) -> int:
    return 0


@norm_parameters.register
def _(spec: LayerNorm, size: int) -> int:
    return 2 * size if spec.bias else size


@norm_parameters.register
def _(spec: RMSNorm, size: int) -> int:
    return size if spec.learned else 0


@singledispatch
def position_parameters(spec: Spec, config: ModelConfig) -> int:
    """Return the number of parameters of one stack's positions."""
    no_formula("the size", spec)


@position_parameters.register(NoPositions)
@position_parameters.register(Sinusoidal)
@position_parameters.register(RoPE)
@position_parameters.register(ALiBi)
def _(spec: Spec, config: ModelConfig) -> int:
    return 0


@position_parameters.register
def _(spec: Learned, config: ModelConfig) -> int:
    return config.max_seq_len * config.d_model


@position_parameters.register
def _(spec: Relative, config: ModelConfig) -> int:
    return spec.n_buckets * config.attention.heads(config.d_model)[0]
