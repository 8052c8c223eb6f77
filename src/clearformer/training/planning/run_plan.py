"""The estimated cost of a run before its data are read, with guesses for the sizes that depend on them."""

from clearformer.cost.rates import measured_rate, named_rate
from clearformer.data import LabelledData
from clearformer.device import resolve_device, resolve_dtype
from clearformer.model.config import Family, ModelConfig
from clearformer.text import (
    BPETokenizerSpec,
    ByteTokenizerSpec,
    CharTokenizerSpec,
    FileTokenizerSpec,
    GPT2TokenizerSpec,
    TokenizerConfig,
    UnigramTokenizerSpec,
    WordPieceTokenizerSpec,
    specials_of,
)
from clearformer.text.tokenizer import wanted_specials
from clearformer.training.config import RunConfig
from clearformer.training.planning.plan import Plan, plan

MEASURE = "measure"
GUESSED_CHARACTERS = 65  # of Tiny Shakespeare
GUESSED_CLASSES = 2


def plan_run(run: RunConfig, device: str) -> Plan:
    """Return the plan of a run on a named device, or on this machine if the name is `measure`.

    Raises:
        ConfigError: there is no such device, or it does not fit the run's settings.
    """
    model = expected_model(run)
    if device == MEASURE:
        here = resolve_device(run.train.device)
        device_type, rate = here.type, measured_rate(resolve_dtype(run.train.dtype, here), here)
    else:
        device_type, rate = "cuda", named_rate(device, run.train.dtype)
    return plan(model, run.train.replace(dtype=rate.dtype), rate, device_type)


def expected_model(run: RunConfig) -> ModelConfig:
    """Return a run's model with the sizes that it is expected to take from the data."""
    return run.model.replace(
        vocab_size=run.model.vocab_size or expected_vocabulary(run), n_classes=expected_classes(run)
    )


def expected_vocabulary(run: RunConfig) -> int:
    """Return the expected size of a run's vocabulary, before its tokenizer has read any text."""
    return vocabulary_of(run.tokenizer, run.model.family)


def vocabulary_of(tokenizer: TokenizerConfig, family: Family = "decoder") -> int:
    """Return the expected vocabulary size of a tokenizer; for characters it is a guess."""
    of_family = specials_of(family)
    match tokenizer:
        case CharTokenizerSpec() as tokenizer:
            specials = wanted_specials(of_family, bos=tokenizer.bos, eos=tokenizer.eos, unk=tokenizer.unk)
            return GUESSED_CHARACTERS + len(specials)
        case ByteTokenizerSpec() as tokenizer:
            return 256 + len(wanted_specials(of_family, bos=tokenizer.bos, eos=tokenizer.eos))
        case BPETokenizerSpec() | WordPieceTokenizerSpec() | UnigramTokenizerSpec() as tokenizer:
            return tokenizer.vocab_size
        case GPT2TokenizerSpec():
            return 50_257
        case FileTokenizerSpec() as tokenizer:
            return tokenizer.train().vocab_size
        case tokenizer:  # a registered kind
            return getattr(tokenizer, "vocab_size", GUESSED_CHARACTERS)


def expected_classes(run: RunConfig) -> int | None:
    """Return the expected number of classes, a guess if the settings do not say; None for other objectives."""
    if not run.train.objective.predicts_classes or not isinstance(run.data, LabelledData):
        return None
    return run.model.n_classes or len(run.data.labels or ()) or GUESSED_CLASSES


def notes_on(run: RunConfig) -> list[str]:
    """Return a note for each guess that the plan rests on."""
    notes = []
    if run.model.vocab_size is None and run.tokenizer.kind == "char":
        notes.append(
            f"note: the number of distinct characters is not known yet; the plan assumes {expected_vocabulary(run)}. "
            f"Set another with model.vocab_size=N"
        )
    n_classes = expected_classes(run)
    if n_classes is not None and run.model.n_classes is None and getattr(run.data, "labels", None) is None:
        notes.append(
            f"note: the number of labels is not known yet; the plan assumes {n_classes}. "
            f"Set another with model.n_classes=N"
        )
    if isinstance(run.data, LabelledData):
        notes.append(
            "note: the lengths of the texts are not known yet; the plan takes each to have "
            f"{run.model.max_seq_len} tokens, and steps of shorter ones take less time"
        )
    return notes
