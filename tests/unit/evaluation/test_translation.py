"""How good translations are: sacrebleu's numbers, and what is refused."""

import json
import math
import sys
from dataclasses import dataclass

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from clearformer.decoding import translate
from clearformer.errors import MissingPackageError, UserError
from clearformer.evaluation.translation import bleu, evaluate_translation, score_translations
from clearformer.model import ModelConfig, Transformer, build
from clearformer.model.attention import MultiHead
from clearformer.model.init import Gaussian
from clearformer.text import CharTokenizerSpec, Tokenizer

HYPOTHESES = ["Ein Mann geht mit dem Hund spazieren.", "zwei hunde", "", "Drei Katzen schlafen auf dem Sofa"]
REFERENCES = [
    "Ein Mann geht mit seinem Hund spazieren.",
    "Zwei Hunde",
    "Nichts",
    "Drei Katzen schlafen auf dem Sofa",
]


def test_the_figures_are_sacrebleus_with_its_signatures() -> None:
    scores = score_translations(HYPOTHESES, REFERENCES)

    plain, lowercase = BLEU(), BLEU(lowercase=True)
    assert scores.bleu.score == plain.corpus_score(HYPOTHESES, [REFERENCES]).score
    assert scores.bleu_lowercase.score == lowercase.corpus_score(HYPOTHESES, [REFERENCES]).score
    assert scores.chrf.score == CHRF().corpus_score(HYPOTHESES, [REFERENCES]).score
    assert scores.bleu_lowercase.score > scores.bleu.score > 0
    assert "case:mixed" in scores.bleu.signature
    assert "case:lc" in scores.bleu_lowercase.signature
    assert scores.bleu.signature == str(plain.get_signature())
    assert scores.chrf.signature.startswith("nrefs:1|")


def test_exact_match_and_length_ratio_are_counted() -> None:
    scores = score_translations([*HYPOTHESES, " a b "], [*REFERENCES, "a b"])

    assert scores.exact_match == 2 / 5
    assert scores.length_ratio == pytest.approx((8 + 2 + 0 + 6 + 2) / (8 + 2 + 1 + 6 + 2))


def test_every_translation_has_scores_of_its_own() -> None:
    sentences = score_translations(HYPOTHESES, REFERENCES).sentences

    assert [s.exact for s in sentences] == [False, False, False, True]
    assert sentences[3].bleu == pytest.approx(100)
    assert sentences[3].chrf == pytest.approx(100)
    assert sentences[2].chrf == 0
    expected = BLEU(effective_order=True).sentence_score(HYPOTHESES[0], [REFERENCES[0]]).score
    assert sentences[0].bleu == expected


def test_words_may_be_set_apart_already() -> None:
    together, apart = ["a b c d."], ["a b c d ."]

    assert score_translations(together, apart).bleu.score == pytest.approx(100)
    tokenized = score_translations(together, apart, tokenize="none").bleu
    assert tokenized.score < 99
    assert "tok:none" in tokenized.signature


def test_sentences_find_words_as_the_whole_does() -> None:
    sentence = score_translations(["a b c d."], ["a b c d ."], tokenize="none").sentences[0]

    assert (
        sentence.bleu
        == BLEU(effective_order=True, tokenize="none").sentence_score("a b c d.", ["a b c d ."]).score
    )
    assert sentence.bleu < 99


@pytest.mark.parametrize(
    ("reference", "tokenize"),
    [
        ("Ein Hund beißt einen Mann.", "13a"),
        ("Собака кусает человека 😀", "13a"),
        ("개가 사람을 문다.", "13a"),
        ("狗咬了那个人。", "zh"),
        ("狗咬了 Tom 和 Ann 一口, 然后跑了。", "zh"),
        (
            "《となりのトトロ》是日本导演宫崎骏执导的动画电影。" + 4 * "讲述了两个女孩搬到乡下之后的故事。",
            "zh",
        ),
        ("The word for dog is 狗.", "13a"),
        ("犬が男を噛む。", "char"),
        ("สุนัขกัดผู้ชาย", "char"),
        ("12.5 %", "13a"),
        ("", "13a"),
    ],
)
def test_words_are_found_by_the_script_of_the_references(reference: str, tokenize: str) -> None:
    scores = score_translations(["x", "狗咬了"], [reference, reference])

    assert scores.tokenize == tokenize
    assert f"tok:{tokenize}" in scores.bleu.signature
    assert f"tok:{tokenize}" in scores.bleu_lowercase.signature


def test_chinese_without_spaces_has_partial_matches() -> None:
    assert score_translations(["狗咬了那个女人。"], ["狗咬了那个男人。"]).bleu.score > 40


def test_it_prints_and_is_json() -> None:
    scores = score_translations(HYPOTHESES, REFERENCES)

    figures = json.loads(json.dumps(scores.to_json()))

    assert figures["n"] == 4
    assert figures["bleu"] == {"score": scores.bleu.score, "signature": scores.bleu.signature}
    assert f"{scores.bleu.score:.2f} ({scores.bleu.signature})" in str(scores)
    assert "exact match 25.00% of 4" in str(scores)


def test_the_lengths_are_those_of_bleu() -> None:
    _, lengths = bleu(["a b"], ["a b c"])

    assert lengths == (2, 3)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(UserError, match=r"4 translations and 3 references"):
        score_translations(HYPOTHESES, REFERENCES[:3])
    with pytest.raises(UserError, match="there are no translations"):
        score_translations([], [])
    with pytest.raises(UserError, match=r"tokenize: sacrebleu has no 'moses'; it has .*13a"):
        score_translations(HYPOTHESES, REFERENCES, tokenize="moses")


def test_a_tokenizer_whose_package_is_not_here_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    with pytest.raises(MissingPackageError, match=r"^tokenize=ja-mecab: \S.*") as error:
        score_translations(HYPOTHESES, REFERENCES, tokenize="ja-mecab")
    assert "\n" not in str(error.value)


def test_empty_translations_have_a_ratio() -> None:
    scores = score_translations(["", ""], ["", ""])

    assert scores.length_ratio == 0
    assert not math.isnan(scores.bleu.score)


# --- of a run ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    model: Transformer
    tokenizer: Tokenizer


def test_a_run_is_measured_by_its_best_translations() -> None:
    tokenizer = CharTokenizerSpec(bos=True, eos=True).train(["abcdefg "])
    config = ModelConfig(
        family="encoder-decoder",
        vocab_size=tokenizer.vocab_size,
        d_model=14,
        n_layers=1,
        max_seq_len=23,
        attention=MultiHead(n_heads=2),
        init=Gaussian(),
    )
    run = Run(build(config).double(), tokenizer)
    sources = ["abc", "", "gfe"]
    best = [found[0] for found in translate(run, sources, beams=2, length_penalty=0.5)]
    references = [best[0].text, "", "x"]

    evaluation = evaluate_translation(run, sources, references, beams=2, length_penalty=0.5)

    assert evaluation.translations == best
    assert evaluation.scores.exact_match == 2 / 3
    assert evaluation.scores.chrf == score_translations([t.text for t in best], references).chrf
    assert evaluation.n_cut == sum(t.cut for t in best)
    figures = evaluation.to_json()
    assert (figures["beams"], figures["length_penalty"]) == (2, 0.5)
    json.dumps(figures)
    with pytest.raises(UserError, match="3 sentences and 2 references"):
        evaluate_translation(run, sources, references[:2])
