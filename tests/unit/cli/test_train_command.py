"""The command that continues a run, as `clearformer train` names it."""

from pathlib import Path

import pytest
import typer

from clearformer.cli import commands_to_type
from clearformer.cli.calling import call
from clearformer.cli.commands.train import continuing


def as_under_torchrun(patched: pytest.MonkeyPatch, processes: int, here: int) -> None:
    """Set what torchrun sets for its first process: `processes` in all, `here` of them on this machine."""
    place = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": here}
    for name, value in {**place, "MASTER_ADDR": "first", "MASTER_PORT": 29500}.items():
        patched.setenv(name, str(value))


def test_a_run_of_several_processes_is_continued_by_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process alone would draw other dropout, and so end with other weights."""
    as_under_torchrun(monkeypatch, processes=2, here=2)
    monkeypatch.setattr(commands_to_type, "_imported", ["parts.py"])
    command = "torchrun --nproc-per-node 2 -m -- clearformer train --resume --run 'a b' --import parts.py"
    assert continuing("a b") == command


def test_a_run_of_several_machines_is_continued_by_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    as_under_torchrun(monkeypatch, processes=6, here=2)
    machines = "--nnodes 3 --node-rank 0 --master-addr first --master-port 29500"
    command = f"torchrun {machines} --nproc-per-node 2 -m -- clearformer train --resume --run a"
    assert continuing("a") == command


def test_a_program_s_path_with_a_space_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/my bin/clearformer-elsewhere"])
    assert commands_to_type.to_type("presets") == "'/my bin/clearformer-elsewhere' presets"


def test_a_file_on_another_drive_is_named_by_its_whole_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_way(path: str) -> str:
        raise ValueError("path is on mount 'D:', start on mount 'C:'")

    monkeypatch.setattr(commands_to_type, "_imported", ["/d/parts.py"])
    monkeypatch.setattr("os.path.relpath", no_way)
    assert commands_to_type.to_type("runs", "clearformer") == "clearformer runs --import /d/parts.py"


def test_a_run_of_one_process_is_continued_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert continuing("a").endswith(" train --resume --run a")
    assert "torchrun" not in continuing("a")


@pytest.mark.parametrize("words", ["--import parts.py inner", "inner --import parts.py"])
def test_files_imported_before_or_after_a_group_s_command_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("parts.py").touch()
    group = typer.Typer()
    group.callback()(lambda: None)
    group.command("inner")(lambda: typer.echo(commands_to_type.to_type("runs", "clearformer")))
    for arguments, line in ((words, "clearformer runs --import parts.py"), ("inner", "clearformer runs")):
        assert call(group, "group", arguments.split(), lambda: None) == 0
        assert capsys.readouterr().out.strip() == line
