"""The steps of one head: queries, keys and values, scores, pattern, the weighted sum and its output.

Shapes: T query positions, S key positions, D d_model, H heads, K key/value heads, Dh head size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearformer.lens.activations import computes_as_known
from clearformer.lens.numbers.rules import (
    Activated,
    Distance,
    Dot,
    Lookup,
    MayRead,
    Product,
    Rotation,
    Rule,
    Share,
    Softmax,
    Sum,
)
from clearformer.lens.numbers.sources import Source
from clearformer.lens.numbers.steps import Axis, Code, Way, as_code, computed
from clearformer.model.attention import (
    Attention,
    DotModule,
    LastModule,
    MeanModule,
    MultiHeadModule,
    ProjectedHeads,
    SharedModule,
)
from clearformer.model.linear_attention import LinearModule, linear_pattern, positive
from clearformer.model.masks import Mask, mask_value
from clearformer.model.positions import LinearBiases, Positions, RotaryPositions
from clearformer.model.relative_positions import RelativeBiases

KNOWN = (LastModule, MeanModule, DotModule, SharedModule, MultiHeadModule, LinearModule)


@dataclass(frozen=True)
class Head:
    """One head of an attention module.

    Attributes:
        module: The attention.
        path: Its name: `blocks.0.attn`.
        number: The head, from 0.
        reads: The input of the queries.
        memory: The input of the keys and values, if it is another text.
        positions: The stack's position encoding; None for cross-attention, which ignores positions.
        positions_path: The name of the position encoding.
        causal: Whether a query reads only keys up to its own position.
    """

    module: nn.Module
    path: str
    number: int
    reads: Source
    memory: Source | None
    positions: Positions | None
    positions_path: str
    causal: bool

    @property
    def key_head(self) -> int:
        """The number of its key/value head."""
        module = self.module
        grouped = isinstance(module, ProjectedHeads)
        return self.number // (module.n_heads // module.n_kv_heads) if grouped else self.number

    @property
    def key_rows(self) -> Axis | None:
        """The axis of the keys, if it is not that of the queries."""
        return None if self.memory is None else "source"


def attention_steps(way: Way, head: Head) -> None:
    """Add the steps of a head, up to its output."""
    module = head.module
    if not (isinstance(module, KNOWN) and computes_as_known(module)):
        return  # a user's kind: its output is shown, but not how it is computed
    if isinstance(module, LastModule):
        z = way.activation(f"{head.path}.hook_z", "z", 0)
        code: Code = (LastModule.forward, "return self.hook_z")
        way.add(z, "weighted sum", f"z = {head.reads.symbol}", "last", code, Sum((head.reads,)))
        return
    sides = None if isinstance(module, MeanModule) else queries_and_keys(way, head)
    v = values_of(way, head)
    sides = sides and rotated_both(way, head, *sides)
    if isinstance(module, LinearModule):
        assert sides is not None
        pattern = linear_pattern_of(way, head, *sides)
    else:
        pattern = softmax_pattern_of(way, head, sides)
    z = way.activation(f"{head.path}.hook_z", "z", head.number)
    code = (Attention.formula, "return dropout(pattern")
    if isinstance(module, LinearModule):
        code = (LinearModule.mix, "return self.hook_pattern(")
    way.add(z, "weighted sum", "z = pattern v", "weighted sum", code, Dot(pattern, v, "s", of="columns"))
    written_by_head(way, head, z)


# --- queries, keys, values --------------------------------------------------------------------------------


def queries_and_keys(way: Way, head: Head) -> tuple[Source, Source]:
    """Add queries and keys before rotation."""
    return projected(way, head, "q", head.reads), projected(way, head, "k", head.memory or head.reads)


def rotated_both(way: Way, head: Head, q: Source, k: Source) -> tuple[Source, Source]:
    """Rotate queries and keys by their positions, for rotary positions."""
    if not isinstance(head.positions, RotaryPositions):
        return q, k
    return rotated(way, head, "q", q), rotated(way, head, "k", k)


def projected(way: Way, head: Head, side: str, x: Source) -> Source:
    """Add a head's queries or keys before rotation."""
    module, path = head.module, head.path
    number = head.number if side == "q" else head.key_head
    rows = head.key_rows if side == "k" else None
    title = "queries" if side == "q" else "keys"
    made = way.activation(f"{path}.hook_{side}", side, number)
    if isinstance(module, DotModule):
        code: Code = (DotModule.queries if side == "q" else DotModule.keys_values, "return")
        return way.add(made, title, f"{side} = {x.symbol}", "dot", code, Sum((x,)), rows)
    if isinstance(module, SharedModule):
        code = (SharedModule.queries if side == "q" else SharedModule.keys_values, "return")
        rule = Dot(x, way.matrix(f"{path}.W.weight", "W"), "d")
        return way.add(made, title, f"{side} = {x.symbol} W", "projections", code, rule, rows)
    assert isinstance(module, ProjectedHeads)
    norm = module.q_norm if side == "q" else module.k_norm
    if isinstance(norm, nn.Identity):
        return projection(way, head, side.upper(), made, title, x)
    before = projection(way, head, side.upper(), None, f"{title} before their norm", x)
    norm_path, name = f"{path}.{side}_norm", f"{path}.hook_{side}"
    return way.normalized(norm, norm_path, before, side, title, rows, number, "qk norm", name)


def projection(way: Way, head: Head, letter: str, made: Source | None, title: str, x: Source) -> Source:
    """Add a head's part of x W + b, for one of Q, K and V; `made` is the result if it has a hook point."""
    module, path = head.module, f"{head.path}.W_{letter}"
    assert isinstance(module, ProjectedHeads)
    number = head.number if letter == "Q" else head.key_head
    whole = way.matrix(f"{path}.weight", f"W_{letter}")
    size = len(whole.values) // (module.n_heads if letter == "Q" else module.n_kv_heads)
    weight = whole.rows(number * size, size)
    bias = way.parameter(f"{path}.bias", f"b_{letter}")
    bias = None if bias is None else bias.rows(number * size, size)
    if made is None:
        values = x.values @ weight.values.T + (0 if bias is None else bias.values)
        start, stop = number * size, (number + 1) * size
        python = f"model.{as_code(path)}({x.python}).detach()[:, {start}:{stop}]"
        made = computed(f"{letter.lower()}_unnormed", path, values, python)
    equation = f"{made.symbol} = {x.symbol} W_{letter}" + (f" + b_{letter}" if bias else "")
    section = "projections" if head.memory is None else "cross-attention"
    if head.memory is None:
        code: Code = (ProjectedHeads.queries_keys_values, "fast.linear_each")
    elif letter == "Q":
        code = (ProjectedHeads.queries, f"self.W_{letter}(")
    else:
        code = (ProjectedHeads.keys_values, f"self.W_{letter}(")
    rows = None if letter == "Q" else head.key_rows
    return way.add(made, title, equation, section, code, Dot(x, weight, "d", bias=bias), rows)


def values_of(way: Way, head: Head) -> Source:
    """Add a head's values."""
    module, x, rows = head.module, head.memory or head.reads, head.key_rows
    v = way.activation(f"{head.path}.hook_v", "v", head.key_head)
    if isinstance(module, ProjectedHeads) and not isinstance(module.W_V, nn.Identity):
        return projection(way, head, "V", v, "values", x)
    size = v.values.shape[1]
    part = x.columns(head.key_head * size, size)
    code: Code = (ProjectedHeads.queries_keys_values, "fast.linear_each")
    if not isinstance(module, ProjectedHeads):
        code = (type(module).keys_values, "return")  # type: ignore[union-attr]
    return way.add(v, "values", f"v = {x.symbol}", "dot", code, Sum((part,)), rows)


def rotated(way: Way, head: Head, side: str, x: Source) -> Source:
    """Add queries or keys rotated by their positions."""
    number = head.number if side == "q" else head.key_head
    made = way.activation(f"{head.path}.hook_rot_{side}", f"{side}_rot", number)
    tables = [
        Source(name, f"{head.positions_path}.{name}", getattr(head.positions, name), python)
        for name in ("cos", "sin")
        for python in [f"model.{as_code(head.positions_path)}.{name}"]
    ]
    title = f"{'queries' if side == 'q' else 'keys'}, rotated by their positions"
    code: Code = (RotaryPositions.rotate, "return torch.cat")
    return way.add(made, title, f"{side}_rot = rotate({side})", "rope", code, Rotation(x, *tables))


# --- scores and patterns ----------------------------------------------------------------------------------


def softmax_pattern_of(way: Way, head: Head, sides: tuple[Source, Source] | None) -> Source:
    """Add the pattern of softmax attention; without queries and keys its scores are 0."""
    module, path = head.module, head.path
    assert isinstance(module, Attention)
    bias = position_bias(way, head)
    if sides is None:
        n = len(head.reads.values), len((head.memory or head.reads).values)
        zeros = computed("zero", "0", head.reads.values.new_zeros(n), f"torch.zeros({n})")
        parts, equation, section = (zeros,), "scores = 0", "mean"
        values, python, rule = zeros.values, zeros.python, Sum((*parts, bias) if bias else parts)
    else:
        q, k = sides
        factor = way.number("scale", "1 / sqrt(d_head)", module.scale) if module.scale != 1 else None
        values, python = (
            q.values @ k.values.T * module.scale,
            f"({q.python} @ {k.python}.T * {module.scale!r})",
        )
        equation, section = f"scores = {'scale ' if factor else ''}{q.symbol} {k.symbol}^T", "scores"
        rule = Dot(q, k, "d", of="rows", factor=factor, added=bias)
    if bias is not None:
        values, python, equation = (
            values + bias.values.to(values.dtype),
            f"({python} + {bias.python})",
            f"{equation} + bias",
        )
    scores = way.add(
        computed("scores", f"{path}.scores", values, python),
        "scores before the mask",
        equation,
        section,
        (Attention.formula, "scores = q @"),
        rule,
        columns=head.key_rows or way.rows,
    )
    return way.add(
        way.activation(f"{path}.hook_pattern", "pattern", head.number),
        "pattern: the weights with which queries (rows) read keys (columns)",
        "pattern = softmax(masked_scores)",
        "softmax",
        (Attention.formula, "pattern = self.hook_pattern("),
        Softmax(masked(way, head, scores)),
        columns=head.key_rows or way.rows,
    )


def masked(way: Way, head: Head, scores: Source) -> Source:
    """Add the scores after the mask, which adds a very low number where a query may not read."""
    module = head.module
    assert isinstance(module, Attention)
    may_read = readable(way, head, module.window)
    low = mask_value(scores.values.dtype)
    matrix = (1 - may_read.values) * low
    added = computed(
        "M",
        "0 where a key may be read, else half the lowest number",
        matrix,
        f"((1 - {may_read.python}) * {low})",
    )
    return way.add(
        way.activation(f"{head.path}.hook_attn_scores", "masked_scores", head.number),
        "scores after the mask",
        "masked_scores = scores + M",
        "mask",
        (Attention.formula, "scores = scores + mask.matrix"),
        Sum((scores, added)),
        columns=head.key_rows or way.rows,
    )


def readable(way: Way, head: Head, window: int | None) -> Source:
    """Add a matrix that is 1 where a query may read a key."""
    reads, read = head.reads.values, (head.memory or head.reads).values
    q_pos, k_pos = (torch.arange(len(each), device=each.device) for each in (reads, read))
    attend = Mask(q_pos, k_pos, head.causal).attend(window)[0, 0].to(reads.dtype)
    n, m = attend.shape
    python = f"torch.ones({n}, {m}, dtype={reads.dtype})"
    if head.causal:
        python += ".tril()"
    if window is not None:
        python += f".triu({1 - window})" + ("" if head.causal else f".tril({window - 1})")
    return way.add(
        computed("may_read", f"{head.path}.attend", attend, python),
        "which keys (columns) a query (row) may read",
        "may_read = 1 where the mask lets a query read a key",
        "mask",
        (Mask.attend, "allowed = distance >= 0"),
        MayRead(head.causal, window),
        columns=head.key_rows or way.rows,
    )


def linear_pattern_of(way: Way, head: Head, q: Source, k: Source) -> Source:
    """Add the pattern of linear attention, which the model forms only if it is hooked."""
    path = head.path
    phi_q, phi_k = (
        way.add(
            computed(f"phi_{side}", f"{path}.phi_{side}", positive(x.values), f"positive({x.python})"),
            f"phi of the {'queries' if side == 'q' else 'keys'}",
            f"phi_{side} = elu({x.symbol}) + 1",
            "linear",
            (positive, "return"),
            Activated(x, positive, "phi: phi(a) = elu(a) + 1", "positive"),
            None if side == "q" else head.key_rows,
        )
        for side, x in (("q", q), ("k", k))
    )
    columns = head.key_rows or way.rows
    scores = way.add(
        computed(
            "scores",
            f"{path}.scores",
            phi_q.values @ phi_k.values.T,
            f"({phi_q.python} @ {phi_k.python}.T)",
        ),
        "scores before the mask",
        "scores = phi_q phi_k^T",
        "linear",
        (LinearModule.mix, "scores = self.hook_attn_scores("),
        Dot(phi_q, phi_k, "d", of="rows"),
        columns=columns,
    )
    may_read = readable(way, head, None)
    read = way.add(
        way.activation(f"{path}.hook_attn_scores", "masked_scores", head.number),
        "scores after the mask",
        "masked_scores = scores * may_read",
        "mask",
        (LinearModule.mix, "scores = self.hook_attn_scores("),
        Product(scores, may_read),
        columns=columns,
    )
    return way.add(
        way.activation(f"{path}.hook_pattern", "pattern", head.number),
        "pattern: the weights with which queries (rows) read keys (columns)",
        "pattern = masked_scores / their sum",
        "linear",
        (linear_pattern, "return"),
        Share(read),
        columns=columns,
    )


def position_bias(way: Way, head: Head) -> Source | None:
    """Add the biases of a head's scores by position; return None if there are none."""
    positions, path = head.positions, head.positions_path
    if not isinstance(positions, LinearBiases | RelativeBiases):
        return None
    n = len(head.reads.values)
    pos = torch.arange(n, device=head.reads.values.device)
    with torch.no_grad():
        values = positions.bias(pos, pos)
    assert values is not None
    rule: Rule
    if isinstance(positions, LinearBiases):
        slopes = Source("slope", f"{path}.slopes", positions.slopes, f"model.{as_code(path)}.slopes")
        rule, code = Distance(slopes, head.number), (LinearBiases.bias, "return")
    else:
        rule = Lookup(
            way.matrix(f"{path}.weight", "B"),
            lambda row, column: (bucket_of(positions, row - column), head.number),
            "the bias of this distance",
        )
        code = (RelativeBiases.bias, "return")
    python = f"model.{as_code(path)}.bias(torch.arange({n}), torch.arange({n})).detach()[{head.number}]"
    return way.add(
        computed("bias", f"{head.path}.bias", values[head.number], python),
        "what positions add to the scores",
        "bias = one number per distance of query and key",
        "positions",
        code,
        rule,
        columns=way.rows,
    )


def bucket_of(positions: RelativeBiases, distance: int) -> int:
    """Return the bucket of a distance."""
    return int(positions.bucket(torch.tensor([[distance]], device=positions.weight.device)))


# --- output -----------------------------------------------------------------------------------------------


def written_by_head(way: Way, head: Head, z: Source) -> None:
    """Add the step from a head's weighted sum to its output; none if there is no output matrix."""
    module, path = head.module, f"{head.path}.W_O"
    if not isinstance(module, ProjectedHeads) or isinstance(module.W_O, nn.Identity):
        return
    size = z.values.shape[1]
    weight = way.matrix(f"{path}.weight", "W_O").columns(head.number * size, size)
    values = z.values @ weight.values.T
    start, stop = head.number * size, (head.number + 1) * size
    way.add(
        computed(
            "result", f"{head.path}.result", values, f"({z.python} @ {weight.python}[:, {start}:{stop}].T)"
        ),
        f"output of head {head.number}",
        "result = z W_O",
        "output",
        (ProjectedHeads.output, "return"),
        Dot(z, weight, "i"),
    )


def attention_out(way: Way, path: str, out: str, module: nn.Module, symbol: str) -> Source:
    """Add the step to the output of all heads together."""
    made = way.activation(out, symbol)
    if not (isinstance(module, KNOWN) and computes_as_known(module)):
        why = f"{path} is a {type(module).__name__}, a custom kind: how it computes a number is unknown"
        return way.add(made, "the attention's output", f"{symbol} = attention", "own", None, why)
    name = f"{path}.hook_z"
    heads: Tensor = way.cache[name][0].flatten(1)  # [T HDh]
    z = Source("z", name, heads, f'cache["{name}"][0].flatten(1)')
    if not isinstance(module, ProjectedHeads) or isinstance(module.W_O, nn.Identity):
        code: Code = (Attention.output, "return")
        if isinstance(module, LastModule):
            code = (LastModule.forward, "return")
        return way.add(made, "the attention's output", f"{symbol} = all heads' z", "heads", code, Sum((z,)))
    bias = way.parameter(f"{path}.W_O.bias", "b_O")
    rule = Dot(z, way.matrix(f"{path}.W_O.weight", "W_O"), "i", bias=bias)
    equation = f"{symbol} = all heads' z W_O" + (" + b_O" if bias else "")
    code = (ProjectedHeads.output, "return")
    return way.add(made, "the attention's output", equation, "output", code, rule)
