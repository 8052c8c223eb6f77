"""In turn, medians, and the ratio within each round."""

import pytest

from clearformer.bench.rounds import Absent, Comparison, Contender, Figures, interleave


def test_the_sides_take_turns_after_one_go_each_that_does_not_count() -> None:
    order: list[str] = []

    def side(name: str) -> Contender:
        def measure() -> float:
            order.append(name)
            return float(len(order))

        return Contender(name, measure, note=f"note of {name}")

    told: list[tuple[str, float]] = []
    a, b = interleave([side("a"), side("b")], 2, lambda name, value: told.append((name, value)))

    assert order == ["a", "b", "a", "b", "a", "b"]
    assert a == Figures("a", [3.0, 5.0], "note of a")
    assert b == Figures("b", [4.0, 6.0], "note of b")
    assert told == [("a", 3.0), ("b", 4.0), ("a", 5.0), ("b", 6.0)]


OURS, THEIRS = Figures("ours", [10.0, 30.0, 20.0]), Figures("theirs", [5.0, 10.0, 2.0], "another model")


@pytest.mark.parametrize(("more_is_better", "times"), [(True, 3.0), (False, 1 / 3)])
def test_the_ratio_is_the_median_of_the_rounds_ratios(more_is_better: bool, times: float) -> None:
    """2, 3 and 10 here; the ratio of the medians would be 4."""
    comparison = Comparison("what", "tokens/s", more_is_better, [OURS, THEIRS])
    assert comparison.times_as_fast(THEIRS) == pytest.approx(times)


def test_what_a_file_of_results_holds() -> None:
    comparison = Comparison("what", "ms", True, [OURS, THEIRS], [Absent("third", "not installed")], {"n": 3})
    assert comparison.to_json() == {
        "what": "what",
        "unit": "ms",
        "sides": [
            {"name": "ours", "rounds": [10, 30, 20], "median": 20},
            {
                "name": "theirs",
                "rounds": [5, 10, 2],
                "median": 5,
                "clearformer_times_as_fast": 3,
                "note": "another model",
            },
        ],
        "absent": {"third": "not installed"},
        "n": 3,
    }
