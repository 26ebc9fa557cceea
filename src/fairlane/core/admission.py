"""Admission: decide whether a submission joins the queue, and build its task.

The lane's limit is tested before the agent's. A refused submission becomes a terminal record, so
that the caller can still look it up.
"""

from __future__ import annotations

from fairlane.core import lifecycle, moments
from fairlane.core.errors import InvalidRequest, QueueFull
from fairlane.core.model import CRITICAL, Change, Submission, Task, is_run
from fairlane.core.policy import BY_PRIORITY, LanePolicy, Policy

RETRY_AFTER_MS = 1000


def problem(submission: Submission, now: int) -> InvalidRequest | None:
    """Return the error of a submission that is too late, or None."""
    if submission.deadline_at is not None and submission.deadline_at < now:
        return InvalidRequest("deadline is in the past")
    return None


def refusal(
    agent: str, task_id: str, lane: str, policy: Policy, *, lane_queued: int, agent_queued: int
) -> QueueFull | None:
    """Return the error if the queue is full, with the details that a caller needs."""
    limits = policy.lanes[lane]
    if limits.max_queue_size is not None and lane_queued >= limits.max_queue_size:
        reason = "rejected: global queue full"
    elif limits.max_per_agent is not None and agent_queued >= limits.max_per_agent:
        reason = f'rejected: agent queue full for "{agent}"'
    else:
        return None
    details = {
        "agentId": agent,
        "queued": lane_queued,
        "maxQueue": limits.max_queue_size,
        "maxPerAgent": limits.max_per_agent,
        "lane": lane,
        "taskId": task_id,
    }
    return QueueFull(reason, details=details, retry_after_ms=RETRY_AFTER_MS)


def admit(
    submission: Submission,
    lane: str,
    policy: Policy,
    *,
    seq: int,
    line: int,
    position: int,
    now: int,
) -> Change:
    """Return the change that creates the task. The caller sets its gates."""
    after = _task(submission, lane, policy, seq=seq, line=line, now=now)
    after.state = lifecycle.step(lifecycle.NEW, lifecycle.SUBMIT)
    after.position = position
    return Change(None, after, lifecycle.SUBMIT)


def reject(
    submission: Submission, lane: str, policy: Policy, error: QueueFull, *, seq: int, now: int
) -> Change:
    after = _task(submission, lane, policy, seq=seq, line=0, now=now)
    after.state = lifecycle.step(lifecycle.NEW, lifecycle.REJECT)
    after.session = None
    after.callback_url = None
    after.eligible_at = None
    after.unapproved = None
    after.completed_at = now
    return Change(None, after, lifecycle.REJECT, error=error.message)


def _task(
    submission: Submission, lane: str, policy: Policy, *, seq: int, line: int, now: int
) -> Task:
    eligible_at = submission.run_at
    if submission.delay_ms is not None:
        eligible_at = moments.later(now, submission.delay_ms)
    if eligible_at is not None and eligible_at <= now:
        eligible_at = None
    deadline_at, deadline_ms = submission.deadline_at, submission.deadline_ms
    if deadline_ms is not None:
        deadline_at = moments.later(now, deadline_ms)
    elif deadline_at is None and not waits_first(submission) and not is_run(submission.id):
        deadline_at = deadline(policy, submission.kind, eligible_at or now)
        deadline_ms = None if deadline_at is None else deadline_at - now
    priority = submission.priority
    task = Task(  # positional because keywords would double the time of the call
        seq,
        submission.id,
        submission.kind,
        lane,
        submission.agent,
        submission.capability,
        line,
        priority,
        rank(policy.lanes[lane], priority, now),
        lifecycle.NEW,
        None,
        submission.session,
        submission.batch,
        attempts=0,
        max_attempts=submission.max_attempts or policy.max_attempts(submission.kind, lane),
        position=0,
        created_at=now,
        deadline_at=deadline_at,
        eligible_at=eligible_at,
        queued_at=now,
        callback_url=submission.callback_url,
        delay_ms=submission.delay_ms,
        deadline_ms=deadline_ms,
    )
    if submission.preemptible:
        task.preempt = 0
    if submission.approval is not None:
        task.unapproved = 1
    return task


def waits_first(submission: Submission) -> bool:
    """Return whether its kind's deadline starts only after its parents or its approval."""
    return bool(submission.depends_on) or submission.approval is not None


def deadline(policy: Policy, kind: str, since: int) -> int | None:
    """Return the deadline that the task's kind implies, counted from its earliest start."""
    seconds = policy.kinds[kind].deadline_sec
    return None if seconds is None else moments.later(since, seconds * 1000)


def start_deadline(policy: Policy, task: Task, now: int, left_ms: int | None) -> None:
    """Restart the deadline of a task that a person has approved, with the `left_ms` that it had
    when it asked, or in full if it has not started yet.
    """
    if left_ms is not None:
        task.deadline_at = moments.later(now, left_ms)
    if task.deadline_at is not None or is_run(task.id):
        return
    since = max(now, task.eligible_at or now)
    if task.deadline_ms is not None:
        task.deadline_at = moments.later(since, task.deadline_ms)
        return
    task.deadline_at = deadline(policy, task.kind, since)
    if task.deadline_at is not None:
        task.deadline_ms = task.deadline_at - now


def rank(lane: LanePolicy, priority: int, since: int) -> int:
    """Return a task's place in its line. With aging, one point of priority is worth `aging_ms` of
    waiting. The rank never has to be recomputed because all waiting tasks age alike. Critical tasks
    stay ahead of all others.
    """
    if lane.aging_ms is None or priority <= CRITICAL:
        return priority
    return moments.clamped(since) + priority * lane.aging_ms


def line_agent(policy: Policy, lane: str, agent: str) -> str:
    """Return the agent of the task's line: its own, or '' in a lane ordered by priority."""
    return "" if policy.lanes[lane].strategy == BY_PRIORITY else agent
