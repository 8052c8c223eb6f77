"""Decisions and checks made once, before a run begins."""

import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from clearformer.config import Spec, as_written, resolve, to_toml
from clearformer.data import Progress
from clearformer.data.reading import nearest_beside
from clearformer.device import resolve_compile, resolve_dtype
from clearformer.errors import ConfigError, DataError, worded_for
from clearformer.files import whole_path
from clearformer.text import Tokenizer
from clearformer.text.kinds.char import OF_A_NEW_TOKENIZER
from clearformer.training.config import MAY_CHANGE, TRAIN_MAY_CHANGE, RunConfig
from clearformer.training.planning.duration import compile_pays
from clearformer.training.processes.distributed import Processes
from clearformer.training.tasks import Task, task_type

LEFT_OPEN = {
    "model.vocab_size": None,
    "model.n_classes": None,
    "data.labels": None,
    "train.dtype": "auto",
    "train.compile": "auto",
}
"""The settings that a configuration may leave open for `open_task` to decide, and the value that leaves them open."""

PATHS = ("path", "source", "target", "val_path", "val_source", "val_target", "test_path")
DATA_PATHS = frozenset(f"data.{name}" for name in PATHS)


@contextmanager
def torch_as_usual(device: torch.device) -> Iterator[None]:
    """Undo, for the `with` block, settings of torch that a caller has made for other work and that would spoil a run.

    Notebooks often switch gradients off for all of their cells. A default type of float64 is kept: it makes a run more
    exact, as some tests need.
    """
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        yield


def open_task(
    config: RunConfig,
    device: torch.device,
    processes: Processes,
    tokenizer: Tokenizer | None = None,
    progress: Progress = lambda *_: None,
    gone: Callable[[], float] = lambda: 0.0,
) -> tuple[Task, RunConfig]:
    """Prepare the data of a new run; return its task, and the configuration with every setting decided.

    Args:
        config: The run's settings.
        device: The device of the run.
        processes: The processes that train it.
        tokenizer: The tokenizer to use; by default one is made for the data.
        progress: Receives the progress of the preparation.
        gone: Returns the seconds since the command began.

    Raises:
        DataError, TokenizerError: the data cannot be used.
        ConfigError: the data and the configuration do not fit each other.
    """
    task, pretrained = task_type(config.train.objective), config.train.pretrained
    those = (
        f"the tokens are those of train.pretrained={pretrained}: use texts that it knows, or begin without it"
    )
    with processes.first_here_first(), worded_for({OF_A_NEW_TOKENIZER: those} if pretrained else {}):
        dataset = task.prepare(config, tokenizer, progress)
    config = task.fit(config, dataset)
    config = config.replace(data=with_absolute_paths(config.data))
    config = resolve_auto(config, task.shapes_vary, device, processes, gone)
    return task(config, dataset), config


def resolve_auto(
    config: RunConfig,
    shapes_vary: bool,
    device: torch.device,
    processes: Processes,
    gone: Callable[[], float] = lambda: 0.0,
) -> RunConfig:
    """Return the configuration with `train.dtype` and `train.compile` decided; config.toml records the decision.

    A resumed run must not decide again, or it would be another run. Several processes share the first one's decision,
    as their measurements may differ.
    """
    bfloat16 = processes.broadcast(resolve_dtype(config.train.dtype, device) == "bfloat16")
    dtype = "bfloat16" if bfloat16 else "float32"
    compiled = resolve_compile(
        config.train.compile,
        device,
        # A step for batches of any length is slow to compile and gains little (docs/log.md).
        lambda: not shapes_vary and compile_pays(config.model, config.train, dtype, device, gone()),
    )
    compiled = bool(processes.broadcast(compiled))
    return config.replace(train=config.train.replace(dtype=dtype, compile=compiled))


def shared_config(config: RunConfig, processes: Processes) -> RunConfig:
    """Return the first process's configuration in every process: `auto` measures each machine, with its own result."""
    if processes.count == 1:
        return config
    return resolve(RunConfig, tomllib.loads(processes.broadcast_text(to_toml(config))))


def resumed_config(own: RunConfig, requested: RunConfig) -> RunConfig:
    """Return the configuration of a resumed run: its own, with the settings that may change as requested.

    Raises:
        ConfigError: another setting differs from the run's; the message names the first. Settings that the request
            leaves open, and that the run decided when it began, may differ, and so may the place of the data, whose
            contents are compared (`RunFolder.check_same_data`).
    """
    requested = requested.replace(data=with_absolute_paths(requested.data))
    for key, of_run, other in differences(own, requested):
        is_left_open = key in LEFT_OPEN and other == LEFT_OPEN[key]
        is_moved = key in DATA_PATHS and None not in (of_run, other)
        if key not in MAY_CHANGE and not is_left_open and not is_moved:
            raise ConfigError(
                f"{key}: the run has {as_written(of_run)}, got {as_written(other)}; when resuming, only "
                f"{', '.join(sorted(MAY_CHANGE))} may change, and the paths of data that were moved"
            )
    changes = {name: getattr(requested.train, name) for name in TRAIN_MAY_CHANGE}
    paths = {name: getattr(requested.data, name) for name in PATHS if hasattr(own.data, name)}
    return own.replace(train=own.train.replace(**changes), data=own.data.replace(**paths))


def differences(a: Spec, b: Spec, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield key, value in `a` and value in `b` of settings that differ; for slots of different kinds only the kind."""
    if type(a) is not type(b):
        yield f"{prefix}kind", getattr(a, "kind", None), getattr(b, "kind", None)
        return
    for name in type(a).model_fields:
        one, other = getattr(a, name), getattr(b, name)
        if isinstance(one, Spec) and isinstance(other, Spec):
            yield from differences(one, other, f"{prefix}{name}.")
        elif one != other:
            yield f"{prefix}{name}", one, other


def check_not_moved(data: Spec) -> None:
    """Refuse to resume a run whose data are no longer where they were.

    Raises:
        DataError: a file or folder is not there; the message says how to give its new place.
    """
    for name, path in ((name, getattr(data, name, None)) for name in PATHS):
        if path is None:
            continue
        with suppress(PermissionError):  # reading says more about it
            if not Path(path).exists():
                raise DataError(
                    f"data.{name}={path}: there is no such file or folder{nearest_beside(Path(path))}; if the data "
                    f"have moved, give their new place with data.{name}=PATH"
                )


def with_absolute_paths(data: Spec) -> Spec:
    """Return the data's settings with absolute paths."""
    paths = {name: getattr(data, name) for name in PATHS if getattr(data, name, None) is not None}
    return data.replace(**{name: str(whole_path(path)) for name, path in paths.items()})
