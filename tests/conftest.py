"""Setup of all tests: shapes checked at run time, one thread, the folder of test data."""

import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import settings

from . import shape_checks
from .forks import ForkServer, fork_server
from .seeding import seed

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

# Every jaxtyping annotation of the model is checked against the tensors that the tests pass.
shape_checks.install("clearformer.model")
shape_checks.install("clearformer.hooks")
from clearformer import device  # noqa: E402  (imported after the hooks, so that its imports are checked, too)
from clearformer.auto import measuring  # noqa: E402
from clearformer.cost import rates  # noqa: E402
from clearformer.parts import IMPORTED_AS  # noqa: E402

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
torch.set_num_threads(1)  # tests run in parallel, one per core
if hasattr(signal, "SIGHUP"):
    signal.signal(
        signal.SIGHUP, signal.SIG_DFL
    )  # it may be ignored here (nohup), and training would inherit that


def fsync_at_once(file: Any) -> None:
    """Replace os.fsync: no test depends on surviving a power failure, and each call would take milliseconds."""
    os.fstat(file if isinstance(file, int) else file.fileno())


@cache
def seconds_of_one_product(size: int, dtype: torch.dtype) -> float:
    """Return the shortest time of three: the first product of a process is the slowest."""
    return min(measured_seconds(torch.ones(size, size, dtype=dtype)) for _ in range(3))


def seconds_as_measured_before(a: torch.Tensor) -> float:
    """Replace the measurement of a product, which each run that chooses its own type makes a hundred times."""
    return seconds_of_one_product(len(a), a.dtype)


for folder in ("CLEARFORMER_RUNS", "CLEARFORMER_STUDIES"):  # a developer's own, which no test may write to
    os.environ.pop(folder, None)
os.fsync = fsync_at_once
measured_seconds, device._product_seconds = device._product_seconds, seconds_as_measured_before
rates.MEASURED_FOR = measuring.RATE_SECONDS = 0.05  # no test depends on this machine's exact speed
gc.disable()  # during collection, which makes a million objects and hardly any garbage


def pytest_collection_finish() -> None:
    """Exclude the collected tests, which stay to the end, from every later garbage collection."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """The server that runs commands as separate processes."""
    if sys.platform == "win32":
        pytest.skip("Windows does not fork")
    with fork_server() as server:
        yield server


@pytest.fixture
def _nothing_is_imported() -> Iterator[None]:
    """Forget the files that other tests brought by --import, which a new process would be given too."""

    def imported() -> list[str]:
        return [name for name in sys.modules if name.startswith(IMPORTED_AS)]

    before = {name: sys.modules.pop(name) for name in imported()}
    yield
    for name in imported():
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def data_dir() -> Path:
    """The folder of test data, or a skip that says how to name it."""
    folder = os.environ.get("CLEARFORMER_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("CLEARFORMER_DATA names no folder: set it to the test data to run this test")
    return Path(folder)


@pytest.fixture(scope="session")
def load_benchmark() -> Callable[[str], ModuleType]:
    """A function that imports a script of benchmarks/ by its name, without running it."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(BENCHMARKS)  # scripts import each other by name
            spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Seed every test, so that it draws the same random numbers in whatever order tests run."""
    seed(0)
