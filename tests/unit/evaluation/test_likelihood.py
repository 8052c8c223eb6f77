"""Log-probabilities of texts, against one prediction at a time."""

import json
import math
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch import Tensor

from clearformer.data import Split
from clearformer.errors import NonFiniteError, TokenizerError, UserError
from clearformer.evaluation import likelihood as module
from clearformer.evaluation.language_model import evaluate_split
from clearformer.evaluation.likelihood import TextScore, score
from clearformer.model import ModelConfig, Transformer, build
from clearformer.run import Run
from clearformer.text import (
    ByteTokenizerSpec,
    CharTokenizerSpec,
    ImportedTokenizer,
    Tokenizer,
    WordPieceTokenizerSpec,
)
from clearformer.text.tokenizer import added_token, specials_of

LETTERS = "abcdefgh \n"
CONTEXT = 12


def run_of(family: str = "decoder", tokenizer: Tokenizer | None = None, **settings: Any) -> Run:
    specials = () if family == "decoder" else specials_of(family)
    tokenizer = tokenizer or CharTokenizerSpec().train([LETTERS], specials=specials)
    torch.manual_seed(3)
    config = ModelConfig(
        family=family,  # type: ignore[arg-type]
        vocab_size=tokenizer.vocab_size,
        d_model=16,
        n_layers=2,
        max_seq_len=CONTEXT,
        **settings,
    )
    model = build(config)
    for weights in model.parameters():
        weights.data += 0.3 * torch.randn(weights.shape)  # so that predictions differ
    return Run(model, tokenizer)


def logprobs_of(model: Transformer, *given: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(*given).float().log_softmax(-1)


# --- decoders ---------------------------------------------------------------------------------------------


def one_at_a_time(run: Run, before: list[int], ids: list[int]) -> list[float]:
    """Each token after the longest context that the windows may give it, for texts that fit into one."""
    tokens = before + ids
    found = []
    for at in range(max(1, len(before)), len(tokens)):
        logprobs = logprobs_of(run.model, torch.tensor([tokens[:at]]))[0, -1]
        found.append(logprobs[tokens[at]].item())
    return found


@pytest.mark.parametrize("prefix", [None, "", "ab", "hgf "])
@pytest.mark.parametrize("bos", [False, True])
def test_a_text_s_log_probability_is_the_sum_of_its_tokens(prefix: str | None, bos: bool) -> None:
    run = run_of(tokenizer=ByteTokenizerSpec(bos=bos).train(()))
    texts = ["abc", "a", "", "hgfedcb", "bb"]
    before = [*run.tokenizer.marks[0].tolist(), *(prefix or "").encode()]
    for text, found in zip(texts, score(run, texts, prefix=prefix), strict=True):
        wanted = one_at_a_time(run, before, list(text.encode()))
        assert found.logprobs == pytest.approx(wanted, abs=1e-5)
        assert found.logprob == pytest.approx(math.fsum(wanted), abs=1e-5)
        assert found.tokens == list(text if before else text[1:])
        if wanted:
            assert found.perplexity == pytest.approx(math.exp(-math.fsum(wanted) / len(wanted)), rel=1e-5)
        else:
            assert (found.logprob, found.perplexity) == (0, None)


@pytest.mark.parametrize("position", ["learned", "rope", "alibi"])
@pytest.mark.parametrize("n", [CONTEXT - 1, CONTEXT, CONTEXT + 1, CONTEXT + 2, 3 * CONTEXT + 5])
def test_a_long_text_is_read_as_an_evaluation_reads_it(n: int, position: str) -> None:
    run = run_of(position=position)
    text = (LETTERS * 9)[:n]
    split = Split("val", [run.tokenizer.encode(text)], n_chars=n, n_bytes=n)
    [found] = score(run, text)
    evaluated = evaluate_split(run.model, split)  # type: ignore[arg-type]
    assert len(found.logprobs) == n - 1
    assert found.logprob == pytest.approx(-evaluated.loss * evaluated.n_tokens, rel=1e-5)
    assert found.perplexity == pytest.approx(evaluated.perplexity, rel=1e-5)


def test_a_long_prefix_is_read_and_not_counted() -> None:
    run, prefix, text = run_of(), (LETTERS * 3)[: CONTEXT + 4], "abcab"
    [whole], [found] = score(run, prefix + text), score(run, text, prefix=prefix)
    assert found.logprobs == whole.logprobs[-len(text) :]
    assert found.tokens == list(text)


def test_texts_read_at_once_are_those_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of()
    texts = ["abcabc", "h", "ab", "", "gg gg gg gg gg gg gg gg gg", "hgfedcba"]
    at_once = score(run, texts)
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", 1)
    for one, other in zip(at_once, score(run, texts), strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", 1000)
    monkeypatch.setattr(module, "TOKENS_HELD", 8)
    for one, other in zip(at_once, score(run, texts), strict=True):
        assert (one.tokens, one.logprobs) == (other.tokens, pytest.approx(other.logprobs, abs=1e-5))
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", 30)
    for one, other in zip(at_once, score(run, texts), strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_groups_of_texts_are_passed_on_as_soon_as_they_are_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of()
    texts = ["abcabc", "h", "ab", "", "gg gg gg gg gg gg gg gg gg", "hgfedcba"]
    monkeypatch.setattr(module, "TOKENS_HELD", 8)
    seen: list[list[TextScore]] = []
    read: list[int] = []
    of_batch = module._of_batch

    def reading(*arguments: Any) -> Any:
        read.append(sum(map(len, seen)))  # how many texts were passed on before
        return of_batch(*arguments)

    monkeypatch.setattr(module, "_of_batch", reading)
    found = score(run, texts, look=seen.append)
    assert [each for group in seen for each in group] == found
    assert len(found) == len(texts)
    assert all(seen)
    assert len(seen) > 2
    assert 0 < max(read) < len(texts)
    with pytest.raises(UserError, match="look"):
        score(run, texts, look=3)  # type: ignore[arg-type]


def test_ids_are_texts_too() -> None:
    run = run_of()
    ids = run.tokenizer.encode("abcd")
    assert score(run, ids) == score(run, [ids.tolist()]) == score(run, "abcd")
    assert score(run, ids, prefix=ids) == score(run, "abcd", prefix="abcd")


# --- encoder-decoders and encoders ------------------------------------------------------------------------


def test_an_output_s_log_probability_is_given_its_source() -> None:
    run = run_of("encoder-decoder")
    tokenizer = run.tokenizer
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    sources, outputs = ["abc", "h", "", "abcdefg", "a"], ["cba", "abcdefgh", "", "b", ""]
    for source, output, found in zip(sources, outputs, score(run, sources, outputs), strict=True):
        if not source:
            assert found == TextScore(0.0, None, [], [])
            continue
        given = torch.tensor([[*tokenizer.encode(source).tolist(), eos]])
        tokens = [bos, *tokenizer.encode(output).tolist(), eos]
        logprobs = logprobs_of(run.model, given, torch.tensor([tokens[:-1]]))[0]
        wanted = [logprobs[i, token].item() for i, token in enumerate(tokens[1:])]
        assert found.logprobs == pytest.approx(wanted, abs=1e-5)
        assert found.tokens == [*output, "<eos>"]


def test_a_translation_has_the_log_probability_that_the_search_says() -> None:
    run = run_of("encoder-decoder")
    [[best]] = run.translate(["abc"], beams=2, max_new_tokens=7)
    [found] = score(run, "abc", [best.tokens])
    n = len(best.tokens)
    assert math.fsum(found.logprobs[:n]) == pytest.approx(best.logprob, abs=1e-4)


def test_what_an_imported_tokenizer_puts_before_an_output_is_predicted_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in training: BART's outputs begin with <s>."""
    run = run_of("encoder-decoder")
    a = run.tokenizer.encode("a").tolist()
    monkeypatch.setattr(type(run.tokenizer), "before_pair", tuple(a))
    [found] = score(run, "abc", "bc")
    assert found.tokens == ["a", "b", "c", "<eos>"]
    assert found == score(run, "abc", [[*a, *run.tokenizer.encode("bc").tolist()]])[0]


def test_an_encoder_predicts_each_token_from_all_others() -> None:
    """The pseudo-log-likelihood: what stands at a position is masked, and nothing else."""
    run = run_of("encoder", masked_head="transform", head_bias=True)
    tokenizer = run.tokenizer
    for text, found in zip(["abc", "", "hh abcde"], score(run, ["abc", "", "hh abcde"]), strict=True):
        row, wanted = tokenizer.wrap(tokenizer.encode(text)).tolist(), []
        for at in range(1, len(row) - 1) if text else ():
            masked = [*row[:at], tokenizer.mask_id, *row[at + 1 :]]
            wanted.append(logprobs_of(run.model, torch.tensor([masked]))[0, at, row[at]].item())
        assert found.logprobs == pytest.approx(wanted, abs=1e-5)
        assert found.tokens == list(text)


# --- what is refused --------------------------------------------------------------------------------------


def test_ids_that_begin_with_bos_have_it_once() -> None:
    run = run_of(tokenizer=ByteTokenizerSpec(bos=True, eos=True).train(()))
    ids = run.tokenizer.encode("abc")
    [plain], [wrapped] = score(run, "abc"), score(run, run.tokenizer.wrap(ids))
    assert wrapped.tokens == [*plain.tokens, "<eos>"]
    assert wrapped.logprobs[:3] == pytest.approx(plain.logprobs, abs=1e-5)
    assert score(run, "abc", prefix=run.tokenizer.wrap(ids)[:-1]) == score(run, "abc", prefix="abc")


def test_an_end_that_is_a_beginning_too_stands_before_a_text() -> None:
    """As GPT-2's <|endoftext|>, which stands before a prompt, too."""
    document = json.loads(ByteTokenizerSpec().train().to_json())
    document["model"]["vocab"]["<e>"] = 256
    document["added_tokens"] = [added_token("<e>", 256)]
    run = run_of(tokenizer=ImportedTokenizer(document, {"bos": "<e>", "eos": "<e>"}))
    [found] = score(run, "abc")
    assert found.tokens == list("abc")
    assert found.logprobs == pytest.approx(one_at_a_time(run, [256], list(b"abc")), abs=1e-5)


def test_no_space_comes_between_a_prefix_and_a_text() -> None:
    """Some tokenizers put a space before every text."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=40, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(["the cat sat on the mat."] * 9, trainer)
    tokenizer = ImportedTokenizer(backend.to_str())
    assert tokenizer.opens_with_space
    run = run_of(tokenizer=tokenizer)
    whole, before = (tokenizer.encode(text).tolist() for text in ("the cat sat", "the cat"))
    [found] = score(run, " sat", prefix="the cat")
    assert whole[: len(before)] == before
    assert found.logprobs == pytest.approx(one_at_a_time(run, before, whole[len(before) :]), abs=1e-5)
    [inside_a_word] = score(run, "at", prefix="the c")
    assert "".join(inside_a_word.tokens).strip() == "at"


def test_what_the_vocabulary_lacks_is_counted() -> None:
    """The log-probability of <unk>, or nothing, would be taken for that of the text."""
    decoder = run_of(tokenizer=CharTokenizerSpec(unk=True).train([LETTERS]))
    [found] = score(decoder, "aßb€")
    assert (found.tokens, found.n_unknown) == (["<unk>", "b", "<unk>"], 2)
    assert score(decoder, "ab")[0].n_unknown == 0
    specials = specials_of("encoder")
    words = WordPieceTokenizerSpec(vocab_size=40).train(["the cat sat"], specials=specials)
    [found] = score(run_of("encoder", words), "the 漢 cat")
    assert found.n_unknown == 1
    assert "".join(token.removeprefix("##") for token in found.tokens) == "thecat"


def test_only_predicted_tokens_count_as_lacking() -> None:
    """Without <bos> a first token is not predicted, known or not."""
    words = WordPieceTokenizerSpec(vocab_size=40).train(["the cat sat"])
    assert (words.bos_id, words.unk_id is None) == (None, False)
    alone, first, later = score(run_of(tokenizer=words), ["漢", "漢 cat", "the 漢"])
    assert (alone.tokens, alone.n_unknown) == ([], 0)
    assert (len(first.tokens) > 0, first.n_unknown) == (True, 0)
    assert later.n_unknown == 1


def test_what_does_not_fit_the_model_is_refused() -> None:
    pairs, gaps = run_of("encoder-decoder"), run_of("encoder")
    with pytest.raises(
        UserError, match=r"^outputs: only an encoder-decoder has them; model\.family is decoder$"
    ):
        score(run_of(), "a", "b")
    with pytest.raises(
        UserError, match=r"^outputs: an encoder-decoder scores outputs; give one for each text$"
    ):
        score(pairs, "a")
    with pytest.raises(UserError, match=r"^outputs: 1 output for 2 texts$"):
        score(pairs, ["a", "b"], ["c"])
    with pytest.raises(UserError, match=r"^prefix: only a decoder takes it; model\.family is encoder$"):
        score(gaps, "a", prefix="b")
    with pytest.raises(UserError, match=r"^prefix: a text must be a string or token ids; got 5$"):
        score(run_of(), "a", prefix=5)  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match=r"^text 2: the output has 13 tokens with the special ones, but .* 12;"
    ):
        score(pairs, ["a", "b"], ["a", "abcabcabcabc"])
    with pytest.raises(
        UserError, match=r"^text 1: 13 tokens with the special ones, but the model reads at most 12"
    ):
        score(gaps, "abcabcabcab")
    with pytest.raises(
        UserError, match=r"^text 2: the text is empty, so that its output has no probability$"
    ):
        score(pairs, ["a", ""], ["a", "b"])
    with pytest.raises(TokenizerError, match=r"^prefix: 'ß'"):
        score(run_of(), "a", prefix="ß")
    with pytest.raises(TokenizerError, match=r"^text 2: 'ß'"):
        score(run_of(), ["a", "ß"])
    with pytest.raises(UserError, match="classifies texts and gives them no probability"):
        score(run_of("encoder", n_classes=3), "a")


def test_scores_that_are_not_numbers_are_an_error() -> None:
    run = run_of()
    run.model.embed.weight.data.fill_(math.nan)
    with pytest.raises(NonFiniteError):
        score(run, "abc")
