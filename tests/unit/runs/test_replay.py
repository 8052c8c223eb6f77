"""A run's training made again: every step to the bit, whatever its rates followed, and what is refused."""

import itertools
import json
import math
import random
import shutil
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import clearformer as cf
from clearformer import lens
from clearformer.config import parse_override, resolve
from clearformer.errors import CheckpointError, DataError, Interrupted, RunError, UserError
from clearformer.runs.replay import RatesOfThen
from clearformer.threads import ThreadsByLoad
from clearformer.training.config import RunConfig
from clearformer.training.loop import Training
from clearformer.training.loop import train as train_in
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.checkpoint import MODEL, Progress, list_checkpoints, save_snapshot, step_of
from clearformer.training.store.folder import LrFactors, RunFolder, ThreadCounts
from clearformer.training.store.state import weights_of

BASE = (
    "model.d_model=6",
    "model.n_layers=2",
    "model.max_seq_len=7",
    "model.attention.n_heads=3",
    "model.ffn.d_ff=11",
    "model.dropout=0.1",
    "train.batch_size=4",
    "train.max_steps=21",
    "train.checkpoint_every=9",
    "train.keep_last=1",
    "train.eval_every=5",
    "train.device=cpu",
    "train.dtype=float32",
    "train.compile=false",
)
Seen = dict[int, dict[str, Tensor]]
CLOCK = ("train.max_steps=none", "train.max_seconds=9", "train.schedule=wsd")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """The weights to use after each step, as the run itself had them; filled while it trains."""
    weights: Seen = {}
    run = Training.run

    def watched(training: Training, *arguments: Any) -> None:
        step = training.step

        def remembering() -> Any:
            result = step()
            weights[training.progress.step] = weights_of(training.weights_to_use, copy=True)
            return result

        training.step = remembering  # type: ignore[method-assign]
        weights.setdefault(training.progress.step, weights_of(training.weights_to_use, copy=True))
        run(training, *arguments)

    monkeypatch.setattr(Training, "run", watched)
    return weights


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of training take half a second on average, never as long as those before."""
    chance = random.Random(3)
    now = itertools.accumulate(chance.uniform(0.1, 0.9) for _ in itertools.count())
    monkeypatch.setattr("clearformer.training.loop.time.perf_counter", lambda: next(now))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    lines = (f"the quick brown fox jumps over {n} lazy dogs;\n" for n in range(1000, 1050))
    (tmp_path / "text.txt").write_text("".join(lines))
    return tmp_path


@pytest.fixture
def train(home: Path) -> Callable[..., RunFolder]:
    """Train a run of a name with some settings: `train("a", "train.lr=0.1")`."""

    def train(name: str, *settings: str, resume: bool = False, reporter: Reporter | None = None) -> RunFolder:
        folder = RunFolder(home / "runs" / name)
        layers = [parse_override(setting) for setting in (f"data.path={home / 'text.txt'}", *BASE, *settings)]
        train_in(resolve(RunConfig, *layers), folder, reporter or Reporter(), resume=resume)
        return folder

    return train


class InterruptAt(Reporter):
    """Interrupts a run as Ctrl-C would, at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, progress: Progress, metrics: object) -> None:
        if progress.step == self.step:
            signal.raise_signal(signal.SIGINT)


def same(run: Any, weights: Mapping[str, Tensor]) -> bool:
    own = run.model.state_dict()
    return own.keys() == weights.keys() and all(torch.equal(own[name], weights[name]) for name in own)


def assert_all_come_out_the_same(name: str, seen: Seen, steps: Iterable[int]) -> None:
    assert len(seen) > 2
    for step in steps:
        run = cf.replay(name, step, device="cpu")
        assert (run.step, same(run, seen[step])) == (step, True), step


def test_random_numbers_that_others_draw_meanwhile_are_their_own(
    train: Callable[..., RunFolder], seen: Seen
) -> None:
    """In another thread, such as one that trains beside a replay on the page."""
    folder = train("a", "model.dropout=0.3")
    torch.manual_seed(7)
    wanted = torch.rand(1000).tolist()
    torch.manual_seed(7)
    drawn: list[float] = []
    last = max(seen)

    run = cf.replay(
        str(folder.path), last - 1, device="cpu", on_step=lambda *_: drawn.append(torch.rand(1).item())
    )

    assert drawn == wanted[: len(drawn)]
    assert len(drawn) > 1
    assert torch.rand(1).item() == wanted[len(drawn)]
    assert same(run, seen[last - 1])


# --- to the bit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("train.optimizer=muon", "train.ema=0.9", "train.grad_accum_steps=2"),
        ("train.snapshot_megabytes=none",),
        ("model.dropout=0.2", "train.r_drop=5"),
    ],
)
def test_every_step_of_a_run_is_had_again(
    train: Callable[..., RunFolder], seen: Seen, settings: tuple[str, ...]
) -> None:
    train("a", *settings)
    seen = dict(seen)
    before, drawn = torch.get_rng_state(), files("a")
    assert_all_come_out_the_same("a", seen, (0, 3, 9, 10, 17, 20, 21))
    assert torch.equal(torch.get_rng_state(), before)
    assert files("a") == drawn  # the run's folder is only read


def test_every_step_with_merges_left_out_is_had_again(
    train: Callable[..., RunFolder], seen: Seen, home: Path
) -> None:
    (home / "pairs.tsv").write_text("".join(f"the {n} dogs\tles {n} chiens\n" for n in range(90)))
    train(
        "a",
        "data.kind=pairs",
        "data.val_fraction=0.1",
        f"data.path={home / 'pairs.tsv'}",
        "model.family=encoder-decoder",
        "model.max_seq_len=30",
        "tokenizer=bpe",
        "tokenizer.vocab_size=280",
        "train.objective=translation",
        "train.batch_size=32",
        "train.objective.batch_tokens=300",
        "train.objective.bpe_dropout=0.3",
    )
    assert_all_come_out_the_same("a", dict(seen), (0, 3, 9, 17, 21))


def test_every_step_with_words_cut_anew_is_had_again(
    train: Callable[..., RunFolder], seen: Seen, home: Path
) -> None:
    (home / "labelled.tsv").write_text(
        "text\tlabel\n" + "".join(f"the {n} dogs\t{'even' if n % 2 == 0 else 'odd'}\n" for n in range(90))
    )
    train(
        "a",
        "data.kind=labelled",
        f"data.path={home / 'labelled.tsv'}",
        "model.family=encoder",
        "model.max_seq_len=30",
        "tokenizer=wordpiece",
        "tokenizer.vocab_size=60",
        "train.objective=classification",
        "train.objective.wordpiece_dropout=0.3",
    )
    assert_all_come_out_the_same("a", dict(seen), (0, 3, 9, 17, 21))


def files(name: str) -> dict[str, bytes]:
    folder = cf.load(name).folder.path
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("clock")
def test_a_rate_that_followed_the_clock_is_that_of_then(train: Callable[..., RunFolder], seen: Seen) -> None:
    folder = train("a", *CLOCK)
    seen = dict(seen)
    last = max(seen)
    factors = LrFactors.read(folder.lr_factors_file)
    assert len(factors) == last > 12
    assert len(set(factors)) > 5
    assert_all_come_out_the_same("a", seen, (3, 7, last - 2, last - 1))


def test_each_step_has_as_many_threads_as_then(
    train: Callable[..., RunFolder], seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their number changes the last bits, even of so small a model."""
    before = torch.get_num_threads()
    with monkeypatch.context() as patch:
        # One step of two: the threads of so small a model mostly wait for each other.
        patch.setattr(ThreadsByLoad, "adapt", lambda self, step=0: self.set(2 if step == 5 else 1))
        folder = train("a")
    seen = dict(seen)
    assert set(ThreadCounts.read(folder.threads_file)) == {1, 2}

    assert_all_come_out_the_same("a", seen, (3, 9, 20))
    assert torch.get_num_threads() == before
    folder.threads_file.unlink()
    with pytest.raises(RunError, match=r"differ from those on disk"):
        assert_all_come_out_the_same("a", seen, (3, 9, 20))


def test_also_where_it_was_stopped_and_went_on_with_another_length(
    train: Callable[..., RunFolder], seen: Seen
) -> None:
    """What the first life did after its checkpoint is not the run's: it counts what the second did."""
    with pytest.raises(Interrupted):
        train("a", "train.schedule=cosine", reporter=InterruptAt(11))
    folder = cf.load("a").folder
    with folder.lr_factors_file.open("ab") as file:  # a life that was killed later
        file.write(np.array([7.0, 8.0, 9.0]).tobytes() + b"half")
    folder = train("a", "train.schedule=cosine", "train.max_steps=30", resume=True)
    seen = dict(seen)

    assert len(LrFactors.read(folder.lr_factors_file)) == 30
    assert_all_come_out_the_same("a", seen, (3, 10, 12, 29))
    run = cf.load("a", device="cpu")
    assert lens.counterfactual(run, without=[]).same_weights


@pytest.mark.usefixtures("clock")
def test_a_run_by_the_clock_is_made_again_without_a_row(train: Callable[..., RunFolder]) -> None:
    train("a", *CLOCK)
    run = cf.load("a", device="cpu")
    assert lens.counterfactual(run, without=[]).same_weights
    without = lens.counterfactual(run, without=[(1, 2)])
    assert not without.same_weights
    assert without.start == 0


@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
def test_a_step_is_had_again_where_gradients_are_switched_off(
    train: Callable[..., RunFolder],
    seen: Seen,
    without_gradients: Callable[[], AbstractContextManager[object]],
) -> None:
    train("a")
    with without_gradients():
        assert same(cf.replay("a", 7, device="cpu"), seen[7])


def test_a_run_opened_at_a_step_between_is_made_again(train: Callable[..., RunFolder]) -> None:
    """Up to that step, and from there no further; no checkpoint before it has the optimizer's state."""
    train("a")
    for step in (4, 7):  # a snapshot, and none
        run = cf.replay("a", step, device="cpu")
        found = lens.counterfactual(run, "the", target=" ", without=[])
        assert (found.step, found.start, found.same_weights, found.estimate) == (step, 0, True, None)
        with pytest.raises(RunError, match=f"keeps none with optimizer state up to step {step}"):
            lens.tracin(run, "the", target=" ")


# --- what is kept, and where it begins --------------------------------------------------------------------


def test_what_is_kept_opens_at_once_and_the_rest_from_the_nearest(
    train: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = train("a", "train.max_steps=41", "train.checkpoint_every=10", "train.keep_last=2")
    run = cf.load("a", device="cpu")
    assert sorted(map(step_of, list_checkpoints(folder.snapshots))) == [0, 1, 2, 4, 8, 16, 32]
    checkpoints = {step_of(path) for path in list_checkpoints(folder.checkpoints)}
    assert {40, 41} <= checkpoints
    assert run.kept_steps() == sorted({0, 1, 2, 4, 8, 16, 32} | checkpoints)

    taken: list[tuple[int, int]] = []
    for step in run.kept_steps():
        opened = cf.replay(run, np.int64(step), on_step=lambda *n: taken.append(n))  # type: ignore[arg-type]
        assert opened.step == step
        assert type(opened.step) is int
        assert cf.load("a", step).step == step
    assert taken == []
    for checkpoint in checkpoints - {40, 41}:  # the best, where it is another one
        shutil.rmtree(folder.checkpoints / f"step-{checkpoint:08d}")
    cf.replay(run, 17, on_step=lambda *n: taken.append(n))
    assert taken == [(n, 32) for n in range(1, 33)]  # from the first weights, on to the snapshot of step 32
    shutil.rmtree(folder.checkpoints / "step-00000041")
    taken.clear()
    assert cf.replay(run, 41, on_step=lambda *n: taken.append(n)).step == 41
    assert taken == [(1, 1)]  # from the checkpoint of step 40


def test_a_snapshot_is_no_checkpoint_to_go_on_from(train: Callable[..., RunFolder]) -> None:
    folder = train("a")
    newest = list_checkpoints(folder.checkpoints)[0]
    assert cf.load("a").step == step_of(newest) == 21
    with pytest.raises(
        RunError,
        match=r"^average: only checkpoints are .* step 4 .* is a snapshot: choose the step",
    ):
        cf.load("a", 4, average=2)
    with pytest.raises(RunError, match=r"step 21; snapshots of steps 0, 1, 2, 4, 8, 16$"):
        cf.load("a", "soon")
    with pytest.raises(RunError, match=r"; cf\.replay\(run, STEP\) in Python recreates any earlier step$"):
        cf.load("a", 5)
    for path in list_checkpoints(folder.checkpoints):
        shutil.rmtree(path)
    with pytest.raises(
        RunError, match=r"has no checkpoint yet; train it with --resume, or open .*: 0, 1, 2, 4, 8, 16$"
    ):
        cf.load("a")
    assert cf.load("a", 16).step == 16


def test_a_damaged_checkpoint_is_passed_over(train: Callable[..., RunFolder], seen: Seen) -> None:
    folder = train("a", "train.keep_last=9")
    seen = dict(seen)
    (folder.checkpoints / "step-00000009" / "optimizer.safetensors").write_bytes(b"none")
    assert same(cf.replay("a", 12, device="cpu"), seen[12])


# --- what is refused --------------------------------------------------------------------------------------


def test_a_run_of_several_processes_is_refused_but_for_what_it_keeps(train: Callable[..., RunFolder]) -> None:
    folder = train("a")
    env = json.loads(folder.env_file.read_text())
    assert env["processes"] == 1
    folder.env_file.write_text(json.dumps(env | {"processes": 2}))

    with pytest.raises(RunError, match=r"2 processes trained it, .* can be opened: 0, 1, 2, 4, 8, 16, 21$"):
        cf.replay("a", 7)
    assert cf.replay("a", 8).step == 8


def test_so_is_one_that_several_went_on_with(
    train: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    train("a")
    record = RunFolder.record_processes
    monkeypatch.setattr(RunFolder, "record_processes", lambda self, count: record(self, count + 1))
    train("a", "train.max_steps=30", resume=True)
    with pytest.raises(RunError, match="2 processes trained it"):
        cf.replay("a", 25)


def test_what_did_not_come_out_the_same_is_not_given_out(train: Callable[..., RunFolder]) -> None:
    """As on another machine: a snapshot on the way, or the one after, has other weights."""
    folder = train("a")
    for step in (2, 4):
        path = folder.snapshots / f"step-{step:08d}"
        other = {name: value + 1e-6 for name, value in cf.load("a", step).model.state_dict().items()}
        was = path.rename(folder.path / "aside")
        save_snapshot(folder.snapshots, Progress(step=step), other)
        with pytest.raises(
            RunError, match=rf"replayed from step 0, its weights after step {step} differ from those"
        ) as e:
            cf.replay("a", 3)
        assert "\n" not in str(e.value)
        shutil.rmtree(path)
        was.rename(path)
    cf.replay("a", 3)
    (folder.snapshots / "step-00000002" / MODEL).write_bytes(b"damaged: not compared")
    (folder.snapshots / "step-00000000" / MODEL).write_bytes(b"damaged: drawn again")
    cf.replay("a", 3)


@pytest.mark.usefixtures("clock")
def test_a_rate_that_is_not_known_is_refused(train: Callable[..., RunFolder]) -> None:
    """A run of before the record: where its rate followed the clock, and where it went on with another length."""
    folder = train("a", *CLOCK, "train.log_every=1")
    factors = LrFactors.read(folder.lr_factors_file)
    folder.lr_factors_file.unlink()
    with pytest.raises(
        RunError, match=r"followed the clock \(train\.max_seconds=9\), and lr_factors\.f64 does"
    ):
        cf.replay("a", 3)
    folder.lr_factors_file.write_bytes(np.where(np.arange(len(factors)) == 2, np.nan, factors).tobytes())
    with pytest.raises(RunError, match=r"lr_factors\.f64 does not have it for all steps"):
        cf.replay("a", 3)
    folder.lr_factors_file.write_bytes((factors * 0.5).tobytes())
    with pytest.raises(RunError, match=r"lr_factors\.f64: damaged: it has .* as the learning rate of step 1"):
        cf.replay("a", 3)

    folder = train("b", "train.schedule=cosine", "train.log_every=1")
    folder.lr_factors_file.unlink()
    assert cf.replay("b", 3).step == 3  # its settings tell it
    config = folder.config_file.read_text()
    folder.config_file.write_text(config.replace("max_steps = 21", "max_steps = 90"))
    with pytest.raises(RunError, match="it was resumed with another length"):
        cf.replay("b", 3)


def rates_of(home: Path, *, logged: float, recorded: float | None) -> RatesOfThen:
    """Return the rates of a run whose metrics.jsonl has the rate of step 1, and maybe its record the factor."""
    folder = RunFolder(home / "rates")
    folder.path.mkdir()
    folder.metrics_file.write_text(f'{{"step": 1, "lr": {logged!r}}}\n')
    if recorded is not None:
        folder.lr_factors_file.write_bytes(np.array([recorded]).tobytes())
    settings = ("train.lr=0.01", "train.warmup_steps=0", *CLOCK)
    return RatesOfThen(folder, resolve(RunConfig, *map(parse_override, settings)))


@pytest.mark.parametrize("recorded", [2.0**-52, None])
def test_a_rate_of_zero_may_differ_by_rounding(home: Path, recorded: float | None) -> None:
    rates = rates_of(home, logged=0.0, recorded=recorded)
    factor = rates.factor(Progress(step=0, seconds=math.nextafter(9.0, 0)))
    assert 0 < factor < 1e-15


@pytest.mark.parametrize("recorded", [1e-6, None])
def test_a_rate_of_zero_may_not_differ_by_more(home: Path, recorded: float | None) -> None:
    rates = rates_of(home, logged=0.0, recorded=recorded)
    with pytest.raises(RunError, match=r"learning rate"):
        rates.factor(Progress(step=0, seconds=9 * (1 - 4e-7)))


def test_a_step_that_the_run_has_not_taken_is_refused(train: Callable[..., RunFolder]) -> None:
    train("a")
    steps: tuple[Any, ...] = (22, -1, 2.0, True, "3", None)
    for step in steps:
        with pytest.raises(UserError, match=r"^step") as caught:
            cf.replay("a", step)
        assert "\n" not in str(caught.value)


def test_a_run_without_its_training_is_refused(train: Callable[..., RunFolder], home: Path) -> None:
    folder = train("a")
    env = json.loads(folder.env_file.read_text())
    folder.env_file.write_text(json.dumps(env | {"text_sha256": ""}))
    with pytest.raises(RunError, match="its training data are unknown"):
        cf.replay("a", 3)
    folder.env_file.write_text(json.dumps(env))
    (home / "text.txt").write_text("the quick brown fox jumps over 1000 lazy dogs;\n" * 50)
    with pytest.raises(DataError, match="the data have changed"):
        cf.replay("a", 3)


def test_first_weights_of_another_model_are_refused(train: Callable[..., RunFolder]) -> None:
    folder = train("a")
    shutil.rmtree(folder.snapshots / "step-00000000")
    save_snapshot(folder.snapshots, Progress(), {"embed.weight": torch.zeros(2, 2)})
    with pytest.raises(CheckpointError, match=r"step-00000000 does not fit .*config\.toml"):
        cf.replay("a", 3)
