import sys

import pytest

from clearformer.data.labelled.config import LabelledData
from clearformer.data.labelled.sources import open_labelled
from clearformer.errors import MissingPackageError
from clearformer.evaluation.classes import baseline as baseline_module
from clearformer.evaluation.classes.baseline import baseline_seconds, takes_too_long, tfidf_baseline

TEXTS = ["a good film", "a very good one", "a poor film", "a very poor one", "good good good", "so poor"]
LABELS = ["yes", "yes", "no", "no", "yes", "no"]


def test_it_learns_which_words_go_with_which_label() -> None:
    baseline = tfidf_baseline(TEXTS, LABELS, ["good", "poor work", "one good evening"], ["yes", "no", "no"])
    assert baseline.report.names == ("no", "yes")
    assert baseline.report.confusion.tolist() == [[1, 1], [0, 1]]
    assert baseline.report.loss is not None
    assert baseline.report.loss > 0
    assert baseline.n_features == 18
    assert "C=10" in baseline.settings


def test_two_words_together_tell_what_each_alone_does_not() -> None:
    """Every word is as often in the one class as in the other: pairs of words differ."""
    texts, labels = ["not good but bad", "not bad but good"] * 3, ["no", "yes"] * 3
    assert tfidf_baseline(texts, labels, texts, labels).report.accuracy == 1


def test_signs_and_single_letters_are_words() -> None:
    assert tfidf_baseline(["!", "?", "! !"], ["a", "b", "a"], ["?", "!"], ["b", "a"]).report.accuracy == 1


def test_a_label_of_no_training_text_is_never_predicted_and_leaves_no_loss() -> None:
    report = tfidf_baseline(TEXTS, LABELS, ["good", "so so"], ["yes", "maybe"]).report
    assert report.names == ("no", "yes", "maybe")
    assert report.confusion[:, 2].tolist() == [0, 0, 0]
    assert (report.n_right, report.n, report.loss) == (1, 2, None)


def test_a_single_label_in_training_is_always_predicted() -> None:
    report = tfidf_baseline(["good", "poor"], ["no", "no"], ["good", "so so"], ["no", "no"]).report
    assert (report.accuracy, str(report.loss)) == (1, "0.0")
    assert tfidf_baseline(["good"], ["no"], ["good", "so"], ["yes", "no"]).report.n_right == 1


def test_of_many_labels_and_features_the_most_frequent_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline_module, "MOST_WEIGHTS", 8)
    found = tfidf_baseline(TEXTS, LABELS, TEXTS, LABELS)
    assert found.n_features == 4  # of two labels
    assert found.settings.endswith(", the 4 most frequent features")


def test_it_is_the_same_each_time() -> None:
    once, again = (tfidf_baseline(TEXTS, LABELS, TEXTS[:3], LABELS[:3]).report for _ in range(2))
    assert once.loss == again.loss


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(MissingPackageError, match=r"scikit-learn.*pip install 'clearformer\[metrics\]'"):
        tfidf_baseline(TEXTS, LABELS, TEXTS, LABELS)


def test_trec_is_fitted_to_the_end(data_dir, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = open_labelled(LabelledData(name="trec", val_fraction=0)).splits
    texts = [
        [getattr(each, part) for each in splits[split]]
        for split in ("train", "test")
        for part in ("text", "label")
    ]
    report = tfidf_baseline(*texts).report
    assert 0.87 < report.accuracy < 0.91
    monkeypatch.setattr(baseline_module, "TOLERANCE", 1e-9)
    assert report.loss == pytest.approx(tfidf_baseline(*texts).report.loss, abs=1e-4)


def test_the_time_it_takes_grows_with_texts_and_labels() -> None:
    small = baseline_seconds(10_000, 2)
    assert small < baseline_seconds(10_000, 8) == baseline_seconds(40_000, 2)
    assert baseline_seconds(308_279, 26) == pytest.approx(7, abs=0.1)  # it took 6.0 s of a processor


def test_it_says_when_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    tfidf_baseline(TEXTS, LABELS, TEXTS, LABELS)
    assert not caplog.messages
    monkeypatch.setattr(baseline_module, "MOST_SECONDS", 1.0)
    tfidf_baseline(TEXTS, LABELS, TEXTS, LABELS)
    assert caplog.messages == [f"fitting the baseline on {len(TEXTS)} texts takes about 3 s"]


def test_a_run_waits_for_a_fifth_of_its_time_or_a_minute_and_no_longer() -> None:
    assert [takes_too_long(seconds, of_run=20) for seconds in (3.9, 4.1)] == [False, True]
    assert [takes_too_long(seconds, of_run=None) for seconds in (59, 61)] == [False, True]
