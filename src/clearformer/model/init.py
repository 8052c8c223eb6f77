"""Initial weights: the lecture's Gaussian, torch's own, Xavier, GPT-2's.

Each module's numbers are drawn on the CPU from a seed and the module's name. A model therefore starts with the same
bits on any device, in any order of its modules, and where a process sets only some of them.

Norms start at 1, and biases at 0 in every kind but `torch`. The *outputs* are the matrices that write to the residual
stream, W_O and W_out (W_V, by which a block without W_O writes, does not count).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from hashlib import blake2b
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Generator, Tensor, nn

from clearformer.config import Spec
from clearformer.model.positions import LearnedPositions
from clearformer.model.relative_positions import RelativeBiases

OUTPUTS = ("W_O", "W_out")
HEADS = ("head", "classifier")
BIASES = ("bias", "head_bias")
SET = (nn.Linear, nn.Embedding, LearnedPositions, nn.LayerNorm, nn.RMSNorm, RelativeBiases)
"""The modules whose weights and biases `InitBase.apply` sets; of others it sets only biases."""


class InitBase(Spec, ABC):
    """Base of the kinds of initialisation.

    Attributes:
        zero_outputs: Whether the outputs and an untied head start at 0: a block with placement `pre` or `none` is then
            the identity at first, if what it adds passes through W_O and W_out, and the first prediction uniform if
            the head is untied. Needs `model.residual`.
    """

    zero_outputs: bool = False

    @abstractmethod
    def embedding_std(self, d_model: int) -> float:
        """Return the standard deviation of the embeddings."""

    @abstractmethod
    def fill(self, weight: Tensor, is_output: bool, n_layers: int, numbers: Generator) -> None:
        """Fill one matrix [out in] from the generator."""

    def fill_bias(self, bias: Tensor, n_inputs: int, numbers: Generator) -> None:
        """Fill the bias of one matrix [out]: with 0, unless a kind overrides it."""
        bias.zero_()

    @torch.no_grad()
    def apply(self, model: nn.Module, n_layers: int, seed: int) -> None:
        """Set every parameter of a model, on any device."""
        for path, module in model.named_modules():
            self._set_module(path, module, n_layers, seed)

    def _set_module(self, path: str, module: nn.Module, n_layers: int, seed: int) -> None:
        name, numbers = path.rpartition(".")[2], generator_of(seed, path)
        if isinstance(module, nn.Linear) and self.zero_outputs and name in (*OUTPUTS, *HEADS):
            module.weight.zero_()
        elif isinstance(module, nn.Linear):
            draw(module.weight, lambda w: self.fill(w, name in OUTPUTS, n_layers, numbers))
            if module.bias is not None:
                draw(module.bias, lambda b: self.fill_bias(b, module.in_features, numbers))
            return
        elif isinstance(module, nn.Embedding | LearnedPositions):
            std = self.embedding_std(module.weight.shape[1])
            draw(module.weight, lambda w: w.normal_(0, std, generator=numbers))
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            module.reset_parameters()
        elif isinstance(module, RelativeBiases):
            module.weight.zero_()  # all distances start alike
        for own, parameter in module.named_parameters(recurse=False):
            if own in BIASES:
                parameter.zero_()


def names_set(model: nn.Module) -> set[str]:
    """Return the names of the parameters that `InitBase.apply` sets."""
    return {
        f"{path}.{name}".removeprefix(".")
        for path, module in model.named_modules(remove_duplicate=False)
        for name, _ in module.named_parameters(recurse=False)
        if name in BIASES or (name == "weight" and isinstance(module, SET))
    }


def generator_of(seed: int, path: str) -> Generator:
    """Return the random number generator of one module of a model."""
    digest = blake2b(f"{seed}/{path}".encode(), digest_size=8).digest()
    return Generator(device="cpu").manual_seed(int.from_bytes(digest, "little"))


def draw(parameter: Tensor, fill: Callable[[Tensor], object]) -> None:
    """Fill a tensor on the CPU and copy it to the parameter's device; a parameter on meta is left alone."""
    if parameter.is_meta:
        return
    values = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
    fill(values)
    parameter.copy_(values)


class Gaussian(InitBase):
    """Matrices from N(0, 1/d) with d their inputs, embeddings from N(0, 1) (lecture 000, sections 4.3 and 4.4)."""

    kind: Literal["gaussian"] = "gaussian"

    def embedding_std(self, d_model: int) -> float:
        return 1.0

    def fill(self, weight: Tensor, is_output: bool, n_layers: int, numbers: Generator) -> None:
        weight.normal_(0, weight.shape[1] ** -0.5, generator=numbers)


class Torch(InitBase):
    """The default of torch's layers, which lecture 000's code uses (section 5.5): embeddings from N(0, 1).

    Matrices and their biases are from U(-1/sqrt(d), 1/sqrt(d)), d their inputs: a third of the variance of N(0, 1/d).
    """

    kind: Literal["torch"] = "torch"

    def embedding_std(self, d_model: int) -> float:
        return 1.0

    def fill(self, weight: Tensor, is_output: bool, n_layers: int, numbers: Generator) -> None:
        self.fill_bias(weight, weight.shape[1], numbers)

    def fill_bias(self, bias: Tensor, n_inputs: int, numbers: Generator) -> None:
        bound = n_inputs**-0.5
        bias.uniform_(-bound, bound, generator=numbers)


class Xavier(InitBase):
    """Matrices of variance 2 / (in + out), from U(-a, a) with a = sqrt(6 / (in + out)); embeddings from N(0, 1/d).

    Glorot and Bengio 2010; lecture 002, section 9.
    """

    kind: Literal["xavier"] = "xavier"

    def embedding_std(self, d_model: int) -> float:
        return d_model**-0.5

    def fill(self, weight: Tensor, is_output: bool, n_layers: int, numbers: Generator) -> None:
        nn.init.xavier_uniform_(weight, generator=numbers)


class GPT2(InitBase):
    """Everything from N(0, std²), the outputs scaled by 1/sqrt(2N) for N layers (Radford et al. 2019, 2.3).

    Lecture 002, section 9.
    """

    kind: Literal["gpt2"] = "gpt2"
    std: PositiveFloat = 0.02

    def embedding_std(self, d_model: int) -> float:
        return self.std

    def fill(self, weight: Tensor, is_output: bool, n_layers: int, numbers: Generator) -> None:
        weight.normal_(0, self.std / (2 * n_layers) ** 0.5 if is_output else self.std, generator=numbers)


Init = Annotated[Gaussian | Torch | Xavier | GPT2, Field(discriminator="kind")]
