"""Several processes that train one model (`torchrun`): each takes some rows of every batch.

The batches are the same as with one process; gradients are averaged before the update. All processes train the first
one's settings and begin with its weights, whatever they have found themselves.
"""

import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count as counted
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from clearformer.errors import ClearformerError, ConfigError, shortened, shown
from clearformer.training.processes.interrupts import ENDING, end_with_parent

NEEDED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # all of which torchrun sets
TOLD_AFTER_SECONDS = 30.0  # of waiting for processes that have not begun
POLL_SECONDS = 0.2
WAY_ON = "the checkpoints are intact, and the same command with --resume continues"
logger = logging.getLogger(__name__)


class ProcessesError(ClearformerError):
    """The processes of a run cannot work together, or one of them has ended."""


@dataclass(frozen=True)
class Place:
    """A process's place among those that torchrun started, as its environment says.

    Attributes:
        rank: Its number among all, counted from 0.
        count: The number of all.
        local_rank: Its number on this machine.
        n_here: The number on this machine.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    n_here: int = 1

    @classmethod
    def of_this_process(cls) -> "Place":
        """Read the environment; a process that torchrun did not start is alone.

        Raises:
            ConfigError: a variable is missing or no number, as where some are left over in a shell.
        """
        count = _number("WORLD_SIZE", 1)
        if count <= 1:
            return cls()
        if missing := [name for name in NEEDED if not os.environ.get(name)]:
            raise ConfigError(
                f"WORLD_SIZE={count} in the environment says that {count} processes train together, but "
                f"{missing[0]} is not set; start them with torchrun, or unset WORLD_SIZE to train with one"
            )
        rank = _number("RANK", 0)
        if rank >= count:
            raise ConfigError(f"RANK={rank} in the environment is not below WORLD_SIZE={count}; use torchrun")
        _number("MASTER_PORT", 0)
        return cls(rank, count, _number("LOCAL_RANK", 0), _number("LOCAL_WORLD_SIZE", count))


def _number(variable: str, default: int) -> int:
    """Return the whole number in an environment variable, or the default where it is not set."""
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal():
        raise ConfigError(
            f"{variable}={shown(text)} in the environment is not a whole number; start the processes with torchrun, "
            "which sets it, or unset it and WORLD_SIZE to train with one"
        )
    return int(text)


def is_main_process() -> bool:
    """Whether this process is torchrun's first, or the only one; also works before `Processes.join`."""
    return Place.of_this_process().rank == 0


def check_alone(what: str) -> None:
    """Raise ConfigError under torchrun, for work whose processes would each do something else."""
    if (count := Place.of_this_process().count) > 1:
        raise ConfigError(
            f"{what} cannot share its runs among torchrun's processes (WORLD_SIZE={count} in the environment); start "
            "it without torchrun, with --jobs N for N processes, or unset WORLD_SIZE"
        )


def backend_for(device: torch.device) -> str:
    """Return the library that exchanges gradients: NCCL if each process has its own GPU, else gloo.

    NCCL refuses two processes on one GPU.
    """
    if device.type != "cuda":
        return "gloo"
    n_here, n_gpus = (
        int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])),
        torch.cuda.device_count(),
    )
    if n_here <= n_gpus:
        return "nccl"
    logger.warning("%d processes share %d GPU%s: fewer would be faster", n_here, n_gpus, "s" * (n_gpus != 1))
    return "gloo"


class Processes:
    """The processes of a run, seen from this one; a single process if torchrun did not start it."""

    store: Any = None
    """Texts by name that all of torchrun's processes can read; made once, by the first run of this process."""
    n_waits = counted()

    def __init__(self, rank: int = 0, count: int = 1, place: Place | None = None) -> None:
        self.rank, self.count = rank, count
        self.place = place or Place(rank, count)

    @classmethod
    def join(cls, device: torch.device) -> "Processes":
        """Connect to the other processes that torchrun started, if any.

        Raises:
            ConfigError: all of them would compute on the same GPU, the device cannot be shared, or the environment
                is incomplete.
            ProcessesError: the others cannot be reached, or compute on another kind of device.
        """
        place = Place.of_this_process()
        if place.count == 1:
            return cls()
        check_shareable(device, place.count)
        if device.type == "cuda":
            torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
        if "TORCHELASTIC_RUN_ID" in os.environ:
            end_with_parent(os.getppid())  # else processes whose torchrun is killed would go on alone
        if not dist.is_initialized():
            cls.connect(place, backend_for(device))
        return cls(dist.get_rank(), place.count, place)

    @classmethod
    def connect(cls, place: Place, backend: str) -> None:
        """Connect to the others, once all of them have begun, and check that they use the same library."""
        with told_if_late(place), others_answer(place.rank, place.count):
            store, rank, count = next(rendezvous("env://"))
            if rank == 0:
                store.set("clearformer/backend", backend)
            first = store.get("clearformer/backend").decode()  # waits for it
            if first == backend:
                dist.init_process_group(backend, store=store, rank=rank, world_size=count)
                cls.store = store
                return
        raise ProcessesError(
            f"train.device: process {place.rank} on {socket.gethostname()} exchanges gradients by {backend}, and "
            f"process 0 by {first}, so their devices differ; set one that all machines have (train.device=cpu), and "
            "start no more processes on a machine than it has GPUs"
        )

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and reports to the user."""
        return self.rank == 0

    def all_reduce_mean(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its mean over all processes.

        Raises:
            ProcessesError: another process has ended.
        """
        if self.count == 1:
            return
        tensors = list(tensors)
        flat = torch.cat([t.reshape(-1) for t in tensors])
        with others_answer(self.rank, self.count):
            dist.all_reduce(flat)
        flat /= self.count
        for tensor, mean in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(mean.view_as(tensor))

    def average_gradients(self, parameters: Sequence[nn.Parameter], loss: Tensor) -> None:
        """Replace each gradient, and the loss, by its mean over all processes.

        A parameter may have no gradient in some processes, such as an expert that none of their rows reached; it counts
        as 0 there. One that has none anywhere keeps none, so that no weight decay reaches it.

        Raises:
            ProcessesError: another process has ended.
        """
        if self.count == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        missing = [n for n, parameter in enumerate(trained) if parameter.grad is None]
        has_one = torch.ones(len(trained), dtype=loss.dtype, device=loss.device)
        has_one[missing] = 0
        for n in missing:
            trained[n].grad = torch.zeros_like(trained[n])
        self.all_reduce_mean([*(parameter.grad for parameter in trained), loss, has_one])  # type: ignore[list-item]
        if missing:
            shares = has_one.tolist()
            for n in missing:
                trained[n].grad = None if shares[n] == 0 else trained[n].grad

    def broadcast(self, value: float) -> float:
        """Return the first process's value in every process, as their own measurements may differ."""
        return self._sum([value if self.is_main else 0.0])[0]

    def broadcast_text(self, text: str) -> str:
        """Return the first process's text in every process."""
        if self.count == 1:
            return text
        content = text.encode()
        size = int(self.broadcast(len(content)))
        shared = torch.zeros(size, dtype=torch.uint8)
        if self.is_main:
            shared = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        shared = self._where_sent(shared)
        with others_answer(self.rank, self.count):
            dist.broadcast(shared, 0)
        return shared.cpu().numpy().tobytes().decode()

    @torch.no_grad()
    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Set tensors to the first process's: other processors and versions may draw other last bits."""
        if self.count > 1:
            with others_answer(self.rank, self.count):
                for tensor in tensors:
                    whole = tensor.detach().contiguous()  # as the backends need it
                    dist.broadcast(whole, 0)
                    if whole.data_ptr() != tensor.data_ptr():
                        tensor.copy_(whole)

    def check_same(self, what: str, own: str, fix: str) -> None:
        """Check that something is the same here as in the first process.

        Args:
            what: The thing, for the message.
            own: What it is here.
            fix: What to do if they differ.

        Raises:
            ProcessesError: it differs in any process; there, the message names the process and its machine.
        """
        first = self.broadcast_text(own)
        n_differ = self._sum([float(own != first)])[0]
        if own != first:
            raise ProcessesError(
                f"{what}: {shortened(own)} in process {self.rank} on {socket.gethostname()}, but {shortened(first)} "
                f"in process 0; {fix}"
            )
        if n_differ:
            raise ProcessesError(f"{what}: not the same in all {self.count} processes; {fix}")

    @contextmanager
    def first_here_first(self) -> Iterator[None]:
        """Let the first process of each machine through the `with` block before the others there.

        What it prepares for hours, the others find in the cache.
        """
        if self.count == 1 or self.store is None:
            yield
            return
        key = f"clearformer/first/{next(self.n_waits)}/{{}}".format
        own = key(os.environ.get("GROUP_RANK", "0"))
        try:
            if self.place.local_rank:
                self._wait_for(own)
            yield
        finally:
            if not self.place.local_rank:  # after an error too, which the others meet then themselves
                with others_answer(self.rank, self.count):
                    self.store.set(own, "through")
        # What follows is a message to all, which the machines that are ready would not await for hours.
        for machine in range(int(os.environ.get("GROUP_WORLD_SIZE", "1"))):
            self._wait_for(key(machine))

    def _wait_for(self, key: str) -> None:
        """Wait, however long it takes, until a process has set a key."""
        while True:
            with others_answer(self.rank, self.count):
                if self.store.check([key]):
                    return
            time.sleep(POLL_SECONDS)

    def end_step(self, clocks: dict[str, float], signal_number: int) -> tuple[dict[str, float], int]:
        """Return the first process's clocks, and the signal that any process has received, or 0.

        Of several signals the lowest number counts. All values travel in one message.
        """
        if self.count == 1:
            return clocks, signal_number
        own = [clock if self.is_main else 0.0 for clock in clocks.values()]
        summed = self._sum([*own, *(float(signal_number == number) for number in ENDING)])
        received = zip(ENDING, summed[len(own) :], strict=True)
        return dict(zip(clocks, summed, strict=False)), next((number for number, n in received if n), 0)

    def wait_for_all(self) -> None:
        """Wait until every process has called this."""
        if self.count > 1:
            with others_answer(self.rank, self.count):
                # Without its GPU NCCL would guess one from the rank.
                dist.barrier(
                    device_ids=[torch.cuda.current_device()] if dist.get_backend() == "nccl" else None
                )

    def _sum(self, values: list[float]) -> list[float]:
        """Return the sums over all processes."""
        if self.count == 1:
            return values
        shared = self._where_sent(torch.tensor(values, dtype=torch.float64))
        with others_answer(self.rank, self.count):
            dist.all_reduce(shared)
            return shared.tolist()

    @staticmethod
    def _where_sent(tensor: Tensor) -> Tensor:
        """Return a tensor where the library that exchanges tensors can read it."""
        return tensor.cuda() if dist.get_backend() == "nccl" else tensor


def check_shareable(device: torch.device, count: int) -> None:
    """Raise ConfigError if several processes cannot compute on a device."""
    if device.index is not None:
        raise ConfigError(
            f"train.device: {device} is one GPU, but each of the {count} processes needs its own; set cuda"
        )
    if device.type == "mps":
        raise ConfigError(
            f"train.device: {count} processes cannot exchange gradients on mps; set cpu, or start one process"
        )


@contextmanager
def told_if_late(place: Place) -> Iterator[None]:
    """Log what the `with` block waits for if it takes long."""
    others = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"  # where the first one listens
    late = threading.Timer(
        TOLD_AFTER_SECONDS,
        logger.warning,
        (
            "process %d waits at %s until all %d have begun; if nothing starts the others, unset WORLD_SIZE to train "
            "with one",
            place.rank,
            others,
            place.count,
        ),
    )
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


@contextmanager
def others_answer(rank: int, count: int) -> Iterator[None]:
    """Turn torch's errors of connections in the `with` block into one line.

    Raises:
        ProcessesError: another process has ended, or cannot be reached.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # gloo's are plain ones, and torch's others are kinds of it
        raise ProcessesError(
            f"process {rank} of {count} on {socket.gethostname()} has lost another one ({reason_of(error)}); the "
            f"first error of the other processes says why; {WAY_ON}"
        ) from error


def reason_of(error: Exception) -> str:
    """Return the first sentence of torch's error, without the place in its source."""
    line = next(iter(str(error).splitlines()), "") or type(error).__name__
    return shortened(re.sub(r"^\[\S+\] ", "", line).partition(". ")[0])
