"""A run's folder: its configuration, tokenizer, environment, metrics and checkpoints."""

import contextlib
import functools
import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Shaped

from clearformer.config import Spec, read_toml, resolve, to_toml
from clearformer.device import processor_name
from clearformer.errors import ConfigError, DataError, RunError, shortened
from clearformer.files import UNFINISHED, disk_errors, make_folders, parse_json, sync, write_file
from clearformer.text import Tokenizer, load_tokenizer
from clearformer.text.kinds.imported import ImportedTokenizer, config_path
from clearformer.training.config import RunConfig
from clearformer.training.processes.distributed import Place
from clearformer.training.setup import PATHS
from clearformer.training.store.lock import is_of_the_lock

LARGEST_CONFIG = 2**28  # bytes of config.toml, which holds every label of a classifier


class RunFolder:
    """The paths of a run's files, and methods to read and write them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.tokenizer_file = path / "tokenizer.json"
        self.env_file = path / "env.json"
        self.metrics_file = path / "metrics.jsonl"
        self.lr_factors_file = path / "lr_factors.f64"
        self.threads_file = path / "threads.u16"
        self.checkpoints = path / "checkpoints"
        self.snapshots = path / "snapshots"

    def create(
        self,
        config: RunConfig,
        tokenizer: Tokenizer,
        text_sha256: str,
        preset: str | None = None,
        n_tokens: int | None = None,
        pretrained: Mapping[str, Any] | None = None,
    ) -> None:
        """Create a run's folder; config.toml is written last, so a folder that has it is complete.

        Args:
            config: The run's settings.
            tokenizer: Its tokenizer.
            text_sha256: The SHA-256 of its training data.
            preset: The name of the preset that it begins with, if any.
            n_tokens: The tokens of a text's training split.
            pretrained: The step and the SHA-256 of the weights of `train.pretrained`.

        Raises:
            RunError: the folder holds a run.
            DiskError: it cannot be written.
        """
        self.check_no_run()
        try:
            with disk_errors(self.path):
                make_folders(self.checkpoints)
            tokenizer.save(self.tokenizer_file)
            began_with = {
                "preset": preset,
                "text_sha256": text_sha256,
                "tokenizer_sha256": sha256_of(self.tokenizer_file),
            }
            # The package's own kinds name their special tokens in tokenizer.json itself.
            is_own = not isinstance(tokenizer, ImportedTokenizer)
            roles = None if is_own else sha256_of(config_path(self.tokenizer_file))
            known = {"n_tokens": n_tokens, "pretrained": pretrained, "tokenizer_config_sha256": roles}
            began_with |= {name: value for name, value in known.items() if value is not None}
            write_file(self.env_file, (json.dumps(environment() | began_with, indent=1) + "\n").encode())
            self.write_config(config)
        except BaseException:
            if not self.config_file.exists():  # with it the folder is complete, whatever came after
                with suppress(OSError):
                    self.checkpoints.rmdir()
                    for file in self._first_files():
                        file.unlink(missing_ok=True)
            raise

    def _first_files(self) -> tuple[Path, ...]:
        """Return the files that are written before config.toml."""
        return self.tokenizer_file, config_path(self.tokenizer_file), self.env_file

    def is_left_over(self) -> bool:
        """Whether the folder is empty, or holds only files of a run that ended before config.toml was written."""
        if not self.path.is_dir():
            return False
        initial_files = {file.name for file in self._first_files()}
        if self.checkpoints.is_dir() and not any(self.checkpoints.iterdir()):
            initial_files.add(self.checkpoints.name)
        return all(
            path.name in initial_files or path.name.startswith(UNFINISHED) or is_of_the_lock(path.name)
            for path in self.path.iterdir()
        )

    def check_no_run(self) -> None:
        """Raise RunError if the folder holds a run."""
        if self.config_file.exists():
            raise RunError(f"{self.path} holds a run; resume it, or choose another folder")

    def write_config(self, config: RunConfig) -> None:
        write_file(self.config_file, to_toml(config).encode())

    def change_config(self, config: RunConfig) -> None:
        """Write the configuration of a resumed run if it has changed.

        Raises:
            RunError: a line of metrics.jsonl is damaged, so the run cannot be resumed.
        """
        read_metrics(self.metrics_file)
        if config != self.read_config():
            self.write_config(config)

    def record_processes(self, count: int) -> None:
        """Record in env.json that a resumed run has more processes than before; their steps cannot be replayed."""
        if count <= self.n_processes():
            return
        with suppress(
            OSError, ValueError, TypeError
        ):  # where its values are needed, a damaged file is told of
            recorded = parse_json(self.env_file.read_text(encoding="utf-8")) | {"processes": count}
            write_file(self.env_file, (json.dumps(recorded, indent=1) + "\n").encode())

    def read_config(self) -> RunConfig:
        """Read the run's configuration.

        Raises:
            RunError: this is not a run's folder.
            ConfigError: config.toml is damaged; the message names it.
        """
        if not self.config_file.is_file():
            raise RunError(f"{self.path} is not a run folder: it has no config.toml")
        settings = read_toml(self.config_file, LARGEST_CONFIG)
        absent = [name for name in RunConfig.model_fields if name not in settings]
        if absent:
            raise ConfigError(
                f"{self.config_file}: damaged: it has no {' and no '.join(absent)}, which every run writes"
            )
        try:
            return resolve(RunConfig, settings)
        except ConfigError as error:
            raise ConfigError(f"{self.config_file}: {error}{self._other_version()}") from None

    def _other_version(self) -> str:
        """Say, for a message, that another version of clearformer wrote the run; empty if it did not."""
        versions = self._recorded("versions")
        theirs = versions.get("clearformer") if isinstance(versions, dict) else None
        ours = version_of("clearformer")
        if not isinstance(theirs, str) or theirs == ours:
            return ""
        return f" (clearformer {shortened(theirs)} wrote the run, and this is {ours or 'a checkout'}: use that version)"

    def trained_on(self) -> str | None:
        """Return the SHA-256 of the run's training data; None if env.json does not record it.

        Raises:
            RunError: the run was imported or saved from Python, so its training data are not known.
        """
        text_sha256 = self._recorded("text_sha256")
        if not isinstance(text_sha256, str):
            return None
        if text_sha256 == "":
            raise RunError(
                f"{self.path}: its training data are unknown, as it was imported or saved from Python: "
                "evaluate it on your own data (data=FILE, on the command line --data FILE), or start a new run from "
                "its weights (train.pretrained)"
            )
        return text_sha256

    def difference_of_text(self, text_sha256: str, data: Spec | None = None) -> str | None:
        """Describe, for a message, how data differ from the run's training data; None if they are the same.

        Args:
            text_sha256: The SHA-256 of the data.
            data: Their settings; by default those in config.toml.

        Raises:
            RunError: the run was imported, or env.json does not record its training data.
        """
        original = self.trained_on()
        if original is None:
            self.read_config()  # names a folder that has been deleted or moved
            raise RunError(
                f"{self.env_file}: missing or damaged, so the run's text cannot be checked; if the text has not "
                f'changed, write {{"text_sha256": "{text_sha256}"}} into it'
            )
        if original == text_sha256:
            return None
        own = self.read_config().data
        paths = [
            f"data.{key}={getattr(data or own, key)}" for key in PATHS if getattr(data or own, key, None)
        ]
        named = " ".join(paths) or f"the built-in {own.label}"
        if data is not None and data != own:
            return (
                f"{named} has SHA-256 {text_sha256[:12]}, and the data that {self.path} was trained on had "
                f"{original[:12]}"
            )
        return (
            f"{self.config_file}: the data have changed since this run started: {named} had SHA-256 "
            f"{original[:12]} and now has {text_sha256[:12]}"
        )

    def preset(self) -> str | None:
        """Return the preset that the run began with; None if env.json does not record it."""
        preset = self._recorded("preset")
        return preset if isinstance(preset, str) else None

    def n_processes(self) -> int:
        """Return the largest number of processes that trained the run; 1 if env.json does not record it."""
        count = self._recorded("processes")
        return count if type(count) is int else 1

    def command(self) -> list[str]:
        """Return the command that started the run; empty if env.json does not record it."""
        command = self._recorded("command")
        return list(map(str, command)) if isinstance(command, list) else []

    def pretrained(self) -> Mapping[str, Any] | None:
        """Return the step and the SHA-256 of the weights of `train.pretrained` that the run began with, if recorded."""
        found = self._recorded("pretrained")
        return found if isinstance(found, Mapping) and {"step", "sha256"} <= found.keys() else None

    def _recorded(self, name: str) -> Any:
        """Return a value of env.json; None if it is not there or the file cannot be read."""
        try:
            return parse_json(self.env_file.read_text(encoding="utf-8"))[name]
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def check_same_data(
        self, text_sha256: str, data: Spec | None = None, n_tokens: int | None = None
    ) -> None:
        """Check that data are those that the run began on.

        Args:
            text_sha256: See `difference_of_text`.
            data: See `difference_of_text`.
            n_tokens: The tokens of a text's training split, which the same characters in other documents change.

        Raises:
            DataError: they differ.
            RunError: the run was imported, or env.json does not record its training data.
        """
        if difference := self.difference_of_text(text_sha256, data):
            raise DataError(f"{difference}; restore the data or start a new run")
        original = self._recorded("n_tokens")
        if None not in (n_tokens, original) and n_tokens != original:
            raise DataError(
                f"{self.config_file}: the text is cut into other documents (files or lines) than when this run "
                f"started: its training split had {original:,} tokens and now has {n_tokens:,}; restore the data or "
                "start a new run"
            )

    def read_tokenizer(self, n_known: int | None = None) -> Tokenizer:
        """Read the run's tokenizer; its model knows `n_known` tokens.

        Raises:
            TokenizerError: the file is missing or damaged.
            RunError: it has changed since the run began, or has more tokens than the model, so it is another run's.
        """
        self._check_unchanged("tokenizer_sha256", self.tokenizer_file)
        # It names the special tokens of a tokenizer from elsewhere; without it their usual names would count.
        self._check_unchanged("tokenizer_config_sha256", config_path(self.tokenizer_file), may_be_gone=False)
        tokenizer = load_tokenizer(self.tokenizer_file)
        if n_known is not None and tokenizer.vocab_size > n_known:
            raise RunError(
                f"{self.tokenizer_file}: {tokenizer.vocab_size:,} tokens, but the run's model has {n_known:,} "
                "(model.vocab_size): this is another run's file; restore the run's own"
            )
        return tokenizer

    def _check_unchanged(self, recorded: str, file: Path, may_be_gone: bool = True) -> None:
        """Raise RunError if a file of the tokenizer is not the one that the run began with.

        A file that may be gone is missed by whoever reads it.
        """
        began_with, now = self._recorded(recorded), sha256_of(file)
        if not isinstance(began_with, str) or now == began_with or (now is None and may_be_gone):
            return
        change = "missing" if now is None else "changed since the run began"
        is_now = "" if now is None else f" and is {now[:12]}"
        raise RunError(
            f"{file}: {change} (its SHA-256 was {began_with[:12]}{is_now}); restore the one of this run, as with "
            "another its model would read other tokens"
        )


def sha256_of(file: Path) -> str | None:
    """Return the SHA-256 of a file's content; None if it cannot be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None


class Record:
    """A file that grows as the run goes on."""

    def __init__(self, path: Path, content: bytes) -> None:
        """Open for appending after `content`, which replaces what the file holds."""
        self._path = path
        write_file(path, content)

    def add(self, content: bytes) -> None:
        """Add bytes at the end.

        Raises:
            DiskError: they cannot be written.
        """
        with disk_errors(self._path), self._path.open("ab") as file:
            file.write(content)

    def sync(self) -> None:
        """Wait until all of it is on the disk, so that a power cut cannot lose what came before a checkpoint."""
        with disk_errors(self._path), self._path.open("ab") as file:
            sync(file.fileno())


class Metrics(Record):
    """metrics.jsonl: one JSON object a line, whole lines only."""

    def __init__(self, path: Path, up_to_step: int) -> None:
        """Open for appending, dropping lines after `up_to_step`, which a resumed run makes again."""
        earlier = [line for line in read_metrics(path) if line["step"] <= up_to_step]
        super().__init__(path, b"".join(map(_json_line, earlier)))

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line.

        Raises:
            DiskError: it cannot be written.
        """
        self.add(_json_line(line))


class StepRecord(Record):
    """A binary file with one little-endian number for each step, starting at the first."""

    kind: ClassVar[str]  # the number's type, as NumPy writes it
    unknown: ClassVar[float]  # stands for a step that was not recorded

    def __init__(self, path: Path, n_steps: int) -> None:
        """Open for appending, keeping the first `n_steps` numbers; a resumed run makes later ones again."""
        numbers = np.full(n_steps, self.unknown, dtype=self.kind)
        recorded = self.read(path)[:n_steps]
        numbers[: len(recorded)] = recorded
        super().__init__(path, numbers.tobytes())

    @classmethod
    def read(cls, path: Path) -> Shaped[np.ndarray, " steps"]:
        """Read the numbers of a file, without a last one that was cut off; empty if it cannot be read."""
        try:
            content = path.read_bytes()
        except OSError:
            return np.empty(0, dtype=cls.kind)
        size = np.dtype(cls.kind).itemsize
        return np.frombuffer(content[: len(content) // size * size], cls.kind)

    def append(self, number: float) -> None:
        """Add the number of the next step.

        Raises:
            DiskError: it cannot be written.
        """
        self.add(np.array(number, dtype=self.kind).tobytes())


class LrFactors(StepRecord):
    """lr_factors.f64: the factor of the learning rates at each step.

    A factor that depended on the clock cannot be computed again. The record makes an exact replay possible.
    """

    kind, unknown = "<f8", np.nan


class ThreadCounts(StepRecord):
    """threads.u16: the number of threads at each step, which depended on the load of the machine."""

    kind, unknown = "<u2", 0


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a metrics.jsonl, without a last line that was cut off.

    Raises:
        RunError: another line is not an object with a step.
    """
    if not path.is_file():
        return []
    return [_metrics_line(path, i, line) for i, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1)]


def _metrics_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, TypeError, KeyError):
        metrics = parse_json(line.decode())
        _json_line(metrics)  # fails for values that a resumed run could not write again
        if type(metrics["step"]) is int:
            return metrics
    raise RunError(f"{path}: line {number} is not a metrics record; delete it")


def _json_line(line: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(line), allow_nan=False).encode() + b"\n"


def environment() -> dict[str, Any]:
    """Return what a result depends on apart from its configuration: versions, machine and command."""
    packages = ("clearformer", "torch", "numpy", "tokenizers", "safetensors")
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor_name(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": Place.of_this_process().count,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "versions": {name: version_of(name) for name in packages},
    }


@functools.cache  # it searches all of sys.path, and never changes in a process
def version_of(package: str) -> str | None:
    """Return an installed package's version; None if it is not installed, as in a bare checkout."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
