"""The studies of lectures 002 to 004 of a model's inside: residual stream, order, costs, generated text."""

from clearformer.study.figures import Bars, Lines, Texts
from clearformer.study.measures.attention import attention_costs
from clearformer.study.measures.attention_maps import weights_against_effects
from clearformer.study.measures.losses import LOSSES
from clearformer.study.measures.order import pooled_distance, shift_map, trained_with_mask
from clearformer.study.measures.stream import deleted_layers, logit_parts
from clearformer.study.measures.texts import METHODS, decodings, senses
from clearformer.study.study import Claim, Measure, Probe, Published, Study, Training

MODEL = Training(
    "small decoder",
    preset="quick",
    settings={
        "data.name": "shakespeare",
        "train.max_seconds": None,
        "train.max_steps": 800,
        "train.batch_size": 8,
        "train.eval_every": 100,
        "model.d_model": 96,
    },
)
"""The model of several studies, trained once for all of them."""

WORDS = Training(
    "small decoder, BPE",
    preset=MODEL.preset,
    settings={**MODEL.settings, "tokenizer.kind": "bpe", "tokenizer.vocab_size": 1000},
)
"""The same model with BPE tokens, so that a word has few tokens."""

BANK = Measure(
    senses,
    {
        "word": "bank",
        "first": [
            "The river ran along the grassy bank",
            "We sat to fish upon the water's bank",
            "The boat was drawn from out the stream to the bank",
        ],
        "second": [
            "He put his gold and silver in the bank",
            "They owe a thousand ducats to the bank",
            "The merchant borrowed money from the bank",
        ],
    },
)
IT = Measure(
    senses,
    {
        "word": "it",
        "first": [
            "The chicken was tired, for it",
            "The dog was hungry, and it",
            "The horse was weary, for it",
        ],
        "second": [
            "The road was wide, for it",
            "The bridge was long, and it",
            "The street was narrow, for it",
        ],
    },
)
FORGOTTEN = {
    "data": {"name": "shakespeare"},
    "steps": 400,
    "batch_size": 32,
    "lr": 5e-3,
    "model": {"n_layers": 2, "d_model": 64, "max_seq_len": 32, "position": "rope"},
}
LENGTHS = [256, 512, 1024, 2048, 4096]
COST_EXPONENTS = (
    Published("causal attention", "time_exponent_explicit", 2.0, 0.25, "4.7", decides=True),
    Published("causal attention", "memory_exponent_explicit", 2.0, 0.1, "4.7", decides=True),
    *(
        Published(*("causal attention", name, 1.0, 0.25, "4.7: linear in T"), decides=True, printed=False)
        for name in ("time_exponent_windowed", "time_exponent_linear")
    ),
)
SHIFTS = (1, 10, 100)
SHIFT = {"kind": "sinusoidal", "d_model": 256, "n_positions": 1024}
ORDER_CLAIMS = (
    *(
        Claim(
            f"{name} tell a sentence from its reverse.",
            *("log10_distance", "two-sided, none", f"two-sided, {kind}"),
            afterwards=True,  # their magnitudes are compared since the distances were known
        )
        for name, kind in (
            ("Sinusoidal positions", "sinusoidal"),
            ("Learned positions", "learned"),
            ("RoPE's rotations", "rope"),
        )
    ),
    Claim(
        "A causal mask alone tells a sentence from its reverse.",
        "log10_distance",
        "two-sided, none",
        "causal, none",
        afterwards=True,
    ),
    Claim("Without the mask, training loss is lower.", "train_loss", "mask forgotten", "with the mask"),
    Claim(
        "Without the mask, generation fails.",
        *("generation_loss", "with the mask", "mask forgotten"),
        decides=True,
    ),
)
ORDER_ARMS = (
    *(
        Probe(f"two-sided, {kind}", pooled_distance, {"position": kind})
        for kind in ("none", "sinusoidal", "learned", "rope", "alibi")
    ),
    Probe("causal, none", pooled_distance, {"position": "none", "causal": True}),
    Probe("with the mask", trained_with_mask, {**FORGOTTEN, "masked": True}),
    Probe("mask forgotten", trained_with_mask, {**FORGOTTEN, "masked": False}),
)
SAMPLING_CLAIMS = (
    *(
        Claim(
            f"Sampling {how} repeats less than greedy decoding.",
            *(f"repetition_{how}", MODEL.label, MODEL.label, "repetition_greedy"),
            decides=how == "temperature 1",
            afterwards=True,
        )
        for how in ("temperature 1", "top-k 10", "top-p 0.9")
    ),
    Claim(
        "Beam search finds likelier texts than greedy decoding.",
        *("logprob_greedy", MODEL.label, MODEL.label, "logprob_beam search"),
        afterwards=True,
    ),
    Claim(
        "Beam search repeats less than greedy decoding.",
        *("repetition_beam search", MODEL.label, MODEL.label, "repetition_greedy"),
        afterwards=True,
    ),
    Claim(
        "Top-p 0.9 is more varied than top-k 10: more of its 4-grams are distinct.",
        *("distinct_top-k 10", MODEL.label, MODEL.label, "distinct_top-p 0.9"),
        afterwards=True,
    ),
)

STUDIES = (
    Study(
        name="residual-stream",
        question="What does a trained model lose without one of its layers, and which parts write the correct logit?",
        lecture="002, 12",
        arms=(MODEL,),
        measures=(LOSSES, Measure(deleted_layers), Measure(logit_parts)),
        shown=(
            "loss_whole",
            *(f"increase_layer_{layer}" for layer in range(4)),
            "uniform_loss",
            "logit",
            "heads",
            "networks",
            "embeddings",
        ),
        published=(Published("small decoder", "ledger_error", 0.0, 1e-4, "12", printed=False),),
        figures=(
            Lines("Held-out loss without one layer", "loss_without", x_label="layer", y_label="nats a token"),
            Lines(
                "Contributions to the correct token's logit",
                "by_layer",
                x_label="layer",
                y_label="contribution to the logit",
            ),
        ),
        refuted_if="Without any one of its layers, the model is no better than the uniform baseline.",
        meaning=(
            "Removing the first layer costs 1.6 nats, the last 0.5; uniform guessing is 2.5 nats worse. In a "
            "model of four layers, none is superfluous. Of the correct token's logit, 5.1, networks "
            "contribute 4.3 and heads 0.6."
        ),
    ),
    Study(
        name="order",
        question="What happens to a model without positions, and to one without its causal mask?",
        lecture="004, 4.10",
        arms=ORDER_ARMS,
        published=(
            Published("two-sided, none", "distance", 0.0, 1e-12, "4.10", decides=True, printed=False),
        ),
        claims=ORDER_CLAIMS,
        figures=(
            Lines("Training loss", "losses_by_step", x_label="step", y_label="nats a token"),
            Bars("Loss without future tokens to read", "generation_loss", unit="nats"),
            Texts("Samples", "sample"),
        ),
        fairness="With and without the mask: the same initial weights, batches and steps.",
        refuted_if="Without positions, a sentence and its reverse differ, or a model without a mask generates as well.",
        meaning=(
            "Without positions, a sentence and its reverse give the same pooled output, up to rounding; sinusoidal "
            "and learned positions and RoPE tell them apart in every drawn model, by 14 orders of magnitude more. A "
            "causal mask alone tells them apart; two-sided ALiBi does not, because it is symmetric. A "
            "model whose mask was forgotten reaches 0.16 nats in training by copying the next token, and 3.12 where "
            "there is none to copy."
        ),
    ),
    Study(
        name="attention-maps",
        question="Do attention weights tell what a prediction depends on?",
        lecture="004, 4.10",
        arms=(MODEL,),
        measures=(LOSSES, Measure(weights_against_effects)),
        shown=("rank_correlation", "same", "other"),
        claims=(
            Claim(
                "The position that is read most is mostly not the one whose removal matters most.",
                *("same", MODEL.label, MODEL.label, "other"),
                decides=True,
                afterwards=True,
            ),
        ),
        figures=(
            Lines(
                "Rank correlation of attention weights and effects of removal",
                "by_layer",
                x_label="layer, removed in it alone",
                y_label="Spearman's correlation",
            ),
        ),
        fairness="One model; weights are averaged over heads, and over layers where a position is removed in all.",
        refuted_if="The position that is read most is the one whose removal changes the prediction most, in more than "
        "half of the texts.",
        meaning=(
            "In so small a model of characters, weights say much: averaged over heads and layers they rank positions "
            "as their removal does (0.77), and the position that is read most matters most in 72% of the texts. In the "
            "others, more than a quarter, the map points to the wrong one."
        ),
    ),
    Study(
        name="cost",
        question="How do time and memory of attention grow with the sequence length?",
        lecture="004, 4.7",
        arms=(
            Probe(
                "causal attention",
                attention_costs,
                {"lengths": LENGTHS, "n_heads": 4, "d_head": 32, "window": 128, "rounds": 5},
                seeds=1,
            ),
        ),
        published=COST_EXPONENTS,
        figures=tuple(
            Lines(title, value, x_label="T, positions", y_label=unit, log_x=True, log_y=True)
            for title, value, unit in (
                ("Time of attention", "seconds", "seconds"),
                ("Memory of attention", "megabytes", "MiB"),
            )
        ),
        fairness="Forward and backward pass on one core, implementations in turn; CPU time, medians of five rounds.",
        refuted_if="The exponents of the explicit formula are not near 2, or those of windowed and linear attention "
        "not near 1.",
        seeds=1,
        meaning=(
            "Time and memory of the explicit formula grow as T^2.1 and T^2.0. The fused kernel needs no T x T "
            "matrix: its memory grows as T^1.0, its time as T^1.6. Windowed and linear attention grow as T^0.9 "
            "in time: at 4,096 positions 0.07 and 0.05 s, where the explicit formula takes 2.3 s and 778 MiB."
        ),
    ),
    Study(
        name="decoding",
        question="How do decoding methods trade likelihood against repetition and diversity?",
        lecture="003; 004, 4.8",
        arms=(MODEL,),
        measures=(LOSSES, Measure(decodings)),
        shown=(
            *(f"{what}_{name}" for what in ("repetition", "distinct", "logprob") for name in METHODS),
            "greedy_repetition",
            "greedy_logprob",
        ),
        claims=SAMPLING_CLAIMS,
        figures=(
            Lines(
                "Diversity and repetition",
                "by_temperature",
                x_label="temperature; 0 is greedy",
                y_label="share",
            ),
            Texts("Samples", "samples"),
        ),
        refuted_if="Greedy continuations repeat themselves no more than those sampled at temperature 1.",
        fairness="One model, eight held-out prompts of 64 characters, continued by 200 characters each.",
        meaning=(
            "Greedy decoding repeats itself: 47% of its passages occur earlier in the same text (seeds differ "
            "widely), and 7% of its 4-grams are distinct; whether beam search, which finds likelier texts, repeats "
            "itself less is undecided. Sampling repeats nothing. More variety costs likelihood: -1.1 nats a token at "
            "temperature 0.5, -2.8 at 1.5."
        ),
    ),
    Study(
        name="contexts",
        question="Do a model's vectors of a word distinguish its senses, and in which layer?",
        lecture="003",
        arms=(MODEL, WORDS),
        measures=(LOSSES, BANK, IT),
        shown=("separation_bank", "similarity_bank", "separation_it", "similarity_it"),
        figures=tuple(
            Lines(
                f'"{word}" within one sense and across two',
                f"cosines_{word}",
                x_label="blocks passed",
                y_label="cosine",
            )
            for word in ("bank", "it")
        ),
        refuted_if="Vectors of one sense are no more alike than vectors of different senses.",
        fairness="Every context gives the sense before the word, because a decoder reads nothing after it.",
        meaning=(
            "In so small a model, a word's vectors are hardly closer within a sense than across senses: cosines of "
            "0.90 to 0.97 differ by 0.004 to 0.011 for bank, in every seed, and by -0.02 for it, which is undecided. "
            "The lecture's picture needs a better model than minutes of training give."
        ),
    ),
    Study(
        name="position-shift",
        question="Is PE(p + k) a linear function of PE(p)?",
        lecture="002, 4.3; 004, 4.2",
        arms=(
            *(Probe(f"sinusoidal, k = {k}", shift_map, {**SHIFT, "shift": k}, seeds=1) for k in SHIFTS),
            Probe("random vectors, k = 1", shift_map, {**SHIFT, "kind": "random", "shift": 1}),
        ),
        published=tuple(
            Published(f"sinusoidal, k = {k}", value, 0.0, 1e-6, "002, 4.3", decides=True, printed=False)
            for k in SHIFTS
            for value in ("residual", "rotation_residual")
        ),
        figures=(Bars("Residual of the best linear map", "residual", log_x=True),),
        meaning="The map exists and rotates each pair of dimensions; the residual is float32 rounding. The same number "
        "of random vectors has no such map.",
        refuted_if="No linear map takes all 1,024 encodings to those k positions later within 1e-6.",
    ),
)
