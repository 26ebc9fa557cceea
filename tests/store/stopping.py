"""A migration that ends in the middle: by an exception, or with its whole process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import apsw
import psycopg

from fairlane.store import migrate
from fairlane.store.postgres import PostgresSchema
from fairlane.store.sqlite import SqliteSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SQLITE = "sqlite:///"


class Stop(Exception):
    """Raised where a migration is interrupted."""


def raise_stop() -> None:
    raise Stop


class StoppingSchema:
    """A schema whose migration is stopped after some statements; the commit is the last of them."""

    def __init__(self, real: Any, after: int, stop: Callable[[], None] = raise_stop) -> None:
        self._real = real
        self._left = after
        self._stop = stop
        self.dialect = real.dialect
        self.begin, self.version, self.rollback = real.begin, real.version, real.rollback

    def run(self, statement: str) -> None:
        self._step()
        self._real.run(statement)

    def commit(self, version: int) -> None:
        self._step()
        self._real.commit(version)

    def _step(self) -> None:
        if self._left == 0:
            self._stop()
        self._left -= 1


@contextlib.contextmanager
def schema_of(url: str) -> Iterator[Any]:
    if url.startswith(SQLITE):
        with contextlib.closing(apsw.Connection(url.removeprefix(SQLITE))) as file:
            yield SqliteSchema(file)
    else:
        with psycopg.connect(url) as connection:
            yield PostgresSchema(connection)


def _kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    with schema_of(sys.argv[1]) as _schema:
        migrate.migrate(StoppingSchema(_schema, int(sys.argv[2]), _kill_myself))
