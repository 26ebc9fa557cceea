"""Waking: lines that sleep because of an account get their turn when the account has room again.

The line whose agent took least while it competed, divided by its weight, wakes first; ties go to
the longest wait. A woken task is ready but holds nothing, so a line without a worker does not keep
others asleep: after leasing, the accounts are checked again. A line that does not fit lets smaller
ones pass a bounded number of times; then the free amount is reserved for it. Each check is bounded,
and `Account.wake_at` is the time of the next one.
"""

from __future__ import annotations

import heapq
from typing import Final

from fairlane.core import gates, leases, lifecycle, resources
from fairlane.core.model import Task
from fairlane.core.resources import Account, Blocked, WaitLine
from fairlane.engine.verbs import budgets
from fairlane.engine.verbs.resources import (
    AWAKE_MAX,
    demands,
    first_blocked,
    settle_ended,
    wake_by,
)
from fairlane.store.transaction import Transaction

LINES_MAX: Final = 32  # lines that one check considers
WOKEN_MAX: Final = 256  # tasks that one transaction wakes
OVERTAKEN_MAX: Final = 8
ACCOUNTS_MAX: Final = 500
SPENT_ERROR: Final = "resource_spent"  # of tasks that a spent budget ended; part of the API


def tick(tx: Transaction) -> None:
    """Check the accounts that may have room by now."""
    due = tx.accounts.due(ACCOUNTS_MAX)
    for account in due:
        account.wake_at = None
        tx.accounts.touch(account)
    if len(due) == ACCOUNTS_MAX:
        tx.note_due(tx.now)
    tx.note_due(tx.accounts.next_wake())


def wake(tx: Transaction) -> int:
    """Wake the tasks that fit in changed accounts; return how many."""
    settle_ended(tx)
    woken = 0
    while tx.accounts.touched and woken < WOKEN_MAX:
        id_ = next(iter(tx.accounts.touched))
        account = tx.accounts.touched.pop(id_)
        if account.blocked:
            woken += _Look(tx, account, WOKEN_MAX - woken).run()
    for account in tx.accounts.touched.values():
        account.wake_at = tx.now
        tx.accounts.save(account)
        tx.note_due(tx.now)
    return woken


def follow_up(tx: Transaction) -> None:
    """Check the accounts again after leasing."""
    for account in tx.accounts.accounts_by_id(tx.woken_at):
        tx.accounts.touch(account)
    tx.woken_at.clear()
    if tx.accounts.touched and wake(tx):
        for account in tx.accounts.accounts_by_id(tx.woken_at):
            wake_by(tx, account, tx.now)
        tx.woken_at.clear()


class _Look:
    """One check of the lines that sleep because of one account."""

    def __init__(self, tx: Transaction, account: Account, most: int) -> None:
        self.tx = tx
        self.account = account
        self.most = most
        self.taken: dict[int, dict[str, int]] = {}  # by tasks woken in this check
        self.turns: dict[str, float] = {}
        self.passed: list[WaitLine] = []
        self.woken = 0
        self.wake_at: int | None = None
        self.refused: dict[str | None, bool] = {}  # whether a person did not raise spent budgets

    def run(self) -> int:
        tx, account = self.tx, self.account
        lines = tx.accounts.first_lines(account, LINES_MAX)
        heads: dict[int, list[Task]] = {line.id: [] for line in lines}
        depth = max(1, self.most // max(1, len(lines))) if account.awake < AWAKE_MAX else 1
        for task in tx.lookup.waiting_tasks([line.id for line in lines], depth):
            assert task.wait is not None
            heads[task.wait].append(task)
        tx.counters.prepare(task for tasks in heads.values() for task in tasks)
        queue = [(line.share, line.since, line.id, line) for line in lines]
        heapq.heapify(queue)
        while queue and self.woken < self.most:
            line = heapq.heappop(queue)[-1]
            if not heads[line.id]:
                continue
            task = heads[line.id][0]
            found = first_blocked(tx, demands(tx, task), self.taken)
            if found is None:
                heads[line.id].pop(0)
                turn = self._wake(line, task)
                heapq.heappush(queue, (turn, line.since, line.id, line))
            elif found[0] is not account:
                tx.accounts.sleep(line, found[0])
                wake_by(tx, found[0], found[1].at)
                if found[1].spent:
                    tx.accounts.touch(found[0])
            elif found[1].spent and self._spent(task, found[1]):
                heads[line.id].pop(0)
                heapq.heappush(queue, (line.share, line.since, line.id, line))
            elif self._pass(line, found[1]):
                break
        self._finish(more=bool(queue) or self.woken >= self.most)
        return self.woken

    def _wake(self, line: WaitLine, task: Task) -> float:
        """Make a task ready; return the place of its line after that."""
        tx = self.tx
        tx.apply(gates.promote(task, tx.now))
        tx.woken_at.add(self.account.id)
        self.woken += 1
        cost = 0.0
        for demand in demands(tx, task):
            taken = self.taken.setdefault(demand.account.id, {})
            for unit, need in demand.amounts.items():
                taken[unit] = taken.get(unit, 0) + need
            if demand.account is self.account and demand.policy is not None:
                cost = resources.cost(demand.policy, demand.amounts)
        for other in self.passed:
            other.overtaken += 1
            tx.accounts.save_line(other)
        line.overtaken = 0
        place = line.share + self.turns.get(line.agent, 0.0)
        self.account.turn = max(self.account.turn, place)
        turn = cost / tx.policy.weight(line.agent)
        self.turns[line.agent] = self.turns.get(line.agent, 0.0) + turn
        return place + turn

    def _pass(self, line: WaitLine, why: Blocked) -> bool:
        """Leave a line asleep; return whether the free amount is reserved for it."""
        self.passed.append(line)
        if why.at is not None and (self.wake_at is None or why.at < self.wake_at):
            self.wake_at = why.at
        return line.overtaken >= OVERTAKEN_MAX

    def _spent(self, task: Task, why: Blocked) -> bool:
        """Apply the resource's `whenSpent` to a task; return whether the task stops waiting."""
        policy = self.tx.accounts.resource(self.account.resource)
        if policy is None or policy.when_spent == resources.WAIT:
            return False
        if policy.when_spent == resources.ASK and not self._refused(why):
            return False
        verb = lifecycle.FAIL if policy.when_spent == resources.FAIL else lifecycle.PARK
        self.tx.apply(leases.give_up(task, verb, _reason(why), self.tx.now))
        return True

    def _refused(self, why: Blocked) -> bool:
        """Return whether a person refused to raise the budget; ask one who has not been asked."""
        if why.slot not in self.refused:
            self.refused[why.slot] = budgets.ask(self.tx, self.account, why)
        return self.refused[why.slot]

    def _finish(self, *, more: bool) -> None:
        tx, account = self.tx, self.account
        for agent, turn in self.turns.items():
            tx.accounts.charge_turn(account, agent, turn)
        account.wake_at = None
        tx.accounts.save(account)
        if more and self.woken:
            wake_by(tx, account, tx.now)
        else:
            wake_by(tx, account, self.wake_at)


def _reason(why: Blocked) -> str:
    return f"{SPENT_ERROR}: {why.account} does not have enough {why.unit} left until it resets"
