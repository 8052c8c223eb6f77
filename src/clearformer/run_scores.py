"""What a run is worth on a whole split of its own data, or on other data of the same kind."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, NamedTuple

import torch

from clearformer.config import resolve
from clearformer.data import Data, LabelledData, PairsData, Prepared, prepare_data
from clearformer.errors import ConfigError, DataError, RunError, UserError, shown
from clearformer.evaluation import evaluate_split
from clearformer.evaluation.classes.scores import evaluate_classes
from clearformer.evaluation.masked import evaluate_masked
from clearformer.evaluation.teacher_forcing import evaluate_pairs
from clearformer.evaluation.translation import evaluate_translation
from clearformer.results import Result, plain, short
from clearformer.runs import RunLike, read_own_data
from clearformer.training.config import RunConfig
from clearformer.training.tasks.masked import masked_in_order

WHOLE = "train"  # the split that holds all of the data of which none are held out
KEPT = ("field", "text_field", "label_field", "columns", "labels", "too_long")  # of the run's own settings
Files = str | PathLike[str] | Sequence[str | PathLike[str]]


@dataclass(frozen=True, repr=False)
class Scores(Result):
    """What a run is worth: the figures that `clearformer eval --json` prints, by their names.

        scores["perplexity"], scores.loss

    Attributes:
        loss: The mean of -log p, in nats: of each token, or of each text's class.
        values: All figures.
    """

    loss: float
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __repr__(self) -> str:
        numbers = {name: value for name, value in self.values.items() if isinstance(value, float)}
        return f"Scores({', '.join(f'{name}={short(value)}' for name, value in numbers.items())})"

    def to_dict(self) -> dict[str, Any]:
        return plain(dict(self.values))


class Asked(NamedTuple):
    """The data and how they are read."""

    config: RunConfig
    prepared: Prepared
    split: str
    context: int | None
    stride: int | None
    beams: int
    dtype: torch.dtype | None


def evaluate(
    run: RunLike,
    data: Files | None = None,
    *,
    split: str = "val",
    context: int | None = None,
    stride: int | None = None,
    beams: int = 5,
    dtype: torch.dtype | None = None,
    allow_changed: bool = False,
) -> Scores:
    """Measure a run by what it was trained for, on a whole split of its data or on files.

    Of a text: loss, perplexity, bits per token, character and byte. Of pairs: loss, perplexity and accuracy of the
    tokens of given translations; BLEU, chrF and exact match of the model's own. Of masked tokens: loss, perplexity and
    accuracy. Of labelled texts: loss, accuracy and macro-F1.

    Args:
        run: One that was trained, or is kept.
        data: A file that is read whole, or two, source and target; the run's own data, where not given.
        split: Of the run's own data.
        context: Of a text: tokens read at once (the model's length).
        stride: Of a text: tokens between readings (half the context).
        beams: Of pairs: of the search that translates; 1 is greedy.
        dtype: The type of the matrix products (autocast); as it is around the call, where not given.
        allow_changed: Whether the run's own data are read though they have changed since.

    Raises:
        RunError: the run has no such split, or no data of its own.
        DataError, TokenizerError: the data cannot be read, or not by this run; or they have changed.
        UserError: the context or the stride is out of range, or the number of files is wrong.
    """
    if data is None:
        config, prepared = run.config, read_own_data(run, allow_changed=allow_changed).prepared
        if split not in prepared.splits:
            there_are = ", ".join(prepared.splits)
            raise RunError(f"split: the run's data have no split {shown(split)}; they have {there_are}")
    else:
        config, split = run.config.replace(data=data_of(run.config.data, data)), WHOLE
        prepared = prepare_data(config.data, run.tokenizer, max_tokens=config.model.max_seq_len)
    values = MEASURES[config.train.objective.kind](
        run, Asked(config, prepared, split, context, stride, beams, dtype)
    )
    return Scores(values["loss"], values | {"split": split if data is None else names_of(data)})


def data_of(own: Data, files: Files) -> Data:
    """All of some files, as data of the kind that the run was trained on.

    Raises:
        UserError: there are too many, or a name that is none.
    """
    paths = [str(files)] if isinstance(files, str | PathLike) else [str(file) for file in files]
    most = 2 if isinstance(own, PairsData) else 1
    if not 1 <= len(paths) <= most:
        what = "pairs are one TSV or two files, source and target" if most == 2 else "one file"
        raise UserError(f"data: {what}; got {len(paths)}")
    kept = {name: getattr(own, name) for name in KEPT if name in type(own).model_fields}
    where = {"source": paths[0], "target": paths[1]} if len(paths) == 2 else {"path": paths[0]}
    try:
        return resolve(type(own), kept | where | {"val_fraction": 0.0})
    except ConfigError as error:
        raise UserError(f"data: {error}") from None


def names_of(files: Files) -> str:
    """The files as one word after another."""
    return str(files) if isinstance(files, str | PathLike) else " ".join(map(str, files))


# --- one function an objective ----------------------------------------------------------------------------


def measure_text(run: Any, asked: Asked) -> dict[str, Any]:
    """How well a decoder predicts a text."""
    split: Any = asked.prepared.splits[asked.split]
    return evaluate_split(
        run.model, split, run.tokenizer, context=asked.context, stride=asked.stride, dtype=asked.dtype
    ).to_json()


def measure_pairs(run: Any, asked: Asked) -> dict[str, Any]:
    """How well an encoder-decoder predicts given translations, and how good its own are."""
    split: Any = asked.prepared.splits[asked.split]
    forced = evaluate_pairs(run.model, split, run.tokenizer, dtype=asked.dtype)
    own = evaluate_translation(
        run, split.source_texts, split.target_texts, beams=asked.beams, dtype=asked.dtype
    )
    return forced.to_json() | own.to_json()


def measure_masked(run: Any, asked: Asked) -> dict[str, Any]:
    """How well an encoder fills in masked tokens."""
    prepared: Any = asked.prepared
    batches = masked_in_order(asked.config, prepared, asked.split)
    found = evaluate_masked(run.model, batches, dtype=asked.dtype)
    if found is None:
        raise DataError("no token to mask, for all of them are special ones such as [UNK]")
    return found.to_json()


def measure_classes(run: Any, asked: Asked) -> dict[str, Any]:
    """How well an encoder classifies."""
    prepared: Any = asked.prepared
    assert isinstance(asked.config.data, LabelledData)
    found = evaluate_classes(
        run.model, prepared, asked.split, too_long=asked.config.data.too_long, dtype=asked.dtype
    )
    return found.report.to_json() | {"labels": list(found.report.names)}


MEASURES: dict[str, Callable[[Any, Asked], dict[str, Any]]] = {
    "next_token": measure_text,
    "translation": measure_pairs,
    "masked": measure_masked,
    "classification": measure_classes,
}
