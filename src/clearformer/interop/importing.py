"""A folder that transformers saved, as a run of ours."""

from pathlib import Path

from clearformer.data import Data, LabelledData, PairsData, TextData
from clearformer.interop.reading import read_model
from clearformer.interop.tokens import read_tokenizer
from clearformer.model import ModelConfig
from clearformer.run import Run, free_name, load, new_run
from clearformer.train.checkpoint import Checkpoint, Progress, link, save_checkpoint
from clearformer.train.config import RunConfig, TrainConfig
from clearformer.train.tasks import Classify, Masked, NextToken, Objective, Translate

TASKS: dict[str, tuple[Data, Objective]] = {
    "decoder": (TextData(), NextToken()),
    "encoder": (TextData(), Masked()),
    "classes": (LabelledData(), Classify()),
    "encoder-decoder": (PairsData(), Translate()),
}
STEPS = 1000  # of training it further, where nothing else is said


def from_hf(folder: str | Path, name: str | None = None) -> Run:
    """Make a run of a model in a folder: it evaluates, samples, translates and opens like one trained here.

    Args:
        folder: With config.json, model.safetensors and a tokenizer.
        name: The run's, under the runs' folder; the folder's own name where not given.

    Raises:
        RunError: the folder holds no model, or the name is taken.
        ConfigError: config.json asks for what clearformer's models do not have, or for code.
        CheckpointError: the tensors are damaged, or not those that config.json speaks of.
        TokenizerError: there is no tokenizer, or none that can be read.
    """
    source = Path(folder).expanduser()
    target = new_run(free_name(source.resolve().name or "imported") if name is None else name)
    model = read_model(source)
    tokenizer = read_tokenizer(source, model.fields, model.config)
    save_checkpoint(target.checkpoints, Checkpoint(Progress(), model.weights, {}))
    link(target.checkpoints, {"latest": 0})
    target.create(run_config(model.config), tokenizer, text_sha256="")  # last, for it makes the run complete
    return load(target.path, device="cpu")


def run_config(model: ModelConfig) -> RunConfig:
    """A run of this model: what it was trained on is not known, so the data are those that its task begins with."""
    data, objective = TASKS["classes" if model.n_classes is not None else model.family]
    train = TrainConfig(objective=objective, max_steps=STEPS, dtype="float32", compile=False)
    return RunConfig(model=model, data=data, train=train)
