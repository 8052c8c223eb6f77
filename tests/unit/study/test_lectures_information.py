"""The studies of information at a tiny size, and the identities that their measures rest on."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.autograd.functional import jacobian

from clearformer.data.text.sources import markov_chain
from clearformer.study.lectures import studies
from clearformer.study.measures.attention import (
    N_KEYS,
    N_QUERIES,
    distance_from_torch,
    drawn_scores,
    exponent,
    generator_of,
    self_term,
    two_tokens,
)
from clearformer.study.measures.information import (
    balanced_depth,
    entropy_rate,
    parameters_of_gpt,
    parameters_of_the_lecture,
    uniform_baseline,
)
from clearformer.study.measures.stream import stream_variance
from clearformer.study.outcomes import REPRODUCED, SLIP

from .tiny import computed, text_folder, tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with text_folder(tmp_path_factory.mktemp("studies")) as made:
        yield made


def test_the_worked_values_are_the_lectures(data_dir: Path, folder: Path) -> None:
    """All but the count of the training text's tokens, which takes seconds."""
    whole = studies()["information"]
    study = replace(
        whole,
        arms=tuple(arm for arm in whole.arms if arm.label != "training text"),
        published=tuple(each for each in whole.published if each.arm != "training text"),
    )
    verdicts = {(each.arm, each.value): each.verdict for each in computed(study, folder).published()}
    assert {place for place, verdict in verdicts.items() if verdict == SLIP} == {
        ("lecture, d = 256", "parameters"),
        ("V = 100,000, d = 10,000", "layers"),
        *(("example line", name) for name in ("characters", "tokens", "compression")),
        *(("1,000 words of it", name) for name in ("tokens", "shorter", "attention_saved")),
    }
    assert set(verdicts.values()) == {SLIP, REPRODUCED}


def test_the_parameters_are_those_of_the_formulas() -> None:
    assert parameters_of_the_lecture(1, d_model=8, vocab_size=7)["matrices"] == 2 * 7 * 8 + 11 * 4 * 8**2
    assert (
        parameters_of_the_lecture(1, d_model=8, vocab_size=7)["parameters"] - 5 * 8 * 4 == 2 * 7 * 8 + 44 * 64
    )
    sizes = parameters_of_gpt(1, n_layers=3, d_model=8, vocab_size=11)
    assert sizes["blocks"] == 12 * 3 * 8**2
    assert sizes["total"] == sizes["blocks"] + 2 * 11 * 8
    assert sizes["network_share"] == pytest.approx(2 / 3)


def test_two_tokens_by_hand() -> None:
    """Scores (1, 1) and (0, 1), divided by sqrt(2)."""
    found, leaning = two_tokens(1), math.tanh(1 / math.sqrt(2) / 2)
    assert found["weights"][0] == pytest.approx([0.5, 0.5])
    assert found["weights"][1] == pytest.approx([(1 - leaning) / 2, (1 + leaning) / 2])
    assert found["output"] == pytest.approx(np.array(found["weights"]))  # the values are the two unit vectors
    assert (found["leaning_1"], found["leaning_2"]) == (0, pytest.approx(leaning))


def test_attention_in_heads_is_torch_s() -> None:
    assert distance_from_torch(1, d_model=12, n_heads=3, n_tokens=6)["largest_difference"] < 1e-5


def test_embeddings_and_blocks_balance() -> None:
    depth, sizes = (
        balanced_depth(1, d_model=11, vocab_size=121)["layers"],
        parameters_of_the_lecture(1, 11, 121),
    )
    assert depth == 2
    assert sizes["matrices"] == 2 * 121 * 11 * (1 + 4 / depth)  # of four layers


def test_a_uniform_model_s_perplexity_is_the_vocabulary() -> None:
    assert uniform_baseline(1, 13) == {"loss": pytest.approx(math.log(13)), "perplexity": pytest.approx(13)}


def test_the_entropy_rate_is_that_of_pairs_less_that_of_symbols(folder: Path) -> None:
    """H(x_2 | x_1) = H(x_1, x_2) - H(x_1), computed another way."""
    chain = markov_chain(1)
    pairs = chain.counts[chain.counts > 0] / chain.counts.sum()
    single = chain.stationary[chain.stationary > 0]
    joint = -(pairs * np.log(pairs)).sum() + (single * np.log(single)).sum()
    assert entropy_rate(1) == pytest.approx(joint, abs=1e-12)
    rates = [entropy_rate(order) for order in range(4)]
    assert rates == sorted(rates, reverse=True)


def test_a_model_is_held_against_its_source(folder: Path) -> None:
    found = computed(tiny(studies()["markov-sources"]), folder)
    for order in range(4):
        values = {
            name: found.first(f"order {order}", name) for name in ("entropy_rate", "source_loss", "excess")
        }
        assert values["entropy_rate"] == pytest.approx(entropy_rate(order))
        assert values["source_loss"] == pytest.approx(values["entropy_rate"], abs=0.3)
        assert values["excess"] > 0.05  # three steps are not enough
        assert found.first(f"order {order}", "val_loss") == pytest.approx(
            values["source_loss"] + values["excess"], abs=1e-6
        )
    assert all(verdict.verdict != REPRODUCED for verdict in found.published())


@pytest.mark.parametrize("d_k", [16, 64])
def test_scores_have_the_standard_deviation_of_the_formula(d_k: int) -> None:
    assert drawn_scores(1, d_k, scaled=False)["score_std"] == pytest.approx(d_k**0.5, rel=0.05)
    scaled = drawn_scores(1, d_k, scaled=True)
    assert scaled["score_std"] == pytest.approx(1, rel=0.05)
    assert scaled["saturated"] == 0


def test_the_gradient_is_the_norm_of_the_softmax_s_jacobian() -> None:
    numbers = generator_of(1, "scores 16")
    q, k = torch.randn(N_QUERIES, 16, generator=numbers), torch.randn(N_KEYS, 16, generator=numbers)
    scores = (q @ k.T / 4).double()
    norms = torch.stack([jacobian(lambda s: s.softmax(-1), row).norm() for row in scores[:9]])
    p = scores.softmax(-1)
    every = torch.stack([(torch.diag(row) - torch.outer(row, row)).norm() for row in p])
    torch.testing.assert_close(every[:9], norms)
    found = drawn_scores(1, 16, scaled=True)
    assert found["gradient"] == pytest.approx(every.mean().item())
    assert found["gradient_median"] == pytest.approx(every.median().item())


def test_a_token_s_score_with_itself_is_sqrt_d() -> None:
    apart = self_term(1, d_model=64, n_tokens=32)
    assert apart["self_score"] == pytest.approx(8, rel=0.05)
    assert apart["own_weight"] == pytest.approx(apart["token_weight"], rel=1e-6)
    assert apart["own_weight"] > 0.9
    repeated = self_term(1, d_model=64, n_tokens=32, vocab_size=5)
    assert repeated["own_weight"] < 0.5 < 0.9 < repeated["token_weight"]


def test_exponents_are_slopes_of_logarithms() -> None:
    lengths = [64, 128, 1024, 2048, 4096]
    assert exponent(lengths, [3 * n**2 for n in lengths]) == pytest.approx(2)
    assert exponent(lengths, [10**9, 10**9, *lengths[2:]]) == pytest.approx(1)  # short ones do not count
    assert exponent([8, 16], [1, 2]) == pytest.approx(1)  # where there are no others they do


def test_the_stream_grows_by_what_the_blocks_write(folder: Path) -> None:
    found = computed(
        tiny(studies()["initialisation"], probe={"n_layers": 3, "d_model": 16, "data": {"path": "text.txt"}}),
        folder,
    )
    for label in found.labels:
        assert len(found.first(label, "variance")) == 4
    assert found.first("zero outputs", "growth") == 1
    assert 1 < found.first("GPT-2 with 1/sqrt(2N)", "growth") < found.first("GPT-2", "growth")


def test_without_the_factor_a_block_writes_2n_times_the_variance(folder: Path) -> None:
    arguments = {"n_layers": 2, "d_model": 64, "data": {"path": "text.txt"}, "n_windows": 2}
    plain, scaled = (stream_variance(1, init, **arguments) for init in ("gpt2", "gpt2 scaled"))  # type: ignore[arg-type]
    assert plain["first"] == scaled["first"]
    written = (plain["variance"][1][1] - plain["first"]) / (scaled["variance"][1][1] - scaled["first"])
    assert written == pytest.approx(2 * 2, rel=0.15)
