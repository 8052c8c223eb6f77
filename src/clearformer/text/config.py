"""The section `tokenizer` of a run's settings, of one of the kinds."""

from typing import Annotated

from pydantic import Field

from clearformer.text.kinds.bpe import BPETokenizerSpec
from clearformer.text.kinds.byte import ByteTokenizerSpec
from clearformer.text.kinds.char import CharTokenizerSpec
from clearformer.text.kinds.file import FileTokenizerSpec
from clearformer.text.kinds.gpt2 import GPT2TokenizerSpec
from clearformer.text.kinds.unigram import UnigramTokenizerSpec
from clearformer.text.kinds.wordpiece import WordPieceTokenizerSpec

TokenizerConfig = Annotated[
    CharTokenizerSpec
    | ByteTokenizerSpec
    | BPETokenizerSpec
    | WordPieceTokenizerSpec
    | UnigramTokenizerSpec
    | GPT2TokenizerSpec
    | FileTokenizerSpec,
    Field(discriminator="kind"),
]
