"""A tokeniser from its file alone, and files that hold none of ours."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from clearformer.errors import TokenizerError
from clearformer.text import (
    BPETokenizerSpec,
    ByteTokenizerSpec,
    CharTokenizerSpec,
    Tokenizer,
    load_tokenizer,
)

CORPUS = 'the cat and the hen, the naïve \u2028 \x85 \\ " 日本\n'
TOKENIZERS: list[Tokenizer] = [
    CharTokenizerSpec().train([CORPUS]),
    CharTokenizerSpec(bos=True, eos=True, unk=True).train([CORPUS]),
    ByteTokenizerSpec().train(),
    ByteTokenizerSpec(bos=True, eos=True).train(),
    BPETokenizerSpec(vocab_size=256).train([CORPUS]),
    BPETokenizerSpec(vocab_size=263, bos=True, eos=True).train([CORPUS]),
]


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=repr)
def test_what_was_saved_is_loaded(tokenizer: Tokenizer, tmp_path: Path):
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert type(loaded) is type(tokenizer)
    assert loaded.to_json() == tokenizer.to_json()
    assert loaded.fingerprint() == tokenizer.fingerprint()
    assert (loaded.bos_id, loaded.eos_id, loaded.unk_id) == (
        tokenizer.bos_id,
        tokenizer.eos_id,
        tokenizer.unk_id,
    )
    assert loaded.encode(CORPUS).tolist() == tokenizer.encode(CORPUS).tolist()


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=repr)
def test_what_tokenizers_saved_again_is_the_same(tokenizer: Tokenizer, tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    tokenizers.Tokenizer.from_file(str(path)).save(str(path))
    assert load_tokenizer(path).fingerprint() == tokenizer.fingerprint()


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: there is no such file"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_a_folder_is_not_a_file(tmp_path: Path):
    with pytest.raises(TokenizerError, match="cannot be read: Is a directory"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"First Citizen:", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a tokenizer"),
        (b'"model"', "not a tokenizer"),
        (b"{}", "not a tokenizer"),
        (b'{"model": "gpt"}', "not a tokenizer"),
        (b'{"model": {}}', "vocab is not an object"),
    ],
)
def test_a_file_of_something_else_is_named(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=rf"other\.json: .*{message}"):
        load_tokenizer(path)


def _changed(tokenizer: Tokenizer, **changes: Any) -> dict[str, Any]:
    """A tokeniser's document with parts replaced; a name such as model__vocab reaches inside."""
    document = copy.deepcopy(json.loads(tokenizer.to_json()))
    for name, value in changes.items():
        *outer, last = name.split("__")
        part = document
        for key in outer:
            part = part[key]
        part[last] = value
    return document


char, char_special, byte, byte_special, bpe, bpe_special = TOKENIZERS
FOREIGN = {"id": 256, "content": "<pad>", "special": False}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (_changed(char, model__type="WordLevel"), "its model is 'WordLevel'"),
        (_changed(char, model__dropout=0.1), "its model sets dropout"),
        (_changed(char, model__byte_fallback=True), "its model sets byte_fallback"),
        (_changed(char, normalizer={"type": "Lowercase"}), "it has a normalizer"),
        (_changed(byte, truncation={"max_length": 5}), "it has a truncation"),
        (_changed(char, pre_tokenizer={"type": "Whitespace"}), "pre_tokenizer and decoder are none of ours"),
        (_changed(bpe, decoder=None), "pre_tokenizer and decoder are none of ours"),
        (_changed(byte, model__merges=[["t", "h"]]), "vocabulary is not that of its kind"),
        (_changed(byte, model__vocab={"a": 0}), "vocabulary is not that of its kind"),
        (_changed(char, model__unk_token="a"), "vocabulary is not that of its kind"),
        (_changed(char_special, model__unk_token=None), "vocabulary is not that of its kind"),
        (_changed(char, model__vocab={"a": 0, "bc": 1}), "each of them once"),
        (_changed(char, model__vocab={"a": 0, "\ud800": 1}), "surrogate"),
        (_changed(char, model__vocab={"a": 0, "b": 2}), "without a gap"),
        (_changed(char, model__vocab={"a": 1, "b": 1}), "without a gap"),
        (_changed(char, model__vocab={"a": -1, "b": 0}), "without a gap"),
        (_changed(char, model__vocab={"a": 0.0}), "vocab is not an object"),
        (_changed(char, model__vocab={"a": True}), "vocab is not an object"),
        (_changed(char, model__vocab=["a"]), "vocab is not an object"),
        (_changed(char, model__vocab={}), "at least one character"),
        (_changed(bpe, model__merges=None), "merges are not pairs"),
        (_changed(bpe, model__merges=[["a"]]), "merges are not pairs"),
        (_changed(bpe, model__merges=[["x", "y"]]), "merge 'x y'"),
        (_changed(bpe, model__vocab={"a": 0}), "byte 0x00 is not a token"),
        (_changed(byte, added_tokens=[FOREIGN]), "added tokens that are not special"),
        (_changed(byte, added_tokens=[FOREIGN | {"special": True}]), "special tokens are not the last"),
        (_changed(byte_special, added_tokens=[]), "vocabulary is not that of its kind"),
        (_changed(byte, added_tokens=["<bos>"]), "added_tokens are not tokens"),
        (_changed(byte, added_tokens=7), "added_tokens are not tokens"),
    ],
)
def test_a_tokenizer_of_another_kind_or_damaged_says_why(document: dict, message: str, tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TokenizerError, match=rf"tokenizer\.json: .*{message}") as caught:
        load_tokenizer(path)
    assert "\n" not in str(caught.value)
