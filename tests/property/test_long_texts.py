"""What holds for windows and linear attention over texts so long that they are read in blocks and in chunks."""

from typing import Any

import pytest
import torch
from torch import Tensor

from clearformer.decoding.loop import collect, generate_tokens
from clearformer.decoding.samplers import Sampling, random_stream
from clearformer.hooks import hook_points
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.fast.linear_chunks import CHUNK
from clearformer.model.fast.window import WindowBlocks
from clearformer.model.init import Gaussian
from clearformer.model.linear_attention import Linear
from clearformer.model.positions import NoPositions, RoPE

B, T, V, D = 2, 211, 13, 22
EDGES = (
    0,
    31,
    32,
    33,
    63,
    64,
    66,
    67,
    68,
    99,
    101,
    102,
    160,
    T - 1,
)  # of blocks and of chunks, and beside them


def config(attention: Any, **changes: Any) -> ModelConfig:
    sizes = {"vocab_size": V, "d_model": D, "n_layers": 1, "max_seq_len": T, "init": Gaussian()}
    return ModelConfig(
        **sizes | {"attention": attention, "position": NoPositions(), "tie_embeddings": False} | changes
    )


WINDOWS = {
    "window of 1": config(MultiHead(n_heads=2, window=1)),
    "window of 3": config(MultiHead(n_heads=2, window=3), n_layers=2),
    "window of 35, rope, GQA": config(
        MultiHead(n_heads=6, n_kv_heads=3, d_head=4, window=35), position=RoPE()
    ),
    "window of 67": config(MultiHead(n_heads=2, window=67)),
    "window of 3, encoder": config(MultiHead(n_heads=2, window=3), family="encoder", n_layers=2),
    "window of 32, encoder": config(
        MultiHead(n_heads=2, d_head=4, window=32), family="encoder", position=RoPE()
    ),
}
CASES = WINDOWS | {
    "linear": config(Linear(n_heads=2), n_layers=2),
    "linear, GQA": config(Linear(n_heads=6, n_kv_heads=3, d_head=4)),
}
DECODERS = [name for name, case in CASES.items() if case.family == "decoder"]


def model_of(case: str) -> Any:
    return build(CASES[case]).double().eval()


def text(n: int = T, n_rows: int = B) -> Tensor:
    return torch.randint(V, (n_rows, n))


def exact(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_all_are_read_in_blocks_or_chunks() -> None:
    assert T > 3 * CHUNK
    for case in WINDOWS.values():
        assert isinstance(case.attention, MultiHead)
        assert WindowBlocks.of(T, case.attention.window, causal=case.family == "decoder") is not None


@pytest.mark.parametrize("case", CASES)
def test_every_position_reads_just_those_that_it_may(case: str) -> None:
    model = model_of(case)
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    with model.hooked({"hook_embed": lambda _, __: x}):
        logits = model(text())
    window = getattr(model.config.attention, "window", None)
    reach = T if window is None else model.config.n_layers * (window - 1)
    for place in EDGES:
        (gradient,) = torch.autograd.grad(logits[:, place].square().sum(), x, retain_graph=True)
        back = place - torch.arange(T)
        readable = (back <= reach) & (back >= (0 if case in DECODERS else -reach))
        assert torch.equal((gradient != 0).any(-1), readable.expand(B, T))


@pytest.mark.parametrize("case", DECODERS)
@pytest.mark.parametrize("place", EDGES)
@torch.no_grad()
def test_a_changed_token_leaves_earlier_logits(case: str, place: int) -> None:
    model, tokens = model_of(case), text()
    changed = tokens.clone()
    changed[:, place] = (tokens[:, place] + 1) % V

    before, after = model(tokens), model(changed)

    exact(after[:, :place], before[:, :place])
    assert (after[:, place] != before[:, place]).any()


@pytest.mark.parametrize("case", CASES)
def test_they_are_the_formula_over_all_scores_with_its_gradients(case: str) -> None:
    model, tokens = model_of(case), text()
    patterns = {name: lambda _, __: None for name in hook_points(model) if name.endswith("hook_pattern")}

    def logits_and_gradients() -> tuple[Tensor, dict[str, Tensor]]:
        model.zero_grad()
        logits = model(tokens)
        logits.sin().mean().backward()
        return logits, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    fast = logits_and_gradients()
    with model.hooked(patterns):
        plain = logits_and_gradients()

    exact(fast, plain)


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_a_padded_text_is_the_text_alone(case: str) -> None:
    """Which is read in blocks alone, and with a mask beside a longer one."""
    model, tokens = model_of(case), text()
    real = torch.ones(B, T, dtype=torch.bool)
    real[0, : T - 197] = False
    exact(model(tokens, real)[0, T - 197 :], model(tokens[:1, T - 197 :])[0])


@pytest.mark.parametrize("case", DECODERS)
@pytest.mark.parametrize(
    "sizes", [[T - 1, 1], [T - 3, 1, 1, 1], [130, T - 130], [1, T - 1], [65, 64, T - 129]]
)
@torch.no_grad()
def test_cached_is_uncached(case: str, sizes: list[int]) -> None:
    model, tokens = model_of(case), text()
    cache = model.new_cache()
    parts = [model(part, cache=cache) for part in tokens.split(sizes, dim=1)]
    exact(torch.cat(parts, dim=1), model(tokens))


@pytest.mark.parametrize("case", DECODERS)
@pytest.mark.parametrize("lengths", [(197,), (203, 203), (197, 150)])
def test_generation_with_a_cache_is_without(case: str, lengths: tuple[int, ...]) -> None:
    """Until after the texts have outgrown the model's positions."""
    model, n_new = model_of(case), 17
    prompts = [text(n, 1)[0].tolist() for n in lengths]

    def written(use_cache: bool) -> list[Any]:
        streams = [random_stream(5, row) for row in range(len(prompts))]
        tokens = generate_tokens(model, prompts, n_new, Sampling(), streams, use_cache=use_cache)
        return collect(tokens, len(prompts))

    for cached, uncached in zip(written(use_cache=True), written(use_cache=False), strict=True):
        assert cached.tokens == uncached.tokens
        assert cached.logprobs == pytest.approx(uncached.logprobs, abs=1e-12)
