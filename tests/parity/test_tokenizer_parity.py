"""Tokenizers as transformers makes them, and ours beside its own: the same ids."""

import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearformer.text import ImportedTokenizer, WordPieceTokenizerSpec, load_tokenizer, specials_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")

CORPUS = ["The cat isn't here; the hen's 42 eggs are. 日本 naïve\n\tthe end é"] * 7
KINDS = {
    "GPT2Tokenizer": 300,
    "GPTNeoXTokenizer": 300,
    "BartTokenizer": 300,
    "Qwen2Tokenizer": 300,
    "BertTokenizer": 200,
    "T5Tokenizer": 250,
}
texts = st.lists(
    st.text() | st.sampled_from(["the", " ", "  ", "cat", "é", "日本", "\n", "'s", "<0x41>"])
).map("".join)


@pytest.fixture(scope="module", params=KINDS)
def theirs(request: pytest.FixtureRequest):
    fresh = getattr(transformers, request.param)()
    return fresh.train_new_from_iterator(CORPUS, KINDS[request.param])


@pytest.fixture(scope="module")
def imported(theirs, tmp_path_factory: pytest.TempPathFactory) -> ImportedTokenizer:
    folder = tmp_path_factory.mktemp("published")
    theirs.save_pretrained(folder)
    loaded = load_tokenizer(folder / "tokenizer.json")
    assert isinstance(loaded, ImportedTokenizer)
    return loaded


def test_roles_are_theirs(theirs, imported: ImportedTokenizer):
    assert imported.vocab_size == len(theirs)
    assert imported.pad_id == theirs.pad_token_id
    assert imported.unk_id == theirs.unk_token_id
    assert imported.mask_id == theirs.mask_token_id
    either = (theirs.bos_token_id, theirs.cls_token_id)
    assert imported.bos_id == next((token for token in either if token is not None), None)
    either = (theirs.eos_token_id, theirs.sep_token_id)
    assert imported.eos_id == next((token for token in either if token is not None), None)


@given(text=texts)
def test_ids_and_texts_are_theirs(theirs, imported: ImportedTokenizer, text: str):
    ids = imported.encode(text).tolist()
    assert ids == theirs.encode(text, add_special_tokens=False)
    if not isinstance(theirs, transformers.BertTokenizer):  # which takes spaces before punctuation away
        assert imported.decode(ids) == theirs.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


def test_our_wordpiece_is_berts(tmp_path: Path):
    ours = WordPieceTokenizerSpec(vocab_size=151).train(CORPUS, specials_of("encoder"))
    vocab = {spelling: token for token, spelling in enumerate(ours.spellings)}
    bert = transformers.BertTokenizer(vocab=vocab, do_lower_case=True)
    for text in [*CORPUS[:1], "Thé THE ends\u3000cat,cat 本日 \x00x\ufffd", "", "naïve" * 30]:
        assert ours.encode(text).tolist() == bert.encode(text, add_special_tokens=False)
        assert ours.wrap(ours.encode(text)).tolist() == bert.encode(text)
