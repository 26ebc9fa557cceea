"""A psycopg connection that does not wait for ever.

A database can accept a connection and then say nothing: it is stopped, its disk hangs, or something
in between passes no bytes on. TCP does not notice, and psycopg waits without a limit. Here every
wait has one. A connection that has passed it is closed, because nobody knows what it would still
say.
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
    """The database has not answered within the connection's patience."""


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
        """Pass on what `gen` waits for, and raise `DatabaseSilent` when that takes too long.

        In a pipeline psycopg waits for answers although libpq has not sent everything yet: more
        than the system takes at once then never leaves, and the database waits too, in the middle
        of a message. So what is left is sent here.
        """
        give_up_at = _monotonic() + self.patience
        try:
            wanted = next(gen)
            while True:
                unsent = wanted == Wait.R and self.pgconn.flush()
                ready = yield Wait.RW if unsent else wanted
                if _monotonic() >= give_up_at:
                    gen.close()
                    raise DatabaseSilent(f"the database has not answered for {self.patience:g} s")
                if not unsent or ready != Ready.W:
                    wanted = gen.send(ready if not unsent else ready & Ready.R)
        except StopIteration as end:
            result: T = end.value
            return result
