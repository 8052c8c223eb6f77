import json
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from sklearn import metrics

from clearformer.errors import TokenizerError
from clearformer.evaluation.classes.metrics import ClassificationReport, classification_report
from clearformer.evaluation.classes.scores import encode_texts
from clearformer.text import CharTokenizerSpec, specials_of

NAMES = ("no", "perhaps", "yes")
LABELS = [0, 0, 0, 1, 1, 2, 2]
PREDICTIONS = [0, 0, 1, 1, 2, 2, 2]


@pytest.fixture
def report() -> ClassificationReport:
    return classification_report(LABELS, PREDICTIONS, NAMES)


def test_scores_by_hand(report: ClassificationReport) -> None:
    assert report.confusion.tolist() == [[2, 1, 0], [0, 1, 1], [0, 0, 2]]
    assert (report.n, report.n_right) == (7, 5)
    assert report.accuracy == 5 / 7
    no, perhaps, yes = report.classes
    assert (no.precision, no.recall, no.f1, no.support) == pytest.approx((1, 2 / 3, 0.8, 3))
    assert (perhaps.precision, perhaps.recall, perhaps.f1, perhaps.support) == pytest.approx(
        (0.5, 0.5, 0.5, 2)
    )
    assert (yes.precision, yes.recall, yes.f1, yes.support) == pytest.approx((2 / 3, 1, 0.8, 2))
    assert report.macro_f1 == pytest.approx(0.7)
    assert report.majority == 3 / 7
    assert report.confusions() == [("no", "perhaps", 1), ("perhaps", "yes", 1)]
    assert report.loss is None


@pytest.mark.parametrize(
    "case", ["usual", "a label without texts", "a class never predicted", "a class without both"]
)
def test_scores_are_scikit_learn_s(case: str) -> None:
    rng = np.random.default_rng(0)
    labels, predictions = rng.integers(7, size=(2, 211))
    if case in ("a label without texts", "a class without both"):
        labels[labels == 3] = 4
    if case in ("a class never predicted", "a class without both"):
        predictions[predictions == 3] = 5
    logits = rng.normal(size=(211, 7))
    logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    report = classification_report(labels, predictions, [f"class {i}" for i in range(7)], logprobs)
    scikit: Any = metrics  # its annotations are narrower than what it takes
    assert report.accuracy == metrics.accuracy_score(labels, predictions)
    assert report.macro_f1 == pytest.approx(
        scikit.f1_score(labels, predictions, average="macro", zero_division=0)
    )
    assert (
        report.confusion.tolist() == metrics.confusion_matrix(labels, predictions, labels=range(7)).tolist()
    )
    expected = scikit.precision_recall_fscore_support(labels, predictions, labels=range(7), zero_division=0)
    found = [(each.precision, each.recall, each.f1, each.support) for each in report.classes]
    np.testing.assert_allclose(np.array(found).T, expected)
    assert report.loss == pytest.approx(metrics.log_loss(labels, np.exp(logprobs), labels=range(7)))


def test_json_holds_all_of_it(report: ClassificationReport) -> None:
    values = json.loads(json.dumps(report.to_json()))
    assert values["accuracy"] == report.accuracy
    assert values["confusion"] == [[2, 1, 0], [0, 1, 1], [0, 0, 2]]
    assert values["classes"][1] == {
        "name": "perhaps",
        "precision": 0.5,
        "recall": 0.5,
        "f1": 0.5,
        "support": 2,
    }


def test_a_report_as_text(report: ClassificationReport) -> None:
    assert str(report) == (
        "accuracy 71.43% (5 of 7), macro-F1 0.7000\n"
        "\n"
        "label    precision  recall     F1  texts\n"
        "no           1.000   0.667  0.800      3\n"
        "perhaps      0.500   0.500  0.500      2\n"
        "yes          0.667   1.000  0.800      2\n"
        "\n"
        "rows: the label; columns: the prediction\n"
        "         no perhaps yes\n"
        "no        2       1   .\n"
        "perhaps   .       1   1\n"
        "yes       .       .   2"
    )


def test_the_tables_of_labels_in_wide_characters_are_aligned() -> None:
    report = classification_report([0, 1, 1], [0, 1, 0], ["猫", "dog"])
    assert [cell_len(line) for line in report.table().splitlines()] == [
        len("label  precision  recall     F1  texts")
    ] * 3
    assert report.confusion_table().splitlines()[1:] == ["       猫 dog", "猫      1   .", "dog     1   1"]


def test_long_names_are_numbered_in_the_matrix() -> None:
    names = ["a name that is much too long to stand in a table", "description"]
    report = classification_report([0, 1, 1], [1, 1, 1], names)
    assert report.confusion_table() == (
        "rows: the label; columns: the prediction\n"
        "                             1 2\n"
        " 1 a name that is much t...  . 1\n"
        " 2 description               . 2"
    )
    assert max(map(len, report.table().splitlines())) < 80


def test_thirty_classes_fit_a_terminal_and_more_are_a_list_of_mistakes() -> None:
    rng = np.random.default_rng(0)
    for n, longest in ((30, 130), (31, 80)):
        labels, predictions = rng.integers(n, size=(2, 5000))
        names = [f"language {i}" for i in range(n)]
        text = classification_report(labels, predictions, names).confusion_table()
        assert max(map(len, text.splitlines())) < longest
    assert text.startswith("the most frequent mistakes:\nlanguage ")
    assert len(text.splitlines()) == 11
    assert classification_report(range(31), range(31), names).confusion_table() == "no mistakes"


@pytest.mark.parametrize(
    ("labels", "predictions", "message"),
    [
        ([0, 1], [0], "must be two rows of the same length"),
        ([], [], "must be two rows of the same length"),
        ([0, 3], [0, 0], "outside 0 to 2"),
        ([0, 0], [0, -1], "outside 0 to 2"),
    ],
)
def test_what_does_not_fit_is_refused(labels: list[int], predictions: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classification_report(labels, predictions, NAMES)
    with pytest.raises(ValueError, match=r"logprobs must be \[2 3\]"):
        classification_report([0, 1], [0, 1], NAMES, np.zeros((2, 2)))


def test_an_unknown_character_is_counted_in_the_text_as_it_was_given() -> None:
    tokenizer = CharTokenizerSpec().train(["one two"], specials_of("encoder"))
    with pytest.raises(TokenizerError, match=r"^text 1: 'é' \(U\+00E9\), character 9 of it"):
        encode_texts(tokenizer, ["    one é"], lambda n: f"text {n}")
    assert [len(row) for row in encode_texts(tokenizer, ["  one ", " "], str)] == [5, 0]
