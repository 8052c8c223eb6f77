"""Who may read whom."""

import pytest
import torch
from torch import Tensor

from clearformer.model.masks import Mask


def mask(n_queries: int, n_keys: int, causal: bool, padding: Tensor | None = None) -> Mask:
    """The last queries of a text read all its keys, as with a cache."""
    k_pos = torch.arange(n_keys)
    return Mask(q_pos=k_pos[n_keys - n_queries :], k_pos=k_pos, causal=causal, padding=padding)


def rows(attend: Tensor) -> list[str]:
    """A mask as text: x may be read, . may not."""
    return ["".join("x" if may else "." for may in row) for row in attend.tolist()]


@pytest.mark.parametrize(
    ("causal", "window", "expected"),
    [
        (True, None, ["x....", "xx...", "xxx..", "xxxx.", "xxxxx"]),
        (True, 2, ["x....", "xx...", ".xx..", "..xx.", "...xx"]),
        (True, 1, ["x....", ".x...", "..x..", "...x.", "....x"]),
        (False, None, ["xxxxx"] * 5),
        (False, 2, ["xx...", "xxx..", ".xxx.", "..xxx", "...xx"]),
    ],
)
def test_attend(causal: bool, window: int | None, expected: list[str]) -> None:
    assert rows(mask(5, 5, causal).attend(window)[0, 0]) == expected


def test_attend_for_the_last_queries_of_a_text() -> None:
    assert rows(mask(2, 5, causal=True).attend(None)[0, 0]) == ["xxxx.", "xxxxx"]
    assert rows(mask(2, 5, causal=True).attend(3)[0, 0]) == [".xxx.", "..xxx"]


def test_padding_is_read_by_nobody() -> None:
    real = torch.tensor([[False, True, True], [True, True, False]])
    places = torch.tensor([[0, 0, 1], [0, 1, 1]])  # padding does not count
    attend = Mask(q_pos=places, k_pos=places, causal=True, padding=real).attend(None)

    assert attend.shape == (2, 1, 3, 3)
    assert rows(attend[0, 0])[1:] == [".x.", ".xx"]
    assert rows(attend[1, 0])[:2] == ["x..", "xx."]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 4, 5, 6])
@pytest.mark.parametrize("n_queries", [1, 2, 5])
def test_what_is_known_from_the_shapes_is_what_the_mask_says(
    n_queries: int, window: int | None, causal: bool
) -> None:
    some = mask(n_queries, 5, causal)
    attend = some.attend(window)[0, 0]

    assert some.reads_everything(window) == bool(attend.all())
    assert some.is_triangle(window) == (n_queries == 5 and rows(attend) == rows(attend.new_ones(5, 5).tril()))


@pytest.mark.parametrize("causal", [True, False])
def test_padding_is_never_known_from_the_shapes(causal: bool) -> None:
    some = mask(5, 5, causal, padding=torch.ones(1, 5, dtype=torch.bool))
    assert not some.reads_everything(None)
    assert not some.is_triangle(None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_a_score_added_to_what_may_not_be_read_stays_finite(dtype: torch.dtype) -> None:
    matrix = Mask(torch.arange(3), torch.arange(3), causal=True).matrix(None, dtype)
    scores = torch.full((3, 3), -1000.0, dtype=dtype) + matrix
    assert scores.isfinite().all()
    assert torch.equal(Mask.keeps(scores)[0, 0], torch.ones(3, 3).tril().bool())
    assert torch.equal(scores.float().softmax(-1)[0, 0, 0], torch.tensor([1.0, 0.0, 0.0]))
