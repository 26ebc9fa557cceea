"""Stores for the tests: opened by address, emptied for reuse, and read out as plain rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw
import psycopg

from fairlane.store.opening import open_store

if TYPE_CHECKING:
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
        with self._connection.pipeline(), self._connection.transaction():
            self._connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            for table, rows in self._seeds.items():
                self._connection.execute(f"DELETE FROM {table}")
                for row in rows:
                    marks = ", ".join(["%s"] * len(row))
                    self._connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)

    def close(self) -> None:
        self._connection.close()
