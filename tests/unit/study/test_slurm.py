"""Workers on a Slurm cluster, with commands of its name that run the script here."""

import os
import shlex
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from clearformer.errors import UserError
from clearformer.study.workers import slurm
from clearformer.study.workers.pool import Selection, WorkersError
from clearformer.study.workers.slurm import SlurmWorkers, is_queued, script, slurm_options, submitted

Command = Callable[[str, str], None]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Puts a command on PATH, as a shell script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def put(name: str, text: str) -> None:
        file = folder / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)

    return put


def test_options_as_typed() -> None:
    assert slurm_options("partition=gpu,time=60, exclusive,cpus_per_task=4") == {
        "partition": "gpu",
        "time": "60",
        "exclusive": "",
        "cpus-per-task": "4",
    }
    assert slurm_options("") == {}


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('nodelist="a1,b2",time=60', {"nodelist": "a1,b2", "time": "60"}),
        ("nodelist=a[1-3,7],exclusive", {"nodelist": "a[1-3,7]", "exclusive": ""}),
        ('comment="two, words" , time = "1:00"', {"comment": "two, words", "time": "1:00"}),
        ("dependency=afterok:1", {"dependency": "afterok:1"}),
    ],
)
def test_commas_in_quotes_or_brackets_belong_to_the_value(text: str, options: dict[str, str]) -> None:
    assert slurm_options(text) == options


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("array=1-9", "'array' is set by clearformer"),
        ("Partition=x", "'Partition' is not an sbatch option"),
        ("a b=1", "'a b' is not an sbatch option"),
        ("nodelist=a1,b2", "a value with commas in double quotes"),
        ('nodelist="a1,b2', "nodelist: a quote is missing or out of place"),
        ('comment=a"b"c', "comment: a quote is missing or out of place"),
        ("time=1\n#SBATCH --wrap=x", "the value must be one line"),
    ],
)
def test_what_is_no_option_is_refused(text: str, told: str) -> None:
    with pytest.raises(UserError) as caught:
        slurm_options(text)
    assert told in str(caught.value)
    assert str(caught.value).startswith("slurm: ")


def test_the_script_is_an_array_of_workers_that_are_told_before_their_time_is_over(tmp_path: Path) -> None:
    selection = Selection(("a study",), tmp_path / 'st "udies" #1 50%', 0.5)
    text = script(selection, {"partition": "gpu", "exclusive": ""}, 8)
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert "#SBATCH --array=0-7" in lines
    assert "#SBATCH --partition=gpu" in lines
    assert "#SBATCH --exclusive" in lines
    [output] = [line for line in lines if "--output" in line]
    assert output.endswith(r'/st \"udies\" #1 50%%/logs/slurm-%A-%a.log"')
    assert shlex.split(output.removeprefix("#SBATCH"), comments=True) == [
        f'--output={tmp_path}/st "udies" #1 50%%/logs/slurm-%A-%a.log'
    ]
    assert "#SBATCH --signal=B:TERM@120" in lines
    assert lines[-1].startswith("exec ")
    assert "study work 'a study' --folder" in lines[-1]
    assert "--scale 0.5" in lines[-1]


def test_a_value_that_needs_quotes_gets_them(tmp_path: Path) -> None:
    text = script(Selection(("a study",), tmp_path), slurm_options('comment="a b #1",nodelist="a1,b2"'), 1)
    lines = text.splitlines()
    assert '#SBATCH --comment="a b #1"' in lines
    assert "#SBATCH --nodelist=a1,b2" in lines


def test_a_script_is_handed_over_and_its_number_taken(tmp_path: Path, command: Command) -> None:
    command("sbatch", f'cat > {tmp_path}/script; echo "$@" > {tmp_path}/options; echo "4711;cluster"')
    assert submitted("#!/bin/bash\ntrue\n") == "4711"
    assert (tmp_path / "script").read_text() == "#!/bin/bash\ntrue\n"
    assert (tmp_path / "options").read_text() == "--parsable\n"


def test_a_script_that_is_not_taken_is_told(command: Command) -> None:
    command("sbatch", "echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1")
    with pytest.raises(WorkersError, match="invalid partition specified"):
        submitted("")
    command("sbatch", "echo thank you")
    with pytest.raises(WorkersError, match="sbatch returned no job id"):
        submitted("")


def test_without_slurm_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WorkersError, match=r"sbatch cannot be run .*is this a Slurm cluster"):
        submitted("")


@pytest.mark.parametrize(
    ("text", "queued"),
    [
        ("echo '4711_0 gpu R'", True),
        ("true", False),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", False),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", True),
    ],
)
def test_a_job_is_queued_until_the_scheduler_knows_it_no_more(
    command: Command, text: str, queued: bool
) -> None:
    command("squeue", text)
    assert is_queued("4711") is queued


def test_a_job_that_ends_too_early_is_told_and_one_that_is_ended_is_cancelled(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("sbatch", "echo 12")
    command("squeue", "true")
    command("scancel", f'echo "$@" >> {tmp_path}/cancelled')
    monkeypatch.setattr(slurm, "LOOK_SECONDS", 0.0)
    workers = SlurmWorkers(Selection(("s",), tmp_path / "studies"), {}, 2)
    workers.look_after([])
    workers.look_after([])  # its last results may be seen at the next look only
    with pytest.raises(WorkersError, match="job 12 has ended, but not all runs are done"):
        workers.look_after([])
    workers.end(2)
    assert (tmp_path / "cancelled").read_text() == "12\n"
    workers.end(slurm.HANGUP or 1)
    assert (tmp_path / "cancelled").read_text() == "12\n"
