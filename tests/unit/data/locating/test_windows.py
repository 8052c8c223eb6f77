"""Windows of prepared texts, found again in their files: byte by byte, or to whole words."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from clearformer.data import BUILT_IN, Dataset, TextData, prepare
from clearformer.data.locating import windows as module
from clearformer.data.locating.places import Example, Span
from clearformer.data.locating.windows import bytes_of_tokens, find_windows, words_of
from clearformer.errors import DataError
from clearformer.text import (
    BPETokenizerSpec,
    ByteTokenizerSpec,
    CharTokenizerSpec,
    UnigramTokenizerSpec,
    WordPieceTokenizerSpec,
)
from clearformer.text.kinds.byte import ByteTokenizer

SENTENCE = "Déjà vu {}: the Quick brown 日本 fox, and {} lazy\tdogs;\n"
EXACT = {
    "char": CharTokenizerSpec(bos=True, eos=True),
    "byte": ByteTokenizerSpec(eos=True),
    "bpe": BPETokenizerSpec(vocab_size=300, bos=True),
    "unigram": UnigramTokenizerSpec(vocab_size=300),
}
LENGTH = 17


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three documents: a plain file, an empty one, a packed one; and a byte order mark before each text."""
    folder = tmp_path / "texts"
    folder.mkdir()
    numbered = "".join(SENTENCE.format(i, i * i) for i in range(9))
    (folder / "a.txt").write_text("\ufeff" + numbered)
    (folder / "b.txt").write_text("")
    (folder / "c.txt.gz").write_bytes(gzip.compress(numbered.upper().encode("utf-8-sig")))
    return folder


def contents(span: Span) -> bytes:
    path = Path(span.file)
    whole = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return whole[span.start : span.stop]


def found_in(config: TextData, dataset: Dataset) -> list[tuple[tuple[int, int], Example]]:
    n = len(dataset.splits["train"])
    starts = [*range(0, n - LENGTH, 5), n - LENGTH]
    windows = [(start, start + LENGTH) for start in np.random.default_rng(3).permutation(starts).tolist()]
    return list(zip(windows, find_windows(config, dataset, windows), strict=True))


@pytest.mark.parametrize("at_once", [7, 1 << 20])
@pytest.mark.parametrize("kind", EXACT)
def test_the_bytes_of_a_window_are_those_of_its_tokens(
    kind: str, at_once: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_AT_ONCE", at_once)
    config = TextData(path=str(folder), val_fraction=0.2)
    dataset = prepare(config, EXACT[kind], tmp_path / "cache", shard_tokens=101)
    tokenizer, files = dataset.tokenizer, set()
    for window, example in found_in(config, dataset):
        tokens = dataset.splits["train"].read(*window)
        raw = b"".join(tokenizer.token_bytes(token) for token in tokens.tolist())
        assert b"".join(map(contents, example.spans)) == raw
        assert example.text == tokenizer.decode(tokens)
        files.update(Path(span.file).name for span in example.spans)
    assert files == {"a.txt", "c.txt.gz"}


@pytest.mark.parametrize("kind", [*EXACT, "wordpiece"])
def test_windows_of_what_was_held_out_stand_behind_the_training_text(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    config = TextData(path=str(folder), val_fraction=0.3, test_fraction=0.2)
    spec = EXACT.get(kind, WordPieceTokenizerSpec(vocab_size=110))
    dataset = prepare(config, spec, tmp_path / "cache")
    tokenizer, furthest = dataset.tokenizer, 0
    for name in ("val", "test"):
        split = dataset.splits[name]
        windows = [(start, start + LENGTH) for start in range(0, len(split) - LENGTH, 11)]
        for window, example in zip(windows, find_windows(config, dataset, windows, name), strict=True):
            tokens = split.read(*window)
            raw = b"".join(map(contents, example.spans))
            if kind == "wordpiece":  # to whole words
                assert tokenizer.decode(tokens).split()[1] in tokenizer.decode(tokenizer.encode(raw.decode()))
            else:
                assert raw == b"".join(tokenizer.token_bytes(token) for token in tokens.tolist())
            start = example.spans[0].start + (10_000 if example.spans[0].file.endswith(".gz") else 0)
            assert start >= furthest  # windows go on from split to split
            furthest = start


@pytest.mark.parametrize("kind", ["byte", "wordpiece"])
def test_windows_of_held_out_files_are_found_in_them(kind: str, tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.txt" for name in ("train", "val", "test")}
    for number, file in enumerate(files.values(), 1):
        file.write_text("".join(SENTENCE.format(i, number) for i in range(4 * number)))
    config = TextData(**{"path" if name == "train" else f"{name}_path": str(f) for name, f in files.items()})
    dataset = prepare(config, EXACT.get(kind, WordPieceTokenizerSpec(vocab_size=110)), tmp_path / "cache")
    for name, split in dataset.splits.items():
        window = (len(split) // 2, len(split) // 2 + LENGTH)
        [example] = find_windows(config, dataset, [window], name)
        [span] = example.spans
        assert span.file == str(files[name])
        found, wanted = contents(span).decode(), dataset.tokenizer.decode(split.read(*window))
        assert found == wanted if kind == "byte" else wanted.split()[1] in found.lower()


def test_the_space_that_a_tokenizer_opens_with_is_in_no_file() -> None:
    """As those of SentencePiece do: the first token is " a", and the text "a"."""

    class Opening(ByteTokenizer):
        opens_with_space = True

        def encode(self, text: str) -> np.ndarray:
            return super().encode(f" {text}")

    tokenizer = Opening()
    ids = tokenizer.encode("ab é")
    assert bytes_of_tokens(tokenizer, "ab é", ids) == [(0, 0), (0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]


def test_where_tokens_do_not_hold_the_text_a_window_is_found_to_whole_words(
    folder: Path, tmp_path: Path
) -> None:
    config = TextData(path=str(folder), val_fraction=0.2)
    dataset = prepare(config, WordPieceTokenizerSpec(vocab_size=110), tmp_path / "cache")
    tokenizer = dataset.tokenizer
    rows = found_in(config, dataset)
    sizes = []
    for window, example in rows:
        raw = b"".join(map(contents, example.spans)).decode()
        tokens = dataset.splits["train"].read(*window).tolist()
        again = tokenizer.encode(raw).tolist()
        places = [i for i in range(len(again)) if again[i : i + LENGTH] == tokens]
        assert places, (raw, example.text)  # the bytes hold the window, and at most the rest of two words
        sizes.append(len(again))
    assert max(sizes) <= LENGTH + 2 * 12


def test_an_unknown_character_is_found_too(tmp_path: Path) -> None:
    """Its token stands for no bytes, so that counting them would lose the place."""
    (tmp_path / "known.txt").write_text("abc " * 9)
    tokenizer = CharTokenizerSpec(unk=True).train(["abc "])
    (tmp_path / "text.txt").write_text("abc ü cab " * 30)
    config = TextData(path=str(tmp_path / "text.txt"))
    dataset = prepare(config, tokenizer, tmp_path / "cache")
    start = 10 * 20 + 6  # behind 20 of them: at "cab "
    [example] = find_windows(config, dataset, [(start, start + 3)])
    assert b"".join(map(contents, example.spans)) == b" cab " or contents(example.spans[0]).strip() == b"cab"


def test_a_document_of_jsonl_is_found_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": f'a\n"{n}" line'}) + "\n\n" for n in range(30)))
    config = TextData(path=str(path))
    dataset = prepare(config, ByteTokenizerSpec(), tmp_path / "cache")
    size = len('a\n"0" line')
    [example] = find_windows(config, dataset, [(3 * size + 2, 5 * size - 2)])
    assert [json.loads(contents(span))["text"] for span in example.spans] == ['a\n"3" line', 'a\n"4" line']


def test_a_built_in_text_names_its_topic(tmp_path: Path) -> None:
    config = TextData()
    dataset = prepare(config, ByteTokenizerSpec(), tmp_path / "cache")
    [example] = find_windows(config, dataset, [(100_000, 100_040)])
    [span] = example.spans
    assert "topic '" in span.file
    topics = {origin.name: origin for origin in BUILT_IN["pydoc"].open().origins()}
    assert span.stop <= topics[span.file].n_bytes
    assert span.stop - span.start == 40


def test_a_text_that_has_become_shorter_is_told(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("abcdefgh " * 40)
    config = TextData(path=str(path))
    dataset = prepare(config, ByteTokenizerSpec(), tmp_path / "cache")
    path.write_text("abc")
    with pytest.raises(DataError, match=": shorter than when it was prepared; restore the original"):
        find_windows(config, dataset, [(100, 120)])


@pytest.mark.parametrize("now", ["the quick", "brown foxes and others jump " * 40])
def test_a_text_of_another_length_is_told_where_tokens_do_not_hold_the_text(tmp_path: Path, now: str) -> None:
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog\n" * 20)
    config = TextData(path=str(path))
    dataset = prepare(config, WordPieceTokenizerSpec(vocab_size=90), tmp_path / "cache")
    path.write_text(now)
    n = len(dataset.splits["train"])
    with pytest.raises(DataError, match=r"text\.txt: the text has changed since it was prepared$"):
        find_windows(config, dataset, [(n // 2, n // 2 + 3)])


def test_words_are_all_of_a_text() -> None:
    text = "  a b\n\nc\t d  "
    assert words_of(text) == ["  a", " b", "\n\nc", "\t d", "  "]
