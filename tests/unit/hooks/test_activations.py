"""Activations found by short names; a wrong one names the nearest."""

from typing import Any

import numpy as np
import pytest
import torch

from clearformer.errors import UserError
from clearformer.hooks import ActivationCache
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.norms import RMSNorm

V, D = 11, 12


def looked_at(family: str = "decoder", names: Any = None) -> ActivationCache:
    config = ModelConfig(
        family=family,  # type: ignore[arg-type]
        vocab_size=V,
        d_model=D,
        n_layers=3,
        attention=MultiHead(n_heads=2, qk_norm=RMSNorm()),
    )
    texts = (torch.randint(V, (1, 5)), torch.randint(V, (1, 4)))
    return build(config).run_with_cache(*texts[: 1 + (family == "encoder-decoder")], names=names)[1]


SHORT = {
    ("pattern", 0): "blocks.0.attn.hook_pattern",
    ("pattern", -1): "blocks.2.attn.hook_pattern",
    ("resid_post", 1): "blocks.1.hook_resid_post",
    ("attn_out", 1): "blocks.1.hook_attn_out",
    ("post", 2): "blocks.2.mlp.hook_post",
    ("ln1.scale", 0): "blocks.0.ln1.hook_scale",
    ("attn.q_norm.scale", 0): "blocks.0.attn.q_norm.hook_scale",
    "embed": "hook_embed",
    "hook_embed": "hook_embed",
}


@pytest.mark.parametrize("short", SHORT)
def test_short_names_mean_the_full_ones(short: Any) -> None:
    cache = looked_at()
    assert cache[short] is dict(cache)[SHORT[short]]


def test_an_encoder_decoders_stacks_are_told_apart() -> None:
    cache = looked_at("encoder-decoder")
    assert cache["pattern", 0] is cache["decoder_blocks.0.attn.hook_pattern"]
    assert cache["pattern", 0, "encoder"] is cache["encoder_blocks.0.attn.hook_pattern"]
    assert cache["cross_attn.pattern", 1] is cache["decoder_blocks.1.cross_attn.hook_pattern"]


WRONG = {
    "blocks.0.attn.hook_patern": "did you mean 'blocks.0.attn.hook_pattern'?",
    ("patern", 0): "no activation 'patern' was kept for layer 0; did you mean 'pattern'?",
    (
        "scale",
        0,
    ): "layer 0 has several 'scale': name one of ln1.scale, attn.q_norm.scale, attn.k_norm.scale, ln2.scale",
    ("pattern", 3): "no activations of layer 3 were kept; kept layers: 0, 1, 2",
    ("pattern", -4): "no activations of layer -4 were kept",
    (
        "pattern",
        0,
        "encoder",
    ): "no layers of a stack 'encoder' were kept: this model has only one; omit it",
    ("pattern",): 'an activation is looked up by its name or by ("pattern", layer)',
    (0, 1): 'an activation is looked up by its name or by ("pattern", layer); got (0, 1)',
    (0, "pattern"): "an activation is looked up by its name or by (\"pattern\", layer); got (0, 'pattern')",
    7: 'an activation is looked up by its name or by ("pattern", layer); got 7',
}


@pytest.mark.parametrize("key", WRONG)
def test_a_wrong_name_is_one_line_and_a_key_error(key: Any) -> None:
    cache = looked_at()
    with pytest.raises(KeyError) as caught:
        cache[key]
    assert isinstance(caught.value, UserError)
    assert WRONG[key] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert key not in cache
    assert cache.get(key) is None


def test_short_names_are_found_by_get_and_in_and_in_a_copy() -> None:
    cache = looked_at()
    for key in (("pattern", 0), "embed", "blocks.0.attn.hook_pattern"):
        assert key in cache
        assert cache.get(key) is cache.copy()[key] is cache[key]
    assert cache.get(("pattern", 99), 7) == 7
    assert repr(cache.copy()) == repr(cache)


def test_of_what_was_kept_alone() -> None:
    cache = looked_at(names="blocks.1.attn.hook_*")
    assert cache["pattern", -1] is cache["pattern", np.int64(-1)] is cache["blocks.1.attn.hook_pattern"]
    with pytest.raises(KeyError, match=r"no activations of layer 0 were kept; kept layers: 1$"):
        cache["pattern", 0]
    assert repr(cache) == "ActivationCache(6 activations)"
