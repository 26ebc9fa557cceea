"""Stores for the tests: opened by address, emptied for reuse, and read out as plain rows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import apsw
import psycopg

from fairlane.store.opening import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.store.base import Row, Store

SQLITE = "sqlite:///"
_BOOKKEEPING = "schema_version"


def contents(store: Store) -> dict[str, list[Row]]:
    """Every row of every table, in an order that does not depend on the database, and clear: what
    is sealed looks different each time.
    """
    found = _sqlite_contents(store) if store.dialect == "sqlite" else _postgres_contents(store.url)
    return {
        table: sorted((tuple(_clear(store, value) for value in row) for row in rows), key=repr)
        for table, rows in sorted(found.items())
    }


def _clear(store: Store, value: Any) -> Any:
    return store.vault.open(value) if isinstance(value, str) else value


def _sqlite_contents(store: Store) -> dict[str, list[Row]]:
    path = store.url.removeprefix(SQLITE)
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        tables = connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table'"
        ).fetchall()
        names = [str(name) for (name,) in tables]
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}
    finally:
        connection.close()


def _postgres_contents(url: str) -> dict[str, list[Row]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return {name: _all(connection, name) for name in _postgres_tables(connection)}


def _postgres_tables(connection: psycopg.Connection[Any]) -> list[str]:
    rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    return [name for (name,) in rows if name != _BOOKKEEPING]


def _all(connection: psycopg.Connection[Any], table: str) -> list[Row]:
    return connection.execute(f"SELECT * FROM {table}").fetchall()


def back_up(store: Store, *, connected: bool = False) -> Callable[[], None]:
    """Make a backup as docs/upkeep.md does, and return a function that restores it.

    On PostgreSQL the restore ends all connections, unless they stay `connected`, and the nodes go
    on. On SQLite every engine on the store has to be closed before.
    """
    if store.dialect != "sqlite":
        saved = _postgres_contents(store.url)
        whose: LiteralString = "false" if connected else "application_name = 'fairlane'"
        return lambda: _restore_postgres(store.url, saved, whose)
    path = store.url.removeprefix(SQLITE)
    backup = f"{path}.backup"
    connection = apsw.Connection(path)
    connection.execute("VACUUM INTO ?", (backup,))
    connection.close()

    def restore() -> None:
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        shutil.copy(backup, path)

    return restore


def _restore_postgres(url: str, saved: dict[str, list[Row]], whose: LiteralString) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        _rewrite(connection, saved, whose)


def _rewrite(
    connection: psycopg.Connection[Any], tables: dict[str, list[Row]], whose: LiteralString = "true"
) -> None:
    """Make these rows the only ones, and end the connections `whose` condition holds."""
    with connection.pipeline(), connection.transaction():
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE datname = current_database() AND pid <> pg_backend_pid() AND {whose}"
        )
        for table, rows in tables.items():
            connection.execute(f"DELETE FROM {table}")
            for row in rows:
                marks = ", ".join(["%s"] * len(row))
                connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)


def execute(store: Store, statement: str) -> None:
    """For what would take long through the engine; both databases have to understand it."""
    if store.dialect == "sqlite":
        connection = apsw.Connection(store.url.removeprefix(SQLITE))
        try:
            connection.set_busy_timeout(60_000)
            connection.execute(statement)
        finally:
            connection.close()
        return
    with psycopg.connect(store.url, autocommit=True) as database:
        database.execute(statement.encode())


class ReusedPostgres:
    """One migrated database for many tests: emptying it is ten times quicker than making one."""

    def __init__(self, url: str) -> None:
        self.url = url
        open_store(url).migrate()
        self._seeds = _postgres_contents(url)
        self._connection = psycopg.connect(url, autocommit=True)

    def empty(self) -> None:
        """Bring the database back to what the migrations left, whoever is still connected."""
        _rewrite(self._connection, self._seeds)

    def close(self) -> None:
        self._connection.close()
