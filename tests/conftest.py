"""Shared by all tests: shapes checked at run time, one thread, and where the data lies."""

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
from clearformer import device  # noqa: E402
from clearformer.cost import rates  # noqa: E402  (what it imports is checked as well)

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
torch.set_num_threads(1)  # tests run side by side, one to a core
if hasattr(signal, "SIGHUP"):
    signal.signal(
        signal.SIGHUP, signal.SIG_DFL
    )  # whoever runs the tests may ignore it (nohup), and so would training


def fsync_at_once(file: Any) -> None:
    """Stand in for os.fsync: no test sees what a power failure would lose, and a disk takes milliseconds each time."""
    os.fstat(file if isinstance(file, int) else file.fileno())


@cache
def seconds_of_one_product(size: int, dtype: torch.dtype) -> float:
    """The least time of three: the first of a process is the slowest."""
    return min(measured_seconds(torch.ones(size, size, dtype=dtype)) for _ in range(3))


def seconds_as_measured_before(a: torch.Tensor) -> float:
    """Stand in for what measures a product, which each run that chooses its own type asks a hundred times."""
    return seconds_of_one_product(len(a), a.dtype)


os.fsync = fsync_at_once
measured_seconds, device._product_seconds = device._product_seconds, seconds_as_measured_before
rates.MEASURED_FOR = 0.05  # no test asks how fast this machine is
gc.disable()  # while tests are collected, which makes a million objects and hardly any garbage


def pytest_collection_finish() -> None:
    """Spare what was collected, which stays to the end, every later search for garbage."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Where commands run as processes of their own."""
    if sys.platform == "win32":
        pytest.skip("Windows does not fork")
    with fork_server() as server:
        yield server


@pytest.fixture
def data_dir() -> Path:
    """The folder of test data, or a skip that says how to name it."""
    folder = os.environ.get("CLEARFORMER_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("CLEARFORMER_DATA names no folder: set it to the test data to run this test")
    return Path(folder)


@pytest.fixture(scope="session")
def load_benchmark() -> Callable[[str], ModuleType]:
    """Imports a script of benchmarks/ by its name, without running it."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test draws the same random numbers, in whatever order it runs."""
    seed(0)
