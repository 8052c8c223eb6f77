"""GPT-2's vocabulary from its own files."""

import os
from pathlib import Path

import pytest

from clearformer.config import resolve
from clearformer.errors import ConfigError, TokenizerError
from clearformer.text import BPETokenizer, ByteTokenizer, GPT2TokenizerSpec, load_tokenizer, merge_steps

LECTURE_LINE = "First Citizen:\nBefore we proceed any further, hear me speak.\n"  # lecture 000, section 7


@pytest.fixture(scope="module")
def data() -> Path:
    if not (folder := os.environ.get("CLEARFORMER_DATA")):
        pytest.skip("CLEARFORMER_DATA is not set")
    return Path(folder)


@pytest.fixture(scope="module")
def gpt2(data: Path) -> BPETokenizer:
    return GPT2TokenizerSpec(path=str(data / "gpt2-bpe")).train()


@pytest.fixture
def small_files(tmp_path: Path) -> Path:
    """The two files of a vocabulary with one merge."""
    tokens = [*ByteTokenizer().spellings, "th", "<|endoftext|>"]
    vocabulary = ", ".join(f'"{_escaped(token)}": {i}' for i, token in enumerate(tokens))
    (tmp_path / "encoder.json").write_text(f"{{{vocabulary}}}", encoding="utf-8")
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\nt h\n", encoding="utf-8")
    return tmp_path


def _escaped(token: str) -> str:
    return token.replace("\\", "\\\\").replace('"', '\\"')


def test_the_lectures_line_is_15_tokens(gpt2: BPETokenizer):
    ids = gpt2.encode(LECTURE_LINE)
    assert len(LECTURE_LINE) == 61
    assert [gpt2.token_label(token) for token in ids] == [
        "First", " Citizen", ":", "\\n", "Before", " we", " proceed", " any", " further", ",", " hear", " me",
        " speak", ".", "\\n",
    ]  # fmt: skip
    assert ids[:4].tolist() == [5962, 22307, 25, 198]


def test_ninety_percent_of_tiny_shakespeare_is_301966_tokens(gpt2: BPETokenizer, data: Path):
    text = (data / "shakespeare" / "input.txt").read_text(encoding="utf-8")
    ids = gpt2.encode(text[: int(0.9 * len(text))])
    assert len(ids) == 301_966
    assert gpt2.decode(ids) == text[: int(0.9 * len(text))]


def test_end_of_text_is_bos_and_eos_and_is_never_found_in_a_text(gpt2: BPETokenizer):
    assert gpt2.vocab_size == 50_257
    assert gpt2.bos_id == gpt2.eos_id == gpt2.id_of("<|endoftext|>") == 50_256
    assert gpt2.unk_id is None
    ids = gpt2.encode("a<|endoftext|>b")
    assert 50_256 not in ids.tolist()
    assert gpt2.decode(ids) == "a<|endoftext|>b"


def test_end_of_text_stands_once_between_documents(gpt2: BPETokenizer):
    assert gpt2.wrap(gpt2.encode("hi")).tolist() == [5303, 50_256]


def test_saved_it_needs_the_two_files_no_more(gpt2: BPETokenizer, tmp_path: Path):
    gpt2.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert loaded.to_json() == gpt2.to_json()
    assert loaded.encode(LECTURE_LINE).tolist() == gpt2.encode(LECTURE_LINE).tolist()


def test_it_agrees_with_transformers(gpt2: BPETokenizer, data: Path):
    transformers = pytest.importorskip("transformers")
    files = data / "gpt2-bpe"
    theirs = transformers.GPT2Tokenizer(vocab=str(files / "encoder.json"), merges=str(files / "vocab.bpe"))
    text = (
        LECTURE_LINE
        + "It's naïve — 日本語, they'll\t pay 1234 \n\n  \U0001f469\u200d\U0001f680\u0301!?\r\n  "
    )
    assert theirs(text)["input_ids"] == gpt2.encode(text).tolist()
    assert theirs.decode(gpt2.encode(text)) == gpt2.decode(gpt2.encode(text))


@pytest.mark.parametrize("text", [LECTURE_LINE, "Mississippi naïve 日本", "antidisestablishmentarianism"])
def test_its_merges_end_at_its_tokens(gpt2: BPETokenizer, text: str):
    ends = [token for word in merge_steps(gpt2, text) for token in word[-1]]
    assert ends == gpt2.encode(text).tolist()


def test_the_folder_is_found_through_the_environment(small_files: Path, monkeypatch: pytest.MonkeyPatch):
    small_files.rename(small_files.parent / "gpt2-bpe")
    monkeypatch.setenv("CLEARFORMER_DATA", str(small_files.parent))
    tokenizer = GPT2TokenizerSpec().train()
    assert tokenizer.encode("the").tolist() == [256, tokenizer.id_of("e")]


def test_without_a_folder_both_ways_out_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CLEARFORMER_DATA", raising=False)
    with pytest.raises(TokenizerError, match=r"CLEARFORMER_DATA.*tokenizer\.path"):
        GPT2TokenizerSpec().train()


@pytest.mark.parametrize("name", ["encoder.json", "vocab.bpe"])
def test_a_missing_file_is_named_with_both_ways_out(small_files: Path, name: str):
    (small_files / name).unlink()
    with pytest.raises(TokenizerError, match=rf"has no {name}: set .*CLEARFORMER_DATA.*tokenizer\.path"):
        GPT2TokenizerSpec(path=str(small_files)).train()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("encoder.json", "{", r"encoder\.json: not JSON"),
        ("encoder.json", "[" * 100_000, r"encoder\.json: not JSON"),
        ("encoder.json", "[1]", r"encoder\.json: does not map tokens to ids"),
        ("encoder.json", '{"a": "b"}', r"encoder\.json: does not map tokens to ids"),
        ("encoder.json", '{"a": 0, "<|endoftext|>": 5}', r"encoder\.json: ids do not run"),
        ("encoder.json", '{"a": 0, "b": 1}', r"encoder\.json: ids do not run"),
        ("encoder.json", '{"a": 0, "<|endoftext|>": 1}', "byte 0x00 is not a token"),
        ("vocab.bpe", "#version: 0.2\nt h\nthe\n", r"vocab\.bpe: line 3 is not two tokens"),
        ("vocab.bpe", "t h\na b c\n", r"vocab\.bpe: line 2 is not two tokens"),
        ("vocab.bpe", "t h\nq u\n", "merge 'q u'"),
    ],
)
def test_a_damaged_file_is_named(small_files: Path, name: str, content: str, message: str):
    (small_files / name).write_text(content, encoding="utf-8")
    with pytest.raises(TokenizerError, match=message):
        GPT2TokenizerSpec(path=str(small_files)).train()


def test_a_file_that_is_not_text_is_named(small_files: Path):
    (small_files / "vocab.bpe").write_bytes(b"t h\n\xff")
    with pytest.raises(TokenizerError, match=r"vocab\.bpe: not UTF-8"):
        GPT2TokenizerSpec(path=str(small_files)).train()


def test_a_folder_that_no_folder_can_be_is_one_line():
    with pytest.raises(TokenizerError, match=r"has no encoder\.json: set .*CLEARFORMER_DATA"):
        GPT2TokenizerSpec(path="a" * 300).train()
    with pytest.raises(ConfigError, match=r"^path: empty \(is a shell variable unset\?\)"):
        resolve(GPT2TokenizerSpec, {"path": ""})
