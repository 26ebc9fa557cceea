"""Tokens and ownership, checked in the write transaction."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlane.core.access import Caller, Token
from fairlane.core.entries import LANE, QueueEntry
from fairlane.core.errors import (
    Conflict,
    InvalidRequest,
    MessageStale,
    NotFound,
    QueueFull,
    QuotaExceeded,
)
from fairlane.core.model import Message, Task
from fairlane.core.sessions import SessionSettings
from fairlane.engine.commands import (
    CreateToken,
    Drain,
    Enqueue,
    ReclaimExpired,
    RevokeToken,
    SetSession,
    SetUsage,
    StopSession,
    Submit,
    UseTokens,
)
from fairlane.engine.reads.views import Views
from fairlane.engine.verbs.tokens import LOGINS_MAX, new_token
from fairlane.engine.writing_node import WritingNode
from tests.store.scheduler import lease_request, submission

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.store.base import Store
    from tests.store.scheduler import Scheduler

A, B = Caller("alice", "a", token="t1"), Caller("bob", "b", token="t2")


@pytest.fixture
def views(store: Store) -> Iterator[Views]:
    views = Views(store)
    yield views
    views.close()


def seed(name: str, **fields: Any) -> Token:
    return Token(0, "", name, "", "read", 0, **fields)


def made(scheduler: Scheduler, name: str, **fields: Any) -> tuple[Token, str]:
    kept, text = new_token(seed(name, **fields))
    token: Token = scheduler.ask(CreateToken(kept))
    return token, text


# -------------------------------------------------------------------- tokens


def test_a_token_is_kept_with_a_digest_and_without_its_secret(
    scheduler: Scheduler, views: Views
) -> None:
    kept, text = made(scheduler, "one", agent="a", rate="5/s", max_open=7, expires_at=9)
    assert views.all_tokens() == [kept]
    assert text.split("_")[2] not in str(kept)
    assert (kept.created_at, kept.rate, kept.max_open) == (scheduler.clock.now(), "5/s", 7)


def test_two_tokens_that_are_valid_have_two_names(scheduler: Scheduler, views: Views) -> None:
    first, _ = made(scheduler, "twin")
    assert isinstance(scheduler.refused(CreateToken(new_token(seed("twin"))[0])), Conflict)
    scheduler.ask(RevokeToken("twin"))
    second, _ = made(scheduler, "twin")
    assert scheduler.ask(RevokeToken("twin")).id == second.id
    assert {token.id for token in views.all_tokens()} == {first.id, second.id}
    assert all(token.revoked_at is not None for token in views.all_tokens())


def test_revoking_again_changes_nothing_and_nobody_is_not_found(scheduler: Scheduler) -> None:
    token, _ = made(scheduler, "one")
    gone = scheduler.ask(RevokeToken(token.id))
    scheduler.clock.advance(1000)
    assert scheduler.ask(RevokeToken(token.id)) == gone
    assert isinstance(scheduler.refused(RevokeToken("nobody")), NotFound)


def test_other_nodes_are_notified_when_tokens_change(scheduler: Scheduler) -> None:
    kept, _ = new_token(seed("one"))
    assert scheduler.apply(CreateToken(kept)).access
    assert scheduler.apply(RevokeToken("one")).access
    assert not scheduler.apply(RevokeToken("one")).access
    assert not scheduler.apply(UseTokens({kept.id: 5})).access


def test_the_last_use_never_goes_back(scheduler: Scheduler, views: Views) -> None:
    token, _ = made(scheduler, "one")
    scheduler.apply(UseTokens({token.id: 5}), UseTokens({token.id: 9, "nobody": 1}))
    scheduler.ask(UseTokens({token.id: 7}))
    assert [one.last_used_at for one in views.all_tokens()] == [9]


def test_logins_that_are_over_go_and_nobody_has_too_many(
    scheduler: Scheduler, views: Views
) -> None:
    parent, _ = made(scheduler, "page")
    made(scheduler, "page", parent=parent.id, expires_at=scheduler.clock.now() + 1)
    scheduler.clock.advance(1000)
    later = scheduler.clock.now() + 1000
    logins = [made(scheduler, "page", parent=parent.id, expires_at=later)[0] for _ in range(105)]
    kept = [token.id for token in views.all_tokens() if token.parent]
    assert kept == [login.id for login in logins[-LOGINS_MAX:]]


async def test_a_node_knows_at_once_what_another_process_has_done_to_tokens(
    store: Store, scheduler: Scheduler
) -> None:
    node = WritingNode(store, scheduler.clock)
    try:
        await node.tokens.refresh()
        assert not node.tokens.any
        token, text = made(scheduler, "one")
        node.tokens.changed()  # as the other node's ring would
        await node.tokens.refresh()
        assert node.tokens.find(text.encode()) == token.caller()
        assert node.tokens.find(text.encode(), login=True) is None
        scheduler.ask(RevokeToken("one"))
        node.tokens.changed()
        await asyncio.gather(*(node.tokens.refresh() for _ in range(5)))
        assert node.tokens.find(text.encode()) is None
        assert node.tokens.any
    finally:
        node.stop()


# -------------------------------------------------------------------- what is one's own


def submit(scheduler: Scheduler, caller: Caller, *names: str, **fields: Any) -> Any:
    new = [submission(name, agent=caller.agent or "x", **fields) for name in names]
    return scheduler.apply(Submit(new, caller=caller)).answers[0]


def test_a_session_is_whose_task_came_first(scheduler: Scheduler, views: Views) -> None:
    first = Submit([submission("a1", agent="a", session="s")], caller=A)
    second = Submit([submission("b1", agent="b", session="s")], caller=B)
    answers = scheduler.apply(first, second).answers
    assert isinstance(answers[0][0], Task)
    assert isinstance(answers[1], NotFound)
    assert views.session("s", "b") is None
    assert views.sessions("", "b", 10) == []
    assert [one.key for one in views.sessions("", "a", 10)] == ["s"]
    shown = views.session("s", "a")
    assert shown is not None
    assert [task.id for task in shown.queued] == ["a1"]


def test_a_session_that_is_empty_is_nobodys(scheduler: Scheduler) -> None:
    submit(scheduler, A, "a1", session="s")
    (grant,) = scheduler.lease()
    scheduler.complete(grant.task)
    assert isinstance(submit(scheduler, B, "b1", session="s")[0], Task)


def test_only_ones_own_sessions_are_stopped_and_tuned(scheduler: Scheduler, views: Views) -> None:
    submit(scheduler, A, "a1", "a2", session="s")
    scheduler.submit("x", agent="x", session="s")  # an operator's doing
    requests = (
        StopSession("s", agent="b"),
        StopSession("s", only_oldest=True, agent="b"),
        StopSession("cron:x", reset=True, agent="b"),
        SetSession("s", SessionSettings(cap=1), agent="b"),
        SetUsage("s", 1, 2, "b"),
        SetSession("cron:x", SessionSettings(cap=1), agent="b"),
    )
    assert all(isinstance(scheduler.refused(request), NotFound) for request in requests)
    stopped = scheduler.ask(StopSession("s", agent="a"))
    assert {*stopped.stopped, *stopped.drained} == {"a1", "a2"}
    assert scheduler.view("x").state == "queued"
    shown = views.session("s", "a")
    assert shown is not None
    assert shown.queued == []
    assert scheduler.ask(SetSession("new", SessionSettings(cap=1), agent="b")).agent == "b"


@pytest.mark.parametrize("reset", [False, True])
def test_an_agent_stops_a_session_in_which_nothing_runs(
    scheduler: Scheduler, *, reset: bool
) -> None:
    """Messages that are on their way come too late, as for who may stop any session."""
    scheduler.set_policy(sessions={"debounceMs": 0})
    late = Message("late", "ann", sent_at=scheduler.clock.now() - 1)
    stopped = scheduler.ask(StopSession("idle", reset=reset, agent="a"))
    assert (stopped.stopped, stopped.drained, stopped.generation) == ([], [], int(reset))
    (answer,) = submit(scheduler, A, "m1", session="idle", message=late)
    assert isinstance(answer, MessageStale)
    assert isinstance(scheduler.refused(StopSession("idle", agent="b")), NotFound)
    assert isinstance(submit(scheduler, B, "b1", session="idle"), NotFound)


def test_an_agents_stop_of_nobody_leaves_the_session_to_everybody(scheduler: Scheduler) -> None:
    stopped = scheduler.ask(StopSession("idle", only_oldest=True, agent="a"))
    assert (stopped.stopped, stopped.drained) == ([], [])
    assert isinstance(submit(scheduler, B, "b1", session="idle")[0], Task)


@pytest.mark.parametrize("how", ["delay", "dependency", "parked"])
def test_a_session_stays_whose_task_comes_later(
    scheduler: Scheduler, views: Views, how: str
) -> None:
    """Or another agent would have taken it by then."""
    scheduler.submit("parent", agent="a", lane="team", delay_ms=60_000)
    fields: dict[str, Any] = {
        "delay": {"delay_ms": 60_000},
        "dependency": {"depends_on": ("parent",)},
        "parked": {"max_attempts": 1},
    }[how]
    submit(scheduler, A, "a1", session="s", **fields)
    if how == "parked":
        scheduler.fail(scheduler.lease_one())
    shown = views.session("s", "a")
    assert shown is not None
    assert (shown.turns, shown.queued, shown.session.later) == ([], [], 1)
    assert isinstance(submit(scheduler, B, "b1", session="s"), NotFound)
    if how == "parked":
        scheduler.pass_time(40 * 86_400_000)
        assert views.session("s", "a") is not None
    scheduler.cancel("a1")
    assert views.session("s") is None
    assert isinstance(submit(scheduler, B, "b2", session="s")[0], Task)


def test_parents_have_to_be_ones_own(scheduler: Scheduler) -> None:
    submit(scheduler, A, "a1")
    for parent in ("a1", "nobody"):
        answer = submit(scheduler, B, "b1", depends_on=(parent,))
        assert isinstance(answer, InvalidRequest)
        assert answer.message == f"invalid task: field 'dependsOn': task '{parent}' not found"
        answer = submit(scheduler, B, "b1", child_of=parent)
        assert isinstance(answer, InvalidRequest)
        assert answer.message == f"invalid task: field 'childOf': task '{parent}' not found"
    both = [submission("b2", agent="b"), submission("b3", agent="b", depends_on=("b2",))]
    answers = scheduler.ask(Submit(both, caller=B))
    assert [task.state for task in answers] == ["queued", "waiting_dependency"]
    late = Submit([submission("b4", agent="b")], caller=B)
    child = Submit([submission("b5", agent="b", depends_on=("b4",))], caller=B)
    assert isinstance(scheduler.apply(late, child).answers[1][0], Task)


@pytest.mark.parametrize("strategy", ["fair-fifo", "priority"])
def test_a_worker_of_one_agent_gets_only_its_tasks(scheduler: Scheduler, strategy: str) -> None:
    scheduler.set_lane(strategy=strategy)
    for number in range(3):
        scheduler.submit(f"a{number}", agent="a")
        scheduler.submit(f"b{number}", agent="b")
    (grants,) = scheduler.apply(waiting=[lease_request(10, agent="b")]).grants
    assert [grant.task.id for grant in grants] == ["b0", "b1", "b2"]
    assert scheduler.apply(waiting=[lease_request(10, agent="b")]).grants == [[]]
    assert scheduler.apply(waiting=[lease_request(10, agent="nobody")]).grants == [[]]
    new = [Submit([submission(f"{one}9", agent=one)]) for one in "ab"]
    (grants,) = scheduler.apply(*new, waiting=[lease_request(10, agent="b")]).grants
    assert [grant.task.id for grant in grants] == ["b9"]
    (grants,) = scheduler.apply(waiting=[lease_request(10)]).grants
    assert {grant.task.agent for grant in grants} == {"a"}


def test_critical_work_makes_room_only_for_who_may_run_it(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxInflight=1)
    scheduler.submit("low", agent="a", preemptible=True, priority=10)
    scheduler.lease()
    scheduler.submit("urgent", agent="a", priority=-20)
    scheduler.apply(waiting=[lease_request(agent="b")])
    assert scheduler.view("low").task.preempt == 0
    scheduler.apply(waiting=[lease_request(agent="a")])
    assert scheduler.view("low").task.preempt == 1


def test_what_is_reclaimed_is_reported_to_whose_it_was(scheduler: Scheduler) -> None:
    scheduler.submit("a1", agent="a")
    scheduler.submit("b1", agent="b")
    scheduler.lease(2)
    scheduler.clock.advance(3_600_000)
    scheduler.engine.due_at = None  # what time does by itself comes later than this
    assert scheduler.ask(ReclaimExpired("b")).ids == ["b1"]


def entry(name: str, agent: str) -> QueueEntry:
    return QueueEntry(submission(name, agent=agent, lane=LANE, priority=100))


def test_an_agent_drains_its_own_entries(scheduler: Scheduler, views: Views) -> None:
    scheduler.ask(Enqueue([entry("a1", "a"), entry("a2", "a")]))
    scheduler.ask(Enqueue([entry("b1", "b")]))
    assert [view.task.id for view in views.entries(["queued"], "b", None, 9)] == ["b1"]
    drained = scheduler.ask(Drain(9, "b"))
    assert [grant.task.id for grant in drained.grants] == ["b1"]
    assert drained.remaining == 0
    assert scheduler.ask(Drain(1, "a")).remaining == 1


# -------------------------------------------------------------------- quotas


def test_a_quota_counts_what_is_open_and_refuses_without_a_trace(scheduler: Scheduler) -> None:
    few = Caller("few", "a", token="t", max_open=2)
    assert len(submit(scheduler, few, "a1", "a2")) == 2
    before = scheduler.reader.run("scheduler_view")[0][0]
    for _ in range(3):
        answer = submit(scheduler, few, "a3")
        assert isinstance(answer, QuotaExceeded)
        assert answer.retry_after_ms
    full = scheduler.refused(Enqueue([entry("q1", "a")], few))
    assert isinstance(full, QuotaExceeded)
    assert scheduler.reader.run("scheduler_view")[0][0] == before
    (grant,) = scheduler.lease(1)
    assert isinstance(submit(scheduler, few, "a3"), QuotaExceeded)
    scheduler.complete(grant.task)
    assert isinstance(submit(scheduler, few, "a3")[0], Task)
    assert isinstance(submit(scheduler, few, "a4"), QuotaExceeded)


def test_a_quota_without_an_agent_counts_all(scheduler: Scheduler) -> None:
    anybody = Caller("any", token="t", max_open=2)
    scheduler.submit("b1", agent="b")
    assert isinstance(submit(scheduler, anybody, "x1", "x2"), QuotaExceeded)
    assert isinstance(submit(scheduler, anybody, "x1")[0], Task)
    assert isinstance(submit(scheduler, anybody, "x2"), QuotaExceeded)


def test_two_of_one_transaction_do_not_both_get_the_last_place(scheduler: Scheduler) -> None:
    few = Caller("few", "a", token="t", max_open=1)
    new = [Submit([submission(name, agent="a")], caller=few) for name in ("a1", "a2")]
    answers = scheduler.apply(*new).answers
    assert isinstance(answers[0][0], Task)
    assert isinstance(answers[1], QuotaExceeded)


def test_a_rejected_flood_costs_no_more_than_a_thousand_records(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxQueueSize=1)
    scheduler.submit("first")
    names = [f"t{number}" for number in range(1100)]
    for start in range(0, len(names), 100):
        new = [Submit([submission(name, agent=name)]) for name in names[start : start + 100]]
        refused = scheduler.apply(*new).answers
        assert all(isinstance(answer[0], QueueFull) for answer in refused)
    kept = [name for name in names if scheduler.reader.run("task_view", id=name)]
    assert kept == names[:1000]
    assert scheduler.tally("main").rejected == 1100
    assert len(scheduler.reader.run("line_all")) == 1001
    scheduler.clock.advance(3_600_000 + 20_000)
    for _ in range(5):
        scheduler.apply()
    scheduler.apply(Submit([submission("later", agent="later")]))
    assert scheduler.reader.run("task_view", id="later")


def test_a_token_is_a_row_of_its_fields() -> None:
    """The statements name the columns; a field that is added has to be one too."""
    assert msgspec.structs.astuple(seed("n")) == (0, "", "n", "", "read", 0, *[None] * 7)
