"""Leases from a server on the network: the other source of the worker's loop.

Renewals use a client of their own, because their thread must not wait for an event loop that the
work may block. A response without information about a lease (none at all, or a stopping server) is
reported to the loop as an unavailable store: it tries again, and the server's clock decides when a
lease has expired.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import Final, TypeVar

import msgspec

from fairlane.client.sync import Client
from fairlane.core.approvals import ApprovalRequest
from fairlane.core.errors import (
    CallerError,
    ExecutionFailed,
    FairlaneError,
    InvalidRequest,
    LeaseLost,
    PayloadTooLarge,
    ResourceBusy,
    StoreUnavailable,
)
from fairlane.core.json_types import JsonObject
from fairlane.core.model import HANDLER, capability_of, lease_id, parse_lease_id
from fairlane.core.submissions import moment_of
from fairlane.core.suspensions import Until
from fairlane.schema import wire
from fairlane.schema.approvals import ApprovalOutcome
from fairlane.schema.leases import LeaseGrant, LeaseGrants, ReportLeases
from fairlane.schema.task_status import request_of
from fairlane.version import __version__
from fairlane.worker import presence
from fairlane.worker.executors.base import Work
from fairlane.worker.executors.permits import NOTHING, Needs, SettlementReport
from fairlane.worker.executors.waiting import Waited
from fairlane.worker.presence import PresenceClient
from fairlane.worker.reporting import REPORT_BYTES_MAX, Reporter, renew_all
from fairlane.worker.source import Assignment, InboxTaken, decisions

log = logging.getLogger("fairlane.worker")

WAIT_MS: Final = 30_000
WITHDRAW_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.2
_RESULT_BYTES_MAX: Final = REPORT_BYTES_MAX - 1024  # with the other fields of its report
_PREFIX: Final = f"{HANDLER}/"

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
        slots: int | None = None,
    ) -> None:
        self.worker = worker
        # Sent with polls only: an older server would refuse the reports, too.
        self._about: JsonObject = {"slots": slots, "version": __version__}
        self._lanes = lanes
        self._lease_ms = lease_ms
        self._client = PresenceClient(url, token=token)
        self._reporter = Reporter(self._client, worker)
        self._renewals = Client(url, token=token, timeout=max(1.0, lease_ms / 3000))
        self._polls: set[asyncio.Task[LeaseGrants]] = set()
        self._withdrawing: asyncio.Task[None] | None = None
        self._presence: asyncio.Task[None] | None = None

    def keep_presence(self) -> None:
        """Keep a connection open, so that the server notices at once if this process dies."""
        self._presence = asyncio.create_task(presence.keep(self._client, self.worker))

    async def lease(
        self, capabilities: frozenset[str], started: frozenset[str], limit: int
    ) -> list[Assignment]:
        request = ReportLeases(
            worker=self.worker,
            lanes=list(self._lanes),
            handlers=sorted(capability.removeprefix(_PREFIX) for capability in capabilities),
            limit=limit,
            ttl_ms=self._lease_ms,
            start=capabilities == started,
        )
        if self._reporter.is_pending:
            leases = await _answered(self._reporter.ask(request))
            if leases:
                return self._assignments(leases)
        try:
            return await self._poll(request)
        except InvalidRequest as error:
            if not self._about or "unknown field" not in error.message:
                raise
            self._about = {}  # an older server does not know these fields
        return await self._poll(request)

    async def _poll(self, request: ReportLeases) -> list[Assignment]:
        """Wait for tasks."""
        poll = asyncio.create_task(
            self._client.lease(
                self.worker,
                lanes=request.lanes,
                handlers=request.handlers,
                limit=request.limit,
                wait_ms=WAIT_MS,
                ttl_ms=request.ttl_ms,
                start=request.start,
                **self._about,
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
        return self._assignments((await _answered(poll)).leases)

    def _assignments(self, leases: Sequence[LeaseGrant]) -> list[Assignment]:
        """Return the leases that this worker can read; release each lease that it cannot."""
        found = []
        for lease in leases:
            try:
                found.append(_assignment(lease))
            except Exception as error:  # noqa: BLE001 - whatever it is, the others run
                log.warning("lease %s cannot be read: %s", lease.lease_id, error)
                self._reporter.release_later(lease.lease_id)
        return found

    def withdraw(self) -> None:
        if self._polls and (self._withdrawing is None or self._withdrawing.done()):
            self._withdrawing = asyncio.create_task(self._withdraw(set(self._polls)))

    async def start(self, assignment: Assignment) -> None:
        await self._report(assignment, "start")

    async def complete(
        self, assignment: Assignment, result: object, report: SettlementReport = NOTHING
    ) -> None:
        try:
            encoded = _encoded(result)
            await self._report(assignment, "complete", result=encoded, **_resource_fields(report))
        except LeaseLost:
            raise
        except CallerError as error:  # a result or a use that the server will never accept
            problem = f"the result was refused: {error.message}"
            await self.fail(assignment, ExecutionFailed(problem, retryable=False))

    async def fail(
        self, assignment: Assignment, error: ExecutionFailed, report: SettlementReport = NOTHING
    ) -> None:
        await self._report(
            assignment,
            "fail",
            error=error.message or "failed without an error message",
            retryable=error.retryable,
            retryAfterMs=error.retry_after_ms,
            traceback=error.traceback,
            **_resource_fields(report),
        )

    async def release(self, assignment: Assignment, report: SettlementReport = NOTHING) -> None:
        await self._report(assignment, "release", **_resource_fields(report))

    async def permit(
        self, assignment: Assignment, needs: Needs, wait_ms: int
    ) -> str | ResourceBusy:
        call = self._client.request_permit(_id(assignment), needs, wait_ms=wait_ms)
        answer = await _answered(call)
        if answer.permit_id is not None:
            return answer.permit_id
        return ResourceBusy(
            answer.reason or "the resource has no room", retry_after_ms=answer.retry_after_ms
        )

    async def settle(
        self, assignment: Assignment, permit_id: str, report: SettlementReport
    ) -> None:
        await _answered(self._client.settle_permit(_id(assignment), permit_id, **report._asdict()))

    async def output(self, assignment: Assignment, part: int, text: str) -> None:
        await self._report(assignment, "output", output=text, part=part)

    async def progress(self, assignment: Assignment, progress: object) -> None:
        await self._report(assignment, "renew", ttlMs=self._lease_ms, progress=progress)

    async def checkpoint(
        self, assignment: Assignment, number: int, name: str, value: bytes
    ) -> None:
        await self._report(
            assignment, "checkpoint", number=number, name=name, value=msgspec.Raw(value)
        )

    async def effect(
        self,
        assignment: Assignment,
        number: int,
        name: str,
        checks: bool,  # noqa: FBT001 - passed on with the others
    ) -> str:
        call = self._client.effect_lease(_id(assignment), name, number=number, check=checks)
        return (await _answered(call)).effect

    async def withdraw_effect(self, assignment: Assignment, number: int, name: str) -> None:
        call = self._client.effect_lease(_id(assignment), name, number=number, happened=False)
        await _answered(call)

    async def suspend(
        self, assignment: Assignment, number: int, name: str, until: Until
    ) -> Waited | None:
        wanted = msgspec.to_builtins(until)
        call = self._client.suspend_lease(_id(assignment), wanted, name=name, number=number)
        done = await _answered(call)
        return None if done.suspended else Waited(done.value)

    async def inbox(self, assignment: Assignment, after: str | None) -> InboxTaken:
        return await _answered(self._client.take_inbox(_id(assignment), after=after))

    async def submit(self, fields: JsonObject, key: str) -> str:
        return (await _answered(self._client.submit(idempotency_key=key, **fields))).task_id

    async def ask(
        self, assignment: Assignment, name: str, request: ApprovalRequest
    ) -> ApprovalOutcome | None:
        fields = {key: getattr(request, key) for key in ApprovalRequest.__struct_fields__}
        fields["form"] = None if request.form is None else msgspec.to_builtins(request.form)
        asked = await _answered(self._client.ask_lease(_id(assignment), name=name, **fields))
        return None if asked.suspended else asked.approval

    async def _report(self, assignment: Assignment, verb: str, **fields: object) -> None:
        await _answered(self._reporter.report(_id(assignment), verb, **fields))

    def renew(self, assignments: Sequence[Assignment]) -> list[Assignment]:
        ids = [_id(assignment) for assignment in assignments]
        over = renew_all(self._renewals, self.worker, ids, self._lease_ms)
        return [one for one, is_over in zip(assignments, over, strict=True) if is_over]

    async def close(self) -> None:
        if self._withdrawing is not None:
            await self._withdrawing
        await self._reporter.close()
        if self._presence is not None:
            self._presence.cancel()
            await asyncio.wait([self._presence])
        await self._client.close()
        self._renewals.close()

    async def _withdraw(self, polls: set[asyncio.Task[LeaseGrants]]) -> None:
        """Ask the server to end the waiting request, so that no granted lease is lost in transit;
        if there is no response, close the connection. A poll that is still in transit ends the next
        time.
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


def _resource_fields(report: SettlementReport) -> JsonObject:
    """Return a run's report about resources, as the fields of a lease report."""
    return {name: value for name, value in report._asdict().items() if value is not None}


def _encoded(result: object) -> msgspec.Raw | None:
    """Return the JSON of a result. Raise `PayloadTooLarge` as the server would, which may close the
    connection while it receives.
    """
    if result is None:
        return None
    encoded = wire.encode(result)
    if len(encoded) > _RESULT_BYTES_MAX:
        raise PayloadTooLarge(f"it must not be larger than {_RESULT_BYTES_MAX} bytes of JSON")
    return msgspec.Raw(encoded)


async def _answered(call: Awaitable[T]) -> T:
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
        **decisions(lease.approval, lease.answers),
        session=task.session,
        conversation_id=task.conversation_id,
        steps=[one.to_dict() for one in lease.steps or ()],
    )
    capability = capability_of(task.kind, task.handler)
    return Assignment(*key, work, capability, task.state == "running")


def _id(assignment: Assignment) -> str:
    return lease_id(assignment.seq, assignment.fencing_token)
