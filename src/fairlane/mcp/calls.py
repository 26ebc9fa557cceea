"""The operations in the form in which the MCP server calls them.

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
from fairlane.core.json_types import JsonObject
from fairlane.schema.approvals import ApprovalStatus
from fairlane.schema.operation import Operation
from fairlane.schema.task_status import TaskStatus

# The maximum of the route.
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

    async def approve(
        self,
        approval_id: str,
        hash_: str,
        *,
        answer: JsonObject | None = None,
        comment: str | None = None,
    ) -> ApprovalStatus:
        """Approve the content with this hash."""
        return await self.decide(approval_id, "approve", hash_, answer=answer, comment=comment)

    async def reject(
        self, approval_id: str, hash_: str, *, comment: str | None = None
    ) -> ApprovalStatus:
        """Reject the content with this hash."""
        return await self.decide(approval_id, "reject", hash_, comment=comment)

    async def wait(self, task_id: str, *, wait_ms: int = WAIT_MS) -> TaskStatus:
        """Return the task when it has ended or was parked, or as it is when the time is up.

        Poll at short intervals: this process is not notified of changes that other processes make
        to its store. A poll that returns too soon means that the server is stopping.
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
