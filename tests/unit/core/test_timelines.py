"""The timeline of a task follows from its events."""

from __future__ import annotations

from typing import Any

from fairlane.core import events, lifecycle, timelines
from fairlane.core.events import Event
from fairlane.core.model import SUSPEND_GATE
from fairlane.core.suspensions import Suspension, Until, text
from fairlane.core.timelines import Timeline
from tests.unit.core import rows

CHILD = "tsk_" + "a" * 28


def drawn(
    task: Any,
    *log: tuple[int, str] | tuple[int, str, str | None],
    wait: Any = None,
    taken: Any = (),
) -> Any:
    """The timeline of events given as time, type and detail; an attempt for each start."""
    found, attempt = [], 0
    for number, (at, kind, *detail) in enumerate(log):
        attempt += kind == events.STARTED
        found.append(Event(number, 1, at, kind, attempt, *detail))
    return timelines.timeline(task, found, wait, taken)


def spans(found: Timeline) -> list[tuple[object, ...]]:
    return [(one.kind, one.reason, one.start_at, one.end_at, one.outcome) for one in found.spans]


def test_a_task_waits_runs_fails_waits_again_and_ends() -> None:
    found = drawn(
        rows.queued(),
        (0, events.CREATED),
        (5, events.STARTED, "w1"),
        (9, events.RETRYING, "boom"),
        (20, events.STARTED, "w2"),
        (30, events.RELEASED),
        (31, events.STARTED, "w2"),
        (40, events.COMPLETED),
    )
    assert spans(found) == [
        ("wait", "queue", 0, 5, None),
        ("run", None, 5, 9, "retrying"),
        ("wait", "retry", 9, 20, None),
        ("run", None, 20, 30, "released"),
        ("wait", "queue", 30, 31, None),
        ("run", None, 31, 40, "completed"),
    ]
    assert [(one.attempt, one.worker, one.error) for one in found.spans if one.kind == "run"] == [
        (1, "w1", "boom"),
        (2, "w2", None),
        (3, "w2", None),
    ]


def test_a_dependency_a_parked_task_and_a_reset_are_seen() -> None:
    found = drawn(
        rows.queued(gate="session"),
        (0, events.CREATED, lifecycle.WAITING),
        (4, events.UNBLOCKED),
        (6, events.STARTED),
        (9, events.PARKED, "no"),
        (50, events.REQUEUED),
    )
    assert spans(found) == [
        ("wait", "dependency", 0, 4, None),
        ("wait", "queue", 4, 6, None),
        ("run", None, 6, 9, "parked"),
        ("parked", None, 9, 50, None),
        ("wait", "session", 50, None, None),
    ]


def test_a_wait_of_a_task_that_is_parked_keeps_no_gate() -> None:
    parked = rows.queued(state=lifecycle.PARKED)
    found = drawn(parked, (0, events.CREATED), (3, events.PARKED, "no"))
    assert spans(found)[-1] == ("parked", None, 3, None, None)


def test_a_delay_ends_before_the_wait_for_a_slot_begins() -> None:
    delayed = rows.queued(delay_ms=100)
    log = ((0, events.CREATED), (130, events.STARTED))
    assert spans(drawn(delayed, *log))[:2] == [
        ("wait", "delay", 0, 100, None),
        ("wait", "queue", 100, 130, None),
    ]
    assert spans(drawn(delayed, (0, events.CREATED), (60, events.CANCELLED))) == [
        ("wait", "delay", 0, 60, None)
    ]
    held = rows.queued(delay_ms=100, gate="delay")
    assert spans(drawn(held, (0, events.CREATED))) == [("wait", "delay", 0, None, None)]
    assert spans(drawn(delayed, (0, events.CREATED)))[-1] == ("wait", "queue", 100, None, None)


def test_a_suspension_ends_with_the_step_that_records_its_cause() -> None:
    found = drawn(
        rows.queued(),
        (0, events.CREATED),
        (1, events.STARTED),
        (2, events.STEP, "1 fetch"),
        (3, events.SUSPENDED),
        (60, events.STEP, "2 sleep"),
        (61, events.STARTED),
        (62, events.SIGNAL, "go"),
        (70, events.COMPLETED),
    )
    assert spans(found)[2:4] == [
        ("suspended", "sleep", 3, 60, None),
        ("wait", "queue", 60, 61, None),
    ]
    assert [(one.kind, one.name) for one in found.marks] == [
        ("step", "fetch"),
        ("step", "sleep"),
        ("signal", "go"),
    ]


def test_messages_that_a_run_has_taken_are_marks_in_their_place() -> None:
    log = ((0, events.CREATED), (1, events.STARTED), (5, events.SIGNAL, "go"))
    found = drawn(rows.queued(), *log, taken=[(3, "ann"), (9, "bob")])
    assert [(one.kind, one.at, one.name) for one in found.marks] == [
        ("message", 3, "ann"),
        ("signal", 5, "go"),
        ("message", 9, "bob"),
    ]


def test_what_a_suspended_run_waits_for_is_named() -> None:
    log = ((0, events.CREATED), (1, events.STARTED), (2, events.SUSPENDED))
    said = {
        "2 tasks": Until(tasks=["a", "b"]),
        "1 task": Until(tasks=["a"]),
        "signal go": Until(signal="go"),
        "a time": Until(delay_ms=5),
        "a message": Until(message=True),
    }
    task = rows.queued(gate=SUSPEND_GATE)
    for words, until in said.items():
        wait = Suspension(1, 1, "wait", text(until))
        assert spans(drawn(task, *log, wait=wait))[-1][:2] == ("suspended", words)
    assert spans(drawn(task, *log))[-1][:2] == ("suspended", None)


def test_an_approval_is_waited_for_before_a_run_and_within_one() -> None:
    found = drawn(
        rows.queued(),
        (0, events.CREATED),
        (0, events.APPROVAL_OPENED, "apr_1 open"),
        (8, events.APPROVAL_DECIDED, "apr_1 approved"),
        (9, events.STARTED),
        (10, events.APPROVAL_OPENED, "apr_2 open"),
        (10, events.SUSPENDED),
        (20, events.APPROVAL_EXPIRED, "apr_2 expired"),
        (21, events.STARTED),
        (22, events.SUSPENDED),
        (22, events.APPROVAL_OPENED, "apr_3 open"),
    )
    assert spans(found) == [
        ("wait", "approval", 0, 8, None),
        ("wait", "queue", 8, 9, None),
        ("run", None, 9, 10, "suspended"),
        ("suspended", "approval", 10, 20, None),
        ("wait", "queue", 20, 21, None),
        ("run", None, 21, 22, "suspended"),
        ("suspended", "approval", 22, None, None),
    ]
    assert [one.kind for one in found.marks][:2] == ["approval opened", "approval decided"]


def test_an_approval_outside_of_a_wait_is_only_a_mark() -> None:
    found = drawn(
        rows.queued(), (0, events.APPROVAL_OPENED, "apr_1 open"), (1, events.APPROVAL_CANCELLED)
    )
    assert spans(found) == []
    assert len(found.marks) == 2


def test_a_rejected_task_and_an_unknown_event_draw_nothing() -> None:
    found = drawn(rows.queued(), (0, events.REJECTED, "full"), (1, "task.odd"), (2, events.STEP))
    assert spans(found) == []
    assert [one.kind for one in found.marks] == ["odd", "step"]


def test_a_clock_that_was_set_back_makes_no_negative_span() -> None:
    found = drawn(rows.queued(), (10, events.CREATED), (4, events.STARTED), (6, events.FAILED, "x"))
    assert spans(found)[0] == ("wait", "queue", 10, 10, None)
    assert found.spans[1].error == "x"


def test_of_very_many_spans_the_newest_are_kept() -> None:
    log = [(0, events.CREATED)]
    for number in range(timelines.SPANS_MAX):
        log += [(2 * number, events.STARTED), (2 * number + 1, events.RELEASED)]
    found = drawn(rows.queued(), *log)
    assert len(found.spans) == timelines.SPANS_MAX
    assert found.omitted == timelines.SPANS_MAX + 1


def test_children_are_the_tasks_that_steps_name() -> None:
    values = [f'"{CHILD}"', f'[{{"taskId": "{CHILD[:-1]}b"}}, 3]', '"tsk_short"', "{broken", "null"]
    assert timelines.children(values) == [CHILD, f"{CHILD[:-1]}b"]
