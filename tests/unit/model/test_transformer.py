"""The three families: what they add to their blocks, and the lectures' counts of parameters."""

import copy
from typing import Any

import pytest
import torch

from clearformer.errors import ConfigError, UserError
from clearformer.model import Decoder, Encoder, EncoderDecoder, ModelConfig, build, build_undrawn
from clearformer.model.arguments import check_padding, check_token_types, check_tokens
from clearformer.model.attention import MultiHead
from clearformer.model.feedforward import ReLU
from clearformer.model.init import Gaussian
from clearformer.model.norms import NoNorm
from clearformer.model.positions import ALiBi, Learned, NoPositions, RoPE, Sinusoidal
from clearformer.model.relative_positions import Relative

from ...forks import ForkServer

B, T, V, D = 2, 5, 13, 22


def small(**changes: Any) -> Decoder:
    settings: dict[str, Any] = {"vocab_size": V, "d_model": D, "n_layers": 2, "max_seq_len": 7}
    settings |= {"attention": MultiHead(n_heads=2), "init": Gaussian()}
    return build(ModelConfig(**(settings | changes)))


def encoder(**changes: Any) -> Encoder:
    return perturbed(small(family="encoder", **changes))


def pair_model(**changes: Any) -> EncoderDecoder:
    return perturbed(small(family="encoder-decoder", **changes))


@torch.no_grad()
def perturbed(model: Any) -> Any:
    """With norms and biases moved away from 1 and 0, where they would hide."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def tokens(n: int = T) -> torch.Tensor:
    return torch.randint(V, (B, n))


def lecture_model(**changes: Any) -> ModelConfig:
    """Lecture 000, section 5.4: one head, no output matrix, no norms, no positions, a head of its own."""
    settings: dict[str, Any] = {
        "vocab_size": 65,
        "d_model": 256,
        "n_layers": 4,
        "tie_embeddings": False,
        "attention": MultiHead(n_heads=1, output=False),
        "position": NoPositions(),
        "norm": NoNorm(),
        "ffn": ReLU(bias=False),
        "init": Gaussian(),
        "placement": "none",
    }
    return ModelConfig(**(settings | changes))


def gpt3(**changes: Any) -> ModelConfig:
    """12 N d² + 2 V d: no biases, positions or norm weights, and a head of its own (lecture 002, section 13)."""
    output = MultiHead(n_heads=96)
    sizes = {"vocab_size": 50257, "d_model": 12288, "n_layers": 96}
    return lecture_model(**(sizes | {"attention": output} | changes))


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (lecture_model(), 2_916_864),
        (lecture_model(ffn=ReLU()), 2_921_984),
        (lecture_model(d_model=768), 26_052_096),
        (lecture_model(d_model=768, ffn=ReLU()), 26_067_456),
    ],
)
def test_parameters_are_the_lectures(config: ModelConfig, total: int) -> None:
    assert parameters(config) == total


def test_gpt3_has_175_billion_parameters_and_twelve_layers_of_768_have_85_million() -> None:
    total = parameters(gpt3())
    assert total == 12 * 96 * 12288**2 + 2 * 50257 * 12288
    assert round(total / 1e9, 1) == 175.2
    twelve = gpt3(d_model=768, n_layers=12)
    assert round((parameters(twelve) - 2 * 50257 * 768) / 1e6, 1) == 84.9


@pytest.mark.parametrize("position", [Sinusoidal(), Learned(), RoPE(), ALiBi()])
def test_a_model_on_the_meta_device_takes_no_memory(position: Any) -> None:
    with torch.device("meta"):
        model = build(gpt3(position=position, n_layers=2))
        logits = model(torch.zeros(1, 3, dtype=torch.long))
    assert all(tensor.is_meta for tensor in (logits, *model.parameters(), *model.buffers()))


def parameters(config: ModelConfig) -> int:
    with torch.device("meta"):  # no weight is held: GPT-3's would fill 700 GB
        return sum(p.numel() for p in build(config).parameters())


def test_a_model_needs_a_vocabulary() -> None:
    with pytest.raises(ConfigError, match=r"^model\.vocab_size is not set"):
        build(ModelConfig())


@pytest.mark.parametrize("padded", [False, True])
def test_a_text_that_is_too_long_is_refused_with_both_numbers(padded: bool) -> None:
    real = torch.ones(B, 9, dtype=torch.bool)
    with pytest.raises(UserError, match=r"9 tokens long, .* at most 7 \(model\.max_seq_len\)"):
        small()(tokens(9), real if padded else None)


@torch.no_grad()
def test_padding_does_not_count_towards_the_longest_text() -> None:
    model, text, real = small(), tokens(9), torch.ones(B, 9, dtype=torch.bool)
    real[:, :3] = False
    torch.testing.assert_close(model(text, real)[:, 3:], model(text[:, 3:]))


def test_a_seed_gives_the_same_model() -> None:
    models = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        models.append(small()(torch.arange(T)[None]))
    assert torch.equal(models[0], models[1])
    assert not torch.allclose(models[0], models[2])


def test_a_tied_head_is_the_embedding_matrix() -> None:
    tied, untied = small(), small(tie_embeddings=False, head_bias=True)
    assert tied.head is None
    x = torch.randn(B, T, D)
    torch.testing.assert_close(tied.unembed(x), x @ tied.embed.weight.T)
    assert untied.head is not None
    torch.testing.assert_close(untied.unembed(x), x @ untied.head.weight.T + untied.head.bias)


def test_a_tied_head_may_have_a_bias_of_its_own() -> None:
    model, x = perturbed(small(head_bias=True)), torch.randn(B, T, D)
    assert model.head_bias is not None
    assert model.head_bias.shape == (V,)
    torch.testing.assert_close(model.unembed(x), x @ model.embed.weight.T + model.head_bias)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_divided_by_the_root_of_d_and_the_bias_is_not(tied: bool) -> None:
    model = perturbed(small(scale_logits=True, tie_embeddings=tied, head_bias=True))
    weight, bias = (model.embed.weight, model.head_bias) if tied else (model.head.weight, model.head.bias)
    x = torch.randn(B, T, D)
    torch.testing.assert_close(model.unembed(x), x @ weight.T / D**0.5 + bias)


def test_no_logit_exceeds_the_soft_cap() -> None:
    free, capped = small(), small(logit_soft_cap=2.0)
    capped.load_state_dict(free.state_dict())
    text = tokens()
    assert free(text).abs().max() > 4
    torch.testing.assert_close(capped(text), 2 * torch.tanh(free(text) / 2))


def test_token_embeddings_are_scaled_and_positions_are_not() -> None:
    plain, scaled = small(), small(scale_embeddings=True)
    scaled.load_state_dict(plain.state_dict())
    text = tokens()
    names = ["hook_embed", "hook_pos_embed"]
    _, before = plain.run_with_cache(text, names=names)
    _, after = scaled.run_with_cache(text, names=names)
    torch.testing.assert_close(after["hook_embed"], before["hook_embed"] * D**0.5)
    assert torch.equal(after["hook_pos_embed"], before["hook_pos_embed"])


@pytest.mark.parametrize(
    ("changes", "present"),
    [
        ({}, {"ln_final"}),
        ({"final_norm": False}, set()),
        ({"embedding_norm": True}, {"ln_embed", "ln_final"}),
        ({"norm": NoNorm(), "embedding_norm": True}, set()),
    ],
)
def test_norms_outside_the_blocks_are_those_asked_for(changes: dict[str, Any], present: set[str]) -> None:
    names = {name.partition(".")[0] for name, _ in small(**changes).named_parameters()}
    assert {name for name in names if name.startswith("ln")} == present


@torch.no_grad()
def test_embeddings_are_dropped_in_training() -> None:
    model = small(dropout=0.5).train()
    _, seen = model.run_with_cache(tokens(), names=["blocks.0.hook_resid_pre"])
    assert 0.3 < (seen["blocks.0.hook_resid_pre"] == 0).float().mean() < 0.7


@torch.no_grad()
def test_a_copy_is_independent_and_complete() -> None:
    """As an average of the weights over training is kept."""
    model, text = small(position=RoPE(fraction=0.75), attention=MultiHead(n_heads=1, d_head=8)), tokens()
    twin, before = copy.deepcopy(model), model(text)
    assert torch.equal(twin(text), before)
    for parameter in model.parameters():
        parameter.zero_()
    assert torch.equal(twin(text), before)
    model.load_state_dict(twin.state_dict())
    assert torch.equal(model(text), before)


# --- the encoder ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "kind"), [("decoder", Decoder), ("encoder", Encoder), ("encoder-decoder", EncoderDecoder)]
)
def test_a_family_is_a_class(family: str, kind: type) -> None:
    assert type(small(family=family)) is kind


def test_segments_are_added_to_the_embeddings_and_are_the_first_unless_told() -> None:
    model, text, types = encoder(n_token_types=3), tokens(), torch.randint(3, (B, T))
    given = {"n/a": None, "first": torch.zeros_like(text), "types": types}
    seen = {name: model.run_with_cache(text, None, t, names="hook_embed")[1] for name, t in given.items()}

    vectors = model.get_parameter("token_types.weight")
    torch.testing.assert_close(seen["types"]["hook_embed"], model.embed(text) + vectors[types])
    torch.testing.assert_close(seen["first"]["hook_embed"], model.embed(text) + vectors[0])
    assert torch.equal(seen["n/a"]["hook_embed"], seen["first"]["hook_embed"])
    assert not torch.allclose(model(text, None, types), model(text))


def test_segments_are_refused_where_the_model_has_none() -> None:
    with pytest.raises(UserError, match=r"model\.n_token_types=0"):
        encoder()(tokens(), None, torch.zeros(B, T, dtype=torch.long))


def test_bert_s_head_is_a_layer_and_a_norm_before_the_tied_embeddings() -> None:
    """norm(gelu(W x + b)) E^T + b (Devlin et al. 2019)."""
    model, text = encoder(masked_head="transform", head_bias=True, final_norm=False), tokens()
    weight, bias = (model.get_parameter(f"masked_head.dense.{name}") for name in ("weight", "bias"))
    hidden = model.encode(text) @ weight.T + bias
    hidden = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2
    centred = hidden - hidden.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    normed = normed * model.get_parameter("masked_head.ln.weight") + model.get_parameter(
        "masked_head.ln.bias"
    )

    torch.testing.assert_close(model.hidden(text), normed)
    bias = model.get_parameter("head_bias")
    torch.testing.assert_close(model(text), normed @ model.embed.weight.T + bias)


def test_without_a_masked_head_the_vectors_themselves_are_unembedded() -> None:
    model, text = encoder(), tokens()
    torch.testing.assert_close(model(text), model.encode(text) @ model.embed.weight.T)


@pytest.mark.parametrize("side", ["left", "right"])
def test_classes_are_scored_from_the_first_real_token_or_the_mean_of_all(side: str) -> None:
    text, real = tokens(), torch.ones(B, T, dtype=torch.bool)
    real[1] = torch.arange(T) >= 2 if side == "left" else torch.arange(T) < 3
    for pooling in ("first", "mean"):
        model = encoder(n_classes=3, pooling=pooling)
        x = model.encode(text, real)
        if pooling == "mean":
            pooled = torch.stack([x[row][real[row]].mean(0) for row in range(B)])
        else:
            first = torch.stack([x[row][real[row]][0] for row in range(B)])
            weight, bias = model.get_parameter("pooler.weight"), model.get_parameter("pooler.bias")
            pooled = torch.tanh(first @ weight.T + bias)
        weight, bias = model.get_parameter("classifier.weight"), model.get_parameter("classifier.bias")
        torch.testing.assert_close(model(text, real), pooled @ weight.T + bias)


def test_a_classifier_has_no_head_for_tokens() -> None:
    names = {name.partition(".")[0] for name, _ in encoder(n_classes=3, head_bias=True).named_parameters()}
    assert names == {"embed", "position", "blocks", "ln_final", "pooler", "classifier"}


@pytest.mark.parametrize("n_classes", [None, 3])
@torch.no_grad()
def test_a_text_too_long_for_an_encoder_is_refused_and_padding_does_not_count(n_classes: int | None) -> None:
    model, text, real = encoder(n_classes=n_classes), tokens(9), torch.ones(B, 9, dtype=torch.bool)
    for padding in (None, real):
        with pytest.raises(UserError, match=r"9 tokens long, .* at most 7 \(model\.max_seq_len\)"):
            model(text, padding)
    real[:, :2] = False
    result, expected = model(text, real), model(text[:, 2:])
    torch.testing.assert_close(result if n_classes else result[:, 2:], expected)


# --- the encoder-decoder ----------------------------------------------------------------------------------


def test_a_pair_is_encoded_and_then_decoded() -> None:
    model, source, text = pair_model(n_decoder_layers=3), tokens(3), tokens()
    real = torch.tensor([[True, True, False], [True, True, True]])
    memory = model.encode(source, real)

    assert memory.vectors.shape == (B, 3, D)
    assert memory.padding is real
    assert torch.equal(model(source, text, real), model.decode(text, memory))
    assert torch.equal(model(source, text, real), model.unembed(model.hidden(source, text, real)))
    assert (len(model.encoder_blocks), len(model.decoder_blocks)) == (2, 3)


def test_both_stacks_share_one_vocabulary_and_nothing_else() -> None:
    model = pair_model(embedding_norm=True)
    in_encoder = {name.removeprefix("encoder_") for name, _ in model.named_parameters() if "encoder_" in name}
    in_decoder = {
        name.removeprefix("decoder_") for name, _ in model.named_parameters() if name.startswith("decoder_")
    }
    cross = {name for name in in_decoder if "cross" in name}
    assert in_decoder - cross == in_encoder
    assert {name.split(".")[2] for name in cross} == {"cross_attn", "ln_cross"}
    assert [name for name, _ in model.named_parameters() if "coder_" not in name] == ["embed.weight"]


@pytest.mark.parametrize("too_long", ["source", "target"])
@torch.no_grad()
def test_a_text_of_a_pair_that_is_too_long_is_refused(too_long: str) -> None:
    model = pair_model()
    source, text = (tokens(9), tokens(7)) if too_long == "source" else (tokens(7), tokens(9))
    with pytest.raises(UserError, match=r"9 tokens long, .* at most 7 \(model\.max_seq_len\)"):
        model(source, text)
    assert model(tokens(7), tokens(7)).isfinite().all()


@torch.no_grad()
def test_a_target_that_grew_too_long_leaves_the_cache_as_it_was() -> None:
    model, source, text = pair_model(), tokens(3), tokens(7)
    memory, cache = model.encode(source), model.new_cache()
    model.decode(text[:, :6], memory, cache=cache)
    with pytest.raises(UserError, match="8 tokens long"):
        model.decode(text[:, :2], memory, cache=cache)
    assert cache.length == 6
    torch.testing.assert_close(
        model.decode(text[:, 6:], memory, cache=cache)[:, 0], model(source, text)[:, 6]
    )


# --- without weights of its own ---------------------------------------------------------------------------


@pytest.mark.parametrize("position", [NoPositions(), Sinusoidal(), Learned(), RoPE(), ALiBi(), Relative()])
@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder-decoder"])
def test_an_undrawn_model_with_another_ones_weights_is_that_one(family: str, position: Any) -> None:
    """Its constants too, which no file holds; and no random number is drawn for it."""
    rotated = {"d_model": 24} if position.kind == "rope" else {}
    one = perturbed(small(family=family, position=position, **rotated))
    before = torch.get_rng_state()

    other = build_undrawn(one.config)

    assert torch.equal(torch.get_rng_state(), before)
    other.load_state_dict(one.state_dict())
    buffers = dict(one.named_buffers())
    assert buffers.keys() == dict(other.named_buffers()).keys()
    assert all(torch.equal(table, buffers[name]) for name, table in other.named_buffers())
    assert all(p.requires_grad for p in other.parameters())
    texts = (tokens(), tokens()) if family == "encoder-decoder" else (tokens(),)
    with torch.inference_mode():
        assert torch.equal(other.eval()(*texts), one.eval()(*texts))


@pytest.mark.parametrize(
    ("tokens", "line"),
    [
        ([1, 2], r"^tokens: must be a tensor \[B T\] of ids; got list"),
        (torch.tensor([1, 2]), r"^tokens: .* got 1 dimension \(tokens\[None\] adds"),
        (torch.ones(1, 2), r"^tokens: ids must be int64 or int32; got torch\.float32"),
    ],
)
def test_what_are_no_tokens_is_refused(tokens: object, line: str) -> None:
    with pytest.raises(UserError, match=line):
        check_tokens(tokens)


@pytest.mark.parametrize("outside", [-1, V])
def test_ids_that_a_model_does_not_know_are_named(outside: int) -> None:
    bad, line = (
        torch.tensor([[1, outside]]),
        rf"^token id {outside} is out of range: the model knows 0 to {V - 1}$",
    )
    pairs, encoder = pair_model(), small(family="encoder", n_token_types=2)
    for refused in (
        lambda: small()(bad),
        lambda: encoder(bad),
        lambda: pairs(bad, tokens()[:1]),
        lambda: pairs(tokens()[:1], bad),
    ):
        with pytest.raises(UserError, match=line):
            refused()
    with pytest.raises(UserError, match=r"^token type 2 is out of range: the model knows 0 to 1$"):
        encoder(tokens(2), token_types=torch.tensor([[0, 2]] * B))


@pytest.mark.parametrize(
    ("token_types", "line"),
    [
        (torch.zeros(T, dtype=torch.long), r"^token_types: must be a tensor \[B T\] .* got 1 dimension"),
        ([[0, 1]], r"^token_types: must be a tensor \[B T\] of ids; got list"),
        (torch.zeros(B, T), r"^token_types: ids must be int64 or int32; got torch\.float32"),
        (torch.zeros(1, T).long(), rf"^token_types: .* each of the tokens \[{B}, {T}\]; got \[1, {T}\]$"),
    ],
)
def test_what_are_no_token_types_is_refused(token_types: object, line: str) -> None:
    with pytest.raises(UserError, match=line):
        check_token_types(token_types, tokens())
    check_token_types(None, tokens())
    check_token_types(torch.zeros_like(tokens()), tokens())


def test_a_model_checks_its_token_types() -> None:
    model = encoder(n_token_types=2)
    with pytest.raises(UserError, match=r"^token_types: "):
        model(tokens(), token_types=torch.zeros(1, T).long())


def test_a_source_and_a_text_of_other_rows_are_refused() -> None:
    source, text = torch.ones(2, 3).long(), torch.ones(3, 2).long()
    with pytest.raises(UserError, match=r"^tokens: must have one row for each of the source's 2; got 3$"):
        pair_model()(source, text)


@torch.no_grad()
def test_an_id_that_a_model_does_not_know_leaves_the_cache_as_it_was() -> None:
    model = small().eval()
    text, cache = tokens(3), model.new_cache()
    model(text[:, :2], cache=cache)
    with pytest.raises(UserError, match=r"^token id 999"):
        model(torch.tensor([[999]]), cache=cache)
    torch.testing.assert_close(model(text[:, 2:], cache=cache)[:, 0], model(text)[:, 2])


@pytest.mark.parametrize(
    ("padding", "line"),
    [
        (
            torch.ones(1, 2, dtype=torch.long),
            r"^padding: must be a tensor of bools.*; got torch\.int64 \(mask == 1",
        ),
        ([[True, True]], r"^padding: must be a tensor of bools.*; got list"),
        (torch.ones(1, 3, dtype=torch.bool), r"^padding: .* each of the tokens \[1, 2\]; got \[1, 3\]$"),
    ],
)
def test_what_is_no_padding_is_refused(padding: object, line: str) -> None:
    with pytest.raises(UserError, match=line):
        check_padding(padding, torch.tensor([[1, 2]]))
    check_padding(None, torch.tensor([[1, 2]]))
    check_padding(torch.tensor([[False, True]]), torch.tensor([[1, 2]]))


def test_a_user_sees_the_line_and_not_the_error_behind_it(forks: ForkServer) -> None:
    """In a process of its own, for here the annotations are checked before the model is asked."""
    script = """
import torch, clearformer as cf
from clearformer.errors import UserError
small = {"vocab_size": 7, "d_model": 8, "n_layers": 1, "attention": {"n_heads": 2}}
tokens = torch.tensor([[1, 2]])
for family, given in (("decoder", tokens[0]), ("encoder", [1]), ("encoder-decoder", tokens)):
    model = cf.build(cf.ModelConfig(family=family, **small))
    for call in (model, model.run_with_cache):
        try:
            call(given)
        except UserError as error:
            print(error)
encoder, pairs = (
    cf.build(cf.ModelConfig(family=family, **small)) for family in ("encoder", "encoder-decoder")
)
for model, given in (
    (encoder, (tokens, torch.ones_like(tokens))),
    (pairs, ([1], tokens)),
    (pairs, (tokens[0], tokens)),
    (pairs, (tokens, tokens, torch.ones_like(tokens))),
    (pairs, (tokens, tokens.float())),
):
    try:
        model(*given)
    except UserError as error:
        print(error)
"""
    told = forks.run(script=script)
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        *["tokens"] * 4,
        *["an encoder-decoder reads two texts"] * 2,
        "padding",
        *["source"] * 2,
        "source_padding",
        "tokens",
    ]
