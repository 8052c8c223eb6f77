"""Reading files of labelled texts (TSV, CSV and JSONL, plain or gzip) as texts, labels and line numbers."""

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from clearformer.data.holding_out import own_text
from clearformer.data.reading import JSONL_SUFFIXES, json_field, json_object, read_lines
from clearformer.errors import DataError, count, did_you_mean, shortened

SUFFIXES = (".tsv", ".csv", *JSONL_SUFFIXES)
CHANGE_FIELDS = "choose fields with data.text_field=NAME and data.label_field=NAME"

MOST_FIELD_CHARS = 2**31 - 1  # the highest limit that every platform accepts


class Row(NamedTuple):
    """The cells of a table's row, and the numbers (from 1) of the lines it starts and ends on."""

    line: int
    last_line: int
    cells: list[str]


NO_ROW = Row(1, 1, [])


class LabelledText(NamedTuple):
    """A text, its label, the number (from 1) of the line that it starts on, and of its last line if that is another."""

    text: str
    label: str
    line: int
    last_line: int | None = None

    @property
    def own_values(self) -> tuple[str, ...]:
        """The text alone decides its split, so that a text with two labels stays in one split."""
        return (own_text(self.text),)


def read_labelled(
    path: Path, text_field: str, label_field: str, columns: Sequence[str] | None = None
) -> Iterator[LabelledText]:
    """Yield the labelled texts of a file in order, without outer white space; blank lines are skipped.

    In a TSV, a quotation mark is an ordinary character. A CSV is read by Python's `csv`, so a quoted text may hold
    commas and newlines. A JSONL label may be text, a whole number, true or false.

    Args:
        path: `.tsv`, `.csv`, `.jsonl` or `.ndjson`, and these with `.gz`.
        text_field: The column of the texts.
        label_field: The column of the labels.
        columns: The names of a TSV's or CSV's columns if its first line does not name them.

    Raises:
        DataError: the file cannot be read, has no such column, or has a line without a text or a label.
    """
    kind = _kind(path)
    if kind.endswith(JSONL_SUFFIXES):
        if columns is not None:
            raise DataError(f"{path}: data.columns has no effect on JSONL, which names its fields: remove it")
        found = _from_json(path, text_field, label_field)
    elif kind.endswith((".tsv", ".csv")):
        found = _from_rows(path, _rows(path), text_field, label_field, columns)
    else:
        raise DataError(
            f"{path}: labelled texts are read from {', '.join(SUFFIXES)}, also with .gz: rename the file to match "
            "its format"
        )
    for each in found:
        yield each._replace(
            text=_with_content(path, each.text, text_field, each.line),
            label=_with_content(path, each.label, label_field, each.line),
        )


def names_its_fields(path: Path, columns: Sequence[str]) -> bool:
    """Whether a file names its fields itself: a JSONL file, or a table whose first line is these columns in any order.

    Raises:
        DataError: it cannot be read.
    """
    if _kind(path).endswith(JSONL_SUFFIXES):
        return True
    return sorted(_names(next(_rows(path), NO_ROW))) == sorted(columns)


def _kind(path: Path) -> str:
    return path.name.lower().removesuffix(".gz")


def _names(header: Row) -> list[str]:
    return [name.strip() for name in header.cells]


def _rows(path: Path) -> Iterator[Row]:
    return _csv_rows(path) if _kind(path).endswith(".csv") else _tsv_rows(path)


def _with_content(path: Path, value: str, field: str, line: int) -> str:
    if stripped := value.strip():
        return stripped
    raise DataError(f"{path}, line {line}: {field!r} is empty: fill it in, or remove the line")


# --- tables ------------------------------------------------------------------------------------------------


def _tsv_rows(path: Path) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            yield Row(number, number, line.split("\t"))


def _csv_rows(path: Path) -> Iterator[Row]:
    reader = csv.reader((f"{line}\n" for line in read_lines(path)), strict=True)
    while True:
        first_line = reader.line_num + 1
        try:
            with _fields_of_any_length():
                cells = next(reader, None)
        except csv.Error as error:
            raise DataError(f"{path}, line {first_line}: not valid CSV: {_csv_fault(str(error))}") from None
        if cells is None:
            return
        if any(cell.strip() for cell in cells):
            yield Row(first_line, reader.line_num, cells)


def _csv_fault(message: str) -> str:
    """Reword an error of the `csv` module: what is wrong with the row, and how to fix it."""
    if message.startswith("unexpected end of data"):
        return (
            "a quotation mark opens here and is never closed; close it, or double it to keep it in the text"
        )
    if "expected after" in message:
        return 'text follows a closing quotation mark; double ("") a quotation mark inside a text'
    if message.startswith("new-line character"):
        return "a carriage return (\\r) without a newline; convert old Mac line ends with tr '\\r' '\\n'"
    return message


@contextmanager
def _fields_of_any_length() -> Iterator[None]:
    """Raise the `csv` module's limit on the length of a field, which is global, inside the `with` block."""
    allowed = csv.field_size_limit(MOST_FIELD_CHARS)
    try:
        yield
    finally:
        csv.field_size_limit(allowed)


def _from_rows(
    path: Path, rows: Iterator[Row], text_field: str, label_field: str, columns: Sequence[str] | None
) -> Iterator[LabelledText]:
    if columns is None:
        columns = _names(next(rows, NO_ROW))
        _require_fields(path, columns, text_field, label_field)
    else:
        rows = _without_header(path, rows, columns)
    is_csv = _kind(path).endswith(".csv")
    text_at, label_at = columns.index(text_field), columns.index(label_field)
    for line, last_line, cells in rows:
        if len(cells) != len(columns):
            rule = "commas, and a text with a comma is quoted" if is_csv else "tabs"
            raise DataError(
                f"{path}, line {line}: {count(len(cells), 'column')} instead of {len(columns)} "
                f"({', '.join(columns)}); columns are separated by {rule}"
            )
        yield LabelledText(cells[text_at], cells[label_at], line, last_line if last_line > line else None)


def _without_header(path: Path, rows: Iterator[Row], columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a file without a header, whose first line is data.

    Raises:
        DataError: the first line names the same columns; it would become a text with the label "label".
    """
    for number, row in enumerate(rows):
        if number == 0 and sorted(_names(row)) == sorted(columns):
            raise DataError(
                f"{path}, line {row.line}: a header that names the columns of data.columns: remove data.columns"
            )
        yield row


def _require_fields(path: Path, header: Sequence[str], text_field: str, label_field: str) -> None:
    if not header:
        raise DataError(f"{path}: there are no texts in it")
    for field in (text_field, label_field):
        if header.count(field) > 1:
            raise DataError(f"{path}: {header.count(field)} columns are called {field!r}: rename all but one")
        if field not in header:
            first = ", ".join(repr(shortened(name, 40)) for name in header)
            separators = "commas" if _kind(path).endswith(".csv") else "tabs"
            one = f", one column, where columns are separated by {separators}" if len(header) == 1 else ""
            raise DataError(
                f"{path}: no column {field!r}{did_you_mean(field, header)}; the first line has {first}{one} "
                f"({CHANGE_FIELDS}; data.columns={text_field},{label_field} names the columns of a file "
                "without a header, in order)"
            )


# --- JSON lines --------------------------------------------------------------------------------------------


def _from_json(path: Path, text_field: str, label_field: str) -> Iterator[LabelledText]:
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        record = json_object(where, line)
        text, label = (json_field(where, record, field, CHANGE_FIELDS) for field in (text_field, label_field))
        if not isinstance(text, str):
            raise DataError(
                f"{where}: field {text_field!r} is not text but {shortened(json.dumps(text), 40)}"
            )
        if not isinstance(label, str | int):  # True and False are ints too
            raise DataError(
                f"{where}: field {label_field!r} is not a label but {shortened(json.dumps(label), 40)}: a label is "
                "text, a whole number, true or false"
            )
        yield LabelledText(text, label if isinstance(label, str) else json.dumps(label), number)
