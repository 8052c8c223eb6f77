"""A step on the way through a model: a matrix, and how each of its numbers is computed from others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from clearformer.hooks import ActivationCache
from clearformer.lens.inputs import Inputs
from clearformer.lens.numbers.code import CodeLine, find_line
from clearformer.lens.numbers.lectures import SECTIONS
from clearformer.lens.numbers.rules import Normalized, NormScale, Rule
from clearformer.lens.numbers.sources import Operand, Source, constant
from clearformer.model.norms import LayerNormModule, RMSNormModule

Stage = Literal["embedding", "attention", "cross-attention", "feed-forward", "output"]
Axis = Literal["tokens", "source", "text", "dimensions", "vocabulary", "classes"]
Code = tuple[Callable[..., Any], str]


@dataclass(frozen=True, eq=False)
class Step:
    """One matrix on the way through a model.

    Attributes:
        source: The matrix, with its name and symbol.
        title: The matrix in words.
        equation: How it is made from earlier matrices, in their symbols.
        stage: The part of the model that it belongs to.
        section: The lecture's section.
        code: The function that computes it, and a string that finds its line.
        rule: How one number is computed; for a user's kind, why that is unknown.
        rows: The kind of its rows.
        columns: The kind of its columns.
    """

    source: Source
    title: str
    equation: str
    stage: Stage
    section: str
    code: Code | None
    rule: Rule | str
    rows: Axis = "tokens"
    columns: Axis = "dimensions"

    @property
    def code_line(self) -> CodeLine | None:
        """The line of code that computes it."""
        return None if self.code is None else find_line(*self.code)


class Way:
    """The steps of one text through a part of a model, in order of computation.

    Args:
        inputs: The text.
        cache: Its activations.
        rows: The kind of the rows: tokens, or an encoder-decoder's source.
    """

    def __init__(self, inputs: Inputs, cache: ActivationCache, rows: Axis = "tokens") -> None:
        self.inputs, self.cache = inputs, cache
        self.rows: Axis = rows
        self.model, self.weights = inputs.model, inputs.model.state_dict()
        self.steps: dict[str, Step] = {}
        self.stage: Stage = "embedding"

    # --- matrices ---------------------------------------------------------------------------------------

    def activation(self, name: str, symbol: str, head: int | None = None) -> Source:
        """Return an activation of the text as a matrix; for queries, keys, values and scores, one head's."""
        values, python = self.cache[name][0], f'cache["{name}"][0]'
        if values.dim() == 3 and name.endswith(("scores", "pattern")):
            values, python = values[head], f"{python}[{head}]"
        elif values.dim() == 3:
            values, python = values[:, head], f"{python}[:, {head}]"
        return Source(symbol, name, values, python)

    def parameter(self, name: str, symbol: str) -> Source | None:
        """Return a parameter by name, or None if there is none."""
        if name not in self.weights:
            return None
        return Source(symbol, name, self.weights[name], f'weights["{name}"]')

    def matrix(self, name: str, symbol: str) -> Source:
        """Return a parameter that must exist."""
        found = self.parameter(name, symbol)
        assert found is not None, name
        return found

    def number(self, symbol: str, what: str, value: float) -> Operand:
        """Return a constant of the model as an operand."""
        return constant(symbol, what, value, repr(value))

    # --- steps ------------------------------------------------------------------------------------------

    def add(
        self,
        source: Source,
        title: str,
        equation: str,
        section: str,
        code: Code | None,
        rule: Rule | str,
        rows: Axis | None = None,
        columns: Axis = "dimensions",
    ) -> Source:
        """Add a step; return its matrix, for the steps that use it."""
        self.steps[source.name] = Step(
            source,
            title,
            equation,
            self.stage,
            SECTIONS[section],
            code,
            rule,
            rows or self.rows,
            columns,
        )
        return source

    def normalized(
        self,
        norm: nn.Module,
        path: str,
        x: Source,
        symbol: str,
        title: str,
        rows: Axis | None = None,
        head: int | None = None,
        section: str | None = None,
        name: str | None = None,
    ) -> Source:
        """Add the scale and the result of a norm; return its input unchanged if there is no norm.

        Args:
            norm: The module.
            path: Its name.
            x: Its input.
            symbol: The symbol of the result.
            title: The title of the result.
            rows: The kind of rows, if not that of the way.
            head: The head, for a norm of queries or keys.
            section: The section, if not that of the norm's kind.
            name: The name of the result, if it is another hook point.
        """
        if isinstance(norm, nn.Identity):
            return x
        if not isinstance(norm, LayerNormModule | RMSNormModule):
            why = f"{path} is a {type(norm).__name__}, a custom kind: how it computes a number is unknown"
            with torch.no_grad():
                values = norm(x.values)
            made = Source(symbol, name or path, values, f"model.{as_code(path)}({x.python})")
            return self.add(made, title, f"{symbol} = norm({x.symbol})", "own", None, why, rows)
        centred = isinstance(norm, LayerNormModule)
        kind = section or ("layernorm" if centred else "rmsnorm")
        said = f"({x.symbol} - mean)" if centred else x.symbol
        scale = self.add(
            self.activation(f"{path}.hook_scale", f"{symbol}_scale", head),
            f"scale of {title}",
            f"{symbol}_scale = sqrt(mean({said}^2) + eps)",
            kind,
            (type(norm).forward, "scale = ("),
            NormScale(x, float(norm.eps or 0.0), centred),
            rows,
        )
        weight, bias = self.parameter(f"{path}.weight", "w"), self.parameter(f"{path}.bias", "b")
        equation = f"{symbol} = {said} / {symbol}_scale"
        return self.add(
            self.activation(name or f"{path}.hook_normalized", symbol, head),
            title,
            equation + (" * w" if weight else "") + (" + b" if bias else ""),
            kind,
            (type(norm).forward, "y = "),
            Normalized(x, scale, weight, bias, centred),
            rows,
        )


def as_code(path: str) -> str:
    """Return a module's path as Python code: `blocks[0].mlp` for `blocks.0.mlp`."""
    first, *rest = path.split(".")
    return first + "".join(f"[{each}]" if each.isdigit() else f".{each}" for each in rest)


def computed(symbol: str, name: str, values: Tensor, python: str) -> Source:
    """Return a matrix that has no hook point."""
    return Source(symbol, name, values, python)
