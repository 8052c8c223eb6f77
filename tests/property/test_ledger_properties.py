"""Ledgers sum to what they take apart, with every kind of every slot; in float64 to the last digits.

The same in float32 within 1e-4 of the range of the logits, for five architectures as far apart as the slots allow.
"""

from typing import Any

import pytest
import torch

from clearformer import lens
from clearformer.errors import UserError
from clearformer.lens.ledgers.held import HeldStill
from clearformer.model import ModelConfig
from clearformer.model.attention import MultiHead
from clearformer.model.feedforward import GELU, ReLU
from clearformer.model.init import Gaussian
from clearformer.model.norms import LayerNorm, NoNorm, RMSNorm
from clearformer.model.positions import Learned, NoPositions, RoPE, Sinusoidal

from .models import D, config, each_kind, every_model, made, text

T, S = 7, 8
EXACT = 1e-9
QK = ("dot", "shared", "multihead")

ARCHITECTURES: dict[str, ModelConfig] = {
    "the lecture's": config(
        attention=MultiHead(n_heads=1, output=False, d_head=D),
        position=NoPositions(),
        norm=NoNorm(),
        ffn=ReLU(d_ff=17),
        tie_embeddings=False,
        init=Gaussian(),
    ),
    "quick": config(
        attention=MultiHead(n_heads=2, d_head=4, qk_norm=RMSNorm()),
        position=RoPE(),
        norm=RMSNorm(learned=False),
        embedding_norm=True,
        logit_soft_cap=3.0,
        tie_embeddings=False,
    ),
    "gpt2": config(
        attention=MultiHead(n_heads=2, qkv_bias=True, output_bias=True),
        position=Learned(),
        norm=LayerNorm(),
        ffn=GELU(d_ff=17, approximate="tanh"),
    ),
    "post-norm encoder-decoder": config(
        "encoder-decoder",
        attention=MultiHead(n_heads=2, qkv_bias=True, output_bias=True),
        position=Sinusoidal(),
        placement="post",
        final_norm=False,
        scale_embeddings=True,
        ffn=ReLU(d_ff=17),
    ),
    "bert": config(
        "encoder",
        attention=MultiHead(n_heads=2, qkv_bias=True, output_bias=True),
        position=Learned(),
        placement="post",
        final_norm=False,
        embedding_norm=True,
        head_bias=True,
        ffn=GELU(d_ff=17),
    ),
}


def texts_for(case: ModelConfig) -> tuple[Any, ...]:
    """The ids of a text, or of a source and an output."""
    if case.family == "encoder-decoder":
        return text(S, n_rows=1)[0], text(T, n_rows=1)[0]
    return (text(T, n_rows=1)[0],)


def check_all(case: ModelConfig) -> None:
    """Every ledger of a float64 model sums, and its number is the model's own."""
    model, given = made(case), texts_for(case)
    logits, seen = lens.run_with_cache(model, *given)
    found = lens.ledger(model, *given, position=4, target=3, foil=5)
    capped = found.logit if found.capped is None else found.capped
    assert found.error < EXACT
    assert found.logit == pytest.approx(found.sum, abs=EXACT)
    assert capped == pytest.approx(float(logits[0, 4, 3] - logits[0, 4, 5]), abs=EXACT)
    alone = lens.sources(model, *given, position=4, target=3)
    assert alone.error < EXACT
    assert alone.logit == pytest.approx(lens.ledger(model, *given, position=4, target=3).logit, abs=EXACT)
    if case.attention.kind in QK:
        check_score(model, given, seen, "attn")
        if case.family == "encoder-decoder":
            check_score(model, given, seen, "cross_attn")


def check_score(model: Any, given: tuple[Any, ...], seen: Any, attention: Any) -> None:
    at, key = (4, 3) if attention == "attn" else (4, S - 1)
    last = "decoder_" if model.config.family == "encoder-decoder" else ""
    layer = len(model.stack(last).blocks) - 1
    found = lens.score(model, *given, layer=-1, head=-1, position=at, key=key, attention=attention)
    own = seen[f"{last}blocks.{layer}.{attention}.hook_attn_scores"][0, -1, at, key]
    assert found.error < EXACT
    assert found.score == pytest.approx(float(own), abs=EXACT)
    assert float(found.values.sum()) + found.bias == pytest.approx(float(own), abs=EXACT)
    assert sum(pair.value for pair in found.pairs) == pytest.approx(float(own) - found.bias, abs=EXACT)


@every_model()
def test_ledgers_of_decoders_sum(case: ModelConfig) -> None:
    check_all(case)


@each_kind("encoder")
def test_ledgers_of_encoders_sum(case: ModelConfig) -> None:
    check_all(case)


@each_kind("encoder-decoder", but=("last",))
def test_ledgers_of_encoder_decoders_sum(case: ModelConfig) -> None:
    check_all(case)


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_ledgers_of_classifiers_sum(pooling: str) -> None:
    model = made(config("encoder", n_classes=5, pooling=pooling, masked_head="none"))
    tokens = text(T, n_rows=1)[0]
    scores, _ = lens.run_with_cache(model, tokens)
    found = lens.ledger(model, tokens, target="3", foil=1)
    assert found.error < EXACT
    assert found.logit == pytest.approx(float(scores[0, 3] - scores[0, 1]), abs=EXACT)
    assert lens.sources(model, tokens, target=2).error < EXACT
    with pytest.raises(UserError, match="position: this model predicts a class of the whole text"):
        lens.ledger(model, tokens, position=2)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_five_architectures_sum(name: str) -> None:
    check_all(ARCHITECTURES[name])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_in_float32_the_error_is_small_beside_the_range(name: str) -> None:
    case = ARCHITECTURES[name]
    model, given = made(case).float(), texts_for(case)
    logits, _ = lens.run_with_cache(model, *given)
    own_range = float(logits[0, 4].max() - logits[0, 4].min())
    assert lens.ledger(model, *given, position=4).error < 1e-4 * own_range
    assert lens.sources(model, *given, position=4).error < 1e-4 * own_range


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_held_still_a_model_is_itself_with_its_text_and_linear_beside_it(name: str) -> None:
    case = ARCHITECTURES[name]
    inputs = lens.read(made(case), *texts_for(case))
    with lens.quiet(inputs.model):
        held = HeldStill(inputs)
        zero = held.final({key: torch.zeros_like(value) for key, value in held.embeddings.items()})
        once = held.final(held.embeddings)
        twice = held.final({key: 2 * value for key, value in held.embeddings.items()})
        seen = {key: value.clone() for key, value in held.cache.items() if key.endswith("resid_post")}
        last = list(seen)[-1]
        prefix = last.partition("blocks")[0]
        own = inputs.model.stack(prefix).ln_final(seen[last])[0]
    torch.testing.assert_close(once, own, rtol=0, atol=1e-10)
    torch.testing.assert_close(twice - once, once - zero, rtol=0, atol=1e-9)
