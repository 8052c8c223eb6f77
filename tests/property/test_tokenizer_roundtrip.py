"""Any text comes back, as it was or normalized, and `tokenizers` reads the saved file to the same ids and texts."""

import os
from pathlib import Path

import numpy as np
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
    UnigramTokenizerSpec,
    WordPieceTokenizerSpec,
    backend,
    load_tokenizer,
    merge_steps,
    specials_of,
)

CORPUS = "The cat isn't here; the hen's 42 eggs are. 日本 naïve\n\n\tthe <bos> end " * 2
ALPHABET = "".join(sorted(set(CORPUS) | {"\U0001f600", "\u0301", "\x00"}))
FAMILY = specials_of("encoder-decoder")
AWKWARD = ["<bos>", "<eos>", "<unk>", "<|endoftext|>", "the", "'s", "'LL", "  ", "\n", "\r\n", "\x1c", "\x85"]
AWKWARD += ["\u00a0", "\u2003", "\u3000", "\u180e", "\ufeff", "1234", "日本", "\U0001f469\u200d\U0001f680"]
AWKWARD += ["▁", "<0x41>", "[CLS]", "##s", "\u0130", "\ufb01", "E\u0301", "\u017f"]
texts = st.lists(st.text() | st.sampled_from(AWKWARD)).map("".join)
covered = st.text(alphabet=ALPHABET)
few = settings(max_examples=25)  # for each of eleven tokenizers


def _gpt2() -> BPETokenizer:
    if "CLEARFORMER_DATA" not in os.environ:
        pytest.skip("CLEARFORMER_DATA is not set")
    return GPT2TokenizerSpec().train()


BUILD = {
    "byte": lambda: ByteTokenizerSpec(bos=True, eos=True).train(),
    "bpe": lambda: BPETokenizerSpec(vocab_size=283, bos=True, eos=True).train([CORPUS]),
    "bpe in lower case": lambda: BPETokenizerSpec(vocab_size=283, lowercase=True).train([CORPUS], FAMILY),
    "bpe with single digits": lambda: BPETokenizerSpec(vocab_size=283, digits="single").train(
        [CORPUS], FAMILY
    ),
    "wordpiece": lambda: WordPieceTokenizerSpec(vocab_size=151).train([CORPUS], specials_of("encoder")),
    "wordpiece with capitals": lambda: WordPieceTokenizerSpec(vocab_size=151, lowercase=False).train(
        [CORPUS]
    ),
    "unigram": lambda: UnigramTokenizerSpec(vocab_size=331).train([CORPUS], FAMILY),
    "unigram normalized": lambda: UnigramTokenizerSpec(
        vocab_size=331, normalize="nfkc", lowercase=True, bos=True, eos=True
    ).train([CORPUS]),
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


@few
@given(data=st.data())
def test_any_text_it_covers_comes_back_normalized(tokenizer: Tokenizer, data: st.DataObject):
    text = data.draw(_texts_for(tokenizer))
    ids = tokenizer.encode(text)
    if tokenizer.unk_id not in ids.tolist():
        assert tokenizer.decode(ids) == tokenizer.normalized(text)
    assert not set(ids.tolist()) & {tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.mask_id}
    assert tokenizer.decode(tokenizer.wrap(ids)) == tokenizer.decode(ids)


@few
@given(data=st.data())
def test_any_text_comes_back_as_it_was_where_the_tokenizer_is_lossless(
    tokenizer: Tokenizer, data: st.DataObject
):
    text = data.draw(_texts_for(tokenizer))
    if tokenizer.kind == "unigram":
        text = text.replace("▁", "")  # which Unigram's spelling has for a space
    if tokenizer.lossless:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text == tokenizer.normalized(text)
        assert b"".join(tokenizer.token_bytes(token) for token in ids) == text.encode()
        assert tokenizer.unk_id not in ids.tolist()


@few
@given(data=st.data())
def test_what_comes_back_is_encoded_as_the_text_was(tokenizer: Tokenizer, data: st.DataObject):
    text = data.draw(_texts_for(tokenizer))
    ids = tokenizer.encode(text)
    if tokenizer.kind != "unigram" and tokenizer.unk_id not in ids.tolist():
        assert tokenizer.encode(tokenizer.decode(ids)).tolist() == ids.tolist()


@few
@given(data=st.data())
def test_a_text_begins_with_a_word(tokenizer: Tokenizer, data: st.DataObject):
    ids = tokenizer.encode(data.draw(_texts_for(tokenizer)))
    starts = tokenizer.starts_word(ids)
    assert starts.shape == ids.shape
    assert starts[:1].all()


@few
@given(data=st.data())
def test_tokenizers_gives_the_same_ids(
    tokenizer: Tokenizer, theirs: tokenizers.Tokenizer, data: st.DataObject
):
    text = data.draw(_texts_for(tokenizer, any_text=True))
    assert theirs.encode(text).ids == tokenizer.encode(text).tolist()


@few
@given(data=st.data())
def test_a_loaded_tokenizer_gives_the_same_ids(tokenizer: Tokenizer, loaded: Tokenizer, data: st.DataObject):
    text = data.draw(_texts_for(tokenizer, any_text=True))
    assert loaded.encode(text).tolist() == tokenizer.encode(text).tolist()


@few
@given(data=st.data())
def test_texts_that_are_encoded_together_are_as_each_by_itself(tokenizer: Tokenizer, data: st.DataObject):
    several = data.draw(st.lists(_texts_for(tokenizer, any_text=True), max_size=7))
    together = tokenizer.encode_each(several)
    assert [ids.tolist() for ids in together] == [tokenizer.encode(text).tolist() for text in several]
    assert all(ids.dtype == np.int32 for ids in together)


@few
@given(data=st.data())
def test_any_ids_give_one_text_at_once_streamed_and_by_tokenizers(
    tokenizer: Tokenizer, theirs: tokenizers.Tokenizer, data: st.DataObject
):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1)))
    stream = StreamDecoder(tokenizer)
    text = tokenizer.decode(ids)
    assert "".join([*(stream.push(token) for token in ids), stream.flush()]) == text
    if tokenizer.kind not in ("wordpiece", "unigram"):  # "##s" before any word, bytes that are no character
        assert theirs.decode(ids) == text


@few
@given(data=st.data())
def test_tokenizers_gives_the_same_text_back(
    tokenizer: Tokenizer, theirs: tokenizers.Tokenizer, data: st.DataObject
):
    ids = tokenizer.encode(data.draw(_texts_for(tokenizer, any_text=True)))
    assert theirs.decode(ids.tolist()) == tokenizer.decode(ids)


@few
@given(data=st.data())
def test_every_prefix_of_a_stream_is_a_prefix_of_the_text(tokenizer: Tokenizer, data: st.DataObject):
    text = data.draw(_texts_for(tokenizer))
    stream = StreamDecoder(tokenizer)
    so_far = ""
    ids = tokenizer.encode(text)
    whole = tokenizer.decode(ids)
    for token in ids:
        so_far += stream.push(int(token))
        assert whole.startswith(so_far)
    assert so_far == whole


@settings(max_examples=60)
@given(data=st.data())
def test_encoding_in_pieces_changes_no_token(
    tokenizer: Tokenizer, theirs: tokenizers.Tokenizer, data: st.DataObject
):
    text = data.draw(_texts_for(tokenizer))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "CHUNK_CHARS", data.draw(st.integers(1, 7)))
        patch.setattr(backend, "CHUNKS_AT_ONCE", 2)
        in_pieces = tokenizer.encode(text).tolist()
    assert in_pieces == theirs.encode(text).ids


@few
@given(data=st.data())
def test_merges_end_at_the_tokens(tokenizer: Tokenizer, data: st.DataObject):
    if not isinstance(tokenizer, BPETokenizer):
        return
    text = data.draw(texts)
    words = list(merge_steps(tokenizer, text))
    assert [token for word in words for token in word[-1]] == tokenizer.encode(text).tolist()
    for word in words:
        assert [len(row) for row in word] == list(range(len(word[0]), len(word[-1]) - 1, -1))


@settings(max_examples=30)
@given(corpus=st.lists(texts, min_size=1), text=texts)
def test_a_tokenizer_of_any_corpus_covers_any_text(corpus: list[str], text: str):
    if not any(corpus):
        return
    trained = BPETokenizerSpec(vocab_size=300).train(corpus)
    assert trained.decode(trained.encode(text)) == text
    char = CharTokenizerSpec().train(corpus)
    whole = "".join(corpus)
    assert char.decode(char.encode(whole)) == whole
    assert list(char.spellings) == sorted(set(whole))
