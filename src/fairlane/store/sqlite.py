"""SQLite through apsw: one file, one process that serves from it.

WAL with `synchronous=FULL`: an acknowledged commit survives a power cut, which NORMAL does not
promise. apsw brings its own SQLite, newer than the WAL bug that was fixed in 3.51.3.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import apsw

from fairlane.core.errors import OperatorError, StoreInUse, StoreMismatch, StoreMoved
from fairlane.core.json_types import JsonObject
from fairlane.store import closed, migrate, queries
from fairlane.store.base import (
    Connection,
    ConnectionLost,
    GuardFailed,
    Read,
    Row,
    RowPage,
    SchedulerRow,
    page_of,
)
from fairlane.store.vault import Vault

SQLITE_MIN: Final = (3, 51, 3)
MEMORY: Final = ":memory:"
_CHUNK_MAX: Final = 256
_CACHED_BYTES_MAX: Final = 16_384  # apsw prepares a longer text again each time: 5 ms for 256 tasks
_AGAIN_MS: Final = 20
_BUSY_MS: Final = 5_000  # a caller has an answer within 10 s, whichever process has locked the file
_WRITER_CACHE_KIB: Final = 48_000
_READER_CACHE_KIB: Final = 8_000
_CHECKPOINT_PAGES: Final = 4000
# Errors that mean that the store is unavailable; the request is not the reason.
_TROUBLE: Final = (
    apsw.IOError,
    apsw.FullError,
    apsw.BusyError,
    apsw.LockedError,
    apsw.CantOpenError,
    apsw.ReadOnlyError,
    apsw.PermissionsError,
    apsw.ProtocolError,  # the locks of the log beside the file
    apsw.NoMemError,
    MemoryError,
)


class SqliteConnection:
    """`rows` becomes a VALUES list, padded with empty rows to the next power of two: few sizes, so
    that statements are prepared once, and one statement for each step of a batch.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._statements = queries.load(queries.SQLITE)
        self._spelled: dict[tuple[object, ...], tuple[str, list[str]]] = {}
        self._most: dict[str, int] = {}  # rows per statement
        self._data_version = connection.pragma("data_version")

    def run(self, name: str, /, **values: object) -> list[Row]:
        return self._execute(*self._bind(name, values))

    def run_page(self, name: str, limit: int, bytes_max: int, /, **values: object) -> RowPage:
        text, bindings = self._bind(name, {**values, "limit": limit + 1})
        try:
            cursor = self._connection.execute(text, bindings)
            try:
                return page_of(cursor, limit, bytes_max)
            finally:
                cursor.close(True)  # unread rows are not needed
        except _TROUBLE as error:
            raise ConnectionLost(str(error)) from error

    def run_rows(self, name: str, rows: Sequence[Row], /, **values: object) -> list[Row]:
        result: list[Row] = []
        for chunk in self._chunks(name, rows):
            result += self._run_chunk(name, chunk, values)
        return result

    def _chunks(self, name: str, rows: Sequence[Row]) -> list[Sequence[Row]]:
        most = self._rows_max(name) if len(rows) > 1 else 1
        return [rows[start : start + most] for start in range(0, len(rows), most)]

    def _run_chunk(self, name: str, chunk: Sequence[Row], values: JsonObject) -> list[Row]:
        size = 1 << (len(chunk) - 1).bit_length()
        text, names = self._rows_text(name, size)
        bindings: list[object] = [values[key] for key in names]
        for row in chunk:
            bindings.extend(row)
        bindings.extend([None] * ((size - len(chunk)) * len(chunk[0])))
        return self._execute(text, bindings)

    def change_rows(self, name: str, rows: Sequence[Row]) -> None:
        changed = 0
        for chunk in self._chunks(name, rows):
            self._run_chunk(name, chunk, {})
            changed += self._connection.changes()  # without those of triggers
        if changed != len(rows):
            raise GuardFailed(f"{name} missed a row")

    def begin(self) -> SchedulerRow:
        self._execute("BEGIN IMMEDIATE", ())
        try:
            return SchedulerRow(*self.run("scheduler_lock")[0])
        except apsw.SQLError:
            error = _closed(self._connection, "the store")
            if error is None:
                raise
            raise error from None

    def read_ahead(self, reads: Sequence[Read]) -> None:
        """Do nothing: there is no round trip to save."""

    def read(self, reads: Sequence[Read]) -> list[list[Row]]:
        return [
            self.run(read.name, **read.values)
            if read.rows is None
            else self.run_rows(read.name, read.rows, **read.values)
            for read in reads
        ]

    @property
    def round_trips(self) -> int:
        return 0

    def commit(self) -> None:
        self._execute("COMMIT", ())

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        self._execute("BEGIN", ())
        try:
            yield
        finally:
            self.rollback()

    def changed_outside(self) -> bool:
        version = self._execute("PRAGMA data_version", ())[0][0]
        before, self._data_version = self._data_version, version
        return bool(version != before)

    def close(self) -> None:
        self._connection.close()

    def _execute(self, text: str, bindings: Any) -> list[Row]:
        try:
            return self._connection.execute(text, bindings).fetchall()
        except _TROUBLE as error:
            raise ConnectionLost(str(error)) from error

    def _bind(self, name: str, values: JsonObject) -> tuple[str, JsonObject]:
        """Return the text of a statement for these values, and its bindings."""
        given = {key: value for key, value in values.items() if value is not None}
        lists = {key: len(value) for key, value in given.items() if isinstance(value, list)}
        text = self._scalar_text(name, given, lists)
        for key in lists:
            items = values.pop(key)
            values.update({f"{key}_{i}": item for i, item in enumerate(items)})
        return text, values

    def _scalar_text(self, name: str, given: JsonObject, lists: dict[str, int]) -> str:
        key = (name, frozenset(given), tuple(sorted(lists.items())))
        if key not in self._spelled:
            text = self._statements[name].with_optional(set(given))
            self._spelled[key] = (queries.spell_list(text, lists), [])
        return self._spelled[key][0]

    def _rows_max(self, name: str) -> int:
        """Return how many rows one statement takes: as many as keep it in apsw's cache."""
        found = self._most.get(name)
        if found is None:
            found = _CHUNK_MAX
            while len(self._spell_rows(self._statements[name], found)[0]) > _CACHED_BYTES_MAX:
                found //= 2
            self._most[name] = found
        return found

    def _rows_text(self, name: str, count: int) -> tuple[str, list[str]]:
        key = (name, count)
        if key not in self._spelled:
            self._spelled[key] = self._spell_rows(self._statements[name], count)
        return self._spelled[key]

    def _spell_rows(self, statement: queries.Statement, count: int) -> tuple[str, list[str]]:
        names = queries.value_names(statement.text)
        text = statement.text
        for number, value in enumerate(names, 1):
            text = text.replace(f":{value}", f"?{number}")
        columns = ", ".join(column for column, _ in statement.columns)
        row = "(" + ",".join("?" * len(statement.columns)) + ")"
        # The named values come first, so the rows' own begin after them.
        first = ", ".join(f"?{len(names) + i + 1}" for i in range(len(statement.columns)))
        # No blanks: apsw caches no prepared statement for texts of more than 16 KiB.
        table = ",".join([f"({first})"] + [row] * (count - 1))
        values = f"SELECT * FROM (VALUES {table}) WHERE column1 IS NOT NULL"  # noqa: S608 - own text
        return f"WITH rows ({columns}) AS ({values}) {_or_rollback(text)}", names


def _or_rollback(text: str) -> str:
    """Return the statement with OR ROLLBACK: a constraint error ends the transaction, which is
    given up anyway. To be able to undo only the statement, SQLite would copy each page that it
    changes.
    """
    return re.sub(r"^(UPDATE|INSERT) ", r"\1 OR ROLLBACK ", text)


def _closed(connection: apsw.Connection, name: str) -> StoreMoved | None:
    """Return why no process may serve from the store; None if it is open."""
    tables = {str(row[0]) for row in connection.execute("SELECT name FROM sqlite_schema")}
    if closed.CLOSED not in tables:
        return None
    row = connection.execute(closed.READ_MOVE).fetchone() if closed.MOVE in tables else None
    return closed.closed_error(name, None if row is None else str(row[0]))


def _use_log(connection: apsw.Connection) -> None:
    """Switch to the write-ahead log. SQLite does not wait for another process that switches at the
    same moment, so this tries again for as long as it waits for other locks.
    """
    for left in range(_BUSY_MS // _AGAIN_MS, -1, -1):
        try:
            connection.pragma("journal_mode", "wal")
        except apsw.BusyError:
            if not left:
                raise
            apsw.sleep(_AGAIN_MS)
        else:
            return


class SqliteStore:
    dialect = queries.SQLITE
    shared = False

    def __init__(self, path: str, url: str) -> None:
        if tuple(int(part) for part in apsw.sqlite_lib_version().split(".")) < SQLITE_MIN:
            raise StoreMismatch(
                f"SQLite {apsw.sqlite_lib_version()} can corrupt a WAL file; "
                "install apsw 3.51.3.0 or newer"
            )
        self.path = path
        self.url = url
        self.vault = Vault()
        self._lock_file: TextIO | None = None
        # A database in memory lives as long as one connection to it.
        self._memory_name = f"file:/fairlane-{id(self)}?vfs=memdb"
        self._anchor = self.open_file() if path == MEMORY else None
        if path != MEMORY:
            self._prepare_file()

    def _prepare_file(self) -> None:
        file = Path(self.path)
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file.touch(mode=0o600)
        except OSError as error:
            raise self._unusable(error.strerror) from None

    def _unusable(self, why: object) -> OperatorError:
        return OperatorError(
            f"cannot use {self.path} as a store: {why}; "
            "use another file with --store sqlite:///PATH"
        )

    def migrate(self) -> None:
        try:
            self._refuse_foreign()
            with contextlib.closing(self.open_file()) as connection:
                migrate.migrate(SqliteSchema(connection))
        except (*_TROUBLE, apsw.CorruptError) as error:
            raise self._unusable(error) from None

    def _refuse_foreign(self) -> None:
        """Check the file before anything is written: opening it as a store changes it."""
        error = self.refuse_others()
        if error is not None:
            raise error

    def refuse_others(self) -> StoreMoved | None:
        """Raise `StoreMismatch` if the file belongs to another program. Return why no process may
        serve from it; None if it is open.
        """
        if self.path == MEMORY:
            return None
        error = None
        try:
            flags = apsw.SQLITE_OPEN_READWRITE
            with contextlib.closing(apsw.Connection(self.path, flags=flags)) as connection:
                connection.set_busy_timeout(_BUSY_MS)
                rows = connection.execute("SELECT name FROM sqlite_schema").fetchall()
                error = _closed(connection, self.path)
        except apsw.NotADBError:
            rows = [("not a database",)]
        if rows and error is None and (closed.SCHEDULER,) not in rows:
            raise StoreMismatch(
                f"{self.path} is not a Fairlane database; "
                "use another file with --store sqlite:///PATH"
            )
        return error

    def claim(self) -> None:
        if self.path == MEMORY or self._lock_file is not None:
            return
        # One file may have several names, but has one lock.
        self._lock_file = _lock(os.path.realpath(self.path) + ".lock", self.path)

    def listen(self, heard: Callable[[], None]) -> None:
        """Do nothing: there is no other node."""

    def announce(
        self, name: str, *, gone: Callable[[list[str]], None], changed: Callable[[], None]
    ) -> None:
        """Do nothing: there is no other node."""

    def ring(self) -> None:
        """Do nothing: there is no other node."""

    def writer(self) -> Connection:
        return self._connect(readonly=False)

    def reader(self, *, seconds: float = 0.0) -> Connection:  # noqa: ARG002 - nothing answers late
        return self._connect(readonly=True)

    def _connect(self, *, readonly: bool) -> Connection:
        try:
            return SqliteConnection(self.open_file(readonly=readonly))
        except _TROUBLE as error:
            raise ConnectionLost(str(error)) from error

    def version(self) -> int:
        try:
            self._refuse_foreign()
            with contextlib.closing(self.open_file(readonly=True)) as connection:
                return SqliteSchema(connection).version()
        except apsw.Error as error:
            raise OperatorError(f"{self.path} cannot be opened as a store: {error}") from None

    def size_bytes(self) -> int:
        files = [Path(self.path + suffix) for suffix in ("", "-wal")]
        return sum(file.stat().st_size for file in files if file.exists())

    def damage(self) -> list[str]:
        try:
            with contextlib.closing(self.open_file(readonly=True)) as connection:
                rows = connection.execute("PRAGMA integrity_check").fetchall()
        except apsw.Error as error:
            return [f"SQLite cannot read the file: {error}"]
        return [] if rows == [("ok",)] else [str(row[0]) for row in rows]

    def close(self) -> None:
        if self._anchor is not None:
            self._anchor.close()
            self._anchor = None
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    def open_file(self, *, readonly: bool = False) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        name = self.path
        if self.path == MEMORY:
            flags |= apsw.SQLITE_OPEN_URI
            name = self._memory_name
        connection = apsw.Connection(name, flags=flags, statementcachesize=400)
        connection.set_busy_timeout(_BUSY_MS)
        # Otherwise a plan that depends on a value is made again for each: 50 us per statement.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        if self.path != MEMORY:
            _use_log(connection)
        connection.pragma("synchronous", "full")
        connection.pragma("temp_store", "memory")
        connection.pragma("journal_size_limit", 64 * 1024 * 1024)
        connection.pragma("cache_size", -_READER_CACHE_KIB if readonly else -_WRITER_CACHE_KIB)
        # Pages that many commits rewrite are copied to the file once per this many pages of the
        # log.
        connection.wal_autocheckpoint(_CHECKPOINT_PAGES)
        if readonly:
            connection.pragma("query_only", True)
        return connection


class SqliteSchema:
    dialect = "sqlite"

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def version(self) -> int:
        return int(self._connection.pragma("user_version"))

    def run(self, statement: str) -> None:
        self._connection.execute(statement)

    def commit(self, version: int) -> None:
        self._connection.execute(f"PRAGMA user_version = {version}")
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def _lock(path: str, store: str) -> TextIO:
    """Hold the lock file until the process ends; the system releases it after a kill too."""
    import fcntl  # noqa: PLC0415 - not on Windows, where only this function needs it

    file = Path(path).open("a+", encoding="utf-8")  # noqa: SIM115 - held open on purpose
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        owner = file.read(20).strip()
        file.close()
        who = f" (process {owner})" if owner.isdigit() else ""
        raise StoreInUse(
            f"{store} is in use by another fairlane server{who}; stop that server, or use "
            "another file with --store sqlite:///PATH"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
