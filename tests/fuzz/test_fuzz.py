"""The small form of the fuzzing: some cases of each target by a fixed seed, and the failures of earlier days."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clearformer.training.tasks import next_token

from .cases import parse
from .oracle import verdict
from .runner import drawn, prepared
from .targets import TARGETS

SEED = 1
N_CASES = {"settings": 200, "tokenizers": 80, "folders": 20, "runs": 7, "commands": 20, "data_files": 30}
KEPT = (Path(__file__).parent / "kept.jsonl").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module", autouse=True)
def _short_samples() -> Iterator[None]:
    """The texts that runs end with, which take longer than all of a small run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(next_token, "SAMPLE_TOKENS", 20)
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The originals of all targets."""
    return prepared(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.parametrize("name", TARGETS)
def test_some_cases(home: Path, name: str) -> None:
    cases = [drawn(TARGETS[name], SEED, number, home) for number in range(N_CASES[name])]
    verdicts = {case.line(): verdict(TARGETS[name], case, home) for case in cases}
    assert {case: wrong for case, wrong in verdicts.items() if wrong} == {}


@pytest.mark.parametrize("line", KEPT)
def test_a_case_that_failed_once(home: Path, line: str) -> None:
    case = parse(line)
    assert verdict(TARGETS[case.target], case, home) is None
