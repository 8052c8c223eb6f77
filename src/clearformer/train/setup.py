"""What is decided and checked once, before a run begins."""

from pathlib import Path

import torch

from clearformer.config import Spec
from clearformer.train.config import RunConfig
from clearformer.train.device import resolve_compile, resolve_dtype
from clearformer.train.plan import compile_pays
from clearformer.train.processes import Processes
from clearformer.train.tasks import Task

PATHS = ("path", "source", "target", "val_path", "val_source", "val_target", "test_path")


def settle(config: RunConfig, task: Task, device: torch.device, processes: Processes) -> RunConfig:
    """The configuration with everything decided that was left open: what config.toml keeps.

    A resumed run must not decide anew, or it would not be the same run; and what one process measures faster,
    another may not.
    """
    config = config.replace(model=task.fit(config.model), data=with_whole_paths(task.fit_data(config.data)))
    bfloat16 = processes.agree(resolve_dtype(config.train.dtype, device) == "bfloat16")
    dtype = "bfloat16" if bfloat16 else "float32"
    compiled = resolve_compile(
        config.train.compile,
        device,
        # A step that takes batches of any length costs 80 to 100 s to compile and saved 3% (docs/log.md).
        lambda: (
            not task.shapes_vary and compile_pays(config.model, config.train, task.n_tokens(0), dtype, device)
        ),
    )
    compiled = bool(processes.agree(compiled))
    return config.replace(train=config.train.replace(dtype=dtype, compile=compiled))


def with_whole_paths(data: Spec) -> Spec:
    """The same data, found from any folder."""
    given = {name: getattr(data, name) for name in PATHS if getattr(data, name, None) is not None}
    return data.replace(**{name: str(Path(path).expanduser().resolve()) for name, path in given.items()})
