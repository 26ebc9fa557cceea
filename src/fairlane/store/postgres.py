"""PostgreSQL through psycopg: many equal nodes on one database.

There is one writer at a time here too: each write transaction begins by locking the scheduler's
row, and reads the database's own clock in the same round trip, so that nodes with different clocks
agree about leases and deadlines. Statements are sent without waiting for their answers wherever
the next one does not need them. Time-outs make a frozen holder of the lock lose it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, LiteralString

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from fairlane.core.errors import OperatorError
from fairlane.store import migrate, queries
from fairlane.store.base import (
    PART_ROWS_MIN,
    Connection,
    ConnectionLost,
    GuardFailed,
    Page,
    Row,
    next_part,
    page_of,
    row_bytes,
)
from fairlane.store.vault import Vault

_TYPES: Final = {"int": "bigint[]", "text": "text[]", "real": "double precision[]"}
_WRITER: Final = (
    "-c statement_timeout=15000 -c lock_timeout=15000 "
    "-c idle_in_transaction_session_timeout=5000 -c synchronous_commit=on"
)
_READER: Final = "-c statement_timeout=30000 -c default_transaction_read_only=on"
_TRANSACTION_MS: Final = 15_000  # PostgreSQL 17 and newer: a bound for whole transactions too
_LOSSES: Final = (
    psycopg.OperationalError,
    psycopg.errors.IdleInTransactionSessionTimeout,
    psycopg.errors.TransactionTimeout,
)
_PAGE_CURSOR: Final = "fairlane_page"
_RING_PAUSE_SECONDS: Final = 0.01
_BELL_PAUSE_SECONDS: Final = 1.0
# Of these, what the operator says in the address or to libpq goes before.
_DEFAULTS: Final = {
    "application_name": "fairlane",
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


class PostgresConnection:
    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection
        self._statements = queries.load(queries.POSTGRES)
        self._spelled: dict[tuple[Any, ...], str] = {}
        self._pipeline: contextlib.ExitStack | None = None
        self._pipe: psycopg.Pipeline
        self._guarded: list[tuple[str, psycopg.Cursor[Row], int]] = []

    def run(self, name: str, /, **values: Any) -> list[Row]:
        cursor = self._execute(*self._spelled_out(name, values))
        return self._fetch(cursor) if self._statements[name].reads else []

    def run_page(self, name: str, limit: int, bytes_max: int, /, **values: Any) -> Page:
        text, bindings = self._spelled_out(name, {**values, "limit": limit + 1})
        try:
            with self._connection.cursor(_PAGE_CURSOR) as cursor:
                cursor.execute(text, bindings)
                return page_of(_in_parts(cursor, bytes_max), limit, bytes_max)
        except _LOSSES as error:
            raise ConnectionLost(_first_line(error)) from error

    def run_rows(self, name: str, rows: Sequence[Row], /, **values: Any) -> list[Row]:
        if not rows:
            return []
        cursor = self._execute_rows(name, rows, values)
        return self._fetch(cursor) if self._statements[name].reads else []

    def change_rows(self, name: str, rows: Sequence[Row]) -> None:
        if rows:
            cursor = self._execute_rows(name, rows, {})
            self._guarded.append((name, cursor, len(rows)))

    def begin(self) -> Row:
        self._guarded = []
        self._pipeline = contextlib.ExitStack()
        try:
            self._pipe = self._pipeline.enter_context(self._connection.pipeline())
        except psycopg.Error as error:
            raise ConnectionLost(_first_line(error)) from error
        self._execute("BEGIN", None)
        lock = self._execute(self._scalar_text("scheduler_lock", {}, {}), None)
        moment = self._execute(self._scalar_text("moment", {}, {}), None)
        return (*self._fetch(lock)[0], *self._fetch(moment)[0])

    def commit(self) -> None:
        try:
            self._pipe.sync()
        except _LOSSES as error:
            raise ConnectionLost(_first_line(error)) from error
        for name, cursor, count in self._guarded:
            if cursor.rowcount != count:
                raise GuardFailed(f"{name} missed a row: {cursor.rowcount} of {count}")
        self._execute("COMMIT", None)
        self._leave_pipeline()

    def rollback(self) -> None:
        with contextlib.suppress(psycopg.Error, ConnectionLost):
            self._leave_pipeline()
        with contextlib.suppress(psycopg.Error):
            self._connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        self._execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", None)
        try:
            yield
        finally:
            self.rollback()

    def changed_outside(self) -> bool:
        return False  # not known here; whoever shares a store looks again and again

    def close(self) -> None:
        with contextlib.suppress(ConnectionLost):
            self._leave_pipeline()  # else psycopg complains when it is thrown away
        with contextlib.suppress(psycopg.Error):
            self._connection.close()

    def _leave_pipeline(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            try:
                pipeline.close()
            except psycopg.Error as error:
                raise ConnectionLost(_first_line(error)) from error

    def _execute(self, text: str, values: Any) -> psycopg.Cursor[Row]:
        try:
            return self._connection.execute(text, values)
        except _LOSSES as error:
            raise ConnectionLost(_first_line(error)) from error

    def _fetch(self, cursor: psycopg.Cursor[Row]) -> list[Row]:
        try:
            # A flush, which psycopg would send, leaves the server waiting for more without a limit.
            # After a sync its time-out for idle transactions runs, should this process freeze.
            if self._pipeline is not None and cursor.pgresult is None:
                self._pipe.sync()
            return cursor.fetchall()
        except _LOSSES as error:
            raise ConnectionLost(_first_line(error)) from error

    def _execute_rows(
        self, name: str, rows: Sequence[Row], values: dict[str, Any]
    ) -> psycopg.Cursor[Row]:
        text = self._rows_text(name)
        columns = self._statements[name].columns
        arrays = zip(*rows, strict=True)
        for (column, _), array in zip(columns, arrays, strict=True):
            values[f"rows_{column}"] = list(array)
        return self._execute(text, values)

    def _spelled_out(self, name: str, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the text of a statement for these values, and its bindings."""
        given = {key: value for key, value in values.items() if value is not None}
        lists = {key: len(value) for key, value in given.items() if isinstance(value, list)}
        text = self._scalar_text(name, given, lists)
        for key in lists:
            items = values.pop(key)
            values.update({f"{key}_{i}": item for i, item in enumerate(items)})
        return text, values

    def _scalar_text(self, name: str, given: dict[str, Any], lists: dict[str, int]) -> str:
        key = (name, frozenset(given), tuple(sorted(lists.items())))
        if key not in self._spelled:
            text = self._statements[name].with_optional(set(given))
            self._spelled[key] = queries.spell_values(queries.spell_list(text, lists), "%({})s")
        return self._spelled[key]

    def _rows_text(self, name: str) -> str:
        if (name,) not in self._spelled:
            statement = self._statements[name]
            columns = ", ".join(column for column, _ in statement.columns)
            arrays = ", ".join(
                f"%(rows_{column})s::{_TYPES[kind]}" for column, kind in statement.columns
            )
            text = queries.spell_values(statement.text, "%({})s")
            rows = f"WITH rows ({columns}) AS (SELECT * FROM unnest({arrays}))"  # noqa: S608 - our own text
            self._spelled[(name,)] = f"{rows} {text}"
        return self._spelled[(name,)]


def _in_parts(cursor: psycopg.ServerCursor[Row], bytes_max: int) -> Iterator[Row]:
    count, size, read = PART_ROWS_MIN, 0, 0
    while rows := cursor.fetchmany(count):
        yield from rows
        read += len(rows)
        size += sum(map(row_bytes, rows))
        if len(rows) < count:
            return
        count = next_part(count, read, size, bytes_max)


class PostgresStore:
    dialect = queries.POSTGRES
    shared = True

    def __init__(self, url: str) -> None:
        self.url = url
        self.vault = Vault()
        try:
            self._said = _said(url)
        except psycopg.ProgrammingError as error:
            raise OperatorError(f"the store's address is not understood: {error}") from None
        self._bell: _Bell | None = None

    def migrate(self) -> None:
        try:
            with self.connect("", autocommit=False) as connection:
                migrate.migrate(PostgresSchema(connection))
        except psycopg.OperationalError as error:
            raise ConnectionLost(_first_line(error)) from None

    def claim(self) -> None:
        """Any number of nodes may serve; there is nothing to claim."""

    def listen(self, heard: Callable[[], None]) -> None:
        self._bell = _Bell(self, heard)

    def ring(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    def writer(self) -> Connection:
        connection = self.connect(_WRITER, autocommit=True)
        if connection.info.server_version >= 170000:
            try:
                connection.execute(f"SET transaction_timeout = {_TRANSACTION_MS}")
            except psycopg.OperationalError as error:
                connection.close()
                raise ConnectionLost(_first_line(error)) from None
        return PostgresConnection(connection)

    def reader(self) -> Connection:
        return PostgresConnection(self.connect(_READER, autocommit=True))

    def version(self) -> int:
        if self._value("SELECT to_regclass('schema_version') IS NOT NULL"):
            return int(self._value("SELECT max(version) FROM schema_version") or 0)
        return 0

    def size_bytes(self) -> int:
        return int(self._value("SELECT pg_database_size(current_database())"))

    def damage(self) -> list[str]:
        """PostgreSQL looks after its pages itself."""
        return []

    def _value(self, query: LiteralString) -> Any:
        with self.connect(_READER, autocommit=True) as connection:
            row = connection.execute(query).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        """Connections belong to who opened them; the bell is ours."""
        if self._bell is not None:
            self._bell.close()
            self._bell = None

    def connect(self, options: str, *, autocommit: bool) -> psycopg.Connection[Row]:
        ours = {name: value for name, value in _DEFAULTS.items() if name not in self._said}
        try:
            return psycopg.connect(
                self.url,
                autocommit=autocommit,
                options=f"{self._said.get('options', '')} {options}".strip(),
                **ours,  # type: ignore[arg-type]  # libpq's own options, passed through
            )
        except psycopg.ProgrammingError as error:
            raise OperatorError(f"the store's address is not understood: {error}") from None
        except psycopg.OperationalError as error:
            raise ConnectionLost(_first_line(error)) from None


class _Bell:
    """Wake-ups between nodes, outside of the transactions: NOTIFY inside busy ones halves them.

    One thread sends, with a pause so that many rings become one; one listens. Both are a
    convenience: nodes look for themselves a few times a second, so a lost ring is only a delay.
    """

    def __init__(self, store: PostgresStore, heard: Callable[[], None]) -> None:
        self._store = store
        self._heard = heard
        self._rung = threading.Event()
        self._closed = threading.Event()
        self._sender_pid = 0
        for task in (self._send, self._hear):
            threading.Thread(target=self._keep, args=(task,), daemon=True).start()

    def ring(self) -> None:
        self._rung.set()

    def close(self) -> None:
        self._closed.set()
        self._rung.set()

    def _keep(self, task: Callable[[psycopg.Connection[Row]], None]) -> None:
        while not self._closed.is_set():
            try:
                with self._store.connect("", autocommit=True) as connection:
                    task(connection)
            except (ConnectionLost, psycopg.Error):
                self._closed.wait(_BELL_PAUSE_SECONDS)

    def _send(self, connection: psycopg.Connection[Row]) -> None:
        self._sender_pid = connection.info.backend_pid
        while not self._closed.is_set():
            self._rung.wait()
            self._rung.clear()
            connection.execute("NOTIFY fairlane")
            self._closed.wait(_RING_PAUSE_SECONDS)

    def _hear(self, connection: psycopg.Connection[Row]) -> None:
        connection.execute("LISTEN fairlane")
        while not self._closed.is_set():
            for notice in connection.notifies(timeout=_BELL_PAUSE_SECONDS, stop_after=1):
                if notice.pid != self._sender_pid:
                    self._heard()


def _said(url: str) -> dict[str, str]:
    """What an address says, and where it is silent the environment, as libpq reads both."""
    defaults = {option.keyword: option.val for option in pq.Conninfo.get_defaults()}
    said = {name.decode(): value.decode() for name, value in defaults.items() if value}
    return said | {name: str(value) for name, value in conninfo_to_dict(url).items()}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class PostgresSchema:
    """Many nodes may start at once: an advisory lock makes one of them migrate, the rest wait."""

    dialect = "postgres"
    _LOCK: Final = 0x6661_6972  # "fair"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def begin(self) -> None:
        self._connection.execute(f"SELECT pg_advisory_xact_lock({self._LOCK})")

    def version(self) -> int:
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)"
        )
        row = self._connection.execute("SELECT max(version) FROM schema_version").fetchone()
        return int(row[0] or 0)

    def run(self, statement: str) -> None:
        self._connection.execute(statement)

    def commit(self, version: int) -> None:
        self._connection.execute("DELETE FROM schema_version")
        self._connection.execute("INSERT INTO schema_version VALUES (%s)", [version])
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()
