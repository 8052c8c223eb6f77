"""Several processes that train one model (`torchrun`): each takes some rows of every batch.

The batches are the same as with one process; gradients are averaged before the update.
"""

import logging
import os
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from clearformer.errors import ConfigError
from clearformer.training.processes.interrupts import ENDING

logger = logging.getLogger(__name__)


def is_main_process() -> bool:
    """Whether this process is torchrun's first, or the only one; also works before `Processes.join`."""
    return os.environ.get("RANK", "0") == "0"


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

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count

    @classmethod
    def join(cls, device: torch.device) -> "Processes":
        """Connect to the other processes that torchrun started, if any.

        Raises:
            ConfigError: all of them would compute on the same GPU.
        """
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count == 1:
            return cls()
        if device.index is not None:
            raise ConfigError(
                f"train.device: {device} is one GPU, but each of the {count} processes needs its own; set cuda"
            )
        if device.type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        if not dist.is_initialized():
            dist.init_process_group(backend_for(device))
        return cls(dist.get_rank(), count)

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and reports to the user."""
        return self.rank == 0

    def all_reduce_mean(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its mean over all processes."""
        if self.count == 1:
            return
        tensors = list(tensors)
        flat = torch.cat([t.reshape(-1) for t in tensors])
        dist.all_reduce(flat)
        flat /= self.count
        for tensor, mean in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(mean.view_as(tensor))

    def broadcast(self, value: float) -> float:
        """Return the first process's value in every process, as their own measurements may differ."""
        return self._sum([value if self.is_main else 0.0])[0]

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
            dist.barrier()

    def _sum(self, values: list[float]) -> list[float]:
        """Return the sums over all processes."""
        if self.count == 1:
            return values
        shared = torch.tensor(values, dtype=torch.float64)
        shared = shared.cuda() if dist.get_backend() == "nccl" else shared
        dist.all_reduce(shared)
        return shared.tolist()
