"""Import of a folder that transformers saved, as a run."""

from pathlib import Path

from clearformer.files import user_path, whole_path
from clearformer.interop.mapping.fields import Fields
from clearformer.interop.reading import read_model
from clearformer.interop.tokenizers.folder import read_tokenizer
from clearformer.runs.folders import OTHER_NAME, Loaded, free_name, new_run, read_run, run_config, write_run


def from_hf(folder: str | Path, name: str | None = None) -> Loaded:
    """Make a run from a model in a folder; it then evaluates, samples, translates and opens like any other.

    Args:
        folder: A folder with config.json, model.safetensors and a tokenizer.
        name: The new run's name in the runs folder; if None, it is made from the folder's name.

    Raises:
        RunError: the folder holds no model, or the name is taken.
        ConfigError: config.json needs settings that clearformer's models lack, or code.
        CheckpointError: the tensors are damaged, or do not match config.json.
        TokenizerError: there is no tokenizer, or none that can be read.
    """
    source = user_path(folder)
    target = new_run(free_name(whole_path(source).name) if name is None else name, "name", OTHER_NAME)
    model = read_model(source)
    tokenizer = read_tokenizer(source, model.fields, model.config)
    labels = None if model.config.n_classes is None else labels_of(model.fields)
    config = run_config(model.config, labels, tokenizer)
    write_run(target.path, config, tokenizer, model.weights)
    return read_run(target.path, device="cpu")


def labels_of(fields: Fields) -> tuple[str, ...] | None:
    """Return the names of a classifier's classes in order of their ids; None if config.json has none.

    Raises:
        ConfigError: they are not numbered from 0, or two are the same.
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
        fields.refuse("id2label", "expected names of classes, numbered from 0 and all different")
    return tuple(str(names[number]) for number in numbers)
