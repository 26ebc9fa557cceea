"""Whether a worker can run a new task, without a read for each submission.

Most tasks name a handler that was offered a moment ago: that answer is reused for some seconds. Any
other answer is read again, at most a few times a second, so a worker that has just come is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import EllipsisType
from typing import Final

from fairlane.clock import Clock
from fairlane.core import workers
from fairlane.core.model import is_open
from fairlane.core.workers import ONLINE, KnownWorker, Unserved

OFFERED_SECONDS: Final = 10.0
READ_SECONDS: Final = 0.25
ANSWERS_MAX: Final = 4096


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
        self._answers: dict[tuple[str, str, str], Unserved | None] = {}

    def has(self, capability: str) -> bool:
        """Return whether the capability was offered to everyone a moment ago."""
        if self._read_at is None or self._clock.monotonic() - self._read_at > OFFERED_SECONDS:
            return False
        return self._is_offered(capability)

    async def unserved(self, capability: str, lane: str, agent: str) -> Unserved | None:
        """Return why no worker can run a task, as `workers.unserved` does."""
        if self.has(capability):
            return None
        await self.known()
        return self._judged(capability, lane, agent)

    def at_hand(self, capability: str, lane: str, agent: str) -> Unserved | EllipsisType | None:
        """Return the same without a read, or `...` if that is not possible."""
        if self._read_at is None:
            return ...
        age = self._clock.monotonic() - self._read_at
        if age <= OFFERED_SECONDS and self._is_offered(capability):
            return None
        return self._judged(capability, lane, agent) if age <= READ_SECONDS else ...

    def _is_offered(self, capability: str) -> bool:
        return capability in self._offered or (self._offers_all and is_open(capability))

    def _judged(self, capability: str, lane: str, agent: str) -> Unserved | None:
        asked = (capability, lane, agent)
        answer = self._answers.get(asked, ...)
        if answer is ...:
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            answer = workers.unserved(self._workers, capability, lane, agent)
            self._answers[asked] = answer
        return answer

    async def known(self) -> Sequence[KnownWorker]:
        """Return all known workers, as they were at most READ_SECONDS ago."""
        if not self._is_new():
            async with self._lock:
                if not self._is_new():
                    self._keep(await self._read())
        return self._workers

    def _is_new(self) -> bool:
        """Return whether the workers were read at most READ_SECONDS ago."""
        return self._read_at is not None and (
            self._clock.monotonic() - self._read_at <= READ_SECONDS
        )

    def forget(self) -> None:
        """Read again the next time."""
        self._read_at = None

    def _keep(self, found: Sequence[KnownWorker]) -> None:
        self._workers = found
        self._answers.clear()
        free = [one for one in found if one.state == ONLINE and one.takes_all]
        self._offered = frozenset(name for one in free for name in one.capabilities)
        self._offers_all = any(one.any_handler for one in free)
        self._read_at = self._clock.monotonic()
