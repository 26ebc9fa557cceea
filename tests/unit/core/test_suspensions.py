"""Suspensions: what a run may wait for, when a wait ends, and what its record says."""

from __future__ import annotations

import msgspec
import pytest

from fairlane.core import consequences, explain, leases, lifecycle, steps, suspensions
from fairlane.core.errors import InvalidRequest
from fairlane.core.events import SIGNAL, STEP, Event
from fairlane.core.explain import Facts
from fairlane.core.model import SUSPEND_GATE, Change, copied
from fairlane.core.policy import Policy
from fairlane.core.suspensions import Suspension, TaskEnd, Until
from tests.unit.core import rows
from tests.unit.core.rows import NOW, TOKEN


@pytest.mark.parametrize(
    "until", [Until(at="2030-01-01T00:00:00Z"), Until(delay_ms=0), Until(tasks=["a"])]
)
def test_one_thing_can_be_waited_for(until: Until) -> None:
    suspensions.check(until)
    assert msgspec.json.decode(suspensions.text(until), type=Until) == until


@pytest.mark.parametrize(
    "until",
    [Until(), Until(delay_ms=1, signal="x"), Until(at="tomorrow"), Until(message=False)],
    ids=str,
)
def test_anything_else_is_refused(until: Until) -> None:
    with pytest.raises(InvalidRequest, match="until"):
        suspensions.check(until)


def test_time_ends_only_some_waits() -> None:
    assert suspensions.wakes_at(Until(delay_ms=5), NOW) == NOW + 5
    assert suspensions.wakes_at(Until(at="1970-01-01T00:00:01Z"), NOW) == 1000
    assert suspensions.wakes_at(Until(signal="x"), NOW) is None


def test_a_name_follows_from_the_wait() -> None:
    assert suspensions.default_name(Until(signal="paid")) == "signal:paid"
    first, same, other = Until(tasks=["a"]), Until(tasks=["a"]), Until(tasks=["b"])
    assert suspensions.default_name(first) == suspensions.default_name(same)
    assert suspensions.default_name(first) != suspensions.default_name(other)


def test_results_are_kept_in_order_as_long_as_they_fit() -> None:
    ends = [
        TaskEnd(1, "a", "done", 10, None),
        TaskEnd(2, "b", "done", steps.TOTAL_CHARACTERS_MAX, None),
        TaskEnd(3, "c", "failed", None, "no" * 500),
        TaskEnd(4, "d", "done", 20, None),
    ]
    fitting = suspensions.fitting(ends, 0)
    assert fitting == {1, 4}
    by_id = {one.id: one for one in ends}
    text = suspensions.outcomes(["d", "a", "b", "c", "gone"], by_id, {1: "[1]", 4: None})
    assert msgspec.json.decode(text) == [
        {"taskId": "d", "state": "done", "omitted": True},
        {"taskId": "a", "state": "done", "result": [1]},
        {"taskId": "b", "state": "done", "omitted": True},
        {"taskId": "c", "state": "failed", "error": "no" * 100},
    ]


def test_a_suspended_run_keeps_its_deadline() -> None:
    running = rows.running(deadline_at=NOW + 100, deadline_ms=200)
    change = leases.suspend(running, TOKEN, NOW, gate=SUSPEND_GATE, eligible_at=NOW + 50).change
    assert change is not None
    after = change.after
    assert (after.state, after.gate, after.eligible_at) == ("queued", "suspend", NOW + 50)
    assert (after.deadline_at, after.unapproved) == (NOW + 100, None)
    assert after.attempts == running.attempts - 1


def test_the_end_of_a_suspended_task_leaves_its_wait() -> None:
    task = rows.queued(gate=SUSPEND_GATE)
    change = leases.cancel(task, task.id, NOW).change
    assert change is not None
    found = consequences.of(change, awaited=False)
    assert found is not None
    assert found.leaves_wait
    assert change.after.gate is None


def test_a_report_about_an_ended_task_names_it() -> None:
    task = rows.queued(state="cancelled")
    assert leases.ended(task).details == {"taskId": task.id, "state": "cancelled"}


@pytest.mark.parametrize(
    ("until", "eligible_at", "parents", "reason"),
    [
        (Until(delay_ms=5), 1000, [], "its run sleeps until 1970-01-01T00:00:01.000Z"),
        (
            Until(signal="paid"),
            None,
            [],
            'its run waits for the signal "paid"; fairlane signal tsk_1 paid',
        ),
        (Until(message=True), None, [], "its run waits for a message to its session"),
        (
            Until(tasks=["a", "b", "c", "d"]),
            None,
            [("a", "queued"), ("b", None), ("c", "running"), ("d", "queued")],
            (
                "its run waits for tasks that have not ended: "
                "a (queued), b (not known), c (running), …"
            ),
        ),
        (None, None, [("a", "queued")], "its run waits for tasks that have not ended: a (queued)"),
    ],
)
def test_why_says_what_a_run_waits_for(
    until: Until | None,
    eligible_at: int | None,
    parents: list[tuple[str, str | None]],
    reason: str,
) -> None:
    task = rows.queued(gate=SUSPEND_GATE, eligible_at=eligible_at)
    wait = None if until is None else Suspension(1, 1, "w", suspensions.text(until))
    found = explain.why(Facts(task, Policy(), wait=wait, parents=parents))
    assert (found.gate, found.reason) == ("suspend", reason)


def test_events_name_the_step_and_the_signal() -> None:
    assert Event(1, 1, NOW, STEP, 1, "3 fetch").step == (3, "fetch")
    assert Event(1, 1, NOW, STEP, 1).step is None
    assert Event(1, 1, NOW, SIGNAL, 1, "paid").signal == "paid"
    assert Event(1, 1, NOW, STEP, 1, "3 fetch").signal is None


def test_an_end_without_a_row_before_leaves_no_wait() -> None:
    task = rows.queued(state="rejected", completed_at=NOW)
    change = Change(None, copied(task), lifecycle.REJECT)
    found = consequences.of(change, awaited=False)
    assert found is not None
    assert not found.leaves_wait
