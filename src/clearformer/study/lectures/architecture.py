"""Studies of lectures 000, 002 and 004 that compare small models which differ in one part.

Every side is trained at each of the same learning rates, with every seed; its best rate represents it (see `tuned`).
The same seed gives all sides of a study the same batches in the same order.
"""

from collections.abc import Mapping
from typing import Any

from clearformer.study.figures import Bars, Curves, Lines, Trend
from clearformer.study.measures.lengths import LOSS_BY_POSITION
from clearformer.study.measures.losses import LOSSES
from clearformer.study.measures.sizes import BITS_PER_BYTE, SIZES
from clearformer.study.measures.speed import generation_speed
from clearformer.study.measures.stability import GAIN_OVER_UNIGRAMS, gradients_at_start
from clearformer.study.study import Arm, Claim, Figure, Probe, Published, Study, tuned

PRESET = "nanogpt-cpu"
RATES = (1e-3, 3e-3, 1e-2, 3e-2)

SMALL: Mapping[str, Any] = {
    "model.d_model": 96,
    "model.n_layers": 3,
    "model.max_seq_len": 128,
    "model.position": "rope",
    "train.batch_size": 16,
    "train.max_steps": 500,
    "train.warmup_steps": 50,
    "train.eval_every": 50,
    "train.dtype": "float32",
    "train.compile": False,
}
"""A decoder with pre-norm, GELU and RoPE, of 0.34M parameters, on 1,024,000 characters of Tiny Shakespeare."""

ALIKE = "AdamW, the same steps, the same batches in the same order for each seed, and the same grid of learning rates: "
BEST_RATE = "the rate with the lowest mean held-out loss over all seeds represents its side."


def sides_of(sides: Mapping[str, Mapping[str, Any]], rates: tuple[float, ...] = RATES) -> tuple[Arm, ...]:
    """Return the arms of several sides, each at every learning rate."""
    return tuple(arm for side, settings in sides.items() for arm in tuned(side, settings, rates, PRESET))


def fairness(rates: tuple[float, ...], also: str = "") -> str:
    """Return the sentence on a study's fairness: data, learning rates, parameters."""
    return f"{ALIKE}{', '.join(f'{rate:g}' for rate in rates)}; {BEST_RATE}{' ' + also if also else ''}"


# --- norms ------------------------------------------------------------------------------------------------

NORM_RATES = (3e-4, 1e-3, 3e-3, 1e-2)
DEPTHS = (2, 6, 12, 24)
PLACEMENTS = ("pre", "post", "none")
WARMUPS = {"warm-up": 50, "no warm-up": 0}
SIX_LAYERS = {
    f"{placement}, 6 layers, {name}": f"{placement}, {name}"
    for placement in ("pre", "post")
    for name in WARMUPS
}
NARROW: Mapping[str, Any] = {
    **SMALL,
    "model.d_model": 64,
    "model.max_seq_len": 64,
    "model.init": "xavier",
    "data.val_fraction": 0.03,
    "train.batch_size": 8,
    "train.max_steps": 250,
    "train.grad_clip_norm": "none",
}


def norm_sides() -> dict[str, dict[str, Any]]:
    """Return the settings of each placement at every depth, with and without warm-up."""
    return {
        f"{placement}, {depth} layers, {name}": {
            "model.placement": placement,
            "model.n_layers": depth,
            "train.warmup_steps": steps,
        }
        for placement in PLACEMENTS
        for depth in DEPTHS
        for name, steps in WARMUPS.items()
    }


def norm_gradients() -> tuple[Arm, ...]:
    """Return probes of the gradients of new models, for every placement and depth."""
    return tuple(
        Probe(
            f"{placement}, {depth} layers, at the start",
            gradients_at_start,
            {"preset": PRESET, "settings": {**NARROW, "model.placement": placement, "model.n_layers": depth}},
        )
        for placement in PLACEMENTS
        for depth in DEPTHS
    )


def norm_claims() -> tuple[Claim, ...]:
    """Return what the lecture says of each depth, with and without warm-up."""
    return (
        *(
            Claim(
                f"With {n} layers, gradients before the first step vary less across layers with pre-norm than "
                "with post-norm.",
                "largest_over_smallest",
                f"pre, {n} layers, at the start",
                f"post, {n} layers, at the start",
                decides=n >= 12,
            )
            for n in DEPTHS[1:]
        ),
        *(
            Claim(
                f"{depth} layers, {warmup}: pre-norm reaches a lower held-out loss than post-norm.",
                "val_loss",
                f"pre, {depth} layers, {warmup}",
                f"post, {depth} layers, {warmup}",
                decides=depth >= 12 and WARMUPS[warmup] == 0,
            )
            for depth in DEPTHS
            for warmup in WARMUPS
        ),
        *(
            Claim(
                f"A warm-up lowers the held-out loss of {placement}-norm with {depth} layers.",
                "val_loss",
                f"{placement}, {depth} layers, warm-up",
                f"{placement}, {depth} layers, no warm-up",
                afterwards=depth < 12,
            )
            for placement in ("pre", "post")
            for depth in DEPTHS
        ),
        *(
            Claim(
                f"6 layers at a rate of 0.003: a warm-up lowers the held-out loss of {placement}-norm.",
                "val_loss",
                f"{placement}, 6 layers, warm-up, rate 0.003",
                f"{placement}, 6 layers, no warm-up, rate 0.003",
                afterwards=True,
            )
            for placement in ("pre", "post")
        ),
    )


def norm_figures() -> tuple[Figure, ...]:
    """Return the figures: losses by depth, gradients by layer, and the deepest models' curves."""
    return (
        Trend(
            "Held-out loss by depth",
            "val_loss",
            {side: int(side.split(", ")[1].split()[0]) for side in norm_sides()},
            "layers",
            {side: side.replace(f", {side.split(', ')[1]}", "") for side in norm_sides()},
        ),
        Trend(
            "Held-out loss by learning rate, 6 layers",
            "val_loss",
            {f"{side}, rate {rate:g}": rate for side in SIX_LAYERS for rate in NORM_RATES},
            "learning rate",
            {f"{side}, rate {rate:g}": name for side, name in SIX_LAYERS.items() for rate in NORM_RATES},
            log_x=True,
        ),
        Lines(
            "Gradient of each block's last matrix before the first step, 24 layers",
            "gradient_by_layer",
            x_label="layer",
            log_y=True,
            arms=tuple(f"{placement}, 24 layers, at the start" for placement in PLACEMENTS),
        ),
        Curves(
            "24 layers without warm-up",
            arms=tuple(f"{placement}, 24 layers, no warm-up" for placement in PLACEMENTS),
        ),
    )


NORMS = Study(
    name="norms",
    question="Where in a block do norms belong, and which placement needs a warm-up?",
    lecture="002, 8.1",
    arms=(*norm_gradients(), *sides_of(norm_sides(), NORM_RATES)),
    settings=NARROW,
    measures=(LOSSES, GAIN_OVER_UNIGRAMS),
    shown=("val_loss", "gain_over_unigrams", "diverged_at", "last_over_first", "largest_over_smallest"),
    claims=norm_claims(),
    fairness=fairness(NORM_RATES, "Gradients are not clipped, so that divergence shows."),
    figures=norm_figures(),
    refuted_if="Post-norm with 12 or 24 layers trains as well without warm-up as pre-norm, or its gradients before "
    "the first step are as even across layers.",
    meaning=(
        "With 6 layers at 0.003 post-norm learns only letter frequencies without a warm-up (3.35 nats, all three "
        "seeds) and more with one (2.35 to 2.95, so widely that the claim stays undecided), at 0.01 with neither. "
        "Pre-norm trains at "
        "every rate either way; with a warm-up 0.01 is its best one, and its loss 0.05 to 0.15 nats lower. From 6 "
        "layers on, pre-norm ends lower, by 0.13 to 0.22 nats at 6 and by 1.0 to 1.1 at 12; with two layers and no "
        "warm-up, post-norm does. Post-norm with 12 and 24 layers learns only letter frequencies within 250 steps, at "
        "all four rates, so there the claims about its warm-up compare models that have learned nothing else. Before "
        "the first step, gradients are more even across layers with post-norm (largest over smallest 1.7 at 24 "
        "layers, pre-norm 5.9): by this measure, this reason for pre-norm is refuted. Without norms in the blocks "
        "(the final one stays), 24 layers diverge in 20 of 24 runs."
    ),
)


# --- feed-forward -----------------------------------------------------------------------------------------

FEED_FORWARDS = {
    "ReLU": {"model.ffn": {"kind": "relu", "bias": False, "d_ff": 384}},
    "GELU": {"model.ffn": {"kind": "gelu", "bias": False, "d_ff": 384}},
    "SwiGLU": {"model.ffn": {"kind": "swiglu", "bias": False, "d_ff": 256}},
    "ReLU²": {"model.ffn": {"kind": "relu2", "bias": False, "d_ff": 384}},
}


FEED_FORWARD = Study(
    name="feed-forward",
    question="Which feed-forward network is best at equal parameters?",
    lecture="002, 6",
    arms=sides_of(FEED_FORWARDS),
    settings=SMALL,
    measures=(LOSSES, SIZES),
    shown=("val_loss", "train_loss", "parameters", "ffn_share", "ffn_share_of_blocks"),
    published=(
        Published("ReLU", "ffn_share_of_blocks", 0.667, 0.01, "002, 6: two thirds of a layer"),
        Published("SwiGLU", "ffn_share_of_blocks", 0.667, 0.01, "002, 6: two thirds of a layer"),
    ),
    claims=tuple(
        Claim(
            f"{better} reaches a lower held-out loss than {worse}.",
            *("val_loss", better, worse),
            decides=(better, worse) == ("SwiGLU", "ReLU"),
        )
        for better, worse in (("GELU", "ReLU"), ("SwiGLU", "ReLU"), ("SwiGLU", "GELU"), ("ReLU²", "ReLU"))
    ),
    fairness=fairness(
        RATES,
        "All have the same number of parameters: two matrices of width 384, or three of width 256.",
    ),
    figures=(Bars("Held-out loss", "val_loss"), Curves("Each at its best rate", highest=2.4)),
    refuted_if="SwiGLU's held-out loss is not below ReLU's at the same number of parameters.",
    meaning=(
        "At equal parameters, three seeds show no difference between ReLU, squared ReLU and SwiGLU, and GELU ends 0.03 "
        "to 0.04 nats above them: that it is better than ReLU is refuted here; whether SwiGLU is, is undecided. These "
        "are 500 steps of a small model, and say nothing about long training."
    ),
)


# --- positions --------------------------------------------------------------------------------------------

POSITIONS = {
    "none": {"model.position": "none"},
    "sinusoidal": {"model.position": "sinusoidal", "model.scale_embeddings": True},
    "learned": {"model.position": "learned"},
    "RoPE": {"model.position": "rope"},
    "ALiBi": {"model.position": "alibi"},
}


def position_claims() -> tuple[Claim, ...]:
    """Return the claims on the loss within the training length, and at four times of it."""
    return (
        *(
            Claim(
                f"{kind} reaches a lower held-out loss than no positions.",
                *("val_loss", kind, "none"),
                decides=True,
            )
            for kind in POSITIONS
            if kind != "none"
        ),
        *(
            Claim(
                f"{better} reaches a lower held-out loss than {worse}.",
                *("val_loss", better, worse),
                afterwards="ALiBi" in (better, worse),
            )
            for better, worse in (("RoPE", "sinusoidal"), ("RoPE", "ALiBi"), ("ALiBi", "learned"))
        ),
        Claim(
            "ALiBi is no worse at four times the training length.",
            *("loss_at_4x", "ALiBi", "ALiBi", "loss_at_1x"),
            decides=True,
        ),
        Claim(
            "Sinusoidal positions are no worse at four times the training length.",
            *("loss_at_4x", "sinusoidal", "sinusoidal", "loss_at_1x"),
            afterwards=True,
        ),
        *(
            Claim(
                f"At four times the training length, ALiBi reaches a lower loss than {name}.",
                *("loss_at_4x", "ALiBi", kind),
            )
            for kind, name in (
                ("none", "no positions"),
                ("sinusoidal", "sinusoidal positions"),
                ("RoPE", "RoPE"),
            )
        ),
        *(
            Claim(
                f"At four times the training length, no positions reach a lower loss than {name}.",
                *("loss_at_4x", "none", kind),
                afterwards=True,
            )
            for kind, name in (("sinusoidal", "sinusoidal ones"), ("RoPE", "RoPE"))
        ),
        Claim(
            "RoPE is worse at four times the training length.",
            *("loss_at_1x", "RoPE", "RoPE", "loss_at_4x"),
        ),
    )


POSITION_STUDY = Study(
    name="positions",
    question="Which positions give the lowest loss, and which still work beyond the training length?",
    lecture="004, 4.2",
    arms=sides_of(POSITIONS),
    settings=SMALL,
    measures=(LOSSES, LOSS_BY_POSITION),
    shown=("val_loss", "loss_at_1x", "loss_at_2x", "loss_at_3x", "loss_at_4x", "parameters"),
    claims=position_claims(),
    fairness=fairness(
        RATES,
        "With sinusoidal positions, embeddings are scaled by sqrt(d), as in the paper. All models read the same long "
        "windows; learned positions have no vector beyond 128, and so no value there.",
    ),
    figures=(
        Bars("Held-out loss", "val_loss"),
        Lines("Held-out loss beyond the training length of 128", "loss_by_position", x_label="position"),
    ),
    refuted_if="A model without positions is as good, or ALiBi's loss at four times the training length is above its "
    "loss within it.",
    meaning=(
        "Within the training length RoPE ends at 1.86 nats, ALiBi at 1.93, learned positions at 2.07, sinusoidal at "
        "2.27 and none at 2.39, each at its best rate after 500 steps; ALiBi and learned ones are not told apart. At "
        "four times the training length, ALiBi alone keeps its loss (1.94). That it is 0.011 below its loss within the "
        "length says no more than that: the two are of other tokens of the same 64 windows, and the interval is over "
        "seeds, not over texts. RoPE rises to 2.6 and sinusoidal positions to 3.2; a model without any has 2.49, "
        "below the latter and not told from RoPE."
    ),
)


# --- heads ------------------------------------------------------------------------------------------------

HEADS = {
    "MHA": {"model.attention.n_kv_heads": 8, "model.ffn.d_ff": 384},
    "GQA": {"model.attention.n_kv_heads": 2, "model.ffn.d_ff": 456},
    "MQA": {"model.attention.n_kv_heads": 1, "model.ffn.d_ff": 468},
}
WIDE: Mapping[str, Any] = {
    "model.d_model": 256,
    "model.n_layers": 4,
    "model.max_seq_len": 256,
    "model.position": "rope",
    "model.attention.n_heads": 8,
}
"""The models of the speed measurement, with random weights; large enough that reading keys and values takes time."""
WIDE_HEADS = {
    "MHA": {"model.attention.n_kv_heads": 8, "model.ffn.d_ff": 1024},
    "GQA": {"model.attention.n_kv_heads": 2, "model.ffn.d_ff": 1216},
    "MQA": {"model.attention.n_kv_heads": 1, "model.ffn.d_ff": 1248},
}
SIDE_BY_SIDE = "side by side"
HEAD_CLAIMS = (
    Claim("MHA reaches a lower held-out loss than MQA.", "val_loss", "MHA", "MQA", decides=True),
    Claim("MHA reaches a lower held-out loss than GQA.", "val_loss", "MHA", "GQA"),
    Claim("GQA reaches a lower held-out loss than MQA.", "val_loss", "GQA", "MQA"),
    *(
        Claim(
            f"{side} generates more tokens per second than MHA.",
            "MHA_tokens_per_second",
            SIDE_BY_SIDE,
            SIDE_BY_SIDE,
            f"{side}_tokens_per_second",
            decides=side == "MQA",
        )
        for side in ("GQA", "MQA")
    ),
)

HEAD_STUDY = Study(
    name="heads",
    question="What do fewer key and value heads cost in loss, and what do they save?",
    lecture="004, 4.4",
    arms=(
        *sides_of(HEADS),
        Probe(SIDE_BY_SIDE, generation_speed, {"preset": PRESET, "settings": WIDE, "sides": WIDE_HEADS}),
    ),
    settings={**SMALL, "model.attention.n_heads": 8},
    measures=(LOSSES, SIZES),
    shown=("val_loss", "parameters", "cache_bytes", *(f"{side}_tokens_per_second" for side in HEADS)),
    claims=HEAD_CLAIMS,
    fairness=fairness(
        RATES,
        "Parameters saved in attention go to the feed-forward network. Speed: models of width 256, in turn on one "
        "machine, in batches of 16.",
    ),
    figures=(Bars("Held-out loss", "val_loss"), Bars("Key-value cache of one sequence", "cache_bytes")),
    refuted_if="MQA's held-out loss is below MHA's at equal parameters, or it generates no faster.",
    meaning=(
        "One key and value head costs 0.02 nats at equal parameters; with two of eight, three seeds show no difference "
        "(0.007 nats). The cache shrinks to an eighth and a quarter, and both generate batches of 16 texts 1.3 times "
        "as fast. Of the four rates 0.01 is best for all."
    ),
)


# --- tokenizers -------------------------------------------------------------------------------------------

TOKENIZER_RATES = (6e-4, 2e-3, 6e-3, 2e-2)
LENGTHS = {
    ("char", 0): 128,
    ("byte", 0): 128,
    ("bpe", 512): 66,
    ("bpe", 1024): 52,
    ("bpe", 4096): 39,
    ("wordpiece", 512): 54,
    ("wordpiece", 1024): 46,
    ("wordpiece", 4096): 35,
    ("unigram", 512): 71,
    ("unigram", 1024): 50,
    ("unigram", 4096): 36,
}
"""By kind and vocabulary size, the number of tokens in 128 bytes of Tiny Shakespeare's training text."""
NAMES = {"char": "character", "byte": "byte", "bpe": "BPE", "wordpiece": "WordPiece", "unigram": "Unigram"}


def tokenizer_sides() -> dict[str, dict[str, Any]]:
    """Return the settings of each tokenizer, with a sequence length that covers the same amount of text."""
    found = {}
    for (kind, size), length in LENGTHS.items():
        settings: dict[str, Any] = {"kind": kind}
        settings |= {"vocab_size": size} if size else {}
        settings |= {"lowercase": False} if kind == "wordpiece" else {}
        name = f"{NAMES[kind]} {size:,}" if size else NAMES[kind]
        found[name] = {"tokenizer": settings, "model.max_seq_len": length}
    return found


TOKENIZER_CLAIMS = (
    *(
        Claim(
            f"BPE {size} needs fewer bits per byte than characters.",
            "bits_per_byte",
            f"BPE {size}",
            "character",
            decides=True,
        )
        for size in ("512", "1,024", "4,096")
    ),
    Claim("Characters need fewer bits per byte than bytes.", "bits_per_byte", "character", "byte"),
    *(
        Claim(
            f"Unigram needs fewer bits per byte than BPE with {size} tokens.",
            *("bits_per_byte", f"Unigram {size}", f"BPE {size}"),
            afterwards=size != "1,024",
        )
        for size in ("512", "1,024", "4,096")
    ),
    Claim(
        "BPE takes less training compute per byte than characters.",
        *("gigaflops_per_megabyte", "BPE 1,024", "character"),
        afterwards=True,
    ),
)
TOKENIZER_FIGURES = (
    Bars("Bits per byte; for WordPiece a lower bound", "bits_per_byte_at_least"),
    Bars("Training compute per megabyte of held-out text", "gigaflops_per_megabyte"),
    Bars("Parameters", "parameters"),
)

TOKENIZERS = Study(
    name="tokenizers",
    question="Which tokenizer needs the fewest bits per byte, at what size and training compute?",
    lecture="000, 7; 004, 4.1",
    arms=sides_of(tokenizer_sides(), TOKENIZER_RATES),
    settings=SMALL,
    measures=(LOSSES, BITS_PER_BYTE),
    shown=(
        *("bits_per_byte", "bits_per_byte_at_least", "vocabulary", "bytes_per_token", "parameters"),
        *("gigaflops_per_megabyte", "val_loss"),
    ),
    claims=TOKENIZER_CLAIMS,
    fairness="Every step of every side reads about 2,048 bytes of text, in sequences of about 128 bytes, and all take "
    "the same steps: equal text, not equal compute, which is shown. The same grid of learning rates: "
    f"{', '.join(f'{rate:g}' for rate in TOKENIZER_RATES)}; {BEST_RATE} WordPiece does not restore white space: its "
    "bits are a lower bound.",
    figures=TOKENIZER_FIGURES,
    refuted_if="After the same text, one of the BPE vocabularies needs no fewer bits per byte than characters.",
    meaning=(
        "After the same text, subwords need 3 to 7% fewer bits per byte than characters (2.51 to 2.57 with BPE, "
        "against 2.69), for 50 to 63% of the training compute per byte of held-out text, and 44 to 57% of what a step "
        "took, as the tokens are longer in the text that they were made of. Bytes and characters differ by less than "
        "the seeds do. Between Unigram and BPE, 512 tokens favour BPE (0.06 bits), 4,096 Unigram (0.01) and 1,024 "
        "neither. Of the four rates 0.006 is best for the small vocabularies, 0.002 from 1,024 tokens on."
    ),
)


# --- schedules --------------------------------------------------------------------------------------------

SCHEDULES = {
    "constant": {"train.schedule": "constant"},
    "inverse square root": {"train.schedule": "inverse_sqrt"},
    "cosine": {"train.schedule": "cosine"},
    "stable-decay": {"train.schedule": "wsd"},
}

SCHEDULE_STUDY = Study(
    name="schedules",
    question="Which schedule of the learning rate gives the lowest loss at equal steps?",
    lecture="004, 4.8",
    arms=sides_of(SCHEDULES),
    settings=SMALL,
    measures=(LOSSES,),
    shown=("val_loss", "train_loss"),
    claims=tuple(
        Claim(
            f"{better} reaches a lower held-out loss than {worse}.".capitalize(),
            *("val_loss", better, worse),
            decides=(better, worse) == ("cosine", "constant"),
            afterwards=(better, worse) == ("inverse square root", "constant"),
        )
        for better, worse in (
            ("inverse square root", "constant"),
            ("cosine", "constant"),
            ("cosine", "inverse square root"),
            ("stable-decay", "constant"),
            ("stable-decay", "cosine"),
        )
    ),
    fairness=fairness(RATES, "All start with the same 50 steps of warm-up."),
    figures=(Bars("Held-out loss", "val_loss"), Curves("Each at its best rate", highest=2.4)),
    refuted_if="A constant rate, tuned like the others, reaches a held-out loss no higher than cosine's.",
    meaning=(
        "Decay gains 0.04 (inverse square root) to 0.07 nats over a constant rate. Three seeds decide nothing between "
        "cosine, stable-decay and the inverse square root. Of the four rates 0.01 is best for all schedules with "
        "decay, and 0.003 for the constant one, which 0.01 is not told from."
    ),
)

STUDIES = (NORMS, FEED_FORWARD, POSITION_STUDY, HEAD_STUDY, TOKENIZERS, SCHEDULE_STUDY)
