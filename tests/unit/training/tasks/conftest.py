"""For the tests of the tasks: a tiny run of each, named by the first of its settings."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from clearformer.config import parse_override, resolve
from clearformer.device import resolve_device
from clearformer.training.config import RunConfig
from clearformer.training.loop import Training
from clearformer.training.processes.distributed import Processes
from clearformer.training.reporting.report import Reporter
from clearformer.training.setup import open_task
from clearformer.training.store.folder import RunFolder
from clearformer.training.store.pretrained import pretrained_tokenizer

TINY = (
    "model.d_model=6",
    "model.n_layers=1",
    "model.attention.n_heads=3",
    "model.ffn.d_ff=11",
    "model.max_seq_len=23",
    "train.max_steps=13",
    "train.log_every=1",
    "train.eval_every=5",
    "train.checkpoint_every=none",
    "train.device=cpu",
    "train.dtype=float32",
    "train.compile=false",
)
ENCODER = ("model.family=encoder", "model.embedding_norm=true", "tokenizer=byte", "train.batch_size=6")
OF_TASK = {
    "next_token": ("data.path={text}", "train.batch_size=6"),
    "translation": (
        "data.kind=pairs",
        "data.path={pairs}",
        "data.val_fraction=0.1",
        "model.family=encoder-decoder",
        "train.objective=translation",
        "train.objective.batch_tokens=64",
    ),
    "masked": (*ENCODER, "data.path={text}", "train.objective=masked"),
    "masked-labelled": (*ENCODER, "data.kind=labelled", "data.path={labelled}", "train.objective=masked"),
    "classification": (
        *ENCODER,
        "data.kind=labelled",
        "data.path={labelled}",
        "train.objective=classification",
    ),
}
LABELS = ("fruit", "metal", "river")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A text; pairs of which the target is the source backwards; texts whose label stands in them."""
    chance = random.Random(7)
    words = ["".join(chance.choices("abcde", k=chance.randrange(1, 8))) for _ in range(151)]
    text = [f"the {word} and the {number};\n" for number, word in enumerate(words)]
    pairs = [f"{word}\t{word[::-1]}\n" for word in words]
    rows = [
        f"{word} {LABELS[number % 3]} {word[:2]}\t{LABELS[number % 3]}\n" for number, word in enumerate(words)
    ]
    contents = {"text": ("text.txt", text), "pairs": ("pairs.tsv", pairs)}
    contents["labelled"] = ("labelled.tsv", ["text\tlabel\n", *rows])
    for name, lines in contents.values():
        (tmp_path / name).write_text("".join(lines))
    return {kind: tmp_path / name for kind, (name, _) in contents.items()}


@pytest.fixture
def configure(files: dict[str, Path]) -> Callable[..., RunConfig]:
    """A tiny run of a task with settings as one types them: `configure("masked", "train.lr=0.1")`."""

    def configure(task: str, *settings: str) -> RunConfig:
        own = [setting.format(**files) for setting in OF_TASK[task]]
        return resolve(RunConfig, *map(parse_override, (*TINY, *own, *settings)))

    return configure


@pytest.fixture
def begun(
    configure: Callable[..., RunConfig], run_folder: Callable[[str], RunFolder]
) -> Callable[..., Training]:
    """A new run of a task that is ready for its first step."""

    def begun(name: str, *settings: str, reporter: Reporter | None = None) -> Training:
        config = configure(*settings)
        device, processes = resolve_device("cpu"), Processes()
        task, config = open_task(config, device, processes, pretrained_tokenizer(config))
        training = Training(config, run_folder(name), task, device, processes, reporter or Reporter())
        training.start()
        return training

    return begun
