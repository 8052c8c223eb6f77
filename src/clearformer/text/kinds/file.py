"""A tokenizer that exists already, read from its tokenizer.json."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from clearformer.config import PathName, Spec
from clearformer.errors import TokenizerError
from clearformer.files import user_path
from clearformer.text.kinds.imported import config_path
from clearformer.text.load import load_tokenizer
from clearformer.text.tokenizer import Tokenizer

FILE = "tokenizer.json"


class FileTokenizerSpec(Spec):
    """A tokenizer from a file: from `clearformer tokenizer train`, of another run, or from Hugging Face.

    Runs of one file have the same tokens, so that their losses can be compared. Special tokens are those of the file.

    Attributes:
        path: A `tokenizer.json`, or a folder with one, such as a run's.
    """

    needs_corpus: ClassVar[bool] = False

    kind: Literal["file"] = "file"
    path: PathName | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """The file, and the one beside it that names special tokens, by whose contents results are told apart.

        Raises:
            TokenizerError: `path` is not set.
        """
        if self.path is None:
            raise TokenizerError(
                "tokenizer.kind=file: set tokenizer.path to a tokenizer.json, or a folder with one"
            )
        path = user_path(self.path)
        file = path / FILE if path.is_dir() else path
        return (file, *(beside for beside in (config_path(file),) if beside.is_file()))

    def train(self, texts: Iterable[str] = (), specials: Sequence[str] = ()) -> Tokenizer:
        """Read the tokenizer; no text is read, and no special token is added.

        Raises:
            TokenizerError: the file is missing, or has no tokenizer that can be used.
        """
        return load_tokenizer(self.files[0])
