"""What a commit sends: each row once, and statements that are prepared once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from fairlane.engine.commands import Complete, Start, Submit
from fairlane.store import queries, sqlite
from fairlane.store.sqlite import SqliteConnection
from tests.store.faults import WatchedConnection, WatchedStore
from tests.store.scheduler import Scheduler, lease_request, submission

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.core.model import Task
    from fairlane.store.base import Row, Store

# A leasing commit that completes, passes turns on and leases from a backlog.
LEASING_MAX = 12
STARTING_MAX = 5


class Counted(WatchedConnection):
    """A connection that counts the statements it is asked for, by name."""

    def __init__(self, real: Any) -> None:
        super().__init__(real, lambda _, __: None)
        self.sent: Counter[str] = Counter()

    def run(self, name: str, /, **values: Any) -> list[Row]:
        self.sent[name] += 1
        return super().run(name, **values)

    def run_rows(self, name: str, rows: Sequence[Row], /, **values: Any) -> list[Row]:
        self.sent[name] += bool(rows)
        return super().run_rows(name, rows, **values)

    def change_rows(self, name: str, rows: Sequence[Row]) -> None:
        self.sent[name] += bool(rows)
        self.real.change_rows(name, rows)


class CountingStore(WatchedStore):
    def __init__(self, real: Store) -> None:
        super().__init__(real, lambda _, __: None)

    def writer(self) -> Any:
        self.connection = Counted(self.real.writer())
        return self.connection


@pytest.fixture
def counted(store: Store) -> tuple[Scheduler, CountingStore]:
    """Two runs of sessions in which more wait, and a backlog beside them."""
    counting = CountingStore(store)
    scheduler = Scheduler(counting)  # type: ignore[arg-type]  # a store in all that counts
    scheduler.set_policy(lanes={"main": {"maxInflight": 2}})
    scheduler.apply(
        *(
            Submit([submission(f"t{number}", f"agent{number % 3}", session=f"s{number % 4}")])
            for number in range(40)
        )
    )
    return scheduler, counting


def _lease(scheduler: Scheduler, *requests: object) -> list[Task]:
    outcome = scheduler.engine.apply(requests, [lease_request(2)])
    return [grant.task for grant in outcome.grants[0]]


def _complete(tasks: Sequence[Task]) -> list[Complete]:
    return [Complete(task.seq, task.fencing_token, "1") for task in tasks]


def test_a_commit_that_completes_and_leases_writes_each_table_once(
    counted: tuple[Scheduler, CountingStore],
) -> None:
    scheduler, store = counted
    tasks = _lease(scheduler)
    tasks = _lease(scheduler, *_complete(tasks))
    store.connection.sent.clear()
    assert len(_lease(scheduler, *_complete(tasks))) == 2
    sent = store.connection.sent
    writes = [name for name in sent if name.endswith(("_save", "_update", "_insert", "_forget"))]
    assert {name: sent[name] for name in writes if sent[name] > 1} == {}
    if not store.shared:
        assert sent.total() <= LEASING_MAX, dict(sent)
    scheduler.close()


def test_a_commit_that_starts_tasks_counts_nothing(
    counted: tuple[Scheduler, CountingStore],
) -> None:
    scheduler, store = counted
    tasks = _lease(scheduler)
    store.connection.sent.clear()
    scheduler.apply(*(Start(task.seq, task.fencing_token) for task in tasks))
    sent = store.connection.sent
    assert {"lane_save", "line_update", "session_save"}.isdisjoint(sent)
    if not store.shared:
        assert sent.total() <= STARTING_MAX, dict(sent)
    scheduler.close()


def test_a_statement_over_many_rows_is_short_enough_to_be_prepared_once(
    sqlite_store: Store,
) -> None:
    connection = sqlite_store.writer()
    assert isinstance(connection, SqliteConnection)
    for name, statement in queries.load(queries.SQLITE).items():
        if statement.columns:
            most = connection._rows_max(name)
            assert len(connection._rows_text(name, most)[0]) <= sqlite._CACHED_BYTES_MAX
            assert most >= 64, name
    connection.close()


def test_the_limit_is_that_of_the_cache() -> None:
    limit = apsw.Connection(":memory:").cache_stats()["max_cacheable_bytes"]
    assert limit == sqlite._CACHED_BYTES_MAX


def test_plans_do_not_depend_on_values(sqlite_store: Store) -> None:
    connection = sqlite_store.writer()
    assert isinstance(connection, SqliteConnection)
    assert connection._connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1) == 1
    connection.close()
