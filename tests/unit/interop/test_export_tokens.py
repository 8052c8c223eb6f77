"""What is written of a tokenizer, and read again."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from clearformer.errors import ConfigError, TokenizerError
from clearformer.interop.mapping.fields import Fields
from clearformer.interop.tokenizers.folder import read_tokenizer, tokenizer_documents
from clearformer.model import ModelConfig
from clearformer.model.attention import MultiHead
from clearformer.text import (
    BPETokenizerSpec,
    ByteTokenizerSpec,
    CharTokenizerSpec,
    Tokenizer,
    UnigramTokenizerSpec,
    WordPieceTokenizerSpec,
    load_tokenizer,
    specials_of,
)
from clearformer.text.tokenizer import added_token

TEXT = "the cat sat on the mat; a naïve dog sat by it\nand the cat slept\n" * 3
KINDS = {
    "char": CharTokenizerSpec(),
    "byte": ByteTokenizerSpec(),
    "bpe": BPETokenizerSpec(vocab_size=290),
    "wordpiece": WordPieceTokenizerSpec(vocab_size=120),
    "unigram": UnigramTokenizerSpec(vocab_size=330),
}


def tokenizer_of(kind: str, family: str) -> Tokenizer:
    return KINDS[kind].train([TEXT], specials=specials_of(family))


def config_of(tokenizer: Tokenizer, family: Any, n_more: int = 0, n_types: int = 0) -> ModelConfig:
    return ModelConfig(
        family=family,
        vocab_size=tokenizer.vocab_size + n_more,
        d_model=4,
        attention=MultiHead(n_heads=1),
        n_token_types=n_types,
    )


def backend_of(tokenizer: Tokenizer, family: str, n_types: int = 0) -> tokenizers.Tokenizer:
    config = config_of(tokenizer, family, n_types=n_types)
    document = tokenizer_documents(tokenizer, config)["tokenizer.json"]
    return tokenizers.Tokenizer.from_str(json.dumps(document))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder-decoder"])
def test_a_text_is_what_our_models_read(kind: str, family: str) -> None:
    tokenizer = tokenizer_of(kind, family)
    plain = tokenizer.encode("the naïve mat").tolist()
    expected = {
        "decoder": plain,
        "encoder": [tokenizer.bos_id, *plain, tokenizer.eos_id],
        "encoder-decoder": [*plain, tokenizer.eos_id],
    }
    assert backend_of(tokenizer, family).encode("the naïve mat").ids == expected[family]


def test_a_prompt_begins_with_bos_where_there_is_one() -> None:
    tokenizer = CharTokenizerSpec(bos=True, eos=True).train([TEXT])
    assert backend_of(tokenizer, "decoder").encode("cat").ids == [
        tokenizer.bos_id,
        *tokenizer.encode("cat").tolist(),
    ]


@pytest.mark.parametrize(("n_types", "second"), [(2, 1), (1, 0), (0, 0)])
def test_an_encoder_tells_two_texts_apart_by_the_types_it_has(n_types: int, second: int) -> None:
    tokenizer = tokenizer_of("wordpiece", "encoder")
    pair = backend_of(tokenizer, "encoder", n_types).encode("the cat", "a dog")
    one, other = tokenizer.encode("the cat").tolist(), tokenizer.encode("a dog").tolist()
    assert pair.ids == [tokenizer.bos_id, *one, tokenizer.eos_id, *other, tokenizer.eos_id]
    assert pair.type_ids == [0] * (len(one) + 2) + [second] * (len(other) + 1)


def test_the_parts_that_special_tokens_play() -> None:
    encoder = tokenizer_of("wordpiece", "encoder")
    roles = tokenizer_documents(encoder, config_of(encoder, "encoder"))["tokenizer_config.json"]
    named = {role: name for role, name in roles.items() if role.endswith("_token")}
    assert named == {
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
        "unk_token": "[UNK]",
    }
    assert roles["padding_side"] == "right"
    assert roles["model_max_length"] == 128
    decoder = BPETokenizerSpec(vocab_size=290, bos=True).train([TEXT])
    roles = tokenizer_documents(decoder, config_of(decoder, "decoder"))["tokenizer_config.json"]
    assert roles["bos_token"] == "<bos>"
    assert "eos_token" not in roles
    assert roles["padding_side"] == "left"


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}


def read_from(folder: Path, names: list[str], post_processor: Any, **files: Any) -> Tokenizer:
    """Write a tokenizer.json with special tokens as others make it, and read it as `tokenizer=file` does."""
    return load_tokenizer(file_of_others(folder, names, post_processor, **files))


def file_of_others(folder: Path, names: list[str], post_processor: Any, **files: Any) -> Path:
    document = json.loads(ByteTokenizerSpec().train().to_json())
    n = len(document["model"]["vocab"])
    document["model"]["vocab"] |= {name: n + i for i, name in enumerate(names)}
    document["added_tokens"] = [added_token(name, n + i) for i, name in enumerate(names)]
    files["tokenizer"] = document | {"post_processor": post_processor}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder / "tokenizer.json"


def around(before: list[str], behind: list[str]) -> dict[str, Any]:
    """A part of a tokenizer.json that puts tokens around a text; their ids are those of `file_of_others`."""
    marks = [[{"SpecialToken": {"id": name, "type_id": 0}} for name in names] for names in (before, behind)]
    text = {"Sequence": {"id": "A", "type_id": 0}}
    ids = {"<s>": 256, "</s>": 257, "<more>": 258}
    return {
        "type": "TemplateProcessing",
        "single": [*marks[0], text, *marks[1]],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {n: {"id": n, "ids": [ids[n]], "tokens": [n]} for n in before + behind},
    }


@pytest.mark.parametrize(
    ("family", "names", "post_processor"),
    [
        ("decoder", ["<|endoftext|>"], BYTE_LEVEL),
        ("encoder", ["[PAD]", "[CLS]", "[SEP]", "[MASK]"], BYTE_LEVEL),
        ("encoder-decoder", ["<pad>", "<s>", "</s>"], BYTE_LEVEL),
        (
            "decoder",
            ["[CLS]", "[SEP]"],
            {"type": "BertProcessing", "sep": ["[SEP]", 257], "cls": ["[CLS]", 256]},
        ),
        ("encoder-decoder", ["<s>", "</s>"], around(["<s>"], ["</s>"])),
    ],
)
def test_a_file_of_others_puts_around_a_text_what_our_models_read(
    family: str, names: list[str], post_processor: Any, tmp_path: Path
) -> None:
    tokenizer = read_from(tmp_path, names, post_processor)
    plain = tokenizer.encode("the cat").tolist()
    expected = {
        "decoder": [tokenizer.bos_id, *plain],
        "encoder": [tokenizer.bos_id, *plain, tokenizer.eos_id],
        "encoder-decoder": [*tokenizer.before_pair, *plain, tokenizer.eos_id],
    }
    assert None not in expected[family]
    assert backend_of(tokenizer, family).encode("the cat").ids == expected[family]


@pytest.mark.parametrize("config_says", [1, None, 256])
def test_bos_is_what_the_tokenizer_puts_before_a_text(config_says: int | None, tmp_path: Path) -> None:
    """As in transformers, whose config.json has a class's default where nobody set it."""
    file_of_others(tmp_path, ["<s>", "</s>"], around(["<s>"], []), tokenizer_config={"bos_token": "<s>"})
    fields = Fields({"eos_token_id": 257} | ({} if config_says is None else {"bos_token_id": config_says}))
    back = read_tokenizer(tmp_path, fields, ModelConfig(vocab_size=258))
    assert (back.bos_id, back.eos_id) == (256, 257)


def test_a_translation_starts_with_what_generation_says(tmp_path: Path) -> None:
    files = {"generation_config": {"decoder_start_token_id": 257}}
    file_of_others(tmp_path, ["<s>", "</s>", "<more>"], around([], ["</s>"]), **files)
    fields = Fields({"eos_token_id": 257, "pad_token_id": 256, "decoder_start_token_id": 258})
    config = ModelConfig(family="encoder-decoder", vocab_size=259)
    assert read_tokenizer(tmp_path, fields, config).bos_id == 257


def test_texts_are_neither_cut_nor_filled_up_there(tmp_path: Path) -> None:
    file = file_of_others(tmp_path, ["<more>"], None)
    document = json.loads(file.read_text(encoding="utf-8"))
    cut = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps(document | {"truncation": cut}), encoding="utf-8")
    tokenizer = load_tokenizer(file)
    plain = tokenizer.encode("the cat sat").tolist()
    assert len(plain) > 4
    assert backend_of(tokenizer, "decoder").encode("the cat sat").ids == plain


def test_a_vocabulary_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE"}}))
    added = {"added_tokens_decoder": {"0": {"content": "<new>"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(added))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: model\.vocab is missing; download it again"):
        read_tokenizer(tmp_path, Fields({}), ModelConfig(vocab_size=1))


def test_a_token_behind_every_text_is_not_put_before_one(tmp_path: Path) -> None:
    file_of_others(tmp_path, ["<s>"], around([], ["<s>"]), tokenizer_config={"eos_token": "<s>"})
    fields = Fields({"eos_token_id": 256, "bos_token_id": 256})
    back = read_tokenizer(tmp_path, fields, ModelConfig(vocab_size=257))
    assert (back.bos_id, back.eos_id) == (None, 256)


def test_of_several_tokens_before_a_text_the_first_is_put_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file_of_others(tmp_path, ["<s>", "</s>", "<more>"], around(["<s>", "<more>"], []))
    back = read_tokenizer(tmp_path, Fields({}), ModelConfig(vocab_size=259))
    assert back.bos_id == 256
    assert "puts <s> <more> before a text; clearformer puts the first of them alone" in caplog.text


def test_tokens_that_only_the_configuration_names_are_there(tmp_path: Path) -> None:
    """As transformers adds them to a tokenizer.json that lacks them."""
    added = {"257": {"content": "<new>", "special": False}, "258": {"content": "<end>", "special": True}}
    config = {"added_tokens_decoder": added, "eos_token": "<end>"}
    file_of_others(tmp_path, ["<s>"], None, tokenizer_config=config)
    back = read_tokenizer(tmp_path, Fields({}), ModelConfig(vocab_size=259))
    assert back.eos_id == 258
    assert 257 in back.encode("the <new> cat").tolist()
    assert back.decode(back.encode("the <new> cat")) == "the <new> cat"


def test_added_words_of_any_letters_come_back(tmp_path: Path) -> None:
    """Letters such as é spell other bytes in a byte-level vocabulary."""
    file = file_of_others(tmp_path, ["café", "straße", "東京"], None)
    document = json.loads(file.read_text(encoding="utf-8"))
    document["added_tokens"] = [token | {"special": False} for token in document["added_tokens"]]
    file.write_text(json.dumps(document), encoding="utf-8")
    tokenizer = load_tokenizer(file)
    text = "the café in the straße, 東京"
    assert {256, 257, 258} <= set(tokenizer.encode(text).tolist())
    assert tokenizer.lossless
    assert tokenizer.decode(tokenizer.encode(text)) == text


# --- and back ---------------------------------------------------------------------------------------------


def written(tokenizer: Tokenizer, family: str, folder: Path) -> Fields:
    config = config_of(tokenizer, family)
    for name, document in tokenizer_documents(tokenizer, config).items():
        (folder / name).write_text(json.dumps(document), encoding="utf-8")
    ids = {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
    }
    return Fields(ids | {"decoder_start_token_id": tokenizer.bos_id})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder-decoder"])
def test_there_and_back(kind: str, family: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(kind, family)
    fields = written(tokenizer, family, tmp_path)

    back = read_tokenizer(tmp_path, fields, config_of(tokenizer, family))

    for text in ("the naïve mat", " a dog\nslept", ""):
        ids = tokenizer.encode(text)
        assert back.encode(text).tolist() == ids.tolist()
        assert back.decode(ids) == tokenizer.decode(ids)
    assert back.vocab_size == tokenizer.vocab_size
    for role in ("pad_id", "bos_id", "eos_id", "mask_id", "unk_id"):
        assert getattr(back, role) == getattr(tokenizer, role), role


def test_rows_beyond_the_vocabulary_are_tokens_that_no_text_has(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("bpe", "decoder")
    fields = written(tokenizer, "decoder", tmp_path)
    back = read_tokenizer(tmp_path, fields, config_of(tokenizer, "decoder", n_more=5))
    assert back.vocab_size == tokenizer.vocab_size + 5
    assert back.decode([back.vocab_size - 1]) == ""
    assert back.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()


def test_ids_that_no_token_has_are_named_too(tmp_path: Path) -> None:
    """The library numbers added tokens by the vocabulary's size, which is less than its highest id here."""
    document = json.loads(tokenizer_of("char", "decoder").to_json())
    plain = document["model"]["vocab"]
    document["model"]["vocab"] = {token: 2 * i for token, i in plain.items()}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    n_rows = 2 * len(plain) + 3
    config = ModelConfig(family="decoder", vocab_size=n_rows, d_model=4, attention=MultiHead(n_heads=1))

    back = read_tokenizer(tmp_path, Fields({}), config)

    assert back.vocab_size == n_rows
    assert back.encode("cat").tolist() == [2 * plain[character] for character in "cat"]
    assert back.decode(back.encode("cat")) == "cat"
    assert back.decode([1, n_rows - 1]) == ""
    back.save(tmp_path / "again" / "tokenizer.json")
    assert (
        load_tokenizer(tmp_path / "again" / "tokenizer.json").encode("cat").tolist()
        == back.encode("cat").tolist()
    )


def test_a_decoder_s_padding_takes_no_text_away(tmp_path: Path) -> None:
    """As the 0 that many give GPT-2, whose token 0 is "!"."""
    tokenizer = BPETokenizerSpec(vocab_size=290, eos=True).train([TEXT])
    written(tokenizer, "decoder", tmp_path)
    config = config_of(tokenizer, "decoder", n_more=1)
    back = read_tokenizer(tmp_path, Fields({"pad_token_id": ord("!")}), config)
    assert back.pad_id is None
    assert back.decode(back.encode("Hi!")) == "Hi!"
    for token in (
        tokenizer.eos_id,
        tokenizer.vocab_size,
    ):  # one that is special, and one of a row without a text
        assert read_tokenizer(tmp_path, Fields({"pad_token_id": token}), config).pad_id == token


def test_an_id_below_zero_is_none(tmp_path: Path) -> None:
    """As the first Llamas say that they have no <pad>."""
    tokenizer = tokenizer_of("byte", "decoder")
    written(tokenizer, "decoder", tmp_path)
    back = read_tokenizer(tmp_path, Fields({"pad_token_id": -1}), config_of(tokenizer, "decoder"))
    assert back.pad_id is None


@pytest.mark.parametrize("ids", [50256, [50256], []])
def test_an_id_beyond_the_vocabulary_is_none(ids: Any, tmp_path: Path) -> None:
    """As in the config.json of a GPT-2 of few tokens whose maker left the id of <|endoftext|> as it was."""
    tokenizer = BPETokenizerSpec(vocab_size=290, eos=True).train([TEXT])
    written(tokenizer, "decoder", tmp_path)
    config = config_of(tokenizer, "decoder")
    assert read_tokenizer(tmp_path, Fields({"eos_token_id": ids}), config).eos_id == tokenizer.eos_id
    (tmp_path / "tokenizer_config.json").unlink()
    assert read_tokenizer(tmp_path, Fields({"eos_token_id": ids}), config).eos_id is None


@pytest.mark.parametrize("ids", ["2", 2.0, True, [1, "2"], {"id": 2}])
@pytest.mark.parametrize("name", ["eos_token_id", "pad_token_id"])
def test_an_id_that_is_no_number_is_refused(name: str, ids: Any, tmp_path: Path) -> None:
    tokenizer = tokenizer_of("byte", "decoder")
    written(tokenizer, "decoder", tmp_path)
    with pytest.raises(ConfigError, match=f"config.json: {name}: expected the id of a token, a whole number"):
        read_tokenizer(tmp_path, Fields({name: ids}), config_of(tokenizer, "decoder"))


def test_a_vocabulary_that_is_too_large(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("bpe", "decoder")
    fields = written(tokenizer, "decoder", tmp_path)
    with pytest.raises(TokenizerError, match="they are not from the same model"):
        read_tokenizer(tmp_path, fields, config_of(tokenizer, "decoder", n_more=-1))


def test_gpt2_puts_nothing_before_a_prompt(tmp_path: Path) -> None:
    """config.json names a <bos>, but its tokenizer does not add it: the model was not trained to read it there."""
    tokenizer = BPETokenizerSpec(vocab_size=290).train([TEXT])
    written(tokenizer, "decoder", tmp_path)
    fields = Fields({"bos_token_id": 7, "eos_token_id": [7, 8]})
    back = read_tokenizer(tmp_path, fields, config_of(tokenizer, "decoder"))
    assert back.bos_id is None
    assert back.eos_id == 7


def test_a_translation_begins_with_what_config_json_says(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("bpe", "encoder-decoder")
    written(tokenizer, "encoder-decoder", tmp_path)
    fields = Fields({"eos_token_id": tokenizer.eos_id, "decoder_start_token_id": tokenizer.pad_id})
    back = read_tokenizer(tmp_path, fields, config_of(tokenizer, "encoder-decoder"))
    assert back.bos_id == tokenizer.pad_id


def test_a_folder_without_any(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="has no tokenizer"):
        read_tokenizer(tmp_path, Fields({}), config_of(tokenizer_of("byte", "decoder"), "decoder"))


def test_an_encoder_whose_folder_names_no_special_tokens_has_berts(tmp_path: Path) -> None:
    """As the first BERT, whose tokenizer_config.json says only that it lowercases."""
    tokenizer = tokenizer_of("wordpiece", "encoder")
    fields = written(tokenizer, "encoder", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    back = read_tokenizer(tmp_path, fields, config_of(tokenizer, "encoder"))
    for role in ("pad_id", "bos_id", "eos_id", "mask_id", "unk_id"):
        assert getattr(back, role) == getattr(tokenizer, role) is not None, role


def test_an_encoder_without_special_tokens_is_refused(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("byte", "decoder")
    fields = written(tokenizer, "encoder", tmp_path)
    config = config_of(tokenizer, "encoder")
    with pytest.raises(TokenizerError, match="needs pad_token, cls_token, sep_token, mask_token: name"):
        read_tokenizer(tmp_path, fields, config)
    (tmp_path / "tokenizer_config.json").write_text('{"cls_token": "a", "sep_token": "b", "pad_token": "c"}')
    with pytest.raises(TokenizerError, match="needs mask_token: name"):
        read_tokenizer(tmp_path, fields, config)
    assert read_tokenizer(tmp_path, fields, config.replace(n_classes=2)).bos_id == ord("a")
