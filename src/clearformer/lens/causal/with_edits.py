"""A model without and with edits: its predictions, its losses, and its continuations of the text.

    found = lens.with_edits(run, "First Citizen:", ["zero blocks.0.attn.hook_z:3", "scale blocks.1.hook_mlp_out 0.5"])
    found.before, found.after             the metric: a logit, or the difference of two
    found.held_out_before, found.held_out_after

Edits are short lines; see `named_edits`. Without edits both sides are identical to the bit.

Shapes: T positions of the text, V vocabulary.
"""

import json
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_function, check_list, check_run, check_whole
from clearformer.decoding.samplers import Sampling, sampling_of
from clearformer.errors import ClearformerError, UserError
from clearformer.hooks import HookFn
from clearformer.hooks.readings import once
from clearformer.lens.activations import outputs_at
from clearformer.lens.causal.interventions import (
    Edit,
    attention_in_the_open,
    hooks_of,
    output_with,
)
from clearformer.lens.causal.metrics import LogitDifference, metric_of, name_of
from clearformer.lens.causal.named_edits import NamedEdit, edits_of, parse_edit, within
from clearformer.lens.causal.patching import read_both
from clearformer.lens.causal.sites import heads_of, networks_of, residuals_of
from clearformer.lens.divergence import divergence
from clearformer.lens.inputs import Inputs, Readable, Subject, quiet, read
from clearformer.lens.sampling.beginnings import Beginning, nothing_written
from clearformer.lens.sampling.continuations import Continued, continued
from clearformer.lens.showing import EITHER, FIRST, Shown, Table, letters, number, quoted, visible
from clearformer.lens.tokens import losses_of, losses_of_logits
from clearformer.model import Decoder, EncoderDecoder, Transformer
from clearformer.results import plain
from clearformer.runs.evaluation import CHANGED
from clearformer.runs.own_data import read_own_data
from clearformer.training.tasks import Task, task_type

OnPart = Callable[["WithEdits"], None]
"""Receives the whole result after each token of the continuations, which are as long as written so far."""

TOP = 10
BELONGS_TO_TEXT = "no held-out loss: a patch or an edit at one position applies to this text alone"


@dataclass(frozen=True)
class Predicted:
    """A token or class that the model predicts, without and with the edits.

    Attributes:
        token: The token or class in readable form.
        id: Its id or number.
        logit_before: Its logit without the edits.
        logit_after: Its logit with them.
        before: Its probability without.
        after: Its probability with.
    """

    token: str
    id: int
    logit_before: float
    logit_after: float
    before: float
    after: float


@dataclass(frozen=True, repr=False, eq=False)
class WithEdits(Shown):
    """A model without and with edits.

    Attributes:
        edits: The edits as given.
        metric: The name of the metric: the target's logit, less the foil's.
        before: The metric without the edits.
        after: The metric with them.
        token: The token at the position; empty for a classifier.
        position: The position, from 0.
        predicted: The likeliest tokens of either side, ordered by their probability without edits.
        kl: KL(without || with) of that prediction, in nats.
        tokens: The text's tokens.
        targets: The token that each position predicts; empty where the text does not contain it.
        losses_before: -ln of each target's probability without the edits, in nats; NaN without a target.
        losses_after: The same with the edits.
        loss_changes: losses_after - losses_before.
        loss_before: The mean loss without the edits; NaN if the text has none.
        loss_after: The mean loss with them.
        held_out_before: The mean loss on some of the run's own held-out data; None if there are none, or if an edit
            applies to this text alone.
        held_out_after: The same with the edits.
        held_out_note: Why there is no held-out loss, or that the run's data changed after training.
        continued_before: The continuation of the text up to the position, by the seed; None for an encoder or 0 tokens.
            In a difference of two runs both continuations are the first's.
        continued_after: The same by the edited model.
        heads: Every head that can be edited, as sites.
        networks: Every feed-forward network.
        residuals: The residual stream before each block.
    """

    edits: list[str]
    metric: str
    before: float
    after: float
    token: str
    position: int
    predicted: list[Predicted] = field(metadata={EITHER: True})
    kl: float
    tokens: list[str]
    targets: list[str]
    losses_before: Float[np.ndarray, " T"]
    losses_after: Float[np.ndarray, " T"]
    loss_changes: Float[np.ndarray, " T"]
    loss_before: float
    loss_after: float
    held_out_before: float | None
    held_out_after: float | None
    held_out_note: str
    continued_before: Continued | None = field(metadata={FIRST: True})
    continued_after: Continued | None = field(metadata={FIRST: True})
    heads: list[str]
    networks: list[str]
    residuals: list[str]

    @property
    def effect(self) -> float:
        """The change of the metric that the edits cause."""
        return self.after - self.before

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "effect": plain(self.effect)}

    def caption(self) -> str:
        changed = f"{self.metric} goes from {self.before:.4f} to {self.after:.4f}"
        return f"with {', '.join(self.edits) or 'no edit'}: {changed}"

    def table(self) -> Table:
        rows = [
            [
                visible(each.token),
                str(each.id),
                *map(number, (each.logit_before, each.logit_after, each.logit_after - each.logit_before)),
                f"{each.before:.6f}",
                f"{each.after:.6f}",
            ]
            for each in self.predicted
        ]
        heads = ["token", "id", "logit before", "logit after", "change", "before", "after"]
        return Table(heads, rows, 2)

    def notes(self) -> list[str]:
        notes = [f"KL(without || with) of the prediction: {self.kl:.4f} nats"]
        if np.isfinite(self.loss_before):
            notes.append(
                f"mean loss of the text: {self.loss_before:.4f} nats without, {self.loss_after:.4f} with"
            )
        if self.held_out_before is not None and self.held_out_after is not None:
            notes.append(f"held-out loss: {self.held_out_before:.4f} without, {self.held_out_after:.4f} with")
        return [*notes, self.held_out_note] if self.held_out_note else notes

    def inches(self) -> tuple[float, float]:
        return 6.0, 1.0 + 0.3 * len(self.predicted)

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        places = np.arange(len(self.predicted))
        for shift, name, colour in ((-0.2, "before", "#9aa4b0"), (0.2, "after", "#6b4fc1")):
            values = [getattr(each, name) for each in self.predicted]
            axes.barh(places + shift, values, height=0.36, color=colour, label=name)
        axes.set_yticks(places, [letters(visible(each.token)) for each in self.predicted], fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("probability", fontsize=8)
        title = f"after {letters(quoted(self.token))}" if self.token else "the text's class"
        axes.set_title(title, fontsize=9)
        axes.legend(frameon=False, fontsize=8)


def with_edits(
    subject: Subject,
    text: Readable,
    edits: Sequence[str] = (),
    output: Text | None = None,
    *,
    donor: Readable | None = None,
    target: str | int | None = None,
    foil: str | int | None = None,
    position: int = -1,
    held_out: int = 4,
    max_new_tokens: int = 24,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    masked: Sequence[int] = (),
    on_part: OnPart | None = None,
) -> WithEdits:
    """Read a text without and with edits, and compare predictions, losses and continuations.

    Args:
        subject: A run, or a bare model.
        text: What is read.
        edits: Lines such as `zero blocks.0.attn.hook_z:3`, `scale SITE 0.5`, `mean SITE`, `patch SITE`.
        output: What an encoder-decoder writes; by default its own translation.
        donor: The text that `patch` takes from, with the same number of tokens; read only if an edit patches.
        target: A token or class whose logit is measured; by default the likeliest one without edits.
        foil: Another, whose logit is subtracted.
        position: The position that predicts it. The continuation begins after it; edits at later positions do not
            affect that. An encoder-decoder given neither an output nor a position continues an empty output.
        held_out: The number of rows of the run's held-out data to measure the loss on, evenly spaced and always the
            same; 0 measures none.
        max_new_tokens: The length of the continuations; 0 makes none. With edits at positions they end where the
            context would leave the text's beginning behind.
        temperature: See `Sampling`, also for the next four.
        top_k: See `Sampling`.
        top_p: See `Sampling`.
        min_p: See `Sampling`.
        repetition_penalty: See `Sampling`.
        seed: The seed of both continuations, which use the same random numbers.
        masked: Positions at which an encoder reads [MASK].
        on_part: Called with the result so far while the continuations are written.

    Raises:
        ConfigError: a setting is out of its range.
        UserError: an edit does not fit this model and text (it is named), the donor has another length, or there is no
            such token, class or position.
    """
    _check(edits, held_out=held_out, max_new_tokens=max_new_tokens)
    if on_part is not None:
        check_function("on_part", on_part)
    sampling = sampling_of(temperature, top_k, top_p, min_p, repetition_penalty)
    inputs = read(subject, text, output, masked=masked)
    patches = any(parse_edit(each).verb == "patch" for each in edits)
    given = None if donor is None or not patches else read_both(subject, inputs, donor, None)[1]
    made = Edits(inputs, given, edits_of(edits, inputs, given))
    measure = metric_of(inputs, target, foil, position)
    at = inputs.predicting(position)
    sides = _sides(made, at)
    logits, (losses_before, losses_after) = [each.logits for each in sides], [each.losses for each in sides]
    before, after = (_measured(measure, each) for each in logits)
    held_out_before, held_out_after, held_out_note = _held_out(subject, made, held_out)
    begun = Beginning(inputs, 0 if nothing_written(inputs.model, text, output, position) else at, [])
    found = WithEdits(
        edits=list(edits),
        metric=name_of(measure, inputs),
        before=before,
        after=after,
        token="" if inputs.class_names else inputs.labels[at],
        position=at,
        predicted=_predicted(inputs, *logits),
        kl=float(divergence(*(each.cpu().double() for each in logits))),
        tokens=inputs.labels,
        targets=inputs.predicted_labels,
        losses_before=losses_before.copy(),
        losses_after=losses_after.copy(),
        loss_changes=losses_after - losses_before,
        loss_before=_mean(losses_before),
        loss_after=_mean(losses_after),
        held_out_before=held_out_before,
        held_out_after=held_out_after,
        held_out_note=held_out_note,
        continued_before=None,
        continued_after=None,
        heads=[each.label for each in heads_of(inputs.model)],
        networks=[each.label for each in networks_of(inputs.model)],
        residuals=[each.label for each in residuals_of(inputs.model)],
    )

    def joined(without: Continued | None, with_them: Continued | None) -> WithEdits:
        return replace(found, continued_before=without, continued_after=with_them)

    told = None if on_part is None else lambda *both: on_part(joined(*both))
    return joined(*_continued(begun, made, sampling, max_new_tokens, seed, told))


@dataclass(frozen=True, eq=False)
class Edits:
    """The edits of a text.

    Attributes:
        inputs: The text.
        donor: The text that patches are taken from.
        pairs: Each edit as parsed, with the `Edit` for interventions.
    """

    inputs: Inputs
    donor: Inputs | None
    pairs: Sequence[tuple[NamedEdit, Edit]]

    @property
    def hooks(self) -> dict[str, HookFn]:
        """The edits in the form of `model.hooked`."""
        return hooks_of(edit for _, edit in self.pairs)

    @property
    def are_of_any_text(self) -> bool:
        """Whether all edits mean the same in other texts."""
        return all(named.is_of_any_text for named, _ in self.pairs)

    @property
    def key(self) -> tuple[Hashable, ...]:
        """A cache key: the lines, and the ids of the texts that they take values from."""
        lines, verbs = zip(*((named.line, named.verb) for named, _ in self.pairs), strict=True)
        own = self.inputs.key if "mean" in verbs else None
        return lines, own, None if self.donor is None else self.donor.key

    def none(self) -> "Edits":
        """Return the same text without edits."""
        return replace(self, pairs=[])

    def before(self, n_tokens: int) -> "Edits":
        """Return the edits at the text's first tokens."""
        return replace(self, pairs=within(self.pairs, n_tokens, self.inputs))


class Side(NamedTuple):
    """A model's predictions for a text, with edits or without.

    Attributes:
        logits: The logits at the position in question, or those of the classes.
        losses: -ln of each target's probability.
    """

    logits: Float[Tensor, " V"]
    losses: Float[np.ndarray, " T"]


def _sides(edits: Edits, position: int) -> tuple[Side, Side]:
    """Return the sides without and with edits, computed in the same form; without edits, an ordinary pass for both."""
    inputs = edits.inputs
    if not edits.pairs:
        with quiet(inputs.model):
            logits = outputs_at(inputs, position)
        both = Side(logits, losses_of(inputs))
        return both, both
    return _side(edits.none(), position), _side(edits, position)


def _side(edits: Edits, position: int) -> Side:
    inputs, model = edits.inputs, edits.inputs.model
    key = (inputs.key, *(edits.key if edits.pairs else ()))
    output = once(
        model,
        ("output in the open", *key),
        lambda: output_with(model, inputs.arguments, [edit for _, edit in edits.pairs])[0],
    )
    of_targets = ("losses in the open", *key, tuple(inputs.predicted))
    losses = once(model, of_targets, lambda: losses_of_logits(inputs.predicted, output))
    return Side(output if inputs.class_names else output[position], losses)


def _measured(measure: LogitDifference, logits: Float[Tensor, " V"]) -> float:
    return measure(logits[None]).item()


def _check(edits: Any, **counts: Any) -> None:
    if isinstance(edits, str):
        raise UserError(f"edits: a list of lines, such as [{edits!r}]")
    check_list("edits", edits, "lines", "zero blocks.0.hook_mlp_out")
    for name, value in counts.items():
        check_whole(name, value, least=0)


def _continued(
    begun: Beginning,
    edits: Edits,
    sampling: Sampling,
    max_new_tokens: int,
    seed: int,
    told: Callable[[Continued, Continued], None] | None,
) -> tuple[Continued | None, Continued | None]:
    """Continue the text without and with the edits, by the same random numbers; None for an encoder.

    `told` is called with both, as far as they are written.
    """
    model = begun.inputs.model
    if not max_new_tokens or not isinstance(model, Decoder | EncoderDecoder):
        return None, None
    made = edits.before(begun.position + 1)
    if not made.are_of_any_text:
        # With one token more, the context would no longer begin where the text does, from which positions count.
        max_new_tokens = min(max_new_tokens, model.config.max_seq_len - begun.position)
    nothing = Continued("", [], 0.0, "length")

    def tell_before(written: list[Continued]) -> None:
        if told is not None:
            told(written[0], nothing if made.pairs else written[0])

    [before] = continued(begun, sampling, max_new_tokens, 1, seed, on_part=tell_before)
    if not made.pairs:
        return before, before

    def tell_after(written: list[Continued]) -> None:
        if told is not None:
            told(before, written[0])

    def with_them() -> list[Continued]:
        # A site's position counts from the start of the text, so if one is named, the whole text is read at each token.
        with model.hooked(made.hooks):
            return continued(begun, sampling, max_new_tokens, 1, seed, made.are_of_any_text, tell_after)

    chosen = (begun.inputs.tokenizer, sampling.model_dump_json(), max_new_tokens, seed)
    key = ("continued with edits", *begun.key, *made.key, *chosen)
    return before, once(model, key, with_them)[0]


def _mean(losses: Float[np.ndarray, " T"]) -> float:
    known = losses[np.isfinite(losses)]
    return float(known.mean()) if len(known) else math.nan


def _predicted(inputs: Inputs, before: Float[Tensor, " V"], after: Float[Tensor, " V"]) -> list[Predicted]:
    """Return the likeliest of either side, ordered by their probability without edits."""
    logits = [each.cpu().double() for each in (before, after)]
    likeliest = [each.topk(min(TOP, len(each))).indices.tolist() for each in logits]
    probabilities = [each.softmax(-1) for each in logits]
    ids = sorted({*likeliest[0], *likeliest[1]}, key=lambda each: (-float(probabilities[0][each]), each))
    return [
        Predicted(
            inputs.output_label(each), each, *(float(column[each]) for column in (*logits, *probabilities))
        )
        for each in ids
    ]


def _held_out(subject: Any, edits: Edits, n_rows: int) -> tuple[float | None, float | None, str]:
    """Return the mean loss on some rows of a run's own held-out data, without and with the edits, and a note."""
    if not n_rows or isinstance(subject, Transformer):
        return None, None, ""
    if not edits.are_of_any_text:
        return None, None, BELONGS_TO_TEXT
    try:
        check_run(subject, "folder", "config")
        own = read_own_data(subject, allow_changed=True)
        task = task_type(subject.config.train.objective)(subject.config, own.prepared)
    except ClearformerError as error:
        return None, None, f"no held-out loss: {error}"
    settings = (subject.config.model_dump_json(), json.dumps(own.prepared.manifest), n_rows)
    losses = [
        once(
            subject.model,
            ("held out", *settings, *(made.key if made.pairs else ())),
            partial(_loss_with, subject.model, task, made, n_rows),
        )
        for made in ([edits.none(), edits] if edits.pairs else [edits])
    ]
    if losses[0] is None:
        return None, None, "no held-out loss: the run has no held-out data"
    return losses[0], losses[-1], CHANGED if own.changed else ""


def _loss_with(model: Transformer, task: Task, edits: Edits, n_rows: int) -> float | None:
    with attention_in_the_open(model), model.hooked(edits.hooks):
        result = task.evaluate(model, torch.float32, n_rows)
    return None if result is None else result.loss
