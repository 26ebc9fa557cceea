"""Leases from a server on the network: the other source of the worker's loop.

Renewals use a client of their own, because their thread must not wait for an event loop that the
work may block. A response that says nothing about a lease (none at all, or a stopping server) is
reported to the loop as an unavailable store: it tries again, and the server's clock decides when a
lease has expired.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Sequence
from typing import Final, TypeVar

from fairlane.client.asynchronous import AsyncClient
from fairlane.client.sync import Client
from fairlane.core.errors import (
    CallerError,
    FairlaneError,
    LeaseLost,
    PayloadTooLarge,
    StoreUnavailable,
)
from fairlane.core.model import HANDLER, capability_of, lease_id, parse_lease_id
from fairlane.core.submissions import moment_of
from fairlane.schema import wire
from fairlane.schema.leases import LeaseGrant, LeaseGrants
from fairlane.schema.task_status import request_of
from fairlane.worker.executors.base import Work
from fairlane.worker.source import Assignment

log = logging.getLogger("fairlane.worker")

WAIT_MS: Final = 30_000
WITHDRAW_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.2
_ENVELOPE_BYTES: Final = 1024  # room for the other fields of a report

T = TypeVar("T")


class RemoteSource:
    """Leases of handler tasks in `lanes`, or in all lanes."""

    def __init__(
        self,
        url: str,
        *,
        worker: str,
        lanes: Sequence[str],
        lease_ms: int,
        token: str | None = None,
    ) -> None:
        self.worker = worker
        self._lanes = lanes
        self._lease_ms = lease_ms
        self._client = AsyncClient(url, token=token)
        self._renewals = Client(url, token=token, timeout=max(1.0, lease_ms / 3000))
        self._polls: set[asyncio.Task[LeaseGrants]] = set()
        self._withdrawing: asyncio.Task[None] | None = None

    async def lease(
        self, capabilities: frozenset[str], started: frozenset[str], limit: int
    ) -> list[Assignment]:
        poll = asyncio.create_task(
            self._client.lease(
                self.worker,
                lanes=self._lanes,
                handlers=sorted(
                    capability.removeprefix(f"{HANDLER}/") for capability in capabilities
                ),
                limit=limit,
                wait_ms=WAIT_MS,
                ttl_ms=self._lease_ms,
                start=capabilities == started,
            )
        )
        self._polls.add(poll)
        poll.add_done_callback(self._polls.discard)
        try:
            await asyncio.wait([poll])
        finally:
            poll.cancel()  # disconnect; the server reclaims what it may be granting
        if poll.cancelled():
            return []
        return await self._assignments((await _told(poll)).leases)

    async def _assignments(self, leases: Sequence[LeaseGrant]) -> list[Assignment]:
        """Return what this worker understands; a lease that it does not goes back, alone."""
        found = []
        for lease in leases:
            try:
                found.append(_assignment(lease))
            except Exception as error:  # noqa: BLE001 - whatever it is, the others run
                log.warning("lease %s cannot be read: %s", lease.lease_id, error)
                with contextlib.suppress(FairlaneError):
                    await self._client.release_lease(lease.lease_id)
        return found

    def withdraw(self) -> None:
        if self._polls and (self._withdrawing is None or self._withdrawing.done()):
            self._withdrawing = asyncio.create_task(self._withdraw(set(self._polls)))

    async def start(self, assignment: Assignment) -> None:
        await _told(self._client.start_lease(_id(assignment)))

    async def complete(self, assignment: Assignment, result: object) -> None:
        try:
            _refuse_too_large(result)
            await _told(self._client.complete_lease(_id(assignment), result=result))
        except LeaseLost:
            raise
        except CallerError as error:  # a result that the server will never accept
            problem = f"the result was refused: {error.message}"
            await self.fail(assignment, problem, retryable=False, retry_after_ms=None)

    async def fail(
        self, assignment: Assignment, error: str, *, retryable: bool, retry_after_ms: int | None
    ) -> None:
        report = self._client.fail_lease(
            _id(assignment),
            error or "failed without an error message",
            retryable=retryable,
            retry_after_ms=retry_after_ms,
        )
        await _told(report)

    async def release(self, assignment: Assignment) -> None:
        await _told(self._client.release_lease(_id(assignment)))

    async def output(self, assignment: Assignment, part: int, text: str) -> None:
        await _told(self._client.output_lease(_id(assignment), text, part=part))

    async def progress(self, assignment: Assignment, progress: object) -> None:
        report = self._client.renew_lease(_id(assignment), ttl_ms=self._lease_ms, progress=progress)
        await _told(report)

    def renew(self, assignments: Sequence[Assignment]) -> list[Assignment]:
        return [assignment for assignment in assignments if self._is_over(assignment)]

    async def close(self) -> None:
        if self._withdrawing is not None:
            await self._withdrawing
        await self._client.close()
        self._renewals.close()

    def _is_over(self, assignment: Assignment) -> bool:
        try:
            answer = self._renewals.renew_lease(_id(assignment), ttl_ms=self._lease_ms)
        except LeaseLost:
            return True
        return answer.cancel_requested

    async def _withdraw(self, polls: set[asyncio.Task[LeaseGrants]]) -> None:
        """Ask the server to end the waiting request, so that nothing granted is lost on the way;
        without an answer, close the connection. A poll that was on its way ends the next time.
        """
        end = asyncio.get_running_loop().time() + WITHDRAW_SECONDS
        while polls and asyncio.get_running_loop().time() < end:
            try:
                await self._client.withdraw_leases(self.worker)
            except FairlaneError:
                break
            _, polls = await asyncio.wait(polls, timeout=_LOOK_SECONDS)
        for poll in polls:
            poll.cancel()


def _refuse_too_large(result: object) -> None:
    """Raise `PayloadTooLarge` as the server would, which may close the connection while it
    receives.
    """
    limit = wire.BODY_BYTES_MAX - _ENVELOPE_BYTES
    if len(wire.encode(result)) > limit:
        raise PayloadTooLarge(f"it must not be larger than {limit} bytes of JSON")


async def _told(call: Awaitable[T]) -> T:
    """Return the response, or raise an error about the lease."""
    try:
        return await call
    except CallerError:
        raise
    except FairlaneError as error:
        raise StoreUnavailable(error.message) from error


def _assignment(lease: LeaseGrant) -> Assignment:
    task = lease.task
    key = parse_lease_id(lease.lease_id)
    assert key is not None, lease.lease_id
    work = Work(
        task_id=task.task_id,
        agent=task.agent,
        kind=task.kind,
        lane=task.lane,
        attempt=lease.attempt,
        deadline_at=None if task.deadline is None else moment_of(task.deadline, "deadline"),
        request=request_of(task),
        max_attempts=task.max_attempts,
        timeout_ms=lease.timeout_ms,
        inputs=[one.to_dict() for one in lease.inputs or ()],
    )
    capability = capability_of(task.kind, task.handler)
    return Assignment(*key, work, capability, task.state == "running")


def _id(assignment: Assignment) -> str:
    return lease_id(assignment.seq, assignment.fencing_token)
