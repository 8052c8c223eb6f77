"""WordPiece (Schuster and Nakajima 2012; BERT, Devlin et al. 2019): words as their longest known pieces.

A text is cleaned and cut into words and punctuation as in BERT. The first token of a word is the longest one that the
word begins with, and so on with the rest of the word. Tokens that continue a word are spelled with "##" before them. A
word that no sequence of tokens gives is [UNK] as a whole.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
import tokenizers
from pydantic import Field, model_validator

from clearformer.config import Spec
from clearformer.errors import TokenizerError
from clearformer.text.backend import BackendTokenizer, count_pre_tokens, untrained
from clearformer.text.tokenizer import (
    ALONE,
    BERT_UNK,
    MOST_TOKENS,
    PARTIAL,
    UNK,
    WORD,
    readable,
    wanted_specials,
)

CONTINUES = "##"
MAX_WORD_CHARS = 100  # a longer word is [UNK], as in BERT
MAX_CHARACTERS = 1000  # the others of a larger script are rare, and would leave no room for words
MIN_PAIR_COUNT = 2

_FIRST_SYMBOL = 0xF0000  # a private-use code point, which stands for symbol 0 while merges are learned
_CHARS_AT_ONCE = 1 << 16
BERT_WORDS: dict[str, Any] = {"type": "BertPreTokenizer"}


class WordPieceTokenizer(BackendTokenizer):
    """WordPiece with BERT's pre-tokens, run by the `tokenizers` library.

    It does not restore a text exactly: white space and control characters are not in the tokens, and with `lowercase`
    neither are capitals and accents. `decode` puts one space between two words or signs (see `normalized`) and leaves
    out special tokens, [UNK] among them.

    Raises:
        TokenizerError: there is no unknown token, or a special token could be a word.
    """

    kind: ClassVar[str] = "wordpiece"
    pre_tokenizer = BERT_WORDS
    decoder: ClassVar[dict[str, Any]] = {"type": "WordPiece", "prefix": CONTINUES, "cleanup": False}
    lossless = False
    opens_with_space = True

    def __init__(self, tokens: Sequence[str], specials: Sequence[str] = (BERT_UNK,), lowercase: bool = True):
        if wordlike := [name for name in specials if is_word(name) or is_continuing(name)]:
            raise TokenizerError(f"{wordlike[0]!r} could be a word: call the special token [{wordlike[0]}]")
        if not {UNK, BERT_UNK} & set(specials):
            raise TokenizerError(f"WordPiece needs a token for unknown words, such as {BERT_UNK}")
        self.normalizer = bert_normalizer(lowercase)
        super().__init__(tokens, specials)

    def normalized(self, text: str) -> str:
        return " ".join(self.pre_tokens(text))

    def _bytes_of(self, spelling: str) -> bytes:
        return spelled_text(spelling).encode()

    def token_label(self, token: int) -> str:
        """Return the token as WordPiece spells it: "walk", "##ing", "[CLS]"."""
        self._checked([token])
        return readable(self.spellings[token])

    def id_of(self, token_text: str) -> int | None:
        """Return the id of the token with this spelling, such as "walk", "##ing" or "[CLS]", or None."""
        return self._id_by_spelling.get(token_text)

    @cached_property
    def _id_by_spelling(self) -> dict[str, int]:
        return {spelling: token for token, spelling in enumerate(self.spellings)}

    @cached_property
    def _edges(self) -> tuple[np.ndarray, np.ndarray]:
        goes_on = [is_continuing(spelling) for spelling in self.spellings]
        return np.where(goes_on, PARTIAL, ALONE), np.full(self.vocab_size, WORD)

    def _model(self) -> dict[str, Any]:
        assert self.unk_id is not None
        return {
            "type": "WordPiece",
            "unk_token": self.spellings[self.unk_id],
            "continuing_subword_prefix": CONTINUES,
            "max_input_chars_per_word": MAX_WORD_CHARS,
            "vocab": {spelling: token for token, spelling in enumerate(self.spellings)},
        }


class WordPieceTokenizerSpec(Spec):
    """WordPiece whose tokens are learned from the corpus.

    `vocab_size` counts the characters (each twice: at the start of a word and inside it), the learned tokens and the
    special tokens; a small corpus gives fewer. `lowercase` removes capitals and accents, as in BERT's uncased models.
    """

    needs_corpus: ClassVar[bool] = True

    kind: Literal["wordpiece"] = "wordpiece"
    vocab_size: int = Field(default=1024, le=MOST_TOKENS)
    lowercase: bool = True
    bos: bool = False
    eos: bool = False

    @model_validator(mode="after")
    def _room_for_a_character(self) -> Self:
        smallest = 2 + len(self._specials(()))
        if self.vocab_size < smallest:
            raise ValueError(f"vocab_size={self.vocab_size} is too small: choose at least {smallest}")
        return self

    def _specials(self, specials: Sequence[str]) -> list[str]:
        if not specials:  # the kind's own name is [UNK]
            return [*wanted_specials(bos=self.bos, eos=self.eos), BERT_UNK]
        return wanted_specials(specials, bos=self.bos, eos=self.eos, unk=True)

    def train(self, texts: Iterable[str], specials: Sequence[str] = ()) -> WordPieceTokenizer:
        """Learn the tokens as BPE does: again and again, the most frequent pair of neighbours becomes a token.

        (The original chose the pair that gains most likelihood. Its program was never published, and this is the usual
        replacement.) The same texts give the same tokenizer. Each text is read once; only the counts of the distinct
        words are kept.

        Raises:
            TokenizerError: the texts have no word, or half of a surrogate pair; or `vocab_size` leaves no room for
                the corpus's characters.
        """
        specials = self._specials(specials)
        reader = untrained(BERT_WORDS, tokenizers.models.BPE(), bert_normalizer(self.lowercase))
        counted = count_pre_tokens(reader, texts)
        # Longer words are unknown to WordPiece, and so teach nothing.
        words = Counter({word: n for word, n in counted.items() if len(word) <= MAX_WORD_CHARS})
        characters = most_frequent_characters(words)
        if counted and not words:
            raise TokenizerError(
                f"every word has more than {MAX_WORD_CHARS} characters, which WordPiece takes for unknown: choose "
                "kind=bpe"
            )
        if not characters:
            raise TokenizerError(
                "there is no word to learn tokens from: give a corpus of more than white space"
            )
        n_needed = 2 * len(characters) + len(specials)
        if self.vocab_size < n_needed:
            most_frequent = "most frequent " if len(characters) == MAX_CHARACTERS else ""
            raise TokenizerError(
                f"vocab_size={self.vocab_size} is too small: the corpus's {len(characters):,} {most_frequent}"
                f"characters and the special tokens alone need {n_needed:,}; choose more, or kind=bpe"
            )
        tokens = _learn(words, characters, self.vocab_size - len(specials))
        return WordPieceTokenizer(tokens, specials, self.lowercase)


def bert_normalizer(lowercase: bool) -> dict[str, Any]:
    """Return BERT's normaliser, which removes accents if it lowercases."""
    return {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": lowercase,
    }


def spelled_text(spelling: str) -> str:
    """Return the text of a token inside a sentence: "##ing" is "ing", "walk" is " walk"."""
    return spelling.removeprefix(CONTINUES) if is_continuing(spelling) else f" {spelling}"


def is_word(name: str) -> bool:
    """Whether a text may have this as a word of its own, such as "walk" or "§"."""
    return [word for word, _ in tokenizers.pre_tokenizers.BertPreTokenizer().pre_tokenize_str(name)] == [name]


def is_continuing(spelling: str) -> bool:
    """Whether a token continues a word."""
    return spelling.startswith(CONTINUES) and spelling != CONTINUES


def most_frequent_characters(words: Counter[str]) -> list[str]:
    """Return the `MAX_CHARACTERS` most frequent characters; equally frequent ones are ordered by code point."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    return sorted(counts, key=lambda character: (-counts[character], character))[:MAX_CHARACTERS]


def _learn(words: Counter[str], characters: Sequence[str], n_tokens: int) -> list[str]:
    """Return the tokens' spellings: two for each character, then those that merges give, in order.

    The library's WordPiece trainer takes the characters in its hash table's order, which varies. So each symbol is
    replaced by a stand-in character, in a fixed order, and plain BPE learns from words spelled in these.
    """
    symbols = [*sorted(characters), *(CONTINUES + character for character in sorted(characters))]
    stand_in = {symbol: chr(_FIRST_SYMBOL + i) for i, symbol in enumerate(symbols)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split("\n", "removed")
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=n_tokens,
        min_frequency=MIN_PAIR_COUNT,
        initial_alphabet=list(stand_in.values()),
        show_progress=False,
    )
    backend.train_from_iterator(_repeated(words, stand_in), trainer)
    ids = backend.get_vocab()
    return [_spelled(token, symbols) for token in sorted(ids, key=ids.__getitem__)]


def _repeated(words: Counter[str], stand_in: dict[str, str]) -> Iterator[str]:
    """Yield every word in stand-ins, one per line, as often as it was counted, except those with rare characters."""
    for word, count in words.items():
        pieces = [word[0], *(CONTINUES + character for character in word[1:])]
        if stand_in.keys() >= set(pieces):
            line = "".join([stand_in[piece] for piece in pieces]) + "\n"
            at_once = max(1, _CHARS_AT_ONCE // len(line))
            for done in range(0, count, at_once):
                yield line * min(at_once, count - done)


def _spelled(token: str, symbols: Sequence[str]) -> str:
    first, *rest = [symbols[ord(character) - _FIRST_SYMBOL] for character in token]
    return first + "".join(symbol.removeprefix(CONTINUES) for symbol in rest)
