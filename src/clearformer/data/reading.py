"""Reading files as documents or lines: UTF-8 text, JSON lines, and gzip of either, in bounded memory.

Text is left as it is: no newline is converted, and nothing is stripped but a byte order mark at the start of a file. A
plain file is one document; a JSONL file has one per line. Memory holds at most a block of a plain file, however long
its lines, or a line of a JSONL file.
"""

import codecs
import gzip
import io
import json
import math
import os
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, cast

from clearformer.errors import DataError, did_you_mean
from clearformer.files import whole_path

BLOCK_BYTES = 1 << 20
SAMPLED_BYTES = 2 * BLOCK_BYTES  # of a packed file or one of JSON lines, for an estimate of its text
# Zeros, say, are a thousand times as many as their packed bytes.
MOST_UNPACKED = 16 * SAMPLED_BYTES
GZIP_MAGIC = b"\x1f\x8b"
JSONL_SUFFIXES = (".jsonl", ".ndjson")
MARK = codecs.BOM_UTF8.decode()
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Chunk(NamedTuple):
    """A stretch of a document's text; the last one has `ends_document` set and may be empty."""

    text: str
    ends_document: bool


class Line(NamedTuple):
    """A line of a file: its number from 1, its content, and its first byte and end, without the line end."""

    number: int
    content: bytes
    start: int
    stop: int


def lines_as_bytes(path: Path) -> Iterator[Line]:
    """Yield the lines of a file, plain or gzip, as bytes.

    Raises:
        DataError: the file cannot be read.
    """
    with _opened(path) as file:
        start = 0
        for number, line in enumerate(file, start=1):
            content = line.removesuffix(b"\n").removesuffix(b"\r")
            yield Line(number, content, start, start + len(content))
            start += len(line)


def extents_of_documents(path: Path, field: str) -> Iterator[tuple[int, int, int]]:
    """For each document of a file, in order, yield the bytes where it starts and ends, and its text's size in bytes.

    For JSONL, these are the start and end of the document's line.

    Raises:
        DataError: the file cannot be read, or has a line that does not hold `field`.
    """
    if is_jsonl(path):
        for line in lines_as_bytes(path):
            # Blank as in `_json_documents`: to a string, more than ASCII's characters are white space.
            try:
                content = line.content.decode("utf-8-sig" if line.number == 1 else "utf-8").rstrip()
            except UnicodeDecodeError as error:  # the file is another one than was prepared
                _check_encoding(
                    path, error, line.number, line.start + place_in(line.content, line.number, error)
                )
            if content and (text := _text_field(f"{path}, line {line.number}", content, field)):
                yield line.start, line.stop, len(text.encode())
        return
    with _opened(path) as file:
        head = file.read(len(codecs.BOM_UTF8))
        n_bytes = len(head) + sum(map(len, iter(partial(file.read, BLOCK_BYTES), b"")))
    start = len(head) if head == codecs.BOM_UTF8 else 0
    if n_bytes > start:
        yield start, n_bytes, n_bytes - start


def estimated_text_bytes(path: Path, field: str) -> int:
    """Estimate the bytes of a file's text by those of its beginning; exact for plain files and few JSON lines.

    Raises:
        DataError: the file cannot be read, or a line in its beginning does not hold `field`.
    """
    n_bytes = _unpacked_ratio(path) * path.stat().st_size
    if not is_jsonl(path):
        return round(n_bytes)
    in_text = end = 0
    for _, end, size in extents_of_documents(path, field):
        in_text += size
        if end >= SAMPLED_BYTES:
            return round(n_bytes * in_text / end)
    return in_text


def _unpacked_ratio(path: Path) -> float:
    """Return the size of the unpacked beginning of a gzip file over its packed size; 1 for another file."""
    try:
        with path.open("rb") as file:
            packed = file.read(SAMPLED_BYTES)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not packed.startswith(GZIP_MAGIC):
        return 1.0
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS + 16)  # 16: with gzip's header
    try:
        n_unpacked = len(unpacker.decompress(packed, MOST_UNPACKED))
    except zlib.error:
        return 1.0  # reading it will say what is damaged
    return n_unpacked / (len(packed) - len(unpacker.unconsumed_tail) - len(unpacker.unused_data))


def read_documents(path: Path, field: str) -> Iterator[Chunk]:
    """Yield a file's documents in order, as chunks; empty documents are left out.

    Gzip is recognised by its first bytes, JSONL by the name (`.jsonl`, `.ndjson`, and these with `.gz`).

    Raises:
        DataError: the file cannot be read, is not UTF-8 text, or has a line that does not hold `field`.
    """
    with _opened(path) as file:
        if is_jsonl(path):
            for _, document in _json_documents(path, file, field):
                yield from _in_blocks(document)
        else:
            yield from _plain_text(path, file)


def place_of_character(paths: Iterable[Path], field: str, index: int) -> str:
    """Locate a character, counted from 0 over the documents of all files, for a message.

    The place is the file, line and column in plain text, and the file and line of the document in JSONL.

    Raises:
        DataError: the files have fewer characters, or cannot be read.
    """
    for path in paths:
        with _opened(path) as file:
            of_lines = is_jsonl(path)
            found = (
                _place_in_jsonl(path, file, field, index) if of_lines else _place_in_plain(path, file, index)
            )
        if isinstance(found, str):
            return found
        index = found
    raise DataError("the text became shorter while it was being read; start again when it is complete")


def _place_in_jsonl(path: Path, file: BinaryIO, field: str, index: int) -> str | int:
    """Return the place of a character; if it lies behind the file's documents, its index from their end."""
    for number, document in _json_documents(path, file, field):
        if index < len(document):
            return f"{path}, line {number}"
        index -= len(document)
    return index


def _place_in_plain(path: Path, file: BinaryIO, index: int) -> str | int:
    """Return the place of a character; if it lies behind the file's text, its index from the end."""
    line = column = 1
    for text, _ in _plain_text(path, file):
        before = text[:index]
        line += before.count("\n")
        column = column + len(before) if "\n" not in before else len(before) - before.rfind("\n")
        if index < len(text):
            return f"{path}, line {line}, column {column}"
        index -= len(text)
    return index


def is_jsonl(path: Path) -> bool:
    """Whether a file is read as JSON lines, by its name."""
    return path.name.lower().removesuffix(".gz").endswith(JSONL_SUFFIXES)


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, plain or gzip, in bounded memory and without line ends (`\\n` or `\\r\\n`).

    Nothing else ends a line: characters that some programs treat as line ends (U+2028, a form feed) stay in it.

    Raises:
        DataError: the file cannot be read, or a line is not UTF-8 text.
    """
    with _opened(path) as file:
        yield from decoded_lines(path, file)


def decoded_lines(name: Path | str, file: BinaryIO) -> Iterator[str]:
    """Yield the lines of a stream of bytes as `read_lines` does those of a file; messages call it `name`.

    Raises:
        DataError: a line is not UTF-8 text.
    """
    offset = 0
    for number, line in enumerate(file, start=1):
        _check_not_binary(name, line, offset)
        try:
            content = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            _check_encoding(name, error, number, offset + place_in(line, number, error))
        offset += len(line)
        yield content.removesuffix("\n").removesuffix("\r")


def place_in(line: bytes, number: int, error: UnicodeDecodeError) -> int:
    """Return the place of the byte at fault in a line; decoding counts from behind the mark that begins a file."""
    mark = len(codecs.BOM_UTF8) if number == 1 and line.startswith(codecs.BOM_UTF8) else 0
    return mark + error.start


def decoded_text(name: Path | str, content: bytes) -> str:
    """Decode bytes as UTF-8 and leave the text as it is; messages call the source `name`.

    Raises:
        DataError: it is not UTF-8; the message names the line.
    """
    _check_unpacked(name, content)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        _check_encoding(name, error, content.count(b"\n", 0, error.start) + 1, error.start)


def place_of(path: Path) -> Hashable:
    """Return what stands for a file wherever a link to it lies, also in other capitals where these are the same."""
    try:
        status = path.stat()
    except OSError:
        return os.path.realpath(path)
    return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(path)


def check_no_file_twice(paths: Mapping[str, Path]) -> None:
    """Check that no two settings of section `data` name one file: what is held out is not trained on, nor tests twice.

    Args:
        paths: The files of the splits, by setting.

    Raises:
        DataError: two of them are one file, or links to one.
    """
    settings: dict[Hashable, str] = {}
    for setting, path in paths.items():
        first = settings.setdefault(place_of(path), setting)
        if first != setting:
            raise DataError(
                f"data.{first} and data.{setting} are both {path}: give a file of its own to each split"
            )


def existing_file(setting: str, name: str) -> Path:
    """Return the path of the file that a setting of section `data` names.

    Raises:
        DataError: there is no such file (the message suggests the nearest name in its folder), or it cannot be read.
    """
    path = whole_path(name)
    check_writable_name(setting, path)
    try:
        if path.is_dir():
            raise DataError(f"data.{setting}={path} is a folder: give a file in it")
        if not path.exists():
            raise DataError(f"data.{setting}={path}: there is no such file{nearest_beside(path)}")
        if not path.is_file():
            raise DataError(f"data.{setting}={path} is not a regular file: copy the text into one")
    except OSError as error:
        raise DataError(f"data.{setting}={path}: cannot be read: {error.strerror or error}") from None
    return path


def check_writable_name(setting: str, path: Path) -> None:
    """Refuse a path that settings cannot hold because it is not UTF-8, such as one under an ill-named folder.

    Raises:
        DataError: it is such a path.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise DataError(
            f"data.{setting}={str(path)!a}: the name is not UTF-8, which settings require: rename it"
        ) from None


def nearest_beside(path: Path) -> str:
    """Return `; did you mean X?` with the nearest name in the same folder, or an empty string."""
    try:
        return did_you_mean(path.name, [other.name for other in path.parent.iterdir() if other.exists()])
    except OSError:
        return ""


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, unpacking gzip; errors while it is read become a DataError of one line."""
    try:
        with path.open("rb") as raw:
            if raw.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC):  # a pipe has no way back
                with gzip.open(raw) as unpacked, io.BufferedReader(unpacked, BLOCK_BYTES) as buffered:
                    yield cast(BinaryIO, buffered)
            else:
                yield raw
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file ({error}): download or compress it again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def _plain_text(path: Path, file: BinaryIO) -> Iterator[Chunk]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    n_bytes = n_newlines = 0
    has_text, mark = False, MARK
    while block := file.read(BLOCK_BYTES):
        _check_not_binary(path, block, n_bytes)
        try:
            text = decoder.decode(block)
        except UnicodeDecodeError as error:
            # The decoder puts the start of a cut character, kept from the last block, before this one.
            at = error.start - (len(error.object) - len(block))
            _check_encoding(path, error, n_newlines + block.count(b"\n", 0, max(at, 0)) + 1, n_bytes + at)
        text, mark = text.removeprefix(mark), "" if text else mark
        if text:
            has_text = True
            yield Chunk(text, ends_document=False)
        n_bytes += len(block)
        n_newlines += block.count(b"\n")
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        _check_encoding(path, error, n_newlines + 1, n_bytes - len(error.object))
    if has_text:
        yield Chunk("", ends_document=True)


def _json_documents(path: Path, file: BinaryIO, field: str) -> Iterator[tuple[int, str]]:
    """Yield each document with its line number."""
    for number, line in enumerate(decoded_lines(path, file), start=1):
        if line.strip():
            yield number, _text_field(f"{path}, line {number}", line.rstrip(), field)


def _in_blocks(document: str) -> Iterator[Chunk]:
    for start in range(0, len(document), BLOCK_BYTES):
        stop = start + BLOCK_BYTES
        yield Chunk(document[start:stop], ends_document=stop >= len(document))


def _text_field(where: str, line: str, field: str) -> str:
    text = json_field(where, json_object(where, line), field, "choose the text field with data.field=NAME")
    if not isinstance(text, str):
        raise DataError(f"{where}: field {field!r} is not text but {json.dumps(text)[:40]}")
    return text


def json_object(where: str, line: str) -> dict[str, Any]:
    """Parse a line of JSONL.

    Raises:
        DataError: it is not JSON, or not an object.
    """
    try:
        record = _JSON.decode(line)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not JSON ({error.msg}, column {error.colno}); a JSONL file has one object per line"
        ) from None
    except (RecursionError, ValueError) as error:
        raise DataError(f"{where}: unreadable JSON ({error})") from None
    if not isinstance(record, dict):
        raise DataError(f"{where}: not a JSON object; a JSONL file has one per line")
    return record


def _whole_number(digits: str) -> int | float:
    """Return a whole number; infinity for one with more digits than Python converts, which no field to be read has."""
    try:
        return int(digits)
    except ValueError:
        return math.inf


_JSON = json.JSONDecoder(parse_int=_whole_number)
"""One for all lines: making it takes as long as reading a line."""


def json_field(where: str, record: dict[str, Any], field: str, fix: str) -> Any:
    """Return one field of such an object.

    Raises:
        DataError: it is missing, or holds half of a surrogate pair.
    """
    if field not in record:
        hint = did_you_mean(field, record) or f"; it has {', '.join(map(repr, record)) or 'none'}"
        raise DataError(f"{where}: no field {field!r}{hint} ({fix})")
    value = record[field]
    if isinstance(value, str):
        check_characters(f"{where}: field {field!r}", value)
    return value


def check_characters(what: str, text: str) -> None:
    """Refuse a text that no file can hold in UTF-8; the message calls it `what`.

    Raises:
        DataError: it has half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{what} has half of a surrogate pair ({text[error.start]!a}), which is not a character: remove it"
        ) from None


def _check_unpacked(name: Path | str, content: bytes) -> None:
    """Refuse what begins as a gzip file does: files are unpacked when they are opened, standard input is not."""
    if content.startswith(GZIP_MAGIC):
        raise DataError(f"{name}: compressed by gzip: unpack it first (gunzip -c)")


def _check_not_binary(path: Path | str, block: bytes, offset: int) -> None:
    if offset == 0:
        _check_unpacked(path, block)
    if offset == 0 and block.startswith(UTF16_MARKS):
        # UTF-32's mark begins with that of UTF-16.
        found = "UTF-32" if block.startswith(codecs.BOM_UTF32_LE) else "UTF-16"
        raise DataError(
            f"{path}: {found} text; clearformer reads UTF-8: convert it with iconv -f {found} -t UTF-8"
        )
    at = block.find(b"\0")
    if at >= 0:
        raise DataError(
            f"{path}: looks binary (a NUL byte at offset {offset + at}); clearformer reads UTF-8 text"
        )


def _check_encoding(path: Path | str, error: UnicodeDecodeError, line: int, offset: int) -> NoReturn:
    byte = error.object[error.start]
    raise DataError(
        f"{path}, line {line}: not UTF-8 (byte 0x{byte:02x} at offset {offset}: {error.reason}); "
        "if it is Latin-1, convert it with iconv -f LATIN1 -t UTF-8"
    ) from None


def has_text(value: Any) -> bool:
    """Whether a value is a string with more than white space in it."""
    return isinstance(value, str) and bool(value.strip())
