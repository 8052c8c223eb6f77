"""Drafts that are looked up: what they are, that they change no text and no distribution, and that they save passes."""

from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from clearformer.decoding import loop
from clearformer.decoding.decode_state import DecodeState, room_for_drafts
from clearformer.decoding.lookup import Lookup
from clearformer.decoding.loop import Completion, collect, generate_tokens
from clearformer.decoding.samplers import Sampling, random_stream
from clearformer.errors import UserError
from clearformer.model import Decoder, ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.init import Gaussian
from clearformer.model.linear_attention import Linear

from ...seeding import seed

GREEDY = Sampling(temperature=0)


def made(vocab_size: int = 13, **changes: Any) -> Any:
    seed(0)
    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "d_model": 10,
        "n_layers": 2,
        "max_seq_len": 50,
        "attention": MultiHead(n_heads=2),
        "tie_embeddings": False,
        "init": Gaussian(),
    }
    return build(ModelConfig(**(settings | changes))).double().eval()


def complete(model: Decoder, prompts: list[list[int]], n_new: int, **options: Any) -> list[Completion]:
    sampling = options.pop("sampling", GREEDY)
    streams = [random_stream(1, row) for row in range(len(prompts))]
    return collect(generate_tokens(model, prompts, n_new, sampling, streams, **options), len(prompts))


# --- drafts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ([1, 2, 3, 4, 1, 2], [3, 4, 1]),  # what followed 1 2
        ([1, 2, 9, 7, 2, 8, 1, 2], [9, 7, 2]),  # 1 2 rather than the newer 2
        ([1, 2, 9, 1, 2, 8, 1, 2], [8, 1, 2]),  # of two that are as long, the newer
        ([1, 2, 3], []),
        ([5], []),
        ([4, 5, 5], [5, 5, 5]),  # a repetition goes on
        ([4, 5, 6, 5, 6], [5, 6, 5]),
    ],
)
def test_a_draft_is_what_followed_the_longest_end_that_occurred_before(
    text: list[int], draft: list[int]
) -> None:
    lookup = Lookup(text, longest=8)

    lookup._length = 8

    assert lookup.draft(most=3) == draft


def test_no_draft_is_longer_than_wanted() -> None:
    assert Lookup([1, 1, 1], longest=8).draft(most=1) == [1]
    assert Lookup([1, 1, 1], longest=8).draft(most=0) == []
    assert Lookup([1, 1, 1], longest=1).draft(most=9) == [1]
    assert Lookup([1, 1, 1], longest=0).draft(most=9) == []


def test_drafts_grow_while_they_are_right_and_shrink_to_what_was() -> None:
    lookup, lengths = Lookup([1, 2, 1, 2], longest=9), []
    for _ in range(4):
        draft = lookup.draft(most=100)
        lengths.append(len(draft))
        assert all(lookup.add(token) for token in draft)
        assert not lookup.add(3 - draft[-1])  # as the model goes on behind a draft that was right
    assert lengths == [2, 4, 8, 9]

    draft = lookup.draft(most=100)
    assert [lookup.add(token) for token in (*draft[:2], draft[1])] == [True, True, False]

    assert len(lookup.draft(most=100)) == 3


def test_a_draft_that_had_no_room_makes_none_shorter() -> None:
    lookup = Lookup([1] * 9, longest=9)
    lookup._length = 8

    lookup.add(lookup.draft(most=1)[0])

    assert len(lookup.draft(most=100)) == 8


@pytest.mark.parametrize(("n_tokens", "room"), [(1, 10), (10, 1), (11, 0), (12, 4), (16, 0), (17, 4)])
def test_drafts_end_where_the_context_moves(n_tokens: int, room: int) -> None:
    assert room_for_drafts(n_tokens, 11) == room


# --- what is written ----------------------------------------------------------------------------------------


def test_the_texts_are_distributed_as_the_model_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """All texts of 4 tokens after a prompt, against their probabilities, by chi-squared."""
    drafted = Counter[bool]()

    class Counted(Lookup):
        def add(self, token: int) -> bool:
            is_drafted = self.n_right < len(self._draft)
            is_right = super().add(token)
            drafted.update([is_right] * is_drafted)
            return is_right

    monkeypatch.setattr(loop, "Lookup", Counted)
    model, n, prompt = made(vocab_size=3, max_seq_len=16), 5000, [0, 1, 2, 0, 1, 2, 0]
    sampling = Sampling(temperature=2.0, min_p=0.02, repetition_penalty=1.2)

    done = complete(model, [prompt] * n, 4, sampling=sampling, lookup=2)

    found = Counter(tuple(row.tokens) for row in done)
    expected = {
        text: n * probability_of(model, sampling, prompt, text) for text in product(range(3), repeat=4)
    }
    assert sum(expected.values()) == pytest.approx(n)
    possible = [text for text, expectation in expected.items() if expectation > 0]
    assert set(found) <= set(possible)
    chi_squared = sum((found[text] - expected[text]) ** 2 / expected[text] for text in possible)
    freedom = len(possible) - 1
    assert freedom > 30
    assert chi_squared < freedom + 3 * (2 * freedom) ** 0.5
    assert min(drafted.values()) > n / 2  # they were right, and wrong


@torch.no_grad()
def probability_of(
    model: Decoder, sampling: Sampling, prompt: list[int], continuation: tuple[int, ...]
) -> float:
    """Of a whole continuation, by plain forward passes."""
    probability, text = 1.0, list(prompt)
    for token in continuation:
        logits = sampling.adjust(model(torch.tensor([text]))[:, -1], [text])
        probability *= logits.softmax(-1)[0, token].item()
        text.append(token)
    return probability


@pytest.mark.parametrize("attention", [MultiHead(n_heads=2), Linear(n_heads=2)])
def test_a_text_that_repeats_itself_takes_fewer_passes(attention: Any) -> None:
    bigrams = Gaussian(
        zero_outputs=True
    )  # no layer adds anything, so that the likeliest text goes round in circles
    model, prompt = made(attention=attention, init=bigrams), [1, 2, 3, 4, 5]
    plain, drafted = (Passes(model, prompt, 40, lookup) for lookup in (0, 8))

    assert plain.texts == drafted.texts
    assert len(plain.lengths) == 40
    assert len(drafted.lengths) < 40 / 1.5
    assert max(drafted.lengths[1:]) == 9


class Passes:
    """The lengths of what a model reads as it writes."""

    def __init__(self, model: Decoder, prompt: list[int], n_new: int, lookup: int) -> None:
        self.lengths: list[int] = []
        handle = model.register_forward_pre_hook(lambda _, args: self.lengths.append(args[0].shape[1]))
        self.texts = [row.tokens for row in complete(model, [prompt], n_new, lookup=lookup)]
        handle.remove()


def test_an_encoder_decoder_is_drafted_for_with_its_sources() -> None:
    model = made(family="encoder-decoder")
    sources, beginnings = [[5, 6, 7, 8, 9], [4, 2], [7, 3, 1]], [[1], [1, 2, 1, 2], [1, 2]]
    options: dict[str, Any] = {"sources": sources, "sampling": Sampling(temperature=0.3)}

    plain, drafted = (complete(model, beginnings, 40, lookup=n, **options) for n in (0, 4))

    assert [row.tokens for row in drafted] == [row.tokens for row in plain]


def test_who_looks_sees_every_choice_once_and_in_order() -> None:
    model, seen = made(), {0: list[tuple[Tensor, list[int]]](), 4: list[tuple[Tensor, list[int]]]()}
    for lookup, found in seen.items():
        complete(
            model,
            [[1, 2, 1, 2]],
            20,
            lookup=lookup,
            look=lambda _, logits, text, found=found: found.append((logits, list(text))),
        )

    assert [text for _, text in seen[0]] == [text for _, text in seen[4]]
    for (a, _), (b, _) in zip(seen[0], seen[4], strict=True):
        torch.testing.assert_close(a, b)


def test_a_stop_within_a_draft_ends_the_text_there() -> None:
    model = made()
    free = complete(model, [[1, 2, 3]], 40)[0].tokens
    told: list[int] = []

    def stop(_: int, token: int) -> bool:
        told.append(token)
        return len(told) == 33

    [done] = complete(model, [[1, 2, 3]], 40, stop=stop, lookup=8)

    assert done.tokens == told == free[:33]
    assert done.finish_reason == "stop"


def test_linear_attention_that_is_looked_at_is_drafted_for_too() -> None:
    model = made(attention=Linear(n_heads=2))
    plain = complete(model, [[1, 2, 1, 2]], 20)[0].tokens

    with model.hooked({"blocks.0.attn.hook_pattern": lambda *_: None}):
        assert complete(model, [[1, 2, 1, 2]], 20, lookup=4)[0].tokens == plain


def test_drafts_are_forgotten_of_each_text_by_itself() -> None:
    """After wrong drafts of different lengths the scores are those of the texts alone."""
    for attention in (MultiHead(n_heads=2), MultiHead(n_heads=2, window=3), Linear(n_heads=2)):
        model = made(attention=attention)
        texts, drafts = [[1, 2, 3], [4, 5]], [[6, 7, 8], [9]]
        state = DecodeState(model, lambda logits: logits)
        state.advance(texts)
        texts = [[*text, 2] for text in texts]

        checked = list(state.check(texts, drafts))

        for n in range(2):
            for row in range(2):
                read = texts[row] + drafts[row][:n]
                torch.testing.assert_close(checked[n][row], alone(model, read))
        state.keep([2, 0])
        texts = [[*texts[0], 6, 7, 11], [*texts[1], 12]]
        for row, logits in enumerate(state.advance(texts)):
            torch.testing.assert_close(logits, alone(model, texts[row]))


def test_drafts_of_which_nothing_is_kept_are_cut_off() -> None:
    model = made()
    cache = model.new_cache()
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3, 4, 5]]), cache=cache)
        cache.hold()
        model(torch.tensor([[6, 7, 8]]), cache=cache)
        cache.keep(torch.zeros(1, 3, dtype=torch.bool))
        assert cache.length == 5
        logits = model(torch.tensor([[9]]), cache=cache)
    torch.testing.assert_close(logits[0, -1].float(), alone(model, [1, 2, 3, 4, 5, 9]))


def alone(model: Decoder, text: list[int]) -> Tensor:
    with torch.no_grad():
        return model(torch.tensor([text]))[0, -1].float()


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lookup": -1}, "lookup: tokens in a draft, from 0"),
        ({"lookup": 1025}, "lookup: tokens in a draft, from 0"),
        ({"lookup": 2.5}, "lookup: a whole number"),
        ({"lookup": 2, "use_cache": False}, "lookup: drafts need the cache"),
        ({"lookup": 2, "compiled": True}, "lookup: a compiled step cannot read drafts"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        complete(made(), [[1]], 3, **options)
