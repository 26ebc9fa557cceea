"""The queue's verbs on both databases: entries come in, whole files do, and are handed over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core import entries
from fairlane.core.entries import QueueEntry
from fairlane.core.errors import Conflict, InvalidRequest, LeaseLost, QueueFull
from fairlane.core.model import Task, lease_id
from fairlane.engine.commands import Drain, Drained, Enqueue, ReclaimedLeases, ReclaimExpired
from fairlane.engine.reads import plan
from fairlane.engine.reads.plan import PlanQuery
from fairlane.engine.reads.views import Views
from fairlane.engine.verbs import ticks
from fairlane.schema import decoding
from fairlane.schema.queue import AddEntry, entry_shape, imported_entries, new_entry
from fairlane.schema.wire import moment
from tests.store.stores import contents

if TYPE_CHECKING:
    from fairlane.store.base import Store
    from tests.store.scheduler import Scheduler

RUN = frozenset({"handler/run"})
AT = "2023-01-01T00:00:00.000Z"


def entry(name: str, status: str = "pending", **fields: Any) -> dict[str, Any]:
    start = {"schemaVersion": 1, "id": name, "repo": "/srv/r", "priority": 100, "enqueuedAt": AT}
    return {**start, "status": status, **fields}


def document(*found: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"schemaVersion": 1, "entries": list(found), **more}).encode()


def parsed(*found: dict[str, Any]) -> list[QueueEntry]:
    return imported_entries(json.loads(document(*found)))


def bring_in(scheduler: Scheduler, *found: dict[str, Any]) -> list[Task]:
    tasks: list[Task] = scheduler.ask(Enqueue(parsed(*found)))
    return tasks


def add(scheduler: Scheduler, name: str, **fields: Any) -> Task:
    raw = json.dumps({"id": name, **fields}).encode()
    (task,) = scheduler.ask(Enqueue([new_entry(decoding.decode(raw, AddEntry), "unused")]))
    assert isinstance(task, Task)
    return task


def take(scheduler: Scheduler, limit: int = 1, **fields: Any) -> list[Task]:
    grants = scheduler.lease(limit, lanes=("queue",), capabilities=RUN, worker="w", **fields)
    return [grant.task for grant in grants]


def drain(scheduler: Scheduler, limit: int = 1) -> tuple[list[str], int]:
    answer: Drained = scheduler.ask(Drain(limit))
    return [grant.task.id for grant in answer.grants], answer.remaining


def shown(scheduler: Scheduler, name: str) -> dict[str, Any]:
    view = scheduler.view(name)
    return entry_shape(view.task, json.dumps(view.body), view.error)


# -------------------------------------------------------------------- add


def test_an_entry_is_a_task_of_the_lane_queue(scheduler: Scheduler) -> None:
    task = add(scheduler, "job-b", appId="review", priority=20, note=" second ", inputs={"pr": 7})
    assert (task.lane, task.capability, task.max_attempts) == ("queue", "handler/run", 3)
    assert shown(scheduler, "job-b") == {
        "schemaVersion": 1,
        "id": "job-b",
        "appId": "review",
        "agentId": "default",
        "priority": 20,
        "enqueuedAt": moment(scheduler.clock.now()),
        "status": "pending",
        "inputs": {"pr": 7},
        "note": "second",
        "attempts": 0,
        "maxAttempts": 3,
    }


def test_an_id_that_is_taken_is_refused_and_changes_nothing(
    scheduler: Scheduler, store: Store
) -> None:
    add(scheduler, "d")
    before = contents(store)["task"]
    error = scheduler.refused(Enqueue(parsed(entry("new"), entry("d"))))
    assert isinstance(error, Conflict)
    assert error.message == 'entry "d" already exists; use another id, or leave it out'
    assert contents(store)["task"] == before


def test_of_two_requests_for_one_id_in_one_transaction_the_first_has_it(
    scheduler: Scheduler,
) -> None:
    one, two = Enqueue(parsed(entry("d"))), Enqueue(parsed(entry("d", priority=1)))
    first, second = scheduler.apply(one, two).answers
    assert isinstance(first[0], Task)
    assert isinstance(second, Conflict)
    assert scheduler.view("d").task.priority == 100


def test_a_full_lane_refuses_a_file_as_a_whole(scheduler: Scheduler) -> None:
    scheduler.set_lane("queue", maxQueueSize=2)
    error = scheduler.refused(Enqueue(parsed(entry("a"), entry("b"), entry("c"))))
    assert isinstance(error, QueueFull)
    assert scheduler.find("a") is None
    bring_in(scheduler, entry("a"), entry("b"))


# -------------------------------------------------------------------- import


def test_an_imported_queue_goes_in_the_order_it_had(scheduler: Scheduler) -> None:
    later = "2023-01-02T00:00:00.000Z"
    bring_in(
        scheduler,
        entry("late", priority=10, enqueuedAt=later),
        entry("b", priority=10),
        entry("Z", priority=10),
        entry("last", priority=200),
        entry("first", priority=-5),
    )
    add(scheduler, "new", priority=10)
    scheduler.set_lane("queue", maxInflight=10)
    assert [task.id for task in take(scheduler, 10)] == ["first", "Z", "b", "late", "new", "last"]


def test_what_an_entry_has_behind_it_is_kept(scheduler: Scheduler) -> None:
    soon, ended = moment(scheduler.clock.now() + 5000), moment(scheduler.clock.now() - 5000)
    reason = "lease expired (host did not complete) (attempt 2/2)"
    bring_in(
        scheduler,
        entry("tried", "ready", attempts=2, nextEligibleAt=soon),
        entry("parked", "parked", attempts=2, parkedReason=reason, nextEligibleAt=AT),
        entry("drained", "drained", drainedAt=ended, runId="run-7", extra={"kept": True}),
        entry("gone", "cancelled"),
        entry("stuck", "draining"),
        entry("spent", "ready", attempts=9, nextEligibleAt=soon),
    )
    tried, parked = shown(scheduler, "tried"), shown(scheduler, "parked")
    assert (tried["status"], tried["attempts"], tried["nextEligibleAt"]) == ("ready", 2, soon)
    assert (parked["status"], parked["attempts"]) == ("parked", 2)
    assert parked["parkedReason"] == "lease expired (host did not complete) (attempt 2/3)"
    drained = shown(scheduler, "drained")
    assert (drained["status"], drained["drainedAt"], drained["extra"]) == (
        "drained",
        ended,
        {"kept": True},
    )
    assert shown(scheduler, "gone")["status"] == "cancelled"
    assert shown(scheduler, "stuck")["status"] == "parked"
    assert shown(scheduler, "spent")["status"] == "parked"
    assert take(scheduler, 10) == []


@pytest.mark.parametrize("limit", [1, 100])
def test_a_plan_tells_an_imported_entry_that_backs_off_from_one_for_later(
    scheduler: Scheduler, limit: int
) -> None:
    soon = moment(scheduler.clock.now() + 5000)
    bring_in(scheduler, entry("tried", "ready", attempts=1, nextEligibleAt=soon))
    bring_in(scheduler, entry("new", nextEligibleAt=soon))
    found = plan.read(
        scheduler.reader, PlanQuery("queue", None, limit), lambda _: scheduler.clock.now()
    )
    told = {task.id: reason for task, reason in found.skipped}
    assert told == dict([("tried", "backoff"), ("new", "delay")][:limit])
    assert found.counts == {"backoff": 1, "delay": 1}


def test_the_last_attempt_of_an_imported_entry_parks_it(scheduler: Scheduler) -> None:
    bring_in(scheduler, entry("tried", "ready", attempts=2))
    scheduler.fail(take(scheduler)[0], "again")
    found = shown(scheduler, "tried")
    assert (found["status"], found["parkedReason"]) == ("parked", "again (attempt 3/3)")


def test_an_imported_lease_keeps_its_slot_until_it_runs_out(scheduler: Scheduler) -> None:
    ends = scheduler.clock.now() + 10_000
    bring_in(scheduler, entry("held", "leased", leaseExpiresAt=moment(ends)), entry("next"))
    assert take(scheduler) == []
    scheduler.pass_time(10_000)
    assert [task.id for task in take(scheduler)] == ["next"]
    assert shown(scheduler, "held")["attempts"] == 1


def test_an_imported_lease_does_not_outlive_what_the_policy_gives(scheduler: Scheduler) -> None:
    """A file from a clock that was years ahead must not block its slot for years."""
    bring_in(scheduler, entry("held", "leased", leaseExpiresAt="2036-01-01T00:00:00.000Z"))
    scheduler.pass_time(300_000)
    assert shown(scheduler, "held")["status"] == "ready"


def test_an_imported_lease_without_an_end_has_ended(scheduler: Scheduler) -> None:
    bring_in(scheduler, entry("held", "leased"))
    scheduler.apply()
    assert (shown(scheduler, "held")["status"], shown(scheduler, "held")["attempts"]) == (
        "ready",
        1,
    )


def test_an_older_file_without_scheduling_fields_comes_in_unchanged(scheduler: Scheduler) -> None:
    bring_in(scheduler, entry("r1", "ready"), entry("r2", "pending"), entry("r3", "drained"))
    scheduler.set_lane("queue", maxInflight=2)
    assert [task.id for task in take(scheduler, 10)] == ["r1", "r2"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"{", "the body is not valid JSON"),
        (b"", "the body is not valid JSON"),
        (b"null", "the body must be a JSON object"),
        (b"[]", "the body must be a JSON object"),
        (b"{}", "field 'schemaVersion' must be 1"),
        (b'{"schemaVersion": 7, "entries": []}', "field 'schemaVersion' must be 1"),
        (b'{"schemaVersion": 1}', "field 'entries' must be a list"),
        (b'{"schemaVersion": 1, "entries": {}}', "field 'entries' must be a list"),
        (b'{"schemaVersion": 1, "entries": [], "entires": []}', "did you mean entries"),
        (document(None), "entries[0]: an entry must be an object"),  # type: ignore[arg-type]  # what is wrong with it
        (document(entry("a"), entry("a")), "entries[1]: the id 'a' appears twice"),
        (document(entry("a b")), "entries[0]: field 'id' has invalid characters"),
        (document(entry("a", "draned")), "entries[0]: field 'status' must be one of"),
        (document(entry("a", priority=1.5)), "entries[0]: field 'priority' must be a whole"),
        (document(entry("a", priority=True)), "entries[0]: field 'priority' must be a whole"),
        (document(entry("a", attempts=-1)), "entries[0]: field 'attempts' must be"),
        (document(entry("a", enqueuedAt="Jan 1 2026")), "entries[0]: invalid enqueuedAt format"),
        (document(entry("a", note=5)), "entries[0]: field 'note' must be text"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_place(raw: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        imported_entries(decoding.parse_object(raw))
    assert message in caught.value.message


def test_all_problems_of_a_file_are_reported_at_once() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(entry("a", "x"), entry("b"), entry("c", attempts="many"))
    assert "entries[0]: " in caught.value.message
    assert "entries[2]: " in caught.value.message


# -------------------------------------------------------------------- drain


def test_a_drain_hands_over_in_order_and_for_good(scheduler: Scheduler) -> None:
    for name, priority in (("a", 200), ("b", 10), ("c", 100)):
        add(scheduler, name, priority=priority)
    assert drain(scheduler, 2) == (["b", "c"], 1)
    assert {shown(scheduler, name)["status"] for name in "bc"} == {"drained"}
    assert len({shown(scheduler, name)["drainedAt"] for name in "bc"}) == 1
    assert scheduler.types("b") == ["created", "started", "completed"]
    assert drain(scheduler, 2) == (["a"], 0)
    assert drain(scheduler) == ([], 0)


def test_a_drain_keeps_to_the_ceiling_and_to_the_wait_before_a_retry(scheduler: Scheduler) -> None:
    add(scheduler, "a")
    add(scheduler, "b")
    (task,) = take(scheduler)
    assert drain(scheduler, 5) == ([], 1)
    scheduler.fail(task)
    scheduler.set_lane("queue", maxInflight=5)
    assert drain(scheduler, 5) == (["b"], 1)
    scheduler.clock.advance(1000)
    assert drain(scheduler, 5) == (["a"], 0)


def test_a_drain_gives_as_many_as_are_asked_for_through_one_slot(scheduler: Scheduler) -> None:
    """Each entry ends before the next one begins, so the ceiling of one holds."""
    scheduler.set_policy(maxInflight=1, agents={"default": {"maxInflight": 1}})
    for number in range(7):
        add(scheduler, f"e{number}")
    assert drain(scheduler, 5) == ([f"e{number}" for number in range(5)], 2)
    assert drain(scheduler, 5) == (["e5", "e6"], 0)
    types = [(event.type, event.seq) for event in scheduler.events()][-4:]
    assert [type_ for type_, _ in types] == ["task.started", "task.completed"] * 2
    assert types[0][1] == types[1][1] != types[2][1] == types[3][1]


@pytest.mark.parametrize("strategy", ["priority", "fair-fifo"])
def test_a_drain_takes_what_its_own_ends_make_ready(scheduler: Scheduler, strategy: str) -> None:
    scheduler.set_lane("queue", strategy=strategy)
    scheduler.submit("s1", "s2", "s3", lane="queue", session="s")
    assert drain(scheduler, 2) == (["s1", "s2"], 1)
    scheduler.submit("parent", lane="queue", priority=-5)
    scheduler.submit("child", lane="queue", depends_on=("parent",), priority=-4)
    assert drain(scheduler, 9) == (["parent", "s3", "child"], 0)


def test_a_drain_leaves_the_slot_of_a_lease_alone(scheduler: Scheduler) -> None:
    scheduler.set_lane("queue", maxInflight=3, reserved={"critical": 1})
    for number in range(6):
        add(scheduler, f"e{number}")
    take(scheduler)
    assert drain(scheduler, 2) == (["e1", "e2"], 3)
    take(scheduler)
    assert drain(scheduler, 2) == ([], 2)
    add(scheduler, "urgent", priority=-20)
    assert drain(scheduler, 2) == (["urgent"], 2)


def test_a_drain_takes_neither_what_is_leased_nor_what_is_parked(scheduler: Scheduler) -> None:
    scheduler.set_lane("queue", maxInflight=5, maxAttempts=1)
    add(scheduler, "parked")
    scheduler.fail(take(scheduler)[0])
    add(scheduler, "leased")
    take(scheduler)
    assert drain(scheduler, 5) == ([], 0)


def test_a_drain_of_a_paused_lane_gives_nothing(scheduler: Scheduler) -> None:
    add(scheduler, "a")
    scheduler.set_lane("queue", paused=True)
    assert drain(scheduler) == ([], 1)


# -------------------------------------------------------------------- take back


def test_leases_that_have_run_out_are_reclaimed_and_named(scheduler: Scheduler) -> None:
    scheduler.set_lane("queue", maxInflight=3)
    for name in "abc":
        add(scheduler, name)
    take(scheduler, 2, ttl_ms=1000)
    take(scheduler, 1, ttl_ms=9000)
    scheduler.clock.advance(1000)
    answer: ReclaimedLeases = scheduler.ask(ReclaimExpired())
    assert (sorted(answer.ids), answer.now, answer.more) == (
        ["a", "b"],
        scheduler.clock.now(),
        False,
    )
    assert shown(scheduler, "a")["attempts"] == 1
    assert shown(scheduler, "c")["status"] == "leased"
    nothing: ReclaimedLeases = scheduler.ask(ReclaimExpired())
    assert nothing.ids == []


def test_many_leases_are_reclaimed_in_steps(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "STEP", 2)
    scheduler.set_lane("queue", maxInflight=3)
    for name in "abc":
        add(scheduler, name)
    take(scheduler, 3, ttl_ms=1000)
    scheduler.clock.advance(1000)
    answer: ReclaimedLeases = scheduler.ask(ReclaimExpired())
    assert (len(answer.ids), answer.more) == (2, True)


def test_a_late_report_counts_until_the_lease_is_reclaimed(scheduler: Scheduler) -> None:
    scheduler.set_lane("queue", maxInflight=2)
    add(scheduler, "a")
    add(scheduler, "b")
    first, second = take(scheduler, 2, ttl_ms=1000)
    scheduler.clock.advance(5000)
    assert scheduler.complete(first).state == "done"  # nobody else has been given it meanwhile
    scheduler.apply()
    with pytest.raises(LeaseLost):
        scheduler.complete(second)


def test_waits_grow_as_the_rules_say(scheduler: Scheduler) -> None:
    scheduler.set_lane(
        "queue", maxAttempts=10, backoffMs=10, backoffMultiplier=1.5, maxBackoffMs=60
    )
    add(scheduler, "a")
    waits = []
    for _ in range(6):
        failed = scheduler.fail(take(scheduler)[0])
        assert failed.eligible_at is not None
        waits.append(failed.eligible_at - scheduler.clock.now())
        scheduler.pass_time(waits[-1])
    assert waits == [10, 15, 22, 34, 51, 60]


# -------------------------------------------------------------------- order


def test_pages_of_the_queue_are_in_its_order(scheduler: Scheduler, store: Store) -> None:
    for number, name in enumerate("gfedcba"):
        add(scheduler, name, priority=number % 3)
    scheduler.complete(take(scheduler)[0])
    views = Views(store)
    try:
        states = entries.states(None)
        first = views.entries(states, None, None, 4)
        rest = views.entries(states, None, (first[-1].task.rank, first[-1].task.seq), 10)
        waiting = views.entries(entries.states("pending"), None, None, 10)
    finally:
        views.close()
    assert [view.task.id for view in (*first, *rest)] == ["g", "d", "a", "f", "c", "e", "b"]
    assert [view.task.id for view in waiting] == ["d", "a", "f", "c", "e", "b"]


def test_a_lease_id_is_never_valid_again(scheduler: Scheduler) -> None:
    add(scheduler, "a")
    (first,) = take(scheduler)
    scheduler.release(first)
    (second,) = take(scheduler)
    assert lease_id(first.seq, first.fencing_token) != lease_id(second.seq, second.fencing_token)
