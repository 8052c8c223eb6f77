"""The rules of `auto` for pairs: a model that translates.

    pairs' size, seconds, machine's rate -> FLOPs -> parameters -> shape; tokens, batch -> passes -> dropout

The constants come from runs on Multi30k of a minute on one CPU core and of half an hour on two
(benchmarks/RESULTS.md).
"""

import math
from dataclasses import replace

from clearformer.auto.budget import (
    PATTERN_BYTES,
    SECONDS,
    STREAM_BYTES,
    Budget,
    Recommendation,
    abbreviated,
    bytes_per_token,
    context_for,
    heads_for,
    largest_shape,
    parts_for,
    reason_of_size,
    reason_of_time,
    reason_to_end,
    requested_tokenizer,
    rotary_or_learned,
    seconds_of_steps,
    words_for,
)
from clearformer.data import PairsData
from clearformer.model.attention import MultiHead
from clearformer.model.config import ModelConfig
from clearformer.model.feedforward import ReLU2
from clearformer.model.init import Xavier
from clearformer.model.norms import RMSNorm
from clearformer.text import BPETokenizerSpec
from clearformer.training.config import RunConfig, TrainConfig
from clearformer.training.objectives import TranslationObjective
from clearformer.training.optim.optimizers import Muon
from clearformer.training.optim.schedules import WarmupStableDecay
from clearformer.training.planning.run_plan import vocabulary_of

TYPICAL = Budget(n_bytes=4_000_000, n_texts=30_000, seconds=SECONDS, rate=5e11, memory=4e9)
UTILISATION = 0.25  # of large products' rate, by uncompiled steps of many shapes

# The FLOPs of a minute on one CPU core, and the best settings for them.
REFERENCE_FLOPS = 2.5e12
REFERENCE_PARAMETERS = 0.38e6
REFERENCE_VOCABULARY = 4000
REFERENCE_BATCH_TOKENS = 1024
REFERENCE_LR = 0.01
LEAST_LR, MOST_LR = 0.004, 0.015

# From this share of the reference on one layer of width 128 at least: narrower, a step is not faster in proportion, for
# little of its time goes into products.
LEAST_PARAMETERS, LEAST_FROM = 0.33e6, 0.35
PARAMETERS_PER_BYTE = 0.7  # more parameters for each byte of the pairs only memorise them
BYTES_PER_WORD = 380  # bytes of pairs for each token of the vocabulary
LEAST_VOCABULARY, MOST_VOCABULARY = 500, 32_000
MOST_BATCH_TOKENS = 25_000
LEAST_BATCH_TOKENS = 256
FRESH_PASSES, MOST_PASSES = 3, 100
MOST_DROPOUT = 0.3
WARMUP_SHARE = 0.04  # of the steps
HEAD = 32
LONGEST = 1024  # tokens; longer pairs are left out
SHAPES = (
    (64, 1),
    (128, 1),
    (128, 2),
    (128, 4),
    (192, 4),
    (256, 4),
    (256, 6),
    (384, 6),
    (512, 6),
    (768, 6),
)


def choose(budget: Budget) -> Recommendation:
    """Choose the run for a budget; a pure function of it."""
    budget = replace(budget, compile=bool(budget.compile))  # compiling does not pay for steps of many shapes
    size = vocabulary_for(budget)
    tokenizer = requested_tokenizer(budget, size) or BPETokenizerSpec(vocab_size=size)
    seconds = seconds_of_steps(budget, tokenizer)
    flops = seconds * budget.rate * UTILISATION
    growth = flops / REFERENCE_FLOPS
    wanted = parameters_for(growth, budget.n_bytes, budget.memory)
    d_model, n_layers = largest_shape(SHAPES, block_parameters, wanted, budget.given)
    n_tokens = budget.n_bytes / 2 / bytes_per_token(tokenizer)  # per side
    flops_per_token = 6 * (block_parameters(d_model, n_layers) + vocabulary_of(tokenizer) * d_model)
    passes = min(flops / flops_per_token / n_tokens, MOST_PASSES)
    read = passes * n_tokens
    batch_tokens = min(batch_for(growth, n_tokens), tokens_in_memory(budget.memory, vocabulary_of(tokenizer)))
    context = budget.given.max_seq_len or context_for(budget.longest, tokenizer, LONGEST)
    n_steps = max(1, round(read / batch_tokens))
    most_steps = max(1, round(MOST_PASSES * n_tokens / batch_tokens))
    dropout = dropout_for(passes)
    parts = parts_for(
        batch_tokens, context, bytes_per_position(d_model, n_layers, context, dropout), budget.memory
    )
    run = RunConfig(
        model=ModelConfig(
            family="encoder-decoder",
            d_model=d_model,
            n_layers=n_layers,
            max_seq_len=context,
            dropout=dropout,
            attention=MultiHead(n_heads=heads_for(d_model, HEAD), qk_norm=RMSNorm(learned=False)),
            position=rotary_or_learned(d_model),
            norm=RMSNorm(learned=False),
            ffn=ReLU2(d_ff=2 * d_model, bias=False),
            init=Xavier(zero_outputs=True),
            scale_embeddings=True,
        ),
        data=PairsData(max_length=max(1, context - 1)),
        tokenizer=tokenizer,
        train=TrainConfig(
            objective=TranslationObjective(batch_tokens=batch_tokens),
            grad_accum_steps=parts,
            max_wall_seconds=budget.seconds,
            max_steps=most_steps,  # holds even if steps are faster than estimated
            lr=lr_for(growth),
            optimizer=Muon(adam_lr=0.01, cautious=True),
            schedule=WarmupStableDecay(decay=0.7),
            warmup_steps=min(max(10, round(WARMUP_SHARE * n_steps)), n_steps // 2),
            label_smoothing=0.1,
            eval_every=max(50, 10 * round(n_steps / 100)),
        ),
    )
    return Recommendation(run, reasons_of(budget, seconds, flops, run, wanted, n_steps, passes))


def vocabulary_for(budget: Budget) -> int:
    """Return a vocabulary size that grows with the time to learn it and with the text."""
    growth = budget.seconds * budget.rate * UTILISATION / REFERENCE_FLOPS
    wanted = min(REFERENCE_VOCABULARY * growth**0.2, budget.n_bytes / BYTES_PER_WORD, MOST_VOCABULARY)
    return 100 * round(max(wanted, LEAST_VOCABULARY) / 100)


def parameters_for(growth: float, n_bytes: float, memory: float) -> float:
    """Return the blocks' parameters: as many as there is time for, within limits."""
    return min(parameters_by_time(growth), PARAMETERS_PER_BYTE * n_bytes, memory / 20)


def parameters_by_time(growth: float) -> float:
    """Return the parameters in proportion to the FLOPs' square root (Hoffmann et al. 2022), with a least number."""
    least = LEAST_PARAMETERS if growth >= LEAST_FROM else 0.0
    return max(REFERENCE_PARAMETERS * math.sqrt(growth), least)


def block_parameters(d_model: int, n_layers: int) -> int:
    """Count the parameters of three attentions (four matrices of D x D) and two feed-forward networks of width 2 D."""
    return (3 * 4 + 2 * 4) * n_layers * d_model**2


def batch_for(growth: float, n_tokens: float) -> int:
    """Return a step's tokens per side: in proportion to the FLOPs' fifth root, but at least twenty steps per pass."""
    wanted = REFERENCE_BATCH_TOKENS * growth**0.2
    return round(max(LEAST_BATCH_TOKENS, min(wanted, n_tokens / 20, MOST_BATCH_TOKENS)))


def tokens_in_memory(memory: float, vocabulary: int) -> int:
    """Return the number of tokens whose logits, gradients and softmax fit into half of the memory."""
    return round(memory / 2 / (12 * vocabulary))


def bytes_per_position(d_model: int, n_layers: int, context: int, dropout: float) -> float:
    """Return the bytes that training keeps for a token on both sides, in rows of `context` tokens."""
    patterns = 3 * PATTERN_BYTES * d_model // HEAD * context if dropout else 0  # of three attentions
    return n_layers * (2 * STREAM_BYTES * d_model + patterns)


def lr_for(growth: float) -> float:
    """Return the learning rate, which falls slowly with more FLOPs."""
    return float(f"{min(MOST_LR, max(LEAST_LR, REFERENCE_LR * growth**-0.08)):.2g}")


def dropout_for(passes: float) -> float:
    """Return no dropout up to three passes over the pairs, then 0.06 more for each doubling."""
    return round(min(MOST_DROPOUT, 0.06 * math.log2(max(passes, FRESH_PASSES) / FRESH_PASSES)), 2)


def reasons_of(
    budget: Budget,
    seconds: float,
    flops: float,
    run: RunConfig,
    wanted: float,
    n_steps: int,
    passes: float,
) -> list[str]:
    """List the reasons for the choices."""
    model, objective = run.model, run.train.objective
    assert isinstance(objective, TranslationObjective)
    by_time = parameters_by_time(flops / REFERENCE_FLOPS)
    n_parameters = block_parameters(model.d_model, model.n_layers)
    of_size = reason_of_size(
        budget.given, wanted, by_time, "the pairs or the memory", block_parameters(*SHAPES[-1])
    )
    if wanted == LEAST_PARAMETERS and budget.given[:2] == (None, None):
        of_size = "with fewer, steps would not be faster in proportion"
    reasons = [
        reason_of_time(budget, seconds, UTILISATION),
        f"{model.n_layers} + {model.n_layers} layers of width {model.d_model}, {abbreviated(n_parameters)} parameters: "
        f"{of_size}",
        f"tokens: {words_for(run.tokenizer)}, {budget.n_texts:,} pairs, {budget.n_bytes / 1e6:.3g} MB; about "
        f"{n_steps:,} steps of {objective.batch_tokens:,} tokens per side",
        f"about {passes:.1f} passes over the pairs: dropout {model.dropout:g}",
    ]
    return reasons + reason_to_end(run, passes, MOST_PASSES)
