"""The recount reports nothing for a sound store, and names each wrong counter."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import apsw
import psycopg
import pytest

from fairlane.engine.reads.recount import recount
from fairlane.engine.reads.views import Views
from tests.store.scheduler import Scheduler, submission
from tests.store.stores import SQLITE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import LiteralString

    from fairlane.store.base import Store


@pytest.fixture
def scheduler(store: Store) -> Iterator[Scheduler]:
    """Something of everything. What a test spoils here is not looked at afterwards."""
    found = Scheduler(store)
    found.batch(*(submission(f"b{number}") for number in range(4)), parallelism=2)
    found.submit("s1", "s2", session="s")
    found.submit("child", depends_on=("b0", "b1", "unknown"))
    found.submit("parked", max_attempts=1, priority=-20)
    found.fail(found.lease_one())
    found.lease(2)
    assert recount(found.reader) == []
    yield found
    found.close()


def spoil(store: Store, statement: LiteralString) -> None:
    """Change something behind everybody's back."""
    if store.dialect == "sqlite":
        with contextlib.closing(apsw.Connection(store.url.removeprefix(SQLITE))) as file:
            file.execute(statement)
    else:
        with psycopg.connect(store.url, autocommit=True) as connection:
            connection.execute(statement)


SPOILT: list[tuple[LiteralString, list[str]]] = [
    (
        "UPDATE lane SET queued = queued + 1",
        [
            "lane main: queued is 6, but a recount gives 5",
            "lane main: not all submitted tasks are accounted for",
        ],
    ),
    ("UPDATE line SET ready = 9", ["line main/a/handler/work: ready is 9, but a recount gives 1"]),
    (
        "UPDATE session SET waiting = 5",
        ["session s: has (1, 5, 0, 0), but a recount gives (1, 1, 0, 0)"],
    ),
    (
        "UPDATE session SET interrupted = 1",
        ["session s: waits for interrupted runs to stop, but no run was interrupted"],
    ),
    ("DELETE FROM session", ["session s: has (0, 0, 0, 0), but a recount gives (1, 1, 0, 0)"]),
    (
        "UPDATE batch SET open = 3",
        ["batch batch: has (4, 3, 2, 2), but a recount gives (4, 4, 2, 2)"],
    ),
    (
        "UPDATE batch SET holders = 0",
        ["batch batch: has (4, 4, 0, 2), but a recount gives (4, 4, 2, 2)"],
    ),
    (
        "UPDATE batch SET waiting = 9",
        ["batch batch: has (4, 4, 2, 9), but a recount gives (4, 4, 2, 2)"],
    ),
    (
        "UPDATE batch SET total = 3",
        ["batch batch: has (3, 4, 2, 2), but a recount gives (4, 4, 2, 2)"],
    ),
    ("DELETE FROM batch", ["batch batch: the batch is missing, but its tasks exist"]),
    (
        "UPDATE scheduler SET open_edges = 8",
        ["dependencies: 8 are counted as open, but a recount gives 3"],
    ),
    (
        "UPDATE scheduler SET unsettled = 2",
        ["dependencies: 2 parents are counted as unsettled, but a recount gives 0"],
    ),
    (
        "INSERT INTO unsettled (parent, edges, state) VALUES ('x', 1, 'done')",
        ["dependencies: 0 parents are counted as unsettled, but a recount gives 1"],
    ),
    (
        "UPDATE task SET unmet = 2 WHERE id = 'child'",
        ["task child: waits for 2 tasks, but a recount gives 3"],
    ),
    (
        "UPDATE dependency SET state = 1 WHERE parent = 'b0'",
        [
            "dependencies: 3 are counted as open, but a recount gives 2",
            "task child: waits for 3 tasks, but a recount gives 2",
        ],
    ),
]


@pytest.mark.parametrize(("statement", "problems"), SPOILT, ids=[one for one, _ in SPOILT])
def test_what_was_spoilt_is_named(
    scheduler: Scheduler, statement: LiteralString, problems: list[str]
) -> None:
    spoil(scheduler.store, statement)
    assert recount(scheduler.reader) == problems
    views = Views(scheduler.store)
    assert views.disagreements() == problems
    views.close()


def test_a_task_that_waits_for_nothing_is_named(scheduler: Scheduler) -> None:
    """The numbers agree, and still it would wait for ever."""
    spoil(scheduler.store, "UPDATE task SET unmet = 0 WHERE id = 'child'")
    spoil(scheduler.store, "UPDATE scheduler SET open_edges = 0")
    spoil(scheduler.store, "DELETE FROM dependency")
    problems = recount(scheduler.reader)
    assert problems == ["task child: waits for 0 tasks, but a recount gives 0"]


def test_a_batch_remembers_more_tasks_than_are_kept(scheduler: Scheduler) -> None:
    scheduler.apply()
    spoil(scheduler.store, "UPDATE batch SET total = 9")
    assert recount(scheduler.reader) == []
