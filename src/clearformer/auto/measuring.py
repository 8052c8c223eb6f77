"""The measurements of `auto`: the size of the data, and the machine's rate and memory."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from pydantic import PositiveInt, TypeAdapter, ValidationError

from clearformer.auto.budget import ANY_SIZE, MOST_BYTES_PER_TOKEN, SECONDS, Budget, ModelSize
from clearformer.auto.rate import usual_rate
from clearformer.auto.vocabulary import LEAST_FOR_WORDS, Trial, try_words
from clearformer.data import Data, LabelledData, PairsData, TextData, open_pairs
from clearformer.data.labelled.sources import open_labelled
from clearformer.data.reading import estimated_text_bytes
from clearformer.data.text.sources import FileSource, open_source
from clearformer.device import resolve_device, resolve_dtype
from clearformer.errors import DataError
from clearformer.resources import memory_here
from clearformer.training.config import RunConfig
from clearformer.training.processes.distributed import Place

# Beside the data, the tokenizer and the model's size, the settings that `measure` reads: others cannot change a budget.
MEASURED_BY = {
    f"train.{name}"
    for name in ("max_seconds", "max_wall_seconds", "device", "dtype", "compile", "pretrained")
}
SIZE = TypeAdapter(PositiveInt)
RATE_SECONDS, RATE_SHARE = 1.0, 0.02  # at most so long, and so much of the time, for the machine's rate


def measure(
    wanted: RunConfig,
    said: Mapping[str, Any] | None = None,
    most_tokens: float = math.inf,
    place: Place | None = None,
) -> Budget:
    """Measure the size of the data, and the machine's rate and memory, in about a second or less if the time is short.

    Args:
        wanted: The data, time and device; and the tokenizer and the model, if they are those of an earlier run, or the
            requested tokenizer.
        said: The settings that the user gave, by their keys.
        most_tokens: The longest context of the rules, in tokens, unless another is given; of longer texts only the
            beginning counts, and longer pairs do not.
        place: The process's place among those that train together, all of which measure at the same time.

    Raises:
        DataError: there are no such data.
    """
    said, place = said or {}, place or Place()
    given = given_size(wanted, said)
    size = size_of(wanted.data, (given.max_seq_len or most_tokens) * MOST_BYTES_PER_TOKEN)
    device = resolve_device(wanted.train.device)
    dtype = resolve_dtype(wanted.train.dtype, device)
    of_earlier = wanted.train.pretrained is not None
    has_tokenizer = of_earlier or any(key.partition(".")[0] == "tokenizer" for key in said)
    has_vocabulary = of_earlier or "tokenizer.vocab_size" in said
    seconds = min(filter(None, (wanted.train.max_wall_seconds, wanted.train.max_seconds)), default=SECONDS)
    asks_for_words = not has_vocabulary and wanted.tokenizer.kind == "bpe"
    trial = trial_of(wanted.data, size.n_bytes) if asks_for_words or not has_tokenizer else None
    return Budget(
        n_bytes=size.n_bytes,
        seconds=seconds,
        rate=place.count * usual_rate(dtype, device, seconds=min(RATE_SECONDS, RATE_SHARE * seconds)),
        memory=memory_of(device) / 2 / sharing(device, place.n_here),
        compile=None if wanted.train.compile == "auto" else wanted.train.compile,
        tokenizer=wanted.tokenizer if has_tokenizer else None,
        has_vocabulary=has_vocabulary,
        given=given,
        is_pretrained=of_earlier,
        n_texts=size.n_texts,
        longest=size.longest,
        n_labels=size.n_labels,
        has_held_out=isinstance(wanted.data, TextData) and wanted.data.val_path is not None,
        **(trial._asdict() if trial else {}),
    )


def given_size(wanted: RunConfig, said: Mapping[str, Any]) -> ModelSize:
    """Return the size of an earlier run's model, if there is one, and what the settings say of it.

    Values that are no sizes are left out; the run's configuration is refused for them.
    """
    earlier = wanted.model if wanted.train.pretrained is not None else ANY_SIZE
    sizes = {name: said.get(f"model.{name}", getattr(earlier, name)) for name in ModelSize._fields}
    return ModelSize(**{name: as_size(size) for name, size in sizes.items()})


def as_size(value: Any) -> int | None:
    """Return a value as a configuration reads it, which takes 512.0 and '512' for 512; None if it is no size."""
    try:
        return SIZE.validate_python(value)
    except ValidationError:
        return None


def trial_of(data: Data, n_bytes: int) -> Trial | None:
    """Try BPE on a running text; None for a small one, and for other data."""
    if not isinstance(data, TextData) or n_bytes < LEAST_FOR_WORDS:
        return None
    return try_words(open_source(data).by_split()["train"])


class Size(NamedTuple):
    """The size of data; the fields are those of `Budget`."""

    n_bytes: int
    n_texts: int = 1
    longest: int = 0
    n_labels: int = 0


def size_of(data: Data, most_bytes: float = math.inf) -> Size:
    """Measure the size of a text, of pairs or of labelled texts.

    No more than `most_bytes` of a labelled text count; pairs with a longer side do not, unless there are no others.
    """
    if isinstance(data, PairsData):
        pairs = open_pairs(data).read().splits
        sides = {
            name: [(len(p.source.encode()), len(p.target.encode())) for p in pairs[name]] for name in pairs
        }
        sides = {
            name: [pair for pair in split if max(pair) <= most_bytes] or split
            for name, split in sides.items()
        }
        longest = max(max(pair) for split in sides.values() for pair in split)
        return Size(sum(map(sum, sides["train"])), len(sides["train"]), longest)
    if isinstance(data, LabelledData):
        texts = open_labelled(data).splits
        sizes = {
            name: [int(min(len(each.text.encode()), most_bytes)) for each in texts[name]] for name in texts
        }
        longest = max(size for split in sizes.values() for size in split)
        n_labels = len({each.label for each in texts["train"]})
        return Size(sum(sizes["train"]), len(sizes["train"]), longest, n_labels)
    return Size(text_bytes(data))


def text_bytes(data: TextData) -> int:
    """Return the size of a text in bytes; for large gzip and JSON lines files an estimate.

    Raises:
        DataError: there is no such text, or it is empty.
    """
    source = open_source(data).by_split()["train"]
    if not isinstance(source, FileSource):
        return sum(len(chunk.text.encode()) for chunk in source.documents())
    n_bytes = sum(estimated_text_bytes(path, source.field) for path in source.files)
    if not n_bytes:
        raise DataError(f"{source.description}: there is no text in it")
    return n_bytes


def memory_of(device: torch.device) -> float:
    """Return a device's memory in bytes; for a CPU no more than this process may use."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return memory_here()


def sharing(device: torch.device, n_here: int) -> int:
    """Return how many of a machine's processes share the memory of a device."""
    return math.ceil(n_here / torch.cuda.device_count()) if device.type == "cuda" else n_here
