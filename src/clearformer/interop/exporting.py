"""A run as a folder that transformers loads, with no code of ours."""

from pathlib import Path

from clearformer.data import LabelledData
from clearformer.errors import RunError
from clearformer.files import folder_made_whole, sync
from clearformer.interop.card import model_card
from clearformer.interop.fitting import Fit, fit
from clearformer.interop.tokens import tokenizer_documents
from clearformer.interop.writing import SpecialIds, write_json, write_model
from clearformer.run import Run, load
from clearformer.train.checkpoint import read_progress, step_folder
from clearformer.train.state import weights_of

CARD = "README.md"


def to_hf(run: Run | str | Path, folder: str | Path, checkpoint: str = "latest") -> Fit:
    """Write a run as config.json, model.safetensors, tokenizer.json and what goes with them.

    Args:
        run: A run that was loaded, or one's name or folder.
        folder: A new folder, or an empty one.
        checkpoint: Of a run that is not loaded yet: `latest`, `best` or a step's number.

    Returns:
        The architecture it was written as.

    Raises:
        ConfigError: the model is no architecture of transformers'; the settings that differ from the nearest are named.
        RunError: there is no such run, or something is in the folder.
        DiskError: the folder cannot be written.
    """
    target = Path(folder)
    refuse_full(target)
    if not isinstance(run, Run):
        run = load(run, checkpoint, device="cpu")
    fitted = fit(run.config.model)
    with folder_made_whole(target) as unfinished:
        _write(run, fitted, unfinished)
        for path in unfinished.iterdir():
            with path.open("r+b") as file:
                sync(file.fileno())
    return fitted


def refuse_full(folder: Path) -> None:
    """Nothing that exists is written over.

    Raises:
        RunError: there is a file, or a folder with something in it.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} exists and is not an empty folder; choose another, or delete it")


def _write(run: Run, fitted: Fit, folder: Path) -> None:
    tokenizer, model = run.tokenizer, run.config.model
    start = tokenizer.bos_id if model.family == "encoder-decoder" else None
    ids = SpecialIds(tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, start)
    data = run.config.data
    labels = data.labels if isinstance(data, LabelledData) else None
    write_model(folder, fitted, weights_of(run.model), ids, labels)
    for name, document in tokenizer_documents(tokenizer, model).items():
        write_json(folder / name, document)
    n_parameters = sum(parameter.numel() for parameter in run.model.parameters())
    val_loss = read_progress(step_folder(run.folder.checkpoints, run.step)).val_loss
    card = model_card(run.folder.path.name, fitted, run.config, n_parameters, run.step, val_loss)
    (folder / CARD).write_text(card, encoding="utf-8")
