"""Policy in the store: versioned, shared by all nodes, and refused as a whole when it is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlane.core.errors import Conflict, InvalidPolicy, StoreMismatch
from fairlane.core.policy import Policy, from_document, to_document
from fairlane.engine.commands import (
    MERGE,
    PATCH,
    REPLACE,
    PolicyChange,
    Renew,
    Retry,
    SetPolicy,
    Submit,
)
from tests.store.scheduler import Scheduler, submission
from tests.store.stores import contents

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.store.base import Row


def test_each_change_is_a_version_with_its_source(scheduler: Scheduler) -> None:
    scheduler.ask(SetPolicy({"maxInflight": 7}, "ada"))
    scheduler.ask(SetPolicy({"maxInflight": 8}, "bob"))
    rows = contents(scheduler.store)["policy"]
    assert [(row[0], row[2], row[3]) for row in rows] == [
        (1, "ada", scheduler.clock.now()),
        (2, "bob", scheduler.clock.now()),
    ]
    assert [msgspec.json.decode(row[1])["maxInflight"] for row in rows] == [7, 8]


def test_a_document_that_changes_nothing_is_no_version(scheduler: Scheduler) -> None:
    scheduler.set_policy(maxInflight=7)
    scheduler.set_policy(maxInflight=7)
    scheduler.set_policy()
    assert len(contents(scheduler.store)["policy"]) == 1


def test_a_wrong_document_changes_nothing_and_spoils_nothing(scheduler: Scheduler) -> None:
    outcome = scheduler.apply(
        SetPolicy({"maxInflight": 7, "lanes": {"main": {"maxInflght": 1}}}, "test"),
        Submit([submission("first")]),
        SetPolicy({"maxInflight": 9}, "test"),
    )
    error, tasks, change = outcome.answers
    assert isinstance(error, InvalidPolicy)
    assert "maxInflight" in error.message
    assert tasks[0].state == "queued"
    assert change.after.max_inflight == 9
    assert len(contents(scheduler.store)["policy"]) == 1


def test_other_nodes_follow_in_their_next_batch(new_scheduler: Callable[..., Scheduler]) -> None:
    one, other = new_scheduler(), new_scheduler("other")
    other.submit("first", "second")
    one.set_lane(maxInflight=1)
    assert other.names(5) == ["first"]
    one.set_lane(maxInflight=2)
    assert other.names(5) == ["second"]
    assert other.engine.policy == one.engine.policy


def test_a_restart_finds_the_policy_as_it_was(new_scheduler: Callable[..., Scheduler]) -> None:
    before = new_scheduler()
    before.set_policy(
        lanes={"extra": {"maxInflight": 3, "strategy": "priority", "maxQueueSize": None}},
        agents={"ada": {"weight": 2.5}},
        retention={"resultTTLSec": 9},
    )
    after = new_scheduler("next")
    after.submit("first", lane="extra")
    assert after.engine.policy == before.engine.policy
    assert after.view("first").task.lane == "extra"


# -------------------------------------------------------------------- who, why, which


def rows(scheduler: Scheduler) -> list[Row]:
    """Version, document, source, moment, author and note of each, newest first."""
    return scheduler.reader.run("policy_list", version=None, before=None, limit=100)


def change(scheduler: Scheduler, document: dict[str, Any], **fields: Any) -> PolicyChange:
    changed: PolicyChange = scheduler.ask(SetPolicy(document, "test", **fields))
    return changed


def test_a_version_knows_who_wanted_it_and_why(scheduler: Scheduler) -> None:
    change(scheduler, {"maxInflight": 7}, author="ada", note="less")
    change(scheduler, {"maxInflight": 8})
    assert [(row[0], row[2], *row[4:]) for row in rows(scheduler)] == [
        (2, "test", None, None),
        (1, "test", "ada", "less"),
    ]


def test_a_change_tells_what_was_and_what_is(scheduler: Scheduler) -> None:
    first = change(scheduler, {"maxInflight": 7})
    assert first == PolicyChange(1, Policy(), from_document({"maxInflight": 7}))
    again = change(scheduler, {"maxInflight": 7})
    assert again == PolicyChange(1, first.after, first.after)


def test_a_document_replaces_patches_or_is_laid_over(scheduler: Scheduler) -> None:
    change(scheduler, {"maxInflight": 7, "workerCount": 3}, how=MERGE)
    assert change(scheduler, {"workerCount": None}, how=PATCH).after == from_document(
        {"maxInflight": 7}
    )
    assert change(scheduler, {"workerCount": 4}, how=REPLACE).after == from_document(
        {"workerCount": 4}
    )
    assert scheduler.engine.policy == from_document({"workerCount": 4})


def test_another_version_than_the_expected_one_is_a_conflict(scheduler: Scheduler) -> None:
    change(scheduler, {"maxInflight": 7}, expected_version=0)
    before = contents(scheduler.store)["policy"]
    error = scheduler.refused(SetPolicy({"maxInflight": 9}, "test", expected_version=0))
    assert isinstance(error, Conflict)
    assert (error.details, error.message) == (
        {"version": 1},
        "the policy is at version 1, not 0; read it again",
    )
    assert contents(scheduler.store)["policy"] == before
    assert change(scheduler, {"maxInflight": 9}, expected_version=1).version == 2


def test_of_two_changes_that_expect_the_same_version_one_is_made(scheduler: Scheduler) -> None:
    outcome = scheduler.apply(
        SetPolicy({"maxInflight": 7}, "test", expected_version=0),
        SetPolicy({"workerCount": 7}, "test", expected_version=0),
    )
    first, second = outcome.answers
    assert isinstance(first, PolicyChange)
    assert isinstance(second, Conflict)
    assert scheduler.engine.policy == from_document({"maxInflight": 7})


def test_a_dry_run_tells_what_would_be_and_keeps_nothing(scheduler: Scheduler) -> None:
    change(scheduler, {"maxInflight": 7})
    before = contents(scheduler.store)["policy"]
    told = change(scheduler, {"maxInflight": 9}, dry_run=True)
    assert (told.version, told.before.max_inflight, told.after.max_inflight) == (1, 7, 9)
    error = scheduler.refused(SetPolicy({"maxInflight": -9}, "test", dry_run=True))
    assert isinstance(error, InvalidPolicy)
    assert contents(scheduler.store)["policy"] == before
    assert scheduler.engine.policy.max_inflight == 7


# -------------------------------------------------------------------- nothing is lost


@pytest.mark.parametrize("state", ["queued", "leased", "cancelled while it ran", "parked"])
def test_a_lane_with_a_task_in_it_cannot_go(scheduler: Scheduler, state: str) -> None:
    scheduler.set_policy(lanes={"gpu": {"maxInflight": 2, "maxAttempts": 1}})
    scheduler.submit("task", lane="gpu")
    task = None if state == "queued" else scheduler.lease_one(lanes=("gpu",))
    if state == "cancelled while it ran":
        scheduler.cancel("task")
    elif state == "parked" and task is not None:
        assert scheduler.fail(task).state == "parked"
    for dry_run in (True, False):
        error = scheduler.refused(SetPolicy({}, "test", REPLACE, dry_run=dry_run))
        assert isinstance(error, InvalidPolicy)
        assert error.problems == [
            "lanes.gpu cannot be removed while 1 task is in the lane; clear it first"
        ]
    assert "gpu" in scheduler.engine.policy.lanes


def test_an_empty_lane_goes_and_its_name_means_main(scheduler: Scheduler) -> None:
    scheduler.set_policy(lanes={"gpu": {"maxInflight": 2}})
    scheduler.submit("first", "second", lane="gpu")
    scheduler.complete(scheduler.lease_one(lanes=("gpu",)))
    scheduler.fail_next(lanes=("gpu",))
    change(scheduler, {"lanes": {"gpu": None}}, how=PATCH)
    assert "gpu" not in scheduler.engine.policy.lanes
    assert isinstance(scheduler.refused(Retry("second")), Conflict)
    (third,) = scheduler.submit("third", lane="gpu")
    assert third.lane == "main"
    assert scheduler.names() == ["third"]


def test_what_a_newer_node_has_written_is_followed_but_not_overwritten(
    scheduler: Scheduler,
) -> None:
    newer = to_document(from_document({"lanes": {"main": {"maxInflight": 1}}}))
    newer["lanes"]["main"]["colour"] = "red"
    scheduler.keep_policy(msgspec.json.encode(newer).decode())
    scheduler.submit("first", "second")
    assert scheduler.names(5) == ["first"]
    before = contents(scheduler.store)["policy"]
    for document, how in (({"maxInflight": 3}, MERGE), ({}, REPLACE)):
        error = scheduler.refused(SetPolicy(document, "test", how))
        assert isinstance(error, Conflict)
        assert "does not know lanes.main.colour" in error.message
    assert contents(scheduler.store)["policy"] == before
    assert change(scheduler, {}).version == 1  # nothing changes, so nothing is lost


@pytest.mark.parametrize(
    "document",
    [
        "{",
        "",
        "null",
        "[]",
        '{"lanes": {"main": {"maxInflight": "many"}}}',
        '{"lanes": {"main": {"maxInflight": 1.5}}}',
        '{"kinds": {"handler": {"lane": "nowhere"}}}',
    ],
)
def test_nothing_is_done_by_a_policy_that_cannot_be_read(
    scheduler: Scheduler, document: str
) -> None:
    scheduler.submit("first")
    (task,) = [grant.task for grant in scheduler.lease()]
    scheduler.keep_policy(document)
    before = contents(scheduler.store)
    for request in (
        Submit([submission("second")]),
        Renew(task.seq, task.fencing_token, 1000),
        SetPolicy({"maxInflight": 3}, "test"),
    ):
        with pytest.raises(StoreMismatch, match="version 1 of the policy"):
            scheduler.apply(request)
    with pytest.raises(StoreMismatch):
        scheduler.lease()
    assert contents(scheduler.store) == before
    scheduler.keep_policy(msgspec.json.encode(to_document(Policy())).decode())
    assert scheduler.complete(task).state == "done"


# -------------------------------------------------------------------- what a lane says


QUEUE = {
    "schemaVersion": 1,
    "maxConcurrent": 2,
    "maxAttempts": 2,
    "leaseTtlMs": 60_000,
    "backoffBaseMs": 500,
    "backoffFactor": 3,
    "backoffCapMs": 700,
}


def test_a_scheduling_policy_rules_the_lane_queue_and_no_other(scheduler: Scheduler) -> None:
    change(scheduler, QUEUE, how=REPLACE)
    scheduler.submit("first", "second", "third", lane="queue")
    grants = scheduler.lease(5, ttl_ms=None)
    assert [grant.task.id for grant in grants] == ["first", "second"]
    first = grants[0].task
    now = scheduler.clock.now()
    assert (first.max_attempts, first.lease_expires_at) == (2, now + 60_000)
    renewed = scheduler.task_from(Renew(first.seq, first.fencing_token, None))
    assert renewed.lease_expires_at == now + 60_000
    assert scheduler.fail(first).eligible_at == now + 500
    scheduler.pass_time(500)
    again = scheduler.lease_one(lanes=("queue",))
    assert again.id == "first"
    assert scheduler.fail(again).state == "parked"
    (other,) = scheduler.submit("other", lane="main")
    assert other.max_attempts == 3
    leased = scheduler.lease_one(lanes=("main",), ttl_ms=None)
    assert leased.lease_expires_at == scheduler.clock.now() + 300_000
    assert scheduler.fail(leased).eligible_at == scheduler.clock.now() + 1000


def test_new_rules_are_for_the_next_failure_and_undo_none(scheduler: Scheduler) -> None:
    change(scheduler, {"maxAttempts": 1})
    scheduler.submit("parked", lane="queue")
    assert scheduler.fail(scheduler.lease_one()).state == "parked"
    change(scheduler, {"maxAttempts": 5, "backoffBaseMs": 10})
    assert scheduler.view("parked").state == "parked"
    scheduler.submit("next", lane="queue")
    task = scheduler.lease_one()
    change(scheduler, {"backoffBaseMs": 20})
    assert scheduler.fail(task).eligible_at == scheduler.clock.now() + 20


# -------------------------------------------------------------------- events


def test_an_event_names_the_version_that_has_decided_it(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    scheduler.set_policy(maxInflight=7)
    task = scheduler.start(scheduler.lease_one())
    scheduler.apply(
        SetPolicy({"kinds": {"handler": {"maxAttempts": 9}}}, "test"),
        Submit([submission("second")]),
    )
    scheduler.complete(task)
    assert [(one.type, one.policy_version) for one in scheduler.events()] == [
        ("task.created", 0),
        ("task.started", 1),
        ("task.created", 2),
        ("task.completed", 2),
    ]


def test_a_version_that_is_only_tried_is_not_named(scheduler: Scheduler) -> None:
    scheduler.apply(
        SetPolicy({"maxInflight": 3}, "test", dry_run=True), Submit([submission("first")])
    )
    assert [one.policy_version for one in scheduler.events()] == [0]
