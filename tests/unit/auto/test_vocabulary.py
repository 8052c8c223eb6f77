"""The bits that more BPE tokens save, by a trigram model."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clearformer.auto import vocabulary
from clearformer.auto.vocabulary import beginning_of, trigram_bits, try_words
from clearformer.data import TextData
from clearformer.data.text.sources import open_source

TEXTS = np.random.default_rng(0)


def by_the_formula(learned: list[int], told: list[int], vocab_size: int) -> float:
    """Witten and Bell's estimate, counted word for word."""

    def p(word: int, context: tuple[int, ...]) -> float:
        order = len(context) + 1
        grams = [tuple(learned[i - order + 1 : i + 1]) for i in range(2, len(learned))]
        followers = [gram[-1] for gram in grams if gram[:-1] == context]
        shorter = p(word, context[1:]) if context else 1 / vocab_size
        if not followers:
            return shorter
        types = len(set(followers))
        return (followers.count(word) + types * shorter) / (len(followers) + types)

    return -sum(math.log2(p(told[i], (told[i - 2], told[i - 1]))) for i in range(2, len(told)))


def test_trigrams_are_witten_and_bells() -> None:
    learned, told = TEXTS.integers(0, 5, 200), TEXTS.integers(0, 6, 60)  # 5 never occurs in what is learned

    assert trigram_bits(learned, told, 6) == pytest.approx(
        by_the_formula(learned.tolist(), told.tolist(), 6), rel=1e-12
    )


def test_what_always_follows_costs_next_to_nothing() -> None:
    cycle = np.arange(3000) % 3
    assert trigram_bits(cycle, cycle[:302], 3) < 300 * 0.01
    assert trigram_bits(TEXTS.integers(0, 64, 20_000), TEXTS.integers(0, 64, 1002), 64) == pytest.approx(
        6000, rel=0.2
    )


def test_more_tokens_pay_for_english_and_not_for_numbers(tmp_path: Path) -> None:
    lines = [f'{{"id": "{number:012}"}}' for number in TEXTS.integers(0, 10**12, 6000)]
    (tmp_path / "numbers.txt").write_text("\n".join(lines))

    english, numbers = (
        try_words(open_source(data))
        for data in (TextData(name="pydoc"), TextData(path=str(tmp_path / "numbers.txt")))
    )

    assert english is not None
    assert english.bits_saved > 0.02
    assert numbers is not None
    assert numbers.bits_saved < 0


def test_the_rate_is_that_of_both_encodings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20,000 characters in 36,000 bytes, each of four parts takes a quarter of a second."""
    (tmp_path / "a.txt").write_text("äöüß " * 4000)
    now, encode = [0.0], vocabulary.encode

    def slow(*given: Any) -> Any:
        now[0] += 0.25
        return encode(*given)

    monkeypatch.setattr(vocabulary, "encode", slow)
    monkeypatch.setattr(vocabulary.time, "perf_counter", lambda: now[0])
    tried = try_words(open_source(TextData(path=str(tmp_path / "a.txt"))))
    assert tried is not None
    assert tried.words_per_second == 2 * 36_000


def test_little_text_in_a_large_file_tells_nothing(tmp_path: Path) -> None:
    line = json.dumps({"text": "a", "from": "x" * 1000})
    (tmp_path / "sparse.jsonl").write_text(f"{line}\n" * 200)
    assert try_words(open_source(TextData(path=str(tmp_path / "sparse.jsonl")))) is None


def test_a_text_of_one_character_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "same.txt").write_text("a" * 20_480)
    tried = try_words(open_source(TextData(path=str(tmp_path / "same.txt"))))
    assert tried is not None
    assert tried.bits_saved == 0


def test_only_the_beginning_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for name, text in (("a.txt", "first. " * 10), ("b.txt", "second. " * 10)):
        (folder / name).write_text(text)
    source = open_source(TextData(path=str(folder)))

    assert beginning_of(source, 40) == ("first. " * 10)[:40]
    assert beginning_of(source, 10_000).count("second.") == 10
