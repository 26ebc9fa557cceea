"""One transaction for many requests: the serial core of the engine.

`Engine.apply` takes all waiting requests, runs them verb by verb in one durable transaction, runs
the tick, leases what the freed slots allow, commits once, and only then answers. It is synchronous
and has no threads; `writer.py` feeds it. A commit whose outcome was lost is looked up by its number
before anything is repeated, so repeating is always safe.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from fairlane.clock import Clock, ClockReading, reading_of
from fairlane.core import leases
from fairlane.core.errors import FairlaneError, InvalidPolicy, StoreMismatch
from fairlane.core.model import Change, Task
from fairlane.core.policy import Policy, read
from fairlane.core.workers import KnownWorker
from fairlane.engine import (
    commands,
    inbox_commands,
    presence_commands,
    resource_commands,
    step_commands,
)
from fairlane.engine.commands import Lease
from fairlane.engine.import_commands import ImportFinished
from fairlane.engine.resource_commands import (
    Permit,
)
from fairlane.engine.roster import Roster
from fairlane.engine.telemetry.outages import WRITES, Outages, store_unavailable
from fairlane.engine.totals import HandlerTotals
from fairlane.engine.verbs import (
    approvals,
    audit,
    batches,
    budgets,
    clock_steps,
    cron,
    effects,
    imports,
    inbox,
    key_rotation,
    leasing,
    nodes,
    output,
    permits,
    policies,
    presence,
    queue,
    reporting,
    requeueing,
    resources,
    sessions,
    steps,
    suspending,
    tasks,
    templates,
    ticks,
    tokens,
    waking,
    webhooks,
)
from fairlane.store.ahead import ReadAhead
from fairlane.store.base import Connection, ConnectionLost, Store
from fairlane.store.counters import WriterCache
from fairlane.store.tables import policy as policy_table
from fairlane.store.tables import scheduler
from fairlane.store.tables import tasks as task_table
from fairlane.store.tables import workers as worker_table
from fairlane.store.transaction import Transaction

log = logging.getLogger("fairlane.engine")

Waiting = Lease | Permit
Key = tuple[int, int]  # a task's sequence number and the fencing token of its lease
Verb = Callable[[Transaction, Sequence[Any], int], Iterator[Any]]

# The order within a batch: rules, then verbs that free slots, then verbs that take them.
VERBS: Final[Mapping[type, Verb]] = {
    commands.SetPolicy: policies.set_policy,
    commands.CreateToken: tokens.create_token,
    commands.RevokeToken: tokens.revoke_token,
    commands.UseTokens: tokens.use_tokens,
    commands.UseSecret: webhooks.use_secret,
    commands.Reseal: key_rotation.reseal,
    commands.Record: audit.record,
    commands.Report: reporting.report,
    commands.Start: tasks.start,
    step_commands.BeginEffect: effects.begin_effect,
    step_commands.Checkpoint: steps.checkpoint,
    inbox_commands.TakeMessages: inbox.take,
    commands.Complete: tasks.complete,
    commands.Fail: tasks.fail,
    commands.Release: tasks.release,
    commands.Ask: approvals.ask,
    step_commands.Suspend: suspending.suspend,
    resource_commands.SettlePermit: permits.settle_permit,
    resource_commands.CloseResource: resources.close_resource,
    resource_commands.OpenResource: resources.open_resource,
    resource_commands.RaiseResource: resources.raise_resource,
    commands.AppendOutput: output.output,
    commands.Cancel: tasks.cancel,
    commands.CancelBatch: batches.cancel_batch,
    commands.StopSession: sessions.stop,
    inbox_commands.WithdrawMessage: inbox.withdraw,
    commands.SetSession: sessions.set_session,
    commands.SetUsage: sessions.set_usage,
    commands.Reclaim: tasks.reclaim,
    presence_commands.OpenPresence: presence.open_presence,
    presence_commands.ClosePresence: presence.close_presence,
    presence_commands.ReclaimGone: presence.reclaim_gone,
    commands.ReclaimExpired: queue.reclaim_expired,
    commands.Renew: tasks.renew,
    resource_commands.Permit: permits.permit,
    commands.CreateTemplate: templates.create_template,
    commands.UpdateTemplate: templates.update_template,
    commands.CreateJobs: cron.create_jobs,
    commands.UpdateJob: cron.update_job,
    commands.ToggleJob: cron.toggle_job,
    commands.Submit: tasks.submit,
    commands.Enqueue: queue.enqueue,
    ImportFinished: imports.import_finished,
    commands.Retry: requeueing.retry,
    commands.Reset: requeueing.reset,
    commands.CreateLink: approvals.create_link,
    commands.Decide: approvals.decide,
    commands.DecideByLink: approvals.decide_by_link,
    step_commands.SendSignal: suspending.send_signal,
    step_commands.ResolveEffect: effects.resolve_effect,
    commands.Drain: queue.drain,
    commands.UseTemplate: templates.use_template,
    commands.DeleteTemplate: templates.delete_template,
    commands.RunJob: cron.run_job,
    commands.DeleteJob: cron.delete_job,
    commands.Prune: ticks.prune_now,
    commands.CreateEndpoint: webhooks.create_endpoint,
    commands.RotateEndpoint: webhooks.rotate_endpoint,
    commands.EnableEndpoint: webhooks.enable_endpoint,
    commands.DeleteEndpoint: webhooks.delete_endpoint,
    commands.SettleDelivery: webhooks.settle_delivery,
    commands.ReclaimDeliveries: webhooks.reclaim_deliveries,
    commands.Redeliver: webhooks.redeliver,
    commands.ClaimDeliveries: webhooks.claim_deliveries,
    commands.Beat: nodes.beat,
}

_PLACES: Final = {kind: place for place, kind in enumerate(VERBS)}

# Requests about a task that is leased.
REPORTS: Final = (
    commands.Start,
    commands.Complete,
    commands.Fail,
    commands.Release,
    commands.Renew,
    commands.AppendOutput,
    step_commands.Checkpoint,
)
PRUNE_EVERY_MS: Final = 10_000
SHARED_LOOK_MS: Final = 500
TRIES: Final = 5
PAUSE_SECONDS: Final = 0.025
TRY_SECONDS: Final = 5.0  # the last attempt starts before this
# After an outage in which leases may have expired, workers can report before leases are reclaimed.
OUTAGE_SECONDS: Final = 2.0
GRACE_SECONDS: Final = 10.0


class Outcome(msgspec.Struct):
    """The effects of a committed batch, for parts of the node that did not request it."""

    answers: list[object]
    grants: list[list[Any]]  # of each waiting request: grants, or the answer to a permit
    ended_tasks: list[Task]
    runs_to_stop: list[Key]  # runs of this node whose tasks have ended without them
    webhooks_due: bool
    last_event: int  # the number of the newest event, for streams
    wrote_output: bool
    notify_others: bool  # other nodes have to be notified
    others_wrote: bool  # another process has written something
    access: bool  # tokens have changed
    changes: list[Change]  # all changes of tasks, in order
    reclaimed: list[Task]  # tasks whose leases were reclaimed
    settled: list[commands.SettleDelivery]
    resource_usage: Mapping[tuple[str, str], int]  # used amounts, by resource and unit
    now: int
    stepped_ms: int = 0  # by how much the clock was set
    committed: bool = False  # False: there was nothing to write


class Engine:
    def __init__(
        self, store: Store, clock: Clock, *, name: str, outages: Outages | None = None
    ) -> None:
        self.store = store
        self.clock = clock
        self._outages = outages or Outages(clock)
        self._judge_at = 0.0  # expired leases are reclaimed from this time on
        self.name = name
        self.policy = Policy()
        self.roster = Roster(name)
        self.totals = HandlerTotals()
        self._saving: list[KnownWorker] = []  # workers that the current batch stores
        self.due_at: int | None = 0  # the first batch checks everything
        self.look_at: float | None = None  # the same on the monotonic clock
        self._policy_version = 0
        self._commit_id = 0
        self._prune_at = 0
        self._others_wrote = False
        # Whether another process has written is checked under the lock.
        self._cache = WriterCache(alone=not store.shared)
        # On a shared store: another node has written since the last commit; and before that one.
        self._stale = self._was_stale = True
        self._ahead = ReadAhead((), (), name, {})
        self._to_stop: list[Key] | None = None  # leases to stop, if they were read
        self._connection: Connection | None = None
        self._steps = clock_steps.Steps(clock)
        # The database's clock at the last begin, if that clock is authoritative.
        self._reading = ClockReading(0, None)
        # An abandoned commit, and the effects of such commits that turn out to have happened.
        self._unanswered: tuple[int, Outcome] | None = None
        self._late: list[Change] = []
        # The time of the last transaction, and the monotonic clock then.
        self.judged: tuple[int, float] | None = None
        self.trouble = ""  # the error of the last lost connection
        # Of the last committed batch: how long it took, how long it held the lock, and how often it
        # waited for a database behind a network.
        self.took_seconds = 0.0
        self.held_seconds = 0.0
        self.round_trips = 0
        self._locked_at = 0.0

    def apply(self, batch: Sequence[object], waiting: Sequence[Waiting] = ()) -> Outcome:
        """Run the batch and serve the waiting leases. Raise `StoreUnavailable` after a few
        attempts.
        """
        began = self.clock.monotonic()
        self._commit_id += 1
        unknown: tuple[Transaction, Outcome] | None = None  # a commit whose outcome was lost
        for attempt in range(1, TRIES + 1):
            try:
                connection = self._connect()
                self._plan_reads(connection, batch)
                transaction = self._begin(connection)
                # Only under the lock is it certain that the commit in question has ended.
                if unknown is not None and self._committed(connection, self._commit_id):
                    connection.rollback()
                    concluded = self._conclude(*unknown, began)
                    self._cache.clear()  # others may have written since
                    self._stale = True
                    self._steps.forget_store()
                    return concluded
                unknown = None
                self._look_for_unanswered(connection)
                outcome = self._run(transaction, batch, waiting)
                # Only a commit shows that an outage has ended.
                if (
                    batch
                    or transaction.changed
                    or transaction.accounts.wrote
                    or self._outages.seconds(WRITES)
                ):
                    self._steps.save(transaction)
                    self._save_workers(transaction, waiting)
                    changes, now = transaction.changes, self.clock.monotonic()
                    self.totals.save(connection, changes, transaction.now, now)
                    transaction.finish(self.name, self._commit_id)
                    unknown = (transaction, outcome)
                    connection.commit()
                    self.held_seconds = self.clock.monotonic() - self._locked_at
                    self.round_trips = connection.round_trips
                    return self._conclude(transaction, outcome, began)
                connection.rollback()
                self._remember(transaction)
                return outcome
            except ConnectionLost as error:
                self.trouble = str(error)
                self._outages.failed(WRITES, error, began)
                self._disconnect()
                if self.clock.monotonic() - began >= TRY_SECONDS:
                    break
                self.clock.sleep(PAUSE_SECONDS * 2**attempt)
            except BaseException:
                self._rollback()
                if self.store.shared:
                    # After a broken pipeline the driver takes statements as prepared that the
                    # server has never seen. A new connection has none.
                    self._disconnect()
                raise
        if unknown is not None:
            self._unanswered = (self._commit_id, unknown[1])
            raise store_unavailable("it is unknown whether the request took effect")
        raise store_unavailable("the request had no effect")

    def clock_was_set(self) -> bool:
        """Return whether running timers must be shifted because the authoritative clock was set."""
        return self._steps.happened(reading_of(self.clock))

    def others_wrote(self) -> bool:
        """Return whether another process wrote to a private store, so that everything must be
        checked.
        """
        try:
            changed = self._connection is not None and self._connection.changed_outside()
        except ConnectionLost:
            self._disconnect()
            changed = True
        if changed:
            self._others_wrote = True
            self._steps.forget_store()
            self.due_at = 0
        return self._others_wrote

    def moment(self) -> int:
        """Return the time by the clock that decides about leases and deadlines. On PostgreSQL that
        is the database's clock: its time in the last transaction plus the time that has passed
        since.
        """
        judged = self.judged
        if judged is None:
            return self.clock.now()
        return judged[0] + round((self.clock.monotonic() - judged[1]) * 1000)

    def close(self) -> None:
        self._disconnect()

    def _run(self, tx: Transaction, batch: Sequence[Any], waiting: Sequence[Waiting]) -> Outcome:
        stepped_ms = self._take_in_step(tx)
        if tx.accounts.kept and not any(isinstance(one, Permit) for one in waiting):
            permits.wait(tx, [])
        answers: list[object] = [None] * len(batch)
        by_verb: dict[type, list[int]] = {}
        for number, request in enumerate(batch):
            by_verb.setdefault(type(request), []).append(number)
        for kind in sorted(by_verb, key=_PLACES.__getitem__):
            numbers = by_verb[kind]
            found = VERBS[kind](tx, [batch[number] for number in numbers], tx.now)
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer
        self._let_time_pass(tx)
        suspending.deliver(tx, tx.now)
        ticks.settle(tx, tx.now)
        cron.follow(tx, tx.now)
        if tx.woken or tx.left_waits:
            suspending.save(tx)
        grants = self._serve(tx, waiting)
        if tx.spent_budgets:
            budgets.ask_to_raise(tx)
        if tx.approval_facts:
            webhooks.tell_subscribers(tx)
        tx.unwritten.write()
        return Outcome(
            answers,
            grants,
            tx.ended,
            self._runs_to_stop(tx),
            tx.webhooks_due,
            tx.last_event,
            tx.wrote_output,
            notify_others=self._concerns_others(tx),
            others_wrote=self._others_wrote,
            access=tx.access_changed,
            changes=tx.changes,
            reclaimed=tx.reclaimed,
            settled=[batch[number] for number in by_verb.get(commands.SettleDelivery, ())],
            resource_usage=tx.accounts.used,
            now=tx.now,
            stepped_ms=stepped_ms,
        )

    def _save_workers(self, tx: Transaction, waiting: Sequence[Waiting]) -> None:
        """Store which workers were heard, if that is due."""
        now = self.clock.monotonic()
        self._saving, has_new = self.roster.due(waiting, now, tx.now)
        if self._saving:
            worker_table.save(tx.connection, self._saving)
        if has_new:
            worker_table.forget(tx.connection, tx.now - nodes.FORGET_MS)

    def _serve(self, tx: Transaction, waiting: Sequence[Waiting]) -> list[list[Any]]:
        """Serve permits, wake tasks that fit, lease, and check the resources again."""
        asked = [one for one in waiting if isinstance(one, Permit)]
        granted = iter(permits.wait(tx, asked) if asked or tx.accounts.kept else [])
        if tx.accounts.touched:
            waking.wake(tx)
        wanted = [one for one in waiting if isinstance(one, Lease)]
        leased = iter(leasing.lease(tx, wanted, tx.now) if wanted else [])
        if tx.accounts.touched or tx.woken_at:
            waking.follow_up(tx)
        return [next(granted) if isinstance(one, Permit) else next(leased) for one in waiting]

    def _take_in_step(self, tx: Transaction) -> int:
        """Detect a step of the clock before anything is decided by it."""
        if self.store.shared and self._stale:
            self._steps.forget_store()
        stepped_ms = self._steps.take_in(tx, self._reading)
        if stepped_ms:
            self._cache.clear()
            self.due_at = self._prune_at = 0  # by the clock before the step
        return stepped_ms

    def _runs_to_stop(self, tx: Transaction) -> list[Key]:
        mine = [(task.seq, task.fencing_token) for task in tx.stopped if task.worker == self.name]
        # Another process may have stopped runs of this node.
        if self._to_stop is not None:
            return [*dict.fromkeys([*self._to_stop, *mine])]
        if self._others_wrote:
            return task_table.leases_to_stop(tx.connection, self.name)
        return mine

    def _concerns_others(self, tx: Transaction) -> bool:
        """Return whether other nodes must be notified: of ready work that this node did not take,
        of runs that they must stop, or of changed tokens.
        """
        if tx.access_changed or any(task.worker != self.name for task in tx.stopped):
            return True
        return tx.changed and any(leasing.could_start(tx, lane) for lane in tx.counters.lanes())

    def _let_time_pass(self, tx: Transaction) -> None:
        if self.due_at is None or tx.now < self.due_at:
            tx.note_due(self.due_at)
            return
        grace_ms = max(0, round((self._judge_at - self.clock.monotonic()) * 1000))
        ticks.tick(tx, tx.now, grace_ms)
        cron.follow(tx, tx.now)  # a run that has ended does not block its job
        cron.fire(tx, tx.now)
        if tx.now >= self._prune_at:
            went = ticks.prune(tx, tx.now)
            tx.changed = tx.changed or went > 0
            more = went >= ticks.STEP or tx.prune_again
            self._prune_at = tx.now + (0 if more else PRUNE_EVERY_MS)
        tx.note_due(self._prune_at)

    def _begin(self, connection: Connection) -> Transaction:
        row = connection.begin()
        self._locked_at = self.clock.monotonic()
        if self._outages.seconds(WRITES) >= OUTAGE_SECONDS:
            self._judge_at = self.clock.monotonic() + GRACE_SECONDS
        if row.policy_version != self._policy_version:
            self._load_policy(connection)
        self._check_cache(connection)
        if row.moment is None or self.clock.judges:
            self._reading = reading_of(self.clock)
        else:
            self._reading = ClockReading(row.moment, None)
        self.judged = (self._reading.now, self.clock.monotonic())
        return Transaction(
            connection,
            now=self._reading.now,
            row=row,
            policy=self.policy,
            vault=self.store.vault,
            cache=self._cache,
            fencing_token_base=leases.fencing_token_base(
                row.last_fencing_token, self._reading.now, self._draw()
            ),
        )

    def _check_cache(self, connection: Connection) -> None:
        """Forget the cache if another process has written since, and read what the batch names.

        On a shared store the connection reports such writes under the lock, so a node that is alone
        for a while need not read cached rows again.
        """
        if not self.store.shared:
            if self.others_wrote():
                self._cache.clear()
            return
        self._was_stale = self._stale = self._stale or connection.changed_outside()
        self._to_stop = None
        if self._stale:
            self._cache.doubt()
            self._to_stop = self._ahead.take(connection.read(self._ahead.reads), self._cache)

    def _plan_reads(self, connection: Connection, batch: Sequence[object]) -> None:
        """List the rows that the batch names; read them with the lock if another node is active."""
        if not self.store.shared:
            return
        pairs = (
            (self.policy.lane_name(new.lane, new.kind), new.agent)
            for request in batch
            if isinstance(request, commands.Submit)
            for new in request.submissions
        )
        reports = [request for request in batch if isinstance(request, REPORTS)]
        for request in batch:
            if isinstance(request, commands.Report):
                reports += request.reports
        seqs = (report.seq for report in reports)
        self._ahead = ReadAhead(seqs, pairs, self.name, self._cache.known)
        if self._stale or self._was_stale:
            connection.read_ahead(self._ahead.reads)

    def _draw(self) -> int:
        """Return a number for this transaction: a node's name is new in each process, and a node
        never uses the number of a commit again.
        """
        return zlib.crc32(f"{self.name} {self._commit_id}".encode())

    def _load_policy(self, connection: Connection) -> None:
        newest = policy_table.newest(connection)
        assert newest is not None, "the scheduler's row names a version of the policy"
        self.policy, self._policy_version = parse_stored_policy(*newest), newest.version

    def _remember(self, tx: Transaction) -> None:
        """Save the state that the next batch may rely on. Call it only after the commit."""
        self._steps.remember()
        self.policy = tx.policy
        self._policy_version = tx.policy_version
        self.due_at = tx.due_at
        if self.store.shared:  # other nodes have their own deadlines, and may be gone
            self.due_at = min(tx.now + SHARED_LOOK_MS, tx.due_at or tx.now + SHARED_LOOK_MS)
        # The batch's clock may be the database's; the wait is measured on our own.
        left_ms = None if self.due_at is None else max(0, self.due_at - tx.now)
        self.look_at = None if left_ms is None else self.clock.monotonic() + left_ms / 1000
        self._others_wrote = self._stale = False
        tx.save_to_cache()

    def _conclude(self, tx: Transaction, outcome: Outcome, began: float) -> Outcome:
        """Return the outcome of the commit."""
        self._outages.worked(WRITES)
        self._remember(tx)
        self.totals.committed()
        if self._saving:
            self.roster.saved(self._saving, self.clock.monotonic())
            self._saving = []
        if self._late:
            outcome.changes = [*self._late, *outcome.changes]
            self._late = []
        outcome.committed = True
        if outcome.stepped_ms:
            log.warning(
                "the system clock was set by %+.3f s, or the machine was suspended: leases, "
                "retries, delays and deadlines in progress keep their remaining time",
                outcome.stepped_ms / 1000,
            )
        self.took_seconds = self.clock.monotonic() - began
        return outcome

    def _look_for_unanswered(self, connection: Connection) -> None:
        """Count the effects of an abandoned commit if it turns out to have happened."""
        if self._unanswered is not None:
            commit_id, outcome = self._unanswered
            if self._committed(connection, commit_id):
                self._late += outcome.changes
            self._unanswered = None

    def _committed(self, connection: Connection, commit_id: int) -> bool:
        return scheduler.last_commit(connection, self.name) == commit_id

    def _connect(self) -> Connection:
        if self._connection is None:
            self._connection = self.store.writer()
            self._cache.clear()
            self._stale = True
            self._steps.forget_store()
            self.due_at = 0  # something was written meanwhile: check everything
        return self._connection

    def _rollback(self) -> None:
        self._cache.clear()
        if self._connection is not None:
            self._connection.rollback()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def parse_stored_policy(version: int, document: str) -> Policy:
    """Return a stored policy. Keys that only a newer node knows are ignored.

    Raise `StoreMismatch` if it cannot be read: running no tasks is better than running them under
    other rules.
    """
    try:
        return read(msgspec.json.decode(document))[0]
    except (InvalidPolicy, msgspec.DecodeError) as error:
        raise StoreMismatch(
            f"version {version} of the policy in the store cannot be read: {error}; use the "
            "fairlane version that wrote it, or a newer one"
        ) from None


def apply_one(engine: Engine, request: object) -> Any:
    """Apply a single request. Return its answer, or raise it if it is an error."""
    answer = engine.apply([request]).answers[0]
    if isinstance(answer, FairlaneError):
        raise answer
    return answer
