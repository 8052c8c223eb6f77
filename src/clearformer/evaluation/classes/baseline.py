"""The baseline for classifiers: TF-IDF of words and pairs of words, with logistic regression.

It knows which words occur, but no word order beyond pairs, and trains in seconds. A Transformer should beat it.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clearformer.errors import needs_extra
from clearformer.evaluation.classes.metrics import ClassificationReport, classification_report

logger = logging.getLogger(__name__)

SETTINGS = "TF-IDF of words, symbols and pairs of them (1 + log count), logistic regression (C=10)"
C = 10.0
TOLERANCE = 1e-6  # of the gradient; the loss is then within 1e-4 of the least
MOST_WEIGHTS = 10_000_000  # of which scikit-learn's optimizer keeps some 12 copies: 1 GB
# What the baseline takes on a CPU core, and the most that a run's report waits for it.
SECONDS_TO_IMPORT, SECONDS_PER_BYTE_AND_LABEL = 3.0, 5e-7
MOST_OF_A_RUN, MOST_SECONDS = 0.2, 60.0
TOKEN = r"(?u)\w+|[^\w\s]"  # also one-letter words and signs, so that every text has a token


def baseline_seconds(n_bytes: int, n_labels: int) -> float:
    """Estimate the seconds for importing and fitting the baseline, from the training texts' bytes and labels."""
    return SECONDS_TO_IMPORT + SECONDS_PER_BYTE_AND_LABEL * n_bytes * n_labels


def takes_too_long(seconds: float, of_run: float | None) -> bool:
    """Whether a run of so many seconds of wall-clock time (None: without such a limit) goes without the baseline."""
    return seconds > (MOST_SECONDS if of_run is None else MOST_OF_A_RUN * of_run)


@dataclass(frozen=True)
class Baseline:
    """The baseline's scores and settings."""

    report: ClassificationReport
    settings: str
    n_features: int


def tfidf_baseline(
    train_texts: Sequence[str],
    train_labels: Sequence[str],
    eval_texts: Sequence[str],
    eval_labels: Sequence[str],
) -> Baseline:
    """Train the baseline on some texts and evaluate it on others; it draws no random numbers.

    Its settings are fixed, not tuned on the evaluation texts. A label that no training text has is never predicted; if
    an evaluation text has it, there is no loss, because the baseline gives it no probability. Of very many features,
    the most frequent are kept: each label has a weight for each feature, and many labels would fill the memory.

    Args:
        train_texts: The texts to train on.
        train_labels: Their labels.
        eval_texts: The texts to evaluate on.
        eval_labels: Their labels.

    Raises:
        MissingPackageError: scikit-learn is not installed.
    """
    with needs_extra("metrics", "the TF-IDF baseline needs scikit-learn"):
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
    learnt = sorted(set(train_labels))
    seconds = baseline_seconds(sum(len(text.encode()) for text in train_texts), len(learnt))
    if seconds > MOST_SECONDS:
        logger.info("fitting the baseline on %s texts takes about %.0f s", f"{len(train_texts):,}", seconds)
    names = learnt + sorted(set(eval_labels) - set(learnt))
    id_of = {name: number for number, name in enumerate(names)}
    most = max(1, MOST_WEIGHTS // len(learnt))
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, token_pattern=TOKEN, dtype=np.float64, max_features=most
    )
    features = vectorizer.fit_transform(train_texts)
    n_features = features.shape[1]
    logprobs = np.zeros((len(eval_texts), 1))  # of a single label, which needs no model
    if len(learnt) > 1:
        model = LogisticRegression(C=C, solver="newton-cg", tol=TOLERANCE)
        model.fit(features, [id_of[label] for label in train_labels])
        logprobs = model.predict_log_proba(vectorizer.transform(eval_texts))
    labels = [id_of[label] for label in eval_labels]
    all_learnt = len(names) == len(learnt)
    report = classification_report(labels, logprobs.argmax(1), names, logprobs if all_learnt else None)
    frequent = f", the {most:,} most frequent features" if n_features == most else ""
    return Baseline(report, SETTINGS + frequent, n_features)
