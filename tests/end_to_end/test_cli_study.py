"""Studies, sweeps, comparisons and curves as a user types them."""

import json
import os
import re
import signal
import stat
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clearformer.cli import main
from clearformer.study import Study, Training, lectures
from clearformer.study.everyday.declared import declare
from clearformer.study.store import Store
from clearformer.study.workers import launch, pool
from clearformer.study.workers.claims import holders
from clearformer.study.workers.pool import Process, Selection

from ..forks import ForkServer

TEXT = "the quick brown fox jumps over the lazy dog\n" * 40
SETTINGS = (
    "model.d_model=12",
    "model.n_layers=1",
    "model.max_seq_len=8",
    "train.batch_size=2",
    "train.max_steps=4",
    "train.log_every=1",
    "train.eval_every=2",
    "train.dtype=float32",
    "train.compile=false",
    "train.device=cpu",
)
OWN = """
    from pathlib import Path
    import clearformer as cf
    from clearformer.errors import UserError
    from clearformer.study import LOSSES, Claim, Probe, Published, Training

    SETTINGS = {settings}

    def number(seed, mean):
        if (Path({folder!r}) / "broken").exists() and mean == 2.0 and seed == 2:
            raise UserError("mean: it cannot be drawn now")
        return {{"x": mean + seed / 100}}

    STUDY = cf.register("study")(cf.Study(
        name="own",
        question="Is a below b?",
        lecture="mine, 1",
        arms=(
            Probe("a", number, {{"mean": 1.0}}),
            Probe("b", number, {{"mean": 2.0}}),
            Training("net", "quick", SETTINGS, seeds=1),
        ),
        measures=(LOSSES,),
        published=(
            Published("a", "x", 1.0, 0.1, "1.1"),
            Published("b", "x", 7.0, 0.1, "1.2"),
            Published("net", "val_loss", 3.0, 2.0, "1.3"),
        ),
        claims=(Claim("a is below b.", "x", "a", "b"),),
        refuted_if="It is not.",
        seeds=2,
    ))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _nothing_is_imported: None) -> Path:
    """A folder with a text and own.py, in which one works."""
    (tmp_path / "text.txt").write_text(TEXT)
    settings = dict(each.split("=") for each in (*SETTINGS, f"data.path={tmp_path / 'text.txt'}"))
    own = OWN.format(settings=settings, folder=str(tmp_path))
    (tmp_path / "own.py").write_text(textwrap.dedent(own))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("CLEARFORMER_STUDIES", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(lectures, "_OWN", {})
    # Two of the lectures' studies stand for all: to resolve some 900 runs for every table takes seconds.
    few = tuple(study for name, study in lectures.lecture_studies().items() if name in ("bigram", "depth"))
    monkeypatch.setattr(lectures, "MODULES", (SimpleNamespace(STUDIES=few),))
    return tmp_path


@pytest.fixture
def _workers_are_forks(forks: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def start_forks(selection: Selection, *_: Any) -> Callable[[int], Process]:
        return lambda place: forks.start(*selection.command()[3:])

    monkeypatch.setattr(launch, "local_start", start_forks)
    monkeypatch.setattr(pool, "LOOK_SECONDS", 0.05)


@pytest.fixture
def says(place: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that ends with a status; returns its standard output."""

    def run(*arguments: str, status: int = 0) -> str:
        capsys.readouterr()
        assert main(list(arguments)) == status
        return capsys.readouterr().out

    return run


OWN_FILE = ("--import", "own.py")


def test_a_study_that_cannot_be_run_here_does_not_stop_the_list(
    place: Path, says: Callable[..., str]
) -> None:
    arms = (Training("a", "quick", {"model.attention": "my-own"}),)
    declare(Study("mine", "?", "", arms, ""), Store(place / "studies"))
    text = says("study", "list")
    assert "depth" in text
    assert "mine cannot be run: study mine, arm 'a': model.attention.kind is one of " in text
    row = json.loads(says("study", "list", "--json"))["studies"][-1]
    assert (row["name"], row["runs"], row["done"]) == ("mine", None, None)


def test_a_study_that_cannot_be_run_here_does_not_stop_all_others(
    place: Path, says: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lectures' studies are not run here: it is asked which ones would be."""
    arms = (Training("a", "quick", {"model.attention": "my-own"}),)
    declare(Study("mine", "?", "", arms, ""), Store(place / "studies"))
    assert main(["study", "run", "mine"]) == 2
    run: list[str] = []
    monkeypatch.setattr(
        "clearformer.cli.commands.study.run_and_tell",
        lambda chosen, selection, *_: run.extend([study.name for study in chosen] * (selection.scale == 0.5)),
    )
    assert main(["study", "run", "all", "--scale", "0.5"]) == 0
    assert "left out: study mine, arm 'a': model.attention.kind is one of " in capsys.readouterr().err
    assert {"bigram", "depth"} <= set(run)
    assert "mine" not in run
    for option, value in (("--scale", "2"), ("--device", "gpu")):
        assert main(["study", "run", "all", option, value]) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith(f"clearformer: {option}: ")


@pytest.mark.usefixtures("_workers_are_forks")
def test_a_study_of_one_s_own_from_the_list_to_the_report(place: Path, says: Callable[..., str]) -> None:
    (place / "broken").touch()
    listed = {row["name"]: row for row in json.loads(says("study", "list", "--json", *OWN_FILE))["studies"]}
    assert listed["own"] == {
        "name": "own",
        "question": "Is a below b?",
        "lecture": "mine, 1",
        "runs": 5,
        "done": 0,
        "error": None,
    }

    [first] = json.loads(says("study", "run", "own", "--jobs", "2", "--json", *OWN_FILE, status=1))["studies"]
    assert (first["runs"], first["done"]) == (5, 4)
    assert first["failed"] == {"b, seed 2": "mean: it cannot be drawn now"}
    shown = json.loads(says("study", "show", "own", "--json", *OWN_FILE))
    assert (shown["runs"], shown["done"], shown["refuted_if"]) == (5, 4, "It is not.")
    assert [arm["done"] for arm in shown["arms"]] == [2, 1, 1]
    assert shown["arms"][2]["steps"] == 4

    (place / "broken").unlink()
    written = {path: path.stat().st_mtime_ns for path in (place / "studies" / "measured").iterdir()}
    text = says("study", "run", "own", *OWN_FILE)
    assert "own: 5 of 5 runs done" in text
    assert re.search(r"b +x +7 +2.0\d+ ± .* 2 +not reproduced", text)
    assert all(path.stat().st_mtime_ns == then for path, then in written.items())

    result = json.loads((place / "studies" / "own" / "result.json").read_text())
    verdicts = {each["arm"]: each["verdict"] for each in result["published"]}
    assert verdicts == {"a": "reproduced", "b": "not reproduced", "net": "reproduced"}
    assert {"value", "measured", "interval", "seeds", "verdict"} <= result["published"][0].keys()
    page = (place / "studies" / "own" / "report.html").read_text()
    assert "Is a below b?" in page
    assert "not reproduced" in page
    report = says("study", "report", "own", "--out", "out", *OWN_FILE).strip()
    assert "Is a below b?" in Path(report).read_text()
    assert (place / "out" / "own" / "result.json").exists()
    arms = (Training("a", "quick", {"model.attention": "my-own"}),)
    declare(Study("mine", "?", "", arms, ""), Store(place / "studies"))  # which cannot be run here
    says("study", "report", "mine", *OWN_FILE, status=2)
    says("study", "report", "all", "--out", "everything", *OWN_FILE)
    assert re.search(r"\| bigram \|.*\| 0 of 3 \|", (place / "everything" / "README.md").read_text())
    assert [path.name for path in (place / "everything").iterdir() if path.is_dir()] == ["own"]
    assert "own" in says("study", "show", "own", *OWN_FILE)


@pytest.mark.usefixtures("_workers_are_forks")
def test_a_scaled_study_judges_no_trained_number(place: Path, says: Callable[..., str]) -> None:
    [found] = json.loads(says("study", "run", "own", "--scale", "0.5", "--seeds", "1", "--json", *OWN_FILE))[
        "studies"
    ]
    verdicts = {each["arm"]: each["verdict"] for each in found["published"]}
    assert verdicts["net"] == "not judged at this scale"
    assert found["scale"] == 0.5
    assert found["runs"] == 3


@pytest.mark.usefixtures("_workers_are_forks")
def test_a_sweep_is_a_study_that_is_found_again(
    place: Path, says: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = ("sweep", "quick", "data.path=text.txt", *SETTINGS, "model.position=rope,alibi", "seed=1..2")
    text = says(*sweep, "--jobs", "2")
    assert "quick-position: 4 of 4 runs done" in text
    assert re.search(r"position=rope +\d\.\d+ ± ", text)
    assert says(*sweep).startswith("quick-position: 4 of 4 runs done")
    assert len(list((place / "studies" / "runs").iterdir())) == 4
    assert "quick-position" in says("study", "list")
    report = Path(says("study", "report", "quick-position").strip())
    assert "How do the losses" in report.read_text()

    runs = sorted(str(path) for path in Path("studies/runs").iterdir())
    kept = f"{runs[0]}/config.toml"  # the settings of any run can be varied anew
    again = says("sweep", "quick", "--config", kept, "model.position=rope,alibi", "seed=1")
    assert re.search(r"position=rope +\d\.\d+ ", again)
    compared = json.loads(says("compare", *runs, "--json"))
    assert [len(group["runs"]) for group in compared["groups"]] == [2, 2]
    assert "model.position.kind" in compared["differ"]
    assert {each["value"] for each in compared["differences"]} == {"train_loss", "val_loss"}
    text = says("study", "compare", *runs)
    assert "95% interval" in text
    assert text == says("compare", *runs)

    drawn = json.loads(says("plot", runs[0], "--json", "--x", "tokens"))
    assert drawn["x"] == "tokens"
    assert [x for x, _ in drawn["runs"][0]["training"]] == [16, 32, 48, 64]
    assert [x for x, _ in drawn["runs"][0]["held_out"]] == [32, 64]
    assert "└" in says("plot", *runs)
    with monkeypatch.context() as terminal:
        terminal.setattr(type(sys.stdout), "isatty", lambda _: True, raising=False)
        terminal.delenv("NO_COLOR", raising=False)
        assert "\x1b[" in says("plot", *runs)
        terminal.setenv("NO_COLOR", "1")
        assert "\x1b[" not in says("plot", *runs)
    assert says("plot", *runs, "--figure", "curves.svg") == ""
    assert (place / "curves.svg").read_text().startswith("<?xml")


def test_a_signal_ends_the_workers_and_the_same_command_goes_on(place: Path, forks: ForkServer) -> None:
    """With workers as they are: processes of their own, which a Ctrl-C of the terminal does not reach."""
    command = (
        *("sweep", "quick", "data.path=text.txt", *SETTINGS, "train.max_steps=1000000", "--name", "long"),
        *("train.eval_every=1000000", "train.max_seconds=none"),
    )
    command = tuple(each for each in command if each not in ("train.max_steps=4", "train.eval_every=2"))
    with (place / "log").open("w") as log:
        fork = forks.start(*command, stdout=log)
        try:
            deadline = time.monotonic() + 120
            while not any(file.read_text() for file in place.glob("studies/runs/*/metrics.jsonl")):
                assert fork.poll() is None, (place / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            workers = {holder.pid for holder in holders(Store(place / "studies")).values()}
            fork.send_signal(signal.SIGINT)
            assert fork.wait(120) == 130
        finally:
            fork.kill()
    assert workers
    assert all(not Path(f"/proc/{pid}").exists() for pid in workers)
    assert holders(Store(place / "studies")) == {}
    told = (place / "log").read_text()
    assert "Traceback" not in told
    assert told.splitlines()[-1] == "clearformer: interrupted; everything so far is kept"
    [checkpoint] = list(place.glob("studies/runs/*/checkpoints/step-*"))
    assert (checkpoint / "manifest.json").exists()


SBATCH = """#!/bin/sh
cat > {place}/script
nohup bash {place}/script > {place}/job.log 2>&1 &
echo $! > {place}/job
echo 4711
"""
SQUEUE = """#!/bin/sh
kill -0 $(cat {place}/job) 2> /dev/null && echo 4711
exit 0
"""


def test_a_cluster_runs_the_workers(
    place: Path, says: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "bin").mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        file = place / "bin" / name
        file.write_text(text.format(place=place))
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}")
    text = says("study", "run", "own", "--slurm", "partition=gpu,time=60", "--jobs", "1", *OWN_FILE)
    assert "own: 5 of 5 runs done" in text, (place / "job.log").read_text()
    script = (place / "script").read_text()
    assert "#SBATCH --partition=gpu" in script
    assert "#SBATCH --time=60" in script


@pytest.fixture
def refuses(place: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """Runs a command that must be refused; returns its one line."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(list(arguments)) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        [line] = printed.err.splitlines()
        return line

    yield run
    assert not (place / "studies").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["study"], "clearformer study needs a command: list, show, run"),
        (["study", "runn"], "there is no command 'runn'; did you mean 'run'?"),
        (["study", "run"], "all|NAME... is missing"),
        (["study", "run", "dept"], "there is no study 'dept'; did you mean 'depth'?"),
        (["study", "show", "../x"], "there is no study '../x'; see clearformer study list"),
        (["study", "run", "depth", "--scale", "0"], "--scale: above 0 and up to 1"),
        (["study", "run", "depth", "--scale", "1.5"], "--scale: above 0 and up to 1"),
        (["study", "run", "depth", "--seeds", "0"], "--seeds: 1 or more; got 0"),
        (["study", "show", "depth", "--scale", "2"], "--scale: above 0 and up to 1"),
        (["study", "show", "depth", "--seeds", "0"], "--seeds: 1 or more; got 0"),
        (["study", "run", "depth", "--jobs", "0"], "--jobs: 1 or more; got 0"),
        (["study", "run", "depth", "--slurm", "array=3"], "--slurm: 'array' is set by clearformer"),
        (["study", "run", "depth", "--device", "gpu"], "--device: auto, cpu"),
        (["study", "run", "depth", "--folder", "text.txt"], "--folder: text.txt is not a folder"),
        (["study", "run", "depth", "--folder", ""], "--folder: the name is empty"),
        (["study", "report", "--folder", "nowhere"], "--folder: no folder nowhere"),
        (["sweep", "quick", "train.lr="], "train.lr: a value is missing"),
        (["sweep", "quick", "train.lr=1e-3,1e-2", "--jobs", "0"], "--jobs: 1 or more; got 0"),
        (
            ["sweep", "quick", "model.n_layers=2..1"],
            "model.n_layers: 2..1 has no values: write 1..2",
        ),
        (["sweep", "quick", "train.lrr=1,2"], "unknown key 'train.lrr'"),
        (["sweep", "quick", "train.lr=1,2", "--config", "none.toml"], "none.toml: there is no such file"),
        (["sweep", "quick", "train.lr=1,2", "--name", "a b"], "a study's name consists of letters"),
        (["sweep", "quick", "train.lr=1,2", "--name", ""], "--name: the name is empty"),
        (
            ["sweep", "quick", "train.lr=1,2", "--name", "depth"],
            "there is already a study 'depth' of the lectures",
        ),
        (["sweep", "quick", "train.lr=1e-3,1e-2", "--name", "lr", "--device", "gpu"], "--device: auto, cpu"),
        (["sweep", "quick", "train.lr=1e-3,1e-2", "--name", "lr", "--slurm", "1x"], "--slurm: "),
        (["compare", "nothing"], "there is no run 'nothing'"),
        (["plot", "nothing"], "there is no run 'nothing'"),
        (["plot", ""], "RUN: the name is empty"),
        (["plot", "nothing", "--x", "step"], "--x: one of steps, tokens, seconds; got 'step'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_told_in_a_line(
    refuses: Callable[..., Any], arguments: list[str], told: str
) -> None:
    before = sorted(Path().rglob("study.json"))
    assert told in refuses(*arguments)
    assert sorted(Path().rglob("study.json")) == before
