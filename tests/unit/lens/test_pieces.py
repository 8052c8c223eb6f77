"""How a token came to be: its bytes, its merges, the pieces of its word."""

from pathlib import Path
from typing import Any

import pytest

from clearformer import lens
from clearformer.errors import UserError
from clearformer.text import BPETokenizer, merge_steps

from .test_embeddings import TEXT, Run, run_of


def place_of(run: Any, token: str, text: str = TEXT) -> int:
    return lens.tokens(run, text).tokens.index(token)


def test_the_merges_lead_from_the_bytes_to_the_token() -> None:
    run: Any = run_of("decoder", "bpe")
    tokenizer = run.tokenizer
    assert isinstance(tokenizer, BPETokenizer)
    found = lens.pieces(run, TEXT, position=place_of(run, " bank"))
    assert bytes.fromhex(found.hex) == b" bank"
    assert found.steps[0].rank is None
    assert found.steps[0].pieces == [" ", "b", "a", "n", "k"]
    assert found.steps[-1].pieces == [" bank"]
    [by_encoder] = list(merge_steps(tokenizer, " bank"))
    assert [step.pieces for step in found.steps] == [
        [tokenizer.token_label(token) for token in row] for row in by_encoder
    ]
    for before, after in zip(found.steps, found.steps[1:], strict=False):
        assert len(after.pieces) == len(before.pieces) - 1
        left, right = tokenizer.merges[after.rank]  # type: ignore[index]
        assert left + right in tokenizer.spellings
    assert found.code_points == [f"U+{ord(letter):04X}" for letter in " bank"]


def test_wordpiece_and_unigram_tell_the_pieces_of_the_word() -> None:
    run: Any = run_of("encoder", "wordpiece")
    text = "bankriver"
    parts = [lens.pieces(run, text, position=at) for at in range(1, len(lens.tokens(run, text).tokens) - 1)]
    assert all(part.neighbours[at].chosen for at, part in enumerate(parts))
    assert "".join(each.token.removeprefix("##") for each in parts[0].neighbours) == text
    assert parts[0].steps == []
    run = run_of("decoder", "unigram")
    found = lens.pieces(run, TEXT, position=2)
    tokenizer = run.tokenizer
    assert all(part.score == tokenizer.scores[part.id] for part in found.neighbours)
    assert found.table().rows[0][2]


def test_bytes_are_told_of_parts_of_characters_and_none_of_special_tokens() -> None:
    run: Any = run_of("decoder", "byte")
    found = lens.pieces(run, "déjà", position=1)
    assert (found.hex, found.code_points) == ("c3", [])
    assert found.rule.startswith("a token is one byte")
    special = lens.pieces(run_of("encoder", "wordpiece"), "the", position=0)
    assert (special.hex, special.steps, special.neighbours) == ("", [], [])
    assert "bytes none" in special.caption()


def test_a_special_token_is_drawn_without_a_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = lens.pieces(run_of("encoder", "wordpiece"), "the")
    assert not found.table().rows
    assert found.figure(tmp_path / "pieces.png").stat().st_size > 0


def test_a_token_that_only_the_model_has_is_part_of_no_word() -> None:
    tokenizer = run_of("decoder", "char").tokenizer
    run: Any = Run(run_of("decoder", "char", vocab_size=tokenizer.vocab_size + 1).model, tokenizer)
    letters = tokenizer.encode("bank").tolist()
    found = lens.pieces(run, [tokenizer.vocab_size, *letters, tokenizer.vocab_size, *letters[:1]], position=2)
    assert [(each.token, each.chosen) for each in found.neighbours] == [
        ("b", False),
        ("a", True),
        ("n", False),
        ("k", False),
    ]
    assert lens.pieces(run, [tokenizer.vocab_size], position=0).neighbours == []


def test_ids_by_themselves_were_made_of_nothing() -> None:
    model: Any = run_of("decoder").model
    with pytest.raises(UserError, match="give the tokenizer"):
        lens.pieces(model, [1, 2])
