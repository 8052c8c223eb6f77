"""The loss-change ledger: which parts of a model caused the change of the loss between two checkpoints.

    found = lens.loss_changes(cf.load("NAME", checkpoint=500), cf.load("NAME", checkpoint=1000), text)
    found.largest(5)     the heads, networks and embeddings that changed the loss most
    found.residue        the part of the change that their sum does not cover

L(after) - L(before) is the integral of gradient . d theta along any path between the two. Here the path is straight, so
that a parameter's share is its difference times its mean gradient on the path (loss change allocation, Lan et al. 2019,
who follow the training's own steps). On each piece of the path the mean is taken by Simpson's rule, which for such an
integral equals their fourth-order Runge-Kutta method: more pieces leave a smaller residue.

The straight path is a convention: training took another. A positive share raised the loss.

Shapes: D d_model, H heads, Dh head size.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import log_softmax

from clearformer.config import differing
from clearformer.decoding import Text
from clearformer.decoding.arguments import OnStep, check_function, check_kind, check_run, check_whole
from clearformer.decoding.text.samples import Run
from clearformer.errors import ClearformerError, UserError, count
from clearformer.lens.causal.metrics import Metric, given_metric, loss_of, metric_of
from clearformer.lens.inputs import Inputs, Readable, Subject, quiet, read
from clearformer.lens.showing import Shown, Table, bars, number
from clearformer.model import Transformer
from clearformer.model.attention import ProjectedHeads
from clearformer.model.norms import at_least_float32
from clearformer.runs.folders import Loaded, read_run
from clearformer.runs.kept_weights import kept_steps
from clearformer.runs.replay import check_took, replay_run
from clearformer.training.store.checkpoint import list_checkpoints, step_of
from clearformer.training.store.folder import RunFolder

UNUSED = frozenset({"dropout", "init", "max_seq_len"})  # settings that change no output for a text
NOTHING: Mapping[int, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Part:
    """The share of one part of a model in the change of the loss.

    Attributes:
        name: The part's path in the model: `blocks.0.attn`, `blocks.0.mlp`, `embed`, a norm.
        head: The number of the head whose own weights these are, in attention.
        kv_head: In attention with fewer key/value heads, the number of the one whose weights several heads share.
        value: The change of the loss, in nats.
    """

    name: str
    head: int | None
    kv_head: int | None
    value: float

    @property
    def label(self) -> str:
        """The name and head in a few words."""
        if self.kv_head is not None:
            return f"{self.name}, keys and values {self.kv_head}"
        return self.name if self.head is None else f"{self.name}:{self.head}"


@dataclass(frozen=True, repr=False, eq=False)
class LossChanges(Shown):
    """The change of the loss on a text between two sets of weights, by part of the model.

    Attributes:
        before: The loss with the first weights, in nats.
        after: The loss with the second.
        parts: The share of each part of the model.
        sum: The sum of all shares.
        residue: (after - before) - sum, the error of the quadrature.
        pieces: The number of pieces of the path.
    """

    before: float
    after: float
    parts: list[Part]
    sum: float
    residue: float
    pieces: int

    def largest(self, n: int = 10) -> list[Part]:
        """Return the parts that changed the loss most, in either direction."""
        return sorted(self.parts, key=lambda part: -abs(part.value))[:n]

    def caption(self) -> str:
        return f"the loss went from {self.before:.4f} to {self.after:.4f} nats; change due to each part"

    def table(self) -> Table:
        return Table(
            ["part", "change"], [[part.label, number(part.value)] for part in self.largest(len(self.parts))]
        )

    def notes(self) -> list[str]:
        way = f"along the straight path, in {count(self.pieces, 'piece')}"
        return [f"{way}: the sum is {self.sum:+.4f}, the residue {self.residue:+.1e}"]

    def inches(self) -> tuple[float, float]:
        return 5.0, 0.8 + 0.2 * len(self.parts)

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        bars(axes, [part.label for part in self.parts], [part.value for part in self.parts])
        axes.set_xlabel("change of the loss, nats")


@torch.inference_mode(False)
def loss_changes(
    before: Subject,
    after: Subject,
    text: Readable,
    *,
    output: Text | None = None,
    metric: Metric | None = None,
    pieces: int = 8,
    on_step: OnStep = lambda *_: None,
) -> LossChanges:
    """Attribute the change of a text's loss between two checkpoints to the parts of the model.

    Args:
        before: A run, or a bare model: the earlier checkpoint.
        after: The later one, of the same configuration.
        text: A string or ids, or the result of `read`.
        output: What an encoder-decoder writes; by default the later checkpoint's own translation.
        metric: A function of the output, in place of the mean loss of the text's targets.
        pieces: The number of pieces of the path; each takes two gradients.
        on_step: Called after each gradient with the number done and the total.

    Raises:
        UserError: the models differ in configuration, the text has no loss, or `pieces` is less than 1.
    """
    check_whole("pieces", pieces, least=1)
    check_function("on_step", on_step)
    later = read(after, text, output)
    inputs = read(before, later)
    model, other = inputs.model, later.model
    check_same_parameters(model, other)
    check_same_settings(model, other)
    metric = given_metric(metric) or loss_of(inputs, "give a metric")
    first, last = (_loss(each, inputs, metric) for each in (model, other))
    parts = [
        part
        for name, changes in parameter_changes(inputs, other, metric, pieces, on_step).items()
        for part in _parts(model, name, changes)
    ]
    parts = _added_up(parts)
    total = sum(part.value for part in parts)
    return LossChanges(first, last, parts, total, last - first - total, pieces)


@torch.inference_mode(False)
def loss_changes_since(
    run: Run,
    text: Readable,
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
    """Return `loss_changes` between two steps of a run.

    Args:
        run: A run in a directory. A step whose weights are not kept is trained again, as `replay` does.
        text: A string or ids.
        since: The earlier step; by default that of the first kept checkpoint, or of the first kept weights if no
            checkpoint is earlier than the later step.
        until: The later one; by default that of the opened run.
        output: What an encoder-decoder writes; by default the later step's own translation.
        masked: Positions at which an encoder reads [MASK].
        target: For a classifier, the class whose loss is meant; by default the one that the later step finds
            likeliest.
        pieces: The number of pieces of the path.
        opened: The run at some steps, such as replayed ones, which are then not trained again.
        on_step: Called after each repeated training step, and then after each gradient, with the number done and
            the total.

    Raises:
        RunError: the run has no directory, or a step cannot be trained again; see `replay`.
        CheckpointError: its weights are damaged.
        DataError: a step has to be trained again, and its data cannot be read or have changed.
        UserError: see `loss_changes`; or the run has not taken so many steps, or a target is given to a model that is
            not a classifier.
    """
    check_run(run, "folder")
    check_kind("opened", opened, Mapping)
    check_function("on_step", on_step)
    folder: RunFolder = run.folder  # type: ignore[attr-defined]
    for name, given in (("since", since), ("until", until)):
        if given is not None:
            check_whole(name, given, least=0)
            check_took(folder, given, name)
    device = run.model.embed.weight.device
    later: int = run.step if until is None else until  # type: ignore[attr-defined]
    step = _first_step(folder, later) if since is None else since
    before = opened.get(step) or _at_step(folder, step, device, on_step)
    after = run if until is None else opened.get(until) or _at_step(folder, until, device, on_step)
    inputs = read(after, text, output, masked=masked)
    if target is not None and not inputs.class_names:
        raise UserError("target: only a classifier takes one; here the change is that of the text's loss")
    metric = class_loss(inputs, target) if inputs.class_names else loss_of(inputs, instead="")
    return loss_changes(before, after, inputs, metric=metric, pieces=pieces, on_step=on_step)


def _first_step(folder: RunFolder, until: int) -> int:
    """Return the step of the first checkpoint, or of the first kept weights if no checkpoint is before `until`."""
    first = min(map(step_of, list_checkpoints(folder.checkpoints)), default=until)
    return first if first < until else min(kept_steps(folder), default=0)


def _at_step(folder: RunFolder, step: int, device: torch.device, on_step: OnStep) -> Loaded:
    """Return the run at a kept step or, if it was trained in its directory, at any step."""
    try:
        folder.trained_on()
    except ClearformerError:
        return read_run(folder.path, step, device)
    return replay_run(folder, step, device, on_step)


def class_loss(inputs: Inputs, target: str | int | None) -> Metric:
    """Return the loss of a class, by default of the likeliest one."""
    wanted = metric_of(inputs, target).target
    return lambda output: -log_softmax(at_least_float32(output), dim=-1)[:, wanted]


def parameter_changes(
    inputs: Inputs, after: Transformer, metric: Metric, pieces: int, on_step: OnStep = lambda *_: None
) -> dict[str, Tensor]:
    """Return for each number of each parameter its share of the change: difference times mean gradient on the path."""
    model = copy.deepcopy(inputs.model)  # whose weights are replaced, while another thread may read them
    starts = {name: parameter.detach() for name, parameter in model.named_parameters()}
    ends = {name: parameter.detach().to(starts[name]) for name, parameter in after.named_parameters()}
    means = {name: torch.zeros_like(start, dtype=torch.float64) for name, start in starts.items()}
    points = list(simpson(pieces))
    for done, (at, weight) in enumerate(points, start=1):
        here = {name: torch.lerp(start, ends[name], at).requires_grad_() for name, start in starts.items()}
        with quiet(model, grad=True):
            loss = metric(functional_call(model, here, inputs.arguments)).sum()
            gradients = torch.autograd.grad(
                loss, list(here.values()), allow_unused=True, materialize_grads=True
            )
        for name, gradient in zip(here, gradients, strict=True):
            means[name] += weight * gradient
        on_step(done, len(points))
    return {name: mean * (ends[name] - starts[name]) for name, mean in means.items()}


def simpson(pieces: int) -> Iterator[tuple[float, float]]:
    """Yield the points of [0, 1] and their weights for Simpson's rule on a number of equal pieces."""
    n = 2 * pieces
    for i in range(n + 1):
        yield i / n, (1 if i in (0, n) else 4 if i % 2 else 2) / (3 * n)


def check_same_parameters(one: Transformer, other: Transformer) -> None:
    """Raise UserError if two models differ in their parameters; the first difference is named."""
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


def check_same_settings(one: Transformer, other: Transformer) -> None:
    """Raise UserError if two models compute differently; the first setting that differs is named."""
    for name, values in differing(one.config, other.config).items():
        if UNUSED.isdisjoint(name.split(".")):
            raise UserError(
                f"the two models differ in model.{name} ({' and '.join(values)}); give two checkpoints of one run, or "
                "runs of one configuration"
            )


def _loss(model: Transformer, inputs: Inputs, metric: Metric) -> float:
    with quiet(model):
        return metric(model(*inputs.arguments)).item()


# --- parts ----------------------------------------------------------------------------------------------------


def _parts(model: Transformer, name: str, changes: Tensor) -> Iterator[Part]:
    """Yield the sums of a parameter's changes over the parts of the model that it belongs to."""
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
    """Return the path of a parameter's part: an attention, a network, or the module that owns it."""
    path = name.rpartition(".")[0]
    for end in (".attn", ".cross_attn", ".mlp"):
        if end in path:
            return path[: path.index(end) + len(end)]
    return path or name


def _added_up(parts: list[Part]) -> list[Part]:
    """Add up parts with the same name and head, in the order of the model."""
    totals: dict[tuple[str, int | None, int | None], float] = {}
    for part in parts:
        place = (part.name, part.head, part.kv_head)
        totals[place] = totals.get(place, 0.0) + part.value
    return [Part(*place, value) for place, value in totals.items()]
