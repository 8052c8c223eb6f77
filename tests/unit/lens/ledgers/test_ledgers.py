"""The ledgers' parts against other ways to find them: taking a part away, or a model that is linear by itself."""

from typing import Any

import pytest
import torch
from torch import Tensor

from clearformer import lens
from clearformer.errors import UserError
from clearformer.model import ModelConfig, build
from clearformer.model.attention import Dot, Last, Mean, MultiHead, Shared
from clearformer.model.feedforward import ReLU
from clearformer.model.init import Gaussian
from clearformer.model.linear_attention import Linear
from clearformer.model.norms import LayerNorm, NoNorm
from clearformer.model.positions import ALiBi, Learned, NoPositions, RoPE

from ..own_attention import OwnAttention

V, T, D, H = 11, 7, 12, 3
BARE = {"norm": NoNorm(), "placement": "none", "final_norm": False, "ffn": "none"}


def model(**changes: Any) -> Any:
    settings: dict[str, Any] = {
        "vocab_size": V,
        "d_model": D,
        "n_layers": 2,
        "max_seq_len": 13,
        "init": Gaussian(),
    }
    settings |= {"attention": MultiHead(n_heads=H, qkv_bias=True, output_bias=True), "ffn": ReLU(d_ff=17)}
    changes = {
        name: {"kind": value} if value == "none" and name == "ffn" else value
        for name, value in changes.items()
    }
    made = build(ModelConfig(**(settings | changes))).double()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return made


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(V, (T,))


def logit(made: Any, tokens: Tensor, target: int, hooks: Any = None) -> float:
    with lens.quiet(made), made.hooked(hooks or {}):
        return float(made(tokens[None])[0, -1, target])


def test_in_a_model_without_norms_a_last_heads_share_is_what_the_logit_loses_without_it(
    tokens: Tensor,
) -> None:
    made = model(**BARE)
    found = lens.ledger(made, tokens, target=3)
    for head in range(H):

        def without(z: Tensor, hook: Any, head: int = head) -> Tensor:
            z = z.clone()
            z[:, -1, head] = 0
            return z

        [part] = [each for each in found.parts if each.name == "blocks.1.attn.hook_z" and each.head == head]
        lost = logit(made, tokens, 3) - logit(made, tokens, 3, {"blocks.1.attn.hook_z": without})
        assert part.value == pytest.approx(lost, abs=1e-12)
        assert abs(lost) > 1e-3


def test_parts_are_in_the_models_order_and_named_as_hook_points(tokens: Tensor) -> None:
    made = model(position=Learned())
    found = lens.ledger(made, tokens, target=3)
    labels = [part.label for part in found.parts]
    of_block = [
        *(f"blocks.0.attn.hook_z[{head}]" for head in range(H)),
        "blocks.0.attn.W_O.bias",
        "blocks.0.hook_mlp_out",
        "blocks.0.mlp.W_out.bias",
    ]
    assert labels == [
        "hook_embed",
        "hook_pos_embed",
        *of_block,
        *(label.replace("blocks.0", "blocks.1") for label in of_block),
        "ln_final.bias",
    ]
    assert {part.layer for part in found.parts} == {None, 0, 1}


def test_a_foils_ledger_is_the_difference_of_two(tokens: Tensor) -> None:
    made = model(logit_soft_cap=2.0, tie_embeddings=False, head_bias=True)
    both = lens.ledger(made, tokens, target=3, foil=4)
    one, other = (lens.ledger(made, tokens, target=target) for target in (3, 4))
    for part, first, second in zip(both.parts, one.parts, other.parts, strict=True):
        assert part.value == pytest.approx(first.value - second.value, abs=1e-12)
    assert both.parts[-1].name == "head.bias"
    assert both.soft_cap == 2.0
    assert one.capped == pytest.approx(logit(made, tokens, 3), abs=1e-12)
    assert one.logit == pytest.approx(2 * float(torch.tensor(logit(made, tokens, 3) / 2).atanh()), abs=1e-4)


def test_without_a_target_it_is_the_likeliest(tokens: Tensor) -> None:
    made = model()
    with lens.quiet(made):
        likeliest = int(made(tokens[None])[0, 2].argmax())
    assert lens.ledger(made, tokens, position=2).target == f"#{likeliest}"


def test_the_json_has_the_fields_that_others_rely_on(tokens: Tensor) -> None:
    found = lens.ledger(model(), tokens).to_dict()
    assert {"token", "target", "logit", "sum", "error", "parts"} <= found.keys()
    assert all(part.keys() == {"name", "layer", "head", "value"} for part in found["parts"])


# --- sources ----------------------------------------------------------------------------------------------


def test_in_a_linear_model_a_tokens_share_is_what_the_logit_loses_without_it(tokens: Tensor) -> None:
    """Equal weights, no norms, no feed-forward networks: nothing is held that would not stay by itself."""
    made = model(**BARE | {"attention": Mean(), "position": NoPositions()})
    found = lens.sources(made, tokens, target=3)
    for position, part in enumerate(found.parts):

        def without(x: Tensor, hook: Any, position: int = position) -> Tensor:
            x = x.clone()
            x[:, position] = 0
            return x

        lost = logit(made, tokens, 3) - logit(made, tokens, 3, {"hook_embed": without})
        assert part.value == pytest.approx(lost, abs=1e-12)
        assert abs(lost) > 1e-3
    assert found.biases == pytest.approx(0, abs=1e-12)


def test_a_later_token_has_no_share_and_positions_have_their_own(tokens: Tensor) -> None:
    found = lens.sources(model(position=Learned()), tokens, position=3)
    assert [part.value for part in found.parts[4:]] == [0.0] * 3
    assert all(part.order != 0 and part.embedding != 0 for part in found.parts[:4])
    assert all(part.value == part.embedding + part.order for part in found.parts)
    assert "convention" in found.convention
    assert "convention" in found._repr_html_()


def test_both_texts_of_an_encoder_decoder_are_sources() -> None:
    made = model(family="encoder-decoder")
    found = lens.sources(made, [1, 2, 3, 4], [5, 6, 7], position=1)
    assert [(part.text, part.position) for part in found.parts] == [
        *(("source", i) for i in range(4)),
        *(("output", i) for i in range(3)),
    ]
    assert all(part.value != 0 for part in found.parts[:6])


def test_nothing_is_left_of_the_gradients(tokens: Tensor) -> None:
    made = model().train()
    lens.sources(made, tokens)
    assert made.training
    assert all(parameter.grad is None for parameter in made.parameters())
    assert all(
        point.n_open == 0
        for module in made.modules()
        for point in vars(module).values()
        if hasattr(point, "n_open")
    )


# --- scores -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [RoPE(), ALiBi()])
def test_a_writers_share_of_a_score_is_what_the_score_loses_without_it(position: Any, tokens: Tensor) -> None:
    made = model(
        **BARE | {"position": position, "attention": MultiHead(n_heads=H, n_kv_heads=1, qkv_bias=True)}
    )
    found = lens.score(made, tokens, layer=1, head=2, position=5, key=2)

    def score(hooks: Any) -> float:
        with lens.quiet(made), made.hooked(hooks):
            _, seen = made.run_with_cache(tokens[None], names="blocks.1.attn.hook_attn_scores")
        return float(seen["attn_scores", 1][0, 2, 5, 2])

    assert found.score == pytest.approx(score({}), abs=1e-12)
    assert (found.bias != 0) == isinstance(position, ALiBi)
    for parts, at in ((found.queries, 5), (found.keys, 2)):

        def without(z: Tensor, hook: Any, at: int = at) -> Tensor:
            z = z.clone()
            z[:, at, 1] = 0
            return z

        [part] = [each for each in parts if each.name == "blocks.0.attn.hook_z" and each.head == 1]
        lost = score({}) - score({"blocks.0.attn.hook_z": without})
        assert part.value == pytest.approx(lost, abs=1e-12)
        assert abs(lost) > 1e-3


def test_pairs_are_the_largest_first_and_sum_to_their_writers(tokens: Tensor) -> None:
    found = lens.score(model(norm=LayerNorm()), tokens, layer=1, key=0)
    sizes = [abs(pair.value) for pair in found.pairs]
    assert sizes == sorted(sizes, reverse=True)
    assert [part.value for part in found.queries] == pytest.approx(found.values.sum(1).tolist())
    assert [part.value for part in found.keys] == pytest.approx(found.values.sum(0).tolist())
    assert {"blocks.1.attn.W_Q.bias", "blocks.1.ln1.bias"} <= {part.name for part in found.queries}
    assert len(found.to_dict()["values"]) == len(found.queries)


def test_without_a_key_it_is_the_one_that_the_head_reads_most(tokens: Tensor) -> None:
    made = model()
    found = lens.score(made, tokens, layer=1, head=2, position=5)
    with lens.quiet(made):
        _, seen = made.run_with_cache(tokens[None], names="blocks.1.attn.hook_pattern")
    row = seen["pattern", 1][0, 2, 5]
    assert found.key_position == int(row.argmax())
    assert found.weight == pytest.approx(float(row.max()), abs=1e-12)
    torch.testing.assert_close(found.weights, row.float())
    assert len(found.read) == T
    assert found.to_dict()["weights"] == found.weights.tolist()


NARROW: list[dict[str, Any]] = [
    {"position": RoPE()},
    BARE,
    {"attention": Shared()},
    {"attention": Dot()},
    {"attention": MultiHead(n_heads=H, qk_norm=LayerNorm()), "logit_soft_cap": 5.0},
    {"family": "encoder", "masked_head": "transform"},
    {"family": "encoder", "n_classes": 3},
    {"family": "encoder-decoder"},
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("changes", NARROW)
def test_models_of_16_bits_have_ledgers_too(
    changes: dict[str, Any], dtype: torch.dtype, tokens: Tensor
) -> None:
    made = model(**changes).to(dtype)
    texts = (tokens, [1, 2, 3]) if changes.get("family") == "encoder-decoder" else (tokens,)
    split = lens.ledger(made, *texts)
    by_token = lens.sources(made, *texts)
    score = lens.score(made, *texts, layer=1)
    near = 8 * torch.finfo(dtype).eps
    assert split.error < near * (1 + sum(abs(part.value) for part in split.parts))
    assert by_token.error < near * (1 + sum(abs(part.value) for part in by_token.parts))
    assert score.error < near * (1 + float(score.values.abs().sum()))


@pytest.mark.parametrize("attention", ["attn", "cross_attn", "encoder"])
def test_the_scores_of_all_attentions_of_an_encoder_decoder_close(attention: Any) -> None:
    made = model(family="encoder-decoder", position=RoPE())
    source, output = [1, 2, 3, 4], [5, 6, 7]
    found = lens.score(made, source, output, layer=1, head=1, position=1, key=1, attention=attention)
    stack, part = ("encoder_", "attn") if attention == "encoder" else ("decoder_", attention)
    name = f"{stack}blocks.1.{part}.hook_attn_scores"
    with lens.quiet(made):
        _, seen = made.run_with_cache(torch.tensor([source]), torch.tensor([output]), names=name)
    assert found.score == pytest.approx(float(seen[name][0, 1, 1, 1]), abs=1e-12)
    assert found.error < 1e-12
    assert len(found.read) == (3 if attention == "attn" else 4)


@pytest.mark.parametrize(
    ("attention", "kind"), [(Linear(n_heads=2), "linear"), (Mean(), "mean"), (Last(), "last")]
)
def test_a_kind_without_scores_says_so(attention: Any, kind: str, tokens: Tensor) -> None:
    with pytest.raises(UserError, match=f"layer 1 has {kind} attention, which has no score q.k"):
        lens.score(model(attention=attention, position=NoPositions()), tokens, layer=1, key=0)


REFUSED = [
    ({"layer": 2, "key": 0}, "layer 2: the model has 2 layers: give 0 to 1"),
    ({"layer": 1, "key": 0, "head": 3}, "head 3: a layer has 3 heads: give 0 to 2"),
    (
        {"layer": 1, "key": 5, "position": 2},
        "key 5: the query at position 2 may not read it, because it comes later",
    ),
    ({"layer": 1, "key": 9}, "key 9 is beyond the text of 7 tokens: give 0 to 6"),
    (
        {"layer": 1, "key": 0, "attention": "cross_attn"},
        "attention: only an encoder-decoder has cross_attn",
    ),
    ({"layer": 1, "key": 0, "attention": "self"}, "attention: attn, cross_attn or encoder; got 'self'"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_a_score_that_is_not_there_is_refused_in_one_line(
    arguments: Any, message: str, tokens: Tensor
) -> None:
    with pytest.raises(UserError) as caught:
        lens.score(model(), tokens, **arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_outside_a_window_there_is_no_score(tokens: Tensor) -> None:
    made = model(attention=MultiHead(n_heads=H, window=3))
    with pytest.raises(UserError, match="outside its window of 3"):
        lens.score(made, tokens, layer=0, key=3)
    assert lens.score(made, tokens, layer=0, key=4).error < 1e-9


class _OwnNorm(torch.nn.LayerNorm):
    """A norm that nobody knows how to hold."""


def test_a_norm_of_ones_own_is_refused(tokens: Tensor) -> None:
    made = model()
    made.blocks[1].ln2 = _OwnNorm(D).double()
    with pytest.raises(UserError, match=r"blocks.1.ln2: a ledger holds .*, not that of _OwnNorm"):
        lens.sources(made, tokens)
    made.ln_final = _OwnNorm(D).double()
    with pytest.raises(UserError, match="ln_final: a ledger holds the scale"):
        lens.ledger(made, tokens)


def test_a_last_norm_of_ones_own_is_refused_by_sources(tokens: Tensor) -> None:
    made = model(placement="none")
    made.ln_final = _OwnNorm(D).double()
    with pytest.raises(UserError, match=r"ln_final: a ledger holds"):
        lens.sources(made, tokens)


@pytest.mark.parametrize("has_heads", [True, False])
@pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
def test_an_attention_of_ones_own_is_one_part_whatever_it_does_to_its_heads(
    family: str, has_heads: bool, tokens: Tensor
) -> None:
    made = model(family=family)
    stack = made.stack("decoder_" if family == "encoder-decoder" else "")
    stack.blocks[0].attn = OwnAttention(D, has_heads).double()
    if family == "encoder-decoder":
        stack.blocks[1].cross_attn = OwnAttention(D, has_heads).double()
    output = None if family == "decoder" else tokens

    found = lens.ledger(made, tokens, output=output, target=3)

    assert found.sum == pytest.approx(found.logit, abs=1e-9)
    assert any(part.name.endswith("blocks.0.hook_attn_out") for part in found.parts)


def test_layers_are_summed_in_order_up_to_the_logit(tokens: Tensor) -> None:
    found = lens.ledger(model(position=Learned()), tokens, target=3)
    assert [each.name for each in found.by_layer] == ["in", "0", "1", "out"]
    of_first = sum(part.value for part in found.parts if part.layer == 0)
    assert found.by_layer[1].value == pytest.approx(of_first, abs=1e-12)
    assert found.by_layer[1].so_far == pytest.approx(found.by_layer[0].value + of_first, abs=1e-12)
    assert found.by_layer[-1].so_far == pytest.approx(found.sum, abs=1e-12)
