"""Scores of translations: BLEU and chrF by sacrebleu, with the signatures that say how they were computed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from clearformer.decoding import Translation, translate
from clearformer.decoding.text.samples import Run
from clearformer.errors import MissingPackageError, UserError, needs_extra

HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")
KANA = re.compile(r"[\u3040-\u30ff]")
OTHERS_WITHOUT_SPACES = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")  # Thai, Lao, Burmese, Khmer


@dataclass(frozen=True)
class Metric:
    """A score of all translations together, from 0 to 100, with sacrebleu's signature of its settings."""

    name: str
    score: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.score:.2f} ({self.signature})"


@dataclass(frozen=True)
class SentenceScores:
    """The scores of one translation: chrF, and BLEU over the orders of n-grams that it is long enough to have."""

    bleu: float
    chrf: float
    exact: bool


@dataclass(frozen=True)
class TranslationScores:
    """How close translations are to their references.

    Attributes:
        hypotheses: The translations.
        references: The reference of each translation.
        bleu: BLEU of the plain text, by sacrebleu's own tokenizer (Papineni et al. 2002; Post 2018).
        bleu_lowercase: BLEU of the lower-cased text, as in most figures for Multi30k.
        chrf: F2 of character n-grams (Popović 2015).
        length_ratio: Words of the translations over words of the references.
        tokenize: The tokenizer that found the words.
    """

    hypotheses: list[str]
    references: list[str]
    bleu: Metric
    bleu_lowercase: Metric
    chrf: Metric
    length_ratio: float
    tokenize: str

    @property
    def exact_match(self) -> float:
        """The share of translations that equal their reference, ignoring white space around them."""
        pairs = zip(self.hypotheses, self.references, strict=True)
        return sum(a.strip() == b.strip() for a, b in pairs) / len(self.hypotheses)

    @cached_property
    def sentences(self) -> list[SentenceScores]:
        """The scores of each translation by itself."""
        bleu_of = sacrebleu_metrics().BLEU(effective_order=True, tokenize=self.tokenize)
        chrf_of = sacrebleu_metrics().CHRF()
        return [
            SentenceScores(
                bleu_of.sentence_score(hypothesis, [reference]).score,
                chrf_of.sentence_score(hypothesis, [reference]).score,
                hypothesis.strip() == reference.strip(),
            )
            for hypothesis, reference in zip(self.hypotheses, self.references, strict=True)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the figures with their signatures, for `json.dumps`."""
        return {
            "n": len(self.hypotheses),
            **{
                key: {"score": metric.score, "signature": metric.signature}
                for key, metric in (
                    ("bleu", self.bleu),
                    ("bleu_lowercase", self.bleu_lowercase),
                    ("chrf", self.chrf),
                )
            },
            "exact_match": self.exact_match,
            "length_ratio": self.length_ratio,
        }

    def __str__(self) -> str:
        exact = f"exact match {self.exact_match:.2%} of {len(self.hypotheses):,}"
        ratio = f"length ratio {self.length_ratio:.3f}"
        return "\n".join((*map(str, (self.bleu, self.bleu_lowercase, self.chrf)), f"{exact}, {ratio}"))


@dataclass(frozen=True)
class TranslationEvaluation:
    """A run's best translation of each sentence, their scores, and the settings of the search."""

    scores: TranslationScores
    translations: list[Translation]
    settings: dict[str, Any]

    @property
    def n_cut(self) -> int:
        """The number of translations that were cut because they became too long."""
        return sum(translation.cut for translation in self.translations)

    def to_json(self) -> dict[str, Any]:
        """Return the figures and the settings of the search, for `json.dumps`."""
        return self.scores.to_json() | {"n_cut": self.n_cut} | self.settings


def evaluate_translation(
    run: Run, sources: Sequence[str], references: Sequence[str], **settings: Any
) -> TranslationEvaluation:
    """Translate sentences and compare them with their references; `settings` are those of `translate`.

    Raises:
        UserError: there are not as many references as sentences, or `translate` raises it.
    """
    check_equal_lengths(len(sources), len(references), "sentences")
    sacrebleu_metrics()  # so that a missing package is reported before translating
    best = [candidates[0] for candidates in translate(run, sources, **settings)]
    plain = {key: value for key, value in settings.items() if isinstance(value, str | int | float)}
    scores = score_translations([translation.text for translation in best], references)
    return TranslationEvaluation(scores, best, plain)


def score_translations(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str | None = None
) -> TranslationScores:
    """Score translations against one reference each.

    Args:
        hypotheses: The translations.
        references: Their references.
        tokenize: How BLEU finds words: one of sacrebleu's tokenizers, or `none` for texts whose words are already
            separated by spaces. By default the one that fits the script of the references (`fitting_tokenizer`).

    Raises:
        UserError: there is nothing to compare, or sacrebleu has no such tokenizer.
    """
    check_equal_lengths(len(hypotheses), len(references), "translations")
    tokenize = tokenize or fitting_tokenizer(references)
    plain, lengths = bleu(hypotheses, references, tokenize=tokenize)
    lowercase, _ = bleu(hypotheses, references, lowercase=True, tokenize=tokenize)
    return TranslationScores(
        list(hypotheses),
        list(references),
        plain,
        lowercase,
        chrf(hypotheses, references),
        lengths[0] / lengths[1] if lengths[1] else 0.0,
        tokenize,
    )


def fitting_tokenizer(references: Sequence[str]) -> str:
    """Choose sacrebleu's tokenizer by script: `13a` finds words by spaces, which some languages do not write.

    Chinese takes `zh`, which separates its characters, as WMT does; Japanese, Thai, Lao, Burmese and Khmer take `char`,
    for which nothing else need be installed. The script of more than half of all letters decides.
    """
    text = "".join(references)
    han, kana, others = (len(script.findall(text)) for script in (HAN, KANA, OTHERS_WITHOUT_SPACES))
    if 2 * (han + kana + others) <= sum(map(str.isalpha, text)):
        return "13a"
    return "zh" if han > others and 10 * kana < han else "char"  # a Chinese text may quote a Japanese name


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False, tokenize: str = "13a"
) -> tuple[Metric, tuple[int, int]]:
    """Return BLEU of all translations together, and the numbers of words in them and in the references.

    Raises:
        UserError: sacrebleu has no such tokenizer.
        MissingPackageError: it needs a package that is not installed.
    """
    known = sacrebleu_metrics().BLEU.TOKENIZERS
    if tokenize not in known:
        raise UserError(f"tokenize: sacrebleu has no {tokenize!r}; it has {', '.join(known)}")
    try:  # without force, sacrebleu warns about texts that end in " ."
        metric = sacrebleu_metrics().BLEU(lowercase=lowercase, tokenize=tokenize, force=True)
    except (RuntimeError, ImportError) as error:
        raise MissingPackageError(f"tokenize={tokenize}: {' '.join(str(error).split())}") from None
    result = metric.corpus_score(list(hypotheses), [list(references)])
    name = "BLEU, lower-cased" if lowercase else "BLEU"
    return Metric(name, result.score, str(metric.get_signature())), (result.sys_len, result.ref_len)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Metric:
    """Return chrF of all translations together."""
    metric = sacrebleu_metrics().CHRF()
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Metric("chrF", result.score, str(metric.get_signature()))


def sacrebleu_metrics() -> Any:
    """Import and return sacrebleu's module of metrics.

    Raises:
        MissingPackageError: sacrebleu is not installed.
    """
    with needs_extra("metrics", "BLEU and chrF need sacrebleu"):
        from sacrebleu import metrics
    return metrics


def check_equal_lengths(n: int, n_references: int, what: str) -> None:
    """Check that there are as many references as translations (or sentences, named by `what`).

    Raises:
        UserError: the numbers differ, or are 0.
    """
    if n != n_references:
        raise UserError(
            f"{n:,} {what} and {n_references:,} references: line n of one must belong to line n of the other"
        )
    if n == 0:
        raise UserError(f"there are no {what} to compare with references")
