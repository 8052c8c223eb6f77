"""Values come back as they were sent."""

import json
import struct
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from clearformer.page.wire import decode, encode


@dataclass
class Pair:
    left: object
    right: object


@given(
    st.lists(
        arrays(
            st.sampled_from([np.float32, np.float64, np.int32, np.uint8]),
            array_shapes(max_dims=3, max_side=5, min_side=0),
        ),
        max_size=4,
    )
)
def test_arrays_of_any_shape_come_back_to_the_bit(given_arrays: list[np.ndarray]) -> None:
    found = decode(encode({"arrays": given_arrays}))["arrays"]
    for one, other in zip(given_arrays, found, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()


def test_arrays_begin_where_typed_arrays_may() -> None:
    for text in ("", "a", "ab", "déjà vu"):
        content = encode([text, np.zeros(3, np.uint8), np.arange(2.0)])
        (length,) = struct.unpack_from("<I", content)
        start = len(content) - 8 - 16
        assert start % 8 == 0
        assert start - (4 + length) < 8


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (np.array([True, False]), np.array([1, 0], np.uint8)),
        (np.array([1, 2]), np.array([1, 2], np.int32)),
        (np.array([1.5], np.float16), np.array([1.5], np.float32)),
        (np.arange(6.0).reshape(2, 3).T, np.arange(6.0).reshape(2, 3).T),
        (np.array([1.0], ">f8"), np.array([1.0])),
    ],
)
def test_other_arrays_become_ones_that_browsers_know(sent: np.ndarray, read: np.ndarray) -> None:
    found = decode(encode(sent))
    assert found.dtype == read.dtype
    np.testing.assert_array_equal(found, read)


def test_what_is_not_finite_is_null_in_json_and_itself_in_arrays() -> None:
    found = decode(encode(Pair(float("nan"), [float("inf"), np.array([np.nan])])))
    assert found["left"] is None
    assert found["right"][0] is None
    assert np.isnan(found["right"][1][0])
    json.dumps(found["left"], allow_nan=False)


def test_whole_numbers_in_a_row_travel_as_a_range() -> None:
    numbers = list(range(7, 700))
    assert decode(encode({"rows": numbers, "place": tuple(numbers)})) == {"rows": numbers, "place": numbers}
    assert len(encode(numbers)) < 80
    for others in (
        [*numbers, 9],
        numbers[::-1],
        [True, *range(2, 40)],
        [1.0, *range(2, 40)],
        [0.5] * 40,
        ["a"] * 40,
    ):
        assert decode(encode(others)) == others


def test_lists_of_mixed_values_keep_what_is_no_number_of_jsons() -> None:
    values = [1, "two", None, True, np.float32(0.5), float("nan"), np.arange(3)]
    *plain, array = decode(encode(values))
    assert plain == [1, "two", None, True, 0.5, None]
    np.testing.assert_array_equal(array, np.arange(3))
