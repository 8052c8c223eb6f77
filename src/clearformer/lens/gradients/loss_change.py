"""The loss-change ledger: which part of a model paid for the fall of the loss between two checkpoints.

    found = lens.loss_changes(cf.load("NAME", 500), cf.load("NAME", 1000), text)
    found.largest(5)     the heads, networks and embeddings that lowered the loss most
    found.residue        what the sum of all parts misses

L(after) - L(before) is the integral of gradient . d theta along any way between the two; here along the straight one,
so that the part of a parameter is its difference times its mean gradient on the way (loss change allocation, Lan et al.
2019, who go along the training's own steps). In each of the way's pieces the mean is by Simpson's rule,
which for such an integral is their Runge-Kutta method of fourth order: finer pieces leave a smaller residue.

The straight way is a convention: training went another. A part that is positive raised the loss.

Shapes: D d_model, H heads, Dh head size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import log_softmax

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_run
from clearformer.decoding.text.samples import Run
from clearformer.errors import ClearformerError, UserError, count
from clearformer.lens.causal.metrics import Metric, inputs_of, loss_of, metric_of
from clearformer.lens.inputs import Inputs, Subject, quiet, read
from clearformer.lens.showing import Shown, Table, bars, number
from clearformer.model import Transformer
from clearformer.model.attention import ProjectedHeads
from clearformer.runs.folders import Loaded, read_run
from clearformer.runs.replay import replay_run
from clearformer.training.store.checkpoint import list_checkpoints, step_of
from clearformer.training.store.folder import RunFolder

NOTHING: Mapping[int, Any] = MappingProxyType({})

OnStep = Callable[[int, int], None]
"""Receives how much is done, and how much there is to do."""


@dataclass(frozen=True)
class Part:
    """The change of the loss that one part of a model made.

    Attributes:
        name: The part's path in the model: `blocks.0.attn`, `blocks.0.mlp`, `embed`, a norm.
        head: Of attention, a head's own weights.
        kv_head: Of attention with fewer key/value heads, the keys' and values' weights that several heads share.
        value: Change of the loss in nats.
    """

    name: str
    head: int | None
    kv_head: int | None
    value: float

    @property
    def label(self) -> str:
        """Its name and head in a few words."""
        if self.kv_head is not None:
            return f"{self.name}, keys and values {self.kv_head}"
        return self.name if self.head is None else f"{self.name}:{self.head}"


@dataclass(frozen=True, repr=False, eq=False)
class LossChanges(Shown):
    """The change of the loss on a text between two sets of weights, part by part.

    Attributes:
        before: The loss with the first weights, in nats.
        after: With the second.
        parts: What each part of the model changed it by.
        sum: Of all parts.
        residue: (after - before) - sum: what the finite number of pieces leaves out.
        pieces: How finely the way was cut.
    """

    before: float
    after: float
    parts: list[Part]
    sum: float
    residue: float
    pieces: int

    def largest(self, n: int = 10) -> list[Part]:
        """The parts that changed the loss most, in either direction."""
        return sorted(self.parts, key=lambda part: -abs(part.value))[:n]

    def caption(self) -> str:
        return f"the loss went from {self.before:.4f} to {self.after:.4f} nats; what each part changed it by"

    def table(self) -> Table:
        return Table(
            ["part", "change"], [[part.label, number(part.value)] for part in self.largest(len(self.parts))]
        )

    def notes(self) -> list[str]:
        way = f"along the straight way, in {count(self.pieces, 'piece')}"
        return [f"{way}: the sum is {self.sum:+.4f}, the residue {self.residue:+.1e}"]

    def inches(self) -> tuple[float, float]:
        return 5.0, 0.8 + 0.2 * len(self.parts)

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        bars(axes, [part.label for part in self.parts], [part.value for part in self.parts])
        axes.set_xlabel("change of the loss, nats")


def loss_changes(
    before: Subject,
    after: Subject,
    text: Text | Inputs,
    *,
    output: Text | None = None,
    metric: Metric | None = None,
    pieces: int = 8,
    on_step: OnStep = lambda *_: None,
) -> LossChanges:
    """Allot the change of a text's loss between two checkpoints to the parts of the model.

    Args:
        before: A run, or a model by itself: the earlier checkpoint.
        after: The later one, of the same configuration.
        text: A string or ids, or what `read` made of them.
        output: What an encoder-decoder writes; where not given, the later checkpoint's own translation.
        metric: Of the output, in place of the mean loss of what the text's positions predict.
        pieces: How many pieces the way is cut into; each takes two gradients.
        on_step: Called after each gradient with how many are done, and how many there are.

    Raises:
        UserError: the models are not of one configuration, the text has no loss, or there is no piece.
    """
    if pieces < 1:
        raise UserError(f"pieces: at least 1 piece of the way; got {pieces}")
    later = inputs_of(after, text, output)
    inputs = inputs_of(before, later)
    model, other = inputs.model, later.model
    check_same_parameters(model, other)
    metric = metric or loss_of(inputs)
    first, last = (_loss(each, inputs, metric) for each in (model, other))
    parts = [
        part
        for name, changes in parameter_changes(inputs, other, metric, pieces, on_step).items()
        for part in _parts(model, name, changes)
    ]
    parts = _added_up(parts)
    total = sum(part.value for part in parts)
    return LossChanges(first, last, parts, total, last - first - total, pieces)


def loss_changes_since(
    run: Run,
    text: Text,
    since: int | None = None,
    until: int | None = None,
    *,
    output: Text | None = None,
    masked: Sequence[int] = (),
    target: str | int | None = None,
    pieces: int = 8,
    opened: Mapping[int, Run] = NOTHING,
    on_step: OnStep = lambda *_: None,
) -> LossChanges:
    """`loss_changes` between two steps of a run.

    Args:
        run: Kept in a folder; where it keeps no weights of a step, its training is made again, as `replay` does.
        text: A string or ids.
        since: The earlier step; that of the first checkpoint that is kept, where not given.
        until: The later one; that of the opened run, where not given.
        output: What an encoder-decoder writes; where not given, the later step's own translation.
        masked: Positions at which an encoder reads [MASK].
        target: Of a model that predicts classes, the class whose loss is meant; where not given, the one that the later
            step finds likeliest.
        pieces: How many pieces the way is cut into.
        opened: The run at some steps, such as those that were replayed: they are not made again.
        on_step: Called after each step that is made again, and then after each gradient, with how many are done, and
            how many there are.

    Raises:
        RunError: the run is kept in no folder, or a step cannot be made again; see `replay`.
        CheckpointError: its weights are damaged.
        DataError: a step is to be made again, and its data cannot be read or have changed.
        UserError: see `loss_changes`; the run has not taken so many steps, or a target is given to a model that
            predicts no classes.
    """
    check_run(run, "folder")
    folder: RunFolder = run.folder  # type: ignore[attr-defined]
    device = run.model.embed.weight.device
    step = min(map(step_of, list_checkpoints(folder.checkpoints)), default=0) if since is None else since
    before = opened.get(step) or _at_step(folder, step, device, on_step)
    after = run if until is None else opened.get(until) or _at_step(folder, until, device, on_step)
    inputs = read(after, text, output, masked=masked)
    metric = class_loss(inputs, target) if inputs.class_names else None
    if metric is None and target is not None:
        raise UserError(
            "target: the change is that of the text's loss; only a model of classes takes a target"
        )
    return loss_changes(before, after, inputs, metric=metric, pieces=pieces, on_step=on_step)


def _at_step(folder: RunFolder, step: int, device: torch.device, on_step: OnStep) -> Loaded:
    """The run at a step that it keeps; one that was trained in its folder also at any other."""
    try:
        folder.trained_on()
    except ClearformerError:
        return read_run(folder.path, step, device)
    return replay_run(folder, step, device, on_step)


def class_loss(inputs: Inputs, target: str | int | None) -> Metric:
    """The loss of a class, or of the likeliest one."""
    wanted = metric_of(inputs, target).target
    return lambda output: -log_softmax(output, dim=-1)[:, wanted]


def parameter_changes(
    inputs: Inputs, after: Transformer, metric: Metric, pieces: int, on_step: OnStep = lambda *_: None
) -> dict[str, Tensor]:
    """For each parameter, what each of its numbers changed the loss by: difference times mean gradient on the way."""
    starts = {name: parameter.detach() for name, parameter in inputs.model.named_parameters()}
    ends = {name: parameter.detach().to(starts[name]) for name, parameter in after.named_parameters()}
    means = {name: torch.zeros_like(start, dtype=torch.float64) for name, start in starts.items()}
    points = list(simpson(pieces))
    for done, (at, weight) in enumerate(points, start=1):
        here = {name: torch.lerp(start, ends[name], at).requires_grad_() for name, start in starts.items()}
        with quiet(inputs.model, grad=True):
            loss = metric(functional_call(inputs.model, here, inputs.arguments)).sum()
            gradients = torch.autograd.grad(
                loss, list(here.values()), allow_unused=True, materialize_grads=True
            )
        for name, gradient in zip(here, gradients, strict=True):
            means[name] += weight * gradient
        on_step(done, len(points))
    return {name: mean * (ends[name] - starts[name]) for name, mean in means.items()}


def simpson(pieces: int) -> Iterator[tuple[float, float]]:
    """The points of [0, 1], and their weights, of Simpson's rule in each of some equal pieces."""
    n = 2 * pieces
    for i in range(n + 1):
        yield i / n, (1 if i in (0, n) else 4 if i % 2 else 2) / (3 * n)


def check_same_parameters(one: Transformer, other: Transformer) -> None:
    """Raise UserError where two models have not the same parameters; the first that differs is named."""
    shapes, others = (
        {name: list(parameter.shape) for name, parameter in model.named_parameters()}
        for model in (one, other)
    )
    for name in shapes | others:
        if shapes.get(name) != others.get(name):
            raise UserError(
                f"the two models differ in {name} ({shapes.get(name, 'missing')} and {others.get(name, 'missing')}); "
                "give two checkpoints of one run, or runs of one configuration"
            )


def _loss(model: Transformer, inputs: Inputs, metric: Metric) -> float:
    with quiet(model):
        return metric(model(*inputs.arguments)).item()


# --- parts ----------------------------------------------------------------------------------------------------


def _parts(model: Transformer, name: str, changes: Tensor) -> Iterator[Part]:
    """A parameter's changes, summed for each part of the model that it belongs to."""
    path, matrix, _ = ("." + name).rsplit(".", 2) if name.count(".") else ("", name, "")
    owner = path.removeprefix(".")
    layer = model.get_submodule(owner) if owner else None
    if isinstance(layer, ProjectedHeads) and matrix in ("W_Q", "W_K", "W_V"):
        n_heads = layer.n_heads if matrix == "W_Q" else layer.n_kv_heads
        shared = n_heads != layer.n_heads
        for i, value in enumerate(changes.unflatten(0, (n_heads, -1)).flatten(1).sum(1).tolist()):
            yield Part(owner, None if shared else i, i if shared else None, value)
    elif isinstance(layer, ProjectedHeads) and matrix == "W_O" and changes.dim() == 2:
        for i, value in enumerate(changes.unflatten(1, (layer.n_heads, -1)).sum((0, 2)).tolist()):
            yield Part(owner, i, None, value)
    else:
        yield Part(part_of(name), None, None, changes.sum().item())


def part_of(name: str) -> str:
    """The path of the part that a parameter belongs to: an attention, a network, or the module that has it."""
    path = name.rpartition(".")[0]
    for end in (".attn", ".cross_attn", ".mlp"):
        if end in path:
            return path[: path.index(end) + len(end)]
    return path or name


def _added_up(parts: list[Part]) -> list[Part]:
    """One part for each place, in the order of the model."""
    totals: dict[tuple[str, int | None, int | None], float] = {}
    for part in parts:
        place = (part.name, part.head, part.kv_head)
        totals[place] = totals.get(place, 0.0) + part.value
    return [Part(*place, value) for place, value in totals.items()]
