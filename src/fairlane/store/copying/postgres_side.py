"""A PostgreSQL database as one side of a copy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import psycopg

from fairlane.core.errors import OperatorError, StoreInUse, StoreUnavailable
from fairlane.store import closed, migrate
from fairlane.store.base import Row
from fairlane.store.closed import CHANGES, CLOSED, MOVE, SCHEDULER, MoveNote
from fairlane.store.copying.side import PAGE_BYTES, PAGE_ROWS, ChangedRow
from fairlane.store.copying.tables import Key, Table, all_tables, own_names, packed_bytes
from fairlane.store.losses import first_line, is_loss

_CHANGES_READ: Final = 20_000
_FETCHED: Final = 500
_TYPES: Final = {"INTEGER": "bigint", "TEXT": "text", "REAL": "double precision"}
_FUNCTION: Final = "move_note"
_TRIGGER: Final = "move_watch"
_COPY_LOCK: Final = (1717660018, 2)  # beside the badge of writers
_ENDING_MS: Final = 2000  # until the session of a process that has ended releases its lock
_VERSIONS: Final = "schema_version"


class PostgresSide:
    def __init__(self, location: str, connection: psycopg.Connection[Row]) -> None:
        """Take a connection in autocommit mode; `close` closes it."""
        self.location = location
        self._connection = connection

    def lock(self) -> None:
        with _errors(self.location):
            try:
                with self._connection.transaction():
                    self._connection.execute(f"SET LOCAL lock_timeout = {_ENDING_MS}")
                    self._connection.execute("SELECT pg_advisory_lock(%s, %s)", _COPY_LOCK)
            except psycopg.errors.LockNotAvailable:
                raise StoreInUse(
                    f"another fairlane process is copying {self.location}; wait until it has "
                    "finished"
                ) from None

    def is_served(self) -> bool:
        """Look for the badge that every session that writes has."""
        query = (
            "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database WHERE "
            "d.datname = current_database() AND locktype = 'advisory' AND granted "
            "AND classid = 1717660018::oid AND objid = 1::oid AND objsubid = 2"
        )
        return bool(self._all(query)[0][0])

    def table_names(self) -> set[str]:
        found = self._all("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
        return {str(name) for (name,) in found}

    def create_schema(self) -> None:
        for _, text in migrate.files():
            for statement in migrate.statements(text, "postgres"):
                self._run(statement)
        self._run(f"CREATE TABLE {_VERSIONS} (version BIGINT NOT NULL)")
        self._run(f"INSERT INTO {_VERSIONS} VALUES (%s)", [migrate.newest()])  # noqa: S608 - own text, as everywhere here

    def version(self) -> int:
        if _VERSIONS not in self.table_names():
            return 0
        return int(self._all(f"SELECT max(version) FROM {_VERSIONS}")[0][0] or 0)  # noqa: S608 - own text

    def note(self) -> MoveNote | None:
        if MOVE not in self.table_names():
            return None
        return closed.parse_note(self._all(closed.READ_MOVE)[0][0])

    def save_note(self, note: MoveNote) -> None:
        if MOVE not in self.table_names():
            self._run(f"CREATE TABLE {MOVE} (document TEXT NOT NULL)")
        self._run(f"DELETE FROM {MOVE}")  # noqa: S608 - own text
        text = msgspec.json.encode(note).decode()
        self._run(f"INSERT INTO {MOVE} VALUES (%s)", [text])  # noqa: S608 - own text

    def drop_note(self) -> None:
        self._run(f"DROP TABLE IF EXISTS {MOVE}")

    def snapshot(self) -> contextlib.AbstractContextManager[None]:
        return self._within("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        return self._within("BEGIN")

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Lock the table that every write transaction reads first. Nodes wait, then respond 503."""
        with self.transaction():
            self._run("SET LOCAL lock_timeout = '20s'")
            self._run(f"LOCK TABLE {SCHEDULER} IN ACCESS EXCLUSIVE MODE")
            yield

    @contextlib.contextmanager
    def _within(self, begin: str) -> Iterator[None]:
        self._run(begin)
        try:
            yield
            self._run("COMMIT")
        except BaseException:
            with contextlib.suppress(psycopg.Error):
                self._connection.execute("ROLLBACK")
            raise

    # ---------------------------------------------------------------- changes

    def track(self) -> None:
        self._run(
            f"CREATE TABLE {CHANGES} (number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
            "name TEXT NOT NULL, key TEXT NOT NULL)"
        )
        for table in all_tables():
            function = f"{_FUNCTION}_{table.name}"
            self._run(_watch_function(function, table))
            self._run(
                f"CREATE TRIGGER {_TRIGGER} AFTER INSERT OR UPDATE OR DELETE ON {table.name} "
                f"FOR EACH ROW EXECUTE FUNCTION {function}()"
            )

    def untrack(self) -> None:
        for table in all_tables():
            self._run(f"DROP FUNCTION IF EXISTS {_FUNCTION}_{table.name}() CASCADE")
        self._run(f"DROP TABLE IF EXISTS {CHANGES}")

    def last_change(self) -> int:
        return int(self._all(f"SELECT coalesce(max(number), 0) FROM {CHANGES}")[0][0])  # noqa: S608 - own text

    def changes(self, after: int, upto: int) -> Iterator[list[ChangedRow]]:
        query = (
            f"SELECT number, name, key FROM {CHANGES} WHERE number > %s AND number <= %s "  # noqa: S608 - own text
            "ORDER BY number LIMIT %s"
        )
        while rows := self._all(query, (after, upto, _CHANGES_READ)):
            yield [ChangedRow(*row) for row in rows]
            after = rows[-1][0]

    def forget_changes(self, before: int) -> None:
        self._run(f"DELETE FROM {CHANGES} WHERE number < %s", [before])  # noqa: S608 - own text

    # ---------------------------------------------------------------- rows

    def count(self, table: Table) -> int:
        return int(self._all(f"SELECT count(*) FROM {self._name(table)}")[0][0])  # noqa: S608 - own text

    def page(self, table: Table, after: Key | None) -> list[Row]:
        key = ", ".join(table.key)
        marks = ", ".join(["%s"] * len(table.key))
        where = "" if after is None else f"WHERE ({key}) > ({marks})"
        query = (
            f"SELECT {', '.join(table.columns)} FROM {self._name(table)} {where} "  # noqa: S608 - own text
            f"ORDER BY {key} LIMIT {PAGE_ROWS}"
        )
        return next(self._pages(query, after or ()), [])

    def all_rows(self, table: Table) -> Iterator[list[Row]]:
        query = f"SELECT {', '.join(table.columns)} FROM {self._name(table)}"  # noqa: S608 - own text
        if self._connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            with self.snapshot():  # a cursor of the server needs one
                yield from self._pages(query)
        else:
            yield from self._pages(query)

    def _pages(self, query: str, values: Sequence[object] = ()) -> Iterator[list[Row]]:
        """Yield rows in parts that fit into memory."""
        with _errors(self.location), self._connection.cursor("fairlane_copy") as cursor:
            cursor.execute(query.encode(), tuple(values))
            part: list[Row] = []
            size = 0
            while rows := cursor.fetchmany(_FETCHED):
                part += rows
                size += sum(map(packed_bytes, rows))
                if len(part) >= PAGE_ROWS or size >= PAGE_BYTES:
                    yield part
                    part, size = [], 0
            if part:
                yield part

    def rows(self, table: Table, keys: Sequence[Key]) -> list[Row]:
        columns = ", ".join(f"t.{column}" for column in table.columns)
        query = f"SELECT {columns} FROM {self._keys(table)} JOIN {self._name(table)} AS t ON "  # noqa: S608 - own text
        return self._all(query + _same(table), _arrays(keys)) if keys else []

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        columns = ", ".join(table.columns)
        command = f"COPY {self._name(table)} ({columns}) FROM STDIN"
        with (
            _errors(self.location),
            self._connection.cursor() as cursor,
            cursor.copy(command.encode()) as copy,
        ):
            for row in rows:
                copy.write_row(row)

    def delete(self, table: Table, keys: Sequence[Key]) -> None:
        if keys:
            command = f"DELETE FROM {self._name(table)} AS t USING {self._keys(table)} WHERE "  # noqa: S608 - own text
            self._run(command + _same(table), _arrays(keys))

    def _keys(self, table: Table) -> str:
        arrays = ", ".join(f"%s::{_TYPES[kind]}[]" for kind in table.key_kinds)
        return f"unnest({arrays}) AS k ({', '.join(table.key)})"

    def _name(self, table: Table) -> str:
        is_closed = table.name == SCHEDULER and CLOSED in self.table_names()
        return CLOSED if is_closed else table.name

    # ---------------------------------------------------------------- the store as a whole

    def drop_indexes(self) -> list[str]:
        found = self._all(
            "SELECT c.relname, pg_get_indexdef(c.oid) FROM pg_index i "
            "JOIN pg_class c ON c.oid = i.indexrelid "
            "WHERE c.relnamespace = current_schema()::regnamespace AND NOT EXISTS "
            "(SELECT FROM pg_constraint k WHERE k.conindid = c.oid) ORDER BY c.relname"
        )
        for name, _ in found:
            self._run(f"DROP INDEX {name}")
        return [str(statement) for _, statement in found]

    def create_index(self, statement: str) -> None:
        self._run(statement)

    def close_store(self) -> None:
        self._run(f"ALTER TABLE {SCHEDULER} RENAME TO {CLOSED}")

    def open_store(self) -> None:
        self._run(f"ALTER TABLE {CLOSED} RENAME TO {SCHEDULER}")

    def forget_clock(self) -> None:
        self._run(f"UPDATE {SCHEDULER} SET clock_boot = NULL, clock_ahead = NULL")  # noqa: S608 - own text

    def analyze(self) -> None:
        self._run("ANALYZE")

    def drop_all(self) -> None:
        self.untrack()
        for name in self.table_names() & {*own_names(), _VERSIONS}:
            self._run(f"DROP TABLE {name}")

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._connection.close()

    def _run(self, statement: str, values: Sequence[object] | None = None) -> None:
        with _errors(self.location):
            self._connection.execute(statement.encode(), values)

    def _all(self, query: str, values: Sequence[object] | None = None) -> list[Row]:
        with _errors(self.location):
            return self._connection.execute(query.encode(), values).fetchall()


def _watch_function(function: str, table: Table) -> str:
    """Return the function that records a changed row: under its old key, and under its new one."""
    old = ", ".join(f"OLD.{column}" for column in table.key)
    new = ", ".join(f"NEW.{column}" for column in table.key)
    insert = f"INSERT INTO {CHANGES} (name, key) VALUES ('{table.name}', json_build_array"  # noqa: S608 - own text
    return (
        f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF TG_OP <> 'INSERT' THEN {insert}({old})::text); END IF; "
        f"IF TG_OP = 'INSERT' THEN {insert}({new})::text); "
        f"ELSIF TG_OP = 'UPDATE' AND ({old}) IS DISTINCT FROM ({new}) THEN "
        f"{insert}({new})::text); END IF; RETURN NULL; END $$"
    )


def _same(table: Table) -> str:
    return " AND ".join(f"t.{column} = k.{column}" for column in table.key)


def _arrays(keys: Sequence[Key]) -> list[list[object]]:
    return [list(values) for values in zip(*keys, strict=True)]


@contextlib.contextmanager
def _errors(location: str) -> Iterator[None]:
    try:
        yield
    except psycopg.DataError as error:
        raise OperatorError(f"{location} cannot store a value: {first_line(error)}") from None
    except psycopg.Error as error:
        if is_loss(error):
            raise StoreUnavailable(f"{location} does not respond: {first_line(error)}") from None
        raise
