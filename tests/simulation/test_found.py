"""What the simulation has found, each as the shortest history that shows it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.clock import ManualClock
from fairlane.core.errors import StoreUnavailable
from fairlane.core.model import Submission
from fairlane.engine.engine import Engine
from fairlane.engine.requests import Fail, Grant, Lease, Release, SetPolicy, Submit
from fairlane.store.sqlite import SqliteStore
from tests.simulation.faults import AFTER_COMMIT, BEFORE_COMMIT, OPEN, Fault, FaultyStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROUTE = "handler/x"
LEASE_MS = 2000


class Bench:
    """An engine on an empty store, and the few words that the stories below need."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.real = SqliteStore(":memory:", "sqlite://:memory:")
        self.real.migrate()
        self.store = FaultyStore(self.real, self.clock)
        self.engine = Engine(self.store, self.clock, name="node_1")
        self._count = 0

    def submit(self, agent: str = "a", **values: Any) -> Submit:
        self._count += 1
        id_ = f"tsk_{self._count}"
        return Submit([Submission(id_, "handler", agent, ROUTE, "{}", **values)])

    def ask(self, *batch: Any) -> list[Any]:
        return self.engine.apply(batch).answers

    def set(self, document: Mapping[str, Any]) -> None:
        self.ask(SetPolicy(dict(document), "test"))

    def lease(self, limit: int = 1, *, batch: tuple[Any, ...] = ()) -> list[Grant]:
        wish = Lease("worker", None, frozenset({ROUTE}), limit, LEASE_MS)
        return self.engine.apply(batch, [wish]).grants[0]

    def leased(self) -> int:
        connection = self.real.reader()
        found = connection.run("task_leased")
        connection.close()
        return len(found)


@pytest.fixture
def bench() -> Iterator[Bench]:
    logging.disable(logging.WARNING)
    bench = Bench()
    yield bench
    bench.engine.close()
    bench.store.close()
    logging.disable(logging.NOTSET)


def test_a_lease_whose_commit_lost_its_answer_runs_out_in_time(bench: Bench) -> None:
    """Seed 1: what a commit has left to do was forgotten with its answer."""
    bench.ask(bench.submit())
    bench.store.prepare([Fault(AFTER_COMMIT)])
    assert len(bench.lease()) == 1
    bench.clock.advance(LEASE_MS)
    bench.engine.apply([])
    assert bench.leased() == 0


def test_a_lease_that_nobody_was_told_of_runs_out_in_time(bench: Bench) -> None:
    """Seed 3: the same, when the store did not come back in time to ask."""
    bench.ask(bench.submit())
    bench.store.prepare([Fault(AFTER_COMMIT), *[Fault(OPEN)] * 6])
    with pytest.raises(StoreUnavailable):
        bench.lease()
    bench.store.prepare([])
    bench.clock.advance(LEASE_MS)
    bench.engine.apply([])
    assert bench.leased() == 0


def test_what_a_neighbour_left_while_the_store_was_away_is_seen_in_time(bench: Bench) -> None:
    """A new connection cannot tell that somebody wrote before it was opened."""
    bench.ask(bench.submit())
    bench.store.prepare([Fault(BEFORE_COMMIT), *[Fault(OPEN)] * 6])
    with pytest.raises(StoreUnavailable):
        bench.lease()
    bench.store.prepare([])
    neighbour = Engine(bench.store, bench.clock, name="cli_1")
    wish = Lease("outside", None, frozenset({ROUTE}), 1, LEASE_MS)
    assert len(neighbour.apply([], [wish]).grants[0]) == 1
    neighbour.close()
    bench.engine.apply([])
    bench.clock.advance(LEASE_MS)
    bench.engine.apply([])
    assert bench.leased() == 0


@pytest.mark.parametrize(("old", "new"), [("fair-fifo", "priority"), ("priority", "fair-fifo")])
def test_a_task_in_flight_finds_its_line_after_a_change_of_strategy(
    bench: Bench, old: str, new: str
) -> None:
    """A task that came back after the change stood in a line that nobody looks at."""
    bench.set({"lanes": {"main": {"strategy": old}}})
    bench.ask(bench.submit())
    task = bench.lease()[0].task
    bench.set({"lanes": {"main": {"strategy": new}}})
    bench.ask(Release(task.seq, task.token))
    assert [grant.task.seq for grant in bench.lease()] == [task.seq]


def test_a_newcomer_does_not_pass_those_that_rank_higher_in_its_session(bench: Bench) -> None:
    """Seed 1: a newcomer took the turn of a task between two attempts, past a higher one."""
    bench.set({"kinds": {"handler": {"backoffMs": 0}}})
    bench.ask(bench.submit(session="s"))
    first = bench.lease()[0].task
    bench.ask(bench.submit(session="s", priority=-10))
    bench.ask(Fail(first.seq, first.token, "went wrong"))
    bench.engine.apply([])
    bench.ask(bench.submit(session="s", priority=-5))
    assert [grant.task.seq for grant in bench.lease(limit=3)] == [first.seq]


def test_agents_at_their_ceiling_hide_nobody(bench: Bench) -> None:
    """Many of them ahead of two others: the first of the two got everything."""
    full = {f"full-{number}": {"weight": 100, "maxInflight": 1} for number in range(10)}
    bench.set({"agents": full})
    bench.ask(*[bench.submit(agent) for agent in full for _ in range(2)])
    assert len(bench.lease(limit=20)) == len(full)
    bench.lease(limit=2, batch=(bench.submit("a"), bench.submit("b")))
    both = [bench.submit(agent) for agent in "ab" for _ in range(4)]
    assert [grant.task.agent for grant in bench.lease(4, batch=tuple(both))] == list("abab")
