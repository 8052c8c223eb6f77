"""The models whose properties are tested: every kind of every slot, from the unions, so that a new kind joins.

Attention, windows and positions are crossed with each other and with caches, padding and a test's other switches,
pairwise. The rest (norms, feed-forward networks, placements, heads, and the forms of one kind of attention) takes turns
beside them.
"""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from itertools import cycle, product
from typing import Any

import pytest
import torch
from torch import Tensor

from clearformer.config import Spec, slot_variants
from clearformer.errors import ConfigError
from clearformer.model import ModelConfig, build
from clearformer.model.attention import Dot, MultiHead, Shared
from clearformer.model.feedforward import GELU
from clearformer.model.init import Gaussian
from clearformer.model.linear_attention import Linear
from clearformer.model.norms import RMSNorm
from clearformer.model.positions import RoPE, Sinusoidal
from clearformer.model.relative_positions import Relative

from ..pairwise import pairwise
from ..seeding import seed

# No two axes have the same size, so that mixed-up ones cannot pass; heads are grouped where a kind has groups.
V, D = 13, 22
SETTINGS = {"n_heads": 6, "n_kv_heads": 3, "d_head": 4, "d_ff": 17}
OF_FAMILY: dict[str, dict[str, Any]] = {
    "decoder": {"n_layers": 2, "max_seq_len": 22},
    "encoder": {"n_layers": 2, "max_seq_len": 11, "n_token_types": 2, "masked_head": "transform"},
    "encoder-decoder": {"n_layers": 1, "n_decoder_layers": 2, "max_seq_len": 11},
}


def kinds(slot: str) -> dict[str, type[Spec]]:
    return slot_variants(ModelConfig.model_fields[slot])


def filled(spec_type: type[Spec]) -> Any:
    return spec_type(**{name: value for name, value in SETTINGS.items() if name in spec_type.model_fields})


ATTENTIONS: dict[str, list[Any]] = {
    kind: [filled(spec_type)] for kind, spec_type in kinds("attention").items()
}
"""The forms of every kind; the first goes together with what any of them does."""
ATTENTIONS["dot"].append(Dot(scale=False))
ATTENTIONS["shared"].append(Shared(scale=False))
ATTENTIONS["multihead"] += [
    MultiHead(n_heads=2, d_head=4, qkv_bias=True, output_bias=True, qk_norm=RMSNorm()),
    MultiHead(n_heads=2, value=False, output=False, scale=False),
]
ATTENTIONS["linear"].append(Linear(n_heads=2, d_head=4, qkv_bias=True, qk_norm=RMSNorm()))
ATTENTIONS["window"] = [
    MultiHead(n_heads=6, n_kv_heads=3, d_head=4, window=3),
    MultiHead(n_heads=2, d_head=4, window=3),
]
POSITIONS: dict[str, list[Any]] = {kind: [filled(spec_type)] for kind, spec_type in kinds("position").items()}
POSITIONS["sinusoidal"].append(Sinusoidal(interleaved=False))
POSITIONS["rope"].append(RoPE(fraction=0.55))  # of heads of 4 and of 22, even numbers
POSITIONS["relative"] = [Relative(n_buckets=8, max_distance=5), Relative(n_buckets=4, max_distance=5)]

OTHERS: dict[str, dict[str, Any]] = {
    f"{slot}={kind}": {slot: filled(spec_type)}
    for slot in ModelConfig.model_fields
    if slot not in ("attention", "position", "init")  # for the last see test_init.py
    for kind, spec_type in kinds(slot).items()
} | {
    "post": {"placement": "post"},
    "post, no final norm": {"placement": "post", "final_norm": False},
    "bare blocks": {"placement": "none", "final_norm": False},
    "no residuals": {"residual": False},
    "embedding norm": {"embedding_norm": True, "scale_embeddings": True},
    "own head": {"tie_embeddings": False, "head_bias": True, "logit_soft_cap": 3.0},
    "tied head": {"head_bias": True, "scale_logits": True},
    "parallel": {"parallel": True},
}


def config(family: str = "decoder", **changes: Any) -> ModelConfig:
    settings: dict[str, Any] = {"family": family, "vocab_size": V, "d_model": D, "init": Gaussian()}
    settings |= OF_FAMILY[family] | {"attention": filled(MultiHead), "ffn": filled(GELU)}
    return ModelConfig(**(settings | changes))


@cache
def goes_together(family: str, attention: str, position: str) -> bool:
    """Which do is tested in test_model_config.py."""
    try:
        config(family, attention=ATTENTIONS[attention][0], position=POSITIONS[position][0])
    except ConfigError:
        return False
    return True


def every_model(
    family: str = "decoder",
    but: Iterable[str] = (),
    only: Iterable[str] = ATTENTIONS,
    **switches: Iterable[Any],
) -> pytest.MarkDecorator:
    """A test of a `case`: every attention with every position, and with each value of the test's own switches.

    Args:
        family: Of the models.
        but: Attentions that are left out.
        only: Those that are not.
        switches: The test's other parameters.
    """
    return _parametrized(family, set(only) - set(but), switches, together=2)


def each_kind(
    family: str = "decoder", but: Iterable[str] = (), **switches: Iterable[Any]
) -> pytest.MarkDecorator:
    """A test of a `case`, for what does not depend on how the kinds meet: each kind and each value once."""
    return _parametrized(family, set(ATTENTIONS) - set(but), switches, together=1)


def _parametrized(
    family: str, attentions: set[str], switches: dict[str, Iterable[Any]], together: int
) -> pytest.MarkDecorator:
    rows = pairwise(
        {"attention": [name for name in ATTENTIONS if name in attentions], "position": POSITIONS}
        | {name: list(values) for name, values in switches.items()}
        | ({"other": OTHERS} if together == 1 else {}),
        lambda row: goes_together(family, row["attention"], row["position"]),
        together,
    )
    others, used, params = cycle(OTHERS), Counter(), []
    for row in rows:
        attention, position, other = row["attention"], row["position"], row.get("other") or next(others)
        case = least_used(used, family, attention, position, OTHERS[other])
        own = [row[name] for name in switches]
        name = "-".join([f"{attention}+{position}, {other}", *map(str, own)])
        params.append(pytest.param(case, *own, id=name))
    return pytest.mark.parametrize(("case", *switches), params)


def least_used(
    used: Counter[Spec], family: str, attention: str, position: str, other: dict[str, Any]
) -> ModelConfig:
    """A model with those forms of its kinds that go together and were used least."""
    forms = product(ATTENTIONS[attention], POSITIONS[position])
    for pair in sorted(forms, key=lambda pair: sum(used[form] for form in pair)):
        with suppress(ConfigError):
            case = config(family, attention=pair[0], position=pair[1], **other)
            if not saturates(case):
                used.update(pair)
                return case
    raise AssertionError(f"{attention} and {position} do not go together")


def saturates(case: ModelConfig) -> bool:
    """Whether scores are so large that a softmax is 0 but for one weight, and nothing depends on the others."""
    unscaled = not getattr(case.attention, "scale", True)
    return unscaled and (case.placement == "none" or case.norm.kind == "none")


def made(settings: ModelConfig) -> Any:
    """A float64 model with all that begins at 1 or 0 (norms, biases) moved away from there, where it would hide."""
    seed(0)  # the same weights in every example that hypothesis makes
    model = build(settings).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 or not parameter.any():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def text(n_tokens: int, n_rows: int = 2) -> Tensor:
    return torch.randint(V, (n_rows, n_tokens))


def real_tokens(lengths: list[int], side: str, n: int) -> Tensor:
    """True where a token is real, for rows padded to n tokens."""
    places, filled_to = torch.arange(n), torch.tensor(lengths)[:, None]
    return places >= n - filled_to if side == "left" else places < filled_to
