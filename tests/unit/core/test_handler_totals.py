"""Totals of handlers: what each change adds to them."""

from __future__ import annotations

from typing import Any

from fairlane.core import handler_totals, lifecycle
from fairlane.core.handler_totals import BEGUN_MAX, HOUR_MS, OTHERS, PAIRS_MAX, Counter, Totals
from fairlane.core.model import Change, Task
from tests.unit.core import rows
from tests.unit.core.rows import NOW

HOUR = NOW // HOUR_MS
KEY = (HOUR, "handler/count", "ada")


def running(**given: Any) -> Task:
    return rows.assigned(**{"state": lifecycle.RUNNING, "started_at": NOW, **given})


def ended(verb: str, before: Task | None = None, **given: Any) -> Change:
    return Change(before or running(), rows.queued(**given), verb)


def counted(*changes: Change, now: int = NOW, counter: Counter | None = None) -> Totals:
    return (counter or Counter()).count(changes, now).get(KEY, Totals())


def test_a_task_that_waits_runs_and_is_done() -> None:
    counter = Counter()
    lease = Change(rows.queued(), running(), lifecycle.LEASE, waited_ms=30)
    first = counted(Change(None, rows.queued(), lifecycle.SUBMIT), lease, counter=counter)
    assert (first.starts, first.waited_ms, sum(first.waits)) == (1, 30, 1)
    last = counted(ended(lifecycle.COMPLETE), now=NOW + 70, counter=counter)
    assert (last.done, last.runs, last.ran_ms, sum(last.durations)) == (1, 1, 70, 1)
    assert (last.failures, last.ended) == (0, 1)


def test_each_way_to_fail_is_counted() -> None:
    verbs = (lifecycle.FAIL, lifecycle.EXPIRE, lifecycle.PARK, lifecycle.BACK_OFF, lifecycle.CANCEL)
    found = counted(*(ended(verb) for verb in verbs))
    assert (found.failed, found.parked, found.retried, found.cancelled) == (2, 1, 1, 1)
    assert (found.failures, found.ended) == (4, 4)


def test_a_suspension_ends_a_run_and_nothing_else() -> None:
    found = counted(ended(lifecycle.SUSPEND), ended(lifecycle.RELEASE), now=NOW + 5)
    assert (found.runs, found.ran_ms, found.ended) == (2, 10, 0)


def test_a_repeated_attempt_counts_from_its_own_start() -> None:
    counter = Counter()
    second = running(attempts=2)
    counted(Change(rows.queued(), second, lifecycle.LEASE), now=NOW + 1000, counter=counter)
    found = counted(ended(lifecycle.COMPLETE, second), now=NOW + 1007, counter=counter)
    assert (found.runs, found.ran_ms) == (1, 7)
    # One that was leased first and started later.
    assigned = rows.assigned(attempts=2, started_at=NOW)
    counted(Change(rows.queued(), assigned, lifecycle.LEASE), now=NOW + 1000, counter=counter)
    counted(Change(assigned, second, lifecycle.START), now=NOW + 2000, counter=counter)
    found = counted(ended(lifecycle.FAIL, second), now=NOW + 2003, counter=counter)
    assert found.ran_ms == 3
    # The start of the first attempt is in its row.
    counted(Change(assigned, running(), lifecycle.START), counter=counter)


def test_a_run_of_unknown_start_or_without_an_end_has_no_duration() -> None:
    unknown = running(attempts=2)
    still = Change(running(), running(), lifecycle.CANCEL)
    never = Change(rows.queued(), rows.queued(), lifecycle.EXPIRE)
    found = counted(ended(lifecycle.COMPLETE, unknown), still, never, ended(lifecycle.FAIL))
    assert (found.runs, found.ran_ms) == (1, 0)
    new = Change(None, rows.queued(), lifecycle.CANCEL)
    assert counted(new).cancelled == 1


def test_starts_that_other_servers_end_are_forgotten() -> None:
    counter = Counter()
    for seq in range(BEGUN_MAX + 1):
        again = Change(None, running(seq=seq, attempts=2), lifecycle.LEASE)
        counter.count([again], NOW + 1)
    lost = counted(ended(lifecycle.FAIL, running(seq=0, attempts=2)), counter=counter)
    kept = counted(ended(lifecycle.FAIL, running(seq=1, attempts=2)), now=NOW + 2, counter=counter)
    assert (lost.runs, kept.runs) == (0, 1)


def test_very_many_agents_are_counted_together() -> None:
    counter = Counter()
    for number in range(PAIRS_MAX):
        counter.count([ended(lifecycle.FAIL, agent=f"a{number}")], NOW)
    late = [ended(lifecycle.FAIL, agent=name) for name in ("x", "y", "a7")]
    found = counter.count(late, NOW)
    assert {key[2]: totals.failed for key, totals in found.items()} == {OTHERS: 2, "a7": 1}
    # The next hour starts from zero.
    found = counter.count(late[:1], NOW + HOUR_MS)
    assert [key[2] for key in found] == ["x"]


def test_totals_are_added_without_changing_the_parts() -> None:
    one, other = Totals(starts=1, ran_ms=5), Totals(starts=2, waits=[1])
    other.waits = [1]  # stored by a version with fewer bounds
    found = handler_totals.added([{KEY: one}, {KEY: other}])
    assert (found[KEY].starts, found[KEY].ran_ms, found[KEY].waits[0]) == (3, 5, 1)
    assert one.starts == 1
