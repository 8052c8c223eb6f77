"""Figures of studies: what they draw, without overlaps, as small SVG that says in words what it shows."""

import itertools
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from clearformer.study.figures import Bars, Curves, Distributions, Lines, Matrix, Texts, Trend
from clearformer.study.figures.base import Point, curve_points
from clearformer.study.figures.drawing import spread
from clearformer.study.figures.lines import are_layers
from clearformer.study.outcomes import Outcome
from clearformer.study.report.pictures import is_there, svg_of, with_variables
from clearformer.study.study import Figure, Published, Training, Values, tuned

from .reported import losses, outcome_of, study

ODD = "<b>$x$ & co"
ARMS = ("one", "two", ODD)


def values_of(arm: str, seed: int) -> Values:
    shift = 0.1 * ARMS.index(arm) + 0.01 * seed
    return {
        "loss": 1.5 + shift,
        "curve": [
            [s, 100 * s, 0.5 * s, 1.5 + shift + 40 / s**2, None if s % 5 else 1.6 + shift]
            for s in range(1, 41)
        ],
        "rows": [[d, d**0.5 + shift] for d in (16, 64, 256)],
        "by_name": {"a": [[1, 2.0], [2, 3.0]], "b": [[1, 1.0], [2, 1.5]]},
        "matrix": [[1.0, 0.0], [0.25, 0.75]],
        "tokens": ["K", " "],
        "next": {"e": 0.5, " ": 0.3, "\n": 0.2},
        "counted": {"t": [["h", 0.6], ["e", 0.4]], " ": [["t", 0.7], ["a", 0.3]]},
        "learned": {"t": [["h", 0.5], ["e", 0.5]], " ": [["t", 0.8], ["a", 0.2]]},
        "sample": f"{arm}\n{seed} $5 & <i>",
        "samples": {"cold": "the the", "hot": "Xq!"},
    }


def all_values(published: tuple[Published, ...] = ()) -> Outcome:
    of = study(*ARMS, seeds=2, published=published)
    return outcome_of(of, {arm: [values_of(arm, seed) for seed in (1, 2)] for arm in ARMS})


FIGURES: tuple[Figure, ...] = (
    Curves("Loss on the way"),
    Curves("By time", x="seconds", log_x=True, highest=2.0),
    Curves("Above a bound", bound="loss"),
    Bars("At the end", "loss", baseline={"uniform": 4.174}),
    Bars("At the end", "loss", log_x=True, unit="nats"),
    Lines("Spread", "rows", "d", "size of a key", "spread", log_x=True, log_y=True, ideal=lambda d: d**0.5),
    Lines("By name", "by_name", series=("a",), ideal=2.5),
    Trend("By depth", "loss", {"one": 1, "two": 2, ODD: 4}, "layers", {"one": "g", "two": "g", ODD: ODD}),
    Matrix("Weights", "matrix", "one", "query", "key", "tokens"),
    Distributions("Next", "next"),
    Distributions("Next, together", "next", together=True),
    Distributions("After a letter", "counted"),
    Distributions("Counted and learned", ("counted", "learned"), arms=("one",)),
    Texts("Samples", "sample"),
)


def drawn(figure: Figure, outcome: Outcome) -> Any:
    canvas = Canvas(figsize=figure.inches(outcome), dpi=72)
    FigureCanvasAgg(canvas)
    figure.draw(canvas, outcome)
    canvas.canvas.draw()
    return canvas


def texts_of(svg: str) -> list[str]:
    return [
        "".join(each.itertext())
        for each in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    ]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: f"{type(figure).__name__}: {figure.title}")
class TestEveryFigure:
    def test_is_the_same_svg_each_time_small_and_accessible(self, figure: Figure) -> None:
        svg = svg_of(figure, all_values(), "planted-1")

        assert svg == svg_of(figure, all_values(), "planted-1")
        assert len(svg) < 100_000
        root = ElementTree.fromstring(svg)
        title, desc, *_ = root
        assert (title.text, root.attrib["role"]) == (figure.title, "img")
        assert root.attrib["aria-labelledby"] == f"{title.attrib['id']} {desc.attrib['id']}"
        assert figure.title in texts_of(svg)

    def test_ids_are_its_own_and_nothing_is_fetched(self, figure: Figure) -> None:
        svg = svg_of(figure, all_values(), "planted-1")

        ids = re.findall(r' id="([^"]+)"', svg)
        assert len(set(ids)) == len(ids)
        assert all(each.startswith("planted-1-") for each in ids)
        assert set(re.findall(r'(?:url\(|href=")#([\w-]+)', svg)) <= set(ids)
        places = set(re.findall(r'https?://[^"\s<]+', svg))
        assert places <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
        assert "<!DOCTYPE" not in svg
        assert "metadata" not in svg

    def test_its_words_stand_on_its_paper(self, figure: Figure) -> None:
        canvas = drawn(figure, all_values())

        box, (width, height) = canvas.get_tightbbox(), canvas.get_size_inches()
        assert min(box.x0, box.y0) >= -0.01
        assert box.x1 <= width + 0.01
        assert box.y1 <= height + 0.01

    def test_without_values_it_is_left_out_and_yet_draws(self, figure: Figure) -> None:
        empty = outcome_of(study(*ARMS), {})
        assert not is_there(figure, empty)
        svg_of(figure, empty, "planted-1")


def test_names_are_shown_letter_by_letter() -> None:
    assert ODD in texts_of(svg_of(Bars("At the end", "loss"), all_values(), "planted-1"))


def test_curves_tell_training_and_held_out_of_every_arm_apart_without_a_legend() -> None:
    texts = texts_of(svg_of(Curves("Loss on the way"), all_values(), "planted-1"))
    for end in ("one 1.54", "one, held-out 1.62", "two, held-out 1.72"):
        assert end in texts


def test_a_curve_s_label_is_the_loss_of_the_tables_and_not_of_its_last_point() -> None:
    curve = [[10, 100, 1.0, 2.0, 2.5], [20, 200, 2.0, 1.0, 1.75]]
    values = [{"curve": curve, "train_loss": 1.25, "val_loss": 1.5}]
    texts = texts_of(svg_of(Curves("Loss"), outcome_of(study("a", seeds=1), {"a": values}), "planted-1"))
    assert {"a 1.25", "a, held-out 1.50"} <= set(texts)


@pytest.mark.parametrize(
    ("figure", "labelled"),
    [
        (Curves("Loss"), "loss, nats a text"),
        (Bars("Loss", "val_loss"), "held-out loss, nats a text"),
        (Lines("Loss", "loss_by_position"), "held-out loss, nats a text"),
        (Trend("Loss", "val_loss", {"a": 1.0}, "size"), "held-out loss, nats a text"),
    ],
)
def test_figures_of_classifiers_say_that_their_losses_count_texts(figure: Figure, labelled: str) -> None:
    curve = [[10, 100, 1.0, 2.0, 2.5], [20, 200, 2.0, 1.0, 1.75]]
    values = [{"curve": curve, "val_loss": 1.5, "loss_by_position": [[1, 2.0], [2, 1.0]]}]
    of = study("a", seeds=1, arms=(Training("a", "classify"),))
    assert labelled in texts_of(svg_of(figure, outcome_of(of, {"a": values}), "planted-1"))


def test_each_arm_s_bound_is_a_dotted_line_in_its_colour_and_within_the_axes() -> None:
    values = {arm: [{**values_of(arm, 1), "least": low}] for arm, low in (("one", 0.5), ("two", 0.75))}
    outcome, figure = outcome_of(study("one", "two", seeds=1), values), Curves("Loss", bound="least")
    [axes] = drawn(figure, outcome).axes
    solid = [line for line in axes.lines if line.get_linestyle() == "-"]
    dotted = [line for line in axes.lines if set(line.get_ydata()) in ({0.5}, {0.75})]
    assert [line.get_ydata()[0] for line in dotted] == [0.5, 0.75]
    assert [line.get_color() for line in dotted] == [line.get_color() for line in solid]
    assert axes.get_ylim()[0] < 0.5
    assert "Dotted: least" in figure.note(outcome)
    assert "Dotted" not in Curves("Loss", bound="unknown").note(outcome)


def test_seeds_are_counted_of_the_arms_that_have_the_value() -> None:
    values = {"one": [values_of("one", 1)], "two": losses(1.0, 2.0, 3.0)}
    outcome = outcome_of(study("one", "two", seeds=3), values)
    assert Curves("Loss").note(outcome).endswith("One seed.")
    assert (
        Texts("Samples", "sample").note(outcome) == Matrix("m", "matrix", "one", "q", "k").note(outcome) == ""
    )
    assert "3 seeds" in Lines("Loss", "loss").note(outcome)


def test_a_published_number_at_the_baseline_is_told_once() -> None:
    outcome = all_values(published=(Published("two", "loss", 1.63, 0.05, "5.4"),))
    texts = texts_of(svg_of(Bars("At the end", "loss", baseline=1.63), outcome, "planted-1"))
    assert "baseline: 1.630" in texts
    assert "lecture 1.63" not in texts


def test_labels_at_the_ends_do_not_overlap_where_the_lines_do() -> None:
    arms = tuple(f"arm {i}" for i in range(9))
    same = {arm: [{"rows": [[0, 1.0], [1, 2.0]]}] for arm in arms}
    canvas = drawn(Lines("Alike", "rows"), outcome_of(study(*arms, seeds=1), same))
    boxes = [t.get_window_extent() for t in canvas.axes[0].texts if t.get_text() in arms]
    assert len(boxes) == 9
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)


def test_a_first_loss_far_above_does_not_flatten_the_rest() -> None:
    canvas = drawn(Curves("Loss on the way"), all_values())
    assert canvas.axes[0].get_ylim()[1] < 25
    assert canvas.axes[0].get_ylim()[0] < 1.6


def test_bars_mark_the_published_number_of_the_arm_and_the_baseline() -> None:
    outcome = all_values(
        published=(Published("two", "loss", 1.63, 0.05, "5.4"), Published("one", "rows", 7, 1, ""))
    )
    texts = texts_of(svg_of(Bars("At the end", "loss", baseline={"uniform": 4.174}), outcome, "planted-1"))
    assert "lecture 1.63" in texts
    assert "lecture 7" not in texts
    assert "uniform: 4.174" in texts


def test_arms_that_were_not_measured_are_left_out() -> None:
    some = outcome_of(study(*ARMS), {"two": losses(1.0, 1.1)})
    texts = texts_of(svg_of(Bars("At the end", "loss"), some, "planted-1"))
    assert "two" in texts
    assert "one" not in texts


def test_rows_of_a_curve_may_come_in_any_order() -> None:
    rows = [[3.0, 1.0], [2.0, 5.0], [1.0, 9.0]]
    assert curve_points([rows], 0, 1) == [Point(x, y, y, y) for x, y in reversed(rows)]


def test_curve_points_are_of_the_steps_since_all_seeds_have_begun() -> None:
    one, other = [[1, 0, 0, 2.0, None], [2, 0, 0, 1.0, 5.0]], [[2, 0, 2, 3.0, 7.0], [3, 0, 0, 9.0, None]]
    assert curve_points([one, other], 0, 3) == [Point(2.0, 2.0, 1.0, 3.0), Point(2.5, 5.0, 1.0, 9.0)]
    assert curve_points([one, other], 2, 4) == [Point(1.0, 6.0, 5.0, 7.0)]
    assert curve_points([], 0, 3) == []


def test_curves_that_end_by_the_clock_have_no_step_in_common_and_are_drawn() -> None:
    fast, slow = [[0, 0, 0, 4.0, None], [40, 0, 0, 2.0, 2.5]], [[10, 0, 0, 4.0, None], [20, 0, 0, 3.0, 3.5]]
    assert curve_points([fast, slow], 0, 3) == [
        Point(10.0, 3.75, 3.5, 4.0),
        Point(20.0, 3.0, 3.0, 3.0),
        Point(30.0, 2.5, 2.0, 3.0),  # of both ends
    ]
    assert curve_points([fast, slow], 0, 4) == [Point(30.0, 3.0, 2.5, 3.5)]


def test_a_line_ends_where_not_all_seeds_were_measured_any_more() -> None:
    rows = [[[0, 4.0], [10, 2.0]], [[0, 4.0], [10, 3.0], [20, 2.0], [30, 1.0]]]
    of = outcome_of(study("one", seeds=2), {"one": [{"y": each} for each in rows]})
    assert Lines("m", "y").lines(of) == {"one": [Point(0.0, 4.0, 4.0, 4.0), Point(10.0, 2.5, 2.0, 3.0)]}


def test_a_series_that_the_first_seed_lacks_is_drawn() -> None:
    values = [{"y": {"a": [[0, 1.0]]}}, {"y": {"a": [[0, 3.0]], "b": [[0, 5.0]]}}]
    of = outcome_of(study("one", seeds=2), {"one": values})
    assert {name: points[0].mean for name, points in Lines("m", "y").lines(of).items()} == {
        "a": 2.0,
        "b": 5.0,
    }


@pytest.mark.parametrize(
    ("places", "are"),
    [({0, 1, 2, 3}, True), ({1, 2, 4, 8}, False), ({0.5, 1.5}, False), ({7}, False), (set(range(17)), False)],
)
def test_layers_are_a_few_whole_numbers_next_to_each_other(places: set[float], are: bool) -> None:
    assert are_layers(places) == are


def test_what_theory_says_is_a_number_a_function_or_rows() -> None:
    lines = {"one": [Point(1, 1, 1, 1), Point(4, 2, 2, 2)]}
    assert Lines("t", "v", ideal=3.0).ideal_points(lines) == [(1, 3.0), (4, 3.0)]
    assert Lines("t", "v", ideal=lambda x: x**0.5).ideal_points(lines) == [(1, 1.0), (4, 2.0)]
    assert Lines("t", "v", ideal=[[2, 5], [3, 6]]).ideal_points(lines) == [(2, 5), (3, 6)]


def test_a_trend_shows_each_arm_that_it_places_also_those_of_one_side() -> None:
    arms = tuned("s", {}, (0.1, 0.2, 0.4))
    outcome = outcome_of(study(seeds=1, arms=arms), {arm.label: losses(i) for i, arm in enumerate(arms)})
    figure = Trend(
        "By rate", "loss", {"s, rate 0.4": 0.4, "s, rate 0.1": 0.1, "unknown": 1.0}, "rate", log_x=True
    )
    assert [(x, each.mean) for x, each in figure.lines(outcome)[""]] == [(0.1, 0), (0.4, 2)]
    assert figure.summary(outcome).startswith("rate 0.1: 0")
    [axes] = drawn(figure, outcome).axes
    assert list(axes.get_xticks()) == [0.1, 0.4, 1.0]


def test_distributions_are_panels_of_arms_of_names_or_of_values() -> None:
    outcome = all_values()
    assert list(Distributions("d", "next").panels(outcome)) == list(ARMS)
    assert list(Distributions("d", "next", together=True).panels(outcome)[""]) == list(ARMS)
    by_name = Distributions("d", "counted", names=(" ",)).panels(outcome)
    assert list(by_name[" "]["one"].items()) == [("t", 0.7), ("a", 0.3)]
    both = Distributions("d", ("counted", "learned"), arms=("one",)).panels(outcome)
    assert list(both["t"]) == ["counted", "learned"]


def test_tokens_that_cannot_be_seen_have_signs() -> None:
    texts = texts_of(svg_of(Distributions("d", "next", arms=("one",)), all_values(), "planted-1"))
    assert {"e", "␣", "⏎", "50%"} <= set(texts)


def test_a_matrix_names_rows_and_columns_and_writes_its_numbers() -> None:
    texts = texts_of(
        svg_of(Matrix("m", "matrix", "one", "query", "key", "tokens"), all_values(), "planted-1")
    )
    assert {"K", "␣", "rows: query", "columns: key", "1.00", ".25", ".75"} <= set(texts)


def test_numbers_above_1_in_a_matrix_are_whole() -> None:
    of = outcome_of(study("one", seeds=1), {"one": [{"m": [[10.05, 20.5], [0.5, -30.25]]}]})
    texts = texts_of(svg_of(Matrix("m", "m", "one", "row", "column", ("a", "b")), of, "planted-1"))
    written = [text.replace("\N{MINUS SIGN}", "-") for text in texts]
    assert {"10.05", "20.50", ".50", "-30.25"} <= set(written)


def test_small_numbers_in_a_matrix_have_the_decimals_that_they_take() -> None:
    of = outcome_of(study("one", seeds=1), {"one": [{"m": [[0.001, 0.002], [0.0, -0.001]]}]})
    texts = texts_of(svg_of(Matrix("m", "m", "one", "row", "column", ("a", "b")), of, "planted-1"))
    assert {".0010", ".0020", "-.0010"} <= {text.replace("\N{MINUS SIGN}", "-") for text in texts}


def test_a_mask_has_neither_numbers_nor_a_scale() -> None:
    of = outcome_of(study("one", seeds=1), {"one": [{"mask": [[True, False], [True, True]]}]})
    texts = texts_of(svg_of(Matrix("m", "mask", "one", "query", "key", ("a", "b")), of, "planted-1"))
    assert {"a", "b", "rows: query"} <= set(texts)
    assert not any(re.search(r"\d", text) for text in texts)


def test_texts_are_one_several_or_by_name() -> None:
    outcome = all_values()
    assert Texts("t", "sample", arms=("two",)).blocks(outcome) == [("two", "two\n1 $5 & <i>")]
    assert [label for label, _ in Texts("t", "samples", arms=("two",)).blocks(outcome)] == ["cold", "hot"]
    assert next(label for label, _ in Texts("t", "samples").blocks(outcome)) == "one, cold"


def test_a_page_can_turn_a_figure_dark() -> None:
    svg = svg_of(Bars("At the end", "loss"), all_values(), "planted-1")
    assert "var(" not in svg
    assert "var(--paper, #ffffff)" in with_variables(svg)
    assert "var(--ink, #1f2933)" in with_variables(svg)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 0.2))
def test_spread_places_are_a_gap_apart_in_their_order(wished: list[float], gap: float) -> None:
    places = spread(wished, gap)
    order = sorted(range(len(wished)), key=lambda i: wished[i])
    for above, below in itertools.pairwise(order):
        assert places[below] - places[above] >= gap - 1e-9
    assert sum(places) == pytest.approx(sum(wished))


def test_spread_keeps_to_its_room_where_it_can() -> None:
    assert spread([0.0, 0.0, 0.02], 0.1, room=1.0) == pytest.approx([0.0, 0.1, 0.2])
    assert spread([1.0, 0.99], 0.1, room=1.0) == pytest.approx([1.0, 0.9])
    assert spread([0.5, 0.5], 2.0, room=1.0) == pytest.approx([-0.5, 1.5])


def test_spread_moves_nothing_that_is_apart() -> None:
    assert spread([0.9, 0.1, 0.5], 0.1) == pytest.approx([0.9, 0.1, 0.5])
