"""Tokenizers: characters, bytes, BPE, WordPiece, Unigram, GPT-2's and imported ones, each saved as `tokenizer.json`."""

from clearformer.text.compare import Cut, cut_of
from clearformer.text.config import TokenizerConfig
from clearformer.text.kinds.bpe import BPETokenizer, BPETokenizerSpec, merge_steps
from clearformer.text.kinds.byte import ByteTokenizer, ByteTokenizerSpec
from clearformer.text.kinds.char import CharTokenizer, CharTokenizerSpec
from clearformer.text.kinds.file import FileTokenizerSpec
from clearformer.text.kinds.gpt2 import GPT2TokenizerSpec
from clearformer.text.kinds.imported import ImportedTokenizer
from clearformer.text.kinds.unigram import UnigramTokenizer, UnigramTokenizerSpec
from clearformer.text.kinds.vocabulary import VocabularyTokenizer
from clearformer.text.kinds.wordpiece import WordPieceTokenizer, WordPieceTokenizerSpec
from clearformer.text.load import load_tokenizer
from clearformer.text.stream import StreamDecoder
from clearformer.text.tokenizer import Tokenizer, UnknownCharacterError, encode_located, located, specials_of

__all__ = [
    "BPETokenizer",
    "BPETokenizerSpec",
    "ByteTokenizer",
    "ByteTokenizerSpec",
    "CharTokenizer",
    "CharTokenizerSpec",
    "Cut",
    "FileTokenizerSpec",
    "GPT2TokenizerSpec",
    "ImportedTokenizer",
    "StreamDecoder",
    "Tokenizer",
    "TokenizerConfig",
    "UnigramTokenizer",
    "UnigramTokenizerSpec",
    "UnknownCharacterError",
    "VocabularyTokenizer",
    "WordPieceTokenizer",
    "WordPieceTokenizerSpec",
    "cut_of",
    "encode_located",
    "load_tokenizer",
    "located",
    "merge_steps",
    "specials_of",
]
