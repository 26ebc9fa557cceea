"""Numbered migrations: each file in `migrations/` runs once, completely or not at all.

Both databases roll back schema changes, so a file and its version number are one transaction and a
kill at any statement leaves the old schema. A schema newer than this program is refused.

The numbers 0012 and 0014 are missing on purpose: both were merged into other files before the first
release and before they were ever committed, so no store has run them. A number is not used again.
A gap is harmless, because every file with a number above the store's runs, in order.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from typing import Final, Protocol

from fairlane.core.errors import StoreMismatch

_SPELLING: Final[Mapping[str, Mapping[str, str]]] = {
    "sqlite": {
        "key": "INTEGER NOT NULL PRIMARY KEY",
        "int": "INTEGER",
        "text": "TEXT",
        "real": "REAL",
        "table": "STRICT",
        "hot": "STRICT",
        "by_key": "STRICT, WITHOUT ROWID",
        "hot_by_key": "STRICT, WITHOUT ROWID",
    },
    "postgres": {
        "key": "BIGINT NOT NULL PRIMARY KEY",
        "int": "BIGINT",
        # Byte order: names are only compared for identity and order, and this is much faster.
        "text": 'TEXT COLLATE "C"',
        "real": "DOUBLE PRECISION",
        "table": "",
        # Rewritten often: leave room on the page, and vacuum early.
        "hot": "WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02)",
        "by_key": "",
        "hot_by_key": "WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02)",
    },
}


class Schema(Protocol):
    """What a migration needs of a database, in one transaction that the caller opened."""

    dialect: str

    def begin(self) -> None: ...

    def version(self) -> int: ...

    def run(self, statement: str) -> None: ...

    def commit(self, version: int) -> None: ...

    def rollback(self) -> None: ...


def files() -> list[tuple[int, str]]:
    """Return the migrations, oldest first: number and text."""
    folder = resources.files("fairlane.store").joinpath("migrations")
    found = [
        (int(file.name.split("_")[0]), file.read_text("utf-8"))
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found)


@functools.cache
def newest() -> int:
    """Return the number of the schema that this program needs."""
    return files()[-1][0]


def migrate(schema: Schema) -> None:
    schema.begin()
    try:
        version = schema.version()
        if version > newest():
            raise StoreMismatch(
                f"the store was written by a newer fairlane (schema {version}, this one knows "
                f"{newest()}); upgrade fairlane"
            )
        for number, text in files():
            if number > version:
                for statement in statements(text, schema.dialect):
                    schema.run(statement)
        schema.commit(newest())
    except BaseException:
        schema.rollback()
        raise


def statements(text: str, dialect: str) -> list[str]:
    for word, spelled in _SPELLING[dialect].items():
        text = text.replace("{" + word + "}", spelled)
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    return [part.strip() for part in "\n".join(lines).split(";") if part.strip()]
