"""PostgreSQL through psycopg: many equal nodes on one database.

There is one writer at a time here too: each write transaction begins by locking the scheduler's
row, and reads the database's clock in the same round trip, so that nodes with different clocks
agree about leases and deadlines. Statements are sent without waiting for their responses wherever
the next one does not need them: a transaction that knows its rows takes two round trips, one for
the lock and the read-ahead, one for all writes and the commit.

A node that goes silent while it holds the lock must not stop the others. Three limits ensure that,
in this order: the holder's own session ends when it idles (`_IDLE_MS`); a node that waits for the
lock ends sessions that hold it and have been silent for longer (`_SILENT_MS`), which also reaches a
session that hangs in the middle of a message; and a transaction that is active but takes too long
ends by its own limits before a waiter ends it (`_OLD_MS`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, LiteralString, NoReturn

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from fairlane.core.errors import OperatorError, StoreMoved
from fairlane.core.json_types import JsonObject
from fairlane.store import closed, migrate, queries
from fairlane.store.arrays import ARRAYS, register
from fairlane.store.base import (
    PART_ROWS_MIN,
    Connection,
    ConnectionLost,
    GuardFailed,
    Read,
    Row,
    RowPage,
    SchedulerRow,
    next_part,
    page_of,
    row_bytes,
)
from fairlane.store.losses import first_line, raise_lost
from fairlane.store.node_lock import NodeLock, wait_readable
from fairlane.store.patience import PatientConnection
from fairlane.store.vault import Vault

log = logging.getLogger("fairlane.store")

_TYPES: Final = {"int": "bigint[]", "text": "text[]", "real": "double precision[]"}
# The holder's limits come before the waiters': see above.
_LOCK_MS: Final = 1000  # a waiter checks which session holds the lock, and queues again
_LOCK_TRIES: Final = 5
_IDLE_MS: Final = 2400
_SILENT_MS: Final = 2700
_STATEMENT_MS: Final = 10_000
_TRANSACTION_MS: Final = 15_000  # counts from the time when the lock is held
_OLD_MS: Final = 18_000  # counts from BEGIN, which is at most _LOCK_MS before that
TRANSACTION_TIMEOUT_FROM = 170_000  # the first release that has one
_CHECK_FROM: Final = 140_000  # the first release that checks whether its client is still connected
_CHECK_MS: Final = 1000
_READ_MS: Final = 30_000

# How long one response may take before the database counts as hung.
_BEGIN_SECONDS: Final = 3.0  # more than `_LOCK_MS`, and nothing else in it takes time
_STATEMENT_SECONDS: Final = 12.0
READ_SECONDS: Final = 8.0
_BELL_SECONDS: Final = 5.0
_MIGRATION_SECONDS: Final = 600.0
_COPY_SECONDS: Final = 3600.0  # for one statement, such as the creation of an index

# The server notices a dead connection too.
_LINK: Final = (
    "-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3 "
    "-c tcp_user_timeout=5000"
)
# A writer keeps the plans of its first commits, and a plan made for an empty table would read all
# of it later. Each statement has an index, which it has to use. Before release 18 the plans then
# look so expensive that the server would compile them.
_PLANS: Final = "-c enable_seqscan=off -c jit=off"
_WRITER: Final = (
    f"-c statement_timeout={_STATEMENT_MS} -c lock_timeout={_LOCK_MS} "
    f"-c idle_in_transaction_session_timeout={_IDLE_MS} -c synchronous_commit=on "
    f"{_PLANS} {_LINK}"
)
_READER: Final = f"-c statement_timeout={_READ_MS} -c default_transaction_read_only=on {_LINK}"
_MIGRATOR: Final = f"-c idle_in_transaction_session_timeout=60000 {_LINK}"
_COPIER: Final = f"-c statement_timeout=0 -c lock_timeout=0 -c synchronous_commit=on {_LINK}"
_PAGE_CURSOR: Final = "fairlane_page"
_MISSED: Final = " missed a row: only "  # what a guard says
_RING_PAUSE_SECONDS: Final = 0.01
_BELL_PAUSE_SECONDS: Final = 1.0
# Settings in the address or of libpq take precedence over these.
_DEFAULTS: Final = {
    "application_name": "fairlane",
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


class PostgresConnection:
    def __init__(self, connection: PatientConnection) -> None:
        self._connection = connection
        self._encoding = connection.info.encoding
        register(connection.adapters)
        self._moment: tuple[str, JsonObject] = ("lock_moment", {})
        if connection.info.server_version >= TRANSACTION_TIMEOUT_FROM:
            self._moment = ("lock_moment_limited", {"limit": str(_TRANSACTION_MS)})
        self._statements = queries.load(queries.POSTGRES)
        self._spelled: dict[tuple[Any, ...], str] = {}
        self._pipeline: contextlib.ExitStack | None = None
        self._pipe: psycopg.Pipeline
        self._reads: Sequence[Read] = ()
        self._ahead: list[list[Row]] = []
        self.round_trips = 0
        # Transactions: the current one, the one that wrote the row it found, and the one that wrote
        # the row which the last transaction of this connection left.
        self._own: int | None = None
        self._found: int | None = None
        self._left: int | None = None

    def run(self, name: str, /, **values: object) -> list[Row]:
        cursor = self._execute(*self._bind(name, values))
        return self._fetch(cursor) if self._statements[name].reads else []

    def run_page(self, name: str, limit: int, bytes_max: int, /, **values: object) -> RowPage:
        text, bindings = self._bind(name, {**values, "limit": limit + 1})
        try:
            with self._connection.cursor(_PAGE_CURSOR) as cursor:
                cursor.execute(text, bindings)
                return page_of(_in_parts(cursor, bytes_max), limit, bytes_max)
        except psycopg.Error as error:
            raise_lost(error)

    def run_rows(self, name: str, rows: Sequence[Row], /, **values: object) -> list[Row]:
        if not rows:
            return []
        cursor = self._execute_rows(name, rows, values)
        return self._fetch(cursor) if self._statements[name].reads else []

    def change_rows(self, name: str, rows: Sequence[Row]) -> None:
        if rows:
            self._execute_rows(name, rows, {"rows_count": len(rows)}, guarded=True)

    def begin(self) -> SchedulerRow:
        self._connection.patience = _BEGIN_SECONDS
        for _ in range(_LOCK_TRIES):
            try:
                row = self._begin()
            except psycopg.errors.LockNotAvailable:
                self.rollback()
                self._end_silent_holders()
            except psycopg.errors.UndefinedTable as error:
                self.rollback()
                raise _closed(self._connection, "the store") or ConnectionLost(
                    first_line(error)
                ) from error
            except psycopg.Error as error:
                raise_lost(error)
            else:
                self._connection.patience = _STATEMENT_SECONDS
                return row
        raise ConnectionLost("another session holds the lock and does not release it")

    def _begin(self) -> SchedulerRow:
        self.round_trips = 0
        self._own = self._found = None
        self._pipeline = contextlib.ExitStack()
        self._pipe = self._pipeline.enter_context(self._connection.pipeline())
        # Each statement sees what is committed when it begins, whatever the database's default is.
        self._connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        lock = self._connection.execute(self._scalar_text("scheduler_lock", {}, {}))
        name, values = self._moment
        moment = self._connection.execute(self._scalar_text(name, values, {}), values)
        # The statements after the lock are sent with it, and run once the lock is ours.
        ahead = [self._send(read) for read in self._reads]
        self._sync()
        now, self._own, self._found = moment.fetchall()[0][:3]
        self._ahead = [cursor.fetchall() for cursor in ahead]
        return SchedulerRow(*lock.fetchall()[0])._replace(moment=now, transaction=self._own)

    def read_ahead(self, reads: Sequence[Read]) -> None:
        self._reads = reads

    def read(self, reads: Sequence[Read]) -> list[list[Row]]:
        if reads is self._reads:
            rows, self._reads, self._ahead = self._ahead, (), []
            return rows
        cursors = [self._send(read) for read in reads]
        return [self._fetch(cursor) for cursor in cursors]

    def _send(self, read: Read) -> psycopg.Cursor[Row]:
        if read.rows is None:
            return self._execute(*self._bind(read.name, dict(read.values)))
        return self._execute_rows(read.name, read.rows, dict(read.values))

    def _sync(self) -> None:
        self.round_trips += 1
        self._pipe.sync()

    def _end_silent_holders(self) -> None:
        """End our own sessions that hold the lock idle, or for too long.

        Only writers have the mark (`writer_begin`), whatever application name the operator gave
        them, and only a session that asked for the lock has the table locked in this mode.
        """
        values = {"silent_ms": _SILENT_MS, "old_ms": _OLD_MS}
        text = self._scalar_text("holder_end", values, {})
        try:
            found = self._connection.execute(text, values, prepare=False).fetchall()
        except psycopg.Error as error:
            raise_lost(error)
        for pid, silent_ms, _ in found:
            log.warning(
                "ended database session %d: it held the lock and was silent for %d ms",
                pid,
                silent_ms,
            )

    def commit(self) -> None:
        """Send the unsent statements and COMMIT in one go: a statement that fails, also as a guard,
        keeps the server from what follows until the sync.
        """
        try:
            self._connection.execute("COMMIT")
            self._sync()
        except psycopg.Error as error:
            _raise(error)
        self._leave_pipeline()
        self._reads, self._ahead = (), []  # planned for this transaction only
        self._left, self._own, self._found = self._own, None, None

    def rollback(self) -> None:
        self._reads, self._ahead = (), []
        if self._found is not None:
            self._left, self._own, self._found = self._found, None, None
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
        return self._found is None or self._found != self._left

    def close(self) -> None:
        with contextlib.suppress(ConnectionLost):
            self._leave_pipeline()  # otherwise psycopg warns when it is garbage-collected
        with contextlib.suppress(psycopg.Error):
            self._connection.close()

    def _leave_pipeline(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            try:
                pipeline.close()
            except psycopg.Error as error:
                raise ConnectionLost(first_line(error)) from error

    def _execute(self, text: str, values: Any) -> psycopg.Cursor[Row]:
        try:
            return self._connection.execute(text, values)
        except psycopg.Error as error:
            _raise(error)

    def _fetch(self, cursor: psycopg.Cursor[Row]) -> list[Row]:
        try:
            # A flush, which psycopg would send, leaves the server waiting for more without a limit.
            # After a sync its timeout for idle transactions runs, should this process freeze.
            if self._pipeline is not None and cursor.pgresult is None:
                self._sync()
            return cursor.fetchall()
        except psycopg.Error as error:
            _raise(error)

    def _execute_rows(
        self, name: str, rows: Sequence[Row], values: JsonObject, *, guarded: bool = False
    ) -> psycopg.Cursor[Row]:
        text = self._guarded_text(name) if guarded else self._rows_text(name)
        columns = self._statements[name].columns
        arrays = zip(*rows, strict=True)
        for (column, kind), array in zip(columns, arrays, strict=True):
            values[f"rows_{column}"] = ARRAYS[kind](array, self._encoding)
        return self._execute(text, values)

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
            self._spelled[key] = queries.spell_values(queries.spell_list(text, lists), "%({})s")
        return self._spelled[key]

    def _rows_text(self, name: str) -> str:
        if (name,) not in self._spelled:
            statement = self._statements[name]
            text = queries.spell_values(statement.text, "%({})s")
            self._spelled[(name,)] = f"WITH {_rows_table(statement)} {text}"
        return self._spelled[(name,)]

    def _guarded_text(self, name: str) -> str:
        """Return a write that fails with its name unless it changes as many records as `rows` has.

        The database does the check, so no answer is needed before the COMMIT.
        """
        key = (name, "guarded")
        if key not in self._spelled:
            statement = self._statements[name]
            self._spelled[key] = (
                f"WITH {_rows_table(statement)}, changed AS ({statement.text} RETURNING 1) "  # noqa: S608 - our own text
                f"SELECT CASE WHEN count(*) = %(rows_count)s THEN 0 "
                f"ELSE ('{name}{_MISSED}' || count(*))::integer END FROM changed"
            )
        return self._spelled[key]


class SessionConnection(PostgresConnection):
    """A session that is kept for what it holds."""

    def wait_for_end(self, seconds: float) -> None:
        """Wait for a time. Raise `ConnectionLost` as soon as the database has ended the session."""
        if self._connection.closed or wait_readable(self._connection.fileno(), seconds):
            self._execute("SELECT 1", None)


def _rows_table(statement: queries.Statement) -> str:
    columns = ", ".join(column for column, _ in statement.columns)
    arrays = ", ".join(f"%(rows_{column})s::{_TYPES[kind]}" for column, kind in statement.columns)
    return f"rows ({columns}) AS (SELECT * FROM unnest({arrays}))"  # noqa: S608 - our own text


def _raise(error: psycopg.Error) -> NoReturn:
    """Raise `GuardFailed` if a guarded write missed a row; see `_guarded_text`."""
    if isinstance(error, psycopg.errors.InvalidTextRepresentation) and _MISSED in str(error):
        raise GuardFailed(first_line(error)) from error
    raise_lost(error)


def _in_parts(cursor: psycopg.ServerCursor[Row], bytes_max: int) -> Iterator[Row]:
    count, size, read = PART_ROWS_MIN, 0, 0
    while rows := cursor.fetchmany(count):
        yield from rows
        read += len(rows)
        size += sum(map(row_bytes, rows))
        if len(rows) < count:
            return
        count = next_part(count, read, size, bytes_max)


def _closed(connection: PatientConnection, name: str) -> StoreMoved | None:
    """Return why no process may serve from the store; None if it is open."""
    known = "SELECT to_regclass('scheduler_closed') IS NULL, to_regclass('move') IS NULL"
    is_open, is_unmarked = connection.execute(known).fetchall()[0]
    if is_open:
        return None
    row = None if is_unmarked else connection.execute(closed.READ_MOVE.encode()).fetchone()
    return closed.closed_error(name, None if row is None else str(row[0]))


class PostgresStore:
    dialect = queries.POSTGRES
    shared = True

    def __init__(self, url: str) -> None:
        self.url = url
        self.vault = Vault()
        try:
            self._said = _libpq_settings(url)
        except psycopg.ProgrammingError as error:
            raise OperatorError(f"the store's address is not valid: {error}") from None
        self._bell: _Bell | None = None

    def migrate(self) -> None:
        """Migrate. Check first, which is quick and takes no lock; a migration may take long."""
        try:
            if self.version() == migrate.newest():
                return
            with self.connect(_MIGRATOR, _MIGRATION_SECONDS, autocommit=False) as connection:
                migrate.migrate(PostgresSchema(connection))
        except psycopg.Error as error:
            raise_lost(error)

    def claim(self) -> None:
        """Do nothing: any number of nodes may serve."""

    def listen(self, heard: Callable[[], None]) -> None:
        self._bell = _Bell(self, heard)

    def announce(
        self, name: str, *, gone: Callable[[list[str]], None], changed: Callable[[], None]
    ) -> NodeLock:
        return NodeLock(self.session, name, gone=gone, changed=changed)

    def session(self) -> SessionConnection:
        """Open a connection that holds something for as long as it lasts."""
        return SessionConnection(self.connect(_LINK, _BELL_SECONDS, autocommit=True))

    def ring(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    def writer(self) -> Connection:
        connection = self._checked(self.connect(_WRITER, _BEGIN_SECONDS, autocommit=True))
        found = PostgresConnection(connection)
        try:
            found.run("writer_begin")
        except ConnectionLost:
            found.close()
            raise
        return found

    def reader(self, *, seconds: float = READ_SECONDS) -> Connection:
        return PostgresConnection(self._checked(self.connect(_READER, seconds, autocommit=True)))

    def copier(self) -> PatientConnection:
        """Open a connection that copies the whole store."""
        return self.connect(_COPIER, _COPY_SECONDS, autocommit=True)

    def _checked(self, connection: PatientConnection) -> PatientConnection:
        """Let the server check its client's connection while a statement runs."""
        if connection.info.server_version >= _CHECK_FROM:
            try:
                connection.execute(f"SET client_connection_check_interval = {_CHECK_MS}")
            except psycopg.Error as error:
                if isinstance(error, psycopg.errors.InvalidParameterValue):
                    return connection  # the server's operating system does not support it
                connection.close()
                raise_lost(error)
        return connection

    def version(self) -> int:
        if not self._value("SELECT to_regclass('schema_version') IS NOT NULL"):
            return 0
        try:
            with self.connect(_READER, READ_SECONDS, autocommit=True) as connection:
                error = _closed(connection, "the database")
                row = connection.execute("SELECT max(version) FROM schema_version").fetchone()
        except psycopg.Error as lost:
            raise_lost(lost)
        if error is not None:
            raise error
        return int(row[0] or 0) if row else 0

    def size_bytes(self) -> int:
        return int(self._value("SELECT pg_database_size(current_database())"))

    def damage(self) -> list[str]:
        """Return nothing: PostgreSQL checks its pages itself."""
        return []

    def _value(self, query: LiteralString) -> Any:
        try:
            with self.connect(_READER, READ_SECONDS, autocommit=True) as connection:
                row = connection.execute(query).fetchone()
        except psycopg.Error as error:
            raise_lost(error)
        return row[0] if row else None

    def close(self) -> None:
        """Close the bell; connections belong to their openers."""
        if self._bell is not None:
            self._bell.close()
            self._bell = None

    def connect(
        self, options: str, seconds: float = READ_SECONDS, *, autocommit: bool
    ) -> PatientConnection:
        """Open a connection on which no response may take longer than `seconds`."""
        ours = {name: value for name, value in _DEFAULTS.items() if name not in self._said}
        try:
            connection = PatientConnection.connect(
                self.url,
                autocommit=autocommit,
                options=f"{self._said.get('options', '')} {options}".strip(),
                **ours,  # type: ignore[arg-type]  # libpq's own options, passed through
            )
        except psycopg.ProgrammingError as error:
            raise OperatorError(f"the store's address is not valid: {error}") from None
        except psycopg.OperationalError as error:
            raise ConnectionLost(first_line(error)) from None
        connection.patience = seconds
        return connection


class _Bell:
    """Notifications between nodes, outside of transactions: NOTIFY inside busy ones halves their
    rate.

    One thread sends, with a pause so that many rings become one; one listens. Both are an
    optimisation: nodes poll a few times a second, so a lost ring is only a delay.
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

    def _keep(self, task: Callable[[PatientConnection], None]) -> None:
        while not self._closed.is_set():
            try:
                with self._store.connect(_LINK, _BELL_SECONDS, autocommit=True) as connection:
                    task(connection)
            except (ConnectionLost, psycopg.Error):
                self._closed.wait(_BELL_PAUSE_SECONDS)

    def _send(self, connection: PatientConnection) -> None:
        self._sender_pid = connection.info.backend_pid
        while not self._closed.is_set():
            self._rung.wait()
            self._rung.clear()
            connection.execute("NOTIFY fairlane")
            self._closed.wait(_RING_PAUSE_SECONDS)

    def _hear(self, connection: PatientConnection) -> None:
        connection.execute("LISTEN fairlane")
        while not self._closed.is_set():
            for notice in connection.notifies(timeout=_BELL_PAUSE_SECONDS, stop_after=1):
                if notice.pid != self._sender_pid:
                    self._heard()
                break
            else:
                connection.execute("SELECT 1")  # nothing to hear, or a dead connection


def _libpq_settings(url: str) -> dict[str, str]:
    """Return the settings of an address, completed by the environment, as libpq reads both."""
    defaults = {option.keyword: option.val for option in pq.Conninfo.get_defaults()}
    said = {name.decode(): value.decode() for name, value in defaults.items() if value}
    return said | {name: str(value) for name, value in conninfo_to_dict(url).items()}


class PostgresSchema:
    """An advisory lock lets one of many starting nodes migrate while the others wait."""

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
        # Nodes that keep running see by the row's writer that they have to read everything again.
        self._connection.execute("UPDATE scheduler SET id = id")
        self._connection.execute("DELETE FROM schema_version")
        self._connection.execute("INSERT INTO schema_version VALUES (%s)", [version])
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()
