"""A psycopg connection whose waits are bounded.

A database can accept a connection and then say nothing: it is stopped, its disk hangs, or the
network drops packets. TCP does not notice, and psycopg waits without a limit. Here every wait has
one. A connection that exceeds it is closed, because its state is unknown.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeVar

import psycopg
from psycopg.waiting import Ready, Wait

from fairlane.clock import SystemClock
from fairlane.store.base import Row

T = TypeVar("T")

_monotonic: Final = SystemClock().monotonic


class DatabaseSilent(psycopg.OperationalError):
    """The database has not responded within the connection's patience."""


class PatientConnection(psycopg.Connection[Row]):
    """`patience` is how many seconds one wait may take; it may be changed at any time."""

    patience: float = 8.0

    def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **options: Any) -> T:
        try:
            return super().wait(self._bounded(gen), *arguments, **options)
        except DatabaseSilent:
            self.close()
            raise

    def _bounded(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Pass on what `gen` waits for; raise `DatabaseSilent` if that takes too long.

        In a pipeline psycopg waits for responses although libpq has not sent everything yet: what
        exceeds the system's buffer would never be sent, and the database would wait too, in the
        middle of a message. So the rest is sent here.
        """
        give_up_at = _monotonic() + self.patience
        try:
            wanted = next(gen)
            while True:
                unsent = wanted == Wait.R and self.pgconn.flush()
                ready = yield Wait.RW if unsent else wanted
                if _monotonic() >= give_up_at:
                    gen.close()
                    raise DatabaseSilent(f"the database has not responded for {self.patience:g} s")
                if not unsent or ready != Ready.W:
                    wanted = gen.send(ready if not unsent else ready & Ready.R)
        except StopIteration as end:
            result: T = end.value
            return result
