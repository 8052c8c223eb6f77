"""One token a byte."""

from pathlib import Path

import tokenizers

from clearformer.text import ByteTokenizer, ByteTokenizerSpec


def test_an_id_is_its_bytes_value():
    text = "aé日\U0001f600\x00\n"
    assert ByteTokenizer().encode(text).tolist() == list(text.encode("utf-8"))
    assert [ByteTokenizer().token_bytes(token) for token in range(256)] == [bytes([b]) for b in range(256)]


def test_nothing_is_trained():
    tokenizer = ByteTokenizerSpec(bos=True).train(["no effect"])
    assert not ByteTokenizerSpec.needs_corpus
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == (257, 256, None)


def test_bytes_that_are_no_utf8_become_replacement_characters():
    tokenizer = ByteTokenizer()
    assert tokenizer.decode([0x61, 0xE6, 0x97, 0x62]) == "a\ufffdb"
    assert tokenizer.decode([0xFF, 0xC0]) == "\ufffd\ufffd"


def test_the_spelling_of_bytes_is_that_of_tokenizers():
    assert set(ByteTokenizer().spellings) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())


def test_tokenizers_decodes_every_byte_alike():
    theirs = tokenizers.Tokenizer.from_str(ByteTokenizer().to_json())
    for byte in range(256):
        assert theirs.decode([byte]) == ByteTokenizer().decode([byte])


def test_the_file_alone_is_enough_for_tokenizers(tmp_path: Path):
    ByteTokenizer().save(tmp_path / "tokenizer.json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.encode("it's é\n\n x").ids == list("it's é\n\n x".encode())
