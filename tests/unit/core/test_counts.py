"""Counters: what every kind of change adds and takes away."""

from __future__ import annotations

import pytest

from fairlane.core import counts
from fairlane.core.counts import Line, Tally
from fairlane.core.model import Change, Task
from tests.unit.core import rows

NOTHING = Tally()


def _moved(change: Change) -> dict[str, int]:
    """What a change adds to each counter, without the counters that it does not change."""
    tally, line = Tally(), Tally()
    counts.apply(tally, line, change)
    assert line == tally
    return {name: value for name in tally.__struct_fields__ if (value := getattr(tally, name))}


@pytest.mark.parametrize(
    ("before", "after", "verb", "moved"),
    [
        (None, rows.queued(), "submit", {"submitted": 1, "queued": 1, "ready": 1}),
        (None, rows.queued(gate="session"), "submit", {"submitted": 1, "queued": 1}),
        (
            None,
            rows.queued(priority=-20),
            "submit",
            {"submitted": 1, "queued": 1, "ready": 1, "urgent": 1},
        ),
        (None, rows.queued(priority=-20, gate="session"), "submit", {"submitted": 1, "queued": 1}),
        (None, rows.queued(priority=-19), "submit", {"submitted": 1, "queued": 1, "ready": 1}),
        (None, rows.queued(state="rejected"), "reject", {"rejected": 1}),
        (None, rows.waiting(), "submit", {"submitted": 1, "queued": 1}),
        (None, rows.waiting(priority=-20), "submit", {"submitted": 1, "queued": 1}),
        (rows.waiting(unmet=2), rows.waiting(unmet=1), "meet", {}),
        (rows.waiting(), rows.queued(unmet=0), "unblock", {"ready": 1}),
        (
            rows.waiting(),
            rows.queued(state="cancelled"),
            "cancel",
            {"queued": -1, "cancelled": 1},
        ),
        (
            rows.waiting(),
            rows.queued(state="failed"),
            "expire",
            {"queued": -1, "failed": 1, "expired": 1},
        ),
        (
            rows.queued(state="failed"),
            rows.queued(),
            "retry",
            {"failed": -1, "queued": 1, "ready": 1},
        ),
        (
            rows.queued(state="cancelled"),
            rows.waiting(),
            "retry",
            {"cancelled": -1, "queued": 1},
        ),
        (rows.running(preempt=0), rows.running(preempt=1), "preempt", {}),
        (rows.queued(gate="session"), rows.queued(), "promote", {"ready": 1}),
        (rows.queued(), rows.queued(gate="session"), "hold", {"ready": -1}),
        (
            rows.queued(),
            rows.assigned(),
            "lease",
            {"queued": -1, "ready": -1, "inflight": 1, "slots": 1, "dispatched": 1},
        ),
        (rows.assigned(), rows.running(), "start", {}),
        (rows.running(), rows.running(lease_expires_at=rows.NOW + 9), "renew", {}),
        (
            rows.running(),
            rows.queued(state="done"),
            "complete",
            {"inflight": -1, "slots": -1, "completed": 1},
        ),
        (
            rows.running(),
            rows.queued(state="failed"),
            "fail",
            {"inflight": -1, "slots": -1, "failed": 1},
        ),
        (
            rows.running(),
            rows.queued(gate="delay"),
            "back_off",
            {"inflight": -1, "slots": -1, "queued": 1},
        ),
        (
            rows.running(),
            rows.queued(state="parked"),
            "park",
            {"inflight": -1, "slots": -1, "parked": 1},
        ),
        (
            rows.running(),
            rows.queued(),
            "release",
            {"inflight": -1, "slots": -1, "queued": 1, "ready": 1},
        ),
        (
            rows.queued(state="parked"),
            rows.queued(),
            "reset",
            {"parked": -1, "queued": 1, "ready": 1},
        ),
        (
            rows.queued(),
            rows.queued(state="cancelled"),
            "cancel",
            {"queued": -1, "ready": -1, "cancelled": 1},
        ),
        (rows.running(), rows.stopped(), "cancel", {"inflight": -1, "cancelled": 1}),
        (rows.stopped(), rows.stopped(lease_expires_at=None), "close", {"slots": -1}),
        (
            rows.queued(),
            rows.queued(state="failed"),
            "expire",
            {"queued": -1, "ready": -1, "failed": 1, "expired": 1},
        ),
        (
            rows.assigned(),
            rows.assigned(state="failed"),
            "expire",
            {"inflight": -1, "failed": 1, "expired": 1},
        ),
        (rows.running(), rows.running(state="failed"), "expire", {"inflight": -1, "failed": 1}),
    ],
)
def test_a_change_moves_exactly_these_counters(
    before: Task | None, after: Task, verb: str, moved: dict[str, int]
) -> None:
    assert _moved(Change(before, after, verb)) == moved


def test_the_time_that_a_task_waited_is_summed_when_it_is_leased() -> None:
    change = Change(rows.queued(), rows.assigned(), "lease", waited_ms=250)
    assert _moved(change)["waited_ms"] == 250


def test_the_sum_of_waits_stops_before_a_store_could_not_keep_it() -> None:
    tally, line = Tally(waited_ms=2**63 - 1), Tally()
    change = Change(rows.queued(), rows.assigned(), "lease", waited_ms=250)
    counts.apply(tally, line, change)
    assert (tally.waited_ms, line.waited_ms) == (counts.WAITED_MS_MAX, 250)


def test_a_line_counts_as_its_lane_does() -> None:
    line = Line(lane="main", agent="ada", capability="handler/count")
    counts.apply(Tally(), line, Change(None, rows.queued(), "submit"))
    assert (line.submitted, line.queued, line.ready) == (1, 1, 1)
    assert (line.agent, line.share, line.served) == ("ada", 0.0, 0)


def test_everything_admitted_is_somewhere_exactly_once() -> None:
    whole = Tally(
        submitted=21, completed=1, failed=2, cancelled=3, parked=4, queued=5, inflight=6, rejected=9
    )
    assert whole.balanced
    assert NOTHING.balanced
    for name in ("submitted", "completed", "failed", "cancelled", "parked", "queued", "inflight"):
        fields = {field: getattr(whole, field) for field in whole.__struct_fields__}
        assert not Tally(**{**fields, name: fields[name] + 1}).balanced
