"""Heads of two models, matched by their behaviour on the same tokens.

    found = lens.match_heads(run, other, texts)
    found.matches[0]        a head of the first model, its match in the other, and their similarity

    pattern     the correlation of the two patterns, over all pairs of positions where a query of either model may
                read a key
    output      linear CKA (Kornblith et al. 2019) of what the two heads write into their residual streams, text by
                text: the cosine of their centred matrices of token similarities, invariant to rotations of the basis

The matching is one to one and maximises the sum of similarities (`linear_sum_assignment` of scipy). Only heads of one
kind are compared: self-attention of the same stack, or cross-attention.

Shapes: H heads, T query positions, S key positions, N heads of one model, M heads of the other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearformer.decoding import Text
from clearformer.decoding.text.samples import Run
from clearformer.errors import UserError, needs_extra, shown
from clearformer.hooks import hook_points
from clearformer.lens.activations import has_known_matrices
from clearformer.lens.comparison.pairs import check_alike, texts_of
from clearformer.lens.inputs import Inputs, quiet, read
from clearformer.lens.showing import Shown, Table, heat_map
from clearformer.model import Encoder, Transformer

By = Literal["pattern", "output"]
POINTS: dict[By, str] = {"pattern": "hook_pattern", "output": "hook_z"}


@dataclass(frozen=True)
class HeadMatch:
    """A head of one model and its match in the other.

    Attributes:
        head: The first model's head, such as `blocks.0.attn:3`.
        other: The second model's head.
        similarity: At most 1, for identical behaviour.
    """

    head: str
    other: str
    similarity: float


@dataclass(frozen=True, repr=False, eq=False)
class HeadMatches(Shown):
    """The matched heads of two models.

    Attributes:
        by: The basis of the comparison: `pattern` or `output`.
        matches: The pairs, most similar first.
        unmatched: Heads of the first model without a match.
        unmatched_others: Heads of the second model without a match.
        heads: All heads of the first model, in the order of the layers.
        others: All heads of the second.
        similarities: [N M] of every pair; NaN if they are of different kinds.
    """

    by: By
    matches: list[HeadMatch]
    unmatched: list[str]
    unmatched_others: list[str]
    heads: list[str]
    others: list[str]
    similarities: Float[Tensor, "N M"]

    def caption(self) -> str:
        return f"heads of the two models, matched by their {self.by}s"

    def table(self) -> Table:
        rows = [[each.head, each.other, f"{each.similarity:.3f}"] for each in self.matches]
        rows += [[head, "-", "-"] for head in self.unmatched]
        rows += [["-", other, "-"] for other in self.unmatched_others]
        return Table(["head", "other run", "similarity"], rows, 2)

    def notes(self) -> list[str]:
        if not self.matches:
            return []
        mean = sum(each.similarity for each in self.matches) / len(self.matches)
        return [f"mean similarity {mean:.3f}; 1 means the same behaviour"]

    def inches(self) -> tuple[float, float]:
        return 2.0 + 0.25 * len(self.others), 1.6 + 0.22 * len(self.heads)

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        image = heat_map(axes, self.similarities, self.heads, self.others, signed=True, limits=(-1, 1))
        for each in self.matches:
            axes.plot(self.others.index(each.other), self.heads.index(each.head), "o", color="#1f2a38", ms=4)
        figure.colorbar(image, ax=axes)


def match_heads(run: Run, other: Run, texts: Text | Sequence[Text], *, by: By = "pattern") -> HeadMatches:
    """Match the heads of two runs by their behaviour on the same tokens.

    Args:
        run: A run.
        other: Another, with the same tokenizer; it may have other layers, heads and sizes.
        texts: What both read; more text gives more certainty. For encoder-decoders the sources, with the first run's
            translations as outputs.
        by: Whether to compare patterns or outputs.

    Raises:
        UserError: the families or tokenizers differ, there is no text or no such comparison, or a kind of attention has
            no pattern.
        MissingPackageError: scipy is not installed.
    """
    if not isinstance(by, str) or by not in POINTS:
        raise UserError(f"by: pattern or output; got {shown(by)}")
    check_alike(run, other)
    of_one_task = run.model.config.n_classes == other.model.config.n_classes
    names, others = (head_names(each.model, by) for each in (run, other))
    sums, window = Sums(len(names), len(others)), wider_window(run.model, other.model)
    kinds, other_kinds = ([kind_of(name) for name, _ in each] for each in (names, others))
    for text in texts_of(texts):
        inputs = read(run, text)
        of_other = read(other, inputs if of_one_task else inputs.tokens[0].tolist())
        one, another = (features(each, by, window) for each in (inputs, of_other))
        for kind in dict.fromkeys(kinds):
            rows = [i for i, each in enumerate(kinds) if each == kind]
            columns = [i for i, each in enumerate(other_kinds) if each == kind]
            if columns:
                sums.add(rows, columns, one[kind], another[kind], centred=by == "pattern")
    similarities = sums.similarities()
    return matched(
        by, [f"{name}:{i}" for name, i in names], [f"{name}:{i}" for name, i in others], similarities
    )


def matched(by: By, heads: list[str], others: list[str], similarities: Float[Tensor, "N M"]) -> HeadMatches:
    """Return the one-to-one matching with the largest sum of similarities."""
    with needs_extra("metrics", "matching heads needs scipy"):
        from scipy.optimize import linear_sum_assignment
    known = np.nan_to_num(similarities.numpy(), nan=-2.0)  # below all others: different kinds never match
    pairs = zip(*linear_sum_assignment(known, maximize=True), strict=True)
    found = [(int(i), int(j)) for i, j in pairs if not isnan(similarities[i, j].item())]
    matches = [HeadMatch(heads[i], others[j], similarities[i, j].item()) for i, j in found]
    matches.sort(key=lambda each: -each.similarity)
    taken, taken_others = ({each[side] for each in found} for side in (0, 1))
    return HeadMatches(
        by,
        matches,
        [head for i, head in enumerate(heads) if i not in taken],
        [other for j, other in enumerate(others) if j not in taken_others],
        heads,
        others,
        similarities,
    )


# --- behaviour of heads -----------------------------------------------------------------------------------


def head_names(model: Transformer, by: By) -> list[tuple[str, int]]:
    """Return each head by its layer's path and its number.

    Raises:
        UserError: the kind of attention lacks what is compared.
    """
    end = f"attn.{POINTS[by]}"
    paths = [name.rpartition(".")[0] for name in hook_points(model) if name.endswith(end)]
    if not paths:
        raise UserError(
            f"model.attention.kind={model.config.attention.kind} has no {by}; heads can be compared by their output"
        )
    n_heads, _ = model.config.attention.heads(model.config.d_model)
    return [(path, head) for path in paths for head in range(n_heads)]


def kind_of(path: str) -> str:
    """Return the kind of the heads at a path: cross-attention, or the name of their stack of blocks."""
    return "cross_attn" if path.endswith("cross_attn") else path.partition(".")[0]


def wider_window(*models: Transformer) -> int | None:
    """Return the larger window of two models' attention; None if one of them has none."""
    windows: list[Any] = [getattr(model.config.attention, "window", None) for model in models]
    return None if None in windows else max(windows)


def features(inputs: Inputs, by: By, window: int | None) -> dict[str, Float[Tensor, "N F"]]:
    """Return a row of numbers for each head's behaviour on a text, by kind of heads, in the order of the layers."""
    model = inputs.model
    with quiet(model):
        _, cache = model.run_with_cache(*inputs.arguments, names=f"*attn.{POINTS[by]}")
    rows: dict[str, list[Tensor]] = {}
    for name, activation in cache.items():
        path = name.rpartition(".")[0]
        of_layer = (
            patterns_of(model, path, activation, window)
            if by == "pattern"
            else similarities_of_tokens(model.get_submodule(path), activation)
        )
        rows.setdefault(kind_of(path), []).append(of_layer.cpu().double())
    return {kind: torch.cat(each) for kind, each in rows.items()}


def patterns_of(
    model: Transformer, path: str, pattern: Float[Tensor, "1 H T S"], window: int | None
) -> Float[Tensor, "H F"]:
    """Return the patterns of a layer's heads, where a query may read a key."""
    may = torch.ones_like(pattern[0, 0], dtype=torch.bool)
    if not path.endswith("cross_attn"):
        if not (isinstance(model, Encoder) or path.startswith("encoder_")):
            may = may.tril()
        if window is not None:
            may = may.tril(window - 1).triu(1 - window)
    return pattern[0][:, may]


def similarities_of_tokens(layer: nn.Module, z: Float[Tensor, "1 T H Dh"]) -> Float[Tensor, "H F"]:
    """Return the products of the centred vectors that each head writes at every two positions."""
    written = z[0].transpose(0, 1)  # [H T Dh]
    if has_known_matrices(layer) and isinstance(layer.W_O, nn.Linear):
        outputs = layer.W_O.weight.detach().unflatten(1, (layer.n_heads, -1))  # [D H Dh]
        written = torch.einsum("htc,dhc->htd", written, outputs)
    written = written.cpu().double()
    centred = written - written.mean(1, keepdim=True)
    return (centred @ centred.mT).flatten(1)


class Sums:
    """The sums for the correlations of all pairs of heads, accumulated text by text."""

    def __init__(self, n: int, m: int) -> None:
        self.products = torch.full((n, m), float("nan"), dtype=torch.float64)
        self.squares = torch.zeros(n, m, dtype=torch.float64)
        self.other_squares = torch.zeros(n, m, dtype=torch.float64)

    def add(
        self,
        rows: Iterable[int],
        columns: Iterable[int],
        one: Float[Tensor, "N F"],
        other: Float[Tensor, "M F"],
        centred: bool,
    ) -> None:
        """Add a text's rows; if `centred`, each text has its own mean subtracted."""
        if centred:
            one, other = one - one.mean(1, keepdim=True), other - other.mean(1, keepdim=True)
        at = np.ix_(list(rows), list(columns))
        self.products[at] = self.products[at].nan_to_num() + one @ other.T
        self.squares[at] += one.square().sum(1, keepdim=True)
        self.other_squares[at] += other.square().sum(1)

    def similarities(self) -> Float[Tensor, "N M"]:
        """Return each pair's correlation; 0 if one head does always the same, NaN if both do or none was compared."""
        size = (self.squares * self.other_squares).sqrt()
        found = torch.where(size > 0, self.products / size.clamp_min(torch.finfo(size.dtype).tiny), 0.0)
        undefined = self.products.isnan() | ((self.squares == 0) & (self.other_squares == 0))
        return found.masked_fill(undefined, torch.nan).float()
