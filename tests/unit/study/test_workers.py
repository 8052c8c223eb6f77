"""Many runs at once: each is finished once, whatever happens to the workers."""

import errno
import io
import json
import os
import random
import signal
import socket
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clearformer as cf
from clearformer.errors import DataError, DiskError, Interrupted, MissingPackageError, UserError
from clearformer.files import disk_errors
from clearformer.registry import import_parts, unregister
from clearformer.study import Measure, Probe, Store, Study, Training, lectures
from clearformer.study.figures import Bars
from clearformer.study.lectures import studies
from clearformer.study.trials import Trial, trials
from clearformer.study.workers import launch, pool
from clearformer.study.workers import work as work_module
from clearformer.study.workers.claims import claimed, holders
from clearformer.study.workers.launch import jobs_of, run_by_workers, run_here
from clearformer.study.workers.pool import LocalWorkers, Selection, WorkersError, check_jobs, surroundings
from clearformer.study.workers.progress import Job, LinesWatch, Standing, TableWatch, Watch, summary
from clearformer.study.workers.work import ended_by_signals, work
from clearformer.training.processes.interrupts import end_with_parent

from ...forks import Fork, ForkServer
from .parts import TEXT, tiny_study

HUNDRED = """
    import os, time
    from pathlib import Path
    from clearformer.study import LOSSES, Probe, Study, Training
    from clearformer.study.lectures import register_study
    from clearformer.study.workers import work

    work.POLL_SECONDS = 0.05
    HERE = Path({folder!r})
    TINY = {{
        "data": {{"path": str(HERE / "text.txt")}}, "model.d_model": 12, "model.n_layers": 1, "model.max_seq_len": 8,
        "train.batch_size": 2, "train.max_steps": 3, "train.dtype": "float32", "train.compile": False,
        "train.device": "cpu",
    }}

    def token(seed):
        time.sleep(0.02)
        while seed > 80 and not (HERE / "enough").exists():
            time.sleep(0.01)
        drawn = os.urandom(4).hex()
        with (HERE / "log").open("a") as log:
            log.write(f"{{seed}} {{drawn}} {{os.getpid()}}\\n")
        return {{"token": drawn}}

    STUDY = register_study(Study(
        name="hundred", question="Is each finished once?", lecture="", refuted_if="One is not.",
        arms=(Probe("probe", token, seeds=92), Training("training", "quick", TINY, seeds=8)), measures=(LOSSES,),
    ))
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pool, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(work_module, "POLL_SECONDS", 0.02)
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(lectures, "_OWN", {})


class Killing(Watch):
    """Kills workers on the way: by the time three trials more are done, one worker more."""

    def __init__(self, jobs: Sequence[Job], store: Store, started: list[Fork], folder: Path) -> None:
        super().__init__(jobs, store)
        self.started, self.enough = started, folder / "enough"
        self.killed: set[int] = set()
        self.draw = random.Random(7)

    def show(self, standings: list[Standing]) -> None:
        n_done = sum(each.state == "done" for each in standings)
        living = [fork for fork in self.started if fork.pid not in self.killed and fork.poll() is None]
        if living and len(self.killed) < min(30, n_done / 2.5):
            fork = self.draw.choice(living)
            fork.kill()
            fork.wait()
            self.killed.add(fork.pid)
        if len(self.killed) == 30:
            self.enough.touch()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="who has ended is known on Linux alone")
def test_of_a_hundred_trials_each_is_finished_once_though_thirty_workers_are_killed(
    tmp_path: Path, forks: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "MOST_DEATHS", 1000)  # no trial is blamed for what the test does
    (tmp_path / "text.txt").write_text(TEXT)
    own = tmp_path / "own.py"
    own.write_text(textwrap.dedent(HUNDRED.format(folder=str(tmp_path))))
    import_parts(own)
    selection = Selection(("hundred",), tmp_path / "studies", imports=(own,))
    store, study, started = Store(selection.folder), studies()["hundred"], []

    def start(place: int) -> Fork:
        started.append(forks.start(*selection.command()[3:]))
        return started[-1]

    watches: list[Killing] = []

    def watch(jobs: Sequence[Job], store: Store) -> Killing:
        watches.append(Killing(jobs, store, started, tmp_path))
        return watches[-1]

    [outcome] = run_by_workers([study], selection, 4, watch=watch, start=start)

    assert outcome.failures == {}
    assert outcome.n_done == outcome.n_trials == 100
    killed = watches[0].killed
    assert len(killed) == 30
    assert holders(store) == {}
    assert all(fork.poll() is not None for fork in started)

    log = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    by_seed: dict[int, list[list[str]]] = {}
    for line in log:
        by_seed.setdefault(int(line[0]), []).append(line)
    for seed in range(1, 93):
        *earlier, last = by_seed[seed]
        # What was kept is the last one's, and one before it is of a worker that was killed before it was kept.
        assert outcome.records["probe"][seed].values == {"token": last[1]}
        assert all(int(pid) in killed for _, _, pid in earlier)
    for seed in range(1, 9):
        record = outcome.records["training"][seed]
        metrics = (store.runs / record.key / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in metrics] == [3]


# --- one worker -------------------------------------------------------------------------------------------


CALLS: Counter[int] = Counter()


def counted(seed: int, fails: Sequence[int] = (), defect: bool = False) -> dict[str, int]:
    CALLS[seed] += 1
    if seed in fails:
        raise ZeroDivisionError("by\nzero") if defect else UserError(f"seed {seed}: refused")
    return {"n": seed}


@pytest.fixture
def probes(tmp_path: Path) -> Callable[..., tuple[Study, Store, list[Trial]]]:
    """A study of three probes, its store and its trials."""
    CALLS.clear()

    def make(**arguments: Any) -> tuple[Study, Store, list[Trial]]:
        study = Study("p", "?", "", (Probe("a", counted, arguments),), "", seeds=3)
        return study, Store(tmp_path / "studies"), trials(study)

    return make


def test_what_was_computed_is_not_computed_again(probes: Callable[..., Any]) -> None:
    study, store, wanted = probes()
    work(wanted, store)
    work(trials(study), store)
    assert CALLS == {1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize(
    ("defect", "told"), [(False, "seed 2: refused"), (True, "ZeroDivisionError: by zero")]
)
def test_one_that_fails_is_kept_and_the_others_go_on(
    probes: Callable[..., Any], defect: bool, told: str
) -> None:
    study, store, wanted = probes(fails=[2], defect=defect)
    work(wanted, store)
    assert [store.is_done(trial) for trial in wanted] == [True, False, True]
    assert store.failure(wanted[1]) == told
    assert ("Traceback" in (store.failed / f"{wanted[1].settings_key}.json").read_text()) is defect
    work(wanted, store)
    assert CALLS[2] == 1  # it is tried again by who asks for it again

    with pytest.raises(UserError, match="is not a folder"):
        run_here([study], Selection(("p",), store.failed / f"{wanted[1].settings_key}.json"))
    [outcome] = run_here([study], Selection(("p",), store.folder), quiet=True)
    assert CALLS == {1: 1, 2: 2, 3: 1}
    assert outcome.failures == {"a, seed 2": told}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_full_disk_is_no_fault_of_a_trial(
    probes: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Another machine can compute it; a place that may not be written may be one of the trial alone."""
    _, store, wanted = probes()

    def refused(*_: object) -> None:
        with disk_errors(store.folder):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(work_module, "compute", refused)
    with pytest.raises(DiskError, match="free some space") if number == errno.ENOSPC else nullcontext():
        work(wanted, store)
    assert (store.failure(wanted[0]) is None) is (number == errno.ENOSPC)
    assert not store.is_done(wanted[0])


def test_a_trial_whose_data_cannot_be_read_fails_with_the_reason(tmp_path: Path) -> None:
    study, store = tiny_study(tmp_path), Store(tmp_path / "studies")
    (tmp_path / "text.txt").unlink()
    work(trials(study)[:1], store)
    failure = store.failure(trials(study)[0])
    assert failure is not None
    assert "text.txt" in failure


def test_one_that_another_process_has_is_waited_for(
    probes: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, store, wanted = probes()
    with claimed(store, wanted[1].key):
        waits: list[float] = []

        def done_elsewhere(seconds: float) -> None:
            waits.append(seconds)
            store.write_failure(wanted[1], "elsewhere")

        monkeypatch.setattr(work_module.time, "sleep", done_elsewhere)
        work(wanted, store)
    assert CALLS == {1: 1, 3: 1}
    assert len(waits) == 1


def test_signals_outside_of_a_training_end_it_with_claims_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(seed: int) -> dict[str, int]:
        os.kill(os.getpid(), signal.SIGTERM)
        return {}

    study, store = Study("p", "?", "", (Probe("a", killed),), "", seeds=1), Store(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted) as caught, ended_by_signals():
        work(trials(study), store)
    assert caught.value.exit_status == 143
    assert signal.getsignal(signal.SIGTERM) == before
    assert holders(store) == {}
    assert store.failure(trials(study)[0]) is None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to send oneself")
def test_a_worker_ends_when_the_process_that_began_it_has_gone() -> None:
    def wait() -> None:
        with ended_by_signals():
            end_with_parent.cache_clear()
            end_with_parent(os.getppid() + 1)
            time.sleep(60)

    with pytest.raises(Interrupted) as caught:
        wait()
    assert caught.value.exit_status == 143


def test_on_windows_a_worker_asks_nothing_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it is the launcher of a virtual environment, and not the process that began the worker."""
    began: list[object] = []
    monkeypatch.setattr("os.name", "nt")
    monkeypatch.setattr(threading.Thread, "start", began.append)
    end_with_parent(1)
    assert not began


# --- the pool ---------------------------------------------------------------------------------------------


class Process:
    """A worker that ends with a status."""

    def __init__(self, status: int | None) -> None:
        self.pid, self.status, self.signals = 2**30, status, []

    def poll(self) -> int | None:
        return self.status

    def send_signal(self, number: int, /) -> None:
        self.signals.append(number)
        self.status = 0

    def kill(self) -> None:
        self.status = -9

    def wait(self, timeout: float, /) -> int | None:
        return self.status


def waiting(probes: Callable[..., Any]) -> tuple[Store, list[Standing]]:
    study, store, wanted = probes()
    return store, [Standing(Job(study.name, trial), "waiting") for trial in wanted]


def test_no_more_workers_than_there_are_runs_left(probes: Callable[..., Any]) -> None:
    store, standings = waiting(probes)
    workers = LocalWorkers(lambda _: Process(None), 8, store)
    workers.look_after(standings)
    assert len(workers.processes) == 3


def test_a_worker_that_says_what_is_wrong_ends_all(probes: Callable[..., Any]) -> None:
    store, standings = waiting(probes)
    workers = LocalWorkers(lambda _: Process(2), 1, store)
    workers.look_after(standings)
    with pytest.raises(WorkersError, match="a worker exited with status 2"):
        workers.look_after(standings)


def test_workers_that_die_at_once_are_not_begun_for_ever(probes: Callable[..., Any]) -> None:
    store, standings = waiting(probes)
    workers = LocalWorkers(lambda _: Process(-9), 1, store)
    for _ in range(pool.MOST_DEATHS):
        workers.look_after(standings)
    with pytest.raises(WorkersError, match="workers are killed by signal 9 as soon as they start"):
        workers.look_after(standings)


def test_a_run_that_kills_its_workers_fails(probes: Callable[..., Any]) -> None:
    """As one that needs more memory than there is."""
    store, standings = waiting(probes)
    trial = standings[0].job.trial
    store.claims.mkdir(parents=True)
    claim_of_a_worker(store, trial)
    workers = LocalWorkers(lambda _: Process(-9), 1, store)
    for _ in range(pool.MOST_DEATHS + 1):
        assert store.failure(trial) is None
        workers.look_after(standings)
    assert "was killed 5 times by signal 9" in str(store.failure(trial))


def claim_of_a_worker(store: Store, trial: Trial, host: str | None = None) -> None:
    """Claim a trial as the worker does that `Process` stands for."""
    about = {"host": host or socket.gethostname(), "pid": 2**30}
    (store.claims / f"{trial.key}.1").write_text(json.dumps(about))


def test_a_death_is_blamed_on_what_the_worker_had_claimed_alone(tmp_path: Path) -> None:
    """Not on the same settings with another text, nor on a process of that number on another machine."""
    (tmp_path / "other.txt").write_text(TEXT[::-1])
    paths = {"": {}, ", other text": {"data.path": str(tmp_path / "other.txt")}}
    arms = tuple(
        Training(f"{n} layers{text}", "quick", {"model.n_layers": n, **path})
        for n in (1, 2)
        for text, path in paths.items()
    )
    study, store = tiny_study(tmp_path, arms=arms, seeds=1), Store(tmp_path / "studies")
    mine, of_other_text, elsewhere, _ = wanted = trials(study)
    assert mine.settings_key == of_other_text.settings_key
    store.claims.mkdir(parents=True)
    claim_of_a_worker(store, mine)
    claim_of_a_worker(store, elsewhere, host="another machine")
    workers = LocalWorkers(lambda _: Process(-9), 1, store)
    for _ in range(pool.MOST_DEATHS + 1):
        workers.look_after([Standing(Job("tiny", trial), "waiting") for trial in wanted])
    assert [store.failure(trial) is not None for trial in wanted] == [True, False, False, False]


def test_a_worker_that_ends_in_order_on_a_signal_is_replaced(probes: Callable[..., Any]) -> None:
    """As after `kill PID`: it has saved its state."""
    store, standings = waiting(probes)
    started: list[Process] = []

    def start(_: int) -> Process:
        started.append(Process(128 + signal.SIGTERM))
        return started[-1]

    workers = LocalWorkers(start, 1, store)
    for _ in range(2):
        workers.look_after(standings)
    assert len(started) == 2


def test_a_signal_ends_the_workers_with_sigterm(
    probes: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, standings = waiting(probes)
    process = Process(None)

    class Interrupting(Watch):
        def show(self, standings: list[Standing]) -> None:
            if process.signals == [] and workers.processes:
                os.kill(os.getpid(), signal.SIGINT)

    workers = LocalWorkers(lambda _: process, 1, store)
    with pytest.raises(Interrupted) as caught:
        pool.supervise(workers, Interrupting([each.job for each in standings], store))
    assert caught.value.exit_status == 130
    assert process.signals == [signal.SIGTERM]


def test_the_error_of_one_worker_lets_the_others_save_what_they_have_trained(
    probes: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the disk is full for one of them."""
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(pool, "LOOK_SECONDS", 0.0)
    store, standings = waiting(probes)
    begun = [Process(2), Process(None), Process(None)]
    workers = LocalWorkers(lambda place: begun[place], 3, store)
    with pytest.raises(WorkersError, match="a worker exited with status 2"):
        pool.supervise(workers, Watch([each.job for each in standings], store))
    assert [process.signals for process in begun] == [[], [signal.SIGTERM], [signal.SIGTERM]]
    assert [process.status for process in begun] == [2, 0, 0]


@pytest.mark.parametrize("jobs", [0, -1])
def test_a_number_of_workers_is_checked(jobs: int) -> None:
    with pytest.raises(UserError, match="jobs: 1 or more"):
        check_jobs(jobs)


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "n_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert surroundings(0, 3, ["cpu"])["OMP_NUM_THREADS"] == "2"
    assert surroundings(0, 30, ["cpu"])["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert "OMP_NUM_THREADS" not in surroundings(0, 3, ["cpu"])


def test_workers_share_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool.torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    chosen = [surroundings(place, 4, []).get("CUDA_VISIBLE_DEVICES") for place in range(4)]
    assert chosen == ["0", "1", "2", "0"]
    assert "CUDA_VISIBLE_DEVICES" not in surroundings(0, 4, ["auto", "cuda:1"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,7")
    assert surroundings(1, 4, ["cuda"]).get("CUDA_VISIBLE_DEVICES") == "6"


def test_a_worker_s_command_line_says_all(tmp_path: Path) -> None:
    selection = Selection(("a", "b"), tmp_path, np.float64(0.1), 2, "cpu", (Path("/x/own.py"),))
    assert selection.command()[1:] == [
        *("-m", "clearformer", "study", "work", "a", "b", "--folder", str(tmp_path), "--scale", "0.1"),
        *("--seeds", "2", "--device", "cpu", "--import", "/x/own.py"),
    ]


def test_a_run_that_two_studies_share_is_one_job(tmp_path: Path) -> None:
    one, other = tiny_study(tmp_path), tiny_study(tmp_path, name="other", seeds=3)
    assert len(jobs_of([one, other])) == 6
    assert [job.trial.seed for job in jobs_of([one, other])] == [1, 1, 2, 2, 3, 3]


def test_a_run_that_two_studies_share_is_measured_for_both(tmp_path: Path) -> None:
    one, other = tiny_study(tmp_path), tiny_study(tmp_path, measures=(Measure(counted),))
    values = {job.trial.values for job in jobs_of([one, other])}
    assert values == {frozenset(measure.key for measure in (*one.measures, *other.measures))}


# --- how far it is ----------------------------------------------------------------------------------------


def test_the_watch_tells_who_computes_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, store = tiny_study(tmp_path), Store(tmp_path / "studies")
    jobs = jobs_of([study])
    trial = jobs[0].trial
    watch = LinesWatch(jobs, store)
    with claimed(store, trial.key), watch:
        watch.update()
        (store.runs / trial.key).mkdir(parents=True)
        line = {"step": 2, "tokens": 32, "seconds": 1.0, "loss": 3.25}
        (store.runs / trial.key / "metrics.jsonl").write_text(json.dumps(line) + '\n{"step": 3')
        first = watch.update()[0]
    assert (first.state, first.step, first.steps, first.loss) == ("running", 2, 3, 3.25)
    assert first.worker.endswith(f" {os.getpid()}")
    assert first.fraction_done == pytest.approx(2 / 3)
    left = watch.update()[0]
    assert (left.state, left.step) == ("waiting", 2)
    store.write_failure(trial, "no room")
    store.write_failure(jobs[1].trial, "no room")
    failed = watch.update()
    assert failed[0].state == "failed"
    assert summary(failed) == "0 of 4 runs done, 2 waiting, 2 failed"
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("tiny: 1 layers, seed 1: started by ")
    assert told[1:] == [
        "0 of 4 runs done, 1 running, 3 waiting",
        "tiny: 1 layers, seed 1: its worker is gone; waiting for another",
        "tiny: 1 layers, seed 1: failed: no room",
        f"tiny: {jobs[1].trial.name}: failed: for the same reason",
    ]


def test_the_time_left_follows_from_the_work_that_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_of([tiny_study(tmp_path, arms=tiny_study(tmp_path).arms[:1], seeds=4)])
    watch = Watch(jobs, Store(tmp_path / "studies"))
    monkeypatch.setattr("clearformer.study.workers.progress.time.monotonic", lambda: 100.0)
    watch.update()
    standings = [Standing(job, "done" if i == 0 else "waiting") for i, job in enumerate(jobs)]
    assert watch.seconds_left([Standing(job, "waiting") for job in jobs]) is None
    monkeypatch.setattr("clearformer.study.workers.progress.time.monotonic", lambda: 110.0)
    assert watch.seconds_left(standings) == pytest.approx(30.0)
    standings[1] = Standing(jobs[1], "running", step=3, steps=6)
    assert watch.seconds_left(standings) == pytest.approx(2.5 * 10 / 1.5)


def test_the_table_shows_what_runs_waits_and_failed(tmp_path: Path) -> None:
    from rich.console import Console

    jobs = jobs_of([tiny_study(tmp_path, seeds=4)])
    standings = [
        Standing(jobs[0], "running", "here 7", 1200, 10_000, 2.5),
        Standing(jobs[1], "failed", problem="no room"),
        *(Standing(job, "waiting") for job in jobs[2:]),
    ]
    watch = TableWatch(jobs, Store(tmp_path / "studies"))
    watch._began = 0.0, watch.left(standings)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(watch.table(standings))
    text = console.export_text()
    assert "tiny: 1 layers, seed 1 here 7 1,200 of 10,000 2.5000" in " ".join(text.split())
    assert "no room" in text
    assert "and 2 more runs" in text
    assert "0 of 8 runs done, 1 running, 6 waiting, 1 failed" in text


def test_the_table_shows_brackets_and_colons_as_they_are(
    tmp_path: Path, probes: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, store, wanted = probes()
    store.write_failure(wanted[0], "[/x] of :key: has [b]")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with TableWatch([Job(study.name, trial) for trial in wanted], store) as watch:
        watch.update()
    assert "p: a, seed 1: [/x] of :key: has [b]" in sys.stderr.getvalue()  # type: ignore[attr-defined]


def test_the_table_gives_the_terminal_back_though_its_last_look_fails(
    probes: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, store, wanted = probes()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    watch = TableWatch([Job(study.name, wanted[0])], store)
    store.measured.mkdir(parents=True)
    (store.measured / f"{wanted[0].key}.json").write_text("{")
    with pytest.raises(DataError, match="damaged"), watch:
        pass
    assert not watch.live.is_started


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, probes: Callable[..., Any]) -> None:
    study, _, _ = probes()
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="file/below"):
        run_here([study], Selection(("p",), tmp_path / "file" / "below"))


# --- from Python ------------------------------------------------------------------------------------------


def test_run_study_takes_a_study_or_a_name(
    probes: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, store, _ = probes()
    found = cf.run_study(study, folder=store.folder, quiet=True)
    assert found.is_whole
    assert capsys.readouterr() == ("", "")
    assert (store.folder / "p" / "report.html").exists()
    cf.register("study")(study)
    assert cf.run_study("p", folder=str(store.folder), seeds=2).n_trials == 2
    assert CALLS == {1: 1, 2: 1, 3: 1}
    with pytest.raises(UserError, match="there is no study 'q'"):
        cf.run_study("q", folder=tmp_path)
    with pytest.raises(UserError, match="jobs: 1 or more"):
        cf.run_study("p", jobs=0)
    with pytest.raises(UserError, match=r"a study is a cf\.Study or the name of one; got 3"):
        cf.run_study(3)  # type: ignore[arg-type]


def test_a_package_that_the_report_needs_is_missed_before_anything_runs(
    probes: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, store, _ = probes()
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(
        MissingPackageError, match=r"an interval over seeds needs scipy, .*clearformer\[metrics\]"
    ):
        cf.run_study(study, folder=store.folder)
    drawn = replace(study, figures=(Bars("x", "x"),))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPackageError, match=r"a report needs matplotlib, .*clearformer\[figures\]"):
        cf.run_study(drawn, folder=store.folder)
    assert CALLS == {}
    assert not store.folder.exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"seeds": 2.5}, "seeds: a whole number; got 2.5"),
        ({"seeds": True}, "seeds: a whole number; got True"),
        ({"jobs": "2"}, "jobs: a whole number; got '2'"),
        ({"scale": "0.5"}, "scale: a number above 0 and up to 1 (the whole study); got '0.5'"),
        ({"scale": None}, "scale: a number above 0 and up to 1 (the whole study); got None"),
    ],
)
def test_run_study_says_which_number_is_none(
    probes: Callable[..., Any], arguments: dict[str, Any], told: str
) -> None:
    study, store, _ = probes()
    with pytest.raises(UserError) as caught:
        cf.run_study(study, folder=store.folder, **arguments)
    assert str(caught.value) == told


def test_a_study_that_lives_in_this_process_alone_is_run_by_no_other(probes: Callable[..., Any]) -> None:
    study, store, _ = probes()
    with pytest.raises(UserError, match="is code, which other processes can only load from a file"):
        cf.run_study(study, jobs=2, folder=store.folder)


def test_a_mistaken_setting_is_told_before_a_study_is_declared(tmp_path: Path) -> None:
    mistaken = tiny_study(tmp_path, settings={"train.lrr": 1})
    with pytest.raises(UserError, match=r"unknown key 'train\.lrr'"):
        cf.run_study(mistaken, jobs=2, folder=tmp_path / "studies")
    assert not (tmp_path / "studies").exists()


NORM = """
from typing import Literal
from torch import nn
import clearformer as cf
from clearformer.config import Spec

@cf.register("norm")
class Own(Spec):
    kind: Literal["own_norm"] = "own_norm"
    def build(self, d):
        return nn.LayerNorm(d)
"""


@pytest.mark.usefixtures("_nothing_is_imported")
@pytest.mark.parametrize("registered", [False, True])
def test_a_study_of_settings_is_declared_and_run_by_workers(
    tmp_path: Path, forks: ForkServer, monkeypatch: pytest.MonkeyPatch, registered: bool
) -> None:
    def start_forks(selection: Selection, *_: Any) -> Callable[[int], Fork]:
        return lambda place: forks.start(*selection.command()[3:])

    monkeypatch.setattr(launch, "local_start", start_forks)
    (tmp_path / "norms_of_one_s_own.py").write_text(NORM)
    import_parts(tmp_path / "norms_of_one_s_own.py")
    study = tiny_study(tmp_path)
    study = replace(study, settings={**study.settings, "model.norm": "own_norm"})
    if registered:  # in this process alone
        cf.register("study")(study)
    try:
        found = cf.run_study(study, jobs=2, folder=tmp_path / "studies", quiet=True)
        assert found.failures == {}
        assert found.n_done == 4
        assert cf.run_study("tiny", folder=tmp_path / "studies", quiet=True).is_whole
    finally:
        unregister("norm", "own_norm")
