"""Admission: which submissions are refused, the error, and the admitted task."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.core import admission, moments
from fairlane.core.errors import InvalidRequest, QueueFull
from fairlane.core.model import Task
from fairlane.core.policy import LanePolicy, Policy, from_document
from tests.unit.core.rows import NOW, submission

DEFAULT = Policy()
SMALL = from_document({"lanes": {"browser": {"maxQueueSize": 5, "maxPerAgent": 3}}})


def _refusal(lane_queued: int, agent_queued: int, policy: Policy = SMALL) -> QueueFull | None:
    return admission.refusal(
        "ada", "tsk_1", "browser", policy, lane_queued=lane_queued, agent_queued=agent_queued
    )


def _admitted(lane: str = "browser", policy: Policy = DEFAULT, **given: Any) -> Task:
    asked = submission(**given)
    return admission.admit(asked, lane, policy, seq=1, line=3, position=1, now=NOW).after


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
        "ada", "tsk_1", "queue", Policy(), lane_queued=10**9, agent_queued=10**9
    )
    assert refusal is None


def test_an_admitted_action_is_queued_with_the_deadline_of_its_kind() -> None:
    change = admission.admit(submission(), "browser", Policy(), seq=9, line=3, position=4, now=NOW)
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
    assert (task.started_at, task.completed_at, task.fencing_token, task.leased) == (
        None,
        None,
        0,
        False,
    )


def test_a_run_of_cron_waits_as_long_as_it_takes() -> None:
    run = submission(id="cron_1")
    change = admission.admit(run, "cron", Policy(), seq=9, line=3, position=4, now=NOW)
    assert change.after.deadline_at is None


def test_a_deadline_given_as_a_span_counts_from_now_and_stays_a_span() -> None:
    task = _admitted(deadline_ms=5000)
    assert (task.deadline_at, task.deadline_ms) == (NOW + 5000, 5000)
    never = _admitted(deadline_ms=2**62)
    assert never.deadline_at == moments.MAX


def test_an_admitted_handler_has_no_deadline_and_three_attempts() -> None:
    task = _admitted("main", kind="handler")
    assert (task.deadline_at, task.max_attempts) == (None, 3)


def test_what_the_caller_asked_for_is_kept() -> None:
    task = _admitted(
        priority=-5,
        session="chat:7",
        batch="bat_1",
        deadline_at=NOW + 5,
        callback_url="https://example.com/done",
        capability="action",
    )
    assert (task.priority, task.session, task.batch, task.deadline_at, task.callback_url) == (
        -5,
        "chat:7",
        "bat_1",
        NOW + 5,
        "https://example.com/done",
    )


def test_a_rejected_task_is_a_terminal_record_that_owes_nobody_anything() -> None:
    asked = submission(session="chat:7", callback_url="https://example.com/done", delay_ms=9)
    change = admission.reject(asked, "browser", SMALL, QueueFull("rejected: full"), seq=1, now=NOW)
    task = change.after
    assert (change.before, change.verb, change.error) == (None, "reject", "rejected: full")
    assert (task.state, task.terminal, task.completed_at) == ("rejected", True, NOW)
    assert (task.session, task.callback_url, task.eligible_at) == (None, None, None)
    assert (task.position, task.started_at, task.leased) == (0, None, False)


def test_a_task_stands_in_its_agents_line_or_in_the_one_of_its_lane() -> None:
    assert admission.line_agent(DEFAULT, "browser", "ada") == "ada"
    assert admission.line_agent(DEFAULT, "queue", "ada") == ""
    task = _admitted("queue")
    assert (task.line, task.agent) == (3, "ada")


# ---------------------------------------------------------------- when it may begin


@pytest.mark.parametrize(
    ("given", "eligible_at"),
    [
        ({}, None),
        ({"delay_ms": 500}, NOW + 500),
        ({"delay_ms": 0}, None),
        ({"run_at": NOW + 9}, NOW + 9),
        ({"run_at": NOW}, None),
        ({"run_at": NOW - 9}, None),
    ],
)
def test_a_delay_and_a_moment_are_kept_while_they_lie_ahead(
    given: dict[str, Any], eligible_at: int | None
) -> None:
    assert _admitted(**given).eligible_at == eligible_at


def test_the_deadline_of_a_kind_runs_from_when_the_task_may_begin() -> None:
    assert _admitted(delay_ms=5000).deadline_at == NOW + 65_000
    assert _admitted(delay_ms=5000, deadline_at=NOW + 9000).deadline_at == NOW + 9000


def test_while_a_task_has_to_wait_for_others_it_has_only_a_deadline_of_its_own() -> None:
    assert _admitted(depends_on=("tsk_0",)).deadline_at is None
    assert _admitted(depends_on=("tsk_0",), deadline_at=NOW + 9).deadline_at == NOW + 9


def test_the_deadline_of_a_kind_can_be_asked_for_on_its_own() -> None:
    assert admission.deadline(DEFAULT, "action", NOW) == NOW + 60_000
    assert admission.deadline(DEFAULT, "handler", NOW) is None


# ---------------------------------------------------------------- retries, place and pre-emption


@pytest.mark.parametrize(("asked", "allowed"), [(None, 3), (1, 1), (9, 9)])
def test_a_task_may_have_a_budget_of_its_own(asked: int | None, allowed: int) -> None:
    assert _admitted("main", kind="handler", max_attempts=asked).max_attempts == allowed


@pytest.mark.parametrize(("preemptible", "preempt"), [(False, None), (True, 0)])
def test_only_who_says_so_can_be_interrupted(*, preemptible: bool, preempt: int | None) -> None:
    assert _admitted(preemptible=preemptible).preempt == preempt


def test_without_aging_a_tasks_place_is_its_priority() -> None:
    assert admission.rank(LanePolicy(), 7, NOW) == 7
    assert _admitted(priority=-3).rank == -3


def test_with_aging_a_point_of_priority_is_worth_some_waiting() -> None:
    lane = LanePolicy(aging_ms=1000)
    early, late = admission.rank(lane, 3, NOW), admission.rank(lane, 0, NOW + 2999)
    assert (early, late) == (NOW + 3000, NOW + 2999)
    assert admission.rank(lane, 0, NOW + 3000) == early


def test_critical_work_stays_in_front_however_long_others_wait() -> None:
    lane = LanePolicy(aging_ms=86_400_000)
    assert admission.rank(lane, -20, NOW) == -20
    assert admission.rank(lane, -21, NOW) == -21
    assert admission.rank(lane, -19, NOW) > 0
