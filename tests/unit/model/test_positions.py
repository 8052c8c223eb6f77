"""The three seams through which order enters: embed, rotate, bias."""

import copy
import math
import pickle
from typing import ClassVar

import pytest
import torch
from torch import nn

from clearformer.errors import ConfigError
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.positions import (
    ALiBi,
    Learned,
    NoPositions,
    PositionBase,
    RoPE,
    Sinusoidal,
    Sizes,
    alibi_slopes,
    build_positions,
    sinusoidal_table,
)
from clearformer.model.relative_positions import Relative, RelativeBiases

D, H, DH, MAX_T = 14, 3, 6, 11


@pytest.mark.parametrize("kind", [NoPositions(), Sinusoidal(), Learned(), RoPE(), ALiBi(), Relative()])
def test_a_flag_that_is_not_true_of_its_kind_is_refused(kind: PositionBase) -> None:
    """Such as the vectors of one that does not say that it embeds, which a ledger would leave out."""
    sizes = Sizes(D, H, DH, MAX_T)
    build_positions(kind, sizes)
    for flag in ("embeds", "rotates", "adds_bias"):
        wrong = type(
            "Wrong", (type(kind),), {"__annotations__": {flag: ClassVar[bool]}, flag: not getattr(kind, flag)}
        )
        with pytest.raises(ConfigError, match=rf"of its own: set {flag}: ClassVar\[bool\] = "):
            build_positions(wrong(), sizes)


def test_no_positions_leave_no_trace() -> None:
    positions, pos = NoPositions().build(Sizes(D, H, DH, MAX_T)), torch.arange(5)
    x = torch.randn(2, 5, H, DH)
    assert positions.embed(pos) is None
    assert positions.rotate(x, pos) is x
    assert positions.bias(pos, pos) is None


@pytest.mark.parametrize("d_model", [1, 2, 7, 14])
def test_sinusoidal_table_is_its_formula(d_model: int) -> None:
    table = sinusoidal_table(d_model, 1000)
    assert table.shape == (1000, d_model)
    for t in (0, 1, 11, 999):
        for i in range(d_model):
            angle = t / 10_000 ** ((i // 2 * 2) / d_model)
            expected = math.sin(angle) if i % 2 == 0 else math.cos(angle)
            assert table[t, i].item() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("d_model", [1, 2, 7, 14])
def test_sines_may_all_stand_before_the_cosines(d_model: int) -> None:
    """The same numbers in another order of the dimensions; of an odd size, one sine more."""
    table = sinusoidal_table(d_model, 1000)
    halves = torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)
    assert torch.equal(sinusoidal_table(d_model, 1000, interleaved=False), halves)
    vectors = Sinusoidal(interleaved=False).build(Sizes(d_model, H, DH, 1000)).embed(torch.tensor([999]))
    assert vectors is not None
    assert torch.equal(vectors, halves[[999]])


def test_a_shifted_sinusoid_is_a_linear_function_of_it() -> None:
    """PE(t + k) = R_k PE(t), with R_k the same for every t (lecture 002, section 4.3)."""
    table, k = sinusoidal_table(D, 200).double(), 17
    sin_k, cos_k = table[k, 0::2], table[k, 1::2]
    sin_t, cos_t = table[:-k, 0::2], table[:-k, 1::2]
    shifted = torch.stack([sin_t * cos_k + cos_t * sin_k, cos_t * cos_k - sin_t * sin_k], dim=-1).flatten(1)
    torch.testing.assert_close(shifted, table[k:], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spec", [Sinusoidal(), Learned()])
def test_embed_gives_each_position_its_vector(spec: Sinusoidal | Learned) -> None:
    positions = spec.build(Sizes(D, H, DH, MAX_T))
    table = next(iter(positions.state_dict().values()), getattr(positions, "table", None))
    assert table is not None
    table.normal_()
    pos = torch.tensor([[3, 0], [10, 3]])

    vectors = positions.embed(pos)

    assert vectors is not None
    torch.testing.assert_close(vectors[0, 0], table[3])
    torch.testing.assert_close(vectors[1], torch.stack([table[10], table[3]]))


@pytest.mark.parametrize("fraction", [1.0, 1 / 3])
def test_rope_turns_the_pairs_of_its_fraction_and_no_other(fraction: float) -> None:
    positions = RoPE(fraction=fraction, theta=50.0).build(Sizes(D, H, DH, MAX_T))
    x, pos = torch.randn(2, 4, H, DH), torch.tensor([0, 1, 5, 10])

    turned = positions.rotate(x, pos)

    n = round(DH * fraction)
    assert torch.equal(turned[:, 0], x[:, 0])
    assert torch.equal(turned[..., n:], x[..., n:])
    for i in range(n // 2):
        before = torch.complex(x[..., i], x[..., i + n // 2])
        after = torch.complex(turned[..., i], turned[..., i + n // 2])
        angles = pos * 50.0 ** (-2 * i / n)
        expected = before * torch.polar(torch.ones(4), angles)[:, None]
        torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-5)


def test_rope_takes_other_positions_for_each_row() -> None:
    positions, x = RoPE().build(Sizes(D, H, DH, MAX_T)), torch.randn(2, 3, H, DH)
    pos = torch.tensor([[0, 1, 2], [4, 5, 6]])

    turned = positions.rotate(x, pos)

    for row in range(2):
        torch.testing.assert_close(turned[row], positions.rotate(x[row][None], pos[row])[0])


@pytest.mark.parametrize(
    ("n_heads", "slopes"),
    [
        (1, [2**-8]),
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (8, [2**-i for i in range(1, 9)]),
        (12, [2**-i for i in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    ],
)
def test_alibi_slopes_are_those_of_the_paper(n_heads: int, slopes: list[float]) -> None:
    assert alibi_slopes(n_heads) == pytest.approx(slopes)


@pytest.mark.parametrize("n_heads", range(1, 40))
def test_every_head_has_a_slope_of_its_own(n_heads: int) -> None:
    slopes = alibi_slopes(n_heads)
    assert len(set(slopes)) == n_heads
    assert all(0 < slope < 1 for slope in slopes)


def test_alibi_grows_with_the_distance() -> None:
    positions = ALiBi().build(Sizes(D, 2, DH, MAX_T))
    bias = positions.bias(torch.tensor([4, 6]), torch.arange(7))
    assert bias is not None
    assert bias.shape == (2, 2, 7)
    expected = torch.tensor([-4.0, -3, -2, -1, 0, -1, -2]) / 16
    torch.testing.assert_close(bias[0, 0], expected)
    torch.testing.assert_close(bias[1, 1], torch.arange(-6.0, 1.0) / 256)


def test_alibi_in_both_directions_is_a_mirror() -> None:
    bias = ALiBi().build(Sizes(D, 2, DH, MAX_T, causal=False)).bias(torch.arange(5), torch.arange(5))
    assert bias is not None
    assert torch.equal(bias, bias.transpose(-2, -1))


def relative(causal: bool, spec: Relative) -> RelativeBiases:
    positions = spec.build(Sizes(D, H, DH, MAX_T, causal))
    assert isinstance(positions, RelativeBiases)
    return positions


def test_a_causal_stack_has_all_buckets_for_what_lies_behind() -> None:
    """Of 32, 16 for one distance each; then each bucket begins 8^(1/16) times as far as the one before."""
    begins = [*range(16), *(math.ceil(16 * 8 ** (i / 16)) for i in range(16))]
    distances = torch.arange(-20, 200)

    found = relative(causal=True, spec=Relative()).bucket(distances[None])[0].tolist()

    expected = [max(0, sum(begin <= distance for begin in begins) - 1) for distance in distances.tolist()]
    assert found == expected
    assert found[20 + 127 :] == [31] * 73


def test_a_stack_that_reads_both_ways_has_half_the_buckets_for_each() -> None:
    begins = [*range(8), 8, 12, 16, 23, 32, 46, 64, 91]  # 8 * 16^(i/8), rounded up
    distances = torch.arange(200)
    behind = [sum(begin <= distance for begin in begins) - 1 for distance in distances.tolist()]

    positions = relative(causal=False, spec=Relative())

    assert positions.bucket(distances[None])[0].tolist() == behind
    assert positions.bucket(-distances[None, 1:])[0].tolist() == [16 + bucket for bucket in behind[1:]]


def test_relative_positions_add_each_head_s_number_for_the_distance() -> None:
    positions = relative(causal=False, spec=Relative(n_buckets=8, max_distance=6))
    positions.weight.data.normal_()
    q_pos, k_pos = torch.tensor([[3], [10]]), torch.arange(11).expand(2, 11)

    bias = positions.bias(q_pos, k_pos)

    assert bias.shape == (2, H, 1, 11)
    for row, query in enumerate([3, 10]):
        for key in range(11):
            bucket = positions.bucket(torch.tensor([[query - key]]))
            assert torch.equal(bias[row, :, 0, key], positions.weight[bucket[0, 0]])
    shared = positions.bias(q_pos[1], k_pos[1])
    assert shared.shape == (H, 1, 11)
    assert torch.equal(shared, bias[1])


def test_near_and_far_distances_may_not_overlap() -> None:
    assert Relative(n_buckets=8, max_distance=5).max_distance == 5
    with pytest.raises(ConfigError, match="max_distance=4 must be more than half of n_buckets=8"):
        Relative(n_buckets=8, max_distance=4)


@pytest.mark.parametrize("spec", [Sinusoidal(), RoPE(), ALiBi()])
def test_tables_are_constants_of_the_model_and_not_of_its_type(spec: Sinusoidal | RoPE | ALiBi) -> None:
    """Never saved, float32 after any cast, and there again after a model left the meta device."""
    exact = tables(spec.build(Sizes(D, H, DH, MAX_T)))
    assert exact
    assert all(table.dtype == torch.float32 for table in exact.values())
    with torch.device("meta"):
        unmade = spec.build(Sizes(D, H, DH, MAX_T))
    assert all(table.is_meta for table in tables(unmade).values())

    for positions in (spec.build(Sizes(D, H, DH, MAX_T)).bfloat16().double(), unmade.to_empty(device="cpu")):
        assert positions.state_dict() == {}
        for name, table in tables(positions).items():
            assert torch.equal(table, exact[name])


@pytest.mark.parametrize("spec", [Sinusoidal(), Learned(), RoPE(), ALiBi(), Relative()])
def test_the_last_position_of_the_longest_text_has_its_place(
    spec: Sinusoidal | Learned | RoPE | ALiBi | Relative,
) -> None:
    config = ModelConfig(
        vocab_size=13, d_model=H * DH, attention=MultiHead(n_heads=H), position=spec, max_seq_len=MAX_T
    )
    assert build(config)(torch.randint(13, (2, MAX_T))).isfinite().all()


def tables(positions: nn.Module) -> dict[str, torch.Tensor]:
    return dict(positions.named_buffers())


@pytest.mark.parametrize(
    "kind", [NoPositions(), Sinusoidal(), Learned(), RoPE(theta=500), ALiBi(), Relative()]
)
def test_a_model_is_copied_and_pickled_with_its_positions(kind: PositionBase) -> None:
    config = ModelConfig(
        vocab_size=7, d_model=12, n_layers=1, max_seq_len=9, position=kind, attention=MultiHead(n_heads=2)
    )  # type: ignore[arg-type]
    model, tokens = build(config).eval(), torch.arange(6)[None]
    expected = model(tokens)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301  (our own)
        assert torch.equal(again(tokens), expected)
        tables = {name: table.clone() for name, table in again.position.named_buffers()}
        again.to(torch.bfloat16).float()
        for name, table in again.position.named_buffers():
            assert table.dtype == torch.float32
            assert torch.equal(table, tables[name])
        again.to("meta")
        assert all(table.is_meta for table in again.position.buffers())
