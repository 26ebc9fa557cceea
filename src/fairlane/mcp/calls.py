"""The verbs as an MCP server asks them: each is a call of a route, to be awaited.

Who answers is one function: a client's `call`, or the one of a scheduler in this process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol, Unpack

from fairlane.client import AT_REST, WAIT_SLICE_SECONDS
from fairlane.clock import SystemClock
from fairlane.core.access import Caller
from fairlane.fields import within
from fairlane.verbs import TaskFields, Verbs, event_query, task_body, task_path

Shape = dict[str, Any]
Call = Coroutine[Any, Any, Shape]

# What the route allows, too.
WAIT_MS: Final = 30_000
WAIT_MS_MAX: Final = 60_000


class Ask(Protocol):
    def __call__(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        idempotency_key: str | None = None,
        wait_ms: int = 0,
    ) -> Awaitable[Shape]: ...


AskAs = Callable[[Caller], Ask]


class Calls(Verbs[Call]):
    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._clock = SystemClock()

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        idempotency_key: str | None = None,
        wait_ms: int = 0,
    ) -> Shape:
        return await self._ask(
            method,
            path,
            query=query,
            body=body,
            idempotency_key=idempotency_key,
            wait_ms=wait_ms,
        )

    def submit(self, *, idempotency_key: str | None = None, **fields: Unpack[TaskFields]) -> Call:
        return self.submit_body(task_body(fields), idempotency_key=idempotency_key)

    async def wait(self, task_id: str, *, wait_ms: int = WAIT_MS) -> Shape:
        """The task when it has ended or was parked, or as it is when the time is up.

        In short turns, because nobody tells this side what another process does to its store. A
        turn that is over too soon means that who was asked is stopping.
        """
        within("waitMs", wait_ms, 0, WAIT_MS_MAX)
        begun = self._clock.monotonic()
        end = begun + wait_ms / 1000
        while True:
            left = max(0.0, min(WAIT_SLICE_SECONDS, end - begun))
            turn_ms = round(left * 1000)
            query = {"timeoutMs": turn_ms}
            task = await self.call("GET", task_path(task_id, "/wait"), query=query, wait_ms=turn_ms)
            now = self._clock.monotonic()
            if task["state"] in AT_REST or now >= end or now - begun < left / 2:
                return task
            begun = now

    def events(
        self,
        *,
        task: str | None = None,
        batch: str | None = None,
        agent: str | None = None,
        lane: str | None = None,
        types: Sequence[str] = (),
        after: int | None = None,
        limit: int | None = None,
    ) -> Call:
        query = event_query(task=task, batch=batch, agent=agent, lane=lane, types=types)
        return self.call("GET", "/events", query={**query, "after": after or 0, "limit": limit})

    def output(self, task_id: str) -> Call:
        return self.call("GET", task_path(task_id, "/output"))
