"""`auto` under torchrun: it plans for all processes, and its batches divide among them."""

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from clearformer.auto import RULES, Budget, Recommendation, auto_for, for_processes, measure, measuring, text
from clearformer.auto.measuring import sharing
from clearformer.data import TextData
from clearformer.training.config import RunConfig, TrainConfig
from clearformer.training.objectives import TranslationObjective
from clearformer.training.processes.distributed import Place

FORMS = sorted(RULES)
RATE, MEMORY = 5e11, 16e9


def chosen(form: str, memory: float = MEMORY) -> RunConfig:
    return RULES[form].choose(replace(RULES[form].typical, memory=memory)).run


@pytest.mark.parametrize("count", [2, 3, 6, 16, 100])
@pytest.mark.parametrize("memory", [MEMORY, 2e7])
@pytest.mark.parametrize("form", FORMS)
def test_every_process_has_its_part_of_every_batch(form: str, memory: float, count: int) -> None:
    alone = chosen(form, memory).train

    train = for_processes(chosen(form, memory), count).train

    assert train.grad_accum_steps * count >= alone.grad_accum_steps  # no process has more in its memory
    if isinstance(train.objective, TranslationObjective):
        assert train.objective == alone.objective
    else:
        assert train.batch_size % (train.grad_accum_steps * count) == 0
        assert alone.batch_size <= train.batch_size < alone.batch_size + train.grad_accum_steps * count


@pytest.mark.parametrize("form", FORMS)
def test_one_process_changes_nothing(form: str) -> None:
    assert for_processes(chosen(form), 1) == chosen(form)


def test_larger_batches_make_fewer_steps_of_as_many_rows() -> None:
    run = RunConfig(train=TrainConfig(batch_size=8, max_steps=900))

    train = for_processes(run, 12).train

    assert (train.batch_size, train.max_steps) == (12, 600)


def test_a_warm_up_is_over_before_the_fewer_steps_are() -> None:
    run = RunConfig(train=TrainConfig(batch_size=8, max_steps=90, warmup_steps=30))

    train = for_processes(run, 80).train

    assert (train.batch_size, train.max_steps, train.warmup_steps) == (80, 9, 4)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[Place], Budget]:
    monkeypatch.setattr(measuring, "usual_rate", lambda dtype, device, seconds: RATE)
    monkeypatch.setattr(measuring, "memory_of", lambda device: MEMORY)
    monkeypatch.setattr(measuring, "try_words", lambda source: None)

    def measured(place: Place) -> Budget:
        train = TrainConfig(max_wall_seconds=60, max_steps=None, device="cpu", dtype="float32")
        return measure(RunConfig(data=TextData(name="pydoc"), train=train), place=place)

    return measured


def test_the_rate_is_that_of_all_and_the_memory_that_of_one(measured: Callable[[Place], Budget]) -> None:
    alone, among_six = measured(Place()), measured(Place(rank=1, count=6, local_rank=1, n_here=2))

    assert (alone.rate, alone.memory) == (RATE, MEMORY / 2)
    assert (among_six.rate, among_six.memory) == (6 * RATE, MEMORY / 4)  # two share a machine


def test_processes_share_a_gpu_where_there_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [sharing(torch.device("cuda"), n) for n in (1, 2, 3, 8)] == [1, 1, 2, 4]
    assert sharing(torch.device("cpu"), 3) == 3


def test_the_preset_plans_for_those_that_torchrun_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    places: list[Place] = []

    def noted(wanted: RunConfig, said: object, most_tokens: float, place: Place) -> Budget:
        places.append(place)
        return text.TYPICAL

    def as_it_is(_: Budget) -> Recommendation:
        return Recommendation(RunConfig(train=TrainConfig(batch_size=8, max_steps=9)), [])

    monkeypatch.setattr("clearformer.auto.measure", noted)
    monkeypatch.setitem(RULES, "text", RULES["text"]._replace(choose=as_it_is))
    told = {"RANK": 1, "LOCAL_RANK": 1, "WORLD_SIZE": 3, "LOCAL_WORLD_SIZE": 3, "MASTER_PORT": 1}
    for name, value in (told | {"MASTER_ADDR": "127.0.0.1"}).items():
        monkeypatch.setenv(name, str(value))

    run = auto_for(RunConfig(data=TextData(name="pydoc"), train=TrainConfig(max_steps=9)))

    assert places == [Place(rank=1, count=3, local_rank=1, n_here=3)]
    assert run.train.batch_size == 9
    assert "auto: for 3 processes: 9 rows a step, 1 part each" in caplog.text
    assert torch.distributed.is_initialized() is False
