"""The interface of a foreign architecture, and the settings in which a model of ours differs from it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from clearformer.config import Spec
from clearformer.interop.mapping.fields import Fields
from clearformer.interop.mapping.tensors import Rule, TensorMap, tensor_maps
from clearformer.model import ModelConfig, build_on_meta
from clearformer.model.attention import MultiHead
from clearformer.model.config import Family
from clearformer.model.feedforward import GEGLU, GELU, FeedForwardSpec, ReLU, ReLU2, SiLU, SwiGLU
from clearformer.model.norms import Norm

ACTIVATIONS: dict[str, FeedForwardSpec] = {
    "gelu": GELU(),
    "gelu_new": GELU(approximate="tanh"),
    "gelu_pytorch_tanh": GELU(approximate="tanh"),
    "gelu_fast": GELU(approximate="tanh"),
    "relu": ReLU(),
    "relu2": ReLU2(),
    "silu": SiLU(),
    "swish": SiLU(),
}
GATED_ACTIVATIONS: dict[str, FeedForwardSpec] = {
    "silu": SwiGLU(),
    "swish": SwiGLU(),
    "gelu_pytorch_tanh": GEGLU(approximate="tanh"),
    "gelu_new": GEGLU(approximate="tanh"),
    "gelu": GEGLU(approximate="none"),
}

# Parts that theirs may have and ours lacks: the added weights change nothing (zeros, and ones for norms).
COMPLETED: dict[str, Sequence[tuple[Any, Any]]] = {
    "attention.qkv_bias": [(False, True)],
    "attention.output_bias": [(False, True)],
    "attention.qk_norm.learned": [(False, True)],
    "norm.bias": [(False, True)],
    "norm.learned": [(False, True)],
    "ffn.bias": [(False, True)],
    "head_bias": [(False, True)],
    "n_token_types": [(0, 1)],
}
TRAINING_ONLY = ("dropout", "init")


class Architecture(ABC):
    """An architecture of transformers that settings of ours can express.

    If the settings fit, `read` and `write` are inverses. If not, `read(write(config))` is the nearest configuration
    that the architecture has, and the settings in which the two differ do not fit.
    """

    title: ClassVar[str]
    """The name that people use."""
    model_type: ClassVar[str]
    """The name in config.json."""
    family: ClassVar[Family]
    prefix: ClassVar[str]
    """Prefix of tensor names in a file saved with a head; files without a head lack it."""
    older_names: ClassVar[Mapping[str, str]] = {}
    """Suffixes of tensor names, with the suffixes that older files have instead."""
    aliases: ClassVar[Mapping[str, str]] = {}
    """Other names by which transformers reads fields of config.json, and the fields' own names."""
    ignored: ClassVar[Sequence[str]] = ()
    """Patterns of tensors in files that follow from the settings or belong to another head."""

    @abstractmethod
    def class_name(self, config: ModelConfig) -> str:
        """Return the name of transformers' class that loads the model."""

    @abstractmethod
    def read(self, fields: Fields, names: frozenset[str] = frozenset()) -> ModelConfig:
        """Convert a config.json, and the names of the tensors next to it, to our settings.

        Raises:
            ConfigError: a field does not fit our model; the message names it.
        """

    @abstractmethod
    def write(self, config: ModelConfig) -> dict[str, Any]:
        """Convert our settings, or the nearest that the architecture has, to a config.json."""

    @abstractmethod
    def rules(self, config: ModelConfig) -> list[Rule]:
        """Return the rules that map our tensors to theirs."""

    def tables(self, config: ModelConfig) -> dict[str, Tensor]:
        """Return tensors that follow from the settings; a file that holds them must have the same values."""
        return {}

    def constants(self, config: ModelConfig) -> dict[str, Tensor]:
        """Return those `tables` that transformers needs in a file."""
        return {}

    def has_their_cache(self, config: ModelConfig) -> bool:
        """Whether transformers' cache of keys and values is right for such a model."""
        return True

    def nearest(self, config: ModelConfig) -> ModelConfig:
        """Return the nearest settings that this architecture has."""
        return self.read(Fields(self.write(config)))

    def places(self, config: ModelConfig) -> list[TensorMap]:
        """Return the place of each tensor of a model in their files."""
        n_layers = max(config.n_layers, config.decoder_layers)
        return tensor_maps(self.rules(config), meta_weights(config), n_layers)


def meta_weights(config: ModelConfig) -> dict[str, Tensor]:
    """Return a model's tensors on the meta device: names and shapes without contents."""
    return build_on_meta(config).state_dict()


# --- settings that do not fit -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Mismatch:
    """A setting that an architecture does not have."""

    setting: str
    ours: Any
    theirs: Any


def mismatches(architecture: Architecture, config: ModelConfig) -> list[Mismatch]:
    """Return the settings in which the architecture's nearest differ from ours, in the order of `ModelConfig`."""
    ours, theirs = effective_settings(config), effective_settings(architecture.nearest(config))
    return list(_differences(ours, theirs))


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> Iterator[Mismatch]:
    for name, value in ours.items():
        setting, other = prefix + name, theirs.get(name)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            if value.get("kind") != other.get("kind"):
                yield Mismatch(f"{setting}.kind", value.get("kind"), other.get("kind"))
            else:
                yield from _differences(value, other, f"{setting}.")
        elif value != other and (value, other) not in COMPLETED.get(setting, ()):
            yield Mismatch(setting, value, other)


def effective_settings(config: ModelConfig) -> dict[str, Any]:
    """Return the settings that affect what a model computes, with defaults filled in."""
    settings: dict[str, Any] = config.model_dump()
    for name in TRAINING_ONLY:
        del settings[name]
    for name in _without_effect(config):
        del settings[name]
    settings["ffn"].pop("dropout", None)
    settings["n_decoder_layers"] = config.decoder_layers
    if hasattr(config.ffn, "width"):
        settings["ffn"]["d_ff"] = d_ff(config)
    if isinstance(config.attention, MultiHead):
        n_heads, d_head = config.attention.heads(config.d_model)
        n_kv_heads = config.attention.n_key_value_heads
        settings["attention"] |= {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "d_head": d_head}
    return settings


def _without_effect(config: ModelConfig) -> Sequence[str]:
    """Return the settings of heads that an encoder lacks: it scores either tokens or classes."""
    if config.family != "encoder":
        return ()
    if config.n_classes is None:
        return ("pooling",)
    return ("tie_embeddings", "head_bias", "scale_logits", "logit_soft_cap", "masked_head")


# --- shared by several architectures ----------------------------------------------------------------------


def d_ff(config: ModelConfig) -> int:
    """Return the width of the feed-forward network; four times the model's if it has none."""
    width = getattr(config.ffn, "width", lambda d_model: 4 * d_model)
    return width(config.d_model)


def setting(spec: Spec, name: str, default: Any) -> Any:
    """Return a setting of a part, or `default` if its kind lacks the setting (the kind then does not fit anyway)."""
    return getattr(spec, name, default)


def activation_name(ffn: FeedForwardSpec, table: Mapping[str, FeedForwardSpec]) -> str:
    """Return their name of the activation function; the table's first if it has no such function."""
    plain = [name for name, spec in table.items() if _same_function(ffn, spec)]
    return plain[0] if plain else next(iter(table))


def _same_function(ffn: FeedForwardSpec, other: FeedForwardSpec) -> bool:
    return ffn.kind == other.kind and setting(ffn, "approximate", "") == setting(other, "approximate", "")


def head_size(fields: Fields, d_model: int, heads_field: str, default: int) -> tuple[int, int]:
    """Return the number of heads and the size of each; the heads must divide the model's width."""
    n_heads = fields.whole(heads_field, default)
    if d_model % n_heads:
        fields.refuse(heads_field, f"{n_heads} heads do not divide the width of {d_model}")
    return n_heads, d_model // n_heads


def dividing_heads(config: ModelConfig) -> int:
    """Return the number of heads if they divide the model's width, as these architectures require; else one."""
    n_heads, _ = config.attention.heads(config.d_model)
    return 1 if config.d_model % n_heads else n_heads


def norm_eps(norm: Norm, default: float) -> float:
    """Return the norm's eps; the default if it has none."""
    return setting(norm, "eps", default)
