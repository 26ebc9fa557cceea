"""One of the two stores of a copy, and what a copy needs of its database.

A side has one connection. Outside of `snapshot`, `transaction` and `frozen`, each call is its own
transaction. Rows have all columns of their table, in its order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol

from fairlane.store.base import Row
from fairlane.store.closed import MoveNote
from fairlane.store.copying.tables import Key, Table

PAGE_ROWS: Final = 5000
PAGE_BYTES: Final = 8 << 20
KEYS: Final = 500  # rows that are read or deleted by their keys at a time


class ChangedRow(NamedTuple):
    number: int
    table: str
    key: str  # as JSON


class StoreSide(Protocol):
    location: str  # the address without its password

    def lock(self) -> None:
        """Keep other copies away from this store. Raise `StoreInUse` if there is one."""
        ...

    def is_served(self) -> bool:
        """Return whether servers are connected, as far as the database knows."""
        ...

    def table_names(self) -> set[str]: ...

    def create_schema(self) -> None:
        """Create all tables in an empty store, inside of a transaction."""
        ...

    def version(self) -> int:
        """Return the number of the schema, whether or not the store is closed."""
        ...

    def note(self) -> MoveNote | None: ...

    def save_note(self, note: MoveNote) -> None: ...

    def drop_note(self) -> None: ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Return a context in which all reads see the store at one time."""
        ...

    def transaction(self) -> AbstractContextManager[None]: ...

    def frozen(self) -> AbstractContextManager[None]:
        """Return a transaction during which no other session can write to the store."""
        ...

    def track(self) -> None:
        """Record the key of every row that changes from now on."""
        ...

    def untrack(self) -> None: ...

    def last_change(self) -> int: ...

    def changes(self, after: int, upto: int) -> Iterator[list[ChangedRow]]: ...

    def forget_changes(self, before: int) -> None: ...

    def count(self, table: Table) -> int: ...

    def page(self, table: Table, after: Key | None) -> list[Row]:
        """Return the next rows in the order of the key, at least one if there is one."""
        ...

    def all_rows(self, table: Table) -> Iterator[list[Row]]: ...

    def rows(self, table: Table, keys: Sequence[Key]) -> list[Row]: ...

    def insert(self, table: Table, rows: Sequence[Row]) -> None: ...

    def delete(self, table: Table, keys: Sequence[Key]) -> None: ...

    def drop_indexes(self) -> list[str]:
        """Drop the indexes that no constraint needs; return the statements that create them."""
        ...

    def create_index(self, statement: str) -> None: ...

    def close_store(self) -> None:
        """Make the store unusable for every version of Fairlane."""
        ...

    def open_store(self) -> None: ...

    def forget_clock(self) -> None:
        """Forget the clock of the machine that served: it may be another one from now on."""
        ...

    def analyze(self) -> None:
        """Let the database gather what its planner needs."""
        ...

    def drop_all(self) -> None:
        """Delete all tables of Fairlane, and no others."""
        ...

    def close(self) -> None: ...
