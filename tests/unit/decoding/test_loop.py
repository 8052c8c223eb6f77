"""The loop: what it reads, when a row ends, and what it leaves behind."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from clearformer.decoding import loop
from clearformer.decoding.loop import (
    Completion,
    collect,
    generate_tokens,
)
from clearformer.decoding.samplers import Sampling, random_stream
from clearformer.errors import NonFiniteError, UserError
from clearformer.model import Decoder, EncoderDecoder, ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.init import Gaussian

V, M = 13, 11
GREEDY = Sampling(temperature=0)
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]


@pytest.fixture
def model() -> Decoder:
    config = ModelConfig(
        vocab_size=V,
        d_model=10,
        n_layers=2,
        max_seq_len=M,
        dropout=0.3,
        attention=MultiHead(n_heads=2),
        tie_embeddings=False,
        init=Gaussian(),
    )
    return build(config).double()


def complete(
    model: Decoder | EncoderDecoder, prompts: list[Any] = PROMPTS, n_new: int = 5, **options: Any
) -> list[Completion]:
    sampling = options.pop("sampling", Sampling())
    streams = [random_stream(1, row) for row in range(len(prompts))]
    return collect(generate_tokens(model, prompts, n_new, sampling, streams, **options), len(prompts))


# --- what comes out ---------------------------------------------------------------------------------------


def test_every_row_gets_its_tokens_in_turn(model: Decoder) -> None:
    streams = [random_stream(1, row) for row in range(3)]

    new_tokens = list(generate_tokens(model, PROMPTS, 2, Sampling(), streams))

    assert [new.row for new in new_tokens] == [0, 1, 2, 0, 1, 2]
    assert [new.finish_reason for new in new_tokens] == [None] * 3 + ["length"] * 3


def test_prompts_may_be_arrays(model: Decoder) -> None:
    arrays = [np.array(prompt, dtype=np.int32) for prompt in PROMPTS]

    assert complete(model, arrays) == complete(model)


def test_rows_that_have_ended_leave_and_the_others_go_on(model: Decoder) -> None:
    free = complete(model)
    eos_id = free[1].tokens[1]

    ended = complete(model, eos_id=eos_id)

    assert ended[1].finish_reason == "eos"
    for row, done in enumerate(ended):
        n = free[row].tokens.index(eos_id) + 1 if eos_id in free[row].tokens else 5
        assert done.tokens == free[row].tokens[:n]
        assert done.finish_reason == ("eos" if eos_id in free[row].tokens else "length")


def test_a_stop_is_told_every_token_once_and_ends_its_row(model: Decoder) -> None:
    told: list[tuple[int, int]] = []

    def stop(row: int, token: int) -> bool:
        told.append((row, token))
        return row == 2 and len([r for r, _ in told if r == 2]) == 3

    done = complete(model, stop=stop)

    assert [len(row.tokens) for row in done] == [5, 5, 3]
    assert [row.finish_reason for row in done] == ["length", "length", "stop"]
    assert [[token for r, token in told if r == row] for row in range(3)] == [row.tokens for row in done]


def test_the_last_token_may_end_a_text_by_itself(model: Decoder) -> None:
    last = complete(model)[0].tokens[-1]

    assert complete(model, eos_id=last, n_new=5)[0].finish_reason == "eos"


def test_logprobs_are_the_models_own_whatever_the_sampling(model: Decoder) -> None:
    sampling = Sampling(temperature=0.3, top_k=2, repetition_penalty=1.5)

    [done] = complete(model, [[1, 2]], sampling=sampling)

    with torch.no_grad():
        expected = model.eval()(torch.tensor([[1, 2, *done.tokens]])).log_softmax(-1)[0]
    assert done.logprobs == pytest.approx(
        [expected[1 + i, t].item() for i, t in enumerate(done.tokens)], abs=1e-5
    )


def test_greedy_is_the_likeliest_and_temperature_zero(model: Decoder) -> None:
    [done] = complete(model, [[1, 2]], sampling=GREEDY)

    text = [1, 2]
    with torch.no_grad():
        for _ in range(5):
            text.append(int(model.eval()(torch.tensor([text]))[0, -1].argmax()))
    assert done.tokens == text[2:]


def test_another_seed_gives_other_tokens_and_the_same_seed_the_same(model: Decoder) -> None:
    def tokens(seed: int) -> list[int]:
        stream = random_stream(seed, 0)
        return [new.token for new in generate_tokens(model, [[1]], 20, Sampling(), [stream])]

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)


def test_the_penalty_counts_the_prompt_and_what_was_generated(model: Decoder) -> None:
    never_again = Sampling(temperature=0, repetition_penalty=1e6)

    with patch.object(Decoder, "unembed", lambda self, x: torch.rand(*x.shape[:-1], V) + 1):  # all positive
        [done] = complete(model, [[1, 2]], n_new=V - 2, sampling=never_again)

    assert sorted([1, 2, *done.tokens]) == list(range(V))


def test_the_penalty_is_told_each_token_once_however_long_the_text(model: Decoder) -> None:
    told: list[int] = []

    def adjust(_: Sampling, logits: torch.Tensor, previous: Any) -> torch.Tensor:
        told.extend(map(len, previous))
        return logits

    with patch.object(Sampling, "adjust", adjust):
        complete(model, [[1, 2, 3] * 500, [4] * 99])

    assert told[:2] == [3, 1]
    assert max(told) <= V


# --- what is read -----------------------------------------------------------------------------------------


def read_shapes(model: Decoder, **options: Any) -> list[tuple[int, ...]]:
    """The shapes of all inputs that the model was given."""
    shapes = []
    handle = model.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape)))
    complete(model, **options)
    handle.remove()
    return shapes


def test_with_the_cache_only_the_newest_token_is_read(model: Decoder) -> None:
    assert read_shapes(model) == [(3, 5)] + [(3, 1)] * 4


def test_without_the_cache_the_whole_text_is_read(model: Decoder) -> None:
    assert read_shapes(model, use_cache=False) == [(3, n) for n in range(5, 10)]


def test_the_cache_is_made_anew_once_in_half_the_context(model: Decoder) -> None:
    shapes = read_shapes(model, prompts=[[1, 2]], n_new=2 * M)

    prefills = [i for i, (_, length) in enumerate(shapes) if length > 1]
    assert prefills == [0, 10, 15, 20]  # 2 + 10 tokens are one too many for M = 11; the start moves by 5
    assert {shapes[i][1] for i in prefills[1:]} == {M + 1 - 5}


def test_a_row_that_ends_takes_no_more_of_the_batch(model: Decoder) -> None:
    assert read_shapes(model, stop=lambda row, _: row == 0) == [(3, 5)] + [(2, 1)] * 4


def test_samples_of_one_prompt_read_it_once(model: Decoder) -> None:
    shapes = read_shapes(model, prompts=[[1, 2, 3]] * 4)

    assert shapes == [(1, 3)] + [(4, 1)] * 4


# --- of sources -------------------------------------------------------------------------------------------


def test_an_encoder_decoder_is_sampled_of_each_source_by_itself(model: Decoder) -> None:
    translator = build(model.config.replace(family="encoder-decoder")).double()
    sources, beginnings = [[5, 6, 7, 8, 9], [4, 2], [7, 3, 1]], [[1], [1], [1, 2]]

    together = complete(translator, beginnings, n_new=2 * M, eos_id=3, sources=sources)

    assert len({tuple(row.tokens) for row in together}) == 3
    for row in range(3):
        stream = [random_stream(1, row)]
        alone = generate_tokens(
            translator, [beginnings[row]], 2 * M, Sampling(), stream, 3, sources=[sources[row]]
        )
        assert collect(alone, 1)[0].tokens == together[row].tokens
    without = complete(translator, beginnings, n_new=2 * M, eos_id=3, sources=sources, use_cache=False)
    assert [row.tokens for row in without] == [row.tokens for row in together]


# --- what is left behind, and refused -----------------------------------------------------------------------


def test_mode_and_random_numbers_are_as_before(model: Decoder) -> None:
    model.train()
    before = torch.get_rng_state()

    complete(model)

    assert model.training
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), before)


def test_mode_is_restored_when_the_reader_loses_interest(model: Decoder) -> None:
    new_tokens = generate_tokens(
        model.train(), PROMPTS, 5, Sampling(), [random_stream(0, i) for i in range(3)]
    )
    next(new_tokens)
    assert not model.training

    new_tokens.close()  # type: ignore[attr-defined]

    assert model.training


def test_whoever_takes_the_tokens_may_compute_gradients_in_between(model: Decoder) -> None:
    for _ in generate_tokens(model, [[1]], 3, Sampling(), [random_stream(0, 0)]):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        model(torch.tensor([[1, 2]])).sum().backward()


def test_no_gradient_is_kept(model: Decoder) -> None:
    with patch.object(loop, "draw", side_effect=loop.draw) as drawing:
        complete(model)

    assert not any(call.args[0].requires_grad for call in drawing.call_args_list)


def test_dropout_is_off(model: Decoder) -> None:
    assert complete(model.train()) == complete(model.eval())


def test_no_prompts_give_nothing(model: Decoder) -> None:
    assert complete(model, []) == []


def test_an_empty_prompt_is_refused_by_number(model: Decoder) -> None:
    with pytest.raises(UserError, match="prompt 1 is empty"):
        complete(model, [[1], []])


def test_settings_of_another_kind_are_refused(model: Decoder) -> None:
    with pytest.raises(UserError, match="sampling: must be of type Sampling; got 5"):
        complete(model, sampling=5)


def test_no_new_tokens_are_refused(model: Decoder) -> None:
    with pytest.raises(UserError, match=r"max_new_tokens.*0"):
        complete(model, n_new=0)


def test_scores_that_are_no_numbers_are_an_error(model: Decoder) -> None:
    model.embed.weight.data[3] = torch.nan

    with pytest.raises(NonFiniteError, match="logits are not finite numbers"):
        complete(model)
