"""What differs between two results of one lens: each number the second's less the first's, to the bit."""

from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import clearformer as cf
from clearformer import lens
from clearformer.errors import UserError
from clearformer.lens.causal.metrics import LogitDifference
from clearformer.lens.history.events import Event, Events
from clearformer.lens.metrics import Metrics
from clearformer.model.attention import MultiHead

from .test_embeddings import FAMILIES, TEXT, Run, run_of

FUNCTIONS = [
    lens.tokens,
    lens.attention_overview,
    lens.attention,
    lens.head_pattern,
    lens.ledger,
    lens.logit_lens,
]


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest) -> tuple[Run, Run]:
    """Two models of a family that differ in their weights alone."""
    return run_of(request.param), run_of(request.param)


def subtracted(change: Any, one: Any, other: Any, compared: list[str], path: str = "") -> None:
    """Whether every float of a change is the other's less the one's; parts are looked up by their names."""
    if isinstance(change, np.ndarray):
        np.testing.assert_array_equal(change, other - one)
        compared.append(path)
    elif is_dataclass(change):
        for field in fields(change):
            a, b, c = (getattr(each, field.name) for each in (change, one, other))
            subtracted(a, b, c, compared, f"{path}.{field.name}")
    elif isinstance(change, dict):
        assert change.keys() == one.keys() == other.keys()
        for key in change:
            subtracted(change[key], one[key], other[key], compared, path)
    elif isinstance(change, list) and path.endswith(".top"):
        labels = [{each.token: each.probability for each in top} for top in (change, one, other)]
        assert labels[0].keys() == labels[1].keys() | labels[2].keys()
        for token, probability in labels[0].items():
            known = labels[2].get(token, np.nan) - labels[1].get(token, np.nan)
            np.testing.assert_equal(probability, known)
        compared.append(path)
    elif isinstance(change, list) and change and is_dataclass(change[0]):
        assert len(change) == len(one) == len(other)
        for a, b, c in zip(change, one, other, strict=True):
            subtracted(a, b, c, compared, path)
    elif isinstance(change, float):
        np.testing.assert_equal(change, other - one)
        compared.append(path)
    elif path.endswith(".rank"):
        assert change == other - one
        compared.append(path)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_every_number_is_the_second_less_the_first(function: Any, pair: tuple[Run, Run]) -> None:
    run, other = pair
    output = {"output": "the river bank"} if run.model.config.family == "encoder-decoder" else {}
    target = {"target": 7} if function in (lens.ledger, lens.logit_lens) else {}
    one, another = (function(each, TEXT, **output, **target) for each in pair)
    for found in (lens.difference(one, another), lens.beside(function, run, other, TEXT, **output, **target)):
        assert type(found.changes) is type(found.first)
        compared: list[str] = []
        subtracted(found.changes, one, another, compared)
        assert compared


def test_matrices_of_a_block_are_subtracted_and_logits_matched_by_their_ids(pair: tuple[Run, Run]) -> None:
    found = lens.beside(lens.block, *pair, TEXT, layer=2, head=1)
    first, second, changes = found.first, found.second, found.changes
    assert [each.name for each in changes.arrays] == [each.name for each in first.arrays]
    for array in changes.arrays:
        one, other = first[array.name], second[array.name]
        for column, id_ in enumerate(array.columns):
            a = one.values[:, one.columns.index(id_)]
            b = other.values[:, other.columns.index(id_)]
            with np.errstate(invalid="ignore"):
                np.testing.assert_array_equal(array.values[:, column], b - a)
    logits = next(array for array in changes.arrays if array.column_labels)
    assert len(logits.column_labels) == len(logits.columns) > 0
    assert found.table().heads[-1] == "largest"


def test_the_parts_of_a_ledger_sum_to_the_change_of_the_logit(pair: tuple[Run, Run]) -> None:
    found = lens.beside(lens.ledger, *pair, TEXT)
    changes = found.changes
    assert found.first.target == found.second.target  # the first run's likeliest, for both
    assert found.first == lens.ledger(pair[0], TEXT)
    assert sum(part.value for part in changes.parts) == pytest.approx(changes.logit, abs=1e-5)
    assert any(part.value for part in changes.parts)
    assert found.notes()[0].startswith("first: ")


def test_a_target_that_the_text_gives_is_not_chosen_by_the_model() -> None:
    run, other = run_of("decoder"), run_of("decoder")
    found = lens.beside(lens.logit_lens, run, other, TEXT, position=1)
    assert found.first.target == lens.logit_lens(run, TEXT, position=1).target
    assert found.first.target == found.second.target == lens.tokens(run, TEXT).predicted[1]
    gradients = lens.beside(lens.weight_gradients, run, other, TEXT, names="embed.weight")
    assert gradients.first.metric == "the mean loss in nats"


@pytest.mark.parametrize("function", [lens.ledger, lens.attention, lens.logit_lens])
def test_an_output_is_given_by_its_place_or_its_name(function: Any) -> None:
    run, other = run_of("encoder-decoder"), run_of("encoder-decoder")
    by_name = lens.beside(function, run, other, "the bank", output="the river")
    assert lens.beside(function, run, other, "the bank", "the river") == by_name


@pytest.mark.parametrize("function", [lens.continuations, lens.next_draw, lens.beam_tree])
def test_an_output_that_is_continued_begins_as_it_does_for_one_run(function: Any) -> None:
    run, other = run_of("encoder-decoder"), run_of("encoder-decoder")
    assert lens.beside(function, run, run, "the bank").first == function(run, "the bank")
    written = function(run, "the bank", position=1)
    assert lens.beside(function, run, run, "the bank", position=1).first == written
    with pytest.raises(UserError, match="family: decoder and encoder-decoder cannot be compared"):
        lens.beside(function, run_of("decoder"), other, "the bank")


def test_a_score_is_of_the_key_that_the_first_run_reads_most() -> None:
    run, other = run_of("decoder"), run_of("decoder")
    one, another = (lens.score(each, TEXT, layer=0) for each in (run, other))
    assert one.key_position != another.key_position
    found = lens.beside(lens.score, run, other, TEXT, layer=0)
    assert found.first.score == one.score
    assert found.second.key_position == one.key_position
    assert found.changes.score == found.second.score - one.score


def test_the_scores_of_heads_are_compared_between_steps() -> None:
    run = run_of("decoder")
    later = cf.Run(run_of("decoder").model, run.tokenizer, step=7)
    found = lens.beside(lens.head_scores, run, later, n_tokens=5)
    assert found.second.step == 7
    for change, one, other in zip(found.changes.heads, found.first.heads, found.second.heads, strict=True):
        assert change.previous == other.previous - one.previous


def test_a_metric_is_the_same_for_both(pair: tuple[Run, Run]) -> None:
    output: dict[str, Any] = (
        {"output": "the river bank"} if pair[0].model.config.family == "encoder-decoder" else {}
    )
    found = lens.beside(lens.gradient_x_input, *pair, TEXT, metric=LogitDifference(7), **output)
    for run, one in zip(pair, (found.first, found.second), strict=True):
        assert one.measure == lens.gradient_x_input(run, TEXT, target=7, **output).measure


def test_a_run_less_itself_is_nothing(pair: tuple[Run, Run]) -> None:
    run, _ = pair
    for part in lens.beside(lens.ledger, run, run, TEXT).changes.parts:
        assert part.value == 0
    found = lens.beside(lens.logit_lens, run, run, TEXT).changes
    assert not found.probabilities.any()
    assert found.best == lens.beside(lens.logit_lens, run, run, TEXT).first.best


def test_tokens_that_differ_are_kept_of_both() -> None:
    found = lens.beside(lens.logit_lens, run_of("decoder"), run_of("decoder"), TEXT)
    labels = zip(found.changes.best[-1], found.first.best[-1], found.second.best[-1], strict=True)
    for change, one, other in labels:
        assert change == (one if one == other else f"{one}→{other}")
    assert "→" in "".join(found.changes.best[-1])


def test_differences_are_drawn_and_written_with_their_signs(tmp_path: Any) -> None:
    found = lens.beside(lens.head_pattern, run_of("decoder"), run_of("decoder"), TEXT)
    found = lens.difference(found.first, with_weights(found.first))
    [row] = [row for row in found.table().rows if row[0] == "3"]
    assert "-0.25" in row[2]
    assert found.figure(tmp_path / "difference.svg").stat().st_size > 1000
    assert "second minus first" in found.caption()


def with_weights(pattern: Any) -> Any:
    """The same pattern with a quarter less read of position 1 by position 3."""
    weights = pattern.weights.copy()
    weights[3, 1] -= 0.25
    return replace(pattern, weights=weights)


def test_edits_of_two_runs_are_subtracted(pair: tuple[Run, Run]) -> None:
    layer = "decoder_blocks.0" if pair[0].model.config.family == "encoder-decoder" else "blocks.0"
    found = lens.beside(lens.with_edits, *pair, TEXT, edits=[f"zero {layer}.attn.hook_z:0"], max_new_tokens=2)
    assert found.changes.kl == found.second.kl - found.first.kl
    firsts = {each.id: each.before for each in found.first.predicted}
    for each in found.second.predicted:
        change = next(change for change in found.changes.predicted if change.id == each.id)
        np.testing.assert_equal(change.before, each.before - firsts.get(each.id, np.nan))
    assert found.changes.continued_after == found.first.continued_after
    assert found.table().rows


def test_vectors_of_two_loads_are_subtracted() -> None:
    run, other = run_of("decoder"), run_of("decoder")
    assert run.tokenizer is not other.tokenizer
    changes = lens.beside(lens.embed, run, other, TEXT).changes
    first, second = lens.embed(run, TEXT), lens.embed(other, TEXT)
    assert changes.vectors.equal(second.vectors - first.vectors)
    assert changes.similarities.equal(
        second.similarities - first.similarities
    )  # which are in table and figure
    assert changes.cosines.equal(second.cosines - first.cosines)


def test_the_norm_of_a_gradient_may_have_become_smaller() -> None:
    run, other = run_of("decoder"), run_of("decoder")
    found = lens.beside(lens.weight_gradients, run, other, TEXT)
    each = zip(found.first.matrices, found.second.matrices, found.changes.matrices, strict=True)
    assert all(change.norm == pytest.approx(second.norm - first.norm) for first, second, change in each)


def test_decreases_are_drawn() -> None:
    columns = {
        "step": [1, 2],
        "loss": [3.0, 2.0],
        "grad_norm/embed": [1.0, 2.0],
        "grad_norm/head": [2.0, 1.0],
    }
    first, second = (
        Metrics({name: np.array(values, dtype=float) for name, values in each.items()}, "nats a text")
        for each in (columns, columns | {"grad_norm/head": [1.0, 0.5], "loss": [2.0, 1.0]})
    )
    drawn = []
    for found in (first, lens.difference(first, second)):
        figure = Figure()
        found.draw(figure)
        drawn.append([(axes.get_yscale(), axes.get_ylabel()) for axes in figure.axes])
    assert drawn[0] == [("linear", "loss, nats a text"), ("log", "gradient norm")]
    assert drawn[1] == [
        ("linear", "change of the loss, nats a text"),
        ("linear", "change of the gradient norm"),
    ]
    guesses, figure = lens.next_tokens(run_of("decoder"), TEXT, top=3), Figure()
    lens.difference(guesses, replace(guesses, probabilities=guesses.probabilities - 0.01)).draw(figure)
    assert figure.axes[0].get_xlim()[0] <= -0.01


def test_a_part_that_both_have_in_other_ways_is_told_with_both() -> None:
    first, second = (
        Events([Event("induction", "", None, None, None, 0.1, 0.3, head, "")], [], None, None, [])
        for head in ("blocks.0.attn:0", "blocks.1.attn:0")
    )
    with pytest.raises(UserError, match=r"'induction' is .*0\.attn:0.* in the first and .*1\.attn:0"):
        lens.difference(first, second)


def with_other_weights(run: Run, factor: float) -> Run:
    model = deepcopy(run.model)
    with torch.no_grad():
        model.embed.weight.mul_(factor)
    return Run(model, run.tokenizer)


def test_continuations_of_the_same_tokens_are_subtracted() -> None:
    run = run_of("decoder")
    other = with_other_weights(run, 1.0001)
    found = lens.beside(lens.continuations, run, other, TEXT, max_new_tokens=3, seed=1)
    [one], [another], [change] = (each.continuations for each in (found.first, found.second, found.changes))
    assert [each.id for each in one.tokens] == [each.id for each in another.tokens]
    for a, b, c in zip(one.tokens, another.tokens, change.tokens, strict=True):
        assert (c.probability, c.rank) == (b.probability - a.probability, b.rank - a.rank)


def test_the_largest_estimated_effects_may_be_of_other_places() -> None:
    run, other = run_of("decoder", "char"), run_of("decoder", "char")
    text, donor = "the river", "the money"
    found = lens.beside(lens.patch_every, run, other, text, donor, estimate=True)
    places = [{each.site for each in side.confirmed} for side in (found.first, found.second)]
    changes = {each.site: each.effect for each in found.changes.confirmed}
    assert changes.keys() == places[0] | places[1]
    assert all(np.isfinite(value) == (place in places[0] & places[1]) for place, value in changes.items())


def test_gradients_of_two_runs_are_subtracted(pair: tuple[Run, Run]) -> None:
    name = "embed.weight"
    given: dict[str, Any] = (
        {"output": "the river bank"} if pair[0].model.config.family == "encoder-decoder" else {}
    )
    changes = lens.beside(lens.weight_gradients, *pair, TEXT, names=name, **given).changes[name]
    one, other = (lens.weight_gradients(run, TEXT, name, **given)[name] for run in pair)
    torch.testing.assert_close(changes.matrix, other.matrix - one.matrix)
    shares = [b.share - a.share for a, b in zip(one.terms, other.terms, strict=True)]
    assert [term.share for term in changes.terms] == shares


def test_metrics_are_known_by_their_columns() -> None:
    one, other = (Metrics({"step": np.array([1.0, 2]), "loss": np.array([3.0, last])}) for last in (2.0, 1.0))
    assert one.to_dict() == {"columns": {"step": [1.0, 2.0], "loss": [3.0, 2.0]}}
    assert one == Metrics(dict(one.columns)) != other
    assert repr(one) == "Metrics(columns={'step': <array [2]>, 'loss': <array [2]>})"


def test_metrics_are_subtracted_at_the_steps_of_both() -> None:
    one = Metrics({"step": np.array([1.0, 2, 4]), "loss": np.array([3.0, 2, 1]), "lr": np.ones(3)})
    other = Metrics({"step": np.array([2.0, 3, 4]), "loss": np.array([2.5, 2, 0.25])})
    changes = lens.difference(one, other).changes.columns
    assert list(changes) == ["step", "loss"]
    np.testing.assert_array_equal(changes["step"], [2, 4])
    np.testing.assert_array_equal(changes["loss"], [0.5, -0.75])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_layers": 2}, "3 and 2 layers"),
        ({"attention": MultiHead(n_heads=11)}, "2 and 11 heads"),
    ],
)
def test_what_cannot_be_subtracted_is_said_in_one_line(changed: dict[str, Any], words: str) -> None:
    run, other = run_of("decoder"), run_of("decoder", **changed)
    with pytest.raises(UserError) as raised:
        lens.beside(lens.attention_overview, run, other, TEXT)
    assert words in str(raised.value)
    assert "lens.tokens" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert np.isfinite(lens.beside(lens.tokens, run, other, TEXT).changes.losses[:-1]).all()


def test_other_tokens_other_families_and_other_results_are_refused() -> None:
    run = run_of("decoder")
    with pytest.raises(UserError, match=r"tokens: .*cannot be subtracted") as raised:
        lens.beside(lens.tokens, run, run_of("decoder", "char"), TEXT)
    assert "lens.tokens can still" not in str(raised.value)
    with pytest.raises(UserError, match=r"^the runs do not have the same outputs.*no logit in common"):
        lens.beside(lens.ledger, run_of("encoder"), run_of("encoder", n_classes=3), TEXT)
    with pytest.raises(UserError, match=r"family: .*decoder and .*encoder"):
        lens.beside(lens.tokens, run, run_of("encoder"), TEXT)
    with pytest.raises(UserError, match="Ledger and LogitLens"):
        lens.difference(lens.ledger(run, TEXT), lens.logit_lens(run, TEXT))
    with pytest.raises(UserError, match="two results of the lens; got 3"):
        lens.difference(3, lens.ledger(run, TEXT))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="token: the first has"):
        lens.difference(lens.ledger(run, TEXT, position=1), lens.ledger(run, TEXT, position=2))
