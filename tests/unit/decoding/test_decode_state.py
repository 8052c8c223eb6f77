"""What reads: each text's own scores, whatever stands beside it, with sources or without."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from clearformer.decoding import decode_state
from clearformer.decoding.decode_state import DecodeState, context_start, padded
from clearformer.decoding.fast.compiling import read_tokens
from clearformer.errors import UserError
from clearformer.model import Decoder, EncoderDecoder, ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.init import Gaussian

V, M = 13, 11
SOURCES = [[5, 6, 7, 8, 9], [4, 2], [7, 3, 1]]


def config(family: str) -> ModelConfig:
    return ModelConfig(
        family=family,  # type: ignore[arg-type]
        vocab_size=V,
        d_model=10,
        n_layers=2,
        max_seq_len=M,
        attention=MultiHead(n_heads=2),
        tie_embeddings=False,
        init=Gaussian(),
    )


@pytest.fixture
def decoder() -> Decoder:
    return build(config("decoder")).double().eval()


@pytest.fixture
def translator() -> EncoderDecoder:
    return build(config("encoder-decoder")).double().eval()


def as_they_are(logits: Tensor) -> Tensor:
    return logits


def alone(model: Decoder | EncoderDecoder, text: list[int], source: list[int] | None = None) -> Tensor:
    """The scores after a text, of a whole forward pass without a cache."""
    with torch.no_grad():
        if isinstance(model, Decoder):
            return model(torch.tensor([text]))[0, -1].float()
        return model(torch.tensor([source]), torch.tensor([text]))[0, -1].float()


def test_each_text_has_its_own_scores_at_first_and_afterwards(decoder: Decoder) -> None:
    texts = [[1, 2, 3], [4, 5], [1, 2, 3]]
    state = DecodeState(decoder, as_they_are)

    for newest in ([6, 7, 8], [2, 2, 9], None):
        logits = state.advance(texts)
        for row, text in enumerate(texts):
            torch.testing.assert_close(logits[row], alone(decoder, text))
        texts = [[*text, token] for text, token in zip(texts, newest, strict=True)] if newest else texts


def test_each_text_is_read_with_its_own_source(translator: EncoderDecoder) -> None:
    texts = [[1], [1], [1]]
    state = DecodeState(translator, as_they_are, SOURCES)

    for newest in ([6, 7, 8], [2, 2, 9], None):
        logits = state.advance(texts)
        for row, (text, source) in enumerate(zip(texts, SOURCES, strict=True)):
            torch.testing.assert_close(logits[row], alone(translator, text, source))
        texts = [[*text, token] for text, token in zip(texts, newest, strict=True)] if newest else texts


@pytest.mark.parametrize("use_cache", [True, False])
def test_texts_that_are_kept_keep_their_sources(translator: EncoderDecoder, use_cache: bool) -> None:
    state = DecodeState(translator, as_they_are, SOURCES, use_cache)
    state.advance([[1], [2], [3]])

    state.reorder(torch.tensor([2, 0, 0]))

    logits = state.advance([[3, 4], [1, 5], [1, 6]])
    for row, (text, i) in enumerate((([3, 4], 2), ([1, 5], 0), ([1, 6], 0))):
        torch.testing.assert_close(logits[row], alone(translator, text, SOURCES[i]))


def test_the_cache_is_of_use_until_the_context_moves(decoder: Decoder) -> None:
    state = DecodeState(decoder, as_they_are)
    assert not state.can_decode([2])  # nothing is read yet
    state.prefill([[1, 2]])

    assert state.can_decode([M])
    assert not state.can_decode([M + 1])
    assert not state.can_decode([3, M + 1])
    assert not DecodeState(decoder, as_they_are, use_cache=False).can_decode([3])


def test_a_step_is_compiled_once_for_the_texts_there_are_at_the_start(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for, steps = list[int](), list[int]()

    def compiled(model: Decoder, n_texts: int) -> Any:
        asked_for.append(n_texts)

        def step(*arguments: Any) -> Tensor:
            steps.append(len(arguments[2]))
            return read_tokens(*arguments)

        return step

    monkeypatch.setattr(decode_state, "compiled_step", compiled)
    state = DecodeState(decoder, as_they_are, compiled=True)

    state.prefill([[1, 2], [3]])
    assert steps == []  # texts of any length are read uncompiled
    logits = state.decode(torch.tensor([4, 5]))
    state.reorder(torch.tensor([1]))
    state.decode(torch.tensor([6]))
    state.prefill([[3, 5, 6, 7]])

    assert asked_for == [2]
    assert steps == [2, 1]
    torch.testing.assert_close(logits[0], alone(decoder, [1, 2, 4]))


def test_a_compiled_step_makes_way_for_hooks_that_are_opened_later(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled, it would pass over them."""
    monkeypatch.setattr(decode_state, "compiled_step", lambda *_: lambda *_: "compiled")
    state: Any = DecodeState(decoder, as_they_are, compiled=True)
    state.prefill([[1, 2]])
    seen: list[str] = []

    with decoder.hooked({"blocks.0.hook_resid_post": lambda _, hook: seen.append(hook.name)}):
        logits = state.decode(torch.tensor([4]))

    assert seen == ["blocks.0.hook_resid_post"]
    torch.testing.assert_close(logits[0], alone(decoder, [1, 2, 4]))
    # What it keeps for itself lacks that token.
    torch.testing.assert_close(state.decode(torch.tensor([3]))[0], alone(decoder, [1, 2, 4, 3]))
    state.prefill([[1, 2]])
    assert state.decode(torch.tensor([4])) == "compiled"


def test_a_step_is_not_compiled_unless_it_is_asked_for(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_state, "compiled_step", lambda *_: pytest.fail("compiled"))
    state = DecodeState(decoder, as_they_are)

    state.prefill([[1, 2]])
    state.decode(torch.tensor([4]))


def test_sources_are_for_those_who_read_them(decoder: Decoder, translator: EncoderDecoder) -> None:
    with pytest.raises(UserError, match="a decoder takes no sources"):
        DecodeState(decoder, as_they_are, SOURCES)
    with pytest.raises(UserError, match="an encoder-decoder needs a source"):
        DecodeState(translator, as_they_are)


def test_texts_padded_on_the_left_end_together_and_on_the_right_begin_together() -> None:
    tokens, padding = padded([[1, 2, 3], [4]], torch.device("cpu"))
    assert tokens[:, -1].tolist() == [3, 4]
    assert padding is not None
    assert padding.tolist() == [[True, True, True], [False, False, True]]

    tokens, padding = padded([[1, 2, 3], [4]], torch.device("cpu"), "right")
    assert tokens[:, 0].tolist() == [1, 4]
    assert padding is not None
    assert padding.tolist() == [[True, True, True], [True, False, False]]


@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_of_one_length_need_no_padding(side: Any) -> None:
    tokens, padding = padded([[1, 2], [3, 4]], torch.device("cpu"), side)
    assert tokens.tolist() == [[1, 2], [3, 4]]
    assert padding is None


@pytest.mark.parametrize(
    ("n_tokens", "start"), [(1, 0), (11, 0), (12, 5), (16, 5), (17, 10), (21, 10), (22, 15), (1000, 990)]
)
def test_the_start_moves_in_strides_of_half_the_context(n_tokens: int, start: int) -> None:
    assert context_start(n_tokens, 11) == start


def test_a_start_never_moves_back() -> None:
    assert all(a <= b for a, b in pairwise(context_start(n, M) for n in range(1, 100)))
