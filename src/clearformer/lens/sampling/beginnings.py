"""The beginning that a model continues: a text up to a position, and the tokens drawn after it."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_list, check_whole
from clearformer.decoding.decode_state import DecodeState, GenerativeModel, Prefill
from clearformer.decoding.loop import score_tokens
from clearformer.decoding.text.samples import Prompt, continued, prompt_of
from clearformer.decoding.text.writer import known_tokens
from clearformer.errors import UserError, count
from clearformer.hooks.points import is_any_open
from clearformer.hooks.readings import once
from clearformer.lens.activations import outputs_at
from clearformer.lens.inputs import Inputs, Readable, Subject, parts_of, plain_text, quiet, read, row_of
from clearformer.lens.sampling.prefixes import prefix_cache
from clearformer.model import Decoder, EncoderDecoder, Transformer
from clearformer.text import Tokenizer


@dataclass(frozen=True, eq=False)
class Beginning:
    """A text as written so far.

    Attributes:
        inputs: The text as read; a decoder's may be longer than the model's context.
        position: The last token of the text to be continued.
        drawn: The ids drawn after it.
    """

    inputs: Inputs
    position: int
    drawn: list[int]

    @property
    def tokens(self) -> list[int]:
        """The ids so far, including <bos>."""
        return [*self.inputs.tokens[0, : self.position + 1].tolist(), *self.drawn]

    @property
    def key(self) -> tuple[Hashable, ...]:
        """A cache key: the text, the position and the ids drawn after it."""
        return self.inputs.key, self.position, tuple(self.drawn)

    @property
    def sources(self) -> list[list[int]] | None:
        """The source of an encoder-decoder, in the form that decoding takes."""
        return None if self.inputs.source is None else self.inputs.source.tolist()

    @property
    def model(self) -> GenerativeModel:
        """The model, which must be able to write text.

        Raises:
            UserError: it is an encoder.
        """
        model = self.inputs.model
        if not isinstance(model, Decoder | EncoderDecoder):
            raise UserError("this run's model is an encoder, which writes no text; use a run of a decoder")
        return model

    @property
    def eos_id(self) -> int | None:
        """The id of the token that ends a text."""
        return None if self.inputs.tokenizer is None else self.inputs.tokenizer.eos_id

    @property
    def pad_id(self) -> int | None:
        """The id of the padding token, if there is one."""
        return None if self.inputs.tokenizer is None else self.inputs.tokenizer.pad_id

    @property
    def has_ended(self) -> bool:
        """Whether the last drawn token ended the text."""
        return bool(self.drawn) and self.drawn[-1] == self.eos_id

    @property
    def last_label(self) -> str:
        """The last token so far, in readable form."""
        return self.inputs.label(self.tokens[-1])

    def logits(self) -> Float[Tensor, " V"]:
        """Return the logits of the next token; those at the position or of the classes if the model writes no text."""
        return once(self.inputs.model, ("next", *self.key), self._logits)

    def _logits(self) -> Float[Tensor, " V"]:
        with quiet(self.inputs.model):
            if self.is_as_read:
                return outputs_at(self.inputs, self.position)
            state = DecodeState(self.model, score_tokens, self.sources, known=self.prefill())
            return state.advance([self.tokens]).logits[0].clone()

    @property
    def is_as_read(self) -> bool:
        """Whether its end is a position of the text itself, which the model reads at once."""
        return not self.drawn and self.is_read_whole

    @property
    def is_read_whole(self) -> bool:
        """Whether the text and the drawn tokens fit into the model's context."""
        longest = max(len(self.inputs), len(self.tokens))
        return longest <= self.inputs.model.config.max_seq_len

    def prefill(self, num: int = 1, room: int = 0) -> Prefill | None:
        """Return a prefill for decoding `num` equal texts, from the text's one forward pass, with `room` for more.

        None where decoding has to read the text itself: for an encoder-decoder or attention that keeps no keys, for
        texts beyond the model's context now or within `room`, and while the model is hooked.
        """
        model = self.inputs.model
        if not isinstance(model, Decoder) or not self.is_read_whole or is_any_open():
            return None
        n, left = self.position + 1, model.config.max_seq_len - len(self.tokens)
        if 0 < left < room:
            return None
        cache = prefix_cache(self.inputs, n, len(self.drawn) + room)
        if cache is None:
            return None
        with quiet(model):
            if self.drawn:
                logits = model(row_of(model, self.drawn), cache=cache, last_only=True)[0]
            else:
                logits = outputs_at(self.inputs, self.position)[None]
        if left == 0:  # the next token but one is read in a new context, which uses nothing of this one
            cache = model.new_cache()
        cache.select(torch.zeros(num, dtype=torch.long, device=self.inputs.tokens.device))
        return Prefill(logits.float().expand(num, -1), cache)

    def text(self, tokens: Sequence[int]) -> str:
        """Return ids as text, without <eos>; empty without a tokenizer."""
        tokenizer = self.inputs.tokenizer
        return (
            "" if tokenizer is None else tokenizer.decode(known_tokens(tokenizer, self._without_eos(tokens)))
        )

    def continuation(self, tokens: Sequence[int]) -> str:
        """Return ids that follow the text so far as text, without <eos>, as `generate` does: a word keeps its space."""
        tokenizer, before = self.inputs.tokenizer, self.tokens
        if tokenizer is None:
            return ""
        return continued(tokenizer, Prompt(self.text(before), before, len(before)), self._without_eos(tokens))

    def _without_eos(self, tokens: Sequence[int]) -> list[int]:
        return [each for each in tokens if each != self.eos_id]


def beginning(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    position: int = -1,
    drawn: Sequence[int] = (),
    masked: Sequence[int] = (),
    tokenizer: Tokenizer | None = None,
) -> Beginning:
    """Return a text up to a position, with the tokens drawn after it.

    A decoder's text may be longer than the model reads, as in `generate`. An encoder-decoder given neither an output
    nor a position has written only <bos>.

    Raises:
        UserError: the text cannot be read, there is no such position, or an id is not a token; see `read`.
    """
    model, tokenizer = parts_of(subject, tokenizer)
    check_list("masked", masked, "positions")
    if isinstance(model, Decoder) and output is None and not len(masked) and not isinstance(text, Inputs):
        inputs = _prompt(model, tokenizer, text)
    else:
        inputs = read(subject, text, output, tokenizer=tokenizer, masked=masked)
    at = 0 if nothing_written(model, text, output, position) else inputs.predicting(position)
    return Beginning(inputs, at, _checked(model, drawn))


def nothing_written(model: Transformer, text: Readable, output: Text | None, position: int) -> bool:
    """Whether the model is an encoder-decoder given neither an output nor a position; what was read has an output."""
    is_open = output is None and not isinstance(text, Inputs)
    return isinstance(model, EncoderDecoder) and is_open and position == -1


def _prompt(model: Decoder, tokenizer: Tokenizer | None, text: Text) -> Inputs:
    """Read a decoder's text as `generate` does."""
    if tokenizer is not None and isinstance(text, str):
        tokens = prompt_of(model, tokenizer, text).tokens
        return Inputs(model, tokenizer, row_of(model, tokens), None, [*tokens[1:], None])
    plain = plain_text(text)
    if isinstance(plain, str):
        raise UserError(
            "a model alone reads ids: give ids, or a run (cf.Run(model, tokenizer)) to read a text"
        )
    if not plain:
        raise UserError("the text is empty: there are no tokens to continue")
    return Inputs(model, tokenizer, row_of(model, _checked(model, plain)), None, [*plain[1:], None])


def _checked(model: Transformer, tokens: Sequence[int]) -> list[int]:
    check_list("drawn", tokens, "ids")
    n_tokens = model.embed.num_embeddings
    for token in tokens:
        check_whole("drawn", token)
        if not 0 <= token < n_tokens:
            raise UserError(f"the id {token} is outside the model's vocabulary of {count(n_tokens, 'token')}")
    return [int(token) for token in tokens]
