"""Evaluating a language model on a text, window by window, with a given context and stride.

With a context of C tokens and a stride of S, window k reads tokens kS to kS + C, and only predictions that no earlier
window made count: all of them in the first, the last S in every other. So every token but the first is predicted
exactly once, from the C - S + 1 to C tokens before it (or from all, if there are fewer).

Shapes: W windows, B of them in a batch, T positions, N predictions, V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from clearformer.data import Split
from clearformer.decoding import evaluating
from clearformer.decoding.arguments import OnStep, check_whole
from clearformer.device import autocast
from clearformer.errors import DataError, UserError
from clearformer.evaluation.meter import counted
from clearformer.evaluation.subsets import evenly_spaced
from clearformer.model import Decoder
from clearformer.results import plain
from clearformer.text import Tokenizer

LEAST = torch.finfo(torch.float32).min
TOKENS_AT_ONCE = 1 << 12  # in one batch; smaller and larger ones are slower on a CPU
LOGITS_AT_ONCE = 1 << 26  # numbers in one batch's logits: 256 MB in float32
PREDICTIONS_AT_ONCE = 1 << 22  # numbers in each of the copies that the loss and the entropy need
COUNTED_AT_ONCE = 1 << 20  # tokens to search for unknown ones at once
LARGEST_EXPONENT = 709.0  # of e, for a float64


@dataclass(frozen=True)
class Evaluation:
    """How well a model predicts a text.

    Perplexity and figures per token compare only models with the same vocabulary; bits per character and per byte, and
    perplexity per word, compare any two models on the same text. They follow from the length of a code for the text,
    over the length of the text. They are undefined if the tokens lose a part of it: predicting <unk> does not say which
    character it was.

    Attributes:
        loss: The mean of -log p(token), in nats: the cross-entropy of the text and the model.
        mean_entropy: The mean entropy of the predictions, in nats: the loss that the model itself expects. If the loss
            is larger, the model is overconfident.
        n_tokens: Tokens that were predicted: all but the split's first, or those of the windows that were read.
        n_chars: The characters of these tokens; None if only a part of the split was read, no tokenizer was given, or
            the tokens lose a part of the text (lower-casing, WordPiece, an unknown token in the split).
        n_bytes: Likewise the bytes in UTF-8.
        n_words: Likewise the words of the split: what stands between white space, as `str.split` counts them in each
            document; None also if they were not counted.
        n_unknown: The unknown tokens among those predicted; None if only a part of the split was read, or no tokenizer
            was given.
        context: The most tokens that a prediction was made from.
        stride: Tokens from the start of one window to the next.
        split: The split's name.
    """

    loss: float
    mean_entropy: float
    n_tokens: int
    n_chars: int | None
    n_bytes: int | None
    context: int
    stride: int
    split: str
    n_unknown: int | None = None
    n_words: int | None = None

    @property
    def perplexity(self) -> float:
        """exp(loss) (lecture 000, section 8): the number of equally likely tokens with the same uncertainty."""
        return perplexity_of(self.loss)

    @property
    def bits_per_token(self) -> float:
        """The loss in bits."""
        return self.loss / math.log(2)

    @property
    def bits_per_char(self) -> float | None:
        """Bits of all predictions over their characters; None if these are unknown or 0."""
        return self._bits_per(self.n_chars)

    @property
    def bits_per_byte(self) -> float | None:
        """Bits of all predictions over their bytes; None if these are unknown or 0."""
        return self._bits_per(self.n_bytes)

    @property
    def perplexity_per_word(self) -> float | None:
        """exp of the nats of all predictions over their words between white space; None if these are unknown.

        Ends of lines and documents are predicted too, and count as no word, as in lm-evaluation-harness. Where every
        line of WikiText counts as a word more, by its <eos>, the same model has a lower number.
        """
        return perplexity_of(self.loss * self.n_tokens / self.n_words) if self.n_words else None

    def to_json(self) -> dict[str, Any]:
        """Return all values for `json.dumps`; a number that is not finite becomes None."""
        derived = ("perplexity", "bits_per_token", "bits_per_char", "bits_per_byte", "perplexity_per_word")
        return plain(asdict(self) | {name: getattr(self, name) for name in derived})

    def _bits_per(self, n: int | None) -> float | None:
        return self.bits_per_token * self.n_tokens / n if n else None


def evaluate_split(
    model: Decoder,
    split: Split,
    tokenizer: Tokenizer | None = None,
    *,
    context: int | None = None,
    stride: int | None = None,
    n_windows: int | None = None,
    dtype: torch.dtype | None = None,
    on_step: OnStep = lambda *_: None,
) -> Evaluation:
    """Measure how well a model predicts a split, read in order.

    It draws no random numbers and restores the model's mode. Only predictions that count are unembedded. As many
    windows are read at once as hold `TOKENS_AT_ONCE`, or fewer with a large vocabulary, to limit the memory of the
    logits.

    Args:
        model: The model, on any device.
        split: The split to predict.
        tokenizer: The split's tokenizer. It tells which tokens are unknown, and the size of the first token, which is
            not predicted. Without it, characters and bytes are not counted.
        context: C, the most tokens to predict from; by default the model's maximum length.
        stride: S, from 1 (every prediction from the longest context) to C (fastest, but the first predictions of each
            window have almost no context). By default C / 2, so that each has C / 2 tokens or more.
        n_windows: How many windows to read, evenly spaced over all of them; by default all.
        dtype: The type of the matrix products (autocast); by default as around the call.
        on_step: Called after each batch with the number of windows done and the total.

    Raises:
        UserError: the context, the stride or `n_windows` is out of range.
        DataError: the split has fewer than two tokens, or one that the model does not know.
    """
    context, stride = context_and_stride(model, context, stride)
    if n_windows is not None:
        check_whole("n_windows", n_windows, least=1)
    _check_has_predictions(split)
    windows = windows_of(len(split), context, stride)
    n_all = _n_starts(windows)
    is_whole = n_windows is None or n_windows >= n_all
    if n_windows is not None and not is_whole:
        windows = subset_of_windows(windows, n_windows)
    sums = _sums(model, split, windows, dtype, on_step)
    text = _predicted_text(split, tokenizer if is_whole else None)
    return _evaluation(sums, _n_counted(windows), text, context, stride, split.name)


def evaluate_whole_and_part(
    model: Decoder,
    split: Split,
    tokenizer: Tokenizer | None = None,
    *,
    n_windows: int,
    dtype: torch.dtype | None = None,
) -> tuple[Evaluation, Evaluation]:
    """Evaluate a whole split and, as a second result, some of its windows; each window is read once.

    Args:
        model: As in `evaluate_split`; so are the others.
        split: The split to predict.
        tokenizer: The split's tokenizer.
        n_windows: The number of windows in the second evaluation.
        dtype: The type of the matrix products.
    """
    context, stride = context_and_stride(model, None, None)
    _check_has_predictions(split)
    windows = windows_of(len(split), context, stride)
    sums, n_counted = _sums(model, split, windows, dtype), _n_counted(windows)
    some = evenly_spaced(min(n_windows, len(sums)), len(sums))
    return (
        _evaluation(sums, n_counted, _predicted_text(split, tokenizer), context, stride, split.name),
        _evaluation(sums[some], n_counted[some], _Text(), context, stride, split.name),
    )


def _check_has_predictions(split: Split) -> None:
    if len(split) < 2:
        raise DataError(
            f"the {split.name} split has {len(split)} token{'s' * (len(split) != 1)}, but a prediction needs two: "
            f"give a longer text"
        )


def _evaluation(
    sums: Float64[np.ndarray, "W 2"],
    n_counted: Int64[np.ndarray, " W"],
    text: "_Text",
    context: int,
    stride: int,
    split: str,
) -> Evaluation:
    """Return the evaluation of windows, given each one's sums and number of predictions."""
    n_tokens = int(n_counted.sum())
    loss, entropy = (float(total) / n_tokens for total in sums.sum(0))
    return Evaluation(
        loss=loss,
        mean_entropy=entropy,
        n_tokens=n_tokens,
        **text._asdict(),
        context=context,
        stride=stride,
        split=split,
    )


# --- windows ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """Windows of one length; in each, the last `n_counted` predictions count."""

    starts: np.ndarray
    length: int
    n_counted: int


def windows_of(n_tokens: int, context: int, stride: int) -> list[Windows]:
    """Return the windows that predict every token but the first once, in order, grouped by shape."""
    n_targets = n_tokens - 1
    n_later = max(0, math.ceil((n_targets - context) / stride))  # windows after the first
    starts = stride * np.arange(n_later + 1)
    first = Windows(starts[:1], min(context, n_targets), min(context, n_targets))
    if n_later == 0:
        return [first]
    predicted = context + stride * (n_later - 1)  # by all but the last window
    last = Windows(starts[-1:], n_targets - int(starts[-1]), n_targets - predicted)
    if stride == context:  # the first has the shape of those in the middle
        return [Windows(starts[:-1], context, stride), last]
    return [first, Windows(starts[1:-1], context, stride), last]


def count_windows(n_tokens: int, context: int) -> int:
    """Return how many windows `evaluate_split` reads of a whole split at its default stride."""
    return _n_starts(windows_of(n_tokens, context, default_stride(context)))


def subset_of_windows(windows: Sequence[Windows], n: int) -> list[Windows]:
    """Return `n` windows, evenly spaced over all of them and grouped by shape."""
    chosen, before = evenly_spaced(n, _n_starts(windows)), 0
    subset = []
    for each in windows:
        here = chosen[(before <= chosen) & (chosen < before + len(each.starts))] - before
        subset.append(replace(each, starts=each.starts[here]))
        before += len(each.starts)
    return subset


def _n_starts(windows: Sequence[Windows]) -> int:
    return sum(len(each.starts) for each in windows)


def _n_counted(windows: Sequence[Windows]) -> Int64[np.ndarray, " W"]:
    """Return how many predictions count in each window."""
    counts = np.array([each.n_counted for each in windows], dtype=np.int64)
    return np.repeat(counts, [len(each.starts) for each in windows])


def _batches(
    split: Split, shapes: Sequence[Windows], vocab_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield inputs [B T], and the targets that count [B n_counted]."""
    for windows in shapes:
        most = LOGITS_AT_ONCE // (windows.n_counted * vocab_size)
        n_rows = max(1, min(most, TOKENS_AT_ONCE // windows.length))
        for i in range(0, len(windows.starts), n_rows):
            tokens = split.windows(windows.starts[i : i + n_rows], windows.length + 1)
            if tokens.max() >= vocab_size:
                raise DataError(
                    f"the {split.name} split has token id {tokens.max()}, but the model's vocabulary is {vocab_size}: "
                    f"prepare the text with the model's own tokenizer"
                )
            yield np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, -windows.n_counted :])


# --- sums -------------------------------------------------------------------------------------------------


def _sums(
    model: Decoder,
    split: Split,
    windows: Sequence[Windows],
    dtype: torch.dtype | None,
    on_step: OnStep = lambda *_: None,
) -> Float64[np.ndarray, "W 2"]:
    """Return each window's sums of -log p(target) and of entropies over the predictions that count, in nats."""
    device = model.embed.weight.device
    found = [np.empty((0, 2))]
    batches = _batches(split, windows, _vocab_size(model))
    with evaluating(model) as threads, torch.inference_mode(), autocast(device, dtype):
        for inputs, targets in counted(batches, lambda batch: len(batch[0]), _n_starts(windows), on_step):
            threads.adapt()
            tokens, n_counted = torch.from_numpy(inputs).to(device), targets.shape[1]
            logits = model.unembed(model.hidden(tokens)[:, -n_counted:])
            found.append(_losses_and_entropies(logits, torch.from_numpy(targets).to(device)))
    return np.concatenate(found)


def _losses_and_entropies(
    logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"]
) -> Float64[np.ndarray, "B 2"]:
    """Return each row's sums of losses and of entropies, computed in chunks of predictions."""
    losses, entropies = [], []
    n_at_once = max(1, PREDICTIONS_AT_ONCE // logits.shape[-1])
    parts = zip(logits.flatten(0, 1).split(n_at_once), targets.flatten().split(n_at_once), strict=True)
    for part, target in parts:
        logprobs = part.float().log_softmax(-1)  # [N V]
        losses.append(-logprobs.gather(1, target.unsqueeze(1)).squeeze(1))
        finite = logprobs.clamp_min(LEAST)  # 0 log 0 is 0; torch.special.entr takes several times as long
        entropies.append(-(logprobs.exp() * finite).sum(-1))
    both = torch.stack([torch.cat(losses), torch.cat(entropies)]).cpu().double()
    return both.view(2, *targets.shape).sum(-1).T.numpy()


class _Text(NamedTuple):
    """The size of the text that some tokens stand for, as in `Evaluation`."""

    n_unknown: int | None = None
    n_chars: int | None = None
    n_bytes: int | None = None
    n_words: int | None = None


def _predicted_text(split: Split, tokenizer: Tokenizer | None) -> _Text:
    """Return the size of the text without its first token; a character counts where its first byte is.

    There is no size if the tokens lose a part of the text, as predicting them does not predict all of it.
    """
    if tokenizer is None:
        return _Text()
    first = int(split.read(0, 1)[0])
    n_unknown = _count(split, tokenizer.unk_id)
    if not tokenizer.lossless or n_unknown:
        return _Text(n_unknown - (first == tokenizer.unk_id))
    raw = tokenizer.token_bytes(first)
    if tokenizer.opens_with_space:  # a space that is not in the text
        raw = raw.removeprefix(b" ")
    n_chars = sum(byte & 0b1100_0000 != 0b1000_0000 for byte in raw)  # 10xxxxxx continues a character
    return _Text(0, split.n_chars - n_chars, split.n_bytes - len(raw), split.n_words)


def _count(split: Split, token: int | None) -> int:
    """Return how often a token occurs in a split."""
    if token is None:
        return 0
    starts = range(0, len(split), COUNTED_AT_ONCE)
    stretches = (split.read(start, min(start + COUNTED_AT_ONCE, len(split))) for start in starts)
    return sum(int(np.count_nonzero(stretch == token)) for stretch in stretches)


def context_and_stride(model: Decoder, context: int | None, stride: int | None) -> tuple[int, int]:
    """Return the context and the stride, as given or the usual ones.

    Raises:
        UserError: one of them is out of range.
    """
    limit = model.config.max_seq_len
    context = limit if context is None else context
    check_whole("context", context)
    if not 1 <= context <= limit:
        raise UserError(f"context: from 1 to {limit}, the most that the model reads; got {context}")
    stride = default_stride(context) if stride is None else stride
    check_whole("stride", stride)
    if not 1 <= stride <= context:
        raise UserError(
            f"stride: from 1 to the context of {context}, or tokens would be skipped; got {stride}"
        )
    return context, stride


def default_stride(context: int) -> int:
    """Return half of the context, so that each prediction has that many tokens or more."""
    return max(1, context // 2)


def _vocab_size(model: Decoder) -> int:
    return model.embed.num_embeddings


def perplexity_of(loss: float) -> float:
    """exp(loss); infinity where a float64 cannot hold it."""
    return math.inf if loss > LARGEST_EXPONENT else math.exp(loss)
