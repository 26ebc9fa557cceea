"""Reads of resources for callers: accounts as of now, holders, waiting tasks, ledger and use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fairlane.clock import Clock
from fairlane.core import resources
from fairlane.core.policy import Policy
from fairlane.core.resources import Account, LedgerEntry, Reservation
from fairlane.core.types import LIST_LIMIT_MAX
from fairlane.store.base import Connection
from fairlane.store.tables import resources as table
from fairlane.store.tables import task_views
from fairlane.store.tables.resources import AccountFilter, AgentUsage, UsageRow

DAY_MS: Final = 86_400_000
HOLDERS_SHOWN: Final = 20
RESERVATIONS_READ: Final = 200  # for the holders; a task has one for its lease and for each permit


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
    connection: Connection,
    policy: Policy,
    now: int,
    *,
    agent: str | None = None,
    after: str = "",
    limit: int = LIST_LIMIT_MAX,
) -> list[AccountView]:
    """Return accounts in the order of resources and keys, from the one after the label `after` on.

    A resource without keys that was never used has an empty one. With `agent`, of resources that
    are counted by agent only that agent's account.
    """
    last, _, last_key = after.partition("/")
    found: list[Account] = []
    for name in sorted(policy.resources):
        declared = policy.resources[name]
        if len(found) >= limit:
            break
        if name < last or (name == last and not declared.levels):
            continue
        wanted = _filter(declared, agent)
        if name == last:
            wanted = wanted._replace(after=last_key)
        stored = table.page_of(connection, name, wanted, limit - len(found))
        if not stored and not declared.levels:
            stored = [Account(0, name, "")]
        found += stored
    return _views(connection, policy, now, found)


def _filter(declared: resources.ResourcePolicy, agent: str | None) -> AccountFilter:
    """Return which accounts of a resource a caller may see; the counterpart of `visible`."""
    if agent is None or "agent" not in declared.levels:
        return AccountFilter()
    if isinstance(declared.by, str):
        return AccountFilter(key=agent)
    return AccountFilter(own=f"agent:{agent}")


def _views(
    connection: Connection, policy: Policy, now: int, found: Sequence[Account]
) -> list[AccountView]:
    blocked = [one.id for one in found if one.blocked]
    waiting = table.count_waiting_for(connection, blocked) if blocked else {}
    for one in found:
        resources.advance(one, policy.resources[one.resource], now)
    return [AccountView(one, now, waiting.get(one.id, 0)) for one in found]


def sampled(connection: Connection, policy: Policy, now: int, limit: int) -> list[AccountView]:
    """Return the accounts whose use is followed: those without keys, and the oldest others."""
    plain = [(name, "") for name, one in policy.resources.items() if not one.levels]
    known = {one.id: one for one in table.accounts(connection, plain)}
    known |= {one.id: one for one in table.oldest_accounts(connection, limit)}
    found = [one for one in known.values() if one.resource in policy.resources]
    return _views(connection, policy, now, found)


def account(
    connection: Connection, policy: Policy, now: int, name: tuple[str, str], agent: str | None
) -> AccountView:
    """Return the account of a resource and key with its holders, of one agent if it is given; a new
    account if it was never used.
    """
    stored = table.accounts(connection, [name])
    if not stored:
        return AccountView(Account(0, *name), now, 0)
    (view,) = _views(connection, policy, now, stored)
    return view._replace(holders=_holders(connection, view.account, agent))


def visible(declared: resources.ResourcePolicy, key: str, agent: str | None) -> bool:
    """Return whether a caller of one agent may see an account: not that of another agent."""
    if agent is None or "agent" not in declared.levels:
        return True
    own = agent if isinstance(declared.by, str) else f"agent:{agent}"
    if isinstance(declared.by, str):
        return key == own
    return key == own or not key.startswith("agent:")


def _holders(connection: Connection, account: Account, agent: str | None) -> list[Holder]:
    held: dict[int, dict[str, int]] = {}
    for one in table.reservations_of(connection, account.id, RESERVATIONS_READ, agent):
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

    def accounts(
        self, clock: Clock, policy: Policy, agent: str | None, after: str, limit: int
    ) -> list[AccountView]:
        """Return accounts of resources that a caller may see."""

        def read(connection: Connection) -> list[AccountView]:
            with connection.snapshot():
                now = self._moment(connection, clock)
                return accounts(connection, policy, now, agent=agent, after=after, limit=limit)

        found: list[AccountView] = self._ask(read)
        return found

    def sampled(self, clock: Clock, policy: Policy, limit: int) -> list[AccountView]:
        """Return the accounts whose use is followed."""

        def read(connection: Connection) -> list[AccountView]:
            with connection.snapshot():
                return sampled(connection, policy, self._moment(connection, clock), limit)

        found: list[AccountView] = self._ask(read)
        return found

    def account(
        self, clock: Clock, policy: Policy, name: str, key: str, agent: str | None
    ) -> AccountView:
        """Return one account with the tasks that hold it."""

        def read(connection: Connection) -> AccountView:
            with connection.snapshot():
                now = self._moment(connection, clock)
                return account(connection, policy, now, (name, key), agent)

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

    def usage_of_agents(self, policy: Policy, now: int, top: int) -> list[AgentUsage]:
        """Return today's use by the `top` agents of each unit, and by all others together."""
        prefixes = {name: one.usage_prefix for name, one in policy.resources.items()}
        found: list[AgentUsage] = self._ask(_usage_of_agents, prefixes, now // DAY_MS, top)
        return found


def _usage_of_agents(
    connection: Connection, prefixes: Mapping[str, str], day: int, top: int
) -> list[AgentUsage]:
    return table.usage_of_agents(connection, prefixes, day=day, top=top)


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
