"""The next draw: the whole vocabulary by probability, what each setting cuts off, and the token that is drawn.

    found = lens.next_draw(run, "First Citizen:", temperature=0.8, top_k=40, top_p=0.95, seed=1)
    found.tokens[found.places.index(found.drawn)]       the token that cf.generate draws with these settings
    [(cut.name, cut.place, cut.mass) for cut in found.cuts]

The masses that the cuts remove and the remaining mass sum to 1. The filters are those of decoding itself.

Shapes: V vocabulary (for a classifier, its classes).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_whole
from clearformer.decoding.loop import NOT_FINITE
from clearformer.decoding.samplers import Sampling, draw, random_stream, sampling_of
from clearformer.errors import NonFiniteError, UserError
from clearformer.lens.inputs import Readable, Subject
from clearformer.lens.sampling.beginnings import Beginning, beginning
from clearformer.lens.showing import Shown, Table, bars, letters, quoted, visible
from clearformer.model.norms import at_least_float32
from clearformer.text import Tokenizer

FILTERS = ("top_k", "top_p", "min_p")
MOST_DRAWN = 30  # bars in a figure


@dataclass(frozen=True)
class Cut:
    """One filter's cut of the sorted vocabulary.

    Attributes:
        name: `top_k`, `top_p` or `min_p`.
        setting: The value of the setting.
        place: How many of the likeliest tokens stay; the cut comes after them.
        removed: How many tokens it removes from those left by earlier filters.
        mass: The probability of the removed tokens before any filter.
        mass_of_left: Their probability among the tokens left by earlier filters.
    """

    name: str
    setting: float
    place: int
    removed: int
    mass: float
    mass_of_left: float


@dataclass(frozen=True, repr=False, eq=False)
class NextDraw(Shown):
    """The draw of one token.

    Attributes:
        token: The token before it; for an encoder, the token that is predicted anew; "" for a classifier's mean.
        position: The position of that token, from 0.
        tokens: The whole vocabulary (for a classifier, its classes), likeliest after penalty and temperature first; or
            the likeliest `most` of them, plus the greedy and the drawn token.
        places: The place of each in the whole vocabulary, from 0 for the likeliest.
        n_tokens: The size of the vocabulary.
        ids: The ids of `tokens`.
        own: The model's own probabilities.
        probabilities: The probabilities after penalty and temperature, before the filters.
        kept: The probabilities of the draw; 0 where a filter removed the token.
        repeated: Whether the penalty changed the token, because the text so far contains it.
        cuts: The cuts of the given filters, in order.
        n_left: The number of tokens to draw from.
        left: Their probability before any filter; with the masses that the cuts remove it sums to 1.
        penalised: The probability that the penalty takes from the tokens of the text so far; None without a penalty.
        entropy_before: The entropy of the model's own distribution, in nats.
        entropy_after: The entropy of the distribution of the draw.
        greedy: The place of the token that is taken at temperature 0.
        drawn: The place of the drawn token; None for a classifier, which draws nothing.
        number: The random number in [0, 1) that draws it; None if none is needed.
        interval: The drawn token's interval if the tokens, ordered by id, share [0, 1) by their probabilities.
        family: The model's family: a decoder continues its text, an encoder-decoder its output.
        text: The text so far, without special tokens; for an encoder-decoder, its output.
        n_before: The number of tokens drawn before this one.
        ended: Whether they ended the text, so that `generate` would draw nothing more.
    """

    token: str
    position: int
    tokens: list[str]
    places: list[int]
    n_tokens: int
    ids: Int[np.ndarray, " V"]
    own: Float[np.ndarray, " V"]
    probabilities: Float[np.ndarray, " V"]
    kept: Float[np.ndarray, " V"]
    repeated: np.ndarray
    cuts: list[Cut]
    n_left: int
    left: float
    penalised: float | None
    entropy_before: float
    entropy_after: float
    greedy: int
    drawn: int | None
    number: float | None
    interval: tuple[float, float] | None
    family: str
    text: str
    n_before: int
    ended: bool

    def caption(self) -> str:
        drawn = (
            "" if self.drawn is None else f": {quoted(self.tokens[self.places.index(self.drawn)])} is drawn"
        )
        place = f"after {quoted(self.token)} (position {self.position})" if self.token else "of the text"
        return f"{place}{drawn}"

    def table(self) -> Table:
        removed = np.full(self.n_tokens, "", dtype=object)
        for cut in self.cuts:
            removed[cut.place : cut.place + cut.removed] = cut.name
        by = removed[self.places]
        columns = zip(self.tokens, self.ids, by, self.own, self.probabilities, self.kept, strict=True)
        rows = [
            [visible(token), str(i), by, *(f"{p:.6f}" for p in values)] for token, i, by, *values in columns
        ]
        return Table(["token", "id", "removed by", "model's own", "before filters", "drawn from"], rows, 3)

    def notes(self) -> list[str]:
        notes = [f"{cut.name} {cut.setting:g} removes {cut.mass:.4f} of the probability" for cut in self.cuts]
        if self.cuts:
            error = sum(cut.mass for cut in self.cuts) + self.left - 1
            notes[-1] += f"; {self.left:.4f} remains (sum - 1: {error:.0e})"
        if self.penalised is not None:
            notes.append(
                f"the repetition penalty takes {self.penalised:.4f} of the probability from the tokens so far"
            )
        return [
            *notes,
            f"entropy {self.entropy_before:.4f} nats (model's own), {self.entropy_after:.4f} (drawn from)",
        ]

    def inches(self) -> tuple[float, float]:
        return 6.0, 1.0 + 0.22 * min(MOST_DRAWN, len(self.tokens))

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        names = [visible(token) for token in self.tokens[:MOST_DRAWN]]
        bars(axes, names, self.probabilities[:MOST_DRAWN].tolist())
        for cut in self.cuts:
            if cut.place < len(names):
                axes.axhline(cut.place - 0.5, color="#b35900", linewidth=1)
                words = f"{cut.name} {cut.setting:g}: {cut.mass:.3f} removed"
                axes.annotate(words, (1, cut.place - 0.5), (0, -2), xycoords=("axes fraction", "data"),
                              textcoords="offset points", ha="right", va="top", fontsize=7)  # fmt: skip
        axes.set_xlabel("probability", fontsize=8)
        axes.set_title(letters(self.caption()), fontsize=9)


def next_draw(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    position: int = -1,
    drawn: Sequence[int] = (),
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    masked: Sequence[int] = (),
    most: int | None = None,
    tokenizer: Tokenizer | None = None,
) -> NextDraw:
    """Return the next token's whole distribution, the effect of each setting on it, and the draw.

    The token is the one that `generate` draws with the same text, settings and seed after it has drawn `drawn`.

    Args:
        subject: A run, or a bare model.
        text: What is continued; an encoder-decoder's source, an encoder's or classifier's text.
        output: What an encoder-decoder has written so far; nothing, if neither it nor a position is given.
        position: The token of the text to draw after; by default the last.
        drawn: Ids already drawn after it; each has used one of the seed's random numbers.
        temperature: 0 takes the likeliest; see `Sampling` for this and the next four.
        top_k: See `Sampling`.
        top_p: See `Sampling`.
        min_p: See `Sampling`.
        repetition_penalty: See `Sampling`.
        seed: The seed of the draw; see `generate`.
        masked: Positions at which an encoder reads [MASK].
        most: The largest number of likeliest tokens to return; by default the whole vocabulary.
        tokenizer: The tokenizer of a bare model.

    Raises:
        ConfigError: a setting is out of its range.
        NonFiniteError: the model's scores are not finite.
        UserError: the text cannot be read, there is no such position or id, settings are given to a classifier, or
            `most` is less than 1.
    """
    if most is not None:
        check_whole("most", most, least=1)
    sampling = sampling_of(temperature, top_k, top_p, min_p, repetition_penalty)
    begun = beginning(
        subject, text, output, position=position, drawn=drawn, masked=masked, tokenizer=tokenizer
    )
    if begun.inputs.class_names and (sampling != Sampling() or begun.drawn):
        raise UserError(
            "this model predicts the class of a text and samples nothing: omit the sampling settings"
        )
    logits = at_least_float32(begun.logits()).clone().unsqueeze(0)  # as where texts are drawn
    if not bool(logits.logsumexp(-1).isfinite().all()):
        raise NonFiniteError(NOT_FINITE)
    return _draw_of(begun, sampling, logits, seed, most)


def _draw_of(
    begun: Beginning, sampling: Sampling, logits: Float[Tensor, "1 V"], seed: int, most: int | None
) -> NextDraw:
    draws = not begun.inputs.class_names
    stages = dict(sampling.stages(logits, [begun.tokens]))
    before = stages.get("temperature", stages.get("repetition_penalty", logits))
    order = _order(before, [stages[name] for name in FILTERS if name in stages])
    last = next(reversed(stages.values()), logits)
    kept = _greedy_distribution(last) if sampling.greedy else probabilities_of(last)
    places = torch.argsort(order)
    token = number = interval = None
    if draws:
        token = last.argmax(-1)
        if not sampling.greedy:
            number, token = drawn_by(last, seed, len(begun.drawn))
            interval = _interval(last, int(token))
    own, whole = probabilities_of(logits), probabilities_of(before)
    greedy = int(places[int(last.argmax(-1))])
    drawn = None if token is None else int(places[int(token)])
    told = _told(len(order), most, [greedy, *([] if drawn is None else [drawn])])
    ids = order[told]
    return NextDraw(
        begun.last_label if draws else begun.inputs.predicting_label(begun.position),
        begun.position + len(begun.drawn),
        begun.inputs.output_labels(ids.tolist()),
        told,
        len(order),
        ids.numpy(),
        own[ids].numpy(),
        whole[ids].numpy(),
        kept[ids].numpy(),
        _repeated(begun, sampling, len(order))[ids].numpy(),
        cuts_of(sampling, before, stages),
        int((kept > 0).sum()),
        float(whole[kept > 0].sum()),
        _penalised(begun, sampling, logits, before),
        entropy_of(own),
        entropy_of(kept),
        greedy,
        drawn,
        number,
        interval,
        begun.inputs.model.config.family,
        begun.text(begun.tokens),
        len(begun.drawn),
        begun.has_ended,
    )


def _told(n: int, most: int | None, besides: Sequence[int]) -> list[int]:
    """Return the places of the tokens to return: the first `most`, and those of `besides`."""
    n_first = n if most is None else min(n, most)
    return [*range(n_first), *sorted({place for place in besides if place >= n_first})]


def cuts_of(sampling: Sampling, before: Float[Tensor, "1 V"], stages: dict[str, Tensor]) -> list[Cut]:
    """Return the cut of every given filter.

    Args:
        sampling: The settings.
        before: The logits before the first filter.
        stages: The logits after each adjustment.
    """
    cuts, given, whole = [], before, probabilities_of(before)
    for name in FILTERS:
        if name in stages:
            gone = (stages[name].isneginf() & ~given.isneginf())[0].cpu()
            place = int((~stages[name].isneginf()).sum())
            left = probabilities_of(given)
            setting = float(getattr(sampling, name))
            cuts.append(
                Cut(name, setting, place, int(gone.sum()), float(whole[gone].sum()), float(left[gone].sum()))
            )
            given = stages[name]
    return cuts


def drawn_by(logits: Float[Tensor, "1 V"], seed: int, n_before: int) -> tuple[float, Tensor]:
    """Return the random number for a text's token after `n_before` others, and the token that it draws."""
    streams = [random_stream(seed, 0) for _ in range(2)]
    for stream in streams:
        stream.random(n_before)
    return float(streams[0].random()), draw(logits, [streams[1]])


def probabilities_of(logits: Float[Tensor, "1 V"]) -> Float[Tensor, " V"]:
    """Return softmax(logits), in float64 on the CPU."""
    return logits[0].cpu().double().softmax(-1)


def entropy_of(probabilities: Float[Tensor, " V"]) -> float:
    """Return -sum p ln p, in nats."""
    return float(torch.special.entr(probabilities).sum())


def _order(before: Float[Tensor, "1 V"], filtered: Sequence[Tensor]) -> Int[Tensor, " V"]:
    """Return the ids, likeliest first; ties go to the token that more filters keep, then to the lower id."""
    kept_by = ((~each[0].isneginf()).int().cpu() for each in filtered)
    survived = sum(kept_by, torch.zeros(before.shape[1], device="cpu"))
    by_survival = torch.argsort(survived, descending=True, stable=True)
    return by_survival[torch.argsort(before[0].cpu()[by_survival], descending=True, stable=True)]


def _greedy_distribution(logits: Float[Tensor, "1 V"]) -> Float[Tensor, " V"]:
    certain = torch.zeros(logits.shape[1], dtype=torch.float64, device="cpu")
    certain[int(logits.argmax(-1))] = 1
    return certain


def _interval(logits: Float[Tensor, "1 V"], token: int) -> tuple[float, float]:
    """Return the interval of a token in [0, 1) if the tokens share it in the order of their ids; see `draw`."""
    cumulative = logits.softmax(-1)[0].cpu().double().cumsum(-1)
    before = float(cumulative[token - 1]) if token else 0.0
    return before / float(cumulative[-1]), float(cumulative[token] / cumulative[-1])


def _repeated(begun: Beginning, sampling: Sampling, n_tokens: int) -> Tensor:
    repeated = torch.zeros(n_tokens, dtype=torch.bool, device="cpu")
    if sampling.repetition_penalty != 1.0:
        repeated[begun.tokens] = True
    return repeated


def _penalised(
    begun: Beginning, sampling: Sampling, logits: Float[Tensor, "1 V"], before: Float[Tensor, "1 V"]
) -> float | None:
    """Return the probability that the penalty takes from the tokens of the text so far, at the temperature."""
    if sampling.repetition_penalty == 1.0:
        return None
    seen = sorted(set(begun.tokens))
    without = dict(sampling.replace(repetition_penalty=1.0).stages(logits, [begun.tokens]))
    unpenalised = probabilities_of(without.get("temperature", logits))
    return float((unpenalised[seen] - probabilities_of(before)[seen]).sum())
