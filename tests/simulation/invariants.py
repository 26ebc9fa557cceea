"""What must hold after every step, whatever went wrong. Each rule has a name.

Everything is judged from the tables as they are and from the history of what was asked: a change
needs a request of the same step, or the clock, as its cause, so that a step whose answer got lost
is judged like any other. Ceilings, order and fairness are judged grant by grant, in the order
of their tokens, on the world as it stood at that moment.
"""

from __future__ import annotations

import copy
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlane.core import leases
from fairlane.core.errors import (
    Conflict,
    Disabled,
    FairlaneError,
    IdempotencyConflict,
    LeaseLost,
    NotFound,
)
from fairlane.core.model import Task
from fairlane.core.policy import FAIR, Policy, from_document
from fairlane.engine.engine import Outcome
from fairlane.engine.requests import (
    Cancel,
    Complete,
    Lease,
    Renew,
    SettleDelivery,
    Start,
    Submit,
)
from tests.simulation import ledger
from tests.simulation.causes import (
    CLOSERS,
    REPORTS,
    Causes,
    Step,
    Violation,
    demand,
    demand_attempts,
    demand_closed,
    demand_end,
    demand_final,
)
from tests.simulation.ledger import ENDS, FIXED, LIVE, SLOTS, Books, Reader, Row, Seen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.store.sqlite import SqliteStore

_fixed: Final = attrgetter(*FIXED)
EVENTS: Final = {"done": "task.completed", "failed": "task.failed", "cancelled": "task.cancelled"}
END_COUNTERS: Final = {
    "done": ledger.COMPLETED,
    "failed": ledger.FAILED,
    "cancelled": ledger.CANCELLED,
    "rejected": ledger.REJECTED,
}
CLOSE_LOOK_EVERY: Final = 10  # steps; and after every fault
FOREVER: Final = 2**62


class Key(msgspec.Struct):
    """An idempotency key that has to be remembered: for each submission its task's id, or None."""

    digest: str
    ids: list[str | None]
    newest: int  # the task that it is forgotten with


class Invariants:
    def __init__(self, store: SqliteStore) -> None:
        self.reader = Reader(store)
        self._named = store.reader()
        self.books = Books()
        self.policy = Policy()
        self.ended: Counter[str] = Counter()
        self.admitted = 0
        self.granted = 0
        self.changed: list[Seen] = []
        self._policy_version = 0
        self._last_seq = 0
        self._last_token = 0
        self._ids: dict[str, int] = {}
        self._open: dict[int, Task] = {}  # not ended, or ended and still leased
        self._over: set[int] = set()
        self._owed: dict[str, tuple[int, str]] = {}
        self._delivery_states: dict[str, str] = {}
        self._keys: dict[tuple[str, str], Key] = {}
        self._new_policy = False

    @property
    def parked(self) -> list[str]:
        return [task.id for task in self._open.values() if task.state == "parked"]

    @property
    def busy(self) -> bool:
        """Something has not ended, is still leased, or is still owed."""
        left = any(task.state != "parked" for task in self._open.values())
        return left or "due" in self._delivery_states.values()

    def close(self) -> None:
        self.reader.close()
        self._named.close()

    def check(self, step: Step) -> None:
        """Compare the tables with what `step` may have done. Raises `Violation`."""
        news = self.reader.news()
        gone: list[Task] = []
        self.changed = []
        if news:
            self.changed, gone = self.reader.differences()
        last_seq, last_token = self._read_scheduler()
        causes = Causes(step.batch, step.now)
        sessions = [seen.after.session for seen in self.changed if seen.after.session]
        turns = {key: list(self.books.holders.get(key, ())) for key in sessions}
        for seen in self.changed:
            self._judge_change(seen, causes)
            self._enter(seen, step)
        for task in gone:
            self._judge_gone(task, step)
        demand("sequence", last_seq >= self._last_seq, f"{self._last_seq} became {last_seq}")
        self._last_seq = last_seq
        self._judge_grants(step, last_token)
        self._judge_turns(turns)
        self._judge_keys(step, gone)
        if step.outcome is not None:
            self._judge_outcome(step, step.outcome, gone)
        close = step.number % CLOSE_LOOK_EVERY == 0 or bool(step.fault)
        if news:
            self._judge_lines(every=close or bool(gone) or self._new_policy)
            self._judge_lanes_and_sessions()
            self._judge_deliveries(step)
        if close:
            self._judge_rows()
            self._recount()

    def _read_scheduler(self) -> tuple[int, int]:
        row = self.reader.sql("SELECT last_seq, last_token, policy_version FROM scheduler")[0]
        self._new_policy = row[2] != self._policy_version
        if self._new_policy:
            text = self.reader.sql("SELECT document FROM policy ORDER BY version DESC LIMIT 1")
            self.policy = from_document(msgspec.json.decode(text[0][0]))
            self._policy_version = row[2]
        return row[0], row[1]

    # ------------------------------------------------------------ what became of each task

    def _judge_change(self, seen: Seen, causes: Causes) -> None:
        before, after = seen.before, seen.after
        name = f"task {after.seq}"
        if before is None:
            demand("nowhere", after.id in causes.submitted, f"{name} was never submitted")
            demand("sequence", after.seq > self._last_seq, f"{name} has an old number")
            demand("unique", after.id not in self._ids, f"{after.id} is there twice")
        else:
            if _fixed(before) != _fixed(after):
                raise Violation("fixed", f"{before} became {after}")
            if before.state in ENDS:
                demand_final(before, after)
        if seen.closed:
            demand_closed(seen.closed, causes)
        elif before and before.lease_expires_at != after.lease_expires_at and not seen.granted:
            moments = [causes.now + r.ttl_ms for r in causes.of(before, Renew)]
            demand("fencing", after.lease_expires_at in moments, f"{name} was renewed by nobody")
        demand_attempts(seen, causes)
        if seen.ended or after.state == "parked":
            demand_end(before, after, causes)
        if after.state == "running" and before and before.state == "assigned" and not seen.granted:
            demand("fencing", causes.of(before, Start), f"{name} was started by nobody")
        demand(
            "state",
            (after.state in ("assigned", "running")) <= (after.lease_expires_at is not None),
            f"{name} is {after.state} without a lease",
        )

    def _enter(self, seen: Seen, step: Step) -> None:
        """Take the change into the books."""
        before, after = seen.before, seen.after
        self.books.move(before, after)
        if before is None:
            self._ids[after.id] = after.seq
            if after.state != "rejected":
                self._judge_admission(after)
                self.books.count(after, ledger.SUBMITTED)
                self.admitted += 1
        if seen.ended or (after.state == "parked" and before and before.state != "parked"):
            self._judge_result(seen, step)
        if seen.ended:
            demand("once", after.seq not in self._over, f"task {after.seq} ended twice")
            self._over.add(after.seq)
            self.ended[after.state] += 1
            self.books.count(after, END_COUNTERS[after.state])
            if after.callback_url:
                self._owed[f"msg_{after.id}"] = (after.seq, EVENTS[after.state])
        if after.state in ENDS and after.lease_expires_at is None:
            self._open.pop(after.seq, None)
        else:
            self._open[after.seq] = after

    def _judge_admission(self, task: Task) -> None:
        limit = self.policy.lanes[task.lane].max_queue_size
        fits = limit is None or 1 <= task.position <= limit
        demand("admission", fits, f"task {task.seq} came in at {task.position} of {limit}")

    def _judge_result(self, seen: Seen, step: Step) -> None:
        after = seen.after
        rows = self.reader.sql("SELECT result, error FROM result WHERE seq = ?", (after.seq,))
        result, error = rows[0] if rows else (None, None)
        name = f"task {after.seq} ({after.state})"
        if after.state == "done":
            brought = [r.result for r in Causes(step.batch, step.now).of(seen.before, Complete)]
            demand("result", result in brought and error is None, f"{name}: {result!r} {error!r}")
        elif after.state in ("failed", "parked", "rejected"):
            demand("result", error, f"{name} gives no reason")
        if error == leases.QUEUED_TOO_LONG and after.state == "failed":
            self.books.count(after, ledger.EXPIRED)

    def _judge_gone(self, task: Task, step: Step) -> None:
        name = f"task {task.seq} ({task.state})"
        causes = Causes(step.batch, step.now)
        told = causes.of(task, Start, *CLOSERS)
        closed = task.lease_expires_at is None or causes.lost(task) or told
        ended = task.state in ENDS and closed
        demand("lost", ended and task.completed_at is not None, f"{name} is gone")
        assert task.completed_at is not None
        kept_ms = self.policy.retention.ttl_ms
        if task.state == "rejected":
            kept_ms = min(kept_ms, 3_600_000)
        age_ms = step.now - task.completed_at
        demand("retention", age_ms >= kept_ms, f"{name} went after {age_ms} of {kept_ms} ms")
        message_id = f"msg_{task.id}"
        if message_id in self._owed:
            settled = any(isinstance(r, SettleDelivery) and r.id == message_id for r in step.batch)
            due = self._delivery_states.get(message_id) == "due" and not settled
            demand("delivery", not due, f"{name} went with a webhook still owed")
            del self._owed[message_id]
        self.books.move(task, None)
        self._open.pop(task.seq, None)

    # ------------------------------------------------------------ who got what

    def _judge_grants(self, step: Step, last_token: int) -> None:
        grants = sorted((s.after for s in self.changed if s.granted), key=lambda t: t.token)
        tokens = [task.token for task in grants]
        expected = list(range(self._last_token + 1, last_token + 1))
        demand("tokens", tokens == expected, f"{tokens} after {self._last_token}")
        self._last_token = last_token
        self.granted += len(grants)
        offers = {lease.worker: lease for lease in step.waiting}
        taken = Counter(task.worker for task in grants)
        for task in grants:
            self.books.move(task, _as_ready(task))
        for task in grants:
            offer = offers.get(task.worker or "")
            demand("grant", offer, f"task {task.seq} went to {task.worker}, who did not ask")
            assert offer is not None
            self._judge_grant(task, offer, step.now)
        for lease in step.waiting:
            demand("grant", taken[lease.worker] <= lease.limit, f"{lease.worker} got too much")
        if step.outcome is not None:
            self._judge_thirst(step, taken)

    def _judge_grant(self, task: Task, offer: Lease, now: int) -> None:
        name = f"task {task.seq} of {task.agent} in {task.lane}"
        books, pair = self.books, (task.lane, task.agent)
        late = task.deadline_at is not None and task.deadline_at <= now
        demand("grant", not late, f"{name} was leased after its deadline")
        able = task.lane in self._lanes(offer) and task.route in offer.routes
        demand("grant", able, f"{name} went to a worker that cannot run it")
        state = "running" if task.route in offer.started else "assigned"
        demand("grant", task.state == state, f"{name} is {task.state}, not {state}")
        until = now + offer.ttl_ms
        demand("lease", task.lease_expires_at == until, f"{name} until {task.lease_expires_at}")
        demand("ceiling", self._has_room(task.lane), f"{name} went over the lane or overall")
        demand("ceiling", self._may_run(task.lane, task.agent), f"{name} went over the agent's")
        paused = self.policy.lanes[task.lane].paused
        demand("paused", not paused, f"{name} was leased while its lane was paused")
        self._judge_order(task, offer.routes, now)
        books.move(_as_ready(task), task)
        demand("tokens", task.token > books.served[pair], f"{name} got token {task.token}")
        books.served[pair] = task.token
        books.count(task, ledger.DISPATCHED)
        books.count(task, ledger.WAITED_MS, max(0, now - task.queued_at))

    def _has_room(self, lane: str) -> bool:
        overall = self.policy.max_inflight
        if overall is not None and self.books.overall_slots() >= overall:
            return False
        return self.books.lanes[lane][SLOTS] < self.policy.lanes[lane].max_inflight

    def _may_run(self, lane: str, agent: str) -> bool:
        ceiling = self.policy.agent_ceiling(lane, agent)
        if ceiling is None or self.policy.lanes[lane].strategy != FAIR:
            return True
        return self.books.slots[lane, agent] < ceiling

    def _judge_order(self, task: Task, routes: frozenset[str], now: int) -> None:
        lane, name = task.lane, f"task {task.seq} of {task.agent} in {task.lane}"
        rivals = list(self.books.ready_for(lane, routes))
        if _any_late(rivals, now):
            return
        if self.policy.lanes[lane].strategy == FAIR:
            first = min(
                {rival.agent for rival in rivals}, key=lambda a: self._turn(lane, a, rivals)
            )
            demand("fairness", task.agent == first, f"{name} went before {first}")
            rivals = [rival for rival in rivals if rival.agent == task.agent]
        head = min(rivals, key=_rank)
        demand("order", head.seq == task.seq, f"{name} went before task {head.seq}")

    def _turn(self, lane: str, agent: str, rivals: Iterable[Task]) -> tuple[Any, ...]:
        """The place of an agent in the order; those at their ceiling come last."""
        urgent = any(rival.agent == agent and rival.priority <= -20 for rival in rivals)
        share = self.books.slots[lane, agent] / self.policy.weight(agent)
        served = self.books.served[lane, agent]
        return (not self._may_run(lane, agent), not urgent, share, served, agent)

    def _judge_thirst(self, step: Step, taken: Counter[str | None]) -> None:
        """Nobody goes empty-handed while there is work for them and room for it."""
        for lease in step.waiting:
            if taken[lease.worker] >= lease.limit:
                continue
            for lane in self._lanes(lease):
                if self.policy.lanes[lane].paused or not self._has_room(lane):
                    continue
                left = self.books.ready_for(lane, lease.routes)
                free = [task.seq for task in left if self._may_run(lane, task.agent)]
                # A task past its deadline takes a place in this round, to end in the next batch.
                if free and not _any_late(self._open.values(), step.now):
                    raise Violation("starvation", f"{lease.worker} did not get {free} in {lane}")

    def _lanes(self, lease: Lease) -> list[str]:
        lanes = self.policy.lanes if lease.lanes is None else lease.lanes
        return [lane for lane in lanes if lane in self.policy.lanes]

    def _judge_turns(self, turns: dict[str, list[int]]) -> None:
        for key, had in turns.items():
            holders = self.books.holders.get(key, {})
            waiting = self.books.waiting.get(key, {})
            demand("session", len(holders) <= 1, f"{list(holders)} have the turn of {key}")
            demand("session", holders or not waiting, f"nobody has the turn of {key}")
            for seq, holder in holders.items():
                if seq not in had and waiting:
                    first = min([holder, *waiting.values()], key=_rank)
                    ahead = f"task {seq} got the turn of {key} before task {first.seq}"
                    demand("session order", first.seq == seq, ahead)

    # ------------------------------------------------------------ what was answered

    def _judge_outcome(self, step: Step, outcome: Outcome, gone: Sequence[Task]) -> None:
        ended = {seen.after.seq for seen in self.changed if seen.ended}
        told = {task.seq for task in outcome.ended}
        parked = {seen.after.seq for seen in self.changed if seen.after.state == "parked"}
        demand("told", ended <= told <= ended | parked, f"ended {ended}, told {told}")
        mine = [
            task for task in map(self.reader.tasks.get, ended) if task and task.worker == step.by
        ]
        stopped = {(t.seq, t.token) for t in mine if t.lease_expires_at is not None}
        open_then = set(outcome.stopped)
        demand("told", stopped <= open_then, f"stopped {stopped}, told {open_then}")
        over = ended | (_still_leased(self.reader.tasks.values()) if outcome.others else set())
        demand("told", {seq for seq, _ in open_then} <= over, f"told to stop: {open_then}")
        given = {g.task.token for grants in outcome.grants for g in grants}
        leased = {seen.after.token for seen in self.changed if seen.granted}
        demand("told", given == leased, f"leased {leased}, told {given}")
        old = {seen.after.seq: seen.before for seen in self.changed}
        before: dict[int, Task | None] = {**self.reader.tasks, **{t.seq: t for t in gone}, **old}
        causes = Causes(step.batch, step.now)
        for request, answer in zip(step.batch, outcome.answers, strict=True):
            if isinstance(request, REPORTS):
                self._judge_report(request, answer, before.get(request.seq), causes)
            elif isinstance(request, Cancel):
                self._judge_cancel(request, answer, before)
            elif isinstance(request, Submit) and isinstance(answer, list):
                for task in answer:
                    if isinstance(task, Task) and self._ids.get(task.id) != task.seq:
                        raise Violation("lost", f"{task} was accepted and is not there")
        if not step.neighbour:
            self._judge_time(step)

    def _judge_report(self, request: Any, answer: Any, row: Task | None, causes: Causes) -> None:
        valid = row is not None and row.lease_expires_at is not None and row.token == request.token
        name = f"{type(request).__name__} of task {request.seq} with token {request.token}"
        if isinstance(answer, Task):
            now = self.reader.tasks.get(request.seq, row)
            repeated = isinstance(request, Complete) and now is not None and now.state == "done"
            repeated = repeated and now is not None and now.token == request.token
            demand("fencing", valid or repeated, f"{name} was accepted")
        else:
            demand("fencing", isinstance(answer, LeaseLost), f"{name}: {answer!r}")
            assert row is not None or not valid
            rivals = valid and (len(causes.of(row, *REPORTS)) > 1 or causes.lost(row))
            ended = valid and row is not None and row.state in ENDS and isinstance(request, Start)
            demand("fencing", not valid or rivals or ended, f"{name} was refused")

    def _judge_cancel(self, request: Cancel, answer: Any, before: dict[int, Task | None]) -> None:
        seq = self._ids.get(request.id)
        now = self.reader.tasks.get(seq) if seq is not None else None
        if isinstance(answer, Task):
            demand("cancel", now and now.state == "cancelled", f"{request.id} goes on")
        elif isinstance(answer, Conflict):
            was = before.get(seq) if seq is not None else None
            over = (was and was.state in ENDS) or (now and now.state in ENDS)
            demand("cancel", over, f"{request.id} could have been cancelled")
        else:
            there = seq is not None and before.get(seq) is not None
            demand("cancel", isinstance(answer, NotFound) and not there, f"{answer!r}")

    def _judge_keys(self, step: Step, gone: Sequence[Task]) -> None:
        """The same key and body give the same tasks, until the newest of them is forgotten."""
        answers = step.outcome.answers if step.outcome else [None] * len(step.batch)
        lately = {task.id for task in gone}
        for request, answer in zip(step.batch, answers, strict=True):
            if isinstance(request, Submit) and request.idempotency is not None:
                self._judge_key(request, answer, step, lately)
        kept = self.reader.tasks
        self._keys = {place: key for place, key in self._keys.items() if key.newest in kept}

    def _judge_key(self, request: Submit, answer: Any, step: Step, lately: set[str]) -> None:
        assert request.idempotency is not None
        digest = request.idempotency.digest
        place = (request.idempotency.agent, request.idempotency.key)
        ids = [s.id if self._is_admitted(s.id) else None for s in request.submissions]
        known = self._keys.get(place)
        if known is None:
            if any(ids):
                newest = max(self._ids[id_] for id_ in ids if id_)
                self._keys[place] = Key(digest, ids, newest)
            return
        demand("idempotency", not any(ids), f"{place} made {ids} again")
        if step.outcome is None or isinstance(answer, Disabled):
            return
        other = isinstance(answer, IdempotencyConflict)
        demand("idempotency", other == (digest != known.digest), f"{place}: {answer!r}")
        if not other:
            for id_, one in zip(known.ids, answer, strict=True):
                same = isinstance(one, Task) and one.id == id_
                same = same or (id_ is None and isinstance(one, FairlaneError))
                kept = self._ids.get(id_ or "") in self.reader.tasks and id_ not in lately
                demand("idempotency", same or not kept, f"{place}: {one!r} instead of {id_}")

    def _is_admitted(self, task_id: str) -> bool:
        task = self.reader.tasks.get(self._ids.get(task_id, 0))
        return task is not None and task.state != "rejected"

    def _judge_time(self, step: Step) -> None:
        """Whatever is due has been done. What came up only now may be left for the next batch."""
        fresh = {seen.after.seq for seen in self.changed}
        idle = True
        for seq, task in self._open.items():
            due = _due_at(task)
            if due > step.now:
                continue
            idle = False
            if due < step.now or seq not in fresh:
                raise Violation("time", f"task {seq} ({task.state}) is overdue since {due}")
        if idle and not fresh and step.due_at is not None and step.due_at <= step.now:
            raise Violation("spin", f"nothing to do, and called again for {step.due_at}")

    # ------------------------------------------------------------ what is counted and owed

    def _judge_lines(self, *, every: bool) -> None:
        """Compare the lines that have moved, or all."""
        books = self.books
        if every:
            rows = self.reader.lines()
            if len(rows) != len(books.lines):
                self._judge_forgotten({row[:3] for row in rows})
        else:
            rows = [row for pair in books.touched for row in self.reader.lines(pair)]
        for row in rows:
            lane, agent, route, share, served, *counters = row
            line, pair = (lane, agent, route), (lane, agent)
            right = share == books.slots[pair] / self.policy.weight(agent)
            right = right and served == books.served[pair]
            if not right or counters != books.lines.get(line):
                raise Violation("counters", f"line {row}, counted {books.lines.get(line)}")
        books.touched.clear()

    def _judge_lanes_and_sessions(self) -> None:
        books = self.books
        for name, *counters in self.reader.lanes():
            if counters != books.lanes.get(name) or not _balanced(counters):
                raise Violation("counters", f"lane {name}: {counters}")
        found = {row[0]: (row[1], row[2]) for row in self.reader.sessions()}
        keys = books.holders.keys() | books.waiting.keys()
        for key in keys:
            counted = (len(books.holders.get(key, ())), len(books.waiting.get(key, ())))
            if found.get(key) != counted:
                raise Violation("counters", f"session {key}: {found.get(key)} is {counted}")
        demand("counters", len(found) == len(keys), "a session is kept for nothing")

    def _judge_forgotten(self, kept: set[Row]) -> None:
        """An agent's lines in a lane may go when nothing of it is left there."""
        pairs = {(task.lane, task.agent) for task in self.reader.tasks.values()}
        for line in [line for line in self.books.lines if line not in kept]:
            demand("counters", line[:2] not in pairs, f"line {line} is missing")
            del self.books.lines[line]
            self.books.served.pop(line[:2], None)

    def _judge_deliveries(self, step: Step) -> None:
        rows = self.reader.deliveries()
        owed = {row[0]: (row[1], row[2]) for row in rows}
        if owed != self._owed:
            raise Violation("delivery", f"{sorted(owed)} instead of {sorted(self._owed)}")
        states = {row[0]: row[3] for row in rows}
        for id_, state in states.items() if states != self._delivery_states else ():
            was = self._delivery_states.get(id_, "due")
            if was != state:
                settled = {r.id for r in step.batch if isinstance(r, SettleDelivery)}
                demand("delivery", was == "due" and id_ in settled, f"{id_}: {was} became {state}")
        self._delivery_states = states

    def _judge_rows(self) -> None:
        """Every row is what it was taken for when it last changed."""
        for row in self.reader.task_rows():
            task, known = Task(*row), self.reader.tasks[row[0]]
            if task != known:
                raise Violation("fixed", f"{known} became {task}")

    def _recount(self) -> None:
        """The doctor's own statements, so that they are known to be right too."""
        for lane, agent, route, *facts in self._named.run("recount"):
            counters = self.books.lines.get((lane, agent, route), [])[: len(facts)]
            demand("recount", facts == counters, f"{lane} {agent} {route}: {facts}")
        for key, *facts in self._named.run("session_recount"):
            counters = [len(self.books.holders.get(key, ())), len(self.books.waiting.get(key, ()))]
            demand("recount", facts == counters, f"session {key}: {facts}")

    def check_drained(self) -> None:
        """With all faults gone and time enough, everything has ended."""
        left = [f"{t.seq} {t.state}" for t in self._open.values() if t.state != "parked"]
        demand("drain", not left, f"still there: {left}")
        parked = sum(task.state == "parked" for task in self._open.values())
        ended = sum(self.ended.values()) - self.ended["rejected"]
        demand("drain", self.admitted == ended + parked, f"{self.admitted} != {ended} + {parked}")
        owed = [id_ for id_, state in self._delivery_states.items() if state == "due"]
        demand("drain", not owed, f"webhooks never sent: {owed}")


def _as_ready(task: Task) -> Task:
    """A leased task as it stood just before."""
    ready = copy.copy(task)
    ready.state, ready.gate, ready.lease_expires_at = "queued", None, None
    return ready


def _due_at(task: Task) -> int:
    """When time will do something to the task."""
    due = FOREVER if task.lease_expires_at is None else task.lease_expires_at
    if task.state in LIVE:
        if task.deadline_at is not None:
            due = min(due, task.deadline_at)
        if task.gate == "delay" and task.eligible_at is not None:
            due = min(due, task.eligible_at)
    return due


def _any_late(tasks: Iterable[Task], now: int) -> bool:
    """One of them came in with a deadline that was just over: it ends in the next batch."""
    return any(t.deadline_at is not None and t.deadline_at <= now and t.ready for t in tasks)


def _rank(task: Task) -> tuple[int, int]:
    return task.priority, task.seq


def _balanced(counters: Sequence[int]) -> bool:
    """submitted = completed + failed + cancelled + parked + queued + in flight."""
    ended = counters[ledger.COMPLETED] + counters[ledger.FAILED] + counters[ledger.CANCELLED]
    kept = counters[ledger.PARKED] + counters[ledger.QUEUED] + counters[ledger.INFLIGHT]
    return counters[ledger.SUBMITTED] == ended + kept


def _still_leased(tasks: Iterable[Task]) -> set[int]:
    """Tasks that have ended while their runs go on: a neighbour may have ended them."""
    return {task.seq for task in tasks if task.terminal and task.lease_expires_at is not None}
