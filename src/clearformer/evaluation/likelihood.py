"""The log-probability that a model gives to texts, token by token.

    [one, other] = cf.score(run, ["the cat sat", "cat the sat"])
    one.logprob > other.logprob                         log p of the whole text, in nats
    cf.score(run, " mat.", prefix="The cat sat on the") log p(text | prefix)
    cf.score(run, "le chat", "the cat")                 of an encoder-decoder: log p(output | text)

A decoder predicts each token from those before it. A text's first token is predicted if <bos> or a prefix comes before
it. An encoder that fills in masked tokens has no such probability: each token is masked in turn and predicted from all
others, and the sum is the pseudo-log-likelihood (Wang & Cho 2019; Salazar et al. 2020).

Shapes: B texts or windows in a batch, T positions, N predictions, V vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearformer.decoding import evaluating
from clearformer.decoding.arguments import check_function, check_run, matrix_dtype
from clearformer.decoding.decode_state import padded
from clearformer.decoding.loop import NOT_FINITE
from clearformer.decoding.text.inputs import Text, Texts, encoded, ids_of, text_of, texts_of, with_specials
from clearformer.decoding.text.samples import Run
from clearformer.decoding.text.translations import encode_sources, translator
from clearformer.device import autocast
from clearformer.errors import NonFiniteError, TokenizerError, UserError, count
from clearformer.evaluation.language_model import (
    LOGITS_AT_ONCE,
    TOKENS_AT_ONCE,
    context_and_stride,
    perplexity_of,
    windows_of,
)
from clearformer.model import Decoder, Encoder, EncoderDecoder, Transformer
from clearformer.results import Result
from clearformer.text import Tokenizer, located


@dataclass(frozen=True, repr=False, eq=False)
class TextScore(Result):
    """The log-probability of a text.

    Attributes:
        logprob: That of all predicted tokens together, in nats; 0 if there are none.
        perplexity: exp(-logprob / N), of the N predicted tokens; None if there are none.
        tokens: The predicted tokens in readable form.
        logprobs: The log-probability of each.
        n_unknown: How many tokens stand for something that the vocabulary lacks. Other models than encoders predict
            <unk> there, and only predicted tokens count; encoders predict nothing. Where there are any, `logprob` is
            not that of the text.
    """

    logprob: float
    perplexity: float | None
    tokens: list[str]
    logprobs: list[float]
    n_unknown: int = 0


TOKENS_HELD = 2**21
"""The tokens of the pieces that are made before the first of them is read."""


class _Piece(NamedTuple):
    """Tokens that a model reads at once, and what it predicts there.

    Attributes:
        text: The number of the text.
        tokens: The tokens.
        at: The positions whose vectors predict something.
        targets: What they predict.
        first: Where these predictions stand among all of the text's.
        source: An encoder-decoder's source; empty for other models.
    """

    text: int
    tokens: Sequence[int]
    at: Sequence[int]
    targets: Sequence[int]
    first: int
    source: Sequence[int] = ()


def score(
    run: Run,
    texts: Texts,
    outputs: Texts | None = None,
    *,
    prefix: Text | None = None,
    context: int | None = None,
    stride: int | None = None,
    dtype: torch.dtype | str | None = None,
    place: Callable[[int], str] = "text {}".format,
    look: Callable[[list[TextScore]], None] | None = None,
) -> list[TextScore]:
    """Return the log-probability of each text, in order.

    A text longer than the context is read in windows, each prediction from context - stride tokens or more. Where no
    <bos> of the tokenizer and no `prefix` comes before a text, its first token is not predicted: to rank texts by their
    first tokens too, give a prefix such as a line's end.

    Args:
        run: A language model, an encoder-decoder, or an encoder that fills in masked tokens.
        texts: The texts, or the ids of their tokens [T]; a single one is treated as a list of one.
        outputs: For an encoder-decoder, the output of each text, whose log-probability is returned, <eos> included.
        prefix: For a language model, a text that comes before each of them and is not counted.
        context: For a language model, the most tokens to predict from; by default the model's maximum length.
        stride: For a language model, tokens from the start of one window to the next; by default half the context.
        dtype: The type of the matrix products (autocast), also by name (`bfloat16`). By default as around the call.
        place: Returns the name of the n-th text (counted from 1) for messages, such as a file and a line.
        look: Called with the scores of the first texts, the next ones and so on, as soon as they are made.

    Raises:
        UserError: the run's model classifies, its tokenizer lacks a special token, an argument is not for this model
            or out of range, the number of outputs differs, a text with an output is empty, or one is longer than an
            encoder or encoder-decoder reads.
        TokenizerError: a text holds a character that the tokenizer lacks.
        NonFiniteError: the model's scores are not finite.
    """
    check_run(run)
    check_function("place", place)
    if look is not None:
        check_function("look", look)
    model, tokenizer, given = run.model, run.tokenizer, texts_of(texts)
    if outputs is not None and not isinstance(model, EncoderDecoder):
        raise UserError(f"outputs: only an encoder-decoder has them; model.family is {model.config.family}")
    for name, value in {"prefix": prefix, "context": context, "stride": stride}.items():
        if value is not None and not isinstance(model, Decoder):
            raise UserError(f"{name}: only a decoder takes it; model.family is {model.config.family}")
    pieces: Iterable[_Piece]
    if isinstance(model, EncoderDecoder):
        rows = encoded(tokenizer.for_targets, _written(given, outputs), lambda n: f"{place(n)}, output")
        pieces = _outputs(model, tokenizer, given, rows, place)
    elif isinstance(model, Decoder):
        marks = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
        rows = [without(marks, row) for row in encoded(tokenizer, _after(tokenizer, prefix, given), place)]
        before = with_specials(_prefix(tokenizer, prefix), marks)
        sizes = context_and_stride(model, context, stride)
        pieces = (piece for i, row in enumerate(rows) for piece in _windows(i, before, row, *sizes))
    else:
        assert isinstance(model, Encoder)
        rows = encoded(tokenizer, given, place)
        pieces = _masked(model, tokenizer, rows, place)
    is_encoder = isinstance(model, Encoder)  # which predicts no <unk>
    scores: list[TextScore] = []
    ids_of_each = iter(rows)
    for group in _logprobs(model, pieces, len(given), None if dtype is None else matrix_dtype(dtype)):
        of_group = [
            _scored(tokenizer, targets, logprobs, ids if is_encoder else targets)
            for (targets, logprobs), ids in zip(group, ids_of_each, strict=False)
        ]
        if look is not None and of_group:
            look(of_group)
        scores += of_group
    return scores


def _scored(tokenizer: Tokenizer, targets: list[int], logprobs: list[float], counted: list[int]) -> TextScore:
    total, n = math.fsum(logprobs), len(logprobs)
    return TextScore(
        total,
        perplexity_of(-total / n) if n else None,
        [tokenizer.token_label(token) for token in targets],
        logprobs,
        0 if tokenizer.unk_id is None else counted.count(tokenizer.unk_id),
    )


# --- what is read, and what is predicted ------------------------------------------------------------------


def without(marks: list[int], ids: list[int]) -> list[int]:
    """Return ids without the special tokens that they begin with, as these are put before every text."""
    return ids[len(marks) :] if marks and ids[: len(marks)] == marks else ids


def _prefix(tokenizer: Tokenizer, prefix: Text | None) -> list[int]:
    if prefix is None:
        return []
    try:
        return ids_of(tokenizer, text_of(prefix))
    except TokenizerError as error:
        raise located(error, "prefix") from None
    except UserError as error:
        raise UserError(f"prefix: {error}") from None


def _after(
    tokenizer: Tokenizer, prefix: Text | None, texts: Sequence[str | list[int]]
) -> list[str | list[int]]:
    """Return texts as they continue a prefix.

    Some tokenizers put a space before every text, which would come between the two.
    """
    if not isinstance(prefix, str) or not tokenizer.opens_with_space:
        return list(texts)
    return [_continuing(tokenizer, prefix, text) if isinstance(text, str) else text for text in texts]


def _continuing(tokenizer: Tokenizer, prefix: str, text: str) -> str | list[int]:
    """Return the tokens behind the prefix's; where a token reaches over its end, the text without a first space."""
    try:
        before, both = (tokenizer.encode(each).tolist() for each in (prefix, prefix + text))
    except TokenizerError:
        return text  # whose place is told where it is encoded alone
    return both[len(before) :] if both[: len(before)] == before else text.removeprefix(" ")


def _windows(
    text: int, before: Sequence[int], ids: Sequence[int], context: int, stride: int
) -> Iterator[_Piece]:
    """Yield the windows that predict every token of a text, but the very first if nothing comes before it."""
    tokens, first = [*before, *ids], max(1, len(before))
    if len(tokens) <= first:
        return
    for windows in windows_of(len(tokens), context, stride):
        for start in windows.starts.tolist():
            end = start + windows.length
            target = max(first, end - windows.n_counted + 1)  # the first one that counts here
            if target <= end:
                at = range(target - 1 - start, windows.length)
                yield _Piece(text, tokens[start:end], at, tokens[target : end + 1], target - first)


def _written(texts: Sequence[Any], outputs: Texts | None) -> list[str | list[int]]:
    """Return the outputs, one for each text."""
    if outputs is None:
        raise UserError("outputs: an encoder-decoder scores outputs; give one for each text")
    written = texts_of(outputs)
    if len(written) != len(texts):
        raise UserError(f"outputs: {count(len(written), 'output')} for {count(len(texts), 'text')}")
    return written


def _outputs(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    texts: Sequence[str | list[int]],
    outputs: Sequence[list[int]],
    place: Callable[[int], str],
) -> list[_Piece]:
    """Return each output after its source; of an empty output <eos> is predicted, and nothing where both are empty."""
    _, bos, eos = translator(model, tokenizer)
    limit = model.config.max_seq_len
    sources = encode_sources(tokenizer, texts, eos, limit, place)
    pieces = []
    for i, (source, ids) in enumerate(zip(sources, outputs, strict=True)):
        tokens = with_specials(ids, [bos, *_opening(tokenizer, ids)], [eos])
        _check_length(len(tokens) - 1, limit, place(i + 1), "the output has ")
        if ids and not source:
            raise UserError(f"{place(i + 1)}: the text is empty, so that its output has no probability")
        if source:
            pieces.append(_Piece(i, tokens[:-1], range(len(tokens) - 1), tokens[1:], 0, source))
    return pieces


def _opening(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """Return what an imported tokenizer puts before every output, such as BART's <s>, unless the tokens have it."""
    before = list(tokenizer.before_pair)
    return [] if ids[: len(before)] == before else before


def _masked(
    model: Encoder, tokenizer: Tokenizer, rows: Sequence[list[int]], place: Callable[[int], str]
) -> Iterator[_Piece]:
    """Return an iterator over each text once for each of its tokens, with that one masked."""
    if model.config.n_classes is not None:
        raise UserError("this run classifies texts and gives them no probability: use classify")
    if tokenizer.mask_id is None:
        raise UserError("this run's tokenizer has no [MASK], by which an encoder predicts")
    before, behind = (marks.tolist() for marks in tokenizer.marks)
    whole = [with_specials(ids, before, behind) if ids else [] for ids in rows]
    for i, row in enumerate(whole):
        _check_length(len(row), model.config.max_seq_len, place(i + 1))
    return _each_masked(tokenizer, tokenizer.mask_id, whole)


def _each_masked(tokenizer: Tokenizer, mask_id: int, rows: Sequence[list[int]]) -> Iterator[_Piece]:
    for i, row in enumerate(rows):
        plain = np.flatnonzero(tokenizer.is_plain[np.array(row, np.int64)]).tolist()
        for n, at in enumerate(plain):
            yield _Piece(i, [*row[:at], mask_id, *row[at + 1 :]], [at], [row[at]], n)


def _check_length(n_tokens: int, limit: int, place: str, what: str = "") -> None:
    if n_tokens > limit:
        raise UserError(
            f"{place}: {what}{n_tokens:,} tokens with the special ones, but the model reads at most {limit:,}; "
            "shorten it"
        )


# --- predictions ------------------------------------------------------------------------------------------


def _logprobs(
    model: Transformer, pieces: Iterable[_Piece], n_texts: int, dtype: torch.dtype | None
) -> Iterator[list[tuple[list[int], list[float]]]]:
    """Yield the targets of each text, and the log-probability of each: of the first texts, the next ones and so on."""
    found: list[tuple[list[int], list[float]]] = [([], []) for _ in range(n_texts)]
    n_passed_on = 0
    for held in _held_at_once(pieces):
        for piece in held:
            targets, logprobs = found[piece.text]
            targets += piece.targets
            logprobs += [math.nan] * len(piece.targets)
        _fill_in(model, held, found, dtype)
        n_whole = held[-1].text  # more of this text may follow
        yield _finite(found[n_passed_on:n_whole])
        n_passed_on = n_whole
    yield _finite(found[n_passed_on:])


def _fill_in(
    model: Transformer,
    pieces: Sequence[_Piece],
    found: list[tuple[list[int], list[float]]],
    dtype: torch.dtype | None,
) -> None:
    """Write the log-probabilities of the pieces' targets to where they stand among their text's."""
    with evaluating(model) as threads, torch.inference_mode(), autocast(model.embed.weight.device, dtype):
        for batch in _batches(pieces, model.embed.num_embeddings):
            threads.adapt()
            each = iter(_of_batch(model, batch).tolist())
            for piece in batch:
                own = [next(each) for _ in piece.targets]
                found[piece.text][1][piece.first : piece.first + len(own)] = own


def _finite(found: list[tuple[list[int], list[float]]]) -> list[tuple[list[int], list[float]]]:
    """Return the log-probabilities of some texts, or raise NonFiniteError."""
    if any(math.isnan(value) for _, logprobs in found for value in logprobs):
        raise NonFiniteError(NOT_FINITE)
    return found


def _held_at_once(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Yield lists of as many pieces as are held at once: all of a large file's would be many times as long as it."""
    held: list[_Piece] = []
    n_tokens = 0
    for piece in pieces:
        held.append(piece)
        n_tokens += len(piece.tokens) + len(piece.source)
        if n_tokens >= TOKENS_HELD:
            yield held
            held, n_tokens = [], 0
    if held:
        yield held


def _batches(pieces: Sequence[_Piece], vocab_size: int) -> Iterator[list[_Piece]]:
    """Yield pieces of similar length, the longest first, with as many tokens and logits as are read at once."""
    batch: list[_Piece] = []
    longest = n_logits = 0
    for piece in sorted(pieces, key=lambda piece: (-len(piece.source), -len(piece.tokens))):
        own = len(piece.targets) * vocab_size
        longest = max(longest, len(piece.tokens), len(piece.source))
        if batch and ((len(batch) + 1) * longest > TOKENS_AT_ONCE or n_logits + own > LOGITS_AT_ONCE):
            yield batch
            batch, longest, n_logits = [], max(len(piece.tokens), len(piece.source)), 0
        batch.append(piece)
        n_logits += own
    if batch:
        yield batch


def _of_batch(model: Transformer, batch: Sequence[_Piece]) -> Float[Tensor, " N"]:
    """Return the log-probabilities of a batch's targets, piece after piece."""
    device = model.embed.weight.device
    tokens, padding = padded([piece.tokens for piece in batch], device, "right")
    if isinstance(model, EncoderDecoder):
        source, source_padding = padded([piece.source for piece in batch], device, "right")
        hidden = model.hidden(source, tokens, source_padding)
    elif isinstance(model, Encoder):
        hidden = model.hidden(tokens, padding)
    else:
        hidden = model.hidden(tokens)  # what pads a row on the right changes nothing before it
    rows = [row for row, piece in enumerate(batch) for _ in piece.at]
    places = [place for piece in batch for place in piece.at]
    targets = torch.tensor([target for piece in batch for target in piece.targets], device=device)
    logprobs = model.unembed(hidden[rows, places]).float().log_softmax(-1)  # [N V]
    return logprobs.gather(1, targets[:, None])[:, 0]
