"""Admission: may this submission join the queue, and as what.

The lane's limit is tested before the agent's. A refused submission becomes a terminal record, so
that a caller can still ask what happened to it.
"""

from __future__ import annotations

from fairlane.core import lifecycle
from fairlane.core.errors import InvalidRequest, QueueFull
from fairlane.core.model import Change, Submission, Task
from fairlane.core.policy import BY_PRIORITY, Policy

RETRY_AFTER_MS = 1000


def problem(submission: Submission, now: int) -> InvalidRequest | None:
    """What only the clock can tell to be wrong."""
    if submission.deadline_at is not None and submission.deadline_at < now:
        return InvalidRequest("deadline is in the past")
    return None


def refusal(
    submission: Submission, lane: str, policy: Policy, *, lane_queued: int, agent_queued: int
) -> QueueFull | None:
    """Why the queue cannot take it now, with what a caller needs to know."""
    limits = policy.lanes[lane]
    if limits.max_queue_size is not None and lane_queued >= limits.max_queue_size:
        reason = "rejected: global queue full"
    elif limits.max_per_agent is not None and agent_queued >= limits.max_per_agent:
        reason = f'rejected: agent queue full for "{submission.agent}"'
    else:
        return None
    details = {
        "agentId": submission.agent,
        "queued": lane_queued,
        "maxQueue": limits.max_queue_size,
        "maxPerAgent": limits.max_per_agent,
        "lane": lane,
        "taskId": submission.id,
    }
    return QueueFull(reason, details=details, retry_after_ms=RETRY_AFTER_MS)


def admit(
    submission: Submission, lane: str, policy: Policy, *, seq: int, position: int, now: int
) -> Change:
    """The new task, ready to be queued; its session's gate is for the caller to set."""
    after = _task(submission, lane, policy, seq=seq, now=now)
    after.state = lifecycle.step(lifecycle.NEW, lifecycle.SUBMIT)
    after.position = position
    return Change(None, after, lifecycle.SUBMIT)


def reject(
    submission: Submission, lane: str, policy: Policy, error: QueueFull, *, seq: int, now: int
) -> Change:
    after = _task(submission, lane, policy, seq=seq, now=now)
    after.state = lifecycle.step(lifecycle.NEW, lifecycle.REJECT)
    after.session = None
    after.callback_url = None
    after.completed_at = now
    return Change(None, after, lifecycle.REJECT, error=error.message)


def _task(submission: Submission, lane: str, policy: Policy, *, seq: int, now: int) -> Task:
    kind = policy.kinds[submission.kind]
    deadline_at = submission.deadline_at
    if deadline_at is None and kind.deadline_sec is not None:
        deadline_at = now + kind.deadline_sec * 1000
    return Task(
        seq=seq,
        id=submission.id,
        kind=submission.kind,
        lane=lane,
        agent=submission.agent,
        route=submission.route,
        line=line_of(policy, lane, submission.agent),
        priority=submission.priority,
        state=lifecycle.NEW,
        gate=None,
        session=submission.session,
        batch=submission.batch,
        attempts=0,
        max_attempts=kind.max_attempts,
        position=0,
        created_at=now,
        deadline_at=deadline_at,
        queued_at=now,
        callback_url=submission.callback_url,
    )


def line_of(policy: Policy, lane: str, agent: str) -> str:
    """Which line a task stands in: its agent's, or the lane's one line ordered by priority."""
    return "" if policy.lanes[lane].strategy == BY_PRIORITY else agent
