"""The initial selection of a page: the beginning of the run's held-out text."""

import numpy as np

from clearformer.data.labelled.preparing import LabelledSplit
from clearformer.data.pairs.files import PairSplit
from clearformer.data.shards import Split
from clearformer.errors import ClearformerError
from clearformer.page.selection import Selection
from clearformer.run import Run
from clearformer.runs.evaluation import HELD_OUT
from clearformer.runs.own_data import read_own_data

N_TOKENS = 48
N_LETTERS = 8  # without a text: the first words or letters of the vocabulary
CORPUS_FLOPS = 1e12  # budget for reading a part of the run's data: some seconds
LEAST_ROWS, MOST_ROWS = 4, 48


def first_selection(run: Run, text: str | None = None, other: Run | None = None) -> Selection:
    """Return the initial selection of a page.

    Args:
        run: The page's first run.
        other: The second, to compare with.
        text: The text to read; by default the beginning of the run's held-out text.
    """
    # The first token may lie outside the last one's window; the last one reads itself.
    is_windowed = getattr(run.model.config.attention, "window", None) is not None
    return Selection(
        run=run.name,
        versus="" if other is None else other.name,
        text=first_text(run) if text is None else text,
        key=-1 if is_windowed else 0,
        n_rows=corpus_rows(run.n_parameters, run.model.config.max_seq_len),
    )


def corpus_rows(n_parameters: int, context: int) -> int:
    """Return how many rows of the run's data to read at first; fewer for a large model."""
    return max(LEAST_ROWS, min(MOST_ROWS, int(CORPUS_FLOPS // (2 * n_parameters * context))))


def first_text(run: Run) -> str:
    """Return the beginning of a run's held-out text; a few tokens of its vocabulary if its data are not available."""
    try:
        split = read_own_data(run, allow_changed=True).prepared.splits.get(HELD_OUT)
    except ClearformerError:
        split = None
    if isinstance(split, PairSplit) and len(split):
        return split.source_texts[0]
    if isinstance(split, LabelledSplit) and len(split):
        return first_that_fits(run, split)
    if isinstance(split, Split) and split.n_tokens:
        n = min(N_TOKENS, run.model.config.max_seq_len // 2, split.n_tokens)
        return run.tokenizer.decode(split.read(0, n))
    return any_text(run)


def first_that_fits(run: Run, split: LabelledSplit) -> str:
    """Return the first text that the model reads whole; if there is none, the beginning of the first one."""
    limit = run.model.config.max_seq_len
    fitting = np.flatnonzero(split.lengths <= limit)
    return split.texts[int(fitting[0])] if len(fitting) else run.tokenizer.decode(split.row(0)[: limit - 1])


def any_text(run: Run) -> str:
    """Return the first few tokens of a vocabulary that are words or letters, joined."""
    labels = map(run.tokenizer.token_label, range(run.tokenizer.vocab_size))
    return "".join([label for label in labels if label.isalpha()][:N_LETTERS])
