"""Find the architecture of transformers' that computes what a model computes, or the settings that differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearformer.config import NONE
from clearformer.errors import ConfigError
from clearformer.interop.architectures import ARCHITECTURES, Architecture, Mismatch, meta_weights, mismatches
from clearformer.interop.mapping.rewriting import Form, forms
from clearformer.model import ModelConfig


@dataclass(frozen=True)
class ArchitectureMatch:
    """An architecture that a model is one of, and the model's settings in its terms.

    Attributes:
        architecture: Which it is.
        config: The settings there. It may have biases, or weights of norms, that the model lacks.
        form: The words in which the model is one of them.
    """

    architecture: Architecture
    config: ModelConfig
    form: Form

    @property
    def class_name(self) -> str:
        """The name of transformers' class for it."""
        return self.architecture.class_name(self.config)

    def weights(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A model's weights as `config` has them; what it has besides is given numbers that change nothing."""
        whole = self.form.weights(ours)
        for name, meta in meta_weights(self.config).items():
            if name not in whole:
                of_a_norm = meta.dim() == 1 and name.endswith(".weight")
                whole[name] = torch.ones(meta.shape) if of_a_norm else torch.zeros(meta.shape)
        return whole


def match_architecture(config: ModelConfig) -> ArchitectureMatch:
    """The architecture of transformers' that a model is one of, as it is or in other words.

    Raises:
        ConfigError: it is none; the message names the settings that differ from the nearest's.
    """
    found: list[tuple[Architecture, list[Mismatch]]] = []
    refused: list[ConfigError] = []
    for form in forms(config):
        for architecture in (each for each in ARCHITECTURES if each.family == config.family):
            try:
                wrong = mismatches(architecture, form.config)
            except ConfigError as error:  # it cannot have these sizes at all
                refused.append(error)
                continue
            if not wrong:
                return ArchitectureMatch(architecture, architecture.nearest(form.config), form)
            found.append((architecture, wrong))
    if not found:
        raise ConfigError(f"transformers has no architecture of these sizes: {refused[0]}")
    raise _does_not_fit(*min(found, key=lambda each: _distance(each[1])))


def _distance(wrong: Sequence[Mismatch]) -> tuple[int, int]:
    """How far an architecture is; of two in which as many settings differ, one of other kinds is the farther."""
    return len(wrong), sum(mismatch.setting.endswith(".kind") for mismatch in wrong)


def _does_not_fit(nearest: Architecture, wrong: Sequence[Mismatch]) -> ConfigError:
    first, *others = wrong
    also = "".join(
        f", and model.{other.setting}={_shown(other.theirs)} instead of {_shown(other.ours)}"
        for other in others
    )
    return ConfigError(
        f"model.{first.setting}={_shown(first.ours)} does not fit: the nearest architecture in transformers, "
        f"{nearest.title}, has {_shown(first.theirs)} there{also}"
    )


def _shown(value: Any) -> str:
    return NONE if value is None else str(value).lower() if isinstance(value, bool) else str(value)
