"""Finding the architecture of transformers that computes the same as a model, or the settings that differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearformer.config import as_written
from clearformer.errors import ConfigError
from clearformer.interop.architectures import ARCHITECTURES, Architecture, Mismatch, meta_weights, mismatches
from clearformer.interop.mapping.rewriting import Form, forms
from clearformer.model import ModelConfig


@dataclass(frozen=True, repr=False)
class ArchitectureMatch:
    """An architecture that fits a model, and the model's settings in it.

    Attributes:
        architecture: The architecture.
        config: The settings in it. They may have biases, or weights of norms, that the model lacks.
        form: The form of the model that fits.
    """

    architecture: Architecture
    config: ModelConfig
    form: Form

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.class_name})"

    @property
    def class_name(self) -> str:
        """The name of transformers' class for it."""
        return self.architecture.class_name(self.config)

    def weights(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert a model's weights to those of `config`; added weights are ones and zeros that change nothing."""
        whole = self.form.weights(ours)
        for name, meta in meta_weights(self.config).items():
            if name not in whole:
                of_a_norm = meta.dim() == 1 and name.endswith(".weight")
                whole[name] = torch.ones(meta.shape) if of_a_norm else torch.zeros(meta.shape)
        return whole


def match_architecture(config: ModelConfig) -> ArchitectureMatch:
    """Find the architecture of transformers that fits a model, as it is or in another form (see `forms`).

    Raises:
        ConfigError: none fits; the message names the settings that differ from the nearest.
    """
    found: list[tuple[Architecture, list[Mismatch]]] = []
    refused: list[ConfigError] = []
    for form in forms(config):
        for architecture in (each for each in ARCHITECTURES if each.family == config.family):
            try:
                wrong = mismatches(architecture, form.config)
            except ConfigError as error:  # the architecture cannot have these sizes
                refused.append(error)
                continue
            if not wrong:
                return ArchitectureMatch(architecture, architecture.nearest(form.config), form)
            found.append((architecture, wrong))
    if not found:
        raise ConfigError(f"transformers has no architecture of these sizes: {refused[0]}")
    raise _does_not_fit(*min(found, key=lambda each: _distance(each[1])))


def _distance(wrong: Sequence[Mismatch]) -> tuple[int, int]:
    """Return a sort key for the nearest architecture: the number of differing settings, then of differing kinds."""
    return len(wrong), sum(mismatch.setting.endswith(".kind") for mismatch in wrong)


def _does_not_fit(nearest: Architecture, wrong: Sequence[Mismatch]) -> ConfigError:
    first, *others = wrong
    also = "".join(
        f", and model.{other.setting}={as_written(other.theirs)} instead of {as_written(other.ours)}"
        for other in others
    )
    return ConfigError(
        f"model.{first.setting}={as_written(first.ours)} does not fit: the nearest architecture in transformers, "
        f"{nearest.title}, has {as_written(first.theirs)} there{also}"
    )
