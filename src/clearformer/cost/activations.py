"""Bytes that the forward pass keeps for the backward pass, computed from the configuration alone."""

from clearformer.cost.parameters import COMPONENTS, all_norms, head_matrix
from clearformer.cost.slots import FLOAT_BYTES, attention_floats, ffn_floats, norm_floats, position_bytes
from clearformer.errors import ConfigError
from clearformer.model.config import ModelConfig


def analytic_activations(config: ModelConfig, batch_size: int, seq_len: int) -> dict[str, int]:
    """Return the bytes that the forward pass keeps for the backward pass, by component, next-token loss included.

    This is in float32, without dropout, with fused attention as in torch's CPU kernels. A module keeps what its
    gradient needs: a matrix its input, a norm its input and statistics, attention q, k, v, its result and one sum per
    head, an activation function its input or its result.

    Raises:
        ConfigError: the vocabulary's size is not set, or there is no formula: for linear attention, a window shorter
            than the sequence, relative positions, parallel sub-layers (which share one input), and families other
            than decoders.
    """
    if config.family != "decoder" or config.parallel:
        raise ConfigError(
            "model.family: there is a formula for activations only for decoders without parallel sub-layers; "
            "plan counts them"
        )
    head = head_matrix(config)
    floats_per_token = {
        "attention": config.n_layers * attention_floats(config.attention, config, seq_len),
        "ffn": config.n_layers * ffn_floats(config.ffn, config.d_model),
        "norms": sum(times * norm_floats(norm, size) for norm, size, times in all_norms(config)),
        # The head's input, the log-probabilities, and before them the capped logits.
        "head": config.d_model + head.n_out * (1 if config.logit_soft_cap is None else 2),
    }
    n_tokens = batch_size * seq_len
    kept = {name: FLOAT_BYTES * n_tokens * floats for name, floats in floats_per_token.items()}
    positions = position_bytes(config.position, config, seq_len)
    return dict.fromkeys(COMPONENTS, 0) | kept | {"position": positions}
