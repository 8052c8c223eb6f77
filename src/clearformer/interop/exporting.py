"""Export of a run as a folder that transformers loads without our code."""

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from clearformer.data import LabelledData
from clearformer.decoding.arguments import check_run
from clearformer.errors import RunError
from clearformer.files import folder_made_whole, user_path
from clearformer.interop.card import HeldOut, Trained, model_card
from clearformer.interop.mapping.matching import ArchitectureMatch, match_architecture
from clearformer.interop.reading import CONFIG
from clearformer.interop.tokenizers.folder import tokenizer_documents
from clearformer.interop.writing import SpecialIds, write_json, write_model
from clearformer.runs.folders import RunLike, check_empty_folder, folder_of, opened, shown_name
from clearformer.training.store.checkpoint import MODEL, read_progress, step_folder
from clearformer.training.store.folder import read_metrics
from clearformer.training.store.state import are_equal, weights_of

CARD = "README.md"


def to_hf(
    run: RunLike | str | Path, folder: str | Path, checkpoint: str | int = "latest"
) -> ArchitectureMatch:
    """Write a run as config.json, model.safetensors, tokenizer.json, their companion files and a model card.

    Args:
        run: A loaded run, or a run's name or folder.
        folder: A new or empty folder.
        checkpoint: For a run that is not loaded yet: `latest`, `best` or a step's number.

    Returns:
        The architecture that the model was written as.

    Raises:
        ConfigError: transformers has no such architecture; the message names the settings that differ from the nearest.
        TokenizerError: the tokenizer is of a kind that only clearformer reads.
        RunError: there is no such run, or the folder is not empty or named like a GGUF file.
        UserError: `run` is no run.
        DiskError: the folder cannot be written.
    """
    target = user_path(folder)
    if target.suffix.lower() == ".gguf":
        raise RunError(f"{target}: to_hf writes a folder; run.export({target.name!r}) writes a GGUF file")
    if not isinstance(run, str | Path):
        check_run(run, "config")
    check_empty_folder(target)
    run = opened(run, checkpoint)
    fitted = match_architecture(run.config.model)
    with folder_made_whole(target, CONFIG) as unfinished:
        _write(run, fitted, unfinished)
    return fitted


def _write(run: RunLike, fitted: ArchitectureMatch, folder: Path) -> None:
    tokenizer, model = run.tokenizer, run.config.model
    start = tokenizer.bos_id if model.family == "encoder-decoder" else None
    ids = SpecialIds(tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, start)
    data = run.config.data
    labels = data.labels if isinstance(data, LabelledData) else None
    write_model(folder, fitted, weights_of(run.model), ids, labels)
    for name, document in tokenizer_documents(tokenizer, model).items():
        write_json(folder / name, document)
    n_parameters = sum(parameter.numel() for parameter in run.model.parameters())
    trained = Trained(run.step, run.average, held_out_of(run))
    card = model_card(shown_name(run), fitted, run.config, n_parameters, trained)
    (folder / CARD).write_text(card, encoding="utf-8")


def held_out_of(run: RunLike) -> HeldOut | None:
    """Return a model's loss on held-out data at its step, from metrics.jsonl or else from its checkpoint.

    Return None if neither has it, if the run has no folder, or if the weights differ from the checkpoint's.
    """
    folder = folder_of(run)
    if folder is None:
        return None
    checkpoint = step_folder(folder.checkpoints, run.step)
    if not _same_weights(checkpoint / MODEL, weights_of(run.model)):
        return None
    try:
        lines = read_metrics(folder.metrics_file)
    except RunError:  # a damaged line costs the model card a sentence, not the export
        return None
    for line in lines:
        if line["step"] == run.step and isinstance(line.get("val_loss"), float):
            return HeldOut(line["val_loss"], line.get("val_share"))
    loss = read_progress(checkpoint).val_loss
    return None if loss is None else HeldOut(loss, None)


def _same_weights(file: Path, weights: Mapping[str, Tensor]) -> bool:
    try:
        stored = load_file(file)
    except (OSError, SafetensorError):  # a later checkpoint may have replaced that of a loaded run
        return False
    return are_equal(stored, weights)
