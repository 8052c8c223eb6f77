"""Translation: what its batches are, that it learns, and what it shows."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from clearformer.decoding.text.translations import translate
from clearformer.errors import ConfigError, DataError, Interrupted
from clearformer.text import Tokenizer
from clearformer.training.config import RunConfig
from clearformer.training.loop import Training, TrainResult
from clearformer.training.reporting.report import Reporter
from clearformer.training.store.checkpoint import MODEL, OPTIMIZER, Progress, list_checkpoints
from clearformer.training.store.folder import RunFolder, read_metrics

Trained = Callable[..., TrainResult]


def test_the_loss_is_the_mean_over_all_targets_and_padding_has_no_part(
    begun: Callable[..., Training],
) -> None:
    training = begun("a", "translation")
    tokenizer = training.task.tokenizer
    source, source_padding, tokens, targets, weight = training.task.batch(0, 0, 1)

    loss = training.task.loss(training.model, source, source_padding, tokens, targets, weight)

    logprobs, n = 0.0, 0
    for row in range(len(source)):  # each pair by itself, without any padding
        written = targets[row][targets[row] >= 0]
        assert tokens[row][: len(written)].tolist() == [tokenizer.bos_id, *written[:-1].tolist()]
        assert written[-1] == source[row][source_padding[row]][-1] == tokenizer.eos_id
        logits = training.model(
            source[row : row + 1, source_padding[row]], tokens[row : row + 1, : len(written)]
        )
        logprobs -= F.cross_entropy(logits[0], written, reduction="sum").item()
        n += len(written)
    assert loss.item() == pytest.approx(-logprobs / n, rel=1e-5)
    assert training.task.n_tokens(0) == n


@dataclass
class Run:
    model: Any
    tokenizer: Tokenizer


def test_it_learns_to_write_backwards(trained: Trained, tmp_path: Path) -> None:
    every = ["".join(letters) for n in (2, 3, 4) for letters in product("abcd", repeat=n)]
    words = [word for i, word in enumerate(every) if i % 5 in (0, 2, 4)]
    (tmp_path / "words.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))

    outcome = trained(
        "a",
        "translation",
        f"data.path={tmp_path / 'words.tsv'}",
        "model.d_model=32",
        "model.attention.n_heads=2",
        "model.ffn.d_ff=32",
        "model.position=sinusoidal",
        "model.init=xavier",
        "train.objective.batch_tokens=256",
        "train.optimizer=muon",
        "train.lr=0.02",
        "train.warmup_steps=20",
        "train.max_steps=150",
        "train.eval_every=1000",
    )

    assert outcome.evaluation is not None
    assert outcome.evaluation.loss < 0.1
    unseen = "bdcb"
    assert unseen not in words
    [[best]] = translate(Run(outcome.model, outcome.task.tokenizer), [unseen], beams=1)
    assert best.text == "bcdb"


def test_a_perplexity_that_no_number_holds_is_left_out_of_the_metrics(
    trained: Trained, run_folder: Callable[[str], RunFolder]
) -> None:
    wild = ("model.init=gpt2", "model.init.std=1000", "train.lr=1e-9", "train.max_steps=2")
    outcome = trained("a", "translation", *wild)
    assert outcome.evaluation is not None
    assert outcome.evaluation.loss > 710
    last = read_metrics(run_folder("a").metrics_file)[-1]
    assert last["val_loss"] == outcome.evaluation.loss
    assert "val_perplexity" not in last


def test_a_sample_is_a_held_out_source_its_translation_and_the_reference(trained: Trained) -> None:
    outcome = trained("a", "translation", "train.max_steps=1")
    split = outcome.task.dataset.splits["val"]  # type: ignore[attr-defined]

    source, found, reference = outcome.task.sample(outcome.model).split("\n")

    assert source == split.source_texts[0]
    assert found.startswith("  -> ")
    assert reference == f"     reference: {split.target_texts[0]}"


def test_what_is_too_long_for_the_positions_is_refused_before_anything_is_done(
    trained: Trained, run_folder: Callable[[str], RunFolder]
) -> None:
    with pytest.raises(DataError, match=r"line \d+: the source has 7 tokens .*model\.max_seq_len=5"):
        trained("a", "translation", "model.max_seq_len=5")
    assert not run_folder("a").path.exists()


def test_dropout_is_drawn_for_both_texts(begun: Callable[..., Training]) -> None:
    training = begun("a", "translation", "model.dropout=0.5")
    batch = training.task.batch(0, 0, 1)
    training.model.train()
    losses = set()
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.add(training.task.loss(training.model, *batch).item())

    assert len(losses) == 2


# --- merges left out --------------------------------------------------------------------------------------

ANEW = ("tokenizer=bpe", "tokenizer.vocab_size=290", "train.objective.bpe_dropout=0.3")


class Stops(Reporter):
    """Ends a run at a step, as Ctrl-C would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, progress: Progress, metrics: object) -> None:
        if progress.step == self.step:
            signal.raise_signal(signal.SIGINT)


def test_training_reads_other_tokens_each_time_and_evaluations_never(begun: Callable[..., Training]) -> None:
    anew, plain = begun("a", "translation", *ANEW), begun("b", "translation", *ANEW[:2])
    batches = anew.task.batches  # type: ignore[attr-defined]

    def epoch(number: int) -> dict[int, tuple[list[int], list[int]]]:
        found = {}
        for step in range(number * batches.batches_per_epoch, (number + 1) * batches.batches_per_epoch):
            source, padding, _, targets, _ = anew.task.batch(step, 0, 1)
            for row, index in enumerate(anew.task.example_ids(step).tolist()):
                found[index] = (source[row][padding[row]].tolist(), targets[row][targets[row] >= 0].tolist())
        return found

    first, second = epoch(0), epoch(1)
    split = anew.task.dataset.splits["train"]  # type: ignore[attr-defined]
    assert first.keys() == second.keys() == set(range(len(split)))
    assert first != second
    for index, (source, target) in first.items():
        assert anew.task.tokenizer.decode(source) == split.source_texts[index]
        assert anew.task.tokenizer.decode(target) == split.target_texts[index]
    assert anew.task.evaluate(plain.model, torch.float32) == plain.task.evaluate(plain.model, torch.float32)
    assert sum(map(anew.task.n_tokens, range(batches.batches_per_epoch))) == sum(
        len(target) for _, target in first.values()
    )


@pytest.mark.parametrize("more", [(), ("train.r_drop=5", "train.grad_accum_steps=2")], ids=["", "and R-Drop"])
def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(
    trained: Trained, resumed: Trained, run_folder: Callable[[str], RunFolder], more: tuple[str, ...]
) -> None:
    settings = (*ANEW, "model.dropout=0.2", "train.optimizer=muon", "train.max_steps=60", *more)
    whole = trained("whole", "translation", *settings)
    assert whole.task.batches.batches_per_epoch < 60  # type: ignore[attr-defined]

    with pytest.raises(Interrupted):
        trained("a", "translation", *settings, reporter=Stops(53))
    again = resumed("a")

    assert again.progress.tokens == whole.progress.tokens
    ours, theirs = (list_checkpoints(run_folder(name).checkpoints)[0] for name in ("a", "whole"))
    for name in (MODEL, OPTIMIZER):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()


def test_a_tokenizer_without_merges_is_refused(configure: Callable[..., RunConfig]) -> None:
    with pytest.raises(ConfigError, match=r"train\.objective\.bpe_dropout drops merges, .*kind=char"):
        configure("translation", "train.objective.bpe_dropout=0.1")


@pytest.mark.parametrize("probability", ["-0.1", "1", "nan"])
def test_a_probability_out_of_range_is_refused(configure: Callable[..., RunConfig], probability: str) -> None:
    with pytest.raises(ConfigError, match=r"train\.objective\.bpe_dropout"):
        configure("translation", *ANEW[:2], f"train.objective.bpe_dropout={probability}")
