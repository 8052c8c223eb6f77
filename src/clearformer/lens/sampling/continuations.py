"""Continuations token by token: several for one text, and how each token was chosen.

    for found in lens.continuations(run, "First Citizen:", num=3, max_new_tokens=20, seed=1).continuations:
        [(token.token, token.rank, token.surprise) for token in found.tokens]

The tokens are those of `generate` with the same settings and seed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_function, check_whole
from clearformer.decoding.loop import FinishReason, NewToken, check_prompts, generate_tokens
from clearformer.decoding.samplers import Sampling, random_stream, sampling_of
from clearformer.errors import UserError
from clearformer.hooks.readings import once
from clearformer.lens.inputs import Readable, Subject
from clearformer.lens.sampling.beginnings import Beginning, beginning
from clearformer.lens.sampling.next_draw import entropy_of, probabilities_of
from clearformer.lens.showing import AMOUNT, Shown, Table, heat_map, letters, quoted, visible
from clearformer.text import Tokenizer

MOST = 64  # continuations in one call

OnPart = Callable[["Continuations"], None]
"""Receives what is written so far, once each continuation has another token; its return value is ignored."""


@dataclass(frozen=True)
class DrawnToken:
    """One token of a continuation.

    Attributes:
        token: The token in readable form.
        id: Its id.
        probability: Its probability under the model itself.
        drawn_with: Its probability in the draw, after penalty, temperature and filters.
        rank: Its rank under the model itself, from 1.
        surprise: -ln probability, in nats.
        entropy: The entropy of the model's own distribution, in nats: the expected surprise.
    """

    token: str
    id: int
    probability: float
    drawn_with: float
    rank: int = field(metadata={AMOUNT: True})
    surprise: float
    entropy: float


@dataclass(frozen=True)
class Continued:
    """One continuation.

    Attributes:
        text: What was added, without <eos>.
        tokens: Its tokens, including <eos>.
        logprob: The log-probability of all of them under the model itself, in nats.
        finish_reason: Why it ended: `length` or `eos`.
    """

    text: str
    tokens: list[DrawnToken]
    logprob: float
    finish_reason: FinishReason


@dataclass(frozen=True, repr=False, eq=False)
class Continuations(Shown):
    """Several continuations of one text.

    Attributes:
        token: The last token of the text.
        continuations: The continuations, in the order of their random streams.
    """

    token: str
    continuations: list[Continued]

    def caption(self) -> str:
        n = len(self.continuations)
        return f"{n} continuation{'s' * (n != 1)} after {quoted(self.token)}"

    def table(self) -> Table:
        rows = [
            [
                str(number),
                str(place),
                visible(each.token),
                f"{each.probability:.6f}",
                f"{each.drawn_with:.6f}",
                str(each.rank),
                f"{each.surprise:.4f}",
                f"{each.entropy:.4f}",
            ]
            for number, found in enumerate(self.continuations)
            for place, each in enumerate(found.tokens)
        ]
        heads = ["continuation", "place", "token", "probability", "drawn with", "rank", "surprise", "entropy"]
        return Table(heads, rows, 3)

    def inches(self) -> tuple[float, float]:
        longest = max((len(found.tokens) for found in self.continuations), default=1)
        return 1.5 + 0.3 * longest, 1.2 + 0.3 * len(self.continuations)

    def draw(self, figure: Any) -> None:
        longest = max((len(found.tokens) for found in self.continuations), default=1)
        surprises = np.full((len(self.continuations), longest), np.nan)
        for row, found in zip(surprises, self.continuations, strict=True):
            row[: len(found.tokens)] = [each.surprise for each in found.tokens]
        axes = figure.subplots()
        names = [str(number) for number in range(len(surprises))]
        image = heat_map(axes, np.nan_to_num(surprises), names, [str(place) for place in range(longest)])
        for number, found in enumerate(self.continuations):
            for place, each in enumerate(found.tokens):
                axes.text(place, number, letters(visible(each.token)), ha="center", va="center", fontsize=7)
        figure.colorbar(image, ax=axes, label="surprise, nats")


def continuations(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    position: int = -1,
    drawn: Sequence[int] = (),
    max_new_tokens: int = 40,
    num: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    on_part: OnPart | None = None,
) -> Continuations:
    """Draw continuations as `generate` does, and record how each token was chosen.

    The first one takes the draws of `next_draw`.

    Args:
        subject: A run of a decoder or encoder-decoder, or such a bare model.
        text: What is continued, or an encoder-decoder's source.
        output: What an encoder-decoder has written so far; nothing, if neither it nor a position is given.
        position: The token of the text to draw after.
        drawn: Ids already drawn after it; each has used one of the seed's random numbers.
        max_new_tokens: The largest number of tokens to add.
        num: The number of continuations.
        temperature: See `Sampling`, also for the next four.
        top_k: See `Sampling`.
        top_p: See `Sampling`.
        min_p: See `Sampling`.
        repetition_penalty: See `Sampling`.
        seed: The seed of the draws; see `generate`.
        tokenizer: The tokenizer of a bare model.
        on_part: Called with what is written so far.

    Raises:
        ConfigError: a setting is out of its range.
        UserError: the model writes no text, the text cannot be read, or `num` or `max_new_tokens` is out of range.
    """
    check_whole("num", num)
    if not 1 <= num <= MOST:
        raise UserError(f"num: from 1 to {MOST}; got {num}")
    if on_part is not None:
        check_function("on_part", on_part)
    sampling = sampling_of(temperature, top_k, top_p, min_p, repetition_penalty)
    begun = beginning(subject, text, output, position=position, drawn=drawn, tokenizer=tokenizer)
    label = begun.last_label
    told = None if on_part is None else lambda written: on_part(Continuations(label, written))
    return Continuations(label, continued(begun, sampling, max_new_tokens, num, seed, on_part=told))


def continued(
    begun: Beginning,
    sampling: Sampling,
    max_new_tokens: int,
    num: int,
    seed: int,
    use_cache: bool = True,
    on_part: Callable[[list[Continued]], None] | None = None,
) -> list[Continued]:
    """Continue what is written so far.

    Args:
        begun: The text so far.
        sampling: How to choose tokens.
        max_new_tokens: The largest number of tokens to add to each.
        num: The number of continuations.
        seed: The seed of the draws.
        use_cache: See `generate_tokens`.
        on_part: Called with those so far, once each has another token; not called if they are cached.
    """
    chosen = (sampling.model_dump_json(), max_new_tokens, num, seed, use_cache)
    # The tokenizer too: labels and texts are its own, and its <eos> ends them.
    key = ("continued", *begun.key, begun.inputs.tokenizer, *chosen)
    found = once(
        begun.model,
        key,
        lambda: _continuations(begun, sampling, max_new_tokens, num, seed, use_cache, on_part),
    )
    return list(found)


def _continuations(
    begun: Beginning,
    sampling: Sampling,
    max_new_tokens: int,
    num: int,
    seed: int,
    use_cache: bool,
    on_part: Callable[[list[Continued]], None] | None,
) -> list[Continued]:
    check_prompts([begun.tokens], max_new_tokens)  # before the prefill makes room for as many
    written = [_Writing(begun, sampling) for _ in range(num)]
    streams = [random_stream(seed, number) for number in range(num)]
    if not sampling.greedy:
        for stream in streams:
            stream.random(len(begun.drawn))
    new_tokens = generate_tokens(
        begun.model,
        [begun.tokens] * num,
        max_new_tokens,
        sampling,
        streams,
        eos_id=begun.eos_id,
        sources=None if begun.sources is None else begun.sources * num,
        use_cache=use_cache,
        look=lambda row, logits, so_far: written[row].look(logits, so_far),
        known=begun.prefill(num, max_new_tokens) if use_cache else None,
    )
    going_on = list(range(num))
    for new in new_tokens:
        written[new.row].add(new)
        if new.row == going_on[-1]:  # the last row to receive a token in this step
            going_on = [row for row in going_on if written[row].goes_on] or going_on
            if on_part is not None:
                on_part([each.so_far() for each in written])
    return [each.so_far() for each in written]


class _Writing:
    """One continuation being written."""

    def __init__(self, begun: Beginning, sampling: Sampling) -> None:
        self.begun, self.sampling = begun, sampling
        self.tokens: list[DrawnToken] = []
        self.logprob = 0.0
        self.finish_reason: FinishReason | None = None
        self.own: Float[Tensor, " V"] | None = None
        self.drawn_with: Float[Tensor, " V"] | None = None

    @property
    def goes_on(self) -> bool:
        return self.finish_reason is None

    def look(self, logits: Float[Tensor, " V"], so_far: Sequence[int]) -> None:
        """Record the distributions for the next token: the model's own, and that of the draw."""
        row = logits.unsqueeze(0)
        self.own = self.drawn_with = probabilities_of(row)
        if not self.sampling.greedy and self.sampling != Sampling():
            self.drawn_with = probabilities_of(self.sampling.adjust(row, [so_far]))

    def add(self, new: NewToken) -> None:
        """Add the token that was chosen."""
        assert self.own is not None
        assert self.drawn_with is not None
        p = float(self.own[new.token])
        drawn = DrawnToken(
            self.begun.inputs.label(new.token),
            new.token,
            p,
            1.0 if self.sampling.greedy else float(self.drawn_with[new.token]),
            1 + int((self.own > self.own[new.token]).sum()),
            -math.log(p) if p > 0 else math.inf,
            entropy_of(self.own),
        )
        self.tokens.append(drawn)
        self.logprob += new.logprob
        self.finish_reason = new.finish_reason

    def so_far(self) -> Continued:
        """Return the continuation so far; its finish reason is `length` until it has one."""
        text = self.begun.continuation([each.id for each in self.tokens])
        return Continued(text, list(self.tokens), self.logprob, self.finish_reason or "length")
