"""What the forward pass keeps for the backward pass, from the configuration alone: a check of what is counted."""

from clearformer.config import Spec
from clearformer.model import ModelConfig
from clearformer.model.attention import Dot, Last, Mean, MultiHead, Shared
from clearformer.model.feedforward import GEGLU, GELU, NoFeedForward, ReLU, ReLU2, SiLU, SwiGLU
from clearformer.model.norms import LayerNorm, NoNorm, RMSNorm
from clearformer.model.positions import ALiBi, Learned, NoPositions, RoPE, Sinusoidal

FLOAT_BYTES = 4
INDEX_BYTES = 8


def activations_by_formula(config: ModelConfig, batch_size: int, seq_len: int) -> int:
    """The bytes that a decoder keeps, those of the next-token loss included.

    This is in float32, without dropout, with fused attention as in torch's CPU kernels, and without a window shorter
    than the sequence; `mean` attention with ALiBi keeps less. A module keeps what its gradient needs: a matrix its
    input, a norm its input and statistics, attention q, k, v, its result and one sum per head, an activation function
    its input or its result.
    """
    assert config.family == "decoder"
    assert not config.parallel  # these sub-layers share one input
    assert config.vocab_size is not None
    in_a_block = attention_floats(config.attention, config, seq_len) + ffn_floats(config.ffn, config.d_model)
    # The head's input, the log-probabilities, and before them the capped logits.
    head = config.d_model + config.vocab_size * (1 if config.logit_soft_cap is None else 2)
    per_token = config.n_layers * in_a_block + norms_floats(config) + head
    return FLOAT_BYTES * batch_size * seq_len * per_token + position_bytes(config.position, config, seq_len)


def attention_floats(spec: Spec, config: ModelConfig, seq_len: int) -> int:
    """Of each token in one sub-layer: its input, q, k, v where computed, its result and the sums of the softmax."""
    match spec:
        case Last():
            return 0
        case Mean():
            return (
                seq_len  # the weights, as it has no fused kernel; nothing for the scores, which are constant
            )
        case Dot():
            made = 2 * config.d_model if config.position.rotates else 0
        case Shared():
            made = 2 * config.d_model
        case MultiHead():
            n_heads, d_head = spec.heads(config.d_model)
            made = (n_heads + (2 if spec.value else 1) * spec.n_key_value_heads) * d_head
        case _:
            raise NotImplementedError(spec)
    n_heads, d_head = spec.heads(config.d_model)
    return config.d_model + made + n_heads * d_head + n_heads


def ffn_floats(spec: Spec, d_model: int) -> int:
    """Of each token in one sub-layer."""
    match spec:
        case NoFeedForward():
            return 0
        case ReLU():
            return d_model + spec.width(
                d_model
            )  # its gradient needs its result, which the next matrix keeps too
        case GELU() | SiLU() | ReLU2():
            return d_model + 2 * spec.width(d_model)
        case SwiGLU() | GEGLU():
            # The gate before and after its activation, the vector it multiplies, and the product.
            return d_model + 4 * spec.width(d_model)
        case _:
            raise NotImplementedError(spec)


def norms_floats(config: ModelConfig) -> int:
    """Of each token in all norms: those of the residual stream, and of queries and keys."""
    in_a_block = 0 if config.placement == "none" else 1 if isinstance(config.ffn, NoFeedForward) else 2
    n_wide = config.embedding_norm + config.final_norm + config.n_layers * in_a_block
    floats = n_wide * norm_floats(config.norm, config.d_model)
    attention = config.attention
    if isinstance(attention, MultiHead) and attention.qk_norm is not None:
        n_heads, d_head = attention.heads(config.d_model)
        n_narrow = config.n_layers * (n_heads + attention.n_key_value_heads)
        floats += n_narrow * norm_floats(attention.qk_norm, d_head)
    return floats


def norm_floats(spec: Spec, size: int) -> int:
    """Of a norm of a vector of `size` numbers."""
    match spec:
        case NoNorm():
            return 0
        case LayerNorm():
            return size + 2
        case RMSNorm():
            return 2 * size + 1 if spec.learned else size + 1  # its gradient needs the normalised input
        case _:
            raise NotImplementedError(spec)


def position_bytes(spec: Spec, config: ModelConfig, seq_len: int) -> int:
    """Of positions; they do not depend on the batch size."""
    n_heads, d_head = config.attention.heads(config.d_model)
    match spec:
        case NoPositions() | Sinusoidal():
            return 0
        case Learned():
            return INDEX_BYTES * seq_len
        case RoPE():  # cosines and sines, for queries and for keys
            return FLOAT_BYTES * config.n_layers * 2 * spec.rotated_dims(d_head) * seq_len
        case ALiBi():
            return FLOAT_BYTES * config.n_layers * n_heads * seq_len**2
        case _:
            raise NotImplementedError(spec)
