"""What holds for generation with every kind of model: the cache, the batch and the overflow change no token."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearformer.config import Spec, slot_variants
from clearformer.decoding.decode_state import context_start
from clearformer.decoding.loop import Completion, collect, generate_tokens
from clearformer.decoding.samplers import Sampling, random_stream
from clearformer.errors import ConfigError
from clearformer.model import Decoder, ModelConfig
from clearformer.model.attention import MultiHead
from clearformer.model.init import Gaussian
from clearformer.model.positions import ALiBi, RoPE

V, D, M = 13, 22, 5  # M positions: texts below outgrow them, several times and at different moments
HEADS: dict[str, Any] = {"n_heads": 6, "n_kv_heads": 3, "d_head": 4}
SEED = 5


def config(**changes: Any) -> ModelConfig:
    # Untied, as a tied head at these weights gives each token itself, whatever stands before it.
    sizes: dict[str, Any] = {
        "vocab_size": V,
        "d_model": D,
        "n_layers": 2,
        "max_seq_len": M,
        "tie_embeddings": False,
    }
    return ModelConfig(**(sizes | {"init": Gaussian(), "attention": MultiHead(**HEADS)} | changes))


def filled(spec_type: type[Spec]) -> Any:
    return spec_type(**{name: value for name, value in HEADS.items() if name in spec_type.model_fields})


def every_position_of_every_attention() -> Iterator[tuple[str, ModelConfig]]:
    for attention, attention_type in slot_variants(ModelConfig.model_fields["attention"]).items():
        for position, position_type in slot_variants(ModelConfig.model_fields["position"]).items():
            try:
                yield (
                    f"{attention}+{position}",
                    config(attention=filled(attention_type), position=position_type()),
                )
            except ConfigError:  # a pair that makes no sense
                continue


CASES = dict(every_position_of_every_attention()) | {
    "window+rope": config(attention=MultiHead(n_heads=2, d_head=4, window=3), position=RoPE()),
    "window+alibi": config(attention=MultiHead(n_heads=2, window=3), position=ALiBi()),
    "no two positions": config(max_seq_len=1),
    "two positions": config(max_seq_len=2),
}
every_case = pytest.mark.parametrize("case", CASES)

tokens = st.integers(0, V - 1)
prompts = st.lists(st.lists(tokens, min_size=1, max_size=2 * M), min_size=1, max_size=4)
samplings = st.sampled_from(
    [Sampling(), Sampling(temperature=0), Sampling(temperature=1.5, top_k=5, repetition_penalty=1.4)]
)


def model_of(case: str) -> Decoder:
    """In float64, so that no two scores are nearly equal by rounding alone."""
    torch.manual_seed(0)  # the same weights in every example that hypothesis makes
    return Decoder(CASES[case]).double()


def completions(
    model: Decoder, given_prompts: list[list[int]], sampling: Sampling, **options: Any
) -> list[Completion]:
    n = len(given_prompts)
    streams = [random_stream(SEED, row) for row in range(n)]
    return collect(generate_tokens(model, given_prompts, 2 * M + 3, sampling, streams, **options), n)


@every_case
@settings(max_examples=3, deadline=None)
@given(given_prompts=prompts, sampling=samplings)
def test_cached_is_uncached(case: str, given_prompts: list[list[int]], sampling: Sampling) -> None:
    model = model_of(case)

    with_cache = completions(model, given_prompts, sampling)
    without = completions(model, given_prompts, sampling, use_cache=False)

    assert [done.tokens for done in with_cache] == [done.tokens for done in without]
    for a, b in zip(with_cache, without, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


@every_case
@settings(max_examples=3, deadline=None)
@given(given_prompts=prompts, sampling=samplings, eos_id=tokens)
def test_each_row_is_what_its_prompt_gives_alone(
    case: str, given_prompts: list[list[int]], sampling: Sampling, eos_id: int
) -> None:
    model = model_of(case)

    together = completions(model, given_prompts, sampling, eos_id=eos_id)

    for row, prompt in enumerate(given_prompts):
        stream = random_stream(SEED, row)
        [alone] = collect(generate_tokens(model, [prompt], 2 * M + 3, sampling, [stream], eos_id), 1)
        assert together[row].tokens == alone.tokens
        assert together[row].finish_reason == alone.finish_reason
        assert together[row].logprobs == pytest.approx(alone.logprobs, abs=1e-5)


@every_case
@settings(max_examples=3, deadline=None)
@given(prompt=st.lists(tokens, min_size=1, max_size=2 * M))
@torch.no_grad()
def test_tokens_and_logprobs_are_those_of_plain_forward_passes(case: str, prompt: list[int]) -> None:
    model, text = model_of(case), list(prompt)

    [done] = completions(model, [prompt], Sampling(temperature=0))

    for token, logprob in zip(done.tokens, done.logprobs, strict=True):
        read = torch.tensor([text[context_start(len(text), model.config.max_seq_len) :]])
        expected = model(read)[0, -1].log_softmax(-1)
        assert logprob == pytest.approx(expected[token].item(), abs=1e-5)
        assert expected[token] == pytest.approx(expected.max().item(), abs=1e-5)
        text.append(token)
    assert len(done.tokens) == 2 * M + 3


@given(n_tokens=st.integers(1, 400), max_seq_len=st.integers(1, 50))
def test_at_least_half_of_the_positions_are_used_and_never_more_than_all(
    n_tokens: int, max_seq_len: int
) -> None:
    start, before = (context_start(n, max_seq_len) for n in (n_tokens, n_tokens - 1))
    n_read = n_tokens - start

    assert n_read == n_tokens if n_tokens <= max_seq_len else max_seq_len / 2 <= n_read <= max_seq_len
    assert start == before or start == before + max(1, max_seq_len // 2)  # it moves in strides
