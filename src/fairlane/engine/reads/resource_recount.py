"""The doctor's recount of resources: reservations, waiting tasks, and the sum of the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from fairlane.core import limits, policy
from fairlane.core.amounts import text
from fairlane.core.limits import Limit
from fairlane.core.resources import Account, Reservation, ResourcePolicy, WaitLine
from fairlane.store.base import Connection
from fairlane.store.tables import policy as policy_table
from fairlane.store.tables import resources as table
from fairlane.store.tables import scheduler
from fairlane.store.tables import tasks as task_table


def recount(connection: Connection) -> list[str]:
    """Compare the counters of accounts, lines and reservations with their rows; sum the ledger."""
    newest = policy_table.newest(connection)
    declared = policy.read(msgspec.json.decode(newest.document))[0].resources if newest else {}
    accounts = {account.id: account for account in table.all_accounts(connection)}
    lines = table.all_wait_lines(connection)
    held = table.all_reservations(connection)
    return [
        *_lines(connection, lines),
        *_accounts(accounts, lines),
        *_reserved(accounts, held),
        *_leases(connection, held),
        *_ledger(connection, accounts, declared),
    ]


def _lines(connection: Connection, lines: list[WaitLine]) -> Iterator[str]:
    real = table.recount_lines(connection)
    for line in lines:
        name = f"line {line.id} of {line.accounts}"
        counted, expected = (line.waiting, line.awake), real.pop(line.id, (0, 0))
        if counted != expected:
            yield f"{name}: has {counted}, but a recount gives {expected}"
        if (line.waiting > 0) != (line.account is not None):
            yield f"{name}: {line.waiting} tasks wait for account {line.account}"
    for id_, expected in real.items():
        if any(expected):
            yield f"line {id_}: it is missing, but {sum(expected)} tasks are in it"


def _accounts(accounts: Mapping[int, Account], lines: list[WaitLine]) -> Iterator[str]:
    for account in accounts.values():
        blocked = sum(line.account == account.id for line in lines)
        awake = sum(line.awake for line in lines if account.label in line.accounts.split())
        if (account.blocked, account.awake) != (blocked, awake):
            yield (
                f"account {account.label}: has {(account.blocked, account.awake)}, "
                f"but a recount gives {(blocked, awake)}"
            )


def _reserved(accounts: Mapping[int, Account], held: list[Reservation]) -> Iterator[str]:
    sums: dict[tuple[int, str], int] = {}
    for one in (part for reservation in held for part in reservation.held):
        for slot, amount in one.amounts.items():
            sums[one.account, slot] = sums.get((one.account, slot), 0) + amount
    for account in accounts.values():
        for slot, state in account.states.items():
            expected = sums.pop((account.id, slot), 0)
            if state.reserved != expected:
                yield (
                    f"account {account.label}, {slot}: {text(state.reserved)} is reserved, "
                    f"but a recount gives {text(expected)}"
                )
    for (id_, slot), amount in sums.items():
        yield f"account {id_}, {slot}: {text(amount)} is reserved, but the account is missing"


def _leases(connection: Connection, held: list[Reservation]) -> Iterator[str]:
    counted = scheduler.view(connection).reservations
    if counted != len(held):
        yield f"reservations: {counted} are counted, but a recount gives {len(held)}"
    leased = {(task.seq, task.fencing_token): task for task in task_table.leased(connection)}
    for one in held:
        if (one.seq, one.fencing_token) not in leased:
            yield f"reservation {one.id}: the lease of task number {one.seq} has ended"
    reserved = {(one.seq, one.fencing_token) for one in held if not one.permit}
    for key, task in leased.items():
        if task.needs is not None and key not in reserved:
            yield f"task {task.id}: it runs without a reservation for its needs"


def _ledger(
    connection: Connection,
    accounts: Mapping[int, Account],
    declared: Mapping[str, ResourcePolicy],
) -> Iterator[str]:
    sums = table.entry_sums(connection)
    found = {
        entry.id: entry
        for entry in table.entries_by_id(
            connection, {number for one in sums for number in (one.first, one.last)}
        )
    }
    for one in sums:
        account = accounts.get(one.account)
        limit = None if account is None else _limit(account, one.slot, declared)
        if account is None or limit is None:
            continue
        first, last = found[one.first], found[one.last]
        total = first.balance - first.amount + one.amount
        balance = limits.committed(limit, account.state(limit))
        if not total == last.balance == balance:
            yield (
                f"account {account.label}, {one.slot}: the ledger sums to {text(total)} and ends "
                f"with {text(last.balance)}, but {text(balance)} is used and reserved"
            )


def _limit(account: Account, slot: str, declared: Mapping[str, ResourcePolicy]) -> Limit | None:
    found = declared.get(account.resource)
    every = found.declared if found else ()
    return next((limit for limit in every if limit.slot == slot), None)
