"""The rules of `auto` for a running text: a language model.

    text's size, seconds -> tokens
    these, machine's rate -> FLOPs -> parameters -> shape, context, batch -> passes; these and parameters -> dropout,
    passes and FLOPs -> learning rate

The constants come from runs on Tiny Shakespeare, and for the choice of tokens and the rate of small texts on six others
each, on two CPU cores (benchmarks/RESULTS.md has them, and shows how well the rules hold at other sizes and times).
"""

import math

from clearformer.auto.budget import (
    ANY_SIZE,
    SECONDS,
    SECONDS_BESIDE_STEPS,
    STREAM_BYTES,
    Budget,
    ModelSize,
    Recommendation,
    abbreviated,
    block_parameters,
    bytes_per_token,
    heads_for,
    largest_shape,
    parts_for,
    reason_of_size,
    reason_of_time,
    reason_to_end,
    requested_tokenizer,
    rotary_or_learned,
    seconds_but_for,
    seconds_of_steps,
    seconds_to_prepare,
    words_for,
)
from clearformer.auto.vocabulary import FEW, LEAST_FOR_WORDS, MANY
from clearformer.data import TextData
from clearformer.errors import count
from clearformer.model.attention import MultiHead
from clearformer.model.config import ModelConfig
from clearformer.model.feedforward import ReLU2
from clearformer.model.init import Gaussian
from clearformer.model.norms import RMSNorm
from clearformer.text import BPETokenizerSpec, CharTokenizerSpec
from clearformer.training.config import RunConfig, TokenizerConfig, TrainConfig
from clearformer.training.optim.optimizers import Muon
from clearformer.training.optim.schedules import WarmupStableDecay
from clearformer.training.planning.run_plan import vocabulary_of

TYPICAL = Budget(n_bytes=1_000_000, seconds=SECONDS, rate=5e11, memory=4e9)
UTILISATION = 0.4  # of large products' rate, by the products of a small compiled step
UNCOMPILED = 0.57  # the speed of uncompiled steps, in runs too short for compiling to pay, over compiled ones

# The FLOPs of a minute on two CPU cores, and the best settings for them.
REFERENCE_FLOPS = 2e13
REFERENCE_PARAMETERS = 2e6
REFERENCE_BATCH_TOKENS = 2048
REFERENCE_LR = 0.02
ADAM_SHARE = 1 / 8  # of the matrices' learning rate, for all other parameters
LEAST_LR, MOST_LR = 0.008, 0.04

LITTLE_TEXT = 300_000  # bytes; less of it gets few tokens, if what more would save was not measured
LEAST_SAVED = 0.015  # bits per character; more tokens that save less make the run's loss higher
FEW_FLOPS, LEAST_SAVED_BY_FEW = 1e12, -0.05  # a run of fewer reads little, of which longer tokens hold more
PREPARING_SHARE = 0.4  # of the seconds that start and end leave, the most that preparing the text may take
LOGIT_BYTES = 4 * 4  # for a logit: before and after the cap, its log-probability and its gradient
HEAD = 64
MOST_HEADS = 64
LEAST_STEPS = 300
PARAMETERS_PER_BYTE = 12  # more parameters for each byte of the text only memorise it
FRESH_PASSES, MOST_PASSES = 3, 100
FEW_PASSES, LEAST_RATE_OF_REPEATED = 12, 0.5  # more passes lower the rate, at most to this share of it
SMALL_PARAMETERS = 4e5  # with more of them a text is fresh for fewer passes
MOST_DROPOUT = 0.3
HELD_OUT = 0.1  # of the text
LEAST_HELD_OUT = 200_000  # bytes: enough for a loss with two exact decimal places
EVALUATION_SHARE = 0.02  # of the run's FLOPs, for evaluating all held-out text


def choose(budget: Budget) -> Recommendation:
    """Choose the run for a budget; a pure function of it."""
    tokenizer = requested_tokenizer(budget, vocabulary_for(budget)) or choose_tokenizer(budget)
    seconds = seconds_of_steps(budget, tokenizer)
    flops = seconds * budget.rate * UTILISATION
    growth = flops / REFERENCE_FLOPS
    bytes_each = bytes_per_token(tokenizer)
    n_tokens = budget.n_bytes / bytes_each
    wanted = parameters_for(growth, budget.n_bytes, budget.memory)
    d_model, n_layers = shape_of(wanted, budget.given)
    n_parameters = block_parameters(d_model, n_layers)
    context = budget.given.max_seq_len or context_for(flops, n_tokens)
    # 6 FLOPs per parameter and token (Kaplan et al. 2020, 2.1), a tenth more for attention, none for the embeddings.
    part = 1.0 if budget.is_compiled else UNCOMPILED
    in_products = n_parameters + vocabulary_of(tokenizer) * d_model
    passes = min(part * flops / (6.6 * in_products) / n_tokens, MOST_PASSES)
    read = passes * n_tokens
    batch_tokens = batch_for(growth, read, context)
    lr = lr_for(growth, passes)
    dropout = dropout_for(passes, n_parameters)
    bytes_per_position = max(STREAM_BYTES * n_layers * d_model, LOGIT_BYTES * vocabulary_of(tokenizer))
    grad_accum_steps = parts_for(batch_tokens, context, bytes_per_position, budget.memory)
    n_steps = max(1, round(read / batch_tokens))
    max_steps = n_steps if passes >= MOST_PASSES else None
    run = RunConfig(
        model=ModelConfig(
            d_model=d_model,
            n_layers=n_layers,
            max_seq_len=context,
            dropout=dropout,
            attention=MultiHead(n_heads=heads_for(d_model, HEAD), qk_norm=RMSNorm(learned=False)),
            position=rotary_or_learned(d_model),
            norm=RMSNorm(learned=False),
            ffn=ReLU2(bias=False),
            init=Gaussian(zero_outputs=True),
            embedding_norm=True,
            tie_embeddings=False,
            logit_soft_cap=15.0,
        ),
        tokenizer=tokenizer,
        data=TextData()
        if budget.has_held_out
        else TextData(val_fraction=held_out_for(budget.n_bytes, read * bytes_each)),
        train=TrainConfig(
            batch_size=batch_tokens // context,
            grad_accum_steps=grad_accum_steps,
            max_wall_seconds=budget.seconds,
            max_steps=max_steps,
            lr=lr,
            optimizer=Muon(adam_lr=lr * ADAM_SHARE, cautious=True),
            schedule=WarmupStableDecay(decay=0.8),
            eval_every=max(50, 10 * round(n_steps / 100)),
        ),
    )
    return Recommendation(run, reasons_of(budget, seconds, flops, run, n_parameters, wanted, read, passes))


def choose_tokenizer(budget: Budget) -> TokenizerConfig:
    """Choose a BPE, or characters if the text is small, or if there is no time to tokenize all of it by BPE."""
    words = BPETokenizerSpec(vocab_size=vocabulary_for(budget))
    most_seconds = PREPARING_SHARE * seconds_but_for(budget, SECONDS_BESIDE_STEPS)
    has_time = seconds_to_prepare(budget, words) <= most_seconds
    return words if budget.n_bytes >= LEAST_FOR_WORDS and has_time else CharTokenizerSpec()


def vocabulary_for(budget: Budget) -> int:
    """Return the size of a vocabulary of BPE: larger if that saves bits, or if there is text and time to learn it."""
    n_bytes, flops = budget.n_bytes, budget.seconds * budget.rate * UTILISATION
    saved = budget.bits_saved
    least_saved = LEAST_SAVED if flops >= FEW_FLOPS else LEAST_SAVED_BY_FEW
    size = FEW if (n_bytes < LITTLE_TEXT if saved is None else saved < least_saved) else MANY
    if n_bytes >= 20e6 and flops >= 1e15:
        size = 4096 if n_bytes < 200e6 else 16_384
    return size


def parameters_for(growth: float, n_bytes: float, memory: float) -> float:
    """Return the blocks' parameters: in proportion to the FLOPs' square root (Hoffmann et al. 2022), within limits."""
    by_time = REFERENCE_PARAMETERS * math.sqrt(growth)
    by_memory = memory / 20  # weights, gradients and the optimizer's state take 16 bytes
    return min(by_time, PARAMETERS_PER_BYTE * n_bytes, by_memory)


def shape_of(n_parameters: float, given: ModelSize = ANY_SIZE) -> tuple[int, int]:
    """Return the largest width and depth with no more parameters in the blocks: as many layers as heads, as in GPT-2.

    There are at least two layers, and at least four from a width of 192. A width or a depth may be given.
    """
    shapes = [(HEAD * heads, max(heads, 2 if heads < 3 else 4)) for heads in range(1, MOST_HEADS + 1)]
    return largest_shape(shapes, block_parameters, n_parameters, given)


def context_for(flops: float, n_tokens: float) -> int:
    """Return the context length: longer if there is time to learn to use it, and text to fill it."""
    for context, least in ((1024, 1e17), (512, 1e15), (256, 3e13), (128, 3e12)):
        if flops >= least and n_tokens >= 400 * context:
            return context
    return 64


def batch_for(growth: float, read: float, context: int) -> int:
    """Return a step's tokens: by the FLOPs' cube root, but at least some hundred steps and one row.

    Its rows are a power of two, which parts of a step divide.
    """
    wanted = min(REFERENCE_BATCH_TOKENS * max(1.0, growth) ** (1 / 3), read / LEAST_STEPS)
    return context * 2 ** max(0, math.floor(math.log2(max(wanted, 1) / context) + 0.3))


def lr_for(growth: float, passes: float) -> float:
    """Return the learning rate: in inverse proportion to the FLOPs' fourth root, as short runs need a higher one.

    From twelve passes over the text on it falls with their square root, to half: a high rate memorises sooner.
    """
    repeated = min(1.0, max(LEAST_RATE_OF_REPEATED, math.sqrt(FEW_PASSES / passes)))
    return float(f"{min(MOST_LR, max(LEAST_LR, repeated * REFERENCE_LR * growth**-0.25)):.2g}")


def dropout_for(passes: float, n_parameters: float) -> float:
    """Return no dropout while a text is fresh, then more with each doubling of the passes: 0.03, 0.08, 0.14, 0.21."""
    fresh = fresh_passes(n_parameters)
    doublings = math.log2(max(passes, fresh) / fresh)
    return round(min(MOST_DROPOUT, 0.03 * doublings**1.4), 2)


def fresh_passes(n_parameters: float) -> float:
    """Return the passes over a text that need no dropout: three for small models, half as many for larger ones.

    A model with more parameters begins to memorise sooner.
    """
    return min(FRESH_PASSES, max(FRESH_PASSES / 2, FRESH_PASSES * math.sqrt(SMALL_PARAMETERS / n_parameters)))


def held_out_for(n_bytes: float, bytes_read: float) -> float:
    """Return the held-out share: a tenth, or less of a long text, so that evaluating it takes little of the run.

    Evaluating a token takes a third of the FLOPs of training on it, and each token is read twice (at a stride of half
    a context).
    """
    most = max(LEAST_HELD_OUT, EVALUATION_SHARE * 3 / 2 * bytes_read)
    return float(f"{min(HELD_OUT, most / n_bytes):.2g}")


def reasons_of(
    budget: Budget,
    seconds: float,
    flops: float,
    run: RunConfig,
    n_parameters: float,
    wanted: float,
    read: float,
    passes: float,
) -> list[str]:
    """List the reasons for the choices."""
    model, train = run.model, run.train
    by_time = REFERENCE_PARAMETERS * math.sqrt(flops / REFERENCE_FLOPS)
    n_steps = read / train.batch_size / model.max_seq_len
    reasons = [
        reason_of_time(budget, seconds, UTILISATION),
        f"{count(model.n_layers, 'layer')} of width {model.d_model}, {abbreviated(n_parameters)} parameters: "
        f"{reason_of_size(budget.given, wanted, by_time, 'the text or the memory')}",
        f"tokens: {words_for(run.tokenizer)}{of_trial(budget, run.tokenizer)}, {budget.n_bytes / 1e6:.3g} MB of text; "
        f"about {n_steps:,.0f} steps of {train.batch_size} x {model.max_seq_len} tokens",
        f"learning rate of matrices {train.lr:g}: higher for shorter runs, lower for texts read many times",
        f"about {passes:.1f} passes over the text: dropout {model.dropout:g}",
    ]
    if isinstance(run.data, TextData) and run.data.val_fraction < HELD_OUT:
        reasons.append(f"held out: {run.data.val_fraction:g} of the text, quick to evaluate")
    return reasons + reason_to_end(run, passes, MOST_PASSES)


def of_trial(budget: Budget, tokenizer: TokenizerConfig) -> str:
    """State what a trial of BPE has told of the tokens, in brackets; nothing if there was none."""
    if budget.bits_saved is None:
        return ""
    if isinstance(tokenizer, CharTokenizerSpec):
        return f" (BPE would take {seconds_to_prepare(budget, BPETokenizerSpec()):.2g} s to prepare)"
    more_or_fewer = "fewer" if budget.bits_saved >= 0 else "more"
    difference = f"{abs(budget.bits_saved):.2f} {more_or_fewer} bits per character"
    return f" ({MANY:,} take {difference} than {FEW}, by trigrams)"
