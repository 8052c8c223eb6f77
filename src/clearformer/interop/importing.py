"""A folder that transformers saved, as a run of ours."""

from dataclasses import replace
from pathlib import Path

from clearformer.data import Data, LabelledData, PairsData, TextData
from clearformer.files import folder_made_whole, user_path, whole_path
from clearformer.interop.mapping.fields import Fields
from clearformer.interop.reading import read_model
from clearformer.interop.tokenizers.folder import read_tokenizer
from clearformer.model import ModelConfig
from clearformer.run import Run, free_name, load, new_run
from clearformer.training.config import RunConfig, TrainConfig
from clearformer.training.objectives import (
    ClassificationObjective,
    MaskedObjective,
    NextTokenObjective,
    Objective,
    TranslationObjective,
)
from clearformer.training.store.checkpoint import Checkpoint, Progress, link, save_checkpoint
from clearformer.training.store.folder import RunFolder

TASKS: dict[str, tuple[Data, Objective]] = {
    "decoder": (TextData(), NextTokenObjective()),
    "encoder": (TextData(), MaskedObjective()),
    "classes": (LabelledData(), ClassificationObjective()),
    "encoder-decoder": (PairsData(), TranslationObjective()),
}
STEPS = 1000  # of training it further, where nothing else is said


def from_hf(folder: str | Path, name: str | None = None) -> Run:
    """Make a run of a model in a folder: it evaluates, samples, translates and opens like one trained here.

    Args:
        folder: With config.json, model.safetensors and a tokenizer.
        name: The run's, under the runs' folder; the folder's own where not given, as far as that can be a run's.

    Raises:
        RunError: the folder holds no model, or the name is taken.
        ConfigError: config.json asks for what clearformer's models do not have, or for code.
        CheckpointError: the tensors are damaged, or not those that config.json speaks of.
        TokenizerError: there is no tokenizer, or none that can be read.
    """
    source = user_path(folder)
    target = new_run(free_name(whole_path(source).name) if name is None else name)
    model = read_model(source)
    tokenizer = read_tokenizer(source, model.fields, model.config)
    labels = None if model.config.n_classes is None else labels_of(model.fields)
    config = run_config(model.config, labels)
    with folder_made_whole(target.path, target.config_file.name) as unfinished:
        made = RunFolder(unfinished)
        made.create(config, tokenizer, text_sha256="")
        save_checkpoint(made.checkpoints, Checkpoint(Progress(), model.weights, {}))
        link(made.checkpoints, {"latest": 0})
        run = load(unfinished, device="cpu")  # what cannot be read again is no run
    return replace(run, folder=target)


def run_config(model: ModelConfig, labels: tuple[str, ...] | None = None) -> RunConfig:
    """A run of this model: what it was trained on is not known, so the data are those that its task begins with."""
    data, objective = TASKS["classes" if model.n_classes is not None else model.family]
    if isinstance(data, LabelledData):
        data = data.replace(labels=labels)
    train = TrainConfig(objective=objective, max_steps=STEPS, dtype="float32", compile=False)
    return RunConfig(model=model, data=data, train=train)


def labels_of(fields: Fields) -> tuple[str, ...] | None:
    """The names of a classifier's classes, by their numbers.

    Raises:
        ConfigError: they are not numbered from 0 on, or two are the same.
    """
    names = fields.get("id2label")
    if names is None:
        return None
    numbers = [str(number) for number in range(len(names) if isinstance(names, dict) else 0)]
    if (
        not isinstance(names, dict)
        or sorted(names) != sorted(numbers)
        or not all(isinstance(name, str | int) for name in names.values())
        or len({str(name) for name in names.values()}) < len(names)
    ):
        fields.refuse("id2label", "names of classes are wanted, numbered from 0 on and all different")
    return tuple(str(names[number]) for number in numbers)
