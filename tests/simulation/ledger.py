"""What the checks know: the rows as they stand, and the counters that must follow from them.

`Books` is kept up to date from differences between two readings of the task table, so that the
check after every step costs as much as has changed. It shares no code with the counters, gates
and orders that it is compared with.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from fairlane.core.model import Task
from fairlane.store.queries import column, column_list

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import apsw

    from fairlane.store.sqlite import SqliteStore

LIVE: Final = ("waiting_dependency", "queued", "assigned", "running")
ENDS: Final = ("done", "failed", "cancelled", "rejected")
COUNTERS: Final = (
    "queued",
    "ready",
    "urgent",
    "inflight",
    "slots",
    "parked",
    "submitted",
    "completed",
    "failed",
    "cancelled",
    "rejected",
    "expired",
    "dispatched",
    "waited_ms",
)
(
    QUEUED,
    READY,
    URGENT,
    INFLIGHT,
    SLOTS,
    PARKED,
    SUBMITTED,
    COMPLETED,
    FAILED,
    CANCELLED,
    REJECTED,
    EXPIRED,
    DISPATCHED,
    WAITED_MS,
) = range(len(COUNTERS))
# What may change about a task is read after every step, the whole row only when it has.
_MOVING: Final = (
    *("seq", "line", "rank", "state", "gate", "attempts", "deadline_at", "eligible_at"),
    *("queued_at", "started_at", "completed_at", "fencing_token", "worker", "lease_expires_at"),
    *("unmet", "preempt", "deadline_ms"),
)
_MOVING_SQL: Final = f"SELECT {', '.join(map(column, _MOVING))} FROM task ORDER BY seq"
_TASK_SQL: Final = f"SELECT {column_list(Task)} FROM task"
_LINE_SQL: Final = f"SELECT lane, agent, route, share, served, {', '.join(COUNTERS)} FROM line"
_LANE_SQL: Final = f"SELECT name, {', '.join(COUNTERS)} FROM lane"
_EVENT_SQL: Final = "SELECT id, seq, at, type, attempt, detail, batch FROM event WHERE id > ?"
_BATCH_SQL: Final = """SELECT id, seq, parallelism, total, callback_url, open, holders, waiting,
  cancelled, completed_at FROM batch"""
_SESSION_SQL: Final = """SELECT key, holders, waiting, debouncing, later, settings, tokens,
  context_window, cutoff_at, generation, touched_at, interrupted FROM session"""
# The columns that a task is born with and keeps.
FIXED: Final = (
    "seq",
    "id",
    "kind",
    "lane",
    "agent",
    "capability",
    "priority",
    "session",
    "batch",
    "max_attempts",
    "position",
    "created_at",
    "callback_url",
    "delay_ms",
)

Row = tuple[Any, ...]


class Event(NamedTuple):
    """A row of the event table: `seq` is the task's, None for an event of a batch."""

    id: int
    seq: int | None
    at: int
    type: str
    attempt: int
    detail: str | None
    batch: str | None


class Group(NamedTuple):
    """A row of the batch table."""

    id: str
    seq: int
    parallelism: int | None
    total: int
    callback_url: str | None
    open: int
    holders: int
    waiting: int
    cancelled: int
    completed_at: int | None


class Seen(msgspec.Struct):
    """A row that differs from the last reading; `before` is None when it was not there.

    `word` are the events that it left since then, oldest first.
    """

    before: Task | None
    after: Task
    word: list[Event] = []

    @property
    def granted(self) -> bool:
        return self.after.fencing_token != (self.before.fencing_token if self.before else 0)

    def has(self, *types: str) -> bool:
        """Whether one of its events is of these types."""
        return any(event.type in types for event in self.word)

    @property
    def closed(self) -> Task | None:
        """The row whose open lease is over now."""
        before = self.before
        if before is None or before.lease_expires_at is None:
            return None
        over = (
            self.after.lease_expires_at is None or self.after.fencing_token != before.fencing_token
        )
        return before if over else None


class Reader:
    """Reads the tables as they are, on a connection of its own."""

    def __init__(self, store: SqliteStore) -> None:
        self._connection: apsw.Connection = store.open_file(readonly=True)
        self._version = -1
        self._rows: dict[int, Row] = {}
        self.tasks: dict[int, Task] = {}

    def news(self) -> bool:
        """Whether anybody has committed anything since this was last asked."""
        known, self._version = self._version, self._connection.pragma("data_version")
        return self._version != known

    def sql(self, text: str, values: tuple[Any, ...] = ()) -> list[Row]:
        return self._connection.execute(text, values).fetchall()

    def differences(self) -> tuple[list[Seen], list[Task]]:
        """What has changed in the task table since the last call, and what has gone."""
        rows = {row[0]: row for row in self.sql(_MOVING_SQL)}
        moved = [seq for seq, row in rows.items() if self._rows.get(seq) != row]
        changed = []
        if moved:
            wanted = f"{_TASK_SQL} WHERE seq IN ({', '.join(map(str, moved))}) ORDER BY seq"
            for row in self.sql(wanted):
                after = Task(*row)
                changed.append(Seen(self.tasks.get(after.seq), after))
                self.tasks[after.seq] = after
        gone = [self.tasks.pop(seq) for seq in self._rows if seq not in rows]
        self._rows = rows
        return changed, gone

    def replace(self, task: Task) -> None:
        """Take `task` for what was read last."""
        self.tasks[task.seq] = task
        self._rows[task.seq] = tuple(getattr(task, name) for name in _MOVING)

    def task_rows(self) -> list[Row]:
        return self.sql(_TASK_SQL)

    def lines(self, pairs: Collection[tuple[str, str]] | None = None) -> list[Row]:
        """All lines, or those of some agents in some lanes."""
        if pairs is None:
            return self.sql(_LINE_SQL)
        places = ", ".join(["(?, ?)"] * len(pairs))
        names = tuple(name for pair in pairs for name in pair)
        return self.sql(f"{_LINE_SQL} WHERE (lane, agent) IN (VALUES {places})", names)

    def lanes(self) -> list[Row]:
        return self.sql(_LANE_SQL)

    def sessions(self) -> list[Row]:
        return self.sql(_SESSION_SQL)

    def events(self, after: int) -> list[Event]:
        return [Event(*row) for row in self.sql(f"{_EVENT_SQL} ORDER BY id", (after,))]

    def batches(self) -> dict[str, Group]:
        return {row[0]: Group(*row) for row in self.sql(_BATCH_SQL)}

    def edges(self, *, every: bool) -> list[Row]:
        """All edges, or those that are open."""
        only = "" if every else " WHERE state = 0"
        return self.sql(f"SELECT child, parent, state FROM dependency{only}")

    def unsettled(self) -> dict[str, int]:
        """Parents whose end has not reached all of their children, and where their edges go."""
        return dict(self.sql("SELECT parent, edges FROM unsettled"))

    def deliveries(self) -> list[Row]:
        return self.sql("SELECT id, seq, event, state FROM delivery")

    def close(self) -> None:
        self._connection.close()


class Books:
    """Counters, ready tasks and session turns, as they follow from the rows."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, str, str], list[int]] = defaultdict(_zeros)
        self.lanes: dict[str, list[int]] = defaultdict(_zeros)
        self.slots: dict[tuple[str, str], int] = defaultdict(int)  # by lane and agent
        self.served: dict[tuple[str, str], int] = defaultdict(int)  # token of the newest lease
        self.touched: set[tuple[str, str]] = (
            set()
        )  # lanes and agents that moved since the last check
        self.ready: dict[str, dict[str, dict[int, Task]]] = {}  # by lane, agent and seq
        self.holders: dict[str, dict[int, Task]] = {}  # by session: who has the turn
        self.waiting: dict[str, dict[int, Task]] = {}  # by session: who waits for it
        self.debouncing: dict[str, dict[int, Task]] = {}  # by session: who may still grow
        self.later: dict[str, dict[int, Task]] = {}  # by session: who has not come to it yet
        self.members: dict[str, list[int]] = {}  # by batch: open, with a place, next to get one
        self.blocked: dict[int, Task] = {}  # by seq: who waits for others

    def move(self, before: Task | None, after: Task | None) -> None:
        """Let `after` stand where `before` stood."""
        if before is not None:
            self._add(before, -1)
        if after is not None:
            self._add(after, 1)

    def count(self, task: Task, counter: int, by: int = 1) -> None:
        self.touched.add((task.lane, task.agent))
        self.lines[task.lane, task.agent, task.capability][counter] += by
        self.lanes[task.lane][counter] += by

    def overall_slots(self) -> int:
        return sum(lane[SLOTS] for lane in self.lanes.values())

    def ready_for(self, lane: str, routes: frozenset[str]) -> Iterator[Task]:
        for tasks in self.ready.get(lane, {}).values():
            for task in tasks.values():
                if task.capability in routes:
                    yield task

    def _add(self, task: Task, sign: int) -> None:
        state, leased = task.state, task.lease_expires_at is not None
        ready = state == "queued" and task.gate is None
        if state in ("queued", "waiting_dependency"):
            self.count(task, QUEUED, sign)
            if ready:
                self._add_ready(task, sign)
        elif state in LIVE:
            self.count(task, INFLIGHT, sign)
        elif state == "parked":
            self.count(task, PARKED, sign)
        if leased:
            self.count(task, SLOTS, sign)
            self.slots[task.lane, task.agent] += sign
        if state == "waiting_dependency":
            _put(self.blocked, task, sign)
        if task.session is not None:
            self._add_to_session(task, task.session, sign)
        if task.batch is not None:
            members = self.members.setdefault(task.batch, [0, 0, 0])
            members[0] += sign * (state not in ENDS)
            members[1] += sign * (leased or ready)
            members[2] += sign * (state == "queued" and task.gate == "batch")

    def _add_ready(self, task: Task, sign: int) -> None:
        self.count(task, READY, sign)
        if task.priority <= -20:
            self.count(task, URGENT, sign)
        _keep(self.ready.setdefault(task.lane, {}), task.agent, task, sign)

    def _add_to_session(self, task: Task, session: str, sign: int) -> None:
        queued, leased = task.state == "queued", task.lease_expires_at is not None
        if queued and task.gate == "session":
            _keep(self.waiting, session, task, sign)
        elif queued and task.gate == "debounce":
            _keep(self.debouncing, session, task, sign)
        elif leased or (queued and not _is_new_and_delayed(task)):
            _keep(self.holders, session, task, sign)
        elif task.state not in ENDS:
            _keep(self.later, session, task, sign)


def _is_new_and_delayed(task: Task) -> bool:
    """It has not had its session's turn yet; between two attempts it keeps the turn."""
    return task.gate == "delay" and task.fencing_token == 0


def _zeros() -> list[int]:
    return [0] * len(COUNTERS)


def _keep(groups: dict[str, dict[int, Task]], key: str, task: Task, sign: int) -> None:
    group = groups.setdefault(key, {})
    _put(group, task, sign)
    if not group:
        del groups[key]


def _put(group: dict[int, Task], task: Task, sign: int) -> None:
    if sign > 0:
        group[task.seq] = task
    else:
        group.pop(task.seq, None)
