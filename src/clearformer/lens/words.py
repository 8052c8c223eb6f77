"""One word in different contexts: how far apart its vectors are, layer by layer (lecture 003).

    contexts = ["I sat on the bank of the river", "the bank lends money", "money in the bank"]
    cosines = lens.word_similarity(run, "bank", contexts)        # [L + 1, 3, 3]
    print(lens.similarity_table(cosines))

Before the first block a word has the same vector wherever it stands, but for its position; each layer then mixes
more of the context into it.
"""

from collections.abc import Sequence
from itertools import combinations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from clearformer.decoding.text.samples import Run
from clearformer.errors import UserError
from clearformer.lens.embeddings import embed, layer_names

MOST_PAIRS = 10  # of contexts, each with a column of its own
FIRST, WIDTH = 11, 8


def word_similarity(run: Run, word: str, contexts: Sequence[str]) -> Float[Tensor, "L N N"]:
    """The cosine of a word's vectors in each two of N contexts, before the first block and after every one.

    Args:
        run: A model and its tokeniser.
        word: What stands in each of them; where it does so more than once, its first place counts.
        contexts: Texts.

    Raises:
        UserError: the word is not in one of them, or there are fewer than two.
        TokenizerError: a text holds a character that the tokeniser lacks.
    """
    if isinstance(contexts, str) or len(contexts) < 2:
        raise UserError("contexts: give a list of two or more texts that the word stands in")
    vectors = torch.stack([found.word(word) for found in embed(run, list(contexts))], dim=1)  # [L N D]
    directions = F.normalize(vectors.double(), dim=-1)
    return (directions @ directions.mT).clamp(-1, 1).float()


def similarity_table(cosines: Float[Tensor, "L N N"]) -> str:
    """Every two contexts' cosine, a line for each layer; contexts are numbered from 1.

    For more than a few contexts, the mean over all pairs.
    """
    pairs = list(combinations(range(cosines.shape[1]), 2))
    shown = pairs if len(pairs) <= MOST_PAIRS else []
    heads = [f"{i + 1}-{j + 1}" for i, j in shown] + ["mean"] * bool(pairs)
    lines = ["".join((f"{'':<{FIRST}}", *(f"{head:>{WIDTH}}" for head in heads)))]
    for name, matrix in zip(layer_names(len(cosines)), cosines.tolist(), strict=True):
        values = [matrix[i][j] for i, j in pairs]
        cells = [matrix[i][j] for i, j in shown] + ([sum(values) / len(values)] if values else [])
        lines.append("".join((f"{name:<{FIRST}}", *(f"{cell:>{WIDTH}.3f}" for cell in cells))))
    return "\n".join(lines)
