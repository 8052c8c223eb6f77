"""Vocabularies from before tokenizer.json, against transformers' tokenizers for the same files."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from clearformer.errors import TokenizerError
from clearformer.interop.mapping.fields import Fields
from clearformer.interop.tokenizers.folder import read_tokenizer
from clearformer.interop.tokenizers.legacy import from_older_files
from clearformer.model import ModelConfig
from clearformer.text import BPETokenizerSpec, load_tokenizer

transformers.logging.set_verbosity_error()

CORPUS = """The cat sat on the mat, and the dog sat beside the cat.
A mat is no place for a dog; the dog's place is the door.
Is the door open? It's open, and the cat has gone out with 12 mice.
Straße, naïve, fiancée, ﬁnal: letters that are not plain.
"""
TEXTS = [
    "The cat's mat is  open.",
    "naïve dogs, 12 fiancées & a Straße",
    "ﬁnal ½ 東京",
    " leading and trailing ",
    "",
]


def backend_of(folder: Path) -> tokenizers.Tokenizer:
    document = from_older_files(folder)
    assert document is not None
    return tokenizers.Tokenizer.from_str(json.dumps(document))


@pytest.mark.parametrize("text", TEXTS)
def test_gpt2(text: str, tmp_path: Path) -> None:
    trained = BPETokenizerSpec(vocab_size=300).train([CORPUS])
    vocab = {spelling: i for i, spelling in enumerate([*trained.spellings, "<|endoftext|>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    lines = ["#version: 0.2", *(" ".join(merge) for merge in trained.merges)]
    (tmp_path / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    theirs = transformers.GPT2Tokenizer.from_pretrained(tmp_path)

    ours = backend_of(tmp_path)

    assert ours.encode(text).ids == theirs(text)["input_ids"]
    assert ours.decode(ours.encode(text).ids) == text
    assert ours.token_to_id("<|endoftext|>") == len(vocab) - 1


ADDED_TEXT = "The <new> cat<new>sat <sep>  on the <gap>mat"


def gpt2_folder(folder: Path, **files: Any) -> int:
    """Write GPT-2's two files, and others by the names that they have without .json; return the number of tokens."""
    trained = BPETokenizerSpec(vocab_size=300).train([CORPUS])
    vocab = {spelling: i for i, spelling in enumerate([*trained.spellings, "<|endoftext|>"])}
    lines = ["#version: 0.2", *(" ".join(merge) for merge in trained.merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, content in ({"vocab": vocab} | files).items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return len(vocab)


def test_tokens_that_were_added_to_gpt2_are_text_unless_they_are_listed_as_special(tmp_path: Path) -> None:
    n = gpt2_folder(tmp_path)
    listed = {
        "special_tokens_map": {"sep_token": {"content": "<sep>"}, "additional_special_tokens": ["<more>"]}
    }
    gpt2_folder(tmp_path, added_tokens={"<sep>": n + 1, "<new>": n, "<more>": n + 2}, **listed)
    theirs = transformers.GPT2Tokenizer.from_pretrained(tmp_path)

    ours = backend_of(tmp_path)

    assert ours.encode(ADDED_TEXT).ids == theirs(ADDED_TEXT)["input_ids"]
    assert [ours.token_to_id(name) for name in ("<new>", "<sep>", "<more>")] == [n, n + 1, n + 2]
    special = {str(token) for token in ours.get_added_tokens_decoder().values() if token.special}
    assert special == {"<|endoftext|>", "<sep>", "<more>"}
    read = read_tokenizer(tmp_path, Fields({}), ModelConfig(vocab_size=n + 3))
    assert read.decode(read.encode("The <new> cat")) == "The <new> cat"
    assert n in read.encode("The <new> cat")


@pytest.mark.parametrize("as_one_file", [False, True])
@pytest.mark.parametrize("told", [True, False])
def test_add_bos_token_of_older_files_decides_what_stands_before_a_text(
    told: bool, as_one_file: bool, tmp_path: Path
) -> None:
    """Beside a tokenizer.json it decides nothing."""
    config = {"add_bos_token": told, "bos_token": "<|endoftext|>", "tokenizer_class": "GPT2Tokenizer"}
    n = gpt2_folder(tmp_path, tokenizer_config=config)
    if as_one_file:
        document = backend_of(tmp_path).to_str()
        (tmp_path / "tokenizer.json").write_text(document, encoding="utf-8")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)("The cat")["input_ids"]

    ours = read_tokenizer(tmp_path, Fields({}), ModelConfig(vocab_size=n))

    before = [] if ours.bos_id is None else [ours.bos_id]
    assert [*before, *ours.encode("The cat").tolist()] == theirs
    assert bool(before) is (told and not as_one_file)


def test_tokens_that_the_configuration_adds_are_those_there_are(tmp_path: Path) -> None:
    n = gpt2_folder(tmp_path)
    flags = {"single_word": False, "lstrip": True, "rstrip": True, "normalized": False, "special": False}
    end = {"content": "<|endoftext|>", **flags, "special": True}
    decoder = {str(n - 1): end, str(n): {"content": "<new>", **flags}}
    gpt2_folder(tmp_path, tokenizer_config={"added_tokens_decoder": decoder}, added_tokens={"<gap>": n + 1})
    theirs = transformers.GPT2Tokenizer.from_pretrained(tmp_path)

    ours = backend_of(tmp_path)

    assert ours.encode(ADDED_TEXT).ids == theirs(ADDED_TEXT)["input_ids"]
    assert ours.token_to_id("<new>") == n
    assert ours.token_to_id("<gap>") is None


def test_an_added_token_keeps_its_id_behind_a_gap(tmp_path: Path) -> None:
    n = gpt2_folder(tmp_path)
    gpt2_folder(tmp_path, added_tokens={"<gap>": n + 5})
    assert backend_of(tmp_path).token_to_id("<gap>") == n + 5


@pytest.mark.parametrize(
    "listed", [[], {"1": "<new>"}, {"x": {"content": "<new>"}}, {"9" * 5000: {"content": "<new>"}}]
)
def test_a_list_of_added_tokens_that_is_none_is_refused(listed: Any, tmp_path: Path) -> None:
    gpt2_folder(tmp_path, tokenizer_config={"added_tokens_decoder": listed})
    with pytest.raises(
        TokenizerError, match=r"tokenizer_config\.json: added_tokens_decoder: expected tokens"
    ):
        from_older_files(tmp_path)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("bart", [False, True])
def test_a_space_before_a_text_where_the_configuration_says_so(bart: bool, text: str, tmp_path: Path) -> None:
    n = gpt2_folder(tmp_path, tokenizer_config={"add_prefix_space": True})
    if bart:
        vocab = json.loads((tmp_path / "vocab.json").read_text())
        more = {name: n + i for i, name in enumerate(("<s>", "<pad>", "</s>", "<unk>", "<mask>"))}
        (tmp_path / "vocab.json").write_text(json.dumps(vocab | more))
    kind = transformers.BartTokenizer if bart else transformers.GPT2Tokenizer
    theirs = kind.from_pretrained(tmp_path)

    ours = backend_of(tmp_path)

    assert ours.encode(text).ids == theirs(text)["input_ids"]
    assert ours.encode(text, "a cat").ids == theirs(text, "a cat")["input_ids"]


@pytest.mark.parametrize("text", TEXTS)
def test_bart(text: str, tmp_path: Path) -> None:
    """It puts <s> before a text and </s> behind it."""
    trained = BPETokenizerSpec(vocab_size=300).train([CORPUS])
    spellings = ["<s>", "<pad>", "</s>", "<unk>", *trained.spellings, "<mask>"]
    (tmp_path / "vocab.json").write_text(json.dumps({spelling: i for i, spelling in enumerate(spellings)}))
    lines = ["#version: 0.2", *(" ".join(merge) for merge in trained.merges)]
    (tmp_path / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    theirs = transformers.BartTokenizer.from_pretrained(tmp_path)

    ours = backend_of(tmp_path)

    assert ours.encode(text).ids == theirs(text)["input_ids"]
    assert ours.encode(text, "a cat").ids == theirs(text, "a cat")["input_ids"]
    specials = {token for token, added in ours.get_added_tokens_decoder().items() if added.special}
    assert specials == set(theirs.all_special_ids)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("lowercase", [True, False])
def test_bert(text: str, lowercase: bool, tmp_path: Path) -> None:
    """With a token that was added, which is in lower case too."""
    words = CORPUS.lower() if lowercase else CORPUS
    pieces = sorted({c for c in words if c.isalnum()} | {f"##{c}" for c in words if c.isalnum()})
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "mat", "##at", "'", ".", ",", "&", *pieces]
    (tmp_path / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"Fiancée": len(vocab)}))
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path, do_lower_case=lowercase)

    ours = backend_of(tmp_path)

    assert ours.encode(text).ids == theirs(text)["input_ids"]
    pair = ours.encode(text, "a cat")
    assert (pair.ids, pair.type_ids) == tuple(
        theirs(text, "a cat")[k] for k in ("input_ids", "token_type_ids")
    )


@pytest.fixture
def marian(tmp_path: Path) -> Path:
    """Two languages' pieces, and one numbering of both."""
    sentencepiece = pytest.importorskip("sentencepiece")
    for side, text in (("source", CORPUS), ("target", CORPUS.upper())):
        (tmp_path / f"{side}.txt").write_text(text * 3, encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(tmp_path / f"{side}.txt"),
            model_prefix=str(tmp_path / side),
            vocab_size=90,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (tmp_path / f"{side}.model").rename(tmp_path / f"{side}.spm")
    pieces = []
    for side in ("source", "target"):
        model: Any = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / f"{side}.spm"))
        pieces += [model.id_to_piece(i) for i in range(model.get_piece_size())]
    plain = sorted(set(pieces) - {"<unk>", "<s>", "</s>"})
    vocab = {piece: i for i, piece in enumerate(["</s>", "<unk>", *plain, ">>fra<<", ">>por<<", "<pad>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    return tmp_path


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("text", [*TEXTS[:2], *TEXTS[3:], ">>por<< The cat's mat", ">>fra<<A mat"])
def test_marian(text: str, marian: Path) -> None:
    theirs = transformers.MarianTokenizer(
        vocab=str(marian / "vocab.json"),
        source_spm=str(marian / "source.spm"),
        target_spm=str(marian / "target.spm"),
    )

    ours = backend_of(marian)

    assert ours.encode(text).ids == theirs(text)["input_ids"]
    assert ours.decode(theirs(text)["input_ids"]) == theirs.decode(
        theirs(text)["input_ids"], skip_special_tokens=True
    )


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 10**6])
def test_a_file_that_is_no_sentencepiece_model(content: bytes, marian: Path) -> None:
    (marian / "source.spm").write_bytes(content)
    with pytest.raises(TokenizerError, match=r"source\.spm"):
        from_older_files(marian)


@pytest.mark.parametrize(
    ("number", "value", "said"),
    [
        (3, {3: 0}, "add_dummy_prefix=false"),
        (3, {5: 0}, "escape_whitespaces=false"),
        (2, {35: 1}, "byte_fallback=true"),
    ],
)
def test_a_model_that_cuts_otherwise_is_refused(
    number: int, value: dict[int, int], said: str, marian: Path
) -> None:
    """Of two messages of a kind, the first is read."""
    fields = b"".join(varint(key << 3) + varint(each) for key, each in value.items())
    model = (marian / "source.spm").read_bytes()
    (marian / "source.spm").write_bytes(varint(number << 3 | 2) + varint(len(fields)) + fields + model)
    with pytest.raises(TokenizerError, match=rf"source\.spm: {said}, which clearformer lacks; save"):
        from_older_files(marian)


def varint(value: int) -> bytes:
    """Write a number as a protocol buffer does."""
    head = bytes([value & 0x7F | (0x80 if value > 0x7F else 0)])
    return head + varint(value >> 7) if value > 0x7F else head


def test_a_vocabulary_without_an_end(marian: Path) -> None:
    vocab = json.loads((marian / "vocab.json").read_text())
    (marian / "vocab.json").write_text(
        json.dumps({token: i for token, i in vocab.items() if token != "</s>"})
    )
    with pytest.raises(TokenizerError, match=r"vocab\.json: </s> is missing"):
        from_older_files(marian)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("text", ["THE CAT'S MAT", "A DOG SAT, AND THE MAT IS GONE", "  NAÏVE  DOGS"])
def test_what_marian_writes_is_cut_by_the_pieces_of_its_own_language(text: str, marian: Path) -> None:
    theirs = transformers.MarianTokenizer(
        vocab=str(marian / "vocab.json"),
        source_spm=str(marian / "source.spm"),
        target_spm=str(marian / "target.spm"),
    )
    n = len(json.loads((marian / "vocab.json").read_text()))
    config = ModelConfig(family="encoder-decoder", vocab_size=n)
    fields = Fields({"eos_token_id": 0, "pad_token_id": n - 1, "decoder_start_token_id": n - 1})

    ours = read_tokenizer(marian, fields, config)

    assert [*ours.for_targets.encode(text).tolist(), 0] == theirs(text_target=text)["input_ids"]
    assert [*ours.encode(TEXTS[0]).tolist(), 0] == theirs(TEXTS[0])["input_ids"]
    ours.save(marian / "run" / "tokenizer.json")
    again = load_tokenizer(marian / "run" / "tokenizer.json")
    assert again.for_targets.encode(text).tolist() == ours.for_targets.encode(text).tolist()
    document = json.loads((marian / "run" / "tokenizer.json").read_text())
    document["model"]["target_scores"].pop()
    (marian / "run" / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(TokenizerError, match="its target_scores are not one for each token"):
        load_tokenizer(marian / "run" / "tokenizer.json").for_targets  # noqa: B018  (read when it is needed)
    (marian / "target.spm").unlink()
    alone = read_tokenizer(marian, fields, config)
    assert alone.for_targets.encode(text).tolist() == alone.encode(text).tolist()


@pytest.mark.parametrize("file", ["tokenizer_config", "config"])
def test_files_of_a_class_with_rules_of_its_own_are_refused(file: str, tmp_path: Path) -> None:
    gpt2_folder(tmp_path, **{file: {"tokenizer_class": "GPT2TokenizerFast"}})
    assert from_older_files(tmp_path)
    gpt2_folder(tmp_path, **{file: {"tokenizer_class": "Qwen2Tokenizer"}})
    with pytest.raises(
        TokenizerError,
        match=rf"{file}\.json: tokenizer_class: Qwen2Tokenizer reads vocab\.json and merges\.txt in",
    ):
        from_older_files(tmp_path)


def test_no_vocabulary(tmp_path: Path) -> None:
    assert from_older_files(tmp_path) is None
