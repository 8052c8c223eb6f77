"""Held-out data of a run, and held-out losses in units that do not depend on the tokens."""

from clearformer.data import PairSplit, Split
from clearformer.errors import UserError
from clearformer.run import Run
from clearformer.runs.folders import read_own_data
from clearformer.study.study import Values


def per_character(run: Run) -> Values:
    """The whole held-out text at `eval`'s stride: what two tokenisers can be compared by.

    Returns:
        bits_per_char, bits_per_byte: Of the held-out text.
        loss_per_token: In nats.
        characters_per_token: How long its tokens are.
    """
    scores = run.evaluate()
    return {
        "bits_per_char": scores["bits_per_char"],
        "bits_per_byte": scores["bits_per_byte"],
        "loss_per_token": scores["loss"],
        "characters_per_token": scores["n_chars"] / scores["n_tokens"],
    }


def text_split(run: Run, name: str = "val") -> Split:
    """A split of the text that a run learnt from; the held-out one, where not said.

    Raises:
        UserError: it learnt from something else.
    """
    split = read_own_data(run).prepared.splits[name]
    if not isinstance(split, Split):
        raise UserError(f"{run.name}: this is measured of runs that learn from a text; data.kind is another")
    return split


def pair_split(run: Run, name: str = "val") -> PairSplit:
    """A split of the pairs that a run learnt from; the held-out one, where not said.

    Raises:
        UserError: it learnt from something else.
    """
    split = read_own_data(run).prepared.splits[name]
    if not isinstance(split, PairSplit):
        raise UserError(f"{run.name}: this is measured of runs that learn from pairs; data.kind is another")
    return split
