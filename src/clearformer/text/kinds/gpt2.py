"""GPT-2's own vocabulary, read from its two files (lecture 000, section 7)."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from clearformer.config import PathName, Spec
from clearformer.errors import TokenizerError
from clearformer.files import data_folder, is_file, user_path
from clearformer.text.kinds.bpe import BPETokenizer
from clearformer.text.tokenizer import END_OF_TEXT, Merge, wanted_specials

VOCABULARY_FILE = "encoder.json"
MERGES_FILE = "vocab.bpe"
DEFAULT_FOLDER = "gpt2-bpe"


class GPT2TokenizerSpec(Spec):
    """GPT-2's vocabulary as OpenAI published it; <|endoftext|> is both <bos> and <eos>.

    `path` is the folder that holds `encoder.json` and `vocab.bpe`; by default `$CLEARFORMER_DATA/gpt2-bpe`.
    """

    needs_corpus: ClassVar[bool] = False

    kind: Literal["gpt2"] = "gpt2"
    path: PathName | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """The files in `path`, by whose contents results are told apart; the published ones need no telling."""
        if self.path is None:
            return ()
        return tuple(user_path(self.path) / name for name in (VOCABULARY_FILE, MERGES_FILE))

    def train(self, texts: Iterable[str] = (), specials: Sequence[str] = ()) -> BPETokenizer:
        """Read the tokenizer from its files; no text is read. Once saved, `tokenizer.json` alone is enough.

        Raises:
            TokenizerError: the files are missing or damaged.
        """
        folder = self._folder()
        ids = _read_vocabulary(folder / VOCABULARY_FILE)
        merges = _read_merges(folder / MERGES_FILE)
        tokens = sorted(ids, key=ids.__getitem__)
        if (
            not tokens
            or tokens[-1] != END_OF_TEXT
            or [ids[token] for token in tokens] != list(range(len(ids)))
        ):
            raise _damaged(folder / VOCABULARY_FILE, f"ids do not run from 0 to {END_OF_TEXT}'s")
        try:
            return BPETokenizer(tokens[:-1], merges, wanted_specials([END_OF_TEXT, *specials]))
        except TokenizerError as error:
            raise _damaged(folder, str(error)) from None

    def _folder(self) -> Path:
        if self.path is not None:
            folder = user_path(self.path)
        elif data := data_folder():
            folder = data / DEFAULT_FOLDER
        else:
            raise TokenizerError(f"no folder is given for GPT-2's vocabulary: {_WAYS_OUT}")
        if missing := [name for name in (VOCABULARY_FILE, MERGES_FILE) if not is_file(folder / name)]:
            raise TokenizerError(f"{folder} has no {missing[0]}: {_WAYS_OUT}")
        return folder


_WAYS_OUT = (
    f"set the environment variable CLEARFORMER_DATA to the folder that holds {DEFAULT_FOLDER}/, or in a run's settings "
    f"tokenizer.path to a folder with {VOCABULARY_FILE} and {MERGES_FILE}"
)


def _read_vocabulary(path: Path) -> dict[str, int]:
    try:
        ids = json.loads(_read_text(path))
    except (ValueError, RecursionError):
        raise _damaged(path, "not JSON") from None
    if not isinstance(ids, dict) or not all(type(token_id) is int for token_id in ids.values()):
        raise _damaged(path, "does not map tokens to ids")
    return ids


def _read_merges(path: Path) -> list[Merge]:
    lines = _read_text(path).rstrip("\n").split("\n")
    n_header = 1 if lines[0].startswith("#version") else 0
    merges = []
    for number, line in enumerate(lines[n_header:], start=n_header + 1):
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise _damaged(path, f"line {number} is not two tokens separated by a space")
        merges.append((left, right))
    return merges


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise _damaged(path, "not UTF-8") from None
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read ({error.strerror}): {_WAYS_OUT}") from None


def _damaged(path: Path, what: str) -> TokenizerError:
    return TokenizerError(f"{path}: {what}; download GPT-2's files again")
