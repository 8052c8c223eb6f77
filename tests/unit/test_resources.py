"""Which cores this process may use, and how much others take of them."""

import math
import os
from pathlib import Path

import pytest

from clearformer import resources
from clearformer.resources import Usage, memory_here, memory_limit, n_cores, quotas, usage


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system's files, none of which is there yet; this process may run on cores 1 and 3."""
    monkeypatch.setattr(resources, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(resources, "OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(resources, "STAT", tmp_path / "stat")
    monkeypatch.setattr(resources, "own_cores", lambda: {1, 3})
    return tmp_path


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_without_a_control_group_the_affinity_counts(system: Path) -> None:
    assert n_cores() == 2
    assert usage() is None


@pytest.mark.parametrize(("allowed", "n"), [("100000 100000", 1), ("max 100000", 2), ("50000 100000", 1)])
def test_a_container_s_quota_counts(system: Path, allowed: str, n: int) -> None:
    write(system / "own", "0::/a/b\n")
    write(system / "cgroup/a/cpu.max", f"{allowed}\n")  # of a group around the own one
    write(system / "cgroup/a/b/cpu.max", "800000 100000\n")
    assert n_cores() == n


def test_quotas_of_the_first_version_count(system: Path) -> None:
    write(system / "own", "3:memory:/x\n2:cpu,cpuacct:/x\n0::/\n")
    write(system / "cgroup/cpu/x/cpu.cfs_quota_us", "150000\n")
    write(system / "cgroup/cpu/x/cpu.cfs_period_us", "100000\n")
    write(system / "cgroup/cpu/cpu.cfs_quota_us", "-1\n")  # no limit
    write(system / "cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert list(quotas()) == [1.5]
    assert n_cores() == 1


@pytest.mark.parametrize(("allowed", "limit"), [("2147483648", 2**31), ("max", 2**32)])
def test_a_container_s_memory_counts(system: Path, allowed: str, limit: float) -> None:
    write(system / "own", "0::/a/b\n")
    write(system / "cgroup/a/memory.max", f"{allowed}\n")  # of a group around the own one
    write(system / "cgroup/a/b/memory.max", f"{2**32}\n")
    assert memory_limit() == limit


def test_a_memory_limit_of_the_first_version_counts(system: Path) -> None:
    write(system / "own", "3:memory:/x\n2:cpu,cpuacct:/x\n0::/\n")
    write(system / "cgroup/memory/x/memory.limit_in_bytes", "3000\n")
    write(system / "cgroup/cpu/x/memory.limit_in_bytes", "5\n")  # another controller's folder
    assert memory_limit() == 3000


def test_without_a_control_group_no_memory_limit_counts(system: Path) -> None:
    assert memory_limit() == math.inf


def test_where_the_system_does_not_tell_its_memory_some_is_assumed(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memory_here() > 0
    monkeypatch.delattr(os, "sysconf")  # Windows has no such call
    assert memory_here() == resources.ASSUMED_MEMORY


def test_the_work_of_the_own_cores_counts_but_not_their_idle_time(system: Path) -> None:
    own, other = "100 20 30 4000 50 1 2 3 9 9", "7 7 7 7 7 7 7 7 7 7"
    write(system / "stat", f"cpu  9 9\ncpu0 {other}\ncpu1 {own}\ncpu3 {own}\ncpu13 {other}\nintr 5\n")
    found = usage()
    assert found is not None
    assert found.cores == 2 * (100 + 20 + 30 + 1 + 2 + 3) / os.sysconf("SC_CLK_TCK")


def test_what_others_use_is_what_the_cores_did_without_the_own_work() -> None:
    before = Usage(clock=10.0, cores=100.0, process=7.0)
    assert Usage(clock=12.0, cores=104.0, process=9.0).by_others_since(before) == 1.0
    assert Usage(clock=12.0, cores=102.0, process=9.5).by_others_since(before) == 0.0


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="this system does not tell the work of its cores")
def test_this_machine_tells_its_work() -> None:
    found = usage()
    assert found is not None
    assert found.cores > 0
    assert n_cores() >= 1
