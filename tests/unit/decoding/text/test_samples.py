"""Text in, text out."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from clearformer.decoding import Sample, generate, search, stream
from clearformer.decoding.text.samples import Prompt, prompt_of
from clearformer.errors import ConfigError, TokenizerError, UserError
from clearformer.model import Decoder, ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.init import Gaussian
from clearformer.text import ByteTokenizerSpec, CharTokenizerSpec, Tokenizer, WordPieceTokenizerSpec

M = 23


@dataclass(frozen=True)
class Run:
    model: Decoder
    tokenizer: Tokenizer


def run_of(tokenizer: Tokenizer) -> Run:
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=14,
        n_layers=1,
        max_seq_len=M,
        attention=MultiHead(n_heads=2),
        tie_embeddings=False,
        init=Gaussian(),
    )
    return Run(build(config).double(), tokenizer)


@pytest.fixture
def run() -> Run:
    return run_of(CharTokenizerSpec().train(["abcdefgh\n"]))


def encoded(run: Run, text: str) -> Prompt:
    return prompt_of(run.model, run.tokenizer, text)


def all_of(pieces: Any) -> tuple[list[str], Sample]:
    """What a stream yields, and what it returns."""
    yielded = []
    while True:
        try:
            yielded.append(next(pieces))
        except StopIteration as end:
            return yielded, end.value


def next_tokens(run: Run, order: Iterable[int]) -> None:
    """Make the model give these tokens, in turn, whatever it reads."""
    tokens = iter(order)
    run.model.unembed = lambda x: _certain(next(tokens), x, run.tokenizer.vocab_size)  # type: ignore[method-assign]


def _certain(token: int, x: torch.Tensor, vocab_size: int) -> torch.Tensor:
    return 100 * torch.eye(vocab_size, dtype=x.dtype)[token].expand(*x.shape[:-1], -1)


def test_a_sample_says_all_of_itself(run: Run) -> None:
    [sample] = generate(run, "abc", max_new_tokens=7, seed=3)

    assert sample.prompt == "abc"
    assert sample.text == run.tokenizer.decode(sample.tokens)
    assert len(sample.tokens) == len(sample.logprobs) == 7
    assert sample.logprob == pytest.approx(sum(sample.logprobs))
    assert sample.finish_reason == "length"
    assert (sample.n_prompt_tokens, sample.n_prompt_tokens_read, sample.truncated) == (3, 3, False)


def test_several_samples_of_several_prompts_are_what_each_gives_alone(run: Run) -> None:
    together = generate(run, ["abc", "", "hgfed"], num=3, max_new_tokens=9, seed=2)

    alone = [s for p in ["abc", "", "hgfed"] for s in generate(run, p, num=3, max_new_tokens=9, seed=2)]
    assert [(s.prompt, s.text) for s in together] == [(s.prompt, s.text) for s in alone]
    assert [s.prompt for s in together] == ["abc"] * 3 + [""] * 3 + ["hgfed"] * 3
    assert len({s.text for s in together}) == 9


def test_more_samples_do_not_change_the_first(run: Run) -> None:
    [first] = generate(run, "ab", num=1, max_new_tokens=9)

    assert generate(run, "ab", num=4, max_new_tokens=9)[0].tokens == first.tokens


def test_temperature_zero_gives_equal_samples(run: Run) -> None:
    one, other = generate(run, "ab", num=2, temperature=0.0, max_new_tokens=9)

    assert one.tokens == other.tokens


def test_settings_reach_the_sampler(run: Run) -> None:
    greedy = generate(run, "ab", temperature=0.0, max_new_tokens=9)[0].text

    as_greedy: list[dict[str, Any]] = [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-5}]
    for setting in as_greedy:
        assert generate(run, "ab", max_new_tokens=9, **setting)[0].text == greedy
    assert generate(run, "ab", temperature=0.0, repetition_penalty=50.0, max_new_tokens=9)[0].text != greedy


def test_drafts_change_no_sample_and_no_stream(run: Run) -> None:
    [plain] = generate(run, "abcabc", max_new_tokens=15, seed=3)

    assert generate(run, "abcabc", max_new_tokens=15, seed=3, lookup=4)[0].tokens == plain.tokens
    assert "".join(stream(run, "abcabc", max_new_tokens=15, seed=3, lookup=4)) == plain.text


def test_drafts_that_cannot_be_are_refused_before_the_first_piece(run: Run) -> None:
    with pytest.raises(UserError, match="lookup: a compiled step cannot read drafts"):
        stream(run, "abc", compiled=True, lookup=4)


# --- the end of a text ------------------------------------------------------------------------------------


def test_the_text_ends_before_the_stop_string(run: Run) -> None:
    encode = run.tokenizer.encode
    next_tokens(run, encode("abcdefgh").tolist())

    [sample] = generate(run, "a", stop=["zzz", "de"], max_new_tokens=8)

    assert (sample.text, sample.finish_reason) == ("abc", "stop")
    assert sample.tokens == encode("abcde").tolist()


def test_a_stop_string_may_be_given_by_itself(run: Run) -> None:
    next_tokens(run, run.tokenizer.encode("abcdefgh").tolist())

    assert generate(run, "a", stop="de", max_new_tokens=8)[0].text == "abc"


def test_stop_strings_of_an_iterator_hold_for_every_sample(run: Run) -> None:
    expected = generate(run, "a", num=3, stop=["b", "d"], max_new_tokens=20)
    assert generate(run, "a", num=3, stop=iter(["b", "d"]), max_new_tokens=20) == expected  # type: ignore[arg-type]
    assert [sample.finish_reason for sample in expected] == ["stop"] * 3


def test_the_prompt_is_no_part_of_a_stop_string(run: Run) -> None:
    next_tokens(run, run.tokenizer.encode("bcab").tolist())

    assert generate(run, "a", stop="ab", max_new_tokens=4)[0].text == "bc"


def test_eos_ends_a_text_and_is_no_part_of_it() -> None:
    run = run_of(ByteTokenizerSpec(eos=True).train(()))
    assert run.tokenizer.eos_id is not None
    next_tokens(run, [*b"ok", run.tokenizer.eos_id, *b"more"])

    [sample] = generate(run, "a", max_new_tokens=7)

    assert (sample.text, sample.finish_reason, len(sample.tokens)) == ("ok", "eos", 3)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("the cat", " sat on"),
        ("", "sat on"),
        ("日", " sat on"),  # which is [UNK]
        ("the cat\n", "sat on"),  # there is white space already, which no token holds
    ],
)
def test_words_that_begin_with_a_space_are_set_apart_from_the_prompt(prompt: str, text: str) -> None:
    """Such as those of Llama, T5 and WordPiece, where only the first of a text has none."""
    tokenizer = WordPieceTokenizerSpec(vocab_size=60, bos=True).train(["the cat sat on the mat"])
    run, order = run_of(tokenizer), tokenizer.encode("sat on").tolist()
    calls: list[Any] = [
        lambda **settings: generate(run, prompt, **settings)[0].text,
        lambda **settings: "".join(stream(run, prompt, **settings)),
        lambda **settings: search(run, prompt, beams=1, **settings)[0].text,
    ]
    for call in calls:
        next_tokens(run, order)
        assert call(max_new_tokens=len(order)) == text


def test_a_character_cut_off_at_the_end_is_shown_as_such() -> None:
    run = run_of(ByteTokenizerSpec().train(()))
    next_tokens(run, "é€".encode())

    assert generate(run, "a", max_new_tokens=4)[0].text == "é\ufffd"


# --- streaming --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [(), "ba", ["ab", "cc", "gh"]])
@pytest.mark.parametrize("seed", range(5))
def test_a_stream_is_the_sample_in_pieces(run: Run, seed: int, stop: Any) -> None:
    arguments = {"max_new_tokens": 30, "seed": seed, "temperature": 1.3, "stop": stop}

    pieces, returned = all_of(stream(run, "abc", **arguments))

    [sample] = generate(run, "abc", **arguments)
    assert returned == sample
    assert "".join(pieces) == sample.text
    assert "" not in pieces


def test_a_stream_gives_each_character_when_it_is_there(run: Run) -> None:
    next_tokens(run, run.tokenizer.encode("aabcd").tolist())

    pieces, _ = all_of(stream(run, "a", max_new_tokens=5, stop="ad"))

    assert pieces == ["a", "ab", "c", "d"]  # an "a" may begin the stop string


def test_a_stream_refuses_before_its_first_piece(run: Run) -> None:
    refused: list[dict[str, Any]] = [{"temperature": -1.0}, {"max_new_tokens": 0}, {"stop": ""}]
    for arguments in refused:
        with pytest.raises(UserError):
            stream(run, "a", **arguments)
    with pytest.raises(TokenizerError):
        stream(run, "Z")


# --- the prompt -------------------------------------------------------------------------------------------


def test_tokens_that_only_the_model_has_are_no_text() -> None:
    """Vocabularies are padded to sizes that suit the hardware."""
    tokenizer = CharTokenizerSpec().train(["abc"])
    config = ModelConfig(
        vocab_size=64, d_model=14, n_layers=1, max_seq_len=M, attention=MultiHead(n_heads=2), init=Gaussian()
    )
    run = Run(build(config).double(), tokenizer)
    [sample] = generate(run, "a", max_new_tokens=20, seed=1)
    known = [token for token in sample.tokens if token < tokenizer.vocab_size]
    assert len(known) < len(sample.tokens) == 20
    assert sample.text == tokenizer.decode(known)
    assert "".join(stream(run, "a", max_new_tokens=20, seed=1)) == sample.text
    for found in search(run, "a", beams=3, num=3, max_new_tokens=5):
        assert found.text == tokenizer.decode(
            [token for token in found.tokens if token < tokenizer.vocab_size]
        )


def test_bos_stands_before_every_prompt() -> None:
    run = run_of(ByteTokenizerSpec(bos=True).train(()))

    assert encoded(run, "a").tokens == [run.tokenizer.bos_id, ord("a")]
    assert encoded(run, "").tokens == [run.tokenizer.bos_id]


def test_an_empty_prompt_begins_with_a_newline_that_is_not_shown(run: Run) -> None:
    assert encoded(run, "").tokens == [run.tokenizer.id_of("\n")]

    [empty] = generate(run, "", max_new_tokens=5)
    [newline] = generate(run, "\n", max_new_tokens=5)
    assert (empty.prompt, empty.tokens) == ("", newline.tokens)


def test_an_empty_prompt_with_nothing_to_begin_with_is_refused() -> None:
    run = run_of(CharTokenizerSpec().train(["abc"]))

    with pytest.raises(UserError, match="the prompt is empty"):
        generate(run, "")


def test_a_prompt_longer_than_the_context_is_read_from_its_end_and_said(run: Run) -> None:
    prompt = "abcdefgh" * 5
    [sample] = generate(run, prompt, max_new_tokens=1, temperature=0.0)

    n_read = M - M // 2 + (len(prompt) - M - 1) % (M // 2) + 1
    assert encoded(run, prompt).n_tokens_read == n_read
    assert (sample.n_prompt_tokens, sample.n_prompt_tokens_read, sample.truncated) == (40, n_read, True)
    assert sample.tokens == generate(run, prompt[-n_read:], max_new_tokens=1, temperature=0.0)[0].tokens


def test_a_prompt_as_long_as_the_context_is_read_whole(run: Run) -> None:
    assert encoded(run, "a" * M).n_tokens_read == M
    assert encoded(run, "a" * (M + 1)).n_tokens_read < M
    assert not generate(run, "a" * M, max_new_tokens=1)[0].truncated
    assert generate(run, "a" * (M + 1), max_new_tokens=1)[0].truncated


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"temperature": -1.0}, ConfigError, "temperature"),
        ({"top_p": 2.0}, ConfigError, "top_p"),
        ({"num": 0}, UserError, "num"),
        ({"num": 10**9}, UserError, "num"),
        ({"max_new_tokens": 10**30}, UserError, "max_new_tokens"),
        ({"seed": -3}, UserError, "seed"),
        ({"stop": ""}, UserError, "stop"),
        ({"stop": None}, UserError, "stop: a text or a list of texts; got None"),
        ({"stop": 5}, UserError, "stop: a text or a list of texts; got 5"),
        ({"stop": b"e"}, UserError, "stop: a text or a list of texts; got b'e'"),
        ({"stop": [1]}, UserError, "stop: a text or a list of texts"),
        ({"max_new_tokens": 0}, UserError, "max_new_tokens"),
    ],
)
def test_a_bad_argument_is_named(
    run: Run, arguments: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        generate(run, "a", **arguments)


def test_a_character_outside_the_vocabulary_is_named(run: Run) -> None:
    with pytest.raises(TokenizerError, match="'Z'"):
        generate(run, "aZ")
