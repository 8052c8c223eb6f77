"""Parameters by component: computed from the configuration alone, and counted in the built model.

Letters: D d_model, L layers, V vocabulary.
"""

from collections.abc import Iterator

from torch import nn

from clearformer.cost.slots import Matrix, matrices, norm_parameters, position_parameters
from clearformer.errors import ConfigError, UserError
from clearformer.model.config import ModelConfig
from clearformer.model.norms import Norm

COMPONENTS: tuple[str, ...] = ("embedding", "position", "attention", "ffn", "norms", "head")

# --- the parts of a model -----------------------------------------------------------------------------------


def n_attentions(config: ModelConfig) -> int:
    """Return the number of attention sub-layers, cross-attention in an encoder-decoder's decoder included."""
    if config.family == "encoder-decoder":
        return config.n_layers + 2 * config.decoder_layers
    return config.n_layers


def n_ffns(config: ModelConfig) -> int:
    """Return the number of feed-forward networks."""
    return config.n_layers + (config.decoder_layers if config.family == "encoder-decoder" else 0)


def attention_matrices(config: ModelConfig) -> list[Matrix]:
    """Return the matrices of one attention sub-layer."""
    return matrices(config.attention, config.d_model)


def ffn_matrices(config: ModelConfig) -> list[Matrix]:
    """Return the matrices of one block's feed-forward network."""
    return matrices(config.ffn, config.d_model)


def embedding_size(config: ModelConfig) -> int:
    """Return the number of elements of the token embeddings.

    Raises:
        ConfigError: the vocabulary's size is not set.
    """
    if config.vocab_size is None:
        raise ConfigError("model.vocab_size is not set; a model's cost depends on the size of its vocabulary")
    return config.vocab_size * config.d_model


def head_matrix(config: ModelConfig) -> Matrix:
    """Return the matrix from the residual stream to the logits (the embedding matrix where they are tied)."""
    return Matrix(config.d_model, embedding_size(config) // config.d_model, config.head_bias)


def head_matrices(config: ModelConfig) -> list[Matrix]:
    """Return the matrices after the final norm, including those of a masked-token head or a classifier."""
    d = config.d_model
    if config.n_classes is not None:
        pooler = [Matrix(d, d, bias=True)] if config.pooling == "first" else []
        return [*pooler, Matrix(d, config.n_classes, bias=True)]
    transform = [Matrix(d, d, bias=True)] if config.masked_head == "transform" else []
    return [*transform, head_matrix(config)]


def is_tied(config: ModelConfig) -> bool:
    """Whether the matrix to the logits is the embeddings' own."""
    return config.tie_embeddings and config.n_classes is None


def all_norms(config: ModelConfig) -> Iterator[tuple[Norm, int]]:
    """Yield every norm of the model, and the size of the vectors that it normalises."""
    d = config.d_model
    for wanted in (config.embedding_norm, config.final_norm) * config.n_stacks:
        if wanted:
            yield config.norm, d
    if config.masked_head == "transform" and config.n_classes is None:
        yield config.norm, d
    qk_norm = getattr(config.attention, "qk_norm", None)
    for _ in range(n_attentions(config)):
        if config.placement != "none":
            yield config.norm, d
        if qk_norm is not None:
            _, d_head = config.attention.heads(d)
            yield qk_norm, d_head  # of the queries
            yield qk_norm, d_head  # of the keys
    if ffn_matrices(config) and config.placement != "none":
        for _ in range(n_ffns(config)):
            yield config.norm, d


# --- by formula ---------------------------------------------------------------------------------------------


def analytic_matrices(config: ModelConfig) -> dict[str, int]:
    """Return the parameters by component, without biases and norms.

    For the model of lecture 000, section 5.4, this is 2 V d + 11 L d².

    Raises:
        ConfigError: the vocabulary's size is not set.
    """
    head = sum(matrix.size for matrix in head_matrices(config))
    return {
        "embedding": embedding_size(config) + config.n_token_types * config.d_model,
        "position": config.n_stacks * position_parameters(config.position, config),
        "attention": n_attentions(config) * sum(matrix.size for matrix in attention_matrices(config)),
        "ffn": n_ffns(config) * sum(matrix.size for matrix in ffn_matrices(config)),
        "norms": 0,
        "head": head - (embedding_size(config) if is_tied(config) else 0),
    }


def analytic_parameters(config: ModelConfig) -> dict[str, int]:
    """Return the parameters by component, computed from the configuration alone.

    Raises:
        ConfigError: the vocabulary's size is not set.
    """
    parameters = analytic_matrices(config)
    parameters["attention"] += n_attentions(config) * sum(m.bias_size for m in attention_matrices(config))
    parameters["ffn"] += n_ffns(config) * sum(m.bias_size for m in ffn_matrices(config))
    parameters["norms"] += sum(norm_parameters(norm, size) for norm, size in all_norms(config))
    parameters["head"] += sum(matrix.bias_size for matrix in head_matrices(config))
    return parameters


# --- as measured --------------------------------------------------------------------------------------------

COMPONENT_OF = {
    "embed": "embedding",
    "token_types": "embedding",
    "position": "position",
    "encoder_position": "position",
    "decoder_position": "position",
    "attn": "attention",
    "cross_attn": "attention",
    "mlp": "ffn",
    "head": "head",
    "head_bias": "head",
    "masked_head": "head",
    "pooler": "head",
    "classifier": "head",
}
"""The component of a parameter that is not a norm's, by the first of these names in its path."""

NORMS = frozenset(
    [f"{stack}{norm}" for stack in ("", "encoder_", "decoder_") for norm in ("ln_embed", "ln_final")]
    + ["ln1", "ln2", "ln_cross", "q_norm", "k_norm", "ln"]
)
"""The names of norms in a path, which a norm of the user's own has too."""


def measured_parameters(model: nn.Module) -> dict[str, int]:
    """Count the parameters of a built model by component (on any device, the meta device too).

    Raises:
        UserError: a parameter is in none of the parts that a model of this package has.
    """
    counted = dict.fromkeys(COMPONENTS, 0)
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            counted[_component(f"{path}.{name}", module)] += parameter.numel()
    return counted


def _component(path: str, module: nn.Module) -> str:
    names = path.split(".")
    if isinstance(module, nn.LayerNorm | nn.RMSNorm) or not NORMS.isdisjoint(names):
        return "norms"
    for name in names:
        if name in COMPONENT_OF:
            return COMPONENT_OF[name]
    raise UserError(
        f"{path}: a parameter of no known component; put it into one of {', '.join(COMPONENT_OF)}"
    )
