"""What the writer remembers between commits: it never differs from what the store has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.core.model import Task
from fairlane.engine.commands import Prune, Submit
from fairlane.engine.reads import views
from fairlane.store import counters
from fairlane.store.opening import open_store
from tests.store.faults import COMMIT, SAVE, WatchedStore
from tests.store.invariants import assert_sound
from tests.store.scheduler import Scheduler, submission

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.store.base import Store
    from tests.store.faults import WatchedConnection


class Defect(Exception):
    """Something that nobody has thought of."""


@pytest.mark.parametrize(
    "attempt",
    [
        lambda scheduler, _: scheduler.submit("a4"),
        lambda scheduler, _: scheduler.lease(1),
        lambda scheduler, task: scheduler.complete(task),
    ],
)
@pytest.mark.parametrize("moment", [SAVE, COMMIT])
def test_a_transaction_that_breaks_leaves_nothing_in_memory(
    store: Store, moment: str, attempt: Callable[[Scheduler, Task], object]
) -> None:
    broken = False

    def watch(now: str, _: WatchedConnection) -> None:
        if broken and now == moment:
            raise Defect

    scheduler = Scheduler(WatchedStore(store, watch))
    scheduler.submit("a1", "a2", "a3")
    task = scheduler.lease_one()
    broken = True
    with pytest.raises(Defect):
        attempt(scheduler, task)
    broken = False
    scheduler.complete(task)
    assert scheduler.names(5) == ["a2", "a3"]
    assert views.recount(scheduler.reader) == []
    scheduler.close()


def test_what_another_process_has_counted_is_not_overwritten(store: Store) -> None:
    mine, other = Scheduler(store), Scheduler(open_store(store.url), name="node_b")
    mine.submit("a1", "a2")
    mine.complete_next()
    other.submit("a3", "a4")
    other.lease_one()
    mine.submit("a5")
    assert mine.names(5) == ["a3", "a4", "a5"]
    assert_sound(mine.reader, mine.engine.policy)
    other.close()
    mine.close()


def test_an_agent_whose_line_was_forgotten_gets_a_new_one(store: Store) -> None:
    scheduler = Scheduler(store)
    scheduler.submit("a1")
    scheduler.complete_next()
    scheduler.pass_time(31 * 24 * 3_600_000)
    scheduler.ask(Prune(dry_run=False))
    assert scheduler.find("a1") is None
    scheduler.submit("a2")
    assert scheduler.names() == ["a2"]
    assert_sound(scheduler.reader, scheduler.engine.policy)
    scheduler.close()


@pytest.mark.slow
def test_more_agents_than_are_remembered_are_served_just_as_well(sqlite_store: Store) -> None:
    """Where others write too, nothing is remembered from one transaction to the next."""
    scheduler = Scheduler(sqlite_store)
    scheduler.set_policy(lanes={"crowd": {"maxQueueSize": None}})
    for number in range(8):
        scheduler.submit(f"first{number}", f"second{number}", agent=f"agent{number}")
    firsts = scheduler.names(8)
    for start in range(0, counters._LINES_MAX, 2000):
        numbers = range(start, start + 2000)
        crowd = [submission(f"c{n}", f"crowd{n}", lane="crowd") for n in numbers]
        assert all(isinstance(answer, Task) for answer in scheduler.ask(Submit(crowd)))
    assert len(scheduler.engine._cache.lines) < 2000, "nothing has been forgotten"
    seconds = scheduler.names(8)
    assert sorted(firsts) == [f"first{number}" for number in range(8)]
    assert sorted(seconds) == [f"second{number}" for number in range(8)]
    assert_sound(scheduler.reader, scheduler.engine.policy)
    scheduler.close()
