"""What holds for generation with every kind of model: cache, batch, overflow and drafts change no token."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearformer.decoding.decode_state import context_start
from clearformer.decoding.loop import Completion, collect, generate_tokens
from clearformer.decoding.samplers import Sampling, random_stream
from clearformer.model import Decoder, ModelConfig

from .models import each_kind, every_model, made

N_NEW = 9  # the prompts outgrow the models' positions, several times and at different moments
POSITIONS = (5, 2, 1)
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3], [12], [7, 0, 11]]
SEED = 5
SAMPLINGS = {
    "plain": Sampling(),
    "greedy": Sampling(temperature=0),
    "warm": Sampling(temperature=1.5, top_k=5, repetition_penalty=1.4),
}


def model_of(case: ModelConfig, n_positions: int) -> Decoder:
    """In float64, so that no two scores are nearly equal by rounding alone.

    Untied, as a tied head at these weights gives each token itself, whatever stands before it.
    """
    return made(case.replace(max_seq_len=n_positions, tie_embeddings=False))


def completions(
    model: Decoder, given_prompts: list[list[int]], sampling: Sampling, n_new: int = N_NEW, **options: Any
) -> list[Completion]:
    n = len(given_prompts)
    streams = [random_stream(SEED, row) for row in range(n)]
    return collect(generate_tokens(model, given_prompts, n_new, sampling, streams, **options), n)


@every_model(sampling=SAMPLINGS, n_positions=POSITIONS)
def test_cached_is_uncached(case: ModelConfig, sampling: str, n_positions: int) -> None:
    model = model_of(case, n_positions)

    with_cache = completions(model, PROMPTS, SAMPLINGS[sampling])
    without = completions(model, PROMPTS, SAMPLINGS[sampling], use_cache=False)

    assert [done.tokens for done in with_cache] == [done.tokens for done in without]
    for a, b in zip(with_cache, without, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


@every_model(sampling=SAMPLINGS, n_positions=POSITIONS, eos_id=(6, None))
def test_each_row_is_what_its_prompt_gives_alone(
    case: ModelConfig, sampling: str, n_positions: int, eos_id: int | None
) -> None:
    model = model_of(case, n_positions)

    together = completions(model, PROMPTS, SAMPLINGS[sampling], eos_id=eos_id)

    for row, prompt in enumerate(PROMPTS):
        stream = random_stream(SEED, row)
        [alone] = collect(generate_tokens(model, [prompt], N_NEW, SAMPLINGS[sampling], [stream], eos_id), 1)
        assert together[row].tokens == alone.tokens
        assert together[row].finish_reason == alone.finish_reason
        assert together[row].logprobs == pytest.approx(alone.logprobs, abs=1e-5)


@every_model(sampling=SAMPLINGS, n_positions=(40, 9), lookup=(1, 4), eos_id=(6, None))
def test_drafts_that_are_right_or_wrong_change_nothing(
    case: ModelConfig, sampling: str, n_positions: int, lookup: int, eos_id: int | None
) -> None:
    model = model_of(case, n_positions)

    for prompts in (PROMPTS, PROMPTS[:1]):
        plain, drafted = (
            completions(model, prompts, SAMPLINGS[sampling], 25, eos_id=eos_id, lookup=n) for n in (0, lookup)
        )

        assert [done.tokens for done in drafted] == [done.tokens for done in plain]
        assert [done.finish_reason for done in drafted] == [done.finish_reason for done in plain]
        for a, b in zip(drafted, plain, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


@each_kind(n_positions=POSITIONS)
@torch.no_grad()
def test_tokens_and_logprobs_are_those_of_plain_forward_passes(case: ModelConfig, n_positions: int) -> None:
    model, text = model_of(case, n_positions), list(PROMPTS[0])

    [done] = completions(model, PROMPTS[:1], Sampling(temperature=0))

    for token, logprob in zip(done.tokens, done.logprobs, strict=True):
        read = torch.tensor([text[context_start(len(text), model.config.max_seq_len) :]])
        expected = model(read)[0, -1].log_softmax(-1)
        assert logprob == pytest.approx(expected[token].item(), abs=1e-5)
        assert expected[token] == pytest.approx(expected.max().item(), abs=1e-5)
        text.append(token)
    assert len(done.tokens) == N_NEW


@given(n_tokens=st.integers(1, 400), max_seq_len=st.integers(1, 50))
def test_at_least_half_of_the_positions_are_used_and_never_more_than_all(
    n_tokens: int, max_seq_len: int
) -> None:
    start, before = (context_start(n, max_seq_len) for n in (n_tokens, n_tokens - 1))
    n_read = n_tokens - start

    assert n_read == n_tokens if n_tokens <= max_seq_len else max_seq_len / 2 <= n_read <= max_seq_len
    assert start == before or start == before + max(1, max_seq_len // 2)  # it moves in strides
