"""Any text comes back as it was, and `tokenizers` reads the saved file to the same ids and texts."""

import os
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from clearformer.text import (
    BPETokenizer,
    BPETokenizerSpec,
    ByteTokenizerSpec,
    CharTokenizerSpec,
    GPT2TokenizerSpec,
    StreamDecoder,
    Tokenizer,
    backend,
    load_tokenizer,
    merge_steps,
)

CORPUS = "The cat isn't here; the hen's 42 eggs are. 日本 naïve\n\n\tthe <bos> end " * 2
ALPHABET = "".join(sorted(set(CORPUS) | {"\U0001f600", "\u0301", "\x00"}))
AWKWARD = ["<bos>", "<eos>", "<unk>", "<|endoftext|>", "the", "'s", "'LL", "  ", "\n", "\r\n", "\x1c", "\x85"]
AWKWARD += ["\u00a0", "\u2003", "\u3000", "\u180e", "\ufeff", "1234", "日本", "\U0001f469\u200d\U0001f680"]
texts = st.lists(st.text() | st.sampled_from(AWKWARD)).map("".join)
covered = st.text(alphabet=ALPHABET)


def _gpt2() -> BPETokenizer:
    if "CLEARFORMER_DATA" not in os.environ:
        pytest.skip("CLEARFORMER_DATA is not set")
    return GPT2TokenizerSpec().train()


BUILD = {
    "byte": lambda: ByteTokenizerSpec(bos=True, eos=True).train(),
    "bpe": lambda: BPETokenizerSpec(vocab_size=283, bos=True, eos=True).train([CORPUS]),
    "gpt2": _gpt2,
    "char": lambda: CharTokenizerSpec(bos=True, eos=True).train([ALPHABET]),
    "char with unk": lambda: CharTokenizerSpec(bos=True, eos=True, unk=True).train([ALPHABET]),
}


@pytest.fixture(scope="module", params=list(BUILD))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return BUILD[request.param]()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="module")
def loaded(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    tokenizer.save(folder / "ours.json")
    return load_tokenizer(folder / "ours.json")


@pytest.fixture(scope="module")
def theirs(tokenizer: Tokenizer, folder: Path) -> tokenizers.Tokenizer:
    tokenizer.save(folder / "theirs.json")
    reference = tokenizers.Tokenizer.from_file(str(folder / "theirs.json"))
    reference.encode_special_tokens = True  # a text's "<bos>" is text
    return reference


def _texts_for(tokenizer: Tokenizer, any_text: bool = False) -> st.SearchStrategy[str]:
    if tokenizer.kind == "char" and not (any_text and tokenizer.unk_id is not None):
        return covered
    return texts


@given(data=st.data())
def test_any_text_it_covers_comes_back(tokenizer: Tokenizer, data: st.DataObject):
    text = data.draw(_texts_for(tokenizer))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes(token) for token in ids) == text.encode()
    assert not set(ids.tolist()) & {tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id}
    assert tokenizer.decode(tokenizer.wrap(ids)) == text


@given(data=st.data())
def test_tokenizers_gives_the_same_ids(
    tokenizer: Tokenizer, theirs: tokenizers.Tokenizer, data: st.DataObject
):
    text = data.draw(_texts_for(tokenizer, any_text=True))
    assert theirs.encode(text).ids == tokenizer.encode(text).tolist()


@given(data=st.data())
def test_a_loaded_tokenizer_gives_the_same_ids(tokenizer: Tokenizer, loaded: Tokenizer, data: st.DataObject):
    text = data.draw(_texts_for(tokenizer, any_text=True))
    assert loaded.encode(text).tolist() == tokenizer.encode(text).tolist()


@given(data=st.data())
def test_any_ids_give_one_text_at_once_streamed_and_by_tokenizers(
    tokenizer: Tokenizer, theirs: tokenizers.Tokenizer, data: st.DataObject
):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1)))
    stream = StreamDecoder(tokenizer)
    text = tokenizer.decode(ids)
    assert "".join([*(stream.push(token) for token in ids), stream.flush()]) == text
    assert theirs.decode(ids) == text


@given(data=st.data())
def test_every_prefix_of_a_stream_is_a_prefix_of_the_text(tokenizer: Tokenizer, data: st.DataObject):
    text = data.draw(_texts_for(tokenizer))
    stream = StreamDecoder(tokenizer)
    so_far = ""
    for token in tokenizer.encode(text):
        so_far += stream.push(int(token))
        assert text.startswith(so_far)
    assert so_far == text


@given(data=st.data())
@settings(max_examples=300)
def test_encoding_in_pieces_changes_no_token(
    tokenizer: Tokenizer, theirs: tokenizers.Tokenizer, data: st.DataObject
):
    text = data.draw(_texts_for(tokenizer))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "CHUNK_CHARS", data.draw(st.integers(1, 7)))
        patch.setattr(backend, "CHUNKS_AT_ONCE", 2)
        in_pieces = tokenizer.encode(text).tolist()
    assert in_pieces == theirs.encode(text).ids


@given(data=st.data())
def test_merges_end_at_the_tokens(tokenizer: Tokenizer, data: st.DataObject):
    if not isinstance(tokenizer, BPETokenizer):
        return
    text = data.draw(texts)
    words = list(merge_steps(tokenizer, text))
    assert [token for word in words for token in word[-1]] == tokenizer.encode(text).tolist()
    for word in words:
        assert [len(row) for row in word] == list(range(len(word[0]), len(word[-1]) - 1, -1))


@given(corpus=st.lists(texts, min_size=1), text=texts)
@settings(max_examples=50)
def test_a_tokenizer_of_any_corpus_covers_any_text(corpus: list[str], text: str):
    if not any(corpus):
        return
    trained = BPETokenizerSpec(vocab_size=300).train(corpus)
    assert trained.decode(trained.encode(text)) == text
    char = CharTokenizerSpec().train(corpus)
    whole = "".join(corpus)
    assert char.decode(char.encode(whole)) == whole
    assert list(char.spellings) == sorted(set(whole))
