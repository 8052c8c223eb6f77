"""The score ledger: one attention score as a sum over who wrote the query's vector and who wrote the key's.

    found = lens.score(run, text, layer=1, head=0, key=3)
    found.pairs[0]          the largest term: two writers, one of each vector, and how much they add

    score = scale * sum over i, j of R(W_Q n(x_i)) . R(W_K n(x_j)) + bias

x_i are the parts of the residual stream at the query's position and x_j those at the key's. n is the block's norm and,
if there is one, the norm of queries and keys, each with its scale held constant. R rotates both by their positions
(RoPE). The biases of ALiBi and relative positions are a separate term.

Shapes: N parts of the query's vector, M of the key's, S positions that are read, D d_model, Dh head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_whole
from clearformer.errors import UserError, count
from clearformer.hooks import ActivationCache
from clearformer.lens.activations import (
    SubLayer,
    block_in_the_open,
    check_part,
    computes_as_known,
    kept,
    points_before,
)
from clearformer.lens.inputs import Inputs, Readable, Subject, quiet, read
from clearformer.lens.ledgers.residual import Part
from clearformer.lens.ledgers.stream import (
    Decomposition,
    Stream,
    Writer,
    check_norm,
    frozen_norm,
    is_needed,
    own_prefix,
)
from clearformer.lens.showing import Shown, Table, heat_map, letters, number, quoted
from clearformer.model.attention import (
    Attention,
    DotModule,
    MultiHeadModule,
    ProjectedHeads,
    SharedModule,
)
from clearformer.model.block import Block
from clearformer.model.norms import at_least_float32
from clearformer.results import plain
from clearformer.text import Tokenizer

MOST_WRITERS = 16  # on each side of the figure


@dataclass(frozen=True)
class Pair:
    """One term of a score: a part of the query's vector with a part of the key's.

    Attributes:
        query: The writer of the query's part.
        key: The writer of the key's part.
        value: Their contribution to the score.
    """

    query: Part
    key: Part
    value: float


@dataclass(frozen=True, repr=False, eq=False)
class Score(Shown):
    """An attention score q.k as a sum of parts.

    Attributes:
        layer: Counted from 0.
        head: Counted from 0.
        attention: `attn`; for an encoder-decoder also `cross_attn`, whose keys come from the source, or `encoder` for a
            block of its encoder.
        query: The query's token.
        query_position: Its position.
        key: The key's token.
        key_position: Its position.
        weight: The attention weight that the softmax makes of the score.
        score: The model's own score, as it enters the softmax.
        sum: The sum of the pairs and the bias.
        error: |sum - score|.
        bias: The contribution of positions (ALiBi, relative); otherwise 0.
        queries: The writers of the query's vector, each with its total contribution to the score.
        keys: The writers of the key's vector, likewise.
        values: The contribution of each pair, [N M].
        read: The labels of all key positions.
        weights: The query's weight for each of them, [S].
    """

    layer: int
    head: int
    attention: SubLayer
    query: str
    query_position: int
    key: str
    key_position: int
    weight: float
    score: float
    sum: float
    error: float
    bias: float
    queries: list[Part]
    keys: list[Part]
    values: Float[Tensor, "N M"] = field(repr=False)
    read: list[str] = field(repr=False)
    weights: Float[Tensor, " S"] = field(repr=False)

    @property
    def pairs(self) -> list[Pair]:
        """All terms, the largest in absolute value first."""
        rows = self.values.tolist()
        pairs = [
            Pair(query, key, value)
            for query, row in zip(self.queries, rows, strict=True)
            for key, value in zip(self.keys, row, strict=True)
        ]
        return sorted(pairs, key=lambda pair: -abs(pair.value))

    def to_dict(self) -> dict[str, Any]:
        """Return all values; `values` is a list of rows, one for each of `queries`."""
        return super().to_dict() | plain({"values": self.values, "weights": self.weights})

    def caption(self) -> str:
        return (
            f"layer {self.layer}, head {self.head}: the score of {quoted(self.query)} (position "
            f"{self.query_position}) reading {quoted(self.key)} (position {self.key_position}), weight "
            f"{self.weight:.3f}"
        )

    def table(self) -> Table:
        rows = [
            [without_stack(pair.query.label), without_stack(pair.key.label), number(pair.value)]
            for pair in self.pairs
        ]
        return Table(["written to the query", "written to the key", "value"], rows, n_left=2)

    def notes(self) -> list[str]:
        of_order = [f"bias of positions {self.bias:+.6f}"] if self.bias else []
        return [
            *of_order,
            f"sum {self.sum:+.6f}, the model's score {self.score:+.6f}, error {self.error:.1e}",
        ]

    def inches(self) -> tuple[float, float]:
        return 4.8 + 0.24 * min(len(self.keys), MOST_WRITERS), 3.4 + 0.22 * min(
            len(self.queries), MOST_WRITERS
        )

    def draw(self, figure: Any) -> None:
        rows, columns = _largest(self.values.abs().sum(1)), _largest(self.values.abs().sum(0))
        axes = figure.subplots()
        image = heat_map(
            axes,
            self.values[rows][:, columns],
            [self.queries[i].label for i in rows],
            [self.keys[i].label for i in columns],
            signed=True,
        )
        axes.set_ylabel("written to the query's vector")
        axes.set_xlabel("written to the key's vector")
        first, _, rest = letters(self.caption()).partition(": ")
        axes.set_title(f"{first}\n{rest}\nscore {self.score:+.3f}", fontsize=9)
        figure.colorbar(image, ax=axes, shrink=0.8).outline.set_visible(False)


def score(
    subject: Subject,
    text: Readable,
    output: Text | None = None,
    *,
    layer: int,
    head: int = 0,
    position: int = -1,
    key: int | None = None,
    attention: SubLayer = "attn",
    tokenizer: Tokenizer | None = None,
    masked: Sequence[int] = (),
) -> Score:
    """Split one attention score into pairs of writers: why does this head attend there?

    Args:
        subject: A run, or a bare model.
        text: What to read; see `read` for this and for `output`, `tokenizer` and `masked`.
        output: What an encoder-decoder writes.
        layer: The block; negative ones count from the last. A block of the decoder, except with `encoder`.
        head: The number of the head.
        position: The query's position.
        key: The key's position, in the source for cross-attention; by default the one with the largest weight.
        attention: `cross_attn` for an encoder-decoder's cross-attention, `encoder` for attention within the source.
        tokenizer: The tokenizer of a bare model.
        masked: Positions at which an encoder reads [MASK].

    Raises:
        UserError: there is no such layer, head or position, the query may not read the key, or the kind of attention
            has no score q.k.
    """
    inputs = read(subject, text, output, tokenizer=tokenizer, masked=masked)
    place = place_of(inputs, layer, head, position, key, attention)
    prefix, path, layer, head = place.prefix, place.path, place.layer, place.head
    at, read_at, module = place.query, place.key, place.module
    is_cross = attention == "cross_attn"
    with quiet(inputs.model):
        looked = (f"{path}.hook_attn_scores", f"{path}.hook_pattern")
        before = points_before(inputs.model, prefix, layer)
        cache = kept(inputs, lambda name: is_needed(name) or name in before)
        opened = block_in_the_open(inputs, prefix, layer, cache)
        cache.update({name: opened[name] for name in looked})
        weights = cache[looked[1]][0, head, at]
        if read_at is None:
            read_at = int(weights.argmax())
        parts = Decomposition(inputs.model, cache)
        of_query = parts.read_by(prefix, layer, place.sublayer, [at])
        of_key = (
            parts.final("encoder_", [read_at])
            if is_cross
            else parts.read_by(prefix, layer, place.sublayer, [read_at])
        )
        queries, keys = (
            projected(module, "q", of_query, head, path, at, cache),
            projected(module, "k", of_key, head, path, read_at, cache),
        )
        bias = 0.0
        if not is_cross:
            queries, keys = turned(inputs, prefix, queries, at), turned(inputs, prefix, keys, read_at)
            bias = bias_of_positions(inputs, prefix, head, at, read_at)
        values = queries.vectors[:, 0] @ keys.vectors[:, 0].T * module.scale  # [N M]
        own = float(cache[looked[0]][0, head, at, read_at])
    total = float(values.sum()) + bias
    return Score(
        layer=layer,
        head=head,
        attention=attention,
        query=place.readers[at],
        query_position=at,
        key=place.read[read_at],
        key_position=read_at,
        weight=float(weights[read_at]),
        score=own,
        sum=total,
        error=abs(total - own),
        bias=bias,
        queries=[Part.of(*each) for each in zip(queries.writers, values.sum(1).tolist(), strict=True)],
        keys=[Part.of(*each) for each in zip(keys.writers, values.sum(0).tolist(), strict=True)],
        values=values.cpu(),
        read=place.read,
        weights=weights.float().cpu(),
    )


# --- from what a block reads to queries and keys ----------------------------------------------------------


def projected(
    module: Attention,
    side: Literal["q", "k"],
    stream: Stream,
    head: int,
    path: str,
    row: int,
    cache: ActivationCache,
) -> Stream:
    """Return a head's query or key, split by the writers of the vector it is made from; biases are separate parts."""
    if isinstance(module, SharedModule):
        return multiplied(stream, module.W.weight)
    if not isinstance(module, ProjectedHeads):
        return Stream(stream.writers, module.queries(stream.vectors)[:, :, 0])  # one head, and no biases
    matrix = module.W_Q if side == "q" else module.W_K
    norm = module.q_norm if side == "q" else module.k_norm
    if side == "k":
        head //= module.n_heads // module.n_kv_heads
    weight = matrix.weight.unflatten(0, (module.n_heads if side == "q" else module.n_kv_heads, -1))[
        head
    ]  # [Dh D]
    made = multiplied(stream, weight)
    if matrix.bias is not None:
        bias = matrix.bias.unflatten(0, (-1, len(weight)))[head]
        made = made.plus_constant(Writer(f"{path}.W_{side.upper()}.bias", layer_in(path), head), bias)
    check_norm(norm, f"{path}.{side}_norm")
    if isinstance(norm, nn.Identity):
        return made
    scale = cache[f"{path}.{side}_norm.hook_scale"][0, row, head]
    return frozen_norm(norm, made, scale[None], f"{path}.{side}_norm")


def multiplied(stream: Stream, weight: Float[Tensor, "Dh D"]) -> Stream:
    """Multiply every part by a matrix, in float32 if the model is in fewer bits."""
    return Stream(stream.writers, at_least_float32(stream.vectors) @ at_least_float32(weight).T)


def turned(inputs: Inputs, prefix: str, stream: Stream, row: int) -> Stream:
    """Rotate every part by its position, if positions rotate queries and keys."""
    position = torch.tensor([row], device=stream.vectors.device)
    rotate = inputs.model.stack(prefix).position.rotate
    return Stream(stream.writers, rotate(stream.vectors[:, :, None], position)[:, :, 0])


def bias_of_positions(inputs: Inputs, prefix: str, head: int, query: int, key: int) -> float:
    """Return the bias that positions add to a score."""
    device = inputs.tokens.device
    q_pos, k_pos = torch.tensor([query], device=device), torch.tensor([key], device=device)
    bias = inputs.model.stack(prefix).position.bias(q_pos, k_pos)
    return 0.0 if bias is None else float(bias.reshape(-1)[head])


def layer_in(path: str) -> int:
    """Return the number of the block in a path."""
    return int(path.split(".")[1])


# --- finding blocks and heads -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where one score is: a head of a block's attention, the query's position and the key's.

    Attributes:
        prefix: Of the stack's hook points.
        sublayer: `attn` or `cross_attn`.
        module: The attention.
        layer: Counted from 0.
        head: Counted from 0.
        query: The query's position.
        key: The key's position; None if it is not chosen yet.
        readers: The labels of all query positions.
        read: The labels of all key positions.
    """

    prefix: str
    sublayer: str
    module: Attention
    layer: int
    head: int
    query: int
    key: int | None
    readers: list[str]
    read: list[str]

    @property
    def path(self) -> str:
        """The path of the attention."""
        return f"{self.prefix}blocks.{self.layer}.{self.sublayer}"


def place_of(
    inputs: Inputs, layer: int, head: int, position: int, key: int | None, attention: SubLayer
) -> Place:
    """Return the place of a score; the arguments are those of `score`.

    Raises:
        UserError: there is no such place, the query may not read the key, or the attention has no score q.k.
    """
    check_part(inputs.model, attention, "attention")
    prefix = "encoder_" if attention == "encoder" else own_prefix(inputs.model)
    sublayer = "cross_attn" if attention == "cross_attn" else "attn"
    block, layer = block_of(inputs, prefix, layer)
    module = attention_of(block, sublayer, layer)
    head = check_head(inputs, head)
    of_source, from_source = attention == "encoder", attention in ("encoder", "cross_attn")
    at = inputs.position(position, of_source)
    read_at = None if key is None else inputs.position(key, from_source, "key")
    if read_at is not None:
        check_may_read(inputs, module, attention, at, read_at)
    readers = inputs.source_labels if of_source else inputs.labels
    read_ones = inputs.source_labels if from_source else inputs.labels
    return Place(prefix, sublayer, module, layer, head, at, read_at, readers, read_ones)


def block_of(inputs: Inputs, prefix: str, layer: int) -> tuple[Block, int]:
    """Return a block, and its number from 0.

    Raises:
        UserError: there is no such block.
    """
    blocks = inputs.model.stack(prefix).blocks
    n = len(blocks)
    check_whole("layer", layer)
    if not -n <= layer < n:
        raise UserError(
            f"layer {layer}: the model has {count(n, 'layer')}: give 0 to {n - 1}, or -1 for the last"
        )
    block = blocks[layer]
    assert isinstance(block, Block)
    return block, int(layer) % n


def attention_of(block: Block, sublayer: str, layer: int) -> Attention:
    """Return a block's attention, whose scores are products q.k.

    Raises:
        UserError: its kind has no such scores.
    """
    module = getattr(block, sublayer)
    if not isinstance(module, DotModule | SharedModule | MultiHeadModule) or not computes_as_known(module):
        kind = type(module).__name__.removesuffix("Module").lower()
        raise UserError(
            f"layer {layer} has {kind} attention, which has no score q.k: only dot, shared and multihead attention do"
        )
    return module


def check_head(inputs: Inputs, head: int) -> int:
    """Return the number of a head, from 0.

    Raises:
        UserError: there is no such head.
    """
    n, _ = inputs.model.config.attention.heads(inputs.model.config.d_model)
    check_whole("head", head)
    if not -n <= head < n:
        raise UserError(f"head {head}: a layer has {count(n, 'head')}: give 0 to {n - 1}, or -1 for the last")
    return int(head) % n


def check_may_read(inputs: Inputs, module: Attention, attention: str, query: int, key: int) -> None:
    """Raise UserError if the mask keeps the query from reading the key."""
    if attention == "cross_attn":
        return
    causal = inputs.model.config.family != "encoder" and attention != "encoder"
    distance = query - key
    window = module.window
    if (causal and distance < 0) or (window is not None and abs(distance) >= window):
        why = "comes later" if causal and distance < 0 else f"is outside its window of {window}"
        raise UserError(f"key {key}: the query at position {query} may not read it, because it {why}")


def without_stack(name: str) -> str:
    """Return a hook point's name without its stack, which the column's heading gives."""
    return name.replace("encoder_", "").replace("decoder_", "")


def _largest(sizes: Tensor) -> list[int]:
    """Return the places of the largest numbers, in ascending order."""
    return sorted(sizes.topk(min(MOST_WRITERS, len(sizes))).indices.tolist())
