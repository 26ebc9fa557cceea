"""What must hold after every step, whatever went wrong. Each rule has a name.

Everything is judged from the tables as they are and from the history of what was asked: a change
needs a request of the same step, or the clock, as its cause, so that a step whose answer got lost
is judged like any other. Here is the order of the checks and what each change means for the books;
the rules themselves stand in the files beside: `histories` (one task), `families` (dependencies),
`groups` (batches), `talks` and `marks` (sessions), `grants` (who got what), `answers` and
`accounts`.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec

from fairlane.core import leases
from fairlane.core.policy import from_document
from fairlane.engine.commands import Complete, Renew, Start
from tests.simulation import ledger, steps
from tests.simulation.accounts import Accounts
from tests.simulation.answers import Answers
from tests.simulation.causes import CLOSERS, Causes, Step, Violation, demand
from tests.simulation.grants import Grants
from tests.simulation.ground import Ground
from tests.simulation.histories import COMPLETED, ENDINGS, FAILED, PARKED, REQUEUED
from tests.simulation.ledger import ENDS, FIXED, LIVE, Event, Row, Seen

if TYPE_CHECKING:
    from fairlane.core.model import Task
    from fairlane.core.policy import Policy
    from fairlane.store.sqlite import SqliteStore

_fixed: Final = attrgetter(*FIXED)
END_COUNTERS: Final = {
    "done": ledger.COMPLETED,
    "failed": ledger.FAILED,
    "cancelled": ledger.CANCELLED,
    "rejected": ledger.REJECTED,
}
CLOSE_LOOK_EVERY: Final = 10  # steps; and after every fault
REJECTED_KEPT_MS: Final = 3_600_000
FOREVER: Final = 2**62
_SCHEDULER: Final = "SELECT last_seq, last_token, policy_version, last_event, open_edges, unsettled"


class Invariants:
    def __init__(self, store: SqliteStore) -> None:
        self.ground = Ground(store)
        self._accounts = Accounts(self.ground, store)
        self._answers = Answers(self.ground)
        self._grants = Grants(self.ground)
        self.ended: Counter[str] = Counter()
        self.admitted = 0
        self._policy_version = 0
        self._last_seq = 0
        self._last_event = 0
        self._new_policy = False

    @property
    def policy(self) -> Policy:
        return self.ground.policy

    @property
    def changed(self) -> list[Seen]:
        return self.ground.changed

    def ids_of(self, *states: str) -> list[str]:
        """The tasks that are in one of these states and kept."""
        return [task.id for task in self.ground.reader.tasks.values() if task.state in states]

    @property
    def orphans(self) -> list[str]:
        """Tasks that were cancelled because of others."""
        return sorted(self.ground.families.orphans)

    @property
    def busy(self) -> bool:
        """Something has not ended, is still leased, or is still owed."""
        return bool(self._left()) or "due" in self.ground.delivery_states.values()

    def close(self) -> None:
        self.ground.reader.close()
        self._accounts.close()

    def check(self, step: Step) -> None:
        """Compare the tables with what `step` may have done. Raises `Violation`."""
        ground = self.ground
        news = ground.reader.news()
        gone: list[Task] = []
        ground.changed = []
        if step.stepped_ms:
            steps.take_in(ground, step.stepped_ms, step.now)
        if news:
            ground.changed, gone = ground.reader.differences()
        scheduler = self._read_scheduler()
        last_seq, last_token, _, _, open_edges, unsettled = scheduler
        causes = Causes(step.batch, step.now)
        ground.families.begin()
        ground.groups.begin()
        self._read_events(scheduler[3])
        turns = self._turns(step)
        ground.talks.begin(step, turns)
        for seen in ground.changed:
            self._judge_change(seen, causes)
        for task in gone:
            self._judge_gone(task, step, causes)
        demand("sequence", last_seq >= self._last_seq, f"{self._last_seq} became {last_seq}")
        self._last_seq = last_seq
        close = step.number % CLOSE_LOOK_EVERY == 0 or bool(step.fault)
        if news:
            self._judge_families(open_edges, unsettled, close=close)
            self._judge_groups(step, gone, close=close)
        self._grants.judge(step, last_token)
        ground.marks.policy = ground.policy.sessions
        ground.talks.judge(step, causes)
        self._grants.judge_turns(turns)
        self._answers.judge_keys(step, gone)
        if step.outcome is not None:
            self._answers.judge(step, step.outcome, causes, gone)
            if not step.neighbour:
                self._judge_time(step, unsettled)
        self._judge_accounts(step, causes, gone, news=news, close=close)

    def _turns(self, step: Step) -> dict[str, list[int]]:
        """The sessions in which something may have happened, and who had the turn there."""
        books = self.ground.books
        keys = {seen.after.session for seen in self.ground.changed if seen.after.session}
        keys |= self.ground.talks.keys(step)
        if self._new_policy:
            keys |= books.holders.keys() | books.waiting.keys()
        return {key: list(books.holders.get(key, ())) for key in sorted(keys)}

    def _judge_accounts(
        self, step: Step, causes: Causes, gone: list[Task], *, news: bool, close: bool
    ) -> None:
        accounts = self._accounts
        if news:
            accounts.judge_lines(every=close or bool(gone) or self._new_policy)
            accounts.judge_lanes()
            accounts.judge_sessions(step.now)
            accounts.judge_deliveries(step)
            accounts.judge_output(step, causes, gone)
        if close:
            accounts.judge_rows()
            accounts.recount()
            self.ground.talks.judge_all_texts()

    def _read_scheduler(self) -> Row:
        reader = self.ground.reader
        row = reader.sql(f"{_SCHEDULER} FROM scheduler")[0]
        self._new_policy = row[2] != self._policy_version
        if self._new_policy:
            text = reader.sql("SELECT document FROM policy ORDER BY version DESC LIMIT 1")
            self.ground.policy = from_document(msgspec.json.decode(text[0][0]))
            self._policy_version = row[2]
        return row

    def _read_events(self, last_event: int) -> None:
        """Give each task its new events. They are numbered without a gap."""
        ground = self.ground
        events = ground.reader.events(self._last_event)
        numbers = [event.id for event in events]
        expected = list(range(self._last_event + 1, last_event + 1))
        demand("events", numbers == expected, f"{numbers} instead of {expected}")
        self._last_event = last_event
        words: dict[int, list[Event]] = {}
        for event in events:
            if event.seq is None:
                ground.groups.told(event)
            else:
                words.setdefault(event.seq, []).append(event)
        for seen in ground.changed:
            seen.word = words.pop(seen.after.seq, [])
        for seq, word in words.items():  # it has gone in a circle
            task = ground.reader.tasks.get(seq)
            if task is None:
                raise Violation("events", f"{word} of a task that is not there")
            ground.changed.append(Seen(task, task, word))
        for seen in ground.changed:
            for event in seen.word:
                ground.families.enter(seen.after, event)

    # ------------------------------------------------------------ what became of each task

    def _judge_change(self, seen: Seen, causes: Causes) -> None:
        ground = self.ground
        before, after = seen.before, seen.after
        if before is None:
            demand("sequence", after.seq > self._last_seq, f"task {after.seq} has an old number")
            demand("unique", after.id not in ground.ids, f"{after.id} is there twice")
        elif _fixed(before) != _fixed(after):
            raise Violation("fixed", f"{before} became {after}")
        if before and before.lease_expires_at != after.lease_expires_at:
            self._judge_renewal(seen, causes)
        if before and before.rank != after.rank:  # put into another line, by when it was made
            placed = self._new_policy or seen.has(REQUEUED)
            demand("order", placed, f"task {after.seq} has gone from {before.rank} to {after.rank}")
            ground.histories.lives[after.seq].aged_ms = 0
        walk = ground.histories.judge(seen, causes, ground.policy)
        ground.histories.judge_deadline(after)
        ground.books.move(before, after)
        if before is None:
            self._enter_new(after, causes)
        for state, event, to in walk:
            self._enter(seen, state, event, to, causes)
        if after.state in ENDS and after.lease_expires_at is None:
            ground.open.pop(after.seq, None)
        else:
            ground.open[after.seq] = after

    def _judge_renewal(self, seen: Seen, causes: Causes) -> None:
        before, after = seen.before, seen.after
        if not seen.closed and not seen.granted:
            moments = [causes.now + r.ttl_ms for r in causes.of(before, Renew)]
            name = f"task {after.seq}"
            demand("fencing", after.lease_expires_at in moments, f"{name} was renewed by nobody")

    def _enter_new(self, task: Task, causes: Causes) -> None:
        ground = self.ground
        ground.ids[task.id] = task.seq
        ground.families.born(task, causes.submitted[task.id].depends_on)
        if task.batch:
            ground.groups.born(task.batch, causes.batches)
        if task.state != "rejected":
            limit = ground.policy.lanes[task.lane].max_queue_size
            fits = limit is None or 1 <= task.position <= limit
            demand("admission", fits, f"task {task.seq} came in at {task.position} of {limit}")
            ground.families.demand_no_cycle(task)
            ground.books.count(task, ledger.SUBMITTED)
            self.admitted += 1

    def _enter(self, seen: Seen, state: str, event: Event, to: str, causes: Causes) -> None:
        """Take one event into the books."""
        ground, task = self.ground, seen.after
        ground.families.judge_event(task, event, asked=task.id in causes.retried | causes.reset)
        if event.type in ENDINGS:
            self.ended[to] += 1
            ground.books.count(task, END_COUNTERS[to])
            if event.type == FAILED and event.detail == leases.QUEUED_TOO_LONG:
                ground.books.count(task, ledger.EXPIRED)
            if event.type == FAILED and event.detail == leases.RAN_TOO_LONG:
                ran = seen.before is not None and seen.before.state == "running"
                demand("deadline", ran, f"task {task.seq} had not begun when its deadline passed")
        if task.callback_url and event.type in (*ENDINGS, PARKED):
            ground.owed[f"msg_{task.id}_{event.id}"] = (task.seq, event.type)
        if event.type == REQUEUED and state in END_COUNTERS:
            self.ended[state] -= 1
            ground.books.count(task, END_COUNTERS[state], -1)
            if task.batch:
                ground.groups.reopened(task.batch)
        if event is seen.word[-1] and (to in ENDS or to == "parked"):
            self._judge_result(seen, event, causes)

    def _judge_result(self, seen: Seen, event: Event, causes: Causes) -> None:
        after = seen.after
        rows = self.ground.reader.sql(
            "SELECT result, error FROM result WHERE seq = ?", (after.seq,)
        )
        result, error = rows[0] if rows else (None, None)
        name = f"task {after.seq} ({after.state}): {result!r} {error!r}"
        if event.type == COMPLETED:
            brought = [r.result for r in causes.of(seen.before, Complete)]
            demand("result", result in brought and error is None, name)
        elif event.detail is not None:
            demand("result", error == event.detail, f"{name} instead of {event.detail}")
        elif event.type != "task.cancelled":
            demand("result", error, f"{name} gives no reason")

    def _judge_gone(self, task: Task, step: Step, causes: Causes) -> None:
        ground, name = self.ground, f"task {task.seq} ({task.state})"
        told = causes.of(task, Start, *CLOSERS)
        closed = task.lease_expires_at is None or causes.lost(task) or told
        ended = task.state in ENDS and closed
        demand("lost", ended and task.completed_at is not None, f"{name} is gone")
        assert task.completed_at is not None
        kept_ms = ground.policy.retention.ttl_ms
        if task.state == "rejected":
            kept_ms = min(kept_ms, REJECTED_KEPT_MS)
        age_ms = step.now - task.completed_at
        demand("retention", age_ms >= kept_ms, f"{name} went after {age_ms} of {kept_ms} ms")
        self._accounts.forget_deliveries(task.seq, step, name)
        ground.books.move(task, None)
        ground.open.pop(task.seq, None)
        ground.histories.forget(task)
        ground.families.forget(task)

    # ------------------------------------------------------------ what hangs together

    def _judge_families(self, open_edges: int, unsettled: int, *, close: bool) -> None:
        ground = self.ground
        waiting = ground.reader.unsettled() if unsettled else {}
        demand("edges", len(waiting) == unsettled, f"{unsettled} unsettled: {waiting}")
        ids = {seq: task.id for seq, task in ground.reader.tasks.items()} if close else {}
        edges = ground.reader.edges(every=close)
        ground.families.judge(ground.books.blocked, ids, edges, open_edges, waiting)

    def _judge_groups(self, step: Step, gone: list[Task], *, close: bool) -> None:
        ground = self.ground
        kept: set[str] = set()
        if gone or close:
            kept = {task.batch for task in ground.reader.tasks.values() if task.batch}
        rows = ground.reader.batches()
        for row in ground.groups.judge(rows, ground.books.members, kept):
            self._accounts.forget_deliveries(row.seq, step, f"batch {row.id}")
        ground.owed.update(ground.groups.owed)

    def _judge_time(self, step: Step, unsettled: int) -> None:
        """Whatever is due has been done. What came up only now may be left for the next batch."""
        fresh = {seen.after.seq for seen in self.changed}
        idle = not unsettled
        for seq, task in self.ground.open.items():
            due = _due_at(task, step.judged_from)
            if due > step.now:
                continue
            idle = False
            if due < step.now or seq not in fresh:
                raise Violation("time", f"task {seq} ({task.state}) is overdue since {due}")
        soon = step.due_at is not None and step.due_at <= step.now
        if idle and not fresh and soon:
            raise Violation("spin", f"nothing to do, and called again for {step.due_at}")
        demand("time", soon or not unsettled, f"{unsettled} unsettled, due at {step.due_at}")

    def check_drained(self) -> None:
        """With all faults gone and time enough, everything has ended that can."""
        left = [f"{t.seq} {t.state}/{t.gate}" for t in self._left()]
        demand("drain", not left, f"still there: {left}")
        still = sum(task.state not in ENDS for task in self.ground.open.values())
        ended = sum(self.ended.values()) - self.ended["rejected"]
        demand("drain", self.admitted == ended + still, f"{self.admitted} != {ended} + {still}")
        owed = [id_ for id_, state in self.ground.delivery_states.items() if state == "due"]
        demand("drain", not owed, f"webhooks never sent: {owed}")

    def _left(self) -> list[Task]:
        """What could still go on: neither parked nor waiting for somebody who cannot."""
        tasks = {task.id: task for task in self.ground.open.values()}
        excused = self.ground.families.excused(tasks)
        return [t for t in tasks.values() if t.state != "parked" and t.id not in excused]


def _due_at(task: Task, judged_from: int) -> int:
    """When time will do something to the task; to its lease not before `judged_from`."""
    due = FOREVER if task.lease_expires_at is None else max(task.lease_expires_at, judged_from)
    if task.state in LIVE:
        if task.deadline_at is not None:
            due = min(due, task.deadline_at)
        if task.gate in ("delay", "debounce") and task.eligible_at is not None:
            due = min(due, task.eligible_at)
    return due
