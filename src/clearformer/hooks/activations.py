"""The activations recorded in one call of a model, by name."""

from collections.abc import Iterable
from numbers import Integral
from typing import Any

from torch import Tensor

from clearformer.errors import UserError, did_you_mean, shown


class UnknownActivationError(UserError, KeyError):
    """Raised for a name under which no activation was recorded; the message suggests the nearest."""

    __str__ = UserError.__str__  # KeyError's would quote the message


class ActivationCache(dict[str, Tensor]):
    """Activations by the names of their hook points, in the order in which they were computed.

        cache["blocks.0.attn.hook_pattern"]
        cache["pattern", 0]                  the same
        cache["ln1.scale", -1]               in the last layer; "scale" alone if only one of its modules has it
        cache["pattern", 0, "encoder"]       in an encoder-decoder's encoder; without "encoder", in its decoder
        cache["cross_attn.pattern", 0]
        cache["embed"]                       hook_embed

    A wrong name raises a `KeyError` that suggests the nearest; `get` and `in` take short names too.
    """

    def __getitem__(self, key: Any) -> Tensor:
        return super().__getitem__(key)

    def __contains__(self, key: Any) -> bool:
        return self.get(key) is not None

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the activation of a name, long or short, or `default` where `cache[key]` would raise an error."""
        try:
            return self[key]
        except UnknownActivationError:
            return default

    def copy(self) -> "ActivationCache":
        """Return another cache of the same activations."""
        return ActivationCache(self)

    def __missing__(self, key: Any) -> Tensor:
        name = f"hook_{key}"
        if isinstance(key, tuple):
            is_of_a_layer = 2 <= len(key) <= 3 and isinstance(key[0], str)
            return self[self._name_in_layer(*key)] if is_of_a_layer else self._unknown(key)
        return dict.__getitem__(self, name) if dict.__contains__(self, name) else self._unknown(key)

    def _name_in_layer(self, short: str, layer: int, stack: str | None = None) -> str:
        """Return the full name of a point from its short name and layer; negative layers count from the last."""
        blocks = self._blocks(stack)
        folder = f"{blocks}.{self._layer(blocks, layer)}."
        inside = {_short(name.removeprefix(folder)): name for name in self if name.startswith(folder)}
        if short in inside:
            return inside[short]
        named_so = [each for each in inside if each.rpartition(".")[2] == short]
        if f"attn.{short}" in named_so:
            return inside[f"attn.{short}"]
        if len(named_so) > 1:
            raise UnknownActivationError(
                f"layer {layer} has several {short!r}: name one of {', '.join(named_so)}"
            )
        if not named_so:
            last_parts = [each.rpartition(".")[2] for each in inside]
            hint = did_you_mean(short, [*inside, *last_parts]) or f"; there are {', '.join(inside)}"
            raise UnknownActivationError(f"no activation {shown(short)} was kept for layer {layer}{hint}")
        return inside[named_so[0]]

    def _blocks(self, stack: str | None) -> str:
        """Return the name of the module that holds a stack's layers."""
        known = list(dict.fromkeys(name.partition(".")[0] for name in self if "blocks." in name))
        if stack is None:
            return "decoder_blocks" if "decoder_blocks" in known else next(iter(known), "blocks")
        if f"{stack}_blocks" not in known:
            stacks = [each.removesuffix("_blocks") for each in known if each != "blocks"]
            there_are = f"there are {' and '.join(stacks)}" if stacks else "this model has only one; omit it"
            raise UnknownActivationError(f"no layers of a stack {shown(stack)} were kept: {there_are}")
        return f"{stack}_blocks"

    def _layer(self, blocks: str, layer: int) -> int:
        layers = {int(name.split(".")[1]) for name in self if name.startswith(f"{blocks}.")}
        n = max(layers, default=-1) + 1
        number = layer + n if isinstance(layer, Integral) and layer < 0 else layer
        if number not in layers:
            kept = _listed(layers) if layers else "none"
            raise UnknownActivationError(
                f"no activations of layer {shown(layer)} were kept; kept layers: {kept}"
            )
        return number

    def _unknown(self, key: Any) -> Tensor:
        if not isinstance(key, str):
            raise UnknownActivationError(
                f'an activation is looked up by its name or by ("pattern", layer); got {shown(key)}'
            )
        hint = did_you_mean(key, self) or f"; {len(self)} were kept: {', '.join(list(self)[:3])}, ..."
        raise UnknownActivationError(f"no activation {shown(key)} was kept{hint}")

    def __repr__(self) -> str:
        return f"ActivationCache({len(self)} activations)"


def _short(path: str) -> str:
    """Shorten `attn.hook_pattern` to `attn.pattern`."""
    return ".".join(part.removeprefix("hook_") for part in path.split("."))


def _listed(layers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(layers)))
