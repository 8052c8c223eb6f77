"""The preset `auto` for pairs: what it measures, what it decides, and that it says why."""

import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest

from clearformer.auto import Budget
from clearformer.auto.budget import OF_SHORT_TEXTS_PER_SECOND, seconds_of_steps
from clearformer.auto.measuring import Size, size_of
from clearformer.auto.pairs import (
    LONGEST,
    MOST_PASSES,
    PARAMETERS_PER_BYTE,
    SHAPES,
    block_parameters,
    choose,
)
from clearformer.config import to_toml
from clearformer.data import PairsData
from clearformer.errors import DataError
from clearformer.model import build_on_meta
from clearformer.resolving import resolve_run
from clearformer.text import BPETokenizerSpec, CharTokenizerSpec
from clearformer.training.config import RunConfig
from clearformer.training.objectives import TranslationObjective
from clearformer.training.optim.optimizers import Muon
from clearformer.training.planning.memory import training_memory
from clearformer.training.planning.run_plan import expected_vocabulary

CORES, GPU = 4e11, 7e14
CAPTIONS = 3_900_000


def budget(n_bytes: int = CAPTIONS, seconds: float = 300, rate: float = CORES, longest: int = 250) -> Budget:
    return Budget(n_bytes, seconds, rate, memory=16e9, n_texts=n_bytes // 130, longest=longest)


def batch_tokens(run: RunConfig) -> int:
    assert isinstance(run.train.objective, TranslationObjective)
    return run.train.objective.batch_tokens


@pytest.mark.parametrize("n_bytes", [20_000, CAPTIONS, 10**9])
@pytest.mark.parametrize("seconds", [20, 300, 86_400])
@pytest.mark.parametrize("rate", [CORES, GPU])
def test_what_comes_out_is_a_run_that_fits(n_bytes: int, seconds: float, rate: float) -> None:
    run = choose(budget(n_bytes, seconds, rate)).run

    assert run.train.max_wall_seconds == seconds
    assert run.train.max_seconds is None
    assert run.model.family == "encoder-decoder"
    assert 0 <= run.model.dropout <= 0.3
    assert run.train.optimizer == Muon(adam_lr=0.01, cautious=True)
    shape = run.model.d_model, run.model.n_layers
    assert shape == SHAPES[0] or block_parameters(*shape) <= PARAMETERS_PER_BYTE * n_bytes
    assert isinstance(run.tokenizer, BPETokenizerSpec)
    assert 500 <= run.tokenizer.vocab_size <= 32_000


def test_the_parameters_of_the_blocks_are_those_of_the_model() -> None:
    """But for the norms, which have none here."""
    run = choose(budget()).run
    model = build_on_meta(run.model.replace(vocab_size=100))
    in_blocks = sum(each.numel() for each in model.parameters()) - 100 * run.model.d_model

    assert in_blocks == pytest.approx(block_parameters(run.model.d_model, run.model.n_layers), rel=0.01)


def test_more_time_makes_more_of_everything_until_the_pairs_allow_no_more() -> None:
    runs = [choose(budget(seconds=s)).run for s in (20, 60, 300, 3600, 86_400)]
    sizes = [block_parameters(run.model.d_model, run.model.n_layers) for run in runs]
    vocabularies = [getattr(run.tokenizer, "vocab_size", 0) for run in runs]

    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2]
    assert vocabularies == sorted(vocabularies)
    assert vocabularies[0] < vocabularies[3]
    assert batch_tokens(runs[0]) < batch_tokens(runs[3])
    assert runs[0].model.dropout == 0
    assert runs[3].model.dropout > 0.1


def test_a_step_too_small_to_be_faster_is_not_taken() -> None:
    with_time, in_haste = choose(budget(seconds=20)), choose(budget(seconds=20, rate=CORES / 4))

    assert (with_time.run.model.d_model, with_time.run.model.n_layers) == (128, 1)
    assert any(
        "with fewer, steps would not be faster in proportion" in reason for reason in with_time.reasons
    )
    assert (in_haste.run.model.d_model, in_haste.run.model.n_layers) == (64, 1)


def test_few_pairs_get_two_layers_where_there_are_minutes_for_them() -> None:
    short, long = (choose(budget(CAPTIONS // 4, seconds)).run.model for seconds in (60, 180))
    assert [(each.d_model, each.n_layers) for each in (short, long)] == [(128, 1), (128, 2)]


def test_a_hundred_passes_are_enough() -> None:
    run = choose(budget(20_000, seconds=3600)).run
    n_tokens = 20_000 / 2 / 2.0  # of each side, 500 by BPE

    assert run.train.max_steps is not None
    assert run.train.max_steps * batch_tokens(run) == pytest.approx(MOST_PASSES * n_tokens, rel=0.02)
    assert any("100 passes are enough" in reason for reason in choose(budget(20_000, seconds=3600)).reasons)
    captions = choose(budget())
    assert captions.run.train.max_steps is not None  # a faster machine than foretold reads no more often
    assert not any("are enough" in reason for reason in captions.reasons)


def test_the_warm_up_of_a_few_steps_ends_before_them() -> None:
    run = choose(Budget(300, 20, CORES, memory=16e9, n_texts=3, longest=50)).run
    assert run.train.max_steps is not None
    assert run.train.warmup_steps < run.train.max_steps


def test_no_time_is_set_aside_for_compiling_that_does_not_pay() -> None:
    choice = choose(budget(seconds=300))
    preparing = CAPTIONS / OF_SHORT_TEXTS_PER_SECOND

    assert seconds_of_steps(budget(seconds=300), choice.run.tokenizer) == pytest.approx(
        300 - 6 - 15 - preparing
    )
    assert choice.reasons[0].startswith(
        f"300 s of wall-clock time, {300 - 6 - preparing:.0f} s of it for steps"
    )


def test_the_logits_of_a_batch_fit_into_the_memory() -> None:
    large = [
        choose(Budget(10**9, 86_400, GPU, memory, n_texts=10**7, longest=250)).run for memory in (1e11, 2e9)
    ]

    assert batch_tokens(large[0]) > 10_000
    assert batch_tokens(large[1]) * getattr(large[1].tokenizer, "vocab_size", 0) * 12 < 1.01e9


def test_a_batch_of_long_pairs_fits_into_the_memory() -> None:
    run = choose(replace(budget(10**8, seconds=86_400, rate=2e11, longest=2000), memory=4e9)).run
    model = run.model.replace(vocab_size=expected_vocabulary(run), n_layers=2)
    whole = run.train.replace(dtype="float32", grad_accum_steps=1)

    layers = run.model.n_layers / 2  # further ones are alike
    assert layers * training_memory(model, whole).activations > 8e9
    assert layers * training_memory(model, run.train.replace(dtype="float32")).activations < 4e9
    assert choose(budget()).run.train.grad_accum_steps == 1


def test_long_pairs_have_room_as_far_as_they_are_of_a_usual_length() -> None:
    usual, long, longest = (choose(budget(longest=n)).run for n in (100, 1000, 1_000_000))

    assert usual.model.max_seq_len == 64
    assert usual.model.max_seq_len < long.model.max_seq_len <= LONGEST
    assert longest.model.max_seq_len == LONGEST
    assert isinstance(longest.data, PairsData)
    assert longest.data.max_length == LONGEST - 1


def test_the_other_decisions_follow_from_a_tokenizer_that_somebody_asks_for() -> None:
    given = Budget(CAPTIONS, 300, CORES, memory=16e9, n_texts=30_000, tokenizer=CharTokenizerSpec())

    assert choose(given).run.tokenizer == CharTokenizerSpec()
    assert any("tokens: char, 30,000 pairs" in reason for reason in choose(given).reasons)


# --- as a preset ------------------------------------------------------------------------------------------


def write_pairs(folder: Path, n: int = 300) -> list[str]:
    (folder / "a.txt").write_text("".join(f"the number {i}\n" for i in range(n)))
    (folder / "b.txt").write_text("".join(f"le nombre {i} é\n" for i in range(n)))
    return [f"data.source={folder / 'a.txt'}", f"data.target={folder / 'b.txt'}"]


def test_pairs_are_counted_by_those_of_training(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    size = size_of(
        PairsData(source=str(tmp_path / "a.txt"), target=str(tmp_path / "b.txt"), val_fraction=0.5)
    )

    assert size == Size(size.n_bytes, size.n_texts, longest=len("le nombre 299 é".encode()))
    assert 100 < size.n_texts < 200
    assert size.n_bytes == pytest.approx(
        size.n_texts * (len("the number 100") + len("le nombre 100 é") + 1), rel=0.05
    )


def test_the_data_decide_what_is_trained(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arguments = ["auto", *write_pairs(tmp_path), "train.max_wall_seconds=20", "train.device=cpu"]

    with caplog.at_level(logging.INFO):
        run = resolve_run([*arguments, "train.dtype=float32", "model.dropout=0.4"], None)

    assert run.train.objective.kind == "translation"
    assert run.model.dropout == 0.4
    assert run.train.max_wall_seconds == 20
    assert run.train.max_steps is not None
    assert "pairs, 0.00" in caplog.text


def test_pairs_that_no_context_holds_do_not_count(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    files = {"source": str(tmp_path / "a.txt"), "target": str(tmp_path / "b.txt"), "val_fraction": 0.5}
    all_pairs = size_of(PairsData(**files))
    for name in ("a.txt", "b.txt"):
        with (tmp_path / name).open("a") as file:
            file.writelines(f"{i} {'x' * 5000}\n" for i in range(50))
    assert size_of(PairsData(**files), most_bytes=4096) == all_pairs
    assert size_of(PairsData(**files)).longest > 5000
    assert size_of(PairsData(**files), most_bytes=3).longest > 5000  # where there are no others


def test_the_longest_pair_follows_the_context(tmp_path: Path) -> None:
    data = ["auto", *write_pairs(tmp_path), "train.max_wall_seconds=20"]

    def limits(*settings: str) -> tuple[int, int | None]:
        run = resolve_run([*data, *settings], None)
        assert isinstance(run.data, PairsData)
        return run.model.max_seq_len, run.data.max_length

    assert limits() == (64, 63)
    assert limits("model.max_seq_len=512") == limits("model.max_seq_len=512.0") == (512, 511)
    assert limits("model.max_seq_len=512", "data.max_length=100") == (512, 100)
    assert limits("model.max_seq_len=512", "data.max_length=none") == (512, None)


def test_an_earlier_run_s_model_and_tokens_are_planned_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path))
    earlier = resolve_run(["translate", "tokenizer=char", "model.max_seq_len=48", "model.d_model=96"], None)
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / "config.toml").write_text(to_toml(earlier))
    with caplog.at_level(logging.INFO):
        run = resolve_run(
            ["auto", *write_pairs(tmp_path), "train.max_wall_seconds=20", "train.pretrained=earlier"], None
        )
    assert (run.tokenizer.kind, run.model.d_model, run.model.max_seq_len) == ("char", 96, 48)
    assert isinstance(run.data, PairsData)
    assert run.data.max_length == 47
    assert "auto: tokens: char, " in caplog.text
    assert "replaced" not in caplog.text
    assert re.search(r"auto: 4 \+ 4 layers of width 96, .*: d_model and n_layers as given", caplog.text)
    assert re.search(r"auto: the model and its tokens are those of .*earlier\n", caplog.text)


def test_pairs_that_are_not_there() -> None:
    with pytest.raises(DataError, match="there is no such file"):
        resolve_run(["auto", "data.source=/nowhere.txt", "data.target=/nowhere.txt"], None)


@pytest.mark.parametrize("size", [225_985, 225_986, 225_987])
def test_the_end_is_told_whatever_a_token_has_in_bytes(size: int) -> None:
    """With 225,987 bytes a hundred passes were 99.99999999999999 of them."""
    chosen = choose(Budget(n_bytes=size, n_texts=3000, longest=200, seconds=36_000, rate=5e13, memory=64e9))
    assert any("100 passes are enough" in reason for reason in chosen.reasons)
