"""Labelled texts made by a registered kind of data."""

from clearformer.data.generated import generated_rows
from clearformer.data.labelled.config import LabelledData
from clearformer.data.labelled.reading import LabelledText


def generated_texts(config: LabelledData) -> list[LabelledText]:
    """Return the texts of a kind's method `labelled_texts`, numbered from 1.

    Raises:
        DataError: one of them is not a text and a label, both non-blank strings of whole characters.
    """
    rows = generated_rows(config, "(text, label)")
    return [LabelledText(text, label, number) for number, (text, label) in enumerate(rows, start=1)]
