"""Evaluation mode for a while."""

import gc
from collections.abc import Callable, Generator, Iterator
from threading import Event, Thread
from typing import Any, Self
from weakref import ref

import numpy as np
import pytest
import torch
from torch import nn

from clearformer import threads
from clearformer.data.masking import MaskedBatch
from clearformer.decoding import Sampling, evaluating, generate_tokens, random_stream
from clearformer.decoding.beam import BeamSearch, beam_search
from clearformer.device import autocast
from clearformer.evaluation.masked import evaluate_masked
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.threads import ThreadsByLoad


def test_every_module_is_in_evaluation_mode_inside_and_as_it_was_afterwards() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout(), nn.Dropout()))
    model[1].eval()  # part of a model that trains
    before = [module.training for module in model.modules()]

    with evaluating(model):
        assert not any(module.training for module in model.modules())

    assert [module.training for module in model.modules()] == before
    assert before == [True, True, False, False, False]


def test_of_several_threads_the_last_one_sets_it_back() -> None:
    model, others = nn.Sequential(nn.Dropout(), nn.Linear(2, 2)), [Event(), Event()]

    def look_meanwhile() -> None:
        with evaluating(model):
            others[0].set()
            others[1].wait(10)

    thread = Thread(target=look_meanwhile)
    with evaluating(model):
        thread.start()
        others[0].wait(10)
    assert not any(module.training for module in model.modules())
    others[1].set()
    thread.join()
    assert all(module.training for module in model.modules())


def test_a_stream_and_its_model_are_collected_together() -> None:
    class Streamed(nn.Linear):
        stream: Generator[None, None, None]

    def endless(model: nn.Module) -> Generator[None, None, None]:
        with evaluating(model):
            while True:
                yield

    model = Streamed(2, 2).eval()
    model.stream = endless(model)  # a cycle: the collector clears weak references before the generator ends
    next(model.stream)
    gone = ref(model)
    del model

    gc.collect()  # an error in the generator would be told as a warning, which fails the test

    assert gone() is None


def test_a_block_inside_one_that_stays_open_restores_what_it_found() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Linear(2, 2))
    outer = evaluating(model)
    outer.__enter__()
    model.train()  # training goes on while somebody's stream waits

    with evaluating(model):
        assert not any(module.training for module in model.modules())

    assert all(module.training for module in model.modules())
    outer.__exit__(None, None, None)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("ended_in", ["modules", "eval"])
def test_a_block_that_ends_where_garbage_is_collected_holds_up_nobody(ended_in: str) -> None:
    """Python may close a generator that nobody closed at any moment: also while another block begins."""
    ends: list[Callable[[], None]] = []

    class Collecting(nn.Sequential):
        def modules(self, *arguments: Any, **named: Any) -> Iterator[nn.Module]:
            return self.collected("modules", super().modules(*arguments, **named))

        def eval(self) -> Self:
            return self.collected("eval", super().eval())

        def collected(self, name: str, value: Any) -> Any:
            if name == ended_in and ends:
                ends.pop()()
            return value

    def look() -> Generator[None, None, None]:
        with evaluating(model):
            yield

    model = Collecting(nn.Dropout())
    left = look()
    next(left)
    ends.append(left.close)
    seen: list[bool] = []

    def begin() -> None:
        with evaluating(model):
            seen.append(any(module.training for module in model.children()))

    thread = Thread(target=begin, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert ends == []
    assert seen == [False]
    assert all(module.training for module in model.children())


@pytest.mark.parametrize(("cores", "inside"), [(1, 1), (2, 2), (8, 3)])
def test_there_are_no_more_threads_than_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, inside: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr(threads, "most_threads", lambda: cores)
    monkeypatch.setattr(threads.free_cores(), "number", lambda: 8)

    try:
        with evaluating(nn.Dropout()):
            assert torch.get_num_threads() == inside
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_their_number_follows_the_load_from_token_to_token_and_from_batch_to_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = build(
        ModelConfig(vocab_size=5, d_model=4, n_layers=1, max_seq_len=8, attention=MultiHead(n_heads=1))
    )
    adapted: list[int] = []
    monkeypatch.setattr(ThreadsByLoad, "adapt", lambda self, step=0: adapted.append(step))

    list(generate_tokens(model, [[1, 2]], 6, Sampling(), [random_stream(1, 0)]))
    assert len(adapted) == 1 + 6  # at the beginning of the block, and before each token
    adapted.clear()
    beam_search(model, [[1, 2]], 6, BeamSearch(beams=2))
    assert len(adapted) == 1 + 6
    adapted.clear()
    ones = np.ones((2, 4), np.int64)
    batch = MaskedBatch(ones, ones > 0, ones)
    evaluate_masked(build(model.config.replace(family="encoder")), [batch] * 3)
    assert len(adapted) == 1 + 3


def test_an_error_inside_does_not_leave_it_there() -> None:
    model = nn.Dropout()

    with pytest.raises(KeyError), evaluating(model):
        raise KeyError

    assert model.training


def test_products_are_in_another_type_inside_and_as_they_were_where_none_is_given() -> None:
    x, device = torch.ones(3, 3), torch.device("cpu")

    with autocast(device, torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with autocast(device, None):
            assert (x @ x).dtype == torch.bfloat16
    with autocast(device, torch.float32):
        assert (x @ x).dtype == torch.float32
