"""What each layer makes of a token, and where the tokens of a word stand."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from clearformer import lens
from clearformer.errors import UserError
from clearformer.lens.embeddings import Embedded, spans_of
from clearformer.model import ModelConfig, build
from clearformer.model.attention import MultiHead
from clearformer.model.positions import NoPositions
from clearformer.text import (
    BPETokenizerSpec,
    ByteTokenizerSpec,
    CharTokenizerSpec,
    Tokenizer,
    UnigramTokenizerSpec,
    WordPieceTokenizerSpec,
    specials_of,
)

CORPUS = [
    "I sat on the bank of the river.",
    "The bank lends money, and the bank takes it.",
    "déjà vu, 日本",
] * 3
TEXT = "The bank lends money, and the bank takes it."
FAMILIES = ("decoder", "encoder", "encoder-decoder")
N_LAYERS, WIDTH = 3, 22
SPECS = {
    "char": CharTokenizerSpec(),
    "byte": ByteTokenizerSpec(),
    "bpe": BPETokenizerSpec(vocab_size=300),
    "unigram": UnigramTokenizerSpec(vocab_size=340),
    "wordpiece": WordPieceTokenizerSpec(vocab_size=150),
}


@dataclass(frozen=True)
class Run:
    model: Any
    tokenizer: Tokenizer


def run_of(family: str, kind: str = "bpe", **changes: Any) -> Run:
    tokenizer = SPECS[kind].train(CORPUS, specials=specials_of(family))
    config = ModelConfig(
        family=family,  # type: ignore[arg-type]
        vocab_size=tokenizer.vocab_size,
        d_model=WIDTH,
        n_layers=N_LAYERS,
        max_seq_len=101,
        dropout=0.3,
        attention=MultiHead(n_heads=2),
    )
    return Run(build(config.replace(**changes)), tokenizer)


def encoded(model: Any, tokens: Tensor) -> Tensor:
    """What the model itself says of its last layer."""
    model.eval()
    match model.config.family:
        case "encoder":
            return model.encode(tokens)
        case "encoder-decoder":
            return model.encode(tokens).vectors
        case _:
            return model.hidden(tokens)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_vector_for_each_token_before_the_first_block_and_after_every_one(family: str) -> None:
    run = run_of(family)
    found = lens.embed(run, TEXT)
    assert found.vectors.shape == (N_LAYERS + 1, len(found.tokens), WIDTH)
    assert len(found.labels) == len(found.spans) == len(found.tokens)
    assert found.layers == ["embedding", "layer 0", "layer 1", "layer 2"]
    assert run.model.training  # left as it was
    tokens = torch.tensor([found.tokens])
    torch.testing.assert_close(found.final, encoded(run.model, tokens)[0], rtol=0, atol=0)
    norm = run.model.encoder_ln_final if family == "encoder-decoder" else run.model.ln_final
    torch.testing.assert_close(norm(found.vectors[-1]), found.final, rtol=0, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_before_the_first_block_no_token_has_seen_another(family: str) -> None:
    run = run_of(family, position=NoPositions())
    one, other = lens.embed(run, ["the bank of the river", "money in the bank"])
    first, second = one.word("bank"), other.word("bank")
    torch.testing.assert_close(first[0], second[0])
    assert (first[1:] - second[1:]).abs().amax(-1).min() > 1e-4


def test_a_decoder_s_tokens_do_not_see_what_comes_and_an_encoder_s_do() -> None:
    for family, sees in (("decoder", False), ("encoder", True)):
        one, other = lens.embed(run_of(family, "char"), ["the bank it", "the bank of"])
        change = (one.word("bank") - other.word("bank"))[-1].abs().max()
        assert (change > 1e-5) == sees


def test_the_special_tokens_of_each_family_are_there() -> None:
    assert lens.embed(run_of("encoder"), "it").labels[0::100] == ["[CLS]"]
    assert lens.embed(run_of("encoder"), "it").labels[-1] == "[SEP]"
    assert lens.embed(run_of("encoder-decoder"), "it").labels[-1] == "<eos>"
    assert lens.embed(run_of("decoder", "char"), "it").labels == ["i", "t"]
    with_bos = Run(run_of("decoder", "char").model, CharTokenizerSpec(bos=True).train(CORPUS))
    grown = build(with_bos.model.config.replace(vocab_size=with_bos.tokenizer.vocab_size))
    assert lens.embed(Run(grown, with_bos.tokenizer), "it").labels == ["<bos>", "i", "t"]


def test_several_texts_are_read_each_by_itself() -> None:
    run = run_of("encoder")
    alone, beside = (
        lens.embed(run, "the bank"),
        lens.embed(run, ["it takes the money of the river", "the bank"])[1],
    )
    assert torch.equal(alone.vectors, beside.vectors)
    assert lens.embed(run, []) == []


def test_it_draws_no_random_numbers_and_can_be_computed_with() -> None:
    run = run_of("encoder")
    before = torch.get_rng_state()
    vectors = lens.embed(run, TEXT).vectors
    assert torch.equal(torch.get_rng_state(), before)
    torch.nn.Linear(WIDTH, 1)(vectors).sum().backward()


# --- words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SPECS)
def test_a_word_is_the_mean_of_its_tokens(kind: str) -> None:
    found = lens.embed(run_of("encoder", kind), TEXT)
    assert_spelled(found, "bank", 1)
    places = found.tokens_of("bank", 1)
    assert places[0] > found.tokens_of("bank", 0)[-1]
    torch.testing.assert_close(found.word("bank", 1), found.vectors[:, places].mean(1))


def assert_spelled(found: Embedded, word: str, occurrence: int) -> None:
    """Its tokens together spell the word, and perhaps the space before it; and no fewer of them would."""
    places = found.tokens_of(word, occurrence)
    assert places == list(range(places[0], places[-1] + 1))
    assert found.tokenizer.decode([found.tokens[i] for i in places]).strip() == word
    start, stop = found.spans[places[0]][0], found.spans[places[-1]][1]
    assert found.read_text[start:stop].strip() == word


@pytest.mark.parametrize("kind", SPECS)
def test_spans_are_the_places_of_the_tokens_in_the_text(kind: str) -> None:
    found = lens.embed(run_of("decoder", kind), "déjà vu, 日本 déjà")
    assert found.spans[0][0] == 0
    assert found.spans[-1][1] == len(found.read_text)
    for word in ("vu", "日本" if kind != "wordpiece" else "日"):
        assert found.tokens_of(word)
    covered = {i for start, stop in found.spans for i in range(start, stop)}
    assert covered == set(range(len(found.read_text)))


def test_a_character_of_several_tokens_belongs_to_each() -> None:
    assert spans_of([b"a", "é".encode()[:1], "é".encode()[1:], b"", b"b"]) == [
        (0, 1),
        (1, 2),
        (1, 2),
        (2, 2),
        (2, 3),
    ]
    assert spans_of([b"", b"a b", b""]) == [(0, 0), (0, 3), (3, 3)]


def test_a_part_of_a_longer_word_does_not_count() -> None:
    found = lens.embed(run_of("decoder", "byte"), "bank banks, embank bank")
    assert found.tokens_of("bank") == [0, 1, 2, 3]
    assert found.tokens_of("bank", 1) == [19, 20, 21, 22]
    assert found.tokens_of(",") == [10]


def test_capitals_are_the_tokenizer_s_affair() -> None:
    found = lens.embed(run_of("encoder", "wordpiece"), "The Bank")
    assert found.read_text == "the bank"
    assert found.tokens_of("Bank") == found.tokens_of("bank")


@pytest.mark.parametrize(
    ("word", "occurrence"), [("river", 0), ("bank", 2), ("bank", -1), (" ", 0), ("ban", 0)]
)
def test_a_word_that_is_not_there_is_refused(word: str, occurrence: int) -> None:
    with pytest.raises(UserError, match=r"(occurs 2 times|does not occur) in 'The bank"):
        lens.embed(run_of("decoder"), TEXT).word(word, occurrence)


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(UserError, match="empty"):
        lens.embed(run_of("encoder"), "")
    with pytest.raises(UserError, match="max_seq_len"):
        lens.embed(run_of("decoder", "byte"), "a" * 102)


# --- one word in different contexts -----------------------------------------------------------------------

CONTEXTS = ["the bank of the river", "the bank takes the money", "the bank of the river"]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cosines_of_a_word_by_layer(family: str) -> None:
    run = run_of(family)
    cosines = lens.word_similarity(run, "bank", CONTEXTS).cosines
    assert cosines.shape == (N_LAYERS + 1, 3, 3)
    torch.testing.assert_close(cosines, cosines.mT)
    torch.testing.assert_close(cosines.diagonal(dim1=1, dim2=2), torch.ones(N_LAYERS + 1, 3))
    torch.testing.assert_close(cosines[:, 0, 2], torch.ones(N_LAYERS + 1))  # the same context
    torch.testing.assert_close(cosines[0], torch.ones(3, 3))  # the same place, and no context yet
    one, other = (lens.embed(run, context).word("bank")[-1] for context in CONTEXTS[:2])
    torch.testing.assert_close(cosines[-1, 0, 1], torch.cosine_similarity(one, other, dim=0))
    if family != "decoder":  # whose words see only what stands before them
        assert cosines[-1, 0, 1] < 1 - 1e-4


def test_the_table_has_a_line_for_each_layer() -> None:
    cosines = torch.eye(2).expand(3, 2, 2).clone()
    cosines[2, 0, 1] = cosines[2, 1, 0] = -0.25
    found = lens.WordSimilarity("bank", ["the bank", "a bank"], cosines)
    assert found.table() == (
        ["layer", "1-2", "mean"],
        [
            ["embedding", "0.000", "0.000"],
            ["layer 0", "0.000", "0.000"],
            ["layer 1", "-0.250", "-0.250"],
        ],
        1,
    )
    assert found.notes() == ["1: the bank", "2: a bank"]
    many = lens.WordSimilarity("bank", ["bank"] * 7, torch.ones(2, 7, 7)).table()
    assert many.heads == ["layer", "mean"]
    assert many.rows == [["embedding", "1.000"], ["layer 0", "1.000"]]


def test_a_token_moves_away_from_its_own_vector() -> None:
    found = lens.embed(run_of("decoder"), TEXT)
    expected = torch.cosine_similarity(found.vectors[0, 3], found.vectors[-1, 3], dim=0)
    heads, rows, n_left = found.table()
    assert heads[n_left:] == ["embedding", *(f"layer {i}" for i in range(N_LAYERS))]
    assert rows[3][n_left:][0] == "1.000"
    assert rows[3][-1] == f"{expected:.3f}"


def test_contexts_are_a_list() -> None:
    for contexts in ("the bank", [], ["the bank"], None):
        with pytest.raises(UserError, match="list of two or more texts"):
            lens.word_similarity(run_of("encoder"), "bank", contexts)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"word: a string; got \['bank'\]"):
        lens.word_similarity(run_of("encoder"), ["bank"], ["the bank", "a bank"])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="'bank' does not occur in 'the river'"):
        lens.word_similarity(run_of("encoder", "char"), "bank", ["the bank", "the river"])


def test_ids_are_a_text_too() -> None:
    run = run_of("decoder", "char")
    ids = run.tokenizer.encode("it")
    by_text = lens.embed(run, "it")
    for given in (ids, torch.tensor(ids)):
        found = lens.embed(run, given)
        assert (found.text, found.tokens) == ("it", by_text.tokens)
        assert torch.equal(found.vectors, by_text.vectors)
    assert [each.text for each in lens.embed(run, [ids, "it"])] == ["it", "it"]
