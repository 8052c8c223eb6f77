"""The cores and the memory that this process may use, and how busy other processes keep the cores."""

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import RLock

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
STAT = Path("/proc/stat")
LOOK_SECONDS = 1.0  # between measurements of the load
FIRST_LOOK_SECONDS = 0.3  # before the first one: a command has imported torch by then
ASSUMED_MEMORY = 8e9  # bytes, where the system does not tell
IDLE = (3, 4)  # the columns of a core's line that are not work: idle, and waiting for a disk


def n_cores() -> int:
    """Return how many cores this process may use, by its affinity and its control groups' quotas; at least one."""
    return max(1, min([len(own_cores()), *(int(quota) for quota in quotas())]))


def own_cores() -> set[int]:
    """Return the numbers of the cores that this process may run on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def quotas() -> Iterator[float]:
    """Yield the quota, in cores, of each control group around this process that has one.

    The quota of a container (`docker run --cpus 1`) is in the file `cpu.max`, or in two files in version 1 of control
    groups.
    """
    for group in groups_of("cpu"):
        yield from quota_of(group)


def memory_here() -> float:
    """Return the bytes of memory that this process may use: the machine's, or less in a container.

    Windows does not tell the machine's to Python; there `ASSUMED_MEMORY` is returned.
    """
    try:
        of_machine = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        of_machine = ASSUMED_MEMORY
    return min(of_machine, memory_limit())


def memory_limit() -> float:
    """Return the bytes that this process may use by its control groups; infinity if none of them has a limit.

    The limit of a container (`docker run --memory 2g`) is in the file `memory.max`, or `memory.limit_in_bytes` in
    version 1 of control groups.
    """
    names = ("memory.max", "memory.limit_in_bytes")
    lines = (line for group in groups_of("memory") for name in names for line in lines_of(group / name))
    return min((float(line) for line in lines if line.isdecimal()), default=math.inf)


def groups_of(controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups around this process that limit its `cpu` or its `memory`."""
    for line in lines_of(OWN_CGROUPS):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUPS / controller if controllers else CGROUPS
        own = Path(path.lstrip("/"))
        for group in (own, *own.parents):
            yield root / group


def quota_of(group: Path) -> Iterator[float]:
    """Yield the quota of one control group, in cores, if it has one."""
    words = " ".join(lines_of(group / "cpu.max")).split()
    words = words or [*lines_of(group / "cpu.cfs_quota_us"), *lines_of(group / "cpu.cfs_period_us")]
    if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal():
        yield int(words[0]) / int(words[1])


def lines_of(file: Path) -> list[str]:
    """Return the lines of one of the system's files; empty where there is no such file."""
    try:
        return file.read_text().split("\n")[:-1]
    except OSError:
        return []


@dataclass(frozen=True)
class Usage:
    """The seconds of work of this process's cores, and of this process, up to a time of the clock."""

    clock: float
    cores: float
    process: float

    def by_others_since(self, earlier: "Usage") -> float:
        """Return how many cores other processes kept busy since `earlier`, on average."""
        seconds = max(self.clock - earlier.clock, 1e-9)
        return max(0.0, self.cores - earlier.cores - (self.process - earlier.process)) / seconds


def usage() -> Usage | None:
    """Return the work so far of the cores that this process may run on; None if the system does not report it."""
    names = {f"cpu{number}" for number in own_cores()}
    work = [line.split()[1:] for line in lines_of(STAT) if line.split()[0] in names]
    if not work:
        return None
    ticks = sum(int(n) for each in work for i, n in enumerate(each[:8]) if i not in IDLE)
    return Usage(time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time())


class FreeCores:
    """The number of cores that other processes leave free to this one, measured once a second.

    In a shorter time, brief work of other programs would look like a steady load.
    """

    def __init__(self) -> None:
        self.last = usage()
        self.latest = self.counted = len(own_cores())
        self.has_looked = False
        self._looking = RLock()

    def number(self) -> int:
        """Return the number, at least one, after measuring it if it is time to."""
        with self._looking:
            wait = LOOK_SECONDS if self.has_looked else FIRST_LOOK_SECONDS
            if self.last is not None and time.perf_counter() - self.last.clock >= wait:
                self.look(self.last)
            return self.counted

    def look(self, last: Usage) -> None:
        """Measure it, since `last`."""
        now = usage()
        if now is None:
            return
        free = cores_left(len(own_cores()), now.by_others_since(last))
        # One measurement is enough to count a core as taken; it is free again after two in a row.
        self.counted = min(free, max(self.latest, self.counted))
        self.last, self.latest, self.has_looked = now, free, True

    def forget(self) -> None:
        """Forget the load since the last measurement: it was of this process's own helpers, such as compilers."""
        with self._looking:
            self.last = usage()


def cores_left(cores: int, used_by_others: float) -> int:
    """Return how many cores others leave free, at least one; half a core counts as one."""
    return max(1, int(cores - used_by_others + 0.5))


@cache
def free_cores() -> FreeCores:
    """Return this process's count of free cores, which is measured from the first call on."""
    return FreeCores()
