import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clearformer.config import resolve
from clearformer.data import PairDataset, PairsData, ShardError, prepare_data, prepare_pairs
from clearformer.data.pairs import preparing as pair_preparing
from clearformer.data.pairs.files import check_pair_contents, open_pair_splits, read_pair_manifest
from clearformer.data.pairs.sources import FilePairs
from clearformer.errors import DataError, DiskError, TokenizerError
from clearformer.text import (
    BPETokenizerSpec,
    ByteTokenizerSpec,
    CharTokenizerSpec,
    Tokenizer,
    TokenizerConfig,
)

CHAR, BYTE, BPE = CharTokenizerSpec(), ByteTokenizerSpec(), BPETokenizerSpec(vocab_size=300)
SOURCES = ["a cat", "two cats", "three  dogs and a cat", "no", "é è"]
TARGETS = ["un chat", "deux chats", "trois chiens", "non, ça va", " oui\u2028oui"]
VAL = [("zzz", "www"), ("b", "un chat")]


class Workplace:
    """Files of pairs and a cache of their own."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self.source, self.target, self.val = folder / "a.en", folder / "b.fr", folder / "val.tsv"
        self.write(SOURCES, TARGETS)
        self.val.write_text("".join(f"{source}\t{target}\n" for source, target in VAL))

    def write(self, sources: list[str], targets: list[str]) -> None:
        self.source.write_bytes("".join(f"{line}\n" for line in sources).encode())
        self.target.write_bytes("".join(f"{line}\n" for line in targets).encode())

    def prepare(
        self,
        tokenizer: TokenizerConfig | Tokenizer = CHAR,
        max_tokens: int | None = None,
        check: bool = False,
        **settings: Any,
    ) -> PairDataset:
        files = {"source": str(self.source), "target": str(self.target), "val_path": str(self.val)}
        config = resolve(PairsData, files, settings)
        return prepare_pairs(config, tokenizer, max_tokens, self.cache, check=check)

    def left(self) -> list[str]:
        """Every file of the cache."""
        return sorted(str(p.relative_to(self.cache)) for p in self.cache.rglob("*") if p.is_file())


@pytest.fixture
def work(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


def no_reading(self: FilePairs) -> None:
    raise AssertionError("the pairs were read again")


@pytest.mark.parametrize("spec", [CHAR, BYTE, BPE])
def test_tokens_and_lines_are_those_of_the_files(work: Workplace, spec: TokenizerConfig) -> None:
    dataset = work.prepare(spec)
    train = dataset.splits["train"]
    assert list(dataset.splits) == ["train", "val"]
    assert len(train) == 5
    assert (train.source_texts, train.target_texts) == (SOURCES, TARGETS)
    for index, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        for row, text in ((train.source(index), source), (train.target(index), target)):
            assert row.dtype == np.int64
            np.testing.assert_array_equal(row, dataset.tokenizer.encode(text))
    assert [int(n) for n in train.source_lengths] == [len(train.source(i)) for i in range(5)]
    assert [int(n) for n in train.target_lengths] == [len(train.target(i)) for i in range(5)]
    assert dataset.splits["val"].target_texts == ["www", "un chat"]


def test_the_tokenizer_is_one_for_both_with_what_translating_needs(work: Workplace) -> None:
    tokenizer = work.prepare(CHAR).tokenizer
    assert None not in (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    characters = set("".join([*SOURCES, *TARGETS, *map("".join, VAL)]))
    assert tokenizer.vocab_size == len(characters) + len(tokenizer.specials)


def test_merges_are_learned_from_both_sides_of_the_training_pairs_alone(work: Workplace) -> None:
    work.write(["ab " * 40] * 3, ["xy " * 40] * 3)
    work.val.write_text("uv uv uv uv\tuv uv uv uv\n")
    tokenizer = work.prepare(BPE).tokenizer
    assert None not in (tokenizer.id_of("ab"), tokenizer.id_of("xy"))
    assert tokenizer.id_of("uv") is None


def test_a_very_long_text_is_sampled_evenly_for_merges(
    work: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.write([f"{'abcd'[i // 25]}{i % 2}" for i in range(100)], [f"t{i:02}" for i in range(100)])
    seen: list[str] = []
    train = BPETokenizerSpec.train
    monkeypatch.setattr(
        BPETokenizerSpec,
        "train",
        lambda self, texts, specials: seen.extend(texts) or train(self, seen, specials),
    )
    monkeypatch.setattr(pair_preparing, "TOKENIZER_CHARS", 100)
    work.prepare(BPE)
    assert len(seen) == 40
    assert [sum(letter in text for text in seen) for letter in "abcd"] == [5, 5, 5, 5]


def test_languages_are_those_asked_for_also_of_pairs_that_were_prepared_before(work: Workplace) -> None:
    first, second = work.prepare(languages="en-fr"), work.prepare(languages="en-de")
    assert first.folder == second.folder
    assert second.manifest["source"]["languages"] == ("en", "de")
    assert work.prepare().manifest["source"]["languages"] is None


def test_the_manifest_says_what_it_was_made_from(work: Workplace) -> None:
    dataset = work.prepare(languages="en-fr")
    source, train = dataset.manifest["source"], dataset.manifest["splits"]["train"]
    content = "train\n" + "".join(f"{s}\t{t}\n" for s, t in zip(SOURCES, TARGETS, strict=True))
    content += "val\n" + "".join(f"{s}\t{t}\n" for s, t in VAL)
    assert source["sha256"] == hashlib.sha256(content.encode()).hexdigest()
    assert source["description"] == f"{work.source} and {work.target}"
    assert (source["n_pairs"], list(source["languages"])) == (7, ["en", "fr"])
    assert (train["n_pairs"], train["n_left_out"]) == (5, 0)
    assert train["source"] == {"n_tokens": 5 + 8 + 21 + 2 + 3, "longest": 21, "n_chars": 39}
    assert dataset.manifest["tokenizer"]["fingerprint"] == dataset.tokenizer.fingerprint()
    assert json.loads((dataset.folder / "manifest.json").read_text()) == json.loads(
        json.dumps(dataset.manifest)
    )


def test_what_is_prepared_is_opened_without_reading_the_files(
    work: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = work.prepare(BPE)
    monkeypatch.setattr(FilePairs, "read", no_reading)
    again = work.prepare(BPE)
    assert (again.folder, again.manifest) == (first.folder, first.manifest)
    assert again.splits["train"].target_texts == TARGETS
    assert work.prepare(first.tokenizer).folder == first.folder


def test_other_pairs_splits_lengths_or_tokens_are_prepared_anew(work: Workplace) -> None:
    folders = [work.prepare().folder, work.prepare(BYTE).folder, work.prepare(max_length=8).folder]
    folders.append(work.prepare(test_fraction=0.4).folder)
    work.write(TARGETS, SOURCES)
    changed = work.prepare()
    assert changed.splits["train"].source_texts == TARGETS
    assert len({*folders, changed.folder}) == 5


def test_long_pairs_are_left_out_of_training_and_validation_and_counted(work: Workplace) -> None:
    work.val.write_text("s\tt\nlonger than eight\tt\nt\ts\n")
    splits = work.prepare(max_length=8).splits
    assert splits["train"].source_texts == ["a cat", "é è"]
    assert splits["train"].place(0) == f"{work.source} and {work.target}, line 1"
    assert splits["val"].target_texts == ["t", "s"]
    assert splits["val"].place(1) == f"{work.val}, line 3"
    manifest = work.prepare(max_length=8).manifest
    assert [entry["n_left_out"] for entry in manifest["splits"].values()] == [3, 1]


def test_what_a_val_file_shares_with_training_is_told_and_kept(
    work: Workplace, caplog: pytest.LogCaptureFixture
) -> None:
    work.val.write_text(" a  cat\tzzz\nnew\tdeux chats \nun chat\ta cat\n")
    caplog.set_level("INFO", "clearformer")
    dataset = work.prepare()
    assert len(dataset.splits["val"]) == 3
    assert dataset.manifest["splits"]["val"]["n_also_in_train"] == 2
    told = ["val: 2 of 3 pairs with a source or translation that is also in training"]
    assert list(dataset.notes) == [record.message for record in caplog.records] == told
    caplog.clear()
    work.prepare()
    assert [record.message for record in caplog.records] == told  # also of what is in the cache


def test_training_pairs_with_a_held_out_translation_are_told(work: Workplace) -> None:
    work.write([f"s{i}" for i in range(400)], [f"t{i // 2}" for i in range(400)])
    config = PairsData(source=str(work.source), target=str(work.target), val_fraction=0.1)
    dataset = prepare_pairs(config, CHAR, cache_dir=work.cache)
    n_left_out = 400 - sum(map(len, dataset.splits.values()))
    assert n_left_out > 20
    assert list(dataset.notes) == [f"train: {n_left_out} pairs left out: same translation as a held-out pair"]


def test_no_test_pair_is_left_out(work: Workplace) -> None:
    dataset = work.prepare(max_length=8, test_fraction=0.6)
    assert len(dataset.splits["test"]) == 3
    assert max(map(len, dataset.splits["test"].source_texts + dataset.splits["test"].target_texts)) > 8


def test_a_limit_that_leaves_nothing_is_refused(work: Workplace) -> None:
    with pytest.raises(
        DataError,
        match=r"data.max_length=6 leaves no pair in the train split: its shortest has 7 tokens; set it, and",
    ):
        work.prepare(max_length=6)


def test_a_side_longer_than_the_positions_is_refused_with_its_line(work: Workplace) -> None:
    assert work.prepare(max_tokens=22)
    with pytest.raises(DataError) as caught:
        work.prepare(max_tokens=21)
    assert str(caught.value) == (
        f"{work.source} and {work.target}, line 3: the source has 21 tokens and an end token, but "
        "model.max_seq_len=21: set model.max_seq_len=22 or more, or leave such pairs out with data.max_length=20"
    )
    assert work.prepare(max_tokens=21, max_length=20)
    with pytest.raises(DataError, match=r"line 2: the target has 10 tokens .* \(and 2 more pairs\)"):
        work.prepare(max_tokens=10)
    work.val.write_text("s\tthis is a long target, longer than all\n")
    with pytest.raises(DataError, match=r"val.tsv, line 1: the target has 38 tokens"):
        work.prepare(max_tokens=22)


def test_a_test_pair_that_is_too_long_is_not_offered_to_be_left_out(work: Workplace) -> None:
    test = work.prepare(test_fraction=0.6).splits["test"]
    with pytest.raises(DataError, match=r"set model.max_seq_len=\d+ or more$"):
        pair_preparing.require_room(test, 2)


def test_where_every_pair_is_too_long_none_is_offered_to_be_left_out(work: Workplace) -> None:
    with pytest.raises(DataError, match=r"set model.max_seq_len=\d+ or more$"):
        work.prepare(max_tokens=2)


def test_settings_that_a_trained_model_cannot_change_are_not_offered(work: Workplace) -> None:
    tokenizer = work.prepare().tokenizer
    data = PairsData(source=str(work.source), target=str(work.target), val_fraction=0)
    with pytest.raises(DataError, match=r"model.max_seq_len=21: shorten it, or remove the pair$"):
        prepare_data(data, tokenizer, max_tokens=21)
    with pytest.raises(DataError, match=r"set model.max_seq_len=22 or more"):
        prepare_data(data, ByteTokenizerSpec(), max_tokens=21)


@pytest.mark.parametrize(
    "damage", ["array cut short", "array empty", "array gone", "manifest gone", "manifest damaged"]
)
def test_damaged_arrays_are_said_and_made_again(
    work: Workplace, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    first = work.prepare()
    name = "val-target.npy" if damage.startswith("array") else "manifest.json"
    if damage.endswith("gone"):
        (first.folder / name).unlink()
    else:
        kept = 0 if damage.endswith("empty") else -2
        (first.folder / name).write_bytes((first.folder / name).read_bytes()[:kept])
    again = work.prepare()
    assert again.manifest == first.manifest
    assert again.splits["val"].target(0).tolist() == again.tokenizer.encode("www").tolist()
    [record] = caplog.records
    assert name in record.message
    assert "preparing the pairs again" in record.message


def test_changed_arrays_are_found_by_a_check(work: Workplace, caplog: pytest.LogCaptureFixture) -> None:
    path = work.prepare().folder / "train-source.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\x01")
    with pytest.raises(ShardError, match=r"train-source.npy: damaged: its SHA-256"):
        check_pair_contents(path.parent, read_pair_manifest(path.parent))
    work.prepare()
    assert path.read_bytes() != whole
    work.prepare(check=True)
    assert path.read_bytes() == whole
    assert "SHA-256" in caplog.text


def test_nothing_is_unpickled(work: Workplace) -> None:
    folder = work.prepare().folder
    np.save(folder / "val-lines.npy", np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(
        ShardError, match=r"val-lines.npy: damaged: not an array of numbers; delete the folder"
    ):
        open_pair_splits(folder, json.loads((folder / "manifest.json").read_text()), lambda split, line: "")


def test_a_manifest_that_names_files_elsewhere_is_not_used(work: Workplace) -> None:
    folder = work.prepare().folder
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["splits"]["train"]["files"][0]["file"] = "../elsewhere.npy"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ShardError, match="lies outside the folder"):
        read_pair_manifest(folder)


def test_a_damaged_tokenizer_is_said_and_trained_again(
    work: Workplace, caplog: pytest.LogCaptureFixture
) -> None:
    first = work.prepare()
    [path] = (work.cache / "tokenizers").iterdir()
    path.write_text("{}")
    assert work.prepare().tokenizer.fingerprint() == first.tokenizer.fingerprint()
    assert "training the tokenizer again" in caplog.text


def test_a_tokenizer_that_lacks_a_character_or_a_special_token_is_refused(work: Workplace) -> None:
    specials = ("<pad>", "<bos>", "<eos>")
    with pytest.raises(TokenizerError, match=r"a.en and .*b.fr, line 1: ' '"):
        work.prepare(CHAR.train(["uncha"], specials=specials))
    with pytest.raises(TokenizerError, match="the tokenizer has no <pad>, but translation needs"):
        work.prepare(CharTokenizerSpec(bos=True, eos=True).train(SOURCES))
    assert work.left() == []


def test_files_that_change_while_they_are_read_are_refused(
    work: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = work.prepare(BYTE).tokenizer
    encode = type(tokenizer).encode

    def append_and_encode(self: Tokenizer, text: str) -> np.ndarray:
        with work.target.open("a") as file:
            file.write(".")
        return encode(self, text)

    work.write(TARGETS, SOURCES)
    monkeypatch.setattr(type(tokenizer), "encode", append_and_encode)
    with pytest.raises(DataError, match="changed while it was being read"):
        work.prepare(tokenizer)
    assert len(list((work.cache / "prepared").iterdir())) == 1


@pytest.mark.parametrize("synced_before", [3, 8, 20])
def test_a_full_disk_leaves_nothing_half_made(
    work: Workplace, monkeypatch: pytest.MonkeyPatch, synced_before: int
) -> None:
    n_synced = 0

    def sync(descriptor: int) -> None:
        nonlocal n_synced
        if n_synced == synced_before:
            raise OSError(28, "No space left on device")
        n_synced += 1

    for module in ("files", "data.pairs.files", "data.shards"):
        monkeypatch.setattr(f"clearformer.{module}.sync", sync)
    with pytest.raises(DiskError, match="No space left on device; free some space"):
        work.prepare()
    assert [Path(file).parent.name for file in work.left()] == ["tokenizers"]
    monkeypatch.undo()
    assert work.prepare().splits["train"].source_texts == SOURCES


def test_progress_is_told(work: Workplace) -> None:
    told: list[str] = []
    config = PairsData(source=str(work.source), target=str(work.target), val_path=str(work.val))
    prepare_pairs(config, CHAR, cache_dir=work.cache, progress=lambda doing, done, total: told.append(doing))
    assert list(dict.fromkeys(told)) == [
        "reading",
        "training the tokenizer",
        "encoding train",
        "encoding val",
    ]


def test_dates_are_prepared_and_found_again(tmp_path: Path) -> None:
    config = PairsData(name="dates", size=211, val_fraction=0.1)
    first = prepare_pairs(config, CHAR, cache_dir=tmp_path)
    sizes = {name: len(split) for name, split in first.splits.items()}
    assert sum(sizes.values()) + first.manifest["splits"]["train"]["n_target_held_out"] == 211
    assert 8 < sizes["val"] < 40
    assert {"babel", "num2words", "seed", "recipe"} <= first.manifest["source"].keys()
    assert prepare_pairs(config, CHAR, cache_dir=tmp_path).folder == first.folder
    assert prepare_pairs(config.replace(languages="de-en"), CHAR, cache_dir=tmp_path).folder != first.folder


def test_other_pairs_of_the_same_size_and_time_are_prepared_anew(work: Workplace) -> None:
    work.prepare()
    status = work.source.stat()
    others = [line.swapcase() for line in SOURCES]
    work.write(others, TARGETS)
    assert work.source.stat().st_size == status.st_size
    os.utime(work.source, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert work.prepare().splits["train"].source_texts == others


def test_where_the_contents_of_pairs_are_not_compared_one_line_says_so(
    work: Workplace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="clearformer")
    monkeypatch.setattr("clearformer.data.identity.COMPARED_BYTES", 1)
    work.val.write_text("new\tneu\n")  # with nothing in it that training has too, which would be told
    work.prepare()
    assert not caplog.records
    work.prepare()
    [record] = caplog.records
    assert "assumed unchanged" in record.message
