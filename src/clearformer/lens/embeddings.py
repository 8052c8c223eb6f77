"""Contextual embeddings: one vector for each token of a text, after every layer (lecture 003).

    found = lens.embed(run, "I sat on the bank of the river")
    found.labels             ["[CLS]", "i", "sat", "on", ...]
    found.vectors            [L + 1, T, D]: found.vectors[0] without context, found.vectors[-1] with most of it
    found.word("bank")       [L + 1, D]: the mean over the word's tokens

Shapes: L layers, T tokens, D d_model.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearformer.decoding import evaluating
from clearformer.decoding.arguments import check_run, check_whole
from clearformer.decoding.text.inputs import Text, Texts, ids_of, is_one, texts_of, with_specials, words_of
from clearformer.decoding.text.samples import Run
from clearformer.errors import UserError, count
from clearformer.hooks import Hook
from clearformer.lens.showing import FIRST, Shown, Table, heat_map, quoted, visible
from clearformer.model import Decoder, Encoder, EncoderDecoder, Transformer
from clearformer.text import Tokenizer

Span = tuple[int, int]


@dataclass(frozen=True, repr=False, eq=False)
class Embedded(Shown):
    """The vectors of one text.

    Attributes:
        text: The text as given.
        tokens: Its ids, with the special tokens that the tokenizer has: [CLS] ... [SEP] for an encoder, ... <eos> for
            an encoder-decoder's source, <bos> ... for a decoder.
        vectors: `vectors[0]` is the input of the first block: each token's embedding plus that of its position, with
            no context yet. `vectors[l + 1]` is the residual stream after block l, counted from 0.
        final: The last of them after the final norm; unchanged if the model has none.
        similarities: The cosine between each token's vector after every layer and its vector before the first block.
        cosines: The cosine of every two tokens' last vectors.
        tokenizer: The tokenizer that made the tokens.
    """

    text: str
    tokens: list[int]
    vectors: Float[Tensor, "L T D"]
    final: Float[Tensor, "T D"]
    similarities: Float[Tensor, "L T"]
    cosines: Float[Tensor, "T T"]
    tokenizer: Tokenizer = field(repr=False, metadata={FIRST: True})

    @property
    def labels(self) -> list[str]:
        """The tokens in readable form."""
        return [self.tokenizer.token_label(token) for token in self.tokens]

    @property
    def layers(self) -> list[str]:
        """The name of each of `vectors`."""
        return layer_names(len(self.vectors))

    @cached_property
    def read_text(self) -> str:
        """The text as the tokens spell it, in lower case if the tokenizer lowers it."""
        return self.tokenizer.decode(self.tokens)

    @cached_property
    def spans(self) -> list[Span]:
        """The start and end of each token in `read_text`, in characters; empty for a special token.

        A character that spans several tokens belongs to each of them.
        """
        raw = [self.tokenizer.token_bytes(token) for token in self.tokens]
        if self.tokenizer.opens_with_space:
            raw = _without_first_space(raw)
        return spans_of(raw)

    def caption(self) -> str:
        return f"{quoted(self.text)}: the cosine of each token's vector with the one it had before the first block"

    def table(self) -> Table:
        rows = [
            [str(position), visible(label), *(f"{value:.3f}" for value in values)]
            for position, (label, values) in enumerate(
                zip(self.labels, self.similarities.T.tolist(), strict=True)
            )
        ]
        return Table(["position", "token", *self.layers], rows, n_left=2)

    def inches(self) -> tuple[float, float]:
        side = 1.8 + 0.28 * len(self.tokens)
        return side + 0.8, side

    def draw(self, figure: Any) -> None:
        """Draw the cosine of every two tokens' last vectors."""
        axes = figure.subplots()
        image = heat_map(axes, self.cosines, self.labels, self.labels, signed=True, limits=(-1, 1))
        axes.set_title(f"cosines between tokens, {self.layers[-1]}", fontsize=10)
        figure.colorbar(image, ax=axes, shrink=0.8, label="cosine").outline.set_visible(False)

    def word(self, word: str, occurrence: int = 0) -> Float[Tensor, "L D"]:
        """Return the vector of a word after every layer: the mean over its tokens.

        Args:
            word: As written in the text, or as the tokenizer would write it; parts of longer words do not count.
            occurrence: Which occurrence, from 0.

        Raises:
            UserError: the text has fewer occurrences.
        """
        return self.vectors[:, self.tokens_of(word, occurrence)].mean(1)

    def tokens_of(self, word: str, occurrence: int = 0) -> list[int]:
        """Return the positions of a word's tokens; see `word`."""
        check_whole("occurrence", occurrence)
        spelled = self.tokenizer.normalized(word).strip()
        found = list(re.finditer(whole_word(spelled), self.read_text)) if spelled else []
        if not 0 <= occurrence < len(found):
            how_often = "occurs " + count(len(found), "time") if found else "does not occur"
            raise UserError(
                f"the word {word!r} {how_often} in {self.read_text!r} (occurrence {occurrence} was asked for, "
                "counted from 0)"
            )
        start, stop = found[occurrence].span()
        return [i for i, (first, last) in enumerate(self.spans) if first < stop and last > start]


@overload
def embed(run: Run, text: str | np.ndarray | Tensor) -> Embedded: ...


@overload
def embed(run: Run, text: Sequence[Text]) -> list[Embedded]: ...


def embed(run: Run, text: Texts) -> Embedded | list[Embedded]:
    """Return the vectors of a text's tokens after every layer, or those of several texts, each read by itself.

    They come from an encoder, a decoder (whose tokens see only those before them), or an encoder-decoder's encoder. The
    model's mode is left as it was, and no random number is drawn.

    Args:
        run: A model and its tokenizer.
        text: What to read, as a string or as the ids of its tokens [T].

    Raises:
        TokenizerError: a text holds a character that the tokenizer lacks.
        UserError: a text is empty, or longer than the model reads.
    """
    check_run(run)
    found = [_embed(run.model, run.tokenizer, each) for each in texts_of(text)]
    return found[0] if is_one(text) else found


def _embed(model: Transformer, tokenizer: Tokenizer, text: str | list[int]) -> Embedded:
    tokens = tokens_read(model, tokenizer, text)
    stack = "encoder_blocks" if isinstance(model, EncoderDecoder) else "blocks"
    names = [f"{stack}.0.hook_resid_pre"]
    names += [f"{stack}.{i}.hook_resid_post" for i in range(model.config.n_layers)]
    seen: dict[str, Tensor] = {}

    def keep(x: Tensor, hook: Hook) -> None:
        seen[hook.name] = x

    with evaluating(model), torch.inference_mode(), model.hooked(dict.fromkeys(names, keep)):
        final = final_vectors(model, torch.tensor([tokens], device=model.embed.weight.device))
    # Clone, because tensors made in inference mode cannot be used under autograd.
    vectors = torch.stack([seen[name][0] for name in names]).float().cpu().clone()
    directions = torch.nn.functional.normalize(vectors[-1], dim=-1)
    return Embedded(
        words_of(tokenizer, text),
        tokens,
        vectors,
        final[0].float().cpu().clone(),
        torch.cosine_similarity(vectors, vectors[:1], dim=-1),
        directions @ directions.T,
        tokenizer,
    )


def tokens_read(model: Transformer, tokenizer: Tokenizer, text: str | list[int]) -> list[int]:
    """Return a text's ids with the special tokens that the model saw in training.

    Raises:
        UserError: the text is empty.
    """
    ids = ids_of(tokenizer, text)
    if not ids:
        raise UserError("the text is empty: it has no tokens")
    bos, eos = ([] if token is None else [token] for token in (tokenizer.bos_id, tokenizer.eos_id))
    if isinstance(model, Encoder):
        return with_specials(ids, bos, eos)
    if isinstance(model, EncoderDecoder):
        return with_specials(ids, tokenizer.before_pair, eos)
    return with_specials(ids, bos)


def final_vectors(model: Transformer, tokens: Tensor) -> Float[Tensor, "B T D"]:
    """Return the vectors of a text after the stack's last block and final norm."""
    match model:
        case Encoder():
            return model.encode(tokens)
        case EncoderDecoder():
            return model.encode(tokens).vectors
        case Decoder():
            return model.hidden(tokens)
    raise TypeError(type(model))


def layer_names(n: int) -> list[str]:
    """Return the names of the vectors before the first block and after each one, counted from 0 as everywhere."""
    return ["embedding", *(f"layer {i}" for i in range(n - 1))]


def whole_word(word: str) -> str:
    """Return a pattern for a word that is not part of a longer one; an edge that is no letter may touch anything."""
    before, behind = r"(?<!\w)" * is_letter(word[0]), r"(?!\w)" * is_letter(word[-1])
    return before + re.escape(word) + behind


def is_letter(character: str) -> bool:
    """Whether a character can be part of a word."""
    return re.match(r"\w", character) is not None


# --- positions of tokens ----------------------------------------------------------------------------------


def spans_of(raw: Sequence[bytes]) -> list[Span]:
    """Return the start and end of each token in the text that they spell together, in characters."""
    everything = b"".join(raw)
    starts_before = [0]  # for each byte, the number of characters that start before or at it
    for byte in everything:
        starts_before.append(starts_before[-1] + (byte & 0b1100_0000 != 0b1000_0000))
    spans, at = [], 0
    for part in raw:
        stop = at + len(part)
        first = starts_before[at + 1] - 1 if part else starts_before[at]
        spans.append((first, starts_before[stop] if part else first))
        at = stop
    return spans


def _without_first_space(raw: Sequence[bytes]) -> list[bytes]:
    """Remove the leading space of the first non-empty token, which the text itself does not have."""
    first = next((i for i, part in enumerate(raw) if part), None)
    return [part.removeprefix(b" ") if i == first else part for i, part in enumerate(raw)]
