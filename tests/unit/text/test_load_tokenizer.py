"""A tokenizer from its file alone, and files that hold none of ours."""

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
    ImportedTokenizer,
    Tokenizer,
    UnigramTokenizerSpec,
    WordPieceTokenizerSpec,
    load_tokenizer,
    specials_of,
)

CORPUS = 'the cat and the hen, the naïve \u2028 \x85 \\ " 日本\n'
TOKENIZERS: list[Tokenizer] = [
    CharTokenizerSpec().train([CORPUS]),
    CharTokenizerSpec(bos=True, eos=True, unk=True).train([CORPUS]),
    ByteTokenizerSpec().train(),
    ByteTokenizerSpec(bos=True, eos=True).train(),
    BPETokenizerSpec(vocab_size=256).train([CORPUS]),
    BPETokenizerSpec(vocab_size=263, bos=True, eos=True).train([CORPUS]),
    BPETokenizerSpec(vocab_size=271, lowercase=True).train([CORPUS], specials_of("encoder-decoder")),
    CharTokenizerSpec(unk=True).train([CORPUS], specials_of("encoder")),
    WordPieceTokenizerSpec(vocab_size=97).train([CORPUS], specials_of("encoder")),
    WordPieceTokenizerSpec(vocab_size=97, lowercase=False).train([CORPUS]),
    UnigramTokenizerSpec(vocab_size=311).train([CORPUS], specials_of("encoder-decoder")),
    UnigramTokenizerSpec(vocab_size=311, normalize="nfkc", lowercase=True, eos=True).train([CORPUS]),
    UnigramTokenizerSpec(vocab_size=311, normalize="nfkc").train([CORPUS]),
    BPETokenizerSpec(vocab_size=263, digits="single").train([CORPUS], specials_of("encoder-decoder")),
]


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=repr)
def test_what_was_saved_is_loaded(tokenizer: Tokenizer, tmp_path: Path):
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert type(loaded) is type(tokenizer)
    assert loaded.to_json() == tokenizer.to_json()
    assert loaded.fingerprint() == tokenizer.fingerprint()
    for role in ("pad", "bos", "eos", "unk", "mask"):
        assert getattr(loaded, f"{role}_id") == getattr(tokenizer, f"{role}_id")
    assert (loaded.lossless, loaded.normalized(CORPUS)) == (tokenizer.lossless, tokenizer.normalized(CORPUS))
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
        (b'{"model": {}}', "vocab does not map tokens to ids"),
    ],
)
def test_a_file_of_something_else_is_named(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=rf"other\.json: .*{message}"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    ("beside", "way"),
    [("config.toml", "restore the one of this run"), ("README.md", "tokenizer train` makes one")],
)
def test_a_tokenizer_that_was_cut_off_is_damaged(tmp_path: Path, beside: str, way: str):
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": {"type": "BPE", "vocab": {"a": 0, "b"')
    (tmp_path / beside).touch()
    with pytest.raises(TokenizerError, match=rf"tokenizer\.json: damaged: not JSON; .*{way}"):
        load_tokenizer(path)


def _changed(tokenizer: Tokenizer, **changes: Any) -> dict[str, Any]:
    """A tokenizer's document with parts replaced; a name such as model__vocab reaches inside."""
    document = copy.deepcopy(json.loads(tokenizer.to_json()))
    for name, value in changes.items():
        *outer, last = name.split("__")
        part = document
        for key in outer:
            part = part[key]
        part[last] = value
    return document


char, char_special, byte, byte_special, bpe, bpe_special, *_ = TOKENIZERS
wordpiece, unigram = TOKENIZERS[8], TOKENIZERS[10]
FOREIGN = {"id": 256, "content": "<pad>", "special": False}
WHOLE = FOREIGN | {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


@pytest.mark.parametrize(
    "document",
    [
        _changed(char, model__byte_fallback=True),
        _changed(char, normalizer={"type": "Lowercase"}),
        _changed(byte, normalizer={"type": "Lowercase"}),
        _changed(bpe, normalizer={"type": "NFC"}),
        _changed(bpe, post_processor={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}),
        _changed(char, pre_tokenizer={"type": "Whitespace"}),
        _changed(bpe, decoder=None),
        _changed(byte, model__vocab={"a": 0}, added_tokens=[]),
        _changed(char, model__unk_token="a"),
        _changed(char_special, model__unk_token=None),
        _changed(char, model__vocab={"a": 0, "b": 2}),
        _changed(bpe, model__vocab={"a": 0}, model__merges=[]),
        _changed(byte, added_tokens=[WHOLE]),
        _changed(byte, added_tokens=[WHOLE | {"special": True}]),
        _changed(byte_special, added_tokens=[]),
        _changed(byte, added_tokens=[WHOLE | {"special": True, "content": ""}]),
        _changed(wordpiece, decoder__cleanup=True),
        _changed(wordpiece, model__max_input_chars_per_word=50),
        _changed(wordpiece, normalizer=None),
        _changed(unigram, normalizer={"type": "NFD"}),
        _changed(unigram, model__byte_fallback=False),
        _changed(unigram, model__vocab=[["a", -1.0], ["<pad>", 0.0]]),
    ],
)
def test_a_tokenizer_of_another_kind_is_imported_as_it_is(document: dict, tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document))
    loaded = load_tokenizer(path)
    assert isinstance(loaded, ImportedTokenizer)
    assert loaded.to_json() == path.read_text()
    theirs = tokenizers.Tokenizer.from_file(str(path))
    theirs.no_truncation()
    assert loaded.encode("a a").tolist() == theirs.encode("a a", add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (_changed(char, model__type="WordLevel"), "its model is 'WordLevel'.*cannot read it"),
        (_changed(char, model__dropout=0.1), "its model sets dropout"),
        (_changed(byte, model__merges=[["t", "h"]]), "vocabulary does not fit its kind.*cannot read it"),
        (_changed(char, model__vocab={"a": 1, "b": 1}), "a negative id, or one id for two tokens"),
        (_changed(char, model__vocab={"a": -1, "b": 0}), "a negative id, or one id for two tokens"),
        (_changed(char, model__vocab={"a": 0.0}), "vocab does not map tokens to ids"),
        (_changed(char, model__vocab={"a": True}), "vocab does not map tokens to ids"),
        (_changed(char, model__vocab=["a"]), "vocab does not map tokens to ids"),
        (_changed(char, model__vocab={"a": 0, "\ud800": 1}), "surrogate"),
        (_changed(char, model__vocab={}), "at least one character"),
        (_changed(bpe, model__merges=None), "merges are not pairs"),
        (_changed(bpe, model__merges=[["a"]]), "merges are not pairs"),
        (_changed(bpe, model__merges=[["x", "y"]]), "merge 'x y'"),
        (_changed(byte, added_tokens=["<bos>"]), "added_tokens are not tokens"),
        (_changed(byte, added_tokens=7), "added_tokens are not tokens"),
        (_changed(byte, added_tokens=[WHOLE | {"content": ["<pad>"]}]), "added_tokens are not tokens"),
        (_changed(wordpiece, model__vocab=[]), "vocab does not map tokens to ids"),
        (_changed(unigram, model__vocab={"a": 0}), "vocab is not a list"),
        (_changed(unigram, model__vocab=[]), "cannot read it"),
        (_changed(unigram, model__unk_id=1000), "cannot read it"),
        (_changed(bpe, decoder={"type": "BPEDecoder", "suffix": "</w>"}), "unknown decoder 'BPEDecoder'"),
        (_changed(bpe, decoder={"type": "Nonsense"}), "cannot read it"),
        (_changed(bpe, pre_tokenizer={"type": "Exec", "command": "true"}), "cannot read it"),
    ],
)
def test_a_file_that_is_damaged_or_cannot_be_used_says_why(document: dict, message: str, tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TokenizerError, match=rf"tokenizer\.json: .*{message}") as caught:
        load_tokenizer(path)
    assert "\n" not in str(caught.value)


def test_roles_that_are_told_beside_the_file_hold(tmp_path: Path):
    byte_special.save(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(
        '{"bos_token": "<bos>", "eos_token": {"content": "<eos>"}}'
    )
    assert type(load_tokenizer(tmp_path / "tokenizer.json")) is type(byte_special)
    (tmp_path / "tokenizer_config.json").write_text(
        '{"pad_token": "<bos>", "sep_token": "<eos>", "eos_token": null}'
    )
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert (loaded.pad_id, loaded.bos_id, loaded.eos_id) == (256, None, 257)


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        ("{", "tokenizer_config.json beside it is damaged"),
        ("[]", "tokenizer_config.json beside it is not a JSON object"),
        ('{"pad_token": "<pad>"}', "its pad token is set to '<pad>', which is not in its vocabulary"),
    ],
)
def test_a_file_beside_it_that_is_wrong_is_named(beside: str, message: str, tmp_path: Path):
    bpe.save(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(beside)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_an_imported_file_keeps_its_line_ends(tmp_path: Path):
    foreign = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    foreign.decoder = tokenizers.decoders.ByteLevel()
    content = foreign.to_str(pretty=True).replace("\n", "\r\n").encode()
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    load_tokenizer(path).save(path)
    assert path.read_bytes() == content


def test_a_vocabulary_with_scores_needs_no_name_of_its_kind(tmp_path: Path):
    """As those of before the kinds of models had names."""
    document = json.loads(
        UnigramTokenizerSpec(vocab_size=300).train(["the cat sat on the mat"] * 9).to_json()
    )
    del document["model"]["type"]
    (tmp_path / "old.json").write_text(json.dumps(document))
    read = load_tokenizer(tmp_path / "old.json")
    assert read.kind == "imported"
    assert read.decode(read.encode("the mat")) == "the mat"
