"""Setup of the tests of `auto`: a cache of their own, as measured rates are kept there."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
