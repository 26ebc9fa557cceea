"""Import tasks that ended in another program.

As in the queue, an imported task repeats its history here: it is admitted, leased and completed,
so that counters, events and states agree as for any other task. No webhook is sent for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairlane.core import admission, leases, lifecycle
from fairlane.core.finished import FinishedTask
from fairlane.core.model import Task
from fairlane.engine.import_commands import ImportFinished
from fairlane.engine.verbs.queue import IMPORTER
from fairlane.store.transaction import Transaction

NO_REASON = "it failed in the program that it was imported from"


def import_finished(
    tx: Transaction, requests: Sequence[ImportFinished], now: int
) -> Iterator[object]:
    """Import each task whose id is new; answer with the tasks that were imported."""
    found = [one.submission for request in requests for one in request.tasks]
    taken = set(tx.tasks_by_id(submission.id for submission in found))
    lanes = {tx.policy.lane_name(one.lane, one.kind) for one in found}
    tx.counters.load_lines((lane, one.agent) for lane in sorted(lanes) for one in found)
    for request in requests:
        imported: list[Task] = []
        for one in request.tasks:
            if one.submission.id not in taken:
                taken.add(one.submission.id)
                imported.append(_import(tx, one, now))
        yield imported


def _import(tx: Transaction, one: FinishedTask, now: int) -> Task:
    made, policy = one.submission, tx.policy
    lane = policy.lane_name(made.lane, made.kind)
    owner = admission.line_agent(policy, lane, made.agent)
    change = admission.admit(
        made,
        lane,
        policy,
        line=tx.counters.line_number(lane, owner, made.capability),
        seq=tx.next_seq(),
        position=tx.counters.lane(lane).queued + 1,
        now=min(now, one.created_at),
    )
    task = change.after
    task.attempts = max(0, one.attempts - 1)  # the last one is made here
    task.max_attempts = max(task.max_attempts, one.attempts)
    tx.apply(change, body=made.body)
    ended_at = min(now, one.completed_at)
    if one.state == lifecycle.CANCELLED:
        return _applied(tx, leases.cancel(task, task.id, ended_at, one.error))
    started_at = min(ended_at, ended_at if one.started_at is None else one.started_at)
    task = _granted(tx, task, started_at)
    if one.state == lifecycle.DONE:
        return _applied(tx, leases.complete(task, task.fencing_token, one.result, ended_at))
    return _applied(
        tx,
        leases.fail(
            task,
            task.fencing_token,
            one.error or NO_REASON,
            retryable=False,
            retry_after_ms=None,
            policy=policy,
            own=None,
            now=ended_at,
        ),
    )


def _granted(tx: Transaction, task: Task, now: int) -> Task:
    change = leases.grant(
        task,
        fencing_token=tx.next_fencing_token(),
        worker=IMPORTER,
        ttl_ms=0,
        started=True,
        now=now,
    )
    tx.apply(change)
    return change.after


def _applied(tx: Transaction, decision: leases.LeaseDecision) -> Task:
    assert decision.change is not None, decision
    tx.apply(decision.change)
    return decision.change.after
