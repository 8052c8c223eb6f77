"""Classification: its loss, its classes, that it learns, and what it shows."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from clearformer.errors import ConfigError, DataError
from clearformer.training.loop import Training, TrainResult
from clearformer.training.processes.interrupts import Interrupts
from clearformer.training.store.folder import RunFolder
from clearformer.training.tasks import classification

Trained = Callable[..., TrainResult]
PIECES = ("tokenizer=wordpiece", "tokenizer.vocab_size=120", "model.max_seq_len=40")


def test_the_loss_is_the_mean_over_the_texts(begun: Callable[..., Training]) -> None:
    training = begun("a", "classification")
    tokens, padding, labels, weight = training.task.batch(2, 0, 1)

    loss = training.task.loss(training.model, tokens, padding, labels, weight)

    logprobs = [  # each text by itself, without any padding
        F.cross_entropy(training.model(row[real][None]), label[None]).item()
        for row, real, label in zip(tokens, padding, labels, strict=True)
    ]
    assert loss.item() == pytest.approx(sum(logprobs) / len(logprobs), rel=1e-5)
    assert training.task.n_tokens(2) == int(padding.sum())


def test_the_classes_are_the_labels_of_the_data(
    trained: Trained, run_folder: Callable[[str], RunFolder]
) -> None:
    outcome = trained("a", "classification", "train.max_steps=1")

    assert outcome.model.config.n_classes == run_folder("a").read_config().model.n_classes == 3
    with pytest.raises(
        ConfigError, match=r"model\.n_classes: 4 does not match the 3 labels of the data; remove it"
    ):
        trained("b", "classification", "model.n_classes=4")
    assert not run_folder("b").path.exists()


def test_it_learns_a_word_that_tells(trained: Trained) -> None:
    outcome = trained(
        "a",
        "classification",
        "tokenizer=wordpiece",
        "tokenizer.vocab_size=60",
        "model.d_model=12",
        "model.pooling=mean",
        "train.optimizer=adam",
        "train.lr=0.02",
        "train.max_steps=80",
        "train.eval_every=1000",
    )

    assert outcome.evaluation is not None
    assert outcome.evaluation.loss < 0.1
    assert outcome.evaluation.report.accuracy > 0.95  # type: ignore[attr-defined]


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_either_pooling_trains_all_of_its_parameters(begun: Callable[..., Training], pooling: str) -> None:
    training = begun("a", "classification", f"model.pooling={pooling}")
    classifier: Any = training.model.classifier

    training.train_step.gradients(0)

    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in classifier.parameters())
    assert all(p.grad is not None for p in training.model.parameters())


def test_a_sample_is_of_texts_from_everywhere_with_guess_and_truth(trained: Trained) -> None:
    outcome = trained("a", "classification", "train.max_steps=1")
    texts = outcome.task.dataset.splits["val"]  # type: ignore[attr-defined]

    lines = outcome.task.sample(outcome.model).split("\n")

    assert len(lines) == 4
    for line in lines:
        guess, percent, truth, text = re.fullmatch(r"(\w+) (\d+)% \((.*?)\): (.*)", line).groups()  # type: ignore[union-attr]
        [label] = {label for other, label in zip(texts.texts, texts.label_ids, strict=True) if other == text}
        name = outcome.task.dataset.labels[label]  # type: ignore[attr-defined]
        assert truth == ("right" if guess == name else f"wrong: {name}")
        assert 33 <= int(percent) <= 100
    assert lines[0].endswith(texts.texts[0])
    assert lines[-1].endswith(texts.texts[-1])


def test_a_text_that_is_too_long_is_refused_or_cut(
    trained: Trained, run_folder: Callable[[str], RunFolder]
) -> None:
    short = ("classification", "model.max_seq_len=11", "train.max_steps=1")

    with pytest.raises(
        DataError, match=r"line \d+: .*model\.max_seq_len=\d+ or more, or data\.too_long=truncate"
    ):
        trained("a", *short)
    assert not run_folder("a").path.exists()
    outcome = trained("b", *short, "data.too_long=truncate")
    assert outcome.task.batch(0, 0, 1)[0].shape[1] == 11


def test_by_the_clock_the_baseline_is_there_before_the_first_step(
    begun: Callable[..., Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def fitted(*_: object) -> str:
        made.append(training.progress.step)
        return "none"

    monkeypatch.setattr(classification, "baseline_for", fitted)
    training = begun("a", "classification", "train.max_steps=2", "train.max_wall_seconds=100")

    training.run(Interrupts())
    training.task.figures(training.evaluation)

    assert made == [0]


@pytest.mark.parametrize(
    ("limit", "seconds", "takes"), [(["train.max_wall_seconds=10"], 3, "3 of the 10 s"), ([], 561, "561 s")]
)
def test_a_baseline_that_takes_too_long_is_left_out_and_that_is_said(
    begun: Callable[..., Training],
    monkeypatch: pytest.MonkeyPatch,
    limit: list[str],
    seconds: float,
    takes: str,
) -> None:
    monkeypatch.setattr(classification, "baseline_for", lambda *_: pytest.fail("it was fitted"))
    training = begun("a", "classification", "train.max_steps=2", *limit)
    dataset = training.task.dataset
    its_own = (sum(len(text.encode()) for text in dataset.splits["train"].texts), len(dataset.labels))
    monkeypatch.setattr(classification, "baseline_seconds", lambda *of: {its_own: seconds}[of])

    training.run(Interrupts())
    (section,) = training.task.figures(training.evaluation)

    said = [figure.value for figure in section.figures if figure.name == "baseline"]
    assert said == [f"left out: it takes about {takes}; eval fits it"]


def test_hidden_tokens_are_others_at_every_step_and_never_the_marks(begun: Callable[..., Training]) -> None:
    plain = begun("a", "classification").task
    hiding = begun("b", "classification", "train.objective.hidden=0.4").task
    tokenizer = hiding.tokenizer
    n_hidden = n_words = 0
    for step in range(20):
        (whole, padding, labels, _), (tokens, its_padding, its_labels, _) = (
            task.batch(step, 0, 1) for task in (plain, hiding)
        )
        hidden = tokens != whole
        marks = (whole == tokenizer.bos_id) | (whole == tokenizer.eos_id) | ~padding
        assert (tokens[hidden] == tokenizer.mask_id).all()
        assert not hidden[marks].any()
        assert torch.equal(its_padding, padding)
        assert torch.equal(its_labels, labels)
        assert torch.equal(hiding.batch(step, 0, 1)[0], tokens)
        assert torch.equal(hiding.batch(step, 1, 2)[0], tokens[1::2])
        n_hidden += int(hidden.sum())
        n_words += int((~marks).sum())
    assert n_hidden / n_words == pytest.approx(0.4, abs=4 * (0.24 / n_words) ** 0.5)


@pytest.mark.parametrize("setting", ["hidden", "wordpiece_dropout"])
def test_texts_are_whole_where_they_are_measured(begun: Callable[..., Training], setting: str) -> None:
    settings = ("classification", *PIECES, "model.dropout=0.3")
    losses = [
        training.task.evaluate(training.model, torch.float32).loss  # type: ignore[union-attr]
        for training in (begun("a", *settings), begun("b", *settings, f"train.objective.{setting}=0.9"))
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("task", ["classification", "masked-labelled"])
def test_words_are_cut_anew_at_every_step(begun: Callable[..., Training], task: str) -> None:
    plain = begun("a", task, *PIECES).task
    cut = begun("b", task, *PIECES, "train.objective.wordpiece_dropout=0.5").task
    assert [cut.example_ids(step).tolist() for step in range(20)] == [
        plain.example_ids(step).tolist() for step in range(20)
    ]
    n_plain, n_cut = (sum(task.n_tokens(step) for step in range(20)) for task in (plain, cut))
    assert n_cut > 1.1 * n_plain
    for step in range(20):
        tokens, padding, *_ = cut.batch(step, 0, 1)
        assert int(padding.sum()) == cut.n_tokens(step)
        assert torch.equal(cut.batch(step, 0, 1)[0], tokens)
        assert torch.equal(cut.batch(step, 1, 2)[0], tokens[1::2])


def test_the_text_of_words_cut_anew_is_the_same(begun: Callable[..., Training]) -> None:
    plain = begun("a", "classification", *PIECES).task
    cut = begun("b", "classification", *PIECES, "train.objective.wordpiece_dropout=0.5").task
    n_other = 0
    for step in range(20):
        for ours, theirs in zip(cut.batch(step, 0, 1)[0], plain.batch(step, 0, 1)[0], strict=True):
            assert cut.tokenizer.decode(ours.tolist()) == cut.tokenizer.decode(theirs.tolist())
            n_other += ours.tolist() != theirs.tolist()
    assert n_other > 20


@pytest.mark.parametrize("task", ["classification", "masked-labelled"])
def test_only_wordpiece_has_longest_matches_to_leave_out(begun: Callable[..., Training], task: str) -> None:
    with pytest.raises(
        ConfigError, match=r"wordpiece_dropout leaves out .* tokenizer\.kind=char has none: set"
    ):
        begun("a", task, "tokenizer=char", "train.objective.wordpiece_dropout=0.1")


def test_windows_of_a_running_text_have_no_room_for_more_tokens(begun: Callable[..., Training]) -> None:
    with pytest.raises(ConfigError, match=r"wordpiece_dropout: windows .* set data\.kind=labelled"):
        begun("a", "masked", *PIECES, "train.objective.wordpiece_dropout=0.1")
