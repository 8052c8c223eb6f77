"""Pairs read from message catalogues: what is a message, on which side of the split it lies, what a memory finds."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def benchmark(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("catalogues")


def catalogue(folder: Path, name: str, *messages: tuple[str, str]) -> Path:
    file = folder / "share" / "fr" / "LC_MESSAGES" / f"{name}.po"
    file.parent.mkdir(parents=True, exist_ok=True)
    head = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    file.write_text(head + "".join(f'msgid "{a}"\nmsgstr "{b}"\n\n' for a, b in messages))
    return file


def test_messages_lose_marks_of_short_cuts_and_the_most_frequent_translation_counts(
    benchmark: ModuleType, tmp_path: Path
) -> None:
    one = catalogue(tmp_path, "one", ("_Open", "_Ouvrir"), ("Save  as", "Enregistrer sous"), ("OK", "OK"))
    two = catalogue(tmp_path, "two", ("Open", "Ouverture"), ("%d", "%d"), ("Close", ""))
    three = catalogue(tmp_path, "three", ("Open", "Ouvrir"))
    assert set(benchmark.catalogues_in(tmp_path, "fr")) == {one, two, three}
    assert benchmark.messages([one, two, three]) == [("Open", "Ouvrir"), ("Save as", "Enregistrer sous")]


def test_messages_that_differ_in_placeholders_alone_lie_on_one_side(benchmark: ModuleType) -> None:
    held_out = next(text for n in range(10_000) if benchmark.split_of(text := "page " + "z" * n) == "test")
    _, letters = held_out.split()
    alike = [f"Page {n}: <b>%d</b> {each}" for n in range(3) for each in (letters, letters.upper())]
    splits, _ = benchmark.split([(source, f"la {n}") for n, source in enumerate(alike)])
    assert [source for source, _ in splits["test"]] == alike


def test_training_loses_what_says_the_same_as_a_held_out_message(benchmark: ModuleType) -> None:
    held_out = next(text for n in range(10_000) if benchmark.split_of(text := "word " + "x" * n) == "test")
    known = next(text for n in range(10_000) if benchmark.split_of(text := "other " + "y" * n) == "train")
    splits, counts = benchmark.split([(held_out, "Mot !"), (known, "mot"), (known + "!", "autre")])
    assert splits["test"] == [(held_out, "Mot !")]
    assert splits["train"] == [(known + "!", "autre")]
    assert counts["n_left_out_of_training"] == 1


def test_a_memory_finds_the_nearest_training_message(benchmark: ModuleType) -> None:
    training = ["close the file", "close all windows", "print this page", "print all pages"]
    likeness, places = benchmark.nearest_of(["Print all pages: %d", "Print", "Xyz"], training)
    assert places[0] == 3
    assert training[places[1]].startswith("print")
    assert 0 == likeness[2] < likeness[1] < likeness[0] == pytest.approx(1)
