"""Preparing labelled texts: read and split them, tokenize them once into the cache, and open the tokens later.

The tokens of a split are in shards like a running text's, each text as [CLS] x1 ... xm [SEP], one after the other. No
text contains a special token, so [SEP] marks where each one ends. The texts and labels themselves are read every time;
their SHA-256 and the name of their source, which the manifest holds, are the key of the tokens in the cache.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from clearformer.data.cache import (
    cache_folder,
    cached_tokenizer,
    encoding_of,
    found,
    key_of,
    made_in_cache,
    own_code,
    tokenizer_entry,
)
from clearformer.data.holding_out import n_also_in
from clearformer.data.labelled.config import LabelledData
from clearformer.data.labelled.reading import LabelledText
from clearformer.data.labelled.sources import LabelledTexts, open_labelled
from clearformer.data.locating.places import Example, examples_on_lines
from clearformer.data.shards import (
    FORMAT_VERSION,
    ShardError,
    ShardWriter,
    Split,
    check_contents,
    open_splits,
    read_manifest,
    token_dtype,
    write_manifest,
)
from clearformer.data.text.preparing import Progress
from clearformer.errors import TokenizerError, count
from clearformer.files import is_file
from clearformer.text import (
    CharTokenizerSpec,
    Tokenizer,
    TokenizerConfig,
    encode_located,
    specials_of,
)

logger = logging.getLogger(__name__)

FAMILY = "encoder"
ENCODED_AT_ONCE = 1000
MOST_NAMED = 5  # labels in a note
LABELLED_VERSION = 2  # of the prepared data apart from the shards, which have a version of their own


@dataclass(frozen=True)
class LabelledSplit:
    """One split: `len()` texts in the order they were read, each with its label and its tokens.

    Attributes:
        label_ids: The index of each text's label among the data set's labels, [N] int64.
        tokens: The tokens of all texts, concatenated, each text between [CLS] and [SEP].
        ends: Where each text's tokens end, [N] int64.
        lines: The number of the line that each text starts on, [N] int64.
        place: The file of these lines.
        last_lines: For the index of each text over several lines, the number of the last.
    """

    name: str
    texts: Sequence[str]
    label_ids: np.ndarray
    tokens: Split
    ends: np.ndarray
    lines: np.ndarray
    place: str
    last_lines: Mapping[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each text, [CLS] and [SEP] included, [N] int64."""
        return np.diff(self.ends, prepend=0)

    def row(self, index: int) -> np.ndarray:
        """Return one text's tokens, [CLS] and [SEP] included, int64."""
        start = int(self.ends[index - 1]) if index else 0
        return self.tokens.read(start, int(self.ends[index]))

    def find(self, indices: Sequence[int]) -> list[Example]:
        """Return some of the texts with their places in the file, each from its first line to the end of its last.

        Raises:
            DataError: their file cannot be read.
        """
        paths = [Path(self.place)] if is_file(Path(self.place)) else []
        texts = [self.texts[index] for index in indices]
        first = self.lines[list(indices)].tolist()
        last = [self.last_lines.get(index, number) for index, number in zip(indices, first, strict=True)]
        return examples_on_lines(texts, list(zip(first, last, strict=True)), paths, self.place)

    def where(self, index: int) -> str:
        """Return one text's place, for a message."""
        return f"{self.place}, line {self.lines[index]}"


@dataclass(frozen=True)
class LabelledDataset:
    """Prepared labelled texts: their tokenizer, labels in order of their ids, splits by name, and manifest."""

    tokenizer: Tokenizer
    labels: tuple[str, ...]
    splits: dict[str, LabelledSplit]
    manifest: dict[str, Any]
    folder: Path
    unlearnt: Mapping[str, int]
    """For each label that no training text has, the number of held-out texts that were left out."""

    @property
    def notes(self) -> Iterator[str]:
        """Remarks on unusual properties of the data, one line each."""
        if n_labels := len(self.unlearnt):
            named = ", ".join(map(repr, list(self.unlearnt)[:MOST_NAMED]))
            others = f" and {n_labels - MOST_NAMED:,} more" if n_labels > MOST_NAMED else ""
            label, it = ("label", "it") if n_labels == 1 else ("labels", "them")
            yield (
                f"val: {count(sum(self.unlearnt.values()), 'text')} left out: no training text has the {label} "
                f"{named}{others}; add texts with {it}"
            )
        for name, entry in self.manifest["splits"].items():
            if n := entry.get("n_also_in_train"):
                yield f"{name}: {n:,} of {count(entry['n_texts'], 'text')} also in training"


def prepare_labelled(
    config: LabelledData,
    tokenizer: TokenizerConfig | Tokenizer,
    cache_dir: Path | None = None,
    *,
    check: bool = False,
    uses_labels: bool = True,
    progress: Progress = lambda *_: None,
) -> LabelledDataset:
    """Prepare the texts of `config` with their tokens, made now or found in the cache.

    A spec is trained to a tokenizer: a character vocabulary on all texts, so that the held-out ones hold no unknown
    character; every other kind on the training texts alone. Anything unusual is logged (see `LabelledDataset.notes`).

    Args:
        config: The texts and their splits.
        tokenizer: The tokenizer, with the special tokens of an encoder, or the spec to train one from.
        cache_dir: A folder to use instead of the user's cache folder.
        check: Whether to verify the SHA-256 of tokens found in the cache; their sizes are always verified.
        uses_labels: See `open_labelled`.
        progress: Called with the progress, in characters or, while encoding, in texts.

    Raises:
        DataError: the texts cannot be used (see `open_labelled`).
        TokenizerError: a given tokenizer lacks a special token, or has none for some of a text.
        DiskError: the cache cannot be written.
    """
    progress("reading", 0, None)
    preparation = _Preparation(open_labelled(config, uses_labels), cache_dir or cache_folder(), progress)
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = preparation.trained(tokenizer)
    require_encoder_specials(tokenizer)
    folder = preparation.folder(tokenizer)
    dataset = found(folder, lambda: preparation.opened(tokenizer, folder, check), "preparing the texts again")
    if dataset is None:
        preparation.make(tokenizer, folder)
        dataset = preparation.opened(tokenizer, folder)
    for note in dataset.notes:
        logger.info("%s", note)
    return dataset


def require_encoder_specials(tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer without the special tokens that start, end, pad and mask a row.

    Raises:
        TokenizerError: it lacks one of them; the message names those that are missing.
    """
    ids = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id)
    lacking = [name for name, token in zip(specials_of(FAMILY), ids, strict=True) if token is None]
    if lacking or tokenizer.bos_id == tokenizer.eos_id:
        named = ", ".join(lacking) or "separate tokens for the start and the end of a text"
        raise TokenizerError(
            f"this tokenizer lacks {named}, which an encoder needs: train one for encoders, or use an encoder run's"
        )


@dataclass(frozen=True)
class _Preparation:
    source: LabelledTexts
    cache: Path
    progress: Progress

    def trained(self, spec: TokenizerConfig) -> Tokenizer:
        """Train the tokenizer of a spec, or take it from the cache if these texts have trained it before."""
        specials = specials_of(FAMILY)
        if not spec.needs_corpus:
            return spec.train((), specials=specials)
        key = {
            "labelled": self.source.sha256,
            "tokenizer": spec.model_dump(mode="json"),
            "specials": specials,
        }
        key |= own_code(type(spec))
        of_all = isinstance(spec, CharTokenizerSpec)
        names = [name for name in self.source.splits if of_all or name == "train"]
        texts = self._counted([each.text for name in names for each in self.source.splits[name]])
        return cached_tokenizer(self.cache, key, lambda: spec.train(texts, specials=specials))

    def _counted(self, texts: Sequence[str]) -> Iterator[str]:
        """Yield the texts that train a tokenizer, and report the progress."""
        done, total = 0, sum(map(len, texts))
        for text in texts:
            yield text
            done += len(text)
            self.progress("training the tokenizer", done, total)

    def folder(self, tokenizer: Tokenizer) -> Path:
        """Return the cache folder of these texts in this tokenizer's tokens."""
        key = {
            "labelled": self.source.sha256,
            "description": self.source.description,
            "tokenizer": tokenizer.fingerprint(),
            "version": FORMAT_VERSION,
            "labelled_version": LABELLED_VERSION,
        }
        return self.cache / "prepared" / key_of(key | encoding_of(tokenizer))

    def opened(self, tokenizer: Tokenizer, folder: Path, check: bool = False) -> LabelledDataset:
        manifest = read_manifest(folder)
        if check:
            check_contents(folder, manifest)
        tokens = open_splits(folder, manifest)
        assert tokenizer.eos_id is not None
        splits = {
            name: self._split(name, texts, tokens[name], tokenizer.eos_id, folder)
            for name, texts in self.source.splits.items()
        }
        manifest["labels"] = list(self.source.labels)  # the same texts may have been prepared with others
        return LabelledDataset(tokenizer, self.source.labels, splits, manifest, folder, self.source.unlearnt)

    def _split(
        self, name: str, texts: Sequence[LabelledText], tokens: Split, sep_id: int, folder: Path
    ) -> LabelledSplit:
        ends = np.flatnonzero(tokens.read(0, len(tokens)) == sep_id) + 1
        if len(ends) != len(texts) or ends[-1] != len(tokens):
            raise ShardError(
                f"{folder}: damaged: {len(ends):,} texts in the {name} split instead of {len(texts):,}"
            )
        id_of = {label: number for number, label in enumerate(self.source.labels)}
        return LabelledSplit(
            name,
            [each.text for each in texts],
            np.array([id_of[each.label] for each in texts], np.int64),
            tokens,
            ends,
            np.array([each.line for each in texts], np.int64),
            self.source.places[name],
            {index: each.last_line for index, each in enumerate(texts) if each.last_line is not None},
        )

    def make(self, tokenizer: Tokenizer, folder: Path) -> None:
        """Encode the texts into `folder`."""
        dtype = token_dtype(tokenizer.vocab_size)
        train = [(each.text,) for each in self.source.splits["train"]]
        with made_in_cache(folder) as unfinished:
            splits = {}
            for name, texts in self.source.splits.items():
                with ShardWriter(unfinished, name, dtype) as writer:
                    self._encode(name, texts, tokenizer, writer)
                splits[name] = _sizes(texts) | {"n_tokens": writer.n_tokens, "shards": writer.shards}
                if name != "train":
                    splits[name]["n_also_in_train"] = n_also_in([(each.text,) for each in texts], train)
            write_manifest(unfinished, self._manifest(tokenizer, dtype, splits))

    def _encode(
        self, name: str, texts: Sequence[LabelledText], tokenizer: Tokenizer, writer: ShardWriter
    ) -> None:
        for start in range(0, len(texts), ENCODED_AT_ONCE):
            self.progress(f"encoding {name}", start, len(texts))
            some = texts[start : start + ENCODED_AT_ONCE]
            place = partial(self._place, name, some)
            for number, ids in enumerate(encode_located(tokenizer, [each.text for each in some], place)):
                if tokenizer.eos_id in ids:  # an imported tokenizer may read a special token of one character
                    raise TokenizerError(
                        f"{place(number)}: the tokenizer reads from this text its token that ends a text: give it "
                        "another one (sep_token or eos_token in tokenizer_config.json), or leave that text out"
                    )
                writer.add(tokenizer.wrap(ids))

    def _place(self, name: str, texts: Sequence[LabelledText], number: int) -> str:
        """Return the place of the n-th of some texts, for a message."""
        return self.source.where(name, texts[number].line)

    def _manifest(
        self, tokenizer: Tokenizer, dtype: np.dtype, splits: dict[str, dict[str, Any]]
    ) -> dict[str, Any]:
        every = [each for texts in self.source.splits.values() for each in texts]
        sizes = _sizes(every)
        return {
            "version": FORMAT_VERSION,
            "dtype": dtype.str,
            "tokenizer": tokenizer_entry(tokenizer),
            "source": {
                "description": self.source.description,
                "sha256": self.source.sha256,
                "n_documents": sizes["n_texts"],
                "n_chars": sizes["n_chars"],
                "n_bytes": sizes["n_bytes"],
            },
            "labels": list(self.source.labels),
            "splits": splits,
        }


def _sizes(texts: Iterable[LabelledText]) -> dict[str, Any]:
    texts = list(texts)
    return {
        "n_texts": len(texts),
        "n_chars": sum(len(each.text) for each in texts),
        "n_bytes": sum(len(each.text.encode()) for each in texts),
        "label_counts": dict(sorted(Counter(each.label for each in texts).items())),
    }
