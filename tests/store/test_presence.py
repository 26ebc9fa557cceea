"""Leases of nodes and workers that are gone, before they expire."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from fairlane.core.leases import CONNECTION_GONE
from fairlane.engine.commands import Beat, Complete
from fairlane.engine.presence_commands import ClosePresence, OpenPresence, ReclaimGone
from fairlane.store import node_lock
from fairlane.store.node_lock import NodeLock, key_of
from fairlane.store.tables import nodes as node_table
from tests.fakes.waiting import WAIT_SECONDS
from tests.store.scheduler import NODE, Scheduler, lease_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.store.base import Announcement, Row, Store

OTHER = "node_2"
WORKER = "worker-1"


def opened(scheduler: Scheduler, id_: str, agent: str | None = None) -> None:
    scheduler.ask(OpenPresence(WORKER, id_, agent, NODE))


def broke(scheduler: Scheduler, id_: str, agent: str | None = None, *, gone: bool = True) -> int:
    found: int = scheduler.ask(ClosePresence(WORKER, id_, agent, gone))
    return found


def run(scheduler: Scheduler, name: str, worker: str, **fields: object) -> None:
    scheduler.submit(name, **fields)
    scheduler.start(scheduler.lease_one(worker=worker))


def test_the_tasks_of_a_worker_that_is_gone_run_elsewhere_in_the_same_commit(
    scheduler: Scheduler,
) -> None:
    run(scheduler, "one", WORKER)
    run(scheduler, "other", "worker-2")
    opened(scheduler, "con_1")
    waiting = lease_request(5, worker="worker-3")
    outcome = scheduler.apply(ClosePresence(WORKER, "con_1", None, gone=True), waiting=[waiting])
    assert outcome.answers == [1]
    ((grant,),) = outcome.grants
    assert (grant.task.id, grant.task.attempts) == ("one", 2)
    assert scheduler.events("one")[-1].type == "task.retrying"
    assert scheduler.events("one")[-1].error == CONNECTION_GONE
    assert scheduler.view("other").state == "running"


def test_a_worker_that_returns_can_do_nothing(scheduler: Scheduler) -> None:
    scheduler.submit("one")
    old = scheduler.lease_one(worker=WORKER)
    opened(scheduler, "con_1")
    assert broke(scheduler, "con_1") == 1
    new = scheduler.lease_one(worker="worker-2")
    late = scheduler.refused(Complete(old.seq, old.fencing_token, "1"))
    assert late.code == "lease_lost"
    assert scheduler.complete(new).state == "done"


def test_a_worker_with_another_connection_is_not_gone(scheduler: Scheduler) -> None:
    run(scheduler, "one", WORKER)
    opened(scheduler, "con_1")
    opened(scheduler, "con_2")
    assert broke(scheduler, "con_1") == 0
    assert broke(scheduler, "con_1") == 0, "it is reported twice"
    assert broke(scheduler, "con_2") == 1


def test_a_connection_that_the_server_closed_says_nothing_about_the_worker(
    scheduler: Scheduler,
) -> None:
    run(scheduler, "one", WORKER)
    opened(scheduler, "con_1")
    assert broke(scheduler, "con_1", gone=False) == 0
    assert scheduler.view("one").state == "running"


def test_a_worker_of_one_agent_gives_back_only_leases_of_that_agent(scheduler: Scheduler) -> None:
    run(scheduler, "one", WORKER)
    run(scheduler, "two", WORKER, agent="b")
    opened(scheduler, "con_1", "b")
    opened(scheduler, "con_2")
    assert broke(scheduler, "con_1", "b") == 1
    assert (scheduler.view("one").state, scheduler.view("two").state) == ("running", "queued")


def test_leases_that_only_an_operator_reclaims_stay(scheduler: Scheduler) -> None:
    scheduler.set_lane("queue", autoReclaim=False)
    run(scheduler, "one", WORKER, lane="queue")
    opened(scheduler, "con_1")
    assert broke(scheduler, "con_1") == 0
    assert scheduler.view("one").state == "running"


def test_connections_to_a_server_that_has_ended_are_forgotten(scheduler: Scheduler) -> None:
    run(scheduler, "one", WORKER)
    scheduler.ask(OpenPresence(WORKER, "con_1", None, OTHER))
    scheduler.ask(Beat(NODE, "h", 1, "1", 0))
    opened(scheduler, "con_2")
    assert broke(scheduler, "con_2") == 1


# ------------------------------------------------------------------ nodes on PostgreSQL


class Locks:
    """A node's lock, and what it reported."""

    def __init__(self, store: Store, name: str) -> None:
        self.gone: list[str] = []
        self.changed = threading.Event()
        self.found = threading.Event()
        lock = store.announce(name, gone=self._gone, changed=self.changed.set)
        assert lock is not None
        self.lock: Announcement = lock
        lock.start()
        self.until_changed()
        assert lock.key == key_of(name)

    def _gone(self, names: list[str]) -> None:
        self.gone += names
        self.found.set()

    def until_changed(self) -> None:
        assert self.changed.wait(WAIT_SECONDS)
        self.changed.clear()


@pytest.fixture
def postgres_scheduler(postgres_store: Store) -> Iterator[Scheduler]:
    scheduler = Scheduler(postgres_store)
    yield scheduler
    scheduler.close()


@pytest.fixture
def locks(postgres_scheduler: Scheduler) -> Iterator[list[Locks]]:
    made = [Locks(postgres_scheduler.store, name) for name in (NODE, OTHER)]
    for name in (NODE, OTHER):
        postgres_scheduler.ask(Beat(name, "h", 1, "1", 0, lock_key=key_of(name)))
    yield made
    for one in made:
        one.lock.close()


def sessions_of(url: str, name: str) -> list[int]:
    """The sessions that hold a node's lock."""
    text = (
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 "
        "AND (classid::bigint << 32) + objid::bigint = %s"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        return [pid for (pid,) in connection.execute(text, [key_of(name)])]


def end(url: str, pid: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", [pid])


def test_a_node_whose_lock_is_gone_is_noticed_and_its_tasks_run_elsewhere(
    postgres_scheduler: Scheduler, locks: list[Locks]
) -> None:
    scheduler = postgres_scheduler
    run(scheduler, "one", OTHER)
    assert scheduler.ask(ReclaimGone([OTHER])) == 0, "it holds its lock"
    locks[1].lock.close()
    assert locks[0].found.wait(WAIT_SECONDS)
    assert locks[0].gone[0] == OTHER
    assert scheduler.ask(ReclaimGone([OTHER])) == 1
    assert scheduler.view("one").state == "queued"
    gone = {one.name: one.gone_at is not None for one in node_table.all_nodes(scheduler.reader)}
    assert gone == {NODE: False, OTHER: True}
    # It was only cut off: it is there again with its next heartbeat.
    scheduler.ask(Beat(OTHER, "h", 1, "1", 0))
    assert [one.gone_at for one in node_table.all_nodes(scheduler.reader)] == [None, None]


def test_a_node_whose_session_breaks_takes_its_lock_again_before_anyone_misses_it(
    postgres_scheduler: Scheduler, locks: list[Locks]
) -> None:
    (pid,) = sessions_of(postgres_scheduler.store.url, OTHER)
    end(postgres_scheduler.store.url, pid)
    locks[1].until_changed()  # lost, and taken again: one or two reports
    while not (new := sessions_of(postgres_scheduler.store.url, OTHER)):
        continue
    assert new != [pid]
    assert locks[0].gone == []


def test_a_node_that_announces_no_lock_is_judged_by_its_leases_alone(
    postgres_scheduler: Scheduler, locks: list[Locks]
) -> None:
    postgres_scheduler.ask(Beat("node_old", "h", 1, "1", 0))
    run(postgres_scheduler, "one", "node_old")
    locks[1].lock.close()
    assert locks[0].found.wait(WAIT_SECONDS)
    assert "node_old" not in locks[0].gone
    assert postgres_scheduler.ask(ReclaimGone(["node_old"])) == 0


class Silent:
    """A session whose connection has broken, and nobody has noticed."""

    def __init__(self) -> None:
        self.looked = threading.Event()
        self.ended = threading.Event()

    def run(self, name: str, /, **_: object) -> list[Row]:
        if name == "node_lock":
            return [(True,)]
        if self.looked.is_set():
            self.ended.wait(WAIT_SECONDS)
        self.looked.set()
        return []

    def wait_for_end(self, seconds: float) -> None: ...

    def close(self) -> None: ...


def test_a_node_that_is_not_certain_of_its_lock_announces_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise its leases are reclaimed again after each of its heartbeats."""
    now = [100.0]
    monkeypatch.setattr(node_lock, "_monotonic", lambda: now[0])
    session = Silent()
    lock = NodeLock(lambda: session, NODE, gone=lambda _: None, changed=lambda: None)
    lock.start()
    assert session.looked.wait(WAIT_SECONDS)
    assert lock.key == key_of(NODE)
    now[0] += node_lock.CERTAIN_SECONDS
    assert lock.key is None
    lock.close()
    session.ended.set()
