"""The description of a foreign architecture, and the settings in which a model of ours differs from it."""

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

# Settings that ours may lack where theirs has them: what is added changes nothing (zeros, and norms' ones).
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
    """A model of transformers' that is one of ours in other words.

    `read` and `write` are inverse where the settings fit. Where they do not, `read(write(config))` is the nearest
    that the architecture has, and the settings in which the two differ do not fit.
    """

    title: ClassVar[str]
    """As people call it."""
    model_type: ClassVar[str]
    """As config.json calls it."""
    family: ClassVar[Family]
    prefix: ClassVar[str]
    """Prefix of the tensors' names in a file that was saved with a head, absent in one without."""
    older_names: ClassVar[Mapping[str, str]] = {}
    """Endings of tensors' names, and what they were in older files."""
    ignored: ClassVar[Sequence[str]] = ()
    """Patterns of tensors that files hold and that follow from the settings or belong to another head."""

    @abstractmethod
    def class_name(self, config: ModelConfig) -> str:
        """The class that loads it."""

    @abstractmethod
    def read(self, fields: Fields, names: frozenset[str] = frozenset()) -> ModelConfig:
        """Our settings, of a config.json and the names of the tensors beside it.

        Raises:
            ConfigError: a field does not fit our model; the message names it.
        """

    @abstractmethod
    def write(self, config: ModelConfig) -> dict[str, Any]:
        """A config.json of our settings, or of the nearest there are."""

    @abstractmethod
    def rules(self, config: ModelConfig) -> list[Rule]:
        """Where each tensor of ours is."""

    def constants(self, config: ModelConfig) -> dict[str, Tensor]:
        """Tensors that follow from the settings, and that a file holds all the same."""
        return {}

    def nearest(self, config: ModelConfig) -> ModelConfig:
        """Our settings as this architecture would have them."""
        return self.read(Fields(self.write(config)))

    def places(self, config: ModelConfig) -> list[TensorMap]:
        """Where each tensor of a model is."""
        n_layers = max(config.n_layers, config.decoder_layers)
        return tensor_maps(self.rules(config), meta_weights(config), n_layers)


def meta_weights(config: ModelConfig) -> dict[str, Tensor]:
    """The names and shapes of a model's tensors, without their contents."""
    return build_on_meta(config).state_dict()


# --- what does not fit ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mismatch:
    """A setting that an architecture does not have."""

    setting: str
    ours: Any
    theirs: Any


def mismatches(architecture: Architecture, config: ModelConfig) -> list[Mismatch]:
    """The settings in which the architecture's nearest differs from ours, in the order of `ModelConfig`."""
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
    """The settings that decide what a model computes, with defaults filled in."""
    settings: dict[str, Any] = config.model_dump()
    for name in TRAINING_ONLY:
        del settings[name]
    for name in _without_effect(config):
        del settings[name]
    settings["n_decoder_layers"] = config.decoder_layers
    if hasattr(config.ffn, "width"):
        settings["ffn"]["d_ff"] = d_ff(config)
    if isinstance(config.attention, MultiHead):
        n_heads, d_head = config.attention.heads(config.d_model)
        n_kv_heads = config.attention.n_key_value_heads
        settings["attention"] |= {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "d_head": d_head}
    return settings


def _without_effect(config: ModelConfig) -> Sequence[str]:
    """Settings of a head that an encoder does not have: it scores tokens or classes."""
    if config.family != "encoder":
        return ()
    if config.n_classes is None:
        return ("pooling",)
    return ("tie_embeddings", "head_bias", "scale_logits", "logit_soft_cap", "masked_head")


# --- what several architectures share ---------------------------------------------------------------------


def d_ff(config: ModelConfig) -> int:
    """The width of the feed-forward network; four times the model's where it has none."""
    width = getattr(config.ffn, "width", lambda d_model: 4 * d_model)
    return width(config.d_model)


def setting(spec: Spec, name: str, default: Any) -> Any:
    """A setting of a slot, or a stand-in where the kind does not have it (it then does not fit for that)."""
    return getattr(spec, name, default)


def activation_name(ffn: FeedForwardSpec, table: Mapping[str, FeedForwardSpec]) -> str:
    """Their name for what stands between the matrices; the table's first where it has none."""
    plain = [name for name, spec in table.items() if _same_function(ffn, spec)]
    return plain[0] if plain else next(iter(table))


def _same_function(ffn: FeedForwardSpec, other: FeedForwardSpec) -> bool:
    return ffn.kind == other.kind and setting(ffn, "approximate", "") == setting(other, "approximate", "")


def head_size(fields: Fields, d_model: int, heads_field: str, default: int) -> tuple[int, int]:
    """Heads, and the size of one where the heads divide the model's width."""
    n_heads = fields.whole(heads_field, default)
    if d_model % n_heads:
        fields.refuse(heads_field, f"{n_heads} heads do not divide the width of {d_model}")
    return n_heads, d_model // n_heads


def dividing_heads(config: ModelConfig) -> int:
    """The heads, where they divide the model's width as these architectures need; else one."""
    n_heads, _ = config.attention.heads(config.d_model)
    return 1 if config.d_model % n_heads else n_heads


def norm_eps(norm: Norm, default: float) -> float:
    """The norm's eps; the default where there is none."""
    return setting(norm, "eps", default)
