"""Tokenizers that others made: roles, decoding by the kind of decoder, saving, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from clearformer.errors import TokenizerError
from clearformer.text import (
    ByteTokenizer,
    ByteTokenizerSpec,
    ImportedTokenizer,
    StreamDecoder,
    load_tokenizer,
    specials_of,
)


def special(name: str, token: int, **changes: Any) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token, "content": name, **flags, **changes}


def document(model: dict[str, Any], added: list[dict[str, Any]], **parts: Any) -> dict[str, Any]:
    empty = dict.fromkeys(
        ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    )
    return {"version": "1.0", **empty, "added_tokens": added, **parts, "model": model}


def bpe(vocab: list[str], merges: list[list[str]], **settings: Any) -> dict[str, Any]:
    return {"type": "BPE", "vocab": {token: i for i, token in enumerate(vocab)}, "merges": merges, **settings}


METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
CTC = {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True}
ALWAYS = METASPACE | {"prepend_scheme": "always", "split": True}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
LLAMA = document(
    bpe(
        ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "t", "h", "▁t", "▁th"],
        [["▁", "t"], ["▁t", "h"]],
        byte_fallback=True,
        fuse_unk=True,
        unk_token="<unk>",
    ),
    [special("<unk>", 0), special("<s>", 1), special("</s>", 2)],
    pre_tokenizer=METASPACE,
    decoder={
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    },
)
T5 = document(
    {
        "type": "Unigram",
        "unk_id": 2,
        "vocab": [
            ["<pad>", 0.0],
            ["</s>", 0.0],
            ["<unk>", 0.0],
            ["▁", -2.0],
            *([c, -4.0] for c in "the<>/s"),
        ],
    },
    [special("<pad>", 0), special("</s>", 1), special("<unk>", 2)],
    pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, ALWAYS]},
    decoder=ALWAYS,
)
NEOX_SPECIALS = ["<|endoftext|>", "<|padding|>"]
NEOX = document(
    bpe([*NEOX_SPECIALS, *ByteTokenizer().spellings], []),
    [
        special("<|endoftext|>", 0),
        special("<|padding|>", 1),
        special("   ", 258, special=False, normalized=True),
    ],
    normalizer={"type": "NFC"},
    pre_tokenizer=BYTE_LEVEL,
    decoder=BYTE_LEVEL,
)
BERT = document(
    {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {"[PAD]": 0, "the": 1, "##s": 2, ".": 3, "[UNK]": 4, "[CLS]": 5, "[SEP]": 6},
    },
    [special("[PAD]", 0), special("[UNK]", 4), special("[CLS]", 5), special("[SEP]", 6)],
    pre_tokenizer={"type": "BertPreTokenizer"},
    decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
)


@pytest.mark.parametrize("published", [LLAMA, T5, NEOX, BERT], ids=["llama", "t5", "neox", "bert"])
def test_the_names_of_special_tokens_in_a_text_are_plain_text(published: dict):
    tokenizer = ImportedTokenizer(published)
    text = "the</s> <s><unk><pad><|endoftext|>[UNK]" if published is not T5 else "the</s><s>"
    if published is BERT:
        assert (
            tokenizer.encode("[PAD] [CLS]").tolist() == [4] * 6
        )  # "[", "PAD", "]": none is in the vocabulary
    else:
        ids = tokenizer.encode(text)
        assert not set(ids.tolist()) & {tokenizer.id_of(name) for name in tokenizer.specials}
        assert tokenizer.decode(ids) == text


def test_ids_are_the_librarys_and_special_tokens_lie_where_they_lie():
    tokenizer = ImportedTokenizer(LLAMA, {"bos": "<s>", "eos": 2, "unk": "<unk>", "pad": None})
    assert tokenizer.specials == ("<unk>", "<s>", "</s>")
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == (1, 2, 0)
    assert (tokenizer.pad_id, tokenizer.mask_id) == (None, None)
    ids = tokenizer.encode("tht é")
    reference = tokenizers.Tokenizer.from_str(json.dumps(LLAMA))
    assert ids.tolist() == reference.encode("tht é", add_special_tokens=False).ids
    assert ids.dtype == np.int32
    assert [tokenizer.spellings[token] for token in ids] == ["▁th", "t", "▁", "<0xC3>", "<0xA9>"]
    assert [tokenizer.token_bytes(token) for token in (0, 1, *ids)] == [
        *[b"", b"", b" th", b"t", b" ", b"\xc3", b"\xa9"]
    ]
    assert tokenizer.wrap(ids).tolist() == [1, *ids, 2]
    assert tokenizer.decode(tokenizer.wrap(ids)) == "tht é"


def test_where_id_0_is_special_a_document_still_has_its_marks():
    tokenizer = ImportedTokenizer(NEOX, {"bos": 0, "eos": 1})
    assert [marks.tolist() for marks in tokenizer.marks] == [[0], [1]]
    both = ImportedTokenizer(NEOX, {"bos": 0, "eos": 0})
    assert [marks.tolist() for marks in both.marks] == [[], [0]]


@pytest.mark.parametrize(
    ("published", "lossless", "text", "back"),
    [
        (LLAMA, True, "th th 日 <0x41>", "th th 日 <0x41>"),
        (T5, False, " the  the", "the the"),
        (NEOX, True, "\ta   日 \u0301b", "\ta   日 \u0301b"),
        (BERT, False, "thes the  .", "thes the ."),
    ],
    ids=["llama", "t5", "neox", "bert"],
)
def test_what_comes_back_at_once_and_streamed(published: dict, lossless: bool, text: str, back: str):
    tokenizer = ImportedTokenizer(published)
    ids = tokenizer.encode(text).tolist()
    assert tokenizer.decode(ids) == back == tokenizer.normalized(text)
    stream = StreamDecoder(tokenizer)
    assert "".join([*(stream.push(token) for token in ids), stream.flush()]) == back
    assert tokenizer.lossless is lossless
    if published is not BERT:  # whose decoder takes the space before the full stop away
        assert tokenizers.Tokenizer.from_str(json.dumps(published)).decode(ids) == back


def test_an_added_token_that_is_not_special_is_found_and_is_text():
    tokenizer = ImportedTokenizer(NEOX)
    assert tokenizer.vocab_size == 259
    assert 258 in tokenizer.encode("a   b").tolist()
    assert tokenizer.token_bytes(258) == b"   "


def test_which_words_begin():
    bert = ImportedTokenizer(BERT)
    assert bert.starts_word(bert.encode("thes the.")).tolist() == [True, False, True, True]
    neox = ImportedTokenizer(NEOX)
    assert neox.starts_word(neox.encode("th t.")).tolist() == [True, False, True, True, True]


def test_ids_without_a_token_are_ids_all_the_same():
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 4, "?": 2}, "unk_token": "?"}
    tokenizer = ImportedTokenizer(document(model, []))
    assert tokenizer.vocab_size == 5
    assert tokenizer.spellings == ("a", "", "?", "", "b")
    assert tokenizer.decode([0, 4, 0]) == "a b a"


def test_a_vocabulary_that_lacks_a_character_says_so():
    model = {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]]}
    tokenizer = ImportedTokenizer(document(model, [], decoder={"type": "Fuse"}))
    assert tokenizer.encode("aa").tolist() == [0, 0]
    with pytest.raises(TokenizerError, match="no tokens for some of the text"):
        tokenizer.encode("b")


@pytest.mark.parametrize(("published", "lacks"), [(NEOX, "Q"), (LLAMA, "<0x51>")], ids=["neox", "llama"])
def test_a_vocabulary_that_lacks_a_byte_loses_some(published: dict, lacks: str):
    vocab = {(name if name != lacks else "QQ"): i for name, i in published["model"]["vocab"].items()}
    tokenizer = ImportedTokenizer(published | {"model": published["model"] | {"vocab": vocab}})
    assert not tokenizer.lossless
    assert "Q" not in tokenizer.decode(tokenizer.encode("aQ"))


def test_bytes_that_nothing_spells_before_the_model_are_lost():
    """The decoder of GPT-2's spelling alone does not make a tokenizer keep every byte."""
    tokenizer = ImportedTokenizer(NEOX | {"pre_tokenizer": None})
    assert not tokenizer.lossless
    assert tokenizer.decode(tokenizer.encode("the the")) == "thethe"


@pytest.mark.parametrize(
    ("changes", "text", "back"),
    [
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}}, "t  h", "t h"),
        ({"normalizer": {"type": "Replace", "pattern": {"String": "''"}, "content": '"'}}, "''", '"'),
        ({"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": ""}}, "t h", "th"),
        ({"decoder": METASPACE}, "tQ", "t<0x51>"),
        (
            {"added_tokens": [special("<t>", 264, special=False, lstrip=True, rstrip=True)]},
            "t <t> h",
            "t<t>h",
        ),
    ],
)
def test_what_a_file_does_to_a_text_is_a_loss(changes: dict, text: str, back: str):
    tokenizer = ImportedTokenizer(LLAMA | changes)
    assert tokenizer.decode(tokenizer.encode(text)) == back
    assert not tokenizer.lossless


@pytest.mark.parametrize("mark", ["end_of_word_suffix", "continuing_subword_prefix"])
def test_characters_that_are_marked_by_their_place_in_a_word_may_be_lost(mark: str):
    tokenizer = ImportedTokenizer(NEOX | {"model": NEOX["model"] | {mark: "#"}})
    assert tokenizer.decode(tokenizer.encode("the")) != "the"
    assert not tokenizer.lossless


def test_a_special_token_of_one_character_is_found_in_a_text_and_left_out_of_it():
    """As where "!" is the padding of a GPT-2: the ids are the library's, and transformers leaves it out too."""
    published = NEOX | {"added_tokens": [*NEOX["added_tokens"], special("!", NEOX["model"]["vocab"]["!"])]}
    tokenizer = ImportedTokenizer(published)
    ids = tokenizer.encode("a!").tolist()
    assert ids == tokenizers.Tokenizer.from_str(json.dumps(published)).encode("a!").ids
    assert tokenizer.decode(ids) == "a"
    assert not tokenizer.lossless
    assert not ImportedTokenizer(NEOX, {"eos": "Ċ"}).lossless


NOT_SPECIAL = NEOX | {
    "added_tokens": [special(name, i, special=False) for i, name in enumerate(NEOX_SPECIALS)]
}


@pytest.mark.parametrize(
    ("published", "eos"),
    [
        (NOT_SPECIAL, "<|endoftext|>"),
        (T5 | {"added_tokens": []}, "</s>"),
        (BERT | {"added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}}, "[SEP]"),
    ],
    ids=["added", "t5", "bert"],
)
def test_a_token_with_a_role_is_special_whether_the_file_says_so_or_not(published: dict, eos: str):
    without = ImportedTokenizer(published)
    assert without.spellings.index(eos) in without.encode(f"the {eos} the")
    tokenizer = ImportedTokenizer(published, {"eos": eos})
    ids = tokenizer.encode(f"the {eos} the")
    assert tokenizer.eos_id not in ids
    assert tokenizer.decode(tokenizer.wrap(ids)) == tokenizer.decode(ids)
    if published["model"]["type"] != "WordPiece":  # which has no characters there
        assert tokenizer.decode(ids) == f"the {eos} the"


def test_the_spaces_beside_a_token_with_a_role_stay():
    """As RoBERTa's <mask>, which takes the space before it where it is read from a text."""
    added = [special("<|padding|>", 1, special=False, lstrip=True)]
    published = NEOX | {"added_tokens": added}
    assert not ImportedTokenizer(published).lossless
    tokenizer = ImportedTokenizer(published, {"mask": "<|padding|>"})
    assert tokenizer.lossless
    assert tokenizer.decode(tokenizer.encode("t  <|padding|> h")) == "t  <|padding|> h"


MERGED: dict[str, Any] = NEOX | {
    "model": bpe(
        [*NEOX_SPECIALS, *ByteTokenizer().spellings, "he", "the", "Ġthe"],
        [["h", "e"], ["t", "he"], ["Ġ", "the"]],
    )
}


@pytest.mark.parametrize("as_text", [False, True], ids=["pairs", "lines"])
@pytest.mark.parametrize("name", ["he", "the", "Ġthe"])
def test_a_special_token_that_merges_make_is_left_to_characters(name: str, as_text: bool):
    model: dict[str, Any] = MERGED["model"]
    if as_text:
        model = model | {"merges": [" ".join(pair) for pair in model["merges"]]}
    token = model["vocab"][name]
    tokenizer = ImportedTokenizer(MERGED | {"model": model, "added_tokens": [special(name, token)]})
    ids = tokenizer.encode("the the he")
    assert token not in ids
    assert tokenizer.decode(ids) == "the the he"
    assert tokenizer.lossless
    assert (model["vocab"]["he"] in ids) == (name != "he")


def test_a_special_byte_is_read_from_a_text_and_left_out_of_it():
    tokenizer = ImportedTokenizer(LLAMA, {"eos": "<0x0A>"})
    ids = tokenizer.encode("t\nh")
    assert tokenizer.eos_id in ids
    assert ids.tolist() == ImportedTokenizer(LLAMA).encode("t\nh").tolist()
    assert tokenizer.decode(ids) == "th"
    assert not tokenizer.lossless


def test_nobody_can_type_a_special_token():
    """Not by the names either that keep it out of a text, which differ in each process and are kept nowhere."""
    tokenizer = ImportedTokenizer(LLAMA, {"eos": "</s>"})
    for token in range(3):
        text = f"t\U0010ffff{token}\U0010ffffh"
        assert token not in tokenizer.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert "\U0010ffff" not in tokenizer.to_json() + "".join(tokenizer.spellings)
    code = "from clearformer.text.kinds import imported; print(ascii(imported._NO_TEXT))"
    names = {subprocess.run([sys.executable, "-c", code], capture_output=True).stdout for _ in range(2)}
    assert len(names) == 2


def test_a_space_before_each_line_is_a_loss():
    lines = {"type": "Split", "pattern": {"String": "\n"}, "behavior": "Isolated", "invert": False}
    cut = {"type": "Sequence", "pretokenizers": [lines, ALWAYS]}
    tokenizer = ImportedTokenizer(LLAMA | {"pre_tokenizer": cut})
    assert tokenizer.decode(tokenizer.encode("t\nh")) == "t \n h"
    assert not tokenizer.lossless


def test_the_label_of_a_special_token_is_one_line():
    tokenizer = ImportedTokenizer(NEOX | {"added_tokens": [special("<a\nb>", 258)]})
    assert tokenizer.token_label(258) == "<a\\nb>"


def test_a_space_that_is_spelled_is_no_loss():
    spelled = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, spelled]}
    tokenizer = ImportedTokenizer(LLAMA | {"pre_tokenizer": None, "normalizer": normalizer})
    assert tokenizer.lossless
    assert tokenizer.decode(tokenizer.encode("th  日 ")) == "th  日 "


def test_truncation_and_padding_of_the_file_are_left_out():
    cut = LLAMA | {
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 50},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<unk>",
        },
    }
    assert (
        ImportedTokenizer(cut).encode("th th th th").tolist()
        == ImportedTokenizer(LLAMA).encode("th th th th").tolist()
    )


def test_the_file_is_kept_to_the_byte_and_the_roles_beside_it(tmp_path: Path):
    published = json.dumps(LLAMA, indent=7) + "\n\n"
    roles = {"bos": "<s>", "pad": "</s>"}
    tokenizer = ImportedTokenizer(published, roles)
    tokenizer.save(tmp_path / "tokenizer.json")
    assert (tmp_path / "tokenizer.json").read_text(encoding="utf-8") == published
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert isinstance(loaded, ImportedTokenizer)
    assert (loaded.bos_id, loaded.pad_id, loaded.eos_id) == (1, 2, None)
    assert loaded.to_json() == tokenizer.to_json() == published
    assert loaded.fingerprint() == tokenizer.fingerprint()
    assert ImportedTokenizer(published).fingerprint() != tokenizer.fingerprint()
    tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))


def test_roles_that_differ_from_those_of_the_names_hold_where_the_file_could_be_ours(tmp_path: Path):
    ours = ByteTokenizerSpec().train((), specials_of("encoder-decoder"))
    imported = ImportedTokenizer(ours.to_json(), {"pad": "<pad>", "bos": "<pad>", "eos": "<eos>"})
    imported.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert (loaded.pad_id, loaded.bos_id, loaded.eos_id) == (256, 256, 258)
    assert loaded.fingerprint() == imported.fingerprint()


@pytest.mark.parametrize(
    ("published", "roles"),
    [
        (LLAMA, {"bos": 1, "eos": 2, "unk": 0}),
        (T5, {"pad": 0, "eos": 1, "unk": 2}),
        (NEOX, {"bos": 0, "eos": 0, "pad": 1}),
        (BERT, {"pad": 0, "bos": 5, "eos": 6, "unk": 4}),
    ],
    ids=["llama", "t5", "neox", "bert"],
)
def test_without_a_file_beside_it_roles_go_by_the_usual_names(tmp_path: Path, published: dict, roles: dict):
    (tmp_path / "tokenizer.json").write_text(json.dumps(published))
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    found = {role: getattr(loaded, f"{role}_id") for role in ("pad", "bos", "eos", "unk", "mask")}
    assert {role: token for role, token in found.items() if token is not None} == roles


def test_a_file_beside_it_that_names_no_roles_leaves_them_to_the_usual_names(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(BERT))
    for beside, roles in (('{"do_lower_case": true}', (5, 6, 4)), ("{}", (None, None, None))):
        (tmp_path / "tokenizer_config.json").write_text(beside)
        loaded = load_tokenizer(tmp_path / "tokenizer.json")
        assert (loaded.bos_id, loaded.eos_id, loaded.unk_id) == roles


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"cls": "<s>"}, "role is one of pad, bos, eos, unk, mask; got 'cls'"),
        ({"bos": "<bos>"}, "its bos token is set to '<bos>'"),
        ({"eos": 999}, "its eos token is set to 999"),
        ({"eos": -1}, "its eos token is set to -1"),
    ],
)
def test_a_role_that_will_not_do_is_named(roles: dict, message: str):
    with pytest.raises(TokenizerError, match=message):
        ImportedTokenizer(LLAMA, roles)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "gpt"}, "not a tokenizer"),
        ({"model": {"type": "BPE"}}, "cannot read it"),
        ({"added_tokens": [{"id": 0}]}, "cannot read it"),
        (
            {"decoder": {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True}},
            "unknown decoder 'CTC'",
        ),
        ({"decoder": {"type": "Strip", "content": "x", "start": 0, "stop": 1}}, "unknown decoder 'Strip'"),
        (
            {"decoder": {"type": "Replace", "pattern": {"Regex": "a"}, "content": ""}},
            "unknown decoder 'Replace'",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(changes: dict, message: str):
    with pytest.raises(TokenizerError, match=message) as caught:
        ImportedTokenizer(LLAMA | changes)
    assert "\n" not in str(caught.value)


def test_many_special_tokens_are_not_all_named():
    added = [special(f"<extra_{i}>", 259 + i) for i in range(100)]
    tokenizer = ImportedTokenizer(LLAMA | {"added_tokens": [*LLAMA["added_tokens"], *added]})
    assert repr(tokenizer).endswith("<extra_3> and 96 more)")
