"""The preset `auto` where the model's size is given, whole or in part: it plans the rest for that size."""

import re
from dataclasses import replace
from types import ModuleType

import pytest

from clearformer.auto import Budget, labelled, pairs, text
from clearformer.auto.budget import ModelSize, abbreviated, block_parameters, heads_for, largest_shape
from clearformer.auto.measuring import given_size
from clearformer.data import PairsData
from clearformer.model.attention import MultiHead
from clearformer.presets import preset
from clearformer.training.config import RunConfig
from clearformer.training.objectives import ClassificationObjective

BUDGETS = {
    text: Budget(n_bytes=1_000_000, seconds=300, rate=4e11, memory=16e9),
    pairs: Budget(n_bytes=4_000_000, n_texts=29_000, longest=200, seconds=300, rate=4e11, memory=16e9),
    labelled: Budget(n_bytes=3_000_000, n_texts=30_000, longest=200, seconds=300, rate=4e11, memory=16e9),
}


def passes_of(rules: ModuleType, given: ModelSize) -> float:
    reasons = "\n".join(rules.choose(replace(BUDGETS[rules], given=given)).reasons)
    [passes] = re.findall(r"([0-9.]+) passes", reasons)
    return float(passes)


@pytest.mark.parametrize("rules", BUDGETS)
def test_an_odd_width_is_given_positions_that_fit_it(rules: ModuleType) -> None:
    kinds = [
        rules.choose(replace(BUDGETS[rules], given=ModelSize(d_model))).run.model.position.kind
        for d_model in (63, 64)
    ]
    assert kinds == (["learned", "learned"] if rules is labelled else ["learned", "rope"])


@pytest.mark.parametrize("rules", BUDGETS)
def test_a_larger_model_reads_the_data_fewer_times(rules: ModuleType) -> None:
    small, large = (passes_of(rules, ModelSize(256, n_layers)) for n_layers in (2, 8))

    assert 2 * large < small < 4 * large + 0.3  # four times the blocks, and as many embeddings


@pytest.mark.parametrize("context", [48, 96, 100, 1000])
@pytest.mark.parametrize("memory", [2e8, 1e9, 16e9])
def test_parts_divide_a_step_whatever_the_context(context: int, memory: float) -> None:
    for seconds in (60, 300, 3600, 36_000):
        budget = replace(BUDGETS[text], memory=memory, seconds=seconds, given=ModelSize(max_seq_len=context))
        train = text.choose(budget).run.train
        assert train.batch_size % train.grad_accum_steps == 0
        assert train.batch_size.bit_count() == 1


@pytest.mark.parametrize("rules", BUDGETS)
def test_what_is_given_is_taken_and_said(rules: ModuleType) -> None:
    free = rules.choose(BUDGETS[rules])
    deep = rules.choose(replace(BUDGETS[rules], given=ModelSize(n_layers=9)))
    wide = rules.choose(replace(BUDGETS[rules], given=ModelSize(d_model=160, max_seq_len=48)))

    assert deep.run.model.n_layers == 9
    assert deep.run.model.d_model <= free.run.model.d_model
    assert any("9 layers of width" in reason and "n_layers as given" in reason for reason in deep.reasons)
    assert (wide.run.model.d_model, wide.run.model.max_seq_len) == (160, 48)
    assert any("parameters: d_model as given" in reason for reason in wide.reasons)
    assert not any("as given" in reason for reason in free.reasons)


def test_few_parameters_are_told_in_thousands() -> None:
    tiny = labelled.choose(replace(BUDGETS[labelled], given=ModelSize(64, 1))).reasons

    assert [abbreviated(n) for n in (49_152, 99_999, 100_000, 1_240_000)] == ["49k", "100k", "0.1M", "1.2M"]
    assert any("1 layer of width 64, 49k parameters" in reason for reason in tiny)


def test_the_longest_pair_is_what_a_given_context_holds() -> None:
    data = pairs.choose(replace(BUDGETS[pairs], given=ModelSize(max_seq_len=48))).run.data

    assert data == PairsData(max_length=47)


def test_a_width_has_the_depths_that_the_rules_have_for_such_widths() -> None:
    shapes = ((64, 1), (128, 2), (128, 4), (256, 8))

    def shape(most: float, given: ModelSize) -> tuple[int, int]:
        return largest_shape(shapes, block_parameters, most, given)

    assert shape(1e9, ModelSize(d_model=100)) == (100, 4)  # eight layers are for wider ones
    assert shape(block_parameters(100, 3), ModelSize(d_model=100)) == (100, 2)
    assert shape(0, ModelSize(d_model=100)) == (100, 1)
    assert shape(1e9, ModelSize(d_model=1000)) == (1000, 8)
    assert shape(block_parameters(128, 7), ModelSize(n_layers=7)) == (128, 7)
    assert shape(0, ModelSize(n_layers=7)) == (64, 7)


@pytest.mark.parametrize(("d_model", "heads"), [(33, 1), (32, 1), (96, 3), (100, 2), (160, 5), (10, 1)])
def test_heads_divide_the_width_evenly(d_model: int, heads: int) -> None:
    assert heads_for(d_model, d_head=32) == heads
    attention = labelled.choose(replace(BUDGETS[labelled], given=ModelSize(d_model))).run.model.attention
    assert isinstance(attention, MultiHead)
    assert attention.n_heads == heads


def test_sizes_are_those_of_the_settings_over_those_of_an_earlier_run() -> None:
    run = preset("classify")
    begun = run.replace(train=run.train.replace(pretrained="earlier"))
    model = run.model

    def given(wanted: RunConfig, **said: object) -> ModelSize:
        return given_size(wanted, {f"model.{name}": value for name, value in said.items()})

    assert given(run) == ModelSize()
    assert given(run, n_layers=5, dropout=0.5) == ModelSize(n_layers=5)
    assert given(begun) == ModelSize(model.d_model, model.n_layers, model.max_seq_len)
    assert given(begun, d_model=36) == ModelSize(36, model.n_layers, model.max_seq_len)
    assert given(run, n_layers=5.0, max_seq_len="512") == ModelSize(n_layers=5, max_seq_len=512)
    assert given(run, n_layers=0, d_model="wide", max_seq_len="none") == ModelSize()  # refused later


def test_a_pre_trained_classifier_learns_at_a_low_rate_from_whole_words() -> None:
    few_texts = Budget(n_bytes=60_000, n_texts=1000, longest=200, seconds=60, rate=4e11, memory=16e9)
    fresh, begun = (
        labelled.choose(replace(few_texts, is_pretrained=is_pretrained)) for is_pretrained in (False, True)
    )

    assert fresh.run.train.lr > begun.run.train.lr == labelled.LEAST_LR
    assert fresh.run.train.objective != begun.run.train.objective == ClassificationObjective()
    assert any("0.004: low, for the model is pre-trained" in reason for reason in begun.reasons)
