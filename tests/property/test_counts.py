"""After any history the counters are what a recount of the tasks gives."""

from __future__ import annotations

from hypothesis import given

from fairlane.core import counts, lifecycle
from fairlane.core.counts import Tally
from fairlane.core.model import Change, Task
from tests.property.histories import BOUNDED, History, Step, histories, step_lists

FACTS = ("queued", "ready", "urgent", "inflight", "slots", "parked")
TOTALS = ("submitted", "completed", "failed", "cancelled", "rejected")


def _recounted(tasks: list[Task]) -> dict[str, int]:
    """The counters of these tasks, from what the states mean rather than from what happened."""
    queued = [task for task in tasks if task.state == "queued"]
    ready = [task for task in queued if task.gate is None]
    states = [task.state for task in tasks]
    return {
        "queued": len(queued) + states.count("waiting_dependency"),
        "ready": len(ready),
        "urgent": len([task for task in ready if task.priority <= -20]),
        "inflight": states.count("assigned") + states.count("running"),
        "slots": len([task for task in tasks if task.lease_expires_at is not None]),
        "parked": states.count("parked"),
        "submitted": len(states) - states.count("rejected"),
        "completed": states.count("done"),
        "failed": states.count("failed"),
        "cancelled": states.count("cancelled"),
        "rejected": states.count("rejected"),
    }


def _counted(tally: Tally) -> dict[str, int]:
    return {name: getattr(tally, name) for name in (*FACTS, *TOTALS)}


@BOUNDED
@given(step_lists)
def test_the_counters_equal_a_recount_at_every_moment(steps: list[Step]) -> None:
    history = History()
    for step in steps:
        history.take(step)
        tasks = list(history.tasks.values())
        assert _counted(history.lane) == _recounted(tasks)
        assert history.lane.balanced


@BOUNDED
@given(histories)
def test_each_agents_line_equals_a_recount_and_the_lines_add_up_to_the_lane(
    history: History,
) -> None:
    tasks = history.tasks.values()
    for (agent, route), line in history.lines.items():
        own = [task for task in tasks if (task.agent, task.capability) == (agent, route)]
        assert _counted(line) == _recounted(own)
        assert line.balanced
    for name in Tally.__struct_fields__:
        parts = (getattr(line, name) for line in history.lines.values())
        assert sum(parts) == getattr(history.lane, name)


@BOUNDED
@given(histories)
def test_the_totals_that_leave_no_trace_in_a_row_equal_what_happened(history: History) -> None:
    granted = [change for change in history.changes if change.verb == lifecycle.LEASE]
    assert history.lane.dispatched == len(granted)
    assert history.lane.waited_ms == sum(change.waited_ms for change in granted)
    never_ran = [change for change in history.changes if change.error and _queued_too_long(change)]
    assert history.lane.expired == len(never_ran)


def _queued_too_long(change: Change) -> bool:
    return change.error == "deadline exceeded while queued"


@BOUNDED
@given(histories)
def test_a_change_and_its_reverse_leave_the_facts_as_they_were(history: History) -> None:
    for change in history.changes:
        if change.before is not None:
            tally = Tally()
            line = Tally()
            counts.apply(tally, line, Change(change.before, change.after, lifecycle.RENEW))
            counts.apply(tally, line, Change(change.after, change.before, lifecycle.RENEW))
            assert tally == line == Tally()
