"""The schema as text, to be compared with what is kept in `schema.*.txt`.

After a change of the migrations, `python -m tests.store.schema` writes those files anew.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import psycopg

from fairlane.store.opening import open_store
from tests.postgres import running_postgres
from tests.store.stores import SQLITE

if TYPE_CHECKING:
    from fairlane.store.base import Store

COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), coalesce(o.collname, ''),
  CASE WHEN a.attnotnull THEN 'NOT NULL' ELSE '' END
FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_collation AS o ON o.oid = a.attcollation AND a.attcollation <> 0
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
ORDER BY c.relname, a.attnum
"""
OPTIONS = """
SELECT c.relname, array_to_string(c.reloptions, ', ') FROM pg_class AS c
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND c.reloptions IS NOT NULL
ORDER BY c.relname
"""
INDEXES = (
    "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY tablename, indexname"
)


def kept(store: Store) -> Path:
    return Path(__file__).with_name(f"schema.{store.dialect}.txt")


def describe(store: Store) -> str:
    lines = _sqlite(store) if store.dialect == "sqlite" else _postgres(store)
    return "\n".join([*lines, ""])


def _sqlite(store: Store) -> list[str]:
    connection = apsw.Connection(store.url.removeprefix(SQLITE))
    try:
        found = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY tbl_name, type, name"
        statements = [sql for (sql,) in connection.execute(found)]
        return [f"user_version {connection.pragma('user_version')}", *statements]
    finally:
        connection.close()


def _postgres(store: Store) -> list[str]:
    with psycopg.connect(store.url, autocommit=True) as connection:
        columns = _lines(connection, COLUMNS)
        version = _lines(connection, "SELECT 'schema_version', version FROM schema_version")
        return [*version, *columns, *_lines(connection, OPTIONS), *_lines(connection, INDEXES)]


def _lines(connection: psycopg.Connection[Any], query: Any) -> list[str]:
    return [" ".join(str(part) for part in row).rstrip() for row in connection.execute(query)]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, running_postgres(fsync=False) as url:
        for address in (f"{SQLITE}{folder}/fairlane.db", url):
            store = open_store(address)
            store.migrate()
            kept(store).write_text(describe(store), "utf-8")


if __name__ == "__main__":
    main()
