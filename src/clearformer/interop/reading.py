"""Reading a folder that transformers saved as one of our models.

    config.json          the architecture and its sizes
    model.safetensors    the tensors, or several files with model.safetensors.index.json to say which is where

Only data is read; nothing is executed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clearformer.errors import (
    CheckpointError,
    ConfigError,
    RunError,
    SettingError,
    did_you_mean,
    shortened,
    shown,
)
from clearformer.files import parse_json
from clearformer.interop.architectures import ARCHITECTURES, Architecture, meta_weights
from clearformer.interop.architectures.base import d_ff, setting
from clearformer.interop.mapping.fields import Fields
from clearformer.interop.mapping.tensors import TensorMap, shapes_of, to_ours
from clearformer.model import ModelConfig
from clearformer.model.positions import RoPE, Sinusoidal

CONFIG = "config.json"
GENERATION = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
FLOATS = ("F16", "BF16", "F32", "F64")
PLAUSIBLE = 1 << 20  # the largest size in config.json that is accepted if no tensor is as large
LARGEST_TABLE = 1 << 28  # numbers in a table of positions: 1 GB
ROUNDED = 4e-3  # what bfloat16 may take from a number of at most 1
CODE_FIELDS = ("auto_map", "trust_remote_code", "custom_pipelines")


@dataclass(frozen=True)
class ForeignModel:
    """A model read from a folder: its architecture, settings and weights in our terms, and its config.json."""

    architecture: Architecture
    config: ModelConfig
    weights: dict[str, Tensor]
    fields: Fields


def read_model(folder: Path) -> ForeignModel:
    """Read the model in a folder.

    Raises:
        RunError: the folder holds no model, or one in files that could hold code.
        ConfigError: config.json is invalid, or needs code, or settings that our models lack.
        CheckpointError: the tensors are damaged, or do not match config.json.
    """
    fields = read_fields(folder)
    architecture = architecture_of(fields)
    fields = fields.renamed(architecture.aliases)
    fields.only("is_causal", architecture.family != "encoder")
    files = _Tensors(folder)
    config = _settings(architecture, fields, frozenset(files.shapes))
    _check_sizes(fields, config, list(files.shapes.values()))
    places = architecture.places(config)
    shapes = shapes_of(places, meta_weights(config))
    names = _names_there(files, architecture, places)
    _check_shapes(files, names, shapes)
    theirs = {
        name: files.load(names[name]) if name in names else torch.zeros(shape)
        for name, shape in shapes.items()
    }
    _check_finite(files, names, theirs)
    _check_copies_equal(files, architecture, places, theirs)
    _check_tables(files, architecture, config)
    return ForeignModel(architecture, config, to_ours(places, theirs), fields)


def read_fields(folder: Path) -> Fields:
    """Read the config.json of a folder, and refuse one that needs code or is of a quantised model."""
    try:
        names = {path.name for path in folder.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{folder}: there is no such folder; give one with {CONFIG} and {WEIGHTS}") from None
    except OSError as error:
        raise RunError(f"{folder} cannot be read: {error.strerror}; give a folder with {CONFIG}") from None
    if CONFIG not in names:
        raise RunError(f"{folder} is not a model's folder: it has no {CONFIG}")
    path = folder / CONFIG
    fields = Fields(read_json(path), str(path))
    for name in CODE_FIELDS:
        if fields.get(name):
            fields.refuse(
                name, "the model needs code of its own, which is not run; only built-in kinds are read"
            )
    if fields.get("quantization_config"):
        fields.refuse("quantization_config", "quantised models are not read; use the one it was made from")
    return fields


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        ConfigError: it cannot be read, or holds no object.
    """
    try:
        document = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not JSON; download it again") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; download it again") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: not a JSON object; download it again")
    return document


def architecture_of(fields: Fields) -> Architecture:
    """Return the architecture that a config.json names.

    Raises:
        ConfigError: there is none of that name; the message suggests the nearest one.
    """
    known = {architecture.model_type: architecture for architecture in ARCHITECTURES}
    model_type = fields.get("model_type")
    if not isinstance(model_type, str) or model_type not in known:
        hint = did_you_mean(model_type, known) if isinstance(model_type, str) else ""
        fields.refuse("model_type", f"{shown(model_type)} is none of {', '.join(known)}{hint}")
    return known[model_type]


def _settings(architecture: Architecture, fields: Fields, names: frozenset[str]) -> ModelConfig:
    try:
        return architecture.read(fields, names)
    except SettingError as error:  # a number outside our model's own bounds
        raise ConfigError(f"{fields.place}: model.{error}") from None
    except ConfigError as error:
        if not str(error).startswith("model."):
            raise
        raise ConfigError(f"{fields.place}: {error}") from None  # numbers that do not fit each other


def _check_sizes(fields: Fields, config: ModelConfig, shapes: Sequence[tuple[int, ...]]) -> None:
    """Refuse sizes that no tensor supports, before a model of these sizes is built, even on the meta device."""
    n_layers = max(config.n_layers, config.decoder_layers)
    if n_layers > len(shapes):
        raise CheckpointError(
            f"{fields.place} says {n_layers} layers, but its files hold {len(shapes)} tensors"
        )
    n_heads, d_head = config.attention.heads(config.d_model)
    sizes = {
        "vocab_size": config.vocab_size or 0,
        "d_model": config.d_model,
        "ffn.d_ff": d_ff(config),
        "attention.n_heads": n_heads,
        "attention.d_head": d_head,
        "position.n_buckets": setting(config.position, "n_buckets", 0),
        "n_token_types": config.n_token_types,
    }
    largest = max((size for shape in shapes for size in shape), default=0)
    for name, size in sizes.items():
        if size > max(largest, PLAUSIBLE):
            raise CheckpointError(
                f"{fields.place} says {size:,} for model.{name}, but no tensor in its files is that large"
            )
    width = d_head if isinstance(config.position, RoPE) else config.d_model
    if isinstance(config.position, RoPE | Sinusoidal) and config.max_seq_len * width > LARGEST_TABLE:
        raise ConfigError(
            f"{fields.place} says {config.max_seq_len:,} positions, which need a table of {width} numbers each; "
            f"put {LARGEST_TABLE // width:,} or fewer there"
        )


# --- the places of tensors --------------------------------------------------------------------------------


def _names_there(
    files: "_Tensors", architecture: Architecture, places: Iterable[TensorMap]
) -> dict[str, str]:
    """Return each tensor's name in these files, by its name in a file with a head."""
    names = {}
    for place in places:
        found = [files.find(name, architecture) for name in (place.theirs, *place.copies)]
        there = next((name for name in found if name is not None), None)  # of a tied tensor any one is enough
        if there is not None:
            names[place.theirs] = there
        elif not place.optional:
            raise CheckpointError(
                f"{files.place}: the tensor {place.theirs} of a {architecture.title} is missing"
            )
    copies = [copy for place in places for copy in place.copies]
    known = {*names.values(), *(files.find(copy, architecture) for copy in copies)}
    for name in files.shapes:
        full = architecture.prefix + name.removeprefix(architecture.prefix)
        ignored = any(re.fullmatch(pattern, one) for pattern in architecture.ignored for one in (name, full))
        if name not in known and not ignored:
            raise CheckpointError(
                f"{files.place}: a {architecture.title} of this {CONFIG} has no tensor {shortened(name)}"
            )
    return names


def _check_shapes(files: "_Tensors", names: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, there in names.items():
        found, dtype = files.shapes[there], files.dtypes[there]
        if found != shapes[name]:
            raise CheckpointError(
                f"{files.place}: the tensor {there} is {list(found)}, but by {CONFIG} it must be {list(shapes[name])}"
            )
        if dtype not in FLOATS:
            raise CheckpointError(
                f"{files.place}: the tensor {there} is of type {dtype}; only unquantised numbers are read"
            )


def _check_finite(files: "_Tensors", names: Mapping[str, str], theirs: Mapping[str, Tensor]) -> None:
    """Refuse weights of a training that diverged, and numbers that were damaged."""
    for name, there in names.items():
        if not theirs[name].isfinite().all():
            raise CheckpointError(
                f"{files.place}: the tensor {there} has numbers that are not finite; "
                "download it again, or take an earlier checkpoint"
            )


def _check_copies_equal(
    files: "_Tensors", architecture: Architecture, places: Iterable[TensorMap], theirs: Mapping[str, Tensor]
) -> None:
    """Refuse files that hold tied tensors under both names with different values."""
    for place in places:
        for copy in place.copies:
            there = files.find(copy, architecture)
            if there is not None and not torch.equal(files.load(there), theirs[place.theirs]):
                raise CheckpointError(
                    f"{files.place}: {there} differs from {place.theirs}, to which {CONFIG} ties it"
                )


def _check_tables(files: "_Tensors", architecture: Architecture, config: ModelConfig) -> None:
    """Refuse files with other values, such as trained ones, where our model computes a tensor from the settings."""
    for name, table in architecture.tables(config).items():
        there = files.find(name, architecture)
        if there is None:
            continue
        held = files.load(there)
        if held.shape != table.shape or not torch.allclose(held, table, rtol=0, atol=ROUNDED):
            raise CheckpointError(
                f"{files.place}: {there} does not hold the sines and cosines that clearformer's {architecture.title} "
                "computes"
            )


class _Tensors:
    """The tensors of a folder's safetensors files: all shapes are read at once, contents one by one."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / (WEIGHTS if (folder / WEIGHTS).is_file() else INDEX)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        self._files: dict[str, Any] = {}
        for path in _weight_files(folder):
            for name, shape, dtype, file in _opened(path):
                if name in self.shapes:
                    raise CheckpointError(
                        f"{path}: the tensor {shortened(name)} is in another file of {self.place} too; "
                        "download them again"
                    )
                self.shapes[name], self.dtypes[name] = shape, dtype
                self._files[name] = partial(_tensor, path, file, name)

    def find(self, name: str, architecture: Architecture) -> str | None:
        """Return a tensor's name in these files: it may lack the prefix of a head, or have an older suffix."""
        candidates = [name, name.removeprefix(architecture.prefix)]
        for ending, older in architecture.older_names.items():
            candidates += [each.removesuffix(ending) + older for each in candidates if each.endswith(ending)]
        return next((candidate for candidate in candidates if candidate in self.shapes), None)

    def load(self, name: str) -> Tensor:
        """Load a tensor in float32."""
        return self._files[name]()


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():  # first, as in transformers, which leaves the index of an earlier save
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        return _sharded_files(folder)
    for name in PICKLED:
        if (folder / name).is_file():
            raise RunError(
                f"{folder / name}: only safetensors files are read, because others can contain code; "
                f"save the model again as {WEIGHTS}"
            )
    raise RunError(f"{folder} has no {WEIGHTS}")


def _sharded_files(folder: Path) -> list[Path]:
    where = read_json(folder / INDEX).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
        raise CheckpointError(f"{folder / INDEX}: weight_map: expected names of tensors and files")
    names = sorted(set(where.values()))
    beside = {path.name for path in folder.iterdir() if path.is_file()}
    if absent := [name for name in names if name not in beside]:
        raise CheckpointError(f"{folder / INDEX}: there is no file {shown(absent[0])} beside it")
    return [folder / name for name in names]


def _opened(path: Path) -> Iterator[tuple[str, tuple[int, ...], str, Any]]:
    try:
        file = safe_open(path, framework="pt")
        for name in file.keys():  # noqa: SIM118  (it is not a mapping)
            tensor = file.get_slice(name)
            yield name, tuple(tensor.get_shape()), tensor.get_dtype(), file
    except (SafetensorError, OSError) as error:
        _damaged(path, error)


def _tensor(path: Path, file: Any, name: str) -> Tensor:
    try:
        return file.get_tensor(name).to(torch.float32)
    except SafetensorError as error:
        _damaged(path, error)


def _damaged(path: Path, error: Exception) -> NoReturn:
    raise CheckpointError(
        f"{path}: damaged, not a complete safetensors file ({shortened(str(error))}); download it again"
    ) from None
