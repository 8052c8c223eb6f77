"""BLEU of a translation run: during training, and by the length of the source sentence."""

import math
import statistics
from collections.abc import Sequence

import numpy as np

from clearformer.evaluation.translation import TranslationScores, evaluate_translation, score_translations
from clearformer.run import Run, load
from clearformer.study.measures.held_out import pair_split
from clearformer.study.study import Measure, Values
from clearformer.training.store.folder import read_metrics

ON_THE_WAY = 200  # held-out sentences that each checkpoint translates
N_BUCKETS = 4
GRID_SECONDS = 5


def bleu(run: Run, sentences: int = 600) -> Values:
    """Measure BLEU of greedy translations of evenly spaced held-out sentences.

    Args:
        run: A translation run.
        sentences: The number of sentences for the trained model; checkpoints translate fewer.

    Returns:
        bleu, exact_match: Of the trained model.
        bleu_by_step: Rows of step and BLEU, for each step whose weights are kept, on the same (fewer) sentences.
        bleu_by_second: Rows of seconds of training and BLEU, interpolated linearly to a grid.
        bleu_by_length: Rows of the mean words of the source and BLEU, for quarters of the sentences by length.
        bleu_of_shortest, bleu_of_longest: BLEU of the first and the last quarter.
    """
    sources, references = held_out(run, sentences)
    scores = translated(run, sources, references)
    on_the_way = bleu_on_the_way(run, min(ON_THE_WAY, sentences))
    by_length = bleu_by_length(scores, [len(source.split()) for source in sources])
    return {
        "bleu": scores.bleu.score,
        "exact_match": scores.exact_match,
        "bleu_by_step": [[step, score] for step, _, score in on_the_way],
        "bleu_by_second": on_a_grid(
            [seconds for _, seconds, _ in on_the_way], [row[2] for row in on_the_way]
        ),
        "bleu_by_length": by_length,
        "bleu_of_shortest": by_length[0][1],
        "bleu_of_longest": by_length[-1][1],
    }


def on_a_grid(seconds: Sequence[float], scores: Sequence[float]) -> list[list[float]]:
    """Interpolate scores at multiples of `GRID_SECONDS`, so that runs of different speed have the same x values."""
    first, last = math.ceil(seconds[0] / GRID_SECONDS), math.floor(seconds[-1] / GRID_SECONDS)
    places = [GRID_SECONDS * n for n in range(first, last + 1)]
    return [[float(at), float(np.interp(at, seconds, scores))] for at in places]


def held_out(run: Run, n: int) -> tuple[list[str], list[str]]:
    """Return n evenly spaced held-out sources and their references, or all if there are fewer."""
    split = pair_split(run)
    sources, references = split.source_texts, split.target_texts
    chosen = np.linspace(0, len(sources) - 1, min(n, len(sources))).astype(int)
    return [sources[i] for i in chosen], [references[i] for i in chosen]


def translated(run: Run, sources: Sequence[str], references: Sequence[str]) -> TranslationScores:
    """Score a run's greedy translations."""
    return evaluate_translation(run, sources, references, beams=1, dtype=run.dtype).scores


def bleu_on_the_way(run: Run, n: int) -> list[list[float]]:
    """Return rows of step, seconds of training and BLEU, for each step whose weights are kept."""
    sources, references = held_out(run, n)
    seconds = {line["step"]: line["seconds"] for line in read_metrics(run.folder.metrics_file)}
    device = run.model.embed.weight.device
    rows = []
    for step in (step for step in run.kept_steps() if step in seconds):
        then = load(run.folder.path, checkpoint=step, device=device)
        rows.append([step, seconds[step], translated(then, sources, references).bleu.score])
    return rows


def bleu_by_length(scores: TranslationScores, lengths: Sequence[int]) -> list[list[float]]:
    """Return rows of the sources' mean length and BLEU, for quarters of the sentences by length."""
    rows = []
    for part in np.array_split(np.argsort(lengths, kind="stable"), min(N_BUCKETS, len(lengths))):
        of_part = [scores.hypotheses[i] for i in part], [scores.references[i] for i in part]
        mean_length = statistics.fmean(lengths[i] for i in part)
        rows.append([mean_length, score_translations(*of_part).bleu.score])
    return rows


BLEU = Measure(bleu)
