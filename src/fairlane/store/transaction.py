"""The one write transaction: loads what verbs name, saves what the core decided, keeps counters.

Counters and sessions are moved here, from the same `Change` that rewrites the row. They are held
as whole rows rather than increments, which is safe because there is one writer at a time. Rows are
written together, before the next look-up that could need them. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import astuple

from fairlane.core import batches, counts, dependencies, events, gates, lifecycle, sessions
from fairlane.core.batches import Batch
from fairlane.core.counts import Line, Tally
from fairlane.core.model import Change, Task
from fairlane.core.policy import Policy
from fairlane.core.sessions import Session
from fairlane.store.base import Connection, Row

_TASK_WIDTH = len(Task.__struct_fields__)


class Transaction:
    """Valid between the driver's `begin` and `commit`. `now` is the one moment of the batch."""

    def __init__(
        self,
        connection: Connection,
        *,
        now: int,
        last_seq: int,
        last_token: int,
        last_line: int,
        last_event: int,
        open_edges: int,
        unsettled: int,
        policy_version: int,
        policy: Policy,
    ) -> None:
        self.connection = connection
        self.now = now
        self.policy = policy
        self.policy_version = policy_version
        self.last_seq = last_seq
        self.last_token = last_token
        self.last_line = last_line
        self.last_event = last_event
        self.open_edges = open_edges
        self.unsettled = unsettled
        self.ended: list[Task] = []
        self.stopped: list[Task] = []
        self.owes = False
        self.wrote_output = False
        self.changed = False
        self.due_at: int | None = None
        self.open_sessions: set[str] = set()
        self.tight_sessions: set[str] = set()
        self.open_batches: set[str] = set()
        # Parents whose edges have to follow: the state that edges leave and go to, and their own.
        self.settling: dict[str, tuple[int, int, str]] = {}
        self._tasks: dict[int, Task] = {}
        self._inserts: dict[int, Task] = {}
        self._bodies: dict[int, str] = {}
        self._updates: dict[int, Task] = {}
        self._guards: dict[int, tuple[str, int]] = {}
        self._results: dict[int, Row] = {}
        self._owed: list[Row] = []
        self._keys: list[Row] = []
        self._events: list[Row] = []
        self._lanes: dict[str, Tally] | None = None
        self._dirty_lanes: set[str] = set()
        self._lines: dict[tuple[str, str], dict[str, Line]] = {}
        self._dirty_lines: set[tuple[str, str]] = set()
        self._sessions: dict[str, Session] = {}
        self._known_sessions: set[str] = set()
        self._dirty_sessions: set[str] = set()
        self._batches: dict[str, Batch] = {}
        self._dirty_batches: set[str] = set()
        self._counted_batches: set[str] = set()

    # ---------------------------------------------------------------- load

    def next_seq(self) -> int:
        self.last_seq += 1
        return self.last_seq

    def next_token(self) -> int:
        self.last_token += 1
        return self.last_token

    def tasks_by_id(self, ids: Iterable[str]) -> dict[str, Task]:
        rows = [(id_,) for id_ in dict.fromkeys(ids)]
        if not rows:
            return {}
        self.write()
        found = [Task(*row) for row in self.connection.run_rows("task_by_id", rows)]
        return {task.id: self._tasks.setdefault(task.seq, task) for task in found}

    def tasks_by_seq(self, seqs: Iterable[int]) -> dict[int, Task]:
        missing = [(seq,) for seq in dict.fromkeys(seqs) if seq not in self._tasks]
        if missing:
            for row in self.connection.run_rows("task_by_seq", missing):
                self._tasks[row[0]] = Task(*row)
        return self._tasks

    def task(self, seq: int) -> Task:
        """A task as this transaction has left it."""
        return self._tasks[seq]

    def tasks(self, name: str, **values: object) -> list[Task]:
        """The tasks that the statement `name` finds."""
        self.write()
        found = [Task(*row) for row in self.connection.run(name, **values)]
        return [self._tasks.setdefault(task.seq, task) for task in found]

    def lanes(self) -> Mapping[str, Tally]:
        if self._lanes is None:
            self._lanes = {row[0]: Tally(*row[1:]) for row in self.connection.run("lane_all")}
        return self._lanes

    def lane(self, name: str) -> Tally:
        lanes = self.lanes()
        if name not in lanes:
            assert self._lanes is not None
            self._lanes[name] = Tally()
        return lanes[name]

    def load_lines(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Load all lines of the given (lane, agent) pairs that are not here yet."""
        missing = [pair for pair in dict.fromkeys(pairs) if pair not in self._lines]
        for pair in missing:
            self._lines[pair] = {}
        for row in self.connection.run_rows("line_find", missing) if missing else ():
            line = Line(*row)
            self._lines[line.lane, line.agent][line.route] = line

    def lines(self, lane: str, agent: str) -> Mapping[str, Line]:
        return self._lines[lane, agent]

    def load_sessions(self, keys: Iterable[str]) -> None:
        missing = [key for key in dict.fromkeys(keys) if key not in self._sessions]
        rows = [(key,) for key in missing]
        for row in self.connection.run_rows("session_find", rows) if rows else ():
            self._sessions[row[0]] = Session(*row)
            self._known_sessions.add(row[0])
        for key in missing:
            session = self._sessions.setdefault(key, Session(key))
            session.limit = sessions.limit(self.policy.sessions, session)

    def session(self, key: str) -> Session:
        return self._sessions[key]

    def touch_session(self, key: str) -> None:
        """Its settings or marks have changed: keep them, and see who may go now, or must not."""
        session = self._sessions[key]
        session.limit = sessions.limit(self.policy.sessions, session)
        self.changed = True
        self._dirty_sessions.add(key)
        if session.free and session.waiting:
            self.open_sessions.add(key)
        if session.holders > session.limit:
            self.tight_sessions.add(key)

    def session_of(self, task: Task) -> Session | None:
        if not task.session:
            return None
        self.load_sessions([task.session])
        return self._sessions[task.session]

    def load_batches(self, ids: Iterable[str]) -> None:
        missing = [(id_,) for id_ in dict.fromkeys(ids) if id_ not in self._batches]
        for row in self.connection.run_rows("batch_find", missing) if missing else ():
            self._batches[row[0]] = Batch(*row)

    def batch(self, id_: str) -> Batch | None:
        self.load_batches([id_])
        return self._batches.get(id_)

    def batch_of(self, task: Task) -> Batch | None:
        return self.batch(task.batch) if task.batch else None

    def line_number(self, lane: str, agent: str, route: str) -> int:
        """The number of a line; a new one is made when there is none."""
        return self._line(lane, agent, route).id

    def requests(self, seqs: Iterable[int]) -> dict[int, str]:
        """The requests, as JSON text, that the tasks were made from."""
        rows = [(seq,) for seq in seqs]
        self.write()
        return {row[0]: row[1] for row in self.connection.run_rows("request_find", rows)}

    def unwritten_ready(self, lane: str) -> list[tuple[Task, str]] | None:
        """The ready tasks of a lane, with their requests, when all of them are new in this
        transaction and none has been written yet; else None.
        """
        found = [
            (task, self._bodies[task.seq])
            for task in self._inserts.values()
            if task.lane == lane and task.ready
        ]
        return found if len(found) == self.lane(lane).ready else None

    def next_tasks(self, lines: Sequence[int], limit: int) -> list[tuple[Task, str]]:
        """The first `limit` ready tasks of each line, with their requests."""
        self.write()
        wanted = [(line,) for line in lines]
        if limit == 1:  # one value instead of a table of one row: twice as fast on SQLite
            rows = self.connection.run_rows("task_head", wanted)
        else:
            rows = self.connection.run_rows("task_next", wanted, limit=limit)
        return [(Task(*row[:_TASK_WIDTH]), row[_TASK_WIDTH]) for row in rows]

    def first_lines(self, name: str, rows: Sequence[Row], limit: int) -> list[Line]:
        """All lines of the agents that come first by the statement `name`, for each of `rows`."""
        self.write()
        found = [Line(*row) for row in self.connection.run_rows(name, rows, limit=limit)]
        known = self._lines
        pairs = {(line.lane, line.agent) for line in found} - known.keys()
        known.update({pair: {} for pair in pairs})
        for line in found:
            pair = (line.lane, line.agent)
            if pair in pairs:
                known[pair][line.route] = line
        agents = dict.fromkeys((line.lane, line.agent) for line in found)
        return [line for pair in agents for line in known[pair].values()]

    def next_in_batches(self, ids: Iterable[str], limit: int) -> list[Task]:
        self.write()
        rows = self.connection.run_rows("batch_next", [(id_,) for id_ in ids], limit=limit)
        return [Task(*row) for row in rows]

    def next_in_sessions(self, keys: Iterable[str], limit: int) -> list[Task]:
        self.write()
        rows = self.connection.run_rows("session_next", [(key,) for key in keys], limit=limit)
        return [Task(*row) for row in rows]

    def ready_in_sessions(self, keys: Iterable[str]) -> list[Task]:
        self.write()
        rows = [(key,) for key in keys]
        return [Task(*row) for row in self.connection.run_rows("session_ready", rows)]

    # ---------------------------------------------------------------- save

    def prepare(self, tasks: Iterable[Task]) -> None:
        """Load the counters of many tasks at once, before changes are applied to them."""
        tasks = list(tasks)
        self.load_lines((task.lane, task.agent) for task in tasks)
        self.load_sessions(task.session for task in tasks if task.session)
        self.load_batches(task.batch for task in tasks if task.batch)

    def add_batch(self, batch: Batch) -> None:
        self._batches[batch.id] = batch
        self._dirty_batches.add(batch.id)

    def drop_batch(self, id_: str) -> None:
        """Take back a batch that none of its tasks has come into."""
        del self._batches[id_]
        self._dirty_batches.discard(id_)
        self.connection.run_rows("batch_forget", [(id_,)])

    def apply(self, change: Change, body: str | None = None) -> None:
        """Count the change now; its row is written with all others. A new task brings its body."""
        after = change.after
        self.changed = True
        self._count(change)
        fact = events.of(change)
        if fact is not None:
            self._record(after.seq, fact[0], after.attempts, fact[1], None)
        self._conclude(change)
        self._tasks[after.seq] = after
        if change.before is None:
            assert body is not None
            self._inserts[after.seq] = after
            self._bodies[after.seq] = body
        elif after.seq in self._inserts:
            self._inserts[after.seq] = after
        else:
            self._guards.setdefault(after.seq, (change.before.state, change.before.token))
            self._updates[after.seq] = after

    def renew(self, changes: Iterable[Change]) -> None:
        """Renewals move one moment and no counter."""
        newest = {change.after.seq: change.after for change in changes}
        self.write()
        rows = [(task.seq, task.token, task.lease_expires_at) for task in newest.values()]
        self.connection.change_rows("task_renew", rows)
        self._tasks.update(newest)
        for task in newest.values():
            self._note_due(task)

    def _record(
        self, seq: int | None, type_: str, attempt: int, detail: str | None, batch: str | None
    ) -> None:
        self.last_event += 1
        self._events.append((self.last_event, seq, self.now, type_, attempt, detail, batch))

    def place(self, tasks: Iterable[Task]) -> None:
        """Put tasks that come back from their end into the lines where they belong now."""
        self.write()
        self.connection.run_rows("task_place", [(t.seq, t.line, t.rank) for t in tasks])

    def began_again(self, seqs: Iterable[int]) -> dict[int, int]:
        """When tasks were last queued again after they had ended or parked, if ever."""
        self.write()
        rows = [(seq,) for seq in seqs]
        return {row[0]: row[1] for row in self.connection.run_rows("event_requeued", rows)}

    def connect(self, child: int, edges: Iterable[tuple[str, int]]) -> None:
        """Keep the edges of a new task: its parents and the state of each edge."""
        rows = [(child, parent, state) for parent, state in edges]
        self.connection.run_rows("dependency_insert", rows)
        self.open_edges += sum(state == dependencies.OPEN for _, _, state in rows)

    def edges_of(self, children: Iterable[int]) -> dict[int, dict[str, int]]:
        """The edges of each child: parent and state."""
        found: dict[int, dict[str, int]] = {}
        rows = [(child,) for child in children]
        for child, parent, state in self.connection.run_rows("dependency_of", rows):
            found.setdefault(child, {})[parent] = state
        return found

    def remember_key(self, row: Row) -> None:
        """Keep what an idempotency key stands for."""
        self._keys.append(row)

    def reshare(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Recompute the shares of agents whose weight has changed."""
        pairs = list(pairs)
        self.load_lines(pairs)
        self._dirty_lines.update(pairs)

    def write(self) -> None:
        """Send what has been applied so far. Every look-up by index comes after this."""
        run = self.connection.run_rows
        if self._inserts:
            run("task_insert", [astuple(task) for task in self._inserts.values()])
            run("request_insert", list(self._bodies.items()))
            self._inserts, self._bodies = {}, {}
        if self._updates:
            rows = [(seq, *self._guards[seq], *_moving(t)) for seq, t in self._updates.items()]
            self.connection.change_rows("task_update", rows)
            self._updates, self._guards = {}, {}
        if self._results:
            run("result_save", list(self._results.values()))
            self._results = {}
        if self._owed:
            run("delivery_insert", self._owed)
            self._owed = []
        if self._keys:
            run("idempotency_insert", self._keys)
            self._keys = []
        if self._events:
            run("event_insert", self._events)
            self._events = []
        self._write_counters()

    def _count(self, change: Change) -> None:
        after = change.after
        pair = (after.lane, after.agent)
        line = self._line(after.lane, after.agent, after.route)
        counts.apply(self.lane(after.lane), change)
        counts.apply(line, change)
        if change.verb == lifecycle.LEASE:
            line.served = after.token
        self._dirty_lanes.add(after.lane)
        self._dirty_lines.add(pair)
        if after.session:
            self.load_sessions([after.session])
            session = self._sessions[after.session]
            gates.apply(session, change)
            self._dirty_sessions.add(session.key)
            if session.free and session.waiting:
                self.open_sessions.add(session.key)
        if after.batch:
            self._count_in_batch(after.batch, change)

    def _count_in_batch(self, id_: str, change: Change) -> None:
        batch = self.batch(id_)
        assert batch is not None, id_
        batches.apply(batch, change)
        self._dirty_batches.add(id_)
        self._counted_batches.add(id_)
        if batch.free and batch.waiting:
            self.open_batches.add(id_)

    def _line(self, lane: str, agent: str, route: str) -> Line:
        pair = (lane, agent)
        if pair not in self._lines:
            self.load_lines([pair])
        lines = self._lines[pair]
        line = lines.get(route)
        if line is None:
            self.last_line += 1
            line = Line(lane=lane, agent=agent, route=route, id=self.last_line)
            lines[route] = line
            self._dirty_lines.add(pair)
        return line

    def _conclude(self, change: Change) -> None:
        """Keep what ends a task: its result, the webhook owed, and who has to be told."""
        after = change.after
        if change.result is not None or change.error is not None:
            self._results[after.seq] = (after.seq, change.result, change.error)
        elif change.verb in _CLEARS_RESULT and (after.attempts > 1 or not after.terminal):
            self._results[after.seq] = (after.seq, None, None)
        if after.state == lifecycle.PARKED:
            self.ended.append(after)
        if after.terminal and not (change.before and change.before.terminal):
            self.ended.append(after)
            if after.callback_url:
                self.owes = True
                self._owed.append(self._delivery_row(after))
            if after.leased:
                self.stopped.append(after)
            if self.open_edges:
                goes = dependencies.EDGE_AFTER[after.state]
                self.settling[after.id] = (dependencies.OPEN, goes, after.state)
        elif change.verb == lifecycle.REVIVE:
            self.settling[after.id] = (dependencies.BROKEN, dependencies.OPEN, after.state)
        elif change.verb == lifecycle.STOP:
            self.stopped.append(after)
        self._note_due(after)

    def _delivery_row(self, task: Task) -> Row:
        event = EVENTS[task.state]
        id_ = f"msg_{task.id}_{self.last_event}"
        return (id_, task.seq, task.callback_url, event, "due", self.now, 0, self.now)

    def close_batches(self) -> None:
        """Tell of the batches that have ended: asked when everything has been counted."""
        for id_ in sorted(self._counted_batches):
            batch = self._batches[id_]
            if batches.settle(batch, self.now):
                self._dirty_batches.add(id_)
                self._record(None, events.BATCH_COMPLETED, 0, batch.state, id_)
                if batch.callback_url:
                    self.owes = True
                    self._owed.append(self._batch_delivery(batch))

    def _batch_delivery(self, batch: Batch) -> Row:
        id_ = f"msg_{batch.id}_{self.last_event}"
        event = events.BATCH_COMPLETED
        return (id_, batch.seq, batch.callback_url, event, "due", self.now, 0, self.now)

    def _note_due(self, task: Task) -> None:
        self.note_due(task.lease_expires_at)
        if task.state not in lifecycle.TERMINAL:
            self.note_due(task.deadline_at)
            self.note_due(task.eligible_at)

    def note_due(self, moment: int | None) -> None:
        """Something has to be looked at again at `moment`."""
        if moment is not None and (self.due_at is None or moment < self.due_at):
            self.due_at = moment

    # ---------------------------------------------------------------- counters

    def _write_counters(self) -> None:
        if self._dirty_lanes:
            names = sorted(self._dirty_lanes)
            rows: list[Row] = [(name, *astuple(self.lane(name))) for name in names]
            self.connection.run_rows("lane_save", rows)
            self._dirty_lanes.clear()
        if self._dirty_lines:
            self.connection.run_rows("line_save", self._line_rows())
            self._dirty_lines.clear()
        if self._dirty_sessions:
            self._write_sessions()
        if self._dirty_batches:
            rows = [astuple(self._batches[id_]) for id_ in sorted(self._dirty_batches)]
            self.connection.run_rows("batch_save", rows)
            self._dirty_batches.clear()

    def _line_rows(self) -> list[Row]:
        rows: list[Row] = []
        for lane, agent in sorted(self._dirty_lines):
            lines = self._lines[lane, agent].values()
            share = sum(line.slots for line in lines) / self.policy.weight(agent)
            served = max((line.served for line in lines), default=0)
            for line in lines:
                line.share, line.served = share, served
                rows.append(astuple(line))
        return rows

    def _write_sessions(self) -> None:
        keep: list[Row] = []
        forget: list[Row] = []
        for key in sorted(self._dirty_sessions):
            session = self._sessions[key]
            if not session.empty:
                session.touched_at = self.now
                keep.append(astuple(session)[:-1])
                self._known_sessions.add(key)
            elif key in self._known_sessions:
                forget.append((key,))
                self._known_sessions.discard(key)
        self._dirty_sessions.clear()
        if keep:
            self.connection.run_rows("session_save", keep)
        if forget:
            self.connection.run_rows("session_forget", forget)

    def finish(self, writer: str, commit_id: int) -> None:
        """The last writes of the transaction; the caller commits."""
        self.write()
        self.connection.run(
            "scheduler_save",
            last_seq=self.last_seq,
            last_token=self.last_token,
            last_line=self.last_line,
            last_event=self.last_event,
            open_edges=self.open_edges,
            unsettled=self.unsettled,
        )
        self.connection.run("writer_save", name=writer, commit_id=commit_id, now=self.now)


_CLEARS_RESULT = frozenset({lifecycle.COMPLETE, lifecycle.REVIVE, lifecycle.RESET})

# What a webhook says has happened, by the state that a task ended in.
EVENTS = {
    lifecycle.DONE: "task.completed",
    lifecycle.FAILED: "task.failed",
    lifecycle.CANCELLED: "task.cancelled",
}


def _moving(task: Task) -> Row:
    """The columns of `task_update`, after its guards."""
    return (
        task.state,
        task.gate,
        task.attempts,
        task.deadline_at,
        task.eligible_at,
        task.queued_at,
        task.started_at,
        task.completed_at,
        task.token,
        task.worker,
        task.lease_expires_at,
        task.unmet,
        task.preempt,
    )
