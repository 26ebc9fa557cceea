"""What needs attention, as it is found in each database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.core.approvals import ApprovalRequest
from fairlane.core.attention import APPROVAL_MS, READY_MS
from fairlane.core.workers import KnownWorker
from fairlane.engine.reads import attention
from tests.store.scheduler import WORK, Scheduler

if TYPE_CHECKING:
    from fairlane.core.attention import Troubles

ABLE = KnownWorker("w1", "node_1", frozenset({WORK}))


def read(scheduler: Scheduler, *workers: KnownWorker) -> Troubles:
    return attention.read(scheduler.reader, scheduler.clock.now(), workers or (ABLE,))


def ids(tasks: Any) -> list[str]:
    return [one.id for one in tasks]


def test_an_empty_store_has_no_troubles(scheduler: Scheduler) -> None:
    found = read(scheduler)
    assert not any((found.unoffered, found.stuck, found.parked, found.edges, found.jobs))
    assert not any((found.given_up, found.closed, found.approvals))


def test_a_capability_without_a_worker_is_found_at_once(scheduler: Scheduler) -> None:
    scheduler.submit("t1", "t2", capability="handler/other")
    scheduler.submit("t3", lane="queue", capability="handler/other")
    scheduler.submit("t4")
    found = {(one.lane, one.capability): one.count for one in read(scheduler).unoffered}
    assert found == {("main", "handler/other"): 2, ("queue", "handler/other"): 1}


def test_a_worker_of_one_agent_serves_that_agent(scheduler: Scheduler) -> None:
    scheduler.submit("t1", agent="a")
    scheduler.submit("t2", agent="b")
    scheduler.submit("t3", agent="b", lane="queue")
    mine = KnownWorker("w1", "node_1", frozenset({WORK}), agent="a")
    found = [(one.lane, one.count) for one in read(scheduler, mine).unoffered]
    assert found == [("main", 1), ("queue", 1)]


def test_the_oldest_ready_tasks_are_found(scheduler: Scheduler) -> None:
    scheduler.set_lane("team", paused=True)
    scheduler.submit("old")
    scheduler.submit("held", lane="team")
    scheduler.submit("nobody", capability="handler/other")
    assert ids(read(scheduler).stuck) == []
    scheduler.clock.advance(READY_MS)
    scheduler.submit("new")
    assert ids(read(scheduler).stuck) == ["old"]


def test_a_task_behind_a_gate_is_found_later(scheduler: Scheduler) -> None:
    scheduler.submit("first", "second", session="s")
    task = scheduler.lease_one()
    scheduler.start(task)
    scheduler.clock.advance(READY_MS)
    assert ids(read(scheduler).stuck) == []
    scheduler.clock.advance(30 * 60_000)
    assert ids(read(scheduler).stuck) == ["second"]


def test_parked_tasks_come_with_their_errors(scheduler: Scheduler) -> None:
    scheduler.submit("t1", max_attempts=1)
    task = scheduler.lease_one()
    scheduler.start(task)
    scheduler.fail(task, "boom")
    assert [(task.id, error) for task, error in read(scheduler).parked] == [("t1", "boom")]


def test_parents_that_are_unknown_or_parked_are_found(scheduler: Scheduler) -> None:
    scheduler.submit("parked", max_attempts=1)
    task = scheduler.lease_one()
    scheduler.start(task)
    scheduler.fail(task)
    scheduler.submit("open", lane="team")
    scheduler.submit("child", depends_on=("parked", "open", "unknown"))
    found = sorted((one.child, one.parent, one.state) for one in read(scheduler).edges)
    assert found == [("child", "parked", "parked"), ("child", "unknown", None)]


def test_an_approval_is_found_after_an_hour(scheduler: Scheduler) -> None:
    scheduler.submit("t1", approval=ApprovalRequest("Send it?"))
    assert not read(scheduler).approvals
    scheduler.clock.advance(APPROVAL_MS)
    (one,) = read(scheduler).approvals
    assert one.title == "Send it?"
