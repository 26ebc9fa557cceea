"""Resources: limits and use, ledger, use per agent and day, history; close, open and raise."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Final

import msgspec

from fairlane.core import amounts, limits
from fairlane.core.access import Caller
from fairlane.core.errors import InvalidRequest, NotFound
from fairlane.core.policy import nearest
from fairlane.core.resources import Account, ResourcePolicy
from fairlane.core.submissions import moment_of
from fairlane.engine.node import Node
from fairlane.engine.reads.accounts import AccountView, EntryFilter, LedgerView, visible
from fairlane.engine.resource_commands import CloseResource, OpenResource, RaiseResource
from fairlane.engine.telemetry.history import WINDOWS
from fairlane.engine.verbs.resources import FOREVER
from fairlane.engine.writing_node import WritingNode
from fairlane.schema import resources as schema
from fairlane.schema.resources import (
    HolderStatus,
    LedgerLine,
    LedgerPage,
    LimitStatus,
    ResourceHistoryShown,
    ResourceList,
    ResourcePoint,
    ResourceStatus,
    UnitUse,
    UsageLine,
    UsageReport,
)
from fairlane.schema.wire import moment
from fairlane.services.pages import number
from fairlane.services.registry import implements, implements_at_writer

USAGE_DAYS: Final = 31
_EPOCH: Final = date(1970, 1, 1)

# -------------------------------------------------------------------- show


@implements(schema.RESOURCES)
async def list_resources(node: Node, caller: Caller, request: schema.ListResources) -> ResourceList:
    policy = node.policy
    if request.name is not None:
        only = {request.name: _declared(node, request.name)}
        policy = msgspec.structs.replace(policy, resources=only)
    found = await node.views.read(
        node.views.resources.accounts,
        node.clock,
        policy,
        caller.agent,
        request.cursor or "",
        request.limit + 1,
    )
    page = found[: request.limit]
    return ResourceList(
        resources=[_status(one, policy.resources[one.account.resource]) for one in page],
        count=len(page),
        next_cursor=page[-1].account.label if len(found) > len(page) else None,
    )


@implements(schema.RESOURCE)
async def show_resource(
    node: Node, caller: Caller, request: schema.ResourceRequest
) -> ResourceStatus:
    declared, key = _owned(node, caller, request)
    account = node.views.resources.account
    view = await node.views.read(account, node.clock, node.policy, request.name, key, caller.agent)
    return _status(view, declared)


def _declared(node: Node, name: str) -> ResourcePolicy:
    found = node.policy.resources.get(name)
    if found is None:
        hint = nearest(name, node.policy.resources)
        raise NotFound(f'resource "{name[:64]}" is not in the policy{hint}')
    return found


def _owned(
    node: Node, caller: Caller, request: schema.ResourceRequest
) -> tuple[ResourcePolicy, str]:
    """Return a resource and the requested key: by default the caller's own, if it is an agent.

    Raise `NotFound` for the account of another agent.
    """
    declared = _declared(node, request.name)
    key = request.key
    if key is None and declared.by == "agent":
        key = caller.agent
    if key is None and declared.levels:
        levels = " and ".join(declared.levels)
        raise InvalidRequest(f"set 'key': resource {request.name} has one balance per {levels}")
    if key and not declared.levels:
        raise InvalidRequest(f"resource {request.name} has no keys; leave out 'key'")
    if not visible(declared, key or "", caller.agent):
        raise NotFound(f'resource "{request.name}" has no account "{str(key)[:64]}"')
    return declared, key or ""


def _status(view: AccountView, declared: ResourcePolicy) -> ResourceStatus:
    account, now = view.account, view.now
    closed = account.closed_until > now
    lasting = account.closed_until >= FOREVER
    holders = [
        HolderStatus(one.task_id, one.agent, {u: amounts.shown(a) for u, a in one.amounts.items()})
        for one in view.holders
    ]
    return ResourceStatus(
        name=account.resource,
        key=account.key or None,
        state="closed" if closed else "open",
        closed_until=moment(account.closed_until) if closed and not lasting else None,
        reason=account.reason if closed else None,
        limits=[_limit(account, one, now) for one in declared.declared],
        waiting=view.waiting,
        holders=holders or None,
    )


def _limit(account: Account, limit: limits.Limit, now: int) -> LimitStatus:
    state = account.state(limit)
    taken = limits.committed(limit, state)
    others, overdrawn = limits.outside_use(limit, state, now), limits.overdrawn(limit, state)
    is_budget = limit.kind == limits.BUDGET
    return LimitStatus(
        unit=limit.unit,
        amount=amounts.shown(limits.ceiling(limit, state)),
        used=amounts.shown(max(0, taken - state.reserved)),
        reserved=amounts.shown(state.reserved),
        available=amounts.shown(limits.available(limit, state, now)),
        per_ms=limit.period_ms if limit.kind in (limits.RATE, limits.BUCKET) else None,
        resets_at=moment(limits.window_end(limit, now)) if is_budget else None,
        raised=amounts.shown(state.raised) if state.raised else None,
        others=amounts.shown(others) if others else None,
        overdrawn=amounts.shown(overdrawn) if overdrawn else None,
    )


# -------------------------------------------------------------------- ledger, use, history


@implements(schema.RESOURCE_LEDGER)
async def show_ledger(node: Node, caller: Caller, request: schema.ShowLedger) -> LedgerPage:
    _, key = _owned(node, caller, request)
    wanted = EntryFilter(number(request.cursor), request.unit, caller.agent)
    page = await node.views.read(
        node.views.resources.ledger, request.name, key, wanted, request.limit + 1
    )
    shown = page[: request.limit]
    return LedgerPage(
        entries=[_entry(one) for one in shown],
        count=len(shown),
        next_cursor=str(shown[-1].entry.id) if len(page) > len(shown) else None,
    )


def _entry(one: LedgerView) -> LedgerLine:
    entry = one.entry
    raised = entry.kind == "raise"
    return LedgerLine(
        id=entry.id,
        at=moment(entry.at),
        kind=entry.kind,
        unit=entry.slot.partition(":")[0],
        amount=amounts.shown(entry.used if raised else entry.amount),
        balance=amounts.shown(entry.balance),
        task=one.task_id,
        agent=entry.agent,
        reason=entry.detail,
    )


@implements(schema.RESOURCE_USAGE)
async def show_usage(node: Node, caller: Caller, request: schema.ShowUsage) -> UsageReport:
    declared = _declared(node, request.name)
    today = datetime.fromtimestamp(node.clock.now() / 1000, UTC).date()
    last = _day(request.to_day, "toDay") or today
    first = _day(request.from_day, "fromDay") or last - timedelta(days=USAGE_DAYS - 1)
    rows = await node.views.read(
        node.views.resources.usage,
        request.name,
        ((first - _EPOCH).days, (last - _EPOCH).days),
        request.key,
        caller.agent,
    )
    prefix = declared.usage_prefix if request.key is None else ""
    sums: dict[tuple[int, str, str], int] = {}
    for row in rows:
        if request.unit in (None, row.unit) and row.key.startswith(prefix):
            of = (row.day, row.agent, row.unit)
            sums[of] = sums.get(of, 0) + row.used
    lines = [
        UsageLine(
            day=(_EPOCH + timedelta(days=day)).isoformat(),
            agent=agent,
            unit=unit,
            used=amounts.shown(used),
        )
        for (day, agent, unit), used in sums.items()
    ]
    return UsageReport(name=request.name, rows=lines, count=len(lines))


def _day(text: str | None, field: str) -> date | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"query parameter '{field}' must be a day like 2026-01-31") from None


@implements_at_writer(schema.RESOURCE_HISTORY)
async def show_resource_history(
    node: WritingNode, caller: Caller, request: schema.ShowResourceHistory
) -> ResourceHistoryShown:
    declared, key = _owned(node, caller, request)
    now = node.clock.now()
    steps = node.resource_history.span(request.name, key, request.window, now)
    units = [limit.unit for limit in declared.declared]
    return ResourceHistoryShown(
        window=request.window,
        step_ms=WINDOWS[request.window][1],
        units=list(dict.fromkeys(units)),
        points=[
            ResourcePoint(
                moment(step.at),
                [
                    UnitUse(unit, amounts.shown(taken), amounts.shown(amount))
                    for unit, (taken, amount) in step.units.items()
                ],
            )
            for step in steps
        ],
    )


# -------------------------------------------------------------------- close, open, raise


@implements(schema.CLOSE_RESOURCE)
async def close_resource(
    node: Node, caller: Caller, request: schema.CloseRequest
) -> ResourceStatus:
    if request.for_ms is not None and request.until is not None:
        raise InvalidRequest("give either 'forMs' or 'until', not both")
    wait_ms = request.for_ms
    if request.until is not None:
        wait_ms = moment_of(request.until, "until") - node.writer.moment()
        if wait_ms <= 0:
            raise InvalidRequest("field 'until' must be in the future")
    _owned(node, caller, request)
    command = CloseResource(request.name, request.key, wait_ms, request.reason)
    return await _changed(node, caller, request, await node.writer.ask(command))


@implements(schema.OPEN_RESOURCE)
async def open_resource(node: Node, caller: Caller, request: schema.OpenRequest) -> ResourceStatus:
    _owned(node, caller, request)
    found = await node.writer.ask(OpenResource(request.name, request.key))
    return await _changed(node, caller, request, found)


@implements(schema.RAISE_RESOURCE)
async def raise_resource(
    node: Node, caller: Caller, request: schema.RaiseRequest
) -> ResourceStatus:
    _owned(node, caller, request)
    try:
        amount = amounts.parse(request.amount)
    except ValueError as error:
        raise InvalidRequest(f"field 'amount' {error}") from None
    command = RaiseResource(request.name, request.unit, amount, request.key, request.reason)
    return await _changed(node, caller, request, await node.writer.ask(command))


async def _changed(
    node: Node, caller: Caller, request: schema.ResourceRequest, _: Iterable[Account]
) -> ResourceStatus:
    """Show the account after a change."""
    named = schema.ResourceRequest(request.name, request.key)
    return await show_resource(node, caller, named)
