"""Cron under fire: lost answers, several nodes, many jobs. Each slot fires once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import pytest

from fairlane.clock import ManualClock
from fairlane.core.cron import Schedule
from fairlane.engine.commands import CreateJobs
from fairlane.engine.verbs import cron
from fairlane.store.tables.cron import save_jobs
from tests.store.crontab import HOUR, MINUTE, Crontab, job_document
from tests.store.faults import CONNECT, MOMENTS, BreakOnce, WatchedConnection, WatchedStore
from tests.store.invariants import assert_sound
from tests.store.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fairlane.store.base import Row, Store


@pytest.fixture
def crontab(scheduler: Scheduler) -> Iterator[Crontab]:
    crontab = Crontab(scheduler)
    yield crontab
    crontab.views.close()


@pytest.mark.parametrize("moment", [moment for moment in MOMENTS if moment != CONNECT])
def test_an_answer_that_gets_lost_fires_nothing_twice_and_loses_nothing(
    store: Store, moment: str
) -> None:
    fault = BreakOnce(moment)
    scheduler = Scheduler(WatchedStore(store, fault))
    crontab = Crontab(scheduler)
    try:
        crontab.add(overlap="allow", schedule={"kind": "every", "everyMs": HOUR})
        for number in range(1, 4):
            fault.arm()
            scheduler.clock.advance(HOUR)
            scheduler.engine.others_wrote()
            scheduler.apply()
            crontab.settle()
            assert len(crontab.runs()) == number
            fault.arm()
            crontab.complete("done")
            assert crontab.statuses() == ["ok"] * number
        assert fault.struck
        assert_sound(scheduler.reader, scheduler.engine.policy)
    finally:
        crontab.views.close()
        scheduler.close()


def test_two_nodes_fire_each_slot_once(new_scheduler: Callable[..., Scheduler]) -> None:
    first = new_scheduler("node_1")
    second = new_scheduler("node_2", first.clock)
    crontab = Crontab(first)
    try:
        crontab.add(overlap="allow")
        for _ in range(5):
            first.clock.advance(MINUTE)
            for scheduler in (second, first, second):
                scheduler.engine.due_at = 0
                scheduler.apply()
        runs = crontab.runs()
    finally:
        crontab.views.close()
    assert len(runs) == len({run.slot for run in runs}) == 5


def test_nodes_that_look_at_once_fire_each_slot_once(postgres_store: Store) -> None:
    clock = ManualClock()
    nodes = [Scheduler(postgres_store, clock, f"node_{number}") for number in (1, 2, 3)]
    first = nodes[0]
    crontab = Crontab(first)
    names = [str(number) for number in range(20)]
    documents = [job_document(name, overlap="allow") for name in names]
    first.ask(CreateJobs([f"job_{name}" for name in names], documents))

    def look(node: Scheduler) -> None:
        for _ in range(5):
            node.engine.due_at = 0
            node.apply()

    try:
        for _ in range(5):
            first.clock.advance(MINUTE)
            threads = [threading.Thread(target=look, args=(node,)) for node in nodes]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        runs = crontab.runs(None)
        assert_sound(first.reader, first.engine.policy)
    finally:
        crontab.views.close()
        for node in nodes:
            node.close()
    assert len(runs) == len({(run.job_id, run.slot) for run in runs}) == 100


def test_many_jobs_that_are_due_are_fired_in_steps(crontab: Crontab) -> None:
    count = cron.STEP + 20
    names = [str(number) for number in range(count)]
    for part in (names[: count // 2], names[count // 2 :]):
        documents = [job_document(name) for name in part]
        crontab.scheduler.ask(CreateJobs([f"job_{name}" for name in part], documents))
    crontab.scheduler.pass_time(MINUTE)
    assert len(crontab.runs(None)) == cron.STEP
    assert crontab.scheduler.engine.due_at == crontab.scheduler.clock.now()
    crontab.settle()
    assert len({run.task_id for run in crontab.runs(None)}) == count


def test_what_many_jobs_have_missed_is_worked_off_in_steps(crontab: Crontab) -> None:
    for name in ("a", "b", "c"):
        crontab.add(name, misfire="skip", schedule={"kind": "every", "everyMs": 1000})
    crontab.scheduler.pass_time(3 * HOUR)
    assert {run.job_name for run in crontab.runs(None)} == {"a"}
    crontab.settle()
    missed = [run for run in crontab.runs(None) if run.status == "missed"]
    assert sorted(run.job_name for run in missed) == ["a", "b", "c"]


def test_a_zone_that_a_node_does_not_know_stops_only_its_job(crontab: Crontab) -> None:
    crontab.add("good")
    job = crontab.add("odd", schedule={"kind": "cron", "expr": "* * * * *", "tz": "UTC"})
    unknown = Schedule(kind="cron", expr="* * * * *", tz="Mars/Base")
    job.definition = msgspec.structs.replace(job.definition, schedule=unknown)
    engine = crontab.scheduler.engine
    tx = engine._begin(engine._connect())
    save_jobs(tx, [job])
    tx.finish(engine.name, 99)
    tx.connection.commit()
    crontab.pass_time(MINUTE)
    assert crontab.statuses("good") == ["queued"]
    odd = crontab.job("odd")
    assert (odd.definition.enabled, odd.disabled_reason, odd.next_run_at) == (False, "errors", None)
    assert odd.last_error is not None
    assert "Mars/Base" in odd.last_error


class NotedConnection(WatchedConnection):
    """Notes the statements that are sent."""

    noted: ClassVar[list[str]] = []

    def run(self, name: str, /, **values: Any) -> list[Row]:
        self.noted.append(name)
        return super().run(name, **values)

    def run_rows(self, name: str, rows: Sequence[Row], /, **values: Any) -> list[Row]:
        self.noted.append(name)
        return super().run_rows(name, rows, **values)


class NotedStore(WatchedStore):
    def writer(self) -> Any:
        return NotedConnection(self.real.writer(), self.at)


def test_other_tasks_and_jobs_that_are_not_due_cost_nothing(store: Store) -> None:
    scheduler = Scheduler(NotedStore(store, lambda *_: None))
    crontab = Crontab(scheduler)
    try:
        for name in map(str, range(50)):
            crontab.add(name)
        scheduler.apply()
        NotedConnection.noted.clear()
        for name in ("a", "b", "c"):
            scheduler.submit(name)
            scheduler.complete_next()
        assert NotedConnection.noted
        about_cron = [n for n in NotedConnection.noted if n.startswith(("job_", "run_"))]
        assert set(about_cron) <= {"job_due", "job_next"}  # a look when time is up, and no more
    finally:
        crontab.views.close()
        scheduler.close()
