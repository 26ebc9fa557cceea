"""Columns of rows as PostgreSQL arrays in binary.

A statement over many rows gets one array per column. The driver would spell each array as text,
with escapes, and choose its type by the values: that takes twenty times as long, and each
combination of types is prepared as another statement. Here the type is that of the column.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from psycopg import pq
from psycopg.adapt import AdaptersMap, Buffer, Dumper

_NULL: Final = b"\xff\xff\xff\xff"  # in place of a length
_HEAD: Final = struct.Struct("!5i")  # dimensions, whether there may be nulls, type, length, start
_size: Final = struct.Struct("!i").pack
_BIGINT: Final = 20
_TEXT: Final = 25
_DOUBLE: Final = 701
_NUMBER_BYTES: Final = 8


class BigintArray(bytes):
    __slots__ = ()


class TextArray(bytes):
    __slots__ = ()


class DoubleArray(bytes):
    __slots__ = ()


class _BigintDumper(Dumper):
    oid = 1016
    format = pq.Format.BINARY

    def dump(self, obj: Any) -> Buffer:
        array: bytes = obj
        return array


class _TextDumper(_BigintDumper):
    oid = 1009


class _DoubleDumper(_BigintDumper):
    oid = 1022


def register(adapters: AdaptersMap) -> None:
    """Let a connection send the arrays of this module."""
    adapters.register_dumper(BigintArray, _BigintDumper)
    adapters.register_dumper(TextArray, _TextDumper)
    adapters.register_dumper(DoubleArray, _DoubleDumper)


def bigints(values: Sequence[int | None], _: str) -> BigintArray:
    return BigintArray(_numbers(_BIGINT, "q", values))


def doubles(values: Sequence[float | None], _: str) -> DoubleArray:
    return DoubleArray(_numbers(_DOUBLE, "d", values))


def texts(values: Sequence[str | None], encoding: str) -> TextArray:
    parts = [_HEAD.pack(1, 1, _TEXT, len(values), 1)]
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            data = value.encode(encoding)
            parts += (_size(len(data)), data)
    return TextArray(b"".join(parts))


def _numbers(kind: int, code: str, values: Sequence[float | None]) -> bytes:
    count = len(values)
    head = _HEAD.pack(1, 1, kind, count, 1)
    if None not in values:
        items: list[object] = [_NUMBER_BYTES] * (2 * count)
        items[1::2] = values
        return head + struct.pack(f"!{f'i{code}' * count}", *items)
    if values.count(None) == count:  # most columns are, of most batches
        return head + _NULL * count
    number = struct.Struct(f"!i{code}").pack
    return head + b"".join(
        _NULL if value is None else number(_NUMBER_BYTES, value) for value in values
    )


# By the type of a column in the statements (`queries.py`).
ARRAYS: Final[Mapping[str, Callable[[Any, str], bytes]]] = {
    "int": bigints,
    "text": texts,
    "real": doubles,
}
