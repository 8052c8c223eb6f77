"""The rules of `auto` for labelled texts: a classifier.

    texts' size, seconds, machine's rate -> FLOPs -> parameters -> shape; tokens -> passes -> steps, objective

The constants come from runs on TREC, AG News and SST-2 on CPU cores (benchmarks/RESULTS.md).
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from clearformer.auto.budget import (
    PATTERN_BYTES,
    SECONDS,
    STREAM_BYTES,
    Budget,
    Recommendation,
    abbreviated,
    block_parameters,
    bytes_per_token,
    context_for,
    heads_for,
    largest_shape,
    parts_for,
    reason_of_size,
    reason_of_time,
    reason_to_end,
    requested_tokenizer,
    seconds_of_steps,
    words_for,
)
from clearformer.data import LabelledData
from clearformer.errors import count
from clearformer.evaluation.classes.baseline import baseline_seconds, takes_too_long
from clearformer.model.attention import MultiHead
from clearformer.model.config import ModelConfig
from clearformer.model.feedforward import GELU
from clearformer.model.norms import LayerNorm
from clearformer.model.positions import Learned
from clearformer.text import TokenizerConfig, WordPieceTokenizerSpec
from clearformer.training.config import RunConfig, TrainConfig
from clearformer.training.objectives import ClassificationObjective
from clearformer.training.optim.optimizers import Muon
from clearformer.training.optim.schedules import WarmupStableDecay

# So many texts that none is read often: settings are laid over its run, and its WordPiece dropout would refuse others
# than WordPiece.
TYPICAL = Budget(n_bytes=10_000_000, n_texts=100_000, seconds=SECONDS, rate=5e11, memory=4e9)
UTILISATION = 0.2  # of large products' rate, by uncompiled steps of short texts

REFERENCE_FLOPS = 2e12
REFERENCE_PARAMETERS = 0.8e6
PARAMETERS_PER_BYTE = 50  # of the texts; a guard for few of them and much time, which was not measured
BYTES_PER_WORD = 60  # bytes of text for each token of the vocabulary
LEAST_VOCABULARY, MOST_VOCABULARY = 500, 14_000
LEAST_BATCH, LEAST_OF_LONG_RUNS, BATCH_OF_FEW_STEPS, MOST_BATCH = 8, 16, 32, 64  # texts
BATCH_RATIO = 9  # texts of a step, for each text and squared token; fitted
LEAST_STEPS = 600  # of MOST_BATCH; where there is time for fewer, more steps of BATCH_OF_FEW_STEPS are better
# Texts read: from here on the larger steps were better with half of the tokens hidden, and no worse without.
LONG_RUN = 8_000
LEAST_LR, MOST_LR = 0.004, 0.01
READ_AT_LEAST_LR = 64_000  # texts
MOST_PASSES, FRESH_PASSES = 16, 3
MOST_LEFT_OUT, LEFT_OUT_PER_PASS = 0.3, 0.03  # of WordPiece's longest matches
MOST_HIDDEN = 0.5  # of the tokens
HIDDEN_FROM, MOST_HIDDEN_FROM = 5_000, 14_000  # texts read; shorter runs learn less from half a text
LEAST_TO_HIDE = 30  # tokens of a text; shorter ones lost by it
# Steps: from here on, the mean of the weights over the last hundred no longer includes the beginning.
LEAST_FOR_A_MEAN = 200
HEAD = 32
LONGEST = 256  # tokens; longer texts are truncated
SHAPES = (
    (64, 1),
    (128, 1),
    (128, 2),
    (128, 3),
    (128, 4),
    (192, 4),
    (256, 4),
    (256, 6),
    (384, 6),
    (512, 8),
    (768, 12),
)
MOST_LAYERS = {100_000: 1, 1_000_000: 2}
"""By bytes of texts: one layer learnt 60 KB of questions better than two, and two wide ones 250 KB better than four; at
530 KB of news no clear difference showed."""


def choose(budget: Budget) -> Recommendation:
    """Choose the run for a budget; a pure function of it."""
    budget = replace(budget, compile=bool(budget.compile))  # compiling does not pay for steps of many shapes
    size = vocabulary_for(budget.n_bytes)
    tokenizer = requested_tokenizer(budget, size) or WordPieceTokenizerSpec(vocab_size=size, lowercase=True)
    seconds = max(budget.seconds / 4, seconds_of_steps(budget, tokenizer) - seconds_of_baseline(budget))
    flops = flops_of(budget, seconds)
    context = budget.given.max_seq_len or context_for(budget.longest, tokenizer, LONGEST)
    tokens_each = max(1.0, min(context, budget.n_bytes / budget.n_texts / bytes_per_token(tokenizer)))
    d_model, n_layers = largest_shape(
        shapes_for(budget.n_bytes),
        block_parameters,
        parameters_for(flops, most_parameters(budget)),
        budget.given,
    )
    flops_per_text = 6 * block_parameters(d_model, n_layers) * tokens_each
    n_read = min(flops / flops_per_text, MOST_PASSES * budget.n_texts)
    batch = batch_for(budget.n_texts, tokens_each, n_read)
    n_steps = max(1, round(n_read / batch))
    most_steps = max(1, round(MOST_PASSES * budget.n_texts / batch))
    bytes_per_position = n_layers * (STREAM_BYTES * d_model + PATTERN_BYTES * d_model // HEAD * context)
    passes = n_read / budget.n_texts
    run = RunConfig(
        model=ModelConfig(
            family="encoder",
            d_model=d_model,
            n_layers=n_layers,
            max_seq_len=context,
            dropout=0.3,
            attention=MultiHead(n_heads=heads_for(d_model, HEAD), qkv_bias=True, output_bias=True),
            position=Learned(),
            norm=LayerNorm(eps=1e-12),
            ffn=GELU(),
            placement="post",
            final_norm=False,
            embedding_norm=True,
            head_bias=True,
            n_token_types=2,
            masked_head="transform",
            pooling="mean",
        ),
        data=LabelledData(too_long="truncate"),
        tokenizer=tokenizer,
        train=TrainConfig(
            objective=objective_for(budget, tokenizer, passes, tokens_each),
            batch_size=batch,
            grad_accum_steps=parts_for(batch * context, context, bytes_per_position, budget.memory),
            max_wall_seconds=budget.seconds,
            max_steps=most_steps,  # holds even if steps are faster than estimated
            lr=lr_for(budget, n_read),
            optimizer=Muon(adam_lr=1e-3),
            schedule=WarmupStableDecay(decay=0.8),
            warmup_steps=min(50, n_steps // 10),
            label_smoothing=0.1,
            ema=0.99 if n_steps >= LEAST_FOR_A_MEAN else None,
            eval_every=max(20, 10 * round(n_steps / 100)),
        ),
    )
    return Recommendation(run, reasons_of(budget, seconds, run, n_steps, passes))


def seconds_of_baseline(budget: Budget) -> float:
    """Return the seconds of the baseline, which is fitted before the steps unless there is too little time."""
    seconds = baseline_seconds(budget.n_bytes, budget.n_labels)
    return 0.0 if takes_too_long(seconds, budget.seconds) else seconds


def vocabulary_for(n_bytes: int) -> int:
    """Return a vocabulary size in proportion to the text, so that each token occurs often enough to be learnt."""
    return 100 * round(min(max(n_bytes / BYTES_PER_WORD, LEAST_VOCABULARY), MOST_VOCABULARY) / 100)


def shapes_for(n_bytes: int) -> Sequence[tuple[int, int]]:
    """Return widths and depths, the smallest first; few texts have no deep ones."""
    most = next((n for limit, n in MOST_LAYERS.items() if n_bytes < limit), SHAPES[-1][1])
    return [(d_model, min(n, most)) for d_model, n in SHAPES]


def batch_for(n_texts: int, tokens_each: float, n_read: float) -> int:
    """Return the texts of a step: fewer where there are few of them or they are long, or that would leave few steps.

    The best of 8 to 64 was 32 for 8,968 texts of 50 tokens and for 1,231 of 17, 64 for 4,925 of 13; for 2,242 of 55 it
    was 8 where 6,500 were read, and 16, with half of the tokens hidden, where 14,600 were.
    """
    least = LEAST_OF_LONG_RUNS if n_read >= LONG_RUN else LEAST_BATCH
    most = MOST_BATCH if n_read / MOST_BATCH >= LEAST_STEPS else BATCH_OF_FEW_STEPS
    wanted = BATCH_RATIO * n_texts / tokens_each**2
    return min(most, max(least, 2 ** max(0, round(math.log2(wanted)))))


def lr_for(budget: Budget, n_read: float) -> float:
    """Return the matrices' learning rate: higher the fewer texts are read, unless the model is pre-trained."""
    if budget.is_pretrained:
        return LEAST_LR
    return float(f"{min(MOST_LR, LEAST_LR * max(1.0, READ_AT_LEAST_LR / n_read) ** 0.4):.2g}")


def objective_for(
    budget: Budget, tokenizer: TokenizerConfig, passes: float, tokens_each: float
) -> ClassificationObjective:
    """Return the objective, which hides and cuts words; tokens of other kinds it leaves as they are."""
    if tokenizer.kind != "wordpiece":
        return ClassificationObjective()
    return ClassificationObjective(
        wordpiece_dropout=wordpiece_dropout_for(budget, passes),
        hidden=hidden_for(budget, passes, tokens_each),
    )


def wordpiece_dropout_for(budget: Budget, passes: float) -> float:
    """Return none while the texts are fresh, then more with each pass; a pre-trained model gains nothing by it."""
    if budget.is_pretrained:
        return 0.0
    return round(min(MOST_LEFT_OUT, LEFT_OUT_PER_PASS * max(0.0, passes - FRESH_PASSES)), 2)


def hidden_for(budget: Budget, passes: float, tokens_each: float) -> float:
    """Return the fraction of tokens to hide: of long texts, the more of them a run reads, if it reads each again.

    With a pre-trained model it was not measured, and is none.
    """
    if budget.is_pretrained or tokens_each < LEAST_TO_HIDE:
        return 0.0
    read = (passes * budget.n_texts - HIDDEN_FROM) / (MOST_HIDDEN_FROM - HIDDEN_FROM)
    again = passes - 1
    return round(MOST_HIDDEN * min(1.0, max(0.0, read)) * min(1.0, max(0.0, again)), 2)


def flops_of(budget: Budget, seconds: float) -> float:
    """Return the floating-point operations of the steps."""
    return seconds * budget.rate * UTILISATION


def parameters_for(flops: float, most: float = math.inf) -> float:
    """Return the blocks' parameters: in proportion to the FLOPs' square root (Hoffmann et al. 2022), up to a limit."""
    return min(REFERENCE_PARAMETERS * math.sqrt(flops / REFERENCE_FLOPS), most)


def most_parameters(budget: Budget) -> float:
    """Return the most parameters for the texts and the memory."""
    return min(PARAMETERS_PER_BYTE * budget.n_bytes, budget.memory / 20)


def reasons_of(budget: Budget, seconds: float, run: RunConfig, n_steps: int, passes: float) -> list[str]:
    """List the reasons for the choices."""
    model, objective = run.model, run.train.objective
    assert isinstance(objective, ClassificationObjective)
    n_parameters = block_parameters(model.d_model, model.n_layers)
    flops = flops_of(budget, seconds)
    of_size = reason_of_size(
        budget.given,
        parameters_for(flops, most_parameters(budget)),
        parameters_for(flops),
        "the texts or the memory",
        block_parameters(*shapes_for(budget.n_bytes)[-1]),
    )
    of_rate = (
        "low, for the model is pre-trained" if budget.is_pretrained else "higher the fewer texts are read"
    )
    reasons = [
        reason_of_time(budget, seconds, UTILISATION),
        f"{count(model.n_layers, 'layer')} of width {model.d_model}, {abbreviated(n_parameters)} parameters: {of_size}",
        f"tokens: {words_for(run.tokenizer)}, {budget.n_texts:,} texts, {budget.n_bytes / 1e6:.3g} MB; the first "
        f"{model.max_seq_len} of each text",
        f"about {n_steps:,} steps of {run.train.batch_size} texts: {passes:.1f} passes, WordPiece dropout "
        f"{objective.wordpiece_dropout:g}"
        + (f", {objective.hidden:.0%} of the tokens hidden" if objective.hidden else ""),
        f"learning rate of matrices {run.train.lr:g}: {of_rate}",
    ]
    return reasons + reason_to_end(run, passes, MOST_PASSES)
