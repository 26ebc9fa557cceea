"""The verbs as an MCP server asks them: each is a call of a route, to be awaited.

Who answers is one function: a client's `call`, or the one of a scheduler in this process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, Unpack

from fairlane.client.async_verbs import Call, Shape
from fairlane.client.binding import bound
from fairlane.client.calling import Asked
from fairlane.client.methods import AsyncMethods, Q, R
from fairlane.client.sync import AT_REST, WAIT_SLICE_SECONDS
from fairlane.client.verbs import Verbs, WhichEvents, event_query, task_path
from fairlane.clock import SystemClock
from fairlane.core.access import Caller
from fairlane.schema.fields import within
from fairlane.schema.operation import Operation
from fairlane.schema.task_status import TaskStatus

# What the route allows, too.
WAIT_MS: Final = 30_000
WAIT_MS_MAX: Final = 60_000


class Ask(Protocol):
    def __call__(self, method: str, path: str, **asked: Unpack[Asked]) -> Awaitable[Shape]: ...


AskAs = Callable[[Caller], Ask]


class Calls(Verbs[Call], AsyncMethods):
    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._clock = SystemClock()

    async def call(self, method: str, path: str, **asked: Unpack[Asked]) -> Shape:
        return await self._ask(method, path, **asked)

    async def perform(self, operation: Operation[Q, R], request: Q) -> R:
        path, asked = bound(operation, request)
        shape = await self._ask(operation.method, path, **asked)
        return operation.convert_response(shape)

    async def wait(self, task_id: str, *, wait_ms: int = WAIT_MS) -> TaskStatus:
        """Return the task when it has ended or was parked, or as it is when the time is up.

        In short turns, because nobody tells this side what another process does to its store. A
        turn that is over too soon means that who was asked is stopping.
        """
        within("waitMs", wait_ms, 0, WAIT_MS_MAX)
        begun = self._clock.monotonic()
        end = begun + wait_ms / 1000
        while True:
            left = max(0.0, min(WAIT_SLICE_SECONDS, end - begun))
            task = await self.wait_once(task_id, timeout_ms=round(left * 1000))
            now = self._clock.monotonic()
            if task.state in AT_REST or now >= end or now - begun < left / 2:
                return task
            begun = now

    def events(
        self,
        *,
        after: int | None = None,
        limit: int | None = None,
        **which: Unpack[WhichEvents],
    ) -> Call:
        query = {**event_query(which), "after": after or 0, "limit": limit}
        return self.call("GET", "/events", query=query)

    def output(self, task_id: str) -> Call:
        return self.call("GET", task_path(task_id, "/output"))
