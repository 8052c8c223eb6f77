"""Held-out data of a run, and held-out losses in units that do not depend on the tokenizer."""

from clearformer.data import PairSplit, Split
from clearformer.errors import UserError
from clearformer.run import Run
from clearformer.runs.own_data import read_own_data
from clearformer.study.study import Values


def per_character(run: Run) -> Values:
    """Measure the loss on the whole held-out text, at `eval`'s stride, in units that make tokenizers comparable.

    Returns:
        bits_per_char, bits_per_byte: The loss per character and per byte.
        loss_per_token: The loss per token, in nats.
        characters_per_token: The mean length of the tokens.

        Those for which characters are counted are None where tokens lose some of the text.
    """
    scores = run.evaluate()
    n_chars = scores["n_chars"]
    return {
        "bits_per_char": scores["bits_per_char"],
        "bits_per_byte": scores["bits_per_byte"],
        "loss_per_token": scores["loss"],
        "characters_per_token": None if n_chars is None else n_chars / scores["n_tokens"],
    }


def text_split(run: Run, name: str = "val") -> Split:
    """Return a split of the text that a run was trained on; by default the held-out one.

    Raises:
        UserError: the run was trained on another kind of data, or they have no such split.
    """
    split = own_split(run, name)
    if not isinstance(split, Split):
        raise UserError(f"{run.name}: data.kind: this measure needs a run trained on text")
    return split


def pair_split(run: Run) -> PairSplit:
    """Return the held-out pairs of the data that a run was trained on.

    Raises:
        UserError: the run was trained on another kind of data, or none are held out.
    """
    split = own_split(run, "val")
    if not isinstance(split, PairSplit):
        raise UserError(f"{run.name}: data.kind: this measure needs a run trained on pairs")
    return split


def own_split(run: Run, name: str) -> object:
    """Return a split of a run's own data.

    Raises:
        UserError: they have no such split.
    """
    splits = read_own_data(run).prepared.splits
    if name not in splits:
        raise UserError(
            f"{run.name}: data: this measure needs the split {name!r}, and there is only {', '.join(splits)}"
        )
    return splits[name]
