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
        self._new: dict[Key, Totals] = {}  # of the current batch
        self._writing = False
        self._save_at = self._next_save_at = 0.0
        self._hour = self._newest_hour = 0

    def save(
        self, connection: Connection, changes: Sequence[Change], now: int, monotonic: float
    ) -> None:
        """Count the changes of a batch before its commit, and store what is due."""
        self._new = self._counter.count(changes, now) if changes else {}
        self._writing = monotonic >= self._save_at and bool(self._new or self.pending)
        if not self._writing:
            return
        due = added([self.pending, self._new])
        table.add(connection, due)
        self._newest_hour = max(key[0] for key in due)
        if self._newest_hour != self._hour:
            table.forget(connection, self._newest_hour - KEPT_HOURS)
        self._next_save_at = monotonic + SAVE_SECONDS

    def hurry(self) -> None:
        """Store everything with the next commit: it is the last one of this process."""
        self._save_at = 0.0

    def committed(self) -> None:
        """Note that the batch is committed."""
        if self._writing:
            self.pending = {}
            self._hour, self._save_at = self._newest_hour, self._next_save_at
        else:
            for key, one in self._new.items():
                if key in self.pending:
                    self.pending[key].add(one)
                else:
                    self.pending[key] = one
        self._new, self._writing = {}, False
