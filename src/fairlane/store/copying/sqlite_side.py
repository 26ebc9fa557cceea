"""A SQLite file as one side of a copy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

import apsw
import msgspec

from fairlane.core.errors import OperatorError, StoreInUse, StoreUnavailable
from fairlane.store import closed, migrate
from fairlane.store.base import Row
from fairlane.store.closed import CHANGES, CLOSED, MOVE, SCHEDULER, MoveNote
from fairlane.store.copying.side import PAGE_BYTES, PAGE_ROWS, ChangedRow
from fairlane.store.copying.tables import Key, Table, all_tables, own_names, packed_bytes

# A busy server commits many times a second: the pause between two commits is short.
_LOCK_TRIES: Final = 30_000
_LOCK_PAUSE_MS: Final = 1
_CHANGES_READ: Final = 20_000
_TRACKED: Final = "move_of_"


class SqliteSide:
    def __init__(self, path: str, location: str, connection: apsw.Connection) -> None:
        self.location = location
        self._path = path
        self._connection = connection
        self._lock_file: TextIO | None = None
        connection.set_busy_handler(_wait_for_lock)

    def lock(self) -> None:
        import fcntl  # noqa: PLC0415 - not on Windows, where only this function needs it

        name = os.path.realpath(self._path) + ".move"
        file = Path(name).open("a", encoding="utf-8")  # noqa: SIM115 - held open on purpose
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise StoreInUse(
                f"another fairlane process is copying {self.location}; wait until it has finished"
            ) from None
        self._lock_file = file

    def is_served(self) -> bool:
        """Return False: the lock file of the store knows."""
        return False

    def table_names(self) -> set[str]:
        found = self._all("SELECT name FROM sqlite_schema WHERE type = 'table'")
        return {str(name) for (name,) in found}

    def create_schema(self) -> None:
        for number, text in migrate.files():
            for statement in migrate.statements(text, "sqlite"):
                self._run(statement)
            self._run(f"PRAGMA user_version = {number}")

    def version(self) -> int:
        return int(self._all("PRAGMA user_version")[0][0])

    def note(self) -> MoveNote | None:
        if MOVE not in self.table_names():
            return None
        return closed.parse_note(self._all(closed.READ_MOVE)[0][0])

    def save_note(self, note: MoveNote) -> None:
        self._run(f"CREATE TABLE IF NOT EXISTS {MOVE} (document TEXT NOT NULL) STRICT")
        self._run(f"DELETE FROM {MOVE}")  # noqa: S608 - our own text, as everywhere here
        text = msgspec.json.encode(note).decode()
        self._run(f"INSERT INTO {MOVE} VALUES (?)", (text,))  # noqa: S608 - as above

    def drop_note(self) -> None:
        self._run(f"DROP TABLE IF EXISTS {MOVE}")

    def snapshot(self) -> contextlib.AbstractContextManager[None]:
        return self._within("BEGIN", "ROLLBACK")

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        return self._within("BEGIN IMMEDIATE", "COMMIT")

    def frozen(self) -> contextlib.AbstractContextManager[None]:
        return self.transaction()

    @contextlib.contextmanager
    def _within(self, begin: str, end: str) -> Iterator[None]:
        self._run(begin)
        try:
            yield
            self._run(end)
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    # ---------------------------------------------------------------- changes

    def track(self) -> None:
        self._run(
            f"CREATE TABLE {CHANGES} (number INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, "
            "key TEXT NOT NULL) STRICT"
        )
        for table in all_tables():
            for number, (when, row, condition) in enumerate(_watches(table)):
                values = ", ".join(f"{row}.{column}" for column in table.key)
                self._run(
                    f"CREATE TRIGGER {_TRACKED}{table.name}_{number} AFTER {when} "  # noqa: S608 - own text
                    f"ON {table.name} {condition} BEGIN INSERT INTO {CHANGES} (name, key) "
                    f"VALUES ('{table.name}', json_array({values})); END"
                )

    def untrack(self) -> None:
        found = self._all("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
        for (name,) in found:
            if str(name).startswith(_TRACKED):
                self._run(f"DROP TRIGGER {name}")
        self._run(f"DROP TABLE IF EXISTS {CHANGES}")

    def last_change(self) -> int:
        return int(self._all(f"SELECT coalesce(max(number), 0) FROM {CHANGES}")[0][0])  # noqa: S608 - own text

    def changes(self, after: int, upto: int) -> Iterator[list[ChangedRow]]:
        query = (
            f"SELECT number, name, key FROM {CHANGES} WHERE number > ? AND number <= ? "  # noqa: S608 - own text
            "ORDER BY number LIMIT ?"
        )
        while rows := self._all(query, (after, upto, _CHANGES_READ)):
            yield [ChangedRow(*row) for row in rows]
            after = rows[-1][0]

    def forget_changes(self, before: int) -> None:
        self._run(f"DELETE FROM {CHANGES} WHERE number < ?", (before,))  # noqa: S608 - own text

    # ---------------------------------------------------------------- rows

    def count(self, table: Table) -> int:
        return int(self._all(f"SELECT count(*) FROM {self._name(table)}")[0][0])  # noqa: S608 - own text

    def page(self, table: Table, after: Key | None) -> list[Row]:
        key = ", ".join(table.key)
        marks = ", ".join("?" * len(table.key))
        where = "" if after is None else f"WHERE ({key}) > ({marks})"
        query = (
            f"SELECT {', '.join(table.columns)} FROM {self._name(table)} {where} "  # noqa: S608 - own text
            f"ORDER BY {key} LIMIT {PAGE_ROWS}"
        )
        return next(self._pages(query, after or ()), [])

    def all_rows(self, table: Table) -> Iterator[list[Row]]:
        return self._pages(f"SELECT {', '.join(table.columns)} FROM {self._name(table)}")  # noqa: S608 - own text

    def _pages(self, query: str, values: Sequence[object] = ()) -> Iterator[list[Row]]:
        """Yield rows in parts that fit into memory."""
        with _errors(self.location):
            cursor = self._connection.execute(query, tuple(values))
            part: list[Row] = []
            size = 0
            for row in cursor:
                part.append(row)
                size += packed_bytes(row)
                if len(part) >= PAGE_ROWS or size >= PAGE_BYTES:
                    yield part
                    part, size = [], 0
            if part:
                yield part

    def rows(self, table: Table, keys: Sequence[Key]) -> list[Row]:
        where = " AND ".join(f"{column} = ?" for column in table.key)
        query = f"SELECT {', '.join(table.columns)} FROM {self._name(table)} WHERE {where}"  # noqa: S608 - own text
        return [row for key in keys for row in self._all(query, key)]

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        marks = ", ".join("?" * len(table.columns))
        columns = ", ".join(table.columns)
        self._many(f"INSERT INTO {self._name(table)} ({columns}) VALUES ({marks})", rows)  # noqa: S608 - own text

    def delete(self, table: Table, keys: Sequence[Key]) -> None:
        where = " AND ".join(f"{column} = ?" for column in table.key)
        self._many(f"DELETE FROM {self._name(table)} WHERE {where}", keys)  # noqa: S608 - own text

    def _name(self, table: Table) -> str:
        is_closed = table.name == SCHEDULER and CLOSED in self.table_names()
        return CLOSED if is_closed else table.name

    # ---------------------------------------------------------------- the store as a whole

    def drop_indexes(self) -> list[str]:
        found = self._all(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
        )
        for name, _ in found:
            self._run(f"DROP INDEX {name}")
        return [str(sql) for _, sql in found]

    def create_index(self, statement: str) -> None:
        self._run(statement)

    def close_store(self) -> None:
        self._run(f"ALTER TABLE {SCHEDULER} RENAME TO {CLOSED}")

    def open_store(self) -> None:
        self._run(f"ALTER TABLE {CLOSED} RENAME TO {SCHEDULER}")

    def forget_clock(self) -> None:
        self._run(f"UPDATE {SCHEDULER} SET clock_boot = NULL, clock_ahead = NULL")  # noqa: S608 - own text

    def analyze(self) -> None:
        """Do nothing: statements here do not depend on statistics."""

    def drop_all(self) -> None:
        self.untrack()
        for name in self.table_names() & own_names():
            self._run(f"DROP TABLE {name}")
        self._run("PRAGMA user_version = 0")

    def close(self) -> None:
        self._connection.close()
        if self._lock_file is not None:
            Path(self._lock_file.name).unlink(missing_ok=True)
            self._lock_file.close()
            self._lock_file = None

    def _run(self, statement: str, values: Sequence[object] = ()) -> None:
        with _errors(self.location):
            self._connection.execute(statement, tuple(values))

    def _all(self, query: str, values: Sequence[object] = ()) -> list[Row]:
        with _errors(self.location):
            return self._connection.execute(query, tuple(values)).fetchall()

    def _many(self, statement: str, rows: Sequence[Row]) -> None:
        with _errors(self.location):
            self._connection.executemany(statement, rows)


def _wait_for_lock(tries: int) -> bool:
    apsw.sleep(_LOCK_PAUSE_MS)
    return tries < _LOCK_TRIES


def _watches(table: Table) -> list[tuple[str, str, str]]:
    """Return when to record a row, its name in the trigger, and a condition."""
    moved = " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in table.key)
    return [
        ("INSERT", "NEW", ""),
        ("DELETE", "OLD", ""),
        ("UPDATE", "NEW", ""),
        ("UPDATE", "OLD", f"WHEN {moved}"),
    ]


@contextlib.contextmanager
def _errors(location: str) -> Iterator[None]:
    try:
        yield
    except (apsw.BusyError, apsw.LockedError) as error:
        raise StoreUnavailable(f"{location} is locked by another process: {error}") from None
    except (apsw.IOError, apsw.FullError, apsw.ReadOnlyError, apsw.CantOpenError) as error:
        raise OperatorError(f"{location} cannot be used: {error}") from None
