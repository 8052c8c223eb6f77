"""Tokenisers: characters, bytes, byte pair encoding, and GPT-2's own; each one `tokenizer.json`."""

from clearformer.text.bpe import BPETokenizer, BPETokenizerSpec, merge_steps
from clearformer.text.byte import ByteTokenizer, ByteTokenizerSpec
from clearformer.text.char import CharTokenizer, CharTokenizerSpec
from clearformer.text.config import TokenizerConfig
from clearformer.text.gpt2 import GPT2TokenizerSpec
from clearformer.text.load import load_tokenizer
from clearformer.text.stream import StreamDecoder
from clearformer.text.tokenizer import Tokenizer

__all__ = [
    "BPETokenizer",
    "BPETokenizerSpec",
    "ByteTokenizer",
    "ByteTokenizerSpec",
    "CharTokenizer",
    "CharTokenizerSpec",
    "GPT2TokenizerSpec",
    "StreamDecoder",
    "Tokenizer",
    "TokenizerConfig",
    "load_tokenizer",
    "merge_steps",
]
