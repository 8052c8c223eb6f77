"""WordPiece: what is learned, how words are cut, and what does not come back."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from clearformer.errors import DataError, TokenizerError
from clearformer.text import WordPieceTokenizer, WordPieceTokenizerSpec, backend, specials_of

CORPUS = "The walker walked; the talker talks. " * 3


def test_the_most_frequent_pair_is_joined_first_and_what_goes_on_is_marked():
    tokenizer = WordPieceTokenizerSpec(vocab_size=2 * 3 + 2 + 1).train(["aab aab aab b", "aab cc"])
    assert tokenizer.spellings == ("a", "b", "c", "##a", "##b", "##c", "aa", "aab", "[UNK]")
    cut = [tokenizer.spellings[token] for token in tokenizer.encode("aab bab ca")]
    assert cut == ["aab", "b", "##a", "##b", "c", "##a"]


def test_the_longest_piece_is_taken_first_and_an_unknown_word_is_unknown_whole():
    tokenizer = WordPieceTokenizer(["walk", "wal", "##k", "##ked", "##e", "##d", "."], ["[PAD]", "[UNK]"])
    cut = [tokenizer.spellings[token] for token in tokenizer.encode("walked walk wale. talked " + "k" * 101)]
    assert cut == ["walk", "##e", "##d", "walk", "wal", "##e", ".", "[UNK]", "[UNK]"]
    assert tokenizer.decode(tokenizer.encode("walked  talk.")) == "walked ."
    assert tokenizer.unk_id == 8


def test_text_is_cleaned_and_cut_as_bert_does_it():
    tokenizer = WordPieceTokenizerSpec(vocab_size=97).train([CORPUS, "日本 éa 'n"])
    assert tokenizer.pre_tokens("Thé\x00  \tcat's\n日本") == ["the", "cat", "'", "s", "日", "本"]
    cased = WordPieceTokenizerSpec(vocab_size=97, lowercase=False).train([CORPUS])
    assert cased.pre_tokens("Thé CAT") == ["Thé", "CAT"]


def test_what_comes_back_is_words_and_signs_with_a_space_between():
    tokenizer = WordPieceTokenizerSpec(vocab_size=97).train([CORPUS])
    assert (
        tokenizer.decode(tokenizer.encode(" The walker,\n\ntalks .")) == "the walker talks ."
    )  # no comma learned
    assert tokenizer.normalized("The WALKER;talks.") == "the walker ; talks ."
    assert not tokenizer.lossless


def test_vocab_size_counts_both_forms_of_a_character_and_special_tokens():
    tokenizer = WordPieceTokenizerSpec(vocab_size=37).train([CORPUS], specials_of("encoder"))
    assert tokenizer.vocab_size == 37
    assert tokenizer.specials == ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")
    small = WordPieceTokenizerSpec(vocab_size=5000).train([CORPUS])
    assert small.vocab_size == 37


def test_too_small_a_vocabulary_is_refused_with_the_smallest():
    with pytest.raises(TokenizerError, match=r"vocab_size=7 is too small: the corpus's 3 .* need 11"):
        WordPieceTokenizerSpec(vocab_size=7).train(["abc"], specials_of("encoder"))
    assert WordPieceTokenizerSpec(vocab_size=11).train(["abc"], specials_of("encoder")).vocab_size == 11


@pytest.mark.parametrize(("texts", "message"), [([], "no text"), ([""], "no text"), ([" \n\x00"], "no word")])
def test_no_text_teaches_nothing(texts: list[str], message: str):
    with pytest.raises(TokenizerError, match=message):
        WordPieceTokenizerSpec().train(texts)


def test_an_error_while_the_corpus_is_read_comes_through():
    def corpus() -> Iterator[str]:
        yield "some text"
        raise DataError("page 2 is missing")

    with pytest.raises(DataError, match="page 2 is missing"):
        WordPieceTokenizerSpec().train(corpus())


def test_the_characters_of_a_large_script_are_its_most_frequent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("clearformer.text.kinds.wordpiece.MAX_CHARACTERS", 2)
    tokenizer = WordPieceTokenizerSpec(vocab_size=29).train(["ab ab ab ac cb d"])
    assert tokenizer.spellings[:5] == ("a", "b", "##a", "##b", "ab")
    assert tokenizer.encode("ab d").tolist() == [4, tokenizer.unk_id]


def test_training_does_not_depend_on_the_process_or_on_how_the_text_is_cut(monkeypatch: pytest.MonkeyPatch):
    program = (
        "from clearformer.text import WordPieceTokenizerSpec; "
        f"print(WordPieceTokenizerSpec(vocab_size=53).train([{CORPUS!r}]).fingerprint())"
    )
    other = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    monkeypatch.setattr(backend, "CHUNK_CHARS", 7)
    here = WordPieceTokenizerSpec(vocab_size=53).train([CORPUS]).fingerprint()
    assert other.stdout.decode().strip() == here
    # Prepared data is found again by it. A new release of `tokenizers` that learns otherwise shows here.
    assert here == "562034180af6b02446a7f059abe3a73cb8caa35cd837522c58a060693f3e3173"


def test_a_token_is_labelled_and_found_as_it_is_spelled():
    tokenizer = WordPieceTokenizer(["walk", "##ed", "#"], ["[UNK]", "[CLS]"])
    assert [tokenizer.token_label(token) for token in range(5)] == ["walk", "##ed", "#", "[UNK]", "[CLS]"]
    assert [tokenizer.token_bytes(token) for token in range(4)] == [b" walk", b"ed", b" #", b""]
    assert [tokenizer.id_of(name) for name in ("##ed", "ed", "[CLS]", "")] == [1, None, 4, None]


def test_a_token_that_goes_on_with_a_word_begins_none():
    tokenizer = WordPieceTokenizer(["walk", "##ed", ".", "'"], ["[UNK]", "[CLS]"])
    assert tokenizer.starts_word([5, 0, 1, 2, 3, 3, 0, 4]).tolist() == [1, 1, 0, 1, 1, 1, 1, 1]
    assert tokenizer.starts_word([1, 1]).tolist() == [True, False]


@pytest.mark.parametrize(
    ("specials", "message"),
    [(["[PAD]"], "needs a token for unknown words"), (["PAD"], "could be a word")],
)
def test_special_tokens_that_will_not_do_are_refused(specials: list[str], message: str):
    with pytest.raises(TokenizerError, match=message):
        WordPieceTokenizer(["a"], specials)


def test_words_that_are_always_unknown_teach_nothing():
    long = "0123456789abcdef" * 8
    spec = WordPieceTokenizerSpec(vocab_size=60)
    with_it, without = (spec.train([f"a walk, a talk {more}"] * 9) for more in (long, ""))
    assert with_it.spellings == without.spellings
    with pytest.raises(TokenizerError, match=r"every word has more than 100 characters, .*choose kind=bpe"):
        spec.train([long])


@pytest.mark.parametrize(("n", "called"), [(900, "900 characters"), (1100, "1,000 most frequent characters")])
def test_a_vocabulary_too_small_for_a_scripts_characters_is_refused(n: int, called: str):
    script = " ".join(map(chr, range(0x4E00, 0x4E00 + n)))
    with pytest.raises(TokenizerError, match=f"is too small: the corpus's {called} and the special tokens"):
        WordPieceTokenizerSpec(vocab_size=300).train([script])


@pytest.mark.parametrize("name", ["word", "§", "##ing"])
def test_a_special_token_that_a_text_can_spell_is_refused(name: str):
    with pytest.raises(TokenizerError, match="could be a word"):
        WordPieceTokenizerSpec().train(["a b"], (name, "[UNK]"))
