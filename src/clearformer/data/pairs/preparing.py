"""Preparing pairs of lines once: read, split, tokenize and cache them; later calls only open the result.

    open the source -> read and check its pairs -> hold some out -> train a joint tokenizer -> encode -> arrays

Both languages share one tokenizer, trained on both sides of the training pairs, so that their embeddings can be one
table and a name has the same tokens in both.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from clearformer.data import holding_out
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
from clearformer.data.holding_out import HeldOutPairs, n_also_in
from clearformer.data.identity import assumption
from clearformer.data.locating.places import Example, examples_on_lines
from clearformer.data.pairs.batches import special_ids
from clearformer.data.pairs.config import PairsData
from clearformer.data.pairs.files import (
    PAIRS_VERSION,
    SIDES,
    PairSplit,
    check_pair_contents,
    open_pair_splits,
    read_pair_manifest,
    write_split,
)
from clearformer.data.pairs.source import Pair, PairSource, digest_of
from clearformer.data.pairs.sources import open_pairs
from clearformer.data.shards import token_dtype, write_manifest
from clearformer.data.text.preparing import TOKENIZER_CHARS, Progress
from clearformer.errors import DataError, count
from clearformer.text import (
    CharTokenizerSpec,
    Tokenizer,
    TokenizerConfig,
    encode_located,
    specials_of,
)

logger = logging.getLogger(__name__)

SPECIALS = specials_of("encoder-decoder")
ENCODED_AT_ONCE = 1000


@dataclass(frozen=True)
class PairDataset:
    """Prepared pairs: their splits by name, their tokenizer, and the manifest that describes them."""

    tokenizer: Tokenizer
    splits: dict[str, PairSplit]
    manifest: dict[str, Any]
    folder: Path

    def find(self, indices: Sequence[int], split_name: str = "train") -> list[Example]:
        """Return some of a split's pairs with their places in the files.

        Raises:
            DataError: their files cannot be read.
        """
        split, source = self.splits[split_name], self.manifest["source"]
        files = source.get("files", {})
        paths = [Path(path) for path in files.get(split_name, files.get("train", {})).get("paths", ())]
        texts = [f"{split.source_texts[index]}\t{split.target_texts[index]}" for index in indices]
        lines = [(number, number) for number in split.lines[list(indices)].tolist()]
        return examples_on_lines(texts, lines, paths, source["description"])

    @property
    def notes(self) -> Iterator[str]:
        """Remarks on unusual properties of the data, one line each."""
        for name, entry in self.manifest["splits"].items():
            if n := entry.get("n_target_held_out"):
                yield f"{name}: {count(n, 'pair')} left out: same translation as a held-out pair"
            if n := entry["n_left_out"]:
                yield f"{name}: {count(n, 'pair')} left out, longer than data.max_length={self.manifest['max_length']}"
            if n := entry.get("n_also_in_train"):
                yield (
                    f"{name}: {n:,} of {count(entry['n_pairs'], 'pair')} with a source or translation that is "
                    "also in training"
                )


def prepare_pairs(
    config: PairsData,
    tokenizer: TokenizerConfig | Tokenizer,
    max_tokens: int | None = None,
    cache_dir: Path | None = None,
    *,
    is_trained: bool = False,
    check: bool = False,
    progress: Progress = lambda *_: None,
) -> PairDataset:
    """Prepare the pairs of `config` as tokens, or open what the cache holds.

    A spec is trained to a tokenizer with the special tokens of an encoder-decoder, on both sides of the training pairs;
    a character vocabulary is trained on all pairs, so that the held-out ones hold no unknown character. The cache is
    used if the files (see `identity_of_files`), the splits and the tokenizer are the same. Anything unusual is logged
    (see `PairDataset.notes`).

    Args:
        config: The pairs and their splits.
        tokenizer: The tokenizer, or the spec to train one from.
        max_tokens: The model's positions, into which each side must fit with its <bos> or <eos>.
        cache_dir: A folder to use instead of the user's cache folder.
        is_trained: Whether these positions are those of a trained model, which can have no more.
        check: Whether to verify the SHA-256 of files found in the cache.
        progress: Called with the progress.

    Raises:
        DataError: the pairs cannot be read, a split would be empty, or a side is longer than the positions.
        TokenizerError: a given tokenizer has no token for some of the text, or lacks a special one.
        DiskError: the cache cannot be written.
    """
    preparation = _Preparation(config, open_pairs(config), cache_dir or cache_folder(), progress)
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = preparation.trained(tokenizer)
    special_ids(tokenizer)
    folder = preparation.folder(tokenizer)
    manifest = found(folder, lambda: _read(folder, check), "preparing the pairs again")
    if manifest is None:
        manifest = preparation.make(tokenizer, folder)
    else:
        preparation.log_assumptions()
    # The languages are names alone: pairs that were prepared under other ones are the same pairs.
    manifest["source"]["languages"] = config.language_pair
    splits = open_pair_splits(folder, manifest, preparation.source.place)
    if max_tokens is not None:
        for split in splits.values():
            require_room(split, max_tokens, len(tokenizer.before_pair), is_trained)
    dataset = PairDataset(tokenizer, splits, manifest, folder)
    for note in dataset.notes:
        logger.info("%s", note)
    return dataset


def require_room(split: PairSplit, max_tokens: int, n_before: int = 0, is_trained: bool = False) -> None:
    """Refuse pairs with a side that, with its <bos> or <eos>, is longer than the model's positions.

    Raises:
        DataError: there is one; the message names the first, its length and the settings that help, if any still can.
    """
    longest = np.maximum(split.source_lengths, split.target_lengths) + n_before
    too_long = np.flatnonzero(longest + 1 > max_tokens)
    if not len(too_long):
        return
    first = int(too_long[0])
    side = SIDES[int(split.target_lengths[first] > split.source_lengths[first])]
    others = f" (and {len(too_long) - 1:,} more pairs)" if len(too_long) > 1 else ""
    can_leave_out = split.name != "test" and len(too_long) < len(longest)
    leave_out = (
        f", or leave such pairs out with data.max_length={max_tokens - 1 - n_before}" if can_leave_out else ""
    )
    settings = f"set model.max_seq_len={longest.max() + 1} or more{leave_out}"
    raise DataError(
        f"{split.place(first)}: the {side} has {longest[first]:,} tokens and an end token{others}, but "
        f"model.max_seq_len={max_tokens}: {'shorten it, or remove the pair' if is_trained else settings}"
    )


def _read(folder: Path, check: bool) -> dict[str, Any]:
    manifest = read_pair_manifest(folder)
    if check:
        check_pair_contents(folder, manifest)
    return manifest


@dataclass(frozen=True)
class _Preparation:
    config: PairsData
    source: PairSource
    cache: Path
    progress: Progress

    @cached_property
    def source_key(self) -> dict[str, Any]:
        """The key of the pairs and their splits; any change to them changes the key."""
        return {"pairs": self.source.identity(), "holding_out": holding_out.VERSION}

    def log_assumptions(self) -> None:
        """Log the assumptions under which prepared pairs are reused."""
        files = self.source_key["pairs"].get("files", {})
        for assumed in dict.fromkeys(map(assumption, files.values())):
            if assumed:
                logger.info("%s: %s", self.source.description, assumed)

    @cached_property
    def read(self) -> HeldOutPairs[Pair]:
        self.progress("reading", 0, None)
        return self.source.read()

    @property
    def splits(self) -> dict[str, list[Pair]]:
        return self.read.splits

    def trained(self, spec: TokenizerConfig) -> Tokenizer:
        """Train the joint tokenizer of a spec, or take it from the cache if these pairs have trained it before."""
        if not spec.needs_corpus:
            return spec.train((), specials=SPECIALS)
        key = self.source_key | {"tokenizer": spec.model_dump(mode="json"), "specials": SPECIALS}
        key |= own_code(type(spec))
        return cached_tokenizer(
            self.cache,
            key,
            lambda: spec.train(self._texts_to_learn_from(spec), specials=SPECIALS),
            self._check_files_unchanged,
        )

    def _texts_to_learn_from(self, spec: TokenizerConfig) -> Iterator[str]:
        """Yield both sides of the pairs; if they are very many, of an even selection."""
        of_all = isinstance(spec, CharTokenizerSpec)
        pairs = [pair for name, split in self.splits.items() if of_all or name == "train" for pair in split]
        n_chars = sum(len(pair.source) + len(pair.target) for pair in pairs)
        every = -(-n_chars // TOKENIZER_CHARS)
        for number in range(0, len(pairs), every):
            self.progress("training the tokenizer", number, len(pairs))
            yield pairs[number].source
            yield pairs[number].target

    def folder(self, tokenizer: Tokenizer) -> Path:
        """Return the cache folder of these pairs in this tokenizer's tokens."""
        key = {"tokenizer": tokenizer.fingerprint(), "max_length": self.config.max_length}
        key |= encoding_of(tokenizer)
        return self.cache / "prepared" / key_of(self.source_key | key | {"pairs_version": PAIRS_VERSION})

    def make(self, tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
        """Encode the pairs into `folder` and return their manifest."""
        dtype = token_dtype(tokenizer.vocab_size)
        entries: dict[str, dict[str, Any]] = {}
        kept: dict[str, list[Pair]] = {}
        with made_in_cache(folder) as unfinished:
            for name, pairs in self.splits.items():
                rows = self._encoded(name, tokenizer, dtype)
                places = self._short_enough(name, rows)
                kept[name] = [pairs[at] for at in places]
                entries[name] = write_split(
                    unfinished, name, kept[name], [[side[at] for at in places] for side in rows]
                ) | {"n_left_out": len(pairs) - len(places)}
                entries[name] |= self._shared_with_others(name, kept)
            self._check_files_unchanged()
            write_manifest(unfinished, self._manifest(tokenizer, entries))
        return read_pair_manifest(folder)

    def _shared_with_others(self, name: str, kept: Mapping[str, list[Pair]]) -> dict[str, int]:
        """Count the training pairs left out because of held-out ones, or a held-out split's pairs also in training."""
        if name == "train":
            return {"n_target_held_out": self.read.n_left_out}
        sides = ([(pair.source, pair.target) for pair in kept[each]] for each in (name, "train"))
        return {"n_also_in_train": n_also_in(*sides)}

    def _encoded(self, name: str, tokenizer: Tokenizer, dtype: np.dtype) -> tuple[list[np.ndarray], ...]:
        """Encode a split's sources and its targets."""
        pairs, rows = self.splits[name], ([], [])
        for start in range(0, len(pairs), ENCODED_AT_ONCE):
            self.progress(f"encoding {name}", start, len(pairs))
            some = pairs[start : start + ENCODED_AT_ONCE]
            place = partial(self._place_of_pair, name, some)
            for of_side, side, own in zip(rows, SIDES, (tokenizer, tokenizer.for_targets), strict=True):
                texts = [getattr(pair, side) for pair in some]
                of_side += [ids.astype(dtype) for ids in encode_located(own, texts, place)]
        return rows

    def _place_of_pair(self, name: str, pairs: Sequence[Pair], number: int) -> str:
        """Return the place of the n-th of some pairs, for a message."""
        return self.source.place(name, pairs[number].line)

    def _short_enough(self, name: str, rows: tuple[list[np.ndarray], ...]) -> list[int]:
        """Return the pairs of a split that fit `max_length`; all pairs of a test split, to keep scores comparable."""
        lengths = [max(map(len, sides)) for sides in zip(*rows, strict=True)]
        limit = self.config.max_length
        if limit is None or name == "test":
            return list(range(len(lengths)))
        if min(lengths) > limit:
            raise DataError(
                f"data.max_length={limit} leaves no pair in the {name} split: its shortest has {min(lengths)} tokens; "
                "set it, and model.max_seq_len, to that or more"
            )
        return [at for at, length in enumerate(lengths) if length <= limit]

    def _check_files_unchanged(self) -> None:
        if self.source.identity() != self.source_key["pairs"]:
            raise DataError(
                f"{self.source.description}: changed while it was being read; start again when it is complete"
            )

    def _manifest(self, tokenizer: Tokenizer, splits: dict[str, dict[str, Any]]) -> dict[str, Any]:
        source = {
            "description": self.source.description,
            "languages": self.config.language_pair,
            "n_pairs": sum(map(len, self.splits.values())),
            "sha256": digest_of(self.splits),
        }
        return {
            "version": PAIRS_VERSION,
            "kind": "pairs",
            "source": source | self.source_key["pairs"],
            "max_length": self.config.max_length,
            "tokenizer": tokenizer_entry(tokenizer),
            "splits": splits,
        }
