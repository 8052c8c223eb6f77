"""Conversion of vocabularies from before tokenizer.json to such a file: GPT-2's, BART's, BERT's and Marian's."""

from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from clearformer.errors import TokenizerError
from clearformer.interop.reading import read_json
from clearformer.interop.tokenizers.sentencepiece import Pieces, read_pieces
from clearformer.text.documents import added_tokens
from clearformer.text.kinds.bpe import BYTE_LEVEL
from clearformer.text.kinds.imported import TARGET_SCORES
from clearformer.text.tokenizer import (
    BERT_CLS,
    BERT_MASK,
    BERT_PAD,
    BERT_SEP,
    BERT_UNK,
    END_OF_TEXT,
    added_token,
)

TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
LISTS_OF_SPECIALS = ("additional_special_tokens", "extra_special_tokens")
BART_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
# The log-probability of a token of only the other language, below any other segmentation without <unk>.
NEVER = -1e4


def from_older_files(folder: Path) -> dict[str, Any] | None:
    """Convert the vocabulary in a folder to a tokenizer.json; return None if there is none."""
    kinds: list[tuple[tuple[str, ...], str, Callable[[Path], dict[str, Any]]]] = [
        (("vocab.json", "merges.txt"), "GPT2 Bart Roberta Longformer LED CodeGen GPTNeoX", _gpt2),
        (("vocab.txt",), "Bert DistilBert Electra MobileBert", _bert),
        (("vocab.json", "source.spm"), "Marian", _marian),
    ]
    for files, classes, make in kinds:
        if all((folder / name).is_file() for name in files):
            _check_class(folder, files, classes.split())
            document = make(folder)
            add_tokens(document, folder)
            return document
    return None


def settings_in(folder: Path, name: str) -> dict[str, Any]:
    """Return what a JSON file says, if there is one."""
    return read_json(folder / name) if (folder / name).is_file() else {}


def spelling_in(token: Any) -> str | None:
    """Return the spelling of a token in such a file, which may be an object with flags; None for anything else."""
    spelling = token.get("content") if isinstance(token, Mapping) else token
    return spelling if isinstance(spelling, str) else None


def _check_class(folder: Path, files: Iterable[str], known: Container[str]) -> None:
    """Refuse the files of a class of tokenizers that has rules of its own for files of the same names."""
    for name in (TOKENIZER_CONFIG, "config.json"):
        named = settings_in(folder, name).get("tokenizer_class")
        if isinstance(named, str) and named.removesuffix("Fast").removesuffix("Tokenizer") not in known:
            raise TokenizerError(
                f"{folder / name}: tokenizer_class: {named} reads {' and '.join(files)} in a way of its own, which "
                "clearformer lacks: save this tokenizer as tokenizer.json with transformers, if it can"
            )


def add_tokens(document: dict[str, Any], folder: Path) -> None:
    """Add the tokens that a user added to a vocabulary, which have files of their own."""
    known = {token["content"] for token in added_tokens(document)}
    added = [token for token in _tokens_added(folder) if token["content"] not in known]
    vocab = document["model"].get("vocab")
    if vocab is None:
        raise TokenizerError(f"{folder / 'tokenizer.json'}: model.vocab is missing; download it again")
    if isinstance(vocab, dict):  # else the library numbers these itself, from the vocabulary's size
        ids = {token["content"]: token["id"] for token in added}
        document["model"]["vocab"] = vocab | {name: i for name, i in ids.items() if name not in vocab}
    document["added_tokens"] = [*added_tokens(document), *added]


def _tokens_added(folder: Path) -> list[dict[str, Any]]:
    """Return those tokens by id; if tokenizer_config.json lists them, transformers passes over the older file."""
    listed = settings_in(folder, TOKENIZER_CONFIG).get("added_tokens_decoder")
    if listed is None:
        path, specials = folder / ADDED_TOKENS, _special_names(folder)
        ids = _vocabulary(path) if path.is_file() else {}
        added = [
            added_token(name, token) | {"special": name in specials, "normalized": name not in specials}
            for name, token in ids.items()
        ]
    else:
        flags = {name: flag for name, flag in added_token("", 0).items() if name not in ("id", "special")}
        added = [
            {name: token.get(name, flag) for name, flag in flags.items()}
            | {"id": int(number), "special": token.get("special", False)}
            for number, token in _listed(listed, folder).items()
        ]
    return sorted(added, key=lambda token: token["id"])


def _listed(tokens: Any, folder: Path) -> dict[str, dict[str, Any]]:
    if not isinstance(tokens, dict) or not all(
        number.isdecimal() and len(number) < 10 and isinstance(token, dict) and spelling_in(token)
        for number, token in tokens.items()
    ):
        raise TokenizerError(
            f"{folder / TOKENIZER_CONFIG}: added_tokens_decoder: expected tokens with a content, by id; "
            "download it again"
        )
    return tokens


def _special_names(folder: Path) -> set[str | None]:
    """Return the tokens that have a role, and those that are listed as special."""
    names: set[str | None] = set()
    for file in (SPECIAL_TOKENS, TOKENIZER_CONFIG):
        for key, value in settings_in(folder, file).items():
            if key.endswith("_token") or key in LISTS_OF_SPECIALS:
                names.update(map(spelling_in, value if isinstance(value, list) else [value]))
    return names


def _document(
    model: dict[str, Any], specials: list[str], vocab: dict[str, int], **parts: Any
) -> dict[str, Any]:
    absent: dict[str, Any] = {
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(name, vocab[name]) for name in specials if name in vocab],
        **absent,
        **parts,
        "model": model,
    }


def _gpt2(folder: Path) -> dict[str, Any]:
    """Convert byte-level BPE: GPT-2's, or BART's, which has tokens of its own around a text."""
    vocab = _vocabulary(folder / "vocab.json")
    lines = _lines(folder / "merges.txt")
    merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    model = {"type": "BPE", "vocab": vocab, "merges": merges}
    spaced = settings_in(folder, TOKENIZER_CONFIG).get("add_prefix_space") or False
    parts: dict[str, Any] = {
        "pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": spaced},
        "decoder": BYTE_LEVEL,
    }
    if not vocab.keys() >= set(BART_SPECIALS):
        return _document(model, [END_OF_TEXT], vocab, **parts)
    parts["post_processor"] = {
        "type": "RobertaProcessing",
        "sep": ["</s>", vocab["</s>"]],
        "cls": ["<s>", vocab["<s>"]],
        "trim_offsets": True,
        "add_prefix_space": spaced,
    }
    return _document(model, list(BART_SPECIALS), vocab, **parts)


def _bert(folder: Path) -> dict[str, Any]:
    vocab = {token: i for i, token in enumerate(_lines(folder / "vocab.txt"))}
    settings = settings_in(folder, TOKENIZER_CONFIG)
    specials = [BERT_PAD, BERT_UNK, BERT_CLS, BERT_SEP, BERT_MASK]
    if missing := [name for name in specials if name not in vocab]:
        raise TokenizerError(f"{folder / 'vocab.txt'}: {missing[0]} is missing; download it again")
    return _document(
        {
            "type": "WordPiece",
            "unk_token": BERT_UNK,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
        specials,
        vocab,
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
            "strip_accents": settings.get("strip_accents"),
            "lowercase": settings.get("do_lower_case", True),
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor={
            "type": "BertProcessing",
            "sep": [BERT_SEP, vocab[BERT_SEP]],
            "cls": [BERT_CLS, vocab[BERT_CLS]],
        },
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": False},
    )


def _marian(folder: Path) -> dict[str, Any]:
    """Convert the joint vocabulary of two languages; each has probabilities of its own, by which texts are cut."""
    vocab = _vocabulary(folder / "vocab.json")
    source = read_pieces(folder / "source.spm")
    if "</s>" not in vocab:
        raise TokenizerError(f"{folder / 'vocab.json'}: </s> is missing; download it again")
    tokens = sorted(vocab, key=vocab.__getitem__)
    if [vocab[token] for token in tokens] != list(range(len(tokens))):
        raise TokenizerError(
            f"{folder / 'vocab.json'}: its ids do not run from 0 without a gap; download it again"
        )
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    end = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    first = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 0}}
    target = folder / "target.spm"
    logprobs = read_pieces(target).logprobs if target.is_file() else source.logprobs
    document = _document(
        {
            "type": "Unigram",
            "unk_id": vocab.get("<unk>", 0),
            "vocab": [[token, source.logprobs.get(token, NEVER)] for token in tokens],
            "byte_fallback": False,
            TARGET_SCORES: [logprobs.get(token, NEVER) for token in tokens],
        },
        ["</s>", "<unk>", "<pad>"],
        vocab,
        normalizer=_sentencepiece_normalizer(source),
        pre_tokenizer=metaspace,
        post_processor={
            "type": "TemplateProcessing",
            "single": [first, end],
            "pair": [first, second, end],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [vocab["</s>"]], "tokens": ["</s>"]}},
        },
        decoder=metaspace,
    )
    # Some models are told the language to write by such a token before the text.
    codes = [token for token in tokens if token.startswith(">>") and token.endswith("<<")]
    document["added_tokens"] += [added_token(code, vocab[code]) | {"special": False} for code in codes]
    return document


def _sentencepiece_normalizer(model: Pieces) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if model.replacements is not None:
        steps.append({"type": "Precompiled", "precompiled_charsmap": model.replacements})
    if not model.spaces_kept:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return {"type": "Sequence", "normalizers": steps}


def _vocabulary(path: Path) -> dict[str, int]:
    vocab: dict[str, Any] = read_json(path)
    if not all(type(token) is int for token in vocab.values()):
        raise TokenizerError(f"{path}: does not map tokens to ids; download it again")
    return vocab


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError):
        raise TokenizerError(f"{path}: not UTF-8 text; download it again") from None
