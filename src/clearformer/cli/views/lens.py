"""The views of `clearformer lens`, and their results as text."""

from typing import TYPE_CHECKING, NamedTuple

from clearformer.cli.tables import paragraph, table

if TYPE_CHECKING:
    from clearformer.lens import Shown

MOST_ROWS = 40


class View(NamedTuple):
    """One view of a model.

    Attributes:
        about: What it shows, in a few words.
        function: The function of `clearformer.lens` that computes it.
        options: The command's options that it takes.
        needs: The options that it requires.
        reads_text: Whether it reads a text; otherwise it needs only the model.
        reads_weights: Whether it reads the weights that were opened; otherwise it reads the training or its data.
    """

    about: str
    function: str
    options: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    reads_text: bool = True
    reads_weights: bool = True


TEXT = ("output", "masked")
CHOSEN = ("position", "target", "foil")
LOGIT = (*TEXT, *CHOSEN)

VIEWS = {
    "tokens": View("tokens of the text", "tokens", TEXT),
    "next": View("likeliest next tokens", "next_tokens", (*TEXT, "position", "top", "temperature")),
    "positions": View("how the model encodes positions", "positions", reads_text=False),
    "classes": View(
        "probability of each class, and each token's contribution", "classes", ("target", "foil")
    ),
    "lens": View("prediction after each layer", "logit_lens", (*TEXT, "position", "target", "top")),
    "ledger": View("a logit by the component that wrote it", "ledger", LOGIT),
    "sources": View("a logit by source token", "sources", LOGIT),
    "attention": View("attention weights between tokens", "attention", (*TEXT, "layer", "head")),
    "alignment": View("source of each output word", "alignment", ("output", "layer", "head")),
    "score": View(
        "why a head reads there",
        "score",
        (*TEXT, "layer", "head", "position", "key", "cross"),
        needs=("layer", "key"),
    ),
    "patch": View(
        "effect of activations patched in from another text",
        "patch_every",
        ("output", *CHOSEN, "donor", "where", "estimate"),
        needs=("donor",),
    ),
    "attribution": View(
        "contribution of each token, by gradients", "integrated_gradients", ("output", *CHOSEN, "steps")
    ),
    "gradients": View(
        "positions that contribute to each matrix's gradient", "weight_gradients", ("output", *CHOSEN)
    ),
    "heads": View("what each head does", "head_scores", reads_text=False),
    "changes": View(
        "which parts lowered the loss since an earlier step",
        "loss_changes_since",
        ("output", "since", "until", "pieces"),
    ),
    "learned": View(
        "training windows that support a prediction",
        "tracin",
        (*TEXT, "position", "target", "sample"),
        reads_weights=False,
    ),
    "corpus": View(
        "loss on the run's own data, hardest passages", "corpus", ("split", "rows"), reads_text=False
    ),
    "events": View("when things happened in training", "events", reads_text=False, reads_weights=False),
    "bigram": View(
        "loss that a bigram model of its data reaches", "bigram", reads_text=False, reads_weights=False
    ),
    "compare": View(
        "another run on the same text, token by token", "differences", ("output", "other"), needs=("other",)
    ),
    "matches": View(
        "heads of another run that do the same", "match_heads", ("other", "by"), needs=("other",)
    ),
    "transplant": View(
        "cost of replacing a head by another run's",
        "transplant",
        ("other", "layer", "head"),
        needs=("other", "layer", "head"),
        reads_text=False,
    ),
}


def as_text(found: "Shown") -> str:
    """Format a result: its caption, its table and its notes."""
    heads, rows, n_left = found.table()
    more = len(rows) - MOST_ROWS
    lines = [paragraph(found.caption()), "", table(heads, rows[:MOST_ROWS], n_left)]
    if more > 0:
        lines.append(f"... and {more:,} more rows; --json prints all")
    return "\n".join([*lines, *(["", *map(paragraph, found.notes())] if found.notes() else [])])
