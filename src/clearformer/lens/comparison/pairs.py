"""Requirements for comparing two runs."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_run
from clearformer.decoding.text.samples import Run
from clearformer.errors import UserError, count, shown


def check_one_family(run: Run, other: Run) -> None:
    """Raise UserError if two runs have different families."""
    check_run(run)
    check_run(other)
    one, another = (each.model.config.family for each in (run, other))
    if one != another:
        raise UserError(f"family: {one} and {another} cannot be compared; give two runs of one family")


def check_alike(run: Run, other: Run) -> None:
    """Raise UserError if two runs have different families or tokenizers."""
    check_one_family(run, other)
    one, another = run.tokenizer, other.tokenizer
    if one is not another and one.fingerprint() != another.fingerprint():
        sizes = f"{one.kind} of {count(one.vocab_size, 'token')}, {another.kind} of {another.vocab_size:,}"
        raise UserError(
            f"the two runs have different tokenizers ({sizes}), so their tokens do not correspond: "
            "compare runs with the same data and tokenizer settings"
        )


def texts_of(texts: Text | Sequence[Text]) -> list[Text]:
    """Return one text (a string or ids), or several, as a list.

    Raises:
        UserError: there is none.
    """
    given: Any = texts
    found: list[Any]
    if isinstance(given, str) or hasattr(given, "shape"):
        found = [given] if len(given) else []
    elif not isinstance(given, Iterable):
        raise UserError(f"texts: give one or more that the models read; got {shown(given)}")
    else:
        found = list(given)  # at once: what is read of a generator is gone
        if found and all(isinstance(each, Integral) for each in found):
            found = [found]
    if not found:
        raise UserError("texts: give one or more that the models read")
    return found
