import gzip
import hashlib
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import clearformer
from clearformer import files
from clearformer.config import resolve
from clearformer.data import Dataset, TextData, cache, identity, prepare
from clearformer.data.text import preparing
from clearformer.data.text.sources import FileSource
from clearformer.data.text.splitting import split_into_pieces
from clearformer.errors import DataError, DiskError, TokenizerError
from clearformer.text import (
    BPETokenizer,
    BPETokenizerSpec,
    ByteTokenizerSpec,
    CharTokenizer,
    CharTokenizerSpec,
    Tokenizer,
    TokenizerConfig,
    WordPieceTokenizerSpec,
)

CHAR, BYTE = CharTokenizerSpec(), ByteTokenizerSpec()
# In character 40 of 50 begins the held-out text, with characters of its own.
TEXT = "a thin text of forty characters, éé, so." + "Zürich 漢\n."
assert len(TEXT) == 50


class Workplace:
    """A text file and a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "text.txt"
        self.cache = folder / "cache"
        self.path.write_bytes(TEXT.encode())

    def prepare(
        self, tokenizer: TokenizerConfig | Tokenizer = CHAR, path: Path | None = None, **settings: float
    ) -> Dataset:
        config = resolve(TextData, {"path": str(path or self.path), "val_fraction": 0.2}, settings)
        return prepare(config, tokenizer, self.cache)

    def left(self) -> list[str]:
        """Every file of the cache."""
        return sorted(str(p.relative_to(self.cache)) for p in self.cache.rglob("*") if p.is_file())


@pytest.fixture
def work(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


def text_of(dataset: Dataset, split: str) -> str:
    return dataset.tokenizer.decode(dataset.splits[split].read(0, len(dataset.splits[split])))


class Separate:
    """A training text, and held-out ones in files of their own; each has a character that no other has."""

    TEXTS: ClassVar = {"train": "one two three\nfour é\n" * 3, "val": "two ß\n", "test": "three 漢\n"}

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self.paths = {name: folder / f"{name}.txt" for name in self.TEXTS}
        for name, text in self.TEXTS.items():
            self.paths[name].write_text(text)
        self.config = TextData(
            path=str(self.paths["train"]),
            val_path=str(self.paths["val"]),
            test_path=str(self.paths["test"]),
        )

    def prepare(self, tokenizer: TokenizerConfig = CHAR) -> Dataset:
        return prepare(self.config, tokenizer, self.cache)


@pytest.mark.parametrize("spec", [CHAR, BYTE, BPETokenizerSpec(vocab_size=260)])
def test_held_out_text_may_come_from_files_of_its_own(tmp_path: Path, spec: TokenizerConfig) -> None:
    separate = Separate(tmp_path)
    dataset = separate.prepare(spec)
    assert {name: text_of(dataset, name) for name in dataset.splits} == separate.TEXTS
    train, val = (str(separate.paths[name]) for name in ("train", "val"))
    assert dataset.manifest["source"]["description"].startswith(f"{train}, val {val}, test ")
    assert dataset.manifest["source"]["n_documents"] == 3


@pytest.mark.parametrize("spec", [CHAR, ByteTokenizerSpec(eos=True), WordPieceTokenizerSpec(vocab_size=90)])
@pytest.mark.parametrize("piece_chars", [1, 3, 8, 1 << 20])
def test_words_are_those_that_python_splits_in_each_document(
    tmp_path: Path, spec: TokenizerConfig, piece_chars: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the tokens, whether they mark where a document ends, and in how many pieces it is read."""
    pieces = partial(split_into_pieces, piece_chars=piece_chars)
    monkeypatch.setattr(preparing, "split_into_pieces", pieces)
    texts = ["alpha beta gamma", " dé jà\u00a0vu \n", "one", "\t two-three  four\n", "don't"]
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "texts" / f"{number}.txt").write_text(text)
    config = TextData(path=str(tmp_path / "texts"), val_fraction=0)
    dataset = prepare(config, spec, tmp_path / "cache")
    assert dataset.splits["train"].n_words == sum(len(text.split()) for text in texts)


def test_a_changed_file_of_held_out_text_is_read_again(tmp_path: Path) -> None:
    separate = Separate(tmp_path)
    before = separate.prepare(BYTE).folder
    assert separate.prepare(BYTE).folder == before
    separate.paths["test"].write_text("three four\n")
    after = separate.prepare(BYTE)
    assert after.folder != before
    assert text_of(after, "test") == "three four\n"


def test_the_same_words_split_elsewhere_are_other_data(tmp_path: Path) -> None:
    """A result of the one would be taken for one of the other."""
    separate = Separate(tmp_path)
    whole = "".join(separate.TEXTS.values())
    known, found = ByteTokenizerSpec(), set()
    for at in (20, 40):
        separate.paths["train"].write_text(whole[:at])
        separate.paths["val"].write_text(whole[at:70])
        separate.paths["test"].write_text(whole[70:])
        found.add(separate.prepare(known).manifest["source"]["sha256"])
    separate.paths["train"].write_text(whole)
    one = prepare(TextData(path=str(separate.paths["train"])), known, separate.cache)
    assert one.manifest["source"]["sha256"] == hashlib.sha256(whole.encode()).hexdigest()
    assert len(found | {one.manifest["source"]["sha256"]}) == 3


def test_what_is_wrong_with_a_file_of_held_out_text_is_said_of_that_file(tmp_path: Path) -> None:
    separate = Separate(tmp_path)
    known = CharTokenizerSpec().train(["one two three four é ß\n"])
    with pytest.raises(TokenizerError, match=r"test\.txt, line 1, column 7: '漢' \(U\+6F22\)"):
        prepare(separate.config, known, separate.cache)
    separate.paths["val"].write_bytes(b"\xef\xbb\xbf")  # a file with a mark of its encoding and no text
    with pytest.raises(DataError, match=r"^data\.val_path=.*val\.txt: there is no text in it$"):
        separate.prepare()
    separate.paths["val"].write_text("a")
    with pytest.raises(
        DataError, match=r"the val split has 1 token .* give a longer text in data\.val_path$"
    ):
        separate.prepare()
    separate.paths["val"].write_text("")
    with pytest.raises(DataError, match=r"^data\.val_path=.*val\.txt is empty"):
        separate.prepare()
    separate.paths["val"].unlink()
    with pytest.raises(DataError, match=r"^data\.val_path=.*val\.txt: there is no such file"):
        separate.prepare()


def test_a_large_text_beside_small_held_out_ones_is_assumed_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(identity, "COMPARED_BYTES", 40)
    separate = Separate(tmp_path)
    separate.prepare(BYTE)
    with caplog.at_level("INFO"):
        separate.prepare(BYTE)
    assert "assumed unchanged" in caplog.text


def no_reading(self: FileSource) -> None:
    raise AssertionError("the text was read again")


@pytest.mark.parametrize("spec", [CHAR, BYTE, BPETokenizerSpec(vocab_size=260)])
def test_every_split_is_its_stretch_of_the_text(work: Workplace, spec: TokenizerConfig) -> None:
    dataset = work.prepare(spec, val_fraction=0.2, test_fraction=0.1)
    stretches = {"train": TEXT[:35], "val": TEXT[35:45], "test": TEXT[45:]}
    assert list(dataset.splits) == list(stretches)
    first_char = 0
    for name, stretch in stretches.items():
        split = dataset.splits[name]
        assert text_of(dataset, name) == stretch
        assert (split.n_chars, split.n_bytes) == (len(stretch), len(stretch.encode()))
        assert split.n_tokens == len(dataset.tokenizer.encode(stretch))
        entry = dataset.manifest["splits"][name]
        assert entry["first_char"] == first_char
        assert (entry["n_tokens"], entry["n_chars"]) == (split.n_tokens, split.n_chars)
        first_char += len(stretch)


def test_the_manifest_says_what_it_was_made_from(work: Workplace) -> None:
    dataset = work.prepare()
    source = dataset.manifest["source"]
    assert source["path"] == str(work.path)
    assert source["sha256"] == hashlib.sha256(TEXT.encode()).hexdigest()
    assert source["compared_by"] == "contents"
    assert (source["n_documents"], source["n_chars"], source["n_bytes"]) == (1, 50, len(TEXT.encode()))
    assert dataset.manifest["tokenizer"] == {
        "kind": "char",
        "vocab_size": len(set(TEXT)),
        "fingerprint": dataset.tokenizer.fingerprint(),
    }
    assert dataset.manifest["val_fraction"] == 0.2
    assert json.loads((dataset.folder / "manifest.json").read_text()) == dataset.manifest


def test_pydocs_manifest_names_the_python(tmp_path: Path) -> None:
    manifest = prepare(TextData(), BYTE, tmp_path).manifest
    assert manifest["source"]["python"] == sys.version.split()[0]


def test_a_character_vocabulary_covers_the_held_out_text(work: Workplace) -> None:
    assert work.prepare(CHAR).tokenizer.vocab_size == len(set(TEXT)) > len(set(TEXT[:40]))


def test_merges_are_learned_from_the_training_split_alone(work: Workplace) -> None:
    work.path.write_text("ab " * 40 + "xy " * 10)
    tokenizer = work.prepare(BPETokenizerSpec(vocab_size=300)).tokenizer
    assert isinstance(tokenizer, BPETokenizer)
    assert tokenizer.id_of("ab") is not None
    assert tokenizer.id_of("xy") is None


def test_a_long_text_is_sampled_evenly_for_merges(work: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps({"text": f"<{'abcd'[i // 100]}{i % 2}> "}) for i in range(400)]
    work.path = work.path.with_suffix(".jsonl")
    work.path.write_text("\n".join(lines))
    seen: list[str] = []
    train = BPETokenizerSpec.train
    monkeypatch.setattr(
        BPETokenizerSpec,
        "train",
        lambda self, texts, specials: seen.extend(texts) or train(self, seen, specials),
    )
    monkeypatch.setattr("clearformer.data.text.preparing.TOKENIZER_CHARS", 320)
    work.prepare(BPETokenizerSpec(), val_fraction=0)
    assert [sum(letter in text for text in seen) for letter in "abcd"] == [16, 16, 16, 16]


def test_documents_are_wrapped_where_the_tokenizer_can(work: Workplace) -> None:
    path = work.path.with_suffix(".jsonl")
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("abcde", "fgh", "ij")))
    marked = CharTokenizerSpec(bos=True, eos=True)
    dataset = work.prepare(marked, path, val_fraction=0.3)
    label = dataset.tokenizer.token_label
    spelled = {n: "".join(map(label, s.read(0, len(s)).tolist())) for n, s in dataset.splits.items()}
    assert spelled == {"train": "<bos>abcde<eos><bos>fg", "val": "h<eos><bos>ij<eos>"}
    assert dataset.splits["train"].n_chars == 7


def test_gpt2s_one_mark_stands_once_between_documents(work: Workplace, data_dir: Path) -> None:
    from clearformer.text import GPT2TokenizerSpec

    path = work.path.with_suffix(".jsonl")
    path.write_text('{"text": "a b"}\n{"text": "c"}\n')
    dataset = work.prepare(GPT2TokenizerSpec(path=str(data_dir / "gpt2-bpe")), path, val_fraction=0)
    end = dataset.tokenizer.eos_id
    assert [token == end for token in dataset.splits["train"].read(0, 5)] == [False, False, True, False, True]


def test_gzip_gives_the_tokens_of_the_plain_text(work: Workplace) -> None:
    packed = work.path.with_name("text.txt.gz")
    packed.write_bytes(gzip.compress(TEXT.encode()))
    plain, unpacked = work.prepare(), work.prepare(path=packed)
    assert plain.manifest["splits"] == unpacked.manifest["splits"]
    assert plain.manifest["source"]["sha256"] == unpacked.manifest["source"]["sha256"]


def test_what_is_prepared_is_opened_without_reading_the_text(
    work: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = work.prepare()
    monkeypatch.setattr(FileSource, "documents", no_reading)
    again = work.prepare()
    assert (again.folder, again.manifest) == (first.folder, first.manifest)
    assert text_of(again, "val") == TEXT[40:]
    # A run that resumes brings its tokenizer, made, instead of a spec.
    assert work.prepare(first.tokenizer).folder == first.folder


def test_another_text_tokenizer_or_split_is_prepared_anew(work: Workplace) -> None:
    folders = [work.prepare().folder, work.prepare(BYTE).folder, work.prepare(val_fraction=0.3).folder]
    work.path.write_bytes(TEXT.upper().encode())
    changed = work.prepare()
    assert text_of(changed, "val") == TEXT.upper()[40:]
    folders.append(changed.folder)
    assert len(set(folders)) == 4


def rewritten_unseen(path: Path, content: bytes) -> None:
    """Other contents, of the same size and time of change."""
    status = path.stat()
    assert status.st_size == len(content)
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_another_text_of_the_same_size_and_time_is_prepared_anew(work: Workplace) -> None:
    work.prepare()
    other = TEXT.replace("thin", "THIN")
    rewritten_unseen(work.path, other.encode())
    assert text_of(work.prepare(), "train") == other[:40]


def test_where_contents_are_not_compared_one_line_says_so(
    work: Workplace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="clearformer")
    monkeypatch.setattr(identity, "COMPARED_BYTES", 10)
    work.prepare()
    assert not caplog.records
    rewritten_unseen(work.path, TEXT.replace("thin", "THIN").encode())
    assert text_of(work.prepare(), "train") == TEXT[:40]
    [record] = caplog.records
    assert record.message.startswith(f"{work.path}: assumed unchanged: sizes and modification times")
    work.path.touch()
    assert "THIN" in text_of(work.prepare(CHAR), "train")


def test_a_text_that_was_only_touched_is_opened_and_not_read(
    work: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = work.prepare()
    os.utime(work.path, ns=(1, 1))
    monkeypatch.setattr(FileSource, "documents", no_reading)
    assert work.prepare().folder == first.folder


@pytest.mark.parametrize(
    ("spec", "text", "settings", "n_tokens"),
    [
        (WordPieceTokenizerSpec(vocab_size=90), TEXT[:40] + " \n" * 5, {}, "0 tokens (10 characters)"),
        (CHAR, "abcdefghij", {"val_fraction": 0.1}, "1 token (1 character)"),
        (CHAR, "abcdefghij", {"val_fraction": 0.2, "test_fraction": 0.1}, "1 token (1 character)"),
    ],
)
def test_a_split_with_nothing_to_predict_is_refused_at_once(
    work: Workplace, spec: TokenizerConfig, text: str, settings: dict, n_tokens: str
) -> None:
    work.path.write_text(text)
    name = "test" if "test_fraction" in settings else "val"
    with pytest.raises(DataError) as caught:
        work.prepare(spec, **settings)
    assert str(caught.value).startswith(f"{work.path}: the {name} split has {n_tokens} but needs 2")
    assert f"data.{name}_fraction" in str(caught.value)
    assert not [file for file in work.left() if file.startswith("prepared")]


def test_two_tokens_are_enough(work: Workplace) -> None:
    work.path.write_text("abcdefghij")
    assert len(work.prepare(val_fraction=0.2).splits["val"]) == 2


@pytest.mark.parametrize("damage", ["shard cut short", "shard gone", "manifest gone", "manifest damaged"])
def test_damaged_tokens_are_said_and_made_again(
    work: Workplace, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    first = work.prepare()
    name = "val-00000.bin" if damage.startswith("shard") else "manifest.json"
    if damage.endswith("gone"):
        (first.folder / name).unlink()
    else:
        (first.folder / name).write_bytes((first.folder / name).read_bytes()[:-2])
    again = work.prepare()
    assert again.manifest == first.manifest
    assert text_of(again, "val") == TEXT[40:]
    [record] = caplog.records
    assert name in record.message
    assert "preparing the text again" in record.message
    assert not [file for file in work.left() if "unfinished" in file]


def test_changed_tokens_are_found_by_a_check(work: Workplace, caplog: pytest.LogCaptureFixture) -> None:
    shard = work.prepare().folder / "val-00000.bin"
    whole = shard.read_bytes()
    shard.write_bytes(whole[::-1])
    work.prepare()
    assert shard.read_bytes() == whole[::-1]
    assert not caplog.records
    prepare(TextData(path=str(work.path), val_fraction=0.2), CHAR, work.cache, check=True)
    assert shard.read_bytes() == whole
    assert "SHA-256" in caplog.text


def test_a_damaged_tokenizer_is_said_and_trained_again(
    work: Workplace, caplog: pytest.LogCaptureFixture
) -> None:
    first = work.prepare()
    [path] = (work.cache / "tokenizers").iterdir()
    path.write_text("{}")
    assert work.prepare().tokenizer.fingerprint() == first.tokenizer.fingerprint()
    assert "training the tokenizer again" in caplog.text


def test_a_tokenizer_that_lacks_a_character_is_refused(work: Workplace) -> None:
    tokenizer = CHAR.train(["Only this."])
    with pytest.raises(TokenizerError, match=r"text.txt, line 1, column 1: 'a' \(U\+0061\)"):
        work.prepare(tokenizer)
    assert work.left() == []


def test_an_unknown_character_is_named_by_its_line_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "split_into_pieces", partial(split_into_pieces, piece_chars=7))
    tokenizer = CHAR.train(["abc \n"])
    for name, content in {
        "a.txt": "abc\n" * 100,
        "b.jsonl": '{"text": "abc"}\n' * 3,
        "c.txt": "a b c\n" * 30 + "abXc\n",
    }.items():
        (tmp_path / name).write_text(content)

    def refusal() -> str:
        with pytest.raises(TokenizerError) as caught:
            prepare(TextData(path=str(tmp_path)), tokenizer, tmp_path / ".cache")
        return str(caught.value)

    assert refusal().startswith(f"{tmp_path}/c.txt, line 31, column 3: 'X' (U+0058) is not among")
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write('{"text": "ab\\n\\nY"}\n')
    assert refusal().startswith(f"{tmp_path}/b.jsonl, line 4: 'Y' (U+0059) is not among")


def test_a_text_without_characters_is_refused(work: Workplace) -> None:
    path = work.path.with_suffix(".jsonl")
    path.write_text('{"text": ""}\n\n')
    with pytest.raises(DataError, match="there is no text in it"):
        work.prepare(path=path)


def test_a_text_that_changes_while_a_tokenizer_is_trained_leaves_none(
    work: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = CharTokenizerSpec.train

    def change_and_train(self: CharTokenizerSpec, *arguments: Any, **options: Any) -> Tokenizer:
        work.path.write_text("xyz " * 20)
        return train(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(CharTokenizerSpec, "train", change_and_train)
        with pytest.raises(DataError, match="changed while it was being read"):
            work.prepare()
    work.path.write_bytes(TEXT.encode())
    assert text_of(work.prepare(), "val") == TEXT[40:]


def test_line_ends_of_windows_are_counted_across_blocks(work: Workplace) -> None:
    work.path.write_bytes(b"a" * (2**20 - 1) + b"\r\n" + b"b" * 50 + b"\r")
    assert work.prepare().manifest["source"]["n_windows_line_ends"] == 1


def test_a_text_that_changes_while_it_is_read_is_refused(
    work: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = CharTokenizer.encode

    def append_and_encode(self: CharTokenizer, text: str) -> np.ndarray:
        with work.path.open("a") as file:
            file.write(".")
        return encode(self, text)

    monkeypatch.setattr(CharTokenizer, "encode", append_and_encode)
    with pytest.raises(DataError, match="changed while it was being read"):
        work.prepare()
    assert not [file for file in work.left() if not file.startswith("tokenizers")]


@pytest.mark.parametrize("synced_before", range(9))
def test_a_full_disk_leaves_nothing_half_made(
    work: Workplace, monkeypatch: pytest.MonkeyPatch, synced_before: int
) -> None:
    n_synced = 0

    def sync(descriptor: int) -> None:
        nonlocal n_synced
        if n_synced == synced_before:
            raise OSError(28, "No space left on device")
        n_synced += 1

    for module in ("files", "data.shards"):
        monkeypatch.setattr(f"clearformer.{module}.sync", sync)
    with pytest.raises(DiskError, match="No space left on device; free some space"):
        work.prepare()
    left = work.left()
    before_the_tokenizer_is_there = 3  # two folders for it, and itself
    assert (
        left == []
        if synced_before < before_the_tokenizer_is_there
        else [Path(file).parent.name for file in left] == ["tokenizers"]
    )
    monkeypatch.undo()
    assert text_of(work.prepare(), "val") == TEXT[40:]


def test_a_cache_that_cannot_be_written_is_named(work: Workplace) -> None:
    work.cache.write_text("a file where the folder should be")
    with pytest.raises(
        DiskError, match=r"cache.*cannot be written.*choose another place with \$CLEARFORMER_CACHE$"
    ):
        work.prepare()


def test_what_another_process_made_meanwhile_is_used(
    work: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = files.sync_folder
    other: list[Dataset] = []

    def other_process_first(folder: Path) -> None:
        monkeypatch.setattr(files, "sync_folder", write)
        other.append(work.prepare())

    monkeypatch.setattr(files, "sync_folder", other_process_first)
    ours = work.prepare()
    assert ours.manifest == other[0].manifest
    assert text_of(ours, "train") == text_of(other[0], "train") == TEXT[:40]
    assert len(list((work.cache / "prepared").iterdir())) == 1


def test_processes_that_prepare_at_once_all_get_it(work: Workplace) -> None:
    work.path.write_text(TEXT * 2000)
    script = """
import hashlib, sys
from pathlib import Path
from clearformer.data import TextData, prepare
from clearformer.text import CharTokenizerSpec
print("ready", flush=True)
sys.stdin.readline()
train = prepare(TextData(path=sys.argv[1]), CharTokenizerSpec(), Path(sys.argv[2])).splits["train"]
print(hashlib.sha256(train.read(0, len(train)).tobytes()).hexdigest())
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(work.path), str(work.cache)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(clearformer.__file__).parents[1])},
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    train = prepare(TextData(path=str(work.path)), CHAR, work.cache).splits["train"]
    assert outputs == [hashlib.sha256(train.read(0, len(train)).tobytes()).hexdigest() + "\n"] * 2
    assert len(list((work.cache / "prepared").iterdir())) == 1


def test_what_a_killed_process_left_is_swept_after_a_day(work: Workplace) -> None:
    prepared = work.cache / "prepared"
    fresh, old = prepared / f"{files.UNFINISHED}fresh", prepared / f"{files.UNFINISHED}old"
    for folder in (fresh, old):
        folder.mkdir(parents=True)
        (folder / "train-00000.bin").touch()
    os.utime(old, (0, 0))
    work.prepare()
    assert fresh.exists()
    assert not old.exists()


def test_progress_is_told_to_the_end(work: Workplace) -> None:
    told: dict[str, tuple[int, int | None]] = {}
    prepare(
        TextData(path=str(work.path)),
        CHAR,
        work.cache,
        progress=lambda doing, done, total: told.update({doing: (done, total)}),
    )
    assert told == {"reading": (50, None), "training the tokenizer": (50, 50), "encoding": (50, 50)}


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "CLEARFORMER_CACHE"):
        monkeypatch.delenv(name, raising=False)
    assert cache.cache_folder() == tmp_path / ".cache" / "clearformer"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_folder() == tmp_path / "xdg" / "clearformer"
    monkeypatch.setenv("CLEARFORMER_CACHE", str(tmp_path / "own"))
    assert cache.cache_folder() == tmp_path / "own"
    assert prepare(TextData(), BYTE).folder.is_relative_to(tmp_path / "own")


def test_tiny_shakespeare_is_the_lectures(data_dir: Path, tmp_path: Path) -> None:
    dataset = prepare(TextData(name="shakespeare"), CHAR, tmp_path)
    assert {name: len(split) for name, split in dataset.splits.items()} == {
        "train": 1_003_854,
        "val": 111_540,
    }
    assert dataset.tokenizer.vocab_size == 65
    assert dataset.manifest["dtype"] == "<u2"
    text = (data_dir / "shakespeare" / "input.txt").read_bytes().decode()
    assert text_of(dataset, "train") == text[: int(len(text) * 0.9)]
    assert text_of(dataset, "val") == text[int(len(text) * 0.9) :]


@pytest.mark.parametrize(
    ("texts", "settings", "said"),
    [
        (["one.", "two.", "three."], {}, "2 documents run into the next one, with nothing between them"),
        (["one.", "two.\n", "three."], {}, "1 document runs into the next one"),
        (["one.\n", "two.\n", "three."], {}, ""),
        (["one.", "two."], {"eos": True}, ""),
    ],
)
def test_documents_that_run_into_each_other_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, texts: list[str], settings: dict[str, Any], said: str
) -> None:
    """When they are prepared, and when they are found prepared."""
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for _ in range(2):
        with caplog.at_level("INFO", "clearformer"):
            prepare(
                TextData(path=str(file), val_fraction=0), CharTokenizerSpec(**settings), tmp_path / "cache"
            )
        told = [message for message in caplog.messages if "run" in message and "next one" in message]
        assert len(told) == bool(said)
        assert not said or said in told[0]
        caplog.clear()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", "one\r\ntwo\r\n", "2 lines end in \\r\\n, as on Windows"),
        ("a.txt", "one\ntwo\n", ""),
        ("a.json", '[{"text": "one"}]', "read as a text, brackets and all"),
    ],
)
def test_what_its_owner_may_not_expect_in_a_text_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: str, said: str
) -> None:
    (tmp_path / name).write_bytes(content.encode())
    with caplog.at_level("INFO", "clearformer"):
        prepare(TextData(path=str(tmp_path / name), val_fraction=0), CharTokenizerSpec(), tmp_path / "cache")
    assert said in " ".join(caplog.messages)
    assert bool(said) == any("Windows" in each or "brackets" in each for each in caplog.messages)
