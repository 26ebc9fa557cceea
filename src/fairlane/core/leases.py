"""Leases: the right to run one task for a limited time, guarded by a fencing token.

Each function takes the task as it is and returns the change and the answer. A report that does not
carry the fencing token of an open lease changes nothing and gets `lease_lost`. A task that ended
while its run continued (cancelled, past its deadline) keeps its lease until the worker reports:
only then is the slot really free.
"""

from __future__ import annotations

import msgspec

from fairlane.core import lifecycle, moments, retries
from fairlane.core.errors import Conflict, FairlaneError, LeaseLost, NotFound
from fairlane.core.json_types import JsonObject
from fairlane.core.model import APPROVAL_GATE, DELAY_GATE, Change, Task, copied, is_node, is_run
from fairlane.core.policy import Policy
from fairlane.core.retries import Backoff

QUEUED_TOO_LONG = "deadline exceeded while queued"
RAN_TOO_LONG = "deadline exceeded while running"
WORKER_GONE = "worker stopped reporting: its lease expired"
CONNECTION_GONE = "worker gone: its connection ended before its lease"
UNREADABLE = "the stored request cannot be read; submit the task again"
RELEASED_TOO_OFTEN = "released too often without a result: the lane's maxReleases was reached"

# A fencing token stays below 2**53, which every JSON parser reads exactly.
FENCING_TOKENS_PER_SECOND = 1 << 20
_SKIP_MAX = 1 << 10


class LeaseDecision(msgspec.Struct, gc=False):
    """The change to save, if any, and the answer: the task after it, or an error."""

    change: Change | None
    answer: Task | FairlaneError


def fencing_token_base(last: int, now: int, draw: int) -> int:
    """Return the number after which the fencing tokens of one transaction begin.

    A store that is restored from a backup forgets the fencing tokens that it granted since. If it
    counted on from `last`, the newest one it remembers, it would grant the same numbers again, and
    a worker from the lost time could report on a task that another worker holds now. So a fencing
    token begins with the second of its lease: those granted after the restore are above all of the
    lost time. `draw` differs between transactions and processes; it keeps fencing tokens apart even
    when the clock was set back.
    """
    second = now // 1000 * FENCING_TOKENS_PER_SECOND
    return max(second + draw % (FENCING_TOKENS_PER_SECOND // 2), last + draw % _SKIP_MAX)


def grant(
    task: Task, *, fencing_token: int, worker: str, ttl_ms: int, started: bool, now: int
) -> Change:
    """Lease a ready task; `started` says that the worker starts at once."""
    assert task.gate is None, task.gate
    after = copied(task)
    after.state = lifecycle.step(task.state, lifecycle.LEASE)
    after.attempts += 1
    after.fencing_token = fencing_token
    after.worker = worker
    after.lease_expires_at = moments.later(now, ttl_ms)
    if started:
        _begin(after, now)
    return Change(task, after, lifecycle.LEASE, waited_ms=moments.span(task.queued_at, now))


def start(task: Task | None, fencing_token: int, now: int) -> LeaseDecision:
    """Start the run. A task whose deadline has passed expires instead and frees its slot: the
    worker has not started and will not.
    """
    if task is None or _stale(task, fencing_token):
        return LeaseDecision(None, _lost(task))
    if task.state in lifecycle.TERMINAL:
        return LeaseDecision(_closed(task), _lost(task))
    if task.state == lifecycle.RUNNING:
        return LeaseDecision(None, task)
    if task.deadline_at is not None and task.deadline_at <= now:
        change = expire(task, now)
        change.after.lease_expires_at = None
        return LeaseDecision(change, _lost(change.after))
    after = copied(task)
    _begin(after, now)
    return LeaseDecision(Change(task, after, lifecycle.START), after)


def begin_late(task: Task | None, fencing_token: int, now: int) -> Change | None:
    """Return the start that a worker reports only with the end; None if the run had started."""
    if task is None or _stale(task, fencing_token) or task.state != lifecycle.ASSIGNED:
        return None
    after = copied(task)
    _begin(after, now)
    return Change(task, after, lifecycle.START)


def renew(task: Task | None, fencing_token: int, ttl_ms: int, now: int) -> LeaseDecision:
    """Extend an open lease. The state in the answer tells the worker whether to continue."""
    if task is None or _stale(task, fencing_token):
        return LeaseDecision(None, _lost(task))
    after = copied(task)
    after.lease_expires_at = moments.later(now, ttl_ms)
    return LeaseDecision(Change(task, after, lifecycle.RENEW), after)


def is_repeated(task: Task | None, fencing_token: int) -> bool:
    """Return whether the lease with this fencing token has already completed the task."""
    return task is not None and task.fencing_token == fencing_token and task.state == lifecycle.DONE


def complete(
    task: Task | None, fencing_token: int, result: str | None, now: int, *, kept: str | None = None
) -> LeaseDecision:
    """End the task with `result`, which is JSON text.

    A worker that did not receive the response may complete again, with the same result or without
    one. `kept` is the stored result of a task that is done; a different one is refused because it
    would be dropped.
    """
    if task is not None and is_repeated(task, fencing_token):
        return LeaseDecision(None, task if _loses_nothing(result, kept) else _other_result(task))
    if task is None or _stale(task, fencing_token):
        return LeaseDecision(None, _lost(task))
    if task.terminal:
        return _close(task)
    after = _end(task, lifecycle.COMPLETE, now)
    return LeaseDecision(Change(task, after, lifecycle.COMPLETE, result=result), after)


def fail(
    task: Task | None,
    fencing_token: int,
    error: str,
    *,
    retryable: bool,
    retry_after_ms: int | None,
    policy: Policy,
    own: Backoff | None,
    now: int,
) -> LeaseDecision:
    """Fail the attempt. `own` holds the task's own retry settings."""
    if task is None or _stale(task, fencing_token):
        return LeaseDecision(None, _lost(task))
    if task.terminal:
        return _close(task)
    change = _failure(
        task,
        error,
        retryable=retryable,
        retry_after_ms=retry_after_ms,
        policy=policy,
        own=own,
        now=now,
    )
    return LeaseDecision(change, change.after)


def release(
    task: Task | None, fencing_token: int, now: int, *, last: bool = False
) -> LeaseDecision:
    """Release a lease: the attempt does not count. With `last`, the task has been released
    as often as it may and is parked.
    """
    if task is None or _stale(task, fencing_token):
        return LeaseDecision(None, _lost(task))
    if task.terminal:
        return _close(task)
    if last and not is_run(task.id):  # otherwise a cron run would never end
        after = _end(task, lifecycle.PARK, now)
        return LeaseDecision(Change(task, after, lifecycle.PARK, error=RELEASED_TOO_OFTEN), after)
    after = _requeued(task, lifecycle.RELEASE, now)
    after.attempts -= 1
    return LeaseDecision(Change(task, after, lifecycle.RELEASE), after)


def suspend(
    task: Task | None,
    fencing_token: int,
    now: int,
    *,
    gate: str = APPROVAL_GATE,
    eligible_at: int | None = None,
) -> LeaseDecision:
    """Release a lease in the middle of a run, until the gate opens: the attempt does not count and
    is repeated. While a person decides, a deadline that is a duration stops (`time_left`).
    """
    if task is None or _stale(task, fencing_token):
        return LeaseDecision(None, _lost(task))
    if task.terminal:
        return _close(task)
    after = _requeued(task, lifecycle.SUSPEND, now)
    after.attempts -= 1
    after.gate = gate
    after.eligible_at = eligible_at
    if after.started_at is None:
        after.started_at = now
    if gate == APPROVAL_GATE:
        after.unapproved = 1
        if time_left(task, now) is not None:
            after.deadline_at = None
    return LeaseDecision(Change(task, after, lifecycle.SUSPEND), after)


def time_left(task: Task, now: int) -> int | None:
    """Return how much of its time a task has left; None if its deadline is a fixed time."""
    if task.deadline_at is None or task.deadline_ms is None:
        return None
    return max(0, task.deadline_at - now)


def reclaim(
    task: Task, policy: Policy, own: Backoff | None, now: int, *, gone: bool = False
) -> Change:
    """Reclaim an expired lease: one failed attempt, unless the run is known not to have started.

    Fairlane's own nodes report a start; external workers may not, so a lease counts as an attempt.
    With `gone`, the worker has died and the lease has not expired: the next attempt need not wait.
    """
    if task.terminal:
        return _closed(task)
    if task.state == lifecycle.ASSIGNED and is_node(task.worker):
        after = _requeued(task, lifecycle.RELEASE, now)
        after.attempts -= 1
        return Change(task, after, lifecycle.RELEASE)
    error = CONNECTION_GONE if gone else WORKER_GONE
    change = _failure(
        task, error, retryable=True, retry_after_ms=None, policy=policy, own=own, now=now
    )
    if gone and change.verb == lifecycle.BACK_OFF:
        change.after.eligible_at = now
    return change


def park(task: Task, reason: str, now: int) -> Change:
    """Take the task out of the queue until an operator resets it, even if attempts are left."""
    return Change(task, _end(task, lifecycle.PARK, now), lifecycle.PARK, error=reason)


def give_up_run(task: Task, reason: str, now: int) -> Change:
    """Park a task in the middle of a run, which ends its lease; a cron run fails."""
    verb = lifecycle.FAIL if is_run(task.id) else lifecycle.PARK
    return Change(task, _end(task, verb, now), verb, error=reason)


def give_up(task: Task, verb: str, reason: str, now: int) -> Change:
    """Fail or park a task that waits for a resource it will not get; a cron run fails."""
    if verb == lifecycle.PARK and is_run(task.id):
        verb = lifecycle.FAIL
    after = _end_from_outside(task, verb, now)
    if verb == lifecycle.PARK:
        after.completed_at = None
    return Change(task, after, verb, error=reason)


def lost(task: Task | None, fencing_token: int) -> LeaseLost | None:
    """Return the error for a report under an ended lease; None while the lease is open."""
    return _lost(task) if task is None or _stale(task, fencing_token) else None


def ended(task: Task | None) -> LeaseLost:
    """Return the error for a report about a task that ended while its run continued."""
    return _lost(task)


def may_retry(task: Task | None) -> bool:
    """Return whether a failure now could lead to another attempt."""
    return task is not None and task.attempts < task.max_attempts


def cancel(task: Task | None, task_id: str, now: int, reason: str | None = None) -> LeaseDecision:
    if task is None:
        return LeaseDecision(None, NotFound(f'task "{task_id}" not found'))
    if task.terminal:
        message = f'task "{task_id}" has already ended: it is "{task.state}"'
        return LeaseDecision(None, Conflict(message, details={"state": task.state}))
    after = _end_from_outside(task, lifecycle.CANCEL, now)
    return LeaseDecision(Change(task, after, lifecycle.CANCEL, error=reason), after)


def preempt(task: Task) -> Change:
    """Ask a run to make room; it continues until its worker releases the lease."""
    after = copied(task)
    after.preempt = 1
    return Change(task, after, lifecycle.PREEMPT)


def reset(task: Task | None, task_id: str, now: int, since: int | None = None) -> LeaseDecision:
    """Return a parked task to the queue with all its attempts. The caller sets its gates.

    `since` is when it was last reset, None if it never was.
    """
    if task is None:
        return LeaseDecision(None, NotFound(f'task "{task_id}" not found'))
    if task.state != lifecycle.PARKED:
        message = f'task "{task_id}" is {task.state}: only a parked task can be reset'
        if task.state in (lifecycle.FAILED, lifecycle.CANCELLED):
            message += f"; use retry for a {task.state} task"
        return LeaseDecision(None, Conflict(message, details={"state": task.state}))
    after = _renewed(task, lifecycle.RESET, now, since)
    return LeaseDecision(Change(task, after, lifecycle.RESET), after)


def retry(task: Task | None, task_id: str, now: int, since: int | None = None) -> LeaseDecision:
    """Run a failed or cancelled task again, with a full set of attempts and its full time."""
    if task is None:
        return LeaseDecision(None, NotFound(f'task "{task_id}" not found'))
    if task.state not in (lifecycle.FAILED, lifecycle.CANCELLED):
        message = f'task "{task_id}" is {task.state}: only failed or cancelled tasks can be retried'
        if task.state == lifecycle.PARKED:
            message += "; use reset for a parked task"
        return LeaseDecision(None, Conflict(message, details={"state": task.state}))
    if task.leased:
        message = f'the last run of task "{task_id}" has not stopped yet; try again in a moment'
        return LeaseDecision(None, Conflict(message, details={"state": task.state}))
    after = _renewed(task, lifecycle.RETRY, now, since)
    return LeaseDecision(Change(task, after, lifecycle.RETRY), after)


def _renewed(task: Task, verb: str, now: int, since: int | None) -> Task:
    after = copied(task)
    after.state = lifecycle.step(task.state, verb)
    after.gate = None
    after.attempts = 0
    after.eligible_at = None
    after.queued_at = now
    after.started_at = None
    after.completed_at = None
    after.worker = None
    if after.preempt:
        after.preempt = 0
    span_ms = task.deadline_ms
    if span_ms is None and task.deadline_at is not None:
        span_ms = task.deadline_at - (task.created_at if since is None else since)
    # Negative if the caller named a time and the clock was set since: then it gets a new one.
    after.deadline_ms = span_ms if span_ms is not None and span_ms >= 0 else None
    after.deadline_at = None if after.deadline_ms is None else moments.later(now, after.deadline_ms)
    return after


def expire(task: Task, now: int) -> Change:
    """End a task whose deadline has passed. A task that was leased but not started never ran."""
    after = _end_from_outside(task, lifecycle.EXPIRE, now)
    error = RAN_TOO_LONG if task.state == lifecycle.RUNNING else QUEUED_TOO_LONG
    return Change(task, after, lifecycle.EXPIRE, error=error)


def _begin(task: Task, now: int) -> None:
    task.state = lifecycle.step(task.state, lifecycle.START)
    if task.started_at is None:
        task.started_at = now


def _failure(
    task: Task,
    error: str,
    *,
    retryable: bool,
    retry_after_ms: int | None,
    policy: Policy,
    own: Backoff | None,
    now: int,
) -> Change:
    settings = retries.overlaid(policy.retries(task.kind, task.lane), own)
    verb = retries.after_failure(
        task.attempts, task.max_attempts, retryable=retryable, settings=settings
    )
    if verb == lifecycle.PARK and is_run(task.id):
        verb = lifecycle.FAIL  # otherwise the cron run would never end and would block its job
    if verb != lifecycle.BACK_OFF:
        return Change(task, _end(task, verb, now), verb, error=error)
    after = _requeued(task, lifecycle.BACK_OFF, now)
    wait = retries.backoff_ms(task.attempts, settings, seed=task.fencing_token)
    after.gate = DELAY_GATE
    after.eligible_at = moments.later(now, max(wait, retry_after_ms or 0))
    return Change(task, after, lifecycle.BACK_OFF, error=error)


def _end(task: Task, verb: str, now: int) -> Task:
    after = copied(task)
    after.state = lifecycle.step(task.state, verb)
    after.lease_expires_at = None
    if after.state != lifecycle.PARKED:
        after.completed_at = now
    if after.started_at is None:
        after.started_at = now
    return after


def _requeued(task: Task, verb: str, now: int) -> Task:
    after = copied(task)
    after.state = lifecycle.step(task.state, verb)
    after.lease_expires_at = None
    after.worker = None
    after.queued_at = now
    if after.preempt:
        after.preempt = 0
    return after


def _end_from_outside(task: Task, verb: str, now: int) -> Task:
    """Return the task ended from outside: an open lease stays until the worker has stopped."""
    after = copied(task)
    after.state = lifecycle.step(task.state, verb)
    after.gate = None
    after.eligible_at = None
    after.completed_at = now
    if after.unapproved:
        after.unapproved = 0
    return after


def _closed(task: Task) -> Change:
    after = copied(task)
    after.lease_expires_at = None
    return Change(task, after, lifecycle.CLOSE)


def _close(task: Task) -> LeaseDecision:
    change = _closed(task)
    return LeaseDecision(change, change.after)


def _loses_nothing(result: str | None, kept: str | None) -> bool:
    """Return whether `result` is None or equals `kept`, ignoring the order of keys."""
    if result is None or result == kept:
        return True
    return kept is not None and _in_order(result) == _in_order(kept)


def _in_order(text: str) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(text), order="sorted")


def _other_result(task: Task) -> LeaseLost:
    return LeaseLost(
        "the lease is no longer valid: it already completed the task with a different result, "
        "which is kept; read it from the task",
        details={"taskId": task.id, "state": task.state},
    )


def _stale(task: Task, fencing_token: int) -> bool:
    return task.fencing_token != fencing_token or task.lease_expires_at is None


def _lost(task: Task | None) -> LeaseLost:
    details: JsonObject | None = None
    if task is not None:
        details = {"taskId": task.id, "state": task.state}
    return LeaseLost(
        "the lease is no longer valid: it expired or was released, or the task has ended; "
        "stop working on it and request a new lease",
        details=details,
    )
