"""Preparing a text once: read, split, tokenize and cache it; later calls only open the result.

    open the source -> scan it (characters, bytes, SHA-256) -> train the tokenizer -> encode -> shards

Each arrow is one pass over the text, in bounded memory. The splits are stretches of the text, cut at exact
characters, in the order train, val, test.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter
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
from clearformer.data.identity import assumption
from clearformer.data.shards import (
    FORMAT_VERSION,
    SHARD_TOKENS,
    ShardWriter,
    Split,
    check_contents,
    open_splits,
    read_manifest,
    token_dtype,
    write_manifest,
)
from clearformer.data.text.config import TextData
from clearformer.data.text.sources import Source, check_field_is_read, open_source
from clearformer.data.text.splitting import Piece, split_into_pieces, split_stops
from clearformer.errors import DataError, TokenizerError, count
from clearformer.text import (
    CharTokenizerSpec,
    Tokenizer,
    TokenizerConfig,
    UnknownCharacterError,
)

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int | None], None]
"""Called with what is being prepared, how much is done, and the total if it is known."""

# Of what a manifest says of a text, apart from the shards, which have a version of their own.
TEXT_VERSION = 2

# The first token of a split has no token before it to be predicted from.
LEAST_TOKENS = 2
# This much text is enough to train a tokenizer on; the rare words of more would fill the memory.
TOKENIZER_CHARS = 200_000_000


@dataclass(frozen=True)
class Dataset:
    """A prepared text: its splits by name, their tokenizer, and the manifest that describes them."""

    tokenizer: Tokenizer
    splits: dict[str, Split]
    manifest: dict[str, Any]
    folder: Path


def prepare(
    config: TextData,
    tokenizer: TokenizerConfig | Tokenizer,
    cache_dir: Path | None = None,
    *,
    specials: Sequence[str] = (),
    check: bool = False,
    progress: Progress = lambda *_: None,
    shard_tokens: int = SHARD_TOKENS,
) -> Dataset:
    """Prepare the text of `config` as tokens, or open what the cache holds.

    A spec is trained to a tokenizer: a character vocabulary on the whole text, so that the held-out text holds no
    unknown character; every other kind on the training split alone. The cache is used if the source's files (see
    `identity_of_files`), the splits and the tokenizer are the same.

    Args:
        config: The text and its splits.
        tokenizer: The tokenizer, or the spec to train one from.
        cache_dir: A folder to use instead of the user's cache folder.
        specials: Special tokens that a trained tokenizer must have in addition to those of its spec.
        check: Whether to verify the SHA-256 of tokens found in the cache; their sizes are always verified.
        progress: Called with the progress.
        shard_tokens: The most tokens in a file.

    Raises:
        DataError: the text cannot be read, or a split of it would have fewer than `LEAST_TOKENS`.
        TokenizerError: a given tokenizer has no token for some of the text.
        DiskError: the cache cannot be written.
    """
    source = open_source(config)
    check_field_is_read(config.field, [source])
    preparation = _Preparation(config, source, cache_dir or cache_folder(), progress)
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = preparation.trained(tokenizer, specials)
    folder = preparation.folder(tokenizer)
    manifest = found(folder, lambda: _read(folder, check), "preparing the text again")
    if manifest is None:
        manifest = preparation.make(tokenizer, folder, shard_tokens)
    elif assumed := assumption(manifest["source"]):
        logger.info("%s: %s", preparation.source.description, assumed)
    for note in _notes(config, manifest["source"], tokenizer):
        logger.info("%s: %s", preparation.source.description, note)
    return Dataset(tokenizer, open_splits(folder, manifest), manifest, folder)


def _notes(config: TextData, source: Mapping[str, Any], tokenizer: Tokenizer) -> Iterator[str]:
    """Yield what a text has that its owner may not expect to be learned, and the way out."""
    if (n := source.get("n_run_together", 0)) and not any(map(len, tokenizer.marks)):
        runs = count(n, "document runs", "documents run")
        yield f"{runs} into the next one, with nothing between them; tokenizer.eos=true puts a token there"
    if n := source.get("n_windows_line_ends", 0):
        ends = count(n, "line ends", "lines end")
        yield f"{ends} in \\r\\n, as on Windows, and \\r is learned as well; convert the file for \\n alone"
    if config.path and str(config.path).lower().removesuffix(".gz").endswith(".json"):
        yield "read as a text, brackets and all; documents in JSON are read from a .jsonl file, one object a line"


def _read(folder: Path, check: bool) -> dict[str, Any]:
    manifest = read_manifest(folder)
    if check:
        check_contents(folder, manifest)
    return manifest


@dataclass(frozen=True)
class _Scan:
    """Counts and checksum from one pass over a text.

    `n_run_together` are the documents that do not end in white space, but for the last. `lengths` are the characters
    of each of its sources. `sha256` covers all its documents together, in UTF-8, and where
    there are several sources, which part of them each is.
    """

    n_documents: int
    n_run_together: int
    n_windows_line_ends: int
    n_chars: int
    n_bytes: int
    sha256: str
    lengths: dict[str, int]


@dataclass(frozen=True)
class _Preparation:
    config: TextData
    source: Source
    cache: Path
    progress: Progress

    @cached_property
    def text_key(self) -> dict[str, Any]:
        """The key of the text and its splits; any change to them changes the key."""
        fractions = {name: getattr(self.config, name) for name in ("val_fraction", "test_fraction")}
        return {"source": self.source.identity()} | fractions

    @cached_property
    def scan(self) -> _Scan:
        n_documents = n_run_together = n_windows_line_ends = n_chars = n_bytes = 0
        lengths: dict[str, int] = {}
        digest = hashlib.sha256()
        for split, source in self.source.by_split().items():
            before, last, is_open = n_chars, "", False
            for text, ends_document in source.documents():
                n_run_together += is_open
                n_windows_line_ends += text.count("\r\n") + (last == "\r" and text[:1] == "\n")
                last = text[-1:] or last
                is_open = ends_document and bool(last) and not last.isspace()
                last = "" if ends_document else last
                content = text.encode()
                digest.update(content)
                n_documents += ends_document
                n_chars += len(text)
                n_bytes += len(content)
                self.progress("reading", n_chars, None)
            lengths[split] = n_chars - before
        if len(lengths) > 1:
            digest.update(f"\0{lengths}".encode())
        if not lengths["train"]:
            raise DataError(f"{self.source.description}: there is no text in it")
        counts = (n_documents, n_run_together, n_windows_line_ends, n_chars, n_bytes)
        return _Scan(*counts, digest.hexdigest(), lengths)

    @cached_property
    def stops(self) -> dict[str, int]:
        return split_stops(self.scan.lengths, self.config)

    def trained(self, spec: TokenizerConfig, specials: Sequence[str]) -> Tokenizer:
        """Train the tokenizer of a spec, or take it from the cache if this text has trained it before."""
        if not spec.needs_corpus:
            return spec.train((), specials=specials)
        key = (
            self.text_key
            | {"tokenizer": spec.model_dump(mode="json")}
            | own_code(type(spec))
            | ({"specials": list(specials)} if specials else {})
        )
        return cached_tokenizer(
            self.cache,
            key,
            lambda: spec.train(self._texts_to_learn_from(spec), specials=specials),
            self._check_files_unchanged,
        )

    def _texts_to_learn_from(self, spec: TokenizerConfig) -> Iterator[str]:
        stop = self.scan.n_chars if isinstance(spec, CharTokenizerSpec) else self.stops["train"]
        share = 1.0 if isinstance(spec, CharTokenizerSpec) else min(1.0, TOKENIZER_CHARS / stop)
        done, due = 0, 0.0
        for piece in split_into_pieces(self.source.documents(), {"learn": stop}):
            done += len(piece.text)
            self.progress("training the tokenizer", done, stop)
            due += share
            if due >= 1:  # every piece; in a long text, an even selection of them
                due -= 1
                yield piece.text

    def folder(self, tokenizer: Tokenizer) -> Path:
        """Return the cache folder of this text in this tokenizer's tokens."""
        versions = {"version": FORMAT_VERSION, "text_version": TEXT_VERSION}
        key = self.text_key | {"tokenizer": tokenizer.fingerprint()} | versions
        return self.cache / "prepared" / key_of(key | encoding_of(tokenizer))

    def make(self, tokenizer: Tokenizer, folder: Path, shard_tokens: int) -> dict[str, Any]:
        """Encode the text into `folder` and return its manifest."""
        dtype = token_dtype(tokenizer.vocab_size)
        pieces = split_into_pieces(self.source.documents(), self.stops)
        splits = {}
        with made_in_cache(folder) as unfinished:
            for name, group in groupby(pieces, key=attrgetter("split")):
                writer = ShardWriter(unfinished, name, dtype, shard_tokens)
                first_char = sum(entry["n_chars"] for entry in splits.values())
                splits[name] = self._encode(group, first_char, tokenizer, writer)
                self._check_enough_tokens(name, splits[name])
            self._check_text_unchanged(splits)
            write_manifest(unfinished, self._manifest(tokenizer, dtype, splits))
        return read_manifest(folder)

    def _encode(
        self, pieces: Iterable[Piece], first_char: int, tokenizer: Tokenizer, writer: ShardWriter
    ) -> dict[str, Any]:
        before, behind = tokenizer.marks
        n_chars = n_bytes = n_words = 0
        in_word = False
        with writer:
            for piece in pieces:
                if piece.starts_document:
                    writer.add(before)
                writer.add(self._ids(tokenizer, piece.text, first_char + n_chars))
                if piece.ends_document:
                    writer.add(behind)
                n_chars += len(piece.text)
                n_bytes += len(piece.text.encode())
                if piece.text:
                    n_words += len(piece.text.split()) - (in_word and not piece.text[0].isspace())
                    in_word = not piece.text[-1].isspace()
                in_word = in_word and not piece.ends_document
                self.progress("encoding", first_char + n_chars, self.scan.n_chars)
        return {
            "first_char": first_char,
            "n_tokens": writer.n_tokens,
            "n_chars": n_chars,
            "n_bytes": n_bytes,
            "n_words": n_words,
            "shards": writer.shards,
        }

    def _ids(self, tokenizer: Tokenizer, text: str, first_char: int) -> np.ndarray:
        try:
            return tokenizer.encode(text)
        except UnknownCharacterError as error:
            raise error.at(self.source.place(first_char + error.index)) from None
        except TokenizerError as error:
            raise TokenizerError(f"{self.source.description}: {error}") from None

    def _check_enough_tokens(self, name: str, entry: Mapping[str, Any]) -> None:
        n_tokens = entry["n_tokens"]
        if n_tokens < LEAST_TOKENS:
            fix = "give a longer text"
            if name in self.config.paths_of_held_out:
                fix += f" in data.{name}_path"
            elif name != "train":
                fix += f", or change data.{name}_fraction (0 for no such split)"
            part = f"{name} split" if len(self.stops) > 1 else "text"
            raise DataError(
                f"{self.source.description}: the {part} has {count(n_tokens, 'token')} "
                f"({count(entry['n_chars'], 'character')}) but needs {LEAST_TOKENS}, the second predicted from "
                f"the first: {fix}"
            )

    def _check_text_unchanged(self, splits: dict[str, dict[str, Any]]) -> None:
        self._check_files_unchanged(sum(entry["n_chars"] for entry in splits.values()) == self.scan.n_chars)

    def _check_files_unchanged(self, has_same_length: bool = True) -> None:
        if not has_same_length or self.source.identity() != self.text_key["source"]:
            raise DataError(
                f"{self.source.description}: changed while it was being read; start again when it is complete"
            )

    def _manifest(
        self, tokenizer: Tokenizer, dtype: np.dtype, splits: dict[str, dict[str, Any]]
    ) -> dict[str, Any]:
        scan = asdict(self.scan)
        del scan["lengths"]  # as the splits say
        source = {"description": self.source.description} | self.text_key["source"] | scan
        return (
            {
                "version": FORMAT_VERSION,
                "dtype": dtype.str,
                "tokenizer": tokenizer_entry(tokenizer),
            }
            | self.text_key
            | {"source": source, "splits": splits}
        )
