"""The approval gate: how a task waits for a person, suspends, resumes, and explains itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlane.core import (
    admission,
    approvals,
    consequences,
    dependencies,
    events,
    explain,
    gates,
    leases,
    submissions,
)
from fairlane.core.approvals import Approval, ApprovalRequest
from fairlane.core.errors import InvalidRequest, LeaseLost
from fairlane.core.events import Event
from fairlane.core.explain import Facts
from fairlane.core.model import Task
from fairlane.core.policy import Policy, from_document
from fairlane.core.sessions import Session
from tests.unit.core import rows
from tests.unit.core.rows import NOW, TOKEN

ASK = ApprovalRequest("Send it?")
WAITS = rows.queued(gate="approval", unapproved=1)


def _running(**given: Any) -> Task:
    fields = {"state": "running", "fencing_token": TOKEN, "lease_expires_at": NOW + 9}
    return rows.queued(**{"attempts": 1, "worker": "w", "started_at": NOW, **fields, **given})


def _approval(**given: Any) -> Approval:
    made = approvals.opened(ASK, seq=9, approval_id="apr_9", agent="ada", task=(1, "t"), now=NOW)
    return msgspec.structs.replace(made, **given)


# ---------------------------------------------------------------- gates


def test_a_person_comes_after_time_and_before_the_session() -> None:
    busy = Session("s", holders=1)
    assert gates.next_gate(rows.queued(unapproved=1), busy, None, NOW) == "approval"
    assert gates.next_gate(rows.queued(unapproved=0), busy, None, NOW) == "session"
    later = rows.queued(unapproved=1, eligible_at=NOW + 1)
    assert gates.next_gate(later, None, None, NOW) == "delay"


def test_a_task_that_asked_in_a_run_keeps_its_turn() -> None:
    assert gates.holds_turn(rows.queued(gate="approval", unapproved=1, started_at=NOW))
    assert not gates.holds_turn(WAITS)


def test_a_decision_opens_the_gate_and_only_that() -> None:
    after = gates.approve(WAITS, NOW + 5, "session").after
    assert (after.gate, after.unapproved, after.queued_at) == ("session", 0, NOW + 5)
    later = rows.queued(gate="delay", eligible_at=NOW + 50, unapproved=1)
    after = gates.approve(later, NOW + 5, None).after
    assert (after.gate, after.unapproved, after.eligible_at) == ("delay", 0, NOW + 50)


# ---------------------------------------------------------------- suspend and end


def test_a_suspended_run_gives_its_slot_back_and_spends_no_attempt() -> None:
    decision = leases.suspend(_running(deadline_at=NOW + 100, deadline_ms=200), TOKEN, NOW)
    after = decision.answer
    assert isinstance(after, Task)
    assert (after.state, after.gate, after.unapproved) == ("queued", "approval", 1)
    assert (after.attempts, after.leased, after.deadline_at) == (0, False, None)
    assert decision.change is not None
    assert events.of(decision.change) == ("task.suspended", None)


def test_a_deadline_that_the_caller_named_goes_on() -> None:
    after = leases.suspend(_running(deadline_at=NOW + 100), TOKEN, NOW).answer
    assert isinstance(after, Task)
    assert after.deadline_at == NOW + 100


def test_a_lease_that_did_not_start_counts_as_begun_when_it_asks() -> None:
    after = leases.suspend(_running(state="assigned", started_at=None), TOKEN, NOW).answer
    assert isinstance(after, Task)
    assert after.started_at == NOW


def test_only_the_holder_of_the_lease_asks() -> None:
    assert isinstance(leases.suspend(None, TOKEN, NOW).answer, LeaseLost)
    assert isinstance(leases.suspend(_running(), TOKEN - 1, NOW).answer, LeaseLost)
    ended = leases.suspend(_running(state="cancelled"), TOKEN, NOW).answer
    assert isinstance(ended, Task)
    assert not ended.leased


@pytest.mark.parametrize("waits", [1, None])
def test_the_end_of_a_task_closes_its_question(waits: int | None) -> None:
    task = rows.queued(gate="approval" if waits else None, unapproved=waits)
    change = leases.cancel(task, task.id, NOW).change
    assert change is not None
    assert change.after.unapproved == (0 if waits else None)
    following = consequences.of(change, awaited=False)
    assert following is not None
    assert following.closes_approval is bool(waits)


@pytest.mark.parametrize("waits", [1, None])
def test_a_parent_that_failed_closes_the_question_about_its_child(waits: int | None) -> None:
    child = rows.queued(state="waiting_dependency", gate="dependency", unapproved=waits)
    assert dependencies.orphan(child, "p", "failed", NOW).after.unapproved == (0 if waits else None)


# ---------------------------------------------------------------- deadlines

KINDS = from_document({"kinds": {"handler": {"deadlineSec": 60}}})


def test_the_time_of_a_task_starts_when_it_is_approved() -> None:
    new = rows.submission(kind="handler", capability="handler/x", approval=ASK)
    task = admission.admit(new, "main", KINDS, seq=1, line=1, position=1, now=NOW).after
    assert (task.unapproved, task.deadline_at) == (1, None)
    admission.start_deadline(KINDS, task, NOW + 5000, None)
    assert (task.deadline_at, task.deadline_ms) == (NOW + 65_000, 60_000)


@pytest.mark.parametrize(
    ("policy", "given", "left_ms", "deadline_at"),
    [
        (KINDS, {"deadline_ms": 500}, None, NOW + 500),
        (KINDS, {"deadline_ms": 500}, 70, NOW + 70),
        (KINDS, {"deadline_at": NOW + 9}, None, NOW + 9),
        (KINDS, {"id": "cron_1"}, None, None),
        (KINDS, {"eligible_at": NOW + 1000}, None, NOW + 61_000),
        (Policy(), {}, None, None),
    ],
)
def test_a_deadline_that_is_known_goes_on(
    policy: Policy, given: dict[str, Any], left_ms: int | None, deadline_at: int | None
) -> None:
    task = rows.queued(**given)
    admission.start_deadline(policy, task, NOW, left_ms)
    assert task.deadline_at == deadline_at


# ---------------------------------------------------------------- requests, events, reasons


def test_a_task_with_a_question_is_checked_with_it() -> None:
    request = submissions.task_request(handler="x", approval={"title": "Go?"})
    assert submissions.submission(request, task_id="t").approval == ApprovalRequest("Go?")
    request = submissions.task_request(handler="x", approval={"title": " "})
    with pytest.raises(InvalidRequest, match=r"field 'approval\.title' must not be empty"):
        submissions.submission(request, task_id="t")


@pytest.mark.parametrize(
    ("before", "after", "fact"),
    [
        (None, {}, "approval.opened"),
        ({}, {"votes": "[1]"}, None),
        ({}, {"state": "approved", "decided_by": "boss"}, "approval.decided"),
        ({}, {"state": "rejected", "decided_by": "boss"}, "approval.decided"),
        ({}, {"state": "approved", "decided_by": "expiry"}, "approval.expired"),
        ({}, {"state": "expired", "decided_by": "expiry"}, "approval.expired"),
        ({}, {"state": "cancelled"}, "approval.cancelled"),
    ],
)
def test_what_happens_to_an_approval_is_an_event(
    before: dict[str, Any] | None, after: dict[str, Any], fact: str | None
) -> None:
    was = None if before is None else _approval(**before)
    assert events.of_approval(was, _approval(**after)) == fact


def test_an_event_names_its_approval() -> None:
    assert Event(1, 2, NOW, "approval.opened", 0, "apr_9 open").approval == ("apr_9", "open")
    assert Event(1, 2, NOW, "approval.opened", 0).approval is None
    assert Event(1, 2, NOW, "task.created", 0, "apr_9 open").approval is None


def test_an_attempt_that_asked_ends_suspended() -> None:
    log = events.attempts(
        [
            Event(1, 1, NOW, "task.started", 1, "w"),
            Event(2, 1, NOW, "task.suspended", 0),
            Event(3, 1, NOW, "approval.opened", 0, "apr_9 open"),
            Event(4, 1, NOW, "task.started", 1, "w"),
        ]
    )
    assert [one.outcome for one in log] == ["suspended", None]


def test_why_names_the_approval_that_the_task_waits_for() -> None:
    why = explain.why(Facts(WAITS, Policy(), approval=_approval()))
    assert (why.gate, why.waiting_for) == ("approval", ["apr_9"])
    assert why.reason == ('it waits for a decision by a person: "Send it?"; fairlane approve apr_9')
    some = _approval(
        approvers='["boss","cfo"]',
        needed=2,
        expires_at=NOW,
        votes='[{"by":"x","decision":"approve","at":1}]',
    )
    assert explain.why(Facts(WAITS, Policy(), approval=some)).reason == (
        'it waits for a decision by one of boss, cfo (1 of 2 have approved): "Send it?"; '
        "without one it is decided at 2023-11-14T22:13:20.000Z: reject; fairlane approve apr_9"
    )
    assert explain.why(Facts(WAITS, Policy())).gate == "approval"
