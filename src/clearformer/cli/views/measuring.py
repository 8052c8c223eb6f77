"""What `clearformer eval` measures of each kind of run: as a table for people, and as values for JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from clearformer.cli.views.outcomes import class_figures
from clearformer.config import resolve
from clearformer.data import (
    Data,
    Dataset,
    LabelledData,
    PairDataset,
    PairsData,
    Prepared,
    prepare_data,
)
from clearformer.data.labelled.preparing import LabelledDataset
from clearformer.errors import ConfigError, DataError, RunError, UserError
from clearformer.evaluation import Evaluation, evaluate_split
from clearformer.evaluation.classes.baseline import Baseline
from clearformer.evaluation.classes.metrics import ClassificationReport
from clearformer.evaluation.classes.scores import baseline_for, evaluate_classes
from clearformer.evaluation.masked import MaskedEvaluation, evaluate_masked
from clearformer.evaluation.teacher_forcing import PairLoss, evaluate_pairs
from clearformer.evaluation.translation import TranslationEvaluation, evaluate_translation
from clearformer.model import Decoder, Encoder, EncoderDecoder
from clearformer.run import Run
from clearformer.runs import read_own_data
from clearformer.training.config import RunConfig
from clearformer.training.tasks.masked import masked_in_order

NO_CODE = "- (the tokens do not hold all of the text)"
WHOLE = "train"  # the split that holds all of the data of which none are held out
KEPT = ("field", "text_field", "label_field", "columns", "labels", "too_long")  # of the run's own settings
CHANGED = (
    "the run's own data have changed since it was trained: what is held out now may have been training text"
)


@dataclass(frozen=True)
class Settings:
    """What is measured, and how.

    Attributes:
        split: Of the run's own data.
        files: Other data in their place, read whole.
        changed_data: Whether own data that have changed since training are read as they are, and not refused.
        context: Tokens of a text read at once.
        stride: Tokens from one reading to the next.
        beams: Of the beam search that translates.
        dtype: The type of the matrix products.
    """

    split: str
    files: Sequence[str]
    changed_data: bool
    context: int | None
    stride: int | None
    beams: int
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """What is read, as a message or a JSON object calls it."""
        return " ".join(self.files) or self.split


class Measurement(NamedTuple):
    """What was found."""

    text: str
    values: dict[str, Any]
    report: ClassificationReport | None = None


def measure(run: Run, settings: Settings) -> Measurement:
    """Measure a run by what it is trained for.

    The values for JSON say in `data_changed` whether the run's own data are others than it was trained on; it is null
    where they were not read.

    Raises:
        RunError: the run's data have no such split, or it was imported and has none.
        DataError, TokenizerError: the data cannot be read, or not by this run; or they have changed.
        UserError: the context or the stride is out of range, or the number of files is wrong.
    """
    of_kind = {
        "next_token": measure_text,
        "translation": measure_translation,
        "masked": measure_masked,
        "classification": measure_classes,
    }
    return of_kind[run.config.train.objective.kind](run, settings)


# --- which data -------------------------------------------------------------------------------------------


class Read(NamedTuple):
    """The data to measure a run on.

    Attributes:
        config: The run's configuration, with these data.
        prepared: What they are in the run's tokens.
        name: Which of their splits is read.
        changed: Whether they are the run's own and others than it was trained on; None where they are not its own.
    """

    config: RunConfig
    prepared: Prepared
    name: str
    changed: bool | None

    @property
    def split(self) -> Any:
        """The split that is read."""
        return self.prepared.splits[self.name]

    @property
    def note(self) -> str:
        """What a table says first, if anything."""
        return f"{CHANGED}\n\n" if self.changed else ""


def read_data(run: Run, settings: Settings) -> Read:
    """The data to measure a run on: its own, or others.

    Raises:
        RunError: there is no such split.
        DataError: the data cannot be used, or are not those that the run was trained on.
    """
    if settings.files:
        config = run.config.replace(data=other_data(run.config.data, settings.files))
        prepared = prepare_data(config.data, run.tokenizer, max_tokens=config.model.max_seq_len)
        return Read(config, prepared, WHOLE, None)
    own = read_own_data(run, allow_changed=settings.changed_data)
    if settings.split not in own.prepared.splits:
        there_are = ", ".join(own.prepared.splits)
        raise RunError(f"--split: the run's data have no split {settings.split!r}; they have {there_are}")
    return Read(run.config, own.prepared, settings.split, own.changed)


def other_data(own: Data, files: Sequence[str]) -> Data:
    """All of some files, as data of the kind that the run was trained on.

    Raises:
        UserError: there are too many, or a name that is none.
    """
    most = 2 if isinstance(own, PairsData) else 1
    if len(files) > most:
        what = "pairs are one TSV or two files, source and target" if most == 2 else "one file"
        raise UserError(f"--data: {what}; got {len(files)}")
    kept = {name: getattr(own, name) for name in KEPT if name in type(own).model_fields}
    paths = {"source": files[0], "target": files[1]} if len(files) == 2 else {"path": files[0]}
    try:
        return resolve(type(own), kept | paths | {"val_fraction": 0.0})
    except ConfigError as error:
        raise UserError(f"--data: {error}") from None


# --- texts ------------------------------------------------------------------------------------------------


def measure_text(run: Run, settings: Settings) -> Measurement:
    """How well a decoder predicts a text."""
    data = read_data(run, settings)
    assert isinstance(data.prepared, Dataset)
    assert isinstance(run.model, Decoder)
    found = evaluate_split(
        run.model,
        data.split,
        run.tokenizer,
        context=settings.context,
        stride=settings.stride,
        dtype=settings.dtype,
    )
    text = data.note + text_table(found, run.tokenizer.vocab_size, settings)
    return Measurement(text, found.to_json() | about(data, settings))


def text_table(e: Evaluation, vocab_size: int, settings: Settings) -> str:
    """The figures, and what they may be compared with."""
    text_size = "" if e.n_chars is None else f" ({e.n_chars:,} characters, {e.n_bytes:,} bytes)"
    rows = [
        *token_rows(e.loss, e.perplexity),
        ("bits per token", f"{e.bits_per_token:.4f}"),
        ("bits per character", f"{e.bits_per_char:.4f}" if e.bits_per_char is not None else NO_CODE),
        ("bits per byte", f"{e.bits_per_byte:.4f}" if e.bits_per_byte is not None else NO_CODE),
        ("mean entropy", f"{e.mean_entropy:.4f} nats: the loss that the model itself expects"),
        ("predicted", f"{e.n_tokens:,} tokens{text_size}{unknown_among(e)}"),
        ("read", f"{read(settings)}, context {e.context}, stride {e.stride}"),
    ]
    note = of_one_vocabulary(vocab_size)
    if e.bits_per_char is not None:
        note += ";\nbits per character and per byte compare any two models of the same text"
    return f"{table(rows)}\n\n{note}."


def unknown_among(e: Evaluation) -> str:
    """How many of the tokens stand for what the vocabulary lacks."""
    if not e.n_unknown:
        return ""
    return f", {e.n_unknown:,} of them ({e.n_unknown / e.n_tokens:.2%}) for what the vocabulary lacks"


# --- pairs ------------------------------------------------------------------------------------------------


def measure_translation(run: Run, settings: Settings) -> Measurement:
    """How well an encoder-decoder predicts given translations, and how good its own are."""
    data = read_data(run, settings)
    assert isinstance(data.prepared, PairDataset)
    split = data.split
    assert isinstance(run.model, EncoderDecoder)
    forced = evaluate_pairs(run.model, split, run.tokenizer, dtype=settings.dtype)
    own = evaluate_translation(
        run, split.source_texts, split.target_texts, beams=settings.beams, dtype=settings.dtype
    )
    text = data.note + translation_table(forced, own, run.tokenizer.vocab_size, settings)
    return Measurement(text, forced.to_json() | own.to_json() | about(data, settings))


def translation_table(
    forced: PairLoss, own: TranslationEvaluation, vocab_size: int, settings: Settings
) -> str:
    """The figures of given translations, then those of the model's own."""
    rows = [
        *token_rows(forced.loss, forced.perplexity),
        ("accuracy", f"{forced.accuracy:.2%} of the tokens are the model's first choice"),
        ("predicted", f"{forced.n_tokens:,} tokens of {forced.n_pairs:,} translations"),
        ("read", read(settings)),
    ]
    search = "greedily" if settings.beams == 1 else f"by beam search with {settings.beams} beams"
    cut = f"; {own.n_cut:,} were cut where they became too long" if own.n_cut else ""
    return (
        f"{table(rows)}\n\nTranslated {search}{cut}:\n{own.scores}\n\n{of_one_vocabulary(vocab_size)};\n"
        f"BLEU and chrF compare any two models of the same sentences, under the same signature."
    )


# --- masked tokens ----------------------------------------------------------------------------------------


def measure_masked(run: Run, settings: Settings) -> Measurement:
    """How well an encoder fills in masked tokens."""
    data = read_data(run, settings)
    assert isinstance(data.prepared, Dataset | LabelledDataset)
    assert isinstance(run.model, Encoder)
    batches = masked_in_order(data.config, data.prepared, data.name)
    found = evaluate_masked(run.model, batches, dtype=settings.dtype)
    if found is None:
        raise DataError(
            f"{read(settings)}: no token to mask, for all of its tokens are special ones such as [UNK]; "
            "give texts that the run's tokenizer knows"
        )
    text = data.note + masked_table(found, run.tokenizer.vocab_size, settings)
    return Measurement(text, found.to_json() | about(data, settings))


def masked_table(e: MaskedEvaluation, vocab_size: int, settings: Settings) -> str:
    """The figures, and what they may be compared with."""
    rows = [
        *token_rows(e.loss, e.perplexity),
        ("accuracy", f"{e.accuracy:.2%} of the masked tokens are the model's first choice"),
        ("predicted", f"{e.n_tokens:,} masked tokens, the same ones every time"),
        ("read", read(settings)),
    ]
    return (
        f"{table(rows)}\n\n{of_one_vocabulary(vocab_size)},\n"
        f"and never with those of a model that reads from left to right."
    )


# --- classes ----------------------------------------------------------------------------------------------


def measure_classes(run: Run, settings: Settings) -> Measurement:
    """How well an encoder classifies, and how well the baseline does."""
    data = read_data(run, settings)
    assert isinstance(data.prepared, LabelledDataset)
    assert isinstance(data.config.data, LabelledData)
    assert isinstance(run.model, Encoder)
    found = evaluate_classes(
        run.model, data.prepared, data.name, too_long=data.config.data.too_long, dtype=settings.dtype
    )
    if settings.files:
        baseline = baseline_of_run(run, data.prepared)
    else:
        baseline = baseline_for(data.prepared, data.split)
    text = "\n".join((f"{read(settings)}:", *class_figures(found.report, baseline)))
    values = found.report.to_json() | {
        "labels": list(found.report.names),
        "baseline": None if isinstance(baseline, str) else baseline_values(baseline),
    }
    return Measurement(
        f"{data.note}{text}\n\n{found.report.table()}\n\n{found.report.confusion_table()}",
        values | about(data, settings),
        found.report,
    )


def baseline_of_run(run: Run, other: LabelledDataset) -> Baseline | str:
    """The baseline on other texts than the run's own, or why there is none: it must learn from what the run did."""
    try:
        trained_on = read_own_data(run).prepared
    except (DataError, RunError) as error:
        return f"none, for it learns from the run's training texts: {error}"
    assert isinstance(trained_on, LabelledDataset)
    return baseline_for(trained_on, other.splits[WHOLE])


def baseline_values(baseline: Baseline) -> dict[str, Any]:
    """The baseline's figures, without its table."""
    report = baseline.report
    return {
        "accuracy": report.accuracy,
        "macro_f1": report.macro_f1,
        "loss": report.loss,
        "settings": baseline.settings,
    }


# --- tables -----------------------------------------------------------------------------------------------


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values, one below the other."""
    return "\n".join(f"{name:<20}{value}" for name, value in rows)


def token_rows(loss: float, perplexity: float) -> list[tuple[str, str]]:
    """What every model of tokens has."""
    return [("loss", f"{loss:.4f} nats per token"), ("perplexity", f"{perplexity:.3f}")]


def about(data: Read, settings: Settings) -> dict[str, Any]:
    """What every JSON object says of the data that were read."""
    return {"split": settings.name, "data_changed": data.changed}


def read(settings: Settings) -> str:
    """Which data were read."""
    return f"all of {settings.name}" if settings.files else f"the whole {settings.split} split"


def of_one_vocabulary(vocab_size: int) -> str:
    """What the loss may be compared with."""
    return f"Perplexity and loss per token compare only within one vocabulary (here {vocab_size} tokens)"
