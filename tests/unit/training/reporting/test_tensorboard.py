import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clearformer.errors import MissingPackageError
from clearformer.training.loop import TrainResult
from clearformer.training.store.folder import RunFolder, read_metrics


class Writer:
    """In place of TensorBoard's, which need not be installed."""

    made: list["Writer"]

    def __init__(self, folder: str, purge_step: int) -> None:
        self.folder, self.purge_step, self.closed = Path(folder), purge_step, False
        self.scalars: list[tuple[str, float, int]] = []
        self.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    module: Any = type(sys)("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    Writer.made = []
    return Writer.made


def test_it_gets_what_metrics_gets(
    trained: Callable[..., TrainResult], run_folder: Callable[[str], RunFolder], writers: list[Writer]
) -> None:
    trained("a", "train.tensorboard=true")

    [writer] = writers
    assert writer.folder == run_folder("a").path / "tensorboard"
    assert writer.closed
    assert writer.scalars == [
        (name, value, line["step"])
        for line in read_metrics(run_folder("a").metrics_file)
        for name, value in line.items()
        if name != "step"
    ]


def test_a_resumed_run_takes_the_place_of_what_was_written_after_its_checkpoint(
    trained: Callable[..., TrainResult], resumed: Callable[..., TrainResult], writers: list[Writer]
) -> None:
    trained("a", "train.tensorboard=true")
    resumed("a", max_steps=17)

    assert [writer.purge_step for writer in writers] == [1, 14]
    assert [step for name, _, step in writers[1].scalars if name == "loss"] == [14, 15, 16, 17]


def test_where_it_is_not_installed_nothing_is_begun(
    trained: Callable[..., TrainResult],
    run_folder: Callable[[str], RunFolder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)

    with pytest.raises(
        MissingPackageError, match=r"train\.tensorboard: .*pip install 'clearformer\[tensorboard\]'"
    ):
        trained("a", "train.tensorboard=true")
    assert not run_folder("a").path.exists()
