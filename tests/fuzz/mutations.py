"""What is done to files and settings: values of another kind, parts that are gone or moved, bytes that lie.

A step names its value (`VALUES`, `RAW`, `BLOBS`), so that a case stays one short line however long the value is.
Places in a file are in thousandths of its length.
"""

import copy
import gzip
import json
import random
import struct
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from .cases import Step

VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "false": False,
    "zero": 0,
    "one": 1,
    "two": 2,
    "minus one": -1,
    "half": 0.5,
    "one and a half": 1.5,
    "least float": 5e-324,
    "largest float": 1.7e308,
    "2**31": 2**31,
    "2**63": 2**63,
    "10**30": 10**30,
    "-2**63": -(2**63),
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "nothing": "",
    "space": " ",
    "word": "x",
    "none": "none",
    "seven as text": "7",
    "unicode": "日本 🦎 e\u0301",
    "half a pair": "\ud800",
    "NUL": "a\0b",
    "newline": "a\nb",
    "escape": "\x1b[31m",
    "path outside": "../outside",
    "long text": "x" * 100_000,
    "no list": [],
    "no table": {},
    "list": [1, "x", None],
    "list of lists": [[], [[]]],
    "table": {"a": {"b": 1}},
    "tables": [{"kind": 1}, {"id": -1, "content": None}],
    "many": list(range(3000)),
}
RAW = {  # what no value of Python becomes by itself
    "5,000 digits": "9" * 5000,
    "minus 5,000 digits": "-" + "9" * 5000,
    "brackets": "[" * 5000,
    "deep list": "[" * 3000 + "]" * 3000,
    "deep table": '{"a":' * 3000 + "1" + "}" * 3000,
    "no value": "?!",
    "quote": '"',
    "no number": "1e",
    "exponent": "1e999",
    "date": "1979-05-27",
}
BLOBS = {
    "nothing": b"",
    "NUL": b"\0",
    "NULs": b"\0" * 4096,
    "no UTF-8": b"\xff\xfe\xfa",
    "half a character": b"\xe6\x97",
    "byte order mark": b"\xef\xbb\xbf",
    "UTF-16": "text".encode("utf-16"),
    "carriage return": b"\r",
    "line end": b"\r\n",
    "blank lines": b"\n\n\n",
    "tab": b"\t",
    "comma": b",",
    "quote": b'"',
    "open quotes": b'"""\n"\t",',
    "all bytes": bytes(range(256)),
    "long line": b"x" * 200_000,
    "separators": "\u2028\u0085\x1c\x1d\x0b\x0c".encode(),
    "surrogate": b'"\\ud800"',
    "brackets": b"[" * 100_000,
    "object": b"{}",
    "number": b"17",
    "picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "gzip": gzip.compress(b"text\n" * 9, mtime=0),
}
LENGTHS = {"0": 0, "1": 1, "7": 7, "2**31": 2**31, "2**62": 2**62, "2**64 - 1": 2**64 - 1}


def drawn_value(rng: random.Random) -> str:
    """The name of a value."""
    return rng.choice([*VALUES, *RAW])


def marked(name: str) -> Any:
    """The value of a name; of a raw one a mark, which `unmarked` replaces in what was written."""
    return copy.deepcopy(VALUES[name]) if name in VALUES else f"@raw {name}@"


def unmarked(text: str) -> str:
    """A written document with raw values in the place of their marks."""
    for name, raw in RAW.items():
        text = text.replace(f'"@raw {name}@"', raw)
    return text


# --- documents --------------------------------------------------------------------------------------------


def draw_document_step(rng: random.Random, document: Any) -> Step:
    """Something to do to a document of tables and lists."""
    path = _drawn_path(rng, document)
    match rng.choice(["set", "set", "set", "delete", "swap", "rename", "insert"]):
        case "set":
            return ["set", path, drawn_value(rng)]
        case "delete":
            return ["delete", path]
        case "swap":
            return ["swap", path, _drawn_path(rng, document)]
        case "rename":
            return ["rename", path, rng.choice(["nothing", "word", "unicode", "half a pair", "NUL"])]
        case _:
            return ["insert", path, drawn_value(rng)]


def _drawn_path(rng: random.Random, document: Any) -> list[str | int]:
    path: list[str | int] = []
    while True:
        keys: list[Any] = list(document) if isinstance(document, dict) else []
        keys = list(range(len(document))) if isinstance(document, list) else keys
        if not keys or (path and rng.random() < 0.3):
            return path
        key = rng.choice(keys)
        path.append(key)
        document = document[key]


def spoil_document(document: Any, step: Step) -> Any:
    """A document after a step; a step whose place is not there changes nothing."""
    action, path, *rest = step
    root = [document]
    holder, key = _find(root, path)
    if holder is None:
        return document
    if action == "set":
        holder[key] = marked(rest[0])
    elif action == "delete":
        del holder[key]
    elif action == "swap":
        other, other_key = _find(root, rest[0])
        if other is not None and not _nested(path, rest[0]):
            holder[key], other[other_key] = other[other_key], holder[key]
    elif action == "rename" and isinstance(holder, dict):
        holder[str(marked(rest[0]))] = holder.pop(key)
    elif action == "insert" and isinstance(holder, list):
        holder.insert(key, marked(rest[0]))
    elif action == "insert":
        holder["x"] = marked(rest[0])
    return root[0] if root else None


def _find(root: list[Any], path: list[str | int]) -> tuple[Any, Any]:
    holder: Any = root
    key: Any = 0
    for part in path:
        holder = holder[key]
        key = part
        is_there = key in holder if isinstance(holder, dict) else False
        if isinstance(holder, list):
            is_there = isinstance(key, int) and key < len(holder)
        if not is_there:
            return None, None
    return holder, key


def _nested(one: list[Any], other: list[Any]) -> bool:
    """Whether one place lies in the other: to swap them would tie a knot."""
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


# --- bytes ------------------------------------------------------------------------------------------------


def draw_bytes_step(rng: random.Random) -> Step:
    """Something to do to a file of whatever kind."""
    place = rng.randrange(1001)
    match rng.choice(["truncate", "flip", "insert", "insert", "repeat", "replace"]):
        case "truncate":
            return ["truncate", place]
        case "flip":
            return ["flip", place, rng.randrange(1, 256)]
        case "insert":
            return ["insert bytes", place, rng.choice(list(BLOBS))]
        case "repeat":
            return ["repeat", place, rng.choice([2, 50])]
        case _:
            return ["replace", rng.choice(list(BLOBS))]


def spoil_bytes(content: bytes, step: Step) -> bytes:
    """A file's content after a step."""
    action, *rest = step
    if action == "replace":
        return BLOBS[rest[0]]
    place = len(content) * rest[0] // 1000
    match action:
        case "truncate":
            return content[:place]
        case "flip" if place < len(content):
            return content[:place] + bytes([content[place] ^ rest[1]]) + content[place + 1 :]
        case "insert bytes":
            return content[:place] + BLOBS[rest[1]] + content[place:]
        case "repeat":
            return content[:place] + content[place : place + 100] * rest[1] + content[place:]
    return content


# --- files ------------------------------------------------------------------------------------------------


def draw_file_step(rng: random.Random, path: Path) -> Step:
    """Something to do to a file of one of the kinds that there are."""
    if path.suffix == ".safetensors" and rng.random() < 0.2:
        return ["length", rng.choice(list(LENGTHS))]
    if rng.random() < 0.2:
        return draw_bytes_step(rng)
    return draw_document_step(rng, _read(path))


def spoil_file(path: Path, step: Step) -> None:
    """Do a step to a file; one that an earlier step made unreadable is left as it is."""
    if step[0] == "length":
        path.write_bytes(struct.pack("<Q", LENGTHS[step[1]]) + path.read_bytes()[8:])
    elif step[0] in ("set", "delete", "swap", "rename", "insert"):
        try:
            document = _read(path)
        except (ValueError, RecursionError, struct.error):
            return
        _write(path, spoil_document(document, step))
    else:
        path.write_bytes(spoil_bytes(path.read_bytes(), step))


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        return json.loads(_header(path.read_bytes()))
    text = path.read_text(encoding="utf-8")
    match path.suffix:
        case ".toml":
            return tomllib.loads(text)
        case ".jsonl":
            return [json.loads(line) for line in text.splitlines()]
        case ".json":
            return json.loads(text)
        case _:
            return text.splitlines()


def _write(path: Path, document: Any) -> None:
    if path.suffix == ".safetensors":
        header = unmarked(json.dumps(document)).encode()
        content = path.read_bytes()
        tensors = content[8 + len(_header(content)) :]
        path.write_bytes(struct.pack("<Q", len(header)) + header + tensors)
        return
    match path.suffix:
        case ".toml":
            text = toml(document)
        case ".jsonl" if isinstance(document, list):
            text = "".join(json.dumps(line) + "\n" for line in document)
        case ".txt":
            text = "".join(f"{line}\n" for line in document)
        case _:
            text = json.dumps(document)
    path.write_bytes(unmarked(text).encode("utf-8", "surrogatepass"))


def _header(content: bytes) -> bytes:
    (length,) = struct.unpack("<Q", content[:8])
    return content[8 : 8 + length]


def toml(document: Any) -> str:
    """A document as TOML; what has no place there becomes a word."""
    table = _for_toml(document)
    return tomli_w.dumps(table if isinstance(table, dict) else {"x": table})


def _for_toml(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _for_toml(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_for_toml(inner) for inner in value]
    return "null" if value is None else value
