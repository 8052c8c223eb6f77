"""What all tokenizers share: special tokens, labels, checks of ids, and the file."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from clearformer.errors import DiskError, TokenizerError
from clearformer.text import (
    BPETokenizer,
    BPETokenizerSpec,
    ByteTokenizer,
    ByteTokenizerSpec,
    CharTokenizer,
    CharTokenizerSpec,
    Tokenizer,
    UnigramTokenizerSpec,
    WordPieceTokenizerSpec,
    encode_located,
    specials_of,
)

CORPUS = "the cat and the hen and <bos> the naïve 日本 <unk> \n\tthe end\\ <eos>"
TOKENIZERS: list[Tokenizer] = [
    CharTokenizerSpec(bos=True, eos=True, unk=True).train([CORPUS]),
    CharTokenizerSpec().train([CORPUS]),
    ByteTokenizerSpec(bos=True, eos=True).train(),
    ByteTokenizerSpec(eos=True).train(),
    BPETokenizerSpec(vocab_size=277, bos=True, eos=True).train([CORPUS]),
    UnigramTokenizerSpec(vocab_size=331, bos=True, eos=True).train([CORPUS]),
    CharTokenizerSpec().train([CORPUS], specials_of("encoder-decoder")),
]
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=repr)


@every_tokenizer
def test_the_names_of_special_tokens_in_a_text_are_plain_text(tokenizer: Tokenizer):
    ids = tokenizer.encode("<bos>and<eos><unk>")
    assert ids.dtype == np.int32
    assert ids.ndim == 1
    assert not {tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id} & set(ids.tolist())
    assert tokenizer.decode(ids) == "<bos>and<eos><unk>"


@every_tokenizer
def test_many_texts_are_encoded_as_each_by_itself_in_batches_of_any_size(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
):
    several = ["", "the cat", "the hen and the end" * 3, "\n", "naïve"]
    each = [tokenizer.encode(text).tolist() for text in several]
    for n_chars in (1, 10, 10_000):
        monkeypatch.setattr("clearformer.text.backend.CHUNK_CHARS", n_chars)
        monkeypatch.setattr("clearformer.text.backend.CHUNKS_AT_ONCE", 2)
        assert [ids.tolist() for ids in tokenizer.encode_each(several)] == each
    assert tokenizer.encode_each([]) == []


def test_of_many_texts_the_first_at_fault_is_named():
    for tokenizer in TOKENIZERS:
        with pytest.raises(TokenizerError, match=r"^text 2: "):
            encode_located(tokenizer, ["the", "\ud800", "\udfff"], lambda n: f"text {n + 1}")


@every_tokenizer
def test_special_tokens_come_last_stand_for_nothing_and_are_named(tokenizer: Tokenizer):
    plain = tokenizer.vocab_size - len(tokenizer.specials)
    for offset, name in enumerate(tokenizer.specials):
        assert tokenizer.id_of(name) == plain + offset
        assert tokenizer.token_label(plain + offset) == name
        assert tokenizer.token_bytes(plain + offset) == b""
    ids = [*range(plain, tokenizer.vocab_size), *tokenizer.encode("the"), *range(plain, tokenizer.vocab_size)]
    assert tokenizer.decode(ids) == "the"


def test_which_special_tokens_there_are():
    both = TOKENIZERS[2]
    assert (both.bos_id, both.eos_id, both.unk_id) == (256, 257, None)
    only_eos = TOKENIZERS[3]
    assert (only_eos.bos_id, only_eos.eos_id) == (None, 256)
    char = TOKENIZERS[0]
    assert char.bos_id is not None
    assert (char.eos_id, char.unk_id) == (char.bos_id + 1, char.bos_id + 2)


FAMILIES = {
    "decoder": (),
    "encoder": ("[PAD]", "[CLS]", "[SEP]", "[MASK]"),
    "encoder-decoder": ("<pad>", "<bos>", "<eos>"),
}
SPECS = [
    CharTokenizerSpec(),
    ByteTokenizerSpec(),
    BPETokenizerSpec(vocab_size=271),
    WordPieceTokenizerSpec(vocab_size=101),
    UnigramTokenizerSpec(vocab_size=337),
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
def test_the_special_tokens_of_a_family_come_after_all_others(spec, family: str):
    names = FAMILIES[family]
    assert specials_of(family) == names
    tokenizer = spec.train([CORPUS], specials_of(family))
    assert tokenizer.specials[: len(names)] == names
    n_plain = tokenizer.vocab_size - len(tokenizer.specials)
    roles = {
        "decoder": {},
        "encoder": {"pad_id": 0, "bos_id": 1, "eos_id": 2, "mask_id": 3},
        "encoder-decoder": {"pad_id": 0, "bos_id": 1, "eos_id": 2},
    }[family]
    for role in ("pad_id", "bos_id", "eos_id", "mask_id"):
        assert getattr(tokenizer, role) == (n_plain + roles[role] if role in roles else None)
    unknown = {"encoder": "[UNK]", "decoder": "[UNK]", "encoder-decoder": "<unk>"}[family]
    assert tokenizer.specials[len(names) :] == ((unknown,) if spec.kind == "wordpiece" else ())
    ids = tokenizer.encode("the")
    if names:
        assert tokenizer.wrap(ids).tolist() == [n_plain + 1, *ids, n_plain + 2]
    assert tokenizer.decode(tokenizer.wrap(ids)) == "the"


def test_the_switches_of_a_spec_add_to_the_familys_tokens_and_double_none():
    both = ByteTokenizerSpec(bos=True, eos=True)
    assert both.train((), ("<pad>", "<bos>")).specials == ("<pad>", "<bos>", "<eos>")
    assert CharTokenizerSpec(unk=True).train(["a"], specials_of("encoder")).specials[-1] == "[UNK]"
    assert CharTokenizerSpec(unk=True).train(["a"], specials_of("encoder-decoder")).specials[-1] == "<unk>"


def test_a_family_that_there_is_not_is_named_with_the_nearest():
    with pytest.raises(TokenizerError, match=r"got 'encoder_decoder'; did you mean 'encoder-decoder'\?"):
        specials_of("encoder_decoder")


@pytest.mark.parametrize(("plain", "specials"), [("ab", ["<pad>", "<pad>"]), ("ab", ["a"])])
def test_a_name_stands_for_one_token(plain: str, specials: list[str]):
    with pytest.raises(TokenizerError, match="is the name of a special token and of another token"):
        CharTokenizer(plain, specials)


def test_bpe_and_unigram_refuse_a_size_without_room_for_the_familys_tokens():
    with pytest.raises(TokenizerError, match=r"vocab_size=258 is too small.* need 259"):
        BPETokenizerSpec(vocab_size=258).train([CORPUS], specials_of("encoder-decoder"))
    with pytest.raises(TokenizerError, match=r"vocab_size=278 is too small.* need 279"):
        UnigramTokenizerSpec(vocab_size=278).train([CORPUS], specials_of("encoder-decoder"))


def words_of(tokenizer: Tokenizer, text: str) -> list[str]:
    """A text's tokens, joined to words where `starts_word` says so."""
    ids = tokenizer.encode(text)
    starts = np.flatnonzero(tokenizer.starts_word(ids))
    assert not len(ids) or starts[0] == 0
    return [tokenizer.decode(part) for part in np.split(ids, starts[1:])] if len(ids) else []


@pytest.mark.parametrize("tokenizer", [TOKENIZERS[1], TOKENIZERS[3]], ids=repr)
def test_a_word_begins_after_white_space_and_at_punctuation(tokenizer: Tokenizer):
    assert words_of(tokenizer, "the cat <e\n日n") == ["the", " ", "cat", " ", "<", "e", "\n", "日n"]
    assert words_of(tokenizer, "") == []


def test_a_space_that_belongs_to_a_word_begins_it():
    tokens = [*ByteTokenizer().spellings, "Ġt", "he", "Ġthe"]
    bpe = BPETokenizer(tokens, [("Ġ", "t"), ("h", "e"), ("Ġt", "he")])
    words = ["the", " thens", ",", " the", " ", "hen", "\n", "cat"]
    assert (
        words_of(bpe, "the thens, the hen\ncat") == words
    )  # "Ġ" alone is a word, and what follows it another
    assert bpe.starts_word([258, ord("n"), ord("s")]).tolist() == [True, False, False]


def test_a_special_token_is_a_word_and_so_is_what_follows_it():
    tokenizer = ByteTokenizerSpec().train((), specials_of("encoder"))
    ids = [257, *b"hi", 259, *b"ho", 258, 256, 256]
    starts = [True, True, False, True, True, False, True, True, True]
    assert tokenizer.starts_word(ids).tolist() == starts
    with pytest.raises(TokenizerError, match="outside"):
        tokenizer.starts_word([260])


@pytest.mark.parametrize("name", ["", "\x1b[31m", "a\nb", "\ud800"])
def test_the_name_of_a_special_token_is_printable(name: str):
    with pytest.raises(TokenizerError, match="its name must be printable"):
        ByteTokenizer([name])


def test_wrap_puts_one_document_between_bos_and_eos():
    ids = ByteTokenizer().encode("hi")
    assert TOKENIZERS[2].wrap(ids).tolist() == [256, 104, 105, 257]
    assert TOKENIZERS[3].wrap(ids).tolist() == [104, 105, 256]
    assert ByteTokenizer().wrap(ids).tolist() == [104, 105]
    assert TOKENIZERS[2].wrap([]).tolist() == [256, 257]
    assert TOKENIZERS[2].wrap(ids).dtype == np.int32


@every_tokenizer
def test_token_bytes_and_id_of_are_inverse(tokenizer: Tokenizer):
    for token in range(tokenizer.vocab_size - len(tokenizer.specials)):
        raw = tokenizer.token_bytes(token)
        if raw.isascii():
            same = tokenizer.id_of(raw.decode())
            assert same is not None
            assert tokenizer.token_bytes(same) == raw
            assert same == token or tokenizer.kind == "unigram"  # a letter, and the byte that it is
    assert tokenizer.id_of("no such token") is None
    assert tokenizer.id_of("\ud800") is None
    assert tokenizer.id_of("") is None


def test_labels_fit_on_one_line_and_hide_nothing():
    tokenizer = CharTokenizer(" \n\tü\u0301\u202e\x1b<\\")
    labels = [tokenizer.token_label(token) for token in range(tokenizer.vocab_size)]
    assert labels == [" ", "\\n", "\\t", "ü", "◌\u0301", "\\u202e", "\\x1b", "<", "\\\\"]
    assert ByteTokenizer().token_label(0xE2) == "\\xe2"


@every_tokenizer
@pytest.mark.parametrize("ids", [[-1], [0, 100_000], np.array([1, -3])])
def test_an_id_outside_the_vocabulary_is_named(tokenizer: Tokenizer, ids):
    with pytest.raises(TokenizerError, match=rf"id (-1|-3|100000) is outside .* {tokenizer.vocab_size}"):
        tokenizer.decode(ids)


@pytest.mark.parametrize("ids", [[1.5], [[1, 2]], 3, [True]])
def test_ids_are_one_row_of_whole_numbers(ids):
    with pytest.raises(TypeError, match="one row of whole numbers"):
        ByteTokenizer().decode(ids)


@every_tokenizer
def test_no_ids_are_no_text_and_the_other_way_round(tokenizer: Tokenizer):
    assert tokenizer.decode([]) == ""
    assert tokenizer.encode("").tolist() == []
    assert tokenizer.encode("").dtype == np.int32


@every_tokenizer
def test_half_a_surrogate_pair_is_an_error_that_says_where(tokenizer: Tokenizer):
    with pytest.raises(TokenizerError, match=r"U\+D83D at line 2, column 3 is half of a surrogate pair"):
        tokenizer.encode("the\nan\ud83d")


@every_tokenizer
def test_bytes_are_not_text(tokenizer: Tokenizer):
    with pytest.raises(TypeError, match="got bytes: decode"):
        tokenizer.encode(b"the")  # pyright: ignore[reportArgumentType]


@every_tokenizer
def test_the_file_is_to_json_and_its_hash_is_the_fingerprint(tokenizer: Tokenizer, tmp_path: Path):
    path = tmp_path / "new" / "tokenizer.json"
    tokenizer.save(path)
    assert path.read_bytes() == tokenizer.to_json().encode()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == tokenizer.fingerprint()
    assert [child.name for child in path.parent.iterdir()] == ["tokenizer.json"]


def test_fingerprints_tell_tokenizers_apart():
    assert len({tokenizer.fingerprint() for tokenizer in TOKENIZERS}) == len(TOKENIZERS)


def test_the_layout_of_the_file_does_not_drift():
    # Prepared data is found again by this number: it may change only with a reason.
    assert CharTokenizer("ab", ["<bos>"]).fingerprint() == (
        "1d1b179cbfb4ac41c8c59a9767bb0d5f65073539d66df20d8cb6a4e4f4775216"
    )


@every_tokenizer
def test_tokenizers_finds_special_tokens_unless_told_not_to(tokenizer: Tokenizer, tmp_path: Path):
    tokenizer.save(tmp_path / "tokenizer.json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    if tokenizer.eos_id is not None:
        assert tokenizer.eos_id in theirs.encode("the<eos>").ids
    theirs.encode_special_tokens = True
    assert theirs.encode("<bos>and<eos>").ids == tokenizer.encode("<bos>and<eos>").tolist()


def test_a_save_that_fails_leaves_the_old_file_and_no_rest(tmp_path: Path):
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(DiskError, match=r"tokenizer\.json: cannot be written"):
        ByteTokenizer().save(tmp_path / "tokenizer.json")
    assert [child.name for child in tmp_path.iterdir()] == ["tokenizer.json"]


def test_a_place_below_a_file_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(DiskError, match="cannot be written"):
        ByteTokenizer().save(tmp_path / "file" / "tokenizer.json")
    assert (tmp_path / "file").read_text() == "kept"
