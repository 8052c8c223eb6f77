"""Rows of two texts made by a registered kind of data."""

from collections.abc import Iterator

from clearformer.data.config import DataSpec
from clearformer.data.reading import check_characters, has_text
from clearformer.errors import DataError, shown


def generated_rows(config: DataSpec, parts: str) -> Iterator[tuple[str, str]]:
    """Yield the rows of a kind's method: pairs of texts, or a text and its label.

    Args:
        config: The kind and its settings.
        parts: The parts of a row, for messages: "(text, label)".

    Raises:
        DataError: a row is not two non-blank strings of whole characters.
    """
    for number, made in enumerate(config.made(), start=1):
        if not (isinstance(made, tuple) and len(made) == 2 and all(map(has_text, made))):
            raise DataError(
                f"data.kind={config.kind}: {config.made_by}() must yield {parts}, two strings that are not blank; "
                f"number {number} is {shown(made)}"
            )
        for part in made:
            check_characters(f"data.kind={config.kind}: number {number}", part)
        yield made
