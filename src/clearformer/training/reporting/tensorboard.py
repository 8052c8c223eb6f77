"""metrics.jsonl's numbers for TensorBoard, where a run asks for them."""

from collections.abc import Mapping
from typing import Any

from clearformer.errors import needs_extra
from clearformer.training.store.folder import RunFolder


def writer_type() -> type[Any]:
    """TensorBoard's writer.

    Raises:
        MissingPackageError: TensorBoard is not installed.
    """
    with needs_extra("tensorboard", "train.tensorboard: a run's curves need TensorBoard"):
        from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter


def open_tensorboard(folder: RunFolder, step: int) -> Any:
    """A writer into the run's folder that takes the place of what was written after `step`."""
    return writer_type()(str(folder.path / "tensorboard"), purge_step=step + 1)


def write_scalars(writer: Any, line: Mapping[str, float]) -> None:
    """One line of metrics.jsonl as scalars of its step."""
    for name, value in line.items():
        if name != "step":
            writer.add_scalar(name, value, line["step"])
