"""The tables of a store, as the migrations create them: the same on both databases."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from operator import itemgetter
from typing import Final, NamedTuple

import apsw
import msgspec

from fairlane.store import closed, migrate
from fairlane.store.base import Row

Key = tuple[str | int, ...]

_MASK: Final = (1 << 64) - 1
_encode: Final = msgspec.msgpack.Encoder().encode


class Table(NamedTuple):
    """`key` are the columns of the primary key, `places` their positions in a row."""

    name: str
    columns: tuple[str, ...]
    kinds: tuple[str, ...]  # INTEGER, TEXT or REAL
    key: tuple[str, ...]
    places: tuple[int, ...]

    def key_of(self, row: Row) -> Key:
        found = itemgetter(*self.places)(row)
        return found if len(self.places) > 1 else (found,)

    @property
    def key_kinds(self) -> tuple[str, ...]:
        return tuple(self.kinds[place] for place in self.places)


class Sum(NamedTuple):
    """How many rows there are, and a checksum that does not depend on their order."""

    rows: int
    checksum: int

    def add(self, rows: Iterable[Row]) -> Sum:
        count, checksum = self
        for row in rows:
            digest = hashlib.blake2b(_encode(row), digest_size=8).digest()
            checksum += int.from_bytes(digest, "big")
            count += 1
        return Sum(count, checksum & _MASK)

    def subtract(self, rows: Iterable[Row]) -> Sum:
        gone = EMPTY.add(rows)
        return Sum(self.rows - gone.rows, (self.checksum - gone.checksum) & _MASK)

    @property
    def text(self) -> str:
        return f"{self.checksum:016x}"


EMPTY: Final = Sum(0, 0)


def packed_bytes(row: Row) -> int:
    """Return about how much memory a row takes. A copy asks this of every row, so it is fast."""
    return len(_encode(row))


@functools.cache
def all_tables() -> tuple[Table, ...]:
    """Return every table of the newest schema."""
    connection = apsw.Connection(":memory:")
    try:
        for _, text in migrate.files():
            for statement in migrate.statements(text, "sqlite"):
                connection.execute(statement)
        names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        return tuple(_table(connection, str(name)) for (name,) in names)
    finally:
        connection.close()


def own_names() -> set[str]:
    """Return the names of all tables that a store may have, open or closed."""
    return {closed.CLOSED, closed.MOVE, closed.CHANGES, *(table.name for table in all_tables())}


def _table(connection: apsw.Connection, name: str) -> Table:
    described = connection.execute("SELECT name, type, pk FROM pragma_table_info(?)", (name,))
    rows = [(str(column), str(kind), int(pk)) for column, kind, pk in described]
    columns = tuple(column for column, _, _ in rows)
    key = tuple(column for column, _, pk in sorted(rows, key=itemgetter(2)) if pk)
    places = tuple(columns.index(column) for column in key)
    return Table(name, columns, tuple(kind for _, kind, _ in rows), key, places)
