"""The history that a node keeps, by a clock that the tests move."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.core.counts import Tally
from fairlane.core.policy import AgentPolicy, Policy
from fairlane.core.workers import KnownWorker
from fairlane.engine.telemetry.history import (
    AGENTS_KEPT,
    AGENTS_SHOWN,
    WINDOWS,
    History,
    Sample,
    Waiting,
)
from fairlane.engine.telemetry.metrics import Metrics

START = 1_700_000_000_000
SECOND = 1000


class Watched:
    """A history with a store around it that is nothing but the numbers it is asked for."""

    def __init__(self, **agents: float) -> None:
        self.history = History()
        self.metrics = Metrics()
        self.policy = Policy(agents={n: AgentPolicy(weight=w) for n, w in agents.items()})
        self.now = START
        self.tally: dict[str, int] = {}
        self.held: list[tuple[str, str, int]] = []
        self.waiting: list[Waiting] = []

    def look(self, seconds: float = 1, **more: int) -> None:
        self.now += round(seconds * SECOND)
        for name, count in more.items():
            self.tally[name] = self.tally.get(name, 0) + count
        sample = Sample(self.now, {"main": Tally(**self.tally)}, self.held, self.waiting)
        self.history.add(sample, self.policy, self.metrics)

    def points(self, window: str = "5m") -> list[Any]:
        return list(self.history.span(window, self.now).buckets)

    def shares(self, window: str = "5m") -> dict[str | None, tuple[float, float]]:
        agents = self.history.span(window, self.now).agents
        return {one.agent: (round(one.share, 3), round(one.fair_share, 3)) for one in agents}


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_what_was_before_the_first_look_is_not_reported(watched: Watched) -> None:
    assert watched.history.since is None
    watched.look(submitted=100, completed=50)
    assert watched.points() == []
    assert watched.history.since == START + SECOND


def test_each_step_tells_what_was_done_in_it(watched: Watched) -> None:
    watched.look(0)
    for _ in range(10):
        watched.look(1, submitted=3, completed=1, failed=1, cancelled=1)
    points = watched.points()
    assert [point.at % 5000 for point in points] == [0] * len(points)
    assert sum(point.submitted for point in points) == 30
    assert sum(point.finished for point in points) == 30
    assert sum(point.failed for point in points) == 10
    assert points[1].submitted == 15


def test_a_point_tells_how_much_time_it_is_about(watched: Watched) -> None:
    """Else the newest, which has only begun, would look like a fall, and a gap like a peak."""
    watched.look(0)
    for _ in range(12):
        watched.look(1, completed=10)
    watched.look(60, completed=600)  # nothing could be seen for a minute
    spans = [point.span_ms for point in watched.points()]
    assert spans[1:-2] == [5000] * (len(spans) - 3)
    assert sum(spans) == 72_000
    assert {point.finished * SECOND / point.span_ms for point in watched.points()} == {10}


def test_a_task_that_is_queued_again_has_not_finished_but_no_count_is_negative(
    watched: Watched,
) -> None:
    watched.look(0, submitted=5, failed=5)
    watched.look(1, failed=-2)
    assert [(point.finished, point.failed) for point in watched.points()] == [(0, 0)]


def test_a_window_ends_where_it_ends(watched: Watched) -> None:
    watched.look(0)
    for _ in range(400):
        watched.look(1, submitted=1)
    assert 300 <= sum(point.submitted for point in watched.points()) <= 305
    assert sum(point.submitted for point in watched.points("1h")) == 400
    assert sum(point.submitted for point in watched.points("24h")) == 400


def test_a_day_takes_no_more_room_than_its_buckets(watched: Watched) -> None:
    watched.look(0)
    for _ in range(2000):
        watched.look(120, submitted=1)
    for window, (span_ms, step_ms) in WINDOWS.items():
        assert len(watched.history._rings[window]) <= span_ms // step_ms + 1
    assert 719 <= sum(point.submitted for point in watched.points("24h")) <= 728


def test_a_clock_that_is_set_back_starts_again(watched: Watched) -> None:
    watched.look(0)
    watched.look(10, submitted=1)
    watched.look(-5, submitted=1)
    watched.look(1, submitted=1)
    assert sum(point.submitted for point in watched.points()) >= 1


def test_waits_and_runs_are_those_of_the_step(watched: Watched) -> None:
    lane = watched.metrics.lane("main")
    lane.waits.observe(50_000)
    watched.look(0)
    for _ in range(10):
        lane.waits.observe(30)
        lane.runs.observe(300)
    watched.look(1)
    (point,) = watched.points()
    assert (sum(point.waits), sum(point.runs)) == (10, 10)


# --- fairness -------------------------------------------------------------------------------------


def test_an_agent_that_is_alone_has_everything_and_that_is_fair(watched: Watched) -> None:
    watched.held = [("main", "a", 3)]
    watched.look(0)
    watched.look(1)
    assert watched.shares() == {"a": (1.0, 1.0)}


def test_an_agent_that_waits_while_another_has_all_slots_is_shown(watched: Watched) -> None:
    watched.held = [("main", "greedy", 4)]
    watched.waiting = [Waiting(1, "main", "poor", 10, 0), Waiting(2, "main", "greedy", 10, 0)]
    watched.look(0)
    watched.look(1)
    assert watched.shares() == {"greedy": (1.0, 0.5), "poor": (0.0, 0.5)}


def test_what_no_worker_can_run_is_no_demand(watched: Watched) -> None:
    able = KnownWorker("w1", "node_1", frozenset({"handler/work"}))
    lines = [Waiting(1, "main", "busy", 9, 0, "handler/work")]
    lines += [Waiting(2, "main", "ghost", 9, 3, "handler/unserved")]
    sample = Sample(START, {}, [("main", "busy", 4)], lines)
    assert sample.without_unserved([]) == sample
    watched.held, watched.waiting = [*sample.held], [*sample.without_unserved([able]).waiting]
    assert [one.dispatched for one in watched.waiting] == [0, 3]
    watched.look(0)
    watched.look(1)
    assert watched.shares()["busy"] == (1.0, 1.0)


def test_an_agent_that_wants_little_is_not_owed_more(watched: Watched) -> None:
    watched.held = [("main", "busy", 9), ("main", "quiet", 1)]
    watched.waiting = [Waiting(1, "main", "busy", 100, 0)]
    watched.look(0)
    watched.look(1)
    assert watched.shares() == {"busy": (0.9, 0.9), "quiet": (0.1, 0.1)}


def test_weights_are_part_of_what_is_fair() -> None:
    watched = Watched(heavy=3.0)
    watched.held = [("main", "heavy", 2), ("main", "light", 2)]
    watched.waiting = [Waiting(1, "main", "heavy", 9, 0), Waiting(2, "main", "light", 9, 0)]
    watched.look(0)
    watched.look(1)
    assert watched.shares() == {"heavy": (0.5, 0.75), "light": (0.5, 0.25)}


def test_lanes_are_shared_out_each_for_itself(watched: Watched) -> None:
    watched.held = [("main", "a", 2), ("team", "b", 2)]
    watched.waiting = [Waiting(1, "main", "a", 9, 0), Waiting(2, "team", "b", 9, 0)]
    watched.look(0)
    watched.look(1)
    assert watched.shares() == {"a": (0.5, 0.5), "b": (0.5, 0.5)}


def test_many_agents_are_reported_as_the_first_and_the_rest(watched: Watched) -> None:
    watched.held = [("main", f"a{n:03}", 500 - n) for n in range(500)]
    watched.look(0)
    for _ in range(20):
        watched.look(1)
    shares = watched.shares()
    assert list(shares)[:2] == ["a000", "a001"]
    assert len(shares) == AGENTS_SHOWN + 1
    assert sum(has for has, _ in shares.values()) == pytest.approx(1, abs=0.02)
    assert sum(due for _, due in shares.values()) == pytest.approx(1, abs=0.02)
    assert shares[None][0] > 0.8
    for ring in watched.history._rings.values():
        assert all(len(bucket.agents) <= 2 * AGENTS_KEPT for bucket in ring)


def test_shares_are_reported_step_by_step(watched: Watched) -> None:
    watched.look(0)
    watched.held = [("main", "a", 4)]
    watched.look(5)
    watched.held = []
    watched.look(5)
    watched.held = [("main", "a", 1), ("main", "b", 3)]
    watched.waiting = [Waiting(1, "main", "a", 9, 0), Waiting(2, "main", "b", 9, 0)]
    watched.look(5)
    agents = watched.history.span("5m", watched.now).agents
    assert {one.agent: list(one.steps) for one in agents} == {
        "a": [(1, 1), None, (0.25, 0.5)],
        "b": [(0, 0), None, (0.75, 0.5)],
    }


def test_those_without_a_line_of_their_own_share_the_rest_of_each_step(watched: Watched) -> None:
    watched.held = [("main", f"a{n:03}", 500 - n) for n in range(500)]
    watched.look(0)
    watched.look(1)
    (*shown, others) = watched.history.span("5m", watched.now).agents
    assert others.agent is None
    assert len(shown) == AGENTS_SHOWN
    for agent in (*shown, others):
        (step,) = agent.steps
        assert step == pytest.approx((agent.share, agent.fair_share))


# --- paces ----------------------------------------------------------------------------------------


def test_a_line_has_a_pace_while_something_waits_in_it(watched: Watched) -> None:
    for number in range(61):
        watched.waiting = [Waiting(7, "main", "a", 5, number * 2)]
        watched.look(1, ready=0 if number else 5, dispatched=2)
    pace = watched.history.pace(7)
    assert pace is not None
    assert (pace.starts, pace.span_ms) == (120, 60_000)
    assert watched.history.pace("main") is not None
    assert watched.history.pace(8) is None


def test_a_pace_is_that_of_the_last_minutes(watched: Watched) -> None:
    dispatched = 0
    for number in range(1200):
        dispatched += 10 if number < 600 else 1
        watched.waiting = [Waiting(7, "main", "a", 5, dispatched)]
        watched.look(1)
    pace = watched.history.pace(7)
    assert pace is not None
    assert 150_000 <= pace.span_ms <= 300_000
    assert pace.starts * SECOND == pace.span_ms


def test_a_line_that_was_empty_has_no_pace_yet(watched: Watched) -> None:
    watched.waiting = [Waiting(7, "main", "a", 5, 0)]
    watched.look(60)
    watched.waiting = []
    watched.look(1)
    assert watched.history.pace(7) is None
    watched.waiting = [Waiting(7, "main", "a", 5, 100)]
    watched.look(1)
    pace = watched.history.pace(7)
    assert pace is not None
    assert (pace.starts, pace.span_ms) == (0, 0)


def test_a_line_whose_counters_began_again_is_another_one(watched: Watched) -> None:
    for dispatched in (50, 60, 3):
        watched.waiting = [Waiting(7, "main", "a", 5, dispatched)]
        watched.look(1)
    pace = watched.history.pace(7)
    assert pace is not None
    assert pace.starts == 0
