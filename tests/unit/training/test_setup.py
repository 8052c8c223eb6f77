"""What is decided once, before a run begins."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from clearformer.data import TextData
from clearformer.errors import ConfigError
from clearformer.resolving import resolve_run
from clearformer.training import setup
from clearformer.training.config import RunConfig
from clearformer.training.processes.distributed import Processes

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _compiling_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "compile_pays", lambda *_: True)
    monkeypatch.setattr(
        setup, "resolve_compile", lambda setting, _, pays: pays() if setting == "auto" else setting
    )


def resolved(config: RunConfig) -> RunConfig:
    return setup.open_task(config, CPU, Processes())[1]


def pairs(tmp_path: Path, *settings: str) -> RunConfig:
    (tmp_path / "a.tsv").write_text("".join(f"le {n}\tthe {n}\n" for n in range(60)))
    own = (
        f"data.path={tmp_path / 'a.tsv'}",
        "data.val_fraction=0.1",
        "tokenizer.kind=char",
        "train.dtype=float32",
    )
    return resolve_run(["translate", *own, *settings], None)


def test_a_step_of_one_shape_is_compiled_where_that_pays(configure: Callable[..., RunConfig]) -> None:
    assert resolved(configure("train.compile=auto")).train.compile is True


def test_a_step_of_many_shapes_is_compiled_only_where_asked(tmp_path: Path) -> None:
    assert resolved(pairs(tmp_path)).train.compile is False
    assert resolved(pairs(tmp_path, "train.compile=true")).train.compile is True


def test_pooling_has_no_part_in_filling_in() -> None:
    with pytest.raises(ConfigError, match=r"model\.pooling: masked training does no pooling"):
        resolve_run(["masked", "model.pooling=mean"], None)


def test_a_name_like_the_home_of_nobody_is_a_file_s_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = setup.with_absolute_paths(TextData(path="~nobody-of-this-name/text.txt"))
    assert data == TextData(path=f"{tmp_path}/~nobody-of-this-name/text.txt")
