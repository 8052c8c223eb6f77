"""Multi30k with further descriptions: nothing that training, validation or test has, and a model's English marked."""

import gzip
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def benchmark(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("described_pairs")


def lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def write_columns(folder: Path, **columns: list[str]) -> None:
    """Write the lines of each file, `train_en` as train.en."""
    for name, texts in columns.items():
        file = folder / name.replace("_", ".")
        file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def test_a_text_of_another_split_or_seen_before_is_no_description(benchmark: ModuleType) -> None:
    texts = ["A dog runs .\n", "a cat\n", "\n", "A  bird sings.\n", "a bird sings\n", "...\n"]
    assert list(benchmark.unknown(texts, {"a dog runs"})) == ["a cat", "A bird sings."]


def test_descriptions_are_read_from_all_five_files(
    benchmark: ModuleType, tmp_path: Path, data_dir: Path
) -> None:
    with gzip.open(data_dir / "multi30k" / "test_2016_flickr.de.gz", "rt", encoding="utf-8") as file:
        of_test = file.readline().strip()
    for i in range(1, 6):
        for language in ("en", "de"):
            with gzip.open(tmp_path / f"train.{i}.{language}.gz", "wt", encoding="utf-8") as file:
                file.write(f"{language} number {i}\n{of_test.upper()} !\n")
    benchmark.write_descriptions(tmp_path, tmp_path)
    assert lines(tmp_path / "described.de") == [f"de number {i}" for i in range(1, 6)]
    assert lines(tmp_path / "described.en")[0] == "en number 1"


def test_pairs_are_the_training_pairs_and_all_translations(benchmark: ModuleType, tmp_path: Path) -> None:
    write_columns(
        tmp_path,
        **{f"train_{name}": [f"{name} {i}" for i in range(2)] for name in ("en", "de", "de1", "de2", "en1")},
        described_en=["den"],
        described_de1=["dde1"],
        described_de=["dde", "none"],
        described_en1=["den1", ""],
    )
    benchmark.write_pairs(tmp_path)
    pairs = list(zip(lines(tmp_path / "more.en"), lines(tmp_path / "more.de"), strict=True))
    train = [("en 0", "de 0"), ("en 1", "de 1")]
    assert pairs == [
        *train * benchmark.TIMES,
        *[("en 0", "de1 0"), ("en 1", "de1 1"), ("en 0", "de2 0"), ("en 1", "de2 1")],
        *[("en1 0", "de 0"), ("en1 1", "de 1")],
        ("den", "dde1"),
        ("§ den1", "dde"),
    ]


def test_translations_of_other_texts_are_refused(benchmark: ModuleType, tmp_path: Path) -> None:
    same = {f"train_{name}": ["text"] for name in ("en", "de", "de1", "de2", "en1")}
    write_columns(tmp_path, **same, described_en=["one"], described_de1=["one", "two"])
    with pytest.raises(SystemExit, match=r"described\.en, described\.de1 have \[1, 2\] lines, not as many"):
        benchmark.write_pairs(tmp_path)
    assert not (tmp_path / "more.en").exists()
