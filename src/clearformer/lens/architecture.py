"""The parts of a model as its configuration describes them: their sizes, parameters and share of the FLOPs."""

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from torch import nn

from clearformer.config import as_written, flat
from clearformer.cost import analytic_flops, if_known
from clearformer.errors import count
from clearformer.lens.inputs import Subject, model_of
from clearformer.lens.showing import Shown, Table, bars
from clearformer.model import ModelConfig, Transformer
from clearformer.model.block import Block

NAMES = {
    "embed": "token embedding",
    "token_types": "token types",
    "position": "positions",
    "ln_embed": "embedding norm",
    "ln_final": "final norm",
    "head": "head",
    "head_bias": "head bias",
    "masked_head": "masked head",
    "pooler": "pooler",
    "classifier": "classifier",
    "ln1": "norm",
    "attn": "attention",
    "ln_cross": "norm",
    "cross_attn": "cross-attention",
    "ln2": "norm",
    "mlp": "feed-forward",
}
"""The names of the parts of a model and of a block, in order of computation."""
BEFORE_BLOCKS = ("embed", "token_types", "position", "ln_embed")
KIND_OF = {"position": "position", "attn": "attention", "cross_attn": "attention", "mlp": "ffn"}
NORMS = ("ln_embed", "ln_final", "ln1", "ln_cross", "ln2")


@dataclass(frozen=True)
class Component:
    """One part of a model.

    Attributes:
        path: The path of its module.
        name: Its name in words.
        kind: The kind that fills it, if it is a slot of the configuration or a norm; otherwise empty.
        stack: `encoder` or `decoder`; empty outside the stacks of an encoder-decoder.
        layer: The number of its block, or None outside the blocks.
        parameters: The number of its parameters; 0 if an earlier part has the same path, whose parameters it shares.
    """

    path: str
    name: str
    kind: str
    stack: str
    layer: int | None
    parameters: int


@dataclass(frozen=True, repr=False, eq=False)
class Architecture(Shown):
    """A model's parts, in order of computation.

    Attributes:
        family: Decoder, encoder or encoder-decoder.
        parameters: The total of all parts; shared parameters are counted once.
        settings: The configuration's settings by key, such as `attention.n_heads`.
        components: The parts.
        flops: The share of each component in a forward pass over `max_seq_len` positions; empty if a kind has no
            formula.
    """

    family: str
    parameters: int
    settings: dict[str, str]
    components: list[Component]
    flops: dict[str, float]

    def caption(self) -> str:
        return f"{self.family} of {count(self.parameters, 'parameter')}"

    def table(self) -> Table:
        paths = [component.path for component in self.components]
        rows = [
            [each.path, each.name, each.kind, "shared" if each.path in paths[:i] else f"{each.parameters:,}"]
            for i, each in enumerate(self.components)
        ]
        return Table(["module", "part", "kind", "parameters"], rows, n_left=3)

    def notes(self) -> list[str]:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in self.flops.items() if share)
        return [f"FLOPs of a forward pass: {shares}"] if shares else []

    def inches(self) -> tuple[float, float]:
        return 7.0, 1.2 + 0.24 * len(self.components)

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        bars(
            axes,
            [component.path for component in self.components],
            [float(component.parameters) for component in self.components],
        )
        axes.set_xlabel("parameters")
        axes.set_title(self.caption(), fontsize=10)


def architecture(subject: Subject) -> Architecture:
    """Return the parts of a run's model, or of a bare model."""
    model = model_of(subject)
    components = [component for stack in stacks_of(model) for component in _of_stack(model, stack)]
    components += [_component(model, name, "", None) for name in NAMES if name in after_stacks(model)]
    components = _shared_once(components)
    total = sum(parameter.numel() for parameter in model.parameters())
    return Architecture(
        model.config.family, total, _settings(model.config), components, _shares(model.config)
    )


def stacks_of(model: Transformer) -> list[str]:
    """Return the name prefixes of a model's stacks."""
    return ["encoder_", "decoder_"] if model.config.family == "encoder-decoder" else [""]


def after_stacks(model: Transformer) -> list[str]:
    """Return the names of the parts that belong to no stack."""
    names = (*BEFORE_BLOCKS, "ln_final", "blocks")
    of_stack = [f"{stack}{name}" for stack in ("", *stacks_of(model)) for name in names]
    own = [name for name, _ in (*model.named_children(), *model.named_parameters(recurse=False))]
    return [name for name in own if name not in of_stack]


def _of_stack(model: Transformer, stack: str) -> list[Component]:
    children = dict(model.named_children())
    before = [f"{stack}{name}" if f"{stack}{name}" in children else name for name in BEFORE_BLOCKS]
    found = [_component(model, path, stack, None) for path in before if path in children]
    for i, block in enumerate(model.stack(stack).blocks):
        assert isinstance(block, Block)
        parts = [name for name in NAMES if getattr(block, name, None) is not None]
        found += [_component(model, f"{stack}blocks.{i}.{name}", stack, i) for name in parts]
    return [*found, _component(model, f"{stack}ln_final", stack, None)]


def _shared_once(components: list[Component]) -> list[Component]:
    """Return the components with the parameters of each path counted at its first mention alone."""
    paths = [component.path for component in components]
    return [
        replace(each, parameters=0) if each.path in paths[:i] else each for i, each in enumerate(components)
    ]


def _component(model: Transformer, path: str, stack: str, layer: int | None) -> Component:
    part = attrgetter(path)(model)
    name = path.rpartition(".")[2].removeprefix(stack)
    return Component(
        path, NAMES[name], _kind(model.config, name, part), stack.rstrip("_"), layer, size_of(part)
    )


def _kind(config: ModelConfig, name: str, part: nn.Module | nn.Parameter) -> str:
    if name in NORMS:
        return "none" if isinstance(part, nn.Identity) else config.norm.kind
    slot = getattr(config, KIND_OF.get(name, ""), None)
    return "" if slot is None else slot.kind


def size_of(part: nn.Module | nn.Parameter) -> int:
    """Return the number of a part's parameters."""
    return sum(each.numel() for each in ([part] if isinstance(part, nn.Parameter) else part.parameters()))


def _settings(config: ModelConfig) -> dict[str, str]:
    """Return the settings by key, such as `attention.n_heads`, with their values as strings."""
    return {key: as_written(value) for key, value in flat(config.model_dump()).items() if value is not None}


def _shares(config: ModelConfig) -> dict[str, float]:
    flops = if_known(analytic_flops, config, config.max_seq_len)
    total = 0 if flops is None else sum(flops.forward.values())
    return {} if flops is None or not total else {name: each / total for name, each in flops.forward.items()}
