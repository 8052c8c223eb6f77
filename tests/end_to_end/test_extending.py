"""docs/extending.md does what it says, in a process of its own: what it registers would stay."""

import re
from pathlib import Path

import pytest

from ..forks import ForkServer

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
RUN_PAGE = "import runpy; runpy.run_path('page.py', run_name='__main__')"
LONGEST = 30  # lines of a block


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_every_block_is_short() -> None:
    assert len(blocks()) >= 5
    for block in blocks():
        assert len(block.splitlines()) <= LONGEST, block


def test_the_page_runs_and_what_it_trained_opens_where_its_parts_are_brought(
    tmp_path: Path, forks: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page.py").write_text("\n\n".join(blocks()))
    parts = [block for block in blocks() if "check_kind" not in block and "cf.train" not in block]
    (tmp_path / "my_parts.py").write_text("\n\n".join(parts))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEARFORMER_RUNS", "runs")
    monkeypatch.setenv("PYTHONWARNINGS", "error")

    done = forks.run(script=RUN_PAGE)

    assert done.returncode == 0, done.stderr
    assert re.search(r"the best held-out loss is \d\.\d{3}, of step [12]0", done.stdout)
    name = "quick-counting"
    alone = forks.run("generate", name)
    assert alone.returncode == 2
    assert "got 'moving_average'; load your own kinds with --import FILE.py" in alone.stderr
    brought = forks.run("generate", name, "--import", "my_parts.py", "--prompt", "after")
    assert brought.returncode == 0, brought.stderr
    assert brought.stdout.startswith("after")
