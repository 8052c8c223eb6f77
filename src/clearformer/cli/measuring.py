"""What `clearformer eval` measures of each kind of run: as a table for people, and as values for JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from clearformer.cli.outcomes import class_figures
from clearformer.data import Data, LabelledData, PairsData, TextData, prepare, prepare_pairs
from clearformer.data.labelled_preparing import LabelledDataset, prepare_labelled
from clearformer.errors import DataError, RunError, UserError
from clearformer.evaluate import Evaluation, evaluate_split
from clearformer.evaluate.baseline import Baseline
from clearformer.evaluate.classification import ClassificationReport
from clearformer.evaluate.classifying import baseline_for, evaluate_classes
from clearformer.evaluate.masked import MaskedEvaluation, evaluate_masked
from clearformer.evaluate.teacher_forcing import PairLoss, evaluate_pairs
from clearformer.evaluate.translation import TranslationEvaluation, evaluate_translation
from clearformer.model import Decoder, Encoder, EncoderDecoder
from clearformer.run import Run
from clearformer.train.config import RunConfig
from clearformer.train.tasks.masked import masked_in_order, prepare_for_masking

WHOLE = "train"  # the split that holds all of the data of which none are held out


@dataclass(frozen=True)
class Settings:
    """What is measured, and how.

    Attributes:
        split: Of the run's own data.
        files: Other data in their place, read whole.
        context: Tokens of a text read at once.
        stride: Tokens from one reading to the next.
        beams: Of the beam search that translates.
        dtype: The type of the matrix products.
    """

    split: str
    files: Sequence[str]
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

    Raises:
        RunError: the run's data have no such split.
        DataError, TokenizerError: the data cannot be read, or not by this run.
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


def config_with_data(run: Run, settings: Settings) -> tuple[RunConfig, str]:
    """The run's configuration with the data to measure it on, and which of their splits is read."""
    if settings.files:
        return run.config.replace(data=other_data(run.config.data, settings.files)), WHOLE
    return run.config, settings.split


def other_data(own: Data, files: Sequence[str]) -> Data:
    """All of some files, as data of the kind that the run was trained on.

    Raises:
        UserError: there are too many.
    """
    most = 2 if isinstance(own, PairsData) else 1
    if len(files) > most:
        what = "pairs are one TSV or two files, source and target" if most == 2 else "one file"
        raise UserError(f"--data: {what}; got {len(files)}")
    match own:
        case TextData():
            return TextData(path=files[0], field=own.field, val_fraction=0.0)
        case PairsData() if len(files) == 1:
            return PairsData(path=files[0], val_fraction=0.0)
        case PairsData():
            return PairsData(source=files[0], target=files[1], val_fraction=0.0)
        case LabelledData():
            return LabelledData(
                path=files[0],
                val_fraction=0.0,
                text_field=own.text_field,
                label_field=own.label_field,
                columns=own.columns,
                labels=own.labels,
                too_long=own.too_long,
            )


def split_of(splits: dict[str, Any], name: str) -> Any:
    """The split of a name.

    Raises:
        RunError: there is none.
    """
    if name not in splits:
        raise RunError(f"--split: the run's data have no split {name!r}; they have {', '.join(splits)}")
    return splits[name]


# --- texts ------------------------------------------------------------------------------------------------


def measure_text(run: Run, settings: Settings) -> Measurement:
    """How well a decoder predicts a text."""
    config, name = config_with_data(run, settings)
    assert isinstance(config.data, TextData)
    split = split_of(prepare(config.data, run.tokenizer).splits, name)
    assert isinstance(run.model, Decoder)
    found = evaluate_split(
        run.model,
        split,
        run.tokenizer,
        context=settings.context,
        stride=settings.stride,
        dtype=settings.dtype,
    )
    return Measurement(
        text_table(found, run.tokenizer.vocab_size, settings), found.to_json() | {"split": settings.name}
    )


def text_table(e: Evaluation, vocab_size: int, settings: Settings) -> str:
    """The figures, and what they may be compared with."""
    text_size = "" if e.n_chars is None else f" ({e.n_chars:,} characters, {e.n_bytes:,} bytes)"
    rows = [
        *token_rows(e.loss, e.perplexity),
        ("bits per token", f"{e.bits_per_token:.4f}"),
        ("bits per character", f"{e.bits_per_char:.4f}" if e.bits_per_char else "-"),
        ("bits per byte", f"{e.bits_per_byte:.4f}" if e.bits_per_byte else "-"),
        ("mean entropy", f"{e.mean_entropy:.4f} nats: the loss that the model itself expects"),
        ("predicted", f"{e.n_tokens:,} tokens{text_size}"),
        ("read", f"{read(settings)}, context {e.context}, stride {e.stride}"),
    ]
    note = (
        f"{of_one_vocabulary(vocab_size)};\n"
        f"bits per character and per byte compare any two models of the same text."
    )
    return f"{table(rows)}\n\n{note}"


# --- pairs ------------------------------------------------------------------------------------------------


def measure_translation(run: Run, settings: Settings) -> Measurement:
    """How well an encoder-decoder predicts given translations, and how good its own are."""
    config, name = config_with_data(run, settings)
    assert isinstance(config.data, PairsData)
    dataset = prepare_pairs(config.data, run.tokenizer, config.model.max_seq_len)
    split = split_of(dataset.splits, name)
    assert isinstance(run.model, EncoderDecoder)
    forced = evaluate_pairs(run.model, split, run.tokenizer, dtype=settings.dtype)
    own = evaluate_translation(
        run, split.source_texts, split.target_texts, beams=settings.beams, dtype=settings.dtype
    )
    return Measurement(
        translation_table(forced, own, run.tokenizer.vocab_size, settings),
        forced.to_json() | own.to_json() | {"split": settings.name},
    )


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
    config, name = config_with_data(run, settings)
    dataset = prepare_for_masking(config.data, run.tokenizer)
    split_of(dict(dataset.splits), name)
    assert isinstance(run.model, Encoder)
    found = evaluate_masked(run.model, masked_in_order(config, dataset, name), dtype=settings.dtype)
    if found is None:
        raise DataError(
            f"{read(settings)}: no token to mask, for all of its tokens are special ones such as [UNK]; "
            "give texts that the run's tokenizer knows"
        )
    return Measurement(
        masked_table(found, run.tokenizer.vocab_size, settings), found.to_json() | {"split": settings.name}
    )


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
    config, name = config_with_data(run, settings)
    assert isinstance(config.data, LabelledData)
    dataset = prepare_labelled(config.data, run.tokenizer)
    split = split_of(dataset.splits, name)
    assert isinstance(run.model, Encoder)
    found = evaluate_classes(run.model, dataset, name, too_long=config.data.too_long, dtype=settings.dtype)
    baseline = baseline_for(dataset, split) if not settings.files else baseline_of_run(run, dataset)
    text = "\n".join((f"{read(settings)}:", *class_figures(found.report, baseline)))
    values = found.report.to_json() | {
        "split": settings.name,
        "labels": list(found.report.names),
        "baseline": None if isinstance(baseline, str) else baseline_values(baseline),
    }
    return Measurement(
        f"{text}\n\n{found.report.table()}\n\n{found.report.confusion_table()}", values, found.report
    )


def baseline_of_run(run: Run, other: LabelledDataset) -> Baseline | str:
    """The baseline on other texts than the run's own, or why there is none: it must learn from what the run did."""
    own = run.config.data
    assert isinstance(own, LabelledData)
    try:
        trained_on = prepare_labelled(own, run.tokenizer)
    except DataError as error:
        return f"none, for it learns from the run's training texts: {error}"
    if trained_on.labels != other.labels:
        return f"none, for section data of {run.folder.config_file} does not name what the run was trained on"
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


def read(settings: Settings) -> str:
    """Which data were read."""
    return f"all of {settings.name}" if settings.files else f"the whole {settings.split} split"


def of_one_vocabulary(vocab_size: int) -> str:
    """What the loss may be compared with."""
    return f"Perplexity and loss per token compare only within one vocabulary (here {vocab_size} tokens)"
