"""`clearformer generate`: the prompt where none is given."""

from types import SimpleNamespace
from typing import Any

import pytest

from clearformer.cli.commands.generate import default_prompt
from clearformer.text import CharTokenizerSpec


@pytest.mark.parametrize(
    ("text", "unk", "prompt"),
    [("a\nb", False, "\n"), ("a\nb", True, "\n"), ("ab", False, ""), ("ab", True, "")],
)
def test_a_new_line_begins_a_text_if_the_tokenizer_has_it(text: str, unk: bool, prompt: str) -> None:
    run: Any = SimpleNamespace(tokenizer=CharTokenizerSpec(bos=True, unk=unk).train([text]))
    assert default_prompt(run) == prompt
