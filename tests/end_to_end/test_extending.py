"""docs/extending.md does what it says, in a process of its own: what it registers would stay."""

import json
import re
from pathlib import Path

import pytest

from ..forks import ForkServer

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
RUN_PAGE = "import runpy; runpy.run_path('page.py', run_name='__main__')"
LONGEST = 30  # lines of a block
TINY = (
    "model.d_model=18",
    "model.n_layers=1",
    "train.max_steps=2",
    "train.batch_size=2",
    "train.dtype=float32",
    "train.compile=false",
    "train.device=cpu",
)


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    """The page's commands that train, as words."""
    return [
        line.split() for line in re.findall(r"^    clearformer (train .*)$", PAGE.read_text(), re.MULTILINE)
    ]


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
    own = (
        "data.name=counting",
        "model.attention.n_heads=2",
        "train.objective=small_logits",
        "train.max_steps=9",
    )
    trained = forks.run("train", "nanogpt-cpu", "--import", "my_parts.py", *TINY, *own, "--run", "small")
    assert trained.returncode == 0, trained.stderr
    learned = forks.run("lens", "small", "after 7", "--view", "learned", "--import", "my_parts.py")
    assert learned.returncode == 0, learned.stderr  # which reads the rows of a batch one by one

    (tmp_path / "text.txt").write_text("one two, two three.\n" * 30)
    brought = ["--import", "my_parts.py"]
    made = forks.run("tokenizer", "train", "text.txt", "--kind", "words", "--out", "words.json", *brought)
    assert "words.json: words tokenizer, 8 tokens" in made.stderr
    compared = forks.run("tokenizer", "compare", "text.txt", "--kinds", "words,byte", "--json", *brought)
    assert [(row["name"], row["vocab_size"]) for row in json.loads(compared.stdout)["tokenizers"]] == [
        ("words", 8),
        ("byte", 256),
    ]
    sized = forks.run("tokenizer", "train", "text.txt", "--kind", "words", "--vocab-size", "9", *brought)
    assert "--vocab-size does not apply to --kind words" in sized.stderr

    assert len(commands()) == 2
    for command in commands():
        trained = forks.run(*command, *TINY)
        assert trained.returncode == 0, trained.stderr
        lines = trained.stdout.splitlines()
        further = [line.split() for line in lines[lines.index("Next:") + 1 :]]
        assert further
        assert all(words[-2:] == ["--import", "my_parts.py"] for words in further)
        evaluate = next(words[words.index("eval") :] for words in further if "eval" in words)
        assert forks.run(*evaluate).returncode == 0
