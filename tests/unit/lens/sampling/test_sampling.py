"""Draws, continuations and beams looked at: they are decoding's own, and their masses sum to one."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clearformer import lens
from clearformer.decoding import generate, search, translate
from clearformer.errors import ConfigError, UserError
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.text import CharTokenizerSpec, Tokenizer, WordPieceTokenizerSpec, specials_of

CORPUS = ["the bank lends money, and the river takes it. "] * 3
TEXT = "the bank"
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.8},
    {"min_p": 0.3, "repetition_penalty": 1.7},
    {"temperature": 0.9, "top_k": 9, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 0.8},
]


@dataclass(frozen=True)
class Run:
    model: Any
    tokenizer: Tokenizer


def run_of(family: str, **changes: Any) -> Run:
    spec = WordPieceTokenizerSpec(vocab_size=60) if family == "encoder" else CharTokenizerSpec()
    tokenizer = spec.train(CORPUS, specials=specials_of(family))
    config = ModelConfig(
        family=family,  # type: ignore[arg-type]
        vocab_size=tokenizer.vocab_size,
        d_model=22,
        n_layers=2,
        max_seq_len=37,
        dropout=0.3,
        attention=MultiHead(n_heads=2),
    )
    torch.manual_seed(1)  # for a fixture of the module is made before a test is seeded
    run = Run(build(config.replace(**changes)), tokenizer)
    with torch.no_grad():  # far from uniform, so that settings bite and <eos> comes
        for parameter in run.model.parameters():
            parameter.mul_(3)
    return run


@pytest.fixture(scope="module")
def decoder() -> Run:
    return run_of("decoder")


@pytest.fixture(scope="module")
def pair() -> Run:
    return run_of("encoder-decoder")


# --- the next draw ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_draw_is_that_of_generate(decoder: Run, settings: dict[str, Any]) -> None:
    drawn = set()
    for seed in range(25):
        [wanted] = generate(decoder, TEXT, max_new_tokens=1, seed=seed, **settings)
        found = lens.next_draw(decoder, TEXT, seed=seed, **settings)
        assert [found.ids[found.drawn]] == wanted.tokens
        assert np.log(found.own[found.drawn]) == pytest.approx(wanted.logprobs[0], abs=1e-5)
        assert found.interval is not None
        assert found.number is not None
        low, high = found.interval
        assert low <= found.number < high
        assert high - low == pytest.approx(found.kept[found.drawn], abs=1e-6)
        drawn.add(found.drawn)
    assert len(drawn) > 1


def test_the_draw_of_a_model_of_16_bits_is_that_of_generate() -> None:
    run = run_of("decoder")
    run.model.bfloat16()
    for seed in range(25):
        [wanted] = generate(run, TEXT, max_new_tokens=1, seed=seed, temperature=0.7, top_p=0.9)
        found = lens.next_draw(run, TEXT, seed=seed, temperature=0.7, top_p=0.9)
        assert [found.ids[found.drawn]] == wanted.tokens
        assert np.log(found.own[found.drawn]) == pytest.approx(wanted.logprobs[0], abs=1e-5)


def test_drawing_on_and_on_is_generating(decoder: Run) -> None:
    settings: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.2}
    for seed in (3, 4):
        [wanted] = generate(decoder, TEXT, max_new_tokens=50, seed=seed, **settings)  # beyond the context
        drawn: list[int] = []
        for token in wanted.tokens:
            found = lens.next_draw(decoder, TEXT, drawn=drawn, seed=seed, **settings)
            assert found.n_before == len(drawn)
            assert found.ids[found.drawn] == token
            assert found.text == TEXT + decoder.tokenizer.decode(drawn)
            drawn.append(token)


@pytest.mark.parametrize("see", [lens.next_draw, lens.continuations, lens.beam_tree])
def test_a_row_of_ids_is_its_text(decoder: Run, see: Callable[..., Any]) -> None:
    ids = torch.from_numpy(decoder.tokenizer.encode(TEXT).astype(np.int64))
    assert see(decoder, ids[None]).to_dict() == see(decoder, ids).to_dict()
    with pytest.raises(UserError, match="one text at a time; got ids of 2 rows"):
        see(decoder, torch.stack([ids, ids]))


def test_temperature_0_takes_the_likeliest(decoder: Run) -> None:
    [wanted] = generate(decoder, TEXT, max_new_tokens=1, temperature=0, repetition_penalty=1.5)
    found = lens.next_draw(decoder, TEXT, temperature=0, repetition_penalty=1.5)
    assert [found.ids[found.drawn]] == wanted.tokens
    assert found.drawn == found.greedy
    assert found.number is None
    assert found.kept.tolist() == [float(i == found.drawn) for i in range(len(found.kept))]
    assert found.entropy_after == 0


@pytest.mark.parametrize("settings", SETTINGS)
def test_what_is_cut_and_what_is_left_sum_to_1(decoder: Run, settings: dict[str, Any]) -> None:
    found = lens.next_draw(decoder, TEXT, **settings)
    left = found.kept > 0
    removed = sum(cut.mass for cut in found.cuts)
    assert removed + found.left == pytest.approx(1, abs=1e-12)
    assert found.left == pytest.approx(found.probabilities[left].sum())
    assert found.n_left == left.sum()
    assert [cut.name for cut in found.cuts] == [n for n in ("top_k", "top_p", "min_p") if n in settings]
    assert sum(cut.removed for cut in found.cuts) == (~left).sum()
    np.testing.assert_allclose(
        found.kept[left], found.probabilities[left] / found.probabilities[left].sum(), atol=1e-6
    )
    assert not left[left.sum() :].any()  # each cut is one line across the sorted vocabulary
    for cut, above in zip(found.cuts, [len(left), *(cut.place for cut in found.cuts)], strict=False):
        assert cut.place == above - cut.removed
    assert (np.diff(found.probabilities) <= 0).all()


def test_cuts_are_at_the_places_that_their_definitions_say(decoder: Run) -> None:
    found = lens.next_draw(decoder, TEXT, top_k=7)
    assert (found.cuts[0].place, found.cuts[0].removed) == (7, len(found.ids) - 7)
    found = lens.next_draw(decoder, TEXT, top_p=0.6)
    assert found.cuts[0].place == 1 + int((found.probabilities.cumsum() < 0.6).sum())
    found = lens.next_draw(decoder, TEXT, min_p=0.2)
    assert found.cuts[0].place == (found.probabilities >= 0.2 * found.probabilities[0]).sum()
    both = lens.next_draw(decoder, TEXT, top_k=7, min_p=0.2)
    before = both.probabilities
    gone = slice(both.cuts[1].place, 7)
    assert both.cuts[1].mass_of_left == pytest.approx(before[gone].sum() / before[:7].sum())


def test_the_penalty_takes_from_the_tokens_of_the_text(decoder: Run) -> None:
    found = lens.next_draw(decoder, TEXT, temperature=0.8, repetition_penalty=1.4)
    plain = lens.next_draw(decoder, TEXT, temperature=0.8)
    own = dict(zip(plain.ids.tolist(), plain.probabilities.tolist(), strict=True))
    seen = set(decoder.tokenizer.encode(TEXT).tolist())
    if decoder.tokenizer.bos_id is not None:
        seen.add(decoder.tokenizer.bos_id)
    assert set(found.ids[found.repeated].tolist()) == seen
    taken = sum(own[i] for i in seen) - found.probabilities[found.repeated].sum()
    assert found.penalised == pytest.approx(taken)
    assert plain.penalised is None
    assert not plain.repeated.any()


def test_a_position_is_where_the_text_ends(decoder: Run) -> None:
    found = lens.next_draw(decoder, TEXT, position=3, seed=5, top_k=6)
    n = 4 - (decoder.tokenizer.bos_id is not None)
    [wanted] = generate(decoder, TEXT[:n], max_new_tokens=1, seed=5, top_k=6)
    assert [found.ids[found.drawn]] == wanted.tokens
    shown = lens.next_tokens(decoder, TEXT, position=3, temperatures=[1.0], top=100)
    np.testing.assert_allclose(np.sort(found.own), np.sort(shown.probabilities[0]), atol=1e-6)


def test_entropies_are_of_the_two_distributions(decoder: Run) -> None:
    found = lens.next_draw(decoder, TEXT, temperature=0.5, top_k=4)
    own, kept = found.own, found.kept[found.kept > 0]
    assert found.entropy_before == pytest.approx(-(own * np.log(own)).sum())
    assert found.entropy_after == pytest.approx(-(kept * np.log(kept)).sum())


def test_an_encoder_tells_what_stands_at_a_position() -> None:
    run = run_of("encoder")
    found = lens.next_draw(run, TEXT, position=2, masked=[2], top_k=5)
    shown = lens.next_tokens(run, TEXT, position=2, masked=[2], temperatures=[1.0], top=5)
    assert found.ids[:5].tolist() == shown.ids
    assert found.token == "[MASK]"
    with pytest.raises(UserError, match="writes no text"):
        lens.continuations(run, TEXT)
    with pytest.raises(UserError, match="writes no text"):
        lens.beam_tree(run, TEXT)


def test_a_classifier_draws_nothing() -> None:
    model = build(ModelConfig(family="encoder", vocab_size=13, d_model=12, n_layers=2, n_classes=3))
    found = lens.next_draw(model, [1, 2, 3])
    assert sorted(found.tokens) == ["0", "1", "2"]
    assert found.drawn is None
    assert found.own.sum() == pytest.approx(1)
    with pytest.raises(UserError, match="samples nothing"):
        lens.next_draw(model, [1, 2, 3], temperature=0.5)


def test_settings_out_of_range_are_named(decoder: Run) -> None:
    with pytest.raises(ConfigError, match="top_p"):
        lens.next_draw(decoder, TEXT, top_p=1.5)
    with pytest.raises(UserError, match="id 999 is outside"):
        lens.next_draw(decoder, TEXT, drawn=[999])
    for drawn in (1.5, 1, "1", None):
        with pytest.raises(UserError, match=r"drawn: a list of ids, such as \[1\]; got"):
            lens.next_draw(decoder, TEXT, drawn=drawn)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"masked: a list of positions, such as \[1\]; got 5"):
        lens.next_draw(decoder, TEXT, masked=5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="position 99"):
        lens.next_draw(decoder, TEXT, position=99)
    with pytest.raises(UserError, match="num"):
        lens.continuations(decoder, TEXT, num=0)


# --- continuations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [*SETTINGS, {"temperature": 0}])
def test_continuations_are_those_of_generate(decoder: Run, settings: dict[str, Any]) -> None:
    for seed in (0, 1, 2):
        wanted = generate(decoder, TEXT, max_new_tokens=12, num=3, seed=seed, **settings)
        found = lens.continuations(decoder, TEXT, max_new_tokens=12, num=3, seed=seed, **settings)
        for one, sample in zip(found.continuations, wanted, strict=True):
            assert [each.id for each in one.tokens] == sample.tokens
            assert one.text == sample.text
            assert one.finish_reason == sample.finish_reason
            assert one.logprob == pytest.approx(sample.logprob)
            surprises = [-logprob for logprob in sample.logprobs]
            assert [each.surprise for each in one.tokens] == pytest.approx(surprises, abs=1e-5)


def test_the_first_continuation_goes_through_the_draws(decoder: Run) -> None:
    settings: dict[str, Any] = {"temperature": 0.8, "top_k": 8, "seed": 7}
    [one] = lens.continuations(decoder, TEXT, max_new_tokens=6, **settings).continuations
    ids = [each.id for each in one.tokens]
    for n, token in enumerate(one.tokens):
        found = lens.next_draw(decoder, TEXT, drawn=ids[:n], **settings)
        assert found.ids[found.drawn] == token.id
        assert found.own[found.drawn] == pytest.approx(token.probability, abs=1e-5)
        assert found.kept[found.drawn] == pytest.approx(token.drawn_with, abs=1e-5)
        assert found.entropy_before == pytest.approx(token.entropy, abs=1e-4)
        assert token.rank == 1 + (found.own > found.own[found.drawn]).sum()
    [rest] = lens.continuations(decoder, TEXT, drawn=ids[:4], max_new_tokens=2, **settings).continuations
    assert [each.id for each in rest.tokens] == ids[4:]


def test_an_encoder_decoder_draws_its_output(pair: Run) -> None:
    bos, eos = pair.tokenizer.bos_id, pair.tokenizer.eos_id
    assert bos is not None
    assert eos is not None
    found = lens.next_draw(pair, TEXT, seed=3)
    assert found.token == pair.tokenizer.token_label(bos)
    pair.model.eval()
    with torch.no_grad():
        logits = pair.model(*lens.read(pair, TEXT, "").arguments)[0, 0]
    np.testing.assert_allclose(found.own, np.sort(logits.softmax(-1).numpy())[::-1], atol=1e-6)
    [one] = lens.continuations(pair, TEXT, max_new_tokens=5, seed=3).continuations
    assert one.tokens[0].id == found.ids[found.drawn]
    greedy = lens.continuations(pair, TEXT, max_new_tokens=30, temperature=0).continuations[0]
    [[translated]] = translate(pair, [TEXT], beams=1, max_new_tokens=30)
    assert [each.id for each in greedy.tokens] == translated.tokens
    ended = lens.next_draw(pair, TEXT, drawn=[eos])
    assert ended.ended
    assert not found.ended


# --- beams ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beams", [1, 3, 5])
def test_the_best_of_the_tree_is_that_of_search(decoder: Run, beams: int) -> None:
    wanted = search(decoder, TEXT, beams=beams, num=beams, max_new_tokens=7)
    tree = lens.beam_tree(decoder, TEXT, beams=beams, max_new_tokens=7)
    assert [(each.tokens, each.text) for each in tree.found] == [(each.tokens, each.text) for each in wanted]
    # the tree goes on from the lens's own reading of the text, which is not equal to the bit on every processor
    assert [each.score for each in tree.found] == pytest.approx([each.score for each in wanted], rel=1e-5)
    check_tree(tree, beams)


def test_the_tree_of_a_translation(pair: Run) -> None:
    for text in (TEXT, "money", "takes"):
        [wanted] = translate(pair, [text], beams=3, n_best=3, max_new_tokens=30)
        tree = lens.beam_tree(pair, text, beams=3, max_new_tokens=30)
        assert [each.tokens for each in tree.found] == [each.tokens for each in wanted]
        check_tree(tree, 3)


def check_tree(tree: lens.BeamTree, beams: int) -> None:
    """Each node continues one of the step before, and the marked ones are what the search found."""
    for node in tree.nodes:
        if node.parent is None:
            assert node.step == 1
        else:
            parent = tree.nodes[node.parent]
            assert parent.step == node.step - 1
            assert not parent.ended
            assert node.logprob <= parent.logprob
        assert node.score == pytest.approx(node.logprob / node.step)
    for step in range(1, max(each.step for each in tree.nodes) + 1):
        kept = [each.logprob for each in tree.nodes if each.step == step and not each.ended]
        assert len(kept) <= beams
        assert kept == sorted(kept, reverse=True)
    for place, found in enumerate(tree.found):
        [end] = [each for each in tree.nodes if each.found == place]
        path = [end]
        while path[0].parent is not None:
            path.insert(0, tree.nodes[path[0].parent])
        assert [each.id for each in path] == found.tokens
        assert end.score == pytest.approx(found.score)
        if place == 0:
            assert path == [each for each in tree.nodes if each.on_best_path]


@pytest.mark.parametrize("draw", [lens.continuations, lens.beam_tree])
@pytest.mark.parametrize("n", [-1, 0, 1.5, "9"])
def test_a_number_of_tokens_out_of_range_is_refused_before_room_is_made_for_it(
    decoder: Run, draw: Callable[..., object], n: Any
) -> None:
    with pytest.raises(UserError, match="max_new_tokens: "):
        draw(decoder, TEXT, max_new_tokens=n)


# --- showing ----------------------------------------------------------------------------------------------


def test_all_are_values_that_show_and_draw_themselves(decoder: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = [
        lens.next_draw(decoder, TEXT, top_k=5, min_p=0.1, repetition_penalty=1.3),
        lens.continuations(decoder, TEXT, num=2, max_new_tokens=4),
        lens.beam_tree(decoder, TEXT, beams=3, max_new_tokens=4),
    ]
    for i, each in enumerate(found):
        assert each.table().rows
        assert all(len(row) == len(each.table().heads) for row in each.table().rows)
        assert each.caption() in each._repr_html_().replace("&#x27;", "'")
        json.dumps(each.to_dict(), allow_nan=False)
        assert each.figure(tmp_path / f"{i}.png").stat().st_size > 1000
    assert [row[2] for row in found[0].table().rows].count("top_k") == len(found[0].ids) - 5


def test_continuations_are_told_as_they_are_written(decoder: Run) -> None:
    parts: list[lens.Continuations] = []
    settings: dict[str, Any] = {"num": 3, "max_new_tokens": 5, "seed": 2, "top_k": 9}
    whole = lens.continuations(decoder, TEXT, on_part=parts.append, **settings)
    assert [len(part.continuations[0].tokens) for part in parts] == [1, 2, 3, 4, 5]
    for part in parts:
        for so_far, written in zip(part.continuations, whole.continuations, strict=True):
            n = len(so_far.tokens)
            assert so_far.tokens == written.tokens[:n]
            assert written.text.startswith(so_far.text)
    assert parts[-1].to_dict() == whole.to_dict() == lens.continuations(decoder, TEXT, **settings).to_dict()


def test_a_continuation_that_has_ended_waits_for_the_others(pair: Run) -> None:
    parts: list[lens.Continuations] = []
    settings: dict[str, Any] = {"num": 6, "max_new_tokens": 30, "temperature": 5.0}
    whole = lens.continuations(pair, TEXT, on_part=parts.append, **settings).continuations
    lengths = [len(each.tokens) for each in whole]
    assert len(parts) == max(lengths) > min(lengths)
    for n, part in enumerate(parts, 1):
        assert [len(each.tokens) for each in part.continuations] == [min(n, length) for length in lengths]


def test_a_tree_is_told_step_by_step(decoder: Run) -> None:
    parts: list[lens.BeamTree] = []
    whole = lens.beam_tree(decoder, TEXT, beams=3, max_new_tokens=4, on_part=parts.append)
    assert len(parts) == max(node.step for node in whole.nodes)
    for step, part in enumerate(parts, 1):
        assert not part.found
        own = [(node.step, node.parent, node.id, node.score) for node in part.nodes]
        assert own == [
            (node.step, node.parent, node.id, node.score) for node in whole.nodes if node.step <= step
        ]


def test_the_likeliest_are_told_with_the_draw_that_is_none_of_them(decoder: Run) -> None:
    whole = lens.next_draw(decoder, TEXT, temperature=4.0, top_k=18)
    assert whole.places == list(range(whole.n_tokens)) == list(range(len(whole.tokens)))
    seen = set()
    for seed in range(12):
        whole, part = (
            lens.next_draw(decoder, TEXT, temperature=4.0, top_k=18, seed=seed, most=most)
            for most in (None, 3)
        )
        told = part.places
        assert told[:3] == [0, 1, 2]
        assert part.drawn in told
        assert part.greedy in told
        for name in ("ids", "own", "probabilities", "kept", "repeated"):
            np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[told])
        assert part.tokens == [whole.tokens[place] for place in told]
        assert (part.cuts, part.n_left, part.left, part.drawn) == (
            whole.cuts,
            whole.n_left,
            whole.left,
            whole.drawn,
        )
        assert part.caption() == whole.caption()
        assert part.table().rows == [whole.table().rows[place] for place in told]
        seen.add(len(told))
    assert seen == {3, 4}
    with pytest.raises(UserError, match="most: 1 or more"):
        lens.next_draw(decoder, TEXT, most=0)


def test_a_word_that_continues_a_text_keeps_its_space_as_in_generate() -> None:
    tokenizer = WordPieceTokenizerSpec(vocab_size=60).train(CORPUS)
    run = Run(run_of("decoder", vocab_size=tokenizer.vocab_size).model, tokenizer)
    settings: dict[str, Any] = {"max_new_tokens": 2, "num": 20, "temperature": 3.0, "seed": 1}

    written = [each.text for each in generate(run, TEXT, **settings)]
    seen = [each.text for each in lens.continuations(run, TEXT, **settings).continuations]

    assert seen == written
    assert {text[:1] == " " for text in seen} == {True, False}  # whole words, and parts of one
    tree = lens.beam_tree(run, TEXT, beams=8, max_new_tokens=2)
    found = search(run, TEXT, beams=8, max_new_tokens=2, num=len(tree.found))
    assert [each.text for each in tree.found] == [each.text for each in found]
