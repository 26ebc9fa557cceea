"""Accounts of resources, the lines that wait for them, reservations and the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import astuple

from fairlane.core.limits import LimitState
from fairlane.core.model import Task
from fairlane.core.resources import Account, HeldAmounts, LedgerEntry, Reservation, WaitLine
from fairlane.store.base import Connection, Row

_states: Final = msgspec.json.Decoder(dict[str, LimitState])
_held: Final = msgspec.json.Decoder(list[HeldAmounts])
_encode: Final = msgspec.json.Encoder().encode

# -------------------------------------------------------------------- accounts


def _account(row: Row) -> Account:
    account = Account(*row)
    account.states = _states.decode(row[3])
    return account


def accounts(connection: Connection, names: Iterable[tuple[str, str]]) -> list[Account]:
    """Return the accounts of resources and keys that exist."""
    return [_account(row) for row in connection.run_rows("account_find", list(names))]


def accounts_by_id(connection: Connection, ids: Iterable[int]) -> list[Account]:
    return [_account(row) for row in connection.run_rows("account_by_id", [(id_,) for id_ in ids])]


def accounts_of(connection: Connection, resource: str) -> list[Account]:
    return [_account(row) for row in connection.run("account_of_resource", resource=resource)]


def all_accounts(connection: Connection) -> list[Account]:
    return [_account(row) for row in connection.run("account_all")]


class AccountFilter(NamedTuple):
    """Accounts of a resource whose key comes after `after`; with `key` only that one, with `own`
    no other key that begins with `agent:`.
    """

    after: str | None = None
    key: str | None = None
    own: str | None = None


def page_of(
    connection: Connection, resource: str, wanted: AccountFilter, limit: int
) -> list[Account]:
    """Return accounts of a resource in the order of their keys."""
    rows = connection.run("account_page", resource=resource, limit=limit, **wanted._asdict())
    return [_account(row) for row in rows]


def oldest_accounts(connection: Connection, limit: int) -> list[Account]:
    return [_account(row) for row in connection.run("account_oldest", limit=limit)]


def due_accounts(connection: Connection, now: int, limit: int) -> list[Account]:
    """Return accounts that may have room for a waiting line by now."""
    return [_account(row) for row in connection.run("account_due", now=now, limit=limit)]


def next_wake(connection: Connection) -> int | None:
    at: int | None = connection.run("account_next")[0][0]
    return at


def save_accounts(connection: Connection, rows: Iterable[tuple[Account, int | None]]) -> None:
    """Save accounts, each with the time at which it becomes blank."""
    saved = [
        (
            account.id,
            account.resource,
            account.key,
            _encode(account.states).decode(),
            account.closed_until,
            account.reason,
            account.urgent_until,
            account.turn,
            account.asked_at,
            account.blocked,
            account.awake,
            account.wake_at,
            idle_at,
        )
        for account, idle_at in rows
    ]
    connection.run_rows("account_save", saved)


# -------------------------------------------------------------------- lines

LineName = tuple[str, str, str, str]  # lane, agent, capability, accounts


def wait_lines(connection: Connection, names: Iterable[LineName]) -> list[WaitLine]:
    return [WaitLine(*row) for row in connection.run_rows("wait_line_find", list(names))]


def wait_lines_by_id(connection: Connection, ids: Iterable[int]) -> list[WaitLine]:
    rows = connection.run_rows("wait_line_by_id", [(id_,) for id_ in ids])
    return [WaitLine(*row) for row in rows]


def all_wait_lines(connection: Connection) -> list[WaitLine]:
    return [WaitLine(*row) for row in connection.run("wait_line_all")]


def first_wait_lines(connection: Connection, account: int, limit: int) -> list[WaitLine]:
    """Return the lines of an account that have no ready task, in the order of their turn."""
    rows = connection.run("wait_line_first", account=account, limit=limit)
    return [WaitLine(*row) for row in rows]


def wait_lines_of_agent(connection: Connection, account: int, agent: str) -> list[WaitLine]:
    rows = connection.run("wait_line_of_agent", account=account, agent=agent)
    return [WaitLine(*row) for row in rows]


def count_waiting_for(connection: Connection, accounts: Iterable[int]) -> dict[int, int]:
    """Return how many tasks wait in front of accounts."""
    rows = connection.run_rows("wait_line_count_of", [(id_,) for id_ in accounts])
    return {row[0]: int(row[1]) for row in rows}


def save_wait_lines(connection: Connection, lines: Iterable[WaitLine]) -> None:
    connection.run_rows("wait_line_save", [astuple(line) for line in lines])


def waiting_tasks(connection: Connection, lines: Iterable[int], limit: int) -> list[Task]:
    """Return the first `limit` tasks of each line that wait for a resource."""
    rows = connection.run_rows("task_waiting", [(line,) for line in lines], limit=limit)
    return [Task(*row) for row in rows]


def move_tasks(connection: Connection, lines: Mapping[int, int]) -> None:
    """Move tasks to other lines."""
    connection.run_rows("task_move", list(lines.items()))


def recount_lines(connection: Connection) -> dict[int, tuple[int, int]]:
    """Recount the waiting and the ready tasks of each line."""
    return {row[0]: (row[1], row[2]) for row in connection.run("wait_line_recount")}


# -------------------------------------------------------------------- reservations


def _reservation(row: Row) -> Reservation:
    reservation = Reservation(*row)
    reservation.held = _held.decode(row[4])
    return reservation


def reservations(connection: Connection, seqs: Iterable[int]) -> list[Reservation]:
    rows = connection.run_rows("reservation_find", [(seq,) for seq in seqs])
    return [_reservation(row) for row in rows]


def reservations_of(
    connection: Connection, account: int, limit: int, agent: str | None = None
) -> list[Reservation]:
    """Return the first reservations that took something from an account, of one agent's tasks if it
    is given.
    """
    rows = connection.run(
        "reservation_of_account", held=f'%",{account},{{%', agent=agent, limit=limit
    )
    return [_reservation(row) for row in rows]


def all_reservations(connection: Connection) -> list[Reservation]:
    return [_reservation(row) for row in connection.run("reservation_all")]


def insert_reservations(connection: Connection, rows: Iterable[Reservation]) -> None:
    made = [
        (one.id, one.seq, one.fencing_token, one.at, _encode(one.held).decode(), one.permit)
        for one in rows
    ]
    connection.run_rows("reservation_insert", made)


def delete_reservations(connection: Connection, ids: Iterable[int]) -> None:
    connection.run_rows("reservation_delete", [(id_,) for id_ in ids])


# -------------------------------------------------------------------- ledger and usage


class LedgerSum(NamedTuple):
    account: int
    slot: str
    amount: int
    first: int
    last: int


class UsageRow(NamedTuple):
    resource: str
    key: str
    unit: str
    agent: str
    day: int
    used: int
    settled: int


def insert_entries(connection: Connection, entries: Sequence[Row]) -> None:
    """Append entries, each with the fields of `LedgerEntry` in their order."""
    connection.run_rows("ledger_insert", entries)


def entries(
    connection: Connection,
    account: int,
    *,
    after: int,
    limit: int,
    slot: str | None = None,
    agent: str | None = None,
) -> list[tuple[LedgerEntry, str | None]]:
    """Return entries of an account in order, each with the id of its task if that is still kept."""
    rows = connection.run(
        "ledger_list", account=account, after=after, limit=limit, slot=slot, agent=agent
    )
    return [(LedgerEntry(*row[:-1]), row[-1]) for row in rows]


def newest_entries(
    connection: Connection,
    account: int,
    *,
    before: int | None,
    limit: int,
    unit: str | None,
    agent: str | None,
) -> list[tuple[LedgerEntry, str | None]]:
    """Return entries of an account, newest first, as `entries` does."""
    rows = connection.run(
        "ledger_newest", account=account, before=before, limit=limit, unit=unit, agent=agent
    )
    return [(LedgerEntry(*row[:-1]), row[-1]) for row in rows]


def entry_sums(connection: Connection) -> list[LedgerSum]:
    return [
        LedgerSum(row[0], row[1], int(row[2]), row[3], row[4])
        for row in connection.run("ledger_sums")
    ]


def entries_by_id(connection: Connection, ids: Iterable[int]) -> list[LedgerEntry]:
    rows = connection.run_rows("ledger_by_id", [(id_,) for id_ in ids])
    return [LedgerEntry(*row) for row in rows]


def add_usage(connection: Connection, rows: Sequence[Row]) -> None:
    """Add to the use per account, unit, agent and day."""
    connection.run_rows("usage_add", rows)


def usage(
    connection: Connection,
    resource: str,
    *,
    first: int,
    last: int,
    key: str | None = None,
    agent: str | None = None,
) -> list[UsageRow]:
    """Return what agents used from day `first` to day `last`, in days since 1970."""
    rows = connection.run(
        "usage_list", resource=resource, first=first, last=last, key=key, agent=agent
    )
    return [UsageRow(*row) for row in rows]


class AgentUsage(NamedTuple):
    """What one agent used on a day; without an agent, what all others used."""

    resource: str
    unit: str
    agent: str | None
    used: float


def usage_of_agents(
    connection: Connection, prefixes: Mapping[str, str], *, day: int, top: int
) -> list[AgentUsage]:
    """Return the use on a day by the `top` agents of each unit, and by all others together.

    `prefixes` names the resources, with how the keys begin whose use counts.
    """
    rows = connection.run_rows("usage_of_agents", list(prefixes.items()), first=day, limit=top)
    return [AgentUsage(row[0], row[1], row[2], float(row[3])) for row in rows]


def count_old_entries(connection: Connection, before: int, limit: int) -> int:
    count: int = connection.run("ledger_due", before=before, limit=limit)[0][0]
    return count


def prune(connection: Connection, *, before: int, day: int, limit: int) -> None:
    """Delete some old ledger entries, old use, and some blank accounts and lines."""
    connection.run("ledger_prune", before=before, limit=limit)
    connection.run("usage_prune", before=day)
    connection.run("account_forget", before=before, limit=limit)
    connection.run("wait_line_forget", before=before, limit=limit)
