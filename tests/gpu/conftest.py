"""What needs an NVIDIA GPU: skipped where there is none, and run by `make gpu`.

other_device.py has them run on a device that the CPU computes; what only a GPU has is skipped then.
"""

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from clearformer.config import Spec, parse_override, resolve, slot_variants
from clearformer.errors import ConfigError
from clearformer.model import ModelConfig
from clearformer.model.attention import MultiHead
from clearformer.model.feedforward import GELU
from clearformer.model.init import Gaussian
from clearformer.model.linear_attention import Linear
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import Sinusoidal
from clearformer.model.relative_positions import Relative
from clearformer.training.config import RunConfig
from clearformer.training.loop import TrainResult, train
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.folder import RunFolder

from ..pairwise import Row, pairwise

HERE = Path(__file__).parent
WITHOUT_A_GPU = "other_device" in sys.modules


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(
                pytest.mark.filterwarnings("default")
            )  # torch's, of parts that a CPU does not have
            if not (WITHOUT_A_GPU or torch.cuda.is_available()):
                item.add_marker(pytest.mark.skip(reason="there is no NVIDIA GPU here"))


@pytest.fixture(autouse=True)
def _own_folders_and_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CLEARFORMER_RUNS", str(tmp_path / "runs"))


@pytest.fixture(scope="session")
def device() -> Iterator[torch.device]:
    if not WITHOUT_A_GPU:
        yield torch.device("cuda")
        return
    from other_device import other_device

    def resolve(name: str, key: str = "") -> torch.device:
        return torch.device("other" if name == "cuda" else name)

    with other_device() as device, pytest.MonkeyPatch.context() as patch:
        for module in ("clearformer.training.loop", "clearformer.runs.folders"):
            patch.setattr(f"{module}.resolve_device", resolve)
        yield device


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    """A GPU, for what nothing else has."""
    if device.type != "cuda":
        pytest.skip("only a GPU has this")
    return device


@pytest.fixture
def compiler(cuda: torch.device) -> torch.device:
    """A GPU, where torch's compiler can trace the model."""
    if any("jaxtyping" in type(finder).__module__ for finder in sys.meta_path):
        pytest.skip("the compiler traces no function whose shapes are checked: run by `make gpu`")
    return cuda


# --- models -----------------------------------------------------------------------------------------------

# No two axes have the same size, so that mixed-up ones cannot pass; heads are grouped where a kind has groups.
SIZES: dict[str, Any] = {"vocab_size": 13, "d_model": 24, "max_seq_len": 11}
SETTINGS = {"n_heads": 6, "n_kv_heads": 3, "d_head": 4, "d_ff": 17, "n_buckets": 8, "max_distance": 5}
OF_FAMILY: dict[str, dict[str, Any]] = {
    "decoder": {"n_layers": 2},
    "encoder": {"n_layers": 2, "n_token_types": 2, "masked_head": "transform"},
    "encoder-decoder": {"n_layers": 1, "n_decoder_layers": 2},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "window": {"attention": MultiHead(n_heads=2, window=3)},
    "window+relative": {
        "attention": MultiHead(n_heads=2, window=3),
        "position": Relative(n_buckets=8, max_distance=5),
    },
    "biases+qk_norm": {"attention": MultiHead(n_heads=2, qkv_bias=True, output_bias=True, qk_norm=RMSNorm())},
    "bare heads": {"attention": MultiHead(n_heads=2, value=False, output=False, scale=False)},
    "linear+qk_norm": {"attention": Linear(n_heads=2, qkv_bias=True, qk_norm=RMSNorm())},
    "sines first": {"position": Sinusoidal(interleaved=False)},
    "post": {"placement": "post", "final_norm": False},
    "bare blocks": {"placement": "none", "final_norm": False},
    "no residuals": {"residual": False},
    "parallel": {"parallel": True},
    "embedding norm": {"embedding_norm": True, "scale_embeddings": True},
    "tied head": {"head_bias": True, "scale_logits": True},
    "own head": {"tie_embeddings": False, "head_bias": True, "logit_soft_cap": 3.0},
}


def filled(spec_type: type[Spec]) -> Any:
    return spec_type(**{name: value for name, value in SETTINGS.items() if name in spec_type.model_fields})


def kinds(slot: str) -> dict[str, Any]:
    return {kind: filled(spec) for kind, spec in slot_variants(ModelConfig.model_fields[slot]).items()}


def every_other_kind() -> Iterator[tuple[str, dict[str, Any]]]:
    for slot in ModelConfig.model_fields:
        if slot not in ("attention", "position"):
            yield from ((f"{slot}={kind}", {slot: spec}) for kind, spec in kinds(slot).items())
    yield from OPTIONS.items()


def config(family: str, **changes: Any) -> ModelConfig:
    settings: dict[str, Any] = SIZES | {"family": family, "init": Gaussian()} | OF_FAMILY[family]
    settings |= {"attention": filled(MultiHead), "ffn": filled(GELU)}
    return ModelConfig(**(settings | changes))


def specs(row: Row) -> dict[str, Any]:
    return {slot: kinds(slot)[row[slot]] for slot in ("attention", "position")}


def goes_together(family: str, **changes: Any) -> bool:
    """Which do is tested without a GPU."""
    try:
        config(family, **changes)
    except ConfigError:
        return False
    return True


@cache
def every_model() -> dict[str, tuple[ModelConfig, bool]]:
    """Models, and whether their texts are padded: attention, positions and padding crossed; the rest takes turns."""
    models = {}
    switches = {"attention": kinds("attention"), "position": kinds("position"), "padded": (False, True)}
    for family in OF_FAMILY:
        for row in pairwise(switches, lambda row, family=family: goes_together(family, **specs(row))):
            name = f"{family} {row['attention']}+{row['position']}"
            models[name] = config(family, **specs(row)), row["padded"]
    for turn, (name, changes) in enumerate(every_other_kind()):
        family = list(OF_FAMILY)[turn % len(OF_FAMILY)]
        if goes_together(family, **changes):
            models[f"{family} {name}"] = config(family, **changes), turn % 2 == 1
    return models


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    models = every_model()
    if "any_model" in metafunc.fixturenames:
        ids = [f"{name}-{'padded' if padded else 'whole'}" for name, (_, padded) in models.items()]
        metafunc.parametrize(("any_model", "padded"), list(models.values()), ids=ids)
    if "any_decoder" in metafunc.fixturenames:
        decoders = {name: model for name, (model, _) in models.items() if model.family == "decoder"}
        metafunc.parametrize("any_decoder", list(decoders.values()), ids=list(decoders))


# --- runs -------------------------------------------------------------------------------------------------

BASE = (
    "model.d_model=24",
    "model.n_layers=2",
    "model.max_seq_len=16",
    "model.attention.n_heads=3",
    "train.batch_size=8",
    "train.max_steps=12",
    "train.log_every=1",
    "train.checkpoint_every=none",
    "train.device=cuda",
    "train.dtype=float32",
    "train.compile=false",
)


@pytest.fixture
def configure(tmp_path: Path) -> Callable[..., RunConfig]:
    """A run of a tiny model with settings as one types them: `configure("train.lr=0.1")`."""
    file = tmp_path / "text.txt"
    file.write_text("".join(f"the quick brown fox jumps over {n} lazy dogs;\n" for n in range(1000, 1100)))

    def configure(*settings: str) -> RunConfig:
        layers = [parse_override(setting) for setting in (f"data.path={file}", *BASE, *settings)]
        return resolve(RunConfig, *layers)

    return configure


@pytest.fixture
def run_folder(tmp_path: Path) -> Callable[[str], RunFolder]:
    """A run's folder by its name."""
    return lambda name: RunFolder(tmp_path / "runs" / name)


@pytest.fixture
def trained(
    configure: Callable[..., RunConfig], run_folder: Callable[[str], RunFolder], device: torch.device
) -> Callable[..., TrainResult]:
    """Train a new run of a name with some settings: `trained("a", "train.lr=0.1")`."""

    def trained(name: str, *settings: str, reporter: Reporter | None = None) -> TrainResult:
        return train(configure(*settings), run_folder(name), reporter or Reporter())

    return trained


@pytest.fixture
def resumed(run_folder: Callable[[str], RunFolder]) -> Callable[..., TrainResult]:
    """Go on with the run of a name, as it was configured but for some changes of `train`."""

    def resumed(name: str, **changes: object) -> TrainResult:
        settings = run_folder(name).read_config()
        settings = settings.replace(train=settings.train.replace(**changes))
        return train(settings, run_folder(name), Reporter(), resume=True)

    return resumed
