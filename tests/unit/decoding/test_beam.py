"""Beam search: what it finds, against every text there is; rows and sources by themselves; its edges."""

import math
from collections.abc import Callable
from inspect import signature
from itertools import product
from typing import Any

import pytest
import torch

from clearformer.decoding import beam
from clearformer.decoding.beam import (
    BeamSearch,
    GNMTLength,
    HuggingFaceLength,
    Hypothesis,
    LengthPenalty,
    beam_search,
    search_settings,
)
from clearformer.decoding.text.continuations import search
from clearformer.errors import ConfigError, NonFiniteError, UserError
from clearformer.model import Decoder, EncoderDecoder, ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.init import Gaussian

V, M, EOS = 5, 11, 3
PROMPTS = [[1, 2, 0], [4], [0, 1, 2, 4, 4]]
SOURCES = [[2, 1, 0], [4, 4, 1, 2, 0], [1]]


def config(family: str, vocab_size: int = V) -> ModelConfig:
    return ModelConfig(
        family=family,  # type: ignore[arg-type]
        vocab_size=vocab_size,
        d_model=14,
        n_layers=2,
        max_seq_len=M,
        dropout=0.3,
        attention=MultiHead(n_heads=2),
        tie_embeddings=False,
        init=Gaussian(),
    )


@pytest.fixture
def decoder() -> Decoder:
    return build(config("decoder")).double()


@pytest.fixture
def translator() -> EncoderDecoder:
    return build(config("encoder-decoder")).double()


def every_text(model: Decoder, prompt: list[int], n_new: int, penalty: LengthPenalty) -> list[Hypothesis]:
    """All continuations that end with <eos> or at the limit, the best first; scored by whole forward passes."""
    model.eval()
    found = []
    for n in range(1, n_new + 1):
        for body in product([token for token in range(V) if token != EOS], repeat=n - 1):
            for last in [EOS] if n < n_new else range(V):
                text = [*prompt, *body, last]
                with torch.no_grad():
                    logprobs = model(torch.tensor([text])).float().log_softmax(-1)[0]
                logprob = sum(logprobs[i - 1, text[i]].item() for i in range(len(prompt), len(text)))
                found.append(Hypothesis(text[len(prompt) :], logprob, logprob / penalty.divisor(n)))
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


# --- what is found ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "penalty",
    [HuggingFaceLength(alpha=alpha) for alpha in (-0.7, 0.0, 1.0)] + [GNMTLength(), GNMTLength(alpha=2.0)],
    ids=lambda penalty: f"{penalty.kind} {penalty.alpha}",
)
def test_with_enough_beams_the_best_of_all_texts_are_found(penalty: LengthPenalty, decoder: Decoder) -> None:
    n_new, n_best, prompt = 4, 61, PROMPTS[0]
    expected = every_text(decoder, prompt, n_new, penalty)[:n_best]
    settings = BeamSearch(beams=2 * V**n_new, length_penalty=penalty)

    [found] = beam_search(decoder, [prompt], n_new, settings, EOS, n_best)

    assert [hypothesis.tokens for hypothesis in found] == [hypothesis.tokens for hypothesis in expected]
    for ours, true in zip(found, expected, strict=True):
        assert ours.score == pytest.approx(true.score, rel=1e-5)
        assert ours.logprob == pytest.approx(true.logprob, rel=1e-5)
    assert len({len(hypothesis.tokens) for hypothesis in expected}) > 1


def test_all_texts_are_found_and_none_twice(decoder: Decoder) -> None:
    n_new = 3
    expected = every_text(decoder, [1], n_new, HuggingFaceLength())

    [found] = beam_search(decoder, [[1]], n_new, BeamSearch(beams=200), EOS, 200)

    assert [hypothesis.tokens for hypothesis in found] == [hypothesis.tokens for hypothesis in expected]


def test_the_length_penalty_is_the_papers() -> None:
    assert GNMTLength(alpha=0.6).divisor(13) == pytest.approx((5 + 13) ** 0.6 / (5 + 1) ** 0.6)
    assert HuggingFaceLength(alpha=0.6).divisor(13) == pytest.approx(13**0.6)
    assert GNMTLength(alpha=0).divisor(13) == HuggingFaceLength(alpha=0).divisor(13) == 1


def test_more_of_a_penalty_makes_longer_texts(decoder: Decoder) -> None:
    lengths = [
        len(beam_search(decoder, [[1]], 9, search_settings(4, alpha, "hf", "never"), EOS)[0][0].tokens)
        for alpha in (-5.0, 0.0, 5.0)
    ]
    assert lengths[0] < lengths[2]
    assert lengths == sorted(lengths)


def test_beams_search_further_than_one(decoder: Decoder) -> None:
    def best(beams: int) -> float:
        settings = search_settings(beams, 0.0, "hf", "never")
        return sum(found[0].logprob for found in beam_search(decoder, PROMPTS, 6, settings))

    assert best(1) < best(5)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_one_beam_is_greedy_whatever_ends_it(decoder: Decoder, early_stopping: Any) -> None:
    [[found]] = beam_search(decoder, [[1, 2]], 7, search_settings(1, 1.0, "hf", early_stopping), EOS)

    text = [1, 2]
    while len(text) < 9 and text[-1] != EOS:
        with torch.no_grad():
            text.append(int(decoder.eval()(torch.tensor([text]))[0, -1].argmax()))
    assert found.tokens == text[2:]


class Scripted:
    """A decoding state whose next tokens are as likely as a function of the text says."""

    def __init__(self, probabilities: Callable[[list[int]], list[float]]) -> None:
        self.probabilities = probabilities

    def can_decode(self, _: list[int]) -> bool:
        return False

    def advance(self, texts: list[list[int]]) -> torch.Tensor:
        return torch.tensor([self.probabilities(text) for text in texts]).log()

    def reorder(self, _: torch.Tensor) -> None:
        """Nothing is kept."""


def a_late_reward(ends: float) -> Callable[[list[int]], list[float]]:
    """After the prompt: <eos> with 0.4. After 0: <eos> with `ends`, else 0; and from there on 0 for certain."""

    def probabilities(text: list[int]) -> list[float]:
        match text[1:]:
            case []:
                return [0.3, 0, 0.3, 0.4, 0]
            case [0]:
                return [1 - ends, 0, 0, ends, 0]
            case [2, *_]:
                return [0.25, 0.25, 0.25, 0, 0.25]
            case _:
                return [1.0, 0, 0, 0, 0]

    return probabilities


@pytest.mark.parametrize(
    ("early_stopping", "ends", "goes_on"),
    [
        # Ended: [3] with log(0.4) = -0.92 and [0, 3] with log(0.3 * 0.45) / 2 = -1.00.
        (True, 0.45, False),
        # [0, 0] has log(0.3 * 0.55) / 2 = -0.90.
        (False, 0.45, True),
        # [0, 3] has log(0.3 * 0.52) / 2 = -0.93, and [0, 0] has log(0.3 * 0.48) / 2 = -0.97,
        (False, 0.52, False),
        # of which 6 tokens may still make log(0.3 * 0.48) / 6 = -0.32.
        ("never", 0.52, True),
    ],
)
def test_a_search_ends_when_its_setting_says_that_nothing_better_comes(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, early_stopping: Any, ends: float, goes_on: bool
) -> None:
    monkeypatch.setattr(beam, "DecodeState", lambda *_, **__: Scripted(a_late_reward(ends)))

    [[found]] = beam_search(decoder, [[1]], 6, search_settings(2, 1.0, "hf", early_stopping), EOS)

    assert found.tokens == ([0] * 6 if goes_on else [EOS])
    assert found.score == pytest.approx(math.log(0.3 * (1 - ends)) / 6 if goes_on else math.log(0.4))


def test_without_an_end_all_texts_are_as_long_as_they_may_be(decoder: Decoder) -> None:
    found = beam_search(decoder, PROMPTS, [5, 2, 1], BeamSearch(beams=3), None, 3)

    assert [[len(h.tokens) for h in row] for row in found] == [[5] * 3, [2] * 3, [1] * 3]


def test_there_are_no_more_than_there_are(decoder: Decoder) -> None:
    [found] = beam_search(decoder, [[1]], 1, BeamSearch(beams=7), EOS, 7)

    assert sorted(h.tokens for h in found) == [[token] for token in range(V)]


def test_what_fills_rows_up_is_never_written(decoder: Decoder) -> None:
    pad = beam_search(decoder, [[1]], 3, BeamSearch(beams=1))[0][0].tokens[0]  # the likeliest token there is
    assert pad != EOS

    [found] = beam_search(decoder, [[1]], 3, BeamSearch(beams=200), EOS, 200, pad_id=pad)

    possible = [each for each in every_text(decoder, [1], 3, HuggingFaceLength()) if pad not in each.tokens]
    assert_same(found, possible)
    step = beam_search(decoder, [[1]], 1, BeamSearch(beams=V), EOS, V, pad_id=pad)[0]
    assert sorted(each.tokens[0] for each in step) == [token for token in range(V) if token != pad]


def test_a_token_that_ends_texts_ends_them_though_it_fills_rows_up_too(decoder: Decoder) -> None:
    assert beam_search(decoder, PROMPTS, 5, BeamSearch(), EOS, pad_id=EOS) == beam_search(
        decoder, PROMPTS, 5, BeamSearch(), EOS
    )


# --- rows by themselves -----------------------------------------------------------------------------------


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_what_is_found_does_not_depend_on_the_rows_beside_it(decoder: Decoder, early_stopping: Any) -> None:
    settings, limits = search_settings(3, 1.0, "hf", early_stopping), [9, 4, 6]

    together = beam_search(decoder, PROMPTS, limits, settings, EOS, 3)

    for prompt, limit, found in zip(PROMPTS, limits, together, strict=True):
        assert_same(found, beam_search(decoder, [prompt], limit, settings, EOS, 3)[0])


def test_each_source_has_its_own_translations(translator: EncoderDecoder) -> None:
    settings = BeamSearch(beams=3)

    together = beam_search(translator, [[1]] * 3, 8, settings, EOS, 3, SOURCES)

    assert len({tuple(found[0].tokens) for found in together}) > 1
    for source, found in zip(SOURCES, together, strict=True):
        assert_same(found, beam_search(translator, [[1]], 8, settings, EOS, 3, [source])[0])
        for hypothesis in found:
            assert hypothesis.logprob == pytest.approx(logprob_of(translator, source, hypothesis), rel=1e-5)


def logprob_of(model: EncoderDecoder, source: list[int], found: Hypothesis) -> float:
    with torch.no_grad():
        logits = model.eval()(torch.tensor([source]), torch.tensor([[1, *found.tokens[:-1]]]))
    return logits.float().log_softmax(-1)[0].gather(1, torch.tensor([found.tokens]).T).sum().item()


def assert_same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [h.tokens for h in found] == [h.tokens for h in expected]
    assert [h.score for h in found] == pytest.approx([h.score for h in expected], rel=1e-5)


def test_texts_may_outgrow_the_positions(decoder: Decoder) -> None:
    """One beam is greedy there too; several are compared with reading everything anew by their scores."""
    n_new, prompt = 2 * M, [1, 2]

    [found] = beam_search(decoder, [prompt], n_new, BeamSearch(beams=3), None, 3)

    text = [*prompt, *found[0].tokens]
    logprob = 0.0
    for n in range(len(prompt), len(text)):
        start = math.ceil(max(0, n - M) / (M // 2)) * (M // 2)
        with torch.no_grad():
            logits = decoder.eval()(torch.tensor([text[start:n]]))[0, -1].float()
        logprob += logits.log_softmax(-1)[text[n]].item()
    assert found[0].logprob == pytest.approx(logprob, rel=1e-5)


# --- what is left behind, and refused -----------------------------------------------------------------------


def test_the_mode_is_as_before_and_dropout_is_off(decoder: Decoder) -> None:
    first = beam_search(decoder.train(), PROMPTS, 5, BeamSearch(beams=2), EOS)

    assert decoder.training
    assert first == beam_search(decoder.eval(), PROMPTS, 5, BeamSearch(beams=2), EOS)


def test_no_prompts_give_nothing(decoder: Decoder) -> None:
    assert beam_search(decoder, [], 5, BeamSearch()) == []


def test_a_search_takes_memory_for_the_tokens_it_finds_and_not_for_its_limit() -> None:
    decoder = build(config("decoder").replace(head_bias=True))
    decoder.head.bias.data[EOS] = 9.0
    search = BeamSearch(beams=2, early_stopping=True)
    found = beam_search(decoder, PROMPTS, 2**31 - 1, search, EOS, n_best=2)
    assert found == beam_search(decoder, PROMPTS, 9, search, EOS, n_best=2)


def test_what_has_no_answer_is_refused(decoder: Decoder) -> None:
    with pytest.raises(UserError, match="prompt 1 is empty"):
        beam_search(decoder, [[1], []], 5, BeamSearch())
    with pytest.raises(UserError, match=r"max_new_tokens: from 1 to .*; got 0"):
        beam_search(decoder, [[1], [2]], [5, 0], BeamSearch())
    with pytest.raises(UserError, match=r"max_new_tokens: .*got 2\.5"):
        beam_search(decoder, [[1], [2]], [1, 2.5], BeamSearch())  # type: ignore[list-item]
    with pytest.raises(UserError, match="max_new_tokens: one number, or one for each of 1 prompt; got 2"):
        beam_search(decoder, [[1]], (1, 2), BeamSearch())
    with pytest.raises(UserError, match="search: must be of type BeamSearch; got 5"):
        beam_search(decoder, [[1]], 5, 5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"n_best: from 1 to the number of beams, 2; got 3"):
        beam_search(decoder, [[1]], 5, BeamSearch(beams=2), n_best=3)


def test_a_function_s_defaults_are_the_settings() -> None:
    defaults = {name: each.default for name, each in signature(search).parameters.items()}

    settings = (
        defaults[name] for name in ("beams", "length_penalty", "length_penalty_kind", "early_stopping")
    )
    assert search_settings(*settings) == BeamSearch()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0, 1.0, "hf", False), "beams"),
        ((100_001, 1.0, "hf", False), "beams"),
        ((2, 1.0, "none", False), "length_penalty"),
        ((2, 11.0, "hf", False), "^length_penalty takes a number"),
        ((2, 1.0, "hf", "sometimes"), "early_stopping"),
    ],
)
def test_settings_out_of_range_are_named(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        search_settings(*settings)


def test_scores_that_are_no_numbers_are_an_error(decoder: Decoder) -> None:
    decoder.embed.weight.data[3] = torch.nan

    with pytest.raises(NonFiniteError, match="logits are not finite numbers"):
        beam_search(decoder, [[1, 3]], 5, BeamSearch())
