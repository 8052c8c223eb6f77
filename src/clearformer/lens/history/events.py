"""Events of a run's training, found from its kept weights and logged losses.

    for event in lens.events(run).events:
        print(event.title, event.words)

There are two:

    induction heads formed      between the last kept step at which every head's induction score (`lens.head_scores`)
                                was below a threshold and the first at which one has reached it
    bigram loss reached         at the first logged step whose held-out loss is at or below that of a bigram model of
                                the training data (`lens.bigram`)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from clearformer.decoding.arguments import OnStep, check_function, check_run, check_seed
from clearformer.errors import CheckpointError, ClearformerError, RunError, UserError, shown
from clearformer.hooks import hook_points
from clearformer.lens.heads.scores import attention_to, induction_positions, repeated
from clearformer.lens.history.bigram import bigram
from clearformer.lens.inputs import quiet
from clearformer.lens.showing import Shown, Table, is_changing
from clearformer.model import Encoder, EncoderDecoder
from clearformer.runs.folders import RunLike, read_run
from clearformer.runs.kept_weights import find_kept, kept_steps
from clearformer.training.store.folder import read_metrics

THRESHOLD = 0.3  # of an induction score, which is a share of a head's attention
N_TOKENS, N_TEXTS = 50, 4  # in the texts that heads are scored on, as in `head_scores`


@dataclass(frozen=True)
class Event:
    """An event of a run's training, or the reason why it is unknown.

    Attributes:
        name: `induction` or `bigram`.
        title: The name in words.
        before: The last examined step at which it had not happened; None if it had at the first, or never did.
        step: The first examined step at which it had happened; None if it never did.
        value_before: The value at `before`: a score, or a loss in nats.
        value: The value at `step`, or at the last step if it did not happen.
        threshold: The value to reach.
        head: The head with that score; empty for a loss.
        reason: Why the event is unknown; empty if it is known.
    """

    name: Literal["induction", "bigram"]
    title: str
    before: int | None = None
    step: int | None = None
    value_before: float | None = None
    value: float | None = None
    threshold: float | None = None
    head: str = ""
    reason: str = ""

    @property
    def words(self) -> str:
        """The steps between which it happened, in words."""
        if self.reason:
            return self.reason
        if self.step is None:
            return "not yet"
        if self.name == "bigram" or self.before is None:
            return f"by step {self.step:,}"
        return f"between step {self.before:,} and step {self.step:,}"


@dataclass(frozen=True)
class InductionAt:
    """The best induction score among a model's heads at a step.

    Attributes:
        step: A step that the run keeps.
        score: The largest score.
        head: The head that has it, such as `blocks.1.attn:2`.
    """

    step: int
    score: float
    head: str


@dataclass(frozen=True, repr=False, eq=False)
class Events(Shown):
    """The events of a run's training.

    Attributes:
        events: The events: `induction`, then `bigram`.
        induction: The best induction score at each kept step, earliest first.
        bigram_loss: The held-out loss of a bigram model, in nats; None if there is none.
        bigram_weight: The weight of its smoothing; see `lens.bigram`.
        damaged: Errors of kept weights that could not be read.
    """

    events: list[Event]
    induction: list[InductionAt]
    bigram_loss: float | None
    bigram_weight: float | None
    damaged: list[str]

    def caption(self) -> str:
        return "; ".join(f"{event.title}: {event.words}" for event in self.events)

    def table(self) -> Table:
        rows = [
            [
                event.title,
                event.words,
                *(_word(value) for value in (event.value_before, event.value, event.threshold)),
            ]
            for event in self.events
        ]
        return Table(["event", "when", "before", "then", "threshold"], rows, 2)

    def notes(self) -> list[str]:
        lines = [
            f"{event.title}: a head's induction score is {event.threshold:g} or more, on repeated random tokens"
            for event in self.events
            if event.name == "induction" and not event.reason
        ]
        if self.bigram_loss is not None:
            lines.append(
                f"bigram model: p(b | a) = (n(a, b) + m p(b)) / (n(a) + m), m = {self.bigram_weight:g}, counted in the "
                f"training split; {self.bigram_loss:.4f} nats on the whole held-out split (evaluations during training "
                "may read only a part of it)"
            )
        return [*lines, *(f"skipped: {each}" for each in self.damaged)]

    def inches(self) -> tuple[float, float]:
        return 7.0, 3.2

    def draw(self, figure: Any) -> None:
        """Plot the best induction score by step."""
        axes = figure.subplots()
        axes.plot([each.step for each in self.induction], [each.score for each in self.induction], marker=".")
        for event in self.events:
            if event.step is not None:
                axes.axvline(event.step, color="#5a636e", linewidth=0.8, linestyle=":")
                axes.annotate(event.title, (event.step, 0.98), rotation=90, va="top", ha="right", fontsize=8)
        if not is_changing():
            axes.set_ylim(0, 1)
        axes.set_xlabel("step")
        axes.set_ylabel("best induction score")
        axes.spines[["top", "right"]].set_visible(False)


def events(
    run: RunLike, *, threshold: float = THRESHOLD, seed: int = 0, on_step: OnStep = lambda *_: None
) -> Events:
    """Find when a run's induction heads formed, and when it reached the loss of a bigram model.

    Args:
        run: A run in a directory. Its weights are read at every step that it keeps.
        threshold: The score at which a head counts as an induction head, from 0 to 1.
        seed: The seed of the random tokens that heads are scored on.
        on_step: Called after each of these steps with the number done and the total.

    Raises:
        RunError: the run has no directory, or a line of its metrics is damaged.
        UserError: the threshold or the seed is out of range.
    """
    check_run(run, "folder")
    if not isinstance(threshold, int | float) or not 0 < threshold <= 1:
        raise UserError(f"threshold: above 0 and up to 1; got {shown(threshold)}")
    check_seed(seed)
    check_function("on_step", on_step)
    damaged: list[str] = []
    reason = why_no_induction(run)
    scores = [] if reason else list(induction_scores(run, seed, on_step, damaged))
    formed = Event("induction", INDUCTION, reason=reason) if reason else when_formed(scores, threshold)
    try:
        model = bigram(run)
    except ClearformerError as error:
        return Events([formed, Event("bigram", BIGRAM, reason=str(error))], scores, None, None, damaged)
    reached = when_reached(read_metrics(run.folder.metrics_file), model.loss)
    return Events([formed, reached], scores, model.loss, model.weight, damaged)


INDUCTION, BIGRAM = "induction heads formed", "bigram loss reached"


# --- induction heads ------------------------------------------------------------------------------------------


def why_no_induction(run: RunLike) -> str:
    """Return why a model's heads have no induction score; empty if they have."""
    if isinstance(run.model, Encoder):
        return "an encoder reads in both directions and predicts no next token"
    if not causal_patterns(run):
        return f"attention of kind {run.config.model.attention.kind} has no pattern to score"
    if run.model.config.max_seq_len < 5:
        return "the context of the model is too short for a repeated text"
    return ""


def causal_patterns(run: RunLike) -> list[str]:
    """Return the hook points of the decoder's self-attention patterns."""
    ending = "decoder_blocks" if isinstance(run.model, EncoderDecoder) else "blocks"
    names = [name for name in hook_points(run.model) if name.endswith(".attn.hook_pattern")]
    return [name for name in names if name.startswith(ending)]


def induction_scores(run: RunLike, seed: int, on_step: OnStep, damaged: list[str]) -> Iterator[InductionAt]:
    """Yield the best score at each step that a run keeps; errors are appended to `damaged`."""
    folder, device = run.folder, run.model.embed.weight.device
    steps = kept_steps(folder)
    for done, step in enumerate(steps):
        on_step(done, len(steps))
        try:
            yield induction_at(read_run(folder.path, step, device), seed)
        except (CheckpointError, RunError) as error:
            if find_kept(folder, step) is not None:  # otherwise a running training has deleted it
                damaged.append(f"step {step:,}: {error}")
    on_step(len(steps), len(steps))


def induction_at(run: RunLike, seed: int) -> InductionAt:
    """Return the best induction score among a model's heads."""
    model, names = run.model, causal_patterns(run)
    text = repeated(model, run.tokenizer, N_TOKENS, N_TEXTS, seed)
    arguments = (text.tokens, text.tokens) if isinstance(model, EncoderDecoder) else (text.tokens,)
    with quiet(model):
        _, patterns = model.run_with_cache(*arguments, names=names)
    wanted = induction_positions(text.tokens)
    found = [
        InductionAt(run.step, score, f"{name.removesuffix('.hook_pattern')}:{head}")
        for name in names
        for head, score in enumerate(attention_to(patterns[name], wanted))
    ]
    return max(found, key=lambda each: each.score)


def when_formed(scores: list[InductionAt], threshold: float) -> Event:
    """Return the event at the first kept step at which a head's score reached the threshold."""
    at = next((i for i, each in enumerate(scores) if each.score >= threshold), None)
    if at is None:
        last = scores[-1] if scores else None
        value, head = (last.score, last.head) if last else (None, "")
        return Event("induction", INDUCTION, value=value, threshold=threshold, head=head)
    before, then = scores[at - 1] if at else None, scores[at]
    return Event(
        "induction",
        INDUCTION,
        before.step if before else None,
        then.step,
        before.score if before else None,
        then.score,
        threshold,
        then.head,
    )


# --- the bigram loss ------------------------------------------------------------------------------------------


def when_reached(lines: list[dict[str, Any]], loss: float) -> Event:
    """Return the event at the first logged step whose held-out loss is at most the given loss."""
    known = [
        (line["step"], line["val_loss"])
        for line in lines
        if line.get("val_loss") is not None and np.isfinite(line["val_loss"])
    ]
    if not known:
        return Event("bigram", BIGRAM, threshold=loss, reason="no held-out loss was logged")
    at = next((i for i, (_, value) in enumerate(known) if value <= loss), None)
    if at is None:
        return Event("bigram", BIGRAM, value=known[-1][1], threshold=loss)
    before, before_value = known[at - 1] if at else (None, None)
    return Event("bigram", BIGRAM, before, known[at][0], before_value, known[at][1], loss)


def _word(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
