"""Deliveries: one per ended task, claimed by one sender at a time, and never lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core.errors import NotFound
from fairlane.core.webhooks import Delivery, Try, about, host_of, tries
from fairlane.engine.commands import (
    Cancel,
    ClaimDeliveries,
    NewBatch,
    ReclaimDeliveries,
    Redeliver,
    SettleDelivery,
    Submit,
    UseSecret,
)
from fairlane.engine.verbs.webhooks import DEFER_MS, LOOK_MAX
from tests.store.scheduler import TTL_MS, Scheduler, submission

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.core.model import Task

URL = "https://receiver.example/hook"
HOUR_MS = 3_600_000


def deliveries(scheduler: Scheduler, name: str) -> list[tuple[str, str, int]]:
    return [(one.event, one.state, one.attempts) for one in listed(scheduler, about=name)]


def listed(scheduler: Scheduler, **wanted: Any) -> list[Delivery]:
    """Oldest first."""
    name = "delivery_list_of" if "about" in wanted else "delivery_list"
    rows = scheduler.reader.run(name, **wanted, limit=1000)
    return [Delivery(*row) for row in reversed(rows)]


def owed(scheduler: Scheduler, name: str) -> str:
    """The id of the newest webhook of a task."""
    return listed(scheduler, about=name)[-1].id


ENDINGS: dict[str, tuple[str, Callable[[Scheduler, Task], object]]] = {
    "completed": ("task.completed", lambda scheduler, task: scheduler.complete(task)),
    "failed": ("task.failed", lambda scheduler, task: scheduler.fail(task, retryable=False)),
    "cancelled": ("task.cancelled", lambda scheduler, task: scheduler.cancel(task.id)),
    "late": ("task.failed", lambda scheduler, _: scheduler.pass_time(20_000)),
}


@pytest.mark.parametrize(("event", "ending"), ENDINGS.values(), ids=ENDINGS)
def test_one_webhook_is_owed_when_a_task_ends(
    scheduler: Scheduler, event: str, ending: Callable[[Scheduler, Task], object]
) -> None:
    scheduler.submit("first", callback_url=URL, deadline_at=scheduler.clock.now() + 20_000)
    task = scheduler.lease_one(ttl_ms=60_000)
    assert deliveries(scheduler, "first") == []
    ending(scheduler, task)
    scheduler.apply()
    assert deliveries(scheduler, "first") == [(event, "due", 0)]
    scheduler.apply(*[SettleDelivery(owed(scheduler, "first"), delivered=True)])
    scheduler.pass_time(TTL_MS)
    assert deliveries(scheduler, "first") == [(event, "delivered", 0)]


def test_nothing_is_owed_for_a_retry_or_without_an_address(scheduler: Scheduler) -> None:
    scheduler.submit("quiet", "parks", max_attempts=1)
    scheduler.fail(scheduler.lease_one())
    scheduler.cancel("parks")
    scheduler.submit("tried", callback_url=URL)
    for _ in range(3):
        scheduler.clock.advance(60_000)
        assert scheduler.ask(ClaimDeliveries(10)) == []
        scheduler.fail(scheduler.lease_one())
    assert deliveries(scheduler, "tried") == [("task.parked", "due", 0)]


def test_each_parking_owes_one_webhook_and_the_end_another(scheduler: Scheduler) -> None:
    scheduler.submit("parks", callback_url=URL, max_attempts=1)
    scheduler.fail(scheduler.lease_one())
    scheduler.apply()
    assert deliveries(scheduler, "parks") == [("task.parked", "due", 0)]
    scheduler.reset("parks")
    scheduler.fail(scheduler.lease_one())
    scheduler.reset("parks")
    scheduler.complete(scheduler.lease_one())
    sent = [owed.event for owed in scheduler.ask(ClaimDeliveries(10))]
    assert sorted(sent) == ["task.completed", "task.parked", "task.parked"]
    assert len({row[0] for row in scheduler.reader.run("delivery_due", now=2**60, limit=9)}) == 3


@pytest.mark.parametrize("how", ["lease over", "released"])
def test_a_task_that_a_worker_gave_up_owes_one_when_it_is_parked(
    scheduler: Scheduler, how: str
) -> None:
    scheduler.set_lane(maxReleases=1)
    scheduler.submit("parks", callback_url=URL, max_attempts=1)
    task = scheduler.start(scheduler.lease_one(worker="outside"))
    if how == "lease over":
        scheduler.pass_time(TTL_MS)
    else:
        scheduler.release(task)
        scheduler.release(scheduler.lease_one(worker="outside"))
    assert scheduler.states("parks") == ["parked"]
    assert deliveries(scheduler, "parks") == [("task.parked", "due", 0)]
    scheduler.cancel("parks")
    events = [event for event, _, _ in deliveries(scheduler, "parks")]
    assert sorted(events) == ["task.cancelled", "task.parked"]


def test_a_refused_submission_owes_nothing(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxQueueSize=1)
    scheduler.submit("first")
    scheduler.refused(Submit([submission("second", callback_url=URL)]))
    assert scheduler.ask(ClaimDeliveries(10)) == []


def test_a_claimed_delivery_is_one_senders_until_its_hold_ends(scheduler: Scheduler) -> None:
    scheduler.submit(*"abc", callback_url=URL)
    for name in "abc":
        scheduler.cancel(name)
    first, second = scheduler.apply(ClaimDeliveries(2), ClaimDeliveries(2)).answers
    assert [one.id for one in (*first, *second)] == [owed(scheduler, name) for name in "abc"]
    assert {(one.url, one.event, one.attempt) for one in (*first, *second)} == {
        (URL, "task.cancelled", 1)
    }
    assert scheduler.ask(ClaimDeliveries(10)) == []
    scheduler.clock.advance(19_999)
    assert scheduler.ask(ClaimDeliveries(10)) == []
    scheduler.clock.advance(1)
    again = scheduler.ask(ClaimDeliveries(10))
    assert [(one.id, one.attempt) for one in again] == [
        (owed(scheduler, name), 2) for name in "abc"
    ]


def test_a_failed_delivery_is_due_again_after_its_wait(scheduler: Scheduler) -> None:
    scheduler.submit("first", callback_url=URL)
    scheduler.cancel("first")
    (one,) = scheduler.ask(ClaimDeliveries(1))
    scheduler.ask(SettleDelivery(one.id, delivered=False, error="500", retry_after_ms=5000))
    scheduler.clock.advance(4999)
    assert scheduler.ask(ClaimDeliveries(1)) == []
    scheduler.clock.advance(1)
    assert scheduler.ask(ClaimDeliveries(1))[0].attempt == 2


def test_a_settled_delivery_stays_settled(scheduler: Scheduler) -> None:
    scheduler.submit("first", "second", callback_url=URL)
    scheduler.cancel("first")
    scheduler.cancel("second")
    scheduler.ask(ClaimDeliveries(2))
    scheduler.apply(
        SettleDelivery(owed(scheduler, "first"), delivered=True),
        SettleDelivery(owed(scheduler, "second"), delivered=False, error="gone"),
        SettleDelivery("nobody", delivered=True),
    )
    scheduler.apply(
        SettleDelivery(owed(scheduler, "first"), delivered=False, error="late", retry_after_ms=1),
        SettleDelivery(owed(scheduler, "second"), delivered=True),
    )
    scheduler.clock.advance(86_400_000)
    assert scheduler.ask(ClaimDeliveries(2)) == []
    assert deliveries(scheduler, "first") == [("task.cancelled", "delivered", 1)]
    assert deliveries(scheduler, "second") == [("task.cancelled", "given_up", 1)]


def test_the_first_secret_is_kept(new_scheduler: Callable[..., Scheduler]) -> None:
    first, second = new_scheduler(), new_scheduler("other")
    assert first.apply(UseSecret("one"), UseSecret("two")).answers == ["one", "one"]
    assert second.ask(UseSecret("three")) == "one"


def test_what_a_dead_sender_had_claimed_is_due_at_once_and_nothing_else(
    scheduler: Scheduler,
) -> None:
    scheduler.submit("sent", "tried", "tried_twice", callback_url=URL)
    for name in ("sent", "tried", "tried_twice"):
        scheduler.cancel(name)
    scheduler.ask(ClaimDeliveries(3))
    scheduler.apply(
        SettleDelivery(owed(scheduler, "tried"), delivered=False, error="500", retry_after_ms=5000),
        SettleDelivery(
            owed(scheduler, "tried_twice"), delivered=False, error="500", retry_after_ms=0
        ),
    )
    assert [one.id for one in scheduler.ask(ClaimDeliveries(3))] == [owed(scheduler, "tried_twice")]
    scheduler.apply(ReclaimDeliveries())
    again = scheduler.ask(ClaimDeliveries(3))
    assert {one.id: one.attempt for one in again} == {
        owed(scheduler, "sent"): 2,
        owed(scheduler, "tried_twice"): 3,
    }


# -------------------------------------------------------------------- not all slots to one host


def owing(scheduler: Scheduler, *urls: str) -> list[str]:
    """Cancelled tasks that owe a webhook each, in this order; the ids of their tasks."""
    names = [f"{number:04}" for number in range(len(urls))]
    tasks = [submission(n, callback_url=url) for n, url in zip(names, urls, strict=True)]
    scheduler.ask(Submit(tasks))
    scheduler.apply(*map(Cancel, names))
    return names


def claimed(scheduler: Scheduler, limit: int, **rooms: Any) -> list[str]:
    return [host_of(one.url) for one in scheduler.ask(ClaimDeliveries(limit, **rooms))]


def test_a_claim_leaves_what_its_host_has_no_room_for(scheduler: Scheduler) -> None:
    owing(scheduler, *["https://slow.test/a"] * 5, "https://quick.test/", "https://SLOW.test:443/")
    assert claimed(scheduler, 10, room=2) == ["slow.test", "slow.test", "quick.test"]
    assert claimed(scheduler, 10, room=2, rooms={"slow.test": 0}) == []
    assert claimed(scheduler, 10, room=1, rooms={"slow.test": 2}) == ["slow.test"] * 2
    assert claimed(scheduler, 10) == ["slow.test"] * 2


def test_a_backlog_of_one_host_hides_nobody(scheduler: Scheduler) -> None:
    owing(scheduler, *["https://slow.test/"] * (LOOK_MAX + 10), "https://quick.test/")
    full = {"room": 16, "rooms": {"slow.test": 0}}
    assert claimed(scheduler, 10, **full) == []
    assert claimed(scheduler, 10, **full) == ["quick.test"]
    scheduler.clock.advance(DEFER_MS)
    assert claimed(scheduler, 3) == ["slow.test"] * 3
    states = {one.state for one in listed(scheduler)}
    assert states == {"due"}


def test_a_backlog_of_one_agent_hides_nobody_however_many_hosts_it_names(
    scheduler: Scheduler,
) -> None:
    owing(scheduler, *(f"https://h{number}.test/" for number in range(LOOK_MAX + 10)))
    scheduler.ask(Submit([submission("other", agent="ben", callback_url="https://quick.test/")]))
    scheduler.apply(Cancel("other"))
    full = {"room": 16, "rooms": {"@a": 0}}
    assert claimed(scheduler, 10, **full) == []
    assert claimed(scheduler, 10, **full) == ["quick.test"]
    scheduler.clock.advance(DEFER_MS)
    assert len(claimed(scheduler, 64, room=16)) == 48


def test_a_delivery_that_made_room_has_not_been_tried(scheduler: Scheduler) -> None:
    owing(scheduler, *["https://slow.test/"] * LOOK_MAX)
    assert claimed(scheduler, 10, room=1, rooms={"slow.test": 0}) == []
    assert {one.attempts for one in listed(scheduler)} == {0}
    scheduler.apply(ReclaimDeliveries())
    assert claimed(scheduler, 10) == []


# -------------------------------------------------------------------- the log


def test_the_log_tells_of_every_try(scheduler: Scheduler) -> None:
    owing(scheduler, URL)
    (one,) = scheduler.ask(ClaimDeliveries(1))
    began = scheduler.clock.now()
    tried = {"status": 503, "attempt": 1, "took_ms": 20}
    scheduler.ask(SettleDelivery(one.id, False, "receiver responded with 503", 5000, **tried))
    (failed,) = listed(scheduler)
    assert (failed.state, failed.status, failed.error) == (
        "due",
        503,
        "receiver responded with 503",
    )
    assert (failed.due_at, failed.settled_at) == (began + 5000, None)
    scheduler.clock.advance(5000)
    scheduler.ask(ClaimDeliveries(1))
    scheduler.ask(SettleDelivery(one.id, delivered=True, status=204, attempt=2, took_ms=7))
    (sent,) = listed(scheduler)
    assert (sent.state, sent.status, sent.error, sent.attempts) == ("delivered", 204, None, 2)
    assert sent.settled_at == began + 5000
    assert tries(sent.log) == [
        Try(began, 1, 503, "receiver responded with 503", 20),
        Try(began + 5000, 2, 204, None, 7),
    ]


def test_the_log_of_one_delivery_is_bounded(scheduler: Scheduler) -> None:
    owing(scheduler, URL)
    id_ = listed(scheduler)[0].id
    for number in range(40):
        scheduler.ask(SettleDelivery(id_, False, "x" * 500, 0, attempt=number))
    (one,) = listed(scheduler)
    assert len(one.log) < 10_000
    assert tries(one.log)[-1].attempt == 39


def test_a_list_is_of_one_agent_of_one_state_or_of_one_task(scheduler: Scheduler) -> None:
    scheduler.submit("a1", agent="a", callback_url=URL)
    scheduler.submit("a2", agent="a", callback_url=URL)
    scheduler.submit("b1", agent="b", callback_url=URL)
    scheduler.ask(
        Submit(
            [submission("in", "b", batch="all", callback_url=None)],
            batch=NewBatch("all", "b", None, URL),
        )
    )
    for name in ("a1", "a2", "b1", "in"):
        scheduler.cancel(name)
        scheduler.clock.advance(1)
    scheduler.ask(SettleDelivery(owed(scheduler, "a1"), delivered=True))

    def found(**wanted: Any) -> list[str]:
        return [about(one.id) for one in listed(scheduler, **wanted)]

    assert found() == ["a1", "a2", "b1", "all"]
    assert found(agent="a") == ["a1", "a2"]
    assert found(agent="b") == ["b1", "all"]
    assert found(state="due") == ["a2", "b1", "all"]
    assert found(state="due", agent="a") == ["a2"]
    assert found(about="all") == ["all"]
    assert found(about="all", agent="a") == []
    assert found(about="nobody") == []
    third = listed(scheduler, about="b1")[0]
    assert found(before=third.created_at, before_id=third.id) == ["a1", "a2"]


# -------------------------------------------------------------------- once more


@pytest.mark.parametrize("delivered", [True, False])
def test_what_is_settled_can_be_sent_again_under_the_same_id(
    scheduler: Scheduler, *, delivered: bool
) -> None:
    owing(scheduler, URL)
    (one,) = scheduler.ask(ClaimDeliveries(1))
    scheduler.ask(SettleDelivery(one.id, delivered=delivered, error="500"))
    assert scheduler.ask(ClaimDeliveries(1)) == []
    again = scheduler.ask(Redeliver(one.id))
    assert (again.id, again.state, again.attempts, again.settled_at) == (one.id, "due", 0, None)
    (claim,) = scheduler.ask(ClaimDeliveries(1))
    assert (claim.id, claim.attempt) == (one.id, 1)
    assert len(tries(listed(scheduler)[0].log)) == 1


def test_one_that_waits_for_its_next_try_is_sent_at_once(scheduler: Scheduler) -> None:
    owing(scheduler, URL)
    (one,) = scheduler.ask(ClaimDeliveries(1))
    scheduler.ask(SettleDelivery(one.id, delivered=False, error="500", retry_after_ms=HOUR_MS))
    outcome = scheduler.apply(Redeliver(one.id))
    assert outcome.webhooks_due
    assert [found.id for found in scheduler.ask(ClaimDeliveries(1))] == [one.id]


def test_one_that_is_being_sent_is_not_sent_twice(scheduler: Scheduler) -> None:
    owing(scheduler, URL)
    (one,) = scheduler.ask(ClaimDeliveries(1))
    assert scheduler.ask(Redeliver(one.id)).attempts == 1
    assert scheduler.ask(ClaimDeliveries(1)) == []


def test_no_caller_redelivers_a_webhook_of_another_agent_or_an_unknown_one(
    scheduler: Scheduler,
) -> None:
    owing(scheduler, URL)
    (one,) = scheduler.ask(ClaimDeliveries(1))
    scheduler.ask(SettleDelivery(one.id, delivered=True))
    for request in (Redeliver("msg_nobody_1"), Redeliver(one.id, agent="other")):
        with pytest.raises(NotFound):
            scheduler.ask(request)
    assert scheduler.ask(ClaimDeliveries(1)) == []
    assert scheduler.ask(Redeliver(one.id, agent="a")).state == "due"
