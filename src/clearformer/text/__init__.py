"""Tokenisers: characters, bytes, BPE, WordPiece, Unigram, GPT-2's own and imported ones; each one `tokenizer.json`."""

from clearformer.text.bpe import BPETokenizer, BPETokenizerSpec, merge_steps
from clearformer.text.byte import ByteTokenizer, ByteTokenizerSpec
from clearformer.text.char import CharTokenizer, CharTokenizerSpec
from clearformer.text.compare import Cut, cut_of
from clearformer.text.config import TokenizerConfig
from clearformer.text.gpt2 import GPT2TokenizerSpec
from clearformer.text.imported import ImportedTokenizer
from clearformer.text.load import load_tokenizer
from clearformer.text.stream import StreamDecoder
from clearformer.text.tokenizer import Tokenizer, UnknownCharacterError, located, specials_of
from clearformer.text.unigram import UnigramTokenizer, UnigramTokenizerSpec
from clearformer.text.wordpiece import WordPieceTokenizer, WordPieceTokenizerSpec

__all__ = [
    "BPETokenizer",
    "BPETokenizerSpec",
    "ByteTokenizer",
    "ByteTokenizerSpec",
    "CharTokenizer",
    "CharTokenizerSpec",
    "Cut",
    "GPT2TokenizerSpec",
    "ImportedTokenizer",
    "StreamDecoder",
    "Tokenizer",
    "TokenizerConfig",
    "UnigramTokenizer",
    "UnigramTokenizerSpec",
    "UnknownCharacterError",
    "WordPieceTokenizer",
    "WordPieceTokenizerSpec",
    "cut_of",
    "load_tokenizer",
    "located",
    "merge_steps",
    "specials_of",
]
