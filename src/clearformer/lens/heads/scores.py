"""Attention heads, scored by what they do.

    found = lens.head_scores(run)
    found.largest("induction")                   the heads with the highest score
    lens.head_scores_by_checkpoint(run)          the scores at every checkpoint that the run keeps

On random tokens repeated once (Olsson et al. 2022), how much a head attends, on average,

    previous     from each position to the one before
    duplicate    from each repeated token to its first occurrence
    induction    from each repeated token to the token after its first occurrence, which comes next

and from the weights alone (Elhage et al. 2021), whether the eigenvalues of its circuits are positive, sum of Re(lambda)
over sum of |lambda|, from -1 to 1:

    copying      W_E W_V W_O W_U: an attended token raises its own logit
    matching     W_E W_Q W_K^T W_E^T: a token attends to itself

`circuits.py` lists what the circuits leave out.

Shapes: B texts, T tokens, S keys, H heads, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearformer.decoding.arguments import check_run, check_seed, check_whole
from clearformer.decoding.text.samples import Run
from clearformer.device import torch_as_it_begins
from clearformer.errors import UserError
from clearformer.hooks import hook_points
from clearformer.lens.heads.circuits import Circuits
from clearformer.lens.inputs import Subject, parts_of, quiet
from clearformer.lens.showing import FIRST, Shown, Table, heat_map
from clearformer.model import Decoder, Encoder, EncoderDecoder, Transformer
from clearformer.model.norms import at_least_float32
from clearformer.runs.folders import read_run
from clearformer.text import Tokenizer
from clearformer.training.store.checkpoint import list_checkpoints, step_of
from clearformer.training.store.folder import RunFolder

Kind = Literal["previous", "duplicate", "induction", "copying", "matching"]
KINDS: tuple[Kind, ...] = ("previous", "duplicate", "induction", "copying", "matching")


@dataclass(frozen=True)
class HeadScore:
    """One head's scores; NaN where a definition does not apply to it.

    Attributes:
        name: Its hook point, `blocks.0.attn.hook_z`.
        head: Its number in that layer.
        previous: Attention to the previous position; NaN for cross-attention, like the next two.
        duplicate: Attention from a repeated token to its first occurrence.
        induction: Attention from a repeated token to the token after its first occurrence.
        copying: The score of the value-output circuit; NaN if the path from the head to the logits is not linear.
        matching: The score of the query-key circuit; NaN if there is none.
    """

    name: str
    head: int
    previous: float
    duplicate: float
    induction: float
    copying: float
    matching: float

    @property
    def label(self) -> str:
        """The layer's path and the head's number: `blocks.0.attn:3`."""
        return f"{self.name.rpartition('.')[0]}:{self.head}"

    @property
    def scores(self) -> list[float]:
        """All scores, in the order of `KINDS`."""
        return [getattr(self, kind) for kind in KINDS]


@dataclass(frozen=True, repr=False, eq=False)
class HeadScores(Shown):
    """The scores of every head of a model.

    Attributes:
        step: The step of the checkpoint; 0 if unknown.
        heads: The heads, in the order of the layers.
        first_loss: The loss on random tokens the first time, in nats; NaN if the model predicts no next token.
        repeat_loss: The loss on the repetition of the same tokens: low if there is induction.
    """

    step: int = field(metadata={FIRST: True})
    heads: list[HeadScore]
    first_loss: float
    repeat_loss: float

    def largest(self, kind: Kind, n: int = 5) -> list[HeadScore]:
        """Return the heads with the highest score of a kind.

        Raises:
            UserError: there is no such score.
        """
        check_kind(kind)
        scored = [each for each in self.heads if not isnan(getattr(each, kind))]
        return sorted(scored, key=lambda each: -getattr(each, kind))[:n]

    def caption(self) -> str:
        return "what each head does, on repeated random tokens and by its weights"

    def table(self) -> Table:
        rows = [[each.label, *map(_cell, each.scores)] for each in self.heads]
        return Table(["head", *KINDS], rows)

    def notes(self) -> list[str]:
        if isnan(self.first_loss):
            return []
        return [
            f"loss of random tokens: first time {self.first_loss:.3f} nats, repeated {self.repeat_loss:.3f}"
        ]

    def inches(self) -> tuple[float, float]:
        return 5.5, 1.4 + 0.2 * len(self.heads)

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        scores = [each.scores for each in self.heads]
        image = heat_map(
            axes, scores, [each.label for each in self.heads], KINDS, signed=True, limits=(-1, 1)
        )
        figure.colorbar(image, ax=axes)


@dataclass(frozen=True, repr=False, eq=False)
class HeadHistory(Shown):
    """The scores of every head at each checkpoint of a run.

    Attributes:
        checkpoints: The scores at each checkpoint, oldest first.
    """

    checkpoints: list[HeadScores]

    def of(self, kind: Kind) -> Float[Tensor, "C N"]:
        """Return one score of every head at every checkpoint.

        Raises:
            UserError: there is no such score.
        """
        check_kind(kind)
        return torch.tensor([[getattr(head, kind) for head in each.heads] for each in self.checkpoints])

    def caption(self) -> str:
        return "the head with the highest score of each kind, by checkpoint"

    def table(self) -> Table:
        rows = [
            [str(each.step), *(_most(each, kind) for kind in KINDS), _cell(each.repeat_loss)]
            for each in self.checkpoints
        ]
        return Table(["step", *KINDS, "repeat loss"], rows)

    def inches(self) -> tuple[float, float]:
        return 7.0, 7.0

    def draw(self, figure: Any) -> None:
        steps = [each.step for each in self.checkpoints]
        panels = figure.subplots(len(KINDS), 1, sharex=True)
        for axes, kind in zip(panels, KINDS, strict=True):
            axes.plot(steps, self.of(kind).numpy(), linewidth=0.9, marker=".")
            axes.set_ylabel(kind)
            axes.spines[["top", "right"]].set_visible(False)
        panels[-1].set_xlabel("step")


def check_kind(kind: str) -> None:
    """Raise UserError if there is no such score."""
    if kind not in KINDS:
        raise UserError(f"there is no score {kind!r}; there are {', '.join(KINDS)}")


def _cell(value: float) -> str:
    return "-" if isnan(value) else f"{value:.3f}"


def _most(scores: HeadScores, kind: Kind) -> str:
    best = next(iter(scores.largest(kind, 1)), None)
    return "-" if best is None else f"{getattr(best, kind):.3f} {best.label}"


def head_scores(
    subject: Subject,
    *,
    n_tokens: int = 50,
    n_texts: int = 4,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
) -> HeadScores:
    """Score every attention head of a model.

    Args:
        subject: A run, or a bare model.
        n_tokens: The number of random tokens to repeat; fewer if the model cannot read as many.
        n_texts: The number of such texts to average over.
        seed: The seed of the random tokens.
        tokenizer: The tokenizer of a bare model, whose special tokens are excluded.

    Raises:
        UserError: the model's attention has no pattern to score (kind `last`), or the model reads too few tokens.
    """
    model, tokenizer = parts_of(subject, tokenizer)
    names = [name for name in hook_points(model) if name.endswith("attn.hook_pattern")]
    if not names:
        raise UserError(
            f"model.attention.kind={model.config.attention.kind} has no pattern, so there is no head to score"
        )
    text = repeated(model, tokenizer, n_tokens, n_texts, seed)
    arguments = (text.tokens, text.tokens) if isinstance(model, EncoderDecoder) else (text.tokens,)
    with quiet(model):
        output, patterns = model.run_with_cache(*arguments, names=names)
    first, again = repeat_losses(model, output, text)
    circuits = Circuits(model)
    heads = [score for name in names for score in _of_layer(circuits, name, patterns[name], text.tokens)]
    return HeadScores(getattr(subject, "step", 0), heads, first, again)


def head_scores_by_checkpoint(
    run: Run, *, n_tokens: int = 50, n_texts: int = 4, seed: int = 0
) -> "HeadHistory":
    """Return `head_scores` for every checkpoint of a run, oldest first; `train.keep_last` sets how many it keeps.

    Raises:
        RunError: the run has no directory.
        CheckpointError: a checkpoint is damaged.
        UserError: see `head_scores`.
    """
    check_run(run, "folder")
    folder: RunFolder = run.folder  # type: ignore[attr-defined]
    steps = sorted(step_of(path) for path in list_checkpoints(folder.checkpoints))
    device = run.model.embed.weight.device
    loaded = (read_run(folder.path, step, device) for step in steps)
    return HeadHistory([head_scores(each, n_tokens=n_tokens, n_texts=n_texts, seed=seed) for each in loaded])


# --- repeated random tokens -----------------------------------------------------------------------------------


class Repeated(NamedTuple):
    """Random tokens, repeated once.

    Attributes:
        tokens: [B T] <bos>, if the tokenizer has one, and the tokens twice.
        start: The position of the first of them.
        n: The number of tokens before the repetition.
    """

    tokens: Int[Tensor, "B T"]
    start: int
    n: int


@torch_as_it_begins()
def repeated(
    model: Transformer, tokenizer: Tokenizer | None, n_tokens: int, n_texts: int, seed: int
) -> Repeated:
    """Return random tokens and their repetition, all different if the vocabulary is large enough.

    Raises:
        UserError: the model reads too few tokens, or there is no text.
    """
    check_whole("n_tokens", n_tokens)
    check_whole("n_texts", n_texts, least=1)
    check_seed(seed)
    bos = None if tokenizer is None or isinstance(model, Encoder) else tokenizer.bos_id
    start = 0 if bos is None else 1
    n = min(n_tokens, (model.config.max_seq_len - start) // 2)
    if n < 2:
        raise UserError(
            "heads are scored on at least 2 tokens and their repetition; n_tokens or model.max_seq_len is too small"
        )
    choice = torch.arange(model.embed.num_embeddings)
    if tokenizer is not None:
        choice = torch.from_numpy(np.flatnonzero(tokenizer.is_plain))
    numbers = torch.Generator().manual_seed(seed)
    if len(choice) >= n:
        said = torch.stack(
            [choice[torch.randperm(len(choice), generator=numbers)[:n]] for _ in range(n_texts)]
        )
    else:
        said = choice[torch.randint(len(choice), (n_texts, n), generator=numbers)]
    before = torch.full((n_texts, start), bos if bos is not None else 0)
    tokens = torch.cat([before, said, said], dim=1).to(model.embed.weight.device)
    return Repeated(tokens, start, n)


def repeat_losses(model: Transformer, output: Float[Tensor, "B T V"], text: Repeated) -> tuple[float, float]:
    """Return the mean next-token loss on the tokens the first time, and on their repetition.

    The first token of each is left out, because nothing before it determines it.
    """
    if not isinstance(model, Decoder | EncoderDecoder):
        return nan, nan
    logits = at_least_float32(output[:, :-1]).transpose(1, 2)
    losses = F.cross_entropy(logits, text.tokens[:, 1:].long(), reduction="none")
    first, again = text.start, text.start + text.n  # losses[:, t] is that of token t + 1
    return losses[:, first : again - 1].mean().item(), losses[:, again : again + text.n - 1].mean().item()


# --- attention ------------------------------------------------------------------------------------------------


def _of_layer(
    circuits: Circuits, name: str, pattern: Float[Tensor, "B H T S"], tokens: Int[Tensor, "B T"]
) -> Iterator[HeadScore]:
    crosses = name.endswith("cross_attn.hook_pattern")
    n_heads = pattern.shape[1]
    wanted = (previous_positions, duplicate_positions, induction_positions)
    attended = [[nan] * n_heads if crosses else attention_to(pattern, each(tokens)) for each in wanted]
    for head, (previous, duplicate, induction) in enumerate(zip(*attended, strict=True)):
        copying, matching = circuits.copying(name, head), circuits.matching(name, head)
        point = name.replace("hook_pattern", "hook_z")
        yield HeadScore(point, head, previous, duplicate, induction, copying, matching)


def attention_to(pattern: Float[Tensor, "B H T S"], wanted: Bool[Tensor, "B T S"]) -> list[float]:
    """Return each head's attention to the wanted keys, averaged over the queries that have one."""
    attended = (at_least_float32(pattern) * wanted.unsqueeze(1)).sum(-1).sum((0, 2))  # [H]
    return (attended / wanted.any(-1).sum()).tolist()


def previous_positions(tokens: Int[Tensor, "B T"]) -> Bool[Tensor, "B T T"]:
    """Return a mask of the keys directly before each query."""
    places = torch.arange(tokens.shape[1], device=tokens.device)
    return (places[:, None] - 1 == places).expand(len(tokens), -1, -1)


def duplicate_positions(tokens: Int[Tensor, "B T"]) -> Bool[Tensor, "B T T"]:
    """Return a mask of the earlier keys with the same token as the query."""
    return (tokens.unsqueeze(2) == tokens.unsqueeze(1)).tril(-1)


def induction_positions(tokens: Int[Tensor, "B T"]) -> Bool[Tensor, "B T T"]:
    """Return a mask of the earlier keys that follow a token equal to the query's."""
    behind = torch.zeros_like(duplicate_positions(tokens))
    behind[:, :, 1:] = duplicate_positions(tokens)[:, :, :-1]
    return behind.tril(-1)
