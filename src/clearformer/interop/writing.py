"""One of our models as a folder that transformers loads: which architecture it is, its settings and tensors."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from clearformer.config import NONE
from clearformer.errors import ConfigError
from clearformer.files import give_usual_mode
from clearformer.generate.beam import BeamSearch
from clearformer.interop.architectures import ARCHITECTURES, Architecture, Misfit, meta_weights, misfits
from clearformer.interop.reading import CONFIG, WEIGHTS
from clearformer.interop.reorder import sines_first
from clearformer.interop.tensors import to_theirs
from clearformer.model import ModelConfig
from clearformer.model.positions import Sinusoidal

GENERATION = "generation_config.json"


@dataclass(frozen=True)
class SpecialIds:
    """The ids that transformers wants to know of; None where a vocabulary has no such token.

    `start` is what a decoder that reads another text begins with.
    """

    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    start: int | None = None

    def fields(self) -> dict[str, int | None]:
        """Under their names there; absent ones too, or an architecture's own defaults would hold."""
        ids = {"bos_token_id": self.bos, "eos_token_id": self.eos, "pad_token_id": self.pad}
        return ids if self.start is None else ids | {"decoder_start_token_id": self.start}


@dataclass(frozen=True)
class Fit:
    """An architecture that a model is one of, and the model's settings in its terms.

    `config` may have biases, or weights of norms, that the model lacks: they are written as zeros and ones. With
    `reordered`, the sines of its positions come first, and the model's do not.
    """

    architecture: Architecture
    config: ModelConfig
    reordered: bool = False

    @property
    def class_name(self) -> str:
        """What transformers loads it by."""
        return self.architecture.class_name(self.config)


def fit(config: ModelConfig) -> Fit:
    """The architecture of transformers' that a model is one of.

    Raises:
        ConfigError: it is none; the message names the first setting that does not fit and what the nearest has.
    """
    reordered = config.family == "encoder-decoder" and config.position == Sinusoidal(interleaved=True)
    if reordered:
        config = config.replace(position=Sinusoidal(interleaved=False))
    candidates = [architecture for architecture in ARCHITECTURES if architecture.family == config.family]
    found: dict[Architecture, list[Misfit]] = {}
    for architecture in candidates:
        with contextlib.suppress(ConfigError):  # it cannot have these sizes at all
            found[architecture] = misfits(architecture, config)
    nearest = min(found, key=lambda architecture: len(found[architecture]))
    if found[nearest]:
        raise _does_not_fit(nearest, found[nearest])
    return Fit(nearest, nearest.nearest(config), reordered)


def _does_not_fit(nearest: Architecture, found: list[Misfit]) -> ConfigError:
    first, *others = found
    also = f" (then {', '.join(f'model.{other.setting}' for other in others)})" if others else ""
    return ConfigError(
        f"model.{first.setting}={_shown(first.ours)} does not fit: the nearest architecture that transformers has is "
        f"{nearest.title}, which has {_shown(first.theirs)} there{also}"
    )


def _shown(value: Any) -> str:
    return NONE if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def foreign_tensors(fitted: Fit, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A model's tensors by their names there."""
    whole = completed(fitted.config, sines_first(weights) if fitted.reordered else weights)
    theirs = to_theirs(fitted.architecture.places(fitted.config), whole)
    return theirs | fitted.architecture.constants(fitted.config)


def completed(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights and, for what a model has besides, numbers that change nothing: a norm's ones, other zeros."""
    whole = dict(weights)
    for name, meta in meta_weights(config).items():
        if name not in whole:
            of_a_norm = meta.dim() == 1 and name.endswith(".weight")
            whole[name] = torch.ones(meta.shape) if of_a_norm else torch.zeros(meta.shape)
    return whole


def write_model(
    folder: Path,
    fitted: Fit,
    weights: Mapping[str, Tensor],
    ids: SpecialIds,
    labels: Sequence[str] | None = None,
) -> None:
    """Write config.json, generation_config.json and model.safetensors into a folder.

    `labels` are the names of a classifier's classes.

    Raises:
        OSError: it cannot be written.
    """
    fields: dict[str, Any] = {
        "architectures": [fitted.class_name],
        "model_type": fitted.architecture.model_type,
        "dtype": "float32",
        **fitted.architecture.write(fitted.config),
        **ids.fields(),
    }
    if labels is not None and fitted.config.n_classes is not None:
        fields["id2label"] = {str(number): label for number, label in enumerate(labels)}
        fields["label2id"] = {label: number for number, label in enumerate(labels)}
    write_json(folder / CONFIG, dict(sorted(fields.items())))
    if fitted.config.family != "encoder":
        write_json(folder / GENERATION, _generation(fitted.config, ids))
    try:
        save_file(foreign_tensors(fitted, weights), folder / WEIGHTS, metadata={"format": "pt"})
        give_usual_mode(folder / WEIGHTS)
    except SafetensorError as error:  # the library's own, where a disk is full
        raise OSError(str(error)) from error


def _generation(config: ModelConfig, ids: SpecialIds) -> dict[str, Any]:
    """How texts are written where nothing else is said: as `clearformer translate` does it, or greedily."""
    fields: dict[str, Any] = {name: i for name, i in ids.fields().items() if i is not None}
    if config.family == "encoder-decoder":
        search = BeamSearch()
        fields |= {"num_beams": search.beams, "length_penalty": search.length_penalty.alpha}
        fields |= {"early_stopping": search.early_stopping, "max_length": config.max_seq_len}
    return fields


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """A JSON file."""
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
