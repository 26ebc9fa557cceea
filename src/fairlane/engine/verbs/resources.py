"""Resources: reserve with the lease, settle at its end, close, open and raise.

A task with needs is ready only while they may fit; otherwise it waits behind the resource gate, in
a line that sleeps because of one account (`waking.py`). A lease reserves everything or nothing. The
ends of leases are collected by the transaction and settled before anything is leased.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from fairlane.core import amounts, events, gates, lifecycle, limits, resources
from fairlane.core.documents import nearest
from fairlane.core.errors import Conflict, FairlaneError, InvalidRequest, NotFound
from fairlane.core.limits import BUDGET, Limit
from fairlane.core.model import RESOURCE_GATE, Change, Submission, Task
from fairlane.core.resources import (
    Account,
    Blocked,
    BudgetSpent,
    HeldAmounts,
    Needs,
    Reservation,
    ResourcePolicy,
    Subject,
)
from fairlane.engine.resource_commands import (
    CloseResource,
    Closing,
    OpenResource,
    RaiseResource,
    ResourceReport,
)
from fairlane.store import accounts as ledger
from fairlane.store.tables import resources as lines
from fairlane.store.tables.resources import LineName
from fairlane.store.transaction import Transaction

# At most this many tasks that need one account are ready; the others wait for their turn.
AWAKE_MAX: Final = 512
FOREVER: Final = 2**62  # closed until an operator opens it
_NOTHING: Final[Mapping[int, Mapping[str, int]]] = {}

_needs: Final = msgspec.json.Decoder(Needs)
_budget: Final = msgspec.json.Decoder(tuple[str | None, str | None]).decode
_encode: Final = msgspec.json.Encoder().encode

Virtual = Mapping[int, Mapping[str, int]]  # amounts by account and unit that count as taken


class Demand(NamedTuple):
    """A task's need of one account."""

    need: str
    account: Account
    policy: ResourcePolicy | None
    amounts: Mapping[str, int]


@lru_cache(maxsize=4096)
def needs_of(text: str) -> Needs:
    """Return stored needs. Do not change them."""
    return _needs.decode(text)


# -------------------------------------------------------------------- admission


def needs_for(tx: Transaction, submission: Submission, lane: str) -> str | FairlaneError | None:
    """Return the needs of a new task, as they are stored; the error if the policy refuses them."""
    written = tx.policy.needs(submission.needs, submission.kind, lane)
    if not written:
        return None
    as_written = _encode(written)
    found = tx.accounts.needs.get(as_written)
    if found is None:
        try:
            found = _encode(resources.read_needs(written, tx.policy.resources)).decode()
        except FairlaneError as error:
            return error
        tx.accounts.needs[as_written] = found
    return found


def _budget_keys(task: Task) -> tuple[str | None, str | None]:
    """Return the session and the batch whose budgets a task uses."""
    if task.budget is None:
        return task.session, task.batch
    session, batch = _budget(task.budget)
    return session or task.session, batch or task.batch


def attach(tx: Transaction, task: Task, needs: str | None, parent: Task | None) -> None:
    """Give a new task its needs, if it has any, and its line. It uses the budgets of `parent`, the
    task whose run submits it.
    """
    if parent is not None:
        keys = _budget_keys(parent)
        task.budget = _encode(keys).decode() if any(keys) else None
    if needs is not None:
        task.needs = needs
        task.wait = tx.accounts.line(_line_name(tx, task)).id


def gate(tx: Transaction, task: Task, other: str | None) -> str | None:
    """Return the gate of a task that passed all others: `other` if one is left, or `resource`."""
    if other is not None or task.needs is None:
        return other
    line = tx.accounts.line_of(task, lambda: _line_name(tx, task))
    if line.waiting:
        return RESOURCE_GATE
    wanted = demands(tx, task)
    blocked = first_blocked(tx, wanted)
    if blocked is not None:
        account, why = blocked
    else:
        crowded = [d.account for d in wanted if d.account.blocked or d.account.awake >= AWAKE_MAX]
        if not crowded:
            return None
        account, why = crowded[0], Blocked(crowded[0].label, resources.KEPT, tx.now)
    sleep(tx, task, account, why)
    return RESOURCE_GATE


def sleep(tx: Transaction, task: Task, account: Account, why: Blocked) -> None:
    """Put the line of a task to sleep because of an account."""
    line = tx.accounts.line_of(task, lambda: _line_name(tx, task))
    tx.accounts.sleep(line, account)
    wake_by(tx, account, why.at)
    if why.spent or (why.at is not None and why.at <= tx.now):
        tx.accounts.touch(account)


def wake_by(tx: Transaction, account: Account, at: int | None) -> None:
    """Check the account again at `at`, or earlier."""
    if at is not None and at < FOREVER:
        if account.wake_at is None or at < account.wake_at:
            account.wake_at = at
            tx.accounts.save(account)
        tx.note_due(account.wake_at)


def _line_name(tx: Transaction, task: Task) -> LineName:
    labels = sorted({demand.account.label for demand in demands(tx, task)})
    return task.lane, task.agent, task.capability, " ".join(labels)


def demands(tx: Transaction, task: Task, needs: Needs | None = None) -> Sequence[Demand]:
    """Return the demands of a task on each account; with `needs`, those of a permit."""
    if needs is not None:
        return _demands(tx, task, needs)
    of = (task.needs, task.agent, task.lane, task.session, task.batch, task.budget)
    found: Sequence[Demand] | None = tx.accounts.demands.get(of)
    if found is None:
        found = tx.accounts.demands[of] = _demands(tx, task, needs_of(task.needs or "{}"))
    return found


def _demands(tx: Transaction, task: Task, needs: Needs) -> list[Demand]:
    session, batch = _budget_keys(task)
    subject = Subject(task.agent, task.lane, session, batch)
    found = []
    for name, wanted in needs.items():
        plain, _, key = name.partition("/")
        policy = tx.accounts.resource(plain)
        for of_level in resources.keys_of(policy, key, subject):
            account = tx.accounts.account(plain, of_level)
            found.append(Demand(name, account, policy, wanted))
    return found


def first_blocked(
    tx: Transaction,
    wanted: Iterable[Demand],
    taken: Virtual = _NOTHING,
    *,
    running: bool = False,
) -> tuple[Account, Blocked] | None:
    """Return the first account that cannot meet its demand, and why."""
    for demand in wanted:
        needed = demand.amounts
        extra = taken.get(demand.account.id)
        if extra:
            needed = {unit: need + extra.get(unit, 0) for unit, need in needed.items()}
        found = resources.check(demand.account, demand.policy, needed, tx.now, running=running)
        if found is not None:
            return demand.account, found
    return None


# -------------------------------------------------------------------- lease


def admits(tx: Transaction, task: Task) -> bool:
    """Return whether a ready task can reserve all its needs; otherwise close its resource gate."""
    settle_ended(tx)
    blocked = first_blocked(tx, demands(tx, task))
    if blocked is None:
        return True
    tx.apply(gates.wait(task))
    sleep(tx, task, *blocked)
    return False


def reserve(tx: Transaction, task: Task, needs: Needs | None = None) -> Reservation:
    """Reserve for a lease that was just granted, or for a permit of it."""
    held = []
    for demand in demands(tx, task, needs):
        assert demand.policy is not None
        taken = {}
        for limit, by in resources.reserve(demand.account, demand.policy, demand.amounts):
            taken[limit.slot] = by
            tx.accounts.enter(demand.account, limit, ledger.RESERVE, by, task=task)
            _warn(tx, demand.account, demand.policy, limit)
        held.append(HeldAmounts(demand.need, demand.account.id, taken))
    return tx.accounts.hold(task, held, permit=int(needs is not None))


def _warn(tx: Transaction, account: Account, policy: ResourcePolicy, limit: Limit) -> None:
    if limits.warns(limit, account.state(limit), policy.warn_at):
        state = account.state(limit)
        tell(
            tx,
            events.RESOURCE_WARNED,
            account,
            unit=limit.unit,
            used=amounts.shown(limits.committed(limit, state)),
            amount=amounts.shown(limits.ceiling(limit, state)),
        )


def tell(tx: Transaction, type_: str, account: Account, **more: object) -> None:
    """Record an event of a resource; its detail is JSON."""
    fields = {"resource": account.resource, "key": account.key or None, **more}
    detail = {name: value for name, value in fields.items() if value is not None}
    tx.tell_resource(type_, _encode(detail).decode())


# -------------------------------------------------------------------- settle


def report_problem(
    tx: Transaction, task: Task | None, report: ResourceReport | None
) -> FairlaneError | None:
    """Check a worker's report about resources; keep a valid one for the end of the lease.

    Without a task the reported use is not checked.
    """
    if report is None:
        return None
    problem = _unknown_names(tx, report)
    if problem is not None:
        return problem
    try:
        if report.usage and task is not None:
            tx.accounts.usage_of[task.seq] = _usage(tx, task, report.usage)
    except InvalidRequest as error:
        return error
    return None


def _usage(tx: Transaction, task: Task, usage: Mapping[str, Mapping[str, object]]) -> Needs:
    needs = needs_of(task.needs or "{}")
    found = resources.read_usage(usage, needs)
    for demand in demands(tx, task):
        refuse_uncountable(demand.account, demand.policy, demand.need, found.get(demand.need, {}))
    for name, units in found.items():
        policy = tx.accounts.resource(name.partition("/")[0])
        for limit in policy.declared if policy else ():
            if limit.unit in units and limit.kind == limits.POOL:
                raise InvalidRequest(
                    f"field 'usage.{name}.{limit.unit}': a pool is returned at the end of the run; "
                    "report the use of rates and budgets only"
                )
    return found


def refuse_uncountable(
    account: Account, policy: ResourcePolicy | None, need: str, used: Mapping[str, int]
) -> None:
    """Raise `InvalidRequest` for use that an account cannot count."""
    limit = resources.beyond_count(account, policy, used)
    if limit is not None:
        raise InvalidRequest(
            f"field 'usage.{need}.{limit.unit}': {account.label} cannot count more than "
            f"{amounts.text(amounts.BALANCE_MAX)}; report less"
        )


def _unknown_names(tx: Transaction, report: ResourceReport) -> InvalidRequest | None:
    declared = tx.policy.resources
    for field, named in (("closed", report.closed), ("observed", report.observed)):
        for name in named or ():
            try:
                resources.resource_of(name, declared, f"{field}.{name}")
            except InvalidRequest as error:
                return error
    for name, units in (report.observed or {}).items():
        policy = declared[name.partition("/")[0]]
        known = {limit.unit for limit in policy.declared}
        for unit, remaining in units.items():
            if unit not in known:
                hint = nearest(unit, known)
                return InvalidRequest(f"field 'observed.{name}.{unit[:40]}' is not a unit{hint}")
            try:
                amounts.parse(remaining)
            except ValueError as error:
                return InvalidRequest(f"field 'observed.{name}.{unit}.remaining' {error}")
    return None


def settle_ended(tx: Transaction) -> None:
    """Settle the reservations of leases that ended in this transaction."""
    ended, tx.accounts.ended = tx.accounts.ended, []
    if not ended:
        return
    found = tx.reservations([change.after.seq for change in ended])
    for change in ended:
        task = change.after
        usage = tx.accounts.usage_of.pop(task.seq, None)
        for one in found[task.seq]:
            if one.fencing_token == task.fencing_token:
                own = usage if not one.permit else None
                settle(tx, task, one, own or {}, refund=_unstarted(change))


def _unstarted(change: Change) -> bool:
    """Return whether a lease was released before the run had started, so that nothing was used."""
    before = change.before
    released = change.verb == lifecycle.RELEASE
    return released and before is not None and before.state == lifecycle.ASSIGNED


def settle(
    tx: Transaction, task: Task, reservation: Reservation, usage: Needs, *, refund: bool = False
) -> None:
    """Replace a reservation by the amounts used: as reserved, unless `usage` says otherwise."""
    found = {one.id: one for one in tx.accounts.accounts_by_id(h.account for h in reservation.held)}
    counted: set[tuple[str, str]] = set()  # units of needs: each level is charged with the same use
    for held in reservation.held:
        account = found[held.account]
        policy = tx.accounts.resource(account.resource)
        used: Mapping[str, int] = usage.get(held.need, {})
        if refund:
            used = {slot.partition(":")[0]: 0 for slot in held.amounts} | dict(used)
        seen: set[str] = set()
        for limit, change, actual in resources.settle(account, policy, held.amounts, used, tx.now):
            kind = _kind(limit, change)
            tx.accounts.enter(account, limit, kind, change, used=actual, task=task)
            if policy is not None:
                _warn(tx, account, policy, limit)
            if actual and limit.unit not in seen:
                seen.add(limit.unit)
                tx.accounts.count_usage(account, limit.unit, task.agent, actual)
                if (held.need, limit.unit) not in counted:
                    counted.add((held.need, limit.unit))
                    tx.accounts.count_total(account.resource, limit.unit, actual)
        tx.accounts.touch(account)
    tx.accounts.drop(reservation)
    tx.changed = True


def _kind(limit: Limit, change: int) -> str:
    if not change or limit.kind == limits.POOL:
        return ledger.SETTLE
    return ledger.REFUND if change < 0 else ledger.DEBT


def take_report(
    tx: Transaction, task: Task, report: ResourceReport | None, permit: Reservation | None = None
) -> None:
    """Apply the rest of a worker's report: providers that refused, and remaining amounts.

    The lease has ended or the `permit` was settled, so its use is already counted.
    """
    if report is None:
        return
    settle_ended(tx)
    for name, units in (report.observed or {}).items():
        for demand in demands(tx, task, {name: {}}):
            _observe(tx, demand, units, permit)
    for name, closing in (report.closed or {}).items():
        for demand in demands(tx, task, {name: {}}):
            close(tx, demand.account, closing, tx.now)


def _observe(
    tx: Transaction, demand: Demand, units: Mapping[str, object], permit: Reservation | None
) -> None:
    account = demand.account
    notes = {held.account: held.notes for held in permit.held}.get(account.id) if permit else None
    for limit in demand.policy.declared if demand.policy else ():
        if limit.unit in units:
            noted = notes.get(limit.slot) if notes else None
            granted = (permit.at, noted) if permit and noted is not None else None
            remaining = amounts.parse(units[limit.unit])
            limits.observe(limit, account.state(limit), remaining, tx.now, granted)
            tx.accounts.touch(account)
    tx.changed = True


# -------------------------------------------------------------------- close, open, raise


def close(tx: Transaction, account: Account, closing: Closing, now: int) -> None:
    """Close an account; the longest of several reports counts."""
    until = FOREVER if closing.retry_after_ms is None else now + closing.retry_after_ms
    if until <= max(now, account.closed_until):
        return
    was_open = not account.closed_until
    account.closed_until, account.reason = until, closing.reason
    account.wake_at = None
    wake_by(tx, account, until)
    tx.accounts.save(account)
    tx.changed = True
    if was_open:
        until_at = None if until == FOREVER else until
        tell(tx, events.RESOURCE_CLOSED, account, until=until_at, reason=closing.reason)


def close_resource(
    tx: Transaction, requests: Sequence[CloseResource], now: int
) -> Iterator[object]:
    for request in requests:
        found = _named(tx, request.name, request.key)
        if isinstance(found, list):
            for account in found:
                account.closed_until = 0
                closing = Closing(request.retry_after_ms, request.reason)
                close(tx, account, closing, now)
            yield found
        else:
            yield found


def open_resource(tx: Transaction, requests: Sequence[OpenResource], _: int) -> Iterator[object]:
    for request in requests:
        found = _named(tx, request.name, request.key)
        if isinstance(found, list):
            for account in found:
                if account.closed_until:
                    account.closed_until, account.reason = 0, None
                    tx.changed = True
                    tx.accounts.touch(account)
                    tell(tx, events.RESOURCE_OPENED, account)
        yield found


def raise_resource(tx: Transaction, requests: Sequence[RaiseResource], _: int) -> Iterator[object]:
    """Raise a budget until its window resets."""
    for request in requests:
        found = _named(tx, request.name, request.key)
        if isinstance(found, list):
            found = _raise(tx, request, found)
        yield found


def _raise(
    tx: Transaction, request: RaiseResource, found: list[Account]
) -> list[Account] | FairlaneError:
    policy = tx.policy.resources[request.name]
    every = [one for one in policy.declared if one.unit == request.unit]
    budgets = [limit for limit in every if limit.kind == BUDGET]
    if not budgets:
        units = {one.unit for one in policy.declared if one.kind == BUDGET}
        if every or not units:
            return Conflict(f"{request.name} has no budget of {request.unit}; change its limit")
        hint = nearest(request.unit, units)
        return InvalidRequest(f"field 'unit': {request.name} has no unit {request.unit}{hint}")
    if len(found) > 1:
        return InvalidRequest(
            f"missing required field 'key': {request.name} has one balance per key"
        )
    for account in found:
        if any(account.state(one).raised + request.amount > amounts.AMOUNT_MAX for one in budgets):
            most = amounts.text(amounts.AMOUNT_MAX)
            return Conflict(f"{account.label} cannot be raised by more than {most} in one window")
        for limit in budgets:
            account.state(limit).raised += request.amount
            detail = request.reason
            tx.accounts.enter(account, limit, ledger.RAISE, 0, used=request.amount, detail=detail)
        tx.changed = True
        tx.accounts.touch(account)
        more = {"unit": request.unit, "amount": amounts.shown(request.amount)}
        tell(tx, events.RESOURCE_RAISED, account, **more, reason=request.reason)
    return found


def _named(tx: Transaction, name: str, key: str | None) -> list[Account] | FairlaneError:
    """Return the account of a resource and key; without a key, all that the resource has."""
    policy = tx.policy.resources.get(name)
    if policy is None:
        hint = nearest(name, tx.policy.resources)
        return NotFound(f'resource "{name}" is not in the policy{hint}')
    if key is not None or not policy.levels:
        return [tx.accounts.account(name, key or "")]
    tx.unwritten.write()
    return tx.accounts.of_resource(name)


# -------------------------------------------------------------------- spent budgets


def spent_budget(tx: Transaction, account: Account, why: Blocked) -> BudgetSpent:
    """Return what a person has to know about the budget that is spent."""
    policy = tx.accounts.resource(account.resource)
    assert policy is not None
    limit = next(one for one in policy.declared if one.slot == why.slot)
    return BudgetSpent(
        resource=account.resource,
        key=account.key,
        unit=limit.unit,
        slot=limit.slot,
        window_at=account.state(limit).window_at or 0,
        resets_at=limits.window_end(limit, tx.now),
        needed=why.needed,
        amount=limits.ceiling(limit, account.state(limit)),
    )


# -------------------------------------------------------------------- a changed policy


def follow_policy(
    tx: Transaction, old: Mapping[str, ResourcePolicy], new: Mapping[str, ResourcePolicy]
) -> None:
    """Adapt accounts to changed limits and wake the lines that may fit now."""
    changed = [name for name in {*old, *new} if old.get(name) != new.get(name)]
    if not changed:
        return
    tx.unwritten.write()
    for name in sorted(changed):
        # What is taken is carried over as of now, by the limits under which it was taken.
        for account in tx.accounts.of_resource(name, old.get(name)):
            if name in old and name in new:
                _adapt(tx, account, old[name], new[name])
            if account.blocked:
                account.wake_at = None
                tx.accounts.touch(account)


def notes_on_removal(
    tx: Transaction, old: Mapping[str, ResourcePolicy], new: Mapping[str, ResourcePolicy]
) -> list[str]:
    """Return a sentence for each removed resource that tasks in the queue need."""
    removed = old.keys() - new.keys()
    if not removed:
        return []
    tx.unwritten.write()
    counts = dict.fromkeys(sorted(removed), 0)
    for line in lines.all_wait_lines(tx.connection):
        for name in removed & {label.partition("/")[0] for label in line.accounts.split()}:
            counts[name] += line.waiting + line.awake
    return [
        f"resources.{name} is removed, but {count} queued "
        f"{'task needs' if count == 1 else 'tasks need'} it: "
        f"{'it waits' if count == 1 else 'they wait'} until the policy declares it again"
        for name, count in counts.items()
        if count
    ]


def _adapt(tx: Transaction, account: Account, old: ResourcePolicy, new: ResourcePolicy) -> None:
    before = {limit.slot: limit for limit in old.declared}
    for limit in new.declared:
        was = before.get(limit.slot)
        if was is not None and was != limit and limit.slot in account.states:
            by = limits.adapt(was, limit, account.state(limit), tx.now)
            tx.accounts.save(account)
            if by:
                tx.accounts.enter(account, limit, ledger.RESET, by, detail="policy")


def move_spans(tx: Transaction, by: int) -> None:
    """Move the moments of all accounts: the clock was set by `by` milliseconds."""
    for account in tx.accounts.all_stored():
        for state in account.states.values():
            limits.shift(state, by)
        if account.closed_until not in (0, FOREVER):
            account.closed_until += by
        if account.urgent_until:
            account.urgent_until += by
        if account.wake_at is not None:
            account.wake_at = tx.now  # look at once; windows follow the calendar
        tx.accounts.save(account)
