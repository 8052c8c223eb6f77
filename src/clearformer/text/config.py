"""The section `tokenizer` of a run's settings: one of the kinds."""

from typing import Annotated

from pydantic import Field

from clearformer.text.bpe import BPETokenizerSpec
from clearformer.text.byte import ByteTokenizerSpec
from clearformer.text.char import CharTokenizerSpec
from clearformer.text.gpt2 import GPT2TokenizerSpec

TokenizerConfig = Annotated[
    CharTokenizerSpec | ByteTokenizerSpec | BPETokenizerSpec | GPT2TokenizerSpec,
    Field(discriminator="kind"),
]
