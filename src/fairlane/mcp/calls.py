"""The operations as an MCP server asks for them.

One function carries them out: that of a client, or of a scheduler in this process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from fairlane.client.base import AT_REST, WAIT_SLICE_SECONDS
from fairlane.client.methods import AsyncMethods, Q, R
from fairlane.clock import SystemClock
from fairlane.core.access import Caller
from fairlane.core.errors import InvalidRequest
from fairlane.schema.operation import Operation
from fairlane.schema.task_status import TaskStatus

# What the route allows, too.
WAIT_MS: Final = 30_000
WAIT_MS_MAX: Final = 60_000


class Perform(Protocol):
    def __call__(self, operation: Operation[Q, R], request: Q, /) -> Awaitable[R]: ...


PerformAs = Callable[[Caller], Perform]


class Calls(AsyncMethods):
    def __init__(self, perform: Perform) -> None:
        self._perform = perform
        self._clock = SystemClock()

    async def perform(self, operation: Operation[Q, R], request: Q) -> R:
        return await self._perform(operation, request)

    async def wait(self, task_id: str, *, wait_ms: int = WAIT_MS) -> TaskStatus:
        """Return the task when it has ended or was parked, or as it is when the time is up.

        Ask in short turns: this side is not notified of what other processes do to its store.
        A turn that is over too soon means that the server is stopping.
        """
        if not 0 <= wait_ms <= WAIT_MS_MAX:
            raise InvalidRequest(f"field 'waitMs' must be from 0 to {WAIT_MS_MAX}")
        begun = self._clock.monotonic()
        end = begun + wait_ms / 1000
        while True:
            left = max(0.0, min(WAIT_SLICE_SECONDS, end - begun))
            task = await self.wait_once(task_id, timeout_ms=round(left * 1000))
            now = self._clock.monotonic()
            if task.state in AT_REST or now >= end or now - begun < left / 2:
                return task
            begun = now
