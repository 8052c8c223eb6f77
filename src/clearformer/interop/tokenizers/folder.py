"""A tokenizer and its special tokens in a folder of transformers: writing and reading."""

import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from clearformer.errors import TokenizerError, shown
from clearformer.interop.mapping.fields import Fields
from clearformer.interop.reading import GENERATION, read_json
from clearformer.interop.tokenizers.legacy import (
    SPECIAL_TOKENS,
    TOKENIZER_CONFIG,
    add_tokens,
    from_older_files,
    settings_in,
    spelling_in,
)
from clearformer.model import ModelConfig
from clearformer.text import Tokenizer, VocabularyTokenizer
from clearformer.text.documents import added_tokens, check_is_tokenizer, open_backend
from clearformer.text.kinds.imported import ImportedTokenizer, marks_around
from clearformer.text.load import own_tokenizer
from clearformer.text.tokenizer import (
    BERT_CLS,
    BERT_MASK,
    BERT_PAD,
    BERT_SEP,
    BERT_UNK,
    ROLES,
    added_token,
)

logger = logging.getLogger(__name__)

ROLE_IDS = tuple(f"{role}_id" for role in ROLES)
TOKENIZER = "tokenizer.json"
BERT_NAMES = {  # which transformers takes where a folder names none, as those of the first BERTs
    "pad_token": BERT_PAD,
    "unk_token": BERT_UNK,
    "cls_token": BERT_CLS,
    "sep_token": BERT_SEP,
    "mask_token": BERT_MASK,
}
STEERING = {
    "forced_bos_token_id": None,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "sequence_bias": {},
}
"""Settings of what transformers writes that clearformer's decoding lacks, and the values that change nothing."""


# --- writing ----------------------------------------------------------------------------------------------


def tokenizer_documents(tokenizer: Tokenizer, config: ModelConfig) -> dict[str, dict[str, Any]]:
    """Return the two files of a tokenizer by name.

    The file itself puts special tokens around a text, so that transformers gives the model the same ids as we do. A
    special token's name inside a text is characters here; transformers reads it as the token, as it always does.

    Raises:
        TokenizerError: the tokenizer is of a kind that only clearformer reads.
    """
    if isinstance(tokenizer, VocabularyTokenizer):
        raise TokenizerError(
            f"tokenizer.kind={tokenizer.kind} does not fit: it is a kind of your own, which transformers does not know"
        )
    # The library would cut texts short, or fill them up, at every call; clearformer does neither.
    document = json.loads(tokenizer.to_json()) | {"truncation": None, "padding": None}
    around = _read_around(tokenizer, config.family)
    if _put_around(document) != around:  # an imported one may put a [SEP] behind a prompt, say
        second_type = int(config.n_token_types > 1)
        document["post_processor"] = _template(tokenizer, *around, second_type)
    if tokenizer.for_targets is not tokenizer:
        logger.warning(
            "the tokenizer cuts texts to write by scores of their own, which transformers does not read from "
            "tokenizer.json: there tokenizer(text_target=...) may cut them otherwise"
        )
    return {TOKENIZER: document, TOKENIZER_CONFIG: _roles_there(tokenizer, config)}


def _read_around(tokenizer: Tokenizer, family: str) -> tuple[list[int], list[int]]:
    """Return the ids that a model reads before and behind a text.

    They are <bos> before a prompt, [CLS] and [SEP] around an encoder's text, and <eos> after a text to translate.
    """
    before = tokenizer.before_pair if family == "encoder-decoder" else (tokenizer.bos_id,)
    behind = () if family == "decoder" else (tokenizer.eos_id,)
    return [token for token in before if token is not None], [token for token in behind if token is not None]


def _put_around(document: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Return the ids that the tokenizer of a document puts before and behind a text."""
    return ([], []) if document.get("post_processor") is None else marks_around(open_backend(document))


def _template(
    tokenizer: Tokenizer, before_ids: list[int], behind_ids: list[int], second_type: int
) -> dict[str, Any] | None:
    """Return the part of a document that puts these ids around a text; None if there are none.

    The second text of a pair has the type `second_type`.
    """
    before, behind = ([tokenizer.spellings[token] for token in ids] for ids in (before_ids, behind_ids))
    if not before and not behind:
        return None
    first = [*_special(before, 0), {"Sequence": {"id": "A", "type_id": 0}}, *_special(behind, 0)]
    second = [{"Sequence": {"id": "B", "type_id": second_type}}, *_special(behind, second_type)]
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": first + second,
        "special_tokens": {
            name: {"id": name, "ids": [tokenizer.id_of(name)], "tokens": [name]} for name in before + behind
        },
    }


def _special(names: Sequence[str], text: int) -> list[dict[str, Any]]:
    return [{"SpecialToken": {"id": name, "type_id": text}} for name in names]


def _roles_there(tokenizer: Tokenizer, config: ModelConfig) -> dict[str, Any]:
    """Return tokenizer_config.json, which names the special tokens by their roles."""
    ids = {
        "bos_token": tokenizer.bos_id,
        "eos_token": tokenizer.eos_id,
        "unk_token": tokenizer.unk_id,
        "pad_token": tokenizer.pad_id,
        "mask_token": tokenizer.mask_id,
    }
    if config.family == "encoder":
        ids |= {"cls_token": ids.pop("bos_token"), "sep_token": ids.pop("eos_token")}
    types = ["token_type_ids"] if config.family == "encoder" else []
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", *types, "attention_mask"],
        "model_max_length": config.max_seq_len,
        "padding_side": "left" if config.family == "decoder" else "right",
        **{role: tokenizer.spellings[token] for role, token in ids.items() if token is not None},
    }


# --- reading ----------------------------------------------------------------------------------------------


def read_tokenizer(folder: Path, fields: Fields, config: ModelConfig) -> Tokenizer:
    """Read the tokenizer of a folder, and add unused tokens up to the size of the model's vocabulary.

    One of our kinds that was written here is read as that kind, any other as an `ImportedTokenizer`.

    Raises:
        TokenizerError: there is none, it is damaged, or it has more tokens than the model.
        ConfigError: a special token's id in config.json is no whole number.
    """
    document = read_document(folder)
    own = _written_here(folder, document, config)
    try:
        backend = open_backend(document)
        ids = backend.get_vocab(with_added_tokens=True)
        before, _ = marks_around(backend)
        _fill_up(document, ids, config.vocab_size or 0)
        roles = _roles_here(folder, fields, config, ids, before)
        if config.family == "decoder" and "pad_token" not in _named_tokens(folder):
            _drop_padding_of_text(roles, document)
        imported = ImportedTokenizer(document, roles)
    except TokenizerError as error:
        raise TokenizerError(f"{folder / TOKENIZER}: {error}") from None
    if own is not None and all(getattr(own, role) == getattr(imported, role) for role in ROLE_IDS):
        return own
    return imported


def _written_here(folder: Path, document: dict[str, Any], config: ModelConfig) -> Tokenizer | None:
    """Return the tokenizer of a folder that `tokenizer_documents` made, which is one of our kinds; else None."""
    try:
        own = own_tokenizer({**document, "post_processor": None})
    except TokenizerError:  # the import says more about it
        return None
    if own is None or own.vocab_size != config.vocab_size or not (folder / TOKENIZER_CONFIG).is_file():
        return None
    there = {TOKENIZER: document, TOKENIZER_CONFIG: read_json(folder / TOKENIZER_CONFIG)}
    return own if there == tokenizer_documents(own, config) else None


def read_document(folder: Path) -> dict[str, Any]:
    """Read the tokenizer.json of a folder, or convert older files in it."""
    if (folder / TOKENIZER).is_file():
        document = read_json(folder / TOKENIZER)
        if settings_in(folder, TOKENIZER_CONFIG).get("added_tokens_decoder"):  # of an older file, with others
            check_is_tokenizer(document)
            add_tokens(document, folder)
        return document
    document = from_older_files(folder)
    if document is None:
        raise TokenizerError(
            f"{folder} has no {TOKENIZER}, and no vocab.json with merges.txt, vocab.txt or source.spm: "
            f"save its tokenizer again with transformers (AutoTokenizer.from_pretrained(...).save_pretrained(...))"
        )
    return document


def _fill_up(document: dict[str, Any], ids: Mapping[str, int], n_rows: int) -> None:
    """Add tokens for unused rows of the model's embedding matrix, whose size is often rounded up."""
    n_tokens = max(ids.values(), default=-1) + 1
    if n_tokens > n_rows:
        raise TokenizerError(
            f"{n_tokens:,} tokens, but the model's vocab_size in config.json is {n_rows:,}: "
            f"they are not from the same model"
        )
    unused = {f"[unused-row-{token}]": token for token in sorted(set(range(n_rows)).difference(ids.values()))}
    vocab = document["model"]["vocab"]
    if isinstance(vocab, dict):  # else the library numbers these itself, from the vocabulary's size
        document["model"]["vocab"] = vocab | unused
    document["added_tokens"] = [
        *added_tokens(document),
        *(added_token(name, token) for name, token in unused.items()),
    ]


def _drop_padding_of_text(roles: dict[str, int], document: Mapping[str, Any]) -> None:
    """Drop a padding token that stands for text, such as GPT-2's "!" by `pad_token_id: 0`; a decoder needs none."""
    if roles.get("pad") not in {token["id"] for token in added_tokens(document) if token.get("special")}:
        roles.pop("pad", None)


def _roles_here(
    folder: Path, fields: Fields, config: ModelConfig, vocabulary: Mapping[str, int], before: list[int]
) -> dict[str, int]:
    """Return the ids of the special tokens by role, from the tokenizer's files, config.json and generation_config.json.

    A text ends at one token; where the files name several, the first is taken and a message says so.

    `before` holds the ids that the tokenizer puts before a text.
    """
    family, first_of = config.family, partial(_first_of, config.vocab_size or 0)
    usual = BERT_NAMES if family == "encoder" else {}
    ids = {role: vocabulary.get(name) for role, name in (usual | _named_tokens(folder)).items()}
    ends = [*fields.ids("eos_token_id"), *_generation(folder).ids("eos_token_id")]
    roles = {
        "unk": ids.get("unk_token"),
        "mask": ids.get("mask_token"),
        "pad": first_of(ids.get("pad_token"), *fields.ids("pad_token_id")),
        "eos": first_of(*ends, ids.get("eos_token")),
    }
    if family == "decoder":
        # The model was trained to read <bos> before a text only if the tokenizer itself puts it there. That of
        # config.json does not count: it is a class's default where nobody set it.
        told = settings_in(folder, TOKENIZER_CONFIG).get("add_bos_token")
        # Beside a tokenizer.json transformers passes over it.
        if type(told) is bool and not (folder / TOKENIZER).is_file():
            named = ids.get("bos_token") if told else None
            before = [] if named is None else [named]
        roles["bos"] = next(iter(before), None)
        if len(before) > 1:
            names = {token: name for name, token in vocabulary.items()}
            logger.warning(
                "%s: its tokenizer puts %s before a text; clearformer puts the first of them alone",
                folder,
                " ".join(names[token] for token in before),
            )
    elif family == "encoder":
        roles |= {"bos": ids.get("cls_token"), "eos": ids.get("sep_token")}
        _check_encoder_has(roles, masked=config.n_classes is None)
    else:
        # As in transformers, what steers generation goes before the model's own settings.
        starts = [*_generation(folder).ids("decoder_start_token_id"), *fields.ids("decoder_start_token_id")]
        roles["bos"] = first_of(*starts, roles["pad"])
    several = dict.fromkeys(token for token in ends if first_of(token) is not None)
    if family != "encoder" and len(several) > 1:
        logger.warning(
            "%s: eos_token_id names the tokens %s; a text ends at %s alone (stop texts can end it at the others)",
            folder,
            ", ".join(map(str, several)),
            roles["eos"],
        )
    if family != "encoder":
        is_never_written = family == "encoder-decoder" and roles["pad"] != roles["eos"]
        _warn_of_steering(folder, fields, [roles["pad"]] if is_never_written else [])
    return {role: token for role, token in roles.items() if token is not None}


def _warn_of_steering(folder: Path, fields: Fields, never_written: list[int | None]) -> None:
    """Say which of transformers' settings change what it writes, but for tokens that are written by neither."""
    generation = _generation(folder)
    values = {name: generation.get(name, fields.get(name)) for name in STEERING}
    steering = [
        f"{name}={shown(value)}"
        for name, value in values.items()
        if value not in (None, STEERING[name]) and (name, value) != ("suppress_tokens", never_written)
    ]
    if steering:
        logger.warning(
            "%s: transformers follows %s when it writes a text; clearformer does not, so its texts can differ",
            folder,
            ", ".join(steering),
        )


def _generation(folder: Path) -> Fields:
    """Return what generation_config.json says, if there is one."""
    path = folder / GENERATION
    return Fields(read_json(path) if path.is_file() else {}, str(path))


def _check_encoder_has(roles: Mapping[str, int | None], masked: bool) -> None:
    needed = {"pad_token": "pad", "cls_token": "bos", "sep_token": "eos"} | (
        {"mask_token": "mask"} if masked else {}
    )
    if lacking := [name for name, role in needed.items() if roles[role] is None]:
        raise TokenizerError(
            f"an encoder needs {', '.join(lacking)}: name the token of its vocabulary in {TOKENIZER_CONFIG}"
        )


def _first_of(n_rows: int, *candidates: int | None) -> int | None:
    """Return the first candidate that is an id of the model.

    Old files have -1 for none, and a GPT-2 of few tokens still the id of the original's <|endoftext|>.
    """
    return next((token for token in candidates if token is not None and 0 <= token < n_rows), None)


def _named_tokens(folder: Path) -> dict[str, str]:
    """Return special tokens by role, from tokenizer_config.json and special_tokens_map.json if they exist."""
    named = {}
    for name in (SPECIAL_TOKENS, TOKENIZER_CONFIG):
        for role, token in settings_in(folder, name).items():
            spelling = spelling_in(token)
            if role.endswith("_token") and spelling is not None:
                named[role] = spelling
    return named
