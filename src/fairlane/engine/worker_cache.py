"""Whether a worker can run a new task, without a read for each submission.

Most tasks name a handler that was offered a moment ago: that answer is reused for some seconds. Any
other answer is read again, at most a few times a second, so a worker that has just come is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from fairlane.clock import Clock
from fairlane.core import workers
from fairlane.core.model import is_open
from fairlane.core.workers import ONLINE, KnownWorker, Unserved

OFFERED_SECONDS: Final = 10.0
READ_SECONDS: Final = 0.25


class WorkerCache:
    def __init__(self, read: Callable[[], Awaitable[Sequence[KnownWorker]]], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._lock = asyncio.Lock()
        self._workers: Sequence[KnownWorker] = ()
        self._read_at: float | None = None
        # What workers without limits on lanes and agents offer.
        self._offered: frozenset[str] = frozenset()
        self._offers_all = False

    def has(self, capability: str) -> bool:
        """Return whether the capability was offered to everyone a moment ago."""
        if self._read_at is None or self._clock.monotonic() - self._read_at > OFFERED_SECONDS:
            return False
        return capability in self._offered or (self._offers_all and is_open(capability))

    async def unserved(self, capability: str, lane: str, agent: str) -> Unserved | None:
        """Return why no worker can run a task, as `workers.unserved` does."""
        if self.has(capability):
            return None
        return workers.unserved(await self.known(), capability, lane, agent)

    async def known(self) -> Sequence[KnownWorker]:
        """Return all known workers, as they were at most READ_SECONDS ago."""
        async with self._lock:
            now = self._clock.monotonic()
            if self._read_at is None or now - self._read_at > READ_SECONDS:
                self._keep(await self._read())
            return self._workers

    def forget(self) -> None:
        """Read again the next time."""
        self._read_at = None

    def _keep(self, found: Sequence[KnownWorker]) -> None:
        self._workers = found
        free = [one for one in found if one.state == ONLINE and one.takes_all]
        self._offered = frozenset(name for one in free for name in one.capabilities)
        self._offers_all = any(one.any_handler for one in free)
        self._read_at = self._clock.monotonic()
