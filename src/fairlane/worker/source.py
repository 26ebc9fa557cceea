"""Where a worker's leases come from; the engine in this process is one source.

The loop knows only the protocol, so a worker in the server and one on another machine run the same
code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import msgspec

from fairlane.core.errors import LeaseLost
from fairlane.core.json_types import JsonObject
from fairlane.core.leases import UNREADABLE
from fairlane.core.model import Task
from fairlane.core.policy import Policy
from fairlane.engine.commands import (
    AppendOutput,
    Complete,
    Fail,
    Grant,
    Lease,
    Release,
    Renew,
    Start,
)
from fairlane.engine.verbs.nodes import LEASE_MS
from fairlane.engine.writer import Writer
from fairlane.schema import wire
from fairlane.worker.executors.base import Work

log = logging.getLogger("fairlane.worker")


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """One leased task. `started` says that it is already marked as running."""

    seq: int
    fencing_token: int
    work: Work
    capability: str
    started: bool


class LeaseSource(Protocol):
    worker: str

    async def lease(
        self, capabilities: frozenset[str], started: frozenset[str], limit: int
    ) -> list[Assignment]:
        """Wait for tasks. An empty list means that `withdraw` ended the wait."""
        ...

    def withdraw(self) -> None: ...

    async def start(self, assignment: Assignment) -> None: ...

    async def complete(self, assignment: Assignment, result: object) -> None: ...

    async def fail(
        self, assignment: Assignment, error: str, *, retryable: bool, retry_after_ms: int | None
    ) -> None: ...

    async def release(self, assignment: Assignment) -> None: ...

    async def output(self, assignment: Assignment, part: int, text: str) -> None:
        """Store the next piece of text of the run; `part` counts from 0."""
        ...

    async def progress(self, assignment: Assignment, progress: object) -> None: ...

    def renew(self, assignments: Sequence[Assignment]) -> list[Assignment]:
        """Renew leases and return those whose work must stop. Called from a separate thread."""
        ...


class EngineSource:
    """Leases from the engine in this process."""

    def __init__(self, writer: Writer, worker: str, policy: Callable[[], Policy]) -> None:
        self.worker = worker
        self._writer = writer
        self._policy = policy

    async def lease(
        self, capabilities: frozenset[str], started: frozenset[str], limit: int
    ) -> list[Assignment]:
        request = Lease(
            worker=self.worker,
            lanes=None,
            capabilities=capabilities,
            limit=limit,
            ttl_ms=LEASE_MS,
            started=started,
        )
        grants: list[Grant] = await self._writer.ask(request)
        try:
            return self._assignments(grants)
        except BaseException:
            self._writer.give_back(grants)
            raise

    def _assignments(self, grants: Sequence[Grant]) -> list[Assignment]:
        """Return what can run. A task whose request is damaged fails; the others run."""
        kinds = self._policy().kinds
        found = []
        for grant in grants:
            try:
                found.append(_assignment(grant, kinds[grant.task.kind].timeout_ms))
            except Exception as error:  # noqa: BLE001 - whatever it is, the others run
                log.warning("task %s cannot be run: %s", grant.task.id, error)
                self._writer.tell(
                    Fail(grant.task.seq, grant.task.fencing_token, UNREADABLE, retryable=False)
                )
        return found

    def withdraw(self) -> None:
        self._writer.withdraw(self.worker)

    async def start(self, assignment: Assignment) -> None:
        await self._writer.ask(Start(assignment.seq, assignment.fencing_token))

    def complete(self, assignment: Assignment, result: object) -> Coroutine[Any, Any, None]:
        text = None if result is None else msgspec.json.encode(result).decode()
        return self._writer.ask(Complete(assignment.seq, assignment.fencing_token, text))

    async def fail(
        self, assignment: Assignment, error: str, *, retryable: bool, retry_after_ms: int | None
    ) -> None:
        request = Fail(assignment.seq, assignment.fencing_token, error, retryable, retry_after_ms)
        await self._writer.ask(request)

    async def release(self, assignment: Assignment) -> None:
        await self._writer.ask(Release(assignment.seq, assignment.fencing_token))

    async def output(self, assignment: Assignment, part: int, text: str) -> None:
        await self._writer.ask(AppendOutput(assignment.seq, assignment.fencing_token, part, text))

    async def progress(self, assignment: Assignment, progress: object) -> None:
        text = msgspec.json.encode(progress).decode()
        await self._writer.ask(Renew(assignment.seq, assignment.fencing_token, LEASE_MS, text))

    def renew(self, assignments: Sequence[Assignment]) -> list[Assignment]:
        requests = [Renew(a.seq, a.fencing_token, LEASE_MS) for a in assignments]
        answers = self._writer.ask_all_and_wait(requests)
        return [a for a, answer in zip(assignments, answers, strict=True) if _over(answer)]


def _assignment(grant: Grant, timeout_ms: int | None) -> Assignment:
    """Return the assignment of a grant. The task's own timeout wins over that of its kind."""
    task = grant.task
    request = msgspec.json.decode(grant.body, type=JsonObject)
    work = Work(
        task_id=task.id,
        agent=task.agent,
        kind=task.kind,
        lane=task.lane,
        attempt=task.attempts,
        deadline_at=task.deadline_at,
        request=request,
        max_attempts=task.max_attempts,
        timeout_ms=request.get("timeoutMs", timeout_ms),
        inputs=wire.task_inputs(grant.body, grant.inputs) if grant.inputs else [],
    )
    return Assignment(task.seq, task.fencing_token, work, task.capability, task.state == "running")


def _over(answer: Task | Exception) -> bool:
    """Return whether the work must stop: cancelled, past its deadline, pre-empted, or the lease is
    lost. An unavailable store says nothing about that.
    """
    if isinstance(answer, Task):
        return answer.terminal or answer.preempt == 1
    return isinstance(answer, LeaseLost)
