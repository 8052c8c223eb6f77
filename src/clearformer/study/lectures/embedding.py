"""The studies of lecture 000, from one embedding to a Transformer: d = 256, 10,000 steps of 64 x 128 characters.

The models of section 4 are one attention without residual connection or feed-forward network, with matrices drawn from
N(0, 1/d) as in section 4.4. Those of section 5 follow its code, with torch's own initialisation (preset `lecture`).
"""

from itertools import pairwise
from typing import Any

from clearformer.study.figures import Bars, Curves, Distributions, Matrix, Texts, Trend
from clearformer.study.measures.attention import causal_mask
from clearformer.study.measures.held_out import per_character
from clearformer.study.measures.information import first_letters
from clearformer.study.measures.losses import LOSSES
from clearformer.study.measures.ngrams import (
    after_pairs,
    contexts_that_end_alike,
    next_distributions,
)
from clearformer.study.measures.patterns import pattern_of, self_weight
from clearformer.study.measures.samples import sample, temperatures
from clearformer.study.study import Claim, Measure, Probe, Published, Study, Training

ONE_LAYER = {
    "model.n_layers": 1,
    "model.residual": False,
    "model.ffn": {"kind": "none"},
    "model.init": {"kind": "gaussian"},
}
"""Section 4's model: embeddings, one attention, head."""

ONE_SEED = (
    " Arms of whole blocks have one seed, as a run takes from a quarter of an hour to hours on two cores."
)
FAIR = "All arms read the same batches in the same order, with the same optimizer and learning rate."
TABLE = ("train_loss", "val_loss", "train_perplexity", "perplexity", "parameters")
DEPTHS = (1, 2, 4, 8)


def one_layer(label: str, attention: dict[str, object]) -> Training:
    """Return section 4's model with a given attention."""
    return Training(label, settings={**ONE_LAYER, "model.attention": attention})


def of_depth(n_layers: int, label: str = "", seeds: int | None = 1, **settings: object) -> Training:
    """Return section 5's model of a depth; by default one seed: a run takes over a quarter of an hour on two cores."""
    name = label or f"{n_layers} layer{'s' * (n_layers > 1)}"
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    return Training(name, settings={"model.n_layers": n_layers, **changes}, seeds=seeds)


LAST, MEAN = one_layer("last embedding", {"kind": "last"}), one_layer("mean of all", {"kind": "mean"})
DOT = one_layer("dot product", {"kind": "dot"})
UNSCALED = one_layer("dot product, unscaled", {"kind": "dot", "scale": False})
SHARED = one_layer("one matrix", {"kind": "shared"})
QK = one_layer("queries, keys", {"kind": "multihead", "n_heads": 1, "value": False, "output": False})
QKV = one_layer("queries, keys, values", {"kind": "multihead", "n_heads": 1, "output": False})
BY_DEPTH = tuple(of_depth(n) for n in DEPTHS)
ATTENTION_ONLY = tuple(
    of_depth(n, f"{n} without MLP", None if n == 1 else 1, model__ffn={"kind": "none"}) for n in DEPTHS
)
SINUSOIDAL = of_depth(4, "4 layers, sinusoidal", model__position="sinusoidal")
EIGHT_LAYERS = (
    "The one seed's loss is 0.052 above the lecture's over the last twentieth of its steps, 0.002 more than the "
    "tolerance, and 0.034 over the last fifty. The perplexity's tolerance is the same: 5%."
)
FIVE_MODELS = (MEAN, LAST, QKV, ATTENTION_ONLY[2], BY_DEPTH[2])
"""The models of section 5.6, from the highest training loss to the lowest."""
IMPLIED: dict[str, Any] = {"printed": False}
ALL_BUT_THE_MEAN = tuple(arm.label for arm in (LAST, UNSCALED, DOT, SHARED, QK, QKV))
CHARACTERS_AND_BPE = (
    of_depth(4, "characters", model__position="sinusoidal", train__max_steps=3000),
    of_depth(4, "GPT-2's BPE", model__position="sinusoidal", train__max_steps=3000, tokenizer="gpt2"),
)
BOTH = tuple(arm.label for arm in CHARACTERS_AND_BPE)
SAME_LETTER = "An earlier occurrence of the same letter has the same embedding, and so gets the same weight."
AT_DEPTH = {arm.label: n for arms in (BY_DEPTH, ATTENTION_ONLY) for arm, n in zip(arms, DEPTHS, strict=True)}
WITH_MLP = {arm.label: "with MLP" for arm in BY_DEPTH} | {arm.label: "without" for arm in ATTENTION_ONLY}
PROMPT = "KING RICHARD II:\n"
DEEPER_IS_BETTER = tuple(
    Claim(
        f"{deeper} are better than {one}.",
        *("train_loss", deeper, one),
        decides=True,
        afterwards=one != "1 layer",
    )
    for one, deeper in pairwise(arm.label for arm in BY_DEPTH)
)
SEPARATE_MATRICES = (
    Claim(
        "Before training, W_Q and W_K give a token less weight on itself than the bare dot product.",
        *("self_weight_first", QK.label, DOT.label),
    ),
    Claim(
        "Before training, W_Q and W_K give a token less weight on itself than one matrix for both.",
        *("self_weight_first", QK.label, SHARED.label),
    ),
    Claim(
        "Before training, W_Q and W_K give a token less weight on itself than equal weights would.",
        *("self_weight_first", QK.label, QK.label, "equal_self_weight"),
        decides=True,
        afterwards=True,
    ),
)

STUDIES = (
    Study(
        name="bigram",
        question="Does a model that sees only the last embedding learn the bigram frequencies?",
        lecture="000, 4.1",
        arms=(LAST,),
        measures=(
            LOSSES,
            Measure(next_distributions, {"contexts": ["t", "e", " ", "n"]}),
            Measure(after_pairs, {"pairs": ["th", "sh"]}),
        ),
        shown=("train_loss", "val_loss", "train_perplexity", "largest_error", "total_variation"),
        published=(
            Published("last embedding", "train_loss", 2.45, 0.02, "8"),
            Published("last embedding", "train_perplexity", 11.6, 0.23, "8"),
            Published(
                *("last embedding", "largest_error", 0.0, 0.02, "fig. 4.1: closely matches"),
                **IMPLIED,
                decides=True,
            ),
            Published("last embedding", "first_after_th", 0.5, 0.05, "4.1: e nearly half the time"),
        ),
        figures=(
            Distributions("The next character after a letter", ("counted", "learned")),
            Distributions("The next character after two letters", ("counted_after", "learned_after")),
        ),
        refuted_if="A learned probability differs from the counted one by more than 0.02.",
        meaning=(
            "Three seeds reach 2.454 nats, the lecture's 2.45. Their learned probabilities after t, e, space "
            "and n are within 0.009, 0.016 and 0.017 of the counted ones: such a model is a bigram table. After th and "
            "sh, which the text continues with e (46%) and with a (34%), o (21%) and e (18%), it has one and the same "
            "prediction. The lecture has a and e more evenly after sh."
        ),
    ),
    Study(
        name="trigram",
        question="Can a model that sees only the last embedding tell `th` from `sh`?",
        lecture="000, 4.1",
        arms=(LAST, BY_DEPTH[1]),
        measures=(LOSSES, Measure(contexts_that_end_alike, {"one": "th", "other": "sh"})),
        shown=("data_difference", "model_difference"),
        published=(
            Published(
                *("last embedding", "model_difference", 0.0, 1e-6, "fig. 4.2: one prediction"),
                **IMPLIED,
                decides=True,
            ),
        ),
        claims=(Claim("Two layers tell `th` from `sh`.", "model_difference", "last embedding", "2 layers"),),
        figures=(
            Bars(
                "Distance between the model's p(next | th) and p(next | sh)",
                "model_difference",
                unit="total variation",
            ),
        ),
        fairness=FAIR + ONE_SEED,
        refuted_if="The last embedding's two predictions differ.",
        meaning=(
            "The last embedding predicts the same after `th` and `sh`, though the letters that follow in the text "
            "differ by 0.41 in total variation. Two layers tell them apart by 0.22, with one seed: they read the "
            "two letters alone, as at the beginning of a window, and the text's are counted everywhere."
        ),
    ),
    Study(
        name="baselines",
        question="Is the mean of all embeddings worse than the last embedding alone?",
        lecture="000, 4.2",
        arms=(LAST, MEAN),
        measures=(LOSSES, Measure(sample)),
        shown=TABLE,
        published=(Published("last embedding", "train_loss", 2.45, 0.02, "8"),),
        claims=(
            Claim(
                "The last embedding reaches a lower training loss than the mean of all.",
                *("train_loss", LAST.label, MEAN.label),
                decides=True,
            ),
        ),
        fairness=FAIR,
        figures=(Curves("Last embedding and mean of all"),),
        refuted_if="The mean's training loss is not above the last embedding's.",
        meaning=(
            "The mean of all embeddings ends 0.7 nats above the last one alone (3.18 against 2.45): equal "
            "weights dilute the information of the last letter, as the lecture says."
        ),
    ),
    Study(
        name="attention-variants",
        question="What do attention scores, their scaling, W_Q, W_K and W_V gain in one layer?",
        lecture="000, 4.3 and 4.4",
        arms=(LAST, MEAN, UNSCALED, DOT, SHARED, QK, QKV),
        measures=(LOSSES,),
        shown=TABLE,
        published=tuple(
            Published(arm.label, "train_loss", 2.4, 0.1, "fig. 4.4: all near 2.4", decides=True)
            for arm in (SHARED, QK, QKV)
        ),
        claims=(
            Claim(
                "W_Q, W_K and W_V reach a lower training loss than the last embedding.",
                *("train_loss", QKV.label, LAST.label),
            ),
            Claim("Even one matrix beats the mean.", "train_loss", SHARED.label, MEAN.label, afterwards=True),
        ),
        fairness=FAIR,
        figures=(
            Curves("One layer of attention, without the mean of all", arms=ALL_BUT_THE_MEAN, highest=2.7),
            Bars("Training loss at the end", "train_loss"),
            Bars("Held-out loss at the end", "val_loss"),
        ),
        refuted_if="A variant's training loss is more than 0.1 from 2.4 nats.",
        meaning=(
            "One layer of attention without positions ends about where the bigram table does: all arms but the mean "
            "(3.18) are between 2.43 and 2.46 nats. Scores of bare embeddings, scaled or not, gain nothing over the "
            "last embedding alone (2.454). W_Q, W_K and W_V gain 0.027 nats in training, and nothing measurable on "
            "held-out text."
        ),
    ),
    Study(
        name="self-weight",
        question="How much attention does a token give to itself?",
        lecture="000, 4.3 and 4.4",
        arms=(UNSCALED, DOT, SHARED, QK, QKV),
        measures=(LOSSES, Measure(self_weight)),
        shown=("self_weight_first", "self_weight", "largest_weight", "equal_self_weight"),
        published=(
            Published(DOT.label, "self_weight_first", 1.0, 0.05, "4.3: almost all", why=SAME_LETTER),
            Published(
                QKV.label, "self_weight_first", 0.042, 0.02, "4.4: as any other (mean of 1/t)", **IMPLIED
            ),
        ),
        claims=SEPARATE_MATRICES,
        fairness=FAIR + " Weights are those of one window, the first 128 held-out characters.",
        figures=(
            Bars("Weight of a token on itself, before training", "self_weight_first"),
            Bars("Weight of a token on itself, after training", "self_weight"),
        ),
        refuted_if="Before training, separate W_Q and W_K give a token more weight on itself than equal weights would.",
        meaning=(
            "The bare dot product gives a token about half of its weight, not almost all: 0.53 in this window, whose "
            "intervals cover weights and not texts; over all windows of the held-out text it is 0.46, from 0.36 to "
            "0.55. The rest goes to earlier occurrences of the same letter, whose embedding is the same. Two matrices "
            "take that away (0.05; whether less than equal weights is undecided), one matrix for both does not. "
            "Training then brings it back to about 0.3: the last letter tells most about the next one."
        ),
    ),
    Study(
        name="causal-mask",
        question="Does every row of weights sum to one, with no weight on later positions?",
        lecture="000, 4.5",
        arms=(QKV, Probe("mask", causal_mask, {"n_tokens": 12})),
        measures=(LOSSES, Measure(pattern_of, {"text": "First Citizen"[:12]})),
        shown=("above_diagonal", "row_sum_error"),
        published=(
            Published(QKV.label, "above_diagonal", 0.0, 0.0, "fig. 4.5", **IMPLIED, decides=True),
            Published(QKV.label, "row_sum_error", 0.0, 1e-6, "fig. 4.5", **IMPLIED, decides=True),
        ),
        figures=(
            Matrix("The causal mask: dark where a query reads a key", "readable", "mask", "query", "key"),
            Matrix("Attention weights", "pattern", QKV.label, "query", "key", "tokens"),
        ),
        refuted_if="A later position has any weight, or a row does not sum to 1.",
        meaning="Both hold for the trained model: no weight is above the diagonal, and rows sum to 1 up to rounding.",
        seeds=1,
    ),
    Study(
        name="depth",
        question="How does the loss fall with the number of layers?",
        lecture="000, 5.4",
        arms=BY_DEPTH,
        measures=(LOSSES,),
        shown=TABLE,
        published=(
            Published("2 layers", "train_loss", 1.63, 0.05, "fig. 5.2.1's text"),
            Published("4 layers", "train_loss", 1.25, 0.05, "5.4.1, 8"),
            Published("4 layers", "train_perplexity", 3.5, 0.18, "8"),
            Published("8 layers", "train_loss", 0.92, 0.05, "8", why=EIGHT_LAYERS),
            Published("8 layers", "train_perplexity", 2.5, 0.13, "8", why=EIGHT_LAYERS),
        ),
        claims=DEEPER_IS_BETTER,
        fairness=FAIR + ONE_SEED,
        figures=(
            Curves("1, 2, 4 and 8 layers"),
            Trend("Training loss by depth", "train_loss", AT_DEPTH, "layers", log_x=True),
        ),
        refuted_if="A deeper model's training loss is not below a shallower one's.",
        meaning=(
            "Each doubling of the depth lowers the training loss: 2.24, 1.64, 1.25 and 0.97 nats. Held-out loss falls "
            "to 1.64 with four layers and is back at 1.86 with eight, so the lecture's figure for eight is that of a "
            "model that overfits: on the way, on a part of the held-out text, eight layers had 1.57 after 4,000 steps "
            "and four 1.62 after 8,000. One seed each, as a run takes hours: no difference has an interval."
        ),
    ),
    Study(
        name="attention-only",
        question="How much of the gain of depth is due to the feed-forward network?",
        lecture="000, 5.4.1",
        arms=(*ATTENTION_ONLY, *BY_DEPTH),
        measures=(LOSSES,),
        shown=TABLE,
        published=(
            Published("4 without MLP", "train_loss", 1.88, 0.05, "5.4.1"),
            Published("8 without MLP", "train_loss", 1.50, 0.05, "5.4.1"),
        ),
        claims=(
            Claim(
                "2 layers with MLP beat 4 without.", "train_loss", "2 layers", "4 without MLP", decides=True
            ),
            Claim(
                "4 layers with MLP beat 8 without.", "train_loss", "4 layers", "8 without MLP", decides=True
            ),
        ),
        fairness=FAIR + " Depths are equal, parameters are not." + ONE_SEED,
        figures=(
            Trend("With and without MLP", "train_loss", AT_DEPTH, "layers", WITH_MLP, log_x=True),
            Trend("The same on held-out text", "val_loss", AT_DEPTH, "layers", WITH_MLP, log_x=True),
            Curves("Attention alone", arms=tuple(arm.label for arm in ATTENTION_ONLY)),
        ),
        refuted_if="Attention alone reaches the loss of a model with MLP and half as many layers.",
        meaning=(
            "From one to four layers depth gains less without MLP: 2.38, 2.29 and 1.87 nats with one, two and four, "
            "where whole blocks have 2.24, 1.64 and 1.25. With eight layers the one seed is unstable: its loss "
            "rises, and is no number after 4,839 steps, without norms and clipping. Whether the lecture's 1.50 is "
            "reached by another seed was not tried."
        ),
    ),
    Study(
        name="first-weights",
        question="In section 5's models, does N(0, 1/d) as in the lecture differ from its code's torch default?",
        lecture="000, 4.4 and 5.5",
        arms=tuple(
            of_depth(n, f"{n} layers, {init}", seeds, model__init=init, train__max_steps=2000)
            for n, seeds in ((2, None), (8, 1))
            for init in ("torch", "gaussian")
        ),
        measures=(LOSSES,),
        shown=TABLE,
        claims=(
            Claim(
                "With 2 layers, torch's default is better.",
                *("train_loss", "2 layers, torch", "2 layers, gaussian"),
            ),
            Claim(
                "With 8 layers, torch's default is better.",
                *("train_loss", "8 layers, torch", "8 layers, gaussian"),
                decides=True,
            ),
        ),
        fairness=FAIR + ONE_SEED,
        figures=(Curves("Two initialisations"),),
        refuted_if="Both reach the same loss with 8 layers.",
        meaning=(
            "The depth that the lecture reaches may need its code's initialisation: with eight layers, no norms and "
            "matrices from N(0, 1/d), the loss of the one seed is no number after 109 steps, where torch's default "
            "ends at 1.46 nats. With two layers torch's is 0.04 nats better after 2,000 steps."
        ),
    ),
    Study(
        name="samples",
        question="What do five models write?",
        lecture="000, 5.6",
        arms=FIVE_MODELS,
        measures=(LOSSES, Measure(sample)),
        shown=("train_loss", "val_loss", "known_words"),
        claims=tuple(
            Claim(
                f"More words are known of {better.label} than of {worse.label}.",
                "known_words",
                *labels,
                decides=True,
                afterwards=True,
            )
            for worse, better in pairwise(FIVE_MODELS)
            for labels in [(worse.label, better.label)]
        ),
        figures=(
            Bars("Words of the sample that occur in the training text", "known_words"),
            Texts("300 characters at temperature 0.8", "sample"),
        ),
        fairness=FAIR + ONE_SEED,
        refuted_if="The sample of a model with a lower loss has fewer words that occur in the training text.",
        meaning=(
            "With four whole layers 91% of the sample's words occur in the training text, with the mean of all "
            "embeddings 20%. The three models between them, of 1.87 to 2.45 nats, have 36% to 40%, which some 50 words "
            "do not tell apart: the last embedding's sample has more known words than that of four layers without MLP, "
            "whose loss is lower. One seed."
        ),
        seeds=1,
    ),
    Study(
        name="temperature",
        question="How does temperature change the next-token probabilities and the samples?",
        lecture="000, 5.7",
        arms=(BY_DEPTH[2], Probe("training text", first_letters, seeds=1)),
        measures=(
            LOSSES,
            Measure(temperatures, {"prompt": PROMPT, "temperatures": [0.2, 0.5, 0.8, 1.0, 1.5]}),
        ),
        shown=("train_loss", "val_loss"),
        figures=(
            Distributions("After KING RICHARD II:", "next_tokens", top=15),
            Distributions("First letters of the training text", "first_letters", label="share of speeches"),
            Texts("200 characters", "samples"),
        ),
        fairness=FAIR + ONE_SEED,
        refuted_if="A low temperature leaves more than one token likely, or a high one sharpens the distribution.",
        meaning=(
            "Four layers end at 1.252 nats in training, the lecture's 1.25, and at 1.636 on held-out text. At "
            "temperature 0.2 the likeliest letter after the prompt, W, has 0.75 and T 0.12, at 1.0 0.16 and 0.11; low "
            "temperatures repeat common words, high ones misspell them. The lecture has nearly all on S and T at 0.2, "
            "as the most common first letters of speeches: here they have 0.19, and in the training text W (12%), I "
            "(12%) and T (11%) lead, S has 6%."
        ),
        seeds=1,
    ),
    Study(
        name="output-projection",
        question="Does an output matrix W_O help?",
        lecture="000, 6.1",
        arms=(
            of_depth(2),
            of_depth(
                2, "2 layers, W_O", model__attention={"kind": "multihead", "n_heads": 1, "output": True}
            ),
        ),
        measures=(LOSSES,),
        shown=TABLE,
        claims=(
            Claim("W_O lowers the training loss.", "train_loss", "2 layers, W_O", "2 layers", decides=True),
        ),
        fairness=FAIR + " W_O adds d^2 parameters per layer." + ONE_SEED,
        figures=(Curves("With and without an output matrix"),),
        refuted_if="The training loss is not lower with W_O.",
        meaning=(
            "With an output matrix the one seed ends 0.04 nats lower in training (1.595 for 1.636) and 0.07 on "
            "held-out text (1.812 for 1.881), with 9% more parameters. One seed has no interval."
        ),
    ),
    Study(
        name="sinusoidal-positions",
        question="What do sinusoidal positions gain, and at which depth?",
        lecture="000, 6.2",
        arms=(
            BY_DEPTH[1],
            of_depth(2, "2 layers, sinusoidal", model__position="sinusoidal"),
            BY_DEPTH[2],
            SINUSOIDAL,
            of_depth(4, "4 layers, RoPE", model__position="rope"),
        ),
        measures=(LOSSES, Measure(sample)),
        shown=TABLE,
        claims=tuple(
            Claim(
                f"Positions lower the {loss} loss with {n} layers.",
                *(value, *labels),
                decides=True,
                afterwards=loss == "held-out",
            )
            for n, labels in ((2, ("2 layers, sinusoidal", "2 layers")), (4, (SINUSOIDAL.label, "4 layers")))
            for loss, value in (("training", "train_loss"), ("held-out", "val_loss"))
        ),
        fairness=FAIR + ONE_SEED,
        figures=(Curves("With and without positions"), Texts("300 characters at temperature 0.8", "sample")),
        refuted_if="The training or the held-out loss with positions is not below that without.",
        meaning=(
            "With positions training ends lower, by 0.36 nats with two layers and by 0.26 with four (0.33 with RoPE), "
            "in one seed each, so that no interval decides. On held-out text two layers gain 0.27 nats, but four end "
            "0.20 above those without positions (RoPE 0.32), because they fit their text sooner: at their best they "
            "reach 1.569 after 4,000 steps, and 1.568 after 2,500 with RoPE, where no positions have 1.615 after 8,000 "
            "(on the part of the text that is read on the way). The lecture's training losses at 10,000 steps show "
            "none of that."
        ),
    ),
    Study(
        name="head-count",
        question="Are several heads of width d/h better than one of width d?",
        lecture="000, 6.3",
        arms=tuple(
            of_depth(2, f"{h} head{'s' * (h > 1)}", model__attention={"kind": "multihead", "n_heads": h})
            for h in (1, 2, 4, 8)
        ),
        measures=(LOSSES,),
        shown=TABLE,
        claims=(
            Claim("Four heads are better than one.", "train_loss", "4 heads", "1 head", decides=True),
            Claim("Eight heads are better than one.", "train_loss", "8 heads", "1 head", decides=True),
        ),
        fairness=FAIR + " Parameters are equal." + ONE_SEED,
        figures=(Curves("1, 2, 4 and 8 heads"),),
        refuted_if="One head reaches the loss of several.",
        meaning=(
            "With equal parameters and one seed each, training ends at 1.636 nats with one head, 1.586 with two, 1.553 "
            "with four and 1.543 with eight; held out 1.881, 1.860, 1.845 and 1.842. Each doubling gains less than the "
            "one before. One seed has no interval, so no order is claimed."
        ),
    ),
    Study(
        name="characters-or-bpe",
        question="Which needs fewer bits per character: characters or GPT-2's BPE?",
        lecture="000, 7",
        arms=CHARACTERS_AND_BPE,
        measures=(LOSSES, Measure(per_character), Measure(sample)),
        shown=("train_loss", "loss_per_token", "bits_per_char", "characters_per_token", "parameters"),
        published=(
            Published("characters", "parameters", 2.9e6, 0.05e6, "fig. 7.1"),
            Published("GPT-2's BPE", "parameters", 28.6e6, 0.1e6, "fig. 7.1"),
        ),
        claims=(
            Claim(
                "Characters need fewer bits per character.",
                "bits_per_char",
                *BOTH,
                decides=True,
            ),
        ),
        fairness="Equal steps and tokens per step, as in the lecture; a BPE token is several characters."
        + ONE_SEED,
        figures=(
            Curves("Losses per token, which are no comparison"),
            Bars("Held-out bits per character", "bits_per_char"),
            Texts("300 tokens", "sample"),
        ),
        refuted_if="The larger vocabulary needs fewer held-out bits per character.",
        meaning=(
            "At equal steps characters need fewer bits for a held-out character, 2.31 against 4.18: their loss is "
            "1.346 nats a token in training and 1.602 on held-out text, BPE's 1.168 and 8.965. Losses per token are "
            "no comparison, for a BPE token holds 3.1 characters. BPE's model has 28.6M parameters, nine tenths of "
            "them rows of its vocabulary, and 3,000 steps show it the text 81 times (characters: 24 times): it "
            "overfits. Of its evaluations, one every 500 steps, the first is the best: about 2.32 "
            "bits, on 85% of the held-out text. One seed has no interval, so no order is claimed."
        ),
    ),
    Study(
        name="perplexity-table",
        question="Is every perplexity in the lecture's table e to the power of the loss?",
        lecture="000, 8",
        arms=(LAST, BY_DEPTH[2], BY_DEPTH[3]),
        measures=(LOSSES,),
        shown=TABLE,
        published=(
            Published(LAST.label, "train_perplexity", 11.6, 0.23, "8"),
            Published("4 layers", "train_perplexity", 3.5, 0.18, "8"),
            Published("8 layers", "train_perplexity", 2.5, 0.13, "8", why=EIGHT_LAYERS),
        ),
        fairness=FAIR + ONE_SEED,
        refuted_if="A perplexity is not e to the power of the loss beside it.",
        meaning=(
            "The training perplexities are e to the power of the losses, and the lecture's but for eight layers, whose "
            "loss is 0.05 higher here. On held-out text they are 12.0, 5.1 and 6.4: after 10,000 steps the smaller of "
            "the last two models predicts better; at its best, after 4,000, the larger one does. The lecture calls "
            "perplexity comparable across vocabularies; it is not, for a token of a larger vocabulary holds more text. "
            "Bits per character are."
        ),
    ),
)
