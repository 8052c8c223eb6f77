"""Labelled texts that a kind of data of one's own yields."""

from clearformer.data.labelled.config import LabelledData
from clearformer.data.labelled.reading import LabelledText
from clearformer.data.reading import has_text
from clearformer.errors import DataError, shown


def generated_texts(config: LabelledData) -> list[LabelledText]:
    """The texts of the method `labelled_texts` of a kind, numbered from 1.

    Raises:
        DataError: one of them is not a text and a label, two strings with something in them.
    """
    texts = []
    for number, made in enumerate(config.made(), start=1):
        if not (isinstance(made, tuple) and len(made) == 2 and all(map(has_text, made))):
            raise DataError(
                f"data.kind={config.kind}: labelled_texts() yields (text, label), two strings with something in them; "
                f"number {number} is {shown(made)}"
            )
        texts.append(LabelledText(*made, number))
    return texts
