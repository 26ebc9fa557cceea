"""Webhooks owed: one per ended task, claimed by one sender at a time, and never forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.engine.requests import (
    ClaimDeliveries,
    ReclaimDeliveries,
    SettleDelivery,
    Submit,
    UseSecret,
)
from tests.store.scheduler import TTL_MS, Scheduler, submission

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.core.model import Task

URL = "https://receiver.example/hook"


def deliveries(scheduler: Scheduler, name: str) -> list[tuple[str, str, int]]:
    rows = scheduler.reader.run("delivery_view", id=name)
    return [(event, state, attempts) for _, _, event, state, attempts, *_ in rows]


def owed(scheduler: Scheduler, name: str) -> str:
    """The id of the newest webhook of a task."""
    newest: str = scheduler.reader.run("delivery_view", id=name)[-1][0]
    return newest


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


def test_nothing_is_owed_for_a_retry_a_parked_task_or_without_an_address(
    scheduler: Scheduler,
) -> None:
    scheduler.submit("quiet")
    scheduler.cancel("quiet")
    scheduler.submit("parked", callback_url=URL)
    for _ in range(3):
        scheduler.clock.advance(60_000)
        assert scheduler.ask(ClaimDeliveries(10)) == []
        scheduler.fail(scheduler.lease_one())
    assert scheduler.states("parked") == ["parked"]
    assert scheduler.ask(ClaimDeliveries(10)) == []
    scheduler.cancel("parked")
    assert deliveries(scheduler, "parked") == [("task.cancelled", "due", 0)]


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


def test_a_failed_delivery_is_due_again_when_it_said(scheduler: Scheduler) -> None:
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
