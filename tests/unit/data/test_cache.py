"""The keys of prepared data: what decides the tokens counts in them."""

import pytest

from clearformer.data.cache import encoding_of
from clearformer.text import ByteTokenizer
from clearformer.text.kinds.imported import ImportedTokenizer


def test_the_version_of_an_encoding_counts_once_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a change, what was prepared by earlier versions is found."""
    assert encoding_of(ByteTokenizer()) == {}
    monkeypatch.setattr(ByteTokenizer, "encoding_version", ImportedTokenizer.encoding_version)
    assert encoding_of(ByteTokenizer()) == {"encoding": 2}


def test_the_code_of_a_user_s_tokenizer_counts() -> None:
    class Own(ByteTokenizer):
        """Defined in this file."""

    assert len(encoding_of(Own())["code"]) == 16
