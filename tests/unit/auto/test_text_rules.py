"""The preset `auto` for texts: what it measures, what it decides, and that it says why."""

import gzip
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from clearformer import resources
from clearformer.auto import Budget, measure, measuring, text
from clearformer.auto.budget import (
    SECONDS_BESIDE_STEPS,
    bytes_per_token,
    seconds_of_steps,
    words_for,
)
from clearformer.auto.measuring import memory_of, text_bytes
from clearformer.auto.text import choose
from clearformer.auto.vocabulary import Trial
from clearformer.data import TextData
from clearformer.data.reading import GZIP_MAGIC, MOST_UNPACKED, estimated_text_bytes
from clearformer.data.text.sources import open_source
from clearformer.errors import DataError
from clearformer.resolving import resolve_run
from clearformer.text import BPETokenizerSpec, CharTokenizerSpec, GPT2TokenizerSpec
from clearformer.training.config import RunConfig, TrainConfig
from clearformer.training.planning.memory import training_memory
from clearformer.training.planning.run_plan import expected_vocabulary

CORES, GPU = 7.8e11, 7e14
SHAKESPEARE, GIGABYTE, SMALL = 1_115_394, 10**9, 50_000
EVERYWHERE = [
    Budget(n_bytes, seconds, rate, memory=16e9)
    for n_bytes in (SMALL, SHAKESPEARE, 30_000_000, GIGABYTE)
    for seconds in (20, 60, 300, 3600, 86_400)
    for rate in (CORES, GPU)
]


def budget(n_bytes: int = SHAKESPEARE, seconds: float = 300, rate: float = CORES) -> Budget:
    return Budget(n_bytes, seconds, rate, memory=16e9)


def n_parameters(run: RunConfig) -> int:
    return 12 * run.model.n_layers * run.model.d_model**2


def batch_tokens(run: RunConfig) -> int:
    return run.train.batch_size * run.model.max_seq_len


# --- what is decided --------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", EVERYWHERE, ids=str)
def test_what_comes_out_is_a_run_that_fits(given: Budget) -> None:
    run = choose(given).run

    assert run.train.max_wall_seconds == given.seconds
    assert run.train.max_seconds is None
    assert run.train.batch_size % run.train.grad_accum_steps == 0
    assert 0 <= run.model.dropout <= text.MOST_DROPOUT
    assert run.model.max_seq_len * 10 < given.n_bytes
    assert 16 * n_parameters(run) < given.memory
    reads = given.seconds * given.rate * text.UTILISATION / (6 * n_parameters(run))
    assert reads / batch_tokens(run) > 100  # steps enough to learn anything


def test_time_for_preparing_and_compiling_is_set_aside() -> None:
    def left(given: Budget) -> float:
        return seconds_of_steps(given, CharTokenizerSpec())

    preparing = SHAKESPEARE / 60e6
    assert left(budget(seconds=60)) == pytest.approx(60 - 6 - 15 - preparing)
    assert left(budget(seconds=20)) == pytest.approx(20 - 6 - preparing)
    assert left(replace(budget(seconds=60), compile=False)) == pytest.approx(60 - 6 - preparing)
    assert left(replace(budget(seconds=20), compile=True)) == 10  # at least half
    words = seconds_of_steps(budget(50_000_000, 300), BPETokenizerSpec())
    assert words == 300 - 6 - 15 - 10
    uncompiled = replace(budget(seconds=60), compile=False)
    steps = "about ([0-9,]+) steps"
    told = [re.search(steps, "\n".join(choose(b).reasons)) for b in (budget(seconds=60), uncompiled)]
    compiled_steps, uncompiled_steps = (float(each[1].replace(",", "")) for each in told if each)
    assert uncompiled_steps < compiled_steps


def test_the_learning_rate_falls_with_the_time_between_two_bounds() -> None:
    rates = [choose(budget(seconds=s)).run.train.lr for s in (1, 20, 60, 300, 86_400, 864_000)]

    assert rates == sorted(rates, reverse=True)
    assert rates[0] == text.MOST_LR
    assert rates[1] > rates[2] > rates[3] > rates[4]
    assert rates[-1] == text.LEAST_LR


def test_more_time_makes_a_larger_model_until_the_text_allows_no_more() -> None:
    sizes = [n_parameters(choose(budget(seconds=s)).run) for s in (20, 60, 300, 3600, 86_400)]

    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2] < sizes[3]
    assert max(sizes) < 1.5 * text.PARAMETERS_PER_BYTE * SHAKESPEARE


def test_a_hundred_times_the_time_makes_about_ten_times_the_parameters() -> None:
    """Hoffmann et al. 2022; about, because heads and layers are whole."""
    small, large = (n_parameters(choose(budget(GIGABYTE, s)).run) for s in (864, 86_400))

    assert large / small == pytest.approx(10, rel=0.4)


def test_a_faster_machine_is_as_more_time() -> None:
    slow, fast = (choose(budget(GIGABYTE, s, r)).run for s, r in ((600, CORES), (60, 10 * CORES)))

    assert slow.model == fast.model
    assert batch_tokens(slow) == batch_tokens(fast)


@pytest.mark.parametrize("n_bytes", [1, 2, 20, 700, 7_000])
def test_the_smallest_texts_are_read_often_too_in_many_small_steps(n_bytes: int) -> None:
    """What is too small for any run is refused when it is read, which says so."""
    run = choose(budget(n_bytes, seconds=2 + SECONDS_BESIDE_STEPS)).run

    assert run.train.max_steps is not None
    assert isinstance(run.tokenizer, CharTokenizerSpec)
    if n_bytes >= 200:  # a step has a window of 64 at least
        assert run.train.max_steps >= 270
        assert run.train.max_steps * batch_tokens(run) == pytest.approx(text.MOST_PASSES * n_bytes, rel=0.01)


@pytest.mark.parametrize(
    ("passes", "dropout"), [(0.5, 0), (3, 0), (6, 0.03), (12, 0.08), (44, 0.2), (100, 0.29)]
)
def test_dropout_grows_with_the_passes(passes: float, dropout: float) -> None:
    assert text.dropout_for(passes, 4e5) == dropout
    assert text.dropout_for(passes, 1e5) == dropout


@pytest.mark.parametrize(("passes", "rate"), [(0.1, 0.02), (12, 0.02), (24, 0.014), (48, 0.01), (99, 0.01)])
def test_a_text_that_is_read_many_times_is_learned_at_a_lower_rate(passes: float, rate: float) -> None:
    assert text.lr_for(1.0, passes) == rate


def test_the_small_text_of_a_minute_gets_half_the_rate_of_a_large_one() -> None:
    small, large = (choose(budget(n_bytes, 60)).run.train for n_bytes in (100_000, 2_000_000))
    assert small.lr == pytest.approx(large.lr / 2, rel=0.05)


@pytest.mark.parametrize(
    ("passes", "n_parameters", "dropout"),
    [(3, 8e5, 0.01), (3, 1.8e6, 0.03), (5, 1.8e6, 0.06), (5, 1e9, 0.06), (1, 1e9, 0), (100, 1e7, 0.3)],
)
def test_larger_models_memorise_sooner(passes: float, n_parameters: float, dropout: float) -> None:
    assert text.dropout_for(passes, n_parameters) == dropout


def test_a_larger_model_that_reads_the_text_no_more_often_gets_dropout() -> None:
    smaller, larger = (choose(budget(SHAKESPEARE, seconds, 1.78e11)).run for seconds in (100, 300))

    assert (smaller.model.n_layers, smaller.model.dropout) == (2, 0)
    assert (larger.model.n_layers, larger.model.dropout) == (4, 0.04)


def test_many_passes_over_a_small_text_call_for_dropout_and_an_end() -> None:
    large, small = choose(budget(GIGABYTE)).run, choose(budget(SMALL)).run

    assert large.model.dropout == 0
    assert large.train.max_steps is None
    assert small.model.dropout == 0.29
    assert small.train.max_steps is not None
    assert small.train.max_steps * batch_tokens(small) == pytest.approx(text.MOST_PASSES * SMALL, rel=0.01)


def test_more_parts_of_words_are_learned_where_there_is_text_and_time_for_them() -> None:
    assert isinstance(choose(budget(20_000)).run.tokenizer, CharTokenizerSpec)
    assert choose(budget(100_000)).run.tokenizer == BPETokenizerSpec(vocab_size=512)
    assert choose(budget(SHAKESPEARE, 86_400)).run.tokenizer == BPETokenizerSpec(vocab_size=1024)
    assert choose(budget(10_000_000, 60)).run.tokenizer == BPETokenizerSpec(vocab_size=1024)
    assert (
        choose(budget(GIGABYTE, 60)).run.tokenizer == CharTokenizerSpec()
    )  # words would take minutes to find
    assert choose(budget(GIGABYTE, 86_400)).run.tokenizer == BPETokenizerSpec(vocab_size=16_384)


def test_the_other_decisions_follow_from_a_tokenizer_that_somebody_asks_for() -> None:
    own = choose(budget(SHAKESPEARE, 300))
    asked = choose(replace(budget(SHAKESPEARE, 300), tokenizer=CharTokenizerSpec()))

    assert asked.run.tokenizer == CharTokenizerSpec()
    assert asked.run.model.dropout < own.run.model.dropout  # fewer passes over more tokens
    assert any("tokens: char, 1.12 MB" in reason for reason in asked.reasons)
    assert any("bpe with a vocabulary of 1,024, 1.12 MB" in reason for reason in own.reasons)


@pytest.mark.parametrize(("size", "bytes_each"), [(512, 1.94), (1024, 2.46), (4096, 3.28)])
def test_bytes_of_a_token_are_about_those_of_english(size: int, bytes_each: float) -> None:
    assert bytes_per_token(BPETokenizerSpec(vocab_size=size)) == pytest.approx(bytes_each, rel=0.05)
    assert bytes_per_token(CharTokenizerSpec()) == 1


def test_a_batch_that_does_not_fit_is_taken_in_parts() -> None:
    roomy = Budget(GIGABYTE, 86_400, GPU, memory=4e11)
    tight = Budget(GIGABYTE, 86_400, GPU, memory=3e10)

    assert choose(roomy).run.train.grad_accum_steps < choose(tight).run.train.grad_accum_steps


def test_the_logits_of_a_large_vocabulary_fit_into_the_memory() -> None:
    run = choose(Budget(GIGABYTE, 3600, 1e12, memory=4e9, tokenizer=GPT2TokenizerSpec())).run
    model = run.model.replace(vocab_size=expected_vocabulary(run))

    assert training_memory(model, run.train.replace(dtype="float32")).peak < 4e9


@pytest.mark.parametrize("seconds", [20, 300, 86_400])
def test_a_small_text_holds_out_a_tenth(seconds: float) -> None:
    assert choose(budget(seconds=seconds)).run.data.val_fraction == 0.1


def test_a_long_text_holds_out_what_is_soon_read() -> None:
    """The whole of a tenth of 1 GB would take hours after 20 seconds of training."""
    found = [choose(budget(GIGABYTE, seconds, CORES)) for seconds in (20, 86_400)]
    shares = [choice.run.data.val_fraction or 0.0 for choice in found]

    assert shares[0] == pytest.approx(text.LEAST_HELD_OUT / GIGABYTE)
    assert shares[0] < shares[1] < 0.1
    assert any("held out: 0.0002 of the text" in reason for reason in found[0].reasons)


def test_every_decision_has_its_reason() -> None:
    choice = choose(budget(SMALL))
    told = "\n".join(choice.reasons)

    assert "300 s of wall-clock time, 279 s of it for steps, at 0.4 of 780 GFLOP/s" in told
    assert f"{choice.run.model.n_layers} layers of width {choice.run.model.d_model}" in told
    assert "M, limited by the text or the memory" in told
    assert "100.0 passes over the text: dropout 0.29" in told
    assert "100 passes are enough" in told


# --- what is measured -------------------------------------------------------------------------------------


def test_a_packed_file_counts_as_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ä" * 50)
    with gzip.open(tmp_path / "b.txt.gz", "wb") as file:
        file.write(b"words and more words " * 9)

    assert text_bytes(TextData(path=str(tmp_path / "a.txt"))) == 100
    assert text_bytes(TextData(path=str(tmp_path))) == 100 + 9 * 21
    unnamed = (tmp_path / "b.txt.gz").rename(tmp_path / "packed")  # without .gz, as it is read
    assert text_bytes(TextData(path=str(unnamed))) == 9 * 21


@pytest.mark.parametrize("n_lines", [100, 20_000])  # read whole, and estimated by the first two megabytes
@pytest.mark.parametrize("packed", [False, True])
def test_of_json_lines_the_text_counts(tmp_path: Path, n_lines: int, packed: bool) -> None:
    lines = "".join(f'{{"text": "number {n:05}", "other": "{"x" * 300}"}}\n' for n in range(n_lines)).encode()
    path = tmp_path / ("a.jsonl.gz" if packed else "a.jsonl")
    path.write_bytes(gzip.compress(lines) if packed else lines)
    assert text_bytes(TextData(path=str(path))) == pytest.approx(
        12 * n_lines, rel=0.01 if n_lines > 100 else 0
    )


def test_a_packed_file_is_measured_by_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "zeros.gz").write_bytes(gzip.compress(b"0" * (3 * MOST_UNPACKED)))
    assert text_bytes(TextData(path=str(tmp_path / "zeros.gz"))) == pytest.approx(3 * MOST_UNPACKED, rel=0.02)
    one, other = (gzip.compress(f"text {n} ".encode() * 900) for n in range(2))  # as `cat one.gz other.gz`
    (tmp_path / "both.gz").write_bytes(one + other)
    assert text_bytes(TextData(path=str(tmp_path / "both.gz"))) == pytest.approx(2 * 7 * 900, rel=0.05)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone.txt"):  # a folder stands for a file without permission
        with pytest.raises(DataError, match=rf"^{path}: cannot be read: "):
            estimated_text_bytes(path, "text")


def test_a_damaged_gzip_file_is_reported_by_reading_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(GZIP_MAGIC + b"no more than two bytes of it are right")
    damaged = TextData(path=str(tmp_path / "a.txt"))
    assert text_bytes(damaged) == 40
    with pytest.raises(DataError, match=r"a\.txt"):
        list(open_source(damaged).documents())


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ([], "char"),
        (["tokenizer.vocab_size=1024"], "bpe with a vocabulary of 1,024"),
        (["tokenizer=bpe"], "bpe with a vocabulary of 512"),
    ],
)
def test_tokens_that_equal_the_typical_ones_are_requested_all_the_same(
    tmp_path: Path, given: list[str], tokens: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be\n" * 1000)
    with caplog.at_level(logging.INFO):
        run = resolve_run(
            ["auto", f"data.path={tmp_path / 'a.txt'}", "train.max_wall_seconds=20", *given], None
        )
    assert f"auto: tokens: {tokens}, " in caplog.text
    assert words_for(run.tokenizer) == tokens


def test_held_out_files_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 50)
    (tmp_path / "b.txt").write_text("b" * 5000)
    (tmp_path / "c.txt").write_text("b" * 5000)
    given = {"val_path": str(tmp_path / "b.txt"), "test_path": str(tmp_path / "c.txt")}
    assert text_bytes(TextData(path=str(tmp_path / "a.txt"), **given)) == 50


def test_files_without_a_byte_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(DataError, match=r"there is no text in it"):
        text_bytes(TextData(path=str(tmp_path)))


def test_a_container_has_the_memory_that_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = memory_of(torch.device("cpu"))
    monkeypatch.setattr(resources, "memory_limit", lambda: 1e8)
    assert memory_of(torch.device("cpu")) == 1e8 < installed


def test_a_built_in_text_is_counted() -> None:
    assert text_bytes(TextData(name="pydoc")) > 100_000


def test_a_text_that_is_not_there() -> None:
    with pytest.raises(DataError, match="there is no such file"):
        resolve_run(["auto", "data.path=/nowhere.txt"], None)


# --- as a preset ------------------------------------------------------------------------------------------


def test_what_is_held_out_is_chosen_unless_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "LEAST_HELD_OUT", 1000)
    monkeypatch.setattr(text, "EVALUATION_SHARE", 0.0)
    mine = tmp_path / "mine.txt"
    mine.write_text("to be or not to be, \n" * 5000)
    arguments = ["auto", f"data.path={mine}", "train.max_seconds=20", "train.device=cpu"]

    assert resolve_run(arguments, None).data.val_fraction == pytest.approx(0.0095, rel=0.01)
    assert resolve_run([*arguments, "data.val_fraction=0.2"], None).data.val_fraction == 0.2


def test_what_has_a_file_of_its_own_is_no_share_of_the_text(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("to be or not to be, \n" * 500_000)
    arguments = ["auto", f"data.path={mine}", "train.max_seconds=5", "train.device=cpu"]
    assert (resolve_run(arguments, None).data.val_fraction or 1.0) < 0.1
    held_out = tmp_path / "held-out.txt"
    held_out.write_text("that is the question\n" * 90)
    own = resolve_run([*arguments, f"data.val_path={held_out}"], None).data
    assert (own.val_fraction, own.val_path) == (0.1, str(held_out))


def test_settings_lie_over_what_was_chosen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("to be or not to be\n" * 3000)
    arguments = [
        "auto",
        f"data.path={mine}",
        "train.max_seconds=20",
        "train.device=cpu",
        "train.dtype=float32",
    ]

    with caplog.at_level(logging.INFO):
        chosen = resolve_run(arguments, None)
        assert "replaced" not in caplog.text
        changed = resolve_run([*arguments, "model.n_layers=7", "train.lr=0.5"], None)

    assert chosen.train.max_wall_seconds == 20  # of the whole command
    assert 16 <= chosen.model.d_model <= 192  # the text is small, whatever the machine
    assert chosen.data.label == "mine"
    assert (changed.model.n_layers, changed.train.lr) == (7, 0.5)
    assert "auto: 20 s of wall-clock time, 14 s of it for steps, at 0.4 of" in caplog.text
    assert "MB of text; about" in caplog.text
    assert "auto: 7 layers of width " in caplog.text  # the rules plan with it
    assert "M parameters: n_layers as given" in caplog.text
    assert caplog.text.splitlines()[-1].endswith("auto: replaced by your settings: train.lr=0.5")


def test_only_what_auto_had_chosen_is_called_replaced(caplog: pytest.LogCaptureFixture) -> None:
    arguments = ["auto", "data.name=pydoc", "train.max_wall_seconds=20", "seed=3", "train.log_every=7"]
    with caplog.at_level(logging.INFO):
        run = resolve_run([*arguments, "model.attention=linear", "model.dropout=0.1"], None)
    assert run.model.attention.kind == "linear"
    told = "auto: replaced by your settings: model.dropout=0.1, model.attention.kind=linear"
    assert told in caplog.text.splitlines()[-1]


def test_a_run_of_few_flops_takes_more_tokens_also_where_they_cost_a_few_bits() -> None:
    for rate, saved, size in ((40e9, -0.02, 1024), (40e9, -0.06, 512), (43e9, -0.02, 512)):
        given = Budget(SHAKESPEARE, 60, rate, memory=16e9, bits_saved=saved)  # 1e12 FLOPs are 60 s of 41.7e9
        assert choose(given).run.tokenizer == BPETokenizerSpec(vocab_size=size)


def test_a_text_that_takes_too_long_to_tokenize_here_is_read_by_characters() -> None:
    """At most 5.6 of 20 s may go by for it: 0.4 of what start and end leave."""
    fast, slow = (
        Budget(10_000_000, 20, CORES, 16e9, None, None, 1, 0, 0.1, rate) for rate in (1.8e6, 1.75e6)
    )
    assert isinstance(choose(fast).run.tokenizer, BPETokenizerSpec)
    by_characters = choose(slow)
    brief = Budget(100_000, 5, CORES, 16e9, words_per_second=1e6)  # half of the time counts at least
    assert isinstance(choose(brief).run.tokenizer, BPETokenizerSpec)
    assert isinstance(by_characters.run.tokenizer, CharTokenizerSpec)
    assert "tokens: char (BPE would take 5.7 s to prepare), 10 MB" in "\n".join(by_characters.reasons)


@pytest.mark.parametrize(
    ("n_bytes", "saved", "size"),
    [
        (SHAKESPEARE, None, 1024),
        (SHAKESPEARE, 0.03, 1024),
        (SHAKESPEARE, -0.04, 512),
        (200_000, None, 512),
        (200_000, 0.08, 1024),
        (200_000, 0.0, 512),
    ],
)
def test_more_tokens_are_taken_where_they_save_bits(n_bytes: int, saved: float | None, size: int) -> None:
    chosen = choose(replace(budget(n_bytes, 60), bits_saved=saved))

    assert isinstance(chosen.run.tokenizer, BPETokenizerSpec)
    assert chosen.run.tokenizer.vocab_size == size
    [reason] = [each for each in chosen.reasons if each.startswith("tokens: ")]
    assert ("bits per character than 512, by trigrams" in reason) == (saved is not None)


def test_what_more_tokens_save_is_measured_where_none_are_requested(tmp_path: Path) -> None:
    (tmp_path / "small.txt").write_text("to be or not to be\n" * 3000)
    pydoc = TextData(name="pydoc")

    def saved(data: TextData, *said: str) -> float | None:
        return measure(RunConfig(data=data, tokenizer=BPETokenizerSpec()), dict.fromkeys(said)).bits_saved

    assert saved(pydoc) is not None
    assert saved(TextData(path=str(tmp_path / "small.txt"))) is None
    assert saved(pydoc, "tokenizer", "tokenizer.vocab_size") is None
    assert saved(pydoc, "tokenizer") is not None
    assert (
        measure(RunConfig(data=pydoc, tokenizer=CharTokenizerSpec()), {"tokenizer": "char"}).bits_saved
        is None
    )


@pytest.mark.parametrize(("asked", "seconds_measured"), [(20, 0.4), (300, 1.0)])
def test_a_short_run_measures_for_less_long(
    asked: int, seconds_measured: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []
    monkeypatch.setattr(measuring, "RATE_SECONDS", 1.0)
    monkeypatch.setattr(
        measuring, "usual_rate", lambda dtype, device, seconds: times.append(seconds) or CORES
    )
    tried = Trial(bits_saved=0.5, words_per_second=7.0)
    monkeypatch.setattr(measuring, "try_words", lambda source: tried)
    train = TrainConfig(max_wall_seconds=asked, max_steps=None, device="cpu", dtype="float32")

    found = measure(RunConfig(data=TextData(name="pydoc"), train=train))

    assert times == [pytest.approx(seconds_measured)]
    assert (found.bits_saved, found.words_per_second) == tried


@pytest.mark.parametrize("size", range(81_980, 82_010, 2))
def test_the_most_passes_end_a_run_whatever_a_token_has_in_bytes(size: int) -> None:
    """With 81,994 bytes a hundred passes were 99.99999999999999 of them."""
    budget = Budget(
        n_bytes=size, seconds=7200, rate=5e13, memory=64e9, tokenizer=BPETokenizerSpec(vocab_size=300)
    )
    chosen = choose(budget)
    assert chosen.run.train.max_steps is not None
    assert any("100 passes are enough" in reason for reason in chosen.reasons)
