"""What leases of external workers have besides: any handler, a policy's TTL, progress, output."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.core.errors import LeaseLost
from fairlane.core.leases import WORKER_GONE
from fairlane.core.model import Task
from fairlane.engine.commands import AppendOutput, Renew, SetPolicy, Submit
from fairlane.schema.wire import OUTPUT_CHARACTERS_MAX
from tests.store.scheduler import Scheduler, lease_request, submission

ANY = {"capabilities": frozenset[str](), "any_handler": True, "worker": "ext"}
LEASE_MS = 300_000


def submit(scheduler: Scheduler, name: str, route: str, **fields: Any) -> None:
    scheduler.submit(name, capability=route, **fields)


def parts(scheduler: Scheduler, task: Task) -> list[str]:
    rows = scheduler.reader.run("output_view", seq=task.seq, token=0, part=0, limit=100)
    return [row[3] for row in rows]


@pytest.mark.parametrize("lane", ["main", "queue"], ids=["fair", "by priority"])
def test_a_worker_without_a_list_takes_every_handler(scheduler: Scheduler, lane: str) -> None:
    for name in ("one", "two", "three"):
        submit(scheduler, name, f"handler/{name}", lane=lane)
    submit(scheduler, "click", "action", kind="action", lane=lane)
    given = [scheduler.lease_one(**ANY) for _ in range(1)]
    if lane == "queue":  # one slot
        scheduler.complete(given[0])
        given.append(scheduler.lease_one(**ANY))
        scheduler.complete(given[1])
        given.append(scheduler.lease_one(**ANY))
        scheduler.complete(given[2])
    else:
        given += [grant.task for grant in scheduler.lease(5, **ANY)]
    assert [task.id for task in given] == ["one", "two", "three"]
    assert scheduler.lease(5, **ANY) == []
    assert scheduler.view("click").state == "queued"


def test_it_takes_what_came_in_with_the_same_transaction_too(scheduler: Scheduler) -> None:
    request = Submit(
        [submission("new", capability="handler/new"), submission("act", kind="action")]
    )
    outcome = scheduler.apply(request, waiting=[lease_request(5, **ANY)])
    assert [grant.task.id for grant in outcome.grants[0]] == ["new"]


def test_a_function_of_one_process_is_not_for_any_worker(scheduler: Scheduler) -> None:
    submit(scheduler, "theirs", "handler/(function)@node_1")
    submit(scheduler, "also", "handler/(function)")
    assert scheduler.lease(5, **ANY) == []
    own = scheduler.lease_one(capabilities=frozenset({"handler/(function)@node_1"}))
    assert own.id == "theirs"


def test_named_routes_are_taken_besides(scheduler: Scheduler) -> None:
    submit(scheduler, "click", "action", kind="action")
    submit(scheduler, "one", "handler/one")
    taken = scheduler.names(5, **{**ANY, "capabilities": frozenset({"action"})})
    assert sorted(taken) == ["click", "one"]


def test_agents_take_turns_whatever_their_handlers_are(scheduler: Scheduler) -> None:
    for number in range(3):
        submit(scheduler, f"a{number}", f"handler/of-a{number}", agent="a")
    submit(scheduler, "b0", "handler/of-b", agent="b")
    taken = [scheduler.lease_one(**ANY).id for _ in range(4)]
    assert taken == ["a0", "b0", "a1", "a2"]


def test_critical_work_makes_room_for_any_worker(scheduler: Scheduler) -> None:
    scheduler.ask(SetPolicy({"lanes": {"main": {"maxInflight": 1}}}, "test"))
    submit(scheduler, "low", "handler/one", preemptible=True)
    low = scheduler.lease_one(**ANY)
    submit(scheduler, "urgent", "handler/two", priority=-20)
    assert scheduler.lease(1, **ANY) == []
    assert scheduler.view("low").task.preempt == 1
    scheduler.release(low)
    assert scheduler.names(1, **ANY) == ["urgent"]


def test_a_lease_lasts_as_long_as_the_policy_says(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    task = scheduler.lease_one(worker="ext", ttl_ms=None)
    assert task.lease_expires_at == scheduler.clock.now() + LEASE_MS
    scheduler.ask(SetPolicy({"leases": {"ttlMs": 5000}}, "test"))
    renewed = scheduler.task_from(Renew(task.seq, task.fencing_token, None))
    assert renewed.lease_expires_at == scheduler.clock.now() + 5000


def test_an_expired_external_lease_counts_one_attempt_started_or_not(scheduler: Scheduler) -> None:
    scheduler.submit("silent", "begun")
    scheduler.lease_one(worker="ext", ttl_ms=None)
    scheduler.start(scheduler.lease_one(worker="ext", ttl_ms=None))
    scheduler.pass_time(LEASE_MS)
    for name in ("silent", "begun"):
        found = scheduler.view(name)
        assert (found.state, found.task.gate, found.task.attempts) == ("queued", "delay", 1)
        assert found.error == WORKER_GONE


def test_a_worker_may_begin_all_that_it_leases(scheduler: Scheduler) -> None:
    submit(scheduler, "first", "handler/first")
    assert scheduler.lease_one(start=True, **ANY).state == "running"


def test_progress_is_an_event_and_a_stale_one_is_none(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    task = scheduler.lease_one(worker="ext")
    scheduler.task_from(Renew(task.seq, task.fencing_token, None, '{"done":0.5}'))
    told = [event for event in scheduler.events() if event.type == "task.progress"]
    assert [(event.progress, event.attempt) for event in told] == [('{"done":0.5}', 1)]
    scheduler.release(task)
    stale = scheduler.refused(Renew(task.seq, task.fencing_token, None, '"late"'))
    assert isinstance(stale, LeaseLost)
    assert sum(event.type == "task.progress" for event in scheduler.events()) == 1


def test_output_comes_in_order_and_a_part_counts_once(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    task = scheduler.lease_one(worker="ext")

    def say(text: str, part: int | None = None) -> None:
        scheduler.ask(AppendOutput(task.seq, task.fencing_token, part, text, trusted=False))

    say("a")
    say("b", 1)
    say("again", 1)
    say("c")
    scheduler.apply(
        *(
            AppendOutput(task.seq, task.fencing_token, None, text, trusted=False)
            for text in ("d", "e")
        )
    )
    assert parts(scheduler, task) == ["a", "b", "c", "d", "e"]


def test_output_from_outside_is_cut_off_at_the_limit(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    task = scheduler.lease_one(worker="ext")
    half = "é" * (OUTPUT_CHARACTERS_MAX // 2)
    for _ in range(3):
        scheduler.ask(AppendOutput(task.seq, task.fencing_token, None, half + "x", trusted=False))
    assert sum(map(len, parts(scheduler, task))) == OUTPUT_CHARACTERS_MAX


def test_output_of_a_lease_that_is_over_is_refused(scheduler: Scheduler) -> None:
    scheduler.submit("first")
    task = scheduler.lease_one(worker="ext")
    scheduler.release(task)
    again = scheduler.lease_one(worker="ext")
    for token in (task.fencing_token, 0, 999):
        late = scheduler.refused(AppendOutput(task.seq, token, None, "late", trusted=False))
        assert isinstance(late, LeaseLost)
    assert isinstance(
        scheduler.refused(AppendOutput(999, again.fencing_token, 0, "x", trusted=False)), LeaseLost
    )
    scheduler.complete(again)
    over = scheduler.refused(
        AppendOutput(again.seq, again.fencing_token, None, "late", trusted=False)
    )
    assert isinstance(over, LeaseLost)
    assert parts(scheduler, again) == []
