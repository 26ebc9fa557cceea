"""Admission: who is refused and with which words, and what an admitted task looks like."""

from __future__ import annotations

import pytest

from fairlane.core import admission
from fairlane.core.errors import InvalidRequest, QueueFull
from fairlane.core.policy import Policy, from_document
from tests.unit.core.rows import NOW, submission

SMALL = from_document({"lanes": {"browser": {"maxQueueSize": 5, "maxPerAgent": 3}}})


def _refusal(lane_queued: int, agent_queued: int, policy: Policy = SMALL) -> QueueFull | None:
    return admission.refusal(
        submission(), "browser", policy, lane_queued=lane_queued, agent_queued=agent_queued
    )


def test_a_deadline_in_the_past_is_refused() -> None:
    problem = admission.problem(submission(deadline_at=NOW - 1), NOW)
    assert isinstance(problem, InvalidRequest)
    assert problem.message == "deadline is in the past"


@pytest.mark.parametrize("deadline_at", [NOW, NOW + 1, None])
def test_a_deadline_now_or_later_or_none_is_fine(deadline_at: int | None) -> None:
    assert admission.problem(submission(deadline_at=deadline_at), NOW) is None


@pytest.mark.parametrize(("lane_queued", "agent_queued"), [(0, 0), (4, 2)])
def test_below_both_limits_there_is_room(lane_queued: int, agent_queued: int) -> None:
    assert _refusal(lane_queued, agent_queued) is None


def test_a_full_lane_refuses_with_what_a_caller_needs_to_know() -> None:
    refusal = _refusal(5, 0)
    assert refusal is not None
    assert refusal.message == "rejected: global queue full"
    assert refusal.code == "queue_full"
    assert refusal.retryable
    assert refusal.retry_after_ms is not None
    assert refusal.retry_after_ms > 0
    assert refusal.details == {
        "agentId": "ada",
        "queued": 5,
        "maxQueue": 5,
        "maxPerAgent": 3,
        "lane": "browser",
        "taskId": "tsk_1",
    }


def test_a_full_agent_is_refused_by_name() -> None:
    refusal = _refusal(3, 3)
    assert refusal is not None
    assert refusal.message == 'rejected: agent queue full for "ada"'


def test_the_lanes_limit_is_tested_before_the_agents() -> None:
    refusal = _refusal(5, 3)
    assert refusal is not None
    assert refusal.message == "rejected: global queue full"


def test_lowered_limits_refuse_more_but_evict_nothing() -> None:
    assert _refusal(900, 80) is not None
    assert _refusal(900, 80, Policy()) is None


def test_a_lane_without_limits_takes_everything() -> None:
    refusal = admission.refusal(
        submission(), "queue", Policy(), lane_queued=10**9, agent_queued=10**9
    )
    assert refusal is None


def test_an_admitted_action_is_queued_with_the_deadline_of_its_kind() -> None:
    change = admission.admit(submission(), "browser", Policy(), seq=9, position=4, now=NOW)
    task = change.after
    assert (change.before, change.verb, change.error) == (None, "submit", None)
    assert (task.seq, task.id, task.kind, task.lane, task.agent) == (
        9,
        "tsk_1",
        "action",
        "browser",
        "ada",
    )
    assert (task.state, task.gate, task.ready) == ("queued", None, True)
    assert (task.position, task.priority, task.attempts, task.max_attempts) == (4, 0, 0, 1)
    assert (task.created_at, task.queued_at, task.deadline_at) == (NOW, NOW, NOW + 60_000)
    assert (task.started_at, task.completed_at, task.token, task.leased) == (None, None, 0, False)


def test_an_admitted_handler_has_no_deadline_and_three_attempts() -> None:
    change = admission.admit(
        submission(kind="handler"), "main", Policy(), seq=1, position=1, now=NOW
    )
    assert (change.after.deadline_at, change.after.max_attempts) == (None, 3)


def test_what_the_caller_asked_for_is_kept() -> None:
    asked = submission(
        priority=-5,
        session="chat:7",
        batch="bat_1",
        deadline_at=NOW + 5,
        callback_url="https://example.com/done",
        route="action",
    )
    task = admission.admit(asked, "browser", Policy(), seq=1, position=1, now=NOW).after
    assert (task.priority, task.session, task.batch, task.deadline_at, task.callback_url) == (
        -5,
        "chat:7",
        "bat_1",
        NOW + 5,
        "https://example.com/done",
    )


def test_a_rejected_task_is_a_terminal_record_that_owes_nobody_anything() -> None:
    asked = submission(session="chat:7", callback_url="https://example.com/done")
    change = admission.reject(asked, "browser", SMALL, QueueFull("rejected: full"), seq=1, now=NOW)
    task = change.after
    assert (change.before, change.verb, change.error) == (None, "reject", "rejected: full")
    assert (task.state, task.terminal, task.completed_at) == ("rejected", True, NOW)
    assert (task.session, task.callback_url) == (None, None)
    assert (task.position, task.started_at, task.leased) == (0, None, False)


def test_a_task_stands_in_its_agents_line_or_in_the_one_of_its_lane() -> None:
    policy = Policy()
    assert admission.line_of(policy, "browser", "ada") == "ada"
    assert admission.line_of(policy, "queue", "ada") == ""
    task = admission.admit(submission(), "queue", policy, seq=1, position=1, now=NOW).after
    assert (task.line, task.agent) == ("", "ada")
