"""Multi30k's pairs with translations added: what is held out is in none of the pairs to learn from."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def benchmark(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("diversified_pairs")


def lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def write_columns(folder: Path, n: int, **columns: list[str]) -> None:
    """Write n training lines of each column: `en 7`, say, or as given."""
    for name in ("en", "de", "de1", "en1"):
        texts = columns.get(name, [f"{name} {i}" for i in range(n)])
        (folder / f"train.{name}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def test_each_pair_comes_with_its_translations_and_none_is_held_out_too(
    benchmark: ModuleType, tmp_path: Path
) -> None:
    n = 1000
    german = [f"de {i // 2}" for i in range(n)]  # every one stands in two pairs
    write_columns(tmp_path, n, de=german)
    benchmark.write_pairs(tmp_path)

    held_out = list(zip(lines(tmp_path / "held_out.en"), lines(tmp_path / "held_out.de"), strict=True))
    more = list(zip(lines(tmp_path / "more.en"), lines(tmp_path / "more.de"), strict=True))
    assert n / benchmark.ONE_IN / 2 < len(held_out) < 2 * n / benchmark.ONE_IN
    assert not {en for en, _ in held_out} & {en for en, _ in more}
    assert not {de for _, de in held_out} & {de for _, de in more}
    third = len(more) // 3
    kept = [int(en.split()[1]) for en, _ in more[:third]]
    assert more[:third] == [(f"en {i}", german[i]) for i in kept]
    assert more[third:-third] == [(f"en {i}", f"de1 {i}") for i in kept]
    assert more[-third:] == [(f"en1 {i}", german[i]) for i in kept]


def test_translations_of_other_texts_are_refused(benchmark: ModuleType, tmp_path: Path) -> None:
    write_columns(tmp_path, 3, de1=["one", "two"])
    with pytest.raises(SystemExit, match=r"have \[3, 3, 2, 3\] lines, not as many"):
        benchmark.write_pairs(tmp_path)
    assert not (tmp_path / "more.en").exists()


def test_the_texts_are_multi30ks_own(benchmark: ModuleType, tmp_path: Path, data_dir: Path) -> None:
    benchmark.write_texts(tmp_path)
    assert {name: len(lines(tmp_path / name)) for name in ("train.en", "train.de", "val.en", "val.de")} == {
        "train.en": 29000,
        "train.de": 29000,
        "val.en": 1014,
        "val.de": 1014,
    }
    assert lines(tmp_path / "train.de")[0].startswith("Zwei junge weiße Männer")
