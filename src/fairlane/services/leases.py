"""Leases: external workers lease tasks, report progress and results, and release leases.

The trap: a caller may disconnect before a lease is granted, or the response may fail to send. Then
the granted leases are released at once and cost no attempt, so no worker holds a lease that it has
not received.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from fairlane.core.access import Caller
from fairlane.core.errors import Draining, InvalidRequest, LeaseLost, NotFound
from fairlane.core.leases import UNREADABLE
from fairlane.core.model import HANDLER, Task, capability_of, is_node, parse_lease_id
from fairlane.core.policy import nearest
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
from fairlane.schema import leases as schema
from fairlane.schema import wire
from fairlane.schema.leases import (
    LeaseCompleted,
    LeaseGrant,
    LeaseGrants,
    LeaseReleased,
    LeaseRenewed,
    LeaseStatus,
    LeasesWithdrawn,
    LeaseTasks,
    NamedLease,
    OutputAccepted,
    lease_grant,
    lease_state,
)
from fairlane.services.registry import implements

log = logging.getLogger("fairlane.leases")

_VERSION: Final = 1  # in responses that cool-workflow's clients read
_NO_TASK: Final = 0  # no task has this number

Key = tuple[int, int]

# -------------------------------------------------------------------- lease


def give_back(node: Node, response: LeaseGrants) -> None:
    """Release the leases of a response that could not be delivered."""
    for one in response.leases:
        node.writer.tell(Release(*_parsed(one.lease_id)))


@implements(schema.LEASE, undo=give_back)
async def lease(node: Node, caller: Caller, request: LeaseTasks) -> LeaseGrants:
    await _check_lanes(node, request.lanes or ())
    wanted = _wanted(request, node.clock.monotonic(), caller.agent)
    if node.draining:
        raise Draining(
            "the server is stopping; lease from another one or try again later",
            retry_after_ms=1000,
        )
    node.lease_waits += 1
    try:
        grants: Sequence[Grant] = await node.writer.ask(wanted)
    finally:
        node.lease_waits -= 1
    try:
        if request.wait_ms:  # the token may have been revoked during the wait
            await node.tokens.require(caller)
    except BaseException:
        node.writer.give_back(grants)
        raise
    leases = _leases(node, grants)
    now = grants[0].at if grants else node.engine.moment()
    return LeaseGrants(_VERSION, wire.moment(now), len(leases), leases, len(leases))


@implements(schema.WITHDRAW_LEASES)
async def withdraw(node: Node, caller: Caller, request: schema.WithdrawLeases) -> LeasesWithdrawn:
    _check_worker(request.worker)
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


def _wanted(request: LeaseTasks, now: float, agent: str | None) -> Lease:
    _check_worker(request.worker)
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
        agent=agent,
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


def _check_worker(name: str) -> None:
    if is_node(name):
        raise InvalidRequest(
            "field 'worker' must not start with node_, which is reserved for servers"
        )


def _leases(node: Node, grants: Sequence[Grant]) -> list[LeaseGrant]:
    """Return the leases that can be shown. A task whose stored request is damaged fails on
    its own.
    """
    found = []
    for grant in grants:
        timeout_ms = node.policy.kinds[grant.task.kind].timeout_ms
        try:
            found.append(lease_grant(grant.task, grant.body, grant.inputs, timeout_ms))
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are leased
            log.warning("task %s cannot be leased: %s", grant.task.id, error)
            key = grant.task.seq, grant.task.fencing_token
            node.writer.tell(Fail(*key, UNREADABLE, retryable=False, begun=True))
    return found


# -------------------------------------------------------------------- report


@implements(schema.START_LEASE)
async def start(node: Node, caller: Caller, request: NamedLease) -> LeaseStatus:
    key = await _key(node, caller, request)
    return LeaseStatus(**lease_state(await node.writer.ask(Start(*key))))


@implements(schema.RENEW_LEASE)
async def renew(node: Node, caller: Caller, request: schema.RenewLease) -> LeaseRenewed:
    key = await _key(node, caller, request)
    if request.output is None and request.part is not None:
        raise InvalidRequest("field 'part' needs 'output'")
    asked = [node.writer.ask(Renew(*key, request.ttl_ms, _progress(request.progress)))]
    if request.output is not None:
        output = AppendOutput(*key, request.part, request.output, trusted=False)
        asked.append(node.writer.ask(output))
    task: Task = (await asyncio.gather(*asked))[0]
    stop = task.terminal or task.preempt == 1
    return LeaseRenewed(**lease_state(task), cancel_requested=stop)


@implements(schema.OUTPUT_LEASE)
async def send_output(node: Node, caller: Caller, request: schema.SendOutput) -> OutputAccepted:
    key = await _key(node, caller, request)
    await node.writer.ask(AppendOutput(*key, request.part, request.text, trusted=False))
    return OutputAccepted(request.lease_id)


@implements(schema.COMPLETE_LEASE)
async def complete(node: Node, caller: Caller, request: schema.CompleteLease) -> LeaseCompleted:
    key = await _key(node, caller, request)
    _shallow("result", request.result)
    text = None if request.result is None else wire.encode(request.result).decode()
    task = await node.writer.ask(Complete(*key, text, begun=True))
    return LeaseCompleted(schema_version=_VERSION, completed=request.lease_id, **lease_state(task))


@implements(schema.FAIL_LEASE)
async def fail(node: Node, caller: Caller, request: schema.FailLease) -> LeaseReleased:
    key = await _key(node, caller, request)
    error = wire.one_line(request.error).strip()
    if not error:
        raise InvalidRequest("field 'error' must not be empty")
    report = Fail(*key, error, request.retryable, request.retry_after_ms, begun=True)
    return _released(request, await node.writer.ask(report), failed=True)


@implements(schema.RELEASE_LEASE)
async def release(node: Node, caller: Caller, request: NamedLease) -> LeaseReleased:
    key = await _key(node, caller, request)
    return _released(request, await node.writer.ask(Release(*key)), failed=False)


def _released(request: NamedLease, task: Task, *, failed: bool) -> LeaseReleased:
    return LeaseReleased(
        schema_version=_VERSION, released=request.lease_id, failed=failed, **lease_state(task)
    )


async def _key(node: Node, caller: Caller, request: NamedLease) -> Key:
    """Return task and fencing token of a lease. Another agent's lease looks like an unknown one."""
    key = _parsed(request.lease_id)
    if request.token is not None and request.token != key[1]:
        raise LeaseLost(
            "field 'token' is not the fencing token of this lease; lease the task again"
        )
    if caller.agent is None:
        return key
    agent = await node.views.read(node.views.agent_of, key[0])
    return key if caller.owns(agent) else (_NO_TASK, key[1])


def _parsed(lease_id: str) -> Key:
    key = parse_lease_id(lease_id)
    if key is None:
        raise NotFound(f'"{lease_id[:64]}" is not a lease id; use the leaseId from POST /leases')
    return key


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
