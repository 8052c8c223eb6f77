"""The section `tokenizer` of a run's settings: one of the kinds."""

from typing import Annotated

from pydantic import Field

from clearformer.text.bpe import BPETokenizerSpec
from clearformer.text.byte import ByteTokenizerSpec
from clearformer.text.char import CharTokenizerSpec
from clearformer.text.gpt2 import GPT2TokenizerSpec
from clearformer.text.unigram import UnigramTokenizerSpec
from clearformer.text.wordpiece import WordPieceTokenizerSpec

TokenizerConfig = Annotated[
    CharTokenizerSpec
    | ByteTokenizerSpec
    | BPETokenizerSpec
    | WordPieceTokenizerSpec
    | UnigramTokenizerSpec
    | GPT2TokenizerSpec,
    Field(discriminator="kind"),
]
