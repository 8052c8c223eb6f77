"""Readings that are kept: every result as without them, to the bit, whatever was asked before."""

import copy
import threading
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import clearformer as cf
from clearformer import lens
from clearformer.errors import UserError
from clearformer.hooks.readings import once
from clearformer.page.selection import Selection
from clearformer.page.views import VIEWS, is_kept, views_of, was_trained_here

from .test_embeddings import FAMILIES, TEXT
from .test_embeddings import run_of as parts_of_run

OTHER = "the river is a bank of the money"
MEGABYTES = 16


def run_of(family: str) -> cf.Run:
    made = parts_of_run(family)
    return cf.Run(made.model, made.tokenizer)


@pytest.fixture(scope="module", params=FAMILIES)
def run(request: pytest.FixtureRequest) -> cf.Run:
    return run_of(request.param)


def same(one: Any, other: Any) -> None:
    """Whether two results are the same to the bit."""
    assert type(one) is type(other)
    if is_dataclass(one):
        for field in fields(one):
            same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, np.ndarray | torch.Tensor):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            same(*pair)
    else:
        assert one == other or (one != one and other != other)


Ask = Callable[[], Any]


def looks(run: cf.Run, selection: Selection) -> list[Ask]:
    """All that the page asks of a selection."""
    return [
        lambda view=view: view.call(run, selection)  # type: ignore[misc]
        for name, view in views_of(run).items()
        if name not in ("training", "overview")
    ]


def others(run: cf.Run) -> list[Ask]:
    """Other functions that read texts."""
    text = (TEXT, written(run))
    return [
        lambda: lens.attention(run, *text),
        lambda: lens.attention(run, *text, layer=1),
        lambda: lens.next_tokens(run, *text),
        lambda: lens.score(run, *text, layer=1, position=3, key=1),
        lambda: lens.sources(run, *text),
        lambda: lens.with_edits(run, TEXT, [f"mean {first_head(run)}"], written(run), max_new_tokens=1),
        lambda: lens.tokens(run, "the bank"),
    ]


def written(run: cf.Run) -> str | None:
    """The output of an encoder-decoder; its own translation takes long."""
    return OTHER if run.model.config.family == "encoder-decoder" else None


def asked(run: cf.Run) -> list[Ask]:
    """Somebody looks around, and comes back to where it began."""
    first = Selection(run=run.name, text=TEXT, output=written(run), new_tokens=1, beams=2)
    moved = first.replace(position=2, layer=1, head=1, target="he", edits=(f"zero {first_head(run)}",))
    elsewhere = first.replace(text=OTHER, layer=2)
    return [*looks(run, first), *looks(run, moved), *looks(run, elsewhere), *others(run), *looks(run, first)]


def first_head(run: cf.Run) -> str:
    prefix = "decoder_" if run.model.config.family == "encoder-decoder" else ""
    return f"{prefix}blocks.0.attn.hook_z:0"


def test_results_are_the_same_to_the_bit(run: cf.Run) -> None:
    wanted = [ask() for ask in asked(run)]
    with lens.Readings(MEGABYTES).in_use() as readings:
        for ask, result in zip(asked(run), wanted, strict=True):
            same(ask(), result)
        assert len(readings) > len(wanted)
    # Of every other view there was something to ask.
    of_a_kept_run = {name for name, view in VIEWS.items() if view.fits in (is_kept, was_trained_here)}
    assert VIEWS.keys() - views_of(run).keys() <= of_a_kept_run | {
        "continuations",
        "beams",
        "classes",
        "comparison",
        "matched",
    }


def test_texts_that_differ_where_they_are_masked_have_losses_of_their_own() -> None:
    run = run_of("encoder")
    tokens = lens.read(run, "bank").tokens[0].tolist()
    others = [tokens[0], tokens[1] + 1, *tokens[2:]]

    def edited(run: cf.Run, ids: list[int], masked: list[int]) -> Any:
        return lens.with_edits(run, ids, ["zero blocks.0.hook_mlp_out"], masked=masked)

    asks: list[Callable[..., Any]] = [lens.tokens, edited]
    for ask in asks:
        wanted = ask(run, others, masked=[1])
        with lens.Readings(MEGABYTES).in_use():
            ask(run, tokens, masked=[1])  # the same ids are read
            same(ask(run, others, masked=[1]), wanted)


def test_what_follows_an_output_of_ids_is_unknown_and_of_a_string_its_end() -> None:
    run = run_of("encoder-decoder")
    ids = lens.read(run, TEXT, "the bank").tokens[0].tolist()
    with lens.Readings(MEGABYTES).in_use():
        losses = [lens.tokens(run, TEXT, output).losses[-1] for output in (ids, "the bank")]
    assert np.isfinite(losses).tolist() == [False, True]


def test_results_are_the_same_where_there_is_hardly_any_room() -> None:
    """Readings come and go."""
    run, readings = run_of("decoder"), lens.Readings(1)
    readings.most_bytes = 50_000
    wanted = [ask() for ask in others(run)]
    with readings.in_use():
        for ask, result in zip(others(run), wanted, strict=True):
            same(ask(), result)
            assert 0 < readings.n_bytes <= readings.most_bytes


def test_a_text_is_read_once() -> None:
    run, read = run_of("decoder"), []
    handle = run.model.blocks[0].register_forward_hook(lambda *_: read.append(1))  # type: ignore[union-attr]
    with lens.Readings(MEGABYTES).in_use():
        lens.ledger(run, TEXT)
        lens.ledger(run, TEXT, position=1)
        lens.tokens(run, TEXT)
        lens.logit_lens(run, TEXT)
        lens.next_tokens(run, TEXT, position=3)
        lens.block(run, TEXT, layer=1)
        assert len(read) == 1
        lens.ledger(run, OTHER)
        assert len(read) == 2
    lens.ledger(run, TEXT)
    assert len(read) == 3
    handle.remove()


def test_of_a_text_too_large_to_be_kept_whole_each_view_keeps_what_it_needs() -> None:
    run, read = run_of("decoder"), []
    handle = run.model.blocks[0].register_forward_hook(lambda *_: read.append(1))  # type: ignore[union-attr]
    readings = lens.Readings(1)
    wanted = [lens.logit_lens(run, TEXT, position=at) for at in range(3)]
    n_tokens = len(wanted[0].tokens)
    with readings.in_use():
        readings.most_bytes = 8 * 22 * 4 * n_tokens  # the stream at eight places
        read.clear()
        for at, own in enumerate(wanted):
            same(lens.logit_lens(run, TEXT, position=at), own)
        assert len(read) == 1
        lens.ledger(run, TEXT)
        assert len(read) > 1
    handle.remove()


def change_in_place(model: Any) -> None:
    with torch.no_grad():
        model.blocks[1].attn.W_Q.weight.mul_(1.5)


def replace_parameter(model: Any) -> None:
    model.blocks[1].attn.W_Q.weight = nn.Parameter(model.blocks[1].attn.W_Q.weight.detach() * 1.5)


def replace_module(model: Any) -> None:
    model.blocks[1] = copy.deepcopy(model.blocks[0])


def load_others(model: Any) -> None:
    model.load_state_dict({name: 1.25 * value for name, value in model.state_dict().items()})


@pytest.mark.parametrize("change", [change_in_place, replace_parameter, replace_module, load_others])
def test_a_model_that_changes_is_read_anew(change: Callable[[Any], None]) -> None:
    run = run_of("decoder")
    with lens.Readings(MEGABYTES).in_use() as readings:
        before = lens.ledger(run, TEXT)
        change(run.model)
        found = lens.ledger(run, TEXT)
        assert found.logit != before.logit
    same(found, lens.ledger(run, TEXT))
    assert readings.n_bytes == sum(n_bytes for _, n_bytes in readings._values.values())


def test_models_of_one_shape_are_told_apart() -> None:
    runs = [run_of("decoder"), run_of("decoder")]
    change_in_place(runs[1].model)
    with lens.Readings(MEGABYTES).in_use():
        found = [lens.ledger(run, TEXT).logit for run in runs]
    assert found[0] != found[1]
    assert found == [lens.ledger(run, TEXT).logit for run in runs]


def test_readings_of_a_model_that_is_gone_are_dropped() -> None:
    readings = lens.Readings(MEGABYTES)
    with readings.in_use():
        lens.ledger(run_of("decoder"), TEXT)
        kept = len(readings)
        lens.ledger(run_of("decoder"), TEXT)
    assert len(readings) == kept
    assert len(readings._models) == 1


def test_nothing_is_kept_while_somebody_changes_activations() -> None:
    run = run_of("decoder")
    with lens.Readings(MEGABYTES).in_use() as readings:
        plain = lens.ledger(run, TEXT)
        kept = len(readings)
        with run.model.hooked({"blocks.0.hook_mlp_out": lambda x, _: 0 * x}):
            edited = lens.ledger(run, TEXT)
        assert len(readings) == kept
        assert edited.logit != plain.logit
        same(lens.ledger(run, TEXT), plain)
        with torch.autocast("cpu", torch.bfloat16):
            assert lens.ledger(run, TEXT).logit != plain.logit
        assert len(readings) == kept


def test_what_is_computed_in_inference_mode_is_not_kept() -> None:
    run = run_of("decoder")
    with lens.Readings(MEGABYTES).in_use():
        with torch.inference_mode():
            lens.attention(run, TEXT)
        assert lens.sources(run, TEXT).error < 1e-4


def test_weights_that_do_not_tell_when_they_change_are_not_watched() -> None:
    run = run_of("decoder")
    with torch.inference_mode():
        run.model.embed.weight = nn.Parameter(run.model.embed.weight.clone(), requires_grad=False)
    with lens.Readings(MEGABYTES).in_use() as readings:
        lens.tokens(run, TEXT)
        assert len(readings) == 0


def test_they_are_of_the_block_and_its_thread_alone() -> None:
    run, readings = run_of("decoder"), lens.Readings(MEGABYTES)
    lens.ledger(run, TEXT)
    with readings.in_use():
        other = threading.Thread(target=lambda: lens.ledger(run, TEXT))
        other.start()
        other.join()
        assert len(readings) == 0
        lens.ledger(run, TEXT)
        kept = len(readings)
        assert kept
    lens.ledger(run, OTHER)
    assert len(readings) == kept


def test_several_threads_share_them() -> None:
    run, readings = run_of("decoder"), lens.Readings(MEGABYTES)
    run.model.eval()
    wanted, found = lens.ledger(run, TEXT).logit, []

    def look() -> None:
        with readings.in_use():
            found.extend(lens.ledger(run, TEXT).logit for _ in range(5))

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted] * 15
    assert readings.n_bytes == sum(n_bytes for _, n_bytes in readings._values.values())


def test_the_oldest_goes_first_and_what_is_too_large_is_not_kept() -> None:
    model, readings = nn.Linear(2, 2), lens.Readings(1)
    readings.most_bytes = 1000
    made: list[str] = []

    def value(name: str, n_bytes: int) -> bytes:
        return once(model, name, lambda: made.append(name) or bytes(n_bytes))  # type: ignore[func-returns-value]

    with readings.in_use():
        for name in ("a", "b", "a", "c", "d", "e", "f", "g", "h", "a"):
            value(name, 20)
        assert made == ["a", "b", "c", "d", "e", "f", "g", "h", "a"]
        made.clear()
        value("large", 400)
        value("large", 400)
        assert made == ["large", "large"]
        assert readings.n_bytes <= 1000


def test_room_is_made_before_a_text_is_read() -> None:
    model, readings = nn.Linear(2, 2), lens.Readings(1)
    readings.most_bytes = 1000
    readings.keep(model, {"first": bytes(100), "second": bytes(100)})
    readings.make_room()
    assert len(readings) == 2  # there is room for as much again
    readings.keep(model, {name: bytes(150) for name in "abc"})
    readings.make_room()
    assert readings.find(model, ["first", "a", "c"])[:1] != [bytes(100)]
    assert readings.n_bytes <= 1000 - 3 * 150


def test_what_continuations_hold_takes_room_too() -> None:
    run, readings = run_of("decoder"), lens.Readings(MEGABYTES)
    with readings.in_use():
        lens.continuations(run, TEXT, max_new_tokens=1, num=20)
        before = readings.n_bytes
        found = lens.continuations(run, TEXT, max_new_tokens=41, num=20)
    n_more = sum(len(each.tokens) for each in found.continuations)
    assert readings.n_bytes - before > n_more * 100  # of each token: seven numbers and strings


def test_texts_are_of_the_tokenizer_that_is_asked() -> None:
    run = run_of("decoder")
    tokens: Any = run.tokenizer.encode(TEXT).tolist()
    drawn: Any = {"max_new_tokens": 4}
    edits = ["zero blocks.0.attn.hook_z:0"]
    with cf.lens.Readings().in_use():
        asked: list[Callable[[Any], Any]] = [
            lambda subject: lens.continuations(subject, tokens, **drawn).continuations[0],
            lambda subject: lens.with_edits(subject, tokens, edits, held_out=0, **drawn).continued_after,
        ]
        for ask in asked:
            assert not ask(run.model).text  # without a tokenizer
            found = ask(run)
            assert found.text
            assert [each.token for each in found.tokens] == [
                run.tokenizer.token_label(each.id) for each in found.tokens
            ]


def test_what_is_handed_out_may_be_written_to() -> None:
    run = run_of("decoder")
    wanted = (
        lens.tokens(run, TEXT),
        lens.block(run, TEXT),
        lens.head_pattern(run, TEXT),
        lens.logit_lens(run, TEXT),
    )
    with lens.Readings(MEGABYTES).in_use():
        for _ in range(2):
            found = (
                lens.tokens(run, TEXT),
                lens.block(run, TEXT),
                lens.head_pattern(run, TEXT),
                lens.logit_lens(run, TEXT),
            )
            same(found, wanted)
            found[0].losses[:] = 7
            for array in found[1].arrays:
                if array.values.flags.writeable:
                    array.values[:] = 7
            found[2].weights[:] = 7
            found[3].probabilities[:] = 7


@pytest.mark.parametrize("megabytes", [0, -1, True, "many", float("nan"), float("inf")])
def test_the_room_is_a_number(megabytes: Any) -> None:
    with pytest.raises(UserError, match="megabytes"):
        lens.Readings(megabytes)
