"""tokenizer.json: of every kind that is ours, and of kinds that others make."""

import json
import random
import unicodedata
from pathlib import Path
from typing import Any

from clearformer.errors import TokenizerError
from clearformer.text import (
    BPETokenizerSpec,
    ByteTokenizerSpec,
    CharTokenizerSpec,
    ImportedTokenizer,
    StreamDecoder,
    Tokenizer,
    UnigramTokenizerSpec,
    WordPieceTokenizerSpec,
    load_tokenizer,
    specials_of,
)
from clearformer.text.kinds.byte import BYTE_SPELLINGS

from ..cases import Case, Violation
from ..mutations import draw_file_step, spoil_file

CORPUS = ["the quick brown fox jumps over the lazy dog; the dog sleeps\n" * 9]
TEXTS = (
    "",
    "the dog",
    "  the\tdog\n\n",
    "quick<bos><unk>[CLS]<|endoftext|>",
    "日本 🦎 e\u0301 \u200b\ufeff\0",
    "▁ ##x <0x41> Ġ",
    "x" * 300,
    "\u2028\r\n\x85\x1c",
)


class Tokenizers:
    """Loaded, and if loaded used; a base is the name of a file, without its ending."""

    name = "tokenizers"

    def prepare(self, originals: Path) -> None:
        """Train one of each kind, and write those of others."""
        for name, spec, family in (
            ("char", CharTokenizerSpec(), "decoder"),
            ("char of an encoder", CharTokenizerSpec(unk=True), "encoder"),
            ("byte", ByteTokenizerSpec(bos=True), "decoder"),
            ("byte of pairs", ByteTokenizerSpec(), "encoder-decoder"),
            ("bpe", BPETokenizerSpec(vocab_size=270, eos=True), "decoder"),
            ("wordpiece", WordPieceTokenizerSpec(vocab_size=90), "encoder"),
            ("unigram", UnigramTokenizerSpec(vocab_size=290), "encoder-decoder"),
        ):
            spec.train(CORPUS, specials_of(family)).save(originals / f"{name}.json")
        for name, document in OTHERS.items():
            (originals / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")

    def draw(self, rng: random.Random, originals: Path) -> Case:
        """One to three changes of a file."""
        path = rng.choice(sorted(originals.glob("*.json")))
        steps = [draw_file_step(rng, path) for _ in range(rng.choice([1, 1, 2, 3]))]
        return Case(self.name, path.stem, tuple(steps))

    def run(self, case: Case, originals: Path, place: Path) -> None:
        """Load; encode and decode what it can."""
        path = place / "tokenizer.json"
        path.write_bytes((originals / f"{case.base}.json").read_bytes())
        for step in case.steps:
            spoil_file(path, step)
        content = path.read_bytes()
        tokenizer = load_tokenizer(path)
        if path.read_bytes() != content:
            raise Violation("loading a file changed it")
        for text in TEXTS:
            use(tokenizer, text)
        tokenizer.save(place / "again" / "tokenizer.json")
        if load_tokenizer(place / "again" / "tokenizer.json").fingerprint() != tokenizer.fingerprint():
            raise Violation("a saved tokenizer loads as another")


def use(tokenizer: Tokenizer, text: str) -> None:
    """Encode a text, and hold what is promised of it."""
    try:
        ids = tokenizer.encode(text)
    except TokenizerError as error:
        if len(str(error).splitlines()) != 1:
            raise Violation(f"an error of several lines: {error}") from None
        return
    listed = ids.tolist()
    if any(not 0 <= token < tokenizer.vocab_size for token in listed):
        raise Violation("an id lies outside the vocabulary")
    if len(tokenizer.starts_word(ids)) != len(listed):
        raise Violation("starts_word is of another length")
    for token in {*listed, 0, tokenizer.vocab_size - 1}:
        if len(tokenizer.token_label(token).splitlines()) > 1:
            raise Violation(f"the label of token {token} has several lines")
    decoded = tokenizer.decode(tokenizer.wrap(ids))
    stream = StreamDecoder(tokenizer)
    if "".join([*(stream.push(token) for token in listed), stream.flush()]) != tokenizer.decode(ids):
        raise Violation(f"{text[:50]!r} is streamed otherwise than decoded")
    if tokenizer.unk_id in listed:
        return
    if decoded != tokenizer.normalized(text):
        raise Violation(
            f"{text[:50]!r} comes back as {decoded[:50]!r}, and not as {tokenizer.normalized(text)[:50]!r}"
        )
    if tokenizer.lossless and not same_text(tokenizer, decoded, text):
        raise Violation(f"{text[:50]!r} comes back as {decoded[:50]!r}, and nothing is to be lost")


def same_text(tokenizer: Tokenizer, decoded: str, text: str) -> bool:
    """Whether a text came back, the sign for a space aside.

    Of an imported tokenizer, spaces before it and composed letters aside too: its file may ask for either.
    """
    one, other = (each.replace("▁", " ") for each in (decoded, text))
    if isinstance(tokenizer, ImportedTokenizer):
        one, other = (unicodedata.normalize("NFC", each).lstrip(" ") for each in (one, other))
    return one == other


# --- those of others --------------------------------------------------------------------------------------


def _special(name: str, token: int) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token, "content": name, **flags}


def _document(model: dict[str, Any], added: list[str], **parts: Any) -> dict[str, Any]:
    names = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    specials = [_special(name, token) for token, name in enumerate(added)]
    return {"version": "1.0", **dict.fromkeys(names), "added_tokens": specials, **parts, "model": model}


_METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_LLAMA = ["<unk>", "<s>", "</s>", *_BYTES, "▁", "t", "h", "▁t", "▁th"]
_NEOX = ["<|endoftext|>", "<|padding|>", *BYTE_SPELLINGS, "th"]
_BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "##s", ".", "a", "b"]
OTHERS = {
    "llama": _document(
        {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(_LLAMA)},
            "merges": [["▁", "t"], ["▁t", "h"]],
            "byte_fallback": True,
            "fuse_unk": True,
            "unk_token": "<unk>",
        },
        ["<unk>", "<s>", "</s>"],
        pre_tokenizer=_METASPACE,
        decoder={
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
    ),
    "t5": _document(
        {
            "type": "Unigram",
            "unk_id": 2,
            "vocab": [
                *([name, 0.0] for name in ("<pad>", "</s>", "<unk>")),
                *([piece, -3.0] for piece in "▁thedog"),
            ],
        },
        ["<pad>", "</s>", "<unk>"],
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, _METASPACE | {"prepend_scheme": "always"}],
        },
        decoder=_METASPACE | {"prepend_scheme": "always"},
        post_processor={
            "type": "TemplateProcessing",
            "single": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "</s>", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
        },
    ),
    "neox": _document(
        {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(_NEOX)},
            "merges": [["t", "h"]],
        },
        ["<|endoftext|>", "<|padding|>"],
        normalizer={"type": "NFC"},
        pre_tokenizer=_BYTE_LEVEL,
        decoder=_BYTE_LEVEL,
        post_processor=_BYTE_LEVEL,
    ),
    "bert": _document(
        {
            "type": "WordPiece",
            "vocab": {token: number for number, token in enumerate(_BERT)},
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
        _BERT[:5],
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
    ),
    "words": _document(
        {"type": "WordLevel", "vocab": {"the": 0, "dog": 4, "?": 2}, "unk_token": "?"},
        [],
        pre_tokenizer={"type": "Whitespace"},
    ),
}
