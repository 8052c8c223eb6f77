"""BLEU on Multi30k's test_2016_flickr of trained runs, seed by seed, and how it grew with the time of training.

    for seed in 1 2 3; do
      clearformer train multi30k seed=$seed data.languages=en-de train.keep_last=40 --run en-de-$seed
    done
    python benchmarks/multi30k.py en-de-1 en-de-2 en-de-3 [--held-out SOURCE TARGET] [--curve] [--json FILE]
        [--figure FILE.png]

CLEARFORMER_DATA names the folder with `multi30k`; its validation and test pairs are read, whatever a run has learned
from, so long as `data.languages` names its direction. What is measured is the mean of each run's last ten
checkpoints, translating by beam search of 5 and greedily. The length penalty of the search is chosen on the
validation pairs: one for all runs of a direction, by the mean of their lower-cased BLEU; it stays 1 unless the best
is better in 95% of 1,000 resamplings of the pairs (Koehn 2004). With --held-out, for runs of one direction, the pairs
of these two files, which no run may have learned from, count with the validation pairs. The test pairs are translated
once with it. BLEU is counted three times: on the plain text, on the plain text without regard to case, and
lower-cased, with the punctuation normalised and the words set apart by Moses' rules (sacremoses), as the published
figures for this task are. With --curve, every fourth checkpoint by itself as well, at a length penalty of 1.
Prints one JSON object: all runs, and for each direction the mean and the standard deviation over its runs.
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sacrebleu.metrics.bleu import BLEU
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from clearformer.data import PairsData
from clearformer.data.pairs.source import Pair
from clearformer.data.pairs.sources import Aligned, open_pairs
from clearformer.device import processor_name
from clearformer.evaluation.translation import TranslationScores, bleu, evaluate_translation
from clearformer.run import Run, load
from clearformer.training.store.checkpoint import list_checkpoints, step_of

BEAMS = 5
PENALTIES = (0.6, 0.8, 1.0, 1.2, 1.4, 1.8)  # exponents of a text's length, from which one is chosen
RESAMPLINGS = 1000
CERTAIN = 0.95  # the share of them in which another penalty than 1 has to be better
LAST = 10
PUBLISHED = 41.02  # English to German, 2.6M parameters, lower-cased and tokenized (Wu et al. 2021)
Splits = dict[str, dict[float, np.ndarray]]
"""The counts for BLEU of each split's translations, a pair a row, for each length penalty."""
FIGURES = ("bleu_moses", "bleu_lowercase", "bleu", "chrf")


def pairs_of(run: Run, split: str) -> list[Pair]:
    """Multi30k's pairs of one split, in the run's direction."""
    return open_pairs(PairsData(name="multi30k", languages=direction_of(run))).read().splits[split]


def moses(text: str, language: str) -> str:
    """Lower-cased words as Moses sets them apart, joined by spaces."""
    normal = MosesPunctNormalizer(language).normalize(text.lower())
    return " ".join(MosesTokenizer(language).tokenize(normal, escape=False))


def bleu_by_moses(scores: TranslationScores, language: str) -> float:
    """BLEU as it is usually published for this task."""
    hypotheses = [moses(text, language) for text in scores.hypotheses]
    references = [moses(text, language) for text in scores.references]
    return bleu(hypotheses, references, tokenize="none")[0].score


def translated(
    run: Run, pairs: list[Pair], beams: int = BEAMS, length_penalty: float = 1.0
) -> TranslationScores:
    """A model's translations of some pairs, with their scores."""
    return evaluate_translation(
        run,
        [pair.source for pair in pairs],
        [pair.target for pair in pairs],
        beams=beams,
        length_penalty=length_penalty,
        dtype=getattr(torch, run.config.train.dtype),
    ).scores


def counts_by_penalty(run: Run, pairs: list[Pair]) -> dict[float, np.ndarray]:
    """The counts for BLEU of some pairs' translations, for each length penalty."""
    return {alpha: counts_of(translated(run, pairs, length_penalty=alpha)) for alpha in PENALTIES}


def counts_by_split(name: str, held_out: Sequence[Path]) -> Splits:
    """The same of the validation pairs, and of those in two further files if there are any."""
    run = load(name, average=LAST)
    splits = {"val": pairs_of(run, "val")}
    if held_out:
        splits["held_out"] = list(Aligned(*held_out).pairs())
    return {split: counts_by_penalty(run, pairs) for split, pairs in splits.items()}


def together(splits: Splits) -> dict[float, np.ndarray]:
    """The counts of the pairs of all splits."""
    return {alpha: np.concatenate([counts[alpha] for counts in splits.values()]) for alpha in PENALTIES}


def counts_of(scores: TranslationScores) -> np.ndarray:
    """Counts for lower-cased BLEU, a pair a row: n-grams of 1 to 4 words found and given, words given and wanted."""
    metric = BLEU(lowercase=True, effective_order=True)
    found = map(metric.sentence_score, scores.hypotheses, ([each] for each in scores.references))
    return np.array([[*each.counts, *each.totals, each.sys_len, each.ref_len] for each in found])


def bleu_by_penalty(counts: Mapping[float, np.ndarray]) -> dict[float, float]:
    """BLEU for each length penalty."""
    return {alpha: bleu_of(of_pairs.sum(0)) for alpha, of_pairs in counts.items()}


def bleu_of(counts: np.ndarray) -> float:
    """BLEU of some pairs' translations together, by their summed counts."""
    found, given, (n_given, n_wanted) = np.split(counts, [4, 8])
    return BLEU.compute_bleu(found.tolist(), given.tolist(), int(n_given), int(n_wanted)).score


def figures(run: Run, scores: TranslationScores) -> dict[str, Any]:
    """The figures of a model's translations."""
    return {
        "bleu_moses": bleu_by_moses(scores, languages(run)[1]),
        "bleu_lowercase": scores.bleu_lowercase.score,
        "bleu": scores.bleu.score,
        "chrf": scores.chrf.score,
        "signatures": [m.signature for m in (scores.bleu_lowercase, scores.bleu, scores.chrf)],
    }


def languages(run: Run) -> list[str]:
    data = run.config.data
    if not isinstance(data, PairsData) or data.language_pair is None:
        raise SystemExit("a run does not tell its direction: train it with data.languages=en-de, say")
    return list(data.language_pair)


def check_one_direction(directions: Sequence[str]) -> None:
    """Raise SystemExit if pairs of one direction would be held out for runs of several."""
    if len(set(directions)) > 1:
        several = ", ".join(sorted(set(directions)))
        raise SystemExit(f"--held-out: its pairs are of one direction, the runs of {several}")


def direction_of(run: Run) -> str:
    return "-".join(languages(run))


def seconds_by_step(run: Run) -> dict[int, float]:
    lines = map(json.loads, run.folder.metrics_file.read_text().splitlines())
    return {line["step"]: line["seconds"] for line in lines}


def curve(name: str, pairs: list[Pair]) -> list[dict[str, float]]:
    """Lower-cased BLEU of every fourth checkpoint, with the seconds of training before it."""
    run = load(name)
    seconds, points = seconds_by_step(run), []
    for checkpoint in list_checkpoints(run.folder.checkpoints)[::-1][3::4]:
        step = step_of(checkpoint)
        score = translated(load(name, str(step)), pairs).bleu_lowercase.score
        points.append({"step": step, "seconds": seconds[step], "bleu_lowercase": score})
    return points


def chosen_penalties(measured: Mapping[str, Splits]) -> dict[str, dict[str, float]]:
    """The length penalty of each direction, by all its runs."""
    by_direction = defaultdict(list)
    for name, splits in measured.items():
        by_direction[direction_of(load(name))].append(together(splits))
    return {direction: chosen_penalty(runs) for direction, runs in by_direction.items()}


def chosen_penalty(on_val: Sequence[Mapping[float, np.ndarray]]) -> dict[str, float]:
    """The penalty with the highest mean, or 1 if that is not surely better; which it was, and how surely."""
    best = max(PENALTIES, key=lambda alpha: sum(bleu_of(counts[alpha].sum(0)) for counts in on_val))
    certainty = certainty_of(on_val, best)
    return {"chosen": best if certainty >= CERTAIN else 1.0, "best": best, "certainty": certainty}


def certainty_of(on_val: Sequence[Mapping[float, np.ndarray]], alpha: float) -> float:
    """The share of resamplings in which a penalty's BLEU, summed over all runs, is higher than that of 1."""
    n_pairs = len(on_val[0][alpha])
    times_drawn = np.random.default_rng(0).multinomial(n_pairs, [1 / n_pairs] * n_pairs, RESAMPLINGS)
    gains = [
        sum(bleu_of(times @ counts[alpha]) - bleu_of(times @ counts[1.0]) for counts in on_val)
        for times in times_drawn
    ]
    return statistics.mean(gain > 0 for gain in gains)


def report(name: str, splits: Splits, length_penalty: float, with_curve: bool) -> dict[str, Any]:
    run = load(name, average=LAST)
    test = pairs_of(run, "test")
    told = {
        "run": name,
        "direction": direction_of(run),
        "seed": run.config.seed,
        "steps": run.step,
        "seconds": seconds_by_step(run)[run.step],
        "n_parameters": sum(p.numel() for p in run.model.parameters()),
        **{f"{split}_bleu_lowercase": bleu_by_penalty(counts) for split, counts in splits.items()},
        "length_penalty": length_penalty,
        **figures(run, translated(run, test, length_penalty=length_penalty)),
        "greedy": figures(run, translated(run, test, beams=1)),
    }
    return told | ({"curve": curve(name, test)} if with_curve else {})


def summary(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """For each direction, mean and standard deviation over the seeds."""
    by_direction = defaultdict(list)
    for told in reports:
        by_direction[told["direction"]].append(told)
    return {
        direction: {"n": len(told)}
        | {f: spread([t[f] for t in told]) for f in FIGURES}
        | {"greedy": {f: spread([t["greedy"][f] for t in told]) for f in FIGURES}}
        for direction, told in by_direction.items()
    }


def spread(values: list[float]) -> dict[str, float]:
    return {
        "mean": statistics.mean(values),
        "sd": statistics.stdev(values) if len(values) > 1 else 0.0,
    }


def draw(reports: list[dict[str, Any]], file: Path) -> None:
    """BLEU against the minutes of training, a line for each run."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    directions = sorted({told["direction"] for told in reports})
    for told in reports:
        color = f"C{directions.index(told['direction'])}"
        minutes = [point["seconds"] / 60 for point in told["curve"]]
        axes.plot(minutes, [p["bleu_lowercase"] for p in told["curve"]], color=color, lw=1.2, alpha=0.8)
        axes.plot(told["seconds"] / 60, told["bleu_lowercase"], "o", color=color, ms=5)
    for direction in directions:
        seeds = sum(told["direction"] == direction for told in reports)
        axes.plot([], [], color=f"C{directions.index(direction)}", label=f"{direction}, {seeds} seeds")
    if "en-de" in directions:
        axes.axhline(PUBLISHED, color="0.5", lw=1, ls="--")
        axes.annotate(
            f"published for this size, en-de: {PUBLISHED}",
            (0.01, PUBLISHED),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            color="0.4",
            fontsize=8,
        )
    axes.plot([], [], "o", color="0.3", label=f"mean of the last {LAST} checkpoints")
    axes.set(xlabel="minutes of training", ylabel="BLEU, lower-cased", ylim=(25, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--held-out", nargs=2, type=Path, metavar=("SOURCE", "TARGET"), default=())
    parser.add_argument("--curve", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    if arguments.held_out:
        check_one_direction([direction_of(load(name)) for name in arguments.runs])
    with_curve = arguments.curve or arguments.figure is not None
    measured = {name: counts_by_split(name, arguments.held_out) for name in arguments.runs}
    penalties = chosen_penalties(measured)
    reports = [
        report(name, splits, penalties[direction_of(load(name))]["chosen"], with_curve)
        for name, splits in measured.items()
    ]
    told = {
        "machine": processor_name(),
        "torch": torch.__version__,
        "beams": BEAMS,
        "averaged": LAST,
        "length_penalties": penalties,
        "directions": summary(reports),
        "runs": reports,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(told, indent=1) + "\n")
    if arguments.figure:
        draw(reports, arguments.figure)
    print(json.dumps(told["directions"], indent=2))


if __name__ == "__main__":
    main()
