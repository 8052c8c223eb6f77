"""docs/extending.md does what it says, in a process of its own: what it registers would stay."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
LONGEST = 30  # lines of a block


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"CLEARFORMER_RUNS": str(folder / "runs"), "PYTHONWARNINGS": "error"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_every_block_is_short() -> None:
    assert len(blocks()) >= 5
    for block in blocks():
        assert len(block.splitlines()) <= LONGEST, block


def test_the_page_runs_and_what_it_trained_opens_where_its_parts_are_brought(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text("\n\n".join(blocks()))
    parts = [block for block in blocks() if "check_kind" not in block and "cf.train" not in block]
    (tmp_path / "my_parts.py").write_text("\n\n".join(parts))

    done = run(["page.py"], tmp_path)

    assert done.returncode == 0, done.stderr
    assert re.search(r"the best held-out loss is \d\.\d{3}, of step [12]0", done.stdout)
    name = "quick-counting"
    alone = run(["-m", "clearformer", "generate", name], tmp_path)
    assert alone.returncode == 2
    assert "got 'moving_average'; a kind of your own is brought by --import FILE.py" in alone.stderr
    brought = run(
        ["-m", "clearformer", "generate", name, "--import", "my_parts.py", "--prompt", "after"], tmp_path
    )
    assert brought.returncode == 0, brought.stderr
    assert brought.stdout.startswith("after")
