"""The format of values sent to the page: JSON, followed by arrays as raw little-endian numbers.

    4 bytes   length of the JSON, little-endian
    JSON      {"value": ..., "arrays": [{"dtype": "float32", "shape": [2, 3], "offset": 0}, ...]}
    0 to 7    zeros, so that the arrays begin at a multiple of 8
    arrays    one after another, each at a multiple of 8

An answer in parts is a sequence of these, each preceded by its length in four bytes; the last one is complete.

In the value, `{"$array": 0}` stands for the first of the arrays, and `{"$range": [0, 3]}` for [0, 1, 2]. Numbers that
are not finite are sent as they are in arrays, and as null in JSON.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import numpy as np

from clearformer.results import plain

ALIGNMENT = 8
LEAST_RANGE = 16  # consecutive whole numbers; fewer are written out
JSON_TYPES = {
    str,
    int,
    bool,
    type(None),
}  # sent as they are; floats are not among them, because one may not be finite
DTYPES = ("float32", "float64", "int32", "uint8")


def encode(value: Any) -> bytes:
    """Encode a value made of dataclasses, mappings, lists, arrays and JSON's types."""
    arrays: list[np.ndarray] = []
    content = _without_arrays(value, arrays)
    described, offset = [], 0
    for array in arrays:
        described.append({"dtype": array.dtype.name, "shape": list(array.shape), "offset": offset})
        offset += _aligned(array.nbytes)
    head = json.dumps({"value": content, "arrays": described}, allow_nan=False).encode()
    start = _aligned(4 + len(head))
    parts: list[bytes | memoryview] = [struct.pack("<I", len(head)), head, bytes(start - 4 - len(head))]
    for array in arrays:
        parts += [array.reshape(-1).view(np.uint8).data, bytes(_aligned(array.nbytes) - array.nbytes)]
    return b"".join(parts)


def framed(content: bytes) -> bytes:
    """Prefix the bytes of a value with their length, as one part of an answer in parts."""
    return struct.pack("<I", len(content)) + content


def decode(content: bytes) -> Any:
    """Decode the bytes of `encode`; dataclasses become mappings."""
    (length,) = struct.unpack_from("<I", content)
    head = json.loads(content[4 : 4 + length])
    start = _aligned(4 + length)
    arrays = [_array(content, start, each) for each in head["arrays"]]
    return _with_arrays(head["value"], arrays)


def _array(content: bytes, start: int, described: Mapping[str, Any]) -> np.ndarray:
    count = int(np.prod(described["shape"]))
    flat = np.frombuffer(content, described["dtype"], count, start + described["offset"])
    return flat.reshape(described["shape"])


def _with_arrays(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"$array"}:
            return arrays[value["$array"]]
        if value.keys() == {"$range"}:
            return list(range(*value["$range"]))
        return {key: _with_arrays(each, arrays) for key, each in value.items()}
    return [_with_arrays(each, arrays) for each in value] if isinstance(value, list) else value


def _without_arrays(value: Any, arrays: list[np.ndarray]) -> Any:
    kind = type(value)
    if kind in JSON_TYPES:
        return value
    if isinstance(value, np.ndarray):
        arrays.append(_portable(value))
        return {"$array": len(arrays) - 1}
    if kind is list or kind is tuple:
        if is_range(value):
            return {"$range": [value[0], value[-1] + 1]}
        if set(map(type, value)) <= JSON_TYPES:
            return value
        return [_without_arrays(each, arrays) for each in value]
    if is_dataclass(value) and kind is not type:
        return {name: _without_arrays(getattr(value, name), arrays) for name in names_of(kind)}
    if isinstance(value, Mapping):
        return {str(key): _without_arrays(each, arrays) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return _without_arrays(list(value), arrays)
    return plain(value)


@cache
def names_of(kind: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields."""
    return tuple(field.name for field in fields(kind))


def is_range(value: Sequence[Any]) -> bool:
    """Whether a sequence is at least `LEAST_RANGE` consecutive whole numbers."""
    if len(value) < LEAST_RANGE or type(value[0]) is not int or type(value[-1]) is not int:
        return False
    if value[-1] - value[0] != len(value) - 1:
        return False
    return list(value) == list(range(value[0], value[0] + len(value)))


def _portable(array: np.ndarray) -> np.ndarray:
    """Convert an array to one of DTYPES, contiguous and little-endian."""
    if array.dtype == bool:
        array = array.astype(np.uint8)
    elif np.issubdtype(array.dtype, np.integer) and array.dtype != np.uint8:
        array = array.astype(np.int32)
    elif array.dtype.name not in DTYPES:
        array = array.astype(np.float32)
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
