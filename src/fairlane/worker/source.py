"""Where a worker's leases come from; the engine in this process is one source.

The loop knows only the protocol, so a worker in the server and one on another machine run the same
code.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from fairlane.core import approvals, effects, resources, suspensions, validation
from fairlane.core.approvals import ApprovalRequest
from fairlane.core.errors import ExecutionFailed, InvalidRequest, LeaseLost, ResourceBusy
from fairlane.core.inbox import parse_cursor
from fairlane.core.json_types import JsonObject
from fairlane.core.leases import UNREADABLE
from fairlane.core.model import Task
from fairlane.core.policy import Policy
from fairlane.core.sessions import conversation_id
from fairlane.core.steps import Step
from fairlane.core.suspensions import Until
from fairlane.engine.commands import (
    AppendOutput,
    Ask,
    AskOutcome,
    Complete,
    Fail,
    Grant,
    Lease,
    Release,
    Renew,
    Start,
)
from fairlane.engine.inbox_commands import InboxOutcome, TakeMessages
from fairlane.engine.resource_commands import (
    Closing,
    Permit,
    PermitGranted,
    PermitRefused,
    ResourceReport,
    SettlePermit,
)
from fairlane.engine.step_commands import (
    BeginEffect,
    Checkpoint,
    EffectOutcome,
    Suspend,
    SuspendOutcome,
)
from fairlane.engine.verbs.nodes import LEASE_MS
from fairlane.engine.writer import Writer
from fairlane.schema import wire
from fairlane.schema.approvals import ApprovalOutcome, answers_of, approval_outcome, gate_of
from fairlane.worker.executors.base import Work
from fairlane.worker.executors.permits import NOTHING, Needs, SettlementReport
from fairlane.worker.executors.waiting import Waited

log = logging.getLogger("fairlane.worker")

_PERMIT: Final = "pmt_"


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """One leased task. `started` says that it is already marked as running."""

    seq: int
    fencing_token: int
    work: Work
    capability: str
    started: bool


class InboxTaken(Protocol):
    """Messages that a run has taken, and the cursor behind them."""

    @property
    def messages(self) -> Sequence[object]: ...
    @property
    def cursor(self) -> str: ...
    @property
    def more(self) -> bool: ...


SubmitTask = Callable[[JsonObject, str], Awaitable[str]]  # fields and idempotency key to an id


class LeaseSource(Protocol):
    worker: str

    async def lease(
        self, capabilities: frozenset[str], started: frozenset[str], limit: int
    ) -> list[Assignment]:
        """Wait for tasks. An empty list means that `withdraw` ended the wait."""
        ...

    def withdraw(self) -> None: ...

    async def start(self, assignment: Assignment) -> None: ...

    async def complete(
        self, assignment: Assignment, result: object, report: SettlementReport = NOTHING
    ) -> None: ...

    async def fail(
        self, assignment: Assignment, error: ExecutionFailed, report: SettlementReport = NOTHING
    ) -> None: ...

    async def release(self, assignment: Assignment, report: SettlementReport = NOTHING) -> None: ...

    async def permit(
        self, assignment: Assignment, needs: Needs, wait_ms: int
    ) -> str | ResourceBusy:
        """Reserve resources for one call. Return the id of the permit, or why there is no room
        after the wait.
        """
        ...

    async def settle(
        self, assignment: Assignment, permit_id: str, report: SettlementReport
    ) -> None: ...

    async def output(self, assignment: Assignment, part: int, text: str) -> None:
        """Store the next piece of text of the run; `part` counts from 0."""
        ...

    async def progress(self, assignment: Assignment, progress: object) -> None: ...

    async def checkpoint(
        self, assignment: Assignment, number: int, name: str, value: bytes
    ) -> None:
        """Record the value of a step, which is JSON."""
        ...

    async def effect(
        self,
        assignment: Assignment,
        number: int,
        name: str,
        checks: bool,  # noqa: FBT001 - passed on with the others
    ) -> str:
        """Record that a run is about to act, and return the state of the effect."""
        ...

    async def withdraw_effect(self, assignment: Assignment, number: int, name: str) -> None:
        """Record that a run has not acted."""
        ...

    async def suspend(
        self, assignment: Assignment, number: int, name: str, until: Until
    ) -> Waited | None:
        """Return what a wait has brought; None if the lease was suspended until then."""
        ...

    async def inbox(self, assignment: Assignment, after: str | None) -> InboxTaken:
        """Take the messages that have reached a run, after those of an earlier answer."""
        ...

    async def submit(self, fields: JsonObject, key: str) -> str:
        """Submit a task and return its id. The same key gives the same task."""
        ...

    async def ask(
        self, assignment: Assignment, name: str, request: ApprovalRequest
    ) -> ApprovalOutcome | None:
        """Return the decision about a question; None if the lease was suspended until then."""
        ...

    def renew(self, assignments: Sequence[Assignment]) -> list[Assignment]:
        """Renew leases and return those whose work must stop. Called from a separate thread."""
        ...


class EngineSource:
    """Leases from the engine in this process."""

    def __init__(
        self,
        writer: Writer,
        worker: str,
        policy: Callable[[], Policy],
        submit: SubmitTask | None = None,
    ) -> None:
        """`submit` submits a task that a run asks for."""
        self.worker = worker
        self._submit = submit
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
            slots=self._policy().worker_count or None,
        )
        grants: list[Grant] = await self._writer.ask(request)
        try:
            return self._assignments(grants)
        except BaseException:
            self._writer.give_back(grants)
            raise

    def _assignments(self, grants: Sequence[Grant]) -> list[Assignment]:
        """Return the tasks that can run. A task whose request is damaged fails; the others run."""
        policy = self._policy()
        found = []
        for grant in grants:
            try:
                found.append(_assignment(grant, policy.kinds[grant.task.kind].timeout_ms, policy))
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

    def complete(
        self, assignment: Assignment, result: object, report: SettlementReport = NOTHING
    ) -> Coroutine[object, None, None]:
        text = None if result is None else msgspec.json.encode(result).decode()
        found = _settled(report)
        return self._writer.ask(
            Complete(assignment.seq, assignment.fencing_token, text, report=found)
        )

    async def fail(
        self, assignment: Assignment, error: ExecutionFailed, report: SettlementReport = NOTHING
    ) -> None:
        request = Fail(
            assignment.seq,
            assignment.fencing_token,
            error.message,
            error.retryable,
            error.retry_after_ms,
            traceback=error.traceback,
            report=_settled(report),
        )
        await self._writer.ask(request)

    async def release(self, assignment: Assignment, report: SettlementReport = NOTHING) -> None:
        found = _settled(report)
        await self._writer.ask(Release(assignment.seq, assignment.fencing_token, found))

    async def permit(
        self, assignment: Assignment, needs: Needs, wait_ms: int
    ) -> str | ResourceBusy:
        key = assignment.seq, assignment.fencing_token
        wanted = {name: dict(units) for name, units in needs.items()}
        found: Any = await self._writer.ask(Permit(*key, wanted))
        if isinstance(found, PermitRefused) and wait_ms:
            until = self._writer.engine.clock.monotonic() + wait_ms / 1000
            granted = await self._writer.ask(Permit(*key, wanted, until))
            found = granted[0] if granted else found
        if isinstance(found, PermitGranted):
            return f"{_PERMIT}{found.id}"
        return ResourceBusy(f"{found.why.account} has no room", retry_after_ms=found.retry_after_ms)

    async def settle(
        self, assignment: Assignment, permit_id: str, report: SettlementReport
    ) -> None:
        key = assignment.seq, assignment.fencing_token
        await self._writer.ask(
            SettlePermit(*key, int(permit_id.removeprefix(_PERMIT)), _settled(report))
        )

    async def output(self, assignment: Assignment, part: int, text: str) -> None:
        await self._writer.ask(AppendOutput(assignment.seq, assignment.fencing_token, part, text))

    async def progress(self, assignment: Assignment, progress: object) -> None:
        text = msgspec.json.encode(progress).decode()
        await self._writer.ask(Renew(assignment.seq, assignment.fencing_token, LEASE_MS, text))

    async def checkpoint(
        self, assignment: Assignment, number: int, name: str, value: bytes
    ) -> None:
        key = assignment.seq, assignment.fencing_token
        await self._writer.ask(Checkpoint(*key, name, value.decode(), number))

    async def effect(
        self,
        assignment: Assignment,
        number: int,
        name: str,
        checks: bool,  # noqa: FBT001 - passed on with the others
    ) -> str:
        key = assignment.seq, assignment.fencing_token
        done: EffectOutcome = await self._writer.ask(BeginEffect(*key, name, number, checks))
        return done.state

    async def withdraw_effect(self, assignment: Assignment, number: int, name: str) -> None:
        key = assignment.seq, assignment.fencing_token
        await self._writer.ask(BeginEffect(*key, name, number, withdraws=True))

    async def suspend(
        self, assignment: Assignment, number: int, name: str, until: Until
    ) -> Waited | None:
        suspensions.check(validation.convert(msgspec.to_builtins(until), Until))
        key = assignment.seq, assignment.fencing_token
        done: SuspendOutcome = await self._writer.ask(Suspend(*key, name, until, number))
        return None if done.suspended else Waited(msgspec.json.decode(done.value or "null"))

    async def inbox(self, assignment: Assignment, after: str | None) -> InboxTaken:
        key = assignment.seq, assignment.fencing_token
        take = TakeMessages(*key, after=parse_cursor(after).count)
        done: InboxOutcome = await self._writer.ask(take)
        return done.page

    async def submit(self, fields: JsonObject, key: str) -> str:
        if self._submit is None:
            raise InvalidRequest("this worker cannot submit tasks")
        return await self._submit(fields, key)

    async def ask(
        self, assignment: Assignment, name: str, request: ApprovalRequest
    ) -> ApprovalOutcome | None:
        text = msgspec.json.encode(request).decode()
        asked: AskOutcome = await self._writer.ask(
            Ask(assignment.seq, assignment.fencing_token, name, text)
        )
        is_open = asked.approval.state == approvals.OPEN
        return None if is_open else approval_outcome(asked.approval)

    def renew(self, assignments: Sequence[Assignment]) -> list[Assignment]:
        requests = [Renew(a.seq, a.fencing_token, LEASE_MS) for a in assignments]
        answers = self._writer.ask_all_and_wait(requests)
        return [a for a, answer in zip(assignments, answers, strict=True) if _over(answer)]


def _settled(report: SettlementReport) -> ResourceReport | None:
    """Return a run's report about resources as the engine's type; None if it has none."""
    if report == NOTHING:
        return None
    closed = {
        name: Closing(one["retryAfterMs"], one.get("reason"))
        for name, one in (report.closed or {}).items()
    }
    observed = {
        name: {unit: one["remaining"] for unit, one in units.items()}
        for name, units in (report.observed or {}).items()
    }
    return ResourceReport(report.usage, closed or None, observed or None)


def quota_of(request: JsonObject, needs: str, policy: Policy) -> str | None:
    """Return the resource that a refusal closes: the named one, or the only rate of the needs."""
    named = request.get("quota")
    if named is not None:
        return str(named)
    rates = [
        name
        for name in msgspec.json.decode(needs)
        for declared in [policy.resources.get(name.partition("/")[0])]
        if declared is not None and any(one.per_ms is not None for one in declared.limits)
    ]
    return rates[0] if len(rates) == 1 else None


_request_of: Final = msgspec.json.Decoder(JsonObject).decode


def _assignment(grant: Grant, timeout_ms: int | None, policy: Policy) -> Assignment:
    """Return the assignment of a grant. The task's own timeout wins over that of its kind."""
    task = grant.task
    request = _request_of(grant.body)
    decided = grant.approvals
    if task.needs is not None:
        request["needs"] = resources.shown_needs(task.needs, request.get("needs"))
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
        **(decisions(gate_of(decided), answers_of(decided)) if decided else {}),
        quota=None if task.needs is None else quota_of(request, task.needs, policy),
        session=task.session,
        conversation_id=(
            conversation_id(task.agent, task.session, request.get("generation") or 0)
            if task.session
            else None
        ),
        steps=[_recorded(one) for one in grant.steps] if grant.steps else [],
    )
    return Assignment(task.seq, task.fencing_token, work, task.capability, task.state == "running")


def _recorded(one: Step) -> JsonObject:
    found = {"number": one.number, "name": one.name, "value": msgspec.json.decode(one.value)}
    effect = effects.state_of(one.intent, None)
    return found if effect is None else {**found, "effect": effect}


def decisions(
    gate: ApprovalOutcome | None, answers: Mapping[str, ApprovalOutcome] | None
) -> JsonObject:
    """Return the fields of `Work` that contain people's decisions."""
    if gate is None and answers is None:
        return {}  # nearly every task
    given = {name: one.to_dict() for name, one in (answers or {}).items()}
    return {"approval": None if gate is None else gate.to_dict(), "answers": given}


def _over(answer: object) -> bool:
    """Return whether the work must stop: cancelled, past its deadline, pre-empted, or the lease is
    lost. While the store is unavailable, the work continues.
    """
    if isinstance(answer, Task):
        return answer.terminal or answer.preempt == 1
    return isinstance(answer, LeaseLost)
