"""Position encodings as a picture: what each position adds, rotates or subtracts.

    lens.positions(run).figure("positions.png")        the sinusoids' heat map (lecture 004, section 4.2)

Shapes: S positions or distances, D d_model, H heads.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearformer.decoding.arguments import check_whole
from clearformer.errors import UserError
from clearformer.lens.inputs import Subject, model_of, quiet
from clearformer.lens.ledgers.stream import own_prefix
from clearformer.lens.showing import Shown, Table, heat_map
from clearformer.model import Transformer

Acts = Literal["vectors", "rotation", "bias"]
ABOUT: dict[Acts, tuple[str, str]] = {
    "vectors": ("vectors added to the tokens' embeddings", "dimensions"),
    "rotation": (
        "cosines, then sines, of the angles by which queries and keys are rotated",
        "pairs of dimensions",
    ),
    "bias": ("numbers added to the scores, by how far back a key lies", "heads"),
}
COLUMNS_SHOWN = 6


@dataclass(frozen=True, repr=False, eq=False)
class PositionTable(Shown):
    """The table of a position encoding.

    Attributes:
        kind: The kind of position encoding.
        acts: Where it acts: as `vectors`, as a `rotation`, or as a `bias` of the scores.
        values: A row for each position, a column for each dimension; for a bias, a row for each distance and a column
            for each head.
    """

    kind: str
    acts: Acts
    values: Float[np.ndarray, "S N"]

    def caption(self) -> str:
        return f"{self.kind} positions: {ABOUT[self.acts][0]}"

    def table(self) -> Table:
        n = self.values.shape[1]
        columns = range(n) if n <= COLUMNS_SHOWN else [*range(COLUMNS_SHOWN - 1), n - 1]
        heads = ["distance" if self.acts == "bias" else "position", *map(str, columns)]
        return Table(
            heads, [[str(i), *(f"{row[j]:+.3f}" for j in columns)] for i, row in enumerate(self.values)]
        )

    def notes(self) -> list[str]:
        n = self.values.shape[1]
        return [
            f"columns: {ABOUT[self.acts][1]} 0 to {n - 1}" + (", some omitted" if n > COLUMNS_SHOWN else "")
        ]

    def inches(self) -> tuple[float, float]:
        return 7.5, 5.0

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        image = heat_map(axes, self.values, [], [], signed=True)
        for axis, n in ((axes.yaxis, self.values.shape[0]), (axes.xaxis, self.values.shape[1])):
            places = np.unique(np.linspace(0, n - 1, min(n, 9)).astype(int))
            axis.set_ticks(places, list(map(str, places)))
        axes.set_ylabel("distance" if self.acts == "bias" else "position")
        axes.set_xlabel(ABOUT[self.acts][1])
        axes.set_title(self.caption(), fontsize=10)
        figure.colorbar(image, ax=axes, shrink=0.8).outline.set_visible(False)


def positions(subject: Subject, n: int | None = None) -> PositionTable:
    """Return the position encoding of the first n positions, by default of all.

    Raises:
        UserError: the model has no positions, or fewer than n.
    """
    model = model_of(subject)
    limit = model.config.max_seq_len
    n = limit if n is None else n
    check_whole("n", n)
    if not 1 <= n <= limit:
        raise UserError(f"n: from 1 to {limit} positions (model.max_seq_len); got {n}")
    with quiet(model):
        acts, values = _values(model, torch.arange(n, device=model.embed.weight.device))
    return PositionTable(model.config.position.kind, acts, values.float().cpu().numpy())


def _values(model: Transformer, pos: Tensor) -> tuple[Acts, Float[Tensor, "S N"]]:
    """Return where the model's positions act, and their values."""
    position, config = model.stack(own_prefix(model)).position, model.config
    if (vectors := position.embed(pos)) is not None:
        return "vectors", vectors
    if (bias := position.bias(pos[-1:], pos)) is not None:
        return "bias", bias.reshape(-1, len(pos)).flip(1).T  # the nearest key first
    if config.position.rotates:
        _, d_head = config.attention.heads(config.d_model)
        n_rotated = getattr(config.position, "rotated_dims", lambda d: d)(d_head)
        unit = torch.zeros(1, len(pos), 1, d_head, device=pos.device)
        unit[..., : n_rotated // 2] = 1  # rotated, each pair (1, 0) is (cos, sin)
        return "rotation", position.rotate(unit, pos)[0, :, 0, :n_rotated]
    raise UserError(
        f"model.position.kind is {config.position.kind}: the model does not encode positions, so there is nothing "
        "to show"
    )
