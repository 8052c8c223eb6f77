"""The loss of a bigram model of a run's training data: the loss that one token of context suffices for.

    found = lens.bigram(run)
    found.loss          on the held-out text, in nats per token

With counts n in the training split, N tokens, V in the vocabulary (smoothed towards the unigrams: MacKay
and Peto 1995),

    p(b | a) = (n(a, b) + m p(b)) / (n(a) + m)          p(b) = (n(b) + 1) / (N + V)

where m is the power of two from 1 to 16,384 with the smallest loss on the training text itself, each of its pairs left
out of the counts n(a, b) and n(a) that predict it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from clearformer.data import Dataset, PairDataset, Prepared
from clearformer.decoding.arguments import check_run
from clearformer.errors import UserError
from clearformer.lens.showing import AMOUNT, FIRST, Shown, Table, bars
from clearformer.model import Encoder
from clearformer.runs.evaluation import HELD_OUT, WHOLE
from clearformer.runs.folders import RunLike
from clearformer.runs.own_data import read_own_data

READ_AT_ONCE = 1 << 20  # tokens
WEIGHTS = tuple(float(1 << power) for power in range(15))


@dataclass(frozen=True, repr=False, eq=False)
class Bigram(Shown):
    """A bigram model of a run's training data, measured on its held-out split.

    Attributes:
        loss: The loss on the held-out split, in nats per token.
        unigram_loss: The loss of p(b), which ignores the context.
        weight: m, the number of counts that the unigrams are worth.
        left_out_loss: The loss on the training split with each pair left out of its own counts; m minimises it.
        n_pairs: The number of different pairs in the training split.
        n_counted: The number of all its pairs.
        n_predicted: The number of predicted tokens in the held-out split.
        counts: The counts of the training split; in a difference, the first's.
    """

    loss: float
    unigram_loss: float
    weight: float
    left_out_loss: float
    n_pairs: int = field(metadata={AMOUNT: True})
    n_counted: int = field(metadata={AMOUNT: True})
    n_predicted: int = field(metadata={AMOUNT: True})
    counts: "Counts" = field(repr=False, metadata={FIRST: True})

    def probabilities(
        self, before: Int[np.ndarray, " N"], tokens: Int[np.ndarray, " N"]
    ) -> Float[np.ndarray, " N"]:
        """Return p(token | previous token)."""
        return self.counts.probabilities(before, tokens, self.weight)

    def caption(self) -> str:
        return f"a bigram model of the training text: held-out loss {self.loss:.4f} nats per token"

    def table(self) -> Table:
        rows = [
            ["held-out loss", f"{self.loss:.4f}"],
            ["unigram loss", f"{self.unigram_loss:.4f}"],
            ["training loss, leaving each pair out", f"{self.left_out_loss:.4f}"],
            ["m", f"{self.weight:g}"],
            ["pairs counted", f"{self.n_counted:,}"],
            ["distinct pairs", f"{self.n_pairs:,}"],
            ["tokens predicted", f"{self.n_predicted:,}"],
        ]
        return Table(["bigram model", ""], rows)

    def notes(self) -> list[str]:
        return [f"p(b | a) = (n(a, b) + m p(b)) / (n(a) + m) with m = {self.weight:g}"]

    def inches(self) -> tuple[float, float]:
        return 5.0, 1.6

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        bars(axes, ["bigram", "unigram"], [self.loss, self.unigram_loss])
        axes.set_xlabel("held-out loss, nats per token")


class Counts(NamedTuple):
    """Counts of a training split.

    Attributes:
        vocab_size: V.
        keys: a V + b of each different pair, in order.
        pairs: n(a, b) for each.
        before: [V] n(a).
        tokens: [V] n(b).
    """

    vocab_size: int
    keys: Int[np.ndarray, " P"]
    pairs: Int[np.ndarray, " P"]
    before: Int[np.ndarray, " V"]
    tokens: Int[np.ndarray, " V"]

    @property
    def unigrams(self) -> Float[np.ndarray, " V"]:
        """p(b)."""
        return (self.tokens + 1) / (self.tokens.sum() + self.vocab_size)

    def probabilities(
        self, before: Int[np.ndarray, " N"], tokens: Int[np.ndarray, " N"], weight: float
    ) -> Float[np.ndarray, " N"]:
        """Return p(b | a) for some pairs."""
        keys = before * self.vocab_size + tokens
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        pairs = np.where(self.keys[places] == keys, self.pairs[places], 0)
        return (pairs + weight * self.unigrams[tokens]) / (self.before[before] + weight)

    def left_out_loss(self, weight: float) -> float:
        """Return the mean loss on the training split, each of its pairs left out of its own counts."""
        before, tokens = np.divmod(self.keys, self.vocab_size)
        found = (self.pairs - 1 + weight * self.unigrams[tokens]) / (self.before[before] - 1 + weight)
        return float(-(self.pairs * np.log(found)).sum() / self.pairs.sum())


def bigram(run: RunLike) -> Bigram:
    """Count the pairs of a run's training data, and measure the bigram model on its held-out data.

    For an encoder-decoder these are the tokens of the targets, from <bos> to <eos>.

    Args:
        run: A run in the directory in which it was trained, with its data in place.

    Raises:
        RunError: the run has no directory, or was not trained in it.
        DataError: its data cannot be read, or have changed.
        UserError: its model predicts no next token, or it has no held-out data.
    """
    check_run(run, "folder")
    if isinstance(run.model, Encoder):
        raise UserError("a bigram model predicts the next token; an encoder does not")
    prepared = read_own_data(run).prepared
    if HELD_OUT not in prepared.splits:
        raise UserError("the run has no held-out data to measure a bigram model on")
    size = max(run.model.embed.num_embeddings, run.tokenizer.vocab_size)
    counts = counted(prepared, run, size)
    weight = min(WEIGHTS, key=counts.left_out_loss)
    loss = unigram_loss = 0.0
    n = 0
    for before, tokens in pairs_of(prepared, run, HELD_OUT):
        loss -= float(np.log(counts.probabilities(before, tokens, weight)).sum())
        unigram_loss -= float(np.log(counts.unigrams[tokens]).sum())
        n += len(tokens)
    return Bigram(
        loss / n,
        unigram_loss / n,
        weight,
        counts.left_out_loss(weight),
        len(counts.keys),
        int(counts.pairs.sum()),
        n,
        counts,
    )


def counted(prepared: Prepared, run: RunLike, vocab_size: int) -> Counts:
    """Count the pairs of the training split."""
    keys, pairs = np.zeros(0, np.int64), np.zeros(0, np.int64)
    before_counts, token_counts = np.zeros((2, vocab_size), np.int64)
    for before, tokens in pairs_of(prepared, run, WHOLE):
        new, n_new = np.unique(before * vocab_size + tokens, return_counts=True)
        merged, places = np.unique(np.concatenate([keys, new]), return_inverse=True)
        pairs = np.bincount(places, np.concatenate([pairs, n_new])).astype(np.int64)
        keys = merged
        before_counts += np.bincount(before, minlength=vocab_size)
        token_counts += np.bincount(tokens, minlength=vocab_size)
    return Counts(vocab_size, keys, pairs, before_counts, token_counts)


def pairs_of(
    prepared: Prepared, run: RunLike, split: str
) -> Iterator[tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]]:
    """Yield every token of a split that has a predecessor, after that predecessor; many at a time."""
    if isinstance(prepared, Dataset):
        text = prepared.splits[split]
        for start in range(0, len(text) - 1, READ_AT_ONCE):
            ids = text.read(start, min(start + READ_AT_ONCE + 1, len(text)))
            yield ids[:-1], ids[1:]
        return
    assert isinstance(prepared, PairDataset)
    targets = prepared.splits[split]
    before, eos = [run.tokenizer.bos_id, *run.tokenizer.before_pair], run.tokenizer.eos_id
    rows = [[*before, *targets.target(index).tolist(), eos] for index in range(len(targets))]
    yield (
        np.array([token for row in rows for token in row[:-1]], np.int64),
        np.array([token for row in rows for token in row[1:]], np.int64),
    )
