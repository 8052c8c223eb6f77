"""Writing a model of ours as a folder that transformers loads: settings and tensors under its names."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from clearformer.decoding.beam import BeamSearch
from clearformer.interop.mapping.matching import ArchitectureMatch
from clearformer.interop.mapping.tensors import in_float32, to_theirs
from clearformer.interop.reading import CONFIG, GENERATION, WEIGHTS
from clearformer.training.store.checkpoint import write_tensors


@dataclass(frozen=True)
class SpecialIds:
    """The ids of the special tokens that transformers asks for; None if a vocabulary has no such token.

    `start` is the first token of the decoder in an encoder-decoder.
    """

    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    start: int | None = None

    def fields(self) -> dict[str, int | None]:
        """Return the ids by their names in config.json; absent ones too, which would otherwise get defaults."""
        ids = {"bos_token_id": self.bos, "eos_token_id": self.eos, "pad_token_id": self.pad}
        return ids if self.start is None else ids | {"decoder_start_token_id": self.start}


def foreign_tensors(fitted: ArchitectureMatch, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a model's tensors, in float32, by their names in transformers."""
    theirs = to_theirs(fitted.architecture.places(fitted.config), fitted.weights(in_float32(weights)))
    return theirs | fitted.architecture.constants(fitted.config)


def write_model(
    folder: Path,
    fitted: ArchitectureMatch,
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
        write_json(folder / GENERATION, _generation(fitted, ids))
    write_tensors(foreign_tensors(fitted, weights), folder / WEIGHTS, {"format": "pt"})


def _generation(fitted: ArchitectureMatch, ids: SpecialIds) -> dict[str, Any]:
    """Return the default generation settings: those of `clearformer translate`, or greedy decoding."""
    config = fitted.config
    fields: dict[str, Any] = {name: i for name, i in ids.fields().items() if i is not None}
    if config.family == "encoder-decoder":
        search = BeamSearch()
        fields |= {"num_beams": search.beams, "length_penalty": search.length_penalty.alpha}
        fields |= {"early_stopping": search.early_stopping, "max_length": config.max_seq_len}
        if ids.pad is not None and ids.pad != ids.eos:
            fields["suppress_tokens"] = [ids.pad]  # which no translation here contains
    if not fitted.architecture.has_their_cache(config):
        fields["use_cache"] = False
    return fields


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
