"""Measures of attention itself: the scale of its scores, and the cost of its forms by sequence length.

Shapes: N queries, T keys, d their size.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import process_time

import numpy as np
import torch
from torch import Tensor

from clearformer.bench.rounds import Contender, interleave
from clearformer.cost import LiveBytes, tensors_without_memory
from clearformer.model.attention import MultiHead, MultiHeadModule
from clearformer.model.fast.attention_forms import attention, fused_attention
from clearformer.model.init import generator_of
from clearformer.model.linear_attention import causal_linear_attention, positive
from clearformer.model.masks import Mask
from clearformer.model.positions import Positions
from clearformer.study.study import Values

N_QUERIES, N_KEYS = 1024, 128  # drawn at random
SATURATED = 0.99  # the weight on one key from which a query counts as saturated
QUERIES, KEYS, VALUES = ((1.0, 0.0), (0.0, 1.0)), ((1.0, 0.0), (1.0, 1.0)), ((1.0, 0.0), (0.0, 1.0))
SHORTEST_FITTED = 1024  # positions; at shorter lengths, constant costs take a good part of the time


def drawn_scores(seed: int, d_k: int, scaled: bool) -> Values:
    """Draw scores q . k with q, k from N(0, 1)^d_k, divided by sqrt(d_k) if scaled (002, 5; 000, 4.3).

    Returns:
        score_std: The standard deviation of the scores.
        entropy: The mean entropy of the softmax over 128 keys, in nats; ln 128 = 4.85 for equal weights.
        gradient: The mean Frobenius norm of the softmax's Jacobian diag(p) - p p^T, over queries.
        gradient_median: Its median over queries.
        saturated: The share of queries with more than 99% of their weight on one key.
    """
    numbers = generator_of(seed, f"scores {d_k}")
    q, k = torch.randn(N_QUERIES, d_k, generator=numbers), torch.randn(N_KEYS, d_k, generator=numbers)
    scores = q @ k.T * (d_k**-0.5 if scaled else 1.0)
    p = scores.double().softmax(-1)
    squares = p.square().sum(-1)
    jacobian = (squares - 2 * p.pow(3).sum(-1) + squares.square()).clamp_min(0).sqrt()
    return {
        "score_std": scores.std().item(),
        "entropy": torch.special.entr(p).sum(-1).mean().item(),
        "gradient": jacobian.mean().item(),
        "gradient_median": jacobian.median().item(),
        "saturated": (p.amax(-1) > SATURATED).double().mean().item(),
    }


def two_tokens(seed: int) -> Values:
    """Compute attention of two tokens with d_k = 2 by the model's own formula (004, 4.3).

    The lecture's vectors are lost in its text; these give what it says of them. Scores are ((1, 1), (0, 1)) before
    scaling, so that the second row's are exponentials of 0 and 0.71.

    Returns:
        weights: The two tokens' weights, row by row.
        output: The weighted sums of the values.
        leaning_1, leaning_2: A token's weight on the second value minus that on the first.
    """
    q, k, v = (torch.tensor(rows)[None, None] for rows in (QUERIES, KEYS, VALUES))
    module = MultiHead().build(2, dropout=0.0)
    place = torch.arange(2)
    everything = Mask(place, place, causal=False)
    weights = module.formula(q, k, torch.eye(2)[None, None], everything, None)[0, 0].double()
    output = module.formula(q, k, v, everything, None)[0, 0]
    leanings = (weights[:, 1] - weights[:, 0]).tolist()
    return {
        "weights": weights.tolist(),
        "output": output.tolist(),
        "leaning_1": leanings[0],
        "leaning_2": leanings[1],
    }


@torch.no_grad()
def distance_from_torch(seed: int, d_model: int, n_heads: int, n_tokens: int) -> Values:
    """Compare attention in several heads with torch.nn.MultiheadAttention of the same weights (lecture 001).

    Returns:
        largest_difference: The largest absolute difference of two outputs, in float32.
    """
    numbers = generator_of(seed, "attention of 001")
    x = torch.randn(2, n_tokens, d_model, generator=numbers)
    theirs = torch.nn.MultiheadAttention(d_model, n_heads, batch_first=True)
    for parameter in theirs.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=numbers) * d_model**-0.5)
    ours = MultiHead(n_heads=n_heads, qkv_bias=True, output_bias=True).build(d_model, dropout=0.0)
    weights = {"W_O.weight": theirs.out_proj.weight, "W_O.bias": theirs.out_proj.bias}
    for name, matrix, bias in zip(
        "QKV", theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True
    ):
        weights |= {f"W_{name}.weight": matrix, f"W_{name}.bias": bias}
    ours.load_state_dict(weights)
    place = torch.arange(n_tokens)
    found = ours(x, Mask(place, place, causal=False), Positions())
    return {"largest_difference": (found - theirs(x, x, x, need_weights=False)[0]).abs().max().item()}


def causal_mask(seed: int, n_tokens: int) -> Values:
    """Compute the causal mask of n tokens, and the weights of equal scores under it (000, figure 4.5).

    Returns:
        readable: Row by row, whether query t may read key s.
        above_diagonal, row_sum_error: As in `pattern_of`, of the weights.
    """
    place = torch.arange(n_tokens)
    mask = Mask(place, place, causal=True).matrix(None, torch.float64)[0, 0]
    weights = mask.softmax(-1)
    return {
        "readable": (mask == 0).tolist(),
        "above_diagonal": weights.triu(1).max().item(),
        "row_sum_error": (weights.sum(-1) - 1).abs().max().item(),
    }


def self_term(seed: int, d_model: int, n_tokens: int, vocab_size: int | None = None) -> Values:
    """Draw scores e_i . e_t / sqrt(d) of embeddings from N(0, 1)^d, for the query at the last position t (000, 4.3).

    Args:
        seed: The seed of the 256 sequences drawn.
        d_model: d.
        n_tokens: The length of a sequence.
        vocab_size: The vocabulary that tokens are drawn from uniformly; None: all tokens of a sequence differ.

    Returns:
        self_score: The mean score of t with itself, about sqrt(d).
        cross_std: The standard deviation of scores between different tokens.
        own_weight: The mean weight of t on itself.
        token_weight: The mean weight of t on all positions with the same token.
    """
    numbers = generator_of(seed, f"self-term {d_model}")
    n_texts = 256
    if vocab_size is None:
        ids = torch.arange(n_tokens).expand(n_texts, -1)
        embeddings = torch.randn(n_texts, n_tokens, d_model, generator=numbers)
    else:
        ids = torch.randint(vocab_size, (n_texts, n_tokens), generator=numbers)
        embeddings = torch.randn(vocab_size, d_model, generator=numbers)[ids]
    scores = (embeddings @ embeddings[:, -1:].mT).squeeze(-1) * d_model**-0.5  # [texts T]
    weights, is_same = scores.softmax(-1), ids == ids[:, -1:]
    return {
        "self_score": scores[:, -1].mean().item(),
        "cross_std": scores[~is_same].std().item(),
        "own_weight": weights[:, -1].mean().item(),
        "token_weight": (weights * is_same).sum(-1).mean().item(),
    }


# --- cost ---------------------------------------------------------------------------------------------------

Form = Callable[[Tensor, Tensor, Tensor], Tensor]
"""One form of causal attention: q, k, v [B H T Dh] to [B H T Dh]."""


def forms(d_head: int, window: int) -> dict[str, Form]:
    """Return the forms of attention to compare, by name."""
    scale = d_head**-0.5
    formula = MultiHeadModule(MultiHead(d_head=d_head), d_head, 0.0, scale, None).formula

    def explicit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return formula(q, k, v, mask_of(q), None)

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return fused_attention(q, k, v, mask_of(q), None, scale, None, 0.0)

    def windowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, mask_of(q), None, scale, window, 0.0, formula)

    def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return causal_linear_attention(positive(q), positive(k), v)

    return {"explicit": explicit, "fused": fused, "windowed": windowed, "linear": linear}


def mask_of(q: Tensor) -> Mask:
    """Return the causal mask for queries [B H T Dh]."""
    return Mask.of(torch.zeros(1, q.shape[2], dtype=torch.long), causal=True)


def forward_and_backward(form: Form, shape: Sequence[int]) -> None:
    """Compute attention of random q, k, v, and the gradients of its sum."""
    q, k, v = (torch.randn(*shape, requires_grad=True) for _ in range(3))
    form(q, k, v).sum().backward()


def attention_costs(
    seed: int, lengths: Sequence[int], n_heads: int, d_head: int, window: int, rounds: int
) -> Values:
    """Measure time and memory of causal attention and its gradients by T, in four forms (004, 4.7), on one core.

    Time is the median over rounds in which the forms alternate, in seconds of processor time. Memory is the peak of
    live tensors.

    Returns:
        seconds, megabytes: By form, rows of T and the cost; a megabyte is 2^20 bytes here.
        time_exponent_FORM, memory_exponent_FORM: b of log(cost) = a + b log(T), fitted over T of 1,024 and more.
        seconds_FORM, megabytes_FORM: The cost at the largest T.
    """
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(seed)
        return _costs(forms(d_head, window), lengths, n_heads, d_head, rounds)
    finally:
        torch.set_num_threads(n_threads)


def _costs(
    compared: dict[str, Form], lengths: Sequence[int], n_heads: int, d_head: int, rounds: int
) -> dict[str, object]:
    seconds: dict[str, list[float]] = {name: [] for name in compared}
    n_bytes: dict[str, list[int]] = {name: [] for name in compared}
    for length in lengths:
        shape = (1, n_heads, length, d_head)
        contenders = [Contender(name, partial(seconds_of, form, shape)) for name, form in compared.items()]
        for figures in interleave(contenders, rounds):
            seconds[figures.name].append(figures.median)
        for name, form in compared.items():
            n_bytes[name].append(peak_bytes(form, shape))

    def rows(costs: Mapping[str, Sequence[float]], unit: float) -> dict[str, list[list[float]]]:
        return {
            name: [[length, cost / unit] for length, cost in zip(lengths, of_form, strict=True)]
            for name, of_form in costs.items()
        }

    found: dict[str, object] = {"seconds": rows(seconds, 1), "megabytes": rows(n_bytes, 2**20)}
    for name in compared:
        found[f"time_exponent_{name}"] = exponent(lengths, seconds[name])
        found[f"memory_exponent_{name}"] = exponent(lengths, n_bytes[name])
        found[f"seconds_{name}"] = seconds[name][-1]
        found[f"megabytes_{name}"] = n_bytes[name][-1] / 2**20
    return found


def seconds_of(form: Form, shape: Sequence[int]) -> float:
    """Return the processor time of one forward and backward pass, in seconds."""
    start = process_time()
    forward_and_backward(form, shape)
    return process_time() - start


def peak_bytes(form: Form, shape: Sequence[int]) -> int:
    """Return the peak bytes of live tensors in one forward and backward pass."""
    with tensors_without_memory(), LiveBytes() as live:
        forward_and_backward(form, shape)
    return live.peak


def exponent(lengths: Sequence[int], costs: Sequence[float]) -> float:
    """Fit log(cost) = a + b log(T) by least squares, over lengths from `SHORTEST_FITTED`, or all; returns b."""
    pairs = list(zip(lengths, costs, strict=True))
    fitted = [pair for pair in pairs if pair[0] >= SHORTEST_FITTED] or pairs
    logs = np.array([[math.log(length), math.log(cost)] for length, cost in fitted])
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])
