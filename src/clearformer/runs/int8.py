"""The cost of int8 weights: the held-out loss with them and without."""

from dataclasses import dataclass

from clearformer.data import Split
from clearformer.decoding.arguments import check_run
from clearformer.decoding.fast.int8 import n_bytes, with_int8_weights
from clearformer.decoding.text.samples import require_decoder
from clearformer.errors import RunError
from clearformer.evaluation.language_model import evaluate_split
from clearformer.results import Result
from clearformer.runs.evaluation import HELD_OUT
from clearformer.runs.folders import RunLike
from clearformer.runs.own_data import read_own_data

WINDOWS = 64
"""The number of windows of the held-out split to read, evenly spaced."""


@dataclass(frozen=True, repr=False, eq=False)
class Int8Losses(Result):
    """The held-out loss of a model with int8 weights and without, on the same sample of the held-out split.

    Attributes:
        loss: The loss of the model itself, in nats per token.
        int8_loss: The loss of its copy with int8 weights.
        n_tokens: Tokens predicted, in 64 evenly spaced windows of the split with half a context before each.
        n_bytes: Bytes of the model's own weights.
        int8_n_bytes: Bytes of the int8 copy's weights.
    """

    loss: float
    int8_loss: float
    n_tokens: int
    n_bytes: int
    int8_n_bytes: int

    def in_words(self) -> str:
        """Return all values in one line."""
        return (
            f"{self.int8_n_bytes / 1e6:.1f} MB instead of {self.n_bytes / 1e6:.1f}; held-out loss "
            f"{self.int8_loss:.4f} nats per token, without int8 {self.loss:.4f} (sample of {self.n_tokens:,} tokens)"
        )


def int8_losses(run: RunLike) -> Int8Losses:
    """Measure a decoder's held-out loss with int8 weights and without, on a sample of the run's own data.

    Raises:
        RunError: the run has no data of its own, or none held out.
        DataError: they cannot be read, or have changed since it was trained.
        UserError: its model is not a decoder.
    """
    check_run(run, "config")
    model = require_decoder(run.model)
    split = read_own_data(run).prepared.splits.get(HELD_OUT)
    if not isinstance(split, Split):
        raise RunError("none of the run's data is held-out text")
    quantized = with_int8_weights(model)
    plain, rounded = (evaluate_split(each, split, n_windows=WINDOWS) for each in (model, quantized))
    return Int8Losses(plain.loss, rounded.loss, plain.n_tokens, n_bytes(model), n_bytes(quantized))
