"""FLOPs by component: computed from the configuration alone, and counted while the model runs.

A multiply-add is 2 FLOPs. Only matrix products count: embeddings are looked up, which costs 0, and norms, activations
and softmax are small compared to the products. The backward pass has two products for each of the forward pass (one for
the input's gradient, one for the weight's), so it counts twice. Attention counts all T x T scores, causal or not, as
the literature does; a kernel that skips those above the diagonal does about half. A window over a long sequence and
linear attention count the products of their blocks and chunks. With N weights in matrices, full attention takes
6 N + 12 L T d per token, forward and backward (Kaplan et al. 2020, 2.1; Chowdhery et al. 2022, appendix B).

Letters: T positions, L layers, d d_model.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from clearformer.cost.parameters import (
    COMPONENT_OF,
    COMPONENTS,
    attention_matrices,
    ffn_matrices,
    head_matrices,
    n_attentions,
    n_ffns,
)
from clearformer.cost.slots import Matrix, Reading, mixing
from clearformer.model.config import ModelConfig
from clearformer.model.transformer import Transformer

SUB_LAYERS = ("attn", "cross_attn", "mlp")


@dataclass(frozen=True)
class Flops:
    """Floating-point operations by component, in the forward and in the backward pass."""

    forward: dict[str, int]
    backward: dict[str, int]

    @property
    def total(self) -> int:
        """The sum over all components, forward and backward."""
        return sum(self.forward.values()) + sum(self.backward.values())


def analytic_flops(config: ModelConfig, seq_len: int) -> Flops:
    """Return the FLOPs of one sequence of T tokens, computed from the configuration alone; divide by T for one token.

    For an encoder-decoder, source and target have T tokens each. A classifier's head reads one vector per sequence.

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
    """Return the multiply-adds that mix positions, of all attention sub-layers; only decoder stacks are causal."""

    def of(causal: bool, cross: bool = False) -> int:
        return mixing(config.attention, config, Reading(seq_len, causal, cross))

    if config.family == "decoder":
        return config.n_layers * of(causal=True)
    encoder = config.n_layers * of(causal=False)
    if config.family == "encoder":
        return encoder
    return encoder + config.decoder_layers * (of(causal=False, cross=True) + of(causal=True))


def _multiply_adds(matrices: list[Matrix], n_tokens: int) -> int:
    return n_tokens * sum(matrix.uses * matrix.size for matrix in matrices)


def measured_flops(model: Transformer, seq_len: int) -> Flops:
    """Count the FLOPs of one sequence of T tokens while the model runs on the meta device.

    The layers are alike, so each kind of sub-layer is counted once, with the first one's inputs. The head's count is
    the total minus the sub-layers' (a tied head is no module of its own). The backward pass is at most twice the
    forward pass: products whose operand needs no gradient are skipped (the constant scores of `mean`, the empty sums
    with which linear attention starts).
    """
    flops = Flops(dict.fromkeys(COMPONENTS, 0), dict.fromkeys(COMPONENTS, 0))
    tokens = torch.zeros(1, seq_len, dtype=torch.long, device="meta")
    with _noted_sub_layers(model) as runs:
        flops.forward["head"], flops.backward["head"] = _run_and_count(
            model, [tokens] * model.config.n_stacks
        )
    for kind, alike in runs.items():
        component = COMPONENT_OF[kind.rpartition(".")[2]]
        forward, backward = _run_and_count(*alike[0])
        flops.forward[component] += len(alike) * forward
        flops.backward[component] += len(alike) * backward
        flops.forward["head"] -= len(alike) * forward
        flops.backward["head"] -= len(alike) * backward
    model.zero_grad()
    return flops


@contextmanager
def _noted_sub_layers(model: nn.Module) -> Iterator[dict[str, list[tuple[nn.Module, list[Any]]]]]:
    """Record the sub-layers that run in the `with` block and their inputs, by stack and name: `blocks.attn`."""
    runs: dict[str, list[tuple[nn.Module, list[Any]]]] = {}

    def note(kind: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        runs.setdefault(kind, []).append((module, [_leaf(value) for value in inputs]))

    hooks = []
    for path, module in model.named_modules():
        stack, _, name = path.partition(".")
        if (name := name.rpartition(".")[2]) in SUB_LAYERS:
            hooks.append(module.register_forward_pre_hook(partial(note, f"{stack}.{name}")))
    try:
        yield runs
    finally:
        for hook in hooks:
            hook.remove()


def _leaf(value: Any) -> Any:
    return value.detach().requires_grad_() if isinstance(value, Tensor) else value


def _run_and_count(module: nn.Module, inputs: list[Any]) -> tuple[int, int]:
    """Return the FLOPs of the forward pass and of the backward pass."""
    from torch.utils.flop_counter import FlopCounterMode  # takes a third of a second to import

    with FlopCounterMode(display=False) as counter:
        result = module(*inputs)
        forward = counter.get_total_flops()
        result.sum().backward()
        return forward, counter.get_total_flops() - forward
