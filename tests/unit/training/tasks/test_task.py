"""The parts of a batch: together they are the whole of it."""

import pytest

from clearformer.errors import ConfigError
from clearformer.training.tasks.next_token import NextTokenTask
from clearformer.training.tasks.task import Task, check_rows_divide, contiguous_rows


@pytest.mark.parametrize("n_parts", [1, 2, 3, 4, 6, 12])
def test_the_parts_take_every_row_once(n_parts: int) -> None:
    parts = [contiguous_rows(12, part, n_parts) for part in range(n_parts)]

    assert [row for part in parts for row in range(12)[part]] == list(range(12))
    assert {part.stop - part.start for part in parts} == {12 // n_parts}


def test_parts_are_strided_unless_a_task_takes_adjacent_rows() -> None:
    assert list(range(7)[Task.rows_of_part(7, 1, 3)]) == [1, 4]
    assert (
        list(range(6)[NextTokenTask.rows_of_part(6, 1, 3)])
        == list(range(6)[contiguous_rows(6, 1, 3)])
        == [2, 3]
    )


@pytest.mark.parametrize("n_parts", [5, 24])
def test_rows_that_do_not_divide_are_refused(n_parts: int) -> None:
    with pytest.raises(ConfigError, match=rf"train\.batch_size: 12 rows .* {n_parts} parts .*multiple of"):
        check_rows_divide(12, n_parts)
