"""Requirements for comparing two runs."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from clearformer.decoding import Text
from clearformer.decoding.arguments import check_run
from clearformer.decoding.text.samples import Run
from clearformer.errors import UserError, count


def check_one_tokenizer(run: Run, other: Run) -> None:
    """Raise UserError if two runs have different tokenisers."""
    check_run(run)
    check_run(other)
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
    if isinstance(given, str) or hasattr(given, "shape") or all(isinstance(each, Integral) for each in given):
        given = [given] if len(given) else []
    if not given:
        raise UserError("texts: give one or more that the models read")
    return list(given)
