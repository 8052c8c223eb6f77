"""Choices of the benchmark of Multi30k, which must not be made on noise."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from clearformer.data import PairsData
from clearformer.evaluation.translation import bleu


@pytest.fixture(scope="module")
def benchmark(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("multi30k")


REFERENCE = "a small brown dog runs over the wet grass ."
N_PAIRS = 200


def counts(benchmark: ModuleType, n_better: int, n_worse: int) -> np.ndarray:
    """The counts for BLEU where some of many equal translations lack no word and some lack three."""
    short, shorter = REFERENCE.removesuffix(" ."), "a small brown dog runs"
    hypotheses = [REFERENCE] * n_better + [shorter] * n_worse
    hypotheses += [short] * (N_PAIRS - len(hypotheses))
    return benchmark.counts_of(SimpleNamespace(hypotheses=hypotheses, references=[REFERENCE] * N_PAIRS))


@pytest.mark.parametrize(
    ("runs", "chosen"),
    [([(0, 0)], 1.0), ([(1, 0)], 1.0), ([(40, 0)], 1.4), ([(40, 20)], 1.0), ([(40, 0), (0, 40)], 1.0)],
)
def test_a_length_penalty_is_that_of_all_runs_and_surely_better_than_1(
    benchmark: ModuleType, runs: list[tuple[int, int]], chosen: float
) -> None:
    same = dict.fromkeys(benchmark.PENALTIES, counts(benchmark, 0, 0))
    on_val = [same | {1.4: counts(benchmark, *each)} for each in runs]
    assert benchmark.chosen_penalty(on_val)["chosen"] == chosen


def test_pairs_held_out_count_with_the_validation_pairs(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the validation pairs alone the longer translations would be chosen."""
    monkeypatch.setattr(benchmark, "load", lambda name: run_of(PairsData(languages="en-de")))
    same = dict.fromkeys(benchmark.PENALTIES, counts(benchmark, 0, 0))
    better, worse = same | {1.4: counts(benchmark, 40, 0)}, same | {1.4: counts(benchmark, 0, 60)}
    chosen = [
        benchmark.chosen_penalties({"run": splits})["en-de"]["chosen"]
        for splits in ({"val": better}, {"val": better, "held_out": worse})
    ]
    assert chosen == [1.4, 1.0]


def test_pairs_held_out_are_read_from_the_files_and_translated_with_every_penalty(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = [tmp_path / "held_out.en", tmp_path / "held_out.de"]
    for file, lines in zip(files, ("a dog\ntwo dogs\n", f"ein Hund\n{REFERENCE}\n"), strict=True):
        file.write_text(lines)
    asked: list[tuple[str, float]] = []

    def translated(run: object, pairs: list, length_penalty: float) -> SimpleNamespace:
        asked.extend((pair.source, length_penalty) for pair in pairs)
        return SimpleNamespace(hypotheses=[REFERENCE] * len(pairs), references=[p.target for p in pairs])

    monkeypatch.setattr(benchmark, "load", lambda *_, **__: run_of(PairsData(languages="en-de")))
    monkeypatch.setattr(benchmark, "pairs_of", lambda run, split: [])
    monkeypatch.setattr(benchmark, "translated", translated)
    splits = benchmark.counts_by_split("run", files)
    assert asked == [(source, alpha) for alpha in benchmark.PENALTIES for source in ("a dog", "two dogs")]
    assert benchmark.bleu_of(splits["held_out"][1.4][1]) == pytest.approx(100)
    assert benchmark.bleu_of(splits["held_out"][1.4][0]) < 1
    assert list(benchmark.counts_by_split("run", ())) == ["val"]


def test_pairs_held_out_are_for_runs_of_one_direction(benchmark: ModuleType) -> None:
    benchmark.check_one_direction(["en-de", "en-de"])
    with pytest.raises(
        SystemExit, match="--held-out: its pairs are of one direction, the runs of en-de, fr-en"
    ):
        benchmark.check_one_direction(["fr-en", "en-de", "fr-en"])


def test_the_counts_of_all_pairs_give_the_bleu_of_evaluation(benchmark: ModuleType) -> None:
    hypotheses = ["A dog runs over the wet grass .", "two men", "the sky is blue today"]
    references = [REFERENCE, "Two men stand there", "The sky is blue"]
    counted = benchmark.counts_of(SimpleNamespace(hypotheses=hypotheses, references=references))
    expected = bleu(hypotheses, references, lowercase=True)[0].score
    assert 0 < expected < 100
    assert benchmark.bleu_of(counted.sum(0)) == pytest.approx(expected, abs=1e-9)


def run_of(data: PairsData) -> SimpleNamespace:
    return SimpleNamespace(config=SimpleNamespace(data=data))


def test_a_run_of_other_files_is_measured_on_multi30ks_own_pairs(
    benchmark: ModuleType, data_dir: Path
) -> None:
    run = run_of(PairsData(source="more.fr", target="more.en", languages="fr-en"))
    assert len(benchmark.pairs_of(run, "val")) == 1014
    first = benchmark.pairs_of(run, "test")[0]
    assert (first.source.split()[0], first.target.split()[0]) == ("Un", "A")


def test_a_run_without_languages_is_refused_in_one_line(benchmark: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"data\.languages"):
        benchmark.pairs_of(run_of(PairsData(source="more.fr", target="more.en")), "test")
