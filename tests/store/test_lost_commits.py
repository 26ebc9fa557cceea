"""A commit whose outcome got lost: asking again never does the work twice and never drops it."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pytest

from fairlane.clock import ManualClock
from fairlane.core.errors import StoreUnavailable
from fairlane.store.base import ConnectionLost
from fairlane.store.opening import open_store
from tests.fakes.waiting import WAIT_SECONDS
from tests.store.faults import (
    BEGIN,
    BEGUN,
    COMMIT,
    COMMITTED,
    CONNECT,
    MOMENTS,
    SAVE,
    BreakOnce,
    WatchedConnection,
    WatchedStore,
)
from tests.store.histories import play
from tests.store.invariants import assert_sound
from tests.store.proxy import CommitCutter
from tests.store.scheduler import NODE, Scheduler
from tests.store.stores import SQLITE, contents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fairlane.store.base import Store

every_moment = pytest.mark.parametrize("moment", MOMENTS)


class PatientClock(ManualClock):
    """Does not move while the engine waits between its tries."""

    def sleep(self, seconds: float) -> None:
        """Return at once."""


@pytest.fixture
def watched(store: Store) -> Iterator[Callable[..., Scheduler]]:
    yield from watch(store)


@pytest.fixture
def watched_postgres(postgres_store: Store) -> Iterator[Callable[..., Scheduler]]:
    yield from watch(postgres_store)


def watch(store: Store) -> Iterator[Callable[..., Scheduler]]:
    """Open schedulers whose write connections are watched."""
    opened: list[Scheduler] = []

    def open_one(at: Callable[[str, WatchedConnection], None], name: str = NODE) -> Scheduler:
        opened.append(Scheduler(WatchedStore(store, at), PatientClock(), name))
        return opened[-1]

    try:
        yield open_one
        assert_sound(opened[-1].reader, opened[-1].engine.policy)
    finally:
        for scheduler in opened:
            scheduler.close()


def plain(outcomes: list[Any]) -> list[Any]:
    """Outcomes as values that can be compared; of errors, what a caller sees."""
    return [msgspec.to_builtins(outcome, enc_hook=repr) for outcome in outcomes]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], dict[str, Any]]:
    """What the history gives when nothing breaks."""
    store = open_store(f"{SQLITE}{tmp_path_factory.mktemp('undisturbed') / 'fairlane.db'}")
    store.migrate()
    scheduler = Scheduler(store, PatientClock())
    outcomes = plain(play(scheduler))
    scheduler.close()
    return outcomes, contents(store)


@pytest.mark.slow
@every_moment
def test_a_connection_lost_at_any_moment_changes_nothing_in_the_end(
    watched: Callable[..., Scheduler],
    undisturbed: tuple[list[Any], dict[str, Any]],
    moment: str,
) -> None:
    fault = BreakOnce(moment)
    scheduler = watched(fault)
    outcomes = plain(play(scheduler, before_each=fault.arm))
    assert fault.struck >= 1
    assert (outcomes, contents(scheduler.store)) == undisturbed


def test_a_commit_that_ends_after_its_connection_was_lost_is_not_repeated(
    watched: Callable[..., Scheduler], store: Store
) -> None:
    """The database may still be busy with the old commit when we ask it about that commit."""
    late: list[threading.Thread] = []
    asked_again = threading.Event()

    def at(moment: str, connection: WatchedConnection) -> None:
        if moment == COMMIT and not late:
            late.append(threading.Thread(target=finish, args=(connection.real,)))
            connection.real = store.writer()  # which the engine will close
            late[0].start()
            raise ConnectionLost("no answer yet")
        if moment == BEGIN and late:
            asked_again.set()

    def finish(connection: Any) -> None:
        asked_again.wait(10)
        connection.commit()
        connection.close()

    scheduler = watched(at)
    scheduler.submit("first")
    late[0].join()
    assert scheduler.tally().submitted == 1
    assert scheduler.names(5) == ["first"]


def test_what_is_due_is_known_after_a_commit_without_an_answer(
    watched: Callable[..., Scheduler],
) -> None:
    fault = BreakOnce(COMMITTED)
    scheduler = watched(fault)
    scheduler.apply()
    fault.arm()
    scheduler.submit("first", deadline_at=scheduler.clock.now() + 100)
    assert fault.struck == 1
    assert scheduler.engine.due_at == scheduler.clock.now() + 100


@pytest.mark.parametrize(("moment", "known"), [(BEGIN, True), (COMMIT, False), (COMMITTED, False)])
def test_an_error_says_whether_the_outcome_is_known(
    watched: Callable[..., Scheduler], moment: str, *, known: bool
) -> None:
    broken = False

    def at(reached: str, _: WatchedConnection) -> None:
        nonlocal broken
        broken = broken or reached == moment
        if broken and reached in (moment, BEGIN):
            raise ConnectionLost("gone")

    scheduler = watched(at)
    with pytest.raises(StoreUnavailable) as error:
        scheduler.submit("first")
    assert ("had no effect" in error.value.message) == known
    assert (scheduler.find("first") is not None) == (moment == COMMITTED)


def test_two_lost_answers_in_a_row_are_one_commit(watched: Callable[..., Scheduler]) -> None:
    lost: list[str] = []

    def at(moment: str, _: WatchedConnection) -> None:
        if moment == COMMITTED or (moment == BEGUN and 0 < len(lost) < 3):
            lost.append(moment)
            raise ConnectionLost("gone")

    scheduler = watched(at)
    scheduler.submit("first", "second")
    assert lost == [COMMITTED, BEGUN, BEGUN]
    assert scheduler.tally().submitted == 2


# -------------------------------------------------------------------- real connections that die


@pytest.fixture
def administrator(postgres_store: Store) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_store.url, autocommit=True) as connection:
        yield connection


def pid_of(connection: WatchedConnection) -> int:
    real: Any = connection.real
    pid: int = real._connection.info.backend_pid
    return pid


def wait_until_gone(administrator: psycopg.Connection[Any], pid: int) -> None:
    give_up_at = time.monotonic() + WAIT_SECONDS
    while administrator.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]).fetchall():
        assert time.monotonic() < give_up_at
        time.sleep(0.001)


@pytest.mark.slow
@every_moment
def test_a_killed_backend_changes_nothing_in_the_end(
    watched_postgres: Callable[..., Scheduler],
    administrator: psycopg.Connection[Any],
    undisturbed: tuple[list[Any], dict[str, Any]],
    moment: str,
) -> None:
    armed, struck = False, 0

    def arm() -> None:
        nonlocal armed
        armed = True

    def at(reached: str, connection: WatchedConnection) -> None:
        nonlocal armed, struck
        if armed and reached == moment:
            armed, struck = False, struck + 1
            administrator.execute("SELECT pg_terminate_backend(%s)", [pid_of(connection)])
            wait_until_gone(administrator, pid_of(connection))
            if moment == COMMITTED:
                raise ConnectionLost("the answer was on its way")

    scheduler = watched_postgres(at)
    outcomes = plain(play(scheduler, before_each=arm))
    assert struck >= 1
    assert (outcomes, contents(scheduler.store)) == undisturbed


@pytest.mark.slow
def test_answers_lost_on_the_way_change_nothing_in_the_end(
    postgres_store: Store,
    tmp_path: Path,
    undisturbed: tuple[list[Any], dict[str, Any]],
) -> None:
    with CommitCutter(postgres_store.url, tmp_path) as proxy:
        scheduler = Scheduler(open_store(proxy.url), PatientClock())
        outcomes = plain(play(scheduler, before_each=proxy.arm))
        scheduler.close()
    assert proxy.cuts >= 10
    assert (outcomes, contents(postgres_store)) == undisturbed


def test_a_holder_of_the_lock_that_freezes_loses_it(
    watched_postgres: Callable[..., Scheduler], administrator: psycopg.Connection[Any]
) -> None:
    """Others go on, its late commit fails, and its batch is carried out once when it wakes up."""
    other = watched_postgres(lambda *_: None, "other")
    frozen: list[int] = []

    def at(moment: str, connection: WatchedConnection) -> None:
        real: Any = connection.real
        if moment == CONNECT and not frozen:
            real._connection.execute("SET idle_in_transaction_session_timeout = 200")
        if moment == SAVE and not frozen:
            real._pipe.sync()
            frozen.append(pid_of(connection))
            wait_until_gone(administrator, frozen[0])
            other.submit("others")

    slow = watched_postgres(at, "slow")
    slow.submit("slow")
    assert frozen
    assert [slow.view(name).task.seq for name in ("others", "slow")] == [1, 2]
    assert slow.tally().submitted == 2


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_while_connections_are_killed_at_random(
    watched_postgres: Callable[..., Scheduler], administrator: psycopg.Connection[Any]
) -> None:
    """The signal is sent and not waited for, so the end comes at some moment after that."""
    chance, kills = random.Random(1), 0

    def at(_: str, connection: WatchedConnection) -> None:
        nonlocal kills
        if chance.random() < 0.06:
            kills += 1
            administrator.execute("SELECT pg_terminate_backend(%s)", [pid_of(connection)])

    scheduler = watched_postgres(at)
    acknowledged, unknown = [], []
    for number in range(80):
        try:
            scheduler.submit(f"t{number}")
            acknowledged.append(f"t{number}")
        except StoreUnavailable:
            unknown.append(f"t{number}")
    assert kills > 5
    assert len(acknowledged) > 40
    stored = {row[1] for row in contents(scheduler.store)["task"]}
    assert set(acknowledged) <= stored <= {*acknowledged, *unknown}
