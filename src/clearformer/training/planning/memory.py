"""The memory of training, measured on the model itself with tensors that have no memory."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clearformer.cost import LiveBytes, tensors_without_memory
from clearformer.device import autocast
from clearformer.model.attention import Attention
from clearformer.model.build import build_undrawn
from clearformer.model.config import ModelConfig
from clearformer.training.config import TrainConfig
from clearformer.training.optim.optimizers import build_optimizers
from clearformer.training.tasks import task_type
from clearformer.training.tasks.task import FullBatch


@dataclass(frozen=True)
class MemoryBytes:
    """The memory that training takes in one process, in bytes.

    Attributes:
        weights: The weights, which stay for the whole run.
        gradients: The gradients of all weights, complete at the end of the backward pass.
        optimizer: The optimizers' state, and the moving average of the weights if there is one.
        activations: Tensors that the forward pass keeps for the backward pass, including the loss's log-probabilities.
        peak: The most that is alive at once, including temporary results. It is not the sum of the others: activations
            are freed as gradients are made (but gradients stay between the parts of a batch), and the backward pass
            begins with the gradients of the logits.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    peak: int


def training_memory(model_config: ModelConfig, train: TrainConfig, device_type: str = "cpu") -> MemoryBytes:
    """Measure the memory of training on two steps of the model itself, with tensors that have no memory.

    All rows have the model's maximum length; shorter ones, and the last batch of an epoch, take less.

    The kernels are torch's for a CPU, uncompiled; a compiled step keeps less. The allocator's rounding and a GPU's
    context and libraries are not counted.

    Raises:
        ConfigError: the vocabulary's size is not set.
    """
    with tensors_without_memory(), LiveBytes() as live:
        model = build_undrawn(model_config)
        if device_type == "cuda":
            _skip_attention_dropout(model)
        averages = [torch.empty_like(p) for p in model.parameters()] if train.ema else []
        optimizers = build_optimizers(train.optimizer, model, train.lr, train.matrix_dtype)
        micro_batch = _MicroBatch(model, train, device_type)
        activations = micro_batch.run(live)
        gradients = _n_bytes(p.grad for p in model.parameters() if p.grad is not None)
        _update(optimizers)
        live.peak = live.now  # only now do the optimizers have all their state, as in every later step
        for _ in range(min(train.grad_accum_steps, 2)):  # with two parts, gradients stay alive
            micro_batch.run(live)
        _update(optimizers)
        states = [state for optimizer in optimizers for state in optimizer.state.values()]
        kept = (value for state in states for value in state.values() if isinstance(value, Tensor))
        return MemoryBytes(
            weights=_n_bytes(model.parameters()),
            gradients=gradients,
            optimizer=_n_bytes(kept) + _n_bytes(averages),
            activations=activations,
            peak=live.peak,
        )


def _skip_attention_dropout(model: nn.Module) -> None:
    """Leave out attention's dropout: a CPU's kernels keep the pattern for it, a GPU's fused kernel does not."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.dropout = 0.0


class _MicroBatch:
    """A micro-batch of the largest size, and its loss by the run's task."""

    def __init__(self, model: Any, train: TrainConfig, device_type: str) -> None:
        self.model, self.task = model, task_type(train.objective)
        tensors = self.task.full_batch(*part_size(model.config, train))
        self.batch = FullBatch(tensors, train, on_gpu=device_type == "cuda")

    def run(self, live: LiveBytes) -> int:
        """Run forward and backward; return the bytes that the forward pass keeps for the backward pass."""
        before = live.now
        with autocast(self.batch.tensors[0].device, self.batch.train.dtype):
            loss = self.task.full_loss(self.model, self.batch)
        activations = live.now - before
        loss.backward()
        return activations


def part_size(model: ModelConfig, train: TrainConfig) -> tuple[int, int]:
    """Return the rows in one part of a batch, and the tokens in each, where all have the model's maximum length."""
    seq_len = model.max_seq_len
    return train.objective.texts_per_part(train.batch_size, train.grad_accum_steps, seq_len), seq_len


def _update(optimizers: list[Optimizer]) -> None:
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def _n_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
