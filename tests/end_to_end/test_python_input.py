"""Whatever a user of Python hands over: it does what it says, or one line says what is wrong with it."""

from pathlib import Path
from typing import Any

import pytest

import clearformer as cf
from clearformer.errors import ConfigError
from clearformer.presets import PRESETS
from clearformer.training.config import TrainConfig

SECTIONS = ("data", "model", "tokenizer", "train")
MEASURED = "auto"  # which measures the machine
SMALL: dict[str, Any] = {"d_model": 16, "n_layers": 1, "max_seq_len": 16, "attention": {"n_heads": 2}}
TRAIN: dict[str, Any] = {
    "max_steps": 2,
    "max_seconds": "none",
    "batch_size": 4,
    "compile": False,
    "dtype": "float32",
    "device": "cpu",
}


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))
    (tmp_path / "my.txt").write_text("To be, or not to be, that is the question.\n" * 60)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def trained(**changes: Any) -> cf.Run:
    settings: dict[str, Any] = {"data": {"path": "my.txt"}, "model": SMALL, "train": TRAIN, "quiet": True}
    return cf.train("quick", **(settings | changes))


# --- settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("name", sorted(set(PRESETS) - {MEASURED}))
def test_a_spec_for_a_section_takes_the_place_of_all_of_it(name: str, section: str) -> None:
    n_fitting = 0
    for other in sorted(set(PRESETS) - {MEASURED}):
        spec = getattr(cf.preset(other), section)
        try:
            expected = cf.preset(name).replace(**{section: spec})
        except ConfigError:  # such as pairs for a language model
            continue
        n_fitting += 1
        assert cf.preset(name, **{section: spec}) == expected
    assert n_fitting


def test_a_setting_beside_a_spec_is_laid_over_it() -> None:
    dotted: dict[str, Any] = {"model.n_layers": 2}
    model = cf.ModelConfig(d_model=128)
    assert cf.preset("quick", model=model, **dotted).model == model.replace(n_layers=2)


def test_a_run_goes_on_by_a_configuration_only_where_it_is_its_own() -> None:
    run = trained(run="a", train=TRAIN | {"lr": 0.01})
    default = run.config.train.replace(lr=TrainConfig(max_steps=1).lr)
    with pytest.raises(ConfigError, match=r"^train\.lr: the run has 0\.01"):
        cf.train(run.config.replace(train=default), run="a", resume=True, quiet=True)
    longer = run.config.replace(train=run.config.train.replace(max_steps=3))
    assert cf.train(longer, run="a", resume=True, quiet=True).step == 3


def test_a_path_may_be_a_path() -> None:
    assert cf.preset("quick", data={"path": Path("my.txt")}) == cf.preset("quick", data={"path": "my.txt"})
