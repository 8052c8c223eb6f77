"""docs/studies.md does what it says, as a new user would try it: in a folder of one's own, on a text of one's own."""

import json
import re
from pathlib import Path

import pytest

from ..forks import ForkServer

PAGE = Path(__file__).parents[2] / "docs" / "studies.md"
RUN_PAGE = "import runpy; runpy.run_path('page.py', run_name='__main__')"
LONGEST = 36  # lines of a block


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_every_block_is_short() -> None:
    assert len(blocks()) >= 5
    for block in blocks():
        assert len(block.splitlines()) <= LONGEST, block


def test_the_page_runs_and_the_command_line_goes_on_from_it(
    tmp_path: Path, forks: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page.py").write_text("\n\n".join(blocks()))
    _, *parts, last = blocks()  # the text is made once
    (tmp_path / "my_study.py").write_text("\n\n".join([*parts, last.split("\n\n")[0]]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLEARFORMER_STUDIES", raising=False)
    monkeypatch.setenv("PYTHONWARNINGS", "error")

    done = forks.run(script=RUN_PAGE)

    assert done.returncode == 0, done.stderr
    assert re.match(r"Estimate\(mean=\d\.\d+, low=None", done.stdout)
    result = json.loads(Path("studies/counting/result.json").read_text())
    assert (result["scale"], result["runs"]) == (0.05, {"done": 4, "wanted": 4})
    assert set(result["values"]["rope"]) >= {"train_loss", "val_loss", "right", "parameters"}
    assert result["values"]["guessing"]["val_loss"]["mean"] == pytest.approx(2.906, abs=0.001)
    report = Path("studies/counting/report.html").read_text()
    for said in (
        "Which positions help a small model to count?",
        "after 230 comes",
        "Shortened",
        "--import page.py",
    ):
        assert said in report

    records = sorted(Path("studies/measured").iterdir())
    before = [record.stat().st_mtime_ns for record in records]
    alone = forks.run("study", "run", "counting")
    assert alone.returncode == 2
    again = forks.run(
        "study", "run", "counting", "--import", "my_study.py", "--scale", "0.05", "--seeds", "1", "--json"
    )
    assert again.returncode == 0, again.stderr
    assert sorted(Path("studies/measured").iterdir()) == records
    assert [record.stat().st_mtime_ns for record in records] == before

    written = forks.run(
        "study", "report", "counting", "--import", "my_study.py", "--scale", "0.05", "--seeds", "1",
        "--out", "docs",
    )  # fmt: skip
    assert written.returncode == 0, written.stderr
    assert Path("docs/counting/README.md").read_text().startswith("# Which positions")
