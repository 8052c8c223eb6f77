"""How weights begin: the lecture's Gaussian, Xavier, GPT-2's.

Biases begin at 0 and norms at 1 in every kind. The *outputs* are the matrices that write to the residual
stream, W_O and W_out (a block without W_O writes by W_V, which is no output in this sense).
"""

from abc import ABC, abstractmethod
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import nn

from clearformer.config import Spec
from clearformer.model.positions import LearnedPositions, RelativeBiases

OUTPUTS = ("W_O", "W_out")
HEADS = ("head", "classifier")
BIASES = ("bias", "head_bias")


class InitBase(Spec, ABC):
    """Base of the kinds of initialisation.

    Attributes:
        zero_outputs: Whether the outputs and a head of its own begin at 0: each block is then the identity at first,
            and the first prediction uniform.
    """

    zero_outputs: bool = False

    @abstractmethod
    def embedding_std(self, d_model: int) -> float:
        """Standard deviation of the token embeddings."""

    @abstractmethod
    def fill(self, weight: torch.Tensor, is_output: bool, n_layers: int) -> None:
        """Set one matrix [out in]."""

    def apply(self, model: nn.Module, n_layers: int) -> None:
        """Set every parameter of a model."""
        for name, module in model.named_modules():
            self._set_module(name.rpartition(".")[2], module, n_layers)

    @torch.no_grad()
    def _set_module(self, name: str, module: nn.Module, n_layers: int) -> None:
        if isinstance(module, nn.Linear):
            self.fill(module.weight, name in OUTPUTS, n_layers)
            if self.zero_outputs and name in (*OUTPUTS, *HEADS):
                module.weight.zero_()
        elif isinstance(module, nn.Embedding):
            module.weight.normal_(0, self.embedding_std(module.embedding_dim))
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            module.reset_parameters()
        elif isinstance(module, RelativeBiases):
            module.weight.zero_()  # all distances are alike at first
        elif isinstance(module, LearnedPositions):
            module.weight.normal_(0, self.embedding_std(module.weight.shape[1]))
        for own, parameter in module.named_parameters(recurse=False):
            if own in BIASES:
                parameter.zero_()


class Gaussian(InitBase):
    """Matrices from N(0, 1/d) with d their inputs, embeddings from N(0, 1) (lecture 000, sections 4.3 and 4.4)."""

    kind: Literal["gaussian"] = "gaussian"

    def embedding_std(self, d_model: int) -> float:
        return 1.0

    def fill(self, weight: torch.Tensor, is_output: bool, n_layers: int) -> None:
        weight.normal_(0, weight.shape[1] ** -0.5)


class Xavier(InitBase):
    """Matrices from U(-a, a) with a = sqrt(6 / (in + out)) (Glorot and Bengio 2010), embeddings from N(0, 1/d)."""

    kind: Literal["xavier"] = "xavier"

    def embedding_std(self, d_model: int) -> float:
        return d_model**-0.5

    def fill(self, weight: torch.Tensor, is_output: bool, n_layers: int) -> None:
        nn.init.xavier_uniform_(weight)


class GPT2(InitBase):
    """Everything from N(0, std²), the outputs by a further 1/sqrt(2N) for N layers (Radford et al. 2019, 2.3)."""

    kind: Literal["gpt2"] = "gpt2"
    std: PositiveFloat = 0.02

    def embedding_std(self, d_model: int) -> float:
        return self.std

    def fill(self, weight: torch.Tensor, is_output: bool, n_layers: int) -> None:
        weight.normal_(0, self.std / (2 * n_layers) ** 0.5 if is_output else self.std)


Init = Annotated[Gaussian | Xavier | GPT2, Field(discriminator="kind")]
