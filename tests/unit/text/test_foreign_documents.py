"""Files of others that are spoilt: one line each, before the library ends in a panic or fills the memory."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clearformer.errors import ClearformerError, TokenizerError
from clearformer.text import ImportedTokenizer, UnigramTokenizerSpec, load_tokenizer
from clearformer.text.documents import library_errors

from .kinds.test_imported import BERT, LLAMA, NEOX, T5

PUBLISHED = {"llama": LLAMA, "t5": T5, "neox": NEOX, "bert": BERT}
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
}


def refusal(document: Any, capfd: pytest.CaptureFixture[str]) -> str:
    """The one line; nothing else is written, by the library neither."""
    with pytest.raises(TokenizerError) as caught:
        ImportedTokenizer(document)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    assert capfd.readouterr() == ("", "")
    return message


def with_model(**changes: Any) -> dict[str, Any]:
    return LLAMA | {"model": LLAMA["model"] | changes}


@pytest.mark.parametrize("section", ["normalizer", "pre_tokenizer", "decoder", "post_processor"])
@pytest.mark.parametrize(
    "part", [["x"], [], 5, "Lowercase", {"type": 5}, {"type": []}, {"type": "Sequence", "decoders": [["x"]]}]
)
def test_a_part_that_is_no_object_with_a_type(
    section: str, part: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    refusal(LLAMA | {section: part}, capfd)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"special_tokens": {}}, "has '<s>', but does not say which token that is"),
        ({"single": [{"SpecialToken": {"id": "<none>", "type_id": 0}}]}, "has '<none>'"),
        (
            {"special_tokens": {"<s>": {"id": "<s>", "ids": [10**6], "tokens": ["<s>"]}}},
            "puts the token 1000000 around a text",
        ),
    ],
)
def test_a_template_of_tokens_that_are_not_there(
    template: dict[str, Any], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    ImportedTokenizer(LLAMA | {"post_processor": TEMPLATE})
    assert message in refusal(LLAMA | {"post_processor": TEMPLATE | template}, capfd)


@pytest.mark.parametrize(
    "changes",
    [
        {"merges": [["▁t", "▁"]]},
        {"merges": [["▁", "t", "h"]]},
        {"merges": ["▁t h x"]},
        {"merges": [5]},
        {"merges": 5},
        {"merges": {"▁": "t"}},
        {"continuing_subword_prefix": "▁"},
        {"continuing_subword_prefix": "##"},
    ],
)
def test_merges_that_give_no_token(changes: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    assert "merge" in refusal(with_model(**changes), capfd)


@pytest.mark.parametrize("token", [2**22, 10**9, 2**32 - 1, 2**32, 10**30, -1, 0])
def test_an_id_that_is_too_large_or_given_twice(token: int, capfd: pytest.CaptureFixture[str]) -> None:
    refusal(with_model(vocab=LLAMA["model"]["vocab"] | {"h": token}), capfd)


def test_what_has_no_end_is_cut_in_the_message(capfd: pytest.CaptureFixture[str]) -> None:
    assert "xxx..." in refusal(with_model(merges=[["x" * 5000, "t"]]), capfd)
    assert refusal(with_model(vocab={"x" * 5000: "y" * 5000}), capfd)


def test_a_piece_without_end_does_not_end_the_process(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The library walks through a piece's characters by recursion: of 200,000 the stack is too small."""
    said = "damaged: a token has 200,000 characters, but a vocabulary's have at most 4,096"
    vocab = [*T5["model"]["vocab"], ["x" * 200_000, -1.0]]
    assert said in refusal(T5 | {"model": T5["model"] | {"vocab": vocab}}, capfd)
    ours = json.loads(UnigramTokenizerSpec(vocab_size=290).train(["the cat sat"]).to_json())
    ours["model"]["vocab"][-1][0] = "x" * 200_000
    (tmp_path / "tokenizer.json").write_text(json.dumps(ours))
    with pytest.raises(TokenizerError, match=said):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_filling_up_a_batch_is_not_done_for_one_text() -> None:
    """It would take all the memory there is."""
    padding = {
        "strategy": {"Fixed": 2**60},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<unk>",
    }
    plain, filled = ImportedTokenizer(LLAMA), ImportedTokenizer(LLAMA | {"padding": padding})
    assert filled.encode("th").tolist() == plain.encode("th").tolist()


class PanicException(BaseException):
    """As the library's panics are to Python."""


def raised(error: BaseException) -> None:
    with library_errors("the library ends in {why}"):
        raise error


def test_a_panic_is_one_line_and_an_interrupt_stays_one() -> None:
    with pytest.raises(TokenizerError, match=r"^the library ends in no entry found for key$"):
        raised(PanicException("no entry found\nfor key"))
    with pytest.raises(KeyboardInterrupt):
        raised(KeyboardInterrupt())


def test_half_a_character_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(with_model(vocab=LLAMA["model"]["vocab"] | {"\ud800": 264})))
    with pytest.raises(TokenizerError, match="half of a surrogate pair"):
        load_tokenizer(path)


# --- everything, at random --------------------------------------------------------------------------------

N_SPOILT = 250
VALUES: list[Callable[[], Any]] = [
    lambda: None,
    *(
        lambda value=value: value
        for value in (0, -1, 5, 10**9, 2**63, 10**30, -0.5, 1e308, float("nan"), True)
    ),
    *(lambda value=value: value for value in ("", "x", "▁", "\0", "x" * 3000, "(?:a*)*b")),
    *(
        lambda value=value: copy.deepcopy(value)
        for value in ([], {}, [5], ["x"], {"a": 5}, {"type": "x"}, [[[[]]]])
    ),
]


def places(part: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all there is in a document, of long lists and large objects to the ends."""
    yield path
    keys = list(part) if isinstance(part, dict) else list(range(len(part))) if isinstance(part, list) else []
    for key in keys if len(keys) <= 12 else [*keys[:3], *keys[-3:]]:
        yield from places(part[key], (*path, key))


def spoilt(document: Any, path: tuple[Any, ...], value: Any, deleted: bool) -> Any:
    """The document with another value at a place, or without it."""
    document = copy.deepcopy(document)
    if not path:
        return value
    *outer, last = path
    part = document
    for key in outer:
        part = part[key]
    if deleted:
        del part[last]
    else:
        part[last] = value
    return document


@pytest.mark.parametrize("name", PUBLISHED)
def test_whatever_is_spoilt_is_read_or_refused_in_one_line(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(7)
    path = tmp_path / "tokenizer.json"
    messages = [
        message for message in (outcome(path, document) for document in spoilt_ones(draw, name)) if message
    ]
    assert 100 < len(messages) < N_SPOILT
    assert not [message for message in messages if "\n" in message or len(message) > 1000]
    assert capfd.readouterr() == ("", "")


def spoilt_ones(draw: random.Random, name: str) -> Iterator[Any]:
    all_places = list(places(PUBLISHED[name]))
    for _ in range(N_SPOILT):
        yield spoilt(PUBLISHED[name], draw.choice(all_places), draw.choice(VALUES)(), draw.random() < 0.2)


def outcome(path: Path, document: Any) -> str | None:
    """What a file is refused for, if it is."""
    path.write_text(json.dumps(document))
    try:
        tokenizer = load_tokenizer(path)
        tokenizer.decode(tokenizer.encode("the cat, é\n"))
    except ClearformerError as error:
        return str(error)
    return None
