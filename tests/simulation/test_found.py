"""What the simulation has found, each as the shortest history that shows it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.clock import ManualClock
from fairlane.core.errors import StoreUnavailable
from fairlane.core.model import Submission
from fairlane.engine.commands import (
    AppendOutput,
    Cancel,
    Complete,
    Fail,
    Grant,
    Lease,
    NewBatch,
    Prune,
    Release,
    Retry,
    SetPolicy,
    Submit,
)
from fairlane.engine.engine import Engine
from fairlane.engine.verbs import dependencies
from fairlane.store.sqlite import SqliteStore
from tests.simulation.faults import AFTER_COMMIT, BEFORE_COMMIT, OPEN, Fault, FaultyStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROUTE = "handler/x"
LEASE_MS = 2000
HOUR_MS = 3_600_000


class Bench:
    """An engine on an empty store, and the few words that the stories below need."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.real = SqliteStore(":memory:", "sqlite://:memory:")
        self.real.migrate()
        self.store = FaultyStore(self.real, self.clock)
        self.engine = Engine(self.store, self.clock, name="node_1")
        self._count = 0

    def submission(self, agent: str = "a", **values: Any) -> Submission:
        self._count += 1
        values = {"id": f"tsk_{self._count}", "kind": "handler", "capability": ROUTE, **values}
        return Submission(agent=agent, body="{}", **values)

    def submit(self, agent: str = "a", **values: Any) -> Submit:
        return Submit([self.submission(agent, **values)])

    def ask(self, *batch: Any) -> list[Any]:
        return self.engine.apply(batch).answers

    def set(self, document: Mapping[str, Any]) -> None:
        self.ask(SetPolicy(dict(document), "test"))

    def lease(self, limit: int = 1, *, batch: tuple[Any, ...] = ()) -> list[Grant]:
        wish = Lease("worker", None, frozenset({ROUTE}), limit, LEASE_MS)
        return self.engine.apply(batch, [wish]).grants[0]

    def rows(self, sql: str) -> list[Any]:
        connection = self.real.open_file(readonly=True)
        found = connection.execute(sql).fetchall()
        connection.close()
        return list(found)

    def state(self, id_: str) -> str:
        return str(self.rows(f"SELECT state FROM task WHERE id = '{id_}'")[0][0])

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
    bench.engine.apply([])  # it was away for too short a time to give anybody more
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
    bench.ask(Release(task.seq, task.fencing_token))
    assert [grant.task.seq for grant in bench.lease()] == [task.seq]


def test_a_newcomer_does_not_pass_those_that_rank_higher_in_its_session(bench: Bench) -> None:
    """Seed 1: a newcomer took the turn of a task between two attempts, past a higher one."""
    bench.set({"kinds": {"handler": {"backoffMs": 0}}})
    bench.ask(bench.submit(session="s"))
    first = bench.lease()[0].task
    bench.ask(bench.submit(session="s", priority=-10))
    bench.ask(Fail(first.seq, first.fencing_token, "went wrong"))
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


def test_a_newcomer_does_not_pass_those_that_were_revived_into_its_session(bench: Bench) -> None:
    """Seed 5: it passed the one that had the turn, and with it one that ranks above them all."""
    bench.ask(bench.submit(session="s", priority=-15))
    bench.ask(Cancel("tsk_1"))
    bench.ask(bench.submit(session="s"))
    bench.ask(Retry("tsk_1"))
    bench.ask(bench.submit(session="s", priority=-5))
    assert [grant.task.id for grant in bench.lease(limit=3)] == ["tsk_1"]


def test_a_task_that_waits_for_its_batch_lets_others_of_its_session_pass(bench: Bench) -> None:
    """Seed 6: whoever came first kept the turn, because it was not ready yet."""
    items = [bench.submission(session="s", batch="bat_1", priority=number) for number in (5, -5)]
    bench.ask(Submit(items, None, NewBatch("bat_1", "a", 1)))
    assert [grant.task.id for grant in bench.lease(limit=2)] == ["tsk_2"]


def test_no_run_is_pre_empted_when_no_worker_can_use_the_slot(bench: Bench) -> None:
    """Seed 6: a run was stopped for a worker that had all it asked for, and again, for ever."""
    bench.set({"lanes": {"main": {"maxInflight": 1}}})
    low = bench.submit(preemptible=True, priority=10)
    bench.lease(batch=(low,))
    bench.ask(bench.submit(lane="team"), bench.submit(priority=-20))
    assert [grant.task.lane for grant in bench.lease()] == ["team"]
    assert bench.rows("SELECT preempt FROM task WHERE id = 'tsk_1'") == [(0,)]
    bench.lease()
    assert bench.rows("SELECT preempt FROM task WHERE id = 'tsk_1'") == [(1,)]


def test_a_deadline_survives_a_clock_that_was_set_back(bench: Bench) -> None:
    """Seed 4: the span of a revived task was counted from the latest moment, not the last."""
    bench.ask(bench.submit(deadline_at=bench.clock.now() + 5000))
    for jump in (HOUR_MS, -HOUR_MS, 1):
        bench.ask(Cancel("tsk_1"))
        bench.clock.advance(jump)
        bench.ask(Retry("tsk_1"))
    assert bench.rows("SELECT deadline_at FROM task") == [(bench.clock.now() + 5000,)]


def test_a_child_whose_parents_were_done_before_it_was_made_can_be_revived(bench: Bench) -> None:
    """Seed 10: by a clock that was set back; its deadline had passed when it began again."""
    bench.ask(
        bench.submit(),
        bench.submit(depends_on=("tsk_1",), kind="action", capability="action"),
    )
    task = bench.lease()[0].task
    bench.clock.advance(-HOUR_MS)
    bench.ask(Complete(task.seq, task.fencing_token))
    bench.ask(Cancel("tsk_2"))
    bench.clock.advance(HOUR_MS)
    bench.ask(Retry("tsk_2"))
    bench.engine.apply([])
    assert bench.state("tsk_2") == "queued"


def test_a_batch_of_refused_tasks_is_kept_until_its_webhook_is_sent(bench: Bench) -> None:
    """Seed 1: records of refused tasks go early, and took the batch with them."""
    bench.set({"lanes": {"main": {"maxQueueSize": 1}}})
    bench.ask(bench.submit())
    url = "https://example.org/hook"
    refused = [bench.submission(batch="bat_1")]
    bench.ask(Submit(refused, None, NewBatch("bat_1", "a", None, url)))
    bench.clock.advance(2 * HOUR_MS)
    bench.ask(Prune(dry_run=False))
    assert bench.rows("SELECT id FROM batch") == [("bat_1",)]


def test_output_of_a_run_that_never_was_is_dropped(bench: Bench) -> None:
    """Seed 3: a lease that nobody has has the token of a task that nobody has run."""
    bench.ask(bench.submit())
    bench.ask(AppendOutput(1, 0, 0, "made up"))
    assert bench.rows("SELECT * FROM output") == []


def test_what_is_left_of_an_end_is_not_held_up_by_newer_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 7: as long as others ended, the children of an earlier one waited."""
    monkeypatch.setattr(dependencies, "EDGES_MAX", 1)
    bench.ask(
        bench.submit(),
        *[bench.submit(depends_on=("tsk_1",)) for _ in range(3)],
        *[bench.submit() for _ in range(3)],
        *[bench.submit(depends_on=(f"tsk_{number}",)) for number in (5, 6, 7)],
    )
    bench.ask(Cancel("tsk_1"))
    for number in (5, 6, 7):
        bench.ask(Cancel(f"tsk_{number}"))
    assert [bench.state(f"tsk_{number}") for number in (2, 3, 4)] == ["cancelled"] * 3


def test_a_parent_is_kept_until_its_revival_has_reached_its_children(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 2: it was done and forgotten by then, and a child waited for it for ever."""
    monkeypatch.setattr(dependencies, "EDGES_MAX", 1)
    bench.set({"retention": {"days": 1}})
    bench.ask(bench.submit(), *[bench.submit(depends_on=("tsk_1",)) for _ in range(3)])
    bench.ask(Cancel("tsk_1"))
    for _ in range(3):
        bench.ask()
    assert bench.state("tsk_4") == "cancelled"
    bench.ask(Retry("tsk_1"))
    task = bench.lease()[0].task
    bench.ask(Complete(task.seq, task.fencing_token))
    bench.clock.advance(25 * HOUR_MS)
    for _ in range(12):
        bench.ask()
    assert bench.rows("SELECT * FROM unsettled") == []
    assert bench.rows("SELECT id FROM task WHERE state = 'waiting_dependency'") == []
