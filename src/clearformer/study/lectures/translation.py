"""Studies of lecture 003: an encoder-decoder that translates."""

from collections.abc import Mapping
from typing import Any

from clearformer.study.figures import Lines, Matrix
from clearformer.study.measures.alignments import DATE_ALIGNMENT
from clearformer.study.measures.losses import LOSSES
from clearformer.study.measures.translations import BLEU
from clearformer.study.study import Claim, Study, Training

SMALL: Mapping[str, Any] = {
    "model.d_model": 96,
    "model.n_layers": 2,
    "model.ffn.d_ff": 192,
    "train.max_seconds": "none",
    "train.eval_every": 100,
    "train.checkpoint_every": 100,
    "train.keep_last": 100,
    "train.dtype": "float32",
    "train.compile": False,
}
"""The preset `translate` with two layers of width 96 on each side, keeping all checkpoints."""

DATES = Training(
    "dates",
    "translate",
    {
        "data": {"kind": "pairs", "name": "dates", "size": 20_000, "val_fraction": 0.1},
        "tokenizer": {"kind": "bpe", "vocab_size": 1000, "digits": "single"},
        "train.max_steps": 1200,
    },
)
"""Dates, times, numbers and amounts, from French to English; every digit is a token."""

CAPTIONS = Training(
    "captions",
    "translate",
    {
        "data": {"kind": "pairs", "name": "multi30k"},
        "tokenizer": {"kind": "bpe", "vocab_size": 4000},
        "train.max_steps": 1500,
    },
)
"""Captions of photographs, from English to German (Multi30k)."""
ALIGNMENT_CLAIMS = (
    Claim(
        "The best head attends to the correct part of a date more often than chance.",
        *("aligned_by_chance", "dates", "dates", "aligned_by_best_head"),
        decides=True,
    ),
    Claim(
        "The best head aligns better than the mean of all heads.",
        *("aligned_by_mean", "dates", "dates", "aligned_by_best_head"),
    ),
    Claim(
        "The best head attends to the very digit being written more often than chance.",
        *("digits_by_chance", "dates", "dates", "digits_by_best_head"),
    ),
)
BLEU_FIGURES = (
    Lines(
        "BLEU of 200 held-out texts by seconds of training, on two machines",
        "bleu_by_second",
        x_label="seconds",
        y_label="BLEU",
    ),
    Lines(
        "BLEU of 200 held-out texts by steps of training",
        "bleu_by_step",
        x_label="training step",
        y_label="BLEU",
    ),
    Lines(
        "BLEU by length of the source",
        "bleu_by_length",
        x_label="words, mean of a quarter",
        y_label="BLEU",
    ),
)

STUDIES = (
    Study(
        name="translation",
        question="How does BLEU grow with training, and how does it depend on sentence length?",
        lecture="003",
        arms=(DATES, CAPTIONS),
        settings=SMALL,
        measures=(LOSSES, BLEU),
        shown=("bleu", "bleu_of_shortest", "bleu_of_longest", "exact_match", "val_loss", "parameters"),
        claims=tuple(
            Claim(
                f"BLEU of the longest quarter of the {arm} is below that of the shortest.",
                *("bleu_of_longest", arm, arm, "bleu_of_shortest"),
                decides=arm == "captions",
            )
            for arm in ("dates", "captions")
        ),
        fairness="One model per dataset, three seeds; all translations are greedy.",
        figures=BLEU_FIGURES,
        refuted_if="The longest quarter of the captions has a BLEU as high as the shortest.",
        meaning=(
            "The longest quarter of captions has 22 BLEU, the shortest 35: a small translator loses its way "
            "in long sentences. Of dates three seeds do not tell the longest quarter from the shortest (92 and 91, "
            "± 8). The seeds ran on two machines, so their seconds are not comparable; their steps are."
        ),
    ),
    Study(
        name="alignment",
        question="Does cross-attention align the parts of a date correctly?",
        lecture="003; Bahdanau et al. 2015",
        arms=(DATES,),
        settings=SMALL,
        measures=(LOSSES, DATE_ALIGNMENT),
        shown=(
            *("aligned_by_best_head", "aligned_by_mean", "aligned_by_chance", "digits_by_best_head"),
            *("digits_by_chance", "n_dates", "val_loss"),
        ),
        claims=ALIGNMENT_CLAIMS,
        fairness="The head is chosen on one half of the held-out dates and measured on the other.",
        figures=(
            Matrix(
                "Share of tokens that attend to their own part, by head",
                "aligned_by_head",
                "dates",
                row_label="layer",
                column_label="head",
            ),
        ),
        refuted_if="No head attends to the correct part of a date more often than a random token is in it.",
        meaning=(
            "Cross-attention is an alignment: the best head has its highest weight within the correct part of "
            "the date for 95% of tokens (chance: 28%), and on the very digit for 97%. No single head is "
            "needed for it: the mean of all heads is as good, within the spread of the seeds."
        ),
    ),
)
