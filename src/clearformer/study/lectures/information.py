"""The studies of lecture 002, and of the counts in 000: information, and the scale of scores and activations."""

from clearformer.study.figures import Bars, Curves, Lines, Trend
from clearformer.study.measures.attention import distance_from_torch, drawn_scores, self_term, two_tokens
from clearformer.study.measures.information import (
    against_the_source,
    balanced_depth,
    characters_of_the_lecture,
    example_of_the_lecture,
    parameters_of_gpt,
    parameters_of_the_lecture,
    per_thousand_words,
    training_tokens,
    uniform_baseline,
    worked_values,
)
from clearformer.study.measures.losses import LOSSES
from clearformer.study.measures.stream import stream_variance
from clearformer.study.study import Claim, Measure, Probe, Published, Study, Training

FOUR_DIGITS = 0.00005  # the rounding error of four decimals
WORKED, EXAMPLE, TEXT, WORDS = "worked values", "example line", "training text", "1,000 words of it"
TWO_TOKENS, SENTENCE, TORCH = "two tokens", "sentence", "torch's attention"
SMALL, WIDE, BPE = "lecture, d = 256", "lecture, d = 768", "lecture, GPT-2's vocabulary"
GPT, GPT3, LARGE = "12 layers, d = 768", "GPT-3", "V = 100,000, d = 10,000"
BIASES = "The formula omits the biases of the ReLU networks, which the lecture's code has: 5Ld more."
PUBLISHED = {
    WORKED: (
        ("fair_coin", 1.0, FOUR_DIGITS, "002, 2.1"),
        ("loaded_coin", 0.4690, FOUR_DIGITS, "002, 2.6"),
        ("cross_entropy_good", 0.1520, FOUR_DIGITS, "002, 2.6"),
        ("cross_entropy_bad", 1.3219, FOUR_DIGITS, "002, 2.6"),
        ("cross_entropy_of_0.01", 6.64, 0.005, "002, 2.2"),
        ("perplexity_good", 1.11, 0.005, "002, 2.6"),
        ("perplexity_bad", 2.50, 0.005, "002, 2.6"),
        ("kl_divergence", 0.1228, FOUR_DIGITS, "002, 2.6, output of its code"),
        ("cross_entropy", 1.2796, FOUR_DIGITS, "002, 2.6, output of its code"),
        ("entropy", 1.1568, FOUR_DIGITS, "002, 2.6, output of its code"),
        ("identity_error", 0.0, 1e-12, "002, 2.4"),
        ("mutual_information_independent", 0.0, 1e-12, "002, 2.5"),
        ("mutual_information_determined", 1.0, 1e-12, "002, 2.5"),
    ),
    TWO_TOKENS: (("leaning_1", 0.0, 1e-6, "004, 4.3: equally"),),
    SENTENCE: (
        ("vocabulary", 16, 0, "001, Tokenisation"),
        ("wrong_ids", 0, 0, "001, Tokenisation: back to the text"),
    ),
    TORCH: (("largest_difference", 0.0, 1e-5, "001: the same computation"),),
    "uniform over 65": (("loss", 4.17, 0.005, "000, 3.3"), ("perplexity", 65.0, 0.05, "000, 8")),
    SMALL: (
        ("matrices", 2_916_864, 0, "000, 5.4"),
        ("parameters", 2_916_864, 0, "000, 5.4", BIASES),
        ("embeddings", 16_640, 0, "000, 7"),
    ),
    WIDE: (
        ("matrices", 26_052_096, 0, "000, by the formula of 5.4"),
        ("parameters", 26_067_456, 0, "000, 5.5, output of its code"),
    ),
    LARGE: (("layers", 10, 5, "000, 5.4: around 10", "11Ld² = 2Vd gives 1.8 layers."),),
    BPE: (("parameters", 28.6e6, 0.05e6, "000, 7"), ("embeddings", 12_865_792, 0, "000, 7")),
    GPT: (
        ("blocks", 84.9e6, 0.05e6, "002, 13, by its formula"),
        ("network_share", 2 / 3, 0.005, "002, 6"),
    ),
    GPT3: (("total", 175e9, 0.5e9, "002, 13"),),
    EXAMPLE: (
        ("characters", 62, 0, "000, 7", "The line is 61 characters long."),
        ("tokens", 16, 0, "000, 7", "GPT-2's vocabulary splits the line into 15 tokens."),
        (
            "tokens",
            14,
            0,
            "000, 7, as listed",
            "The list has the colon and the end of the line as one token.",
        ),
        ("compression", 3.9, 0.05, "000, 7", "61 characters in 15 tokens are 4.1 per token."),
    ),
    TEXT: (("tokens", 304_000, 500, "000, 7"),),
    WORDS: (
        ("characters", 5000, 750, "000, 7: about 5000"),
        (
            "tokens",
            1300,
            195,
            "000, 7: about 1300",
            "Here 1,000 words are 1,655 tokens.",
        ),
        ("shorter", 4, 0.5, "000, 7: roughly 4 times", "5,501 characters in 1,655 tokens are 3.3 per token."),
        ("attention_saved", 16, 4, "000, 7", "3.3 times fewer positions have 11 times fewer scores."),
        ("larger_table", 800, 40, "000, 7"),
    ),
}
"""The lectures' numbers by arm: the value's name, the number, its tolerance, its section, and if wrong, why."""

NOT_PRINTED = {
    *("002, 2.4", "002, 2.5", "004, 4.3: equally", "001: the same computation"),
    *("001, Tokenisation: back to the text", "002, 2.6, output of its code", "000, 5.5, output of its code"),
    *("000, by the formula of 5.4", "002, 13, by its formula"),
}
"""The sections of the numbers that follow from what a lecture says there, and that it does not print."""

PUBLISHED_VALUES = tuple(
    Published(arm, *each, decides=True, printed=each[3] not in NOT_PRINTED)
    for arm, values in PUBLISHED.items()
    for each in values
)

HEAD_SIZES = (16, 32, 64, 128, 256)
SCALES = ("scaled", "unscaled")
AT_HEAD_SIZE = {f"d_k = {d}, {scale}": d for d in HEAD_SIZES for scale in SCALES}
WITH_SCALE = {f"d_k = {d}, {scale}": scale for d in HEAD_SIZES for scale in SCALES}
UNSCALED = (
    ("entropy", 64, "Without scaling, the softmax is less even.", True),
    ("gradient", 64, "Without scaling, the softmax's gradient is smaller on average.", True),
    (
        "gradient_median",
        256,
        "Without scaling and with d_k = 256, the median query's gradient is smaller.",
        False,
    ),
)
MARKOV = {
    "train.max_seconds": None,
    "train.max_steps": 1000,
    "train.eval_every": 100,
    "model.d_model": 64,
    "model.n_layers": 2,
    "model.attention.n_heads": 2,
    "model.max_seq_len": 64,
}
SHAKESPEARE = {"name": "shakespeare"}
ADDED = "That holds for one matrix's output; the residual stream adds up what all blocks write."
SCALED_AND_NOT = ("GPT-2 with 1/sqrt(2N)", "GPT-2")
INITS = {
    "Gaussian, N(0, 1/d)": "gaussian",
    "Xavier": "xavier",
    "GPT-2": "gpt2",
    "GPT-2 with 1/sqrt(2N)": "gpt2 scaled",
    "zero outputs": "zero outputs",
}
PUBLISHED_SCORES = (
    Published("d_k = 64, unscaled", "score_std", 8.0, 0.1, "002, 5"),
    Published("d_k = 64, scaled", "score_std", 1.0, 0.02, "002, 5"),
    Published("d_k = 256, unscaled", "score_std", 16.0, 0.2, "000, 4.3"),
    Published("self-term, all tokens differ", "self_score", 16.0, 0.2, "000, 4.3"),
    Published("self-term, all tokens differ", "cross_std", 1.0, 0.02, "000, 4.3"),
    Published("self-term, all tokens differ", "own_weight", 1.0, 0.01, "000, 4.3"),
)
LONGER_CONTEXTS = tuple(
    Claim(
        f"The loss of order {k + 1} is below that of order {k}.",
        "val_loss",
        f"order {k + 1}",
        f"order {k}",
    )
    for k in range(3)
)
NOT_BELOW = tuple(
    Claim(
        f"The loss of order {k} is above the source's own.",
        *("source_loss", f"order {k}", f"order {k}", "val_loss"),
        decides=True,
        afterwards=True,
    )
    for k in range(4)
)

STUDIES = (
    Study(
        name="information",
        question="Are the lectures' worked values, parameter counts and token counts right?",
        lecture="002, 2 and 13; 000, 3.3, 5.4, 7 and 8; 001; 004, 4.3",
        arms=(
            Probe(WORKED, worked_values, seeds=1),
            Probe("uniform over 65", uniform_baseline, {"vocab_size": 65}, seeds=1),
            Probe(SMALL, parameters_of_the_lecture, {"d_model": 256, "vocab_size": 65}, seeds=1),
            Probe(WIDE, parameters_of_the_lecture, {"d_model": 768, "vocab_size": 65}, seeds=1),
            Probe(BPE, parameters_of_the_lecture, {"d_model": 256, "vocab_size": 50_257}, seeds=1),
            Probe(GPT, parameters_of_gpt, {"n_layers": 12, "d_model": 768, "vocab_size": 50_257}, seeds=1),
            Probe(
                GPT3, parameters_of_gpt, {"n_layers": 96, "d_model": 12_288, "vocab_size": 50_257}, seeds=1
            ),
            Probe(LARGE, balanced_depth, {"d_model": 10_000, "vocab_size": 100_000}, seeds=1),
            Probe(TWO_TOKENS, two_tokens, seeds=1),
            Probe(SENTENCE, characters_of_the_lecture, seeds=1),
            Probe(TORCH, distance_from_torch, {"d_model": 16, "n_heads": 4, "n_tokens": 5}, seeds=1),
            Probe(EXAMPLE, example_of_the_lecture, seeds=1),
            Probe(TEXT, training_tokens, seeds=1),
            Probe(WORDS, per_thousand_words, seeds=1),
        ),
        published=PUBLISHED_VALUES,
        meaning=(
            "The worked values and the formulas are right. Nine published numbers are not: the number of parameters "
            "of section 5.4 omits biases that its code has; embeddings and blocks balance at 1.8 layers, not 10; the "
            "example line has 61 characters and 15 tokens, neither 16 nor the 14 that are listed; its compression is "
            "4.1. The training text's 304,000 tokens are 90% of the whole text's; the first 90% of its characters "
            "have 301,966. Of this text 1,000 words are 1,655 tokens, not 1,300, so that BPE shortens it 3.3 times, "
            "not 4, and saves 11 times of attention's scores, not 16."
        ),
        refuted_if="A value differs from the lecture's by more than its rounding, or an identity does not hold.",
        seeds=1,
    ),
    Study(
        name="markov-sources",
        question="Does a model's loss fall to the entropy rate of its source, and not below?",
        lecture="002, 2.2",
        arms=tuple(
            Training(f"order {k}", preset="quick", settings={"data.name": f"markov-{k}"}) for k in range(4)
        ),
        settings=MARKOV,
        measures=(LOSSES, Measure(against_the_source)),
        shown=("entropy_rate", "source_loss", "val_loss", "excess"),
        published=tuple(
            Published(f"order {k}", "excess", 0.0, 0.02, "2.2", decides=True, printed=False) for k in range(4)
        ),
        claims=(*LONGER_CONTEXTS, *NOT_BELOW),
        figures=(
            Bars("Held-out loss minus the source's own loss", "excess", unit="nats", baseline=0.0),
            Curves("Losses on Markov sources", bound="entropy_rate"),
        ),
        fairness="One model and recipe; each source generates a million symbols from an alphabet of eight, with "
        "probabilities counted in Tiny Shakespeare.",
        refuted_if="A held-out loss is more than 0.02 nats from that of the source's own probabilities, or below it.",
        meaning=(
            "Held-out losses end 0.000 to 0.012 nats above the source's own loss on the same text; one of order 0 "
            "ends 0.00004 below it, and its three seeds do not tell its mean from the source's. Where a loss is below"
            " the entropy rate, the held-out text is more probable than the average, under the source as well."
        ),
    ),
    Study(
        name="score-scale",
        question="What does dividing scores by sqrt(d_k) change, and how large is a token's score with itself?",
        lecture="002, 5; 000, 4.3",
        arms=(
            *(
                Probe(f"d_k = {d}, {name}", drawn_scores, {"d_k": d, "scaled": name == "scaled"})
                for d in HEAD_SIZES
                for name in SCALES
            ),
            Probe("self-term, all tokens differ", self_term, {"d_model": 256, "n_tokens": 128}),
            Probe("self-term, 65 tokens", self_term, {"d_model": 256, "n_tokens": 128, "vocab_size": 65}),
        ),
        published=PUBLISHED_SCORES,
        claims=tuple(
            Claim(text, value, f"d_k = {d}, unscaled", f"d_k = {d}, scaled", decides=decides)
            for value, d, text, decides in UNSCALED
        ),
        figures=tuple(
            Trend(title, value, AT_HEAD_SIZE, "d_k", WITH_SCALE, y_label=label, log_x=True)
            for value, title, label in (
                ("entropy", "Entropy of the softmax over 128 keys", "nats"),
                ("gradient_median", "Gradient of the softmax, median over queries", "norm of the Jacobian"),
                ("saturated", "Queries that give one key 99% of their weight", "share"),
            )
        ),
        meaning="Standard deviations match the formula. Unscaled scores make the softmax uneven, but its gradient no "
        "smaller: with d_k = 64, it is larger on average than with scaled scores, which leave every key a small "
        "weight; the median query's is smaller with d_k = 256 (with 128 that is undecided). A token's weight on its "
        "own position is nearly 1 only where no other position holds the same token.",
        refuted_if="With d_k = 64, unscaled scores make the softmax as even, or its gradient as large, as scaled ones.",
    ),
    Study(
        name="initialisation",
        question="How does the variance of the residual stream grow with depth under each initialisation?",
        lecture="002, 9",
        arms=tuple(
            Probe(label, stream_variance, {"init": init, "n_layers": 12, "d_model": 128, "data": SHAKESPEARE})
            for label, init in INITS.items()
        ),
        shown=("first", "last", "growth", "written"),
        published=(
            Published("Xavier", "growth", 1.0, 0.5, "002, 9: roughly constant", why=ADDED, printed=False),
        ),
        claims=(
            Claim("With 1/sqrt(2N), the variance grows less.", "growth", *SCALED_AND_NOT, decides=True),
            Claim("With 1/sqrt(2N), blocks add less.", "written", *SCALED_AND_NOT),
        ),
        figures=(
            Lines(
                "Variance of the residual stream",
                "variance",
                x_label="blocks passed",
                y_label="variance",
                log_y=True,
            ),
        ),
        fairness="One untrained pre-norm GPT of 12 layers, the same text; only the initial weights differ.",
        meaning="Without 1/sqrt(2N), the variance after 12 blocks is 63 times the initial one; with it, 3 times. An "
        "initial variance as small as GPT-2's or Xavier's grows by a large factor; zero outputs leave it unchanged.",
        refuted_if="With 1/sqrt(2N), the variance after the last block is as many times the initial one as without.",
    ),
)
