"""The preset `auto` for labelled texts: what it measures, what it decides, and that it says why."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from clearformer import resolving
from clearformer.auto import MEASURED_BY, Budget, auto, measure
from clearformer.auto.budget import (
    SECONDS,
    SHORTEST_CONTEXT,
    ModelSize,
    block_parameters,
    context_for,
    seconds_of_steps,
)
from clearformer.auto.labelled import (
    BATCH_OF_FEW_STEPS,
    LONGEST,
    MOST_BATCH,
    MOST_PASSES,
    SHAPES,
    batch_for,
    choose,
    hidden_for,
    lr_for,
    wordpiece_dropout_for,
)
from clearformer.auto.measuring import Size, size_of
from clearformer.data import LabelledData
from clearformer.errors import ConfigError, DataError
from clearformer.evaluation.classes.baseline import baseline_seconds
from clearformer.resolving import resolve_run
from clearformer.text import BPETokenizerSpec, WordPieceTokenizerSpec
from clearformer.training.config import RunConfig
from clearformer.training.objectives import ClassificationObjective
from clearformer.training.planning.memory import training_memory
from clearformer.training.planning.run_plan import expected_vocabulary

CORES, GPU = 4e11, 7e14


def budget(
    n_texts: int = 10_000, seconds: float = 60, rate: float = CORES, each: int = 60, longest: int = 200
) -> Budget:
    return Budget(n_texts * each, seconds, rate, memory=16e9, n_texts=n_texts, longest=longest)


@pytest.mark.parametrize("n_texts", [30, 10_000, 3_000_000])
@pytest.mark.parametrize("seconds", [20, 300, 86_400])
@pytest.mark.parametrize("rate", [CORES, GPU])
def test_what_comes_out_is_a_run_that_fits(n_texts: int, seconds: float, rate: float) -> None:
    run = choose(budget(n_texts, seconds, rate)).run

    assert run.train.max_wall_seconds == seconds
    assert run.train.max_seconds is None
    assert run.train.objective.kind == "classification"
    assert 16 * block_parameters(run.model.d_model, run.model.n_layers) < 16e9
    assert isinstance(run.tokenizer, WordPieceTokenizerSpec)
    assert 500 <= run.tokenizer.vocab_size <= 14_000
    assert run.train.max_steps is not None  # a faster machine than foretold reads no more often
    assert run.train.max_steps * run.train.batch_size == pytest.approx(MOST_PASSES * n_texts, abs=MOST_BATCH)
    assert run.train.warmup_steps <= run.train.max_steps / 10


def test_more_time_makes_a_larger_model() -> None:
    sizes = [
        block_parameters(run.model.d_model, run.model.n_layers)
        for run in (choose(budget(3_000_000, seconds)).run for seconds in (20, 300, 3600, 86_400))
    ]

    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[1] < sizes[2] < sizes[3]


def test_few_texts_are_soon_read_often_enough() -> None:
    few, many = choose(budget(2000, 600)), choose(budget(3_000_000, 600))

    assert few.run.train.max_steps == 2000 * MOST_PASSES // BATCH_OF_FEW_STEPS
    assert f"{MOST_PASSES} passes are enough" in few.reasons[-1]
    assert many.run.train.max_steps == 3_000_000 * MOST_PASSES // MOST_BATCH
    assert not any("are enough" in reason for reason in many.reasons)


def test_words_are_cut_anew_where_texts_are_read_often() -> None:
    left_out = [wordpiece_dropout_for(budget(), passes) for passes in (0.1, 3, 5.4, 10, 16)]

    assert left_out == [0, 0, 0.07, 0.21, 0.3]
    few, many = choose(budget(2000, 600)), choose(budget(3_000_000, 600))
    of_bpe = choose(replace(budget(2000, 600), tokenizer=BPETokenizerSpec(vocab_size=500)))

    assert few.run.train.objective == ClassificationObjective(wordpiece_dropout=0.3)
    assert any("passes, WordPiece dropout 0.3" in reason for reason in few.reasons)
    for other in (many, of_bpe):
        assert other.run.train.objective == ClassificationObjective()


def test_tokens_of_long_texts_are_hidden_where_these_are_read_often() -> None:
    hidden = [hidden_for(budget(), passes, 50) for passes in (0.1, 1, 1.25, 1.5, 2, 16)]

    assert hidden == [0, 0, 0.1, 0.25, 0.5, 0.5]
    assert [hidden_for(budget(), 16, tokens_each) for tokens_each in (13, 29, 30)] == [0, 0, 0.5]
    assert [hidden_for(budget(2000), passes, 50) for passes in (2.5, 5, 10)] == [0, 0.28, 0.5]
    assert hidden_for(replace(budget(), is_pretrained=True), 16, 50) == 0
    long = choose(replace(budget(2000, 600), n_bytes=2000 * 260))

    assert long.run.train.objective == ClassificationObjective(wordpiece_dropout=0.3, hidden=0.5)
    assert any("WordPiece dropout 0.3, 50% of the tokens hidden" in reason for reason in long.reasons)


def test_a_run_of_few_steps_takes_more_of_half_the_size() -> None:
    short, long = choose(budget(seconds=20)), choose(budget(100_000, seconds=3600))

    assert (short.run.train.batch_size, long.run.train.batch_size) == (BATCH_OF_FEW_STEPS, MOST_BATCH)
    assert any(f"steps of {BATCH_OF_FEW_STEPS} texts" in reason for reason in short.reasons)


def test_a_step_reads_fewer_texts_where_there_are_few_or_long_ones() -> None:
    """News and questions, of which all or a quarter are learnt from; whole pages; and more texts than were measured."""
    assert [batch_for(n, 52, 30_000) for n in (9000, 2250)] == [32, 16]
    assert [batch_for(2250, 52, n_read) for n_read in (6000, 10_000)] == [8, 16]
    assert [batch_for(n, tokens, 80_000) for n, tokens in ((4900, 13), (1200, 17))] == [64, 32]
    assert [batch_for(n, 13, 20_000) for n in (4900, 1200, 30)] == [32, 32, 16]
    assert [batch_for(n, 256, 1e6) for n in (30, 25_000, 1_000_000)] == [16, 16, 64]


def test_the_rate_is_higher_the_fewer_texts_are_read_within_limits() -> None:
    rates = [lr_for(budget(), 64 * n_steps) for n_steps in (1, 100, 187, 500, 1000, 50_000)]
    assert rates == sorted(rates, reverse=True)
    assert (rates[0], rates[-2], rates[-1]) == (0.01, 0.004, 0.004)
    assert rates[2] == 0.0078


def test_time_is_left_for_the_baseline() -> None:
    uncompiled = replace(budget(seconds=100), compile=False, n_labels=4)
    without = seconds_of_steps(uncompiled, choose(uncompiled).run.tokenizer)
    taken = baseline_seconds(uncompiled.n_bytes, n_labels=4)
    assert 4 < taken < 20
    assert f"{without - taken:.0f} s of it for steps" in choose(uncompiled).reasons[0]


def test_no_time_is_left_for_a_baseline_that_would_take_much_of_it() -> None:
    short = replace(budget(seconds=20), compile=False, n_labels=4)
    without = seconds_of_steps(short, choose(short).run.tokenizer)
    assert f"{without:.0f} s of it for steps" in choose(short).reasons[0]


def test_a_batch_of_long_texts_fits_into_the_memory() -> None:
    given = replace(budget(1_000_000, seconds=86_400, each=1000, longest=2000), memory=4e9)
    run = choose(given).run
    model = run.model.replace(vocab_size=expected_vocabulary(run), n_classes=2)

    assert run.train.batch_size == MOST_BATCH
    assert training_memory(model, run.train.replace(dtype="float32")).peak < 4e9
    assert choose(budget()).run.train.grad_accum_steps == 1


def test_what_decides_the_size_is_said() -> None:
    of_time = choose(budget())
    of_memory = choose(replace(budget(3_000_000, 86_400, GPU), memory=2e8))

    assert any("scaled with the square root of the FLOPs" in reason for reason in of_time.reasons)
    assert any("limited by the texts or the memory" in reason for reason in of_memory.reasons)


def test_few_texts_are_learnt_by_one_or_two_layers_and_wider_ones() -> None:
    few, many = (choose(replace(budget(5000, 180), n_bytes=n)).run.model for n in (250_000, 2_000_000))

    assert few.n_layers == 2 < many.n_layers
    fewest = choose(replace(budget(1200, 180), n_bytes=62_000)).run.model
    assert fewest.n_layers == 1
    assert fewest.d_model > 128
    assert few.d_model > many.d_model
    given = choose(replace(budget(5000, 180), n_bytes=250_000, given=ModelSize(n_layers=3)))
    assert given.run.model.n_layers == 3


def test_few_texts_get_a_small_model_however_long_they_may_be_read() -> None:
    few, many = (choose(budget(n, 86_400, GPU)) for n in (2000, 3_000_000))

    assert block_parameters(few.run.model.d_model, few.run.model.n_layers) <= 50 * 2000 * 60
    assert any("limited by the texts or the memory" in reason for reason in few.reasons)
    assert (many.run.model.d_model, many.run.model.n_layers) == SHAPES[-1]
    assert any("these rules know no larger model" in reason for reason in many.reasons)


def test_a_context_holds_texts_of_twice_the_tokens_that_their_bytes_let_expect() -> None:
    few_words = WordPieceTokenizerSpec(vocab_size=500)  # about two bytes a token
    assert context_for(62, few_words, most=256) == 64
    assert context_for(63, few_words, most=256) == 128
    assert context_for(100_000, few_words, most=256) == 256
    assert context_for(100, WordPieceTokenizerSpec(vocab_size=14_000), most=256) == 64


def test_texts_are_cut_where_they_are_longer_than_usual() -> None:
    short, long = choose(budget(longest=20)).run, choose(budget(longest=100_000)).run

    assert short.model.max_seq_len == SHORTEST_CONTEXT
    assert long.model.max_seq_len == LONGEST
    assert isinstance(long.data, LabelledData)
    assert long.data.too_long == "truncate"


# --- as a preset ------------------------------------------------------------------------------------------


def write_texts(folder: Path) -> str:
    file = folder / "mine.csv"
    rows = [f"number {i} is odd,odd" if i % 2 else f"number {i} is even,even" for i in range(200)]
    file.write_text("text,label\n" + "\n".join(rows) + "\n")
    return str(file)


def test_the_texts_of_training_are_counted(tmp_path: Path) -> None:
    data = LabelledData(path=write_texts(tmp_path), val_fraction=0.5)
    size = size_of(data)

    wanted = auto("labelled").replace(data=data)
    wanted = wanted.replace(train=wanted.train.replace(device="cpu", dtype="float32", max_wall_seconds=1.0))
    assert size.n_labels == measure(wanted).n_labels == 2
    assert 70 < size.n_texts < 130
    assert size.longest == len("number 198 is even")
    assert size.n_bytes == pytest.approx(17 * size.n_texts, rel=0.05)


def test_of_a_long_text_no_more_counts_than_a_context_may_hold(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("text,label\n" + "good,a\nbad,b\n" * 50 + "x" * 100_000 + ",a\n")
    (tmp_path / "val.csv").write_text("text,label\nfair,a\n")
    given = LabelledData(path=str(file), val_path=str(tmp_path / "val.csv"))
    assert size_of(given, most_bytes=1000) == Size(50 * (4 + 3) + 1000, 101, longest=1000, n_labels=2)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ([], 500),
        (["tokenizer.lowercase=false"], 500),
        (["tokenizer=wordpiece"], 500),
        (["tokenizer.vocab_size=700"], 700),
        (["tokenizer.vocab_size=14000"], 14_000),  # that of the typical run, by which wishes were told before
    ],
)
def test_a_vocabulary_is_chosen_unless_its_size_is_requested(
    tmp_path: Path, given: list[str], size: int, caplog: pytest.LogCaptureFixture
) -> None:
    data = ["auto", "data.kind=labelled", f"data.path={write_texts(tmp_path)}", "data.val_fraction=0.5"]
    with caplog.at_level(logging.INFO):
        run = resolve_run([*data, *given, "train.max_wall_seconds=20"], None)
    assert isinstance(run.tokenizer, WordPieceTokenizerSpec)
    assert run.tokenizer.vocab_size == size
    assert run.tokenizer.lowercase == ("tokenizer.lowercase=false" not in given)
    assert f"tokens: wordpiece with a vocabulary of {size:,}, " in caplog.text


def test_a_setting_has_to_fit_what_is_chosen_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_48_texts(wanted: RunConfig, said: object) -> RunConfig:
        assert wanted.train.batch_size % 48  # of the typical run, which 48 parts would not fit
        return wanted.replace(train=wanted.train.replace(batch_size=48))

    monkeypatch.setattr(resolving, "auto_for", of_48_texts)
    data = ["auto", "data.kind=labelled", f"data.path={write_texts(tmp_path)}"]
    assert resolve_run([*data, "train.grad_accum_steps=48"], None).train.grad_accum_steps == 48
    with pytest.raises(ConfigError, match=r"does not divide train\.batch_size=48"):
        resolve_run([*data, "train.grad_accum_steps=64"], None)


def test_every_setting_that_is_measured_by_reaches_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RunConfig] = []
    monkeypatch.setattr(resolving, "auto_for", lambda wanted, said: seen.append(wanted) or wanted)
    given = {
        "max_seconds": 7.0,
        "max_wall_seconds": 9.0,
        "device": "cpu",
        "dtype": "float32",
        "compile": False,
    }
    settings = [f"train.{name}={str(value).lower()}" for name, value in given.items()]
    data = ["auto", "data.kind=labelled", f"data.path={write_texts(tmp_path)}", "tokenizer=char"]
    resolve_run([*data, *settings, "train.lr=0.02"], None)
    [wanted] = seen
    assert {name: getattr(wanted.train, name) for name in given} == given
    assert {f"train.{name}" for name in (*given, "pretrained")} == MEASURED_BY
    assert (wanted.tokenizer.kind, wanted.data.path) == ("char", str(tmp_path / "mine.csv"))
    assert wanted.train.lr != 0.02


@pytest.mark.parametrize("objective", ["train.objective=masked", "train.objective.kind=masked"])
def test_another_objective_is_refused_by_its_name(tmp_path: Path, objective: str) -> None:
    with pytest.raises(
        ConfigError, match=r"train.objective=masked: of these data, auto has rules for classif"
    ):
        resolve_run(["auto", "data.kind=labelled", f"data.path={write_texts(tmp_path)}", objective], None)


def test_the_data_decide_what_is_trained(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arguments = [
        "auto",
        "data.kind=labelled",
        f"data.path={write_texts(tmp_path)}",
        "train.max_wall_seconds=20",
    ]

    with caplog.at_level(logging.INFO):
        run = resolve_run([*arguments, "train.device=cpu", "train.dtype=float32", "train.lr=0.02"], None)

    assert run.train.objective.kind == "classification"
    assert run.model.pooling == "mean"
    assert run.train.lr == 0.02
    assert run.train.max_steps is not None
    assert "auto: tokens: wordpiece with a vocabulary of 500, 1" in caplog.text


@pytest.mark.parametrize("kind", ["char", "bpe", "unigram"])
def test_tokens_of_another_kind_leave_no_matches_out(tmp_path: Path, kind: str) -> None:
    settings = ["auto", "data.kind=labelled", f"data.path={write_texts(tmp_path)}", "data.val_fraction=0.5"]
    run = resolve_run([*settings, f"tokenizer={kind}", "train.max_wall_seconds=20"], None)
    assert run.tokenizer.kind == kind
    assert isinstance(run.train.objective, ClassificationObjective)
    assert run.train.objective.wordpiece_dropout == 0


def test_seconds_of_training_are_in_place_of_the_preset_s_own_limit(tmp_path: Path) -> None:
    data = ["auto", "data.kind=labelled", f"data.path={write_texts(tmp_path)}", "data.val_fraction=0.5"]
    longer = resolve_run([*data, "train.max_seconds=3600"], None).train
    assert (longer.max_seconds, longer.max_wall_seconds) == (3600, 3600)
    both = resolve_run([*data, "train.max_seconds=3600", "train.max_wall_seconds=400"], None).train
    assert (both.max_seconds, both.max_wall_seconds) == (3600, 400)
    neither = resolve_run([*data, "train.max_seconds=none"], None).train
    assert (neither.max_seconds, neither.max_wall_seconds) == (None, SECONDS)


@pytest.mark.parametrize(
    ("wall", "training", "seconds"),
    [(None, 3600.0, 3600), (20.0, 3600.0, 20), (20.0, 5.0, 5), (None, None, SECONDS)],
)
def test_the_time_is_that_of_the_limits_that_are_given(
    tmp_path: Path, wall: float | None, training: float | None, seconds: float
) -> None:
    wanted = auto("labelled").replace(data=LabelledData(path=write_texts(tmp_path), val_fraction=0.5))
    train = wanted.train.replace(max_wall_seconds=wall, max_seconds=training, max_steps=9)
    assert measure(wanted.replace(train=train)).seconds == seconds


def test_texts_that_are_not_there() -> None:
    with pytest.raises(DataError, match="there is no such file"):
        resolve_run(["auto", "data.kind=labelled", "data.path=/nowhere.csv"], None)


def test_of_texts_that_are_truncated_only_what_is_read_takes_time() -> None:
    long, longer = (choose(budget(2_000, 300, each=each, longest=40_000)).run for each in (2_000, 10_000))
    assert long.model.max_seq_len == longer.model.max_seq_len == LONGEST
    assert longer.train.warmup_steps == pytest.approx(long.train.warmup_steps, rel=0.08)
    assert long.train.warmup_steps > 10
