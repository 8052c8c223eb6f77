"""The loss of a decoder by position, in sequences longer than those that it was trained on."""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float

from clearformer.model import Decoder
from clearformer.model.build import build_undrawn
from clearformer.model.positions import Learned
from clearformer.run import Run
from clearformer.study.measures.held_out import text_split
from clearformer.study.study import Measure, Values
from clearformer.training.store.state import weights_of

BUCKETS_PER_LENGTH = 4
WINDOWS_AT_ONCE = 8


def loss_by_position(run: Run, times: int = 4, n_windows: int = 64) -> Values:
    """Measure the held-out loss at positions up to `times` the training length, in one pass over each window.

    Every run reads the same windows, evenly spaced over the held-out split. A model with learned positions has none
    beyond its training length, and reads only up to there.

    Returns:
        loss_at_1x, loss_at_2x, ...: The mean loss over the positions of the first training length, of the second, and
            so on, in nats a token; None if the model has no such positions.
        loss_by_position: Rows of the first position of a bucket and its mean loss, four buckets per training length.
    """
    length = run.config.model.max_seq_len
    tokens = long_windows(run, times * length, n_windows)
    readable = length if isinstance(run.config.model.position, Learned) else times * length
    losses = losses_at(extended(run, readable), tokens[:, : readable + 1])
    at = losses.reshape(-1, length).mean(1)
    bucket = length // BUCKETS_PER_LENGTH
    rows = losses[: len(losses) // bucket * bucket].reshape(-1, bucket).mean(1)
    return {
        **{f"loss_at_{n + 1}x": float(at[n]) if n < len(at) else None for n in range(times)},
        "loss_by_position": [[n * bucket, round(float(loss), 5)] for n, loss in enumerate(rows)],
    }


def long_windows(run: Run, length: int, n_windows: int) -> np.ndarray:
    """Return windows of `length` + 1 tokens, evenly spaced over the held-out split, [N length+1]."""
    split = text_split(run)
    last = len(split) - length - 1
    starts = np.linspace(0, last, min(n_windows, last + 1)).astype(int)
    return split.windows(starts, length + 1)


def extended(run: Run, max_seq_len: int) -> Decoder:
    """Rebuild the run's model for longer sequences: the same weights, with longer tables of fixed positions."""
    config = run.model.config.replace(max_seq_len=max_seq_len)
    model = build_undrawn(config)
    model.load_state_dict(weights_of(run.model))
    return model.eval()


@torch.inference_mode()
def losses_at(model: Decoder, windows: np.ndarray) -> Float[np.ndarray, " T"]:
    """Return the mean loss at each position, in nats."""
    total = torch.zeros(windows.shape[1] - 1, dtype=torch.float64)
    for rows in torch.from_numpy(windows.astype(np.int64)).split(WINDOWS_AT_ONCE):
        logits = model(rows[:, :-1]).transpose(1, 2)  # [B V T]
        total += F.cross_entropy(logits, rows[:, 1:], reduction="none").double().sum(0)
    return (total / len(windows)).numpy()


LOSS_BY_POSITION = Measure(loss_by_position)
