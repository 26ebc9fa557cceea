"""The contract between the worker's loop, the executors and their HTTP.

An executor receives a `Run`, does the work and returns its result, or raises `ExecutionFailed`. The
trap: an executor sets no deadline of its own. Deadline, timeout and cancel all arrive as asyncio
cancellation of `execute`, which must not be swallowed.
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
    inputs: list[JsonObject] = []  # results of the tasks that it depended on
    traceparent: str | None = None  # of this attempt, if traces are recorded


class Run(Protocol):
    """One attempt under one lease."""

    @property
    def work(self) -> Work: ...

    async def start(self) -> None:
        """Mark the task running, durably. Raise LeaseLost if the lease is lost."""

    def output(self, text: str) -> None:
        """Store text that the work has produced so far. Return at once."""

    def progress(self, progress: object) -> None:
        """Report the progress of the work. Return at once."""


class Executor(Protocol):
    @property
    def starts_itself(self) -> bool:
        """Return False if the engine marks the task running when it leases it."""

    async def execute(self, run: Run) -> Any:
        """Return the result, a JSON value. Raise ExecutionFailed."""

    async def close(self) -> None: ...


class ResponseStream(Protocol):
    """A response whose body arrives in pieces; PayloadTooLarge if it gets too long."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class HttpSender(Protocol):
    """HTTP exchanges that never follow a redirect. Leaving the context closes the connection.

    Raise OSError (including TimeoutError) if the exchange breaks, TargetRefused or InvalidRequest
    if the target is not allowed, PayloadTooLarge beyond `max_bytes`. Opening the connection has its
    own limit; `timeout_seconds` limits the whole exchange, and None leaves the rest to
    cancellation.
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
