"""What a model costs: parameters, FLOPs and bytes, by component, from the formula and from the model itself.

The two ways know nothing of each other, and the tests hold them equal for every kind of every slot.

Conventions. A multiply-add is 2 FLOPs. Only matrix products count: embeddings are looked up, which is 0, and what
norms, activations and softmax do is small beside the products. The backward pass forms two products for each of
the forward pass (one for the input's gradient, one for the weight's), so it counts twice. Attention counts all
T x T scores, causal or not, as the literature does; a kernel that skips what lies above the diagonal does about half.
Of a window over a long text and of linear attention it counts what their blocks and chunks form. With N weights in
matrices full attention takes 6 N + 12 L T d a token, forward and backward (Kaplan et al. 2020, 2.1; Chowdhery et al.
2022, appendix B).

Letters: B batch, T positions, D d_model, H heads, L layers, V vocabulary.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from clearformer.errors import ConfigError
from clearformer.model.attention import Dot, Last, Linear, Mean, MultiHead, Shared
from clearformer.model.config import ModelConfig
from clearformer.model.feedforward import GEGLU, GELU, NoFeedForward, ReLU, ReLU2, SiLU, SwiGLU
from clearformer.model.linear_attention import linear_chunks
from clearformer.model.norms import LayerNorm, NoNorm, Norm, RMSNorm
from clearformer.model.positions import ALiBi, Learned, Relative, RoPE
from clearformer.model.transformer import Transformer
from clearformer.model.window import WindowBlocks

COMPONENTS: tuple[str, ...] = ("embedding", "position", "attention", "ffn", "norms", "head")
FLOAT_BYTES = 4
INDEX_BYTES = 8


@dataclass(frozen=True)
class Matrix:
    """A matrix that every token's vector is multiplied by, and its bias.

    Attributes:
        uses: How often each token is multiplied by it.
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
class Flops:
    """Floating-point operations by component, in the forward and in the backward pass."""

    forward: dict[str, int]
    backward: dict[str, int]


# --- what the model is made of, from its configuration ----------------------------------------------------


def n_attentions(config: ModelConfig) -> int:
    """The attention sub-layers of all blocks: one in each, and cross-attention in an encoder-decoder's decoder."""
    if config.family == "encoder-decoder":
        return config.n_layers + 2 * config.decoder_layers
    return config.n_layers


def n_ffns(config: ModelConfig) -> int:
    """The feed-forward networks of all blocks."""
    return config.n_layers + (config.decoder_layers if config.family == "encoder-decoder" else 0)


def attention_matrices(config: ModelConfig) -> list[Matrix]:
    """The matrices of one attention sub-layer."""
    d = config.d_model
    match config.attention:
        case Last() | Mean() | Dot():
            return []
        case Shared():
            return [Matrix(d, d, uses=2)]  # for the queries and for the keys
        case MultiHead() | Linear() as attention:
            n_heads, d_head = attention.heads(d)
            joined, joined_kv = n_heads * d_head, attention.n_key_value_heads * d_head
            matrices = [Matrix(d, joined, attention.qkv_bias), Matrix(d, joined_kv, attention.qkv_bias)]
            if attention.value:
                matrices.append(Matrix(d, joined_kv, attention.qkv_bias))
            if attention.output:
                matrices.append(Matrix(joined, d, attention.output_bias))
            return matrices


def ffn_matrices(config: ModelConfig) -> list[Matrix]:
    """The matrices of one block's feed-forward network."""
    d = config.d_model
    match config.ffn:
        case NoFeedForward():
            return []
        case ReLU() | GELU() | SiLU() | ReLU2() as ffn:
            n_inner = 1
        case SwiGLU() | GEGLU() as ffn:
            n_inner = 2
    d_ff = ffn.width(d)
    return [Matrix(d, d_ff, ffn.bias)] * n_inner + [Matrix(d_ff, d, ffn.bias)]


def embedding_size(config: ModelConfig) -> int:
    """Numbers in the embeddings of the tokens."""
    if config.vocab_size is None:
        raise ConfigError(
            "model.vocab_size is not set; what a model costs depends on the number of its tokens"
        )
    return config.vocab_size * config.d_model


def head_matrix(config: ModelConfig) -> Matrix:
    """The matrix from the residual stream to the logits, which is the embedding's where they are tied."""
    return Matrix(config.d_model, embedding_size(config) // config.d_model, config.head_bias)


def head_matrices(config: ModelConfig) -> list[Matrix]:
    """The matrices behind the last norm, of a masked-token head or of a classifier too."""
    d = config.d_model
    if config.n_classes is not None:
        pooler = [Matrix(d, d, bias=True)] if config.pooling == "first" else []
        return [*pooler, Matrix(d, config.n_classes, bias=True)]
    transform = [Matrix(d, d, bias=True)] if config.masked_head == "transform" else []
    return [*transform, head_matrix(config)]


def is_tied(config: ModelConfig) -> bool:
    """Whether the matrix to the logits is the embeddings' own."""
    return config.tie_embeddings and config.n_classes is None


def all_norms(config: ModelConfig) -> Iterator[tuple[Norm, int, int]]:
    """Every norm of the model, the size of what it normalises, and how often it does so for each token."""
    d = config.d_model
    for wanted in (config.embedding_norm, config.final_norm) * config.n_stacks:
        if wanted:
            yield config.norm, d, 1
    if config.masked_head == "transform" and config.n_classes is None:
        yield config.norm, d, 1
    for _ in range(n_attentions(config)):
        if config.placement != "none":
            yield config.norm, d, 1
        if isinstance(config.attention, MultiHead | Linear):
            n_heads, d_head = config.attention.heads(d)
            yield config.attention.qk_norm, d_head, n_heads
            yield config.attention.qk_norm, d_head, config.attention.n_key_value_heads
    for _ in range(n_ffns(config)):
        if config.placement != "none" and not isinstance(config.ffn, NoFeedForward):
            yield config.norm, d, 1


# --- parameters -------------------------------------------------------------------------------------------


def matrices_by_formula(config: ModelConfig) -> dict[str, int]:
    """Parameters by component, leaving out biases and norms.

    For the model of lecture 000, section 5.4, this is 2 V d + 11 L d².
    """
    head = sum(matrix.size for matrix in head_matrices(config))
    return {
        "embedding": embedding_size(config) + config.n_token_types * config.d_model,
        "position": config.n_stacks * _position_parameters(config),
        "attention": n_attentions(config) * sum(matrix.size for matrix in attention_matrices(config)),
        "ffn": n_ffns(config) * sum(matrix.size for matrix in ffn_matrices(config)),
        "norms": 0,
        "head": head - (embedding_size(config) if is_tied(config) else 0),
    }


def _position_parameters(config: ModelConfig) -> int:
    """Those of one stack."""
    match config.position:
        case Learned():
            return config.max_seq_len * config.d_model
        case Relative() as relative:
            return relative.n_buckets * config.attention.heads(config.d_model)[0]
        case _:
            return 0


def parameters_by_formula(config: ModelConfig) -> dict[str, int]:
    """Parameters by component, from the configuration's arithmetic alone.

    Raises:
        ConfigError: the vocabulary's size is not set.
    """
    parameters = matrices_by_formula(config)
    parameters["attention"] += n_attentions(config) * sum(m.bias_size for m in attention_matrices(config))
    parameters["ffn"] += n_ffns(config) * sum(m.bias_size for m in ffn_matrices(config))
    parameters["norms"] += sum(_norm_parameters(norm, size) for norm, size, _ in all_norms(config))
    parameters["head"] += sum(matrix.bias_size for matrix in head_matrices(config))
    return parameters


def _norm_parameters(norm: Norm, size: int) -> int:
    match norm:
        case NoNorm():
            return 0
        case LayerNorm():
            return 2 * size if norm.bias else size
        case RMSNorm():
            return size if norm.learned else 0


SUB_LAYERS = ("attn", "cross_attn", "mlp")
PLACES = {
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


def parameters_by_count(model: nn.Module) -> dict[str, int]:
    """Parameters by component, counted in the built model (on any device, the meta device too)."""
    counted = dict.fromkeys(COMPONENTS, 0)
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            counted[_component(f"{path}.{name}", module)] += parameter.numel()
    return counted


def _component(path: str, module: nn.Module) -> str:
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return "norms"
    return next(PLACES[name] for name in path.split(".") if name in PLACES)


# --- FLOPs ------------------------------------------------------------------------------------------------


def flops_by_formula(config: ModelConfig, seq_len: int) -> Flops:
    """FLOPs of one text of T tokens, from the configuration's arithmetic alone; divide by T for those of a token.

    Of an encoder-decoder, those of a pair of texts of T tokens each. A classifier's head reads one vector a text.

    Raises:
        ConfigError: the vocabulary's size is not set.
    """
    projections = n_attentions(config) * _multiply_adds(attention_matrices(config), seq_len)
    head_tokens = seq_len if config.n_classes is None else 1
    multiply_adds = dict.fromkeys(COMPONENTS, 0) | {
        "attention": projections + _all_mixing(config, seq_len),
        "ffn": n_ffns(config) * _multiply_adds(ffn_matrices(config), seq_len),
        "head": _multiply_adds(head_matrices(config), head_tokens),
    }
    forward = {component: 2 * count for component, count in multiply_adds.items()}
    return Flops(forward, backward={component: 2 * count for component, count in forward.items()})


def _all_mixing(config: ModelConfig, seq_len: int) -> int:
    """Multiply-adds that mix positions in all attention sub-layers; who reads backwards only depends on the stack."""
    if config.family == "decoder":
        return config.n_layers * _mixing(config, seq_len, causal=True)
    encoder = config.n_layers * _mixing(config, seq_len, causal=False)
    if config.family == "encoder":
        return encoder
    cross = _mixing(config, seq_len, causal=False, cross=True)
    return encoder + config.decoder_layers * (cross + _mixing(config, seq_len, causal=True))


def _multiply_adds(matrices: list[Matrix], n_tokens: int) -> int:
    return n_tokens * sum(matrix.uses * matrix.size for matrix in matrices)


def _mixing(config: ModelConfig, seq_len: int, causal: bool, cross: bool = False) -> int:
    """Multiply-adds that mix the positions of one text in one block: the scores, and the values they weigh."""
    n_heads, d_head = config.attention.heads(config.d_model)
    match config.attention:
        case Last():
            return 0
        case Mean():  # its queries and keys are a single 0
            return seq_len**2 * (1 + config.d_model)
        case Dot() | Shared():
            return seq_len**2 * n_heads * 2 * d_head
        case MultiHead():
            # Cross-attention has no window: two texts' positions have no distance.
            blocks = None if cross else _window_blocks(config, seq_len, causal)
            n_pairs = seq_len**2 if blocks is None else blocks.n_pairs
            return n_pairs * n_heads * 2 * d_head
        case Linear() if not causal:  # k^T v, what each query takes of it, and the sums to divide by
            return seq_len * n_heads * (2 * d_head**2 + d_head)
        case Linear():
            n_chunks, chunk = linear_chunks(seq_len)
            within = chunk * 2 * d_head  # pairs inside a chunk
            across = 2 * d_head**2 + d_head  # the sums over earlier chunks, read and added to
            return n_chunks * chunk * n_heads * (within + (across if n_chunks > 1 else 0))


def _window_blocks(config: ModelConfig, seq_len: int, causal: bool) -> WindowBlocks | None:
    """The blocks in which a window reads a text; None where there is no window, or its scores are all formed."""
    if not isinstance(config.attention, MultiHead) or isinstance(config.position, ALiBi | Relative):
        return None
    return WindowBlocks.of(seq_len, config.attention.window, causal)


def flops_by_count(model: Transformer, seq_len: int) -> Flops:
    """FLOPs of one text of T tokens, counted while the model runs on the meta device.

    Every sub-layer is counted by itself, on what it read in the model; the head is what they leave of the whole (a
    tied head is no module of its own). The backward pass is at most twice the forward pass: a product whose operand
    needs no gradient is not formed (the constant scores of `mean`, the empty sums that linear attention begins with).
    """
    flops = Flops(dict.fromkeys(COMPONENTS, 0), dict.fromkeys(COMPONENTS, 0))
    tokens = torch.zeros(1, seq_len, dtype=torch.long, device="meta")
    with _noted_sub_layers(model) as runs:
        flops.forward["head"], flops.backward["head"] = _run_and_count(
            model, [tokens] * model.config.n_stacks
        )
    for component, module, inputs in runs:
        forward, backward = _run_and_count(module, inputs)
        flops.forward[component] += forward
        flops.backward[component] += backward
        flops.forward["head"] -= forward
        flops.backward["head"] -= backward
    model.zero_grad()
    return flops


@contextmanager
def _noted_sub_layers(model: nn.Module) -> Iterator[list[tuple[str, nn.Module, list[Any]]]]:
    """The component, module and inputs of each sub-layer that runs inside the `with` block."""
    runs: list[tuple[str, nn.Module, list[Any]]] = []

    def note(component: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        runs.append((component, module, [_leaf(value) for value in inputs]))

    names = {module: path.rpartition(".")[2] for path, module in model.named_modules()}
    hooks = [
        module.register_forward_pre_hook(partial(note, PLACES[name]))
        for module, name in names.items()
        if name in SUB_LAYERS
    ]
    yield runs
    for hook in hooks:
        hook.remove()


def _leaf(value: Any) -> Any:
    return value.detach().requires_grad_() if isinstance(value, Tensor) else value


def _run_and_count(module: nn.Module, inputs: list[Any]) -> tuple[int, int]:
    """FLOPs of the forward and of the backward pass."""
    from torch.utils.flop_counter import FlopCounterMode  # takes a third of a second to import

    with FlopCounterMode(display=False) as counter:
        result = module(*inputs)
        forward = counter.get_total_flops()
        result.sum().backward()
        return forward, counter.get_total_flops() - forward


# --- bytes ------------------------------------------------------------------------------------------------


def activations_by_formula(config: ModelConfig, batch_size: int, seq_len: int) -> dict[str, int]:
    """Bytes kept from the forward pass for the backward pass, the next-token loss included, by component.

    In float32, without dropout, with fused attention as torch's CPU kernels do it. A module keeps what its
    gradient needs: a matrix its input, a norm its input and its statistics, attention q, k, v, its result and one
    sum a head, an activation function its input or its result.

    Raises:
        ConfigError: the vocabulary's size is not set, or there is no formula here: of linear attention, a window
            within the text, relative positions, parallel sub-layers (which keep one input for both), and the
            families other than decoders.
    """
    if config.family != "decoder" or config.parallel or isinstance(config.position, Relative):
        raise ConfigError(
            "model.family: activations are known by formula for decoders without relative positions or parallel "
            "sub-layers; plan counts them"
        )
    d, head = config.d_model, head_matrix(config)
    floats_per_token = {
        "attention": config.n_layers * _attention_floats(config, seq_len),
        "ffn": config.n_layers * _ffn_floats(config),
        "norms": sum(times * _norm_floats(norm, size) for norm, size, times in all_norms(config)),
        # The head's input, the log-probabilities, and before them the capped logits.
        "head": d + head.n_out * (1 if config.logit_soft_cap is None else 2),
    }
    n_tokens = batch_size * seq_len
    kept = {name: FLOAT_BYTES * n_tokens * floats for name, floats in floats_per_token.items()}
    return dict.fromkeys(COMPONENTS, 0) | kept | {"position": _position_bytes(config, seq_len)}


def _attention_floats(config: ModelConfig, seq_len: int) -> int:
    """Floats a token in one block: the input, what is made of it as q, k and v, the result, and the rows' sums."""
    d = config.d_model
    n_heads, d_head = config.attention.heads(d)
    match config.attention:
        case Last():
            return 0
        case Mean():  # no fused kernel, so its weights are kept; but nothing for the scores, which are constant
            return seq_len
        case Dot():
            made = 2 * d if isinstance(config.position, RoPE) else 0
        case Shared():
            made = 2 * d
        case MultiHead() as attention:
            if attention.window is not None and attention.window < seq_len:
                raise ConfigError(
                    "model.attention.window: the activations of a window within the text are counted, not known by "
                    "formula"
                )
            n_keys_and_values = (2 if attention.value else 1) * attention.n_key_value_heads
            made = (n_heads + n_keys_and_values) * d_head
        case Linear():
            raise ConfigError(
                "model.attention.kind: linear attention's activations are counted, not known by formula"
            )
    return d + made + n_heads * d_head + n_heads


def _ffn_floats(config: ModelConfig) -> int:
    d = config.d_model
    match config.ffn:
        case NoFeedForward():
            return 0
        case ReLU() as ffn:  # its gradient needs its result, which the next matrix keeps as well
            n_hidden = 1
        case GELU() | SiLU() | ReLU2() as ffn:
            n_hidden = 2
        case (
            SwiGLU() | GEGLU() as ffn
        ):  # the gate before and after its activation, what it multiplies, and the product
            n_hidden = 4
    return d + n_hidden * ffn.width(d)


def _norm_floats(norm: Norm, size: int) -> int:
    match norm:
        case NoNorm():
            return 0
        case LayerNorm():
            return size + 2
        case RMSNorm():  # the weight's gradient needs the normalised input
            return 2 * size + 1 if norm.learned else size + 1


def _position_bytes(config: ModelConfig, seq_len: int) -> int:
    """What positions keep, whatever the batch."""
    n_heads, d_head = config.attention.heads(config.d_model)
    match config.position:
        case Learned():
            return INDEX_BYTES * seq_len
        case RoPE() as rope:  # cosines and sines, for queries and for keys
            return FLOAT_BYTES * config.n_layers * 2 * rope.rotated_dims(d_head) * seq_len
        case ALiBi():
            return FLOAT_BYTES * config.n_layers * n_heads * seq_len**2
        case _:
            return 0


class LiveBytes(TorchDispatchMode):
    """Follows, inside a `with` block, how many bytes of tensors made there are alive (`now`, and `peak` at most).

    Under `FakeTensorMode` the tensors have no memory, and the bytes are those that real ones would have: so a
    model of any size can be measured, its gradients and whatever autograd keeps included.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self._follow(value.untyped_storage())
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        if storage in self._seen:
            return
        self._seen.add(storage)
        self._change(storage.nbytes())
        weakref.finalize(storage, self._change, -storage.nbytes())

    def _change(self, n_bytes: int) -> None:
        self.now += n_bytes
        self.peak = max(self.peak, self.now)
