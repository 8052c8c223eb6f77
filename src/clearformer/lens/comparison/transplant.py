"""A head of one run put in place of a head of another, and the loss that this costs.

    found = lens.transplant(run, other, layer=1, head=3)          into the same place of `run`
    found.cost                                                    nats on the run's held-out text
    found.model                                                   the copy; the runs stay unchanged

Only what belongs to one head moves: its slices of W_Q, W_K, W_V and W_O, and of the biases of W_Q, W_K and W_V. The
bias of W_O and the norms of queries and keys are shared by all heads and stay. The moved head still reads and writes in
the basis of the other model's residual stream: between runs of different seeds it seldom does what it did before.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_run
from clearformer.decoding.text.samples import Run
from clearformer.errors import UserError, count, shown
from clearformer.lens.activations import SubLayer, check_part, has_known_matrices
from clearformer.lens.causal.metrics import loss_of
from clearformer.lens.comparison.pairs import texts_of
from clearformer.lens.inputs import quiet, read
from clearformer.lens.learning.reopening import task_of
from clearformer.lens.patterns.attention import checked_number
from clearformer.lens.showing import Shown, Table, bars, number
from clearformer.model import EncoderDecoder, Transformer
from clearformer.model.attention import ProjectedHeads


@dataclass(frozen=True, repr=False, eq=False)
class Transplant(Shown):
    """A copy of a model with a head of another model.

    Attributes:
        head: The head that was moved: `blocks.1.attn:3`.
        into: The head that it replaced.
        measured_on: The data of the losses.
        before: The loss of the original model, in nats per token.
        after: The loss of the copy.
        cost: after - before.
        model: The copy.
    """

    head: str
    into: str
    measured_on: str
    before: float
    after: float
    cost: float
    model: Transformer = field(repr=False)

    def caption(self) -> str:
        return f"{self.head} of the other run as {self.into}: loss on {self.measured_on}, nats"

    def table(self) -> Table:
        rows = [["unchanged", f"{self.before:.6f}"], ["with the other head", f"{self.after:.6f}"]]
        return Table(["", "loss"], [*rows, ["cost", number(self.cost)]])

    def inches(self) -> tuple[float, float]:
        return 4.5, 1.5

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        bars(axes, ["unchanged", "with the other head"], [self.before, self.after])
        axes.set_xlabel("loss, nats")


def transplant(
    run_to: Run,
    run_from: Run,
    layer: int,
    head: int,
    *,
    into: tuple[int, int] | None = None,
    attention: SubLayer = "attn",
    texts: Text | Sequence[Text] | None = None,
) -> Transplant:
    """Put a head of one run in place of a head of another, on a copy, and measure the cost in loss.

    Args:
        run_to: The run whose copy receives the head.
        run_from: The run that it comes from: a model of the same width, with heads of the same size.
        layer: The head's layer in `run_from`; negative ones count from the last.
        head: Its number in that layer.
        into: The layer and head of `run_to` to replace; by default the same.
        attention: `attn`; for an encoder-decoder also `cross_attn`, or `encoder` for its encoder.
        texts: The texts to measure the loss on, in place of the held-out split of `run_to`.

    Raises:
        UserError: there is no such head, the models' sizes differ, several heads share their keys and values, or no
            texts are given and the run has no held-out split.
        RunError: no texts are given, and the run's data are unknown.
        DataError: the run's data cannot be read, or have changed.
    """
    check_run(run_to)
    check_run(run_from)
    here, there = (layer, head) if into is None else checked_place(into), (layer, head)
    path, at = find_head(run_to.model, *here, attention)
    path_from, at_from = find_head(run_from.model, *there, attention)
    copy = copy_with_head(run_to.model, path, at, run_from.model, path_from, at_from)
    read = None if texts is None else texts_of(texts)
    losses = [measured(run_to, each, read) for each in (run_to.model, copy)]
    measured_on = "the held-out split" if texts is None else "the given texts"
    before, after = losses
    return Transplant(
        f"{path_from}:{at_from}", f"{path}:{at}", measured_on, before, after, after - before, copy
    )


def checked_place(into: Any) -> tuple[int, int]:
    """Return a layer and a head after checking them.

    Raises:
        UserError: it is something else.
    """
    if not isinstance(into, tuple | list) or len(into) != 2:
        raise UserError(f"into: a layer and a head, such as (1, 3); got {shown(into)}")
    return into[0], into[1]


def find_head(model: Transformer, layer: int, head: int, attention: SubLayer) -> tuple[str, int]:
    """Return the path of a head's attention module, and its number there from 0.

    Raises:
        UserError: there is no such head, or it has no matrices of its own.
    """
    check_part(model, attention, "attention")
    has_two = isinstance(model, EncoderDecoder)
    prefix = "" if not has_two else "encoder_" if attention == "encoder" else "decoder_"
    n_layers = len(model.stack(prefix).blocks)
    at_layer = checked_number("layer", layer, n_layers)
    path = f"{prefix}blocks.{at_layer}.{'cross_attn' if attention == 'cross_attn' else 'attn'}"
    module = model.get_submodule(path)
    if not has_known_matrices(module):
        raise UserError(
            f"{path} has {model.config.attention.kind} attention, whose heads have no matrices of their own: only "
            "multihead and linear attention have"
        )
    if module.n_kv_heads != module.n_heads:
        raise UserError(
            f"{path} has {count(module.n_heads, 'head')} that share the keys and values of {module.n_kv_heads} "
            "(n_kv_heads): one of them cannot be moved without the others"
        )
    return path, checked_number("head", head, module.n_heads)


def copy_with_head(
    model: Transformer, path: str, head: int, other: Transformer, other_path: str, other_head: int
) -> Transformer:
    """Return a copy of a model in which a head has the matrices of another model's head.

    Raises:
        UserError: the matrices differ in shape, or one model has some that the other lacks.
    """
    copy = deepcopy(model)
    target, source = copy.get_submodule(path), other.get_submodule(other_path)
    assert isinstance(target, ProjectedHeads)
    assert isinstance(source, ProjectedHeads)
    ours, theirs = slices_of(target, head), slices_of(source, other_head)
    for name in ours | theirs:
        shapes = [list(each[name].shape) if name in each else "none" for each in (ours, theirs)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"{name} of a head is {shapes[0]} in {path} and {shapes[1]} in {other_path}: a head moves between "
                "models of one d_model and d_head, with the same matrices and biases"
            )
    with torch.no_grad():
        for name, part in ours.items():
            part.copy_(theirs[name])
    return copy


def slices_of(layer: ProjectedHeads, head: int) -> dict[str, torch.Tensor]:
    """Return the slices of a layer's matrices and biases that belong to one head alone, as views."""
    found = {}
    for name in ("W_Q", "W_K", "W_V"):
        matrix = getattr(layer, name)
        if isinstance(matrix, nn.Linear):
            found[f"{name}.weight"] = matrix.weight.unflatten(0, (layer.n_heads, -1))[head]  # [Dh D]
            if matrix.bias is not None:
                found[f"{name}.bias"] = matrix.bias.unflatten(0, (layer.n_heads, -1))[head]
    if isinstance(layer.W_O, nn.Linear):
        found["W_O.weight"] = layer.W_O.weight.unflatten(1, (layer.n_heads, -1))[:, head]  # [D Dh]
    return found


def measured(run: Run, model: Transformer, texts: Sequence[Text] | None) -> float:
    """Return a model's loss on the run's held-out split or on some texts, in nats per token.

    Raises:
        UserError: a text has no loss, or there is nothing to measure on.
    """
    if texts is None:
        task = task_of(run)
        evaluation = task.evaluate(model, task.config.train.matrix_dtype)
        if evaluation is None:
            raise UserError(
                "texts: this run has no held-out split to measure the loss on; give texts (in Python)"
            )
        return evaluation.loss
    total = n_targets = 0.0
    for text in texts:
        inputs = read(run, text)
        metric = loss_of(inputs, "omit texts, and the held-out split is measured")
        n = sum(each is not None for each in inputs.predicted)
        with quiet(model):
            total += n * metric(model(*read(model, inputs).arguments)).item()
        n_targets += n
    return total / n_targets
