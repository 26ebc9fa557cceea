"""Leases: external workers lease tasks, report progress and results, and release leases.

Caution: a caller may disconnect before a lease is granted, or the response may fail to send. Then
the granted leases are released at once and cost no attempt, so no worker holds a lease that it has
not received.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from typing import Final

from fairlane.core.access import Caller
from fairlane.core.errors import Draining, InvalidRequest, LeaseLost, NotFound
from fairlane.core.leases import UNREADABLE
from fairlane.core.model import HANDLER, Task, capability_of, is_node, parse_lease_id
from fairlane.core.policy import nearest
from fairlane.core.traceback_text import traceback_text
from fairlane.core.types import IDENTIFIER
from fairlane.core.validation import DEPTH_MAX, too_deep
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
from fairlane.engine.node import Node
from fairlane.engine.step_commands import Checkpoint, CheckpointOutcome
from fairlane.engine.writing_node import WritingNode
from fairlane.schema import leases as schema
from fairlane.schema import wire
from fairlane.schema.inbox import run_inbox
from fairlane.schema.leases import (
    LeaseCompleted,
    LeaseGrant,
    LeaseGrants,
    LeaseReleased,
    LeaseRenewed,
    LeasesReported,
    LeaseStatus,
    LeasesWithdrawn,
    LeaseTasks,
    NamedLease,
    OutputAccepted,
    StepRecorded,
    lease_grant,
    lease_state,
)
from fairlane.services import inbox_reads
from fairlane.services.registry import implements, implements_at_writer
from fairlane.services.settling import report_of, settlements

log = logging.getLogger("fairlane.leases")

_VERSION: Final = 1  # in responses that cool-workflow's clients read
_NO_TASK: Final = 0  # no task has this number

Key = tuple[int, int]

# -------------------------------------------------------------------- lease


def give_back(node: Node, response: LeaseGrants | LeasesReported) -> None:
    """Release the leases of a response that could not be delivered."""
    for one in response.leases:
        node.writer.tell(Release(*lease_key(one.lease_id)))


def keep(node: Node, response: LeaseGrants | LeasesReported) -> None:
    """Note that the worker has received the leases of a response."""
    if response.leases:
        node.writer.keep([lease_key(one.lease_id) for one in response.leases])


@implements(schema.LEASE, undo=give_back, sent=keep)
async def lease(node: Node, caller: Caller, request: LeaseTasks) -> LeaseGrants:
    wanted = await wanted_by(node, caller, request)
    if node.draining:
        raise Draining(
            "the server is stopping; lease from another one or try again later",
            retry_after_ms=1000,
        )
    grants = await granted(node, caller, wanted, waits=request.wait_ms > 0)
    leases = leases_of(node, grants)
    now = grants[0].at if grants else node.writer.moment()
    return LeaseGrants(_VERSION, wire.moment(now), len(leases), leases, len(leases))


async def wanted_by(node: Node, caller: Caller, request: LeaseTasks) -> Lease:
    """Return the command of a request for leases. Raise `InvalidRequest` for an unknown lane."""
    await _check_lanes(node, request.lanes or ())
    return _wanted(request, node.clock.monotonic(), caller)


async def granted(node: Node, caller: Caller, wanted: Lease, *, waits: bool) -> Sequence[Grant]:
    """Return the grants of a request, which is counted while it waits."""
    node.lease_waits += 1
    try:
        grants: Sequence[Grant] = await node.writer.ask(wanted)
    finally:
        node.lease_waits -= 1
    try:
        if waits:  # the token may have been revoked during the wait
            await node.tokens.require(caller)
    except BaseException:
        node.writer.give_back(grants)
        raise
    return grants


@implements_at_writer(schema.WITHDRAW_LEASES)
async def withdraw(
    node: WritingNode, caller: Caller, request: schema.WithdrawLeases
) -> LeasesWithdrawn:
    check_worker(request.worker)
    return LeasesWithdrawn(node.writer.withdraw(request.worker, caller.agent))


async def _check_lanes(node: Node, names: Sequence[str]) -> None:
    if all(name in node.policy.lanes for name in names):
        return
    # Another node may just have added a lane: the store has the newest policy.
    view = await node.views.read(node.views.policy, None)
    lanes = node.policy.lanes if view is None else wire.decode(view.document)["lanes"]
    for name in names:
        if name not in lanes:
            hint = nearest(name, lanes)
            raise InvalidRequest(f"field 'lanes': the policy has no lane '{name[:64]}'{hint}")


def _wanted(request: LeaseTasks, now: float, caller: Caller) -> Lease:
    check_worker(request.worker)
    capabilities, any_handler = _capabilities(request)
    return Lease(
        worker=request.worker,
        lanes=tuple(dict.fromkeys(request.lanes or ())) or None,
        capabilities=capabilities,
        limit=request.limit,
        ttl_ms=request.ttl_ms,
        until=now + request.wait_ms / 1000,
        any_handler=any_handler,
        start=request.start,
        agent=caller.agent,
        slots=request.slots,
        version=wire.one_line(request.version) if request.version else None,
        address=caller.address,
    )


def _capabilities(request: LeaseTasks) -> tuple[frozenset[str], bool]:
    """Return the named capabilities, and whether all handlers are wanted too."""
    kinds: Sequence[str] = [HANDLER] if request.kinds is None else request.kinds
    if request.handlers is not None and HANDLER not in kinds:
        raise InvalidRequest("field 'handlers' needs the kind 'handler'; add it to 'kinds'")
    capabilities = {capability_of(HANDLER, name) for name in request.handlers or ()}
    capabilities |= {capability_of(kind) for kind in kinds if kind != HANDLER}
    any_handler = HANDLER in kinds and request.handlers is None
    if not capabilities and not any_handler:
        raise InvalidRequest(
            "fields 'handlers' and 'kinds' match no task; leave them out to lease tasks of any "
            "handler"
        )
    return frozenset(capabilities), any_handler


def check_worker(name: str) -> None:
    """Raise `InvalidRequest` if a worker must not have this name."""
    if not re.fullmatch(IDENTIFIER, name):
        raise InvalidRequest(f"the name of a worker must match ^{IDENTIFIER}$")
    if is_node(name):
        raise InvalidRequest(
            "field 'worker' must not start with node_, which is reserved for servers"
        )


def leases_of(node: Node, grants: Sequence[Grant]) -> list[LeaseGrant]:
    """Return the leases that can be shown. A task whose stored request is damaged fails on
    its own.
    """
    found = []
    for grant in grants:
        timeout_ms = node.policy.kinds[grant.task.kind].timeout_ms
        try:
            found.append(
                lease_grant(
                    grant.task,
                    grant.body,
                    grant.inputs,
                    timeout_ms,
                    decided=grant.approvals,
                    recorded=grant.steps,
                )
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are leased
            log.warning("task %s cannot be leased: %s", grant.task.id, error)
            key = grant.task.seq, grant.task.fencing_token
            node.writer.tell(Fail(*key, UNREADABLE, retryable=False, begun=True))
    return found


# -------------------------------------------------------------------- report


@implements(schema.START_LEASE)
async def start(node: Node, caller: Caller, request: NamedLease) -> LeaseStatus:
    key = await owned_key(node, caller, request)
    return LeaseStatus(**lease_state(await node.writer.ask(Start(*key))))


@implements(schema.RENEW_LEASE)
async def renew(node: Node, caller: Caller, request: schema.RenewLease) -> LeaseRenewed:
    key = await owned_key(node, caller, request)
    commands = renewal(key, request)
    page = await inbox_reads.taken(node, key, request.inbox_after) if request.inbox_after else None
    task: Task = (await asyncio.gather(*map(node.writer.ask, commands)))[0]
    if page is None and task.session is not None and not task.terminal:
        page = await inbox_reads.unread(node, key)
    found = run_inbox(page) if page is not None and page.messages else None
    return LeaseRenewed(**lease_state(task), cancel_requested=must_stop(task), inbox=found)


@implements(schema.OUTPUT_LEASE)
async def send_output(node: Node, caller: Caller, request: schema.SendOutput) -> OutputAccepted:
    key = await owned_key(node, caller, request)
    await node.writer.ask(AppendOutput(*key, request.part, request.text, trusted=False))
    return OutputAccepted(request.lease_id)


@implements(schema.CHECKPOINT_LEASE)
async def checkpoint(node: Node, caller: Caller, request: schema.RecordStep) -> StepRecorded:
    command = recorded_step(await owned_key(node, caller, request), request.name, request)
    done: CheckpointOutcome = await node.writer.ask(command)
    return StepRecorded(
        request.lease_id, done.task.id, request.name, done.number, recorded=done.new
    )


@implements(schema.COMPLETE_LEASE)
async def complete(node: Node, caller: Caller, request: schema.CompleteLease) -> LeaseCompleted:
    command = completion(await owned_key(node, caller, request), request)
    task = await node.writer.ask(command)
    return LeaseCompleted(schema_version=_VERSION, completed=request.lease_id, **lease_state(task))


@implements(schema.FAIL_LEASE)
async def fail(node: Node, caller: Caller, request: schema.FailLease) -> LeaseReleased:
    command = failure(await owned_key(node, caller, request), request.error, request)
    return _released(request, await node.writer.ask(command), failed=True)


@implements(schema.RELEASE_LEASE)
async def release(node: Node, caller: Caller, request: schema.ReleaseLease) -> LeaseReleased:
    key = await owned_key(node, caller, request)
    command = Release(*key, report_of(request))
    return _released(request, await node.writer.ask(command), failed=False)


def _released(request: NamedLease, task: Task, *, failed: bool) -> LeaseReleased:
    return LeaseReleased(
        schema_version=_VERSION, released=request.lease_id, failed=failed, **lease_state(task)
    )


async def owned_key(node: Node, caller: Caller, request: NamedLease) -> Key:
    """Return task and fencing token of a lease. Another agent's lease looks like an unknown one."""
    key = lease_key(request.lease_id, request.token)
    if caller.agent is None:
        return key
    agent = await node.views.read(node.views.agent_of, key[0])
    return key if caller.owns(agent) else (_NO_TASK, key[1])


def lease_key(lease_id: str, token: int | None = None) -> Key:
    """Return task and fencing token of a lease id. Raise if it is not a lease id, or has another
    token.
    """
    key = parse_lease_id(lease_id)
    if key is None:
        raise NotFound(f'"{lease_id[:64]}" is not a lease id; use the leaseId from POST /leases')
    if token is not None and token != key[1]:
        raise LeaseLost(
            "field 'token' is not the fencing token of this lease; lease the task again"
        )
    return key


def renewal(
    key: Key, request: schema.RenewLease | schema.LeaseReport
) -> list[Renew | AppendOutput]:
    """Return the commands of a renewal: output that is sent with it is a second command."""
    if request.output is None and request.part is not None:
        raise InvalidRequest("field 'part' needs 'output'")
    renew = Renew(
        *key,
        request.ttl_ms,
        _progress(request.progress),
        report_of(request),
        settlements(key, request.permits),
    )
    found: list[Renew | AppendOutput] = [renew]
    if request.output is not None:
        found.append(AppendOutput(*key, request.part, request.output, trusted=False))
    return found


def recorded_step(
    key: Key, name: str, request: schema.RecordStep | schema.LeaseReport
) -> Checkpoint:
    _shallow("value", request.value)
    return Checkpoint(*key, name, wire.encode(request.value).decode(), request.number)


def completion(key: Key, request: schema.CompleteLease | schema.LeaseReport) -> Complete:
    _shallow("result", request.result)
    text = None if request.result is None else wire.encode(request.result).decode()
    return Complete(*key, text, begun=True, report=report_of(request))


def failure(key: Key, error: str, request: schema.FailLease | schema.LeaseReport) -> Fail:
    text = wire.one_line(error).strip()
    if not text:
        raise InvalidRequest("field 'error' must not be empty")
    return Fail(
        *key,
        text,
        request.retryable,
        request.retry_after_ms,
        begun=True,
        traceback=traceback_text(request.traceback),
        report=report_of(request),
    )


def must_stop(task: Task) -> bool:
    """Return whether the worker that renews the task's lease must stop its work."""
    return task.terminal or task.preempt == 1


def _progress(progress: object) -> str | None:
    """Return progress as JSON text that fits into an event."""
    if progress is None:
        return None
    _shallow("progress", progress)
    text = wire.encode(progress)
    if len(text) > wire.PROGRESS_BYTES_MAX:
        raise InvalidRequest(
            f"field 'progress' is larger than {wire.PROGRESS_BYTES_MAX} bytes of JSON"
        )
    return text.decode()


def _shallow(field: str, value: object) -> None:
    if value is not None and too_deep(value):
        raise InvalidRequest(f"field '{field}' must not be nested deeper than {DEPTH_MAX} levels")
