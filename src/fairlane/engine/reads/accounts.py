"""Reads of resources for callers: accounts as of now, holders, waiting tasks, ledger and use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fairlane.clock import Clock
from fairlane.core import resources
from fairlane.core.policy import Policy
from fairlane.core.resources import Account, LedgerEntry, Reservation
from fairlane.store.base import Connection
from fairlane.store.tables import resources as table
from fairlane.store.tables import task_views
from fairlane.store.tables.resources import UsageRow

HOLDERS_SHOWN: Final = 20


class Holder(NamedTuple):
    """A task that has reserved amounts, by unit."""

    task_id: str
    agent: str
    amounts: Mapping[str, int]


class AccountView(NamedTuple):
    """An account as of `now`. `waiting` counts the tasks that wait for it."""

    account: Account
    now: int
    waiting: int
    holders: Sequence[Holder] = ()


def accounts(
    connection: Connection, policy: Policy, now: int, *, agent: str | None = None
) -> list[AccountView]:
    """Return all accounts by name and key; a resource without any has an empty one.

    With `agent`, of resources that are counted by agent only that agent's account.
    """
    stored = table.all_accounts(connection)
    waiting = table.count_waiting(connection)
    found: list[AccountView] = []
    known: set[str] = set()
    for account in stored:
        declared = policy.resources.get(account.resource)
        if declared is None or not visible(declared, account.key, agent):
            continue
        known.add(account.resource)
        resources.advance(account, declared, now)
        found.append(AccountView(account, now, waiting.get(account.id, 0)))
    for name, declared in policy.resources.items():
        if name not in known and not declared.levels:
            found.append(AccountView(Account(0, name, ""), now, 0))
    return sorted(found, key=lambda one: (one.account.resource, one.account.key))


def account(connection: Connection, policy: Policy, now: int, name: str, key: str) -> AccountView:
    """Return one account with its holders; a new one if it was never used."""
    stored = table.accounts(connection, [(name, key)])
    if not stored:
        return AccountView(Account(0, name, key), now, 0)
    (found,) = stored
    resources.advance(found, policy.resources[name], now)
    waiting = table.count_waiting(connection).get(found.id, 0)
    return AccountView(found, now, waiting, _holders(connection, found))


def visible(declared: resources.ResourcePolicy, key: str, agent: str | None) -> bool:
    """Return whether a caller of one agent may see an account: not that of another agent."""
    if agent is None or "agent" not in declared.levels:
        return True
    own = agent if isinstance(declared.by, str) else f"agent:{agent}"
    if isinstance(declared.by, str):
        return key == own
    return key == own or not key.startswith("agent:")


def _holders(connection: Connection, account: Account) -> list[Holder]:
    held: dict[int, dict[str, int]] = {}
    for one in table.all_reservations(connection):
        for slot, amount in _of(one, account.id).items():
            units = held.setdefault(one.seq, {})
            unit = slot.partition(":")[0]
            units[unit] = units.get(unit, 0) + amount
    first = sorted(held)[:HOLDERS_SHOWN]
    views = task_views.by_seq(connection, first)
    return [Holder(one.task.id, one.task.agent, held[one.task.seq]) for one in views]


def _of(reservation: Reservation, account: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in reservation.held:
        if one.account == account:
            found.update(one.amounts)
    return found


class ResourceViews:
    """The reads of resources, on the connections of the other reads."""

    def __init__(self, ask: Callable[..., Any], moment: Callable[[Connection, Clock], int]) -> None:
        self._ask = ask
        self._moment = moment

    def accounts(self, clock: Clock, policy: Policy, agent: str | None) -> list[AccountView]:
        """Return all accounts of resources that a caller may see."""

        def read(connection: Connection) -> list[AccountView]:
            with connection.snapshot():
                return accounts(connection, policy, self._moment(connection, clock), agent=agent)

        found: list[AccountView] = self._ask(read)
        return found

    def account(self, clock: Clock, policy: Policy, name: str, key: str) -> AccountView:
        """Return one account with the tasks that hold it."""

        def read(connection: Connection) -> AccountView:
            with connection.snapshot():
                return account(connection, policy, self._moment(connection, clock), name, key)

        found: AccountView = self._ask(read)
        return found

    def ledger(self, name: str, key: str, wanted: EntryFilter, limit: int) -> list[LedgerView]:
        """Return entries of an account, newest first."""
        found: list[LedgerView] = self._ask(ledger, name, key, wanted, limit)
        return found

    def usage(
        self, name: str, days: tuple[int, int], key: str | None, agent: str | None
    ) -> list[UsageRow]:
        """Return what agents used from the first to the last of `days`."""

        def read(connection: Connection) -> list[UsageRow]:
            first, last = days
            return table.usage(connection, name, first=first, last=last, key=key, agent=agent)

        found: list[UsageRow] = self._ask(read)
        return found


class EntryFilter(NamedTuple):
    """Entries below `before`, of one unit, of one agent."""

    before: int | None = None
    unit: str | None = None
    agent: str | None = None


class LedgerView(NamedTuple):
    """An entry with the id of its task, if that is still kept."""

    entry: LedgerEntry
    task_id: str | None


def ledger(
    connection: Connection, name: str, key: str, wanted: EntryFilter, limit: int
) -> list[LedgerView]:
    """Return entries of an account, newest first."""
    stored = table.accounts(connection, [(name, key)])
    if not stored:
        return []
    found = table.newest_entries(connection, stored[0].id, limit=limit, **wanted._asdict())
    return [LedgerView(*one) for one in found]
