"""The one write transaction: load what verbs name and save what the core decided.

The same `Change` that rewrites a row moves the counters (`counters.py`). Rows are written together
(`unwritten.py`), once: lookups merge them in, or write them first (`lookup.py`). Nothing is decided
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fairlane.core import approvals, consequences, dependencies, events, lifecycle
from fairlane.core.approvals import Approval
from fairlane.core.consequences import EdgeChange, Webhook
from fairlane.core.model import Change, Task, is_run
from fairlane.core.policy import Policy
from fairlane.core.resources import BudgetSpent, Reservation
from fairlane.core.steps import Step, StepBrief, StepIndex
from fairlane.store.accounts import Accounts
from fairlane.store.base import Connection, SchedulerRow
from fairlane.store.counters import KNOWN_MAX, Counters, WriterCache
from fairlane.store.draft import DraftLookup
from fairlane.store.lookup import Lookup, StoreLookup
from fairlane.store.tables import checkpoints as checkpoint_table
from fairlane.store.tables import dependencies as dependency_table
from fairlane.store.tables import events as event_table
from fairlane.store.tables import scheduler
from fairlane.store.tables import tasks as task_table
from fairlane.store.tables.deliveries import DueDelivery
from fairlane.store.unwritten import Unwritten
from fairlane.store.vault import Vault

STEPS_CACHED_MAX: Final = 50_000


class Transaction:
    """Valid between the driver's `begin` and `commit`. `now` is the time of the whole batch."""

    def __init__(
        self,
        connection: Connection,
        *,
        now: int,
        row: SchedulerRow,
        policy: Policy,
        vault: Vault | None = None,
        cache: WriterCache | None = None,
        fencing_token_base: int = 0,
        lookup: type[StoreLookup] | type[DraftLookup] = StoreLookup,
    ) -> None:
        self.connection = connection
        self.now = now
        self.policy = policy
        self.policy_version = row.policy_version
        self.vault = vault or Vault()  # one that opens nothing, for a plan
        self.changed = False
        self._cache = cache or WriterCache()
        self._tasks: dict[int, Task] = {}
        self._number = row.transaction
        self._rewritten: set[int] = set()  # tasks whose rows change without a `Change`
        self.counters = Counters(
            connection, now=now, last_line=row.last_line, policy=policy, cache=self._cache
        )
        self.accounts = Accounts(
            connection,
            now=now,
            policy=policy,
            cache=self._cache.accounts,
            last_number=row.last_number,
            open_reservations=row.reservations,
        )
        # Budgets that ran out, for which a person is to be asked; accounts with woken tasks.
        self.prune_again = False  # more is old than was forgotten in one step
        self.spent_budgets: dict[str, BudgetSpent] = {}  # by the name of the question
        self.woken_at: set[int] = set()
        self.unwritten = Unwritten(connection, self.vault, self.counters, self.accounts, now)
        self.lookup: Lookup = lookup(
            connection, self.vault, self.counters, self.unwritten, self._tasks
        )
        self.last_seq = row.last_seq
        self.last_fencing_token = row.last_fencing_token
        self._fencing_token_base = fencing_token_base  # see `leases.fencing_token_base`
        self.last_event = row.last_event
        self.open_edges = row.open_edges
        self.unsettled = row.unsettled
        self.changes: list[Change] = []
        self.reclaimed: list[Task] = []
        self.ended: list[Task] = []
        self.stopped: list[Task] = []
        self.webhooks_due = False
        self.wrote_output = False
        self.access_changed = False
        self._rejected: int | None = None  # how many refused submissions are stored
        self._awaited: dict[str, bool] = {}  # whether others wait for a task, once looked up
        self.due_at: int | None = None
        # Parents whose edges have to follow.
        self.settling: dict[str, EdgeChange] = {}
        # Tasks that have ended while a person was asked about them.
        self.closing: list[Task] = []
        # Changes of approvals, for endpoints that subscribe.
        self.approval_facts: list[tuple[str, Approval]] = []
        # Suspended tasks that continue, with the value of their wait if it is known; ended ones.
        self.woken: dict[int, str | None] = {}
        self.left_waits: list[int] = []
        # Runs that have begun to wait for a message in this transaction, with their sessions.
        self.listening: list[tuple[str, int]] = []
        # The last change of each cron task that ended or was requeued.
        self.run_changes: dict[str, Change] = {}

    def use_policy(self, policy: Policy) -> None:
        self.policy = self.counters.policy = self.accounts.policy = policy
        self.accounts.demands.clear()
        self.accounts.needs.clear()

    # ---------------------------------------------------------------- load

    def next_seq(self) -> int:
        self.last_seq += 1
        return self.last_seq

    def next_fencing_token(self) -> int:
        self.last_fencing_token = max(self.last_fencing_token, self._fencing_token_base) + 1
        return self.last_fencing_token

    def tasks_by_id(self, ids: Iterable[str]) -> dict[str, Task]:
        wanted = dict.fromkeys(ids)
        if not wanted:
            return {}
        self.unwritten.write()
        found = task_table.by_id(self.connection, wanted)
        return {task.id: self._tasks.setdefault(task.seq, task) for task in found}

    def tasks_by_seq(self, seqs: Iterable[int]) -> dict[int, Task]:
        tasks, cached = self._tasks, self._cache.tasks
        missing: dict[int, None] = {}
        for seq in seqs:
            if seq not in tasks:
                if seq in cached:
                    tasks[seq] = cached[seq]
                else:
                    missing[seq] = None
        if missing:
            for task in task_table.by_seq(self.connection, missing):
                tasks[task.seq] = task
        return tasks

    def known_task(self, seq: int) -> Task | None:
        """Return a task if it is in memory."""
        return self._tasks.get(seq) or self._cache.tasks.get(seq)

    @property
    def alone(self) -> bool:
        """Whether no other process writes, so that leased tasks stay in memory."""
        return self._cache.alone

    def save_to_cache(self) -> None:
        """Cache tasks with open leases and counters for the next transaction, after the commit."""
        for seq, task in self._tasks.items():
            if task.lease_expires_at is not None:
                self._cache.tasks[seq] = task
            else:
                self._cache.tasks.pop(seq, None)
                self._cache.steps.pop(seq, None)
        if self._number is not None:
            self._save_known(self._number)
        if sum(map(len, self._cache.steps.values())) > STEPS_CACHED_MAX:
            self._cache.steps.clear()
        self.counters.save_to_cache()
        self.accounts.save_to_cache()

    def _save_known(self, number: int) -> None:
        """Note which rows of tasks with open leases this transaction has written."""
        known = self._cache.known
        written = {change.after.seq for change in self.changes} | self._rewritten
        for seq, task in self._tasks.items():
            if task.lease_expires_at is None:
                known.pop(seq, None)
            elif seq in written:
                known[seq] = (task, number)
        if len(known) > KNOWN_MAX:  # other processes may have ended many of these leases
            known.clear()

    def step_indexes(self, tasks: Iterable[Task]) -> Mapping[int, StepIndex]:
        """Return the recorded steps of tasks, without their values."""
        cached = self._cache.steps
        missing = {task.seq: task for task in tasks if task.seq not in cached}
        if missing:
            self.unwritten.write()
            with_steps = [seq for seq, task in missing.items() if task.steps]
            found = checkpoint_table.brief(self.connection, with_steps) if with_steps else {}
            cached.update((seq, StepIndex(found.get(seq, ()))) for seq in missing)
        return cached

    def reservations(self, seqs: Iterable[int]) -> dict[int, list[Reservation]]:
        """Return the open reservations of tasks."""
        return self.accounts.reservations(list(seqs), alone=self._cache.alone)

    def task(self, seq: int) -> Task:
        """Return a task as this transaction has left it."""
        return self._tasks[seq]

    def result(self, seq: int) -> str | None:
        """Return the stored result of a task as JSON text."""
        self.unwritten.write()
        return task_table.results(self.connection, [seq]).get(seq)

    def rewrite_request(self, seq: int, body: str) -> None:
        task_table.rewrite_request(self.connection, self.vault, seq, body)
        self.changed = True

    def unwritten_ready(self, lane: str) -> list[tuple[Task, str]] | None:
        """Return the ready tasks of a lane with their requests, if all of them became ready in this
        transaction and are unwritten; otherwise None.
        """
        return self.lookup.new_ready(lane, self.counters.lane(lane).ready)

    # ---------------------------------------------------------------- save

    def apply(self, change: Change, body: str | None = None, submitter: str | None = None) -> None:
        """Count the change now; its row is written with all others. A new task brings its body, and
        the id of the token that submitted it.
        """
        after = change.after
        seq = after.seq
        if submitter is not None:
            self.unwritten.submitters[seq] = submitter
        self.changed = True
        self.changes.append(change)
        self.counters.count(change)
        if after.wait is not None:
            self.accounts.count(change)
        if self.accounts.open_reservations:
            self._note_end(change)
        fact = events.of(change)
        if fact is not None:
            self._record(seq, fact[0], after.attempts, fact[1], None)
        self._save_consequences(change)
        self._note_due(after)
        self._tasks[seq] = after
        self.unwritten.add(change, body)

    def _note_end(self, change: Change) -> None:
        """Record the end of a lease, so that its reservations are settled."""
        before = change.before
        if before is not None and before.leased and not change.after.leased:
            self.accounts.ended.append(change)

    def renew(self, changes: Iterable[Change]) -> None:
        """Save a renewal, which moves one time and no counter."""
        newest = {change.after.seq: change.after for change in changes}
        self.unwritten.write()
        task_table.renew(self.connection, newest.values())
        self._tasks.update(newest)
        self._rewritten.update(newest)
        for task in newest.values():
            self._note_due(task)

    def reject(self, change: Change, body: str, most: int) -> None:
        """Store a refused submission unless too many are stored already; cron runs always.

        Others are only counted in their lane; nothing else is stored, not even their agent.
        """
        if self._rejected is None:
            self.unwritten.write()
            self._rejected = task_table.count_rejected(self.connection, most)
        if self._rejected < most or is_run(change.after.id):
            self._rejected += 1
            self.apply(change, body)
        else:
            self.count_rejected(change)

    def count_rejected(self, change: Change) -> None:
        """Count a refused submission that is not stored."""
        self.changed = True
        self.changes.append(change)
        self.counters.count_rejected(change.after.lane)

    def tell_progress(self, task: Task, progress: str) -> None:
        self._record(task.seq, events.PROGRESS, task.attempts, progress, None)

    def tell_signal(self, task: Task, name: str) -> None:
        self.changed = True
        self._record(task.seq, events.SIGNAL, task.attempts, name, None)

    def count_steps(self, task: Task, step: Step) -> None:
        """Note a task that has recorded a step; `save_steps` writes its count."""
        self.note_steps(task)
        self.tell_step(task, step)

    def note_steps(self, task: Task) -> None:
        """Note a task that has one more step, without an event."""
        self._tasks[task.seq] = task
        self._rewritten.add(task.seq)

    def tell_step(self, task: Task, step: Step) -> None:
        detail = f"{step.number} {step.name}"
        self._record(task.seq, events.STEP, task.attempts, detail, None)

    def save_steps(self, steps: Sequence[Step]) -> None:
        """Save new steps, and how many their tasks have now."""
        self.changed = True
        self.unwritten.write()
        checkpoint_table.insert(self.connection, steps)
        self._index(steps)
        seqs = dict.fromkeys(step.seq for step in steps)
        checkpoint_table.count(self.connection, [self._tasks[seq] for seq in seqs])

    def settle_steps(self, steps: Sequence[Step]) -> None:
        """Save what has become of effects."""
        self.changed = True
        self.unwritten.write()
        checkpoint_table.settle(self.connection, steps)
        self._index(steps)

    def _index(self, steps: Sequence[Step]) -> None:
        for step in steps:
            known = self._cache.steps.get(step.seq)
            if known is not None:
                known.add(StepBrief(step.seq, step.number, step.name, len(step.value), step.intent))

    def forget_steps(self, task: Task) -> None:
        """Delete the steps of a task."""
        self.changed = True
        self.unwritten.write()
        checkpoint_table.forget(self.connection, [task.seq])
        self._cache.steps.pop(task.seq, None)
        checkpoint_table.count(self.connection, [task])

    def tell_fired(self, task: Task, job_id: str, run_id: str) -> None:
        self._record(task.seq, events.CRON_FIRED, 0, f"{job_id} {run_id}", None)

    def tell_resource(self, type_: str, detail: str) -> None:
        self._record(None, type_, 0, detail, None)

    def _record(
        self, seq: int | None, type_: str, attempt: int, detail: str | None, batch: str | None
    ) -> None:
        self.last_event += 1
        self.unwritten.events.append(
            (self.last_event, seq, self.now, type_, attempt, detail, batch, self.policy_version)
        )

    def save_approval(self, before: Approval | None, after: Approval) -> None:
        """Save an approval that was opened, voted on or closed, with events for subscribers."""
        self.changed = True
        self.unwritten.add_approval(before, after)
        if after.state == approvals.OPEN:
            self.note_due(after.expires_at)
        fact = events.of_approval(before, after)
        if fact is not None:
            self._record(after.task_seq, fact, 0, f"{after.id} {after.state}", None)
            self.approval_facts.append((fact, after))

    def reline(self, lane: str, *, by_agent: bool, aging_ms: int) -> None:
        """Move all tasks of a lane to other lines. Cached tasks with open leases are read again."""
        self.unwritten.write()
        task_table.reline(self.connection, lane, by_agent=by_agent, aging_ms=aging_ms)
        self._cache.clear()

    def place(self, tasks: Iterable[Task]) -> None:
        """Move requeued tasks to the lines where they belong now."""
        self.unwritten.write()
        task_table.place(self.connection, tasks)

    def requeued_at(self, seqs: Iterable[int]) -> dict[int, int]:
        """Return when tasks were last queued again after they had ended or parked, if ever."""
        self.unwritten.write()
        return event_table.requeued_at(self.connection, seqs)

    def connect(self, child: int, edges: Iterable[tuple[str, int]]) -> None:
        """Store the edges of a new task: its parents and the state of each edge."""
        rows = [(child, parent, state) for parent, state in edges]
        dependency_table.insert(self.connection, rows)
        awaited = [parent for _, parent, state in rows if state == dependencies.OPEN]
        self.open_edges += len(awaited)
        self._awaited.update(dict.fromkeys(awaited, True))

    def load_awaited(self, ids: Iterable[str]) -> None:
        """Look up in one statement which of many new tasks other tasks already wait for."""
        new = [id_ for id_ in dict.fromkeys(ids) if id_ not in self._awaited]
        self._awaited.update(dict.fromkeys(new, False))
        if new and self.open_edges:
            for id_ in dependency_table.awaited(self.connection, new, dependencies.OPEN):
                self._awaited[id_] = True

    def is_awaited(self, id_: str) -> bool:
        self.load_awaited([id_])
        return self._awaited[id_]

    def _save_consequences(self, change: Change) -> None:
        following = consequences.of(change, awaited=self.open_edges > 0)
        if following is None:
            return
        task = change.after
        if following.outcome is not None:
            self.unwritten.results[task.seq] = (task.seq, *following.outcome)
        if following.wakes_waiters:
            self.ended.append(task)
        if following.webhook is not None:
            self.owe(following.webhook)
        if following.run_changes:
            self.run_changes[task.id] = change
        if following.stops_run:
            self.stopped.append(task)
        if following.closes_approval:
            self.closing.append(task)
        if following.leaves_wait:
            self.left_waits.append(task.seq)
        if following.edges is not None:
            self.settling[task.id] = following.edges

    def owe(self, webhook: Webhook, number: int | None = None) -> None:
        """Save a webhook; its id names the newest event, so that it is unique. Where one event is
        sent to several endpoints, `number` differs.
        """
        self.webhooks_due = True
        id_ = f"msg_{webhook.about}_{self.last_event if number is None else number}"
        self.unwritten.deliveries.append(
            DueDelivery(id_, webhook.seq, webhook.url, webhook.event, 0, webhook.agent)
        )

    def settle_batches(self) -> None:
        """End the batches whose tasks have all ended, after everything was counted."""
        for batch in self.counters.settle_batches():
            self._record(None, events.BATCH_COMPLETED, 0, batch.state, batch.id)
            webhook = consequences.of_batch_end(batch)
            if webhook is not None:
                self.owe(webhook)

    def _note_due(self, task: Task) -> None:
        if task.lease_expires_at is not None:
            self.note_due(task.lease_expires_at)
        has_moment = task.deadline_at is not None or task.eligible_at is not None
        if has_moment and task.state not in lifecycle.TERMINAL:
            self.note_due(task.deadline_at)
            self.note_due(task.eligible_at)

    def note_due(self, moment: int | None) -> None:
        """Schedule a tick at `moment`."""
        if moment is not None and (self.due_at is None or moment < self.due_at):
            self.due_at = moment

    def finish(self, writer: str, commit_id: int) -> None:
        """Send the last writes of the transaction; the caller commits."""
        self.unwritten.write()
        row = SchedulerRow(
            last_seq=self.last_seq,
            last_fencing_token=self.last_fencing_token,
            policy_version=self.policy_version,
            last_line=self.counters.last_line,
            last_event=self.last_event,
            open_edges=self.open_edges,
            unsettled=self.unsettled,
            last_number=self.accounts.last_number,
            reservations=self.accounts.open_reservations,
        )
        scheduler.save(self.connection, row)
        scheduler.save_commit(self.connection, writer, commit_id, self.now)
