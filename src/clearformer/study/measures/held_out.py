"""Held-out losses in units that do not depend on the tokens."""

from clearformer.run import Run
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
