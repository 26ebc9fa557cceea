"""A node with warm caches never decides on stale rows, whichever process has written."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fairlane.clock import ManualClock, SystemClock
from fairlane.core.errors import LeaseLost
from fairlane.core.model import Task
from fairlane.engine.commands import Complete, Prune
from fairlane.store import transaction
from fairlane.store.ahead import ReadAhead
from fairlane.store.opening import open_store
from fairlane.store.postgres import PostgresConnection
from tests.cli.processes import FAIRLANE, environment
from tests.fakes.waiting import WAIT_SECONDS
from tests.store.invariants import assert_sound
from tests.store.scheduler import NODE, Scheduler, lease_request
from tests.store.stores import back_up
from tests.store.test_statements import CountingStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fairlane.store.base import Read, Row, Store
    from fairlane.store.counters import WriterCache

LONG_MS = 600_000
CLOCK_READ = 1  # where the process's clock judges, as in tests, its distance is read again
CACHED = {
    *("lane_all", "line_find", "line_of_tasks", "session_find"),
    *("task_by_seq", "task_changed", "task_stopped"),
}


def other_node(store: Store, clock: ManualClock) -> Scheduler:
    return Scheduler(open_store(store.url), clock, "node_b")


def by_node(act: Callable[[Scheduler, Task], object]) -> Callable[[Scheduler, Task], None]:
    def write(mine: Scheduler, running: Task) -> None:
        other = other_node(mine.store, mine.clock)
        act(other, running)
        other.close()

    return write


def by_command(mine: Scheduler, *arguments: str) -> None:
    command = [*FAIRLANE, *arguments, "--store", mine.store.url]
    subprocess.run(
        command, check=True, timeout=WAIT_SECONDS, env=environment(), capture_output=True
    )


@pytest.fixture
def nodes(postgres_store: Store) -> Iterator[tuple[Scheduler, Scheduler]]:
    """Two nodes on a store, which is sound in the end."""
    mine = Scheduler(postgres_store, ManualClock(), NODE)
    other = other_node(postgres_store, mine.clock)
    yield mine, other
    assert_sound(mine.reader, mine.engine.policy)
    other.close()
    mine.close()


WRITERS: dict[str, Callable[[Scheduler, Task], Any]] = {
    "a node submits": by_node(lambda other, _: other.submit("b1", "b2", agent="b")),
    "a node leases": by_node(lambda other, _: other.lease(1)),
    "a node completes what runs here": by_node(lambda other, task: other.complete(task)),
    "a node cancels what runs here": by_node(lambda other, task: other.cancel(task.id)),
    "a node cancels what waits": by_node(lambda other, _: other.cancel("a3")),
    "a node changes the policy": by_node(
        lambda other, _: other.set_policy(lanes={"main": {"maxInflight": 1}})
    ),
    "a command submits": lambda mine, _: by_command(mine, "submit", "--handler", "work"),
    "a command cancels what runs here": lambda mine, task: by_command(mine, "cancel", task.id),
}


@pytest.mark.slow
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_what_another_writer_did_is_seen_by_the_next_batch(
    store: Store, write: Callable[[Scheduler, Task], object]
) -> None:
    mine = Scheduler(store, ManualClock(SystemClock().now()), NODE)  # commands have that time too
    mine.submit("a1", "a2", "a3", session="s")
    mine.submit("a4", agent="c")
    running = mine.lease_one(ttl_ms=LONG_MS)
    mine.apply()  # nothing is stale here
    write(mine, running)
    before = mine.view(running.id).state
    outcome = mine.apply(waiting=[lease_request(5)])
    slots = mine.tally("main").slots
    assert slots <= mine.engine.policy.lanes["main"].max_inflight
    assert len(outcome.grants[0]) == len({grant.task.id for grant in outcome.grants[0]})
    if before == "cancelled":
        assert outcome.runs_to_stop == [(running.seq, running.fencing_token)]
    assert_sound(mine.reader, mine.engine.policy)
    mine.close()


@pytest.mark.parametrize("connected", [False, True], ids=["cut off", "connected"])
def test_a_node_that_goes_on_during_a_restore_counts_what_was_restored(
    postgres_store: Store,
    *,
    connected: bool,
) -> None:
    mine = Scheduler(postgres_store, ManualClock(), NODE)
    mine.submit("a1", "a2", session="s")
    restore = back_up(postgres_store, connected=connected)
    mine.submit("lost", session="s")
    mine.complete_next()
    restore()
    mine.reader.close()  # which a restore may have cut off
    mine.reader = postgres_store.reader()
    mine.submit("a3", session="s")
    assert mine.names(5) == ["a1"]
    assert_sound(mine.reader, mine.engine.policy)
    mine.close()


def test_a_node_that_is_alone_reads_nothing_again(postgres_store: Store) -> None:
    counting = CountingStore(postgres_store)
    mine = Scheduler(counting, ManualClock(), NODE)  # type: ignore[arg-type]  # in all that counts
    mine.submit("a1", "a2", session="s")
    task = mine.lease_one()
    counting.connection.sent.clear()
    mine.complete(task)
    mine.submit("a3", session="s")
    assert CACHED.isdisjoint(counting.connection.sent), counting.connection.sent
    other = other_node(postgres_store, mine.clock)
    other.submit("b1")
    mine.submit("a4")
    assert_sound(mine.reader, mine.engine.policy)
    other.close()
    mine.close()


def test_a_batch_after_another_node_takes_two_round_trips(
    nodes: tuple[Scheduler, Scheduler],
) -> None:
    mine, other = nodes
    mine.submit("a1", "a2")
    one, two = (grant.task for grant in mine.lease(2))
    other.submit("b1")
    mine.complete(one)
    assert mine.engine.round_trips == 3 + CLOCK_READ  # nobody expected the other node
    other.submit("b2")
    mine.complete(two)
    assert mine.engine.round_trips == 2 + CLOCK_READ
    mine.submit("a3")
    assert mine.engine.round_trips == 2


def test_what_was_planned_for_one_batch_is_not_read_by_the_next(
    postgres_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Scheduler(postgres_store, ManualClock(), NODE)
    mine.submit("a1")  # the first batch reads everything
    mine.submit("a2")  # another node may be active, so the rows are read with the lock
    sent: list[str] = []
    send = PostgresConnection._send

    def noting(self: PostgresConnection, read: Read) -> Any:
        sent.append(read.name)
        return send(self, read)

    monkeypatch.setattr(PostgresConnection, "_send", noting)
    mine.submit("a3")
    mine.submit("a4")
    assert sent == []
    mine.close()


def test_two_nodes_agree_whatever_isolation_the_database_prefers(postgres_store: Store) -> None:
    mine = Scheduler(postgres_store, ManualClock(), NODE)
    with psycopg.connect(postgres_store.url, autocommit=True) as connection:
        connection.execute(
            f"ALTER DATABASE {connection.info.dbname} "
            "SET default_transaction_isolation = 'repeatable read'"
        )
    others = [Scheduler(open_store(postgres_store.url), mine.clock, f"node_{n}") for n in "bc"]

    def submit(node: Scheduler) -> None:
        for number in range(30):
            node.submit(f"{node.engine.name}-{number}")

    with ThreadPoolExecutor() as threads:
        list(threads.map(submit, others))
    assert mine.tally("main").queued == 60
    assert_sound(mine.reader, mine.engine.policy)
    for node in (*others, mine):
        node.close()


def test_a_look_that_changes_nothing_keeps_the_caches(nodes: tuple[Scheduler, Scheduler]) -> None:
    mine, other = nodes
    mine.submit("a1")
    other.submit("b1")
    assert not mine.apply().committed
    mine.submit("a2")
    assert mine.engine.round_trips == 3  # only the lines of its agent are read


def test_only_tasks_that_another_process_changed_are_read_again(
    nodes: tuple[Scheduler, Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[list[int]] = []
    take = ReadAhead._take_tasks

    def noted(ahead: ReadAhead, changed: Sequence[Row], cache: WriterCache) -> None:
        read.append([row[0] for row in changed])
        take(ahead, changed, cache)

    monkeypatch.setattr(ReadAhead, "_take_tasks", noted)
    mine, other = nodes
    mine.submit("a1", "a2", "a3", "a4")
    started, renewed, cancelled, theirs = (grant.task for grant in mine.lease(4, ttl_ms=LONG_MS))
    mine.start(started)
    mine.renew(renewed, LONG_MS)
    other.cancel(cancelled.id)
    other.complete(theirs, "1")
    other.submit("b1")
    tasks = (started, renewed, cancelled, theirs)
    read.clear()
    answers = mine.apply(*(Complete(task.seq, task.fencing_token) for task in tasks)).answers
    assert [sorted(seqs) for seqs in read] == [[cancelled.seq, theirs.seq]]
    states = [one.state for one in answers if isinstance(one, Task)]
    assert states == ["done", "done", "cancelled", "done"]


def test_a_known_task_that_was_deleted_is_unknown_again(nodes: tuple[Scheduler, Scheduler]) -> None:
    mine, other = nodes
    mine.submit("a1")
    task = mine.lease_one(ttl_ms=LONG_MS)
    other.complete(task)
    other.clock.advance(mine.engine.policy.retention.ttl_ms + 1)
    assert other.ask(Prune(dry_run=False)) == 1
    refused = mine.refused(Complete(task.seq, task.fencing_token))
    assert isinstance(refused, LeaseLost)


def test_tasks_that_others_ended_do_not_pile_up(
    nodes: tuple[Scheduler, Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "KNOWN_MAX", 5)
    mine, other = nodes
    for number in range(12):
        mine.submit(f"a{number}")
        other.complete(mine.lease_one())
        assert len(mine.engine._cache.known) <= 5
