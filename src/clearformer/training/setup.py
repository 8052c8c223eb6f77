"""Decisions and checks that are made once, before a run begins."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from clearformer.config import NONE, Spec
from clearformer.device import resolve_compile, resolve_dtype
from clearformer.errors import ConfigError
from clearformer.text import Tokenizer
from clearformer.training.config import MAY_CHANGE, TRAIN_MAY_CHANGE, RunConfig
from clearformer.training.planning.duration import compile_pays
from clearformer.training.processes.distributed import Processes
from clearformer.training.tasks import Task, task_type
from clearformer.training.tasks.task import Progress

LEFT_OPEN = {
    "model.vocab_size": None,
    "model.n_classes": None,
    "data.labels": None,
    "train.dtype": "auto",
    "train.compile": "auto",
}
"""The settings that `open_task` decides where a configuration leaves them open, and the value by which it does."""

PATHS = ("path", "source", "target", "val_path", "val_source", "val_target", "test_path")


def open_task(
    config: RunConfig,
    device: torch.device,
    processes: Processes,
    tokenizer: Tokenizer | None = None,
    progress: Progress = lambda *_: None,
) -> tuple[Task, RunConfig]:
    """The task of a new run, its data prepared, and the configuration that leaves nothing open.

    Args:
        config: The run's settings.
        device: Where it computes.
        processes: Those that train it.
        tokenizer: That of the run's data; one is made, where not given.
        progress: Receives how far the preparing is.

    Raises:
        DataError, TokenizerError: the data cannot be used.
        ConfigError: the data and the configuration do not go together.
    """
    task = task_type(config.train.objective)
    dataset = task.prepare(config, tokenizer, progress)
    config = task.fit(config, dataset)
    config = config.replace(data=with_absolute_paths(config.data))
    config = resolve_auto(config, task.shapes_vary, device, processes)
    return task(config, dataset), config


def resolve_auto(
    config: RunConfig, shapes_vary: bool, device: torch.device, processes: Processes
) -> RunConfig:
    """The configuration with the type and the compilation of the step decided: what config.toml keeps.

    A resumed run must not decide anew, or it would not be the same run; and what one process measures faster,
    another may not.
    """
    bfloat16 = processes.broadcast(resolve_dtype(config.train.dtype, device) == "bfloat16")
    dtype = "bfloat16" if bfloat16 else "float32"
    compiled = resolve_compile(
        config.train.compile,
        device,
        # A step that takes batches of any length is slow to compile and gains little (docs/log.md).
        lambda: not shapes_vary and compile_pays(config.model, config.train, dtype, device),
    )
    compiled = bool(processes.broadcast(compiled))
    return config.replace(train=config.train.replace(dtype=dtype, compile=compiled))


def resumed_config(own: RunConfig, requested: RunConfig) -> RunConfig:
    """The configuration of a resumed run: its own, with what may change as requested.

    Raises:
        ConfigError: a setting is not the run's own; the first one is named. One that the request leaves open, and the
            run decided when it began, does not count.
    """
    requested = requested.replace(data=with_absolute_paths(requested.data))
    for key, of_run, other in differences(own, requested):
        if key not in MAY_CHANGE and not (key in LEFT_OPEN and other == LEFT_OPEN[key]):
            raise ConfigError(
                f"{key}: the run has {as_written(of_run)}, and {as_written(other)} is given; a resumed run stays the "
                f"run it was, and only {', '.join(sorted(MAY_CHANGE))} may change"
            )
    changes = {name: getattr(requested.train, name) for name in TRAIN_MAY_CHANGE}
    return own.replace(train=own.train.replace(**changes))


def as_written(value: Any) -> str:
    """A setting's value as one types it."""
    if value is None:
        return NONE
    return str(value).lower() if isinstance(value, bool) else str(value)


def differences(a: Spec, b: Spec, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The settings that differ: key, value in the one, value in the other; of a slot of another kind only its kind."""
    if type(a) is not type(b):
        yield f"{prefix}kind", getattr(a, "kind", None), getattr(b, "kind", None)
        return
    for name in type(a).model_fields:
        one, other = getattr(a, name), getattr(b, name)
        if isinstance(one, Spec) and isinstance(other, Spec):
            yield from differences(one, other, f"{prefix}{name}.")
        elif one != other:
            yield f"{prefix}{name}", one, other


def with_absolute_paths(data: Spec) -> Spec:
    """The same data with absolute paths."""
    paths = {name: getattr(data, name) for name in PATHS if getattr(data, name, None) is not None}
    return data.replace(**{name: str(Path(path).expanduser().resolve()) for name, path in paths.items()})
