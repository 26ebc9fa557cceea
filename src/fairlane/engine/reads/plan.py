"""The plan: what a lease would return now, or at another time, and why other tasks wait.

A plan is a draft (`store/draft.py`) of exactly what a lease does: time passes, sessions and batches
settle, and `leasing.lease` selects. It reads one snapshot, writes nothing, locks nothing, and gives
the same bytes for the same store and time. It lists a bounded number of tasks for each reason; the
totals come from counters where they exist, so a plan costs the same for a million tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from fairlane.core import lifecycle
from fairlane.core.errors import NotFound
from fairlane.core.model import (
    APPROVAL_GATE,
    BATCH_GATE,
    DEBOUNCE_GATE,
    DELAY_GATE,
    DEPENDENCY_GATE,
    RESOURCE_GATE,
    SESSION_GATE,
    SUSPEND_GATE,
    Task,
)
from fairlane.core.policy import LanePolicy, Policy, nearest
from fairlane.engine.commands import Lease
from fairlane.engine.engine import parse_stored_policy
from fairlane.engine.verbs import leasing, ticks, waking
from fairlane.store.base import Connection
from fairlane.store.draft import DraftLookup
from fairlane.store.tables import policy as policy_table
from fairlane.store.tables import scheduler
from fairlane.store.tables import tasks as task_table
from fairlane.store.transaction import Transaction

PARKED: Final = "parked"
TERMINAL: Final = "terminal"
LEASED: Final = "leased"  # its lease has expired and will be reclaimed
BACKOFF: Final = "backoff"
CEILING: Final = "concurrency-ceiling"
PAUSED: Final = "paused"
LIMIT: Final = "limit"  # it could run too, but the plan's limit is reached

GATES: Final = (
    DEPENDENCY_GATE,
    DELAY_GATE,
    DEBOUNCE_GATE,
    APPROVAL_GATE,
    SESSION_GATE,
    BATCH_GATE,
    RESOURCE_GATE,
    SUSPEND_GATE,
)
COUNT_MAX: Final = 10_000  # tasks behind one gate are counted up to this
_LOOK: Final = 1000  # the listed tasks are among this many that ended last
_PLANNER: Final = "plan"
_NO_CEILING: Final = 2**31


class PlanQuery(msgspec.Struct, frozen=True):
    """`now` None means the present; `limit` applies to the leases and to each reason."""

    lane: str
    now: int | None
    limit: int


class Plan(msgspec.Struct, frozen=True):
    """`counts` are of all tasks, listed or not; the true number of those in `at_least` may be
    higher.
    """

    lane: str
    now: int
    policy_version: int
    ceiling: int
    in_flight: int
    available: int
    leases: list[Task]
    skipped: list[tuple[Task, str]]
    counts: dict[str, int]
    at_least: list[str]

    @property
    def truncated(self) -> bool:
        more = self.counts.get(LIMIT, 0)
        return bool(more) or sum(self.counts.values()) > len(self.skipped)


def read(connection: Connection, asked: PlanQuery, moment: Callable[[Connection], int]) -> Plan:
    """Return the plan of one snapshot; `moment` returns the present there."""
    with connection.snapshot():
        now = moment(connection) if asked.now is None else asked.now
        tx = draft(connection, now)
        if asked.lane not in tx.policy.lanes:
            hint = nearest(asked.lane, tx.policy.lanes)
            raise NotFound(f'lane "{asked.lane[:64]}" is not in the policy{hint}')
        return plan(tx, asked.lane, asked.limit)


def plan(tx: Transaction, lane: str, limit: int) -> Plan:
    expired = _pass_time(tx, lane)
    in_flight, available = tx.counters.lane(lane).slots, leasing.free_slots(tx, lane)
    leases = _lease(tx, lane, limit)
    taken = {task.seq for task in leases}
    reasons = _Reasons(tx, {seq for seq in expired if seq not in taken})
    reasons.add_ready(lane, limit, full=len(leases) == limit)
    reasons.add_held(lane, limit)
    reasons.add_parked(lane, limit)
    reasons.add_terminal(lane, limit)
    return Plan(
        lane=lane,
        now=tx.now,
        policy_version=tx.policy_version,
        ceiling=tx.policy.lanes[lane].max_inflight,
        in_flight=in_flight,
        available=available,
        leases=leases,
        skipped=sorted(reasons.skipped, key=lambda pair: (pair[0].rank, pair[0].seq)),
        counts=reasons.positive(),
        at_least=reasons.at_least,
    )


def draft(connection: Connection, now: int) -> Transaction:
    """Return a transaction on a snapshot that is never written."""
    row = scheduler.view(connection)
    return Transaction(
        connection, now=now, row=row, policy=policy_in_force(connection), lookup=DraftLookup
    )


def policy_in_force(connection: Connection) -> Policy:
    newest = policy_table.newest(connection)
    return Policy() if newest is None else _policy(*newest)


@lru_cache(maxsize=8)
def _policy(version: int, document: str) -> Policy:
    return parse_stored_policy(version, document)


def _pass_time(tx: Transaction, lane: str) -> set[int]:
    """Do what every transaction begins with at this time; return tasks with expired leases."""
    lanes = ticks.by_hand(tx)
    late = tx.lookup.tasks(task_table.abandoned, now=tx.now, limit=ticks.STEP, by_hand=lanes)
    ticks.tick(tx, tx.now)
    # Children of tasks that end now are cancelled with them; that makes none of them ready.
    tx.settling.clear()
    tx.unsettled = 0
    ticks.settle(tx, tx.now)
    waking.wake(tx)
    return {task.seq for task in late if task.lane == lane and not task.terminal}


def _lease(tx: Transaction, lane: str, limit: int) -> list[Task]:
    capabilities = frozenset(tx.lookup.ready_capabilities(lane))
    asked = Lease(_PLANNER, (lane,), capabilities, limit, None)
    return [grant.task for grant in leasing.lease(tx, [asked], tx.now)[0]]


class _Reasons:
    """Why tasks are not leased: examples of each reason, and how many there are."""

    def __init__(self, tx: Transaction, expired: set[int]) -> None:
        self.tx = tx
        self.expired = expired
        self.skipped: list[tuple[Task, str]] = []
        self.counts: dict[str, int] = {LEASED: len(expired)} if expired else {}
        self.at_least: list[str] = []

    def positive(self) -> dict[str, int]:
        return {
            reason: self.counts[reason] for reason in sorted(self.counts) if self.counts[reason]
        }

    def add_ready(self, lane: str, limit: int, *, full: bool) -> None:
        """Add ready tasks in the order in which they would take free slots."""
        tx, settings = self.tx, self.tx.policy.lanes[lane]
        reason = PAUSED if settings.paused else CEILING
        if full and not settings.paused and leasing.free_slots(tx, lane):
            reason = LIMIT
        self._count(reason, tx.counters.lane(lane).ready)
        for seq in self.expired:
            self._count(_reason(tx.task(seq)) or reason, -1)
        if tx.counters.lane(lane).ready:
            policy = tx.policy
            tx.use_policy(_without_ceilings(policy, lane))
            moved = dict(tx.unwritten.updates)
            later = _lease(tx, lane, limit)
            was = _before(tx)
            self._list([moved.get(task.seq) or was[task.seq] for task in later], reason)
            tx.use_policy(policy)

    def add_held(self, lane: str, limit: int) -> None:
        for gate in GATES:
            tasks = self.tx.lookup.tasks(task_table.held, lane=lane, gate=gate, limit=limit)
            if len(tasks) < limit:
                for task in tasks:
                    self._count(_reason_of(gate, tried=task.attempts > 0), 1)
            else:
                self._count_held(lane, gate)
            self._list(tasks)

    def add_parked(self, lane: str, limit: int) -> None:
        self._count(PARKED, self.tx.counters.lane(lane).parked)
        self._list(self.tx.lookup.tasks(task_table.parked, lane=lane, limit=limit))

    def add_terminal(self, lane: str, limit: int) -> None:
        tally = self.tx.counters.lane(lane)
        ended = tally.completed + tally.failed + tally.cancelled + tally.rejected
        self._count(TERMINAL, ended)
        if ended:
            tasks = self.tx.lookup.tasks(task_table.ended_last, lane=lane, look=_LOOK, limit=limit)
            self._list(tasks)

    def _count_held(self, lane: str, gate: str) -> None:
        counts = task_table.count_held(self.tx.connection, lane, gate, COUNT_MAX)
        full = sum(number for _, number in counts) >= COUNT_MAX
        for tried, number in counts:
            reason = _reason_of(gate, tried=tried)
            self._count(reason, number)
            self.at_least += [reason] if full else []
        was = _before(self.tx)
        for seq, task in self.tx.unwritten.updates.items():
            for one, sign in ((was[seq], -1), (task, 1)):
                if one.lane == lane and one.gate == gate:
                    self._count(_reason_of(gate, tried=one.attempts > 0), sign)

    def _count(self, reason: str, number: int) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + number

    def _list(self, tasks: Iterable[Task], ready: str = CEILING) -> None:
        """Add tasks; `ready` is the reason if no gate holds them."""
        for task in tasks:
            late = task.seq in self.expired
            self.skipped.append((task, LEASED if late else _reason(task) or ready))


def _before(tx: Transaction) -> dict[int, Task]:
    """Return the changed tasks as the snapshot has them."""
    was: dict[int, Task] = {}
    for change in tx.changes:
        assert change.before is not None, "a plan submits no tasks"
        was.setdefault(change.after.seq, change.before)
    return was


def _reason(task: Task) -> str | None:
    """Return what holds a task back; None if it is ready."""
    if task.gate is not None:
        return _reason_of(task.gate, tried=task.attempts > 0)
    if task.state == lifecycle.PARKED:
        return PARKED
    return TERMINAL if task.terminal else None


def _reason_of(gate: str, *, tried: bool) -> str:
    return BACKOFF if gate == DELAY_GATE and tried else gate


def _without_ceilings(policy: Policy, lane: str) -> Policy:
    """Return the policy under which everything that is ready would be leased, in its order."""
    settings: Mapping[str, LanePolicy] = policy.lanes
    free = LanePolicy(max_inflight=_NO_CEILING, strategy=settings[lane].strategy)
    agents = {
        name: msgspec.structs.replace(agent, max_inflight=None)
        for name, agent in policy.agents.items()
    }
    lanes = {**settings, lane: free}
    return msgspec.structs.replace(policy, max_inflight=None, lanes=lanes, agents=agents)
