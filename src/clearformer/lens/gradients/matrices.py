"""Weight gradients by position: for a matrix, dW = sum over positions of delta outer x.

    found = lens.weight_gradients(run, text)["blocks.0.mlp.W_in.weight"]
    found.matrix                 [O I], equal to autograd's
    found.largest(5)             the positions that contribute most to it
    found.entry(3, 7)            [N] each position's contribution to one entry

x is the matrix's input at a position and delta the metric's gradient with respect to its output there: the larger both
are, the more the position contributes. An embedding is a matrix too, whose x is 1 at the token's row; tied to the head
it is used twice, and its gradient is the sum of both uses.

Shapes: B batch, N positions of all uses, I inputs, O outputs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.overrides import TorchFunctionMode

from clearformer.decoding import Text
from clearformer.errors import UserError, did_you_mean
from clearformer.hooks import patterns_of
from clearformer.lens.causal.interventions import output_with
from clearformer.lens.causal.metrics import Metric, given_metric, loss_of, metric_of, name_of
from clearformer.lens.inputs import Inputs, Readable, Subject, quiet, read
from clearformer.lens.showing import FIRST, Shown, Table, bars, number, visible
from clearformer.model import EncoderDecoder, Transformer
from clearformer.model.norms import at_least_float32

OF_ANOTHER_TEXT = ("cross_attn.W_K.weight", "cross_attn.W_V.weight")  # in a decoder, these read the source


@dataclass(frozen=True)
class Term:
    """One position's term of a matrix's gradient, delta outer x.

    Attributes:
        position: The position in its text.
        label: The token there.
        of_source: Whether the text is an encoder-decoder's source.
        use: `product`, or `lookup` for an embedding.
        size: |delta| |x|, the norm of the term.
        share: Its share of the whole gradient G, <delta outer x, G> / <G, G>; the shares of all terms sum to 1.
    """

    position: int
    label: str
    of_source: bool
    use: str
    size: float
    share: float


class Use(NamedTuple):
    """One use of a matrix: its inputs [N I] (for a lookup, the ids [N]), and the gradient of its outputs [N O]."""

    kind: str
    given: Tensor
    delta: Float[Tensor, "N O"]
    of_source: bool

    @property
    def sizes(self) -> Float[Tensor, " N"]:
        """The norm of each position's term."""
        norms = self.delta.norm(dim=1)
        return norms if self.kind == "lookup" else norms * self.given.norm(dim=1)

    def add_to(self, matrix: Tensor) -> None:
        """Add the sum of the terms to a matrix."""
        if self.kind == "lookup":
            matrix.index_add_(0, self.given, self.delta)
        else:
            matrix.add_(self.delta.T @ self.given)

    def products(self, matrix: Tensor) -> Float[Tensor, " N"]:
        """Return the inner product of each position's term with a matrix."""
        if self.kind == "lookup":
            return (self.delta * matrix[self.given]).sum(1)
        return ((self.delta @ matrix) * self.given).sum(1)

    def entry(self, row: int, column: int) -> Float[Tensor, " N"]:
        """Return each position's contribution to one entry of the matrix."""
        if self.kind == "lookup":
            return self.delta[:, column] * (self.given == row)
        return self.delta[:, row] * self.given[:, column]


@dataclass(frozen=True, repr=False, eq=False)
class MatrixGradient(Shown):
    """The gradient of a metric with respect to a matrix, as a sum over the positions that use it.

    Attributes:
        name: The matrix's name in `model.state_dict()`.
        matrix: [O I] the gradient, the sum of the terms, in float32 or float64.
        terms: One for each use and position, in order.
        norm: |G|.
        uses: The uses of the matrix, which the terms are made from; in a difference, the first's.
    """

    name: str
    matrix: Float[Tensor, "O I"] = field(repr=False)
    terms: list[Term]
    norm: float
    uses: list[Use] = field(repr=False, metadata={FIRST: True})

    def largest(self, n: int = 10) -> list[Term]:
        """Return the terms with the largest shares of the gradient, in absolute value."""
        return sorted(self.terms, key=lambda term: -abs(term.share))[:n]

    def entry(self, row: int, column: int) -> Float[Tensor, " N"]:
        """Return each term's contribution to one entry of the gradient, in the order of `terms`.

        Raises:
            UserError: the matrix has no such entry.
        """
        n_rows, n_columns = self.matrix.shape
        if not (0 <= row < n_rows and 0 <= column < n_columns):
            raise UserError(f"{self.name} is [{n_rows} {n_columns}]; it has no entry {row}, {column}")
        return torch.cat([use.entry(row, column) for use in self.uses])

    def caption(self) -> str:
        return f"the gradient of {self.name}, position by position; its norm is {self.norm:.3g}"

    def table(self) -> Table:
        rows = [
            [str(term.position), visible(term.label), _use(term), f"{term.size:.3g}", number(term.share)]
            for term in self.largest(len(self.terms))
        ]
        return Table(["position", "token", "use", "size", "share"], rows, 3)

    def inches(self) -> tuple[float, float]:
        return 5.0, 0.8 + 0.2 * len(self.terms)

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        bars(
            axes,
            [f"{visible(term.label)} ({_use(term)})" for term in self.terms],
            [term.share for term in self.terms],
        )
        axes.set_xlabel("share of the gradient")


@dataclass(frozen=True, repr=False, eq=False)
class WeightGradients(Shown):
    """The gradients of a metric with respect to several matrices; `found["embed.weight"]` is one of them.

    Attributes:
        measure: The value of the metric: a loss or a logit.
        matrices: The gradients, in the order of the model.
        metric: The name of the metric.
    """

    measure: float
    matrices: list[MatrixGradient]
    metric: str = "the metric"

    def __iter__(self) -> Iterator[MatrixGradient]:
        return iter(self.matrices)

    def __getitem__(self, name: str) -> MatrixGradient:
        """Return the gradient of one matrix.

        Raises:
            UserError: no such gradient was taken (the nearest is suggested).
        """
        by_name = {each.name: each for each in self.matrices}
        if name not in by_name:
            raise UserError(f"no gradient of a matrix {name!r} was taken{did_you_mean(name, by_name)}")
        return by_name[name]

    def caption(self) -> str:
        return f"gradients of {self.metric} ({self.measure:.4f}) by matrix, and their largest sources"

    def table(self) -> Table:
        return Table(["matrix", "largest source", "norm", "share"], [_row(each) for each in self.matrices], 2)

    def inches(self) -> tuple[float, float]:
        return 6.0, 0.8 + 0.2 * len(self.matrices)

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        bars(axes, [each.name for each in self.matrices], [each.norm for each in self.matrices])
        axes.set_xlabel("norm of the gradient")


def _row(each: MatrixGradient) -> list[str]:
    term = next(iter(each.largest(1)), None)
    origin, share = (
        ("", "") if term is None else (f"{term.position} {visible(term.label)}", number(term.share))
    )
    return [each.name, origin, f"{each.norm:.3g}", share]


def _use(term: Term) -> str:
    return f"{term.use}, source" if term.of_source else term.use


@torch.inference_mode(False)
def weight_gradients(
    subject: Subject,
    text: Readable,
    names: str | Iterable[str] = "*",
    *,
    target: str | int | None = None,
    foil: str | int | None = None,
    position: int = -1,
    output: Text | None = None,
    metric: Metric | None = None,
) -> "WeightGradients":
    """Return the gradient of a loss with respect to each matrix of a model, by position; dropout is off.

    Args:
        subject: A run, or a bare model.
        text: A string or ids, or the result of `read`.
        names: Matrices by name or pattern (`blocks.*.mlp.*`); by default all.
        target: A token or class whose logit is measured; by default the text's mean loss is measured.
        foil: Another, whose logit is subtracted.
        position: The position that predicts it.
        output: What an encoder-decoder writes.
        metric: A function of the output, in place of these; see `causal.metrics`.

    Raises:
        UserError: there is no such matrix, token, class or position, a foil or a position is given without a target,
            or the text has no loss.
    """
    inputs = read(subject, text, output)
    metric = given_metric(metric, target, foil, position)
    if metric is None and target is None:
        if foil is not None or position != -1:
            name = "position" if foil is None else "foil"
            raise UserError(
                f"{name}: belongs to a target, and none is given: the text's mean loss is measured"
            )
        metric = loss_of(inputs)
    elif metric is None:
        metric = metric_of(inputs, target, foil, position)
    wanted = matrices_of(inputs.model, names)
    uses = uses_of(inputs.model, inputs.arguments, metric, wanted)
    found = [_result(inputs, name, uses[name]) for name in wanted]
    measure = metric(output_with(inputs.model, inputs.arguments)).item()
    return WeightGradients(measure, found, name_of(metric, inputs))


def matrices_of(model: Transformer, names: str | Iterable[str] = "*") -> dict[str, Tensor]:
    """Return the weights of a model's linear layers and embeddings that match some names or patterns.

    Raises:
        UserError: a name or pattern matches none (the nearest is suggested), or there is none.
    """
    parts = (torch.nn.Linear, torch.nn.Embedding)
    known = {
        f"{path}.weight": module.weight for path, module in model.named_modules() if isinstance(module, parts)
    }
    wanted: dict[str, Tensor] = {}
    for pattern in patterns_of(names):
        found = [name for name in known if fnmatchcase(name, pattern)]
        if not found:
            raise UserError(
                f"this model has no linear layer or embedding {pattern!r}{did_you_mean(pattern, known)}"
            )
        wanted |= {name: known[name] for name in found}
    if not wanted:
        raise UserError("names: give at least one matrix or pattern, such as 'blocks.*.mlp.*'")
    return wanted


def uses_of(
    model: Transformer, arguments: tuple[Tensor, ...], metric: Metric, matrices: dict[str, Tensor]
) -> dict[str, list[Use]]:
    """Return every use of some matrices in one pass over a text or batch, by the matrix's name."""
    with quiet(model, grad=True), _Uses(matrices) as seen:
        measure = metric(model(*arguments)).sum()
    deltas = torch.autograd.grad(
        measure, [made for *_, made in seen.uses], allow_unused=True, materialize_grads=True
    )
    uses: dict[str, list[Use]] = {name: [] for name in matrices}
    for (name, kind, given, _), delta in zip(seen.uses, deltas, strict=True):
        rows = given.flatten() if kind == "lookup" else at_least_float32(given.flatten(0, -2))
        of_source = _of_source(model, name, is_first=not uses[name])
        uses[name].append(Use(kind, rows, at_least_float32(delta.flatten(0, -2)), of_source))
    return uses


class _Uses(TorchFunctionMode):
    """Records the uses of some matrices while it is entered.

    Module hooks would miss a head that is tied to the embedding: it is no module.
    """

    def __init__(self, matrices: dict[str, Tensor]) -> None:
        super().__init__()
        self.names = {id(matrix): name for name, matrix in matrices.items()}
        self.uses: list[tuple[str, str, Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (F.linear, F.embedding) and (name := self.names.get(id(args[1]))) is not None:
            # A separate node, whose gradient belongs to this use alone; also made if the weights require no gradient.
            result = result.view_as(result) if result.requires_grad else result.detach().requires_grad_()
            kind = "product" if func is F.linear else "lookup"
            self.uses.append((name, kind, args[0].detach(), result))
        return result


def _of_source(model: Transformer, name: str, is_first: bool) -> bool:
    """Whether a use is at the positions of an encoder-decoder's source.

    The embedding's first use is, and all uses but the first, for the queries, of a matrix that shared attention has.
    """
    if not isinstance(model, EncoderDecoder):
        return False
    if name.endswith("cross_attn.W.weight"):
        return not is_first
    return (
        name.startswith("encoder_") or name.endswith(OF_ANOTHER_TEXT) or (name == "embed.weight" and is_first)
    )


def _result(inputs: Inputs, name: str, uses: list[Use]) -> MatrixGradient:
    weight = dict(inputs.model.named_parameters())[name]
    matrix = torch.zeros_like(at_least_float32(weight))  # in float16, squares of gradients vanish
    for use in uses:
        use.add_to(matrix)
    whole = matrix.square().sum().clamp_min(torch.finfo(matrix.dtype).tiny)
    terms = [term for use in uses for term in _terms(inputs, use, use.products(matrix) / whole)]
    return MatrixGradient(name, matrix, terms, matrix.norm().item(), uses)


def _terms(inputs: Inputs, use: Use, shares: Tensor) -> list[Term]:
    labels = inputs.source_labels if use.of_source else inputs.labels
    if len(use.delta) != len(labels):  # one vector for the whole text, as in a classifier
        labels = ["(text)"] * len(use.delta)
    values = zip(labels, use.sizes.tolist(), shares.tolist(), strict=True)
    return [
        Term(i, label, use.of_source, use.kind, size, share) for i, (label, size, share) in enumerate(values)
    ]
