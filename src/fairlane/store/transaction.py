"""The one write transaction: loads what verbs name, saves what the core decided, keeps counters.

Counters (`counters.py`) are moved by the same `Change` that rewrites the row. Rows are written
together, before the next look-up that could need them. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import astuple

from fairlane.core import batches, dependencies, events, lifecycle
from fairlane.core.batches import Batch
from fairlane.core.counts import Line
from fairlane.core.cron import Run
from fairlane.core.model import Change, Task, is_run
from fairlane.core.policy import Policy
from fairlane.store.base import Connection, Row
from fairlane.store.counters import Counters, Kept
from fairlane.store.vault import Vault

_TASK_WIDTH = len(Task.__struct_fields__)
_NAMES_OF = {"line_order": "line_order_agents", "line_urgent": "line_urgent_agents"}


class Transaction(Counters):
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
        vault: Vault | None = None,
        kept: Kept | None = None,
        token_base: int = 0,
    ) -> None:
        kept = Kept() if kept is None else kept
        super().__init__(connection, now=now, last_line=last_line, policy=policy, kept=kept)
        self.policy_version = policy_version
        self.vault = vault or Vault()  # one that opens nothing, for who only plans
        self.last_seq = last_seq
        self.last_token = last_token
        self._token_base = token_base  # see `leases.token_base`
        self.last_event = last_event
        self.open_edges = open_edges
        self.unsettled = unsettled
        self.changes: list[Change] = []
        self.reclaimed: list[Task] = []
        self.ended: list[Task] = []
        self.stopped: list[Task] = []
        self.owes = False
        self.wrote_output = False
        self.access_changed = False
        self._rejected: int | None = None  # how many refused submissions are kept
        self._awaited: dict[str, bool] = {}  # whether others wait for tasks, where that was asked
        self.due_at: int | None = None
        # Parents whose edges have to follow: the state that edges leave and go to, and their own.
        self.settling: dict[str, tuple[int, int, str]] = {}
        # The last change of tasks that cron has submitted, of those that ended or began again.
        self.run_changes: dict[str, Change] = {}
        self._tasks: dict[int, Task] = {}
        self._inserts: dict[int, Task] = {}
        self._bodies: dict[int, str] = {}
        self._updates: dict[int, Task] = {}
        self._guards: dict[int, tuple[str, int]] = {}
        self._results: dict[int, Row] = {}
        self._owed: list[Row] = []
        self._keys: list[Row] = []
        self._events: list[Row] = []

    # ---------------------------------------------------------------- load

    def next_seq(self) -> int:
        self.last_seq += 1
        return self.last_seq

    def next_token(self) -> int:
        self.last_token = max(self.last_token, self._token_base) + 1
        return self.last_token

    def tasks_by_id(self, ids: Iterable[str]) -> dict[str, Task]:
        rows = [(id_,) for id_ in dict.fromkeys(ids)]
        if not rows:
            return {}
        self.write()
        found = [Task(*row) for row in self.connection.run_rows("task_by_id", rows)]
        return {task.id: self._tasks.setdefault(task.seq, task) for task in found}

    def tasks_by_seq(self, seqs: Iterable[int]) -> dict[int, Task]:
        tasks, kept = self._tasks, self._kept.tasks
        missing: dict[int, None] = {}
        for seq in seqs:
            if seq not in tasks:
                if seq in kept:
                    tasks[seq] = kept[seq]
                else:
                    missing[seq] = None
        if missing:
            for row in self.connection.run_rows("task_by_seq", [(seq,) for seq in missing]):
                tasks[row[0]] = Task(*row)
        return tasks

    def keep(self) -> None:
        """After the commit: remember what it has left of open leases."""
        for seq, task in self._tasks.items():
            if task.lease_expires_at is not None:
                self._kept.tasks[seq] = task
            else:
                self._kept.tasks.pop(seq, None)
        self.keep_counters()

    def task(self, seq: int) -> Task:
        """A task as this transaction has left it."""
        return self._tasks[seq]

    def tasks(self, name: str, **values: object) -> list[Task]:
        """The tasks that the statement `name` finds."""
        self.write()
        found = [Task(*row) for row in self.connection.run(name, **values)]
        return [self._tasks.setdefault(task.seq, task) for task in found]

    def requests(self, seqs: Iterable[int]) -> dict[int, str]:
        """The requests, as JSON text, that the tasks were made from."""
        rows = [(seq,) for seq in seqs]
        self.write()
        found = self.connection.run_rows("request_find", rows)
        return {row[0]: self.vault.open_body(row[1]) for row in found}

    def result(self, seq: int) -> str | None:
        """The result, as JSON text, that a task has ended with."""
        self.write()
        rows = self.connection.run_rows("result_find", [(seq,)])
        return rows[0][0] if rows else None

    def rewrite_request(self, seq: int, body: str) -> None:
        self.connection.run_rows("request_grow", [(seq, self.vault.seal_body(body))])
        self.changed = True

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
        return self._opened(rows)

    def next_tasks_of(self, lines: Sequence[int], agent: str, limit: int) -> list[tuple[Task, str]]:
        """The same, of one agent only, where lines are of all agents."""
        self.write()
        wanted = [(line,) for line in lines]
        return self._opened(
            self.connection.run_rows("task_next_of", wanted, agent=agent, limit=limit)
        )

    def _opened(self, rows: Iterable[Row]) -> list[tuple[Task, str]]:
        open_body = self.vault.open_body
        return [(Task(*row[:_TASK_WIDTH]), open_body(row[_TASK_WIDTH])) for row in rows]

    def first_lines(self, name: str, rows: Sequence[Row], limit: int) -> list[Line]:
        """All lines of the agents that come first by the statement `name`, for each of `rows`."""
        self.write()
        if self._kept.alone:  # most are at hand, and a second statement costs little
            run, names = self.connection.run, _NAMES_OF[name]
            found = [run(names, lane=lane, route=route, limit=limit) for lane, route in rows]
            pairs = dict.fromkeys(pair for agents in found for pair in agents)
            self.load_lines(pairs)
        else:
            lines = [Line(*row) for row in self.connection.run_rows(name, rows, limit=limit)]
            pairs = dict.fromkeys((line.lane, line.agent) for line in lines)
            self.take_lines(lines)
        return [line for pair in pairs for line in self._lines[pair].values()]

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

    def apply(self, change: Change, body: str | None = None) -> None:
        """Count the change now; its row is written with all others. A new task brings its body."""
        before, after = change.before, change.after
        seq = after.seq
        self.changed = True
        self.changes.append(change)
        self.count(change)
        fact = events.of(change)
        if fact is not None:
            self._record(seq, fact[0], after.attempts, fact[1], None)
        if change.verb not in _QUIET:
            self._conclude(change)
        self._note_due(after)
        self._tasks[seq] = after
        if before is None:
            assert body is not None
            self._inserts[seq] = after
            self._bodies[seq] = body
        elif seq in self._inserts:
            self._inserts[seq] = after
        else:
            self._guards.setdefault(seq, (before.state, before.token))
            self._updates[seq] = after

    def renew(self, changes: Iterable[Change]) -> None:
        """Renewals move one moment and no counter."""
        newest = {change.after.seq: change.after for change in changes}
        self.write()
        rows = [(task.seq, task.token, task.lease_expires_at) for task in newest.values()]
        self.connection.change_rows("task_renew", rows)
        self._tasks.update(newest)
        for task in newest.values():
            self._note_due(task)

    def reject(self, change: Change, body: str, most: int) -> None:
        """Keep a refused submission when not so many are kept already; runs of cron always.

        Of others it is only counted that its lane has refused one, and nothing else is kept, not
        even that there is such an agent.
        """
        if self._rejected is None:
            self.write()
            self._rejected = int(self.connection.run("rejected_count", limit=most)[0][0])
        if self._rejected < most or is_run(change.after.id):
            self._rejected += 1
            self.apply(change, body)
            return
        self.changed = True
        self.changes.append(change)
        self.lane(change.after.lane).rejected += 1
        self._dirty_lanes.add(change.after.lane)

    def tell_progress(self, task: Task, progress: str) -> None:
        self._record(task.seq, events.PROGRESS, task.attempts, progress, None)

    def tell_fired(self, task: Task, job_id: str, run_id: str) -> None:
        self._record(task.seq, events.CRON_FIRED, 0, f"{job_id} {run_id}", None)

    def owe_alert(self, run: Run, url: str, event: str, agent: str) -> None:
        """A webhook about a run of a cron job."""
        self.owes = True
        id_ = f"msg_{run.id}_{self.last_event}"
        self._owed.append((id_, run.seq, url, event, "due", self.now, 0, self.now, agent))

    def output_sizes(self, leases: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Row]:
        """The next part and the number of characters that are kept of runs, by task and token."""
        rows = list(dict.fromkeys(leases))
        found = self.connection.run_rows("output_sizes", rows) if rows else ()
        return {(row[0], row[1]): row[2:] for row in found}

    def ready_routes(self, lane: str) -> list[str]:
        """What a worker would have to be able to run there, each once."""
        self.write()
        return [row[0] for row in self.connection.run("line_ready_routes", lane=lane)]

    def _record(
        self, seq: int | None, type_: str, attempt: int, detail: str | None, batch: str | None
    ) -> None:
        self.last_event += 1
        self._events.append(
            (self.last_event, seq, self.now, type_, attempt, detail, batch, self.policy_version)
        )

    def reline(self, lane: str, *, by_agent: bool, aging_ms: int) -> None:
        """Put all tasks of a lane into other lines: those with open leases too, so read them."""
        self.write()
        self.connection.run("task_reline", lane=lane, by_agent=int(by_agent), aging_ms=aging_ms)
        self._kept.clear()

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
        awaited = [parent for _, parent, state in rows if state == dependencies.OPEN]
        self.open_edges += len(awaited)
        self._awaited.update(dict.fromkeys(awaited, True))

    def load_awaited(self, ids: Iterable[str]) -> None:
        """Ask at once for which of many new tasks others wait already."""
        new = [id_ for id_ in dict.fromkeys(ids) if id_ not in self._awaited]
        self._awaited.update(dict.fromkeys(new, False))
        if new and self.open_edges:
            rows = [(id_, dependencies.OPEN) for id_ in new]
            for (id_,) in self.connection.run_rows("dependency_awaited", rows):
                self._awaited[id_] = True

    def is_awaited(self, id_: str) -> bool:
        self.load_awaited([id_])
        return self._awaited[id_]

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

    def write(self) -> None:
        """Send what has been applied so far. Every look-up by index comes after this."""
        run = self.connection.run_rows
        if self._inserts:
            run("task_insert", [astuple(task) for task in self._inserts.values()])
            seal = self.vault.seal_body
            run("request_insert", [(seq, seal(body)) for seq, body in self._bodies.items()])
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
        self.write_counters()

    def _conclude(self, change: Change) -> None:
        """Keep what ends a task: its result, the webhook owed, and who has to be told."""
        after = change.after
        if change.result is not None or change.error is not None:
            self._results[after.seq] = (after.seq, change.result, change.error)
        elif change.verb in _CLEARS_RESULT and (after.attempts > 1 or not after.terminal):
            self._results[after.seq] = (after.seq, None, None)
        if after.state == lifecycle.PARKED:
            self.ended.append(after)
            self._owe(after)
        if after.terminal and not (change.before and change.before.terminal):
            self._end(change)
        elif change.verb == lifecycle.REVIVE:
            self._note_run(change)
            self.settling[after.id] = (dependencies.BROKEN, dependencies.OPEN, after.state)
        elif change.verb == lifecycle.STOP:
            self.stopped.append(after)

    def _end(self, change: Change) -> None:
        after = change.after
        self.ended.append(after)
        self._note_run(change)
        self._owe(after)
        if after.leased:
            self.stopped.append(after)
        if self.open_edges:
            goes = dependencies.EDGE_AFTER[after.state]
            self.settling[after.id] = (dependencies.OPEN, goes, after.state)

    def _note_run(self, change: Change) -> None:
        if is_run(change.after.id):
            self.run_changes[change.after.id] = change

    def _owe(self, task: Task) -> None:
        """Keep the webhook about what was recorded last, if the task has somewhere to send it."""
        if task.callback_url:
            self.owes = True
            id_, event = f"msg_{task.id}_{self.last_event}", EVENTS[task.state]
            what = (id_, task.seq, task.callback_url, event)
            self._owed.append((*what, "due", self.now, 0, self.now, task.agent))

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
        what = (id_, batch.seq, batch.callback_url, event)
        return (*what, "due", self.now, 0, self.now, batch.agent)

    def _note_due(self, task: Task) -> None:
        if task.lease_expires_at is not None:
            self.note_due(task.lease_expires_at)
        has_moment = task.deadline_at is not None or task.eligible_at is not None
        if has_moment and task.state not in lifecycle.TERMINAL:
            self.note_due(task.deadline_at)
            self.note_due(task.eligible_at)

    def note_due(self, moment: int | None) -> None:
        """Something has to be looked at again at `moment`."""
        if moment is not None and (self.due_at is None or moment < self.due_at):
            self.due_at = moment

    # ---------------------------------------------------------------- counters

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


# Verbs that neither end a task nor leave anything to be told of it.
_QUIET = frozenset(
    {
        lifecycle.SUBMIT,
        lifecycle.LEASE,
        lifecycle.START,
        lifecycle.PROMOTE,
        lifecycle.HOLD,
        lifecycle.MEET,
        lifecycle.BLOCK,
        lifecycle.UNBLOCK,
    }
)
_CLEARS_RESULT = frozenset({lifecycle.COMPLETE, lifecycle.REVIVE, lifecycle.RESET})

# What a webhook says has happened, by the state that a task ended or parked in.
EVENTS = {
    lifecycle.DONE: events.COMPLETED,
    lifecycle.FAILED: events.FAILED,
    lifecycle.CANCELLED: events.CANCELLED,
    lifecycle.PARKED: events.PARKED,
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
        task.deadline_ms,
    )
