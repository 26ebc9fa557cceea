"""Totals of handlers in each database: stored with other commits, added up, kept over restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.core.handler_totals import HOUR_MS, KEPT_HOURS, Totals
from fairlane.engine.totals import SAVE_SECONDS
from fairlane.store.tables import handler_totals as table
from tests.store.scheduler import WORK, Scheduler

if TYPE_CHECKING:
    from fairlane.store.base import Store


def stored(scheduler: Scheduler, **wanted: str) -> dict[tuple[str, str], Totals]:
    found = table.since(scheduler.reader, 0, wanted.get("agent"), wanted.get("capability"))
    return {key[1:]: totals for key, totals in found.items()}


def run(scheduler: Scheduler, name: str, agent: str = "a") -> None:
    scheduler.submit(name, agent=agent)
    task = scheduler.lease_one()
    scheduler.clock.advance(20)
    scheduler.complete(task)


def test_totals_are_stored_at_most_once_a_second_and_none_is_lost(scheduler: Scheduler) -> None:
    run(scheduler, "t1")
    assert scheduler.engine.totals.pending  # too soon after the first commit
    scheduler.clock.advance(int(SAVE_SECONDS * 1000))
    run(scheduler, "t2")
    scheduler.clock.advance(int(SAVE_SECONDS * 1000))
    scheduler.submit("t3")
    (found,) = stored(scheduler).values()
    assert (found.starts, found.done) == (2, 2)
    assert scheduler.engine.totals.pending == {}


def test_another_process_adds_to_what_is_stored(scheduler: Scheduler, store: Store) -> None:
    run(scheduler, "t1")
    scheduler.engine.totals.hurry()
    scheduler.submit("t2", agent="b")
    second = Scheduler(store, scheduler.clock, name="node_2")
    try:
        task = second.lease_one()
        second.complete(task)
        second.engine.totals.hurry()
        second.submit("t3")
    finally:
        second.close()
    found = stored(scheduler)
    assert {key: totals.done for key, totals in found.items()} == {(WORK, "a"): 1, (WORK, "b"): 1}
    assert list(stored(scheduler, agent="b")) == [(WORK, "b")]
    assert stored(scheduler, capability="handler/other") == {}


def test_old_hours_are_forgotten(scheduler: Scheduler) -> None:
    run(scheduler, "t1")
    scheduler.clock.advance(HOUR_MS * (KEPT_HOURS + 1))
    run(scheduler, "t2")
    scheduler.clock.advance(int(SAVE_SECONDS * 1000))
    scheduler.submit("t3")
    (found,) = table.since(scheduler.reader, 0, None, None).values()
    assert found.done == 1
