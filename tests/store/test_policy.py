"""Policy in the store: versioned, shared by all nodes, and refused as a whole when it is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fairlane.core.errors import InvalidPolicy
from fairlane.engine.requests import SetPolicy, Submit
from tests.store.scheduler import Scheduler, submission
from tests.store.stores import contents

if TYPE_CHECKING:
    from collections.abc import Callable


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
    error, tasks, policy = outcome.answers
    assert isinstance(error, InvalidPolicy)
    assert "maxInflight" in error.message
    assert tasks[0].state == "queued"
    assert policy.max_inflight == 9
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
