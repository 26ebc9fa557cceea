"""Queue tasks again by hand: failed and cancelled ones are retried, parked ones are reset.

Recorded steps are kept, so that the task continues where it stopped; `fresh` forgets them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairlane.core import leases
from fairlane.core.errors import Conflict, FairlaneError
from fairlane.core.model import Task
from fairlane.engine.commands import Reset, Retry
from fairlane.engine.verbs import approvals, dependencies, steps, tasks
from fairlane.store.transaction import Transaction


def retry(tx: Transaction, requests: Sequence[Retry], now: int) -> Iterator[object]:
    for request, (task, task_id, since) in zip(requests, _load_ended(tx, requests), strict=True):
        decision = leases.retry(task, task_id, now, since)
        yield _begin_again(tx, decision, now, fresh=request.fresh)


def reset(tx: Transaction, requests: Sequence[Reset], now: int) -> Iterator[object]:
    for request, (task, task_id, since) in zip(requests, _load_ended(tx, requests), strict=True):
        decision = leases.reset(task, task_id, now, since)
        yield _begin_again(tx, decision, now, fresh=request.fresh)


def _load_ended(
    tx: Transaction, requests: Sequence[Retry | Reset]
) -> Iterator[tuple[Task | None, str, int | None]]:
    """Return the task of each request as it is now, its id, and when it was last requeued."""
    found = tx.tasks_by_id(request.id for request in requests)
    tx.counters.prepare(found.values())
    since = tx.requeued_at(task.seq for task in found.values() if task.deadline_at is not None)
    for request in requests:
        task = found.get(request.id)
        if task is None:
            yield None, request.id, None
        else:
            yield tx.task(task.seq), request.id, since.get(task.seq)


def _begin_again(
    tx: Transaction, decision: leases.LeaseDecision, now: int, *, fresh: bool
) -> Task | FairlaneError:
    """Queue a task that had left the queue, as if it arrived now; `fresh` forgets its steps."""
    change = decision.change
    if change is None:
        return decision.answer
    after = change.after
    if after.lane not in tx.policy.lanes:
        return Conflict(f'lane "{after.lane}" is no longer in the policy; submit the task again')
    tx.counters.load_lines([(after.lane, after.agent)])
    problem = tasks.queue_refusal(
        tx, after.agent, after.id, after.lane
    ) or dependencies.block_again(tx, after)
    if problem is not None:
        return problem
    approvals.ask_again(tx, after, now)
    if fresh:
        steps.forget(tx, after)
    if not after.unmet:
        dependencies.let_in(tx, after, now)
    tx.apply(change)
    dependencies.place_again(tx, [after])
    return after
