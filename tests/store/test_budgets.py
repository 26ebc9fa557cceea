"""A budget that asks: one question per window, a raise that wakes, a rejection that parks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlane.core import approvals
from fairlane.core.approvals import Approval, Voter
from fairlane.core.errors import InvalidRequest
from fairlane.engine.commands import Decide, Reset
from fairlane.engine.reads import resource_recount
from fairlane.engine.reads import why as explaining
from fairlane.engine.reads.recount import recount
from fairlane.engine.resource_commands import Permit, RaiseResource, SettlePermit
from fairlane.store.tables import approvals as table
from fairlane.store.tables.approvals import ApprovalFilter
from tests.store.scheduler import Scheduler, submission

BOSS = Voter("boss")
SPEND = {
    "limits": [{"unit": "usd", "amount": "1.5", "resetEveryMs": 60_000}],
    "by": "agent",
    "whenSpent": "ask",
}


@pytest.fixture
def broke(scheduler: Scheduler) -> Scheduler:
    """Agent `a` has spent its budget; two of its tasks wait."""
    scheduler.set_policy(resources={"spend": SPEND}, lanes={"main": {"maxInflight": 100}})
    for name in ("t1", "t2", "t3"):
        scheduler.submit(name, needs={"spend": {"usd": "1.25"}})
    scheduler.complete(scheduler.lease_one())
    assert scheduler.names(9) == []
    return scheduler


def questions(scheduler: Scheduler, state: str = "open") -> list[Approval]:
    views = table.page(scheduler.reader, scheduler.store.vault, ApprovalFilter(state), 100)
    return [view.approval for view in views]


def decide(scheduler: Scheduler, decision: str = "approve", **fields: Any) -> Decide:
    (one,) = questions(scheduler)
    given = {"voter": BOSS, "decision": decision, "hash": approvals.hash_of(one, None), **fields}
    return Decide(one.id, **given)


def sound(scheduler: Scheduler) -> None:
    assert recount(scheduler.reader) == []
    assert resource_recount.recount(scheduler.reader) == []


def test_a_spent_budget_asks_once(broke: Scheduler) -> None:
    (one,) = questions(broke)
    assert (one.title, one.agent, one.task) == ("Raise spend/a?", "a", None)
    assert "1.25 usd" in (one.detail or "")
    broke.submit("t4", needs={"spend": {"usd": 1}})
    broke.apply()
    assert len(questions(broke)) == 1
    assert [event.type for event in broke.events()].count("approval.opened") == 1
    sound(broke)


def test_approving_raises_the_budget_and_wakes_the_tasks(broke: Scheduler) -> None:
    after = broke.ask(decide(broke, answer={"amount": "2.5"}))
    assert after.state == "approved"
    assert sorted(broke.names(9)) == ["t2", "t3"]
    assert "resource.raised" in [event.type for event in broke.events()]
    sound(broke)


def test_the_amount_is_a_decimal_and_the_agent_itself_cannot_raise(broke: Scheduler) -> None:
    for wrong in ("", "x", "-1", "1.1234567", "1e3"):
        assert broke.refused(decide(broke, answer={"amount": wrong})).code == "invalid_request"
    own = decide(broke, voter=Voter("tok", "a", None))
    assert broke.refused(own).code == "own_task"
    assert broke.ask(decide(broke)).answer == '{"amount":"1.25"}', "what the next task needs"
    assert broke.names(9) == ["t2"]
    assert len(questions(broke)) == 1, "it is spent again, and asks again"
    sound(broke)


def test_rejecting_parks_the_tasks_that_wait(broke: Scheduler) -> None:
    broke.ask(decide(broke, "reject"))
    assert broke.names(9) == []
    assert broke.states("t2", "t3") == ["parked", "parked"]
    assert questions(broke) == []
    sound(broke)
    broke.pass_time(60_000)
    broke.ask(Reset("t2"))
    assert broke.names(9) == ["t2"]
    sound(broke)


def test_without_a_decision_the_next_window_goes_on(broke: Scheduler) -> None:
    broke.pass_time(60_000)
    assert questions(broke) == [] or questions(broke)[0].opened_at == broke.clock.now()
    assert [one.state for one in questions(broke, "expired")] == ["expired"]
    assert broke.names(9) == ["t2"]
    (next_one,) = questions(broke)
    assert next_one.title == "Raise spend/a?"
    sound(broke)


def test_a_decision_about_a_resource_that_is_gone_changes_nothing(broke: Scheduler) -> None:
    asked = decide(broke)
    broke.set_policy(resources={"other": {"limits": [{"amount": 1}]}})
    assert broke.ask(asked).state == "approved"
    sound(broke)


def test_every_budget_of_an_account_asks_for_itself(scheduler: Scheduler) -> None:
    limits = [
        {"unit": "usd", "amount": 1, "resetEveryMs": 60_000},
        {"unit": "usd", "amount": 2, "resetEveryMs": 3_600_000},
        {"unit": "pages", "amount": 1, "resetEveryMs": 60_000},
    ]
    scheduler.set_policy(resources={"spend": {"limits": limits, "whenSpent": "ask"}})
    scheduler.submit("t1", "t2", needs={"spend": {"usd": 1}})
    scheduler.submit("p1", "p2", agent="b", needs={"spend": {"pages": 1}})
    for grant in scheduler.lease(9):
        scheduler.complete(grant.task)
    asked = {one.resource: one for one in questions(scheduler)}
    assert sorted(asked) == ["spend#pages", "spend#usd"]
    pages = asked["spend#pages"]
    scheduler.ask(Decide(pages.id, BOSS, "reject", approvals.hash_of(pages, None)))
    assert scheduler.states("t2", "p2") == ["queued", "parked"], "the money was not refused"
    scheduler.pass_time(60_000)
    scheduler.complete(scheduler.lease_one())
    scheduler.submit("t3", needs={"spend": {"usd": 1}})
    scheduler.pass_time(60_000)
    (hour,) = questions(scheduler)
    assert (hour.resource, hour.expires_at) == ("spend#usd:1", 1_700_002_800_000)
    assert "budget of 2 usd" in (hour.detail or "")
    scheduler.ask(decide(scheduler, answer={"amount": "1"}))
    assert scheduler.names(9) == ["t3"]
    sound(scheduler)


def test_the_budget_of_tasks_without_a_session_is_raised_too(scheduler: Scheduler) -> None:
    spend = {**SPEND, "by": "session"}
    scheduler.set_policy(resources={"spend": spend}, lanes={"main": {"maxInflight": 100}})
    scheduler.submit("s", needs={"spend": {"usd": "1.25"}}, session="s")
    scheduler.submit("t1", "t2", needs={"spend": {"usd": "1.25"}})
    for grant in scheduler.lease(9):
        scheduler.complete(grant.task)
    scheduler.ask(decide(scheduler, answer={"amount": "2.5"}))
    assert scheduler.names(9) == ["t2"]
    sound(scheduler)


def test_an_operator_who_raises_is_not_asked_twice(broke: Scheduler) -> None:
    broke.ask(RaiseResource("spend", "usd", 500_000, "a"))
    broke.submit("t4", needs={"spend": {"usd": 1}})
    broke.apply()
    assert len(questions(broke)) == 1
    sound(broke)


def test_a_permit_asks_for_more_money(broke: Scheduler) -> None:
    broke.ask(decide(broke, "reject"))
    broke.pass_time(60_000)
    broke.submit("run")
    (run,) = [grant.task for grant in broke.lease(9) if grant.task.id == "run"]
    wanted = Permit(run.seq, run.fencing_token, {"spend": {"usd": "1.5"}})
    granted = broke.ask(wanted)
    broke.ask(SettlePermit(run.seq, run.fencing_token, granted.id))
    for _ in range(2):
        refused = broke.ask(msgspec.structs.replace(wanted, needs={"spend": {"usd": 1}}))
        assert refused.why.spent
    assert [one.title for one in questions(broke)] == ["Raise spend/a?"]
    sound(broke)


def test_a_task_that_waits_for_money_names_the_question(broke: Scheduler) -> None:
    (one,) = questions(broke)

    def reason(agent: str | None = None) -> str:
        moment = broke.clock.now()
        found = explaining.read(broke.reader, "t2", agent=agent, moment=lambda _: moment)
        assert found is not None
        return found.why.reason

    assert reason().endswith(f"{one.id} asks a person to raise it")
    assert one.id in reason("a")
    assert one.id not in reason("b")


@pytest.mark.parametrize("level", ["session", "batch"])
def test_a_child_uses_the_budgets_of_the_run_that_submitted_it(
    scheduler: Scheduler, level: str
) -> None:
    """Also the child of a child, and one with a session of its own."""
    limits = [{"unit": "usd", "amount": 1, "resetEveryMs": 60_000}]
    scheduler.set_policy(
        resources={"spend": {"limits": limits, "by": level}}, lanes={"main": {"maxInflight": 100}}
    )
    need: Any = {"spend": {"usd": "0.3"}}
    if level == "batch":
        scheduler.batch(submission("run", "a", needs=need))
    else:
        scheduler.submit("run", session="talk", needs=need)
    scheduler.submit("child", child_of="run", session="own", needs=need)
    scheduler.submit("grandchild", child_of="child", needs=need)
    assert sorted(scheduler.names(9)) == ["child", "grandchild", "run"]
    scheduler.submit("fourth", child_of="grandchild", needs=need)
    scheduler.submit("stranger", needs=need)
    assert scheduler.names(9) == ["stranger"]
    sound(scheduler)


def test_a_child_of_a_task_that_does_not_exist_is_refused(scheduler: Scheduler) -> None:
    (answer,) = scheduler.try_submit("child", child_of="gone")
    assert isinstance(answer, InvalidRequest)
    assert "field 'childOf': task 'gone' not found" in answer.message
    assert scheduler.names(9) == []
