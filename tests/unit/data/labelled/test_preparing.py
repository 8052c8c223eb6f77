import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clearformer.data.labelled.config import LabelledData
from clearformer.data.labelled.preparing import LabelledDataset, prepare_labelled
from clearformer.errors import TokenizerError
from clearformer.text import (
    BPETokenizer,
    BPETokenizerSpec,
    ByteTokenizerSpec,
    CharTokenizerSpec,
    Tokenizer,
    TokenizerConfig,
    load_tokenizer,
)

TEXTS = [(f"{'good' if i % 3 else 'poor'} film number {i * i}", "yes" if i % 3 else "no") for i in range(41)]
BPE = BPETokenizerSpec(vocab_size=290)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "films.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in TEXTS))
    return path


def prepared(
    path: Path, tokenizer: TokenizerConfig | Tokenizer = BPE, *, check: bool = False, **settings
) -> LabelledDataset:
    config = LabelledData(path=str(path), **settings)
    return prepare_labelled(config, tokenizer, path.parent / "cache", check=check)


@pytest.mark.parametrize("spec", [BPE, ByteTokenizerSpec(), CharTokenizerSpec()], ids=lambda spec: spec.kind)
def test_every_text_keeps_its_tokens_its_label_and_its_line(path: Path, spec: TokenizerConfig) -> None:
    dataset = prepared(path, spec)
    tokenizer = dataset.tokenizer
    assert dataset.labels == ("no", "yes")
    seen = []
    for split in dataset.splits.values():
        assert len(split.texts) == len(split) == len(split.label_ids) == len(split.lengths)
        for i, text in enumerate(split.texts):
            row = split.row(i)
            assert row[0] == tokenizer.bos_id == tokenizer.id_of("[CLS]")
            assert row[-1] == tokenizer.eos_id == tokenizer.id_of("[SEP]")
            assert tokenizer.decode(row) == text
            assert len(row) == split.lengths[i]
            line = int(split.lines[i])
            assert TEXTS[line - 2] == (text, dataset.labels[split.label_ids[i]])
            assert split.where(i) == f"{path}, line {line}"
            seen.append(line)
    assert sorted(seen) == list(range(2, 43))
    assert len(dataset.splits["val"]) == 2


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_text_over_several_lines_is_found_from_its_first_byte_to_its_last(tmp_path: Path, end: str) -> None:
    path = tmp_path / "films.csv"
    rows = [f'"{text}\nseen ""twice""\n\nby {i}",{label}' for i, (text, label) in enumerate(TEXTS)]
    path.write_bytes(end.join(["text,label", *rows, ""]).encode())
    content = path.read_bytes()
    for split in prepared(path).splits.values():
        for text, spans in split.find(range(len(split))):
            (span,) = spans
            (cells,) = csv.reader(io.StringIO(content[span.start : span.stop].decode(), newline=""))
            assert cells[0] == text


def test_the_second_time_it_is_only_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepared(path)
    monkeypatch.setattr(BPETokenizerSpec, "train", None)
    monkeypatch.setattr(BPETokenizer, "encode", None)
    again = prepared(path)
    assert again.folder == first.folder
    assert again.tokenizer.fingerprint() == first.tokenizer.fingerprint()
    assert again.splits["val"].row(1).tolist() == first.splits["val"].row(1).tolist()


def test_the_labels_are_those_given_though_the_texts_were_prepared_with_others(path: Path) -> None:
    found = prepared(path).labels
    given = prepared(path, labels=(*reversed(found), "more"))
    assert list(given.labels) == given.manifest["labels"] == [*reversed(found), "more"]


def test_another_content_of_the_file_is_prepared_anew(path: Path) -> None:
    first = prepared(path)
    path.write_text(path.read_text().replace("number 4\t", "number 5\t"))
    second = prepared(path)
    assert second.folder != first.folder
    assert second.manifest["source"]["sha256"] != first.manifest["source"]["sha256"]


def test_a_copy_is_called_by_its_own_name(path: Path) -> None:
    copy = path.with_name("copy.tsv")
    copy.write_bytes(path.read_bytes())
    for each in (path, copy, path):
        assert prepared(each).manifest["source"]["description"] == str(each)


def test_what_is_damaged_is_made_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = prepared(path)
    rows = [first.splits["train"].row(i).tolist() for i in range(len(first.splits["train"]))]
    sep_id, shard = first.tokenizer.eos_id, first.folder / "train-00000.bin"
    assert sep_id is not None
    tokens = np.fromfile(shard, "<u2")
    tokens[np.flatnonzero(tokens == sep_id)[5]] = 1  # two texts run together
    for content in (tokens.tobytes(), tokens.tobytes()[:-2]):
        shard.write_bytes(content)
        caplog.clear()
        again = prepared(path).splits["train"]
        assert [again.row(i).tolist() for i in range(len(again))] == rows
        assert "preparing the texts again" in caplog.text


def test_changed_tokens_are_found_by_a_check(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = prepared(path)
    shard = first.folder / "train-00000.bin"
    whole = shard.read_bytes()
    tokens = np.fromfile(shard, "<u2")
    tokens[1] += 1  # every text still ends where it did
    shard.write_bytes(tokens.tobytes())
    caplog.clear()
    prepared(path)
    assert shard.read_bytes() == tokens.tobytes()
    assert "preparing the texts again" not in caplog.text
    again = prepared(path, check=True)
    assert shard.read_bytes() == whole
    assert (
        again.splits["train"].row(0).tolist()
        == first.tokenizer.wrap(first.tokenizer.encode(again.splits["train"].texts[0])).tolist()
    )
    assert "SHA-256" in caplog.text
    assert "preparing the texts again" in caplog.text


def test_the_tokenizer_learns_from_the_training_texts_alone(path: Path, tmp_path: Path) -> None:
    val = tmp_path / "val.tsv"
    val.write_text("text\tlabel\n" + "zzzzzzzz\tyes\n" * 50)
    bpe = prepared(path, val_path=str(val))
    assert len(bpe.splits["val"].row(0)) == 10  # no merge joins two of them
    characters = prepared(path, CharTokenizerSpec(), val_path=str(val))
    assert characters.tokenizer.id_of("z") is not None  # or it could not be read at all


def test_the_manifest_says_what_is_there(path: Path, tmp_path: Path) -> None:
    val = tmp_path / "val.tsv"
    val.write_text(f"text\tlabel\n {TEXTS[3][0].replace(' ', '  ')}\tyes\nnew\tno\n")
    dataset = prepared(path, val_path=str(val))
    manifest = json.loads((dataset.folder / "manifest.json").read_text())
    assert manifest == dataset.manifest
    assert manifest["labels"] == ["no", "yes"]
    assert manifest["source"]["n_documents"] == 43
    assert len(manifest["source"]["sha256"]) == 64
    assert manifest["splits"]["val"]["n_also_in_train"] == 1
    assert manifest["splits"]["val"]["label_counts"] == {"no": 1, "yes": 1}
    assert manifest["splits"]["train"]["n_chars"] == sum(len(text) for text, _ in TEXTS)


def test_what_is_unusual_is_told_each_time(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "clearformer")
    held_out = prepared(path).splits["val"].texts[0]
    assert not caplog.records
    val = path.with_name("val.tsv")
    val.write_text(f"text\tlabel\n{TEXTS[3][0]}\tyes\nnew\tno\n")
    for _ in range(2):
        dataset = prepared(path, val_path=str(val))
        assert list(dataset.notes) == ["val: 1 of 2 texts also in training"]
    path.write_text(path.read_text().replace(f"{held_out}\tyes", f"{held_out}\trare"))
    assert list(prepared(path).notes) == [
        "val: 1 text left out: no training text has the label 'rare'; add texts with it"
    ]
    assert len(caplog.records) == 3


def test_labels_that_no_training_text_has_are_told_on_one_line(path: Path) -> None:
    unlearnt = {f"l{n}": 2 for n in range(8)}
    dataset = replace(prepared(path), unlearnt=unlearnt)
    assert list(dataset.notes) == [
        "val: 16 texts left out: no training text has the labels 'l0', 'l1', 'l2', 'l3', 'l4' and 3 more; "
        "add texts with them"
    ]


def test_a_tokenizer_that_is_given_is_taken(path: Path) -> None:
    given = prepared(path).tokenizer
    assert prepared(path, given, val_fraction=0.3).tokenizer is given


def test_a_tokenizer_without_an_encoders_special_tokens_is_refused(path: Path) -> None:
    with pytest.raises(TokenizerError) as caught:
        prepared(path, ByteTokenizerSpec(bos=True).train())
    assert str(caught.value).startswith("this tokenizer lacks [PAD], [SEP], [MASK], which an encoder needs")


def test_a_text_that_holds_the_end_of_a_text_is_named(tmp_path: Path) -> None:
    """An imported tokenizer reads a special token of one character from texts."""
    BPE.train(["film a | b good"], specials=("[PAD]", "[CLS]", "[MASK]")).save(tmp_path / "tokenizer.json")
    roles = {"cls_token": "[CLS]", "sep_token": "|", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(roles))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    file = tmp_path / "films.tsv"
    file.write_text("text\tlabel\n" + "".join(f"film {i}\t{i % 2}\n" for i in range(40)) + "good a|b\t1\n")
    with pytest.raises(
        TokenizerError, match="the tokenizer reads from this text its token that ends a text"
    ) as caught:
        prepared(file, tokenizer)
    assert str(caught.value).startswith(f"{file}, line 42: ")


def test_a_text_outside_a_given_vocabulary_is_named(path: Path) -> None:
    few = CharTokenizerSpec().train(["good"], specials=("[PAD]", "[CLS]", "[SEP]", "[MASK]"))
    with pytest.raises(TokenizerError) as caught:
        prepared(path, few)
    assert str(caught.value).startswith(f"{path}, line 2: ")
