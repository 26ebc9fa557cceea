"""Events: what each change leaves behind, and how attempts are read from it."""

from __future__ import annotations

import pytest

from fairlane.core import events, lifecycle
from fairlane.core.events import Attempt, Event
from fairlane.core.model import Change, Task
from tests.unit.core import rows
from tests.unit.core.rows import NOW

ENDED = rows.queued(state="failed")


@pytest.mark.parametrize(
    ("before", "after", "verb", "fact"),
    [
        (None, rows.queued(), "submit", ("task.created", None)),
        (None, rows.waiting(), "submit", ("task.created", "waiting_dependency")),
        (None, rows.queued(state="rejected"), "reject", ("task.rejected", "why")),
        (rows.queued(), rows.assigned(), "lease", None),
        (rows.queued(), rows.running(), "lease", ("task.started", "w1")),
        (rows.assigned(), rows.running(), "start", ("task.started", "w1")),
        (rows.running(), rows.queued(state="done"), "complete", ("task.completed", "why")),
        (rows.running(), ENDED, "fail", ("task.failed", "why")),
        (rows.running(), ENDED, "expire", ("task.failed", "why")),
        (rows.running(), rows.queued(gate="delay"), "back_off", ("task.retrying", "why")),
        (rows.running(), rows.queued(state="parked"), "park", ("task.parked", "why")),
        (rows.running(), rows.queued(), "release", ("task.released", "why")),
        (rows.waiting(), rows.queued(state="cancelled"), "cancel", ("task.cancelled", "why")),
        (rows.queued(state="parked"), rows.queued(), "reset", ("task.requeued", None)),
        (ENDED, rows.queued(), "retry", ("task.requeued", None)),
        (ENDED, rows.waiting(), "retry", ("task.requeued", "waiting_dependency")),
        (rows.waiting(), rows.queued(), "unblock", ("task.unblocked", "why")),
        (rows.waiting(unmet=2), rows.waiting(), "meet", None),
        (rows.queued(gate="session"), rows.queued(), "promote", None),
        (rows.queued(), rows.queued(gate="session"), "hold", None),
        (rows.running(), rows.running(), "renew", None),
        (rows.running(preempt=0), rows.running(preempt=1), "stop", None),
        (rows.stopped(), rows.stopped(lease_expires_at=None), "close", None),
    ],
)
def test_a_change_leaves_this_behind(
    before: Task | None, after: Task, verb: str, fact: tuple[str, str | None] | None
) -> None:
    assert events.of(Change(before, after, verb, error="why")) == fact


def test_every_verb_that_moves_a_task_leaves_something_behind() -> None:
    """A lease does when the run begins, and a task is blocked while it is made."""
    silent = {lifecycle.LEASE, lifecycle.BLOCK}
    verbs = {verb for moves in lifecycle.MOVES.values() for verb in moves} - silent
    for verb in verbs:
        assert events.of(Change(rows.queued(), rows.queued(), verb)) is not None


def _event(kind: str, detail: str | None = None, **given: int) -> Event:
    return Event(given.get("id", 1), 1, given.get("at", NOW), kind, given.get("attempt", 1), detail)


def test_an_event_stands_for_a_state_unless_it_names_another() -> None:
    assert {kind: _event(kind).state for kind in events.STATES} == dict(events.STATES)
    assert _event("task.created", "waiting_dependency").state == "waiting_dependency"
    assert _event("task.requeued", "waiting_dependency").state == "waiting_dependency"
    assert _event("task.failed", "no luck").state == "failed"
    assert _event("batch.completed", "cancelled").state == "cancelled"
    assert _event("batch.completed").state is None


def test_the_detail_of_an_event_is_a_worker_or_an_error_or_neither() -> None:
    told = {kind: _event(kind, "x") for kind in events.TYPES}
    assert {kind for kind, one in told.items() if one.worker} == {"task.started"}
    assert {kind for kind, one in told.items() if one.error} == {
        "task.failed",
        "task.retrying",
        "task.parked",
        "task.cancelled",
        "task.rejected",
    }


def test_attempts_begin_with_a_start_and_end_with_what_came_next() -> None:
    log = events.attempts(
        [
            _event("task.created", at=NOW, attempt=0),
            _event("task.started", "w1", at=NOW + 1),
            _event("task.retrying", "no luck", at=NOW + 2),
            _event("task.started", "w2", at=NOW + 3, attempt=2),
            _event("task.completed", at=NOW + 4, attempt=2),
        ]
    )
    assert log == [
        Attempt(1, NOW + 1, "w1", NOW + 2, "retrying", "no luck"),
        Attempt(2, NOW + 3, "w2", NOW + 4, "completed", None),
    ]


def test_an_attempt_that_goes_on_has_no_end() -> None:
    assert events.attempts([_event("task.started", "w1")]) == [Attempt(1, NOW, "w1")]


@pytest.mark.parametrize(
    "history",
    [
        ["task.created", "task.cancelled"],
        ["task.created", "task.failed", "task.requeued"],
        ["task.released"],
        [],
    ],
)
def test_what_never_started_has_no_attempts(history: list[str]) -> None:
    assert events.attempts([_event(kind) for kind in history]) == []


def test_an_attempt_that_never_said_it_began_is_in_the_log_when_it_has_failed() -> None:
    log = events.attempts(
        [
            _event("task.created", attempt=0),
            _event("task.progress", "50"),
            _event("task.retrying", "gone", at=NOW + 1),
            _event("task.started", "w2", at=NOW + 2, attempt=2),
            _event("task.retrying", "again", at=NOW + 3, attempt=2),
            _event("task.parked", "spent", at=NOW + 4, attempt=3),
            _event("task.requeued", at=NOW + 5, attempt=0),
            _event("task.retrying", "again", at=NOW + 6),
        ]
    )
    assert log == [
        Attempt(1, NOW + 1, None, NOW + 1, "retrying", "gone"),
        Attempt(2, NOW + 2, "w2", NOW + 3, "retrying", "again"),
        Attempt(3, NOW + 4, None, NOW + 4, "parked", "spent"),
        Attempt(1, NOW + 6, None, NOW + 6, "retrying", "again"),
    ]


def test_progress_is_reported_by_its_event_only() -> None:
    assert _event("task.progress", '{"done":1}').progress == '{"done":1}'
    assert _event("task.started", "w1").progress is None


def test_an_end_belongs_to_one_attempt_only() -> None:
    log = events.attempts(
        [
            _event("task.started", "w1", at=NOW),
            _event("task.released", at=NOW + 1),
            _event("task.cancelled", at=NOW + 2),
            _event("task.requeued", at=NOW + 3),
        ]
    )
    assert log == [Attempt(1, NOW, "w1", NOW + 1, "released", None)]


def test_what_cron_has_fired_names_its_job_and_run() -> None:
    assert _event(events.CRON_FIRED, "job_1 run_2").fired == ("job_1", "run_2")
    assert _event(events.CREATED, "job_1 run_2").fired is None
    assert _event(events.CRON_FIRED).fired is None


def test_an_attempt_ran_from_its_start_to_its_end() -> None:
    assert Attempt(1, NOW, "w1", NOW + 7, "completed").ran_ms == 7
    assert Attempt(1, NOW, "w1", NOW - 7, "completed").ran_ms == 0  # the clock was set back
    assert Attempt(1, NOW, "w1").ran_ms is None


def test_an_event_of_a_resource_says_what_happened() -> None:
    assert Event(1, None, NOW, events.RESOURCE_CLOSED, 0, '{"resource":"gpt"}').resource
    assert Event(1, None, NOW, events.PROGRESS, 0, "{}").resource is None
