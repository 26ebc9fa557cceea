"""Permits: a running task reserves resources for one call at a time.

A run that has started goes before tasks that have not: while a permit waits for an account, nothing
else takes from it. Permits that ask the same node for the same account are served in the order of
their arrival, so a large one is not overtaken. Of the permits that wait for an account, only the
first is examined in full: hundreds of runs may wait while every commit frees a little.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Final

from fairlane.core import leases, resources
from fairlane.core.errors import Conflict, FairlaneError, NotFound
from fairlane.core.model import Task
from fairlane.core.resources import Account, Blocked, Needs, Reservation
from fairlane.engine.resource_commands import (
    Permit,
    PermitGranted,
    PermitRefused,
    ResourceReport,
    SettlePermit,
)
from fairlane.engine.verbs import budgets
from fairlane.engine.verbs.resources import (
    demands,
    first_blocked,
    refuse_uncountable,
    report_problem,
    reserve,
    settle,
    settle_ended,
    take_report,
)
from fairlane.store.transaction import Transaction

OPEN_MAX: Final = 1000  # permits of one lease; its end settles them in one transaction
KEPT_MS: Final = 5000  # how long an account is kept for a permit whose node may be gone
READ_MAX: Final = 32  # waiting permits whose tasks are read at once


def permit(tx: Transaction, requests: Sequence[Permit], _: int) -> Iterator[object]:
    """Grant permits at once, or return why not."""
    settle_ended(tx)
    tx.tasks_by_seq(request.seq for request in requests)
    tx.reservations(request.seq for request in requests)  # all at once
    for request in requests:
        found = _try(tx, request, tx.accounts.kept)
        if isinstance(found, tuple):
            at = found[1].at
            yield PermitRefused(found[1], None if at is None else max(0, at - tx.now))
        else:
            yield found


def wait(tx: Transaction, requests: Sequence[Permit]) -> list[list[object]]:
    """Grant waiting permits in their order; an empty answer means that it still waits.

    An error is an answer too: it ends the wait.
    """
    answers: list[list[object]] = []
    blocked: dict[int, Account] = {}
    names: set[tuple[str, str]] = set()  # of the blocked accounts
    read = 0
    for number, request in enumerate(requests):
        if names and _is_behind(tx, request, names):
            answers.append([])
            continue
        if number >= read:
            read = number + READ_MAX
            _read(tx, requests[number:read])
        found = _try(tx, request, blocked)
        if isinstance(found, tuple):
            account, why = found
            if not why.spent:  # smaller needs may still fit a spent budget
                blocked[account.id] = account
                names.add((account.resource, account.key))
            tx.note_due(why.at if why.at is not None and why.at > tx.now else None)
            answers.append([])
        else:
            answers.append([found])
    _keep(tx, blocked)
    return answers


def _read(tx: Transaction, requests: Sequence[Permit]) -> None:
    tx.tasks_by_seq(request.seq for request in requests)
    tx.reservations(request.seq for request in requests)


def _is_behind(tx: Transaction, request: Permit, blocked: Container[tuple[str, str]]) -> bool:
    """Return whether a request waits for an account that an earlier one waits for; False if its
    lease has ended, or if that depends on its task. With several nodes the task is not read for it.
    """
    task = tx.known_task(request.seq)
    if task is None:
        if tx.alone:
            return False
    elif leases.lost(task, request.fencing_token) is not None:
        return False
    for name in request.needs:
        plain, _, key = name.partition("/")
        policy = tx.accounts.resource(plain)
        if policy is not None and policy.by in (None, resources.BY_KEY) and (plain, key) in blocked:
            return True
    return False


def _keep(tx: Transaction, blocked: dict[int, Account]) -> None:
    """Reserve the free amounts for waiting permits; release accounts that no permit waits for."""
    for account in blocked.values():
        if account.urgent_until < tx.now + KEPT_MS // 2:
            account.urgent_until = tx.now + KEPT_MS
            tx.accounts.save(account)
            tx.changed = True
        tx.note_due(account.urgent_until)
    for account in tx.accounts.accounts_by_id(tx.accounts.kept - blocked.keys()):
        account.urgent_until = 0
        tx.accounts.touch(account)
        tx.changed = True
    tx.accounts.kept.clear()
    tx.accounts.kept.update(blocked)


def _try(
    tx: Transaction, request: Permit, blocked: Container[int]
) -> PermitGranted | FairlaneError | tuple[Account, Blocked]:
    task = tx.tasks_by_seq([request.seq]).get(request.seq)
    lost = leases.lost(task, request.fencing_token)
    if lost is not None or task is None:
        return lost or NotFound("the lease does not exist")
    problem = report_problem(tx, None, request.report)
    if problem is not None:
        return problem
    if request.settles is not None:
        problem = _settle_one(tx, task, request.settles, request.report)
        if problem is not None:
            return problem
    try:
        needs = resources.read_needs(request.needs, tx.policy.resources)
    except FairlaneError as error:
        return error
    return _grant(tx, task, needs, blocked)


def _grant(
    tx: Transaction, task: Task, needs: Needs, blocked: Container[int]
) -> PermitGranted | FairlaneError | tuple[Account, Blocked]:
    if len(tx.reservations([task.seq])[task.seq]) > OPEN_MAX:
        return Conflict(
            f"the task has {OPEN_MAX} open permits, which is the maximum; settle some of them"
        )
    wanted = demands(tx, task, needs)
    for demand in wanted:
        if demand.account.id in blocked:
            return demand.account, Blocked(demand.account.label, resources.KEPT, None)
    found = first_blocked(tx, wanted, running=True)
    if found is not None:
        if found[1].spent and _asks(tx, found[0]):
            budgets.ask(tx, *found)
        return found
    tx.changed = True
    return PermitGranted(reserve(tx, task, needs).id, task)


def _asks(tx: Transaction, account: Account) -> bool:
    policy = tx.accounts.resource(account.resource)
    return policy is not None and policy.when_spent == resources.ASK


def settle_permit(tx: Transaction, requests: Sequence[SettlePermit], _: int) -> Iterator[object]:
    tx.tasks_by_seq(request.seq for request in requests)
    tx.reservations(request.seq for request in requests)
    for request in requests:
        task = tx.tasks_by_seq([request.seq]).get(request.seq)
        lost = leases.lost(task, request.fencing_token)
        if lost is not None or task is None:
            yield lost or NotFound("the lease does not exist")
        else:
            problem = _settle_one(tx, task, request.permit, request.report, unused=request.unused)
            yield problem or task


def settle_renewed(
    tx: Transaction, task: Task, permits: Sequence[SettlePermit]
) -> FairlaneError | None:
    """Settle permits with a renewal; return the first problem."""
    for one in permits:
        problem = _settle_one(tx, task, one.permit, one.report)
        if problem is not None:
            return problem
    return None


def _settle_one(
    tx: Transaction,
    task: Task,
    number: int,
    report: ResourceReport | None,
    *,
    unused: bool = False,
) -> FairlaneError | None:
    """Settle a permit unless it is settled already. Return the error of a wrong report."""
    open_ones = [one for one in tx.reservations([task.seq])[task.seq] if one.permit == number]
    usage: Needs = {}
    for one in open_ones:
        problem = report_problem(tx, None, report)
        if problem is not None:
            return problem
        if report is not None and report.usage:
            known = {
                held.need: {slot.partition(":")[0]: by for slot, by in held.amounts.items()}
                for held in one.held
            }
            try:
                usage = resources.read_usage(report.usage, known)
                _refuse_uncountable(tx, one, usage)
            except FairlaneError as error:
                return error
        settle(tx, task, one, usage, refund=unused)
        take_report(tx, task, report, permit=one)
    return None


def _refuse_uncountable(tx: Transaction, permit: Reservation, usage: Needs) -> None:
    accounts = tx.accounts.accounts_by_id(held.account for held in permit.held)
    of = {account.id: account for account in accounts}
    for held in permit.held:
        account = of[held.account]
        policy = tx.accounts.resource(account.resource)
        refuse_uncountable(account, policy, held.need, usage.get(held.need, {}))
