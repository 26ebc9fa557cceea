"""The contract between the worker's loop, the executors and the HTTP they speak.

An executor is given a `Run`, does the work and returns its result, or raises `ExecutionFailed`.
The trap: an executor sets no deadline of its own. Deadline, timeout and cancel all arrive as
asyncio cancellation of `execute`, and must be let through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from fairlane.core.json_types import JsonObject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager

RESPONSE_BYTES_MAX: Final = 8 * 1024 * 1024


class Work(msgspec.Struct, frozen=True):
    """A leased task, as its handler receives it.

    Attributes:
        task_id: Id of the task
        agent: Agent that the task belongs to
        kind: `handler`, `action` or `instruction`
        lane: Lane that the task runs in
        attempt: Number of this attempt, from 1
        deadline_at: Deadline in milliseconds since the epoch, or None
        request: The submitted body with its JSON names; `request["params"]` are the params
        max_attempts: How many attempts the task may have
        timeout_ms: How long this attempt may take, or None
        inputs: Results of the tasks that this one depends on
        traceparent: Trace of this attempt, if traces are recorded
    """

    task_id: str
    agent: str
    kind: str
    lane: str
    attempt: int
    deadline_at: int | None
    request: JsonObject
    max_attempts: int = 1
    timeout_ms: int | None = None
    inputs: list[JsonObject] = []  # what the tasks that it depended on have left
    traceparent: str | None = None  # of this attempt, where traces are kept


class Run(Protocol):
    """One attempt under one lease."""

    @property
    def work(self) -> Work: ...

    async def start(self) -> None:
        """Assigned to running; returns when that is durable, raises LeaseLost when not ours."""

    def output(self, text: str) -> None:
        """Keep text that the work has produced so far. Returns at once."""

    def progress(self, progress: object) -> None:
        """Tell how far the work is. Returns at once."""


class Executor(Protocol):
    @property
    def starts_itself(self) -> bool:
        """False: the engine marks the task running in the transaction that leases it."""

    async def execute(self, run: Run) -> Any:
        """The result, as JSON can carry it. Raises ExecutionFailed."""

    async def close(self) -> None: ...


class ResponseStream(Protocol):
    """An answer whose body comes piece by piece; PayloadTooLarge where it gets too long."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class HttpSender(Protocol):
    """HTTP exchanges that never follow a redirect. Leaving the context of one hangs up.

    Raises OSError (a TimeoutError included) when the exchange breaks, TargetRefused or
    InvalidRequest when the target may not be asked, PayloadTooLarge beyond `max_bytes`. Opening
    the connection has a bound of its own; `timeout_seconds` bounds the whole exchange, and None
    leaves the rest to cancellation.
    """

    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        max_bytes: int,
        timeout_seconds: float | None,
    ) -> AbstractAsyncContextManager[ResponseStream]: ...
