"""The baseline that a classifier has to beat: TF-IDF of words and pairs of words, with logistic regression.

It sees which words there are and no order beyond two of them, and it is trained in seconds. A Transformer that does
no better has not used what it is for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clearformer.errors import needs_extra
from clearformer.evaluation.classes.metrics import ClassificationReport, classification_report

SETTINGS = "TF-IDF of words, symbols and pairs of them (1 + log count), logistic regression (C=10)"
C = 10.0
MAX_ITERATIONS = 1000
TOKEN = r"(?u)\w+|[^\w\s]"  # also words of one letter and signs, so that no text is without any


@dataclass(frozen=True)
class Baseline:
    """How well the baseline does, and what it is."""

    report: ClassificationReport
    settings: str
    n_features: int


def tfidf_baseline(
    train_texts: Sequence[str],
    train_labels: Sequence[str],
    eval_texts: Sequence[str],
    eval_labels: Sequence[str],
) -> Baseline:
    """Train the baseline on some texts and measure it on others; it draws no random numbers.

    Its settings are fixed, and are not chosen by looking at the texts it is measured on.

    Args:
        train_texts: what it learns from.
        train_labels: of two kinds or more.
        eval_texts: what it is measured on.
        eval_labels: each also in `train_labels`.

    Raises:
        MissingPackageError: scikit-learn is not installed.
    """
    with needs_extra("metrics", "the TF-IDF baseline needs scikit-learn"):
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
    names = sorted(set(train_labels))
    id_of = {name: number for number, name in enumerate(names)}
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=TOKEN, dtype=np.float64)
    features = vectorizer.fit_transform(train_texts)
    model = LogisticRegression(C=C, max_iter=MAX_ITERATIONS)
    model.fit(features, [id_of[label] for label in train_labels])
    logprobs = model.predict_log_proba(vectorizer.transform(eval_texts))
    labels = [id_of[label] for label in eval_labels]
    report = classification_report(labels, logprobs.argmax(1), names, logprobs)
    return Baseline(report, SETTINGS, features.shape[1])
