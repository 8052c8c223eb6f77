"""One word across texts: its contextual vectors in the plane that shows most of their variance (lecture 003).

    found = lens.meanings(run, "the bank lends money", word="bank", contexts=["the river bank", "a bank loan"])
    found.points                    [N, 2], one for each occurrence of the word
    found.shares                    the shares of the variance along the two axes

The plane is spanned by the first two principal components of the N vectors. Distances in it ignore the variance
outside it, so check the shares.

Shapes: N occurrences, D d_model.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearformer.decoding.arguments import check_list
from clearformer.decoding.text.samples import Run
from clearformer.errors import NonFiniteError, UserError, count, shown
from clearformer.evaluation.figures import letters
from clearformer.lens.embeddings import Embedded, embed, whole_word
from clearformer.lens.patterns.attention import checked_number
from clearformer.lens.showing import Shown, Table, quoted
from clearformer.model import Decoder

MOST_CONTEXTS = 64
AROUND = 24  # characters shown on either side of the word


@dataclass(frozen=True)
class WordPlace:
    """An occurrence of the word.

    Attributes:
        context: The number of the text, from 0.
        before: The text before the word, shortened.
        word: The word as written there.
        behind: The text after it, shortened.
        tokens: The positions of its tokens.
    """

    context: int
    before: str
    word: str
    behind: str
    tokens: list[int]

    @property
    def label(self) -> str:
        """The word with the text around it."""
        return f"{self.before}{self.word}{self.behind}"


@dataclass(frozen=True, repr=False, eq=False)
class Meanings(Shown):
    """The vectors of a word in a plane.

    Attributes:
        word: The word.
        contexts: The texts.
        layer: The block after which the vectors are taken, from 0.
        places: The occurrences of the word, in the order of the texts.
        points: The point of each occurrence in the plane of the first two principal components, centred at 0.
        shares: The share of the total variance along each of the two, from 0 to 1.
        sees_before_alone: Whether the model reads only what precedes a word, as a decoder does.
    """

    word: str
    contexts: list[str]
    layer: int
    places: list[WordPlace]
    points: Float[np.ndarray, "N 2"]
    shares: list[float]
    sees_before_alone: bool

    def caption(self) -> str:
        return (
            f"{quoted(self.word)} at {count(len(self.places), 'place')}, after layer {self.layer}: the plane holds "
            f"{sum(self.shares):.1%} of the variance"
        )

    def table(self) -> Table:
        rows = [
            [str(place.context + 1), place.label, f"{x:+.4f}", f"{y:+.4f}"]
            for place, (x, y) in zip(self.places, self.points.tolist(), strict=True)
        ]
        first, second = (f"{share:.1%}" for share in self.shares)
        return Table(["text", "place", f"x ({first})", f"y ({second})"], rows, n_left=2)

    def notes(self) -> list[str]:
        notes = []
        if len(self.places) <= 3:
            notes.append(f"a plane holds all variance of {count(len(self.places), 'point')}: give more texts")
        if self.sees_before_alone:
            notes.append("a decoder reads only what precedes a word: what follows it changes nothing here")
        return notes

    def inches(self) -> tuple[float, float]:
        return 7.0, 5.0

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        axes.scatter(self.points[:, 0], self.points[:, 1], color="#6b4fc1")
        for place, point in zip(self.places, self.points, strict=True):
            axes.annotate(letters(place.label), point, (5, 4), textcoords="offset points", fontsize=8)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_xlabel(f"first principal component, {self.shares[0]:.1%} of the variance")
        axes.set_ylabel(f"second, {self.shares[1]:.1%}")
        axes.set_title(letters(self.caption()), fontsize=10)


def meanings(
    run: Run,
    text: str,
    *,
    word: str | None = None,
    contexts: Sequence[str] | str | None = None,
    layer: int = -1,
) -> Meanings:
    """Return a word's vectors after a block, one for each occurrence, in the plane of their two principal components.

    For an encoder-decoder, the vectors are the encoder's.

    Args:
        run: A model and its tokenizer.
        text: What to read if no contexts are given.
        word: The word; by default the most frequent one in the texts.
        contexts: The texts, or one string with a text on each line.
        layer: The block; negative ones count from the last.

    Raises:
        UserError: a text does not contain the word, there are no words or too many texts, or there is no such layer.
        TokenizerError: a text holds a character that the tokenizer lacks.
        NonFiniteError: the model's vectors are not finite.
    """
    for name, given in (("text", text), ("word", word or "")):
        if not isinstance(given, str):
            raise UserError(f"{name}: expected text; got {shown(given)}")
    texts = [text] if not contexts else lines_of(contexts)
    if len(texts) > MOST_CONTEXTS:
        raise UserError(f"contexts: at most {MOST_CONTEXTS} texts; got {len(texts)}")
    read = embed(run, texts)
    layer = checked_number("layer", layer, len(read[0].vectors) - 1)
    chosen = word or most_frequent([each.read_text for each in read])
    places, vectors = [], []
    for i, each in enumerate(read):
        for place in places_in(each, chosen, i):
            places.append(place)
            vectors.append(each.vectors[layer + 1, place.tokens].mean(0))
    found = torch.stack(vectors)
    if not bool(found.isfinite().all()):
        raise NonFiniteError("the model's vectors are not finite numbers; use an earlier checkpoint")
    points, shares = plane_of(found)
    return Meanings(chosen, texts, layer, places, points, shares, isinstance(run.model, Decoder))


def lines_of(contexts: Sequence[str] | str) -> list[str]:
    """Return the texts of a list, or the non-empty lines of a string.

    Raises:
        UserError: there are none, or they are no texts.
    """
    texts = contexts.splitlines() if isinstance(contexts, str) else contexts
    check_list("contexts", texts, "texts", "the bank")
    for each in texts:
        if not isinstance(each, str):
            raise UserError(f"contexts: each is a text; got {shown(each)}")
    found = [each.strip() for each in texts if each.strip()]
    if not found:
        raise UserError("contexts: give texts that contain the word, one per line")
    return found


def most_frequent(texts: Sequence[str]) -> str:
    """Return the most frequent word in some texts; of equally frequent ones the longest.

    Raises:
        UserError: there is no word.
    """
    found = Counter(word for text in texts for word in re.findall(r"\w+", text))
    if not found:
        raise UserError("word: the text contains no word; give another text")
    return max(found, key=lambda word: (found[word], len(word)))


def places_in(read: Embedded, word: str, context: int) -> list[WordPlace]:
    """Return all occurrences of a word in a text.

    Raises:
        UserError: there is none.
    """
    read.tokens_of(word)
    spelled, text = read.tokenizer.normalized(word).strip(), read.read_text
    spans = [each.span() for each in re.finditer(whole_word(spelled), text)]
    return [
        WordPlace(
            context,
            ("…" if first > AROUND else "") + text[max(0, first - AROUND) : first],
            text[first:stop],
            text[stop : stop + AROUND] + ("…" if stop + AROUND < len(text) else ""),
            read.tokens_of(word, occurrence),
        )
        for occurrence, (first, stop) in enumerate(spans)
    ]


def plane_of(vectors: Float[Tensor, "N D"]) -> tuple[Float[np.ndarray, "N 2"], list[float]]:
    """Return vectors in the plane of their first two principal components, and the share of the variance along each.

    The sign of each axis is chosen so that its largest point is positive.
    """
    centred = (vectors - vectors.mean(0)).cpu().double()
    left, sizes, _ = torch.linalg.svd(centred, full_matrices=False)
    points = centred.new_zeros(len(vectors), 2)
    n = min(2, len(sizes))
    points[:, :n] = left[:, :n] * sizes[:n]
    signs = points.gather(0, points.abs().argmax(0, keepdim=True)).sign()
    variance = sizes.square()
    total = float(variance.sum())
    shares = [float(each) / total if total > 0 else 0.0 for each in variance[:n]]
    return (points * signs).numpy(), [*shares, 0.0][:2]
