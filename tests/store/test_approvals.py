"""Approvals on both databases: a task waits for a person, holds nothing, and starts once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlane.core import approvals
from fairlane.core.access import Token
from fairlane.core.approvals import Approval, ApprovalRequest, Voter
from fairlane.core.errors import FairlaneError
from fairlane.engine.commands import (
    Ask,
    AskOutcome,
    CreateJobs,
    CreateLink,
    CreateToken,
    Decide,
    DecideByLink,
    RevokeToken,
    SetPolicy,
    UpdateJob,
)
from fairlane.engine.reads.recount import recount
from fairlane.store.tables import approvals as table
from fairlane.store.tables import tasks as task_table
from tests.store.crontab import EVERY_MINUTE, MINUTE, job_document
from tests.store.scheduler import Scheduler, lease_request, submission

BOSS = Voter("boss")
FORM = {"properties": {"amount": {"type": "integer"}}, "required": ["amount"]}


def _ask(**fields: Any) -> ApprovalRequest:
    return msgspec.convert({"title": "Send?", **fields}, ApprovalRequest)


def _of(scheduler: Scheduler, name: str) -> list[Approval]:
    task = scheduler.view(name).task
    return [one for one in table.of_tasks(scheduler.reader, [task.seq]) if one.in_force]


def _open(scheduler: Scheduler, name: str) -> Approval:
    (found,) = [one for one in _of(scheduler, name) if one.state == "open"]
    return found


def _decide(scheduler: Scheduler, name: str, word: str = "approve", **fields: Any) -> Decide:
    approval = _open(scheduler, name)
    body = task_table.requests(scheduler.reader, scheduler.store.vault, [approval.task_seq or 0])
    seen = approvals.hash_of(approval, body[approval.task_seq or 0])
    return Decide(approval.id, **{"voter": BOSS, "decision": word, "hash": seen, **fields})


def _events(scheduler: Scheduler) -> list[str]:
    return [event.type for event in scheduler.events()]


def _sound(scheduler: Scheduler) -> None:
    assert recount(scheduler.reader) == []


# ---------------------------------------------------------------- the gate


def test_a_task_waits_for_a_person_and_starts_in_the_deciding_commit(scheduler: Scheduler) -> None:
    scheduler.submit("t1", approval=_ask())
    assert scheduler.lease() == []
    task = scheduler.view("t1").task
    assert (task.state, task.gate, task.unapproved) == ("queued", "approval", 1)
    outcome = scheduler.apply(_decide(scheduler, "t1"), waiting=[lease_request()])
    (grant,) = outcome.grants[0]
    assert grant.task.id == "t1"
    assert [(one.state, one.decided_by) for one in grant.approvals] == [("approved", "boss")]
    assert "approval.opened" in _events(scheduler)
    assert "approval.decided" in _events(scheduler)
    _sound(scheduler)


def test_a_rejected_task_is_cancelled_with_the_reason(scheduler: Scheduler) -> None:
    scheduler.submit("t1", approval=_ask())
    scheduler.ask(_decide(scheduler, "t1", "reject", comment="no"))
    view = scheduler.view("t1")
    assert (view.state, view.error) == ("cancelled", "approval_rejected: rejected by boss: no")
    assert scheduler.lease() == []
    _sound(scheduler)


def test_time_rejects_or_approves(scheduler: Scheduler) -> None:
    scheduler.submit("t1", approval=_ask(expiresMs=1000))
    scheduler.submit("t2", approval=_ask(expiresMs=1000, onExpiry="approve"))
    assert scheduler.engine.due_at is not None
    late = _decide(scheduler, "t1")
    scheduler.clock.advance(1000)
    assert scheduler.refused(late).code == "approval_closed"
    assert scheduler.view("t1").error == "approval_expired: no decision in time"
    assert scheduler.view("t2").task.ready
    assert _events(scheduler).count("approval.expired") == 2
    _sound(scheduler)


def test_a_decision_waits_for_time_and_parents(scheduler: Scheduler) -> None:
    scheduler.submit("parent")
    scheduler.submit("later", approval=_ask(), delay_ms=5000)
    scheduler.submit("child", approval=_ask(), depends_on=("parent",))
    scheduler.ask(_decide(scheduler, "later"))
    scheduler.ask(_decide(scheduler, "child"))
    parent = scheduler.lease_one()
    assert parent.id == "parent"
    scheduler.clock.advance(5000)
    assert scheduler.names(5) == ["later"]
    scheduler.complete(parent)
    assert scheduler.names(5) == ["child"]
    _sound(scheduler)


def test_a_child_is_asked_about_after_its_parents(scheduler: Scheduler) -> None:
    scheduler.submit("parent")
    scheduler.submit("child", approval=_ask(), depends_on=("parent",))
    scheduler.complete_next()
    assert scheduler.view("child").task.gate == "approval"
    scheduler.ask(_decide(scheduler, "child"))
    assert scheduler.names() == ["child"]


def test_a_parent_that_fails_closes_the_question_about_its_child(scheduler: Scheduler) -> None:
    scheduler.submit("parent")
    scheduler.submit("child", approval=_ask(), depends_on=("parent",))
    scheduler.fail_next()
    assert [one.state for one in _of(scheduler, "child")] == ["cancelled"]
    scheduler.retry("parent")
    assert _open(scheduler, "child").state == "open"
    scheduler.complete_next()
    assert scheduler.view("child").task.gate == "approval"
    _sound(scheduler)


def test_a_task_that_waits_for_a_person_does_not_hold_its_session(scheduler: Scheduler) -> None:
    scheduler.submit("t1", approval=_ask(), session="s")
    scheduler.submit("t2", session="s")
    assert scheduler.names(2) == ["t2"]
    scheduler.ask(_decide(scheduler, "t1"))
    assert scheduler.view("t1").task.gate == "session"
    _sound(scheduler)


def test_a_cancel_closes_the_question(scheduler: Scheduler) -> None:
    scheduler.submit("t1", approval=_ask())
    decide = _decide(scheduler, "t1")
    scheduler.cancel("t1")
    (closed,) = _of(scheduler, "t1")
    assert closed.state == "cancelled"
    assert scheduler.refused(decide).code == "approval_closed"
    assert "approval.cancelled" in _events(scheduler)
    _sound(scheduler)


def test_a_retry_asks_again(scheduler: Scheduler) -> None:
    scheduler.submit("t1", approval=_ask(expiresMs=60_000))
    first = _decide(scheduler, "t1", "reject")
    scheduler.ask(first)
    scheduler.retry("t1")
    assert scheduler.view("t1").task.gate == "approval"
    stale = msgspec.structs.replace(first, decision="approve")
    assert scheduler.refused(stale).code == "approval_closed"
    scheduler.ask(_decide(scheduler, "t1"))
    assert scheduler.names() == ["t1"]
    _sound(scheduler)


def test_an_approved_task_that_failed_by_hand_asks_again(scheduler: Scheduler) -> None:
    scheduler.submit("t1", approval=_ask(), max_attempts=1)
    scheduler.ask(_decide(scheduler, "t1"))
    scheduler.fail_next()
    scheduler.retry("t1")
    assert scheduler.lease() == []
    assert scheduler.view("t1").task.gate == "approval"
    _sound(scheduler)


def test_automatic_retries_are_covered_by_the_decision(scheduler: Scheduler) -> None:
    scheduler.submit("t1", approval=_ask(), max_attempts=2)
    scheduler.ask(_decide(scheduler, "t1"))
    scheduler.fail(scheduler.lease_one())
    scheduler.clock.advance(3600000)
    assert scheduler.names() == ["t1"]


def test_the_deadline_of_its_kind_starts_with_the_decision(scheduler: Scheduler) -> None:
    scheduler.ask(SetPolicy({"kinds": {"handler": {"deadlineSec": 60}}}, "test"))
    scheduler.submit("t1", approval=_ask())
    scheduler.clock.advance(3600000)
    scheduler.apply()
    assert scheduler.view("t1").state == "queued"
    scheduler.ask(_decide(scheduler, "t1"))
    now = scheduler.clock.now()
    assert scheduler.view("t1").task.deadline_at == pytest.approx(now + 60_000, abs=2000)


# ---------------------------------------------------------------- who decides


def test_a_second_click_is_answered_and_starts_nothing(scheduler: Scheduler) -> None:
    scheduler.submit("t1", approval=_ask())
    decide = _decide(scheduler, "t1")
    outcome = scheduler.apply(decide, decide, waiting=[lease_request(5)])
    assert [one.state for one in outcome.answers] == ["approved", "approved"]
    assert len(outcome.grants[0]) == 1
    assert scheduler.ask(decide).state == "approved"
    assert scheduler.lease() == []


def test_a_revoked_token_decides_nothing(scheduler: Scheduler) -> None:
    token = Token(0, "AbCdEfGhIjKl", "ann", "d", "approve", 0)
    scheduler.ask(CreateToken(token))
    scheduler.submit("t1", approval=_ask())
    decide = _decide(scheduler, "t1", voter=Voter("ann", None, "AbCdEfGhIjKl"))
    answers = scheduler.apply(decide, RevokeToken("ann")).answers
    assert isinstance(answers[0], FairlaneError)
    assert answers[0].code == "unauthenticated"
    assert scheduler.view("t1").task.gate == "approval"


def test_an_agent_cannot_see_or_decide_what_is_not_its_business(scheduler: Scheduler) -> None:
    scheduler.submit("t1", agent="ada", approval=_ask())
    scheduler.submit("t2", agent="ada", approval=_ask(approvers=["eve"]))
    other = Voter("tok", "eve", None)
    assert scheduler.refused(_decide(scheduler, "t1", voter=other)).code == "not_found"
    own = Voter("tok", "ada", None)
    assert scheduler.refused(_decide(scheduler, "t1", voter=own)).code == "own_task"
    assert scheduler.refused(_decide(scheduler, "t2", voter=BOSS)).code == "forbidden"
    assert scheduler.ask(_decide(scheduler, "t2", voter=other)).state == "approved"


def test_the_submitting_token_cannot_decide(scheduler: Scheduler) -> None:
    token = Token(0, "AbCdEfGhIjKl", "ann", "d", "approve", 0)
    scheduler.ask(CreateToken(token))
    scheduler.submit("t1", approval=_ask(), submitter="AbCdEfGhIjKl")
    mine = Voter("ann", None, "AbCdEfGhIjKl")
    assert scheduler.refused(_decide(scheduler, "t1", voter=mine)).code == "own_task"


def test_two_people_approve_and_an_unknown_approval_is_not_found(scheduler: Scheduler) -> None:
    scheduler.submit("t1", approval=_ask(count=2))
    scheduler.ask(_decide(scheduler, "t1"))
    assert scheduler.lease() == []
    scheduler.ask(_decide(scheduler, "t1", voter=Voter("cfo")))
    assert len(scheduler.lease()) == 1
    unknown = Decide("apr_999", BOSS, "approve", "")
    assert scheduler.refused(unknown).code == "not_found"


# ---------------------------------------------------------------- ask in a run


def _asking(scheduler: Scheduler, name: str = "q1", **fields: Any) -> Ask:
    task = scheduler.view("t1").task
    text = msgspec.json.encode(_ask(**fields)).decode()
    return Ask(task.seq, task.fencing_token, name, text)


def test_a_run_asks_gives_its_slot_back_and_goes_on_with_the_answer(scheduler: Scheduler) -> None:
    scheduler.submit("t1", session="s")
    scheduler.submit("t2", session="s")
    scheduler.lease()
    ask = _asking(scheduler, form=FORM)
    asked: AskOutcome = scheduler.ask(ask)
    assert (asked.task.state, asked.task.attempts, asked.approval.state) == ("queued", 0, "open")
    assert scheduler.tally("main").slots == 0
    assert "task.suspended" in [event.type for event in scheduler.events()]
    assert scheduler.lease() == [], "the session's turn stays with the task that asks"
    again: AskOutcome = scheduler.ask(ask)
    assert again.approval.id == asked.approval.id
    _sound(scheduler)
    scheduler.ask(_decide(scheduler, "t1", answer={"amount": 5}))
    (grant,) = scheduler.apply(waiting=[lease_request()]).grants[0]
    assert grant.task.attempts == 1
    assert [(one.name, one.state, one.answer) for one in grant.approvals] == [
        ("q1", "approved", '{"amount":5}')
    ]
    known: AskOutcome = scheduler.ask(_asking(scheduler, form=FORM))
    assert (known.approval.state, known.task.leased) == ("approved", True)
    assert scheduler.refused(ask).code == "lease_lost"
    _sound(scheduler)


def test_a_decision_about_one_text_is_none_about_another(scheduler: Scheduler) -> None:
    scheduler.submit("t1")
    scheduler.lease()
    scheduler.ask(_asking(scheduler, detail="Dear Ann"))
    scheduler.ask(_decide(scheduler, "t1"))
    scheduler.lease()
    other: AskOutcome = scheduler.ask(_asking(scheduler, detail="Dear Eve"))
    assert (other.approval.state, other.task.leased) == ("open", False)
    scheduler.ask(_decide(scheduler, "t1", "reject"))
    (grant,) = scheduler.apply(waiting=[lease_request()]).grants[0]
    assert [(one.detail, one.state) for one in grant.approvals] == [("Dear Eve", "rejected")]
    _sound(scheduler)


def test_a_run_hears_of_a_rejection_and_decides_itself(scheduler: Scheduler) -> None:
    scheduler.submit("t1")
    scheduler.lease()
    scheduler.ask(_asking(scheduler, expiresMs=1000))
    scheduler.clock.advance(1000)
    (grant,) = scheduler.apply(waiting=[lease_request()]).grants[0]
    assert [one.state for one in grant.approvals] == ["expired"]


def test_a_run_whose_task_was_cancelled_cannot_ask(scheduler: Scheduler) -> None:
    scheduler.submit("t1")
    scheduler.lease()
    scheduler.cancel("t1")
    assert scheduler.refused(_asking(scheduler)).code == "lease_lost"
    assert scheduler.refused(Ask(99, 1, "q", "{}")).code == "lease_lost"
    _sound(scheduler)


def test_a_retry_forgets_the_answers_of_the_life_before(scheduler: Scheduler) -> None:
    scheduler.submit("t1", max_attempts=1)
    scheduler.lease()
    scheduler.ask(_asking(scheduler))
    scheduler.ask(_decide(scheduler, "t1"))
    scheduler.fail_next()
    scheduler.retry("t1")
    (grant,) = scheduler.apply(waiting=[lease_request()]).grants[0]
    assert grant.approvals == ()
    _sound(scheduler)


def test_the_time_of_a_run_stands_still_while_it_asks(scheduler: Scheduler) -> None:
    scheduler.ask(SetPolicy({"kinds": {"handler": {"deadlineSec": 60}}}, "test"))
    scheduler.submit("t1")
    scheduler.lease()
    scheduler.clock.advance(20000)
    scheduler.ask(_asking(scheduler))
    scheduler.clock.advance(3600000)
    scheduler.apply()
    scheduler.ask(_decide(scheduler, "t1"))
    now = scheduler.clock.now()
    assert scheduler.view("t1").task.deadline_at == pytest.approx(now + 40_000, abs=2000)


def test_a_run_does_not_ask_forever(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlane.engine.verbs.approvals.ASKS_MAX", 1)
    scheduler.submit("t1")
    scheduler.lease()
    scheduler.ask(_asking(scheduler))
    scheduler.ask(_decide(scheduler, "t1"))
    scheduler.lease()
    assert scheduler.refused(_asking(scheduler, "q2")).code == "conflict"


# ---------------------------------------------------------------- links


def _link(scheduler: Scheduler, **fields: Any) -> CreateLink:
    approval = _open(scheduler, "t1")
    given = {"link_id": "l1", "digest": "d", "expires_ms": 60_000, "created_by": "op"}
    return CreateLink(approval.id, **{**given, **fields})


def test_a_link_decides_once(scheduler: Scheduler) -> None:
    scheduler.submit("t1", approval=_ask(expiresMs=30_000))
    link = scheduler.ask(_link(scheduler))
    assert link.expires_at == _open(scheduler, "t1").expires_at
    wrong = DecideByLink("l1", "x", "approve", link.hash)
    assert scheduler.refused(wrong).code == "not_found"
    assert scheduler.refused(DecideByLink("l2", "d", "approve", link.hash)).code == "not_found"
    assert scheduler.refused(DecideByLink("l1", "d", "approve", "x")).code == "approval_changed"
    decide = DecideByLink("l1", "d", "approve", link.hash)
    assert scheduler.ask(decide).decided_by == "link l1"
    assert scheduler.refused(decide).code == "not_found"
    assert len(scheduler.lease()) == 1


def test_a_link_is_for_an_approver_and_for_an_open_question(scheduler: Scheduler) -> None:
    scheduler.submit("t1", approval=_ask(approvers=["ann"]))
    assert scheduler.refused(_link(scheduler)).code == "conflict"
    create = _link(scheduler, approver="ann")
    scheduler.ask(create)
    scheduler.clock.advance(60000)
    link = table.link(scheduler.reader, "l1")
    assert link is not None
    assert scheduler.refused(DecideByLink("l1", "d", "approve", link.hash)).code == "not_found"
    scheduler.cancel("t1")
    closed = msgspec.structs.replace(create, link_id="l2")
    assert scheduler.refused(closed).code == "approval_closed"
    assert scheduler.refused(CreateLink("apr_9", "l", "d", 1, "op")).code == "not_found"


# ---------------------------------------------------------------- many, old, planned


def test_ten_thousand_open_approvals_cost_no_slot_and_no_work(scheduler: Scheduler) -> None:
    scheduler.ask(SetPolicy({"lanes": {"main": {"maxQueueSize": 20_000}}}, "test"))
    for start in range(0, 10_000, 1000):
        names = [f"t{number}" for number in range(start, start + 1000)]
        scheduler.submit(*names, approval=_ask())
    assert scheduler.tally("main").slots == 0
    assert scheduler.tally("main").ready == 0
    assert table.count_open(scheduler.reader, None, None, 20_000) == 10_000
    scheduler.submit("quick")
    assert scheduler.names(5) == ["quick"]


def test_old_approvals_go_with_their_tasks(scheduler: Scheduler) -> None:
    scheduler.submit("t1", approval=_ask())
    scheduler.ask(_link(scheduler))
    scheduler.cancel("t1")
    approval = _of(scheduler, "t1")[0]
    scheduler.ask(SetPolicy({"retention": {"resultTTLSec": 1}}, "test"))
    scheduler.clock.advance(3600000)
    scheduler.apply()
    assert table.by_id(scheduler.reader, [approval.id]) == []
    assert table.link(scheduler.reader, "l1") is None


def test_the_doctor_sees_a_task_that_waits_for_nobody(scheduler: Scheduler) -> None:
    scheduler.submit("t1", approval=_ask())
    approval = _open(scheduler, "t1")
    connection = scheduler.store.writer()
    connection.begin()
    table.update(connection, {approval.seq: approvals.close(approval, 1)}, {approval.seq: "open"})
    connection.commit()
    problems = recount(scheduler.reader)
    connection.begin()
    table.update(connection, {approval.seq: approval}, {approval.seq: "cancelled"})
    connection.commit()
    connection.close()
    assert problems == ["task t1: waits for a decision, 0 approvals are open"]


def test_a_batch_gives_the_place_of_a_task_that_waits_for_a_person(scheduler: Scheduler) -> None:
    items = [submission("t1", approval=_ask()), submission("t2")]
    scheduler.batch(*items, parallelism=1)
    assert scheduler.names(5) == ["t2"]
    scheduler.ask(_decide(scheduler, "t1"))
    assert scheduler.view("t1").task.gate == "batch"
    _sound(scheduler)


def test_the_token_that_defined_a_cron_job_cannot_decide_about_its_tasks(
    scheduler: Scheduler,
) -> None:
    task = {"handler": "work", "approval": {"title": "Send?"}}
    document = job_document("report", task=task, schedule=EVERY_MINUTE)
    scheduler.ask(CreateJobs(["job_report"], [document], "tok_maker"))

    def refusals() -> list[bool]:
        scheduler.pass_time(MINUTE)
        (one,) = [view.approval for view in _listed(scheduler)]
        found = [
            approvals.may_decide(one, Voter("x", None, token)) is not None
            for token in ("tok_maker", "tok_editor")
        ]
        scheduler.ask(_decide(scheduler, one.task or "", "reject"))
        return found

    assert refusals() == [True, False]
    scheduler.ask(UpdateJob("job_report", {"maxRuns": 9}, "tok_editor"))
    assert refusals() == [False, True]


def _listed(scheduler: Scheduler) -> list[Any]:
    return list(
        table.page(scheduler.reader, scheduler.store.vault, table.ApprovalFilter("open"), 9)
    )
