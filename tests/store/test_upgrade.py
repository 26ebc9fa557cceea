"""Upgrade from the first version to this one: no data is lost, and tasks continue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from fairlane.clock import ManualClock
from fairlane.core.model import Task
from fairlane.core.sessions import Session
from fairlane.engine.commands import ClaimDeliveries, IdempotencyKey, Reclaim, Submit, UseSecret
from fairlane.engine.reads.recount import recount
from fairlane.store.opening import open_store
from fairlane.store.queries import column
from tests.store import version_one
from tests.store.invariants import assert_sound
from tests.store.scheduler import Scheduler, submission
from tests.store.schema import describe, kept
from tests.store.stores import contents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.store.base import Store

NEW = {"line", "rank", "unmet", "preempt"}


@pytest.fixture
def old(store_url: str) -> Store:
    version_one.make(store_url)
    return open_store(store_url)


@pytest.fixture
def scheduler(old: Store) -> Iterator[Scheduler]:
    """An engine on what has been migrated; what it leaves behind must be sound."""
    old.migrate()
    found = Scheduler(old, ManualClock(version_one.NOW))
    yield found
    found.apply()
    assert_sound(found.reader, found.engine.policy)
    found.close()
    old.close()


def test_the_old_schema_becomes_the_one_that_is_kept(old: Store) -> None:
    assert old.version() == 1
    old.migrate()
    assert describe(old) == kept(old).read_text("utf-8")


def test_every_row_is_there_as_it_was(old: Store) -> None:
    before = contents(old)
    old.migrate()
    after = contents(old)
    assert after["request"] == [(*row, None) for row in before["request"]]
    for table in ("result", "idempotency", "lane"):
        assert after[table] == before[table]
    assert after["delivery"] == [(*row, "ada", None, "") for row in before["delivery"]]
    assert after["policy"] == [(*row, None, None) for row in before["policy"]]
    assert len(after["task"]) == len(before["task"]) == len(version_one.TASKS)
    reader = old.reader()
    for row in version_one.rows():
        found = reader.run("task_view", id=row["id"])[0]
        task = Task(*found[: len(Task.__struct_fields__)])
        stored = {column(name): value for name, value in msgspec.structs.asdict(task).items()}
        assert {name: stored[name] for name in row if name not in NEW} == {
            name: value for name, value in row.items() if name not in NEW
        }
        assert (task.rank, task.unmet, task.preempt) == (row["priority"], None, None)
    reader.close()


def test_the_recount_finds_nothing_wrong(scheduler: Scheduler) -> None:
    assert recount(scheduler.reader) == []
    assert_sound(scheduler.reader, scheduler.engine.policy)


def test_tasks_stand_in_the_line_of_their_agent_or_of_their_lane(scheduler: Scheduler) -> None:
    names = {row[-1]: (row[14], row[15], row[16]) for row in scheduler.reader.run("line_all")}
    assert len(names) == len(set(names.values()))
    for row in version_one.rows():
        line = names[scheduler.view(row["id"]).task.line]
        assert line == (row["lane"], row["line"], row["route"]), row["id"]


def test_an_agents_tasks_are_leased_by_priority_and_agents_in_turn(scheduler: Scheduler) -> None:
    order = scheduler.names(20, lanes=("main",))
    assert order[0] == "urgent"
    assert [name for name in order if name in {"soon", "late", "half open"}] == [
        *("soon", "late", "half open"),
    ]
    assert set(order) == {"urgent", "soon", "bobs", "late", "half open"}
    assert scheduler.tally().slots == 8


def test_a_lane_by_priority_is_served_by_priority(scheduler: Scheduler) -> None:
    assert scheduler.run_to_end(lanes=("queue",)) == ["high", "first", "second", "low"]


def test_new_work_queues_up_behind_the_old(scheduler: Scheduler) -> None:
    scheduler.submit("new", agent="cyd", lane="queue")
    scheduler.submit("newest", agent="new agent", lane="queue", priority=-10)
    order = scheduler.run_to_end(lanes=("queue",))
    assert order == ["newest", "high", "first", "second", "new", "low"]
    assert scheduler.view("new").task.seq > len(version_one.TASKS)


def test_what_ran_can_report(scheduler: Scheduler) -> None:
    talks = scheduler.view("talks").task
    scheduler.complete(talks, '"said"')
    assert scheduler.view("listens").task.ready
    stopped = scheduler.complete(scheduler.view("stopped").task)
    assert (stopped.state, stopped.leased) == ("cancelled", False)
    assert scheduler.lease_one(lanes=("main",)).fencing_token > version_one.TOKEN_LAST


def test_what_was_lost_is_reclaimed(scheduler: Scheduler) -> None:
    assert scheduler.ask(Reclaim("old")) == 3
    assert scheduler.states("talks", "assigned", "stopped") == ["queued", "queued", "cancelled"]


def test_waits_end_when_they_would_have(scheduler: Scheduler) -> None:
    assert scheduler.view("waits").task.gate == "delay"
    scheduler.pass_time(8000)
    assert scheduler.view("waits").task.ready


def test_batches_are_known_with_their_numbers(scheduler: Scheduler) -> None:
    still, over = scheduler.batch_view("open"), scheduler.batch_view("over")
    assert (still.state, still.total, still.open, still.holders) == ("running", 3, 2, 1)
    assert (over.state, over.total, over.open) == ("completed", 2, 0)
    assert over.completed_at == version_one.NOW + 9
    assert (still.agent, still.parallelism, still.callback_url) == ("ada", None, None)
    scheduler.pass_time(1000)
    for _ in range(20):
        for grant in scheduler.lease(20):
            scheduler.complete(grant.task)
    assert scheduler.batch_view("open").state == "completed"
    told = [event.type for event in scheduler.events(batch="open")]
    assert told[-1] == "batch.completed"
    assert scheduler.events(batch="over") == []


def test_what_had_ended_can_begin_again(scheduler: Scheduler) -> None:
    failed = scheduler.retry("failed")
    assert failed.deadline_at == version_one.NOW + 60_000
    assert scheduler.retry("over 2").ready
    assert scheduler.batch_view("over").state == "running"
    assert scheduler.reset("parked").ready
    assert set(scheduler.names(20, lanes=("main",))) >= {"failed", "over 2", "parked"}


def test_the_policy_that_was_kept_knows_what_has_come_since(scheduler: Scheduler) -> None:
    (task,) = scheduler.submit("new", kind="instruction")
    policy = scheduler.engine.policy
    assert (task.lane, task.max_attempts) == ("instruction", 4)
    assert (policy.lanes["main"].max_inflight, policy.lanes["instruction"].max_inflight) == (12, 1)


def test_what_was_owed_and_promised_is_kept(scheduler: Scheduler) -> None:
    (delivery,) = scheduler.ask(ClaimDeliveries(9))
    assert (delivery.id, delivery.seq) == ("msg_done", 1)
    assert scheduler.ask(UseSecret("another")) == version_one.SECRET
    key = IdempotencyKey("ada", "k", "d")
    (again,) = scheduler.ask(Submit([submission("twice", "ada")], key))
    assert again.id == "late"


def test_children_may_wait_for_what_is_old(scheduler: Scheduler) -> None:
    (child,) = scheduler.submit("child", depends_on=("done", "bobs"))
    assert (child.state, child.unmet) == ("waiting_dependency", 1)
    (orphan,) = scheduler.submit("orphan", depends_on=("failed",))
    assert orphan.state == "cancelled"
    assert scheduler.cancel("bobs").state == "cancelled"
    assert scheduler.view("child").error == "dependency bobs cancelled"


def test_sessions_get_to_know_their_tasks_that_come_later(scheduler: Scheduler) -> None:
    found = [Session(*row) for row in scheduler.reader.run("session_list", after="", limit=9)]
    assert [(one.key, one.agent, one.holders, one.waiting, one.later) for one in found] == [
        ("s", "ada", 1, 1, 1),
        ("t", "ada", 0, 0, 1),
    ]
