"""One node that goes silent does not stop the others, wherever in its work that happens.

The silent node's link is a proxy that freezes: in the middle of a message to the database, in the
middle of an answer, or between two. The database keeps such a session for as long as it is told to.
"""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fairlane.clock import SystemClock
from fairlane.core.errors import StoreUnavailable
from fairlane.engine.commands import Submit
from fairlane.engine.engine import Engine
from fairlane.store import postgres
from fairlane.store.base import ConnectionLost
from fairlane.store.opening import open_store
from tests.fakes.waiting import WAIT_SECONDS, steadily_here, within
from tests.store.proxy import TO_CLIENT, TO_SERVER, Freezer
from tests.store.scheduler import submission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fairlane.store.base import Store

RECOVERY_SECONDS = 6.0
LARGE = "x" * 800_000
HUGE = 20_000_000


@pytest.fixture(params=["with its own limit", "without, as before PostgreSQL 17"])
def transactions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param.startswith("without"):
        monkeypatch.setattr(postgres, "TRANSACTION_TIMEOUT_FROM", 10**9)


def idle(_connection: Any, link: Freezer) -> None:
    link.freeze()


def in_a_message(connection: Any, link: Freezer) -> None:
    link.freeze_after(100_000, TO_SERVER)
    connection.run_rows("request_insert", [(77, LARGE, None)])
    connection.commit()


def in_an_answer(connection: Any, link: Freezer) -> None:
    link.freeze_after(100_000, TO_CLIENT)
    connection._connection.execute(f"SELECT repeat('x', {HUGE})").fetchall()


@contextmanager
def silent_holder(
    store: Store, folder: Path, work: Callable[[Any, Freezer], None]
) -> Iterator[Freezer]:
    """A node that holds the lock and whose link freezes while it does its work."""
    folder.mkdir()
    with Freezer(store.url, folder) as link:
        connection = open_store(link.url).writer()
        connection.begin()

        def go_on() -> None:
            with suppress(ConnectionLost, psycopg.Error):
                work(connection, link)

        node = threading.Thread(target=go_on)
        node.start()
        assert link.frozen.wait(WAIT_SECONDS)
        yield link
    node.join()
    connection.close()


@pytest.mark.slow
@pytest.mark.usefixtures("transactions")
@pytest.mark.parametrize("work", [idle, in_a_message, in_an_answer])
def test_others_go_on_soon_after_a_node_has_gone_silent(
    postgres_store: Store, tmp_path: Path, work: Callable[[Any, Freezer], None]
) -> None:
    engine = Engine(postgres_store, SystemClock(), name="other")
    numbers = iter(range(10))

    def scene() -> None:
        number = next(numbers)
        folder = tmp_path / str(number)
        with silent_holder(postgres_store, folder, work), within(RECOVERY_SECONDS):
            request = Submit([submission(f"large {number}", body=f'{{"x":"{LARGE}"}}')])
            (answer,) = engine.apply([request]).answers
            assert [task.id for task in answer] == [f"large {number}"]

    with closing(engine):
        steadily_here(scene)


def test_a_node_does_not_fall_silent_by_itself_when_it_sends_much(postgres_store: Store) -> None:
    """More than the system takes at once: the rest has to follow without anybody asking."""
    engine = Engine(postgres_store, SystemClock(), name="node")
    batch = [Submit([submission(f"t{number}", body=f'{{"x":"{LARGE}"}}')]) for number in range(14)]
    with closing(engine):
        assert engine.apply(batch).committed


@pytest.mark.slow
def test_a_holder_that_goes_on_is_left_alone(postgres_store: Store) -> None:
    engine = Engine(postgres_store, SystemClock(), name="other")
    holder: Any = postgres_store.writer()
    holder.begin()
    answers: list[Any] = []

    def wait_for_the_lock() -> None:
        answers.append(engine.apply([Submit([submission("first")])]))

    waiter = threading.Thread(target=wait_for_the_lock)
    waiter.start()
    for _ in range(8):  # longer in all than anybody may be silent
        assert holder._connection.execute("SELECT pg_sleep(0.5), 7").fetchone()[1] == 7
    holder.run("secret_set", secret="kept")
    holder.commit()
    waiter.join()
    assert len(answers) == 1
    with closing(postgres_store.reader()) as reader:
        assert reader.run("secret_get") == [("kept",)]
    holder.close()
    engine.close()


@pytest.mark.slow
def test_a_session_that_is_not_a_nodes_is_left_alone(postgres_store: Store) -> None:
    """An operator's session holds the lock: nodes do not end it, and callers get an error."""
    engine = Engine(postgres_store, SystemClock(), name="other")
    with psycopg.connect(postgres_store.url) as operator:
        operator.execute("SELECT * FROM scheduler FOR UPDATE")
        with pytest.raises(StoreUnavailable, match="had no effect"):
            engine.apply([Submit([submission("first")])])
        assert operator.execute("SELECT 7").fetchone() == (7,)
        operator.rollback()
    assert engine.apply([Submit([submission("first")])]).committed
    engine.close()
