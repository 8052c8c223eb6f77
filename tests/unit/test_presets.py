"""The runs to begin from."""

import tomllib
from pathlib import Path

import pytest

from clearformer.config import explicit, resolve, to_toml
from clearformer.model import build
from clearformer.presets import DEFAULTS, PRESETS, preset
from clearformer.resolving import resolve_run
from clearformer.training.config import PRESETS_FOR, RunConfig
from clearformer.training.loop import train
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.folder import RunFolder

every_preset = pytest.mark.parametrize("name", PRESETS)
SMALL = (
    "model.d_model=24",
    "model.n_layers=1",
    "model.max_seq_len=17",
    "model.ffn.d_ff=7",
    "train.max_steps=2",
    "train.max_seconds=none",
    "train.device=cpu",
    "train.dtype=float32",
    "train.compile=false",
)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """For each kind of data the setting that names a small file of it."""
    contents = {
        "text": ("text.txt", "".join(f"line {n} of the text\n" for n in range(90))),
        "pairs": ("pairs.tsv", "".join(f"le {n}\tthe {n}\n" for n in range(60))),
        "labelled": ("labelled.tsv", "text\tlabel\n" + "".join(f"it is {n}\t{n % 2}\n" for n in range(60))),
    }
    for name, text in contents.values():
        (tmp_path / name).write_text(text)
    return {kind: f"data.path={tmp_path / name}" for kind, (name, _) in contents.items()}


@every_preset
def test_a_preset_trains(name: str, files: dict[str, str], tmp_path: Path) -> None:
    """Its parts fit each other: family, objective, data and tokenizer. Small, of two steps, on a small file."""
    begin_with = preset(name)
    small = [*SMALL, files[begin_with.data.kind]]
    if begin_with.tokenizer.kind == "gpt2":
        small.append("tokenizer=byte")  # its own vocabulary is not on every machine
    elif hasattr(begin_with.tokenizer, "vocab_size"):
        small.append("tokenizer.vocab_size=270")
    if begin_with.train.objective.kind == "translation":
        small.append("train.objective.batch_tokens=64")
    else:
        small += ["train.batch_size=4", "train.grad_accum_steps=2"]

    config = resolve_run([name, *small], None)
    outcome = train(config, RunFolder(tmp_path / "run"), Reporter())

    assert outcome.progress.step == 2
    assert outcome.evaluation is not None


@every_preset
def test_a_preset_reads_back_from_what_it_writes(name: str) -> None:
    assert resolve(RunConfig, tomllib.loads(to_toml(preset(name)))) == preset(name)
    assert resolve(RunConfig, explicit(preset(name))) == preset(name)


def test_the_original_has_the_sizes_of_the_paper() -> None:
    """Vaswani et al. 2017: table 3 (base), sections 3, 5.1, 5.3 and 5.4."""
    config = preset("transformer-base")
    model, settings = config.model, config.train

    assert (model.n_layers, model.decoder_layers, model.d_model, model.dropout) == (6, 6, 512, 0.1)
    assert (model.ffn.kind, model.ffn.d_ff, model.attention.n_heads) == ("relu", 2048, 8)  # type: ignore[union-attr]
    assert (model.position.kind, model.placement, model.final_norm) == ("sinusoidal", "post", False)
    assert model.scale_embeddings
    assert model.tie_embeddings
    assert config.tokenizer.vocab_size == 37_000  # type: ignore[union-attr]
    assert settings.objective.batch_tokens == 25_000  # type: ignore[union-attr]
    adam = settings.optimizer
    assert (adam.kind, adam.betas, adam.eps) == ("adam", (0.9, 0.98), 1e-9)  # type: ignore[union-attr]
    assert (settings.schedule.kind, settings.warmup_steps) == ("inverse_sqrt", 4000)
    assert settings.lr == pytest.approx(512**-0.5 * 4000**-0.5)
    assert (settings.label_smoothing, settings.max_steps, settings.grad_clip_norm) == (0.1, 100_000, None)
    n = sum(p.numel() for p in build(model.replace(vocab_size=37_000)).parameters())
    assert n == pytest.approx(65e6, rel=0.05)  # table 3 says 65 million


@pytest.mark.parametrize(("what", "names"), PRESETS_FOR.items())
def test_the_presets_that_messages_name_are_for_what_they_say(what: str, names: str) -> None:
    for name in names.split(" or "):
        config = preset(name)
        assert what in (config.model.family, *config.train.objective.data_kinds)


def test_every_default_is_a_preset_of_its_kind() -> None:
    for kind, name in DEFAULTS.items():
        assert kind in preset(name).train.objective.data_kinds
