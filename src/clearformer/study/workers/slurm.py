"""Workers on a Slurm cluster: a job array in which each task runs a worker's command line.

The script is passed to `sbatch` as text, and nothing is pickled (`submitit`, a common alternative, passes functions as
pickles). The folder of studies and the files that the settings name must be on a disk that the nodes share.
"""

import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from clearformer.errors import UserError, shown
from clearformer.files import disk_errors, make_folders
from clearformer.study.workers.pool import Selection, Workers, WorkersError, python_path
from clearformer.study.workers.progress import Standing
from clearformer.training.processes.interrupts import HANGUP

WARNING_SECONDS = 120  # before a job's time limit: time to finish a training step and save it
LOOK_SECONDS = 15.0  # between questions to the scheduler
OWN = ("array", "output", "error", "signal", "job-name", "wrap", "parsable")
NAME = re.compile(r"[a-z][a-z-]*")
PART = re.compile(r'(?:"[^"]*"|\[[^\]]*\]|[^,])+')  # up to a comma that is not in quotes or in brackets
PLAIN = re.compile(r"[^\s#\"'\\]*")  # what an #SBATCH line takes without quotes


def slurm_options(text: str) -> dict[str, str]:
    """Parse `partition=gpu,time=60` into long options of sbatch by name; a bare name is a switch.

    A value with commas is written in double quotes, `nodelist="a1,b2"`; inside brackets, `nodelist=a[1,3]`, they need
    none.

    Raises:
        UserError: a name is no option, or is one that clearformer sets itself, or a value is refused.
    """
    options = {}
    for part in filter(None, map(str.strip, PART.findall(text))):
        name, _, value = part.partition("=")
        name = name.strip().removeprefix("--").replace("_", "-")
        if not NAME.fullmatch(name) or name in OWN:
            why = "is set by clearformer" if name in OWN else "is not an sbatch option"
            raise UserError(
                f"slurm: {shown(name)} {why}; write NAME=VALUE,..., such as partition=gpu,time=60, and a value with "
                'commas in double quotes, such as nodelist="a1,b2"'
            )
        if any(letter in value for letter in "\n\r\0"):
            raise UserError(f"slurm: {name}: the value must be one line; got {shown(value)}")
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] == '"':
            value = value[1:-1]
        if '"' in value:
            raise UserError(f"slurm: {name}: a quote is missing or out of place; got {shown(value)}")
        options[name] = value
    return options


def script(selection: Selection, options: Mapping[str, str], jobs: int) -> str:
    """Return the script for sbatch: an array of workers."""
    logs = str(selection.folder.absolute() / "logs").replace("%", "%%")
    own = {
        "job-name": "clearformer-study",
        "array": f"0-{jobs - 1}",
        "output": in_quotes(f"{logs}/slurm-%A-%a.log"),
        "signal": f"B:TERM@{WARNING_SECONDS}",
    }
    lines = [
        f"#SBATCH --{name}" + (f"={value}" if value else "")
        for name, value in (own | {name: quoted(value) for name, value in options.items()}).items()
    ]
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            f"cd {shlex.quote(str(Path.cwd()))}",
            f"export PYTHONPATH={shlex.quote(python_path())}",
            'export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"',
            f"exec {shlex.join(selection.command())}",  # exec, so that the signal reaches the worker
            "",
        ]
    )


def quoted(value: str) -> str:
    """Quote a value for an #SBATCH line if it needs quotes."""
    return value if PLAIN.fullmatch(value) else in_quotes(value)


def in_quotes(value: str) -> str:
    """Quote a value for an #SBATCH line, where a space would end it and a # would begin a comment."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


class SlurmWorkers(Workers):
    """Workers of one job array."""

    def __init__(self, selection: Selection, options: Mapping[str, str], jobs: int) -> None:
        """Prepare the workers without submitting them.

        Args:
            selection: The options of their command line.
            options: Options of sbatch.
            jobs: The number of workers.
        """
        self.selection, self.options, self.jobs = selection, options, jobs
        self.job: str | None = None
        self.looked, self.was_queued = time.monotonic(), True

    def look_after(self, standings: Sequence[Standing]) -> None:
        if self.job is None:
            with disk_errors(self.selection.folder):
                make_folders(self.selection.folder / "logs")
            n_left = sum(each.state in ("running", "waiting") for each in standings)
            self.job = submitted(script(self.selection, self.options, min(self.jobs, n_left)))
        elif time.monotonic() - self.looked > LOOK_SECONDS:
            was_queued, self.was_queued = self.was_queued, is_queued(self.job)
            self.looked = time.monotonic()
            # Not at the first look without it: its last results may be seen later than its end.
            if not (self.was_queued or was_queued):
                raise WorkersError(
                    f"the cluster's job {self.job} has ended, but not all runs are done (logs in "
                    f"{self.selection.folder / 'logs'}); the same command resumes"
                )

    def end(self, number: int) -> None:
        """Cancel the array, unless the terminal was closed: then it continues."""
        if self.job is not None and number != HANGUP:
            run("scancel", self.job)

    def kill(self) -> None:
        """Do nothing: a worker with nothing left to do ends by itself."""


def submitted(text: str) -> str:
    """Submit a script to sbatch; returns the job's id.

    Raises:
        WorkersError: it is rejected.
    """
    answer = run("sbatch", "--parsable", input_text=text)
    number = answer.strip().splitlines()[-1].partition(";")[0] if answer.strip() else ""
    if not number.isdecimal():
        raise WorkersError(f"sbatch returned no job id: {shown(answer)}")
    return number


def is_queued(job: str) -> bool:
    """Whether any task of a job is queued or running; also true if the scheduler does not answer."""
    try:
        return bool(run("squeue", "--noheader", "--jobs", job).strip())
    except WorkersError as error:
        return "invalid job id" not in str(error).lower()  # the answer for a job that ended a while ago


def run(*command: str, input_text: str = "") -> str:
    """Run one of Slurm's commands; returns its output.

    Raises:
        WorkersError: the command does not exist, or fails.
    """
    try:
        done = subprocess.run(command, input=input_text, capture_output=True, text=True, env=os.environ)
    except OSError as error:
        raise WorkersError(
            f"{command[0]} cannot be run ({error.strerror}): is this a Slurm cluster?"
        ) from None
    if done.returncode:
        raise WorkersError(f"{command[0]}: {shown(done.stderr.strip() or done.stdout.strip())}")
    return done.stdout
