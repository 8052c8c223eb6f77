"""A head's circuits, by the eigenvalues of the matrices that its weights form on pairs of tokens (Elhage et al. 2021).

    copying      W_E W_V W_O W_U: with positive eigenvalues, an attended token raises its own logit
    matching     W_E W_Q W_K^T W_E^T: with positive eigenvalues, a token attends to itself

They describe the direct paths from the embedding to the head and from the head to the logits, with the gains of the
norms on them. Biases, positions and a norm's division by its scale, which differs between vectors, are left out.

Shapes: V vocabulary, D d_model, H heads, K key/value heads, Dh head size.
"""

from collections.abc import Iterable
from itertools import dropwhile, takewhile
from math import nan

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearformer.lens.activations import computes_as_known
from clearformer.model import Transformer
from clearformer.model.attention import DotModule, ProjectedHeads, SharedModule
from clearformer.model.norms import LayerNormModule, RMSNormModule, at_least_float32


class Circuits:
    """The matrices [V V] that a head's weights form on pairs of tokens, by their eigenvalues.

    Each is a product A B with A [V Dh] and B [Dh V], whose nonzero eigenvalues are those of B A [Dh Dh]. The vocabulary
    therefore enters only by two products [D D], which all heads share.
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model
        embeddings = weight_of(model.embed)
        self.identity = torch.eye(model.config.d_model, dtype=embeddings.dtype, device=embeddings.device)
        self.embeddings = embeddings.T @ embeddings
        self.unembeddings: Tensor | None = None
        if predicts_linearly(model):
            unembeddings = weight_of(model.embed if model.head is None else model.head)
            self.unembeddings = unembeddings.T @ embeddings

    def copying(self, name: str, head: int) -> float:
        """Score W_E W_V W_O W_U: how an attended token changes each token's logit."""
        if self.unembeddings is None or name.startswith("encoder_blocks") or not self._is_direct(name, 0, -1):
            return nan
        layer = self._layer(name)
        if not computes_as_known(layer):
            return nan
        n_heads, n_kv_heads = getattr(layer, "n_heads", 1), getattr(layer, "n_kv_heads", 1)
        values = matrix_of(layer, "W_V", self.identity).unflatten(0, (n_kv_heads, -1))  # [K Dh D]
        outputs = matrix_of(layer, "W_O", self.identity).unflatten(1, (n_heads, -1))  # [D H Dh]
        own, stack = name.rpartition(".")[0], self.model.stack(stack_of(name))
        norms = self._norms_behind(stack_of(name))
        behind = [norm for _, norm in dropwhile(lambda each: each[0] != own, norms)]
        written = with_gains([*behind, stack.ln_final], outputs[:, head].T)
        read = self._reading(name) @ values[head * n_kv_heads // n_heads].T
        return eigenvalue_score(written @ self.unembeddings @ read)

    def matching(self, name: str, head: int) -> float:
        """Score W_E W_Q W_K^T W_E^T: how strongly a token attends to each token, ignoring positions."""
        layer = self._layer(name)
        if not self._is_direct(name, 0) or not computes_as_known(layer):
            return nan
        if isinstance(layer, ProjectedHeads):
            queries = weight_of(layer.W_Q).unflatten(0, (layer.n_heads, -1))[head]
            keys = weight_of(layer.W_K).unflatten(0, (layer.n_kv_heads, -1))
            key = keys[head * layer.n_kv_heads // layer.n_heads]
            q_norm, k_norm = layer.q_norm, layer.k_norm
        elif isinstance(layer, DotModule | SharedModule):
            queries = key = matrix_of(layer, "W", self.identity)
            q_norm = k_norm = nn.Identity()
        else:
            return nan
        q = with_gain(q_norm, self._reading(name, of_queries=True) @ queries.T)
        k = with_gain(k_norm, self._reading(name) @ key.T)
        return eigenvalue_score(k.T @ self.embeddings @ q)

    def _is_direct(self, name: str, *at: int) -> bool:
        """Whether there are direct paths: without a residual stream, to the first and from the last sub-layer alone."""
        if self.model.config.residual:
            return True
        prefix = stack_of(name)
        sublayers = [
            f"{prefix}blocks.{i}.{part}"
            for i, block in enumerate(self.model.stack(prefix).blocks)
            for part in ("attn", "cross_attn", "mlp")
            if getattr(block, part) is not None
        ]
        return all(name.rpartition(".")[0] == sublayers[each] for each in at)

    def _layer(self, name: str) -> nn.Module:
        return self.model.get_submodule(name.rpartition(".")[0])

    def _reading(self, name: str, of_queries: bool = False) -> Float[Tensor, "D D"]:
        """Return the gains of the norms between an embedding and a layer's input to keys and values, or to queries."""
        own = name.rpartition(".")[0]
        path, _, kind = own.rpartition(".")
        crosses = kind == "cross_attn"
        prefix = "encoder_" if crosses and not of_queries else stack_of(name)
        stack, norms = self.model.stack(prefix), self._norms_behind(prefix)
        if crosses and not of_queries:
            passed = [*(norm for _, norm in norms), stack.ln_final]
        elif self.model.config.placement == "pre":
            passed = [self.model.get_submodule(f"{path}.{'ln_cross' if crosses else 'ln1'}")]
        else:
            passed = [norm for _, norm in takewhile(lambda each: each[0] != own, norms)]
        return with_gains([stack.ln_embed, *passed], self.identity)

    def _norms_behind(self, prefix: str) -> list[tuple[str, nn.Module]]:
        """Return the norms that a stack's residual stream itself passes, each with the sub-layer that it follows."""
        if self.model.config.placement != "post":
            return []
        parts = (("attn", "ln1"), ("cross_attn", "ln_cross"), ("mlp", "ln2"))
        return [
            (f"{prefix}blocks.{i}.{part}", getattr(block, norm))
            for i, block in enumerate(self.model.stack(prefix).blocks)
            for part, norm in parts
            if getattr(block, norm) is not None
        ]


def eigenvalue_score(matrix: Float[Tensor, "Dh Dh"]) -> float:
    """Return sum of Re(lambda) over sum of |lambda|: 1 if all eigenvalues are positive, NaN if all are 0 or unknown."""
    if not matrix.isfinite().all():
        return nan  # LAPACK may end the process
    values = torch.linalg.eigvals(matrix.cpu().double())
    size = values.abs().sum().item()
    return values.real.sum().item() / size if size else nan


def predicts_linearly(model: Transformer) -> bool:
    """Whether logits are a linear function of the final norm's output (before a soft cap)."""
    return model.config.n_classes is None and model.config.masked_head == "none"


def stack_of(name: str) -> str:
    """Return the prefix of a hook point's stack: `encoder_`, `decoder_` or empty."""
    return name.partition("blocks.")[0]


def matrix_of(layer: nn.Module, name: str, otherwise: Float[Tensor, "D D"]) -> Float[Tensor, "O I"]:
    """Return a layer's matrix by name, or `otherwise` if it has none."""
    part = getattr(layer, name, None)
    return weight_of(part) if isinstance(part, nn.Linear) else otherwise


def weight_of(part: nn.Linear | nn.Embedding) -> Float[Tensor, "O I"]:
    """Return the matrix of a layer or an embedding, in float32 if the model is in fewer bits."""
    return at_least_float32(part.weight.detach())


def with_gains(norms: Iterable[nn.Module], rows: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    """Apply the linear parts of several norms, one after another."""
    for norm in norms:
        rows = with_gain(norm, rows)
    return rows


def with_gain(norm: nn.Module, rows: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    """Apply a norm's linear part: for LayerNorm subtract the mean, then multiply by the gain."""
    if isinstance(norm, LayerNormModule):
        return (rows - rows.mean(-1, keepdim=True)) * norm.weight.detach()
    if isinstance(norm, RMSNormModule) and norm.weight is not None:
        return rows * norm.weight.detach()
    return rows
