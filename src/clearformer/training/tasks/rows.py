"""Single rows of a batch, and batches without some of their rows.

A row's part of the batch's loss is the sum of its targets' losses over the number of targets in the whole batch that
count. So the parts of all rows sum to the loss of the batch.
"""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from clearformer.data.text.batches import IGNORED
from clearformer.training.tasks.task import Task

Batch = tuple[Tensor, ...]


def rows_of_batch(task: Task, step: int, rows: Sequence[int] | None = None) -> Batch:
    """Return some rows of a step's whole batch, or all of them; their loss is their part of the batch's."""
    tensors = row_tensors(task, step)
    n_targets = _n_targets(task, tensors)
    wanted = slice(None) if rows is None else list(rows)
    return *(tensor[wanted] for tensor in tensors), torch.tensor(1 / max(1, n_targets))


def row_tensors(task: Task, step: int) -> Batch:
    """Return the tensors of a step's whole batch that have a row for each example."""
    return tuple(tensor for tensor in task.batch(step, 0, 1) if tensor.dim())


def _n_targets(task: Task, tensors: Batch) -> int:
    assert task.targets_at is not None
    return int((tensors[task.targets_at] != IGNORED).sum())


class WithoutRows:
    """A task's batches without some rows at some steps: their targets are ignored, the mean is over the others.

    The rows still go through the model, so that all other rows are computed as before, with the same dropout. A batch
    without any row left has a loss of 0. Batches from which nothing is left out are the task's own.

    Args:
        task: The task.
        rows: By step, the rows of the whole batch to leave out.
    """

    def __init__(self, task: Task, rows: Mapping[int, Collection[int]]) -> None:
        self.task, self.rows = task, rows

    def __call__(self, step: int, part: int, n_parts: int) -> Batch:
        left_out = list(self.rows.get(step, ()))
        if not left_out:
            return self.task.batch(step, part, n_parts)
        assert self.task.targets_at is not None
        tensors = list(row_tensors(self.task, step))
        targets = tensors[self.task.targets_at].clone()
        targets[left_out] = IGNORED
        tensors[self.task.targets_at] = targets
        weight = n_parts / max(1, _n_targets(self.task, tuple(tensors)))
        rows = self.task.rows_of_part(len(targets), part, n_parts)
        return *(tensor[rows] for tensor in tensors), torch.tensor(weight)
