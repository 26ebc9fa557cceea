"""Totals of handlers: counted in memory, and stored with commits that happen anyway.

They are stored at most once a second, so a task costs no write of its own. At a low rate each
commit stores its own totals. A process that is killed loses at most those of the last second in
which it committed. The write thread changes them; other threads may read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fairlane.core.handler_totals import KEPT_HOURS, Counter, Key, Totals, added
from fairlane.core.model import Change
from fairlane.store.base import Connection
from fairlane.store.tables import handler_totals as table

SAVE_SECONDS: Final = 1.0


class HandlerTotals:
    def __init__(self) -> None:
        self.pending: dict[Key, Totals] = {}  # committed, but not stored
        self._counter = Counter()
        # The changes of the current batch and their time, unless it stores them.
        self._changes: Sequence[Change] = ()
        self._now = 0
        self._writing = False
        self._save_at = self._next_save_at = 0.0
        self._hour = self._newest_hour = 0

    def save(
        self, connection: Connection, changes: Sequence[Change], now: int, monotonic: float
    ) -> None:
        """Store what is due, with the changes of a batch, before its commit."""
        self._writing = False
        self._changes, self._now = changes, now
        if monotonic < self._save_at:
            return
        new = self._counter.count(changes, now)
        if not new and not self.pending:
            return
        due = added([self.pending, new])
        table.add(connection, due)
        self._newest_hour = max(key[0] for key in due)
        if self._newest_hour != self._hour:
            table.forget(connection, self._newest_hour - KEPT_HOURS)
        self._next_save_at = monotonic + SAVE_SECONDS
        self._writing = True

    def hurry(self) -> None:
        """Store everything with the next commit: it is the last one of this process."""
        self._save_at = 0.0

    def committed(self) -> None:
        """Count the batch, which is committed."""
        if self._writing:
            self.pending = {}
            self._hour, self._save_at = self._newest_hour, self._next_save_at
        elif self._changes:
            self._counter.count(self._changes, self._now, self.pending)
        self._changes, self._writing = (), False
