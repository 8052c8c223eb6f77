"""Int8 weights: how far off each is, that products are those of the rounded matrices, and what a copy shares."""

from typing import Any

import pytest
import torch
import torch._dynamo  # it keeps the `is_compiling` that it finds: not the one that a test puts there
import torch.nn.functional as F

from clearformer.decoding import generate
from clearformer.decoding.fast.int8 import Int8Embedding, Int8Linear, int8_rows, n_bytes, with_int8_weights
from clearformer.errors import UserError
from clearformer.model import Decoder, ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.fast import Linear
from clearformer.model.feedforward import SwiGLU
from clearformer.model.init import Gaussian
from clearformer.model.positions import Learned
from clearformer.run import Run
from clearformer.text import CharTokenizerSpec

from ....seeding import seed


def made(**changes: Any) -> Decoder:
    seed(0)
    settings: dict[str, Any] = {
        "vocab_size": 11,
        "d_model": 14,
        "n_layers": 2,
        "max_seq_len": 23,
        "attention": MultiHead(n_heads=2, qkv_bias=True),
        "ffn": SwiGLU(d_ff=17),
        "position": Learned(),
        "init": Gaussian(),
    }
    model = build(ModelConfig(**(settings | changes)))
    assert isinstance(model, Decoder)
    return model.eval()


def test_a_weight_is_off_by_half_a_scale_at_most() -> None:
    matrix = torch.randn(5, 7) * torch.logspace(-3, 3, 5).unsqueeze(1)
    matrix[3] = 0

    rows = int8_rows(matrix)

    off = (rows.weight * rows.scale.unsqueeze(1) - matrix).abs()
    assert (off <= 0.5001 * rows.scale.unsqueeze(1)).all()
    assert rows.weight.abs().amax(1).tolist() == [127, 127, 127, 0, 127]


def test_products_in_float16_do_not_overflow() -> None:
    matrix, x = torch.full((3, 64), 0.05).half(), torch.full((2, 64), 32.0).half()
    layer = Int8Linear(int8_rows(matrix), torch.ones(3).half())
    torch.testing.assert_close(layer(x), F.linear(x, matrix) + 1, rtol=0.01, atol=0)


def test_products_do_not_overflow_where_autocast_takes_float16() -> None:
    matrix, x = torch.full((3, 64), 0.05), torch.full((2, 64), 32.0)
    layer = Int8Linear(int8_rows(matrix), torch.ones(3))
    with torch.autocast("cpu", torch.float16):
        found = layer(x)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), F.linear(x, matrix) + 1, rtol=0.01, atol=0)


class Own(Linear):
    """Any class of a user's, which may compute something else."""


def test_a_matrix_of_a_user_s_own_class_stays_as_it_is() -> None:
    model = made()
    attention: Any = model.blocks[0].attn
    attention.W_Q = Own(14, 14)

    copied: Any = with_int8_weights(model).blocks[0].attn

    assert type(copied.W_Q) is Own
    assert type(copied.W_K) is Int8Linear


def test_weights_in_bfloat16_stay_within_the_range_of_int8() -> None:
    matrix = torch.randn(101, 7, generator=torch.Generator().manual_seed(0)).bfloat16()

    rows = int8_rows(matrix)

    off = (rows.weight.double() * rows.scale.double().unsqueeze(1) - matrix.double()).abs()
    assert (off <= rows.scale.double().unsqueeze(1)).all()  # the scale itself is rounded too


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (1, 7)])
@pytest.mark.parametrize("compiled", [False, True])
def test_products_are_those_of_the_rounded_matrix(
    shape: tuple[int, ...], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, bias, x = int8_rows(torch.randn(5, 7)), torch.randn(5), torch.randn(shape)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiled)

    expected = F.linear(x, rows.weight * rows.scale.unsqueeze(1), bias)

    torch.testing.assert_close(Int8Linear(rows, bias)(x), expected)
    torch.testing.assert_close(Int8Linear(rows, None)(x), expected - bias)


@torch.no_grad()
@pytest.mark.parametrize("changes", [{"tie_embeddings": False}, {}, {"head_bias": True}])
def test_a_model_s_copy_computes_with_its_rounded_weights(changes: dict[str, Any]) -> None:
    model, tokens = made(**changes), torch.tensor([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    copied = with_int8_weights(model)

    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    scores = copied(tokens)
    assert not torch.equal(scores, model(tokens))
    for layer in (*(each for each in model.modules() if isinstance(each, Linear)), model.embed):
        rows = int8_rows(layer.weight)
        layer.weight.copy_(rows.weight * rows.scale.unsqueeze(1))
    torch.testing.assert_close(scores, model(tokens))


@pytest.mark.parametrize("token", [-1, 11])
def test_a_token_that_the_model_has_not_is_refused(token: int) -> None:
    with pytest.raises(UserError, match=f"token id {token} is out of range: the model knows 0 to 10"):
        with_int8_weights(made())(torch.tensor([[token, 2]]))


def test_nothing_of_a_copy_is_left_as_it_was_but_what_is_small() -> None:
    model = made()

    copied = with_int8_weights(model)

    assert not any(isinstance(module, Linear) for module in copied.modules())
    assert isinstance(copied.embed, Int8Embedding)
    assert isinstance(copied.head, Int8Linear)
    assert copied.head.weight is copied.embed.weight
    assert not any(parameter.requires_grad for parameter in copied.parameters())
    matrices = {
        id(p): p.numel()
        for p in model.parameters()
        if p.dim() == 2 and p is not model.get_parameter("position.weight")
    }
    assert n_bytes(model) - n_bytes(copied) < 3 * sum(matrices.values())
    assert n_bytes(copied) < n_bytes(model) / 2


def test_a_hooked_model_s_copy_is_hooked_too() -> None:
    run = Run(made(), CharTokenizerSpec().train(["abcdefghij\n"]))
    off = {"blocks.*.attn.hook_z": lambda z, _: torch.zeros_like(z)}
    [free] = generate(run, "abc", max_new_tokens=3, int8=True)

    with run.model.hooked(off):
        [hooked] = generate(run, "abc", max_new_tokens=3, int8=True)
    rounded = Run(with_int8_weights(run.model), run.tokenizer)
    with rounded.model.hooked(off):
        [expected] = generate(rounded, "abc", max_new_tokens=3)

    assert (hooked.tokens, hooked.logprobs) == (expected.tokens, expected.logprobs)
    assert hooked.logprobs != free.logprobs


@pytest.mark.parametrize("lookup", [0, 4])
def test_a_run_generates_with_them_and_keeps_its_own(lookup: int) -> None:
    run = Run(made(), CharTokenizerSpec().train(["abcdefghij\n"]))
    rounded = Run(with_int8_weights(run.model), run.tokenizer)
    [expected] = generate(rounded, "abc", max_new_tokens=9)

    assert generate(run, "abc", max_new_tokens=9, int8=True, lookup=lookup)[0].tokens == expected.tokens
    assert "".join(run.stream("abc", max_new_tokens=9, int8=True)) == expected.text
    assert isinstance(run.model.embed, torch.nn.Embedding)
