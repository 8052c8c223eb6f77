"""Sentences in, translations out: in order, one for each, and what cannot be translated named by its line."""

from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
import torch

from clearformer.decoding import Translation, search, translate
from clearformer.decoding.beam import beam_search, search_settings
from clearformer.decoding.text import translations
from clearformer.decoding.text.translations import EMPTY, LONGER_BY, batches
from clearformer.errors import ConfigError, TokenizerError, UserError
from clearformer.model import ModelConfig, Transformer, build
from clearformer.model.attention import MultiHead
from clearformer.model.init import Gaussian
from clearformer.text import CharTokenizerSpec, Tokenizer

M = 23
SENTENCES = ["abc", "", "fedcbaabcdef", "a", "  ", "abc", "gfe dcb"]


@dataclass(frozen=True)
class Run:
    model: Transformer
    tokenizer: Tokenizer


def run_of(family: str, tokenizer: Tokenizer, max_seq_len: int = M) -> Run:
    config = ModelConfig(
        family=family,  # type: ignore[arg-type]
        vocab_size=tokenizer.vocab_size,
        d_model=14,
        n_layers=1,
        max_seq_len=max_seq_len,
        attention=MultiHead(n_heads=2),
        tie_embeddings=False,
        init=Gaussian(),
    )
    return Run(build(config).double(), tokenizer)


@pytest.fixture
def tokenizer() -> Tokenizer:
    return CharTokenizerSpec(bos=True, eos=True).train(["abcdefg \n"])


@pytest.fixture
def run(tokenizer: Tokenizer) -> Run:
    return run_of("encoder-decoder", tokenizer)


# --- one for each, in order -------------------------------------------------------------------------------


def test_translations_come_in_order_and_do_not_depend_on_each_other(run: Run) -> None:
    together = translate(run, SENTENCES, n_best=3, batch_tokens=17)

    assert len(together) == len(SENTENCES)
    for sentence, found in zip(SENTENCES, together, strict=True):
        [alone] = translate(run, [sentence], n_best=3)
        assert [t.tokens for t in found] == [t.tokens for t in alone]
        assert [t.score for t in found] == pytest.approx([t.score for t in alone], rel=1e-5)
    assert together[0][0].tokens == together[5][0].tokens
    assert len({found[0].text for found in together}) > 3


def test_groups_of_sentences_are_passed_on_as_soon_as_they_are_translated(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = ["abc", "", "c", "cab abc", "b"]
    whole = [[each.text for each in best_first] for best_first in translate(run, sentences, n_best=2)]
    monkeypatch.setattr(translations, "BATCHES_IN_GROUP", 1)
    seen: list[list[list[str]]] = []
    searched: list[int] = []
    search = translations.beam_search

    def searching(*arguments: Any, **options: Any) -> Any:
        searched.append(len(seen))  # how many groups were passed on before
        return search(*arguments, **options)

    monkeypatch.setattr(translations, "beam_search", searching)
    found = translate(
        run,
        sentences,
        n_best=2,
        batch_tokens=4,  # with <eos> as many as the first sentence has
        look=lambda group: seen.append([[each.text for each in best_first] for best_first in group]),
    )

    assert seen == [whole[:1], whole[1:4], whole[4:]]
    assert [[each.text for each in best_first] for best_first in found] == whole
    assert sorted({*searched}) == [0, 1, 2]


def test_a_translation_is_what_beam_search_finds_of_the_source_and_eos(run: Run) -> None:
    tokenizer = run.tokenizer
    source = [*tokenizer.encode("abc").tolist(), tokenizer.eos_id]
    settings = search_settings(3, 0.6, "gnmt", True)

    [[best]] = translate(
        run, ["abc"], beams=3, length_penalty=0.6, length_penalty_kind="gnmt", early_stopping=True
    )

    [[found]] = beam_search(
        run.model,  # type: ignore[arg-type]
        [[tokenizer.bos_id]],  # type: ignore[list-item]
        M,
        settings,
        tokenizer.eos_id,
        sources=[source],  # type: ignore[list-item]
    )
    assert (best.tokens, best.logprob, best.score) == (found.tokens, found.logprob, found.score)
    assert best.text == tokenizer.decode(found.tokens).replace("\n", " ")
    assert best.cut == (found.tokens[-1] != tokenizer.eos_id)


@pytest.mark.parametrize("beams", [1, 3])
def test_no_translation_holds_what_fills_rows_up(beams: int) -> None:
    run = run_of(
        "encoder-decoder", CharTokenizerSpec().train(["abcdefg"], specials=("<pad>", "<bos>", "<eos>"))
    )
    run.model.head.bias = torch.nn.Parameter(torch.zeros(run.tokenizer.vocab_size))  # type: ignore[union-attr]
    run.model.head.double().bias.data[run.tokenizer.pad_id] = 99  # type: ignore[union-attr,index]

    for found in translate(run, ["abc", "gfed"], beams=beams, n_best=beams):
        assert len(found) == beams
        assert all(each.tokens and run.tokenizer.pad_id not in each.tokens for each in found)


def test_the_empty_line_is_the_empty_line(run: Run) -> None:
    found = translate(run, ["", "a", " \t "], n_best=2)

    assert found[0] == found[2] == [EMPTY] == [Translation("", [], 0.0, 0.0, False)]
    assert len(found[1]) == 2
    assert translate(run, [""]) == [[EMPTY]]
    assert translate(run, []) == []


def test_an_empty_translation_is_nobody_elses(run: Run) -> None:
    [[one], [other]] = translate(run, ["", ""])
    one.tokens.append(3)
    assert other.tokens == EMPTY.tokens == translate(run, [""])[0][0].tokens == []


def test_a_translation_is_one_line(run: Run) -> None:
    newline = run.tokenizer.id_of("\n")
    assert newline is not None
    run.model.head.weight.data[newline] = 0  # type: ignore[union-attr]
    run.model.head.bias = torch.nn.Parameter(torch.zeros(run.tokenizer.vocab_size))  # type: ignore[union-attr]
    run.model.head.double().bias.data[newline] = 99  # type: ignore[union-attr]

    [[best]] = translate(run, ["abc"], max_new_tokens=3)

    assert best.tokens == [newline] * 3
    assert best.text == "   "
    assert best.cut


def test_the_longest_translation_is_a_rule_of_the_source_or_given() -> None:
    tokenizer = CharTokenizerSpec(bos=True, eos=True).train(["abcdefg \n"])
    run = run_of("encoder-decoder", tokenizer, max_seq_len=71)
    with patch.object(translations, "beam_search", side_effect=translations.beam_search) as searching:
        translate(run, ["abc", "a" * 50], beams=1)
        translate(run, ["abc"], beams=1, max_new_tokens=7)
        translate(run, ["abc"], beams=1, max_new_tokens=1000)

    assert [call.args[2] for call in searching.call_args_list] == [[71, 2 * 4 + LONGER_BY], [7], [71]]


def test_products_are_in_the_type_that_is_asked_for(run: Run) -> None:
    run.model.float()
    seen = []
    run.model.encoder_blocks[0].mlp.register_forward_hook(  # type: ignore[union-attr, index]
        lambda _, args, out: seen.append(out.dtype)
    )

    translate(run, ["abc"], max_new_tokens=1)
    translate(run, ["abc"], max_new_tokens=1, dtype=torch.bfloat16)

    assert seen == [torch.float32, torch.bfloat16]


# --- batches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_tokens", [1, 7, 11, 1000])
def test_every_text_is_in_one_batch_that_holds_so_many_tokens(batch_tokens: int) -> None:
    lengths = [3, 0, 5, 1, 1, 4, 0, 2, 7, 3]

    found = list(batches(lengths, batch_tokens))

    assert sorted(i for batch in found for i in batch) == [i for i, n in enumerate(lengths) if n]
    assert all(
        len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= batch_tokens for batch in found
    )
    in_order = [lengths[i] for batch in found for i in batch]
    assert in_order == sorted(in_order, reverse=True)


# --- what is refused --------------------------------------------------------------------------------------


def test_a_sentence_longer_than_the_positions_is_named(run: Run) -> None:
    fits = "a" * (M - 1)
    translate(run, [fits], beams=1, max_new_tokens=1)

    with pytest.raises(UserError, match=rf"^sentence 2: {M + 1} tokens with <eos>.* at most {M} .*split"):
        translate(run, [fits, fits + "aa"[:1]])
    with pytest.raises(UserError, match=r"^in\.txt, line 1: .*\(and 1 more\)"):
        translate(run, ["a" * 99, "b", "a" * 77], place=lambda n: f"in.txt, line {n}")


def test_a_character_that_is_unknown_is_named_with_its_line(run: Run) -> None:
    with pytest.raises(TokenizerError, match=r"^sentence 3: .*x"):
        translate(run, ["a", "", "axb"])


@pytest.mark.parametrize("family", ["decoder", "encoder"])
def test_only_an_encoder_decoder_translates(tokenizer: Tokenizer, family: str) -> None:
    with pytest.raises(UserError, match=rf"family {family}, but only an encoder-decoder translates"):
        translate(run_of(family, tokenizer), ["a"])


def test_a_tokenizer_without_a_beginning_or_an_end_is_refused() -> None:
    with pytest.raises(UserError, match="lacks <bos> or <eos>"):
        translate(run_of("encoder-decoder", CharTokenizerSpec(bos=True).train(["abc"])), ["a"])


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"beams": 0}, ConfigError, "beams"),
        ({"length_penalty_kind": "none"}, ConfigError, "^length_penalty_kind is one of"),
        ({"length_penalty": "x"}, ConfigError, "^length_penalty takes a number"),
        ({"place": None}, UserError, "place: a function"),
        ({"look": "print"}, UserError, "look: a function; got 'print'"),
        ({"n_best": 6}, UserError, "n_best"),
        ({"batch_tokens": 0}, UserError, "batch_tokens"),
        ({"max_new_tokens": 0}, UserError, "max_new_tokens"),
    ],
)
def test_settings_out_of_range_are_named(
    run: Run, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    for sentence in ("a", ""):
        with pytest.raises(error, match=message):
            translate(run, [sentence], **settings)


# --- a decoder's likeliest continuations ------------------------------------------------------------------


def test_search_continues_a_prompt(tokenizer: Tokenizer) -> None:
    run = run_of("decoder", tokenizer)
    prompt = [tokenizer.bos_id, *tokenizer.encode("abc").tolist()]
    expected = beam_search(
        run.model,  # type: ignore[arg-type]
        [prompt],  # type: ignore[list-item]
        30,
        search_settings(4, 1.0, "hf", False),
        tokenizer.eos_id,
        3,
    )[0]

    found = search(run, "abc", max_new_tokens=30, beams=4, num=3)

    assert [f.tokens for f in found] == [e.tokens for e in expected]
    assert [f.score for f in found] == [e.score for e in expected]
    for f in found:
        assert f.text == tokenizer.decode(f.tokens)
        assert f.finish_reason == ("eos" if f.tokens[-1] == tokenizer.eos_id else "length")
        assert (f.prompt, f.n_prompt_tokens, f.truncated) == ("abc", 4, False)


def test_search_is_for_decoders(run: Run) -> None:
    with pytest.raises(UserError, match=r"an encoder-decoder, but only a decoder.*clearformer translate"):
        search(run, "abc")
