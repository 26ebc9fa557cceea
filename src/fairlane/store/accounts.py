"""Resources of one transaction: accounts, the lines that wait for them, reservations, the ledger.

Like the counters, they are held as whole rows and written together with the tasks; nothing is
decided here. An account is advanced to the transaction's time when it is first used in it. The
ledger gets an entry for every change of used + reserved, so that its sum is always right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from fairlane.core import amounts, limits, resources
from fairlane.core.lifecycle import QUEUED
from fairlane.core.limits import Limit
from fairlane.core.model import RESOURCE_GATE, Change, Task
from fairlane.core.policy import Policy
from fairlane.core.resources import Account, HeldAmounts, Reservation, ResourcePolicy, WaitLine
from fairlane.store.base import Connection, Row
from fairlane.store.tables import resources as table
from fairlane.store.tables.resources import LineName

RESERVE: Final = "reserve"
SETTLE: Final = "settle"
REFUND: Final = "refund"
DEBT: Final = "debt"
RAISE: Final = "raise"
RESET: Final = "reset"
CLOSE: Final = "close"
OPEN: Final = "open"

_DAY_MS: Final = 86_400_000
_CACHED_MAX: Final = 5_000


class AccountCache:
    """Accounts, lines and reservations as the last commit left them, for a writer that is alone.

    A transaction changes the objects in place, so a rollback must `clear` the cache.
    """

    def __init__(self) -> None:
        self.accounts: dict[tuple[str, str], Account] = {}
        self.by_id: dict[int, Account] = {}
        self.lines: dict[int, WaitLine] = {}
        self.line_names: dict[LineName, WaitLine] = {}
        self.reservations: dict[int, list[Reservation]] | None = None  # all of them, by task
        self.kept: set[int] = set()  # accounts for which permits of this process wait

    def clear(self) -> None:
        self.accounts.clear()
        self.by_id.clear()
        self.lines.clear()
        self.line_names.clear()
        self.reservations = None


class Accounts:
    def __init__(
        self,
        connection: Connection,
        *,
        now: int,
        policy: Policy,
        cache: AccountCache,
        last_number: int,
        open_reservations: int,
    ) -> None:
        self._connection = connection
        self._now = now
        self.policy = policy
        self._cache = cache
        self.last_number = last_number
        self.open_reservations = open_reservations
        self.touched: dict[int, Account] = {}  # accounts that may have room now
        self.kept = cache.kept
        self.ended: list[Change] = []  # ends of leases whose reservations have to be settled
        self.usage_of: dict[int, resources.Needs] = {}  # reported use by task
        # What tasks with the same needs, agent, lane, session and batch need of each account.
        self.demands: dict[tuple[str | None, ...], Any] = {}
        self._of_line: dict[str, list[Account]] = {}  # by the labels of a line
        self.needs: dict[bytes, str] = {}  # as they are stored, by what was written
        self.used: dict[tuple[str, str], int] = {}  # in this transaction, by resource and unit
        self.wrote = False  # then the transaction must be committed: the cache has it too
        self._advanced: set[int] = set()
        self._dirty: set[int] = set()
        self._dirty_lines: set[int] = set()
        self._moved: dict[int, int] = {}  # tasks with their new lines
        self._read: dict[int, list[Reservation]] = {}  # by task, as this transaction leaves them
        self._made: dict[int, Reservation] = {}
        self._gone: list[int] = []
        self._entries: list[Row] = []
        self._usage: dict[tuple[int, str, str, int], list[int]] = {}

    def _next_number(self) -> int:
        self.last_number += 1
        return self.last_number

    # ---------------------------------------------------------------- accounts

    def resource(self, name: str) -> ResourcePolicy | None:
        return self.policy.resources.get(name)

    def account(self, resource: str, key: str) -> Account:
        """Return an account as of now; create it if it does not exist."""
        name = (resource, key)
        found = self._cache.accounts.get(name)
        if found is None:
            self.load_accounts([name])
            found = self._cache.accounts.get(name)
        if found is None:
            found = self._take(Account(self._next_number(), resource, key))
            self._dirty.add(found.id)
        if found.id not in self._advanced:
            self._advance(found)
        return found

    def load_accounts(self, names: Iterable[tuple[str, str]]) -> None:
        missing = [name for name in dict.fromkeys(names) if name not in self._cache.accounts]
        for account in table.accounts(self._connection, missing) if missing else ():
            self._take(account)

    def accounts_by_id(self, ids: Iterable[int]) -> list[Account]:
        """Return accounts as of now, in the order of their numbers."""
        wanted = sorted(set(ids))
        missing = [id_ for id_ in wanted if id_ not in self._cache.by_id]
        for account in table.accounts_by_id(self._connection, missing) if missing else ():
            self._take(account)
        found = [self._cache.by_id[id_] for id_ in wanted]
        for account in found:
            if account.id not in self._advanced:
                self._advance(account)
        return found

    def due(self, limit: int) -> list[Account]:
        """Return up to `limit` accounts that may have room for a line by now."""
        return [
            self._current(account)
            for account in table.due_accounts(self._connection, self._now, limit)
        ]

    def of_resource(self, resource: str, declared: ResourcePolicy | None = None) -> list[Account]:
        """Return the accounts of a resource as of now, by limits other than the policy's if some
        are given.
        """
        stored = table.accounts_of(self._connection, resource)
        return [self._current(one, declared) for one in stored]

    def all_stored(self) -> list[Account]:
        """Return all accounts as they are stored, not advanced: the clock was set."""
        self._cache.clear()
        self.demands.clear()
        self._of_line.clear()
        return [self._take(account) for account in table.all_accounts(self._connection)]

    def next_wake(self) -> int | None:
        return table.next_wake(self._connection)

    def _current(self, stored: Account, declared: ResourcePolicy | None = None) -> Account:
        """Return the account in memory, which is newer, and advance it."""
        known = self._cache.by_id.get(stored.id)
        found = self._take(stored) if known is None else known
        if found.id not in self._advanced:
            self._advance(found, declared)
        return found

    def _take(self, account: Account) -> Account:
        self._cache.accounts[account.resource, account.key] = account
        self._cache.by_id[account.id] = account
        return account

    def _advance(self, account: Account, declared: ResourcePolicy | None = None) -> None:
        self._advanced.add(account.id)
        policy = declared or self.resource(account.resource)
        if policy is None:
            return
        closed = account.closed_until
        for limit, by in resources.advance(account, policy, self._now):
            self.enter(account, limit, RESET, by)
        if closed and not account.closed_until:
            self.save(account)

    def save(self, account: Account) -> None:
        self._dirty.add(account.id)

    def touch(self, account: Account) -> None:
        """Mark the account: it may have room now for a need that did not fit before."""
        self._dirty.add(account.id)
        if account.blocked:
            self.touched[account.id] = account

    # ---------------------------------------------------------------- ledger

    def enter(
        self,
        account: Account,
        limit: Limit,
        kind: str,
        amount: int,
        *,
        used: int = 0,
        task: Task | None = None,
        detail: str | None = None,
    ) -> None:
        """Append a ledger entry. The account already has the new balance."""
        self._dirty.add(account.id)
        self._entries.append(
            (
                self._next_number(),
                account.id,
                limit.slot,
                self._now,
                kind,
                amount,
                limits.committed(limit, account.state(limit)),
                used,
                task.seq if task else None,
                task.agent if task else None,
                detail,
            )
        )

    def count_usage(self, account: Account, unit: str, agent: str, used: int) -> None:
        at = (account.id, unit, agent, self._now // _DAY_MS)
        sums = self._usage.setdefault(at, [0, 0])
        sums[0] = min(sums[0] + used, amounts.BALANCE_MAX)
        sums[1] += 1

    def count_total(self, resource: str, unit: str, used: int) -> None:
        self.used[resource, unit] = self.used.get((resource, unit), 0) + used

    # ---------------------------------------------------------------- lines

    def line(self, name: LineName) -> WaitLine:
        found = self._cache.line_names.get(name)
        if found is None:
            stored = table.wait_lines(self._connection, [name])
            line = stored[0] if stored else WaitLine(self._next_number(), *name, since=self._now)
            found = self._take_line(line)
        return found

    def line_of(self, task: Task, name: Callable[[], LineName]) -> WaitLine:
        """Return the line of a task. If it was forgotten meanwhile, the task moves to the line that
        has its name now: a name has one line.
        """
        assert task.wait is not None
        found = self._cache.lines.get(task.wait)
        if found is None:
            self.load_lines([task.wait])
            found = self._cache.lines.get(task.wait)
        if found is None:
            found = self.line(name())
            task.wait = self._moved[task.seq] = found.id
        return found

    def load_lines(self, ids: Iterable[int]) -> None:
        missing = [id_ for id_ in dict.fromkeys(ids) if id_ not in self._cache.lines]
        for line in table.wait_lines_by_id(self._connection, missing) if missing else ():
            self._take_line(line)

    def first_lines(self, account: Account, limit: int) -> list[WaitLine]:
        """Return the first sleeping lines of an account that have no ready task."""
        changed = [self._cache.lines[id_] for id_ in self._dirty_lines]
        stored = table.first_wait_lines(self._connection, account.id, limit + len(changed))
        every = {line.id: self._take_line(line) for line in stored}
        every.update((line.id, line) for line in changed)
        fitting = [one for one in every.values() if one.account == account.id and not one.awake]
        return sorted(fitting, key=lambda one: (one.share, one.since, one.id))[:limit]

    def charge_turn(self, account: Account, agent: str, turn: float) -> None:
        """Move an agent's sleeping lines back in an account's order, by the amount it took."""
        stored = table.wait_lines_of_agent(self._connection, account.id, agent)
        every = {line.id: self._take_line(line) for line in stored}
        every.update((id_, self._cache.lines[id_]) for id_ in self._dirty_lines)
        for line in every.values():
            if line.account == account.id and line.agent == agent:
                line.share += turn
                self._dirty_lines.add(line.id)

    def _take_line(self, line: WaitLine) -> WaitLine:
        known = self._cache.lines.get(line.id)
        if known is not None:
            return known
        self._cache.lines[line.id] = line
        self._cache.line_names[line.lane, line.agent, line.capability, line.accounts] = line
        return line

    def sleep(self, line: WaitLine, account: Account | None) -> None:
        """Put a line to sleep because of an account; with None, wake it."""
        if account is not None and line.account == account.id:
            return
        if line.account is not None:
            (before,) = self.accounts_by_id([line.account])
            before.blocked -= 1
            self._dirty.add(before.id)
        line.account, line.overtaken, line.since = None, 0, self._now
        self._dirty_lines.add(line.id)
        if account is not None:
            line.account = account.id
            line.share = max(line.share, account.turn)
            account.blocked += 1
            self._dirty.add(account.id)

    def save_line(self, line: WaitLine) -> None:
        self._dirty_lines.add(line.id)

    def count(self, change: Change) -> None:
        """Count a task with needs in its line and accounts."""
        before, after = change.before, change.after
        if before is not None and QUEUED not in (before.state, after.state):
            return
        waited = before is not None and before.state == QUEUED and before.gate == RESOURCE_GATE
        waits = after.state == QUEUED and after.gate == RESOURCE_GATE
        was_ready = before is not None and before.ready
        ready = after.ready
        if waited == waits and was_ready == ready:
            return
        assert after.wait is not None
        line = self._cache.lines.get(after.wait)
        if line is None:
            self.load_lines([after.wait])
            line = self._cache.lines[after.wait]
        line.waiting += waits - waited
        self._dirty_lines.add(line.id)
        if ready != was_ready:
            line.awake += ready - was_ready
            for account in self.accounts_of_line(line):
                account.awake += ready - was_ready
                self._dirty.add(account.id)
                if was_ready and not waits and account.blocked:
                    self.touched[account.id] = account
        if line.account is not None:
            if waited and not waits and not ready:  # the next one of its line may fit
                self.touch(self.accounts_by_id([line.account])[0])
            if not line.waiting:
                self.sleep(line, None)

    def accounts_of_line(self, line: WaitLine) -> list[Account]:
        found = self._of_line.get(line.accounts)
        if found is None:
            names = [label.partition("/") for label in line.accounts.split()]
            found = [self.account(resource, key) for resource, _, key in names]
            self._of_line[line.accounts] = found
        return found

    # ---------------------------------------------------------------- reservations

    def hold(self, task: Task, held: list[HeldAmounts], permit: int = 0) -> Reservation:
        """Record the amounts that a lease or a permit holds. `permit` is the number of a permit."""
        number = self._next_number()
        made = Reservation(number, task.seq, task.fencing_token, self._now, held, permit and number)
        self._made[number] = made
        self.open_reservations += 1
        if self._cache.reservations is not None:
            self._cache.reservations.setdefault(task.seq, []).append(made)
        if task.seq in self._read:
            self._read[task.seq].append(made)
        return made

    def reservations(self, seqs: Sequence[int], *, alone: bool) -> dict[int, list[Reservation]]:
        """Return the open reservations of tasks."""
        if alone:
            if self._cache.reservations is None:
                self._cache.reservations = _by_task(table.all_reservations(self._connection))
                for one in self._made.values():
                    self._cache.reservations.setdefault(one.seq, []).append(one)
            return {seq: list(self._cache.reservations.get(seq, ())) for seq in seqs}
        missing = [seq for seq in dict.fromkeys(seqs) if seq not in self._read]
        if missing:
            found = _by_task(table.reservations(self._connection, missing))
            for one in self._made.values():
                if one.seq in missing:
                    found.setdefault(one.seq, []).append(one)
            gone = set(self._gone)
            for seq in missing:
                self._read[seq] = [one for one in found.get(seq, ()) if one.id not in gone]
        return {seq: list(self._read[seq]) for seq in seqs}

    def drop(self, reservation: Reservation) -> None:
        """Forget a reservation that was settled."""
        self.open_reservations -= 1
        if self._made.pop(reservation.id, None) is None:
            self._gone.append(reservation.id)
        read = self._read.get(reservation.seq, [])
        read[:] = [one for one in read if one.id != reservation.id]
        if self._cache.reservations is not None:
            left = self._cache.reservations.get(reservation.seq, [])
            left[:] = [one for one in left if one.id != reservation.id]
            if not left:
                self._cache.reservations.pop(reservation.seq, None)

    # ---------------------------------------------------------------- save

    def write(self) -> None:
        connection = self._connection
        if self._dirty or self._dirty_lines:
            self.wrote = True
        if self._dirty:
            found = [self._cache.by_id[id_] for id_ in sorted(self._dirty)]
            table.save_accounts(connection, [(one, self._idle_at(one)) for one in found])
            self._dirty.clear()
        if self._dirty_lines:
            lines = [self._cache.lines[id_] for id_ in sorted(self._dirty_lines)]
            table.save_wait_lines(connection, lines)
            self._dirty_lines.clear()
        if self._moved:
            table.move_tasks(connection, self._moved)
            self._moved = {}
        if self._made:
            self._note_permits()
            table.insert_reservations(connection, self._made.values())
            self._made = {}
        if self._gone:
            table.delete_reservations(connection, self._gone)
            self._gone = []
        if self._entries:
            table.insert_entries(connection, self._entries)
            self._entries = []
        if self._usage:
            table.add_usage(connection, [(*at, *sums) for at, sums in self._usage.items()])
            self._usage = {}

    def _note_permits(self) -> None:
        """Note in new permits what is taken in all, with the grants of the whole transaction."""
        for permit in self._made.values():
            for held in permit.held if permit.permit else ():
                account = self._cache.by_id[held.account]
                policy = self.resource(account.resource)
                held.notes = resources.notes(account, policy, held.amounts)

    def _idle_at(self, account: Account) -> int | None:
        return resources.idle_at(account, self.resource(account.resource), self._now)

    def save_to_cache(self) -> None:
        """Keep the cache within bounds, after the commit."""
        if len(self._cache.accounts) > _CACHED_MAX or len(self._cache.lines) > _CACHED_MAX:
            self._cache.clear()


def _by_task(found: Iterable[Reservation]) -> dict[int, list[Reservation]]:
    by_task: dict[int, list[Reservation]] = {}
    for one in found:
        by_task.setdefault(one.seq, []).append(one)
    return by_task
