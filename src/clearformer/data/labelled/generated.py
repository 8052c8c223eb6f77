"""Labelled texts made by a registered kind of data."""

from clearformer.data.labelled.config import LabelledData
from clearformer.data.labelled.reading import LabelledText
from clearformer.data.reading import check_characters, has_text
from clearformer.errors import DataError, shown


def generated_texts(config: LabelledData) -> list[LabelledText]:
    """Return the texts of a kind's method `labelled_texts`, numbered from 1.

    Raises:
        DataError: one of them is not a text and a label, both non-blank strings of whole characters.
    """
    texts = []
    for number, made in enumerate(config.made(), start=1):
        if not (isinstance(made, tuple) and len(made) == 2 and all(map(has_text, made))):
            raise DataError(
                f"data.kind={config.kind}: labelled_texts() must yield (text, label), two strings that are not blank; "
                f"number {number} is {shown(made)}"
            )
        for part in made:
            check_characters(f"data.kind={config.kind}: number {number}", part)
        texts.append(LabelledText(*made, number))
    return texts
