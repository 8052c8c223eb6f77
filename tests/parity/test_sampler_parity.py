"""The samplers against transformers' logits processors: equal numbers, not close ones."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from clearformer.decoding.samplers import (
    Sampling,
    apply_temperature,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize_repetition,
)

B, V, T = 7, 53, 11


def spread() -> Tensor:
    return 4 * torch.randn(B, V)


def tied() -> Tensor:
    """Few different scores, so that every threshold falls among equal ones; 0 is one of them."""
    return torch.randint(-2, 3, (B, V)).float()


def partly_ruled_out() -> Tensor:
    return spread().masked_fill(torch.rand(B, V) < 0.4, -torch.inf)


def all_equal() -> Tensor:
    return torch.full((B, V), -1.5)


def one_certain() -> Tensor:
    return 100 * torch.eye(V)[:B]


LOGITS = [spread, tied, partly_ruled_out, all_equal, one_certain]
PAIRS: dict[str, tuple[Callable[[Tensor], Tensor], Any]] = {
    **{
        f"temperature={t}": (lambda x, t=t: apply_temperature(x, t), TemperatureLogitsWarper(t))
        for t in (0.2, 1.5)
    },
    **{f"top_k={k}": (lambda x, k=k: keep_top_k(x, k), TopKLogitsWarper(k)) for k in (1, 5, V, V + 1)},
    **{
        f"top_p={p}": (lambda x, p=p: keep_top_p(x, p), TopPLogitsWarper(p))
        for p in (1e-9, 0.1, 0.5, 0.9, 1.0)
    },
    **{f"min_p={p}": (lambda x, p=p: keep_min_p(x, p), MinPLogitsWarper(p)) for p in (0.0, 0.05, 0.5, 1.0)},
}


@pytest.mark.parametrize("logits", LOGITS)
@pytest.mark.parametrize("name", PAIRS)
def test_each_sampler_is_its_processor(name: str, logits: Callable[[], Tensor]) -> None:
    ours, theirs = PAIRS[name]
    for _ in range(5):
        scores = logits()
        before = scores.clone()

        expected = theirs(None, before.clone())  # it looks at no earlier tokens
        torch.testing.assert_close(ours(scores), expected, rtol=0, atol=0)
        torch.testing.assert_close(scores, before, rtol=0, atol=0)  # the argument is left as it was


@pytest.mark.parametrize("logits", LOGITS)
@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_repetition_penalty_is_its_processor(penalty: float, logits: Callable[[], Tensor]) -> None:
    scores, tokens = logits(), torch.randint(V, (B, T)) // 2  # halved, so that tokens repeat
    before = scores.clone()

    ours = penalize_repetition(scores, tokens.tolist(), penalty)

    theirs = RepetitionPenaltyLogitsProcessor(penalty)(tokens, before.clone())  # type: ignore[arg-type]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    torch.testing.assert_close(scores, before, rtol=0, atol=0)


@pytest.fixture(scope="module")
def gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=V, n_embd=12, n_layer=1, n_head=2, n_positions=2 * T, bos_token_id=0, eos_token_id=1
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        model.transformer.wte.weight.mul_(30)  # scores that differ
    return model


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.7},
        {"temperature": 1.6, "top_k": 20, "top_p": 0.9},
        {"temperature": 1.6, "top_p": 0.8, "min_p": 0.1},
        {"temperature": 0.6, "top_k": 30, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.8},
        {"repetition_penalty": 0.6, "min_p": 0.05},
    ],
)
def test_all_together_and_in_order_as_generate_applies_them(gpt2: Any, sampling: dict[str, Any]) -> None:
    prompts = torch.randint(V, (B, T))
    settings = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} | sampling

    theirs = gpt2.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=1,
        do_sample=True,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
        output_scores=True,
        **settings,
    )

    ours = Sampling(**sampling).adjust(theirs.logits[0], prompts.tolist())
    torch.testing.assert_close(ours, theirs.scores[0], rtol=0, atol=0)
