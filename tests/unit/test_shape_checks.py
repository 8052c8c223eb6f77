"""The run-time checks of annotations that these tests themselves rely on (tests/shape_checks.py)."""

from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest
import torch
from beartype import beartype
from jaxtyping import Float
from torch import Tensor, ones

from clearformer.hooks import ActivationCache
from clearformer.model.linear_attention import linear_pattern

from ..shape_checks import checked_once


def product(
    x: Float[Tensor, "A B"], y: Float[Tensor, "B C"], transposed: bool = False
) -> Float[Tensor, "A C"]:
    return (x @ y).mT if transposed else x @ y


@pytest.fixture
def checked() -> Callable[..., Any]:
    return checked_once(typechecker=beartype)(product)


def test_each_shape_is_checked_however_many_passed(checked: Callable[..., Any]) -> None:
    for _ in range(2):
        for rows in (2, 3):
            assert checked(ones(rows, 5), ones(5, 7)).shape == (rows, 7)
        with pytest.raises(jaxtyping.TypeCheckError):
            checked(ones(5), ones(5, 7))


def doubled(x: Float[Tensor, "A B"]) -> Tensor:  # torch takes integers too
    return x + x


def test_a_type_is_checked_after_the_same_shape_has_passed() -> None:
    checked = checked_once(typechecker=beartype)(doubled)
    for _ in range(2):
        checked(ones(2, 5))
        with pytest.raises(jaxtyping.TypeCheckError):
            checked(ones(2, 5, dtype=torch.int64))


def test_a_result_of_another_shape_is_found(checked: Callable[..., Any]) -> None:
    checked(ones(2, 5), ones(5, 7))
    for _ in range(2):
        with pytest.raises(jaxtyping.TypeCheckError, match="return value"):
            checked(ones(2, 5), ones(5, 7), transposed=True)


def test_the_model_is_checked() -> None:
    """The formula itself takes a tensor of three dimensions too; the first part of it that is called refuses it."""
    with pytest.raises(jaxtyping.TypeCheckError, match=r"linear_attention\.never_0"):
        linear_pattern(ones(2, 3, 3))


def test_a_mapping_that_is_checked_itself_is_checked() -> None:
    """To check an `ActivationCache`, beartype asks it for an item, which is a checked call in a check."""
    looked_at = looking(ActivationCache(hook_embed=ones(2)), ones(2))
    assert looked_at["embed"].shape == (2,)


@checked_once(typechecker=beartype)
def looking(cache: ActivationCache, _: Float[Tensor, " N"]) -> ActivationCache:
    return cache


def test_items_of_another_kind_are_found_however_many_passed() -> None:
    for _ in range(2):
        assert total_of([1, 2]) == 3
        with pytest.raises(jaxtyping.TypeCheckError, match="total_of"):
            total_of([1.5])


@checked_once(typechecker=beartype)
def total_of(numbers: list[int]) -> int:
    return sum(numbers)
