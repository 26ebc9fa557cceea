"""Planted bugs in the ways of work that hangs together: dependencies, batches, retries, events."""

from __future__ import annotations

import copy
from typing import Any, Final

import pytest

from fairlane.core import batches, consequences, dependencies, events, gates, leases, lifecycle
from fairlane.core.batches import Batch
from fairlane.core.model import BATCH_GATE, Change, Task
from fairlane.engine import engine as engines
from fairlane.engine.commands import AppendOutput
from fairlane.engine.engine import Engine
from fairlane.engine.verbs import batches as batch_verbs
from fairlane.engine.verbs import dependencies as settling
from fairlane.engine.verbs import leasing, policies, ticks
from fairlane.engine.verbs import tasks as verbs
from fairlane.store.counters import Counters
from fairlane.store.sqlite import SqliteConnection
from fairlane.store.tables import dependencies as dependency_table
from fairlane.store.tables import tasks as task_table
from fairlane.store.transaction import Transaction
from tests.simulation.planting import Bed, always

BED: Final = Bed()
plant = BED.plant


# --- dependencies -----------------------------------------------------------------------------


@plant("parents", "edges", "family")
def a_failed_parent_counts_as_done(patch: pytest.MonkeyPatch) -> None:
    after = {**dependencies.EDGE_AFTER, lifecycle.FAILED: dependencies.MET}
    patch.setattr(dependencies, "EDGE_AFTER", after)


@plant("edges", "stranded")
def only_the_last_parent_is_counted(patch: pytest.MonkeyPatch) -> None:
    real = dependencies.met

    def met(task: Task) -> Task:
        return real(task) if task.unmet == 1 else copy.copy(task)

    patch.setattr(dependencies, "met", met)


@plant("parents", "edges")
def the_first_parent_is_enough(patch: pytest.MonkeyPatch) -> None:
    real = dependencies.met

    def met(task: Task) -> Task:
        after = real(task)
        after.unmet = 0
        return after

    patch.setattr(dependencies, "met", met)


@plant("edges", "stranded", "family", "orphan")
def what_is_left_to_settle_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    def keep(tx: Transaction) -> None:
        tx.settling = {}

    patch.setattr(settling, "_keep", keep)


@plant("edges", "stranded", "family", "time")
def what_is_left_to_settle_is_not_taken_up(patch: pytest.MonkeyPatch) -> None:
    def load(tx: Transaction) -> None:
        dependency_table.take_unsettled(tx.connection)
        tx.unsettled = 0

    patch.setattr(settling, "_load", load)


@plant("time")
def what_is_left_to_settle_is_not_due(patch: pytest.MonkeyPatch) -> None:
    real = settling.settle

    def settle(tx: Transaction, now: int) -> None:
        due_at = tx.due_at
        real(tx, now)
        tx.due_at = due_at

    patch.setattr(settling, "settle", settle)


@plant("edges", "family")
def only_children_are_cancelled_not_theirs(patch: pytest.MonkeyPatch) -> None:
    real = consequences.of

    def of(change: Change, *, awaited: bool) -> Any:
        return real(change, awaited=awaited and not (change.verb == "cancel" and change.error))

    patch.setattr(consequences, "of", of)


@plant("family")
def a_child_is_told_the_wrong_reason(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dependencies, "reason", lambda parent, _: f"dependency {parent} rejected")


@plant("orphan")
def a_revived_parent_leaves_its_children_cancelled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settling, "_mend_all", always(None))


@plant("revival", "family", seed=5)
def a_revived_parent_revives_whoever_was_cancelled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settling, "_orphaned", lambda task: task.state == lifecycle.CANCELLED)


@plant("cycle", "drain")
def a_cycle_is_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settling, "refuse_cycle", always(None))


@plant("edges")
def edges_of_forgotten_tasks_stay_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ticks, "OPEN", -1)


@plant("inputs")
def a_child_is_not_given_what_its_parents_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settling, "inputs", always({}))


# --- batches ----------------------------------------------------------------------------------


@plant("counters", "batch", seed=12)
def a_place_is_kept_while_a_retry_waits(patch: pytest.MonkeyPatch) -> None:
    real = batches._count

    def count(batch: Batch, task: Task, sign: int) -> None:
        real(batch, task, sign)
        if task.gate == "delay" and task.fencing_token:
            batch.holders += sign

    patch.setattr(batches, "_count", count)


@plant("parallelism")
def a_batch_has_no_gate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gates, "batch_gate", always(None))


@plant("parallelism")
def a_retry_passes_by_the_gate_of_its_batch(patch: pytest.MonkeyPatch) -> None:
    real = gates.next_gate

    def next_gate(task: Task, *args: Any, **values: Any) -> str | None:
        gate = real(task, *args, **values)
        return None if gate == BATCH_GATE and task.fencing_token else gate

    patch.setattr(gates, "next_gate", next_gate)


@plant("batch", seed=4)
def a_free_place_is_not_given_on(patch: pytest.MonkeyPatch) -> None:
    real = Counters._count_in_batch

    def count(counters: Counters, id_: str, change: Change) -> None:
        real(counters, id_, change)
        if change.verb == lifecycle.BACK_OFF:
            counters.open_batches.discard(id_)

    patch.setattr(Counters, "_count_in_batch", count)


@plant("completed")
def the_end_of_a_batch_is_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batches, "settle", always(False))


@plant("completed")
def the_end_of_a_batch_is_told_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batches, "settle", lambda batch, _: not batch.open)


@plant("completed")
def a_batch_ends_with_parked_tasks(patch: pytest.MonkeyPatch) -> None:
    real = batches.settle

    def settle(batch: Batch, now: int) -> bool:
        if batch.open == 1 and batch.completed_at is None and not batch.holders:
            batch.completed_at = now
            return True
        return real(batch, now)

    patch.setattr(batches, "settle", settle)


@plant("completed")
def a_batch_that_goes_on_stays_completed(patch: pytest.MonkeyPatch) -> None:
    real = batches.apply

    def apply(batch: Batch, change: Change) -> None:
        completed_at = batch.completed_at
        real(batch, change)
        batch.completed_at = completed_at

    patch.setattr(batches, "apply", apply)


@plant("cancel")
def a_cancelled_batch_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batch_verbs, "_cancel_all", lambda _, batch, __: batch.open)


# --- budgets, waits, deadlines ----------------------------------------------------------------


@plant("attempts")
def who_begins_again_has_no_new_attempts(patch: pytest.MonkeyPatch) -> None:
    real = leases._renewed

    def renewed(task: Task, *args: Any) -> Task:
        after = real(task, *args)
        after.attempts = task.attempts
        return after

    patch.setattr(leases, "_renewed", renewed)


@plant("deadline")
def a_deadline_grows_with_each_revival(patch: pytest.MonkeyPatch) -> None:
    real = leases._renewed

    def renewed(task: Task, verb: str, now: int, _: int | None) -> Task:
        """Counted from when it was made, not from when it began again."""
        forgetful = copy.copy(task)
        forgetful.deadline_ms = None
        return real(forgetful, verb, now, None)

    patch.setattr(leases, "_renewed", renewed)


@plant("deadline")
def a_child_has_no_deadline(patch: pytest.MonkeyPatch) -> None:
    real = settling.let_in

    def let_in(tx: Transaction, task: Task, now: int) -> None:
        deadline_at = task.deadline_at
        real(tx, task, now)
        task.deadline_at = deadline_at

    patch.setattr(settling, "let_in", let_in)


@plant("backoff")
def what_a_task_says_of_its_retries_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verbs, "backoffs", always({}))
    patch.setattr(ticks, "backoffs", always({}))


@plant("delay", "state")
def a_start_is_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    real = gates.next_gate

    def next_gate(task: Task, *args: Any, **values: Any) -> str | None:
        ready = copy.copy(task)
        ready.eligible_at = None
        return real(ready, *args, **values)

    patch.setattr(gates, "next_gate", next_gate)


@plant("session", "counters")
def a_delayed_newcomer_has_the_turn(patch: pytest.MonkeyPatch) -> None:
    real = gates.holds_turn
    patch.setattr(gates, "holds_turn", lambda task: task.gate == "delay" or real(task))


@plant("session order", seed=2)
def nobody_passes_in_a_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verbs, "_let_higher_priority_pass", always(None))


@plant("order", seed=3)
def a_new_aging_changes_no_order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(policies, "_line_rule", lambda policy, lane: policy.lanes[lane].strategy)


@plant("starvation", "order", "error")
def who_begins_again_keeps_the_old_line(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settling, "place_again", always(None))


# --- pre-emption ------------------------------------------------------------------------------


@plant("attempts")
def making_room_costs_an_attempt(patch: pytest.MonkeyPatch) -> None:
    real = leases._requeued

    def requeued(task: Task, *args: Any) -> Task:
        after = real(task, *args)
        after.attempts += task.preempt == 1
        return after

    patch.setattr(leases, "_requeued", requeued)


@plant("preemption")
def who_made_room_stays_marked(patch: pytest.MonkeyPatch) -> None:
    real = leases._requeued

    def requeued(task: Task, *args: Any) -> Task:
        after = real(task, *args)
        after.preempt = task.preempt
        return after

    patch.setattr(leases, "_requeued", requeued)


@plant("preemption")
def nobody_makes_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leasing, "_make_room", always(None))


@plant("preemption")
def one_too_many_makes_room(patch: pytest.MonkeyPatch) -> None:
    real = leasing._urgent
    patch.setattr(leasing, "_urgent", lambda *args: real(*args) + 1)


@plant("preemption", seed=12)
def the_most_important_makes_room(patch: pytest.MonkeyPatch) -> None:
    real = task_table.preemptible
    patch.setattr(task_table, "preemptible", lambda *args, **values: real(*args, **values)[::-1])


# --- events and output ------------------------------------------------------------------------


@plant("history", "events", "revival")
def an_event_outlives_its_transaction(patch: pytest.MonkeyPatch) -> None:
    """What a try that was rolled back had written is written with the next one."""
    real, begin, remember = Transaction._record, Engine._begin, Engine._remember
    ghosts: list[Any] = []

    def record(tx: Transaction, *row: Any) -> None:
        real(tx, *row)
        ghosts.append(row)

    def begin_again(engine: Engine, connection: Any) -> Transaction:
        tx = begin(engine, connection)
        for row in ghosts:
            real(tx, *row)
        ghosts.clear()
        return tx

    def forget(engine: Engine, tx: Transaction) -> None:
        remember(engine, tx)
        ghosts.clear()

    patch.setattr(Transaction, "_record", record)
    patch.setattr(Engine, "_begin", begin_again)
    patch.setattr(Engine, "_remember", forget)


@plant("events")
def an_event_gets_lost(patch: pytest.MonkeyPatch) -> None:
    real = SqliteConnection.run_rows

    def lose(self: SqliteConnection, name: str, rows: Any, /, **values: Any) -> Any:
        kept = rows[:-1] if name == "event_insert" and len(rows) > 4 else rows
        return real(self, name, kept, **values)

    patch.setattr(SqliteConnection, "run_rows", lose)


@plant("history")
def a_cancelled_child_leaves_no_event(patch: pytest.MonkeyPatch) -> None:
    real = events.of

    def of(change: Change) -> Any:
        return None if change.verb == lifecycle.CANCEL and change.error else real(change)

    patch.setattr(events, "of", of)


@plant("history")
def an_end_is_told_twice(patch: pytest.MonkeyPatch) -> None:
    real = Transaction.apply

    def apply(tx: Transaction, change: Change, body: str | None = None, **more: Any) -> None:
        real(tx, change, body, **more)
        if change.verb == lifecycle.CLOSE:
            tx._record(change.after.seq, events.CANCELLED, change.after.attempts, None, None)

    patch.setattr(Transaction, "apply", apply)


@plant("output", seed=2)
def output_of_earlier_runs_is_kept(patch: pytest.MonkeyPatch) -> None:
    def output(tx: Transaction, requests: Any, _: int) -> Any:
        tasks = tx.tasks_by_seq(request.seq for request in requests)
        rows = [(r.seq, r.fencing_token, r.part, 1, r.text) for r in requests if r.seq in tasks]
        tx.connection.run_rows("output_insert", rows)
        return iter([None] * len(requests))

    patch.setattr(engines, "VERBS", {**engines.VERBS, AppendOutput: output})
