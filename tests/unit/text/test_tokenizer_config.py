"""The section `tokenizer` of a run's settings."""

from typing import get_args

import pytest

from clearformer.config import Spec, resolve
from clearformer.errors import ConfigError
from clearformer.text import BPETokenizerSpec, ByteTokenizer, CharTokenizerSpec, TokenizerConfig


class Settings(Spec):
    tokenizer: TokenizerConfig = CharTokenizerSpec()


def test_every_kind_is_chosen_by_its_name():
    kinds = [variant.model_fields["kind"].default for variant in get_args(get_args(TokenizerConfig)[0])]
    assert kinds == ["char", "byte", "bpe", "wordpiece", "unigram", "gpt2", "file"]
    for kind in kinds:
        assert resolve(Settings, {"tokenizer": kind}).tokenizer.kind == kind


def test_settings_build_the_tokenizer():
    spec = resolve(Settings, {"tokenizer": {"kind": "byte", "eos": True}}).tokenizer
    tokenizer = spec.train([])
    assert isinstance(tokenizer, ByteTokenizer)
    assert tokenizer.eos_id == 256


def test_which_kinds_read_the_corpus():
    assert CharTokenizerSpec.needs_corpus
    assert BPETokenizerSpec.needs_corpus
    assert not resolve(Settings, {"tokenizer": "gpt2"}).tokenizer.needs_corpus


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "bpe", "vocab_size": 100}, r"tokenizer: vocab_size=100 is too small.*need 256"),
        ({"kind": "wordpiece", "vocab_size": 2}, r"tokenizer: vocab_size=2 is too small.*at least 3"),
        (
            {"kind": "unigram", "vocab_size": 275, "bos": True},
            r"tokenizer: vocab_size=275 is too small.*need 277",
        ),
        ({"kind": "bpe", "vocab_size": 10**9}, r"tokenizer\.vocab_size takes .*4194304"),
        ({"kind": "wordpiece", "vocab_size": 2**22 + 1}, r"tokenizer\.vocab_size takes .*4194304"),
        ({"kind": "unigram", "vocab_size": 10**30}, r"tokenizer\.vocab_size takes .*4194304"),
        ({"kind": "unigram", "normalize": "nfd"}, r"tokenizer\.normalize takes .*'none' or 'nfkc'"),
        ({"kind": "bpe", "unk": True}, r"unknown key 'tokenizer\.unk'"),
        ({"kind": "char", "vocab_size": 65}, r"unknown key 'tokenizer\.vocab_size'"),
        ({"kind": "bytes"}, "did you mean 'byte'"),
    ],
)
def test_wrong_settings_are_one_clear_line(settings: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        resolve(Settings, {"tokenizer": settings})
