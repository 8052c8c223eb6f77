"""One word in different contexts: how far apart its vectors are, layer by layer (lecture 003).

    contexts = ["I sat on the bank of the river", "the bank lends money", "money in the bank"]
    found = lens.word_similarity(run, "bank", contexts)
    found.cosines                    [L + 1, 3, 3]
    found.figure("bank.png")

Before the first block a word has the same vector everywhere, except for its position; each layer then mixes in more
of the context.

Shapes: L layers, N contexts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from clearformer.decoding.text.samples import Run
from clearformer.errors import UserError, count, shown
from clearformer.evaluation.figures import letters
from clearformer.lens.embeddings import embed, layer_names
from clearformer.lens.showing import Shown, Table, quoted

MOST_PAIRS = 10  # of contexts that get a column each


@dataclass(frozen=True, repr=False, eq=False)
class WordSimilarity(Shown):
    """The cosines of a word's vectors between every two contexts.

    Attributes:
        word: The word as given.
        contexts: The texts that contain it.
        cosines: The cosines before the first block and after every one.
    """

    word: str
    contexts: list[str]
    cosines: Float[Tensor, "L N N"]

    @property
    def layers(self) -> list[str]:
        """The name of each of `cosines`."""
        return layer_names(len(self.cosines))

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """All pairs of contexts."""
        return list(combinations(range(len(self.contexts)), 2))

    def caption(self) -> str:
        return f"{quoted(self.word)} in {count(len(self.contexts), 'context')}: the cosine of its vectors in every pair"

    def table(self) -> Table:
        """Return a row for each layer; with more than `MOST_PAIRS` pairs of contexts, only the mean."""
        columns = self._columns()
        rows = [
            [name, *(f"{values[layer]:.3f}" for values in columns.values())]
            for layer, name in enumerate(self.layers)
        ]
        return Table(["layer", *columns], rows)

    def notes(self) -> list[str]:
        return [f"{number}: {context}" for number, context in enumerate(self.contexts, start=1)]

    def inches(self) -> tuple[float, float]:
        return 6.5, 3.8

    def draw(self, figure: Any) -> None:
        axes, layers = figure.subplots(), range(len(self.cosines))
        for name, values in self._columns().items():
            is_mean = name == "mean"
            axes.plot(
                layers, values, color="#1f2a38" if is_mean else "#8fb4d0", linewidth=2.2 if is_mean else 1.2
            )
            axes.annotate(
                name, (layers[-1], values[-1]), (5, 0), textcoords="offset points", va="center", fontsize=8
            )
        axes.set_xticks(layers, self.layers)
        axes.set_ylabel("cosine")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(letters(self.caption()), fontsize=10)

    def _columns(self) -> dict[str, list[float]]:
        """Return the cosines of each pair by layer, and their mean."""
        shown = self.pairs if len(self.pairs) <= MOST_PAIRS else []
        columns = {f"{i + 1}-{j + 1}": self.cosines[:, i, j].tolist() for i, j in shown}
        mean = torch.stack([self.cosines[:, i, j] for i, j in self.pairs]).mean(0)
        return {**columns, "mean": mean.tolist()}


def word_similarity(run: Run, word: str, contexts: Sequence[str]) -> WordSimilarity:
    """Compare a word's vectors in every two of N contexts, by their cosine before the first block and after every one.

    Args:
        run: A model and its tokenizer.
        word: A word that every context contains; its first occurrence counts.
        contexts: The texts.

    Raises:
        UserError: the word is not in one of them, or there are fewer than two.
        TokenizerError: a text holds a character that the tokenizer lacks.
    """
    if not isinstance(word, str):
        raise UserError(f"word: a string; got {shown(word)}")
    if isinstance(contexts, str) or not isinstance(contexts, Sequence) or len(contexts) < 2:
        raise UserError("contexts: give a list of two or more texts that contain the word")
    for context in contexts:
        if not isinstance(context, str):
            raise UserError(f"contexts: each is a string; got {shown(context)}")
    vectors = torch.stack([found.word(word) for found in embed(run, list(contexts))], dim=1)  # [L N D]
    directions = F.normalize(vectors.cpu().double(), dim=-1)
    return WordSimilarity(word, list(contexts), (directions @ directions.mT).clamp(-1, 1).float())
