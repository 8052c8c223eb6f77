"""Held-out loss: every token once, from exactly the context that is stated."""

import itertools
import json
import math
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from clearformer.data import Split
from clearformer.errors import DataError, UserError
from clearformer.evaluation import Evaluation, evaluate_split, evaluate_whole_and_part
from clearformer.evaluation import language_model as module
from clearformer.evaluation.language_model import count_windows, subset_of_windows, windows_of
from clearformer.evaluation.masked import MaskedEvaluation
from clearformer.evaluation.subsets import evenly_spaced
from clearformer.evaluation.teacher_forcing import PairLoss
from clearformer.model import Decoder, ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.init import Gaussian
from clearformer.text import (
    ByteTokenizerSpec,
    CharTokenizerSpec,
    ImportedTokenizer,
    Tokenizer,
    WordPieceTokenizerSpec,
)

V, M = 17, 7

# Lengths and windows whose ends fall before, on and behind each other.
SHAPES = [
    (n, context, stride)
    for context, stride in [(7, 7), (7, 3), (7, 1), (5, 5), (5, 4), (1, 1), (2, 1)]
    for n in [
        2,
        3,
        context,
        context + 1,
        context + 2,
        context + stride,
        context + stride + 1,
        2 * context + 1,
        29,
    ]
    if n >= 2
]


def model_of(**changes: Any) -> Decoder:
    settings: dict[str, Any] = {
        "vocab_size": V,
        "d_model": 10,
        "n_layers": 2,
        "max_seq_len": M,
        "dropout": 0.4,
        "tie_embeddings": False,
        "attention": MultiHead(n_heads=2),
        "init": Gaussian(),
    }
    return build(ModelConfig(**(settings | changes)))


def split_of(n: int, vocab_size: int = V) -> Split:
    return Split("val", [np.random.default_rng(n).integers(vocab_size, size=n)], n_chars=3 * n, n_bytes=5 * n)


def recorded(model: Decoder, seen: list[tuple[int, ...]]) -> Callable[[Tensor], Tensor]:
    """The model's `hidden`, which notes the shape of what it reads."""

    def hidden(tokens: Tensor) -> Tensor:
        seen.append(tuple(tokens.shape))
        return type(model).hidden(model, tokens)

    return hidden


@torch.no_grad()
def one_at_a_time(model: Decoder, split: Split, context: int, stride: int) -> tuple[float, float]:
    """Loss and mean entropy, each token predicted by itself from the tokens it is to be predicted from."""
    losses, entropies = [], []
    for target in range(1, len(split)):
        window = max(0, math.ceil((target - context) / stride))
        read = torch.from_numpy(split.read(window * stride, target)).unsqueeze(0)
        logprobs = model.eval()(read)[0, -1].double().log_softmax(-1)
        losses.append(-logprobs[split.read(target, target + 1)[0]].item())
        entropies.append(-(logprobs.exp() * logprobs).sum().item())
    return float(np.mean(losses)), float(np.mean(entropies))


# --- every token once, from its own context -----------------------------------------------------------------


@pytest.mark.parametrize(("n", "context", "stride"), SHAPES)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_loss_is_that_of_predicting_one_at_a_time(
    n: int, context: int, stride: int, batch_size: int
) -> None:
    model, split = model_of(), split_of(n)

    with patch.object(module, "TOKENS_AT_ONCE", batch_size * context):
        result = evaluate_split(model, split, context=context, stride=stride)

    loss, mean_entropy = one_at_a_time(model, split, context, stride)
    assert result.loss == pytest.approx(loss, abs=1e-5)
    assert result.mean_entropy == pytest.approx(mean_entropy, abs=1e-5)
    assert result.n_tokens == n - 1


@pytest.mark.parametrize("context", range(1, 8))
def test_windows_count_every_target_once_and_in_order(context: int) -> None:
    for n, stride in itertools.product(range(2, 40), range(1, context + 1)):
        counted, shapes = [], set()
        for windows in windows_of(n, context, stride):
            for start in windows.starts.tolist():
                assert windows.length <= context
                end = start + windows.length + 1
                counted += range(end - windows.n_counted, end)
            shapes.add((windows.length, windows.n_counted))
        assert counted == list(range(1, n))
        assert len(shapes) <= 3  # so that nearly all are read in whole batches


@pytest.mark.parametrize("batch_size", [1, 2, 1000])
def test_the_batch_size_changes_nothing(batch_size: int) -> None:
    model, split = model_of(), split_of(101)

    with patch.object(module, "TOKENS_AT_ONCE", batch_size * M):
        result = evaluate_split(model, split)

    assert result.loss == pytest.approx(evaluate_split(model, split).loss, abs=1e-6)


def test_a_uniform_model_has_the_loss_ln_v_and_is_as_unsure_as_it_says() -> None:
    model = model_of()
    assert model.head is not None
    torch.nn.init.zeros_(model.head.weight)

    result = evaluate_split(model, split_of(50))

    assert result.loss == pytest.approx(math.log(V))
    assert result.mean_entropy == pytest.approx(math.log(V))
    assert result.perplexity == pytest.approx(V)
    assert result.bits_per_token == pytest.approx(math.log2(V))


def test_the_default_is_all_that_the_model_reads_half_of_it_anew() -> None:
    result = evaluate_split(model_of(), split_of(50))

    assert (result.context, result.stride, result.split) == (M, M // 2, "val")


# --- a part of the windows --------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "context", "stride"), [(61, 7, 3), (61, 7, 7), (60, 5, 4), (9, 7, 3)])
def test_some_windows_are_evenly_spaced_ones_of_all(n: int, context: int, stride: int) -> None:
    every = windows_of(n, context, stride)
    starts = [start for each in every for start in each.starts.tolist()]

    for n_windows in range(1, len(starts) + 1):
        some = subset_of_windows(every, n_windows)

        assert [(each.length, each.n_counted) for each in some] == [
            (each.length, each.n_counted) for each in every
        ]
        for part, whole in zip(some, every, strict=True):
            assert set(part.starts) <= set(whole.starts)
        chosen = [start for each in some for start in each.starts.tolist()]
        assert chosen == [starts[place] for place in evenly_spaced(n_windows, len(starts))]


@pytest.mark.parametrize("n_windows", [1, 2, 5, 8])
def test_the_loss_of_some_windows_is_that_of_their_predictions(n_windows: int) -> None:
    """Of 19 windows; each reads and predicts what it does in the whole: its last 3 tokens."""
    model, split, seen = model_of(), split_of(61), []

    with patch.object(model, "hidden", recorded(model, seen)):
        result = evaluate_split(model, split, n_windows=n_windows)

    losses = []
    for place in evenly_spaced(n_windows, 19).tolist():
        start = 3 * place
        tokens = torch.from_numpy(split.read(start, start + M + 1))
        logprobs = model.eval()(tokens[None, :-1])[0].log_softmax(-1)
        losses += [-logprobs[t, tokens[t + 1]].item() for t in range(M - 3, M)]
    assert result.loss == pytest.approx(float(np.mean(losses)), abs=1e-5)
    assert result.n_tokens == len(losses)
    assert sum(n_rows for n_rows, _ in seen) == n_windows
    assert result == evaluate_split(model, split, n_windows=n_windows)  # the same ones every time


@pytest.mark.parametrize("n_windows", [None, 19, 20, 1000])
def test_where_there_are_no_more_windows_the_whole_is_read(n_windows: int | None) -> None:
    model, split = model_of(), split_of(61)
    tokenizer = ByteTokenizerSpec().train(())

    assert count_windows(61, M) == 19
    whole = evaluate_split(model, split, tokenizer, n_windows=n_windows)
    assert whole == evaluate_split(model, split, tokenizer)
    assert whole.n_chars is not None
    part = evaluate_split(model, split, tokenizer, n_windows=18)
    assert (part.n_chars, part.n_bytes) == (None, None)  # of the split's, which were not all predicted


# --- characters and bytes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "specials", "n_chars", "n_bytes"),
    [
        ("abcdé", {}, 4, 5),
        ("éabcd", {}, 4, 5),  # the second byte of the é is predicted; the character counts with its first
        ("abcdé", {"bos": True}, 5, 6),
    ],
)
def test_characters_and_bytes_are_those_of_the_predicted_tokens(
    text: str, specials: dict[str, Any], n_chars: int, n_bytes: int
) -> None:
    tokenizer = ByteTokenizerSpec(**specials).train(())
    tokens = tokenizer.wrap(tokenizer.encode(text))
    split = Split("test", [tokens], n_chars=len(text), n_bytes=len(text.encode()))

    result = evaluate_split(model_of(vocab_size=tokenizer.vocab_size), split, tokenizer)

    assert (result.n_chars, result.n_bytes, result.n_tokens) == (n_chars, n_bytes, len(tokens) - 1)
    bits = result.n_tokens * result.loss / math.log(2)
    assert result.bits_per_char == pytest.approx(bits / n_chars)
    assert result.bits_per_byte == pytest.approx(bits / n_bytes)


def test_a_first_token_of_several_bytes_is_one_character() -> None:
    tokenizer = CharTokenizerSpec().train(["éab"])
    split = Split("val", [tokenizer.encode("éab")], n_chars=3, n_bytes=4)

    result = evaluate_split(model_of(), split, tokenizer)

    assert (result.n_chars, result.n_bytes) == (2, 2)


def test_a_space_that_the_text_does_not_have_is_not_counted() -> None:
    """Metaspace puts one before a text, and the first token stands for it too."""
    tokenizer = with_space_before()
    assert tokenizer.opens_with_space
    assert tokenizer.lossless
    text = "ab a b"
    tokens = tokenizer.encode(text)
    assert [tokenizer.token_bytes(token) for token in tokens[:2]] == [b" a", b"b"]
    split = Split("val", [tokens], n_chars=len(text), n_bytes=len(text.encode()))

    result = evaluate_split(model_of(vocab_size=tokenizer.vocab_size), split, tokenizer)

    assert (result.n_chars, result.n_bytes) == (5, 5)


def with_space_before() -> Tokenizer:
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁b"]
    return ImportedTokenizer(
        {
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": metaspace,
            "decoder": {
                "type": "Sequence",
                "decoders": [metaspace, {"type": "ByteFallback"}, {"type": "Fuse"}],
            },
            "model": {
                "type": "Unigram",
                "unk_id": 0,
                "vocab": [[piece, -1.0] for piece in pieces],
                "byte_fallback": True,
            },
        },
        {"unk": "<unk>"},
    )


def test_the_perplexity_per_word_is_that_of_all_the_text_has() -> None:
    """Uniform over 2 tokens, 7 of which are predicted: 2^7 spread over 3 words."""
    tokenizer = CharTokenizerSpec().train(["a "])
    split = Split("val", [tokenizer.encode("aa a aaa")], n_chars=8, n_bytes=8, n_words=3)
    model = model_of(vocab_size=2)
    for weight in model.parameters():
        weight.data.zero_()
    result = evaluate_split(model, split, tokenizer)
    assert (result.n_words, result.perplexity_per_word) == (3, pytest.approx(2 ** (7 / 3)))
    assert evaluate_split(model, split, tokenizer, context=2, n_windows=1).perplexity_per_word is None


def test_without_a_tokenizer_there_are_no_counts_of_characters() -> None:
    result = evaluate_split(model_of(), split_of(9))

    assert (result.n_chars, result.n_bytes, result.bits_per_char, result.bits_per_byte) == (None,) * 4
    assert result.n_unknown is None


# --- what the vocabulary lacks ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "n_unknown"),
    [
        ("abab", 0),
        ("axba", 1),
        ("abax", 1),
        ("xaba", 0),  # the first token is not predicted, but how many characters the others are is not known
        ("wxyz", 3),
    ],
)
@pytest.mark.parametrize("at_once", [1, 3, 4, 1000])
def test_a_text_that_is_partly_unknown_has_no_bits_per_character(
    text: str, n_unknown: int, at_once: int
) -> None:
    """<unk> does not say which character it was: the predictions are no code for the text."""
    tokenizer = CharTokenizerSpec(unk=True).train(["ab"])
    split = Split("val", [tokenizer.encode(text)], n_chars=len(text), n_bytes=len(text.encode()))

    with patch.object(module, "COUNTED_AT_ONCE", at_once):
        result = evaluate_split(model_of(), split, tokenizer)

    assert (result.n_tokens, result.n_unknown) == (3, n_unknown)
    if text == "abab":
        assert (result.n_chars, result.n_bytes) == (3, 3)
        assert result.bits_per_char == pytest.approx(result.bits_per_token)
    else:
        assert (result.n_chars, result.n_bytes, result.bits_per_char, result.bits_per_byte) == (None,) * 4
    assert result.to_json()["n_unknown"] == n_unknown
    assert math.isfinite(result.loss)


def test_unknown_words_are_counted_where_no_text_comes_back_anyway() -> None:
    tokenizer = WordPieceTokenizerSpec(vocab_size=60).train(["the cat sat"])
    split = Split("val", [tokenizer.encode("the cat 数 sat")], n_chars=13, n_bytes=15)

    result = evaluate_split(model_of(vocab_size=tokenizer.vocab_size), split, tokenizer)

    assert (result.n_unknown, result.n_chars) == (1, None)


def test_a_part_of_a_split_is_not_searched_for_unknown_tokens() -> None:
    tokenizer = CharTokenizerSpec(unk=True).train(["ab"])
    split = Split("val", [tokenizer.encode("abx" * 30)], n_chars=90, n_bytes=90)
    assert evaluate_split(model_of(), split, tokenizer, n_windows=3).n_unknown is None


# --- what is written --------------------------------------------------------------------------------------


def test_the_json_has_the_fields_of_the_contract() -> None:
    fields = Evaluation(math.log(4), 1.2, 10, 20, 40, 7, 3, "val", 0, 5).to_json()

    assert fields == {
        "loss": math.log(4),
        "perplexity": pytest.approx(4),
        "bits_per_token": 2.0,
        "bits_per_char": 1.0,
        "bits_per_byte": 0.5,
        "n_tokens": 10,
        "n_chars": 20,
        "n_bytes": 40,
        "n_words": 5,
        "perplexity_per_word": pytest.approx(4**2),
        "context": 7,
        "stride": 3,
        "split": "val",
        "mean_entropy": 1.2,
        "n_unknown": 0,
    }


@pytest.mark.parametrize("loss", [math.nan, math.inf, 800.0])
def test_numbers_that_json_lacks_become_null(loss: float) -> None:
    fields = Evaluation(loss, math.nan, 10, 0, None, 7, 3, "val").to_json()

    assert fields["perplexity"] is fields["bits_per_char"] is fields["bits_per_byte"] is None
    json.dumps(fields, allow_nan=False)


@pytest.mark.parametrize(
    "measured", [PairLoss(800.0, 0.0, 1, 1, "val"), MaskedEvaluation(800.0, 0.0, 1)], ids=["pairs", "masked"]
)
def test_a_perplexity_beyond_all_numbers_is_told_as_none(measured: PairLoss | MaskedEvaluation) -> None:
    assert measured.perplexity == math.inf
    assert measured.to_json()["perplexity"] is None


# --- what is left as it was, and how it is computed -----------------------------------------------------------


def test_mode_weights_and_random_numbers_are_as_before() -> None:
    model = model_of().train()
    before, weights = torch.get_rng_state(), [p.clone() for p in model.parameters()]

    with_dropout_off = evaluate_split(model, split_of(40))

    assert all(part.training for part in model.modules())
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert with_dropout_off == evaluate_split(model.eval(), split_of(40))


def test_a_batch_has_windows_of_one_length_and_so_many_tokens() -> None:
    model, seen = model_of(), []

    with (
        patch.object(module, "TOKENS_AT_ONCE", 3 * M - 1),
        patch.object(model, "hidden", recorded(model, seen)),
    ):
        evaluate_split(model, split_of(3 * M + 3), stride=M)

    assert seen == [(2, M), (1, M), (1, 2)]


def test_autocast_is_asked_for_or_left_as_it_is_around() -> None:
    model, seen = model_of(), []

    def unembed(vectors: Tensor) -> Tensor:
        logits = type(model).unembed(model, vectors)
        seen.append(logits.dtype)
        return logits

    with patch.object(model, "unembed", unembed):
        evaluate_split(model, split_of(9), dtype=torch.bfloat16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            evaluate_split(model, split_of(9))
            evaluate_split(model, split_of(9), dtype=torch.float32)
        evaluate_split(model, split_of(9))

    assert seen == [torch.bfloat16] * 4 + [torch.float32] * 4


def test_the_logits_of_a_large_vocabulary_are_made_and_summed_in_parts() -> None:
    model, split, shapes = model_of(), split_of(101), []
    expected = evaluate_split(model, split, stride=3)

    def unembed(vectors: Tensor) -> Tensor:
        logits = type(model).unembed(model, vectors)
        shapes.append(tuple(logits.shape))
        return logits

    with (
        patch.object(module, "LOGITS_AT_ONCE", 2 * M * V),
        patch.object(module, "PREDICTIONS_AT_ONCE", 5 * V),
        patch.object(model, "unembed", unembed),
    ):
        in_parts = evaluate_split(model, split, stride=3)

    assert max(rows * counted for rows, counted, _ in shapes) <= 2 * M
    assert {counted for _, counted, _ in shapes[1:-1]} == {
        3
    }  # and of the others, which are only read, none is made
    assert in_parts.loss == pytest.approx(expected.loss, abs=1e-6)
    assert in_parts.mean_entropy == pytest.approx(expected.mean_entropy, abs=1e-6)


def test_the_whole_and_a_part_are_read_together() -> None:
    model, split, seen = model_of(), split_of(101), []

    with patch.object(model, "hidden", recorded(model, seen)):
        whole, part = evaluate_whole_and_part(model, split, n_windows=5)

    alone, of_part = evaluate_split(model, split), evaluate_split(model, split, n_windows=5)
    assert sum(n_rows for n_rows, _ in seen) == count_windows(101, M)
    assert (whole.n_tokens, part.n_tokens) == (alone.n_tokens, of_part.n_tokens)
    assert (whole.loss, part.loss) == pytest.approx((alone.loss, of_part.loss), abs=1e-6)
    assert part.mean_entropy == pytest.approx(of_part.mean_entropy, abs=1e-6)


def test_sums_are_kept_in_float64() -> None:
    model = model_of(vocab_size=2, max_seq_len=1)
    logits = torch.tensor([0.0, math.log(9)])
    split = Split("val", [np.ones(200_001, dtype=np.int64)], 1, 1)

    with patch.object(model, "unembed", lambda vectors: logits.expand(*vectors.shape[:-1], 2)):
        result = evaluate_split(model, split)

    assert result.loss == pytest.approx(-logits.log_softmax(-1)[1].item(), rel=1e-12)


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ({"context": M + 1}, r"context: from 1 to 7.*got 8"),
        ({"context": 0}, r"context.*got 0"),
        ({"context": 5, "stride": 6}, r"stride: from 1 to the context of 5.*got 6"),
        ({"stride": 0}, r"stride.*got 0"),
        ({"n_windows": 0}, "n_windows: 1 or more; got 0"),
        ({"n_windows": -1}, "n_windows: 1 or more; got -1"),
    ],
)
def test_windows_out_of_range_are_refused(windows: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        evaluate_split(model_of(), split_of(20), **windows)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [0, 1])
def test_a_split_without_a_prediction_is_refused(n: int) -> None:
    with pytest.raises(DataError, match=f"val split has {n} token"):
        evaluate_split(model_of(), split_of(n))


def test_a_vocabulary_that_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match=r"val split has token id 17, but the model's vocabulary is 17"):
        evaluate_split(model_of(), Split("val", [np.array([1, 17, 2])], 3, 3))


def test_a_token_that_is_ruled_out_adds_no_entropy_and_its_loss_is_infinite() -> None:
    logits = torch.tensor([[[0.0, 0.0, -torch.inf], [0.0, 1.0, 2.0]]])
    [[loss, entropy]] = module._losses_and_entropies(logits, torch.tensor([[0, 1]]))
    p = logits[0, 1].softmax(-1)
    assert loss == pytest.approx(math.log(2) - p[1].log().item())
    assert entropy == pytest.approx(math.log(2) + torch.special.entr(p).sum().item())
    [[loss, _]] = module._losses_and_entropies(logits, torch.tensor([[2, 1]]))
    assert loss == math.inf
