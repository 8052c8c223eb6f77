"""A prompt's likeliest continuations as values: what was added, why it ends, and how much of the prompt was read."""

from types import SimpleNamespace
from typing import Any

import pytest

from clearformer.decoding.beam import Hypothesis
from clearformer.decoding.text import continuations
from clearformer.decoding.text.continuations import Continuation, search
from clearformer.errors import UserError
from clearformer.model import ModelConfig, build
from clearformer.text import CharTokenizerSpec

PROMPT, CONTEXT = "abcabc", 5


@pytest.fixture
def run() -> Any:
    tokenizer = CharTokenizerSpec().train(["abc\n"])
    config = ModelConfig(vocab_size=tokenizer.vocab_size, d_model=4, n_layers=1, max_seq_len=CONTEXT)
    return SimpleNamespace(model=build(config), tokenizer=tokenizer)


@pytest.mark.parametrize("prompt", ["abc", PROMPT])
def test_what_was_added_and_what_was_read_are_said(run: Any, prompt: str) -> None:
    found = search(run, prompt, max_new_tokens=2, beams=3, num=3)

    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    for each in found:
        assert each.prompt == prompt
        assert each.text == run.tokenizer.decode(each.tokens)
        assert (len(each.tokens), each.finish_reason) == (2, "length")
        assert each.n_prompt_tokens == len(prompt)
        assert each.truncated is (len(prompt) > CONTEXT)
        assert each.n_prompt_tokens_read == (3 if prompt == "abc" else 4)  # half of a context of 5 makes room


@pytest.mark.parametrize(
    ("tokens", "reason"), [([1, 2, 0], "eos"), ([1, 0], "eos"), ([0], "eos"), ([1, 2, 1], "length")]
)
def test_a_continuation_that_ends_with_eos_came_to_its_end(
    run: Any, monkeypatch: pytest.MonkeyPatch, tokens: list[int], reason: str
) -> None:
    tokenizer = SimpleNamespace(
        vocab_size=3,
        eos_id=0,
        pad_id=None,
        bos_id=None,
        opens_with_space=False,
        encode=run.tokenizer.encode,
        token_bytes=lambda token: b"_bc"[token : token + 1],
        decode=lambda ids: "".join("_bc"[i] for i in ids),
    )
    monkeypatch.setattr(continuations, "prompt_of", lambda *_: continuations.Prompt("a", [1], 1))
    monkeypatch.setattr(continuations, "beam_search", lambda *_, **__: [[Hypothesis(tokens, -3.0, -1.0)]])

    ending: Any = SimpleNamespace(model=run.model, tokenizer=tokenizer)
    [found] = search(ending, "a", num=1)

    assert found == Continuation("a", tokenizer.decode(tokens), tokens, -3.0, -1.0, reason, 1, 1)  # type: ignore[arg-type]
    assert "logprob=-3, score=-1, finish_reason" in repr(found)  # as short as a result's


@pytest.mark.parametrize("num", [0, 4])
def test_there_are_as_many_as_beams_at_most(run: Any, num: int) -> None:
    with pytest.raises(UserError, match=f"num: from 1 to the number of beams, 3; got {num}"):
        search(run, "abc", beams=3, num=num)


def test_the_limit_is_one_number(run: Any) -> None:
    with pytest.raises(UserError, match=r"max_new_tokens: a whole number; got \(1, 2\)"):
        search(run, "abc", max_new_tokens=(1, 2))  # type: ignore[arg-type]
