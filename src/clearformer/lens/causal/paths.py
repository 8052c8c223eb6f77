"""Path patching: the direct effect of one part on another (Goldowsky-Dill et al. 2023; Wang et al. 2022).

    lens.patch_paths(run, text, donor, senders=[Site("blocks.0.attn.hook_z", head=4)],
                     receivers=["blocks.1.attn.hook_k"], target=..., foil=...)

A sender is anything that writes to a residual stream: a head, a feed-forward network, an embedding. A receiver is any
later hook point. First the model reads the text with the senders as in the donor text and all other writers held as in
the text, so that a receiver changes only by what the senders wrote directly. Then it reads the text with the receivers
set to these values and everything else free. The norms on the way are computed anew.

With all writers as senders a receiver gets exactly its value in the donor text.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from clearformer.decoding import Text
from clearformer.errors import UserError
from clearformer.hooks import Hook
from clearformer.lens.activations import has_known_heads
from clearformer.lens.causal.interventions import (
    Activations,
    Arguments,
    Edit,
    activations,
    attention_in_the_open,
    hooks_of,
    output_with,
    patch,
)
from clearformer.lens.causal.metrics import Metric, given_metric, metric_of
from clearformer.lens.causal.patching import read_both
from clearformer.lens.causal.sites import Site, Where, embeddings_of, networks_of, sites_of
from clearformer.lens.inputs import Readable, Subject, quiet
from clearformer.lens.showing import Shown, Table, bars, number
from clearformer.model import Transformer
from clearformer.model.block import Block
from clearformer.results import plain

OUTPUT = "output"
"""The receiver that stands for the model's output: it changes only by what the senders write directly."""


@dataclass(frozen=True, repr=False, eq=False)
class PathEffect(Shown):
    """The effect of the direct paths from senders to receivers.

    Attributes:
        senders: The sites whose output is patched.
        receivers: The sites that receive it.
        own: The metric of the text itself.
        donor: The metric of the donor text.
        after: The metric with the paths patched.
    """

    senders: list[Site]
    receivers: list[Site]
    own: float
    donor: float
    after: float

    @property
    def effect(self) -> float:
        """The change of the metric that the paths cause."""
        return self.after - self.own

    def to_dict(self) -> dict[str, object]:
        return {**super().to_dict(), "effect": plain(self.effect)}

    def caption(self) -> str:
        senders, receivers = (", ".join(map(str, sites)) for sites in (self.senders, self.receivers))
        return f"the direct paths from {senders or 'nothing'} to {receivers}, patched from the donor text"

    def table(self) -> Table:
        return Table(["text", "measure"], [[name, number(value)] for name, value in self._measures().items()])

    def notes(self) -> list[str]:
        return [f"effect of the paths: {number(self.effect)}"]

    def inches(self) -> tuple[float, float]:
        return 5.0, 1.6

    def draw(self, figure: Any) -> None:
        bars(figure.subplots(), list(self._measures()), list(self._measures().values()))

    def _measures(self) -> dict[str, float]:
        return {"itself": self.own, "paths patched": self.after, "donor": self.donor}


def patch_paths(
    subject: Subject,
    text: Readable,
    donor: Readable,
    senders: Where | Iterable[Where],
    receivers: Where | Iterable[Where] = OUTPUT,
    *,
    target: str | int | None = None,
    foil: str | int | None = None,
    position: int = -1,
    output: Text | None = None,
    metric: Metric | None = None,
) -> PathEffect:
    """Patch the direct paths from some parts of a model to others.

    Args:
        subject: A run, or a bare model.
        text: What is read.
        donor: The text to patch from, with the same number of tokens.
        senders: Heads (`hook_z`), a user's kind of attention (`hook_attn_out`), networks (`hook_mlp_out`), embeddings
            (`hook_embed`, `hook_pos_embed`).
        receivers: Later hook points, such as a head's queries (`hook_q`) or a network's input (`mlp.hook_pre`); or
            `output`.
        target: A token or class whose logit is measured; by default the likeliest one.
        foil: Another, whose logit is subtracted.
        position: The position that predicts it.
        output: What an encoder-decoder writes for both; by default its own translation of the text.
        metric: A function of the output, in place of `target`, `foil` and `position`; see `metrics`.

    Raises:
        UserError: a sender writes to no residual stream, there is no receiver, the texts are of different lengths, or
            there is no such hook point, head, position, token or class.
    """
    inputs, other = read_both(subject, text, donor, output)
    metric = given_metric(metric, target, foil, position) or metric_of(inputs, target, foil, position)
    if isinstance(receivers, str | Site) or not isinstance(receivers, Iterable):
        receivers = [receivers]
    given = list(receivers)
    if not given:
        raise UserError(f"receivers: give at least one hook point, or {OUTPUT!r}")
    told = [] if given == [OUTPUT] else sites_of(inputs.model, given)
    sending = sites_of(inputs.model, senders)
    after = output_of_paths(inputs.model, inputs.arguments, other.arguments, sending, told)
    own, donated = (metric(output_with(each.model, each.arguments)).item() for each in (inputs, other))
    return PathEffect(sending, told or [Site(OUTPUT)], own, donated, metric(after).item())


def output_of_paths(
    model: Transformer, arguments: Arguments, donor: Arguments, senders: list[Site], receivers: list[Site]
) -> Tensor:
    """Return the model's output with the paths patched; without receivers, the paths to the output itself."""
    held = _writers_held(model, arguments, donor, senders)
    if not receivers:
        return output_with(model, arguments, held)
    told = _received(model, arguments, held, [site.name for site in receivers])
    return output_with(model, arguments, [patch(site, told) for site in receivers])


def _writers_held(
    model: Transformer, arguments: Arguments, donor: Arguments, senders: list[Site]
) -> list[Edit]:
    """Return edits that hold every writer as in the text itself, but the senders as in the donor text."""
    writers = writers_of(model)
    for site in senders:
        if site.name not in writers:
            raise UserError(
                f"{site.name} does not write to the residual stream; a sender is one of {', '.join(sorted(writers))}"
            )
    own, other = (activations(model, each, writers) for each in (arguments, donor))
    return [*(patch(name, own) for name in writers), *(patch(site, other) for site in senders)]


def writers_of(model: Transformer) -> list[str]:
    """Return the hook points of everything that is added to a residual stream."""
    attentions = [
        f"{path}.{part}.hook_z" if has_known_heads(attention) else f"{path}.hook_{part}_out"
        for path, block in model.named_modules()
        if isinstance(block, Block)
        for part, attention in (("attn", block.attn), ("cross_attn", block.cross_attn))
        if attention is not None
    ]
    return [*(site.name for site in embeddings_of(model)), *attentions, *(s.name for s in networks_of(model))]


def _received(model: Transformer, arguments: Arguments, held: list[Edit], names: list[str]) -> Activations:
    """Return what the receivers compute while the writers are held; a receiver may be a writer itself."""
    received: dict[str, Tensor] = {}

    def keep(activation: Tensor, hook: Hook) -> None:
        received[hook.name] = activation

    keeping, holding = model.hooked(dict.fromkeys(names, keep)), model.hooked(hooks_of(held))
    with quiet(model), attention_in_the_open(model), keeping, holding:  # kept before it is held
        model(*arguments)
    return received
