"""Ledgers of imported models; those of a GPT-2 against the formula on transformers' own model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clearformer import lens
from clearformer.interop.reading import read_model
from clearformer.model import build

from .test_interop import SOURCES, STD, V, gpt2, randomised

NAMES = ("gpt2", "llama", "qwen3", "t5", "marian", "bert")
T, S = 9, 8


def imported(make: Any, folder: Path, std: float = 0.3) -> tuple[Any, Any]:
    """A model of theirs, saved by them, and what we read of it."""
    theirs = make().eval()
    theirs.set_attn_implementation("eager")
    randomised(theirs, std=std)
    theirs.save_pretrained(folder)
    read = read_model(folder)
    ours = build(read.config)
    ours.load_state_dict(read.weights)
    return theirs, ours


def given(family: str) -> tuple[Tensor, ...]:
    texts = (torch.randint(V, (T,)),)
    return (torch.randint(V, (S,)), *texts) if family == "encoder-decoder" else texts


@pytest.mark.parametrize("name", NAMES)
def test_ledgers_of_imported_models_sum(name: str, tmp_path: Path) -> None:
    ours = imported(SOURCES[name][0], tmp_path, STD.get(name, 0.3))[1].double()
    family = ours.config.family
    texts = given(family)
    logits, _ = lens.run_with_cache(ours, *texts)
    found = lens.ledger(ours, *texts, position=5, target=3)
    assert found.error < 1e-9
    assert found.logit == pytest.approx(float(logits[0, 5, 3]), abs=1e-9)
    assert lens.sources(ours, *texts, position=5, target=3, foil=4).error < 1e-9
    assert lens.score(ours, *texts, layer=-1, head=1, position=5, key=2).error < 1e-9
    if family == "encoder-decoder":
        cross = lens.score(ours, *texts, layer=0, head=1, position=5, key=7, attention="cross_attn")
        assert cross.error < 1e-9
    by_layer = lens.logit_lens(ours, *texts, position=5)
    assert by_layer.error < 1e-12


@torch.no_grad()
def test_a_gpt2s_parts_are_those_of_transformers_model(tmp_path: Path) -> None:
    """Direct logit attribution by the textbook, on their modules: (part - mean) / std * weight . unembedding."""
    theirs, ours = imported(gpt2, tmp_path)
    tokens, position, target = torch.randint(V, (1, T)), 6, 3
    written = parts_of_theirs(theirs, tokens, position)
    final = theirs.transformer.ln_f
    stream = torch.stack(list(written.values())).sum(0)
    std = (stream.var(unbiased=False) + final.eps).sqrt()
    row = theirs.lm_head.weight[target]
    wanted = {
        name: float(((part - part.mean()) / std * final.weight) @ row) for name, part in written.items()
    } | {("ln_final.bias", None): float(final.bias @ row)}
    found = lens.ledger(ours, tokens, position=position, target=target)
    got = {(part.name, part.head): part.value for part in found.parts}
    assert got == pytest.approx(wanted, abs=1e-5)
    assert found.logit == pytest.approx(float(theirs(tokens).logits[0, position, target]), abs=1e-4)


def parts_of_theirs(theirs: Any, tokens: Tensor, position: int) -> dict[tuple[str, int | None], Tensor]:
    """Everything that is written to the residual stream at a position, by our names."""
    body, seen = theirs.transformer, {}
    handles = []
    for i, block in enumerate(body.h):
        handles += [
            block.attn.c_proj.register_forward_pre_hook(
                lambda _, given, i=i: seen.__setitem__(("z", i), given[0][0, position])
            ),
            block.mlp.c_proj.register_forward_pre_hook(
                lambda _, given, i=i: seen.__setitem__(("post", i), given[0][0, position])
            ),
        ]
    theirs(tokens)
    for handle in handles:
        handle.remove()
    parts: dict[tuple[str, int | None], Tensor] = {
        ("hook_embed", None): body.wte.weight[tokens[0, position]],
        ("hook_pos_embed", None): body.wpe.weight[position],
    }
    for i, block in enumerate(body.h):
        n_heads = theirs.config.n_head
        matrix = block.attn.c_proj.weight.unflatten(0, (n_heads, -1))  # [H Dh D]
        heads = torch.einsum("hd,hdk->hk", seen["z", i].unflatten(0, (n_heads, -1)), matrix)
        parts |= {(f"blocks.{i}.attn.hook_z", head): vector for head, vector in enumerate(heads)}
        parts[f"blocks.{i}.attn.W_O.bias", None] = block.attn.c_proj.bias
        parts[f"blocks.{i}.hook_mlp_out", None] = seen["post", i] @ block.mlp.c_proj.weight
        parts[f"blocks.{i}.mlp.W_out.bias", None] = block.mlp.c_proj.bias
    return parts
